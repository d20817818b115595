//! The table.

use tailrace_types::{KvType, WeightType};

use super::{AttentionCase, Case, CaseOp};
use crate::plan::spec::{Activation, Pairing, Reach, Rope, TensorSlice, Yarn};
use crate::plan::{ActivationType, AttentionShape, Bucket};

/// Rows of decode steps that kernels for few rows tell apart, and of chunks within, at and past a tile.
const DECODE_ROWS: [u32; 6] = [1, 2, 3, 8, 9, 16];
const PREFILL_ROWS: [u32; 4] = [1, 7, 128, 300];

/// Depths of products whose rows must have the same bits alone and in company: devices choose kernels by it.
pub const ROW_LAW_DEPTHS: [u64; 5] = [2048, 2560, 4096, 4608, 5120];

/// Every op with every type and the shapes that matter.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    rope_tables(&mut cases);
    embeddings(&mut cases);
    norms(&mut cases);
    gates_and_caps(&mut cases);
    products(&mut cases);
    large_products(&mut cases);
    position_embeddings(&mut cases);
    decode_attention(&mut cases);
    prefill_attention(&mut cases);
    heads(&mut cases);
    cases
}

/// Groups of cases whose common rows must have the same bits: other numbers of rows, and other places of the cells.
pub fn row_law_cases() -> Vec<Vec<Case>> {
    let mut groups = Vec::new();
    for &ty in WeightType::ALL {
        let op = CaseOp::MatMul { ty, k: depth(ty, 0), n: vec![100], bias: false, accumulate: false };
        let group = |bucket, rows: &[u32]| rows.iter().map(|&rows| case(bucket, rows, op.clone())).collect();
        groups.push(group(Bucket::Prefill, &[1, 7, 128, 2048]));
        groups.push(group(Bucket::Decode, &[1, 2, 8, 9]));
        for k in ROW_LAW_DEPTHS {
            let op = CaseOp::MatMul { ty, k, n: vec![24], bias: true, accumulate: false };
            groups.push([1, 2].map(|rows| case(Bucket::Decode, rows, op.clone())).to_vec());
        }
    }
    for (i, shape) in shapes().into_iter().chain([many_heads()]).enumerate() {
        let places = |bucket, rows: &[u32]| {
            let mut group = Vec::new();
            for &rows in rows {
                for tail in [false, true] {
                    let op = AttentionCase { cells: vec![1700, 900, 2300], tail, ..AttentionCase::new(shape) };
                    group.push(case(bucket, rows, CaseOp::Attention(op)));
                }
            }
            group
        };
        groups.push(places(Bucket::Decode, &[1, 3]));
        if i % 2 == 0 {
            groups.push(places(Bucket::Prefill, &[1, 7, 128, 300]));
        }
    }
    groups
}

/// A case that is named after what it is.
fn case(bucket: Bucket, rows: u32, op: CaseOp) -> Case {
    let quick = rows <= 9;
    Case { name: String::new(), bucket, rows, activations: ActivationType::Auto, op, repeat: 1, quick }.named()
}

impl Case {
    pub(super) fn named(mut self) -> Self {
        let Case { bucket, rows, activations, op, .. } = &self;
        let activations = if *activations == ActivationType::F32 { ", f32 activations" } else { "" };
        self.name = format!("{} {bucket:?} x {rows}{activations}", op.name());
        self
    }
}

impl CaseOp {
    fn name(&self) -> String {
        match self {
            CaseOp::RopeTable { rope, cells } => {
                let factors = if rope.factors.is_some() { ", factors" } else { "" };
                let yarn = if rope.yarn.is_some() { ", YaRN" } else { "" };
                format!("RopeTable of {} / {}{factors}{yarn} at {cells}", rope.dims, rope.linear)
            }
            CaseOp::Embed { ty, cols, scale, tied } => format!("Embed {ty} {cols}, scale {scale}, tied {tied}"),
            CaseOp::Norm { cols, reader } => format!("Norm {cols} for {reader}"),
            CaseOp::AddNorm { cols } => format!("AddNorm {cols}"),
            CaseOp::MatMul { ty, k, n, bias, accumulate } => {
                let (bias, accumulate) = (if *bias { " + bias" } else { "" }, if *accumulate { " +=" } else { "" });
                format!("MatMul {ty} {n:?} x {k}{bias}{accumulate}")
            }
            CaseOp::Attention(attention) => attention.name(),
            CaseOp::Gate { cols, activation, reader } => format!("Gate {activation:?} {cols} for {reader}"),
            CaseOp::SoftCap { cols, cap } => format!("SoftCap {cols} of {cap}"),
            CaseOp::Head { ty, k, vocab, cap } => format!("Head {ty} {vocab} x {k}, cap {cap:?}"),
        }
    }
}

impl AttentionCase {
    fn name(&self) -> String {
        let AttentionShape { heads, kv_heads, dk, dv, k_type, v_type } = self.shape;
        let mut name = format!("Attention {heads}/{kv_heads}/{dk}");
        if dv != dk {
            name += &format!("/{dv}");
        }
        name += &format!(" {k_type} {v_type} after {:?}", self.cells);
        if let Reach::Sliding(window) = self.reach {
            name += &format!(", window {window}");
        }
        if let Some(cap) = self.cap {
            name += &format!(", cap {cap}");
        }
        let flags = [(self.tail, "tail"), (self.shared, "shared"), (self.norms, "norms")];
        for (_, flag) in flags.iter().filter(|(set, _)| *set) {
            name += &format!(", {flag}");
        }
        if self.prepares_keys() {
            name += &format!(", rope {:?} of {}", self.rope.pairing, self.rope.dims);
        }
        if self.reader != WeightType::F32 {
            name += &format!(", for {}", self.reader);
        }
        name
    }
}

fn rope(dims: u32) -> Rope {
    Rope { pairing: Pairing::Half, dims, base: 1e4, linear: 1.0, factors: None, yarn: None, mscale: 1.0 }
}

fn rope_tables(cases: &mut Vec<Case>) {
    let yarn = Yarn { original_context: 4096, ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 };
    let factors = TensorSlice { tensor: 9, ty: WeightType::F32, first_row: 0, rows: 1, cols: 32 };
    let ropes = [
        rope(128),
        Rope { base: 1e6, linear: 4.0, ..rope(64) },
        Rope { base: 5e5, factors: Some(factors), ..rope(64) },
        Rope { yarn: Some(yarn), linear: 8.0, mscale: 1.2, ..rope(128) },
    ];
    for (i, rope) in ropes.into_iter().enumerate() {
        let op = |cells| CaseOp::RopeTable { rope: rope.clone(), cells };
        cases.push(case(Bucket::Prefill, 300, op(0)));
        // Angles of tens of thousands of radians.
        let deep = case(Bucket::Decode, 2, op(39_000));
        cases.push(Case { quick: i == 0, ..deep });
    }
}

fn embeddings(cases: &mut Vec<Case>) {
    for &ty in WeightType::ALL {
        for (bucket, rows, scale, tied) in [(Bucket::Prefill, 9, 1.0, true), (Bucket::Decode, 3, 33.9, false)] {
            cases.push(case(bucket, rows, CaseOp::Embed { ty, cols: depth(ty, 0), scale, tied }));
        }
    }
}

fn norms(cases: &mut Vec<Case>) {
    for reader in [WeightType::F32, WeightType::Q4_0] {
        for (i, cols) in [64, 576, 896, 2048, 5120].into_iter().enumerate() {
            for (bucket, rows) in [(Bucket::Decode, 1 + i as u32), (Bucket::Prefill, 33)] {
                cases.push(case(bucket, rows, CaseOp::Norm { cols, reader }));
            }
        }
    }
    for cols in [64, 1152, 5120] {
        cases.push(case(Bucket::Decode, 2, CaseOp::AddNorm { cols }));
        cases.push(case(Bucket::Prefill, 65, CaseOp::AddNorm { cols }));
    }
}

fn gates_and_caps(cases: &mut Vec<Case>) {
    for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluTanhF16] {
        for (cols, reader) in [(256, WeightType::F32), (1536, WeightType::Q8_0)] {
            cases.push(case(Bucket::Decode, 3, CaseOp::Gate { cols, activation, reader }));
            cases.push(case(Bucket::Prefill, 40, CaseOp::Gate { cols, activation, reader }));
        }
    }
    cases.push(case(Bucket::Decode, 2, CaseOp::SoftCap { cols: 1056, cap: 30.0 }));
    cases.push(case(Bucket::Prefill, 20, CaseOp::SoftCap { cols: 64, cap: 50.0 }));
}

/// The `i`-th of the depths that are tried with weights of a type: usual ones, of one panel or many, whole or not.
fn depth(ty: WeightType, i: usize) -> u64 {
    match ty.block().elements {
        256 => [512, 768, 1536, 256][i % 4],
        _ => [576, 896, 1536, 64][i % 4],
    }
}

fn products(cases: &mut Vec<Case>) {
    let widths: [&[u64]; 4] = [&[72], &[96, 32, 32], &[200], &[100]];
    let decode = DECODE_ROWS.map(|rows| (Bucket::Decode, rows));
    let prefill = PREFILL_ROWS.map(|rows| (Bucket::Prefill, rows));
    for (t, &ty) in WeightType::ALL.iter().enumerate() {
        for (i, &(bucket, rows)) in decode.iter().chain(&prefill).enumerate() {
            let n = widths[(t + i / 2) % 4].to_vec();
            // What a result is added to has the width of a stream.
            let accumulate = i % 3 == 0;
            let n = if accumulate { n.iter().map(|n| n.next_multiple_of(32)).collect() } else { n };
            let op = CaseOp::MatMul { ty, k: depth(ty, t + i), n, bias: i % 2 == 0, accumulate };
            cases.push(case(bucket, rows, op));
        }
        let op = CaseOp::MatMul { ty, k: depth(ty, t), n: vec![96], bias: true, accumulate: false };
        let exact = |bucket, rows| Case { activations: ActivationType::F32, ..case(bucket, rows, op.clone()) };
        cases.push(exact(Bucket::Decode, 2).named());
        cases.push(exact(Bucket::Prefill, 33).named());
    }
}

/// Matrices of more than one tile each way, and sums over a long `k`.
fn large_products(cases: &mut Vec<Case>) {
    let types = [WeightType::Q4_K, WeightType::Q6_K, WeightType::Q8_0, WeightType::Q4_0, WeightType::BF16];
    for (i, ty) in types.into_iter().enumerate() {
        for (bucket, rows, k, n) in
            [(Bucket::Prefill, 140, 1536, 608), (Bucket::Decode, 1, 2048, 3008), (Bucket::Decode, 5, 8960, 160)]
        {
            let op = CaseOp::MatMul { ty, k, n: vec![n], bias: false, accumulate: i % 2 == 1 };
            cases.push(Case { quick: false, ..case(bucket, rows, op) });
        }
    }
}

fn shape(heads: u32, kv_heads: u32, head: u32, kv_type: KvType) -> AttentionShape {
    AttentionShape { heads, kv_heads, dk: head, dv: head, k_type: kv_type, v_type: kv_type }
}

/// Heads of usual models, groups of 1 to 8, with each storage type.
fn shapes() -> Vec<AttentionShape> {
    vec![
        shape(4, 4, 64, KvType::F16),
        shape(9, 3, 64, KvType::Bf16),
        shape(8, 1, 96, KvType::F16),
        shape(10, 2, 128, KvType::F16),
        shape(16, 8, 256, KvType::F16),
        shape(14, 2, 64, KvType::F32),
        AttentionShape { k_type: KvType::F32, ..shape(8, 4, 128, KvType::Bf16) },
    ]
}

/// More query heads than a kernel takes at a time, all on one KV head.
fn many_heads() -> AttentionShape {
    shape(71, 1, 64, KvType::F16)
}

/// Pairs, partly rotated heads, norms: over few cells, so that keys and values matter one by one.
fn position_embeddings(cases: &mut Vec<Case>) {
    for (i, (head, dims)) in [(64, 64), (96, 96), (128, 64), (64, 20)].into_iter().enumerate() {
        for pairing in [Pairing::Half, Pairing::Adjacent] {
            let new = AttentionCase::new(shape(4, 2, head, KvType::ALL[i % 3]));
            let rope = Rope { pairing, ..rope(dims) };
            let op = AttentionCase { rope, norms: i % 2 == 0, cells: vec![0, 3, 700], ..new };
            cases.push(case(Bucket::Decode, 3, CaseOp::Attention(op.clone())));
            cases.push(case(Bucket::Prefill, 9, CaseOp::Attention(AttentionCase { cells: vec![250], ..op })));
        }
    }
}

fn decode_attention(cases: &mut Vec<Case>) {
    // Of 1, 255, 256, 257, 1300 and 5000 cells, the row's own included.
    let lengths = vec![0, 254, 255, 256, 1299, 4999];
    let with = |rows, op| case(Bucket::Decode, rows, CaseOp::Attention(op));
    for (i, shape) in shapes().into_iter().enumerate() {
        for tail in [false, true] {
            let op = AttentionCase { cells: lengths.clone(), tail, ..AttentionCase::new(shape) };
            cases.push(Case { quick: i == 1, ..with(6, op) });
        }
        let new = AttentionCase { cells: vec![4999], ..AttentionCase::new(shape) };
        let sliding = AttentionCase { reach: Reach::Sliding([1024, 100][i % 2]), ..new.clone() };
        let capped = AttentionCase { cap: Some(20.0), scale: 4.0 * new.scale, tail: true, ..new.clone() };
        let formatted = AttentionCase { reader: WeightType::Q4_0, ..new };
        cases.extend([sliding, capped, formatted].map(|op| with(1, op)));
    }
    let shared = AttentionCase {
        cells: vec![3000, 2000, 2560, 700],
        shared: true,
        tail: true,
        ..AttentionCase::new(shape(14, 2, 64, KvType::F16))
    };
    cases.push(with(4, shared));
    // With so many query heads to a KV head, 16 blocks share a record of partials on a GPU. The tail is read in several
    // launches, so that a launch goes on with the records that the one before it left in memory.
    let many = AttentionCase { cells: vec![3500], tail: true, ..AttentionCase::new(many_heads()) };
    cases.push(with(1, many));
}

fn prefill_attention(cases: &mut Vec<Case>) {
    let with = |rows, op| case(Bucket::Prefill, rows, CaseOp::Attention(op));
    let depths =
        [(300, 0, false), (128, 255, false), (7, 256, false), (300, 1300, true), (64, 5000, true), (1, 1299, false)];
    for (i, shape) in shapes().into_iter().enumerate() {
        for (j, &(rows, cells, tail)) in depths.iter().enumerate() {
            let op = AttentionCase { cells: vec![cells], tail, ..AttentionCase::new(shape) };
            // Every depth with half of the shapes, and every shape with half of the depths.
            if (i + j) % 2 == 0 {
                cases.push(with(rows, op));
            }
        }
        let new = AttentionCase { cells: vec![1000], ..AttentionCase::new(shape) };
        let sliding = AttentionCase { reach: Reach::Sliding([100, 512][i % 2]), ..new.clone() };
        let capped = AttentionCase { cap: Some(20.0), scale: 4.0 * new.scale, tail: true, ..new.clone() };
        let formatted = AttentionCase { reader: WeightType::Q4_0, ..new };
        cases.extend([sliding, capped, formatted].map(|op| with(70, op)));
    }
}

fn heads(cases: &mut Vec<Case>) {
    for (i, ty) in [WeightType::Q8_0, WeightType::Q6_K, WeightType::F16, WeightType::F32].into_iter().enumerate() {
        for (rows, vocab) in [(1, 1000), (5, 4099), (16, 300)] {
            let op = CaseOp::Head { ty, k: depth(ty, i), vocab, cap: (i % 2 == 1).then_some(30.0) };
            cases.push(case(Bucket::Head, rows, op));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_case_is_another() {
        let cases = cases();
        let mut names = HashSet::new();
        let twice: Vec<_> = cases.iter().map(|case| &case.name).filter(|name| !names.insert(*name)).collect();
        assert!(twice.is_empty(), "{twice:#?}");
        assert!(cases.iter().filter(|case| case.quick).count() > 100);
    }
}

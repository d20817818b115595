//! Attention over leaves against the reference, and the row law bit by bit.

use half::{bf16, f16};
use proptest::prelude::*;
use tailrace_types::KvType;

use super::attention::*;
use super::attention_tiles::CELLS;
use super::isa::Isa;
use crate::naive::attention::{Softmax, attend, is_visible};

/// Reproducible values in -1 .. 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }
}

fn encode(ty: KvType, values: &[f32]) -> Vec<u8> {
    match ty {
        KvType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        KvType::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        KvType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn stored(ty: KvType, x: f32) -> f32 {
    match ty {
        KvType::F16 => f16::from_f32(x).to_f32(),
        KvType::Bf16 => bf16::from_f32(x).to_f32(),
        KvType::F32 => x,
    }
}

/// The cells of one KV head in whole blocks, the unoccupied ones filled with `garbage`.
struct Cache {
    k: Vec<Vec<u8>>,
    v: Vec<Vec<u8>>,
}

impl Cache {
    fn new(shape: &HeadShape, keys: &[f32], values: &[f32], garbage: f32) -> Self {
        let blocks = |ty: KvType, width: usize, rows: &[f32]| {
            let block = |rows: &[f32]| {
                let mut rows = rows.to_vec();
                rows.resize(CELLS * width, garbage);
                encode(ty, &rows)
            };
            rows.chunks(CELLS * width).map(block).collect()
        };
        Cache { k: blocks(shape.k_type, shape.dk, keys), v: blocks(shape.v_type, shape.dv, values) }
    }

    fn leaves(&self) -> impl Iterator<Item = Leaf<'_>> {
        let blocks = self.k.iter().zip(&self.v).enumerate();
        blocks.map(|(i, (k, v))| Leaf { first: (i * CELLS) as u32, k, v })
    }
}

const SHAPE: HeadShape = HeadShape {
    group: 4,
    dk: 64,
    dv: 64,
    k_type: KvType::F16,
    v_type: KvType::F16,
    scale: 0.9,
    cap: None,
    window: None,
};

/// A head with random contents: `cells` occupied cells.
struct Case {
    shape: HeadShape,
    keys: Vec<f32>,
    values: Vec<f32>,
    noise: Noise,
}

impl Case {
    fn new(shape: HeadShape, cells: usize) -> Self {
        let mut noise = Noise(cells as u64 + 77);
        let keys = noise.vec(cells * shape.dk);
        let values = noise.vec(cells * shape.dv);
        Case { shape, keys, values, noise }
    }

    fn cache(&self, garbage: f32) -> Cache {
        Cache::new(&self.shape, &self.keys, &self.values, garbage)
    }

    fn queries(&mut self, rows: usize) -> Vec<f32> {
        self.noise.vec(rows * self.shape.group * self.shape.dk)
    }

    /// Outputs of the packed rows by the reference.
    fn naive(&self, q: &[f32], positions: &[u32], sink: Option<f32>) -> Vec<f32> {
        let s = &self.shape;
        let convert = |ty, x: &[f32]| x.iter().map(|&x| stored(ty, x)).collect::<Vec<_>>();
        let (k, v) = (convert(s.k_type, &self.keys), convert(s.v_type, &self.values));
        let cells: Vec<_> = k.chunks(s.dk).zip(v.chunks(s.dv)).collect();
        let softmax = Softmax { scale: s.scale, cap: s.cap, sink };
        let mut out = vec![0.0; positions.len() * s.group * s.dv];
        for (r, out) in out.chunks_mut(s.dv).enumerate() {
            let position = positions[r / s.group];
            let seen = |c: &usize| is_visible(position, *c as u32, s.window);
            let seen: Vec<_> = (0..cells.len()).filter(seen).map(|c| cells[c]).collect();
            attend(&q[r * s.dk..][..s.dk], &seen, softmax, out);
        }
        out
    }
}

/// Carries of the packed rows after all leaves.
fn carries(isa: Isa, shape: &HeadShape, cache: &Cache, q: &[f32], positions: &[u32]) -> Vec<f32> {
    let queries = Queries { q, stride: shape.group * shape.dk, positions };
    let mut carries = vec![f32::NAN; positions.len() * shape.group * shape.record_floats()];
    reset(shape.dv, &mut carries);
    let mut scratch = vec![f32::NAN; shape.scratch_floats()];
    for leaf in cache.leaves() {
        fold_leaf(isa, shape, &queries, &leaf, &mut carries, &mut scratch);
    }
    carries
}

/// The same through separate partials of each leaf.
fn merged(isa: Isa, shape: &HeadShape, cache: &Cache, q: &[f32], positions: &[u32]) -> Vec<f32> {
    let queries = Queries { q, stride: shape.group * shape.dk, positions };
    let mut carries = vec![0.0; positions.len() * shape.group * shape.record_floats()];
    let mut scratch = vec![f32::NAN; shape.scratch_floats()];
    let partial = |leaf: Leaf<'_>| {
        let mut partial = vec![f32::NAN; carries.len()];
        leaf_partials(isa, shape, &queries, &leaf, &mut partial, &mut scratch);
        partial
    };
    let partials: Vec<_> = cache.leaves().map(partial).collect();
    reset(shape.dv, &mut carries);
    for partial in &partials {
        fold(isa, shape.dv, &mut carries, partial);
    }
    carries
}

fn outputs(isa: Isa, shape: &HeadShape, carries: &[f32], sink: Option<f32>) -> Vec<f32> {
    let rows = carries.len() / shape.record_floats();
    let mut out = vec![f32::NAN; rows * shape.dv];
    for (record, out) in carries.chunks(shape.record_floats()).zip(out.chunks_mut(shape.dv)) {
        finish(isa, record, sink, out);
    }
    out
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        // Values are in -1 .. 1, so this is relative to the largest possible output.
        assert!((g - w).abs() < 1e-5, "{what}: element {i}: {g} instead of {w}");
    }
}

fn check(shape: HeadShape, cells: usize, positions: &[u32], sink: Option<f32>) {
    let mut case = Case::new(shape, cells);
    let q = case.queries(positions.len());
    let want = case.naive(&q, positions, sink);
    let cache = case.cache(f32::NAN);
    for isa in Isa::available() {
        let got = carries(isa, &shape, &cache, &q, positions);
        let what = format!("{isa:?} {shape:?} cells {cells}");
        assert_close(&outputs(isa, &shape, &got, sink), &want, &what);
        assert_eq!(bits(&got), bits(&merged(isa, &shape, &cache, &q, positions)), "{what}");
    }
}

#[test]
fn head_sizes_and_types() {
    for (dk, dv) in [(16, 16), (32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (256, 256)].into_iter().chain([
        (8, 24),
        (72, 40),
        (192, 128),
        (576, 512),
    ]) {
        for &k_type in KvType::ALL {
            for &v_type in KvType::ALL {
                let scale = 1.0 / (dk as f32).sqrt();
                check(HeadShape { dk, dv, k_type, v_type, scale, ..SHAPE }, 300, &[299], None);
            }
        }
    }
}

#[test]
fn cap_sink_window_group_and_several_rows_together() {
    for window in [None, Some(1), Some(100), Some(256), Some(300)] {
        for cap in [None, Some(2.0)] {
            let shape = HeadShape { scale: 2.0, window, cap, ..SHAPE };
            check(shape, 700, &[695, 696, 697, 698, 699], Some(0.3));
        }
    }
}

#[test]
fn a_whole_chunk_of_rows() {
    let positions: Vec<u32> = (200..420).collect();
    for window in [None, Some(70), Some(257)] {
        check(HeadShape { window, group: 3, ..SHAPE }, 420, &positions, None);
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let shape = HeadShape { window: Some(0), ..SHAPE };
    let mut case = Case::new(shape, 300);
    let q = case.queries(3);
    let cache = case.cache(f32::NAN);
    for isa in Isa::available() {
        let got = carries(isa, &shape, &cache, &q, &[0, 10, 299]);
        assert!(outputs(isa, &shape, &got, None).iter().all(|&x| x.to_bits() == 0));
        let with_sink = outputs(isa, &shape, &got, Some(1.5));
        assert!(with_sink.iter().all(|&x| x.to_bits() == 0));
    }
}

#[test]
fn bad_numbers_reach_the_output() {
    for (bad, at) in [(f32::NAN, 0), (f32::NAN, 270), (f32::INFINITY, 5)] {
        let shape = HeadShape { group: 1, dk: 16, dv: 16, ..SHAPE };
        let mut case = Case::new(shape, 300);
        case.keys[at * 16] = bad;
        let q = vec![1.0; 16];
        for isa in Isa::available() {
            let cache = case.cache(0.0);
            let got = carries(isa, &shape, &cache, &q, &[299]);
            let out = outputs(isa, &shape, &got, None);
            assert!(out.iter().all(|x| x.is_nan()), "{isa:?}: {bad} at {at}: {out:?}");
            let before = carries(isa, &shape, &cache, &q, &[0]);
            let own = outputs(isa, &shape, &before, None).iter().all(|x| x.is_nan());
            assert_eq!(own, at == 0);
        }
    }
}

#[test]
fn an_identity_anywhere_changes_nothing() {
    let dv = 40;
    let n = record_floats(dv);
    let mut noise = Noise(3);
    let record = |noise: &mut Noise| {
        let mut r = noise.vec(n);
        (r[0], r[1]) = (r[0] * 20.0, r[1].abs() + 1.0);
        r
    };
    let (a, b) = (record(&mut noise), record(&mut noise));
    let mut empty = vec![0.0; n];
    reset(dv, &mut empty);
    for isa in Isa::available() {
        let fold_all = |list: &[&[f32]]| {
            let mut carry = empty.clone();
            list.iter().for_each(|partial| fold(isa, dv, &mut carry, partial));
            carry
        };
        let plain = fold_all(&[&a, &b]);
        assert_eq!(bits(&fold_all(&[&a])), bits(&a));
        assert_eq!(bits(&fold_all(&[&empty, &a, &empty, &b, &empty])), bits(&plain));
        // Another order is another rounding of the same sum.
        assert_close(&fold_all(&[&b, &a])[16..], &plain[16..], "order");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Each row of a call has the bits of the row alone, whatever unoccupied cells hold and
    /// however many cells follow.
    #[test]
    fn the_row_law(
        start in 0u32..600,
        rows in 1usize..90,
        group in 1usize..6,
        dk in 1usize..6,
        dv in 1usize..6,
        window in prop_oneof![Just(None), (1u32..400).prop_map(Some)],
        cap in prop_oneof![Just(None), Just(Some(1.0))],
        k_type in prop::sample::select(KvType::ALL),
        v_type in prop::sample::select(KvType::ALL),
        more in 0usize..300,
        pick in any::<prop::sample::Index>(),
    ) {
        let shape = HeadShape {
            group, dk: 8 * dk, dv: 8 * dv, k_type, v_type, scale: 0.7, cap, window,
        };
        let positions: Vec<u32> = (start..start + rows as u32).collect();
        let end = start as usize + rows;
        let mut case = Case::new(shape, end + more);
        let q = case.queries(rows);
        let long = case.cache(0.0);
        let row = pick.index(rows);
        let occupied = start as usize + row + 1;
        case.keys.truncate(occupied * shape.dk);
        case.values.truncate(occupied * shape.dv);
        let short = case.cache(f32::NAN);
        let own = &q[row * group * shape.dk..][..group * shape.dk];
        for isa in Isa::available() {
            let all = carries(isa, &shape, &long, &q, &positions);
            let alone = carries(isa, &shape, &short, own, &positions[row..=row]);
            let record = group * shape.record_floats();
            prop_assert_eq!(bits(&alone), bits(&all[row * record..][..record]), "{:?}", isa);
        }
    }
}

//! Plans of single ops: the cache and the memory map of a small model, with programs and weights of the case's own.

use tailrace_types::{BLOCK_CELLS, KvType, WeightType};

use super::{AttentionCase, Case, CaseOp};
use crate::kv::Phase;
use crate::plan::spec::{
    Activation, Attention, Block, Ffn, Linear, Mixer, Norm, Pairing, Reach, Residual, Rope, TensorSlice,
};
use crate::plan::{
    ALIGN, ActivationType, AttentionShape, Bucket, Buffer, BufferId, Content, DeviceSizes, Gain, Inputs, LayerId,
    Limits, MatrixInput, ModelSpec, Op, PAGE, Plan, PlanError, Product, Program, RopeId, RowKind, Weight, WeightForm,
    WeightId, round_up,
};

/// What a plan is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The device that is tested: everything is computed from embeddings.
    Tested,
    /// The reference: what the op under test reads, products apart from embeddings, is written from outside as f32.
    Reference,
}

/// Tensors of a case, by what they are for: the same bytes whatever a plan is built for.
mod tensor {
    pub(super) const TABLE: u32 = 1;
    pub(super) const SECOND_TABLE: u32 = 2;
    pub(super) const GAIN: u32 = 3;
    pub(super) const K_GAIN: u32 = 4;
    pub(super) const BIAS: u32 = 1000;
    pub(super) const MATRIX: u32 = 2000;
}

/// Added to mean squares.
const EPS: f32 = 1e-5;

/// Rows of a chunk at least: cells are filled by chunks.
const CHUNK_MIN: u32 = 512;

/// Tokens of cases that are not about embeddings or logits.
const VOCAB: u64 = 64;

/// Rows of logits at once.
pub(super) const LOGIT_ROWS: u32 = 16;

/// The head shape of cases that are not about attention.
const SMALL: AttentionShape =
    AttentionShape { heads: 1, kv_heads: 1, dk: 16, dv: 16, k_type: KvType::F16, v_type: KvType::F16 };

fn slice(tensor: u32, ty: WeightType, rows: u64, cols: u64) -> TensorSlice {
    TensorSlice { tensor, ty, first_row: 0, rows, cols }
}

/// A rope that turns nothing: angles of 10^-25 radians at most leave every f32 as it is.
fn no_rope() -> Rope {
    Rope { pairing: Pairing::Half, dims: 2, base: 1e4, linear: 1e30, factors: None, yarn: None, mscale: 1.0 }
}

impl Case {
    /// Which program of a step the op is in.
    pub fn phase(&self) -> Phase {
        match self.bucket {
            Bucket::Prefill | Bucket::Head => Phase::Prefill,
            Bucket::Decode => Phase::Decode,
        }
    }

    /// Cells of each sequence before the step.
    pub(super) fn cells(&self) -> Vec<u32> {
        let sequences = if self.bucket == Bucket::Decode { self.rows as usize } else { 1 };
        match &self.op {
            CaseOp::Attention(attention) => attention.cells.iter().copied().cycle().take(sequences).collect(),
            CaseOp::RopeTable { cells, .. } => vec![*cells; sequences],
            _ => vec![0; sequences],
        }
    }

    /// The limits that the case is planned under.
    fn limits(&self) -> Limits {
        let cells = self.cells();
        let sequences = cells.len() as u32;
        let rows = if self.bucket == Bucket::Decode { 1 } else { self.rows };
        let most = (cells.iter().max().copied().unwrap_or(0) + rows).next_multiple_of(BLOCK_CELLS);
        let (shape, tail) = match &self.op {
            CaseOp::Attention(attention) => (attention.shape, attention.tail),
            _ => (SMALL, false),
        };
        Limits {
            sequences,
            chunk: self.rows.max(CHUNK_MIN),
            logit_rows: LOGIT_ROWS,
            rollback_cells: 0,
            k_type: shape.k_type,
            v_type: shape.v_type,
            activations: self.activations,
            window_cells: tail.then_some(BLOCK_CELLS),
            ..Limits::new(most * sequences)
        }
    }

    /// The case as a plan for `sizes`.
    pub(super) fn plan(&self, sizes: &dyn DeviceSizes, role: Role) -> Result<Plan, PlanError> {
        let limits = match role {
            Role::Tested => self.limits(),
            Role::Reference => Limits { activations: ActivationType::F32, ..self.limits() },
        };
        let mut plan = Plan::new(&self.spec(), &limits, sizes)?;
        let mut weights = Weights { sizes, list: Vec::new(), bytes: 0 };
        let program = |weights: &mut Weights<'_>, bucket, rows| {
            let build = Builder { sizes, limits: &limits, bucket, rows, ops: Vec::new(), buffers: Vec::new(), weights };
            build.program(self, role)
        };
        plan.prefill = program(&mut weights, Bucket::Prefill, limits.chunk);
        plan.decode = program(&mut weights, Bucket::Decode, limits.sequences);
        plan.head = program(&mut weights, Bucket::Head, limits.logit_rows);
        // Buffers are not packed, so that all of them can be read afterwards, and overlay frames would lie elsewhere.
        plan.cache.overlay_frames = 0;
        plan.cache.overlay_offset = round_up(plan.decode.bytes, PAGE);
        let sized = [
            (RowKind::Weights, weights.bytes),
            (RowKind::Workspace, plan.prefill.bytes.max(plan.decode.bytes)),
            (RowKind::Head, plan.head.bytes),
        ];
        for row in &mut plan.memory.rows {
            if let Some((_, bytes)) = sized.iter().find(|(kind, _)| *kind == row.kind) {
                (row.count, row.unit_bytes) = (1, *bytes);
            }
        }
        plan.weights = weights.list;
        Ok(plan)
    }

    /// A model whose cache, ropes and embedding are the case's.
    fn spec(&self) -> ModelSpec {
        let small = |rows, cols| Linear { weight: slice(0, WeightType::F32, rows, cols), bias: None };
        let norm = || Norm { weight: slice(0, WeightType::F32, 1, 32), eps: EPS };
        let (attention, layers) = match &self.op {
            CaseOp::Attention(attention) => (attention.clone(), self.repeat),
            CaseOp::RopeTable { rope, .. } => (AttentionCase { rope: rope.clone(), ..AttentionCase::new(SMALL) }, 1),
            _ => (AttentionCase::new(SMALL), 1),
        };
        let shape = attention.shape;
        let (q, kv) = (u64::from(shape.heads), u64::from(shape.kv_heads));
        let mixer = Attention {
            q: small(q * u64::from(shape.dk), 32),
            k: small(kv * u64::from(shape.dk), 32),
            v: small(kv * u64::from(shape.dv), 32),
            o: small(32, q * u64::from(shape.dv)),
            q_norm: None,
            k_norm: None,
            rope: attention.rope,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            dk: shape.dk,
            dv: shape.dv,
            scale: attention.scale,
            cap: attention.cap,
            reach: attention.reach,
        };
        let ffn = Ffn { gate: small(32, 32), up: small(32, 32), down: small(32, 32), activation: Activation::Silu };
        let block = Block {
            mixer: Residual { pre: norm(), inner: Mixer::Attention(mixer), post: None },
            ffn: Residual { pre: norm(), inner: ffn, post: None },
        };
        let (embed, tied) = self.table();
        let head = if tied { embed } else { slice(0, WeightType::F32, embed.rows, embed.cols) };
        ModelSpec {
            width: embed.cols as u32,
            vocab: embed.rows as u32,
            context: 1 << 20,
            embed,
            embed_scale: 1.0,
            blocks: vec![block; layers as usize],
            out_norm: norm(),
            head: Linear { weight: head, bias: None },
            logit_cap: None,
        }
    }

    /// The table that the first embedding reads, and whether it is kept where products could read it.
    fn table(&self) -> (TensorSlice, bool) {
        let f32 = |rows, cols| (slice(tensor::TABLE, WeightType::F32, rows, cols), true);
        match &self.op {
            &CaseOp::Embed { ty, cols, tied, .. } => (slice(tensor::TABLE, ty, VOCAB, cols), tied),
            &CaseOp::RopeTable { .. } => f32(VOCAB, 32),
            &CaseOp::Norm { cols, .. } | &CaseOp::AddNorm { cols } | &CaseOp::SoftCap { cols, .. } => f32(VOCAB, cols),
            &CaseOp::Gate { cols, .. } => f32(VOCAB, 2 * cols),
            CaseOp::MatMul { k, .. } => f32(VOCAB, *k),
            CaseOp::Attention(attention) => f32(VOCAB, qkv_cols(&attention.shape)),
            &CaseOp::Head { k, vocab, .. } => f32(vocab, k),
        }
    }
}

fn qkv_cols(shape: &AttentionShape) -> u64 {
    let keys = u64::from((shape.heads + shape.kv_heads) * shape.dk);
    keys + u64::from(shape.kv_heads * shape.dv)
}

/// The weights of a case, each once.
struct Weights<'a> {
    sizes: &'a dyn DeviceSizes,
    list: Vec<Weight>,
    bytes: u64,
}

impl Weights<'_> {
    fn add(&mut self, slice: TensorSlice, form: WeightForm) -> WeightId {
        if let Some(at) = self.list.iter().position(|w| w.slice == slice && w.form == form) {
            return WeightId(at as u32);
        }
        let bytes = match form {
            WeightForm::Matrix => self.sizes.matrix_bytes(slice.ty, slice.rows, slice.cols),
            WeightForm::Vector => slice.rows * slice.cols * 4,
            WeightForm::HostRows => 0,
        };
        self.list.push(Weight { slice, form, offset: self.bytes, bytes });
        self.bytes += round_up(bytes, ALIGN);
        WeightId(self.list.len() as u32 - 1)
    }
}

/// Appends ops and the buffers that they use, side by side.
struct Builder<'a, 'w> {
    sizes: &'a dyn DeviceSizes,
    limits: &'a Limits,
    bucket: Bucket,
    rows: u32,
    ops: Vec<Op>,
    buffers: Vec<Buffer>,
    weights: &'a mut Weights<'w>,
}

impl Builder<'_, '_> {
    /// The program of the builder's bucket: that of the case, or one that does as little as a model's can.
    fn program(mut self, case: &Case, role: Role) -> Program {
        if self.bucket == case.bucket {
            self.case(case, role);
        } else if self.bucket == Bucket::Head {
            self.f32("x", case.table().0.cols);
        } else {
            self.embedded(case, "x", 1.0);
        }
        let mut bytes = 0;
        for buffer in &mut self.buffers {
            buffer.offset = bytes;
            bytes += round_up(buffer.bytes(), ALIGN);
        }
        Program { rows: self.rows, ops: self.ops, buffers: self.buffers, bytes }
    }

    fn case(&mut self, case: &Case, role: Role) {
        match &case.op {
            &CaseOp::Embed { scale, .. } => _ = self.embedded(case, "y", scale),
            CaseOp::RopeTable { .. } => {
                self.embedded(case, "x", 1.0);
                self.rope_table(case.rope_dims(), "y");
            }
            &CaseOp::Norm { cols, reader } => {
                let src = self.embedded(case, "x", 1.0);
                let (gain, dst) = (self.gain(tensor::GAIN, cols), self.inputs("y", cols, reader, true));
                self.ops.push(Op::Norm { src, gain, dst });
            }
            &CaseOp::AddNorm { cols } => {
                let src = self.embedded(case, "x", 1.0);
                let (gain, dst) = (self.gain(tensor::GAIN, cols), self.second(cols));
                self.ops.push(Op::AddNorm { src, gain, dst });
            }
            &CaseOp::Gate { cols, activation, reader } => {
                // Gates of deviation 2 reach both ends of the activation.
                let src = self.embedded(case, "x", 2.0 * (2.0 * cols as f32).sqrt());
                let dst = self.inputs("y", cols, reader, false);
                self.ops.push(Op::Gate { src, activation, dst });
            }
            &CaseOp::SoftCap { cols, cap } => {
                let buffer = self.embedded(case, "y", 2.0 * cap * (cols as f32).sqrt());
                self.ops.push(Op::SoftCap { buffer, cap });
            }
            CaseOp::MatMul { ty, k, n, bias, accumulate } => {
                let src = self.prepared(case, role, *k, *ty);
                for repeat in 0..case.repeat {
                    self.mat_mul(src, (*ty, *k, n), *bias, *accumulate, repeat);
                }
            }
            CaseOp::Attention(attention) => self.attention(case, attention),
            &CaseOp::Head { ty, k, vocab, cap } => {
                let src = self.head_rows(role, k, ty);
                self.mat_mul(src, (ty, k, &[vocab]), false, false, 0);
                if let Some(cap) = cap {
                    let buffer = BufferId(self.buffers.len() as u32 - 1);
                    self.ops.push(Op::SoftCap { buffer, cap });
                }
            }
        }
    }

    /// Rows of the case's table, as the residual stream.
    fn embedded(&mut self, case: &Case, name: &str, scale: f32) -> BufferId {
        let (slice, tied) = case.table();
        let form = if tied || !self.sizes.embedding_on_host() { WeightForm::Matrix } else { WeightForm::HostRows };
        let (table, dst) = (self.weights.add(slice, form), self.f32(name, slice.cols));
        self.ops.push(Op::Embed { table, scale, dst });
        dst
    }

    /// Rows of another table in the buffer of the result: what the op adds to.
    fn second(&mut self, cols: u64) -> BufferId {
        let table = self.weights.add(slice(tensor::SECOND_TABLE, WeightType::F32, VOCAB, cols), WeightForm::Matrix);
        let dst = self.f32("y", cols);
        self.ops.push(Op::Embed { table, scale: (cols as f32).sqrt(), dst });
        dst
    }

    /// What products read: made by a norm, or written from outside.
    fn prepared(&mut self, case: &Case, role: Role, k: u64, ty: WeightType) -> Inputs {
        let src = self.embedded(case, "x", 1.0);
        let dst = self.inputs("in", k, ty, true);
        if role == Role::Tested {
            let gain = self.gain(tensor::GAIN, k);
            self.ops.push(Op::Norm { src, gain, dst });
        }
        dst
    }

    /// The same of a head, whose first buffer is gathered.
    fn head_rows(&mut self, role: Role, k: u64, ty: WeightType) -> Inputs {
        let src = self.f32("x", k);
        let dst = self.inputs("in", k, ty, true);
        if role == Role::Tested {
            let gain = self.gain(tensor::GAIN, k);
            self.ops.push(Op::Norm { src, gain, dst });
        }
        dst
    }

    fn mat_mul(
        &mut self,
        src: Inputs,
        (ty, k, n): (WeightType, u64, &[u64]),
        bias: bool,
        accumulate: bool,
        repeat: u32,
    ) {
        let input = self.sizes.matrix_input(self.bucket, ty, self.limits.activations);
        let scratch = n.iter().map(|&n| self.sizes.matmul_scratch_bytes(input, ty, n, k)).max().unwrap_or(0);
        let scratch = (scratch > 0).then(|| match self.named("scratch") {
            Some(id) => id,
            None => self.buffer("scratch", Content::Scratch, 1, scratch, scratch),
        });
        let cols = n.iter().sum();
        let dst = match self.named("y") {
            Some(id) => id,
            None if accumulate => self.second(cols),
            None => self.f32("y", cols),
        };
        let (mut products, mut first_col) = (Vec::new(), 0);
        for (i, &n) in n.iter().enumerate() {
            let which = repeat * 16 + i as u32;
            let weight = self.weights.add(slice(tensor::MATRIX + which, ty, n, k), WeightForm::Matrix);
            let bias =
                bias.then(|| self.weights.add(slice(tensor::BIAS + which, WeightType::F32, 1, n), WeightForm::Vector));
            products.push(Product { weight, bias, first_col });
            first_col += n as u32;
        }
        self.ops.push(Op::MatMul { src, products, dst, accumulate, scratch });
    }

    fn rope_table(&mut self, dims: u32, name: &str) -> BufferId {
        let dst = self.f32(name, u64::from(dims));
        self.ops.push(Op::RopeTable { rope: RopeId(0), dst });
        dst
    }

    fn attention(&mut self, case: &Case, attention: &AttentionCase) {
        let shape = &attention.shape;
        let table = self.rope_table(attention.rope.dims, "table");
        // Queries, keys and values of deviation 1.
        let qkv = self.embedded(case, "qkv", (qkv_cols(shape) as f32).sqrt());
        let dst = self.inputs("y", u64::from(shape.heads * shape.dv), attention.reader, true);
        let buffers = self.sizes.attention_buffers(self.bucket, shape);
        let carry = self.f32("carry", buffers.carry_elements);
        let partials = (buffers.partial_elements > 0).then(|| self.f32("partials", buffers.partial_elements));
        let bytes = buffers.scratch_bytes;
        let scratch = self.buffer("scratch", Content::Scratch, 1, bytes, bytes);
        let gain = |this: &mut Self, tensor| attention.norms.then(|| this.gain(tensor, u64::from(shape.dk)));
        let (q_norm, k_norm) = (gain(self, tensor::GAIN), gain(self, tensor::K_GAIN));
        for layer in (0..case.repeat).map(LayerId) {
            self.ops.push(Op::RopeStore { layer, qkv, q_norm, k_norm, table });
            self.ops.push(Op::Attention { layer, qkv, dst, carry, partials, scratch });
        }
    }

    fn gain(&mut self, tensor: u32, cols: u64) -> Gain {
        let weight = self.weights.add(slice(tensor, WeightType::F32, 1, cols), WeightForm::Vector);
        Gain { weight, eps: EPS }
    }

    /// Matrix inputs in the format that a product with weights of that type reads.
    fn inputs(&mut self, name: &str, cols: u64, reader: WeightType, kept: bool) -> Inputs {
        let input = self.sizes.matrix_input(self.bucket, reader, self.limits.activations);
        let f32 = input == MatrixInput::F32 || (kept && self.sizes.keeps_f32());
        let q8 = (input == MatrixInput::Q8).then(|| {
            let row_bytes = self.sizes.q8_row_bytes(cols);
            self.buffer(name, Content::Q8, self.rows, cols, row_bytes)
        });
        let bf16 = (input == MatrixInput::Bf16).then(|| {
            let rows = self.rows.next_multiple_of(self.sizes.row_multiple());
            self.buffer(name, Content::Bf16, rows, cols, 2 * cols)
        });
        Inputs { f32: f32.then(|| self.f32(name, cols)), q8, bf16 }
    }

    fn named(&self, name: &str) -> Option<BufferId> {
        self.buffers.iter().position(|b| b.name == name).map(|at| BufferId(at as u32))
    }

    fn f32(&mut self, name: &str, cols: u64) -> BufferId {
        self.buffer(name, Content::F32, self.rows, cols, 4 * cols)
    }

    fn buffer(&mut self, name: &str, content: Content, rows: u32, cols: u64, row_bytes: u64) -> BufferId {
        let name = name.to_owned();
        // All of them live throughout, but none begins to live at an op: a reference must not lose what was written.
        let (offset, first_op, last_op) = (0, u32::MAX, u32::MAX);
        self.buffers.push(Buffer { name, content, rows, cols, row_bytes, offset, first_op, last_op });
        BufferId(self.buffers.len() as u32 - 1)
    }
}

impl Case {
    fn rope_dims(&self) -> u32 {
        match &self.op {
            CaseOp::RopeTable { rope, .. } => rope.dims,
            CaseOp::Attention(attention) => attention.rope.dims,
            _ => 0,
        }
    }
}

impl AttentionCase {
    /// Whether new keys are rotated or normed before they are stored: otherwise they are the same bits everywhere.
    pub(super) fn prepares_keys(&self) -> bool {
        self.rope != no_rope() || self.norms
    }

    /// One sequence of no cells, no rotation, global reach.
    pub fn new(shape: AttentionShape) -> Self {
        AttentionCase {
            shape,
            cells: vec![0],
            rope: no_rope(),
            norms: false,
            scale: 1.0 / (shape.dk as f32).sqrt(),
            cap: None,
            reach: Reach::Global,
            tail: false,
            shared: false,
            reader: WeightType::F32,
        }
    }
}

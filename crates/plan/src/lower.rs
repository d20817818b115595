//! Lowering: `ModelSpec` -> weights to load and a straight line of ops.

use std::collections::HashMap;

use crate::arena::{ALIGN, pack, round_up};
use crate::limits::{ActivationType, Limits};
use crate::op::{Buffer, BufferId, Content, Gain, Inputs, LayerId, Op, Product, Program, RopeId, WeightId};
use crate::spec::{Activation, Attention, Linear, ModelSpec, Norm, Reach, Rope, TensorSlice};
use crate::{AttentionShape, Bucket, DeviceSizes, MatrixInput};

/// How a weight is kept on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightForm {
    /// In its GGUF type, rearranged for the device's products and gathers.
    Matrix,
    /// As f32.
    Vector,
    /// On the host, in its GGUF type: rows are gathered for each step.
    HostRows,
}

/// A weight, and its place in the weight arena.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Where it comes from.
    pub slice: TensorSlice,
    /// How it is kept.
    pub form: WeightForm,
    /// Place in the arena, in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// What attention of one layer needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Heads and their sizes.
    pub shape: AttentionShape,
    /// Factor of `q.k`.
    pub scale: f32,
    /// Soft cap of the logits.
    pub cap: Option<f32>,
    /// Visible cells.
    pub reach: Reach,
    /// Position embedding.
    pub rope: RopeId,
}

/// The model's programs before they are placed under limits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lowered {
    pub(crate) weights: Vec<Weight>,
    pub(crate) weight_bytes: u64,
    /// Bytes of weights that stay on the host, and of one row of them.
    pub(crate) host_weight_bytes: u64,
    pub(crate) gathered_row_bytes: u64,
    pub(crate) ropes: Vec<Rope>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) prefill: Program,
    pub(crate) decode: Program,
    pub(crate) head: Program,
}

pub(crate) fn lower(spec: &ModelSpec, limits: &Limits, device: &dyn DeviceSizes) -> Lowered {
    let mut tables = Tables {
        device,
        weights: Vec::new(),
        by_slice: HashMap::new(),
        weight_bytes: 0,
        host_weight_bytes: 0,
        gathered_row_bytes: 0,
        ropes: Vec::new(),
    };
    let layers: Vec<Layer> = spec.blocks.iter().map(|b| layer(&mut tables, b.attention(), limits)).collect();
    let mut body = |bucket, rows| Builder::new(&mut tables, limits, device, bucket, rows).body(spec, &layers);
    let prefill = body(Bucket::Prefill, limits.chunk);
    let decode = body(Bucket::Decode, limits.sequences);
    let head = Builder::new(&mut tables, limits, device, Bucket::Head, limits.logit_rows).head(spec);
    let Tables { weights, weight_bytes, host_weight_bytes, gathered_row_bytes, ropes, .. } = tables;
    Lowered { weights, weight_bytes, host_weight_bytes, gathered_row_bytes, ropes, layers, prefill, decode, head }
}

fn layer(tables: &mut Tables<'_>, attention: &Attention, limits: &Limits) -> Layer {
    let shape = AttentionShape {
        heads: attention.heads,
        kv_heads: attention.kv_heads,
        dk: attention.dk,
        dv: attention.dv,
        k_type: limits.k_type,
        v_type: limits.v_type,
    };
    let rope = tables.rope(&attention.rope);
    Layer { shape, scale: attention.scale, cap: attention.cap, reach: attention.reach, rope }
}

/// Weights and ropes, each once however often it is used.
struct Tables<'a> {
    device: &'a dyn DeviceSizes,
    weights: Vec<Weight>,
    by_slice: HashMap<(TensorSlice, WeightForm), WeightId>,
    weight_bytes: u64,
    host_weight_bytes: u64,
    gathered_row_bytes: u64,
    ropes: Vec<Rope>,
}

impl Tables<'_> {
    fn weight(&mut self, slice: TensorSlice, form: WeightForm) -> WeightId {
        if let Some(&id) = self.by_slice.get(&(slice, form)) {
            return id;
        }
        let bytes = match form {
            WeightForm::Matrix => self.device.matrix_bytes(slice.ty, slice.rows, slice.cols),
            WeightForm::Vector => slice.rows * slice.cols * 4,
            WeightForm::HostRows => 0,
        };
        let id = WeightId(self.weights.len() as u32);
        self.weights.push(Weight { slice, form, offset: self.weight_bytes, bytes });
        self.weight_bytes += round_up(bytes, ALIGN);
        self.by_slice.insert((slice, form), id);
        id
    }

    fn matrix(&mut self, slice: TensorSlice) -> WeightId {
        self.weight(slice, WeightForm::Matrix)
    }

    /// The embedding, which is gathered from the host where the device wants it so and no product reads it.
    fn embedding(&mut self, spec: &ModelSpec) -> WeightId {
        let slice = spec.embed;
        if !self.device.embedding_on_host() || slice == spec.head.weight {
            return self.matrix(slice);
        }
        let row_bytes =
            slice.ty.block().bytes_of(slice.cols).expect("the model's tensors were checked to be whole blocks");
        self.gathered_row_bytes = row_bytes;
        self.host_weight_bytes = slice.rows * row_bytes;
        self.weight(slice, WeightForm::HostRows)
    }

    fn vector(&mut self, slice: TensorSlice) -> WeightId {
        self.weight(slice, WeightForm::Vector)
    }

    fn rope(&mut self, rope: &Rope) -> RopeId {
        let at = self.ropes.iter().position(|r| r == rope).unwrap_or_else(|| {
            self.ropes.push(rope.clone());
            self.ropes.len() - 1
        });
        RopeId(at as u32)
    }

    fn gain(&mut self, norm: &Norm) -> Gain {
        Gain { weight: self.vector(norm.weight), eps: norm.eps }
    }
}

/// Appends ops and tracks which buffers each of them touches.
struct Builder<'a, 'd> {
    tables: &'a mut Tables<'d>,
    limits: &'a Limits,
    device: &'a dyn DeviceSizes,
    bucket: Bucket,
    rows: u32,
    ops: Vec<Op>,
    buffers: Vec<Buffer>,
}

impl<'a, 'd> Builder<'a, 'd> {
    fn new(
        tables: &'a mut Tables<'d>,
        limits: &'a Limits,
        device: &'a dyn DeviceSizes,
        bucket: Bucket,
        rows: u32,
    ) -> Self {
        Builder { tables, limits, device, bucket, rows, ops: Vec::new(), buffers: Vec::new() }
    }

    fn body(mut self, spec: &ModelSpec, layers: &[Layer]) -> Program {
        let tables = (0..self.tables.ropes.len()).map(|i| self.rope_table(RopeId(i as u32))).collect::<Vec<_>>();
        let x = self.f32("x", spec.width as u64);
        let table = self.tables.embedding(spec);
        self.push(Op::Embed { table, scale: spec.embed_scale, dst: x });
        for (i, block) in spec.blocks.iter().enumerate() {
            let name = |part: &str| format!("blk.{i}.{part}");
            let attention = block.attention();
            let a = self.norm(x, &block.mixer.pre, &name("attn_norm"), &[&attention.q, &attention.k, &attention.v]);
            let qkv = self.mat_mul(a, &[&attention.q, &attention.k, &attention.v], &name("qkv"));
            let o = self.attention(LayerId(i as u32), attention, &layers[i], qkv, &tables, &name("attn"));
            self.residual(x, o, &attention.o, block.mixer.post.as_ref(), &name("attn_out"));
            let ffn = &block.ffn.inner;
            let f = self.norm(x, &block.ffn.pre, &name("ffn_norm"), &[&ffn.gate, &ffn.up]);
            let gate_up = self.mat_mul(f, &[&ffn.gate, &ffn.up], &name("ffn_gate_up"));
            let h = self.inputs(&name("ffn_gated"), ffn.gate.weight.rows, &[&ffn.down], false);
            let activation = match (ffn.activation, self.limits.activations) {
                (Activation::GeluTanh, ActivationType::Auto) => Activation::GeluTanhF16,
                (activation, _) => activation,
            };
            self.push(Op::Gate { src: gate_up, activation, dst: h });
            self.residual(x, h, &ffn.down, block.ffn.post.as_ref(), &name("ffn_out"));
        }
        // The head reads the residual stream after the last op.
        self.buffers[x.0 as usize].last_op = u32::MAX;
        self.finish()
    }

    /// Norm, product and cap over rows that were gathered into buffer 0; the logits are the last buffer.
    fn head(mut self, spec: &ModelSpec) -> Program {
        let x = self.f32("head_x", spec.width as u64);
        let h = self.norm(x, &spec.out_norm, "out_norm", &[&spec.head]);
        let logits = self.mat_mul(h, &[&spec.head], "logits");
        if let Some(cap) = spec.logit_cap {
            self.push(Op::SoftCap { buffer: logits, cap });
        }
        self.buffers[logits.0 as usize].last_op = u32::MAX;
        self.finish()
    }

    fn rope_table(&mut self, rope: RopeId) -> BufferId {
        let dims = self.tables.ropes[rope.0 as usize].dims;
        let dst = self.f32(&format!("rope.{}", rope.0), dims as u64);
        self.push(Op::RopeTable { rope, dst });
        dst
    }

    fn norm(&mut self, src: BufferId, norm: &Norm, name: &str, readers: &[&Linear]) -> Inputs {
        let gain = self.tables.gain(norm);
        let dst = self.inputs(name, readers[0].weight.cols, readers, true);
        self.push(Op::Norm { src, gain, dst });
        dst
    }

    fn mat_mul(&mut self, src: Inputs, linears: &[&Linear], name: &str) -> BufferId {
        let cols = linears.iter().map(|l| l.weight.rows).sum();
        let dst = self.f32(name, cols);
        self.push_mat_mul(src, linears, dst, false, name);
        dst
    }

    fn push_mat_mul(&mut self, src: Inputs, linears: &[&Linear], dst: BufferId, accumulate: bool, name: &str) {
        let products = self.products(linears);
        let bytes = |l: &&Linear| {
            let weight = &l.weight;
            self.device.matmul_scratch_bytes(self.input(l), weight.ty, weight.rows, weight.cols)
        };
        let bytes = linears.iter().map(bytes).max().unwrap_or(0);
        let scratch = (bytes > 0).then(|| self.buffer(&format!("{name}.weights"), Content::Scratch, 1, bytes, bytes));
        self.push(Op::MatMul { src, products, dst, accumulate, scratch });
    }

    /// What a product reads.
    fn input(&self, linear: &Linear) -> MatrixInput {
        self.device.matrix_input(self.bucket, linear.weight.ty, self.limits.activations)
    }

    fn products(&mut self, linears: &[&Linear]) -> Vec<Product> {
        let mut first_col = 0;
        let mut products = Vec::with_capacity(linears.len());
        for linear in linears {
            let weight = self.tables.matrix(linear.weight);
            let bias = linear.bias.map(|b| self.tables.vector(b));
            products.push(Product { weight, bias, first_col });
            first_col += linear.weight.rows as u32;
        }
        products
    }

    /// `x += post(W src)`.
    fn residual(&mut self, x: BufferId, src: Inputs, linear: &Linear, post: Option<&Norm>, name: &str) {
        match post {
            None => {
                self.push_mat_mul(src, &[linear], x, true, name);
            }
            Some(norm) => {
                let y = self.mat_mul(src, &[linear], name);
                let gain = self.tables.gain(norm);
                self.push(Op::AddNorm { src: y, gain, dst: x });
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn attention(
        &mut self,
        id: LayerId,
        attention: &Attention,
        layer: &Layer,
        qkv: BufferId,
        tables: &[BufferId],
        name: &str,
    ) -> Inputs {
        let q_norm = attention.q_norm.as_ref().map(|n| self.tables.gain(n));
        let k_norm = attention.k_norm.as_ref().map(|n| self.tables.gain(n));
        self.push(Op::RopeStore { layer: id, qkv, q_norm, k_norm, table: tables[layer.rope.0 as usize] });
        let shape = &layer.shape;
        let buffers = self.device.attention_buffers(self.bucket, shape);
        let dst = self.inputs(name, shape.heads as u64 * shape.dv as u64, &[&attention.o], true);
        let carry = self.f32(&format!("{name}.carry"), buffers.carry_elements);
        let partials =
            (buffers.partial_elements > 0).then(|| self.f32(&format!("{name}.partials"), buffers.partial_elements));
        let bytes = buffers.scratch_bytes;
        let scratch = self.buffer(&format!("{name}.scratch"), Content::Scratch, 1, bytes, bytes);
        self.push(Op::Attention { layer: id, qkv, dst, carry, partials, scratch });
        dst
    }

    /// A buffer of matrix inputs in the formats that `readers` need; `kept` as f32 too where the device wants that.
    fn inputs(&mut self, name: &str, cols: u64, readers: &[&Linear], kept: bool) -> Inputs {
        let needs = |input| readers.iter().any(|l| self.input(l) == input);
        let f32 = (kept && self.device.keeps_f32()) || needs(MatrixInput::F32);
        let (q8, bf16) = (needs(MatrixInput::Q8), needs(MatrixInput::Bf16));
        let q8 = q8.then(|| {
            let row_bytes = self.device.q8_row_bytes(cols);
            self.buffer(&format!("{name}.q8"), Content::Q8, self.rows, cols, row_bytes)
        });
        let bf16 = bf16.then(|| {
            let rows = self.rows.next_multiple_of(self.device.row_multiple());
            self.buffer(&format!("{name}.bf16"), Content::Bf16, rows, cols, cols * 2)
        });
        Inputs { f32: f32.then(|| self.f32(name, cols)), q8, bf16 }
    }

    fn f32(&mut self, name: &str, cols: u64) -> BufferId {
        self.buffer(name, Content::F32, self.rows, cols, cols * 4)
    }

    fn buffer(&mut self, name: &str, content: Content, rows: u32, cols: u64, row_bytes: u64) -> BufferId {
        let id = BufferId(self.buffers.len() as u32);
        let (first_op, last_op) = (self.ops.len() as u32, self.ops.len() as u32);
        self.buffers.push(Buffer {
            name: name.to_owned(),
            content,
            rows,
            cols,
            row_bytes,
            offset: 0,
            first_op,
            last_op,
        });
        id
    }

    /// Appends an op and lengthens the life of each buffer it names.
    fn push(&mut self, op: Op) {
        let at = self.ops.len() as u32;
        for id in op.buffers().into_iter().flatten() {
            let buffer = &mut self.buffers[id.0 as usize];
            buffer.last_op = buffer.last_op.max(at);
        }
        self.ops.push(op);
    }

    fn finish(mut self) -> Program {
        let bytes = pack(&mut self.buffers);
        Program { rows: self.rows, ops: self.ops, buffers: self.buffers, bytes }
    }
}

impl Op {
    /// The buffers that the op names.
    fn buffers(&self) -> [Option<BufferId>; 7] {
        let some = Some;
        match *self {
            Op::RopeTable { dst, .. } | Op::Embed { dst, .. } => [some(dst), None, None, None, None, None, None],
            Op::Norm { src, dst, .. } | Op::Gate { src, dst, .. } => {
                [some(src), dst.f32, dst.q8, dst.bf16, None, None, None]
            }
            Op::MatMul { src, dst, scratch, .. } => [src.f32, src.q8, src.bf16, some(dst), scratch, None, None],
            Op::RopeStore { qkv, table, .. } => [some(qkv), some(table), None, None, None, None, None],
            Op::Attention { qkv, dst, carry, partials, scratch, .. } => {
                [some(qkv), dst.f32, dst.q8, dst.bf16, some(carry), partials, some(scratch)]
            }
            Op::AddNorm { src, dst, .. } => [some(src), some(dst), None, None, None, None, None],
            Op::SoftCap { buffer, .. } => [some(buffer), None, None, None, None, None, None],
        }
    }
}

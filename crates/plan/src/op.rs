//! The ops of a plan: a closed set of coarse, fused steps over numbered buffers.

use crate::spec::Activation;

/// Index into [`Program::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Index into [`crate::Plan::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Index into [`crate::Plan::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeId(pub u32);

/// Index into [`crate::Plan::layers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId(pub u32);

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// `[rows][cols]` f32.
    F32,
    /// `[rows]` of `cols` activations in the device's 8-bit format.
    Q8,
    /// `[rows][cols]` bfloat16.
    Bf16,
    /// Bytes that only the op which names the buffer understands.
    Scratch,
}

/// A part of the workspace, alive from one op to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// Name for tracers, such as `blk.3.qkv`.
    pub name: String,
    /// Element format.
    pub content: Content,
    /// Rows; for scratch 1.
    pub rows: u32,
    /// Elements of a row; for scratch bytes.
    pub cols: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Place in the workspace, in bytes.
    pub offset: u64,
    /// Index of the op that writes the buffer first.
    pub first_op: u32,
    /// Index of the last op that uses it.
    pub last_op: u32,
}

impl Buffer {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.rows as u64 * self.row_bytes
    }
}

/// Rows of matrix inputs in the formats that the products which read them need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// f32 rows; of norms and attention also where the device keeps them.
    pub f32: Option<BufferId>,
    /// Quantised rows.
    pub q8: Option<BufferId>,
    /// bfloat16 rows.
    pub bf16: Option<BufferId>,
}

/// A norm's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// The gain vector.
    pub weight: WeightId,
    /// Added to the mean square.
    pub eps: f32,
}

/// One matrix of a [`Op::MatMul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The matrix.
    pub weight: WeightId,
    /// Added to the product.
    pub bias: Option<WeightId>,
    /// Column of the destination that takes output row 0.
    pub first_col: u32,
}

/// One step of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// Cosines and sines of every row's position: `dst[row] = [cos x dims/2, sin x dims/2]`.
    RopeTable {
        /// Whose frequencies.
        rope: RopeId,
        /// The table.
        dst: BufferId,
    },
    /// `dst[row] = scale * table[token[row]]`.
    Embed {
        /// The embedding matrix.
        table: WeightId,
        /// Factor.
        scale: f32,
        /// The residual stream.
        dst: BufferId,
    },
    /// `dst = norm(src)`, in the formats that the next products read.
    Norm {
        /// f32 rows.
        src: BufferId,
        /// Norm parameters.
        gain: Gain,
        /// Matrix inputs.
        dst: Inputs,
    },
    /// `dst[.., first_col..] = W src + b` for each product, or `+=` with `accumulate`.
    MatMul {
        /// Matrix inputs.
        src: Inputs,
        /// Matrices that share the input.
        products: Vec<Product>,
        /// f32 rows.
        dst: BufferId,
        /// Add to `dst` (the residual stream) instead of writing it.
        accumulate: bool,
        /// Working memory, where the device wants some.
        scratch: Option<BufferId>,
    },
    /// Per-head norms and rope on the q and k of a `[q | k | v]` buffer; k and v go into the cache.
    RopeStore {
        /// Shapes and cache place.
        layer: LayerId,
        /// `[heads * dk | kv_heads * dk | kv_heads * dv]` f32 rows; q is changed in place.
        qkv: BufferId,
        /// Norm of query heads.
        q_norm: Option<Gain>,
        /// Norm of key heads.
        k_norm: Option<Gain>,
        /// Cosines and sines.
        table: BufferId,
    },
    /// Attention of every row over the segments of its sequence.
    Attention {
        /// Shapes and cache place.
        layer: LayerId,
        /// Holds q.
        qkv: BufferId,
        /// `[heads * dv]` matrix inputs.
        dst: Inputs,
        /// `(m, l, A)` of each row and head, folded over the leaves so far.
        carry: BufferId,
        /// `(m, l, A)` of leaves, where the device keeps them in the workspace; decode only.
        partials: Option<BufferId>,
        /// Working memory of the workers.
        scratch: BufferId,
    },
    /// `dst = act(gate) * up` of a `[gate | up]` buffer.
    Gate {
        /// f32 rows of twice the width.
        src: BufferId,
        /// Activation of the gate.
        activation: Activation,
        /// Matrix inputs.
        dst: Inputs,
    },
    /// `dst += norm(src)`.
    AddNorm {
        /// f32 rows.
        src: BufferId,
        /// Norm parameters.
        gain: Gain,
        /// The residual stream.
        dst: BufferId,
    },
    /// `x = cap * tanh(x / cap)` in place.
    SoftCap {
        /// f32 rows.
        buffer: BufferId,
        /// Cap.
        cap: f32,
    },
}

/// A straight line of ops for up to `rows` rows, with its workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Most rows of a submission.
    pub rows: u32,
    /// Steps, in order.
    pub ops: Vec<Op>,
    /// Buffers, packed by lifetime.
    pub buffers: Vec<Buffer>,
    /// Bytes of workspace.
    pub bytes: u64,
}

impl Program {
    /// The buffer with that id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
}

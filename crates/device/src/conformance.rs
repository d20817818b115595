//! One table of cases for all devices: each op with the shapes and types that matter, run on a device and held against a
//! reference, an executor of plain kernels in `f64`.
//!
//! A case is a plan whose program is one op and what feeds it. The device loads it and runs it as it would run a model: the
//! same kernels, graphs, transfers and ring. Then buffers are read through [`Probe`](crate::Probe). Inputs are rows of an
//! embedding of f32, which are the same bits everywhere. A product, whose inputs a norm makes in the device's own format, is
//! compared given these inputs: they are read from the device and written to the reference, so that a rounding that falls to
//! the other side is not mistaken for an error of the product. Old cells are those of [`Executor::fill`](crate::Executor::fill).

mod bench;
mod bounds;
mod build;
mod cases;
mod run;

use tailrace_types::WeightType;

use crate::plan::spec::{Activation, Reach, Rope};
use crate::plan::{ActivationType, AttentionShape, Bucket};

pub use bench::{BenchCase, Measured, bench, bench_cases};
pub use bounds::{Bound, Precision};
pub use cases::{ROW_LAW_DEPTHS, cases, row_law_cases};
pub use run::{Checked, Failure, Output, Reference, check, failures, outputs, row_law};

/// One op, its shapes, and the rows that it is run for.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Says all of it.
    pub name: String,
    /// The program that the op is in. A head runs over rows of a prefill.
    pub bucket: Bucket,
    /// Rows of the step: of one sequence in a prefill, one of each sequence in a decode.
    pub rows: u32,
    /// Type of matrix inputs.
    pub activations: ActivationType,
    /// The op.
    pub op: CaseOp,
    /// Times that the op is in the program, each with weights or a layer of its own: more than once for benchmarks only.
    pub repeat: u32,
    /// Whether it also runs on devices that are slow: emulated, or without vector instructions.
    pub quick: bool,
}

/// What is tested.
#[derive(Clone, Debug, PartialEq)]
pub enum CaseOp {
    /// Cosines and sines.
    RopeTable {
        /// The position embedding.
        rope: Rope,
        /// Position of the first row.
        cells: u32,
    },
    /// Rows of a table.
    Embed {
        /// Type of the table.
        ty: WeightType,
        /// Width of a row.
        cols: u64,
        /// Factor.
        scale: f32,
        /// Whether the table is kept as a matrix; otherwise where the device keeps embeddings.
        tied: bool,
    },
    /// A norm that writes what products with weights of `reader`'s type read.
    Norm {
        /// Width of a row.
        cols: u64,
        /// Decides the format of the result.
        reader: WeightType,
    },
    /// A norm that is added.
    AddNorm {
        /// Width of a row.
        cols: u64,
    },
    /// Products of rows with matrices `[n][k]`.
    MatMul {
        /// Type of the matrices.
        ty: WeightType,
        /// Width of the inputs.
        k: u64,
        /// Output rows of each matrix.
        n: Vec<u64>,
        /// Whether each has a bias.
        bias: bool,
        /// Whether the result is added.
        accumulate: bool,
    },
    /// Position embedding of queries and keys, storage of cells, and attention over them.
    Attention(AttentionCase),
    /// A gated activation that writes what products with weights of `reader`'s type read.
    Gate {
        /// Width of the result.
        cols: u64,
        /// Activation of the gate.
        activation: Activation,
        /// Decides the format of the result.
        reader: WeightType,
    },
    /// A soft cap.
    SoftCap {
        /// Width of a row.
        cols: u64,
        /// Cap.
        cap: f32,
    },
    /// Gathered rows, the last norm, logits, and the largest of them.
    Head {
        /// Type of the matrix.
        ty: WeightType,
        /// Width of the stream.
        k: u64,
        /// Logits of a row.
        vocab: u64,
        /// Soft cap of the logits.
        cap: Option<f32>,
    },
}

/// Attention of one layer over the cells of one or more sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionCase {
    /// Heads, their sizes and types.
    pub shape: AttentionShape,
    /// Cells before the step: of each sequence in turn, over and over.
    pub cells: Vec<u32>,
    /// Position embedding.
    pub rope: Rope,
    /// Whether queries and keys are normed.
    pub norms: bool,
    /// Factor of `q.k`.
    pub scale: f32,
    /// Soft cap of the scores.
    pub cap: Option<f32>,
    /// Visible cells.
    pub reach: Reach,
    /// Whether only one older block stays on the device.
    pub tail: bool,
    /// Whether all sequences share the cells of the first, as far as they reach.
    pub shared: bool,
    /// Decides, with the case's activations, the format of the result.
    pub reader: WeightType,
}

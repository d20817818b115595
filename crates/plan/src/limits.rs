//! What a run is allowed: the inputs of a plan that do not come from the model.

use tailrace_types::KvType;

/// Whether matrix products quantise their inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationType {
    /// 8-bit blocks for quantised weights, f32 for float weights.
    Auto,
    /// f32 everywhere: weights are multiplied dequantised.
    F32,
}

/// Limits of a run. Every byte of its plan is a function of these, the model and the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Cells of all sequences together; each sequence owns an equal share.
    pub context_cells: u32,
    /// Sequences that can be live at once.
    pub sequences: u32,
    /// Rows of a prefill chunk. An input, never fitted: chunks start at multiples of it.
    pub chunk: u32,
    /// Rows of logits that are computed at once.
    pub logit_rows: u32,
    /// Longest rollback that sliding-window layers survive, in cells.
    pub rollback_cells: u32,
    /// Storage type of keys.
    pub k_type: KvType,
    /// Storage type of values.
    pub v_type: KvType,
    /// Type of matrix inputs.
    pub activations: ActivationType,
    /// Device memory that must not be exceeded, in bytes; `None` for no cap.
    pub device_bytes_max: Option<u64>,
    /// Host memory that the tail may take, in bytes.
    pub host_bytes_max: u64,
    /// Cells of older, full blocks that stay on the device; `None` for as many as fit.
    pub window_cells: Option<u32>,
}

impl Limits {
    /// Rows of a prefill chunk on a CPU, unless the user asks otherwise.
    pub const CHUNK_CPU: u32 = 512;

    /// The same on a GPU.
    pub const CHUNK_GPU: u32 = 2048;

    /// One sequence of `context_cells` without a cap: f16 cache, chunks for a CPU.
    pub fn new(context_cells: u32) -> Self {
        Limits {
            context_cells,
            sequences: 1,
            chunk: Self::CHUNK_CPU,
            logit_rows: 16,
            rollback_cells: 256,
            k_type: KvType::F16,
            v_type: KvType::F16,
            activations: ActivationType::Auto,
            device_bytes_max: None,
            host_bytes_max: u64::MAX,
            window_cells: None,
        }
    }

    /// Cells that one sequence can hold.
    pub fn sequence_cells(&self) -> u32 {
        self.context_cells / self.sequences.max(1)
    }
}

//! From a model and its limits to everything that a run will execute and every byte it will hold.
//!
//! Pure integers: no IO, no device. A [`Plan`] is computed before the first allocation, so that a cap on device
//! memory is a promise: the device allocates the rows of the [`MemoryMap`] once and then has no way to allocate.

mod arena;
mod fit;
mod limits;
mod lower;
mod memory;
mod op;
pub mod spec;

use std::fmt;

use tailrace_types::{BLOCK_CELLS, Bytes, KvType, WeightType};

pub use arena::{ALIGN, round_up};
pub use fit::{CachePlace, CachePlan, LayerCache, SlidingPlan};
pub use limits::{ActivationType, Limits};
pub use lower::{Layer, Weight, WeightForm};
pub use memory::{MemoryMap, MemoryRow, PAGE, Room, RowKind};
pub use op::{Buffer, BufferId, Content, Gain, Inputs, LayerId, Op, Product, Program, RopeId, WeightId};
pub use spec::ModelSpec;

/// What rows a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// A chunk of one sequence.
    Prefill,
    /// One row of each decoding sequence.
    Decode,
    /// Rows whose logits are wanted.
    Head,
}

/// Format of the rows that a matrix product reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixInput {
    /// 32-bit floats.
    F32,
    /// The device's 8-bit blocks.
    Q8,
    /// bfloat16.
    Bf16,
}

/// Buffers that attention of one layer needs in a program's workspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionBuffers {
    /// f32 elements of a row that are carried from leaf to leaf.
    pub carry_elements: u64,
    /// f32 elements of a row's partials.
    pub partial_elements: u64,
    /// Bytes of scratch, all workers together.
    pub scratch_bytes: u64,
}

/// Sizes that a device decides: its weight layout, its activation formats, its kernels' scratch.
pub trait DeviceSizes {
    /// Bytes of a matrix in the device's layout.
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64;

    /// Bytes of one row of quantised activations.
    fn q8_row_bytes(&self, cols: u64) -> u64;

    /// What a product with weights of that type reads.
    fn matrix_input(&self, bucket: Bucket, ty: WeightType, activations: ActivationType) -> MatrixInput {
        let _ = bucket;
        if activations == ActivationType::Auto && !ty.is_float() { MatrixInput::Q8 } else { MatrixInput::F32 }
    }

    /// Whether norms and attention leave f32 rows even where no product reads them.
    fn keeps_f32(&self) -> bool {
        true
    }

    /// Rows of bf16 matrix inputs are padded to a multiple of this.
    fn row_multiple(&self) -> u32 {
        1
    }

    /// Bytes of scratch of a product with a matrix.
    fn matmul_scratch_bytes(&self, input: MatrixInput, ty: WeightType, rows: u64, cols: u64) -> u64 {
        let _ = (input, ty, rows, cols);
        0
    }

    /// Buffers of attention in the workspace.
    fn attention_buffers(&self, bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers;

    /// Bytes of decode partials that all layers share, where they are no part of the workspace because they grow with the
    /// context.
    fn partials_bytes(&self, shape: &AttentionShape, sequences: u32, sequence_blocks: u32) -> u64 {
        let _ = (shape, sequences, sequence_blocks);
        0
    }

    /// Slots of the ring that tail blocks are staged in, of `slot_bytes` each, for a model of `weight_bytes`. A function of the
    /// model alone: a ring that grew with the cap could shrink the window.
    fn ring_slots(&self, slot_bytes: u64, weight_bytes: u64) -> u32;

    /// Slots up to which the ring is to hold the tail of a whole layer, where sliding layers, which have none, lie between those
    /// that have one. Also a function of the model alone.
    fn ring_slots_max(&self, slot_bytes: u64, weight_bytes: u64) -> u32 {
        self.ring_slots(slot_bytes, weight_bytes)
    }

    /// Bytes of what is uploaded for each step: rows, tables, and `gathered_row_bytes` for each row whose embedding the host has.
    fn step_bytes(&self, limits: &Limits, gathered_row_bytes: u64) -> u64 {
        let _ = (limits, gathered_row_bytes);
        0
    }

    /// Whether a token embedding that is not also the head stays in host memory.
    fn embedding_on_host(&self) -> bool {
        false
    }

    /// Bytes that the process holds on the device beside the arenas: measured at start.
    fn driver_bytes(&self) -> u64 {
        0
    }
}

/// Heads of an attention layer and the types of its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a query or key head.
    pub dk: u32,
    /// Elements of a value head.
    pub dv: u32,
    /// Storage type of keys.
    pub k_type: KvType,
    /// Storage type of values.
    pub v_type: KvType,
}

impl AttentionShape {
    /// Bytes of the keys of one head in a block.
    pub fn k_head_bytes(&self) -> u64 {
        BLOCK_CELLS as u64 * self.k_type.row_bytes(self.dk)
    }

    /// Bytes of the values of one head in a block.
    pub fn v_head_bytes(&self) -> u64 {
        BLOCK_CELLS as u64 * self.v_type.row_bytes(self.dv)
    }

    /// Bytes of a block: `[K: kv_head x 256 x dk][V: kv_head x 256 x dv]`.
    pub fn block_bytes(&self) -> u64 {
        self.kv_heads as u64 * (self.k_head_bytes() + self.v_head_bytes())
    }

    /// Query heads of one KV head.
    pub fn group(&self) -> u32 {
        self.heads / self.kv_heads
    }
}

/// The largest context that is accepted: far beyond any model, and its byte counts stay far below 64 bits.
const CONTEXT_CELLS_MAX: u32 = 1 << 30;

/// Everything that a run will execute and every byte it will hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it was made for.
    pub limits: Limits,
    /// Rows of the head.
    pub vocab: u32,
    /// Weights, in the order of the weight arena.
    pub weights: Vec<Weight>,
    /// Distinct position embeddings.
    pub ropes: Vec<spec::Rope>,
    /// Attention of each layer.
    pub layers: Vec<Layer>,
    /// Rows of one sequence, up to a chunk.
    pub prefill: Program,
    /// One row of each decoding sequence.
    pub decode: Program,
    /// Logits of up to `limits.logit_rows` rows: gathered into its first buffer, left in its last.
    pub head: Program,
    /// How the cache is divided.
    pub cache: CachePlan,
    /// Every byte.
    pub memory: MemoryMap,
}

impl Plan {
    /// The plan of `spec` under `limits` on `device`.
    pub fn new(spec: &ModelSpec, limits: &Limits, device: &dyn DeviceSizes) -> Result<Plan, PlanError> {
        check(limits)?;
        Self::place(spec, limits, device).map_err(|error| match error {
            PlanError::DoesNotFit { cap, needed, map, .. } => {
                PlanError::DoesNotFit { cap, needed, map, hints: hints(spec, limits, device, needed) }
            }
            other => other,
        })
    }

    /// The largest context, up to the trained one and in whole blocks, whose tail the host can hold.
    pub fn default_context(spec: &ModelSpec, limits: &Limits, device: &dyn DeviceSizes) -> Result<u32, PlanError> {
        let at = |cells| Plan::new(spec, &Limits { context_cells: cells, ..limits.clone() }, device);
        let holds = |plan: &Plan| plan.memory.bytes(RowKind::Tail) <= plan.limits.host_bytes_max;
        let trained = spec.context.saturating_mul(limits.sequences).min(CONTEXT_CELLS_MAX);
        if holds(&at(trained)?) {
            return Ok(trained);
        }
        // The least that gives every sequence a cell is resident: no more blocks than landing frames.
        let (mut low, mut high) = (limits.sequences.div_ceil(BLOCK_CELLS), trained.div_ceil(BLOCK_CELLS));
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if at(middle * BLOCK_CELLS).is_ok_and(|plan| holds(&plan)) { low = middle } else { high = middle }
        }
        Ok(low * BLOCK_CELLS)
    }

    fn place(spec: &ModelSpec, limits: &Limits, device: &dyn DeviceSizes) -> Result<Plan, PlanError> {
        let lowered = lower::lower(spec, limits, device);
        let (cache, memory) = fit::fit(&lowered, limits, device)?;
        let lower::Lowered { weights, ropes, layers, prefill, decode, head, .. } = lowered;
        Ok(Plan {
            limits: limits.clone(),
            vocab: spec.vocab,
            weights,
            ropes,
            layers,
            prefill,
            decode,
            head,
            cache,
            memory,
        })
    }

    /// The program of a bucket.
    pub fn program(&self, bucket: Bucket) -> &Program {
        match bucket {
            Bucket::Prefill => &self.prefill,
            Bucket::Decode => &self.decode,
            Bucket::Head => &self.head,
        }
    }

    /// Cells of older, full blocks that stay on the device during prefill; the whole context where nothing spills.
    pub fn window_cells(&self) -> u32 {
        self.window_of(self.cache.window_frames)
    }

    /// The same during decode, when overlay frames lie over the prefill workspace.
    pub fn window_cells_decode(&self) -> u32 {
        self.window_of(self.cache.window_frames + self.cache.overlay_frames)
    }

    fn window_of(&self, frames: u32) -> u32 {
        match self.cache.spills {
            true => frames.saturating_mul(BLOCK_CELLS).min(self.limits.context_cells),
            false => self.limits.context_cells,
        }
    }

    /// Cells that can be in the tail at most.
    pub fn tail_cells_max(&self) -> u32 {
        self.limits.context_cells - self.window_cells()
    }
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanError {
    /// A limit that must be positive is zero.
    Zero(&'static str),
    /// A limit is beyond what any run could use.
    TooLarge {
        /// Which one.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest that is accepted.
        most: u64,
    },
    /// Less than one cell for each sequence.
    ContextTooSmall {
        /// Cells of all sequences.
        context_cells: u32,
        /// Sequences.
        sequences: u32,
    },
    /// The rows exceed the cap.
    DoesNotFit {
        /// The cap in bytes.
        cap: u64,
        /// The least cap that these limits start under, in bytes.
        needed: u64,
        /// The rows of the smallest layout.
        map: Box<MemoryMap>,
        /// Nearest settings that fit, ready to print.
        hints: Vec<String>,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Zero(what) => write!(f, "{what} must be at least 1"),
            PlanError::TooLarge { what, value, most } => write!(f, "{what} of {value} is too large; at most {most}"),
            PlanError::ContextTooSmall { context_cells, sequences } => write!(
                f,
                "a context of {context_cells} cells leaves none for each of {sequences} sequences; use -c {sequences} or more"
            ),
            PlanError::DoesNotFit { cap, needed, map, hints } => {
                write!(f, "the device memory cap of {cap} bytes ({}) is too small: ", Bytes(*cap))?;
                write!(f, "{needed} bytes ({}) are needed; ", Bytes(*needed))?;
                writeln!(f, "what fits: {}", hints.join("; or "))?;
                write!(f, "{map}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

fn check(limits: &Limits) -> Result<(), PlanError> {
    let positive = [
        (limits.sequences as u64, "the number of sequences (-np)"),
        (limits.context_cells as u64, "the context (-c)"),
        (limits.chunk as u64, "the prefill chunk (-ub)"),
        (limits.logit_rows as u64, "the number of logit rows"),
        (limits.device_bytes_max.unwrap_or(1), "the device memory cap (--vram-target)"),
        (limits.host_bytes_max, "the host memory limit (--host-mem)"),
        (limits.window_cells.unwrap_or(1) as u64, "the window (--kv-window)"),
    ];
    if let Some((_, what)) = positive.iter().find(|(value, _)| *value == 0) {
        return Err(PlanError::Zero(what));
    }
    let bounded = [
        (limits.context_cells, CONTEXT_CELLS_MAX, "a context (-c)"),
        (limits.sequences, 4096, "a number of sequences (-np)"),
        (limits.chunk, 1 << 16, "a prefill chunk (-ub)"),
        (limits.logit_rows, 1 << 16, "a number of logit rows"),
        (limits.rollback_cells, 1 << 30, "a rollback limit"),
    ];
    if let Some(&(value, most, what)) = bounded.iter().find(|(value, most, _)| value > most) {
        return Err(PlanError::TooLarge { what, value: value as u64, most: most as u64 });
    }
    if limits.context_cells < limits.sequences {
        let (context_cells, sequences) = (limits.context_cells, limits.sequences);
        return Err(PlanError::ContextTooSmall { context_cells, sequences });
    }
    Ok(())
}

/// Settings near `limits` that start: a larger cap, or less of a chunk, of sequences, of a window or of a context.
fn hints(spec: &ModelSpec, limits: &Limits, device: &dyn DeviceSizes, needed: u64) -> Vec<String> {
    let fits = |changed: &Limits| check(changed).is_ok() && Plan::place(spec, changed, device).is_ok();
    let mut hints = vec![format!("--vram-target {}K", needed.div_ceil(1024))];
    let halves = |from: u32| std::iter::successors(Some(from / 2), |n| Some(n / 2)).take_while(|&n| n > 0);
    let mut try_halves = |flag: &str, from: u32, with: &dyn Fn(u32) -> Limits| {
        if let Some(n) = halves(from).find(|&n| fits(&with(n))) {
            hints.push(format!("{flag} {n}"));
        }
    };
    try_halves("-ub", limits.chunk, &|chunk| Limits { chunk, ..limits.clone() });
    try_halves("-np", limits.sequences, &|sequences| Limits { sequences, ..limits.clone() });
    try_halves("-c", limits.context_cells, &|context_cells| Limits { context_cells, ..limits.clone() });
    if let Some(cells) = limits.window_cells {
        try_halves("--kv-window", cells, &|cells| Limits { window_cells: Some(cells), ..limits.clone() });
    }
    hints
}

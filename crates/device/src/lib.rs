//! The boundary between the engine and the devices that compute: a [`Loader`] takes a plan and weights and gives an
//! [`Executor`], which runs submissions and has no way to allocate.

pub mod conformance;
pub mod null;
pub mod rope;
pub mod synthetic;
mod tail;

use std::borrow::Cow;

use tailrace_types::TokenId;

pub use tailrace_kv as kv;
pub use tailrace_plan as plan;

pub use kv::Phase;
pub use tail::TailUse;

use kv::StepPlan;
use plan::spec::TensorSlice;
use plan::{Bucket, BufferId, DeviceSizes, Plan, RowKind};

/// One token to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The token.
    pub token: TokenId,
    /// Its position in its sequence.
    pub position: u32,
    /// Index of its sequence's view in the step plan.
    pub view: u32,
}

/// Rows to compute, and where the cells that they read and write are.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    /// The row bucket.
    pub phase: Phase,
    /// Rows, grouped by view, positions ascending in each.
    pub rows: &'a [Row],
    /// Transfers to make first, and the segments to read.
    pub cache: &'a StepPlan,
}

impl Submission<'_> {
    /// Checks everything that kernels rely on: rows within the bucket and the vocabulary, in the order of their sequences, and
    /// segments that list each block of a sequence.
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] says which of these does not hold.
    pub fn check(&self, plan: &Plan) -> Result<(), DeviceError> {
        let program = match self.phase {
            Phase::Prefill => &plan.prefill,
            Phase::Decode => &plan.decode,
        };
        if self.rows.len() > program.rows as usize {
            return Err(DeviceError::Misuse("more rows than the plan's bucket holds"));
        }
        if self.rows.iter().any(|row| row.token.0 >= plan.vocab) {
            return Err(DeviceError::Misuse("a token past the vocabulary"));
        }
        // Prefill is rows of one sequence, decode one row of each.
        let sequences = &self.cache.sequences;
        let shaped = match self.phase {
            Phase::Prefill => sequences.len() <= 1,
            Phase::Decode => sequences.iter().all(|sequence| sequence.cells == 1),
        };
        let appended = sequences.iter().zip(0..).flat_map(|(sequence, view)| {
            (sequence.first_cell..sequence.first_cell + sequence.cells).map(move |position| (view, position))
        });
        if !shaped || !appended.eq(self.rows.iter().map(|row| (row.view, row.position))) {
            return Err(DeviceError::Misuse("rows and sequences do not match"));
        }
        for sequence in sequences {
            let mut blocks = 0;
            for segment in self.cache.segments_of(sequence) {
                if segment.first_block != blocks {
                    return Err(DeviceError::Misuse("segments do not cover the sequence"));
                }
                blocks += self.cache.homes(segment).len() as u32;
            }
        }
        Ok(())
    }
}

/// Bytes of a model file, as a loader reads them.
pub trait WeightFile: Sync {
    /// `count` rows of `slice` from its row `first` on, in their storage type.
    fn rows(&self, slice: &TensorSlice, first: u64, count: u64) -> Result<Cow<'_, [u8]>, DeviceError>;
    /// Says that those rows will not be read again, so that their memory can be given back.
    fn release(&self, slice: &TensorSlice, first: u64, count: u64);
    /// The values of `slice` as f32.
    fn values(&self, slice: &TensorSlice) -> Result<Vec<f32>, DeviceError>;
}

/// Where a loader takes weights from.
#[derive(Clone, Copy)]
pub enum WeightSource<'a> {
    /// A model file.
    File(&'a dyn WeightFile),
    /// Random weights of a sensible size, made on the device: for measuring shapes without a file.
    Synthetic {
        /// Seed of the generator.
        seed: u64,
    },
}

impl WeightSource<'_> {
    /// Calls `read` with the source as a file, for devices whose synthetic weights are those of
    /// [`SyntheticWeights`](synthetic::SyntheticWeights).
    pub fn with_file<T>(self, read: impl FnOnce(&dyn WeightFile) -> T) -> T {
        match self {
            WeightSource::File(file) => read(file),
            WeightSource::Synthetic { seed } => read(&synthetic::SyntheticWeights::new(seed)),
        }
    }
}

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: TokenId,
    /// Its logit.
    pub logit: f32,
}

/// Rates of a device and its link, measured, in bytes per second; 0 where the device has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Host to device in copies of 4 MiB, otherwise idle, best of 5.
    pub link: f64,
    /// The same while the device reads its own memory at full rate.
    pub link_loaded: f64,
    /// The device reading its own memory, best of 5.
    pub device_read: f64,
    /// All cores reading host memory.
    pub host_read: f64,
}

/// Bytes that a row of the memory map has really used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HighWater {
    /// The row.
    pub kind: RowKind,
    /// Most bytes in use at once so far.
    pub used_bytes: u64,
    /// Bytes that the plan gave it.
    pub row_bytes: u64,
}

/// What a device counted since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes copied into the tail.
    pub tail_written_bytes: u64,
    /// Bytes of the tail that attention read. Over a link: bytes that crossed it for attention, prefetched ones included.
    pub tail_read_bytes: u64,
    /// Bytes copied from the tail back into frames.
    pub tail_fetched_bytes: u64,
}

impl Traffic {
    /// Bytes that came from the tail, for whatever.
    pub fn from_tail_bytes(&self) -> u64 {
        self.tail_read_bytes + self.tail_fetched_bytes
    }
}

/// How a device is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Fill dropped frames and consumed ring slots with NaN, so that a tail which is only a label cannot pass.
    pub poison: bool,
}

/// Makes executors for one kind of device.
pub trait Loader: DeviceSizes {
    /// Allocates every arena of the plan, loads the weights and seals. `progress` is told the fraction loaded.
    fn load(
        &self,
        plan: Plan,
        weights: WeightSource<'_>,
        options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Executor>, DeviceError>;

    /// What the device and its link can carry. Takes a moment, and memory that is given back.
    fn rates(&self) -> Result<Rates, DeviceError>;

    /// What the device calls itself, such as `NVIDIA H200`.
    fn name(&self) -> String;
}

/// A sealed device: every byte it will ever use is allocated, but for extents of the tail.
pub trait Executor: Send {
    /// The plan that it runs.
    fn plan(&self) -> &Plan;

    /// Makes the transfers that come before, computes the rows and stores their cells, makes those that come after.
    ///
    /// A submission without rows makes transfers only. With [`DeviceError::OutOfMemory`] the rows were computed, but the system
    /// refused an extent of the tail: none of the step's extents is there, and none of its copies to the host counts.
    ///
    /// The residual stream of the rows is kept until the next submission, for [`Executor::logits`].
    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError>;

    /// Logits `[rows][vocab]` of rows of the last submission, at most `limits.logit_rows` of them at once.
    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError>;

    /// Candidates that [`Executor::top`] can give for a row; 0 where the device leaves the choice to its caller.
    fn top_max(&self) -> u32 {
        0
    }

    /// The `k` largest logits `[rows][k]` of rows of the last submission, largest first; of equal ones the lower token first.
    /// At most [`Executor::top_max`] of at most `limits.logit_rows` rows.
    fn top(&mut self, rows: &[u32], k: u32) -> Result<&[Candidate], DeviceError> {
        let _ = (rows, k);
        Err(DeviceError::Misuse("this device gives no candidates"))
    }

    /// Like [`Executor::submit`], but the cells of the rows become random numbers and nothing is computed: a deep cache without
    /// its prefill, for benchmarks. Cells depend on the seed, their position, layer and place in the cell alone: they are the
    /// same on every device, see [`synthetic::cell`]. There are no logits of a filled row.
    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError>;

    /// Waits until everything that was submitted is done, transfers included.
    fn finish(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Access to the buffers of its programs, for [`conformance`]; `None` where there is nothing to see.
    fn probe(&mut self) -> Option<&mut dyn Probe> {
        None
    }

    /// Device memory that the driver says the process has in use now, in bytes; 0 where there is no driver to ask.
    fn driver_bytes(&self) -> u64 {
        0
    }

    /// Most bytes used of each of the plan's device rows, and of the tail.
    fn high_water(&self) -> Vec<HighWater>;

    /// Bytes moved so far.
    fn traffic(&self) -> Traffic;
}

/// The buffers of an executor's programs: for tests, which see what an op left.
pub trait Probe {
    /// The first `rows` rows of a buffer of f32, 8-bit or bf16 values, as f32; after everything that was submitted.
    fn read(&mut self, bucket: Bucket, buffer: BufferId, rows: u32) -> Result<Vec<f32>, DeviceError>;

    /// Replaces the first rows of a buffer of f32 values. Only devices that serve as a reference need this.
    fn write(&mut self, bucket: Bucket, buffer: BufferId, values: &[f32]) -> Result<(), DeviceError> {
        let _ = (bucket, buffer, values);
        Err(DeviceError::Misuse("this device's buffers cannot be written"))
    }
}

/// What a device could not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceError {
    /// Memory that the plan or the tail needs was refused by the system.
    OutOfMemory {
        /// For what.
        what: &'static str,
        /// How much, in bytes.
        bytes: u64,
    },
    /// The model file could not be read.
    Weights(String),
    /// The submission does not fit the plan: a defect of the caller.
    Misuse(&'static str),
    /// A worker failed.
    Worker,
    /// The device cannot be used, or refused to go on: what happened, and what would help.
    Device(String),
}

impl std::fmt::Display for DeviceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceError::OutOfMemory { what, bytes } => {
                write!(f, "the system refused {} for {what}", tailrace_types::Bytes(*bytes))
            }
            DeviceError::Weights(why) => write!(f, "cannot load the weights: {why}"),
            DeviceError::Misuse(why) => write!(f, "internal error: {why}"),
            DeviceError::Worker => write!(f, "internal error: a worker thread failed"),
            DeviceError::Device(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for DeviceError {}

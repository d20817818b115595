//! The executor: runs a plan's programs on threads, over arenas that were allocated once.

#![allow(unsafe_code)]

mod attention;
mod load;
mod memory;
mod ops;
mod probe;
mod transfer;

use std::sync::atomic::{AtomicU64, Ordering};

use tailrace_device::kv::{Home, Phase};
use tailrace_device::plan::{AttentionBuffers, AttentionShape, Bucket, DeviceSizes, Plan, Program, RowKind};
use tailrace_device::{
    DeviceError, Executor, HighWater, LoadOptions, Loader, Probe, Rates, Row, Submission, Traffic, WeightSource,
};
use tailrace_types::{SlotId, WeightType};

use crate::pool::Pool;
use crate::q8::q8_row_bytes;
use crate::simd::isa::Isa;
use memory::Memory;

/// Leaves whose partials a decode row holds before it folds them: enough work items for many cores, little workspace.
const LEAF_BATCH: u32 = 64;

/// Slots of the staging ring at least: a prefill stages this many leaves between two barriers.
const RING_SLOTS_MIN: usize = 4;

/// Makes CPU executors.
#[derive(Clone, Debug)]
pub struct CpuLoader {
    threads: usize,
    isa: Isa,
}

impl CpuLoader {
    /// A device of `threads` workers that use the instructions of `isa`.
    pub fn new(threads: usize, isa: Isa) -> Self {
        CpuLoader { threads: threads.max(1), isa }
    }
}

impl DeviceSizes for CpuLoader {
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64 {
        crate::pack::packed_bytes(ty, rows, cols).expect("the model's tensors were checked to be whole blocks")
    }

    fn q8_row_bytes(&self, cols: u64) -> u64 {
        q8_row_bytes(cols as usize) as u64
    }

    fn attention_buffers(&self, bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers {
        let record = attention::partial_elements(shape);
        AttentionBuffers {
            carry_elements: record,
            partial_elements: if bucket == Bucket::Decode { u64::from(LEAF_BATCH) * record } else { 0 },
            scratch_bytes: self.threads as u64 * attention::worker_scratch_bytes(shape),
        }
    }

    fn ring_slots(&self, _slot_bytes: u64, _weight_bytes: u64) -> u32 {
        self.threads.max(RING_SLOTS_MIN) as u32
    }
}

impl Loader for CpuLoader {
    fn load(
        &self,
        plan: Plan,
        weights: WeightSource<'_>,
        options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Executor>, DeviceError> {
        let memory = Memory::new(&plan)?;
        let mut pool = Pool::new(self.threads).map_err(|_| DeviceError::Worker)?;
        let frequencies = weights.with_file(|file| {
            load::weights(&plan, &memory, &mut pool, file, progress)?;
            load::frequencies(&plan, file)
        })?;
        let step = Step::with_capacity(&plan);
        let machine =
            Machine { plan, memory, isa: self.isa, frequencies, poison: options.poison, tail_read: AtomicU64::new(0) };
        Ok(Box::new(CpuExecutor { machine, pool, step, traffic: Traffic::default() }))
    }

    fn rates(&self) -> Result<Rates, DeviceError> {
        // Its own memory is the host's, and there is no link.
        let host_read = crate::rates::host_read(self.threads)?;
        Ok(Rates { device_read: host_read, host_read, ..Rates::default() })
    }

    fn name(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("CPU, {} thread{plural}, {}", self.threads, self.isa.level().name())
    }
}

/// What all workers share while a program runs.
struct Machine {
    plan: Plan,
    memory: Memory,
    isa: Isa,
    /// Angle per position of each pair of each rope, in radians.
    frequencies: Vec<Box<[f64]>>,
    poison: bool,
    /// Bytes of the tail that attention read.
    tail_read: AtomicU64,
}

/// The rows of one sequence in the current submission.
struct View {
    slot: SlotId,
    rows: usize,
    /// Position of its first row.
    first_position: u32,
    /// Its leaves' homes in `Step::homes`, leaf 0 first.
    homes: std::ops::Range<usize>,
}

/// The current submission, flattened for the workers. Reused, so that no step allocates.
struct Step {
    phase: Phase,
    rows: Vec<Row>,
    views: Vec<View>,
    homes: Vec<Home>,
}

impl Step {
    fn with_capacity(plan: &Plan) -> Self {
        let limits = &plan.limits;
        Step {
            phase: Phase::Prefill,
            rows: Vec::with_capacity(limits.chunk.max(limits.sequences) as usize),
            views: Vec::with_capacity(limits.sequences as usize),
            homes: Vec::with_capacity((plan.cache.sequence_blocks * limits.sequences) as usize),
        }
    }

    /// Takes over a submission that was checked.
    fn set(&mut self, submission: &Submission<'_>) {
        let cache = submission.cache;
        self.phase = submission.phase;
        self.rows.clear();
        self.views.clear();
        self.homes.clear();
        self.rows.extend_from_slice(submission.rows);
        for sequence in &cache.sequences {
            let first_home = self.homes.len();
            for segment in cache.segments_of(sequence) {
                self.homes.extend_from_slice(cache.homes(segment));
            }
            self.views.push(View {
                slot: sequence.slot,
                rows: sequence.cells as usize,
                first_position: sequence.first_cell,
                homes: first_home..self.homes.len(),
            });
        }
    }
}

fn program(plan: &Plan, phase: Phase) -> &Program {
    match phase {
        Phase::Prefill => &plan.prefill,
        Phase::Decode => &plan.decode,
    }
}

struct CpuExecutor {
    machine: Machine,
    pool: Pool,
    step: Step,
    traffic: Traffic,
}

impl CpuExecutor {
    /// Takes over a submission and makes the transfers that come before.
    fn begin(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let Machine { plan, memory, poison, .. } = &mut self.machine;
        submission.check(plan)?;
        self.step.set(submission);
        transfer::run(memory, plan, &submission.cache.before, *poison, &mut self.traffic)
    }

    /// Makes the transfers that come after.
    fn end(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let Machine { plan, memory, poison, .. } = &mut self.machine;
        transfer::run(memory, plan, &submission.cache.after, *poison, &mut self.traffic)
    }
}

impl Executor for CpuExecutor {
    fn plan(&self) -> &Plan {
        &self.machine.plan
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.begin(submission)?;
        if !self.step.rows.is_empty() {
            let (machine, step) = (&self.machine, &self.step);
            let program = program(&machine.plan, submission.phase);
            machine.memory.note_program(RowKind::Workspace, program, step.rows.len());
            self.pool.run(|worker| ops::run_body(machine, program, step, worker));
        }
        self.end(submission)
    }

    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.begin(submission)?;
        let (machine, step) = (&self.machine, &self.step);
        let program = program(&machine.plan, submission.phase);
        self.pool.run(|worker| ops::fill(machine, program, step, seed, worker));
        // Nothing was computed that logits could be made of.
        self.step.rows.clear();
        self.end(submission)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        let machine = &self.machine;
        if rows.len() > machine.plan.limits.logit_rows as usize {
            return Err(DeviceError::Misuse("more logit rows than the plan holds"));
        }
        if rows.iter().any(|&row| row as usize >= self.step.rows.len()) {
            return Err(DeviceError::Misuse("logits of a row that was not computed"));
        }
        machine.memory.note_program(RowKind::Head, &machine.plan.head, rows.len());
        let step = &self.step;
        self.pool.run(|worker| ops::run_head(machine, step, rows, worker));
        Ok(ops::logits(machine, rows.len()))
    }

    fn probe(&mut self) -> Option<&mut dyn Probe> {
        Some(self)
    }

    fn high_water(&self) -> Vec<HighWater> {
        let Machine { plan, memory, .. } = &self.machine;
        let of = |row: &tailrace_device::plan::MemoryRow| HighWater {
            kind: row.kind,
            used_bytes: memory.used_bytes(plan, row.kind),
            row_bytes: row.bytes(),
        };
        plan.memory.rows.iter().map(of).collect()
    }

    fn traffic(&self) -> Traffic {
        Traffic { tail_read_bytes: self.machine.tail_read.load(Ordering::Relaxed), ..self.traffic }
    }
}

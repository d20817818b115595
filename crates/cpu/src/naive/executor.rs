//! The oracle: a plan, run op by op with the naive kernels.
//!
//! It holds the same arenas as any device, buffers at the plan's offsets and blocks at the cache's, so it also checks that
//! buffers which share bytes do not live at the same time, and that transfers bring what attention needs. Its own are only
//! the formats that a plan leaves to the device: weights lie as the file has them, and a quantised row holds the values that
//! its blocks stand for, as f64, in which they are exact.

use tailrace_device::kv::{Phase, StepPlan, Transfer};
use tailrace_device::plan::{
    AttentionBuffers, AttentionShape, Bucket, Buffer, BufferId, Content, DeviceSizes, MemoryRow, Op, Plan, Program,
    RowKind, Weight, WeightForm,
};
use tailrace_device::{
    DeviceError, Executor, HighWater, LoadOptions, Loader, Probe, Rates, Row, Submission, Traffic, WeightFile,
    WeightSource,
};
use tailrace_types::WeightType;

use super::memory::{Arena, Memory, NAN_BYTE};
use super::ops::{Model, Run, doubles, floats};
use super::rope::inverse_frequencies;
use crate::rates::host_read;

/// Makes executors that compute with the naive kernels, on one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NaiveLoader;

impl DeviceSizes for NaiveLoader {
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64 {
        ty.block().bytes_of(rows * cols).expect("the model's tensors were checked to be whole blocks")
    }

    fn q8_row_bytes(&self, cols: u64) -> u64 {
        cols * size_of::<f64>() as u64
    }

    /// Attention is one softmax: there are no partials. The carry is there, and is never used.
    fn attention_buffers(&self, _bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers {
        AttentionBuffers { carry_elements: u64::from(shape.heads), ..AttentionBuffers::default() }
    }

    /// Blocks of the tail are read where they are.
    fn ring_slots(&self, _slot_bytes: u64, _weight_bytes: u64) -> u32 {
        0
    }
}

impl Loader for NaiveLoader {
    fn load(
        &self,
        plan: Plan,
        weights: WeightSource<'_>,
        options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Executor>, DeviceError> {
        let memory = Memory::new(&plan)?;
        let (weights, frequencies) = weights.with_file(|file| {
            let weights = plan.weights.iter().map(|weight| read(file, weight)).collect::<Result<_, _>>()?;
            let frequencies = plan.ropes.iter().map(|rope| {
                let factors = rope.factors.as_ref().map(|factors| file.values(factors)).transpose()?;
                Ok(inverse_frequencies(rope, factors.as_deref()))
            });
            Ok((weights, frequencies.collect::<Result<_, DeviceError>>()?))
        })?;
        progress(1.0);
        let model = Model { plan, weights, frequencies, poison: options.poison };
        let (rows, logits) = (Vec::new(), Vec::new());
        Ok(Box::new(NaiveExecutor { model, memory, phase: Phase::Prefill, rows, logits, traffic: Traffic::default() }))
    }

    fn rates(&self) -> Result<Rates, DeviceError> {
        let host_read = host_read(1)?;
        Ok(Rates { device_read: host_read, host_read, ..Rates::default() })
    }

    fn name(&self) -> String {
        "CPU, naive kernels".to_owned()
    }
}

/// A weight's bytes.
fn read(file: &dyn WeightFile, weight: &Weight) -> Result<Vec<u8>, DeviceError> {
    let bytes = match weight.form {
        WeightForm::Matrix => file.rows(&weight.slice, 0, weight.slice.rows)?.into_owned(),
        WeightForm::HostRows => return Err(DeviceError::Misuse("a plan for another device")),
        WeightForm::Vector => file.values(&weight.slice)?.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    match bytes.len() as u64 == weight.bytes {
        true => Ok(bytes),
        false => Err(DeviceError::Weights("a weight of another size than planned".to_owned())),
    }
}

struct NaiveExecutor {
    model: Model,
    memory: Memory,
    /// Of the last submission.
    phase: Phase,
    rows: Vec<Row>,
    logits: Vec<f32>,
    traffic: Traffic,
}

impl NaiveExecutor {
    fn program(&self) -> &Program {
        match self.phase {
            Phase::Prefill => &self.model.plan.prefill,
            Phase::Decode => &self.model.plan.decode,
        }
    }

    /// Runs the body over the rows of the submission.
    fn compute(&mut self, cache: &StepPlan) -> Result<(), DeviceError> {
        let NaiveExecutor { model, memory, rows, .. } = self;
        let program = match self.phase {
            Phase::Prefill => &model.plan.prefill,
            Phase::Decode => &model.plan.decode,
        };
        if model.poison {
            // Overlay frames lie over the workspace of a prefill: whatever was in them is lost.
            memory.bytes_mut((Arena::Workspace, 0..program.bytes as usize))?.fill(NAN_BYTE);
        }
        Run { model, memory, program, arena: Arena::Workspace, rows, cache }.run()
    }

    /// Takes over a submission and makes the transfers that come before.
    fn begin(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let Submission { phase, rows, cache } = *submission;
        submission.check(&self.model.plan)?;
        self.phase = phase;
        self.rows = rows.to_vec();
        self.transfer(&cache.before)
    }

    /// A buffer, and the arena that it is in.
    fn buffer(&self, bucket: Bucket, id: BufferId) -> Result<(Arena, Buffer), DeviceError> {
        let plan = &self.model.plan;
        let (arena, program) = match bucket {
            Bucket::Prefill => (Arena::Workspace, &plan.prefill),
            Bucket::Decode => (Arena::Workspace, &plan.decode),
            Bucket::Head => (Arena::Head, &plan.head),
        };
        let buffer = program.buffers.get(id.0 as usize).ok_or(DeviceError::Misuse("a buffer that does not exist"))?;
        Ok((arena, buffer.clone()))
    }

    fn transfer(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        let Model { plan, poison, .. } = &self.model;
        self.memory.transfer(plan, transfers, *poison, &mut self.traffic)
    }
}

impl Probe for NaiveExecutor {
    fn read(&mut self, bucket: Bucket, buffer: BufferId, rows: u32) -> Result<Vec<f32>, DeviceError> {
        let (arena, buffer) = self.buffer(bucket, buffer)?;
        let start = buffer.offset as usize;
        let bytes = self.memory.bytes((arena, start..start + rows as usize * buffer.row_bytes as usize))?;
        match buffer.content {
            Content::F32 => Ok(floats(bytes)),
            Content::Q8 => Ok(doubles(bytes).into_iter().map(|x| x as f32).collect()),
            Content::Bf16 | Content::Scratch => Err(DeviceError::Misuse("a buffer without values is read")),
        }
    }

    fn write(&mut self, bucket: Bucket, buffer: BufferId, values: &[f32]) -> Result<(), DeviceError> {
        let (arena, buffer) = self.buffer(bucket, buffer)?;
        let (start, most) = (buffer.offset as usize, buffer.bytes() as usize);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        if buffer.content != Content::F32 || bytes.len() > most {
            return Err(DeviceError::Misuse("values that do not fit their buffer"));
        }
        self.memory.bytes_mut((arena, start..start + bytes.len()))?.copy_from_slice(&bytes);
        Ok(())
    }
}

impl Executor for NaiveExecutor {
    fn plan(&self) -> &Plan {
        &self.model.plan
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.begin(submission)?;
        let cache = submission.cache;
        if !self.rows.is_empty() {
            self.compute(cache)?;
            self.traffic.tail_read_bytes += cache.tail_reads.len() as u64 * self.model.plan.cache.frame_bytes;
        }
        self.transfer(&cache.after)
    }

    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.begin(submission)?;
        let rows = std::mem::take(&mut self.rows);
        let NaiveExecutor { model, memory, .. } = self;
        let (program, cache) = (&model.plan.prefill, submission.cache);
        Run { model, memory, program, arena: Arena::Workspace, rows: &rows, cache }.fill(seed)?;
        self.transfer(&cache.after)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        if rows.len() > self.model.plan.limits.logit_rows as usize {
            return Err(DeviceError::Misuse("more logit rows than the plan holds"));
        }
        if rows.iter().any(|&row| row as usize >= self.rows.len()) {
            return Err(DeviceError::Misuse("logits of a row that was not computed"));
        }
        let body = self.program();
        let stream = body.ops.iter().find_map(|op| match op {
            Op::Embed { dst, .. } => Some(body.buffer(*dst).clone()),
            _ => None,
        });
        let stream = stream.ok_or(DeviceError::Misuse("a body without an embedding"))?;
        let (head, bytes) = (&self.model.plan.head, stream.row_bytes as usize);
        let gathered = head.buffer(BufferId(0)).offset as usize;
        for (i, &row) in rows.iter().enumerate() {
            let (from, to) = (stream.offset as usize + row as usize * bytes, gathered + i * bytes);
            let values = self.memory.bytes((Arena::Workspace, from..from + bytes))?.to_vec();
            self.memory.bytes_mut((Arena::Head, to..to + bytes))?.copy_from_slice(&values);
        }
        let wanted: Vec<Row> = rows.iter().map(|&row| self.rows[row as usize]).collect();
        let (model, memory, cache) = (&self.model, &mut self.memory, &StepPlan::default());
        let mut run = Run { model, memory, program: head, arena: Arena::Head, rows: &wanted, cache };
        run.run()?;
        self.logits = run.last_buffer()?;
        Ok(&self.logits)
    }

    fn probe(&mut self) -> Option<&mut dyn Probe> {
        Some(self)
    }

    fn high_water(&self) -> Vec<HighWater> {
        let cache = &self.model.plan.cache;
        let extent_bytes = u64::from(cache.extent_blocks) * cache.frame_bytes;
        let of = |row: &MemoryRow| {
            let used_bytes = match row.kind {
                RowKind::Tail => self.memory.extents_most() as u64 * extent_bytes,
                // What an arena of the device is used for is not tracked: it is there as a whole.
                _ => row.bytes(),
            };
            HighWater { kind: row.kind, used_bytes, row_bytes: row.bytes() }
        };
        self.model.plan.memory.rows.iter().map(of).collect()
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

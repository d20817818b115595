//! A device that runs everything but the arithmetic.
//!
//! Where a real device keeps keys and values, this one keeps one number for each cell: a hash of the cell's token, its
//! position and every cell that it saw, in ascending position. The logits of a row are a function of its number. So whatever
//! goes wrong between a request and a kernel (a block in the wrong frame, a stale copy, a missing segment, a row too many)
//! changes every later token of the sequence, and two runs that agree in their tokens agree in everything that they read.
//!
//! Cells that hold nothing, or nothing any more, are poison: to read one is an error.

use tailrace_types::{BLOCK_CELLS, ExtentId, FrameId, HostBlockId, SlotId, WeightType};

use crate::kv::{Home, Phase, Place, SequencePlan, StepPlan, Transfer};
use crate::plan::spec::Reach;
use crate::plan::{AttentionBuffers, AttentionShape, Bucket, DeviceSizes, Plan, RowKind};
use crate::synthetic::{Numbers, mix};
use crate::{DeviceError, Executor, HighWater, LoadOptions, Loader, Rates, Row, Submission, Traffic, WeightSource};

const BLOCK: usize = BLOCK_CELLS as usize;
/// Content of a cell that nobody may read.
const POISON: u64 = u64::MAX;
/// Slots of the staging ring: some, so that plans have a row for it.
const RING_SLOTS: u32 = 2;
/// Logits lie between minus this and this.
const LOGIT_RANGE: f32 = 8.0;

/// Makes Null devices, which need no weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullLoader {
    /// Extents of the tail that the simulated machine can hold at once; `None` for as many as the plan allows.
    pub extents_max: Option<u32>,
}

impl DeviceSizes for NullLoader {
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64 {
        ty.block().bytes_of(rows * cols).unwrap_or(0)
    }

    fn q8_row_bytes(&self, cols: u64) -> u64 {
        cols
    }

    fn attention_buffers(&self, _bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers {
        AttentionBuffers { carry_elements: u64::from(shape.heads), ..AttentionBuffers::default() }
    }

    fn ring_slots(&self, _slot_bytes: u64, _weight_bytes: u64) -> u32 {
        RING_SLOTS
    }
}

impl Loader for NullLoader {
    fn load(
        &self,
        plan: Plan,
        _weights: WeightSource<'_>,
        _options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Executor>, DeviceError> {
        progress(1.0);
        Ok(Box::new(NullExecutor::new(plan, *self)))
    }

    fn rates(&self) -> Result<Rates, DeviceError> {
        Ok(Rates::default())
    }

    fn name(&self) -> String {
        "null".to_owned()
    }
}

/// A Null device. Reads and writes of attention go through frames, extents and rings exactly as a step plan says.
#[derive(Debug)]
pub struct NullExecutor {
    plan: Plan,
    loader: NullLoader,
    /// Windows of the sliding layers, each once.
    windows: Vec<u32>,
    /// Whether a layer has global reach: otherwise there is nothing in frames.
    global: bool,
    /// Core frames, then overlay frames.
    frames: Vec<u64>,
    extents: Vec<Option<Vec<u64>>>,
    /// `[slot][ring cell]`.
    rings: Vec<u64>,
    /// Homes of the blocks of the sequence that is being computed.
    homes: Vec<Home>,
    /// Numbers of the rows of the last submission.
    values: Vec<u64>,
    logits: Vec<f32>,
    traffic: Traffic,
    frames_used: u64,
    extents_live: u32,
    extents_most: u32,
}

impl NullExecutor {
    /// A device for `plan`, all of whose cells are poison.
    pub fn new(plan: Plan, loader: NullLoader) -> Self {
        let cache = &plan.cache;
        let frames = (cache.core_frames() + cache.overlay_frames) as usize;
        let ring_cells = cache.sliding.map_or(0, |s| s.ring_blocks as usize * BLOCK);
        let mut windows: Vec<u32> = Vec::new();
        for layer in &plan.layers {
            match layer.reach {
                Reach::Sliding(window) if !windows.contains(&window) => windows.push(window),
                Reach::Sliding(_) | Reach::Global => {}
            }
        }
        let limits = &plan.limits;
        NullExecutor {
            windows,
            global: plan.layers.iter().any(|l| l.reach == Reach::Global),
            frames: vec![POISON; frames * BLOCK],
            extents: vec![None; cache.extents_max as usize],
            rings: vec![POISON; ring_cells * limits.sequences as usize],
            homes: Vec::with_capacity(cache.sequence_blocks as usize),
            values: Vec::with_capacity(limits.chunk.max(limits.sequences) as usize),
            logits: Vec::with_capacity(limits.logit_rows as usize * plan.vocab as usize),
            traffic: Traffic::default(),
            frames_used: 0,
            extents_live: 0,
            extents_most: 0,
            plan,
            loader,
        }
    }

    fn frame(&mut self, frame: FrameId) -> Result<&mut [u64], DeviceError> {
        let at = frame.0 as usize * BLOCK;
        self.frames_used = self.frames_used.max(u64::from(frame.0) + 1);
        self.frames.get_mut(at..at + BLOCK).ok_or(DeviceError::Misuse("a frame that does not exist"))
    }

    fn host(&mut self, block: HostBlockId) -> Result<&mut [u64], DeviceError> {
        let each = self.plan.cache.extent_blocks;
        let extent = self.extents.get_mut((block.0 / each) as usize).and_then(Option::as_mut);
        let extent = extent.ok_or(DeviceError::Misuse("a block of an extent that is not there"))?;
        let at = (block.0 % each) as usize * BLOCK;
        Ok(&mut extent[at..at + BLOCK])
    }

    fn block(&mut self, home: Home) -> Result<&mut [u64], DeviceError> {
        match home {
            Home::Frame(frame) => self.frame(frame),
            Home::Host(block) => self.host(block),
        }
    }

    fn copy(&mut self, from: Home, to: Home) -> Result<(), DeviceError> {
        let mut cells = [POISON; BLOCK];
        cells.copy_from_slice(self.block(from)?);
        self.block(to)?.copy_from_slice(&cells);
        Ok(())
    }

    /// Makes `transfers`, in order.
    fn transfer(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        if !self.global {
            return self.transfer_rings(transfers);
        }
        let frame_bytes = self.plan.cache.frame_bytes;
        for (i, &transfer) in transfers.iter().enumerate() {
            match transfer {
                Transfer::CopyRing { from, to } => self.copy_ring(from, to),
                Transfer::Drop { frame } | Transfer::Fresh { frame } => self.frame(frame)?.fill(POISON),
                Transfer::Copy { from, to } => self.copy(Home::Frame(from), Home::Frame(to))?,
                Transfer::Fetch { from, to } => {
                    self.copy(Home::Host(from), Home::Frame(to))?;
                    self.traffic.tail_fetched_bytes += frame_bytes;
                }
                Transfer::Clean { from, to } => {
                    if self.frame(from)?.contains(&POISON) {
                        return Err(DeviceError::Misuse("a block that is not full goes to the host"));
                    }
                    self.copy(Home::Frame(from), Home::Host(to))?;
                    self.traffic.tail_written_bytes += frame_bytes;
                }
                Transfer::Grow { extent } => {
                    if let Err(error) = self.grow(extent) {
                        self.undo_growth(transfers, i)?;
                        return Err(error);
                    }
                }
                Transfer::Shrink { extent } => self.shrink(extent)?,
            }
        }
        Ok(())
    }

    fn transfer_rings(&mut self, transfers: &[Transfer]) -> Result<(), DeviceError> {
        for transfer in transfers {
            if let Transfer::CopyRing { from, to } = *transfer {
                self.copy_ring(from, to);
            }
        }
        Ok(())
    }

    fn grow(&mut self, extent: ExtentId) -> Result<(), DeviceError> {
        let blocks = self.plan.cache.extent_blocks;
        if self.loader.extents_max.is_some_and(|most| self.extents_live >= most) {
            let bytes = self.plan.cache.frame_bytes * u64::from(blocks);
            return Err(DeviceError::OutOfMemory { what: "the tail", bytes });
        }
        match self.extents.get_mut(extent.0 as usize) {
            Some(place @ None) => *place = Some(vec![POISON; blocks as usize * BLOCK]),
            Some(Some(_)) => return Err(DeviceError::Misuse("an extent that exists grows again")),
            None => return Err(DeviceError::Misuse("an extent past the limit")),
        }
        self.extents_live += 1;
        self.extents_most = self.extents_most.max(self.extents_live);
        Ok(())
    }

    /// The growth at index `failed` was refused: what grew with it goes, and what was to shrink still does.
    fn undo_growth(&mut self, transfers: &[Transfer], failed: usize) -> Result<(), DeviceError> {
        for transfer in &transfers[..failed] {
            if let Transfer::Grow { extent } = *transfer {
                self.shrink(extent)?;
            }
        }
        for transfer in &transfers[failed..] {
            if let Transfer::Shrink { extent } = *transfer {
                self.shrink(extent)?;
            }
        }
        Ok(())
    }

    fn shrink(&mut self, extent: ExtentId) -> Result<(), DeviceError> {
        let place = self.extents.get_mut(extent.0 as usize).and_then(Option::take);
        place.ok_or(DeviceError::Misuse("an extent that is not there is given back"))?;
        self.extents_live -= 1;
        Ok(())
    }

    fn ring_cells(&self) -> usize {
        self.plan.cache.sliding.map_or(0, |s| s.ring_blocks as usize * BLOCK)
    }

    fn copy_ring(&mut self, from: SlotId, to: SlotId) {
        let cells = self.ring_cells();
        let from = from.0 as usize * cells;
        self.rings.copy_within(from..from + cells, to.0 as usize * cells);
    }

    fn ring_cell(&mut self, slot: SlotId, position: u32) -> &mut u64 {
        let cells = self.ring_cells();
        &mut self.rings[slot.0 as usize * cells + position as usize % cells]
    }

    /// Makes the transfers that come before, and calls `work` with each sequence and its rows.
    fn step(
        &mut self,
        submission: &Submission<'_>,
        mut work: impl FnMut(&mut Self, &Submission<'_>, usize, &[Row]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let Submission { phase, rows, cache } = *submission;
        let bucket = match phase {
            Phase::Prefill => self.plan.prefill.rows,
            Phase::Decode => self.plan.decode.rows,
        };
        if rows.len() > bucket as usize || (phase == Phase::Prefill && cache.sequences.len() > 1) {
            return Err(DeviceError::Misuse("more rows or sequences than the bucket holds"));
        }
        self.transfer(&cache.before)?;
        if !rows.is_empty() {
            self.use_workspace(phase);
        }
        self.values.clear();
        let mut done = 0;
        for (view, sequence) in cache.sequences.iter().enumerate() {
            let mine = rows.get(done..done + sequence.cells as usize);
            let mine = mine.ok_or(DeviceError::Misuse("fewer rows than cells"))?;
            let fits = |(i, row): (usize, &Row)| {
                row.view as usize == view
                    && row.position == sequence.first_cell + i as u32
                    && row.token.0 < self.plan.vocab
            };
            if !mine.iter().enumerate().all(fits) {
                return Err(DeviceError::Misuse("rows do not match the sequences"));
            }
            done += mine.len();
            work(self, submission, view, mine)?;
        }
        match done == rows.len() {
            true => Ok(()),
            false => Err(DeviceError::Misuse("more rows than cells")),
        }
    }

    /// Computes the rows of one sequence and stores their cells.
    fn compute(&mut self, submission: &Submission<'_>, view: usize, rows: &[Row]) -> Result<(), DeviceError> {
        let cache = submission.cache;
        let sequence = &cache.sequences[view];
        list_homes(submission, sequence, &mut self.homes)?;
        self.check_ring(sequence)?;
        let mut seen = 0;
        if self.global {
            for position in 0..sequence.first_cell {
                seen = fold(seen, self.cell(position)?)?;
            }
        }
        for row in rows {
            let mut value = mix(seen ^ mix(u64::from(row.token.0) << 32 | u64::from(row.position)));
            for i in 0..self.windows.len() {
                let first = (row.position + 1).saturating_sub(self.windows[i]);
                for position in first..row.position {
                    value = fold(value, *self.ring_cell(sequence.slot, position))?;
                }
            }
            self.store(cache, sequence, row.position, value)?;
            if self.global {
                // Read through the segments, as later rows and steps will.
                seen = fold(seen, self.cell(row.position)?)?;
            }
            self.values.push(value);
        }
        Ok(())
    }

    /// Stores cells that depend on the seed and their position alone.
    fn fill_rows(
        &mut self,
        submission: &Submission<'_>,
        view: usize,
        rows: &[Row],
        seed: u64,
    ) -> Result<(), DeviceError> {
        let sequence = &submission.cache.sequences[view];
        self.check_ring(sequence)?;
        for row in rows {
            // One number stands for all layers and elements. A cell that is poison by chance becomes another.
            let value = Numbers::new(seed, 0, row.position).bits(0).min(POISON - 1);
            self.store(submission.cache, sequence, row.position, value)?;
        }
        Ok(())
    }

    /// Stores a cell wherever the layers keep it.
    fn store(
        &mut self,
        cache: &StepPlan,
        sequence: &SequencePlan,
        position: u32,
        value: u64,
    ) -> Result<(), DeviceError> {
        if !self.windows.is_empty() {
            *self.ring_cell(sequence.slot, position) = value;
        }
        if self.global {
            let frame = cache.frame_of(sequence, position);
            let frame = frame.ok_or(DeviceError::Misuse("a row without a frame to write to"))?;
            if frame.0 >= self.plan.cache.core_frames() {
                return Err(DeviceError::Misuse("an overlay frame is written to"));
            }
            self.frame(frame)?[position as usize % BLOCK] = value;
        }
        Ok(())
    }

    fn cell(&mut self, position: u32) -> Result<u64, DeviceError> {
        let home = self.homes[position as usize / BLOCK];
        Ok(self.block(home)?[position as usize % BLOCK])
    }

    /// A device stores all cells of a step before it attends: the ring must hold them beside the first row's window.
    fn check_ring(&self, sequence: &SequencePlan) -> Result<(), DeviceError> {
        let widest = self.windows.iter().max().copied().unwrap_or(1);
        let window = (widest - 1).min(sequence.first_cell);
        match self.windows.is_empty() || (window + sequence.cells) as usize <= self.ring_cells() {
            true => Ok(()),
            false => Err(DeviceError::Misuse("a step overwrites cells that it reads")),
        }
    }

    /// The workspace of a prefill lies over the overlay frames.
    fn use_workspace(&mut self, phase: Phase) {
        if phase == Phase::Prefill {
            let core = self.plan.cache.core_frames() as usize * BLOCK;
            self.frames[core..].fill(POISON);
        }
    }
}

/// Fills `homes` with the homes of all blocks of a sequence: its segments must list each block once, in order.
fn list_homes(submission: &Submission<'_>, sequence: &SequencePlan, homes: &mut Vec<Home>) -> Result<(), DeviceError> {
    let cache = submission.cache;
    let place = |home: &Home| match home {
        Home::Frame(_) => Place::Window,
        Home::Host(_) => Place::Tail,
    };
    homes.clear();
    for segment in cache.segments_of(sequence) {
        let listed = cache.homes(segment);
        if segment.first_block as usize != homes.len() || listed.iter().any(|h| place(h) != segment.place) {
            return Err(DeviceError::Misuse("segments do not cover the sequence in order"));
        }
        homes.extend_from_slice(listed);
    }
    match homes.len() == (sequence.first_cell + sequence.cells).div_ceil(BLOCK_CELLS) as usize {
        true => Ok(()),
        false => Err(DeviceError::Misuse("segments cover more or less than the sequence")),
    }
}

fn fold(state: u64, cell: u64) -> Result<u64, DeviceError> {
    match cell {
        POISON => Err(DeviceError::Misuse("a cell is read that holds nothing")),
        cell => Ok(mix(state ^ cell)),
    }
}

impl Executor for NullExecutor {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.step(submission, Self::compute)?;
        self.traffic.tail_read_bytes += submission.cache.tail_reads.len() as u64 * self.plan.cache.frame_bytes;
        self.transfer(&submission.cache.after)
    }

    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.step(submission, |device, submission, view, rows| device.fill_rows(submission, view, rows, seed))?;
        self.transfer(&submission.cache.after)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        if rows.len() > self.plan.limits.logit_rows as usize {
            return Err(DeviceError::Misuse("more logit rows than the plan holds"));
        }
        self.logits.clear();
        for &row in rows {
            let value =
                self.values.get(row as usize).ok_or(DeviceError::Misuse("logits of a row that was not computed"))?;
            let logit = |token: u32| {
                // The top 24 bits are exact in f32.
                let unit = (mix(value.wrapping_add(u64::from(token))) >> 40) as f32 / (1u32 << 24) as f32;
                (2.0 * unit - 1.0) * LOGIT_RANGE
            };
            self.logits.extend((0..self.plan.vocab).map(logit));
        }
        Ok(&self.logits)
    }

    fn high_water(&self) -> Vec<HighWater> {
        let cache = &self.plan.cache;
        let window = u64::from(cache.window_frames);
        let used = |kind, row_bytes| match kind {
            RowKind::Window => self.frames_used.min(window) * cache.frame_bytes,
            RowKind::Landing => {
                let landing = u64::from(cache.landing_frames);
                self.frames_used.saturating_sub(window).min(landing) * cache.frame_bytes
            }
            RowKind::Tail => u64::from(self.extents_most * cache.extent_blocks) * cache.frame_bytes,
            // Nothing is computed, so nothing less than the plan's own figure is known.
            _ => row_bytes,
        };
        let row = |row: &crate::plan::MemoryRow| {
            let row_bytes = row.bytes();
            HighWater { kind: row.kind, used_bytes: used(row.kind, row_bytes), row_bytes }
        };
        self.plan.memory.rows.iter().map(row).collect()
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

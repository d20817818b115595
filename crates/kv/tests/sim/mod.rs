//! A device without arithmetic: it stores the identity of every cell, executes plans, and compares what the segments
//! of a step would read with a naive vector for each sequence.

#![allow(dead_code)] // Each test file uses its own part.

use std::collections::{HashMap, HashSet, VecDeque};

use tailrace_kv::{Append, Home, KvCache, KvConfig, KvError, Phase, Place, SequencePlan, Sliding, StepPlan, Transfer};
use tailrace_types::{ExtentId, FrameId, HostBlockId, SlotId};

pub(crate) const BLOCK: usize = 256;
/// Contents that nobody may read.
const POISON: u64 = 0;
/// Contents of a frame handed out for appends.
const ZERO: u64 = 1;

type Cells = Vec<u64>;

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    /// The compute fails halfway.
    Abort,
    /// The host refuses to grow (a plain commit if the plan does not grow).
    Refused,
}

/// Whether transfers of `after` run at once or as late as the contract allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    Eager,
    Lazy,
}

pub(crate) struct Sim {
    pub(crate) kv: KvCache,
    pub(crate) plan: StepPlan,
    pub(crate) model: Vec<Option<Cells>>,
    /// Changes the plan before it is executed: what a bug would do.
    pub(crate) tamper: Option<fn(&mut StepPlan)>,
    copies: Copies,
    frames: Vec<Cells>,
    extents: HashMap<u32, Vec<Cells>>,
    rings: Vec<Cells>,
    queue: VecDeque<Transfer>,
    next_id: u64,
    forked: bool,
    tail_reads: u64,
    /// End of the highest position written to each ring since position 0.
    highest: Vec<u32>,
}

/// Sizes with as many landing frames as `chunk` needs and `window` more core frames.
pub(crate) fn config(slots: u32, chunk: u32, window: u32) -> KvConfig {
    let landing_frames = chunk.div_ceil(BLOCK as u32) + slots;
    KvConfig {
        slots,
        context_cells: 4096,
        core_frames: landing_frames + window,
        overlay_frames: 0,
        landing_frames,
        extent_blocks: 4,
        extents_max: 16 * slots,
        spills: true,
        sliding: None,
        rollback_max: 256,
    }
}

fn ensure(holds: bool, rule: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule()) }
}

fn capacities(p: &StepPlan) -> [usize; 6] {
    [
        p.before.capacity(),
        p.after.capacity(),
        p.sequences.capacity(),
        p.segments.capacity(),
        p.table.capacity(),
        p.tail_reads.capacity(),
    ]
}

fn names_frame(t: &Transfer, f: FrameId) -> bool {
    matches!(t, Transfer::Clean { from, .. } if *from == f)
}

fn names_host(t: &Transfer, h: HostBlockId) -> bool {
    matches!(t, Transfer::Clean { to, .. } if *to == h)
}

impl Sim {
    pub(crate) fn new(config: KvConfig, copies: Copies) -> Self {
        let frames = (config.core_frames + config.overlay_frames) as usize;
        let ring = config.sliding.map_or(0, |s| s.ring_blocks as usize * BLOCK);
        let slots = config.slots as usize;
        Self {
            plan: StepPlan::with_capacity(&config),
            model: vec![None; slots],
            tamper: None,
            copies,
            frames: vec![vec![POISON; BLOCK]; frames],
            extents: HashMap::new(),
            rings: vec![vec![POISON; ring]; slots],
            queue: VecDeque::new(),
            next_id: 2,
            forked: false,
            tail_reads: 0,
            highest: vec![0; slots],
            kv: KvCache::new(config).expect("sizes of a test"),
        }
    }

    pub(crate) fn len(&self, slot: u32) -> Option<u32> {
        let cells = self.model.get(slot as usize)?.as_ref()?;
        Some(cells.len() as u32)
    }

    pub(crate) fn create(&mut self, slot: u32) -> Result<(), KvError> {
        self.kv.create(SlotId(slot))?;
        self.model[slot as usize] = Some(Vec::new());
        self.highest[slot as usize] = 0;
        Ok(())
    }

    pub(crate) fn release(&mut self, slot: u32) -> Result<(), KvError> {
        self.kv.release(SlotId(slot))?;
        self.model[slot as usize] = None;
        Ok(())
    }

    /// Forks, and checks that the answer about the ring is exact.
    pub(crate) fn fork(&mut self, src: u32, dst: u32, cells: u32) -> Result<Result<(), KvError>, String> {
        let intact = self.ring_intact(src, cells);
        let result = self.kv.fork(SlotId(src), SlotId(dst), cells);
        self.check_ring_answer(result, intact)?;
        if result.is_ok() {
            let source = self.model[src as usize].as_ref().expect("a live source");
            self.model[dst as usize] = Some(source[..cells as usize].to_vec());
            self.highest[dst as usize] = if cells > 0 { self.highest[src as usize] } else { 0 };
            self.forked = true;
        }
        Ok(result)
    }

    /// Rolls back, and checks that the answer about the ring is exact.
    pub(crate) fn rollback(&mut self, slot: u32, cells: u32) -> Result<Result<(), KvError>, String> {
        let intact = self.ring_intact(slot, cells);
        let result = self.kv.rollback(SlotId(slot), cells);
        self.check_ring_answer(result, intact)?;
        if let Err(KvError::NeedsPrefill { .. }) = result {
            let back = self.highest[slot as usize] - cells;
            ensure(back > self.kv.config().rollback_max, || format!("a rollback of {back} cells was refused"))?;
        }
        if result.is_ok() {
            if cells == 0 {
                self.highest[slot as usize] = 0;
            }
            let cells_now = self.model[slot as usize].as_mut();
            cells_now.expect("a live slot").truncate(cells as usize);
        }
        Ok(result)
    }

    fn check_ring_answer(&self, result: Result<(), KvError>, intact: bool) -> Result<(), String> {
        // A ring that a fork still has to copy cannot be looked at.
        let known = !self.forked;
        match result {
            Ok(()) => ensure(!known || intact, || "a lost ring was accepted".into()),
            Err(KvError::NeedsPrefill { .. }) => {
                ensure(!known || !intact, || "a ring that holds the window was refused".into())
            }
            Err(_) => Ok(()),
        }
    }

    /// Whether the ring holds what a row at position `cells` sees before itself.
    fn ring_intact(&self, slot: u32, cells: u32) -> bool {
        let (Some(sliding), Some(Some(model))) = (self.kv.config().sliding, self.model.get(slot as usize)) else {
            return true;
        };
        let first = (cells + 1).saturating_sub(sliding.window);
        (first..cells.min(model.len() as u32)).all(|p| self.ring_cell(slot, p) == model[p as usize])
    }

    fn ring_cell(&self, slot: u32, position: u32) -> u64 {
        let ring = &self.rings[slot as usize];
        ring[position as usize % ring.len()]
    }

    /// Runs a step; every deviation from the contract is an `Err(String)`, a refusal is `Ok(Err(_))`.
    pub(crate) fn step(
        &mut self,
        appends: &[(u32, u32)],
        phase: Phase,
        end: End,
    ) -> Result<Result<(), KvError>, String> {
        let appends: Vec<Append> = appends.iter().map(|&(slot, cells)| Append { slot: SlotId(slot), cells }).collect();
        let counters = self.kv.counters();
        let mut plan = std::mem::take(&mut self.plan);
        let capacities = capacities(&plan);
        let begun = self.kv.begin(&appends, phase, &mut plan);
        let result = match begun {
            Ok(()) => self.execute(&mut plan, &appends, phase, end).map(Ok),
            Err(e) => ensure(plan == StepPlan::default() && counters == self.kv.counters(), || {
                "a refusal changed something".into()
            })
            .map(|()| Err(e)),
        };
        self.plan = plan;
        let result = result?;
        ensure(capacities == self::capacities(&self.plan), || "the plan allocated".into())?;
        self.kv.check()?;
        for (slot, model) in self.model.iter().enumerate() {
            let cells = model.as_ref().map(|m| m.len() as u32);
            ensure(self.kv.cells(SlotId(slot as u32)) == cells, || format!("slot {slot} has a wrong number of cells"))?;
        }
        Ok(result)
    }

    fn execute(&mut self, plan: &mut StepPlan, appends: &[Append], phase: Phase, end: End) -> Result<(), String> {
        self.check_shape(plan, appends, phase)?;
        if let Some(tamper) = self.tamper {
            tamper(plan);
        }
        for transfer in &plan.before {
            self.force(transfer);
            self.perform(transfer)?;
        }
        self.forked = false;
        let mut fresh: Vec<Cells> = Vec::new();
        for append in appends {
            let first = self.next_id;
            self.next_id += u64::from(append.cells);
            fresh.push((first..self.next_id).collect());
        }
        for (sequence, cells) in plan.sequences.iter().zip(&fresh) {
            self.write(plan, sequence, cells)?;
        }
        for (sequence, cells) in plan.sequences.iter().zip(&fresh) {
            self.check_reads(plan, sequence, cells)?;
            self.check_ring(sequence, cells)?;
        }
        if phase == Phase::Prefill {
            let core = self.kv.config().core_frames as usize;
            // The workspace overwrites the overlay.
            self.frames[core..].iter_mut().for_each(|f| f.fill(POISON));
        }
        self.finish(plan, fresh, end)
    }

    fn finish(&mut self, plan: &StepPlan, fresh: Vec<Cells>, end: End) -> Result<(), String> {
        let grows = plan.after.iter().any(|t| matches!(t, Transfer::Grow { .. }));
        let closed = match end {
            End::Abort => return self.kv.abort().map_err(|e| e.to_string()),
            End::Refused if grows => {
                let shrinks = plan.after.iter().copied();
                let shrinks = shrinks.filter(|t| matches!(t, Transfer::Shrink { .. }));
                self.queue.extend(shrinks);
                self.kv.commit_uncleaned()
            }
            _ => {
                self.queue.extend(plan.after.iter().copied());
                self.kv.commit()
            }
        };
        closed.map_err(|e| e.to_string())?;
        for (sequence, cells) in plan.sequences.iter().zip(fresh) {
            let model = self.model[sequence.slot.0 as usize].as_mut();
            model.ok_or("a step of a dead slot")?.extend(cells);
        }
        if self.copies == Copies::Eager {
            self.drain(self.queue.len())?;
        }
        Ok(())
    }

    /// What every plan promises whatever its contents.
    fn check_shape(&mut self, plan: &StepPlan, appends: &[Append], phase: Phase) -> Result<(), String> {
        let late = |t: &Transfer| matches!(t, Transfer::Grow { .. } | Transfer::Clean { .. } | Transfer::Shrink { .. });
        ensure(!plan.before.iter().any(late), || "a copy to the host before the compute".into())?;
        ensure(plan.after.iter().all(late), || "a late transfer".into())?;
        let named = plan.sequences.iter().map(|s| Append { slot: s.slot, cells: s.cells });
        ensure(named.eq(appends.iter().copied()), || "sequences are not the appends".into())?;
        let mut read = HashSet::new();
        let core = self.kv.config().core_frames;
        for home in &plan.table {
            match home {
                Home::Host(h) => _ = read.insert(*h),
                Home::Frame(f) => {
                    ensure(phase == Phase::Decode || f.0 < core, || "a prefill reads the overlay".into())?
                }
            }
        }
        let listed: HashSet<_> = plan.tail_reads.iter().copied().collect();
        ensure(listed == read && listed.len() == plan.tail_reads.len(), || {
            "tail reads are not the distinct tail blocks".into()
        })?;
        self.tail_reads += listed.len() as u64;
        ensure(self.kv.counters().tail_reads == self.tail_reads, || "tail reads are miscounted".into())
    }

    /// Runs queued transfers that must precede `next`.
    fn force(&mut self, next: &Transfer) {
        let last = self.queue.iter().rposition(|t| match *next {
            Transfer::Drop { frame } | Transfer::Fresh { frame } => names_frame(t, frame),
            Transfer::Fetch { from, to } => names_host(t, from) || names_frame(t, to),
            Transfer::Copy { from, to } => names_frame(t, from) || names_frame(t, to),
            _ => false,
        });
        if let Some(last) = last {
            self.drain(last + 1).expect("queued transfers are valid");
        }
    }

    fn drain(&mut self, count: usize) -> Result<(), String> {
        for _ in 0..count {
            if let Some(t) = self.queue.pop_front() {
                self.perform(&t)?;
            }
        }
        Ok(())
    }

    fn host(&mut self, block: HostBlockId) -> Result<&mut Cells, String> {
        let e = self.kv.config().extent_blocks;
        let extent = self.extents.get_mut(&(block.0 / e));
        let extent = extent.ok_or_else(|| format!("{block:?} is in no live extent"))?;
        Ok(&mut extent[(block.0 % e) as usize])
    }

    fn perform(&mut self, transfer: &Transfer) -> Result<(), String> {
        match *transfer {
            Transfer::CopyRing { from, to } => {
                self.rings[to.0 as usize] = self.rings[from.0 as usize].clone();
            }
            Transfer::Drop { frame } => self.frames[frame.0 as usize].fill(POISON),
            Transfer::Fresh { frame } => self.frames[frame.0 as usize].fill(ZERO),
            Transfer::Fetch { from, to } => {
                self.frames[to.0 as usize] = self.host(from)?.clone();
            }
            Transfer::Copy { from, to } => {
                self.frames[to.0 as usize] = self.frames[from.0 as usize].clone();
            }
            Transfer::Grow { extent } => {
                let blocks = self.kv.config().extent_blocks as usize;
                let memory = vec![vec![POISON; BLOCK]; blocks];
                let old = self.extents.insert(extent.0, memory);
                ensure(old.is_none(), || format!("{extent:?} grew twice"))?;
                let limit = self.kv.config().extents_max as usize;
                ensure(self.extents.len() <= limit, || "the host is over its limit".into())?;
            }
            Transfer::Clean { from, to } => {
                let cells = self.frames[from.0 as usize].clone();
                *self.host(to)? = cells;
            }
            Transfer::Shrink { extent: ExtentId(e) } => {
                let old = self.extents.remove(&e);
                ensure(old.is_some(), || format!("extent {e} shrank twice"))?;
            }
        }
        Ok(())
    }

    fn write(&mut self, plan: &StepPlan, sequence: &SequencePlan, cells: &[u64]) -> Result<(), String> {
        let core = self.kv.config().core_frames;
        for (i, &id) in cells.iter().enumerate() {
            let position = sequence.first_cell as usize + i;
            let frame = plan.frame_of(sequence, position as u32);
            let frame = frame.ok_or("a new cell has no frame")?;
            ensure(frame.0 < core, || "an append to an overlay frame".into())?;
            self.frames[frame.0 as usize][position % BLOCK] = id;
            let highest = &mut self.highest[sequence.slot.0 as usize];
            *highest = (*highest).max(position as u32 + 1);
            let ring = &mut self.rings[sequence.slot.0 as usize];
            if !ring.is_empty() {
                let place = position % ring.len();
                ring[place] = id;
            }
        }
        Ok(())
    }

    /// Reads all segments as attention would: every cell once, in order, each the one that was written.
    fn check_reads(&mut self, plan: &StepPlan, sequence: &SequencePlan, new: &[u64]) -> Result<(), String> {
        let model = self.model[sequence.slot.0 as usize].clone();
        let mut expected = model.ok_or("a step of a dead slot")?;
        ensure(expected.len() == sequence.first_cell as usize, || "a wrong first cell".into())?;
        expected.extend(new);
        let segments = plan.segments_of(sequence);
        let places: Vec<Place> = segments.iter().map(|s| s.place).collect();
        ensure(places == [Place::Window] || places == [Place::Tail, Place::Window], || format!("segments {places:?}"))?;
        let mut block = 0;
        for segment in segments {
            ensure(segment.first_block == block, || "a gap between segments".into())?;
            for &home in plan.homes(segment) {
                let start = block as usize * BLOCK;
                let end = expected.len().min(start + BLOCK);
                ensure(start < end, || "an empty block is read".into())?;
                let tail = matches!(home, Home::Host(_));
                ensure(tail == (segment.place == Place::Tail), || "a wrong home".into())?;
                ensure(!tail || end - start == BLOCK, || "a partial tail block".into())?;
                let found = match home {
                    Home::Frame(f) => &self.frames[f.0 as usize],
                    Home::Host(h) => {
                        if let Some(last) = self.queue.iter().rposition(|t| names_host(t, h)) {
                            self.drain(last + 1)?;
                        }
                        &*self.host(h)?
                    }
                };
                ensure(found[..end - start] == expected[start..end], || {
                    format!("{:?}: block {block} in {home:?} is wrong", sequence.slot)
                })?;
                ensure(!found.contains(&POISON), || format!("block {block} in {home:?} has poison lanes"))?;
                block += 1;
            }
        }
        ensure(block as usize == expected.len().div_ceil(BLOCK), || "segments end early".into())
    }

    /// The ring holds the window of every row of the step.
    fn check_ring(&self, sequence: &SequencePlan, new: &[u64]) -> Result<(), String> {
        let Some(Sliding { window, .. }) = self.kv.config().sliding else {
            return Ok(());
        };
        let slot = sequence.slot.0;
        let first = (sequence.first_cell + 1).saturating_sub(window);
        let old = self.model[slot as usize].as_deref().unwrap_or_default();
        for position in first..sequence.first_cell + sequence.cells {
            let expected = match position.checked_sub(sequence.first_cell) {
                Some(i) => new[i as usize],
                None => old[position as usize],
            };
            ensure(self.ring_cell(slot, position) == expected, || {
                format!("slot {slot}: the ring lost position {position}")
            })?;
        }
        Ok(())
    }

    /// Appends one cell to every sequence that has room, so that all contents are read once more; then releases everything
    /// and checks that nothing leaks.
    pub(crate) fn audit_and_release(&mut self) -> Result<(), String> {
        for slot in 0..self.model.len() as u32 {
            if self.len(slot).is_some_and(|c| c < self.kv.config().context_cells) {
                match self.step(&[(slot, 1)], Phase::Decode, End::Commit)? {
                    Ok(()) | Err(KvError::HostFull { .. } | KvError::NotClean) => {}
                    Err(e) => return Err(e.to_string()),
                }
            }
        }
        for slot in 0..self.model.len() as u32 {
            if self.len(slot).is_some() {
                self.release(slot).map_err(|e| e.to_string())?;
            }
        }
        self.step(&[], Phase::Decode, End::Commit)?.map_err(|e| e.to_string())?;
        self.drain(self.queue.len())?;
        let free = self.kv.free_core_frames() == self.kv.config().core_frames;
        ensure(free, || "core frames leak".into())?;
        ensure(self.extents.is_empty() && self.kv.extents().0 == 0 && self.kv.host_blocks() == 0, || {
            "extents leak".into()
        })
    }
}

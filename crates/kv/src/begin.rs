//! A step: survey what it needs, make room, list what it reads; then commit or undo.

use tailrace_types::{BLOCK_CELLS, FrameId, SlotId};

use crate::cache::Sequence;
use crate::{Append, Home, KvCache, KvError, Phase, Place, Segment, SequencePlan, Sliding, StepPlan, Transfer};

/// What becomes of the last block that a sequence has when a step appends to the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tip {
    /// The new cells begin a new block.
    Aligned,
    /// The sequence owns the block alone and appends to it.
    Owned,
    /// Others hold the block too: the sequence leaves it for a copy of its own.
    Shared,
}

/// Core frames that appends need and can have.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    /// Frames to be taken.
    frames: u64,
    /// Clean blocks in core frames that will be appended to, so that their frames cannot be taken.
    pinned: u64,
}

/// New blocks that an append of `cells` cells after `first_cell` starts.
fn new_blocks(first_cell: u32, cells: u32) -> u32 {
    (first_cell + cells).div_ceil(BLOCK_CELLS) - first_cell.div_ceil(BLOCK_CELLS)
}

impl KvCache {
    /// Begins a step: makes room for `appends` and fills `out` (see [`StepPlan`]). Ends with [`commit`](Self::commit),
    /// [`commit_uncleaned`](Self::commit_uncleaned) or [`abort`](Self::abort).
    ///
    /// A step without appends is allowed: it copies blocks to the host ahead of need and gives empty extents back.
    ///
    /// # Errors
    /// Errors of the arguments: [`KvError::StepOpen`], [`KvError::UnknownSlot`], [`KvError::DuplicateSlot`],
    /// [`KvError::EmptyAppend`], [`KvError::ContextFull`], [`KvError::ChunkTooLong`]. Errors of room:
    /// [`KvError::HostFull`], [`KvError::NoFrames`], [`KvError::NotClean`]. The state is as before and `out` is empty.
    pub fn begin(&mut self, appends: &[Append], phase: Phase, out: &mut StepPlan) -> Result<(), KvError> {
        out.clear();
        self.closed()?;
        let surveyed = self.survey(appends);
        // The marks of the survey are undone on every path.
        for append in appends {
            if let Ok(sequence) = self.sequence(append.slot)
                && let Some(&id) = sequence.table.last()
            {
                self.blocks.get_mut(id).leavers = 0;
            }
        }
        surveyed?;

        self.counters.steps += 1;
        self.step.open = true;
        self.step.appends.clear();
        self.step.appends.extend_from_slice(appends);
        for (from, to) in self.ring_copies.drain(..) {
            out.before.push(Transfer::CopyRing { from, to });
        }
        if phase == Phase::Prefill {
            self.drop_overlay(&mut out.before);
        }
        self.land(&mut out.before);
        if phase == Phase::Decode {
            self.refill(&mut out.before);
        }
        self.list_reads(out);
        self.clean_ahead(&mut out.after);
        self.count_use();
        Ok(())
    }

    /// Checks the arguments, decides what becomes of each tip (`step.tips`) and whether there is room.
    fn survey(&mut self, appends: &[Append]) -> Result<(), KvError> {
        self.step.tips.clear();
        let mut demand = Demand::default();
        for (i, append) in appends.iter().enumerate() {
            self.check_append(append)?;
            if appends[..i].iter().any(|a| a.slot == append.slot) {
                return Err(KvError::DuplicateSlot(append.slot));
            }
            let tip = self.survey_tip(append, &mut demand);
            self.step.tips.push(tip);
            let available = u64::from(self.blocks.available()).saturating_sub(demand.pinned);
            if demand.frames > available {
                return Err(self.no_room(append.slot, demand, available));
            }
        }
        Ok(())
    }

    fn check_append(&self, append: &Append) -> Result<(), KvError> {
        let Append { slot, cells } = *append;
        let sequence = self.sequence(slot)?;
        if cells == 0 {
            return Err(KvError::EmptyAppend(slot));
        }
        let needed = u64::from(sequence.cells) + u64::from(cells);
        if needed > u64::from(self.config.context_cells) {
            return Err(KvError::ContextFull { slot, needed, limit: self.config.context_cells });
        }
        let wraps = |s: &&Sliding| !s.never_wraps(self.config.context_cells);
        if let Some(sliding) = self.config.sliding.as_ref().filter(wraps) {
            // The first new row still sees window - 1 cells when the last new cell is written.
            let limit = sliding.ring_cells() - u64::from(sliding.window) + 1;
            if u64::from(cells) > limit {
                return Err(KvError::ChunkTooLong { slot, cells, limit });
            }
        }
        Ok(())
    }

    fn survey_tip(&mut self, append: &Append, demand: &mut Demand) -> Tip {
        let sequence = &self.sequences[append.slot.0 as usize];
        demand.frames += u64::from(new_blocks(sequence.cells, append.cells));
        if sequence.cells.is_multiple_of(BLOCK_CELLS) {
            return Tip::Aligned;
        }
        let Some(&id) = sequence.table.last() else {
            return Tip::Aligned;
        };
        let block = self.blocks.get(id);
        if block.refs - block.leavers > 1 {
            self.blocks.get_mut(id).leavers += 1;
            demand.frames += 1;
            return Tip::Shared;
        }
        if self.blocks.is_clean_core(id) {
            demand.pinned += 1;
        } else if !self.blocks.in_core(id) {
            demand.frames += 1;
        }
        Tip::Owned
    }

    /// Why there is no room for `demand`.
    fn no_room(&self, slot: SlotId, demand: Demand, available: u64) -> KvError {
        let needed = demand.frames;
        let missing = needed - available;
        let landing = u64::from(self.config.landing_frames);
        if !self.config.spills || needed + demand.pinned > landing {
            return KvError::NoFrames { slot, needed, available };
        }
        if missing > self.extents.room() {
            return KvError::HostFull { slot, needed: self.extents.needed(missing), limit: self.extents.limit() };
        }
        if self.next_to_clean().is_some() {
            return KvError::NotClean;
        }
        KvError::NoFrames { slot, needed, available }
    }

    /// Gives every append blocks in core frames that it alone holds.
    fn land(&mut self, before: &mut Vec<Transfer>) {
        // Blocks that will be appended to become dirty first, so that none of them is evicted.
        for i in 0..self.step.appends.len() {
            let slot = self.step.appends[i].slot.0 as usize;
            if self.step.tips[i] == Tip::Owned
                && let Some(&id) = self.sequences[slot].table.last()
                && self.blocks.in_core(id)
            {
                self.forget_host(id);
            }
        }
        for i in 0..self.step.appends.len() {
            let Append { slot, cells } = self.step.appends[i];
            let first_cell = self.sequences[slot.0 as usize].cells;
            match self.step.tips[i] {
                Tip::Aligned => {}
                Tip::Owned => self.land_owned(slot.0 as usize, before),
                Tip::Shared => self.land_shared(slot.0 as usize, before),
            }
            self.extend(slot.0 as usize, first_cell, cells, before);
            let sequence = &mut self.sequences[slot.0 as usize];
            let end = u64::from(first_cell) + u64::from(cells);
            sequence.ring_high = sequence.ring_high.max(end);
            sequence.stepped_at = self.counters.steps;
        }
    }

    /// The last block of the sequence is its own: brings it into a core frame.
    fn land_owned(&mut self, slot: usize, before: &mut Vec<Transfer>) {
        let Some(&id) = self.sequences[slot].table.last() else {
            return;
        };
        if self.blocks.in_core(id) {
            return;
        }
        if let Some(frame) = self.blocks.leave(id) {
            before.push(Transfer::Drop { frame });
        }
        let to = self.take_core_frame(before);
        if let Some(from) = self.blocks.get(id).host {
            before.push(Transfer::Fetch { from, to });
            self.counters.fetched += 1;
        }
        self.blocks.enter(id, to);
        self.forget_host(id);
    }

    /// Others hold the last block too: replaces it by a copy.
    fn land_shared(&mut self, slot: usize, before: &mut Vec<Transfer>) {
        let to = self.take_core_frame(before);
        let Some(id) = self.sequences[slot].table.pop() else {
            return;
        };
        // Looked up only now: making room may have evicted the block itself.
        let block = *self.blocks.get(id);
        match (block.frame, block.host) {
            (Some(from), _) => {
                before.push(Transfer::Copy { from, to });
                self.counters.copied += 1;
            }
            (None, Some(from)) => {
                before.push(Transfer::Fetch { from, to });
                self.counters.fetched += 1;
            }
            (None, None) => unreachable!("a block has a home"),
        }
        self.blocks.release(id);
        self.push_block(slot, to, block.cells);
    }

    /// Lets the last block and new blocks hold `cells` cells after `first_cell`.
    fn extend(&mut self, slot: usize, first_cell: u32, cells: u32, before: &mut Vec<Transfer>) {
        let end = first_cell + cells;
        if let Some(&tip) = self.sequences[slot].table.last()
            && !first_cell.is_multiple_of(BLOCK_CELLS)
        {
            let start = first_cell - first_cell % BLOCK_CELLS;
            self.blocks.get_mut(tip).cells = (end - start).min(BLOCK_CELLS);
        }
        for _ in 0..new_blocks(first_cell, cells) {
            let start = self.sequences[slot].table.len() as u32 * BLOCK_CELLS;
            let frame = self.take_core_frame(before);
            before.push(Transfer::Fresh { frame });
            self.push_block(slot, frame, (end - start).min(BLOCK_CELLS));
        }
    }

    fn push_block(&mut self, slot: usize, frame: FrameId, cells: u32) {
        let id = self.blocks.create(frame, cells);
        let id = id.expect("there are as many block objects as table entries");
        self.sequences[slot].table.push(id);
    }

    /// A core frame; if none is free, the eviction policy makes one free.
    fn take_core_frame(&mut self, before: &mut Vec<Transfer>) -> FrameId {
        if self.blocks.core_free().is_empty() {
            self.evict(before);
        }
        let frame = self.blocks.take_core_frame();
        frame.expect("the survey has counted the frames")
    }

    /// Lists segments, homes, and distinct tail reads.
    fn list_reads(&mut self, out: &mut StepPlan) {
        let now = self.counters.steps;
        for append in &self.step.appends {
            let slot = append.slot.0 as usize;
            let sequence = &self.sequences[slot];
            let tail = self.tail_len(slot);
            let first_segment = out.segments.len() as u32;
            let first_entry = out.table.len() as u32;
            let border = first_entry + tail as u32;
            for &id in &sequence.table[..tail] {
                let block = self.blocks.get_mut(id);
                if let Some(host) = block.host {
                    out.table.push(Home::Host(host));
                    if block.read_at != now {
                        block.read_at = now;
                        out.tail_reads.push(host);
                    }
                }
            }
            let frames = sequence.table[tail..].iter().filter_map(|&id| self.blocks.get(id).frame);
            out.table.extend(frames.map(Home::Frame));
            let end = out.table.len() as u32;
            if tail > 0 {
                out.segments.push(Segment { place: Place::Tail, first_block: 0, blocks: first_entry..border });
            }
            out.segments.push(Segment { place: Place::Window, first_block: tail as u32, blocks: border..end });
            out.sequences.push(SequencePlan {
                slot: append.slot,
                first_cell: sequence.cells,
                cells: append.cells,
                segments: first_segment..out.segments.len() as u32,
                writes: first_entry + sequence.cells / BLOCK_CELLS..end,
            });
        }
        self.counters.tail_reads += out.tail_reads.len() as u64;
    }

    fn count_use(&mut self) {
        let c = &mut self.counters;
        let core = self.config.core_frames - self.blocks.core_free().len() as u32;
        let overlay = self.config.overlay_frames - self.blocks.overlay_free().len() as u32;
        c.core_frames_max = c.core_frames_max.max(core);
        c.overlay_frames_max = c.overlay_frames_max.max(overlay);
        c.extents_max = c.extents_max.max(self.extents.live());
    }

    /// Ends a step whose compute is done: its cells are in the cache. The transfers of `after` must have been issued.
    ///
    /// # Errors
    /// [`KvError::NoStep`].
    pub fn commit(&mut self) -> Result<(), KvError> {
        self.end()?;
        self.counters.cleaned += self.step.cleaning.len() as u64;
        self.settle_appends();
        self.settle_shrinks();
        debug_assert!(self.counts_agree());
        Ok(())
    }

    /// Like [`commit`](Self::commit), but the machine refused the memory for a `Grow` of `after`. None of its `Grow` and
    /// `Clean` counts as made (the device frees what did grow), its `Shrink` do. The extents that are live become the limit.
    ///
    /// # Errors
    /// [`KvError::NoStep`].
    pub fn commit_uncleaned(&mut self) -> Result<(), KvError> {
        self.end()?;
        self.undo_cleaning();
        self.settle_appends();
        self.settle_shrinks();
        self.extents.limit_to_live();
        debug_assert!(self.counts_agree());
        Ok(())
    }

    /// Ends a step whose compute failed: the sequences have their cells as before. The transfers of `before` must have been
    /// made, those of `after` must not.
    ///
    /// # Errors
    /// [`KvError::NoStep`].
    pub fn abort(&mut self) -> Result<(), KvError> {
        self.end()?;
        self.undo_cleaning();
        for i in 0..self.step.appends.len() {
            let slot = self.step.appends[i].slot.0 as usize;
            let cells = self.sequences[slot].cells;
            self.release_blocks(slot, Sequence::blocks_of(cells));
            if self.step.tips[i] != Tip::Aligned
                && let Some(&tip) = self.sequences[slot].table.last()
            {
                self.blocks.get_mut(tip).cells = cells % BLOCK_CELLS;
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), KvError> {
        if !self.step.open {
            return Err(KvError::NoStep);
        }
        self.step.open = false;
        Ok(())
    }

    fn settle_appends(&mut self) {
        for append in &self.step.appends {
            self.sequences[append.slot.0 as usize].cells += append.cells;
        }
    }

    fn settle_shrinks(&mut self) {
        for &extent in &self.step.shrinking {
            self.extents.retire(extent);
        }
    }

    fn undo_cleaning(&mut self) {
        for i in 0..self.step.cleaning.len() {
            self.forget_host(self.step.cleaning[i]);
        }
        for &extent in &self.step.grown {
            self.extents.retire(extent);
        }
    }
}

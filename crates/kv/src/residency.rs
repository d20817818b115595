//! The policies: which block leaves a frame, which is copied to the host, which comes back.
//!
//! The core window is a cache over the host's history. All choices are functions of the state alone; ties go to the lowest
//! slot. They move bytes, they never change a result.

use tailrace_types::{BLOCK_CELLS, HostBlockId};

use crate::blocks::BlockId;
use crate::{KvCache, Transfer};

/// A sequence that no step of the last so many has touched may lose window blocks to sequences that decode.
const IDLE_STEPS: u64 = 16;

impl KvCache {
    /// Length of the prefix of a table that only the host has.
    pub(crate) fn tail_len(&self, slot: usize) -> usize {
        let table = &self.sequences[slot].table;
        table.partition_point(|&id| self.blocks.get(id).frame.is_none())
    }

    /// Length of the prefix of a table that the host has.
    fn clean_len(&self, slot: usize) -> usize {
        let table = &self.sequences[slot].table;
        table.partition_point(|&id| self.blocks.get(id).host.is_some())
    }

    fn live_slots(&self) -> impl Iterator<Item = usize> {
        (0..self.sequences.len()).filter(|&s| self.sequences[s].live)
    }

    /// Makes the block dirty.
    pub(crate) fn forget_host(&mut self, id: BlockId) {
        if let Some(host) = self.blocks.get(id).host {
            self.blocks.set_host(id, None);
            self.extents.free(host);
        }
    }

    fn drop_frame(&mut self, id: BlockId, before: &mut Vec<Transfer>) {
        if let Some(frame) = self.blocks.leave(id) {
            before.push(Transfer::Drop { frame });
            self.counters.evicted += 1;
        }
    }

    /// Frees one core frame: of the sequence with the most window blocks, the oldest leaves.
    ///
    /// If that block is in an overlay frame, the oldest block of the core window takes over its frame, so that the window
    /// stays without a hole.
    pub(crate) fn evict(&mut self, before: &mut Vec<Transfer>) {
        let mut best: Option<(usize, BlockId, BlockId)> = None;
        for slot in self.live_slots() {
            let table = &self.sequences[slot].table;
            let (tail, clean) = (self.tail_len(slot), self.clean_len(slot));
            let window = table.len() - tail;
            // A block that is being fetched for an append is dirty already: clean ones never lie behind it.
            let Some(&core) = table[tail..clean.max(tail)].iter().find(|&&id| self.blocks.in_core(id)) else {
                continue;
            };
            if best.is_none_or(|(most, _, _)| window > most) {
                best = Some((window, table[tail], core));
            }
        }
        let Some((_, oldest, core)) = best else {
            return;
        };
        self.drop_frame(oldest, before);
        if oldest != core
            && let Some(from) = self.blocks.leave(core)
            && let Some(to) = self.blocks.take_overlay_frame()
        {
            before.push(Transfer::Copy { from, to });
            before.push(Transfer::Drop { frame: from });
            self.blocks.enter(core, to);
            self.counters.copied += 1;
        }
    }

    /// Empties the overlay. What is older than an overlay block leaves with it, so that windows stay without a hole.
    pub(crate) fn drop_overlay(&mut self, before: &mut Vec<Transfer>) {
        for slot in 0..self.sequences.len() {
            let tail = self.tail_len(slot);
            let in_overlay = |id: &BlockId| {
                let frame = self.blocks.get(*id).frame;
                frame.is_some_and(|f| !self.blocks.is_core(f))
            };
            let window = &self.sequences[slot].table[tail..];
            let Some(last) = window.iter().rposition(in_overlay) else {
                continue;
            };
            for i in tail..=tail + last {
                self.drop_frame(self.sequences[slot].table[i], before);
            }
        }
    }

    /// Fetches tail blocks that the step reads anyway into frames that are free: of the sequence with the longest tail
    /// the youngest tail block, as long as there are frames. The link carries each block once either way.
    pub(crate) fn refill(&mut self, before: &mut Vec<Transfer>) {
        while let Some((id, block, from)) = self.next_to_refill() {
            // Core first: overlay frames then hold what is older, and a prefill drops only that.
            let frame = self.blocks.take_core_frame();
            let Some(to) = frame.or_else(|| self.blocks.take_overlay_frame()) else {
                if self.take_from_idle(id, block, before) {
                    continue;
                }
                return;
            };
            self.blocks.enter(id, to);
            before.push(Transfer::Fetch { from, to });
            self.counters.fetched += 1;
        }
    }

    /// The tail block of this step that should come back first: its object, number, and host copy.
    fn next_to_refill(&self) -> Option<(BlockId, usize, HostBlockId)> {
        let mut best: Option<(usize, BlockId)> = None;
        for append in &self.step.appends {
            let slot = append.slot.0 as usize;
            let tail = self.tail_len(slot);
            if tail == 0 || best.is_some_and(|(longest, _)| tail <= longest) {
                continue;
            }
            let id = self.sequences[slot].table[tail - 1];
            if self.is_youngest_of_every_tail(id, tail - 1) {
                best = Some((tail, id));
            }
        }
        let (tail, id) = best?;
        Some((id, tail - 1, self.blocks.get(id).host?))
    }

    /// Whether the tail of every sequence that holds the block ends with it.
    fn is_youngest_of_every_tail(&self, id: BlockId, block: usize) -> bool {
        self.blocks.get(id).refs == 1
            || self.live_slots().filter(|&s| self.holds(s, id, block)).all(|s| self.tail_len(s) == block + 1)
    }

    fn holds(&self, slot: usize, id: BlockId, block: usize) -> bool {
        self.sequences[slot].table.get(block) == Some(&id)
    }

    /// Frees a frame for tail block `id`: the oldest window block of the idle sequence with the most of them leaves.
    fn take_from_idle(&mut self, id: BlockId, block: usize, before: &mut Vec<Transfer>) -> bool {
        let idle = |s: usize| self.sequences[s].stepped_at + IDLE_STEPS < self.counters.steps;
        let mut best: Option<(usize, BlockId)> = None;
        for slot in self.live_slots().filter(|&s| idle(s)) {
            let table = &self.sequences[slot].table;
            let tail = self.tail_len(slot);
            let window = table.len() - tail;
            // A sequence that shares the block would get a hole in its window.
            if tail >= self.clean_len(slot) || self.holds(slot, id, block) {
                continue;
            }
            let all_idle = self.live_slots().filter(|&s| self.holds(s, table[tail], tail)).all(idle);
            if all_idle && best.is_none_or(|(most, _)| window > most) {
                best = Some((window, table[tail]));
            }
        }
        match best {
            Some((_, oldest)) => {
                self.drop_frame(oldest, before);
                true
            }
            None => false,
        }
    }

    /// The next block to copy to the host: of the sequence with the most dirty blocks the oldest dirty one, if it is full.
    /// This is the order in which blocks will be evicted. Returns the slot and the block's number.
    pub(crate) fn next_to_clean(&self) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize, usize)> = None;
        for slot in self.live_slots() {
            let table = &self.sequences[slot].table;
            let clean = self.clean_len(slot);
            let dirty = table.len() - clean;
            let Some(&id) = table.get(clean) else {
                continue;
            };
            let full = self.blocks.get(id).cells == BLOCK_CELLS;
            if full && best.is_none_or(|(most, _, _)| dirty > most) {
                best = Some((dirty, slot, clean));
            }
        }
        best.map(|(_, slot, block)| (slot, block))
    }

    /// Copies dirty blocks to the host until the landing frames of the next step are free or clean, or the host is full; then
    /// gives empty extents back.
    pub(crate) fn clean_ahead(&mut self, after: &mut Vec<Transfer>) {
        self.step.cleaning.clear();
        self.step.grown.clear();
        self.step.shrinking.clear();
        while self.config.spills && self.blocks.available() < self.config.landing_frames {
            let Some((slot, block)) = self.next_to_clean() else {
                break;
            };
            let table = &self.sequences[slot].table;
            let id = table[block];
            let previous = block.checked_sub(1).and_then(|p| self.blocks.get(table[p]).host);
            let Some(from) = self.blocks.get(id).frame else {
                break;
            };
            let Some((to, grown)) = self.extents.place(block as u32, previous) else {
                break;
            };
            if let Some(extent) = grown {
                after.push(Transfer::Grow { extent });
                self.step.grown.push(extent);
            }
            after.push(Transfer::Clean { from, to });
            self.blocks.set_host(id, Some(to));
            self.step.cleaning.push(id);
        }
        self.step.shrinking.extend(self.extents.empty());
        let shrinks = self.step.shrinking.iter();
        after.extend(shrinks.map(|&extent| Transfer::Shrink { extent }));
    }
}

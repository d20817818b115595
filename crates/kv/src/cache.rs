//! The cache: sequences and their lifecycle.

use tailrace_types::{BLOCK_CELLS, ExtentId, SlotId};

use crate::begin::Tip;
use crate::blocks::{BlockId, Blocks};
use crate::extents::Extents;
use crate::{Append, KvConfig, KvError, Sliding};

/// What happened so far. Blocks are counted over all layers at once: multiply by the bytes of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps begun.
    pub steps: u64,
    /// Blocks copied to the host.
    pub cleaned: u64,
    /// Blocks that left their frame for the tail.
    pub evicted: u64,
    /// Tail blocks read: the sum over steps of the distinct blocks in tail segments.
    pub tail_reads: u64,
    /// Blocks fetched from the host into frames.
    pub fetched: u64,
    /// Blocks copied from frame to frame.
    pub copied: u64,
    /// Most core frames in use at the beginning of a compute.
    pub core_frames_max: u32,
    /// Most overlay frames in use at the beginning of a compute.
    pub overlay_frames_max: u32,
    /// Most extents that were live.
    pub extents_max: u32,
}

/// One sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) live: bool,
    /// Cells that are committed.
    pub(crate) cells: u32,
    /// Its blocks, by number.
    pub(crate) table: Vec<BlockId>,
    /// End of the highest position that was written to its ring of sliding layers since position 0 was last written.
    pub(crate) ring_high: u64,
    /// The last step that appended to it.
    pub(crate) stepped_at: u64,
}

impl Sequence {
    /// Blocks that `cells` cells occupy.
    pub(crate) fn blocks_of(cells: u32) -> usize {
        cells.div_ceil(BLOCK_CELLS) as usize
    }

    /// The least number of cells, other than 0, that the sequence can go back to: the ring must still hold the window of the
    /// next row. A ring that has not wrapped holds everything.
    pub(crate) fn cells_min(&self, sliding: Option<&Sliding>) -> u32 {
        let Some(sliding) = sliding else { return 0 };
        if self.ring_high <= sliding.ring_cells() {
            return 0;
        }
        let oldest = self.ring_high - sliding.ring_cells();
        // The row at position `cells` sees cells from `cells - (window - 1)` on. Not above `ring_high`, by validation.
        (oldest + u64::from(sliding.window) - 1) as u32
    }
}

/// What the open step must finish or undo.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenStep {
    pub(crate) open: bool,
    pub(crate) appends: Vec<Append>,
    /// For each append: what becomes of the last block that exists.
    pub(crate) tips: Vec<Tip>,
    /// Blocks whose copy to the host is in `after`.
    pub(crate) cleaning: Vec<BlockId>,
    /// Extents that grow in `after`.
    pub(crate) grown: Vec<ExtentId>,
    /// Extents that are given back in `after`.
    pub(crate) shrinking: Vec<ExtentId>,
}

/// The KV cache of all sequences, as a state machine. See the crate for what it guarantees.
///
/// No operation allocates in steady state, and none panics on any argument.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(crate) config: KvConfig,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) blocks: Blocks,
    pub(crate) extents: Extents,
    /// Ring copies that forks have asked for, to be made before the next step.
    pub(crate) ring_copies: Vec<(SlotId, SlotId)>,
    pub(crate) step: OpenStep,
    pub(crate) counters: Counters,
}

impl KvCache {
    /// An empty cache.
    ///
    /// # Errors
    /// [`KvError::Config`] if the sizes cannot work.
    pub fn new(config: KvConfig) -> Result<Self, KvError> {
        config.validate()?;
        let blocks = Blocks::new(&config);
        let sequence =
            || Sequence { table: Vec::with_capacity(config.context_blocks() as usize), ..Sequence::default() };
        let slots = config.slots as usize;
        Ok(Self {
            sequences: (0..slots).map(|_| sequence()).collect(),
            extents: Extents::new(&config),
            ring_copies: Vec::with_capacity(slots),
            step: OpenStep {
                open: false,
                appends: Vec::with_capacity(slots),
                tips: Vec::with_capacity(slots),
                cleaning: Vec::with_capacity(config.core_frames as usize),
                grown: Vec::with_capacity(config.extents_max as usize),
                shrinking: Vec::with_capacity(config.extents_max as usize),
            },
            counters: Counters::default(),
            blocks,
            config,
        })
    }

    /// The sizes.
    pub fn config(&self) -> &KvConfig {
        &self.config
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Committed cells of the sequence in `slot`, if one lives there.
    pub fn cells(&self, slot: SlotId) -> Option<u32> {
        self.sequence(slot).ok().map(|s| s.cells)
    }

    /// Blocks of the sequence that only the host has, and blocks in frames.
    pub fn tail_and_window(&self, slot: SlotId) -> Option<(u32, u32)> {
        let sequence = self.sequence(slot).ok()?;
        let tail = self.tail_len(slot.0 as usize);
        Some((tail as u32, (sequence.table.len() - tail) as u32))
    }

    /// Core frames that hold no block.
    pub fn free_core_frames(&self) -> u32 {
        self.blocks.core_free().len() as u32
    }

    /// Extents of host memory that exist, and how many may.
    pub fn extents(&self) -> (u32, u32) {
        (self.extents.live(), self.extents.limit())
    }

    /// Host blocks that hold a copy.
    pub fn host_blocks(&self) -> u64 {
        self.extents.used()
    }

    pub(crate) fn sequence(&self, slot: SlotId) -> Result<&Sequence, KvError> {
        match self.sequences.get(slot.0 as usize) {
            Some(s) if s.live => Ok(s),
            _ => Err(KvError::UnknownSlot(slot)),
        }
    }

    fn vacant(&self, slot: SlotId) -> Result<(), KvError> {
        match self.sequences.get(slot.0 as usize) {
            Some(s) if !s.live => Ok(()),
            _ => Err(KvError::SlotBusy(slot)),
        }
    }

    pub(crate) fn closed(&self) -> Result<(), KvError> {
        if self.step.open {
            return Err(KvError::StepOpen);
        }
        Ok(())
    }

    /// Starts an empty sequence.
    ///
    /// # Errors
    /// [`KvError::SlotBusy`], [`KvError::StepOpen`].
    pub fn create(&mut self, slot: SlotId) -> Result<(), KvError> {
        self.closed()?;
        self.vacant(slot)?;
        let sequence = &mut self.sequences[slot.0 as usize];
        sequence.live = true;
        sequence.cells = 0;
        sequence.ring_high = 0;
        sequence.stepped_at = self.counters.steps;
        Ok(())
    }

    /// Ends a sequence. Its frames are free at once; extents that become empty are given back by the next step.
    ///
    /// # Errors
    /// [`KvError::UnknownSlot`], [`KvError::StepOpen`].
    pub fn release(&mut self, slot: SlotId) -> Result<(), KvError> {
        self.closed()?;
        self.sequence(slot)?;
        self.truncate(slot, 0);
        self.sequences[slot.0 as usize].live = false;
        Ok(())
    }

    /// Starts a sequence in `dst` that shares the first `cells` cells of `src`. Nothing of global layers is copied now: a
    /// partially shared block is copied when either side appends to it. Rings of sliding layers cannot be shared; the next
    /// step begins by copying the ring (after which both go on independently).
    ///
    /// # Errors
    /// [`KvError::UnknownSlot`], [`KvError::SlotBusy`], [`KvError::TooFewCells`], [`KvError::StepOpen`];
    /// [`KvError::NeedsPrefill`] if the ring of `src` no longer holds the window at `cells`: create `dst` and prefill it.
    pub fn fork(&mut self, src: SlotId, dst: SlotId, cells: u32) -> Result<(), KvError> {
        self.closed()?;
        self.vacant(dst)?;
        self.can_cut(src, cells)?;
        for block in 0..Sequence::blocks_of(cells) {
            let id = self.sequences[src.0 as usize].table[block];
            self.blocks.retain(id);
            self.sequences[dst.0 as usize].table.push(id);
        }
        if self.config.sliding.is_some() && cells > 0 {
            self.ring_copies.push((src, dst));
        }
        let ring_high = self.sequences[src.0 as usize].ring_high;
        let sequence = &mut self.sequences[dst.0 as usize];
        sequence.live = true;
        sequence.cells = cells;
        sequence.ring_high = if cells > 0 { ring_high } else { 0 };
        sequence.stepped_at = self.counters.steps;
        Ok(())
    }

    /// Truncates a sequence to its first `cells` cells.
    ///
    /// A block that is cut keeps its frame and its host copy for now, both hold the remaining cells. The next append makes it
    /// dirty and frees the host copy; if it lies in the tail, it is fetched first.
    ///
    /// # Errors
    /// [`KvError::UnknownSlot`], [`KvError::TooFewCells`], [`KvError::StepOpen`]; [`KvError::NeedsPrefill`] if sliding
    /// layers have overwritten what is needed, which cannot happen within `rollback_max` cells below the highest position.
    /// Going back to 0 cells is always possible.
    pub fn rollback(&mut self, slot: SlotId, cells: u32) -> Result<(), KvError> {
        self.closed()?;
        self.can_cut(slot, cells)?;
        self.truncate(slot, cells);
        Ok(())
    }

    /// Whether the first `cells` cells of a sequence can stand alone.
    fn can_cut(&self, slot: SlotId, cells: u32) -> Result<(), KvError> {
        let sequence = self.sequence(slot)?;
        if cells > sequence.cells {
            return Err(KvError::TooFewCells { slot, has: sequence.cells, asked: cells });
        }
        let cells_min = sequence.cells_min(self.config.sliding.as_ref());
        if cells > 0 && cells < cells_min {
            return Err(KvError::NeedsPrefill { slot, cells, cells_min });
        }
        Ok(())
    }

    fn truncate(&mut self, slot: SlotId, cells: u32) {
        let sequence = &mut self.sequences[slot.0 as usize];
        sequence.cells = cells;
        if cells == 0 {
            sequence.ring_high = 0;
        }
        let keep = Sequence::blocks_of(cells);
        self.release_blocks(slot.0 as usize, keep);
    }

    /// Drops the references of a table to its blocks from number `keep` on.
    pub(crate) fn release_blocks(&mut self, slot: usize, keep: usize) {
        while self.sequences[slot].table.len() > keep {
            let Some(id) = self.sequences[slot].table.pop() else {
                return;
            };
            if let Some(host) = self.blocks.release(id) {
                self.extents.free(host);
            }
        }
    }
}

//! What a step appends, and the plan that answers it.

use std::ops::Range;

use tailrace_types::{BLOCK_CELLS, ExtentId, FrameId, HostBlockId, SlotId};

use crate::KvConfig;

/// Cells that a step appends to one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Append {
    /// The sequence.
    pub slot: SlotId,
    /// Cells to append, at least 1.
    pub cells: u32,
}

/// What the device's memory is laid out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The workspace is in use: overlay frames hold nothing.
    Prefill,
    /// Overlay frames may hold clean blocks.
    Decode,
}

/// One movement of data. Sources and destinations are whole blocks (or rings), for all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Copies the ring of sliding layers of one slot to another.
    CopyRing {
        /// The slot that has the ring.
        from: SlotId,
        /// The slot that gets a copy.
        to: SlotId,
    },
    /// The contents of the frame are no longer needed: the host has them. Waits for the `Clean` of this frame.
    Drop {
        /// The frame that becomes free.
        frame: FrameId,
    },
    /// Brings a block back from the host. Waits for the `Clean` of the host block.
    Fetch {
        /// Its host copy, which stays readable for this step.
        from: HostBlockId,
        /// The frame that receives it.
        to: FrameId,
    },
    /// Copies a block from frame to frame.
    Copy {
        /// The frame that has the block.
        from: FrameId,
        /// The frame that receives it.
        to: FrameId,
    },
    /// The frame will be appended to: its V must be zeroed.
    Fresh {
        /// The frame.
        frame: FrameId,
    },
    /// Allocates an extent of host memory.
    Grow {
        /// The extent.
        extent: ExtentId,
    },
    /// Copies a full block to the host.
    Clean {
        /// The frame that has the block.
        from: FrameId,
        /// Where the copy goes.
        to: HostBlockId,
    },
    /// Gives an extent of host memory back. Waits for all transfers that name it.
    Shrink {
        /// The extent.
        extent: ExtentId,
    },
}

/// Where a block is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// A frame: device memory.
    Frame(FrameId),
    /// Only the host has the block.
    Host(HostBlockId),
}

/// Where all blocks of a segment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In frames.
    Window,
    /// In host memory.
    Tail,
}

/// A run of consecutive blocks of one sequence, all in the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where they are.
    pub place: Place,
    /// Absolute number of the first block (leaf) in its sequence.
    pub first_block: u32,
    /// Their entries in [`StepPlan::table`].
    pub blocks: Range<u32>,
}

/// What a step does with one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequencePlan {
    /// The sequence.
    pub slot: SlotId,
    /// Position of the first new cell: cells before the step.
    pub first_cell: u32,
    /// New cells.
    pub cells: u32,
    /// Its segments in [`StepPlan::segments`], ascending in position. Together they list every block of the sequence,
    /// those of the new cells included.
    pub segments: Range<u32>,
    /// Entries of [`StepPlan::table`] of the blocks that receive the new cells; all are core frames. The first is block
    /// `first_cell / 256`.
    pub writes: Range<u32>,
}

/// Everything that a step needs to know about the cache. Reused from step to step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Transfers to make before the compute, in order. None of them allocates.
    pub before: Vec<Transfer>,
    /// Transfers to start after the compute, in order: `Grow`, `Clean` and `Shrink`. They may overlap later steps; a later
    /// transfer or read that names the same frame, host block or extent waits for them.
    pub after: Vec<Transfer>,
    /// One entry for each append, in the same order.
    pub sequences: Vec<SequencePlan>,
    /// The segments of all sequences.
    pub segments: Vec<Segment>,
    /// The homes of all blocks of all segments.
    pub table: Vec<Home>,
    /// The distinct tail blocks that the step reads: what crosses the link (or is read in place) once for each layer.
    pub tail_reads: Vec<HostBlockId>,
}

impl StepPlan {
    /// An empty plan with room for the largest step, so that no step allocates.
    pub fn with_capacity(config: &KvConfig) -> Self {
        let slots = config.slots as usize;
        let frames = config.core_frames as usize + config.overlay_frames as usize;
        let blocks = config.blocks_max() as usize;
        let host_blocks = config.host_blocks_max().min(config.blocks_max()) as usize;
        Self {
            // Each frame can be dropped, be swapped (copy and drop) and be filled; each slot copies a ring and a tip.
            before: Vec::with_capacity(4 * frames + 2 * slots),
            after: Vec::with_capacity(2 * frames + config.extents_max as usize),
            sequences: Vec::with_capacity(slots),
            segments: Vec::with_capacity(2 * slots),
            table: Vec::with_capacity(blocks),
            tail_reads: Vec::with_capacity(host_blocks),
        }
    }

    /// The segments of one sequence, ascending in position.
    pub fn segments_of(&self, sequence: &SequencePlan) -> &[Segment] {
        &self.segments[range(&sequence.segments)]
    }

    /// The homes of the blocks of one segment.
    pub fn homes(&self, segment: &Segment) -> &[Home] {
        &self.table[range(&segment.blocks)]
    }

    /// The frame that receives the cell at absolute `position`, if the step writes it.
    pub fn frame_of(&self, sequence: &SequencePlan, position: u32) -> Option<FrameId> {
        let first_block = sequence.first_cell / BLOCK_CELLS;
        let block = (position / BLOCK_CELLS).checked_sub(first_block)?;
        match self.table[range(&sequence.writes)].get(block as usize)? {
            Home::Frame(frame) => Some(*frame),
            Home::Host(_) => None,
        }
    }

    /// Forgets the last step and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.before.clear();
        self.after.clear();
        self.sequences.clear();
        self.segments.clear();
        self.table.clear();
        self.tail_reads.clear();
    }
}

fn range(r: &Range<u32>) -> Range<usize> {
    r.start as usize..r.end as usize
}

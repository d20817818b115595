//! Block objects, their reference counts, and the frames they occupy.

use tailrace_types::{FrameId, HostBlockId};

use crate::KvConfig;

/// Index of a block object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockId(pub(crate) u32);

/// A block: its contents have one residency, whoever refers to it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Block {
    /// Tables that list it; 0: the object is unused.
    pub(crate) refs: u32,
    /// Leading cells that hold data. A sequence may see fewer of them (after a fork or a rollback).
    pub(crate) cells: u32,
    /// The frame that holds it.
    pub(crate) frame: Option<FrameId>,
    /// Its valid host copy: the block is clean.
    pub(crate) host: Option<HostBlockId>,
    /// Sequences of the step being surveyed that will leave it for a copy of their own; 0 otherwise.
    pub(crate) leavers: u32,
    /// The last step that listed it as a tail read.
    pub(crate) read_at: u64,
}

/// All block objects and all frames.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pool: Vec<Block>,
    unused: Vec<BlockId>,
    core_frames: u32,
    core_free: Vec<FrameId>,
    overlay_free: Vec<FrameId>,
    /// Blocks in core frames that are clean: frames that can be had without a copy.
    clean_core: u32,
}

impl Blocks {
    pub(crate) fn new(config: &KvConfig) -> Self {
        // Every object has a frame or a host copy, and is listed in a table.
        let homes = u64::from(config.core_frames) + config.host_blocks_max();
        let objects = config.blocks_max().min(homes) as u32;
        let core = config.core_frames;
        // Stacks that hand out the lowest id first.
        let stack = |from: u32, to: u32| (from..to).rev().map(FrameId).collect();
        Self {
            pool: vec![Block::default(); objects as usize],
            unused: (0..objects).rev().map(BlockId).collect(),
            core_frames: core,
            core_free: stack(0, core),
            overlay_free: stack(core, core + config.overlay_frames),
            clean_core: 0,
        }
    }

    pub(crate) fn get(&self, id: BlockId) -> &Block {
        &self.pool[id.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.pool[id.0 as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.pool.len()
    }

    pub(crate) fn unused(&self) -> &[BlockId] {
        &self.unused
    }

    pub(crate) fn core_free(&self) -> &[FrameId] {
        &self.core_free
    }

    pub(crate) fn overlay_free(&self) -> &[FrameId] {
        &self.overlay_free
    }

    pub(crate) fn clean_core(&self) -> u32 {
        self.clean_core
    }

    /// Core frames that can be had without a copy to the host.
    pub(crate) fn available(&self) -> u32 {
        self.core_free.len() as u32 + self.clean_core
    }

    pub(crate) fn is_core(&self, frame: FrameId) -> bool {
        frame.0 < self.core_frames
    }

    pub(crate) fn in_core(&self, id: BlockId) -> bool {
        self.get(id).frame.is_some_and(|f| self.is_core(f))
    }

    pub(crate) fn is_clean_core(&self, id: BlockId) -> bool {
        self.in_core(id) && self.get(id).host.is_some()
    }

    /// Changes the home of a block and keeps the count of clean core blocks.
    fn rehome(&mut self, id: BlockId, change: impl FnOnce(&mut Block)) {
        self.clean_core -= u32::from(self.is_clean_core(id));
        change(self.get_mut(id));
        self.clean_core += u32::from(self.is_clean_core(id));
    }

    pub(crate) fn take_core_frame(&mut self) -> Option<FrameId> {
        self.core_free.pop()
    }

    pub(crate) fn take_overlay_frame(&mut self) -> Option<FrameId> {
        self.overlay_free.pop()
    }

    /// A new block in a frame that was taken, with one reference.
    pub(crate) fn create(&mut self, frame: FrameId, cells: u32) -> Option<BlockId> {
        let id = self.unused.pop()?;
        *self.get_mut(id) = Block { refs: 1, cells, frame: Some(frame), ..Block::default() };
        Some(id)
    }

    /// Moves a block into a frame that was taken; it must be in none.
    pub(crate) fn enter(&mut self, id: BlockId, frame: FrameId) {
        self.rehome(id, |b| b.frame = Some(frame));
    }

    /// Takes a block out of its frame, which becomes free.
    pub(crate) fn leave(&mut self, id: BlockId) -> Option<FrameId> {
        let frame = self.get(id).frame?;
        self.rehome(id, |b| b.frame = None);
        if self.is_core(frame) {
            self.core_free.push(frame);
        } else {
            self.overlay_free.push(frame);
        }
        Some(frame)
    }

    pub(crate) fn set_host(&mut self, id: BlockId, host: Option<HostBlockId>) {
        self.rehome(id, |b| b.host = host);
    }

    pub(crate) fn retain(&mut self, id: BlockId) {
        self.get_mut(id).refs += 1;
    }

    /// Drops one reference. The last one frees the frame and returns the host copy to be freed.
    pub(crate) fn release(&mut self, id: BlockId) -> Option<HostBlockId> {
        self.get_mut(id).refs -= 1;
        if self.get(id).refs > 0 {
            return None;
        }
        self.leave(id);
        let host = self.get(id).host;
        self.set_host(id, None);
        self.unused.push(id);
        host
    }
}

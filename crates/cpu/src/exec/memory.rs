//! The executor's arenas, and the addresses of what lies in them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tailrace_device::kv::Home;
use tailrace_device::plan::{Buffer, CachePlace, LayerCache, Plan, Program, RowKind, Weight, WeightId};
use tailrace_device::{DeviceError, TailUse};
use tailrace_types::{ExtentId, FrameId, HostBlockId, SlotId};

use crate::arena::{Arena, Pages};

/// Rows of a buffer: address, stride and width. Copies name the same bytes; who dereferences one proves that no other
/// worker writes them at the same time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    base: *mut u8,
    /// Bytes from row to row.
    pub(super) row_bytes: usize,
    /// Elements of a row.
    pub(super) cols: usize,
    rows: usize,
}

impl Rows {
    /// Address of `row`.
    pub(super) fn at(&self, row: usize) -> *mut u8 {
        assert!(row < self.rows, "row {row} of a buffer of {} rows", self.rows);
        // SAFETY: the row lies inside the buffer that `Machine::rows` checked against its arena.
        unsafe { self.base.add(row * self.row_bytes) }
    }

    /// `row` as f32.
    ///
    /// # Safety
    /// The buffer holds f32, and no worker writes the row while the slice is in use.
    pub(super) unsafe fn f32<'a>(&self, row: usize) -> &'a [f32] {
        // SAFETY: the caller's contract; the row has `cols` f32.
        unsafe { std::slice::from_raw_parts(self.at(row).cast(), self.cols) }
    }

    /// `row` as f32, to be written.
    ///
    /// # Safety
    /// The buffer holds f32, and no other worker uses the row while the slice is in use.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn f32_mut<'a>(&self, row: usize) -> &'a mut [f32] {
        // SAFETY: the caller's contract; the row has `cols` f32.
        unsafe { std::slice::from_raw_parts_mut(self.at(row).cast(), self.cols) }
    }

    /// `row` as bytes, to be written.
    ///
    /// # Safety
    /// No other worker uses the row while the slice is in use.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn bytes_mut<'a>(&self, row: usize) -> &'a mut [u8] {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.at(row), self.row_bytes) }
    }
}

/// Every arena of a plan.
#[derive(Debug)]
pub(super) struct Memory {
    weights: Arena,
    frames: Arena,
    sliding: Arena,
    ring: Arena,
    workspace: Arena,
    head: Arena,
    extents: Vec<Option<Arena>>,
    tail: TailUse,
    /// One more than the largest core frame that was ever handed out.
    frames_used: AtomicU32,
    /// Most bytes of the workspace, head, sliding and ring rows in use at once.
    used: [AtomicU64; 4],
}

/// The rows whose use is tracked in bytes.
const TRACKED: [RowKind; 4] = [RowKind::Workspace, RowKind::Head, RowKind::Sliding, RowKind::Ring];

impl Memory {
    pub(super) fn new(plan: &Plan) -> Result<Self, DeviceError> {
        let map = &plan.memory;
        let arena = |kind: RowKind, pages| Arena::new(map.bytes(kind), kind.name(), pages);
        let frames = map.bytes(RowKind::Window) + map.bytes(RowKind::Landing);
        Ok(Memory {
            weights: arena(RowKind::Weights, Pages::Dense)?,
            frames: Arena::new(frames, "cache frames", Pages::Sparse)?,
            sliding: arena(RowKind::Sliding, Pages::Sparse)?,
            ring: arena(RowKind::Ring, Pages::Dense)?,
            workspace: arena(RowKind::Workspace, Pages::Dense)?,
            head: arena(RowKind::Head, Pages::Dense)?,
            extents: (0..plan.cache.extents_max).map(|_| None).collect(),
            tail: TailUse::new(plan.cache.extents_max, plan.cache.extent_blocks),
            frames_used: AtomicU32::new(0),
            used: Default::default(),
        })
    }

    /// Address of a weight.
    pub(super) fn weight(&self, weight: &Weight) -> *mut u8 {
        self.weights.at(weight.offset, weight.bytes)
    }

    /// Rows of a buffer of the body's programs.
    pub(super) fn workspace(&self, buffer: &Buffer) -> Rows {
        rows_in(&self.workspace, buffer)
    }

    /// Rows of a buffer of the head's program.
    pub(super) fn head(&self, buffer: &Buffer) -> Rows {
        rows_in(&self.head, buffer)
    }

    /// A slot of the staging ring.
    pub(super) fn ring_slot(&self, plan: &Plan, slot: usize) -> *mut u8 {
        let bytes = plan.cache.slot_bytes;
        self.note(RowKind::Ring, (slot as u64 + 1) * bytes);
        self.ring.at(slot as u64 * bytes, bytes)
    }

    /// One layer's block in a frame: core frames are `[layer][frame]`, overlay frames `[frame][layer]`.
    pub(super) fn frame_block(&self, plan: &Plan, layer: &LayerCache, frame: FrameId) -> *mut u8 {
        let CachePlace::Frames { offset } = layer.place else { panic!("a sliding layer has no frames") };
        let (cache, bytes) = (&plan.cache, layer.block_bytes);
        let core = cache.core_frames();
        match frame.0.checked_sub(core) {
            None => {
                self.frames_used.fetch_max(frame.0 + 1, Ordering::Relaxed);
                self.frames.at(core as u64 * offset + frame.0 as u64 * bytes, bytes)
            }
            Some(overlay) => {
                let end = cache.overlay_offset + (overlay as u64 + 1) * cache.frame_bytes;
                self.note(RowKind::Workspace, end);
                self.workspace.at(end - cache.frame_bytes + offset, bytes)
            }
        }
    }

    /// One layer's block in a slot's ring of sliding layers; block `b` lies at place `b % ring_blocks`.
    pub(super) fn ring_block(&self, plan: &Plan, layer: &LayerCache, slot: SlotId, block: u32) -> *mut u8 {
        let CachePlace::Rings { offset } = layer.place else { panic!("a global layer has no ring") };
        let ring = plan.cache.sliding.expect("a sliding layer has rings");
        let blocks = ring.ring_blocks * plan.limits.sequences;
        let at = slot.0 * ring.ring_blocks + block % ring.ring_blocks;
        self.note(RowKind::Sliding, (at as u64 + 1) * ring.block_bytes);
        self.sliding.at(blocks as u64 * offset + at as u64 * layer.block_bytes, layer.block_bytes)
    }

    /// One layer's block in host memory: extents are `[layer][block]`.
    pub(super) fn host_block(
        &self,
        plan: &Plan,
        layer: &LayerCache,
        block: HostBlockId,
    ) -> Result<*mut u8, DeviceError> {
        let CachePlace::Frames { offset } = layer.place else { panic!("a sliding layer has no tail") };
        let each = plan.cache.extent_blocks;
        let extent = self.extents.get((block.0 / each) as usize).and_then(Option::as_ref);
        let extent = extent.ok_or(DeviceError::Misuse("a block of an extent that is not there"))?;
        let at = each as u64 * offset + (block.0 % each) as u64 * layer.block_bytes;
        Ok(extent.at(at, layer.block_bytes))
    }

    /// One layer's block wherever it is.
    pub(super) fn home_block(&self, plan: &Plan, layer: &LayerCache, home: Home) -> Result<*mut u8, DeviceError> {
        match home {
            Home::Frame(frame) => Ok(self.frame_block(plan, layer, frame)),
            Home::Host(block) => self.host_block(plan, layer, block),
        }
    }

    /// Allocates an extent.
    pub(super) fn grow(&mut self, plan: &Plan, extent: ExtentId) -> Result<(), DeviceError> {
        let bytes = plan.cache.extent_blocks as u64 * plan.cache.frame_bytes;
        let place = self.extents.get_mut(extent.0 as usize).ok_or(DeviceError::Misuse("an extent past the limit"))?;
        *place = Some(Arena::new(bytes, "the tail", Pages::Sparse)?);
        Ok(())
    }

    /// Gives an extent back.
    pub(super) fn shrink(&mut self, extent: ExtentId) -> Result<(), DeviceError> {
        let place = self.extents.get_mut(extent.0 as usize).and_then(Option::take);
        place.ok_or(DeviceError::Misuse("an extent that is not there was given back"))?;
        self.tail.gave_back(extent);
        Ok(())
    }

    /// Says that a block of the tail was written.
    pub(super) fn note_host_block(&mut self, block: HostBlockId) {
        self.tail.wrote(block);
    }

    /// Says that a program ran with `rows` rows.
    pub(super) fn note_program(&self, kind: RowKind, program: &Program, rows: usize) {
        let end = |b: &Buffer| b.offset + (rows as u64).min(b.rows as u64) * b.row_bytes;
        let used = program.buffers.iter().map(end).max().unwrap_or(0);
        self.note(kind, used);
    }

    fn note(&self, kind: RowKind, bytes: u64) {
        if let Some(i) = TRACKED.iter().position(|&k| k == kind) {
            self.used[i].fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Most bytes of a row in use at once.
    pub(super) fn used_bytes(&self, plan: &Plan, kind: RowKind) -> u64 {
        let (cache, frames) = (&plan.cache, self.frames_used.load(Ordering::Relaxed));
        match kind {
            RowKind::Weights => plan.weights.last().map_or(0, |w| w.offset + w.bytes),
            RowKind::Window => frames.min(cache.window_frames) as u64 * cache.frame_bytes,
            RowKind::Landing => frames.saturating_sub(cache.window_frames) as u64 * cache.frame_bytes,
            RowKind::Tail => u64::from(self.tail.most()) * cache.frame_bytes,
            _ => TRACKED.iter().position(|&k| k == kind).map_or(0, |i| self.used[i].load(Ordering::Relaxed)),
        }
    }
}

fn rows_in(arena: &Arena, buffer: &Buffer) -> Rows {
    Rows {
        base: arena.at(buffer.offset, buffer.bytes()),
        row_bytes: buffer.row_bytes as usize,
        cols: buffer.cols as usize,
        rows: buffer.rows as usize,
    }
}

/// The weight with that id.
pub(super) fn weight(plan: &Plan, id: WeightId) -> &Weight {
    &plan.weights[id.0 as usize]
}

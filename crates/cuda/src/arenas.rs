//! The executor's memory: one allocation on the device, cut into the plan's rows, and extents of page-locked host memory.

use std::sync::Arc;

use tailrace_device::plan::{Buffer, CachePlace, LayerCache, Plan, Program, Room, RowKind, Weight};
use tailrace_device::{DeviceError, TailUse};
use tailrace_types::{ExtentId, FrameId, HostBlockId, SlotId};

use crate::driver::{Driver, HostMemory};
use crate::params::LayerBlocks;

/// Device memory is handed out in units of this.
pub(crate) const ALLOCATION_UNIT: u64 = 2 << 20;

/// Every arena of a plan.
pub(crate) struct Arenas {
    driver: Arc<dyn Driver>,
    base: u64,
    /// Address and size of each device row but the driver's; frames of window and landing follow each other.
    rows: Vec<(RowKind, u64, u64)>,
    extents: Vec<Option<HostMemory>>,
    tail: TailUse,
    /// One more than the largest core frame that was ever named.
    frames_used: u32,
    /// Most bytes of each row in use at once.
    used: Vec<(RowKind, u64)>,
}

impl Arenas {
    /// Allocates everything on the device.
    pub(crate) fn new(driver: Arc<dyn Driver>, plan: &Plan) -> Result<Self, DeviceError> {
        let mut rows = Vec::new();
        let mut end = 0u64;
        let device =
            |row: &&tailrace_device::plan::MemoryRow| row.kind.room() == Room::Device && row.kind != RowKind::Driver;
        for row in plan.memory.rows.iter().filter(device) {
            // Landing frames follow the window's without a gap: together they are the core frames.
            let bytes = if row.kind == RowKind::Window { row.count * row.unit_bytes } else { row.bytes() };
            rows.push((row.kind, end, bytes));
            end += bytes;
            if row.kind != RowKind::Window || plan.memory.row(RowKind::Landing).is_none() {
                end = end.next_multiple_of(256);
            }
        }
        let base = driver.alloc(end)?;
        for row in &mut rows {
            row.1 += base;
        }
        let used = rows.iter().map(|&(kind, ..)| (kind, 0)).collect();
        let extents = (0..plan.cache.extents_max).map(|_| None).collect();
        let tail = TailUse::new(plan.cache.extents_max, plan.cache.extent_blocks);
        Ok(Arenas { driver, base, rows, extents, tail, frames_used: 0, used })
    }

    /// Address of a row; 0 where the plan has none.
    pub(crate) fn row(&self, kind: RowKind) -> u64 {
        self.rows.iter().find(|r| r.0 == kind).map_or(0, |r| r.1)
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self, kind: RowKind) -> u64 {
        self.rows.iter().find(|r| r.0 == kind).map_or(0, |r| r.2)
    }

    /// Address of the core frames: the window's, or the landing frames' where there is no window.
    fn frames(&self) -> u64 {
        match self.row(RowKind::Window) {
            0 => self.row(RowKind::Landing),
            window => window,
        }
    }

    /// Address of a weight.
    pub(crate) fn weight(&self, weight: &Weight) -> u64 {
        self.row(RowKind::Weights) + weight.offset
    }

    /// Address of a buffer of the body's programs, or of the head's.
    pub(crate) fn buffer(&self, buffer: &Buffer, head: bool) -> u64 {
        self.row(if head { RowKind::Head } else { RowKind::Workspace }) + buffer.offset
    }

    /// Where the blocks of `layer` are, for the kernels.
    pub(crate) fn layer_blocks(&self, plan: &Plan, layer: usize) -> LayerBlocks {
        let cache = &plan.cache;
        let LayerCache { block_bytes, place } = cache.layers[layer];
        let mut blocks = LayerBlocks {
            block_bytes,
            slot_bytes: cache.slot_bytes,
            core_frames: cache.core_frames(),
            ring: self.row(RowKind::Ring),
            ring_slots: cache.ring_slots.max(1),
            ..LayerBlocks::default()
        };
        match place {
            CachePlace::Frames { offset } => {
                blocks.core = self.frames() + u64::from(cache.core_frames()) * offset;
                blocks.overlay = self.row(RowKind::Workspace) + cache.overlay_offset + offset;
                blocks.overlay_stride = cache.frame_bytes;
            }
            CachePlace::Rings { .. } => {
                blocks.sliding = self.sliding(plan, &cache.layers[layer], SlotId(0));
                blocks.sliding_blocks = cache.sliding.map_or(1, |s| s.ring_blocks);
            }
        }
        blocks
    }

    /// Address of a slot's ring of one sliding layer.
    pub(crate) fn sliding(&self, plan: &Plan, layer: &LayerCache, slot: SlotId) -> u64 {
        let CachePlace::Rings { offset } = layer.place else { panic!("a global layer has no ring") };
        let ring = plan.cache.sliding.expect("a sliding layer has rings");
        let blocks = u64::from(ring.ring_blocks) * u64::from(plan.limits.sequences);
        let first = u64::from(slot.0) * u64::from(ring.ring_blocks);
        self.row(RowKind::Sliding) + blocks * offset + first * layer.block_bytes
    }

    /// Address of one layer's block in a frame: core frames are `[layer][frame]`, overlay frames `[frame][layer]`.
    pub(crate) fn frame_block(&mut self, plan: &Plan, layer: &LayerCache, frame: FrameId) -> u64 {
        let CachePlace::Frames { offset } = layer.place else { panic!("a sliding layer has no frames") };
        let cache = &plan.cache;
        match frame.0.checked_sub(cache.core_frames()) {
            None => {
                self.frames_used = self.frames_used.max(frame.0 + 1);
                self.frames() + u64::from(cache.core_frames()) * offset + u64::from(frame.0) * layer.block_bytes
            }
            Some(overlay) => {
                let end = cache.overlay_offset + (u64::from(overlay) + 1) * cache.frame_bytes;
                self.note(RowKind::Workspace, end);
                self.row(RowKind::Workspace) + end - cache.frame_bytes + offset
            }
        }
    }

    /// Address of one layer's block in host memory: extents are `[layer][block]`.
    pub(crate) fn host_block(
        &self,
        plan: &Plan,
        layer: &LayerCache,
        block: HostBlockId,
    ) -> Result<*mut u8, DeviceError> {
        let CachePlace::Frames { offset } = layer.place else { panic!("a sliding layer has no tail") };
        let each = plan.cache.extent_blocks;
        let extent = self.extents.get((block.0 / each) as usize).and_then(Option::as_ref);
        let extent = extent.ok_or(DeviceError::Misuse("a block of an extent that is not there"))?;
        let at = u64::from(each) * offset + u64::from(block.0 % each) * layer.block_bytes;
        assert!(at + layer.block_bytes <= extent.bytes, "a block inside its extent");
        Ok(extent.address.wrapping_add(at as usize))
    }

    /// Allocates an extent.
    pub(crate) fn grow(&mut self, plan: &Plan, extent: ExtentId) -> Result<(), DeviceError> {
        let bytes = u64::from(plan.cache.extent_blocks) * plan.cache.frame_bytes;
        let place = self.extents.get_mut(extent.0 as usize).ok_or(DeviceError::Misuse("an extent past the limit"))?;
        let memory = self.driver.alloc_host(bytes)?;
        // Page-locked memory has its tables on the device, which the cap bounds.
        if plan.limits.device_bytes_max.is_some_and(|cap| self.driver.used_bytes() > cap) {
            self.driver.free_host(memory);
            return Err(DeviceError::OutOfMemory { what: "the device's tables of the tail", bytes });
        }
        *place = Some(memory);
        Ok(())
    }

    /// Gives an extent back. Nothing that uses it may be in flight.
    pub(crate) fn shrink(&mut self, extent: ExtentId) -> Result<(), DeviceError> {
        let place = self.extents.get_mut(extent.0 as usize).and_then(Option::take);
        let memory = place.ok_or(DeviceError::Misuse("an extent that is not there was given back"))?;
        self.tail.gave_back(extent);
        self.driver.free_host(memory);
        Ok(())
    }

    /// Says that a block of the tail was written.
    pub(crate) fn note_host_block(&mut self, block: HostBlockId) {
        self.tail.wrote(block);
    }

    /// Says that a program ran with `rows` rows.
    pub(crate) fn note_program(&mut self, kind: RowKind, program: &Program, rows: u32) {
        let end = |b: &Buffer| b.offset + u64::from(rows.min(b.rows)) * b.row_bytes;
        let used = program.buffers.iter().map(end).max().unwrap_or(0);
        self.note(kind, used);
    }

    /// Says that so many bytes of a row are in use.
    pub(crate) fn note(&mut self, kind: RowKind, bytes: u64) {
        if let Some(used) = self.used.iter_mut().find(|u| u.0 == kind) {
            used.1 = used.1.max(bytes);
        }
    }

    /// Most bytes of a row in use at once.
    pub(crate) fn used_bytes(&self, plan: &Plan, kind: RowKind) -> u64 {
        let (cache, frames) = (&plan.cache, self.frames_used);
        match kind {
            RowKind::Weights => plan.weights.last().map_or(0, |w| w.offset + w.bytes),
            RowKind::Window => u64::from(frames.min(cache.window_frames)) * cache.frame_bytes,
            RowKind::Landing => u64::from(frames.saturating_sub(cache.window_frames)) * cache.frame_bytes,
            RowKind::Tail => u64::from(self.tail.most()) * cache.frame_bytes,
            RowKind::Driver => {
                self.driver.used_bytes().saturating_sub(plan.memory.device_bytes() - plan.memory.bytes(kind))
            }
            RowKind::Embedding => plan.memory.bytes(kind),
            _ => self.used.iter().find(|u| u.0 == kind).map_or(0, |u| u.1),
        }
    }
}

impl Drop for Arenas {
    fn drop(&mut self) {
        for memory in self.extents.drain(..).flatten() {
            self.driver.free_host(memory);
        }
        self.driver.free(self.base);
    }
}

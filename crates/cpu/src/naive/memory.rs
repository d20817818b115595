//! The bytes of a plan: each row of its memory map a vector, and each block of the cache a range in one of them.

use std::ops::Range;

use tailrace_device::kv::{Home, Transfer};
use tailrace_device::plan::{CachePlace, LayerCache, Plan, RowKind};
use tailrace_device::{DeviceError, Traffic};
use tailrace_types::{ExtentId, FrameId, SlotId};

/// Every bit set is a NaN in each type of value and of cell.
pub(super) const NAN_BYTE: u8 = 0xff;

/// One vector of [`Memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arena {
    /// Core frames.
    Frames,
    /// Rings of the sliding layers.
    Sliding,
    /// Buffers of the body, and overlay frames.
    Workspace,
    /// Buffers of the head.
    Head,
    /// An extent of the tail.
    Extent(u32),
}

/// Bytes of an arena.
pub(super) type Part = (Arena, Range<usize>);

/// Everything that the executor holds but the weights.
#[derive(Debug)]
pub(super) struct Memory {
    frames: Vec<u8>,
    sliding: Vec<u8>,
    workspace: Vec<u8>,
    head: Vec<u8>,
    extents: Vec<Option<Vec<u8>>>,
    extents_most: usize,
}

/// Zeros, or the system's refusal.
fn zeros(bytes: u64, what: &'static str) -> Result<Vec<u8>, DeviceError> {
    let mut zeros = Vec::new();
    let refused = DeviceError::OutOfMemory { what, bytes };
    let bytes = usize::try_from(bytes).map_err(|_| refused.clone())?;
    zeros.try_reserve_exact(bytes).map_err(|_| refused)?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

impl Memory {
    pub(super) fn new(plan: &Plan) -> Result<Self, DeviceError> {
        let map = &plan.memory;
        let row = |kind: RowKind| zeros(map.bytes(kind), kind.name());
        Ok(Memory {
            frames: zeros(map.bytes(RowKind::Window) + map.bytes(RowKind::Landing), "cache frames")?,
            sliding: row(RowKind::Sliding)?,
            workspace: row(RowKind::Workspace)?,
            head: row(RowKind::Head)?,
            extents: vec![None; plan.cache.extents_max as usize],
            extents_most: 0,
        })
    }

    /// Extents that were there at once, at most.
    pub(super) fn extents_most(&self) -> usize {
        self.extents_most
    }

    pub(super) fn bytes(&self, (arena, range): Part) -> Result<&[u8], DeviceError> {
        let arena = match arena {
            Arena::Frames => Some(&self.frames),
            Arena::Sliding => Some(&self.sliding),
            Arena::Workspace => Some(&self.workspace),
            Arena::Head => Some(&self.head),
            Arena::Extent(extent) => self.extents.get(extent as usize).and_then(Option::as_ref),
        };
        arena.and_then(|arena| arena.get(range)).ok_or(DeviceError::Misuse("bytes that do not exist are read"))
    }

    pub(super) fn bytes_mut(&mut self, (arena, range): Part) -> Result<&mut [u8], DeviceError> {
        let arena = match arena {
            Arena::Frames => Some(&mut self.frames),
            Arena::Sliding => Some(&mut self.sliding),
            Arena::Workspace => Some(&mut self.workspace),
            Arena::Head => Some(&mut self.head),
            Arena::Extent(extent) => self.extents.get_mut(extent as usize).and_then(Option::as_mut),
        };
        arena.and_then(|arena| arena.get_mut(range)).ok_or(DeviceError::Misuse("bytes that do not exist are written"))
    }

    /// Makes `transfers`, in order.
    pub(super) fn transfer(
        &mut self,
        plan: &Plan,
        transfers: &[Transfer],
        poison: bool,
        traffic: &mut Traffic,
    ) -> Result<(), DeviceError> {
        let frame_bytes = plan.cache.frame_bytes;
        for &transfer in transfers {
            match transfer {
                Transfer::Grow { extent } => self.grow(plan, extent)?,
                Transfer::Shrink { extent } => self.shrink(extent)?,
                Transfer::Clean { from, to } => {
                    self.copy(plan, Home::Frame(from), Home::Host(to))?;
                    traffic.tail_written_bytes += frame_bytes;
                }
                Transfer::Fetch { from, to } => {
                    self.copy(plan, Home::Host(from), Home::Frame(to))?;
                    traffic.tail_fetched_bytes += frame_bytes;
                }
                Transfer::Copy { from, to } => self.copy(plan, Home::Frame(from), Home::Frame(to))?,
                // Cells that no row sees are never read, so a fresh frame needs no zeros either.
                Transfer::Drop { frame } | Transfer::Fresh { frame } if poison => self.poison(plan, frame)?,
                Transfer::Drop { .. } | Transfer::Fresh { .. } => {}
                Transfer::CopyRing { from, to } => self.copy_ring(plan, from, to)?,
            }
        }
        Ok(())
    }

    fn grow(&mut self, plan: &Plan, extent: ExtentId) -> Result<(), DeviceError> {
        let bytes = u64::from(plan.cache.extent_blocks) * plan.cache.frame_bytes;
        let place = self.extents.get_mut(extent.0 as usize).ok_or(DeviceError::Misuse("an extent past the limit"))?;
        *place = Some(zeros(bytes, "the tail")?);
        self.extents_most = self.extents_most.max(self.extents.iter().flatten().count());
        Ok(())
    }

    fn shrink(&mut self, extent: ExtentId) -> Result<(), DeviceError> {
        let place = self.extents.get_mut(extent.0 as usize).and_then(Option::take);
        place.map(drop).ok_or(DeviceError::Misuse("an extent that is not there was given back"))
    }

    fn copy(&mut self, plan: &Plan, from: Home, to: Home) -> Result<(), DeviceError> {
        for (_, layer) in plan.cache.global_layers() {
            let block = self.bytes(home_block(plan, layer, from)?)?.to_vec();
            self.bytes_mut(home_block(plan, layer, to)?)?.copy_from_slice(&block);
        }
        Ok(())
    }

    fn copy_ring(&mut self, plan: &Plan, from: SlotId, to: SlotId) -> Result<(), DeviceError> {
        let blocks = plan.cache.sliding.map_or(0, |ring| ring.ring_blocks);
        for layer in plan.cache.layers.iter().filter(|layer| matches!(layer.place, CachePlace::Rings { .. })) {
            for number in 0..blocks {
                let block = self.bytes(ring_block(plan, layer, from, number)?)?.to_vec();
                self.bytes_mut(ring_block(plan, layer, to, number)?)?.copy_from_slice(&block);
            }
        }
        Ok(())
    }

    fn poison(&mut self, plan: &Plan, frame: FrameId) -> Result<(), DeviceError> {
        for (_, layer) in plan.cache.global_layers() {
            self.bytes_mut(home_block(plan, layer, Home::Frame(frame))?)?.fill(NAN_BYTE);
        }
        Ok(())
    }
}

fn part(arena: Arena, start: u64, bytes: u64) -> Part {
    (arena, start as usize..(start + bytes) as usize)
}

/// A global layer's block: `[layer][frame]` in core frames, `[frame][layer]` over the workspace, `[layer][block]` in an
/// extent.
pub(super) fn home_block(plan: &Plan, layer: &LayerCache, home: Home) -> Result<Part, DeviceError> {
    let CachePlace::Frames { offset } = layer.place else {
        return Err(DeviceError::Misuse("a sliding layer is looked up in frames"));
    };
    let (cache, bytes) = (&plan.cache, layer.block_bytes);
    let (core, each) = (cache.core_frames(), cache.extent_blocks);
    Ok(match home {
        Home::Frame(frame) if frame.0 < core => {
            part(Arena::Frames, u64::from(core) * offset + u64::from(frame.0) * bytes, bytes)
        }
        Home::Frame(frame) => {
            let first = cache.overlay_offset + u64::from(frame.0 - core) * cache.frame_bytes;
            part(Arena::Workspace, first + offset, bytes)
        }
        Home::Host(block) => {
            let start = u64::from(each) * offset + u64::from(block.0 % each) * bytes;
            part(Arena::Extent(block.0 / each), start, bytes)
        }
    })
}

/// A sliding layer's block in the ring of a slot.
pub(super) fn ring_block(plan: &Plan, layer: &LayerCache, slot: SlotId, block: u32) -> Result<Part, DeviceError> {
    let (CachePlace::Rings { offset }, Some(ring)) = (layer.place, plan.cache.sliding) else {
        return Err(DeviceError::Misuse("a global layer is looked up in a ring"));
    };
    let blocks = u64::from(ring.ring_blocks) * u64::from(plan.limits.sequences);
    let at = u64::from(slot.0) * u64::from(ring.ring_blocks) + u64::from(block % ring.ring_blocks);
    Ok(part(Arena::Sliding, blocks * offset + at * layer.block_bytes, layer.block_bytes))
}

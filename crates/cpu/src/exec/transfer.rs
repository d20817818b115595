//! Transfers: the movements of whole blocks that a step plan asks for.

use tailrace_device::kv::{Home, Transfer};
use tailrace_device::plan::{CachePlace, LayerCache, Plan};
use tailrace_device::{DeviceError, Traffic};
use tailrace_types::{FrameId, SlotId};

use super::memory::Memory;

/// Makes `transfers`, in order. If the system refuses memory for a `Grow`, what grew before it is given back and what was to
/// shrink still does.
pub(super) fn run(
    memory: &mut Memory,
    plan: &Plan,
    transfers: &[Transfer],
    poison: bool,
    traffic: &mut Traffic,
) -> Result<(), DeviceError> {
    for (i, &transfer) in transfers.iter().enumerate() {
        match transfer {
            Transfer::Grow { extent } => {
                if let Err(refusal) = memory.grow(plan, extent) {
                    undo_growth(memory, transfers.split_at(i))?;
                    return Err(refusal);
                }
            }
            Transfer::Shrink { extent } => memory.shrink(extent)?,
            Transfer::Clean { from, to } => {
                copy(memory, plan, Home::Frame(from), Home::Host(to))?;
                memory.note_host_block(to);
                traffic.tail_written_bytes += plan.cache.frame_bytes;
            }
            Transfer::Fetch { from, to } => {
                copy(memory, plan, Home::Host(from), Home::Frame(to))?;
                traffic.tail_fetched_bytes += plan.cache.frame_bytes;
            }
            Transfer::Copy { from, to } => copy(memory, plan, Home::Frame(from), Home::Frame(to))?,
            Transfer::Drop { frame } => {
                if poison {
                    poison_frame(memory, plan, frame);
                }
            }
            Transfer::Fresh { frame } => zero_values(memory, plan, frame),
            Transfer::CopyRing { from, to } => copy_ring(memory, plan, from, to),
        }
    }
    Ok(())
}

fn undo_growth(memory: &mut Memory, (made, left): (&[Transfer], &[Transfer])) -> Result<(), DeviceError> {
    for transfer in made {
        if let Transfer::Grow { extent } = *transfer {
            memory.shrink(extent)?;
        }
    }
    for transfer in left {
        if let Transfer::Shrink { extent } = *transfer {
            memory.shrink(extent)?;
        }
    }
    Ok(())
}

fn copy(memory: &Memory, plan: &Plan, from: Home, to: Home) -> Result<(), DeviceError> {
    for (_, layer) in plan.cache.global_layers() {
        let from = memory.home_block(plan, layer, from)?;
        let to = memory.home_block(plan, layer, to)?;
        // SAFETY: both are whole blocks of this layer in live arenas; distinct homes do not overlap, and `&mut Memory`
        // in `run` keeps workers away.
        unsafe { std::ptr::copy_nonoverlapping(from, to, layer.block_bytes as usize) };
    }
    Ok(())
}

/// A frame handed out for appends has its V zeroed: a product of weight 0 with garbage could be NaN.
fn zero_values(memory: &Memory, plan: &Plan, frame: FrameId) {
    for (i, layer) in plan.cache.global_layers() {
        let shape = &plan.layers[i].shape;
        let k_bytes = shape.kv_heads as u64 * shape.k_head_bytes();
        let block = memory.frame_block(plan, layer, frame);
        // SAFETY: V is the rest of the block after K; `&mut Memory` in `run` keeps workers away.
        unsafe { block.add(k_bytes as usize).write_bytes(0, (layer.block_bytes - k_bytes) as usize) };
    }
}

fn poison_frame(memory: &Memory, plan: &Plan, frame: FrameId) {
    for (_, layer) in plan.cache.global_layers() {
        // SAFETY: a whole block; `&mut Memory` in `run` keeps workers away.
        unsafe { poison_block(memory.frame_block(plan, layer, frame), layer) };
    }
}

/// Fills a block with NaN, whatever its types: all ones is one in each of them.
///
/// # Safety
/// `block` is a block of `layer` that nobody else uses.
pub(super) unsafe fn poison_block(block: *mut u8, layer: &LayerCache) {
    // SAFETY: the caller's contract.
    unsafe { block.write_bytes(0xff, layer.block_bytes as usize) };
}

fn copy_ring(memory: &Memory, plan: &Plan, from: SlotId, to: SlotId) {
    let Some(ring) = plan.cache.sliding else { return };
    for layer in plan.cache.layers.iter().filter(|l| matches!(l.place, CachePlace::Rings { .. })) {
        for block in 0..ring.ring_blocks {
            let source = memory.ring_block(plan, layer, from, block);
            let target = memory.ring_block(plan, layer, to, block);
            // SAFETY: rings of different slots do not overlap; `&mut Memory` in `run` keeps workers away.
            unsafe { std::ptr::copy_nonoverlapping(source, target, layer.block_bytes as usize) };
        }
    }
}

//! How much of a sequence is in the tail, and which window makes it so much.
//!
//! The answer comes from the cache itself: it is a state machine without memory, so a sequence of any depth is stepped through in
//! no time, with landing frames, overlay and cleaner as they are.

use tailrace_device::kv::{Append, KvCache, KvConfig, KvError, Phase, StepPlan};
use tailrace_plan::{DeviceSizes, Limits, ModelSpec, Plan};
use tailrace_types::{BLOCK_CELLS, SlotId};

use crate::Error;

/// Blocks in the tail of a sequence of `depth` cells that a step of `phase` is measured behind.
///
/// # Errors
///
/// The cache has no room for the depth, or for the step behind it.
pub fn tail_blocks(plan: &Plan, depth: u32, phase: Phase) -> Result<u32, KvError> {
    let mut cache = KvCache::new(KvConfig::of(plan))?;
    let (slot, chunk) = (SlotId(0), plan.limits.chunk);
    cache.create(slot)?;
    let mut step = StepPlan::with_capacity(cache.config());
    let mut append = |cache: &mut KvCache, cells: u32, phase: Phase| -> Result<(), KvError> {
        let appends = [Append { slot, cells }];
        while let Err(error) = cache.begin(&appends, phase, &mut step) {
            if error != KvError::NotClean {
                return Err(error);
            }
            // As the engine does: a step that only copies to the host.
            cache.begin(&[], phase, &mut step)?;
            if step.after.is_empty() {
                return Err(error);
            }
            cache.commit()?;
        }
        cache.commit()
    };
    let mut cells = 0;
    while cells < depth {
        let rows = (chunk - cells % chunk).min(depth - cells);
        append(&mut cache, rows, Phase::Prefill)?;
        cells += rows;
    }
    match phase {
        Phase::Prefill => append(&mut cache, chunk, Phase::Prefill)?,
        Phase::Decode => {
            append(&mut cache, 1, Phase::Prefill)?;
            append(&mut cache, 1, Phase::Decode)?;
        }
    }
    Ok(cache.tail_and_window(slot).map_or(0, |(tail, _)| tail))
}

/// Cells of the window with which the occupied tail at `depth` comes nearest to `tail_bytes`. Whether it fits under a cap is not
/// asked.
///
/// # Errors
///
/// The limits have no plan with any window, or the context no room for the depth.
pub fn window_for_tail(
    spec: &ModelSpec,
    limits: &Limits,
    device: &dyn DeviceSizes,
    (depth, phase): (u32, Phase),
    tail_bytes: u64,
) -> Result<u32, Error> {
    let at = |blocks: u32| -> Result<u64, Error> {
        let limits = Limits { window_cells: Some(blocks * BLOCK_CELLS), device_bytes_max: None, ..limits.clone() };
        let plan = Plan::new(spec, &limits, device)?;
        Ok(u64::from(tail_blocks(&plan, depth, phase)?) * plan.cache.frame_bytes)
    };
    // The tail shrinks as the window grows: the first window whose tail is no longer than asked, or the one before it.
    let (mut low, mut high) = (1, limits.sequence_cells().div_ceil(BLOCK_CELLS).max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        if at(middle)? <= tail_bytes { high = middle } else { low = middle + 1 }
    }
    let distance = |blocks: u32| at(blocks).map(|tail| tail.abs_diff(tail_bytes));
    let nearest = if low > 1 && distance(low - 1)? < distance(low)? { low - 1 } else { low };
    Ok(nearest * BLOCK_CELLS)
}

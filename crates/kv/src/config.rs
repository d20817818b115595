//! Sizes of the cache: plain integers that the plan has decided.

use tailrace_plan::{Plan, SlidingPlan};
use tailrace_types::BLOCK_CELLS;

use crate::KvError;

/// Sizes of the cache. All tables are allocated from them once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Sequences: slots are `0 .. slots`.
    pub slots: u32,
    /// Cells that one sequence may have.
    pub context_cells: u32,
    /// Frames that appends may go to, landing frames included: ids `0 .. core_frames`.
    pub core_frames: u32,
    /// Frames over the prefill workspace: ids `core_frames .. core_frames + overlay_frames`.
    pub overlay_frames: u32,
    /// Core frames that the cleaner keeps free or clean for the next step: `ceil(chunk / 256) + slots`. With so many, no
    /// step of up to one chunk (or one cell per sequence) ever finds too few.
    pub landing_frames: u32,
    /// Blocks in one extent of host memory (`E`).
    pub extent_blocks: u32,
    /// Extents that the host memory limit allows.
    pub extents_max: u32,
    /// Whether full blocks are copied to the host. `false` where all contexts fit into core frames: then nothing is
    /// kept on the host.
    pub spills: bool,
    /// The rings of sliding-window layers, if the model has such layers.
    pub sliding: Option<Sliding>,
    /// A rollback of up to so many cells is always possible, sliding layers or not.
    pub rollback_max: u32,
}

/// Sliding-window layers: each sequence has a resident ring; block `b` lies at place `b % ring_blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// Cells that a row sees: itself and the `window - 1` before it. The largest of all such layers.
    pub window: u32,
    /// Blocks of the ring: `ceil((window + chunk + rollback_max) / 256)`.
    pub ring_blocks: u32,
}

impl Sliding {
    /// Whether the ring has a place for every cell of a context.
    pub(crate) fn never_wraps(&self, context_cells: u32) -> bool {
        self.ring_cells() >= u64::from(context_cells)
    }

    /// Cells of the ring.
    pub(crate) fn ring_cells(&self) -> u64 {
        u64::from(self.ring_blocks) * u64::from(BLOCK_CELLS)
    }
}

impl KvConfig {
    /// The sizes that a plan has decided.
    pub fn of(plan: &Plan) -> Self {
        let (limits, cache) = (&plan.limits, &plan.cache);
        // Without a layer of global reach there are no frames; blocks are still counted, which costs nothing.
        let core_frames = match cache.frame_bytes {
            0 => cache.sequence_blocks * limits.sequences,
            _ => cache.core_frames(),
        };
        let sliding = |s: SlidingPlan| Sliding { window: s.window_cells, ring_blocks: s.ring_blocks };
        KvConfig {
            slots: limits.sequences,
            context_cells: cache.sequence_cells,
            core_frames,
            overlay_frames: cache.overlay_frames,
            landing_frames: cache.landing_frames,
            extent_blocks: cache.extent_blocks,
            extents_max: cache.extents_max,
            spills: cache.spills,
            sliding: cache.sliding.map(sliding),
            rollback_max: limits.rollback_cells,
        }
    }

    /// Blocks of one full context.
    pub fn context_blocks(&self) -> u32 {
        self.context_cells.div_ceil(BLOCK_CELLS)
    }

    /// Blocks that all sequences together can have.
    pub(crate) fn blocks_max(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.context_blocks())
    }

    /// Blocks that the host memory limit allows.
    pub(crate) fn host_blocks_max(&self) -> u64 {
        u64::from(self.extents_max) * u64::from(self.extent_blocks)
    }

    /// Refuses sizes that no run can work with.
    pub(crate) fn validate(&self) -> Result<(), KvError> {
        let fits = |n: u64| n < u64::from(u32::MAX);
        // A ring that holds a whole context never wraps, whatever its window.
        let ring_holds = |s: &Sliding| {
            let wraps_well = s.ring_cells() >= u64::from(s.window) + u64::from(self.rollback_max);
            s.window > 0 && (wraps_well || s.never_wraps(self.context_cells))
        };
        let rules = [
            (self.slots > 0, "no slots"),
            (self.context_cells > 0, "a context of no cells"),
            (self.extent_blocks > 0, "an extent of no blocks"),
            (!self.spills || self.landing_frames > self.slots, "landing frames must exceed slots"),
            (!self.spills || self.core_frames >= self.landing_frames, "fewer core frames than landing frames"),
            (fits(u64::from(self.core_frames) + u64::from(self.overlay_frames)), "too many frames"),
            (fits(self.blocks_max()), "too many blocks"),
            (fits(self.host_blocks_max()), "too many host blocks"),
            (self.sliding.as_ref().is_none_or(ring_holds), "a ring smaller than its window and rollback_max"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, reason)) => Err(KvError::Config { reason }),
            None => Ok(()),
        }
    }
}

//! Placing a lowered model under its limits: how many blocks stay on the device.

use tailrace_types::BLOCK_CELLS;

use crate::arena::round_up;
use crate::limits::Limits;
use crate::lower::{Layer, Lowered};
use crate::memory::{MemoryMap, PAGE, RowKind};
use crate::spec::Reach;
use crate::{DeviceSizes, PlanError};

/// Least bytes of one layer in an extent: below it, copies over a link lose rate to their fixed cost.
const EXTENT_LAYER_BYTES: u64 = 4 << 20;

/// A ring that grew takes no more than this part of the window that was fitted beside it.
const RING_WINDOW_PART: u64 = 4;

/// Where a layer's cells live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePlace {
    /// In frames: `core` is the layer's place among the core frames (times their number), `overlay` inside one frame.
    Frames {
        /// Bytes of this layer's predecessors in one frame.
        offset: u64,
    },
    /// In the rings of the sliding layers: bytes of this layer's predecessors in one ring block.
    Rings {
        /// Bytes of this layer's predecessors in one ring block.
        offset: u64,
    },
}

/// The cache of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerCache {
    /// Bytes of one block: `[K: kv_head x 256 x dk][V: kv_head x 256 x dv]`.
    pub block_bytes: u64,
    /// Where its blocks are.
    pub place: CachePlace,
}

/// The rings of the sliding-window layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingPlan {
    /// The widest window, in cells.
    pub window_cells: u32,
    /// Blocks of one sequence's ring.
    pub ring_blocks: u32,
    /// Bytes of one ring block, all sliding layers.
    pub block_bytes: u64,
}

/// How the cache is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// Cells of one sequence at most.
    pub sequence_cells: u32,
    /// Blocks of one sequence at most.
    pub sequence_blocks: u32,
    /// Whether blocks can ever be in the tail.
    pub spills: bool,
    /// Frames of older, full blocks; where nothing spills, all frames.
    pub window_frames: u32,
    /// Frames that new cells land in; none where nothing spills.
    pub landing_frames: u32,
    /// Frames over the prefill workspace, during decode.
    pub overlay_frames: u32,
    /// Bytes of one block, all layers of global reach.
    pub frame_bytes: u64,
    /// Place of overlay frame 0 in the workspace, in bytes.
    pub overlay_offset: u64,
    /// Consecutive blocks of an extent of host memory.
    pub extent_blocks: u32,
    /// Extents that the host limit allows.
    pub extents_max: u32,
    /// Rings of the sliding layers.
    pub sliding: Option<SlidingPlan>,
    /// Slots that tail blocks are staged in, and their size in bytes.
    pub ring_slots: u32,
    /// Bytes of one slot: one block of the largest layer.
    pub slot_bytes: u64,
    /// One entry for each layer.
    pub layers: Vec<LayerCache>,
}

impl CachePlan {
    /// The layers of global reach, whose cells are in frames, with their numbers.
    pub fn global_layers(&self) -> impl Iterator<Item = (usize, &LayerCache)> {
        self.layers.iter().enumerate().filter(|(_, layer)| matches!(layer.place, CachePlace::Frames { .. }))
    }

    /// Frames that appends may use.
    pub fn core_frames(&self) -> u32 {
        self.window_frames + self.landing_frames
    }
}

/// What the cache needs before its window is chosen.
struct Needs {
    layers: Vec<LayerCache>,
    frame_bytes: u64,
    slot_bytes: u64,
    /// Slots of the ring at least and at most.
    ring_slots: (u32, u32),
    sliding: Option<SlidingPlan>,
    sequence_blocks: u32,
    blocks: u32,
    landing: u32,
}

impl Needs {
    /// Whether that many frames beside the landing frames are enough for every block.
    fn covered_by(&self, frames: u32) -> bool {
        // Without layers of global reach there are no frames, and nothing to spill.
        self.frame_bytes == 0 || frames.saturating_add(self.landing) >= self.blocks
    }

    /// A window of `frames` with a ring for one layer's tail, but of no more than `slots` slots.
    ///
    /// One more frame leaves one block fewer in the tail, and a frame takes more bytes than a slot. So bytes grow with the window,
    /// although the ring shrinks.
    fn window(&self, frames: u32, slots: u64) -> Window {
        let (least, most) = self.ring_slots;
        let tail = self.blocks - self.landing - frames;
        let ring = slots.min(most.min(tail).into()) as u32;
        Window::Frames { frames, ring: ring.max(least) }
    }

    /// The same, where the ring takes of what could be the window.
    fn fitted_window(&self, frames: u32) -> Window {
        self.window(frames, u64::from(frames) * self.frame_bytes / RING_WINDOW_PART / self.slot_bytes)
    }
}

/// Chooses the window; the memory map and the cache's division follow from it.
pub(crate) fn fit(
    lowered: &Lowered,
    limits: &Limits,
    device: &dyn DeviceSizes,
) -> Result<(CachePlan, MemoryMap), PlanError> {
    let needs = needs(lowered, limits, device);
    let window = match (limits.window_cells, limits.device_bytes_max) {
        (Some(cells), _) => asked_window(lowered, limits, device, &needs, cells),
        (None, None) => Window::Resident,
        (None, Some(cap)) => largest_window(lowered, limits, device, &needs, cap),
    };
    let (cache, map) = divide(lowered, limits, device, &needs, window);
    let needed = map.device_bytes();
    match limits.device_bytes_max {
        Some(cap) if needed > cap => Err(PlanError::DoesNotFit { cap, needed, map: Box::new(map), hints: Vec::new() }),
        _ => Ok((cache, map)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    /// Every block has a frame.
    Resident,
    /// Some.
    Frames {
        /// How many, beside the landing frames.
        frames: u32,
        /// Slots of the ring.
        ring: u32,
    },
}

/// The window that was asked for; the ring is as large as the cap lets it be.
fn asked_window(lowered: &Lowered, limits: &Limits, device: &dyn DeviceSizes, needs: &Needs, cells: u32) -> Window {
    let frames = cells.div_ceil(BLOCK_CELLS).max(1);
    if needs.covered_by(frames) {
        return Window::Resident;
    }
    let Some(cap) = limits.device_bytes_max else { return needs.window(frames, u64::MAX) };
    let without = divide(lowered, limits, device, needs, Window::Frames { frames, ring: 0 }).1.device_bytes();
    // The ring's row is whole pages.
    let free = cap.saturating_sub(without) / PAGE * PAGE;
    needs.window(frames, free / needs.slot_bytes)
}

/// The largest window under `cap`; where none fits, the one that takes the fewest bytes.
fn largest_window(lowered: &Lowered, limits: &Limits, device: &dyn DeviceSizes, needs: &Needs, cap: u64) -> Window {
    let bytes = |window| divide(lowered, limits, device, needs, window).1.device_bytes();
    let resident = bytes(Window::Resident);
    if resident <= cap || needs.covered_by(1) {
        return Window::Resident;
    }
    let least = needs.fitted_window(1);
    let smallest = bytes(least);
    if smallest > cap {
        // The ring comes with spilling, so a small context can take less where it is resident.
        return if resident <= smallest { Window::Resident } else { least };
    }
    // Bytes grow with the window: the largest that fits lies between the least and the first that is resident.
    let (mut low, mut high) = (1, needs.blocks - needs.landing);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if bytes(needs.fitted_window(middle)) <= cap {
            low = middle;
        } else {
            high = middle;
        }
    }
    needs.fitted_window(low)
}

fn needs(lowered: &Lowered, limits: &Limits, device: &dyn DeviceSizes) -> Needs {
    let layers = &lowered.layers;
    let (mut frame_bytes, mut ring_block_bytes, mut slot_bytes, mut widest) = (0, 0, 0, None::<u32>);
    let mut caches = Vec::with_capacity(layers.len());
    for layer in layers {
        let block_bytes = layer.shape.block_bytes();
        let place = match layer.reach {
            Reach::Global => {
                let offset = frame_bytes;
                frame_bytes += block_bytes;
                slot_bytes = slot_bytes.max(block_bytes);
                CachePlace::Frames { offset }
            }
            Reach::Sliding(cells) => {
                let offset = ring_block_bytes;
                ring_block_bytes += block_bytes;
                widest = Some(widest.map_or(cells, |w| w.max(cells)));
                CachePlace::Rings { offset }
            }
        };
        caches.push(LayerCache { block_bytes, place });
    }
    let sequence_blocks = limits.sequence_cells().div_ceil(BLOCK_CELLS);
    let sliding = widest.map(|window_cells| {
        // A ring never needs more than the whole sequence.
        let cells = window_cells.saturating_add(limits.chunk).saturating_add(limits.rollback_cells);
        let ring_blocks = cells.div_ceil(BLOCK_CELLS).min(sequence_blocks);
        SlidingPlan { window_cells, ring_blocks, block_bytes: ring_block_bytes }
    });
    let blocks = sequence_blocks * limits.sequences;
    let landing = limits.chunk.div_ceil(BLOCK_CELLS) + limits.sequences;
    let ring_least = device.ring_slots(slot_bytes, lowered.weight_bytes);
    // While sliding layers run, the link can only go on if the ring has room for what the next global layer reads. Where a frame
    // has one layer, its tail might as well be in the window; and slots are whole pages, so that no row's rounding breaks the
    // growth of bytes with the window.
    let grows = sliding.is_some() && frame_bytes > slot_bytes && slot_bytes.is_multiple_of(PAGE);
    let ring_most = if grows { device.ring_slots_max(slot_bytes, lowered.weight_bytes) } else { ring_least };
    Needs {
        layers: caches,
        frame_bytes,
        slot_bytes,
        ring_slots: (ring_least, ring_most),
        sliding,
        sequence_blocks,
        blocks,
        landing,
    }
}

/// The memory map and the cache's division with that window.
fn divide(
    lowered: &Lowered,
    limits: &Limits,
    device: &dyn DeviceSizes,
    needs: &Needs,
    window: Window,
) -> (CachePlan, MemoryMap) {
    let frame_bytes = needs.frame_bytes;
    let (spills, window_frames, landing_frames, ring_slots) = match window {
        Window::Resident if frame_bytes == 0 => (false, 0, 0, 0),
        Window::Resident => (false, needs.blocks, 0, 0),
        Window::Frames { frames, ring } => (true, frames, needs.landing, ring),
    };
    let workspace = lowered.prefill.bytes.max(lowered.decode.bytes);
    let overlay_offset = round_up(lowered.decode.bytes, PAGE);
    let overlay_frames = match spills {
        true => {
            let free = workspace.saturating_sub(overlay_offset) / frame_bytes;
            // No more frames than blocks.
            free.min((needs.blocks - window_frames - landing_frames) as u64) as u32
        }
        false => 0,
    };
    let (extent_blocks, extents_max) = extents(needs, limits, spills);

    let mut map = MemoryMap::default();
    map.push(RowKind::Weights, 1, lowered.weight_bytes, "byte");
    map.push(RowKind::Window, window_frames as u64, frame_bytes, "frame");
    map.push(RowKind::Landing, landing_frames as u64, frame_bytes, "frame");
    if let Some(s) = needs.sliding {
        map.push(RowKind::Sliding, s.ring_blocks as u64 * limits.sequences as u64, s.block_bytes, "block");
    }
    map.push(RowKind::Ring, ring_slots as u64, needs.slot_bytes, "slot");
    map.push(RowKind::Workspace, 1, workspace, "byte");
    map.push(RowKind::Head, 1, lowered.head.bytes, "byte");
    let partials = |layer: &Layer| device.partials_bytes(&layer.shape, limits.sequences, needs.sequence_blocks);
    map.push(RowKind::Partials, 1, lowered.layers.iter().map(partials).max().unwrap_or(0), "byte");
    map.push(RowKind::Step, 1, device.step_bytes(limits, lowered.gathered_row_bytes), "byte");
    map.push(RowKind::Driver, 1, device.driver_bytes(), "byte");
    map.push(RowKind::Embedding, 1, lowered.host_weight_bytes, "byte");
    if spills {
        // Host copies of every full block: the window's clean blocks have theirs already.
        let extents = needs.sequence_blocks.div_ceil(extent_blocks) as u64 * limits.sequences as u64;
        map.push(RowKind::Tail, extents, extent_blocks as u64 * frame_bytes, "extent");
    }
    let cache = CachePlan {
        sequence_cells: limits.sequence_cells(),
        sequence_blocks: needs.sequence_blocks,
        spills,
        window_frames,
        landing_frames,
        overlay_frames,
        frame_bytes,
        overlay_offset,
        extent_blocks,
        extents_max,
        sliding: needs.sliding,
        ring_slots,
        slot_bytes: needs.slot_bytes,
        layers: needs.layers.clone(),
    };
    (cache, map)
}

/// Blocks of an extent and how many extents the host limit allows.
fn extents(needs: &Needs, limits: &Limits, spills: bool) -> (u32, u32) {
    if !spills {
        return (1, 0);
    }
    let least =
        needs.layers.iter().filter(|l| matches!(l.place, CachePlace::Frames { .. })).map(|l| l.block_bytes).min();
    let mut blocks = EXTENT_LAYER_BYTES.div_ceil(least.unwrap_or(1).max(1)).next_power_of_two();
    // An extent is no larger than a sequence, and a small host limit is still divided finely enough to share.
    let most = (limits.host_bytes_max / needs.frame_bytes / (4 * limits.sequences as u64)).max(1);
    blocks = blocks.min((needs.sequence_blocks as u64).next_power_of_two()).min(1 << most.ilog2());
    let extents_max = (limits.host_bytes_max / (blocks * needs.frame_bytes))
        .min((needs.sequence_blocks as u64).div_ceil(blocks) * limits.sequences as u64);
    (blocks as u32, extents_max as u32)
}

//! Attention of a submission's rows over the leaves of their sequences.
//!
//! A row folds its leaves in ascending position, tail first. How the work is split never changes a bit: a partial is
//! computed from scratch, and folds follow the order of leaves.
//!
//! - Prefill: work items are tiles of rows of one KV head, each carried over a run of leaves.
//! - Decode: work items are leaves; their partials are folded once all leaves of a batch are done.
//!
//! A leaf of the tail is copied into a slot of the staging ring and read there, as a device behind a link would do.

use std::ops::Range;
use std::sync::atomic::Ordering;

use tailrace_device::kv::{Home, Phase};
use tailrace_device::plan::spec::Reach;
use tailrace_device::plan::{AttentionShape, BufferId, CachePlace, Inputs, Layer, LayerCache, LayerId};
use tailrace_types::BLOCK_CELLS;

use super::memory::Rows;
use super::ops::Context;
use super::{LEAF_BATCH, View, transfer};
use crate::simd::attention::{self as kernels, HeadShape, Leaf, Queries};

/// Query rows, heads of a group counted, that a prefill work item carries over the leaves: K and V are unpacked once for them.
const TILE_ROWS: usize = 192;

/// Bytes of scratch of one worker.
pub(super) fn worker_scratch_bytes(shape: &AttentionShape) -> u64 {
    head_shape(shape, 1.0, None, Reach::Global).scratch_floats() as u64 * 4
}

/// f32 elements of one row's partials, all heads.
pub(super) fn partial_elements(shape: &AttentionShape) -> u64 {
    shape.heads as u64 * kernels::record_floats(shape.dv as usize) as u64
}

fn head_shape(shape: &AttentionShape, scale: f32, cap: Option<f32>, reach: Reach) -> HeadShape {
    HeadShape {
        group: shape.group() as usize,
        dk: shape.dk as usize,
        dv: shape.dv as usize,
        k_type: shape.k_type,
        v_type: shape.v_type,
        scale,
        cap,
        window: match reach {
            Reach::Global => None,
            Reach::Sliding(cells) => Some(cells),
        },
    }
}

/// The buffers of an attention op.
#[derive(Clone, Copy)]
pub(super) struct Buffers {
    pub(super) qkv: BufferId,
    pub(super) dst: Inputs,
    pub(super) carry: BufferId,
    pub(super) partials: Option<BufferId>,
    pub(super) scratch: BufferId,
}

/// One worker's part of an attention op; all workers call it.
pub(super) fn run(context: &Context<'_>, layer: LayerId, buffers: Buffers) {
    let plan = &context.machine.plan;
    let (layer, cache) = (&plan.layers[layer.0 as usize], &plan.cache.layers[layer.0 as usize]);
    let rows = |id| context.rows_of(id);
    let out = rows(buffers.dst.f32.expect("attention always has f32 output"));
    let op = Op {
        context,
        layer,
        cache,
        shape: head_shape(&layer.shape, layer.scale, layer.cap, layer.reach),
        qkv: rows(buffers.qkv),
        out,
        carry: rows(buffers.carry),
        partials: buffers.partials.map(rows),
        scratch: rows(buffers.scratch),
    };
    match context.step.phase {
        Phase::Prefill => op.prefill(&context.step.views[0]),
        Phase::Decode => op.decode(),
    }
    if let Some(q8) = buffers.dst.q8 {
        context.worker.barrier();
        context.quantize_rows(out, rows(q8));
    }
}

struct Op<'a> {
    context: &'a Context<'a>,
    layer: &'a Layer,
    cache: &'a LayerCache,
    shape: HeadShape,
    qkv: Rows,
    out: Rows,
    carry: Rows,
    partials: Option<Rows>,
    scratch: Rows,
}

impl Op<'_> {
    /// The leaves that rows at `positions` of a sequence can see.
    fn leaves(&self, positions: Range<u32>) -> Range<u32> {
        let first = match self.layer.reach {
            Reach::Global => 0,
            Reach::Sliding(cells) => (positions.start + 1).saturating_sub(cells) / BLOCK_CELLS,
        };
        first..(positions.end - 1) / BLOCK_CELLS + 1
    }

    /// Where a leaf's block is, if it can be read in place.
    fn resident(&self, view: &View, leaf: u32) -> Option<*mut u8> {
        let machine = self.context.machine;
        match self.cache.place {
            CachePlace::Rings { .. } => Some(machine.memory.ring_block(&machine.plan, self.cache, view.slot, leaf)),
            CachePlace::Frames { .. } => match self.home(view, leaf) {
                Home::Frame(frame) => Some(machine.memory.frame_block(&machine.plan, self.cache, frame)),
                Home::Host(_) => None,
            },
        }
    }

    fn home(&self, view: &View, leaf: u32) -> Home {
        self.context.step.homes[view.homes.clone()][leaf as usize]
    }

    /// Copies a leaf from the tail into a slot of the ring, and counts its bytes.
    fn stage(&self, home: Home, slot: usize) -> *mut u8 {
        let machine = self.context.machine;
        let bytes = self.cache.block_bytes;
        let from =
            machine.memory.home_block(&machine.plan, self.cache, home).expect("the step plan names live extents");
        let to = machine.memory.ring_slot(&machine.plan, slot);
        // SAFETY: both are whole blocks; the slot belongs to this worker until the next barrier or its next stage.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) };
        machine.tail_read.fetch_add(bytes, Ordering::Relaxed);
        to
    }

    /// Fills consumed slots with NaN where the machine was loaded so.
    fn consumed(&self, slot: usize) {
        let machine = self.context.machine;
        if machine.poison {
            // SAFETY: whoever staged the slot calls this after its last use.
            unsafe { transfer::poison_block(machine.memory.ring_slot(&machine.plan, slot), self.cache) };
        }
    }

    /// One KV head of a block.
    fn leaf<'b>(&self, block: *const u8, leaf: u32, kv_head: usize) -> Leaf<'b> {
        let shape = &self.layer.shape;
        let (k, v) = (shape.k_head_bytes() as usize, shape.v_head_bytes() as usize);
        let v_start = shape.kv_heads as usize * k;
        // SAFETY: a block is `[K: kv_head x 256 x dk][V: kv_head x 256 x dv]`, and nobody writes cells during attention.
        let part = |offset, bytes| unsafe { std::slice::from_raw_parts(block.add(offset), bytes) };
        Leaf { first: leaf * BLOCK_CELLS, k: part(kv_head * k, k), v: part(v_start + kv_head * v, v) }
    }

    /// The queries of one KV head's group in `rows`.
    fn queries<'b>(&self, rows: Range<usize>, positions: &'b [u32], kv_head: usize) -> Queries<'b> {
        let stride = self.qkv.row_bytes / 4;
        let first = self.qkv.at(rows.start).cast::<f32>();
        let skip = kv_head * self.shape.group * self.shape.dk;
        let floats = (rows.len() - 1) * stride + self.shape.group * self.shape.dk;
        // SAFETY: from this head's first query to its last all lies in the buffer, and nobody writes it during attention.
        let q = unsafe { std::slice::from_raw_parts(first.add(skip), floats) };
        Queries { q, stride, positions }
    }

    /// This worker's scratch.
    #[allow(clippy::mut_from_ref)]
    fn scratch(&self) -> &mut [f32] {
        let floats = self.shape.scratch_floats();
        let base = self.scratch.at(0).cast::<f32>();
        // SAFETY: the plan gave every worker its own part, and a worker makes one slice at a time.
        unsafe { std::slice::from_raw_parts_mut(base.add(self.context.worker.index() * floats), floats) }
    }

    /// Records `range` of the carry, which is `[kv_head][row][group]` in prefill and `[row][head]` in decode.
    #[allow(clippy::mut_from_ref)]
    fn records(&self, range: Range<usize>) -> &mut [f32] {
        let record = self.shape.record_floats();
        let base = self.carry.at(0).cast::<f32>();
        // SAFETY: the carry has a record for each row and head; work items take disjoint ranges between barriers.
        unsafe { std::slice::from_raw_parts_mut(base.add(range.start * record), range.len() * record) }
    }

    fn prefill(&self, view: &View) {
        let leaves = self.leaves(view.first_position..view.first_position + view.rows as u32);
        let (slots, worker) = (self.context.machine.plan.cache.ring_slots as usize, &self.context.worker);
        let tail_end = leaves.clone().find(|&leaf| self.resident(view, leaf).is_some()).unwrap_or(leaves.end);
        let mut blocks = Blocks::default();
        let mut first = leaves.start;
        while first < tail_end {
            let run = first..(first + slots.min(blocks.0.len()) as u32).min(tail_end);
            while let Some(slot) = worker.claim(run.len()) {
                self.stage(self.home(view, run.start + slot as u32), slot);
            }
            worker.barrier();
            let machine = self.context.machine;
            for (slot, block) in blocks.0.iter_mut().enumerate().take(run.len()) {
                *block = machine.memory.ring_slot(&machine.plan, slot);
            }
            self.prefill_run(view, &run, &blocks, (first == leaves.start, run.end == leaves.end));
            worker.barrier();
            if machine.poison {
                while let Some(slot) = worker.claim(run.len()) {
                    self.consumed(slot);
                }
                worker.barrier();
            }
            first = run.end;
        }
        while first < leaves.end {
            let run = first..(first + blocks.0.len() as u32).min(leaves.end);
            for (block, leaf) in blocks.0.iter_mut().zip(run.clone()) {
                *block = self.resident(view, leaf).expect("the window follows the tail");
            }
            self.prefill_run(view, &run, &blocks, (first == leaves.start, run.end == leaves.end));
            first = run.end;
            if first < leaves.end {
                worker.barrier();
            }
        }
    }

    /// Carries every row over the leaves `run`; begins or ends the carry where the run does.
    fn prefill_run(&self, view: &View, run: &Range<u32>, blocks: &Blocks, (begins, ends): (bool, bool)) {
        let (group, kv_heads) = (self.shape.group, self.layer.shape.kv_heads as usize);
        let tile = (TILE_ROWS / group).max(1).min(view.rows.div_ceil(self.context.worker.count()));
        let tiles = view.rows.div_ceil(tile);
        while let Some(item) = self.context.worker.claim(tiles * kv_heads) {
            // The last rows see the most cells: they go first, so that the end of the op is not one long item.
            let (kv_head, t) = (item % kv_heads, tiles - 1 - item / kv_heads);
            let rows = t * tile..((t + 1) * tile).min(view.rows);
            let mut positions = [0; TILE_ROWS];
            for (position, row) in positions.iter_mut().zip(rows.clone()) {
                *position = view.first_position + row as u32;
            }
            let queries = self.queries(rows.clone(), &positions[..rows.len()], kv_head);
            let base = kv_head * view.rows * group;
            let carry = self.records(base + rows.start * group..base + rows.end * group);
            if begins {
                kernels::reset(self.shape.dv, carry);
            }
            let isa = self.context.machine.isa;
            for (&block, leaf) in blocks.0.iter().zip(run.clone()) {
                let leaf = self.leaf(block, leaf, kv_head);
                kernels::fold_leaf(isa, &self.shape, &queries, &leaf, carry, self.scratch());
            }
            if ends {
                self.finish(rows, kv_head, carry);
            }
        }
    }

    /// Writes the output of one KV head's group for `rows`.
    fn finish(&self, rows: Range<usize>, kv_head: usize, records: &[f32]) {
        let (dv, group) = (self.shape.dv, self.shape.group);
        let mut records = records.chunks_exact(self.shape.record_floats());
        for row in rows {
            let first = self.out.at(row).cast::<f32>();
            for u in 0..group {
                let at = (kv_head * group + u) * dv;
                // SAFETY: this head's part of the row belongs to this work item alone.
                let out = unsafe { std::slice::from_raw_parts_mut(first.add(at), dv) };
                kernels::finish(self.context.machine.isa, records.next().expect("a record a head"), None, out);
            }
        }
    }

    fn decode(&self) {
        let (step, worker) = (self.context.step, &self.context.worker);
        let leaves_of = |view: &View| self.leaves(view.first_position..view.first_position + 1);
        let ends = step.views.iter().map(|view| leaves_of(view).end).max().unwrap_or(0);
        let mut first = step.views.iter().map(|view| leaves_of(view).start).min().unwrap_or(0);
        let mut begins = true;
        while first < ends {
            let batch = first..(first + LEAF_BATCH).min(ends);
            self.decode_batch(&batch);
            worker.barrier();
            self.fold_batch(&batch, (begins, batch.end == ends));
            (first, begins) = (batch.end, false);
            if first < ends {
                worker.barrier();
            }
        }
    }

    /// Partials of every row over the leaves `batch`. Items are leaves in the tail, read once for all rows that share
    /// them, and (row, leaf, KV head) in the window.
    fn decode_batch(&self, batch: &Range<u32>) {
        let (rows, kv_heads) = (self.context.step.views.len(), self.layer.shape.kv_heads as usize);
        let has_tail = matches!(self.cache.place, CachePlace::Frames { .. }) && self.context.machine.plan.cache.spills;
        let tail_items = if has_tail { batch.len() } else { 0 };
        while let Some(item) = self.context.worker.claim(tail_items + batch.len() * rows * kv_heads) {
            let Some(item) = item.checked_sub(tail_items) else {
                self.tail_leaf(batch, item);
                continue;
            };
            let (kv_head, item) = (item % kv_heads, item / kv_heads);
            let (row, at) = (item % rows, item / rows);
            let (view, leaf) = (&self.context.step.views[row], batch.start + at as u32);
            if !self.leaves(view.first_position..view.first_position + 1).contains(&leaf) {
                continue;
            }
            if let Some(block) = self.resident(view, leaf) {
                self.partial(row, at, self.leaf(block, leaf, kv_head), kv_head);
            }
        }
    }

    /// One leaf number in the tail, for all rows that have it there.
    fn tail_leaf(&self, batch: &Range<u32>, at: usize) {
        let (views, leaf) = (&self.context.step.views, batch.start + at as u32);
        let tail = |view: &View| {
            let sees = self.leaves(view.first_position..view.first_position + 1).contains(&leaf);
            let home = sees.then(|| self.home(view, leaf));
            home.filter(|home| matches!(home, Home::Host(_)))
        };
        let slot = self.context.worker.index();
        for (row, view) in views.iter().enumerate() {
            let Some(home) = tail(view) else { continue };
            if views[..row].iter().any(|before| tail(before) == Some(home)) {
                continue;
            }
            let block = self.stage(home, slot);
            for (reader, _) in views.iter().enumerate().skip(row).filter(|(_, view)| tail(view) == Some(home)) {
                for kv_head in 0..self.layer.shape.kv_heads as usize {
                    self.partial(reader, at, self.leaf(block, leaf, kv_head), kv_head);
                }
            }
            self.consumed(slot);
        }
    }

    /// The record of one row's group over one leaf of a batch.
    fn partial(&self, row: usize, at: usize, leaf: Leaf<'_>, kv_head: usize) {
        let positions = [self.context.step.views[row].first_position];
        let queries = self.queries(row..row + 1, &positions, kv_head);
        let heads = self.layer.shape.heads as usize;
        let first = at * heads + kv_head * self.shape.group;
        let records = self.partials(row, first..first + self.shape.group);
        kernels::leaf_partials(self.context.machine.isa, &self.shape, &queries, &leaf, records, self.scratch());
    }

    /// Records `range` of a row's partials, which are `[leaf of the batch][head]`.
    #[allow(clippy::mut_from_ref)]
    fn partials(&self, row: usize, range: Range<usize>) -> &mut [f32] {
        let record = self.shape.record_floats();
        let base = self.partials.as_ref().expect("decode has partials").at(row).cast::<f32>();
        // SAFETY: a row of partials holds a record for each leaf of a batch and head; work items take disjoint ranges
        // between barriers.
        unsafe { std::slice::from_raw_parts_mut(base.add(range.start * record), range.len() * record) }
    }

    /// Folds a batch's partials in ascending order; begins or ends the carry where the batch does.
    fn fold_batch(&self, batch: &Range<u32>, (begins, ends): (bool, bool)) {
        let (views, group) = (&self.context.step.views, self.shape.group);
        let (kv_heads, heads) = (self.layer.shape.kv_heads as usize, self.layer.shape.heads as usize);
        while let Some(item) = self.context.worker.claim(views.len() * kv_heads) {
            let (row, kv_head) = (item / kv_heads, item % kv_heads);
            let carry = self.records(row * heads + kv_head * group..row * heads + (kv_head + 1) * group);
            if begins {
                kernels::reset(self.shape.dv, carry);
            }
            let position = views[row].first_position;
            let leaves = self.leaves(position..position + 1);
            for leaf in leaves.start.max(batch.start)..leaves.end.min(batch.end) {
                let first = (leaf - batch.start) as usize * heads + kv_head * group;
                let partials = self.partials(row, first..first + group);
                kernels::fold(self.context.machine.isa, self.shape.dv, carry, partials);
            }
            if ends {
                self.finish(row..row + 1, kv_head, carry);
            }
        }
    }
}

/// Addresses of the leaves of one run.
struct Blocks([*mut u8; LEAF_BATCH as usize]);

impl Default for Blocks {
    fn default() -> Self {
        Blocks([std::ptr::null_mut(); LEAF_BATCH as usize])
    }
}

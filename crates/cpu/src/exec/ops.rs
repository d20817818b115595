//! The ops of a plan on one worker of many: each claims rows, matrix groups or leaves, and meets the others at barriers.

use tailrace_device::Row;
use tailrace_device::plan::spec::Activation;
use tailrace_device::plan::{
    BufferId, CachePlace, Content, Gain, Inputs, LayerId, Op, Product, Program, WeightForm, WeightId,
};
use tailrace_device::synthetic;
use tailrace_types::{BLOCK_CELLS, ROW_GROUP};

use super::attention::{self, Buffers};
use super::memory::{Rows, weight};
use super::{Machine, Step};
use crate::pool::Worker;
use crate::simd::cells::store;
use crate::simd::elementwise as ew;
use crate::simd::matmul::{Columns, Epilogue, Weights, matmul_f32, matmul_q8};
use crate::simd::quantize::{Q8Rows, quantize_row};
use crate::simd::unpack::unpack_row;

/// Bytes of packed weights that are worth a claim, so that claims stay rare beside the work.
const CLAIM_BYTES: usize = 64 << 10;

/// Pieces of a matrix for each worker at most: uneven cores even out.
const CLAIMS_PER_WORKER: usize = 8;

/// Values that are made at a time when cells are filled; a multiple of every storage type's block.
const FILL_VALUES: usize = 64;

/// The two parts of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Key,
    Value,
}

/// Which arena a program's buffers are in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Workspace,
    Head,
}

/// What an op needs to know on one worker.
pub(super) struct Context<'a> {
    pub(super) machine: &'a Machine,
    pub(super) step: &'a Step,
    pub(super) worker: Worker<'a>,
    program: &'a Program,
    place: Place,
    rows: usize,
}

/// Runs the layers over the rows of `step`.
pub(super) fn run_body(machine: &Machine, program: &Program, step: &Step, worker: Worker<'_>) {
    let context = Context { machine, step, worker, program, place: Place::Workspace, rows: step.rows.len() };
    context.run();
}

/// Stores random cells for the rows of `step`, in place of computed ones.
pub(super) fn fill(machine: &Machine, program: &Program, step: &Step, seed: u64, worker: Worker<'_>) {
    let context = Context { machine, step, worker, program, place: Place::Workspace, rows: step.rows.len() };
    context.each_row(|row| context.fill_row(row, seed));
}

/// Runs the head over `rows` of the last submission.
pub(super) fn run_head(machine: &Machine, step: &Step, rows: &[u32], worker: Worker<'_>) {
    let context = Context { machine, step, worker, program: &machine.plan.head, place: Place::Head, rows: rows.len() };
    let stream = machine.memory.workspace(residual(super::program(&machine.plan, step.phase)));
    let gathered = context.rows_of(BufferId(0));
    context.each_row(|i| {
        // SAFETY: the row of the head's input belongs to this work item; the residual stream is only read.
        unsafe { gathered.f32_mut(i).copy_from_slice(stream.f32(rows[i] as usize)) };
    });
    context.worker.barrier();
    context.run();
}

/// The residual stream: what the embedding writes.
fn residual(program: &Program) -> &tailrace_device::plan::Buffer {
    let embed = program.ops.iter().find_map(|op| match op {
        Op::Embed { dst, .. } => Some(*dst),
        _ => None,
    });
    program.buffer(embed.expect("a body begins with an embedding"))
}

/// The logits that the head left, of `rows` rows.
pub(super) fn logits(machine: &Machine, rows: usize) -> &[f32] {
    let head = &machine.plan.head;
    let buffer = head.buffers.last().expect("a head has buffers");
    let first = machine.memory.head(buffer);
    if rows == 0 {
        return &[];
    }
    // SAFETY: rows are consecutive f32, written by the head that has ended.
    unsafe { std::slice::from_raw_parts(first.at(0).cast(), rows * first.cols) }
}

impl Context<'_> {
    fn run(&self) {
        for op in &self.program.ops {
            self.op(op);
            self.worker.barrier();
        }
    }

    fn op(&self, op: &Op) {
        match op {
            &Op::RopeTable { rope, dst } => {
                let mscale = self.machine.plan.ropes[rope.0 as usize].mscale;
                let frequencies = &self.machine.frequencies[rope.0 as usize];
                let dst = self.rows_of(dst);
                // SAFETY: the row belongs to this work item.
                self.each_row(|row| unsafe {
                    ew::rope_table(self.row(row).position, frequencies, mscale, dst.f32_mut(row));
                });
            }
            &Op::Embed { table, scale, dst } => self.embed(table, scale, dst),
            &Op::Norm { src, gain, dst } => self.norm(src, gain, dst),
            Op::MatMul { src, products, dst, accumulate, .. } => self.mat_mul(*src, products, *dst, *accumulate),
            &Op::RopeStore { layer, qkv, q_norm, k_norm, table } => {
                self.rope_store(layer, qkv, (q_norm, k_norm), table)
            }
            &Op::Attention { layer, qkv, dst, carry, partials, scratch } => {
                attention::run(self, layer, Buffers { qkv, dst, carry, partials, scratch });
            }
            &Op::Gate { src, activation, dst } => self.gate(src, activation, dst),
            &Op::AddNorm { src, gain, dst } => self.add_norm(src, gain, dst),
            &Op::SoftCap { buffer, cap } => {
                let rows = self.rows_of(buffer);
                // SAFETY: the row belongs to this work item.
                self.each_row(|row| unsafe { ew::soft_cap(self.machine.isa, rows.f32_mut(row), cap) });
            }
        }
    }

    /// The rows of a buffer.
    pub(super) fn rows_of(&self, id: BufferId) -> Rows {
        let buffer = self.program.buffer(id);
        match self.place {
            Place::Workspace => self.machine.memory.workspace(buffer),
            Place::Head => self.machine.memory.head(buffer),
        }
    }

    fn row(&self, row: usize) -> Row {
        self.step.rows[row]
    }

    /// Calls `work` with every row that this worker claims.
    fn each_row(&self, mut work: impl FnMut(usize)) {
        while let Some(row) = self.worker.claim(self.rows) {
            work(row);
        }
    }

    fn vector(&self, id: WeightId) -> &[f32] {
        let weight = weight(&self.machine.plan, id);
        debug_assert_eq!(weight.form, WeightForm::Vector);
        // SAFETY: the arena holds `bytes / 4` f32 there, written once at load.
        unsafe { std::slice::from_raw_parts(self.machine.memory.weight(weight).cast(), weight.bytes as usize / 4) }
    }

    fn matrix(&self, id: WeightId) -> Weights<'_> {
        let weight = weight(&self.machine.plan, id);
        debug_assert_eq!(weight.form, WeightForm::Matrix);
        // SAFETY: the arena holds the packed matrix there, written once at load.
        let bytes = unsafe { std::slice::from_raw_parts(self.machine.memory.weight(weight), weight.bytes as usize) };
        Weights::new(weight.slice.ty, weight.slice.cols as usize, bytes)
    }

    fn embed(&self, table: WeightId, scale: f32, dst: BufferId) {
        let (table, dst, isa) = (self.matrix(table), self.rows_of(dst), self.machine.isa);
        self.each_row(|row| {
            let token = self.row(row).token.0 as usize;
            // SAFETY: the row belongs to this work item.
            let out = unsafe { dst.f32_mut(row) };
            unpack_row(isa, &table, (token / ROW_GROUP as usize, token % ROW_GROUP as usize), out);
            if scale != 1.0 {
                ew::scale(isa, out, scale);
            }
        });
    }

    fn norm(&self, src: BufferId, gain: Gain, dst: Inputs) {
        let (src, isa, w) = (self.rows_of(src), self.machine.isa, self.vector(gain.weight));
        let out = self.rows_of(dst.f32.expect("a norm has f32 output"));
        self.each_row(|row| {
            // SAFETY: the row of the output belongs to this work item; the source is only read.
            let (x, out) = unsafe { (src.f32(row), out.f32_mut(row)) };
            ew::rms_norm(isa, x, w, gain.eps, out);
            self.quantize(row, out, dst.q8);
        });
    }

    /// Writes `values` as 8-bit activations of `row`, where a product reads them so.
    fn quantize(&self, row: usize, values: &[f32], dst: Option<BufferId>) {
        if let Some(dst) = dst {
            debug_assert_eq!(self.program.buffer(dst).content, Content::Q8);
            // SAFETY: the row belongs to the caller's work item.
            quantize_row(self.machine.isa, values, unsafe { self.rows_of(dst).bytes_mut(row) });
        }
    }

    /// Quantises every row of `src` into `dst`.
    pub(super) fn quantize_rows(&self, src: Rows, dst: Rows) {
        // SAFETY: the row of `dst` belongs to this work item; `src` is only read.
        self.each_row(|row| unsafe { quantize_row(self.machine.isa, src.f32(row), dst.bytes_mut(row)) });
    }

    fn mat_mul(&self, src: Inputs, products: &[Product], dst: BufferId, accumulate: bool) {
        let dst = self.rows_of(dst);
        // As many pieces as divide evenly among the workers, each of them worth a claim; kernels take groups in pairs.
        let pieces = |weights: &Weights<'_>| {
            let (groups, workers) = (weights.groups(), self.worker.count());
            let rounds = (groups * weights.group_bytes() / (workers * CLAIM_BYTES)).clamp(1, CLAIMS_PER_WORKER);
            let each = groups.div_ceil(workers * rounds).next_multiple_of(2);
            (each, groups.div_ceil(each))
        };
        let total = products.iter().map(|p| pieces(&self.matrix(p.weight)).1).sum();
        while let Some(mut item) = self.worker.claim(total) {
            for product in products {
                let weights = self.matrix(product.weight);
                let (each, count) = pieces(&weights);
                if item < count {
                    let groups = item * each..((item + 1) * each).min(weights.groups());
                    self.product(src, product, &weights, groups, dst, accumulate);
                    break;
                }
                item -= count;
            }
        }
    }

    /// The output rows of `groups` of one matrix, for all rows of the submission.
    fn product(
        &self,
        src: Inputs,
        product: &Product,
        weights: &Weights<'_>,
        groups: std::ops::Range<usize>,
        dst: Rows,
        accumulate: bool,
    ) {
        let slice = &weight(&self.machine.plan, product.weight).slice;
        let first = groups.start * ROW_GROUP as usize;
        let columns = (groups.end * ROW_GROUP as usize).min(slice.rows as usize) - first;
        let at = product.first_col as usize + first;
        assert!(at + columns <= dst.cols, "a product inside its destination");
        let bias = product.bias.map(|b| &self.vector(b)[first..first + columns]);
        let epilogue = Epilogue { bias, accumulate };
        // SAFETY: these columns of all rows belong to this work item.
        let y = unsafe { Columns::from_raw(dst.at(0).cast::<f32>().add(at), self.rows, columns, dst.cols) };
        let (weights, isa, k) = (weights.slice(groups), self.machine.isa, slice.cols as usize);
        match (src.q8, src.f32) {
            (Some(q8), _) if !slice.ty.is_float() => {
                let x = self.rows_of(q8);
                // SAFETY: rows are consecutive and were quantised before the last barrier.
                let x = unsafe { std::slice::from_raw_parts(x.at(0), self.rows * x.row_bytes) };
                matmul_q8(isa, &weights, Q8Rows::new(x, k), y, epilogue);
            }
            (_, f32) => {
                let x = self.rows_of(f32.expect("lowering gives every product inputs that it reads"));
                // SAFETY: rows are consecutive and were written before the last barrier.
                let x = unsafe { std::slice::from_raw_parts(x.at(0).cast(), self.rows * x.cols) };
                matmul_f32(isa, &weights, x, y, epilogue);
            }
        }
    }

    fn rope_store(&self, layer: LayerId, qkv: BufferId, norms: (Option<Gain>, Option<Gain>), table: BufferId) {
        let plan = &self.machine.plan;
        let spec = &plan.layers[layer.0 as usize];
        let (shape, isa) = (&spec.shape, self.machine.isa);
        let pairing = plan.ropes[spec.rope.0 as usize].pairing;
        let (qkv, table) = (self.rows_of(qkv), self.rows_of(table));
        let (dk, dv) = (shape.dk as usize, shape.dv as usize);
        let prepare = |heads: &mut [f32], norm: Option<Gain>, table: &[f32]| {
            for head in heads.chunks_exact_mut(dk) {
                if let Some(gain) = norm {
                    ew::rms_norm_in_place(isa, head, self.vector(gain.weight), gain.eps);
                }
                ew::rope(isa, pairing, head, table);
            }
        };
        self.each_row(|row| {
            // SAFETY: the row belongs to this work item; the table is only read.
            let (values, table) = unsafe { (qkv.f32_mut(row), table.f32(row)) };
            let (q, kv) = values.split_at_mut(shape.heads as usize * dk);
            let (k, v) = kv.split_at_mut(shape.kv_heads as usize * dk);
            prepare(q, norms.0, table);
            prepare(k, norms.1, table);
            for (head, values) in k.chunks_exact(dk).enumerate() {
                // SAFETY: the row's cell belongs to this work item.
                store(isa, shape.k_type, values, unsafe { self.cell_row(layer, row, Part::Key, head) });
            }
            for (head, values) in v.chunks_exact(dv).enumerate() {
                // SAFETY: the row's cell belongs to this work item.
                store(isa, shape.v_type, values, unsafe { self.cell_row(layer, row, Part::Value, head) });
            }
        });
    }

    /// Stores random cells of every layer for one row.
    fn fill_row(&self, row: usize, seed: u64) {
        for (i, layer) in self.machine.plan.layers.iter().enumerate() {
            let id = LayerId(i as u32);
            let (shape, numbers) = (&layer.shape, synthetic::cell(seed, id.0, self.row(row).position));
            let parts = [(Part::Key, shape.dk, shape.k_type), (Part::Value, shape.dv, shape.v_type)];
            let mut place = 0;
            for (part, width, ty) in parts {
                for head in 0..shape.kv_heads as usize {
                    // SAFETY: the row's cell belongs to this work item.
                    let out = unsafe { self.cell_row(id, row, part, head) };
                    let row_bytes = ty.row_bytes(FILL_VALUES as u32) as usize;
                    for (first, out) in (0..width as usize).step_by(FILL_VALUES).zip(out.chunks_mut(row_bytes)) {
                        let count = FILL_VALUES.min(width as usize - first);
                        let values: [f32; FILL_VALUES] = std::array::from_fn(|i| numbers.normal(place + i as u64));
                        store(self.machine.isa, ty, &values[..count], out);
                        place += count as u64;
                    }
                }
            }
        }
    }

    /// The bytes of one head's key or value in the cell of a row.
    ///
    /// # Safety
    /// The row's cell belongs to the caller's work item.
    #[allow(clippy::mut_from_ref)]
    unsafe fn cell_row(&self, layer: LayerId, row: usize, part: Part, head: usize) -> &mut [u8] {
        let shape = &self.machine.plan.layers[layer.0 as usize].shape;
        let (block, cell) = self.cell(layer, row);
        let (first, row_bytes) = match part {
            Part::Key => (0, shape.k_type.row_bytes(shape.dk)),
            Part::Value => (shape.kv_heads as u64 * shape.k_head_bytes(), shape.v_type.row_bytes(shape.dv)),
        };
        let at = first as usize + (head * BLOCK_CELLS as usize + cell) * row_bytes as usize;
        // SAFETY: this cell's row of this head lies in the block, and the cell belongs to this work item.
        unsafe { std::slice::from_raw_parts_mut(block.add(at), row_bytes as usize) }
    }

    /// The block that receives a row's cell, and the cell's place in it.
    fn cell(&self, layer: LayerId, row: usize) -> (*mut u8, usize) {
        let (plan, memory) = (&self.machine.plan, &self.machine.memory);
        let cache = &plan.cache.layers[layer.0 as usize];
        let Row { position, view, .. } = self.row(row);
        let view = &self.step.views[view as usize];
        let leaf = position / BLOCK_CELLS;
        let block = match cache.place {
            CachePlace::Rings { .. } => memory.ring_block(plan, cache, view.slot, leaf),
            CachePlace::Frames { .. } => {
                let home = self.step.homes[view.homes.clone()][leaf as usize];
                memory.home_block(plan, cache, home).expect("appends go to frames")
            }
        };
        (block, (position % BLOCK_CELLS) as usize)
    }

    fn gate(&self, src: BufferId, activation: Activation, dst: Inputs) {
        let (src, isa) = (self.rows_of(src), self.machine.isa);
        self.each_row(|row| {
            // SAFETY: the row belongs to this work item.
            let (gate, up) = unsafe { src.f32_mut(row) }.split_at_mut(src.cols / 2);
            match activation {
                Activation::Silu => ew::silu_mul(isa, gate, up),
                Activation::GeluTanh => ew::gelu_tanh_mul(isa, gate, up),
                Activation::GeluTanhF16 => ew::gelu_tanh_f16_mul(isa, gate, up),
            }
            if let Some(dst) = dst.f32 {
                // SAFETY: the row belongs to this work item.
                unsafe { self.rows_of(dst).f32_mut(row) }.copy_from_slice(gate);
            }
            self.quantize(row, gate, dst.q8);
        });
    }

    fn add_norm(&self, src: BufferId, gain: Gain, dst: BufferId) {
        let (src, dst, isa, w) = (self.rows_of(src), self.rows_of(dst), self.machine.isa, self.vector(gain.weight));
        self.each_row(|row| {
            // SAFETY: the rows belong to this work item.
            let (y, x) = unsafe { (src.f32_mut(row), dst.f32_mut(row)) };
            ew::rms_norm_in_place(isa, y, w, gain.eps);
            ew::add(isa, x, y);
        });
    }
}

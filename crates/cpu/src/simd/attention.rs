//! Attention over leaves: partials, their fold and the final quotient.
//!
//! A *leaf* is one block of 256 cells aligned to absolute position. The partial of a row over a
//! leaf is computed from scratch in an order fixed by the row's position and the head sizes, and a
//! row folds its leaves in ascending order. So a row's bits do not depend on which rows are
//! computed with it, on how work is split over threads, or on where blocks live: the *row law*.
//!
//! Invisible cells are never multiplied, so they may hold anything.

use std::ops::Range;

use tailrace_types::KvType;

use super::attention_direct::{Ahead, dot_packed};
use super::attention_tiles::{self as tiles, CELLS, TILE_ROWS_MAX, ValueRows, ValueTile};
use super::isa::Isa;
use super::lanes::{LANES, Lanes, lanes_kernel};

/// Bytes of unpacked K or V that all tiles of rows pass before the next: they stay in the L1
/// cache.
const STRIP_BYTES: usize = 32 * 1024;

/// Rows whose scores over a leaf are held at a time.
const BLOCK_ROWS: usize = 48;

/// Values before the sums of a record: `m`, `l` and padding to a cache line.
const HEADER: usize = LANES;

/// One KV head of an attention layer: sizes, types and arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadShape {
    /// Query heads that read this KV head.
    pub group: usize,
    /// Values of a query and of a key.
    pub dk: usize,
    /// Values of a value row.
    pub dv: usize,
    /// Storage type of keys.
    pub k_type: KvType,
    /// Storage type of values.
    pub v_type: KvType,
    /// Factor on `<q, k>`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub cap: Option<f32>,
    /// Cells that a row sees, itself included, where the layer has a sliding window.
    pub window: Option<u32>,
}

impl HeadShape {
    /// `f32` values of one record `(m, l, A)`: a header of 16 and `dv` rounded up to 16 sums.
    pub const fn record_floats(&self) -> usize {
        record_floats(self.dv)
    }

    /// `f32` values of scratch that [`leaf_partials`] and [`fold_leaf`] need for each thread.
    pub const fn scratch_floats(&self) -> usize {
        CELLS * (self.dk + self.dv.next_multiple_of(LANES)) + BLOCK_ROWS * (CELLS + self.record_floats())
    }

    /// The cells of the leaf starting at position `leaf_first` that a row at `position` sees.
    fn visible(&self, position: u32, leaf_first: u32) -> Range<usize> {
        let end = u64::from(position) + 1;
        let start = self.window.map_or(0, |w| end.saturating_sub(u64::from(w)));
        let within = |p: u64| p.saturating_sub(u64::from(leaf_first)).min(CELLS as u64) as usize;
        within(start)..within(end)
    }
}

/// `f32` values of one record `(m, l, A)` with `dv` sums.
pub const fn record_floats(dv: usize) -> usize {
    HEADER + dv.next_multiple_of(LANES)
}

/// Query rows of the heads that share a KV head.
///
/// Packed row `r = i * group + u` is head `u` of row `i`; its record is the `r`-th.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Head `u` of row `i` starts at `i * stride + u * dk`.
    pub q: &'a [f32],
    /// Distance of consecutive rows in `q`.
    pub stride: usize,
    /// Position of each row.
    pub positions: &'a [u32],
}

/// One KV head of one block.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    /// Position of the first cell, a multiple of 256.
    pub first: u32,
    /// 256 rows of `dk` keys.
    pub k: &'a [u8],
    /// 256 rows of `dv` values.
    pub v: &'a [u8],
}

/// Writes the partial `(m, l, A)` of every packed row over one leaf to `records`.
///
/// A row that sees no cell of the leaf gets the empty record, see [`reset`].
///
/// # Panics
/// If a slice is shorter than the shape demands.
pub fn leaf_partials(
    isa: Isa,
    shape: &HeadShape,
    queries: &Queries<'_>,
    leaf: &Leaf<'_>,
    records: &mut [f32],
    scratch: &mut [f32],
) {
    let record = shape.record_floats();
    let work = Work::new(isa, shape, queries, leaf);
    work.for_blocks(scratch, |work, block, areas| {
        let records = &mut records[block.first * record..][..block.rows * record];
        work.partials(block, areas.k, areas.v, areas.weights, records);
    });
}

/// Folds the partial of every packed row over one leaf into its carry.
///
/// Equal, bit for bit, to [`leaf_partials`] followed by [`fold`] for each row.
///
/// # Panics
/// If a slice is shorter than the shape demands.
pub fn fold_leaf(
    isa: Isa,
    shape: &HeadShape,
    queries: &Queries<'_>,
    leaf: &Leaf<'_>,
    carries: &mut [f32],
    scratch: &mut [f32],
) {
    let record = shape.record_floats();
    let work = Work::new(isa, shape, queries, leaf);
    work.for_blocks(scratch, |work, block, areas| {
        let partials = &mut areas.records[..block.rows * record];
        work.partials(block, areas.k, areas.v, areas.weights, partials);
        let carries = &mut carries[block.first * record..][..block.rows * record];
        fold(isa, shape.dv, carries, partials);
    });
}

/// Makes every record of `records` empty: `m = -inf`, `l = 0`, `A = 0`, the identity of [`fold`].
pub fn reset(dv: usize, records: &mut [f32]) {
    for record in records.chunks_exact_mut(record_floats(dv)) {
        record.fill(0.0);
        record[0] = f32::NEG_INFINITY;
    }
}

/// Folds each record of `partials` into the record of `carries` at the same place.
///
/// `m = max`, `l = e^(mc - m) lc + e^(mp - m) lp`, likewise `A`. An empty partial changes
/// nothing and an empty carry becomes the partial, so identities add no rounding.
///
/// # Panics
/// If the lengths differ or are no whole number of records.
pub fn fold(isa: Isa, dv: usize, carries: &mut [f32], partials: &[f32]) {
    let record = record_floats(dv);
    assert_eq!(carries.len(), partials.len());
    assert!(carries.len().is_multiple_of(record));
    for (carry, partial) in carries.chunks_exact_mut(record).zip(partials.chunks_exact(record)) {
        // `l` is 0 only for a row without a visible cell; NaN must pass.
        if partial[1] == 0.0 {
            continue;
        }
        if carry[1] == 0.0 {
            carry.copy_from_slice(partial);
            continue;
        }
        // SAFETY: both slices are one record long.
        unsafe { fold_record(isa, carry.as_mut_ptr(), partial.as_ptr(), record) };
    }
}

lanes_kernel! {
    fn fold_record[](carry: *mut f32, partial: *const f32, length: usize) = fold_record_body[];
}

/// # Safety
/// Both records hold `length` values, a multiple of 16.
#[inline(always)]
unsafe fn fold_record_body<L: Lanes>(carry: *mut f32, partial: *const f32, length: usize) {
    // SAFETY: i < length.
    unsafe {
        let (mc, mp) = (*carry, *partial);
        let m = if mc > mp { mc } else { mp };
        let old = L::splat(mc - m).exp();
        let new = L::splat(mp - m).exp();
        for i in (0..length).step_by(LANES) {
            let sum = L::load(carry.add(i)).mul(old);
            L::load(partial.add(i)).fma(new, sum).store(carry.add(i));
        }
        *carry = m;
    }
}

/// Writes `A / l` of one record to `out`, zeros for an empty record.
///
/// A `sink` is a score without a value: it enters the denominator alone.
///
/// # Panics
/// If `record` is not one record of `out.len()` sums.
pub fn finish(isa: Isa, record: &[f32], sink: Option<f32>, out: &mut [f32]) {
    assert_eq!(record.len(), record_floats(out.len()));
    if record[1] == 0.0 {
        out.fill(0.0);
        return;
    }
    // SAFETY: the record holds `out.len()` sums after its header.
    unsafe { finish_record(isa, record.as_ptr(), sink, out.as_mut_ptr(), out.len()) };
}

lanes_kernel! {
    fn finish_record[](record: *const f32, sink: Option<f32>, out: *mut f32, dv: usize)
        = finish_record_body[];
}

/// # Safety
/// `record` is a record of `dv` sums, `out` writable for `dv` values.
#[inline(always)]
unsafe fn finish_record_body<L: Lanes>(record: *const f32, sink: Option<f32>, out: *mut f32, dv: usize) {
    // SAFETY: d < dv.
    unsafe {
        let mut factor = L::splat(1.0);
        let mut l = L::splat(*record.add(1));
        if let Some(sink) = sink {
            let own = *record;
            let m = if own > sink { own } else { sink };
            factor = L::splat(own - m).exp();
            l = l.fma(factor, L::splat(sink - m).exp());
        }
        for d in (0..dv).step_by(LANES) {
            let value = L::load(record.add(HEADER + d)).mul(factor).div(l);
            value.store_first(out.add(d), (dv - d).min(LANES));
        }
    }
}

/// Up to [`BLOCK_ROWS`] consecutive packed rows.
struct Block {
    first: usize,
    rows: usize,
    /// Visible cells of each row.
    spans: [(usize, usize); BLOCK_ROWS],
}

impl Block {
    /// The register tiles: ranges of rows inside the block, as equal as possible.
    fn tiles(&self, isa: Isa) -> impl Iterator<Item = Range<usize>> {
        let count = self.rows.div_ceil(tiles::tile_rows(isa));
        let (rows, mut start) = (self.rows, 0);
        (0..count).map(move |i| {
            let end = start + rows / count + usize::from(i < rows % count);
            std::mem::replace(&mut start, end)..end
        })
    }

    /// The cells that any of `rows` sees, rounded out to panels.
    fn panels(&self, rows: Range<usize>) -> Range<usize> {
        let seen = self.spans[rows].iter().filter(|(low, high)| low < high);
        let (low, high) = seen.fold((CELLS, 0), |(a, b), (low, high)| (a.min(*low), b.max(*high)));
        low - low % LANES..high.next_multiple_of(LANES)
    }

    /// The cells that all of `rows` see.
    fn common(&self, rows: Range<usize>) -> Range<usize> {
        let spans = self.spans[rows].iter();
        let (low, high) = spans.fold((0, CELLS), |(a, b), (low, high)| (a.max(*low), b.min(*high)));
        low..high
    }
}

/// Scratch memory by use.
struct Areas<'a> {
    k: &'a [f32],
    v: &'a [f32],
    weights: &'a mut [f32],
    records: &'a mut [f32],
}

/// One call: some rows over one leaf.
struct Work<'a> {
    isa: Isa,
    shape: &'a HeadShape,
    queries: &'a Queries<'a>,
    leaf: &'a Leaf<'a>,
    /// Whether K and V are read as they are stored, since too few rows share them to pay for
    /// unpacking. The results are the same.
    direct: bool,
}

impl<'a> Work<'a> {
    fn new(isa: Isa, shape: &'a HeadShape, queries: &'a Queries<'a>, leaf: &'a Leaf<'a>) -> Self {
        assert_eq!(leaf.k.len(), CELLS * shape.k_type.row_bytes(shape.dk as u32) as usize);
        assert_eq!(leaf.v.len(), CELLS * shape.v_type.row_bytes(shape.dv as u32) as usize);
        let few = queries.positions.len() * shape.group <= TILE_ROWS_MAX;
        let whole = shape.dk.is_multiple_of(LANES) && shape.dv.is_multiple_of(LANES);
        Work { isa, shape, queries, leaf, direct: few && whole }
    }

    /// Calls `body` for each block of rows, with K and V unpacked unless they are read directly.
    fn for_blocks(&self, scratch: &mut [f32], mut body: impl FnMut(&Self, &Block, &mut Areas<'_>)) {
        let (dk, dvp) = (self.shape.dk, self.shape.dv.next_multiple_of(LANES));
        let (unpacked, rest) = scratch.split_at_mut(CELLS * (dk + dvp));
        let (weights, records) = rest.split_at_mut(BLOCK_ROWS * CELLS);
        let (k, v) = unpacked.split_at_mut(CELLS * dk);
        if !self.direct {
            tiles::unpack_k(self.isa, self.shape.k_type, dk, self.leaf.k, k);
            tiles::unpack_v(self.isa, self.shape.v_type, self.shape.dv, self.leaf.v, v);
        }
        let mut areas = Areas { k, v, weights, records };
        let rows = self.queries.positions.len() * self.shape.group;
        for first in (0..rows).step_by(BLOCK_ROWS) {
            body(self, &self.block(first, (rows - first).min(BLOCK_ROWS)), &mut areas);
        }
    }

    fn block(&self, first: usize, rows: usize) -> Block {
        let mut spans = [(0, 0); BLOCK_ROWS];
        for (r, span) in spans.iter_mut().enumerate().take(rows) {
            let position = self.queries.positions[(first + r) / self.shape.group];
            let seen = self.shape.visible(position, self.leaf.first);
            *span = (seen.start, seen.end);
        }
        Block { first, rows, spans }
    }

    /// The query of packed row `r`.
    fn query(&self, r: usize) -> &'a [f32] {
        let (i, u) = (r / self.shape.group, r % self.shape.group);
        &self.queries.q[i * self.queries.stride + u * self.shape.dk..][..self.shape.dk]
    }

    /// The records of a block of rows.
    fn partials(&self, block: &Block, k: &[f32], v: &[f32], weights: &mut [f32], records: &mut [f32]) {
        let record = self.shape.record_floats();
        reset(self.shape.dv, records);
        let cells = block.panels(0..block.rows);
        let (k_rows, v_rows) = (self.k_rows(&cells), self.v_rows(&cells));
        let mut ahead = match self.direct {
            true => Ahead::new(k_rows, v_rows),
            false => Ahead::new(&[], &[]),
        };
        for strip in strips(&cells, strip_cells(self.shape.dk)) {
            self.scores(block, &strip, k, weights, &mut ahead);
        }
        let (weight_rows, _) = weights.as_chunks_mut::<CELLS>();
        for (r, row) in weight_rows.iter_mut().enumerate().take(block.rows) {
            let (low, high) = block.spans[r];
            if low < high {
                let (scale, cap) = (self.shape.scale, self.shape.cap);
                let (m, l) = tiles::softmax(self.isa, row, (low, high), scale, cap);
                records[r * record] = m;
                records[r * record + 1] = l;
            }
        }
        let v = match self.direct {
            true => ValueRows::Stored(self.shape.v_type, self.leaf.v),
            false => ValueRows::Unpacked(v),
        };
        for strip in strips(&cells, strip_cells(self.shape.dv)) {
            self.values(block, &strip, v, weights, records, &mut ahead);
        }
    }

    /// The stored keys of `cells`.
    fn k_rows(&self, cells: &Range<usize>) -> &'a [u8] {
        let row = self.shape.k_type.row_bytes(self.shape.dk as u32) as usize;
        self.leaf.k.get(cells.start * row..cells.end * row).unwrap_or_default()
    }

    /// The stored values of `cells`.
    fn v_rows(&self, cells: &Range<usize>) -> &'a [u8] {
        let row = self.shape.v_type.row_bytes(self.shape.dv as u32) as usize;
        self.leaf.v.get(cells.start * row..cells.end * row).unwrap_or_default()
    }

    /// Raw products of a block's rows with the cells `strip`, where a tile of rows sees a panel.
    fn scores(&self, block: &Block, strip: &Range<usize>, k: &[f32], weights: &mut [f32], ahead: &mut Ahead) {
        let dk = self.shape.dk;
        for tile in block.tiles(self.isa) {
            let cells = overlap(&block.panels(tile.clone()), strip);
            if cells.is_empty() {
                continue;
            }
            let mut q: [&[f32]; TILE_ROWS_MAX] = [&[]; TILE_ROWS_MAX];
            for (q, r) in q.iter_mut().zip(tile.clone()) {
                *q = self.query(block.first + r);
            }
            let q = &q[..tile.len()];
            let weights = &mut weights[tile.start * CELLS + cells.start..];
            if self.direct {
                let rows = self.k_rows(&cells);
                dot_packed(self.isa, self.shape.k_type, q, rows, weights, ahead);
            } else {
                tiles::dot_panels(self.isa, q, dk, &k[cells.start * dk..cells.end * dk], weights);
            }
        }
    }

    /// Adds the weighted values of the cells `strip` to a block's records.
    ///
    /// Cells that a whole tile of rows sees are added together; those before and after, which
    /// only some rows see, row by row. Each row meets its own cells in ascending order.
    fn values(
        &self,
        block: &Block,
        strip: &Range<usize>,
        v: ValueRows<'_>,
        weights: &[f32],
        records: &mut [f32],
        ahead: &mut Ahead,
    ) {
        let record = self.shape.record_floats();
        let mut add = |rows: Range<usize>, cells: Range<usize>| {
            let cells = overlap(&cells, strip);
            if cells.is_empty() {
                return;
            }
            let weights = &weights[rows.start * CELLS..];
            let sums = &mut records[rows.start * record + HEADER..];
            let width = self.shape.dv.next_multiple_of(LANES);
            let tile = ValueTile { rows: rows.len(), stride: record, cells, width };
            tiles::add_values(self.isa, &tile, weights, v, sums, ahead);
        };
        for tile in block.tiles(self.isa) {
            let common = block.common(tile.clone());
            let (from, to) = match common.is_empty() {
                true => (CELLS, CELLS),
                false => (common.start, common.end),
            };
            for r in tile.clone() {
                let (low, high) = block.spans[r];
                add(r..r + 1, low..high.min(from));
            }
            add(tile.clone(), common);
            for r in tile {
                let (low, high) = block.spans[r];
                add(r..r + 1, low.max(to)..high);
            }
        }
    }
}

/// The cells of both ranges.
fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// Whole panels of cells whose rows of `width` values fill [`STRIP_BYTES`]; at least one.
fn strip_cells(width: usize) -> usize {
    let cells = STRIP_BYTES / size_of::<f32>() / width.max(1);
    (cells - cells % LANES).clamp(LANES, CELLS)
}

/// `cells` in pieces that end at multiples of `size`.
fn strips(cells: &Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let (mut start, end) = (cells.start, cells.end);
    std::iter::from_fn(move || {
        let stop = (start + 1).next_multiple_of(size).min(end);
        (start < end).then(|| std::mem::replace(&mut start, stop)..stop)
    })
}

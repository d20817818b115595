//! The inner loops of attention over one leaf: unpacking K and V, scores, softmax, values.
//!
//! Every loop fixes the order of one row's operations and shares nothing between rows, so the
//! size of a tile cannot change a bit:
//! - a score is one chain of multiply-adds over the head dimension, in the lane of its cell;
//! - the sum of weights is 16 lane sums over the cells, then a tree;
//! - an output element is one chain of multiply-adds over the visible cells, ascending.
// A tile's loops run over several arrays by one index of constant range, which the compiler unrolls
// into registers.
#![allow(clippy::needless_range_loop)]

use tailrace_types::KvType;

use super::attention_direct::{Ahead, LINE};
use super::cells::{self, Cells, with_cells};
use super::isa::Isa;
use super::lanes::{LANES, Lanes, LanesKind, lanes_kernel};

/// Cells of a leaf.
pub(super) const CELLS: usize = tailrace_types::BLOCK_CELLS as usize;

/// The most rows that one register tile covers.
pub(super) const TILE_ROWS_MAX: usize = 8;

/// Rows of one register tile: as many accumulators as fit besides one operand each way.
pub(super) const fn tile_rows(isa: Isa) -> usize {
    match isa.lanes() {
        LanesKind::Portable => 2,
        #[cfg(target_arch = "x86_64")]
        LanesKind::Avx2 => 6,
        #[cfg(target_arch = "x86_64")]
        LanesKind::Avx512 => TILE_ROWS_MAX,
    }
}

/// Columns of a register tile of `rows` rows: the largest power of two for which accumulators,
/// one operand a column and one broadcast fit the registers.
#[inline(always)]
fn tile_width<L: Lanes>(rows: usize) -> usize {
    match L::REGISTERS {
        r if rows * 8 + 9 <= r => 8,
        r if rows * 4 + 5 <= r => 4,
        r if rows * 2 + 3 <= r => 2,
        _ => 1,
    }
}

/// Runs `$call` with the constant `$rows` equal to the run-time number of rows.
macro_rules! with_rows {
    ($n:expr, $rows:ident => $call:expr) => {
        match $n {
            1 => with_rows!(@ $rows = 1, $call),
            2 => with_rows!(@ $rows = 2, $call),
            3 => with_rows!(@ $rows = 3, $call),
            4 => with_rows!(@ $rows = 4, $call),
            5 => with_rows!(@ $rows = 5, $call),
            6 => with_rows!(@ $rows = 6, $call),
            7 => with_rows!(@ $rows = 7, $call),
            8 => with_rows!(@ $rows = 8, $call),
            n => unreachable!("a tile of {n} rows"),
        }
    };
    (@ $rows:ident = $n:literal, $call:expr) => {{
        const $rows: usize = $n;
        $call
    }};
}

pub(super) use with_rows;

/// Unpacks the K rows of whole panels (16 cells each) to `panels[panel][d][cell]`.
///
/// `rows` holds whole rows of `dk` values of type `ty`.
pub(super) fn unpack_k(isa: Isa, ty: KvType, dk: usize, rows: &[u8], panels: &mut [f32]) {
    let count = rows.len() / (LANES * ty.row_bytes(dk as u32) as usize);
    assert!(panels.len() >= count * LANES * dk);
    // SAFETY: `rows` holds `count` panels of rows, and `panels` has room for as many values.
    with_cells!(ty, C => unsafe { k_panels::<C>(isa, rows.as_ptr(), count, dk, panels.as_mut_ptr()) });
}

lanes_kernel! {
    fn k_panels[C: Cells](rows: *const u8, count: usize, dk: usize, to: *mut f32)
        = k_panels_body[C];
}

/// # Safety
/// `rows` is readable for `16 * count` rows of `dk` values, `to` writable for as many `f32`.
#[inline(always)]
unsafe fn k_panels_body<L: Lanes, C: Cells>(rows: *const u8, count: usize, dk: usize, to: *mut f32) {
    for panel in 0..count {
        for d in (0..dk).step_by(LANES) {
            let n = (dk - d).min(LANES);
            let first = panel * LANES * dk + d;
            // SAFETY: row < 16 * count and d + n <= dk.
            unsafe {
                let columns = if n == LANES {
                    C::load_columns(rows, first, dk)
                } else {
                    let mut block = [L::zero(); LANES];
                    for (i, row) in block.iter_mut().enumerate() {
                        *row = C::load::<L>(rows, first + i * dk, n);
                    }
                    L::transpose(block)
                };
                let to = to.add((panel * dk + d) * LANES);
                for (i, column) in columns.into_iter().enumerate().take(n) {
                    column.store(to.add(i * LANES));
                }
            }
        }
    }
}

/// Unpacks V rows of `dv` values of type `ty` to rows of `dv` rounded up to 16, zero padded.
pub(super) fn unpack_v(isa: Isa, ty: KvType, dv: usize, rows: &[u8], to: &mut [f32]) {
    let count = rows.len() / ty.row_bytes(dv as u32) as usize;
    assert!(to.len() >= count * dv.next_multiple_of(LANES));
    // SAFETY: `rows` holds `count` rows, and `to` has room for as many padded ones.
    with_cells!(ty, C => unsafe { v_rows::<C>(isa, rows.as_ptr(), count, dv, to.as_mut_ptr()) });
}

lanes_kernel! {
    fn v_rows[C: Cells](rows: *const u8, count: usize, dv: usize, to: *mut f32)
        = v_rows_body[C];
}

/// # Safety
/// `rows` is readable for `count` rows of `dv` values, `to` writable for as many padded rows.
#[inline(always)]
unsafe fn v_rows_body<L: Lanes, C: Cells>(rows: *const u8, count: usize, dv: usize, mut to: *mut f32) {
    for row in 0..count {
        for d in (0..dv).step_by(LANES) {
            // SAFETY: row < count and d < dv.
            unsafe {
                C::load::<L>(rows, row * dv + d, (dv - d).min(LANES)).store(to);
                to = to.add(LANES);
            }
        }
    }
}

/// `scores[r][cell] = <q[r], K[cell]>` for the cells of whole unpacked panels.
///
/// `scores` has one row of [`CELLS`] values for each query; the panels' cells start at
/// `scores[..][0]`.
pub(super) fn dot_panels(isa: Isa, q: &[&[f32]], dk: usize, panels: &[f32], scores: &mut [f32]) {
    let count = panels.len() / (LANES * dk);
    assert!(q.iter().all(|row| row.len() == dk));
    assert!(count * LANES <= CELLS && scores.len() >= (q.len() - 1) * CELLS + count * LANES);
    let mut rows = [std::ptr::null(); TILE_ROWS_MAX];
    for (pointer, row) in rows.iter_mut().zip(q) {
        *pointer = row.as_ptr();
    }
    let (panels, scores) = (panels.as_ptr(), scores.as_mut_ptr());
    // SAFETY: `R` is the length of `q`; the sizes are asserted above.
    with_rows!(q.len(), R => unsafe {
        dot_rows::<R>(isa, &rows, dk, panels, count, scores)
    })
}

lanes_kernel! {
    fn dot_rows[const R: usize](
        q: &[*const f32; TILE_ROWS_MAX],
        dk: usize,
        panels: *const f32,
        count: usize,
        scores: *mut f32,
    ) = dot_rows_body[R];
}

/// # Safety
/// The first `R` pointers of `q` are readable for `dk` values, `panels` for `count` panels, and
/// `scores` is writable for `R` rows.
#[inline(always)]
unsafe fn dot_rows_body<L: Lanes, const R: usize>(
    q: &[*const f32; TILE_ROWS_MAX],
    dk: usize,
    panels: *const f32,
    count: usize,
    scores: *mut f32,
) {
    let mut done = 0;
    while done < count {
        let width = match count - done {
            left if left >= tile_width::<L>(R) => tile_width::<L>(R),
            left if left >= 2 && tile_width::<L>(R) > 2 => 2,
            _ => 1,
        };
        // SAFETY: done + width <= count.
        unsafe {
            let panels = panels.add(done * dk * LANES);
            let scores = scores.add(done * LANES);
            match width {
                8 => dot_tile::<L, R, 8>(q, dk, panels, scores),
                4 => dot_tile::<L, R, 4>(q, dk, panels, scores),
                2 => dot_tile::<L, R, 2>(q, dk, panels, scores),
                _ => dot_tile::<L, R, 1>(q, dk, panels, scores),
            }
        }
        done += width;
    }
}

/// # Safety
/// As [`dot_rows_body`], for `W` panels.
#[inline(always)]
unsafe fn dot_tile<L: Lanes, const R: usize, const W: usize>(
    q: &[*const f32; TILE_ROWS_MAX],
    dk: usize,
    panels: *const f32,
    scores: *mut f32,
) {
    // SAFETY: d < dk, and the tile covers R rows and W panels.
    unsafe {
        let mut sums = [[L::zero(); W]; R];
        for d in 0..dk {
            let mut k = [L::zero(); W];
            for (w, k) in k.iter_mut().enumerate() {
                *k = L::load(panels.add((w * dk + d) * LANES));
            }
            for r in 0..R {
                let x = L::splat(*q[r].add(d));
                for w in 0..W {
                    sums[r][w] = k[w].fma(x, sums[r][w]);
                }
            }
        }
        for r in 0..R {
            for w in 0..W {
                sums[r][w].store(scores.add(r * CELLS + w * LANES));
            }
        }
    }
}

/// Turns one row of raw products into weights `e^(s - m)` in place and returns `(m, l)`: the
/// greatest score of the visible cells `low .. high` and the sum of their weights.
///
/// `s = scale * product`, then `cap * tanh(s / cap)` where there is a cap. Whatever the row holds
/// elsewhere, NaN included, has no influence; weights are only written in panels that contain a
/// visible cell, zero for their invisible ones.
pub(super) fn softmax(
    isa: Isa,
    row: &mut [f32; CELLS],
    (low, high): (usize, usize),
    scale: f32,
    cap: Option<f32>,
) -> (f32, f32) {
    assert!(low < high && high <= CELLS);
    // SAFETY: the range is not empty and inside the row.
    unsafe {
        match cap {
            None => softmax_row::<false>(isa, row, low, high, scale, 0.0),
            Some(cap) => softmax_row::<true>(isa, row, low, high, scale, cap),
        }
    }
}

lanes_kernel! {
    fn softmax_row[const CAP: bool](
        row: &mut [f32; CELLS],
        low: usize,
        high: usize,
        scale: f32,
        cap: f32,
    ) -> (f32, f32) = softmax_row_body[CAP];
}

/// # Safety
/// `low < high <= CELLS`.
#[inline(always)]
unsafe fn softmax_row_body<L: Lanes, const CAP: bool>(
    row: &mut [f32; CELLS],
    low: usize,
    high: usize,
    scale: f32,
    cap: f32,
) -> (f32, f32) {
    let row = row.as_mut_ptr();
    let start = low - low % LANES;
    // SAFETY: panels start below `high`, so they lie inside the row, whose length is a multiple
    // of 16.
    unsafe {
        let hidden = L::splat(f32::NEG_INFINITY);
        let mut max = hidden;
        for cell in (start..high).step_by(LANES) {
            let mut s = L::load(row.add(cell)).mul(L::splat(scale));
            if CAP {
                s = s.div(L::splat(cap)).tanh().mul(L::splat(cap));
            }
            let s = s.first(high - cell, hidden);
            let s = hidden.first(low.saturating_sub(cell), s);
            s.store(row.add(cell));
            max = s.max(max);
        }
        let max = max.max_lane();
        let mut sum = L::zero();
        for cell in (start..high).step_by(LANES) {
            let p = L::load(row.add(cell)).sub(L::splat(max)).exp();
            p.store(row.add(cell));
            sum = sum.add(p);
        }
        (max, sum.sum())
    }
}

/// Value rows as they are stored, or unpacked to rows of a multiple of 16 values.
#[derive(Clone, Copy)]
pub(super) enum ValueRows<'a> {
    /// Rows of `dv` values of that type, `dv` a multiple of 16.
    Stored(KvType, &'a [u8]),
    /// Rows of `dv` rounded up to 16.
    Unpacked(&'a [f32]),
}

/// The rows and cells that [`add_values`] works on.
#[derive(Clone)]
pub(super) struct ValueTile {
    /// Rows of weights and sums.
    pub(super) rows: usize,
    /// Distance of consecutive rows in the sums.
    pub(super) stride: usize,
    /// Cells, as rows of `v` and as places in a row of weights.
    pub(super) cells: std::ops::Range<usize>,
    /// Values of a row of `v`, a multiple of 16.
    pub(super) width: usize,
}

/// `sums[r] += sum of weights[r][cell] * v[cell]` over the cells of the tile, ascending.
///
/// `weights` has one row of [`CELLS`] values for each row of sums.
pub(super) fn add_values(
    isa: Isa,
    tile: &ValueTile,
    weights: &[f32],
    v: ValueRows<'_>,
    sums: &mut [f32],
    ahead: &mut Ahead,
) {
    let (rows, width) = (tile.rows, tile.width);
    let values = match v {
        ValueRows::Stored(ty, v) => v.len() / ty.row_bytes(1) as usize,
        ValueRows::Unpacked(v) => v.len(),
    };
    assert!(width.is_multiple_of(LANES) && tile.cells.end <= values / width);
    assert!(weights.len() >= (rows - 1) * CELLS + tile.cells.end);
    assert!(sums.len() >= (rows - 1) * tile.stride + width);
    let (weights, sums) = (weights.as_ptr(), sums.as_mut_ptr());
    // SAFETY: the sizes are asserted above.
    with_rows!(rows, R => unsafe {
        match v {
            ValueRows::Stored(ty, v) => {
                with_cells!(ty, C => value_rows::<R, C>(isa, tile, weights, v.as_ptr(), sums, ahead))
            }
            ValueRows::Unpacked(v) => {
                value_rows::<R, cells::F32>(isa, tile, weights, v.as_ptr().cast(), sums, ahead)
            }
        }
    })
}

lanes_kernel! {
    fn value_rows[const R: usize, C: Cells](
        tile: &ValueTile,
        weights: *const f32,
        v: *const u8,
        sums: *mut f32,
        ahead: &mut Ahead,
    ) = value_rows_body[R, C];
}

/// # Safety
/// The pointers cover the rows, cells and columns of the tile, which has `R` rows.
#[inline(always)]
unsafe fn value_rows_body<L: Lanes, const R: usize, C: Cells>(
    tile: &ValueTile,
    weights: *const f32,
    v: *const u8,
    sums: *mut f32,
    ahead: &mut Ahead,
) {
    let count = tile.width / LANES;
    let mut done = 0;
    while done < count {
        let width = match count - done {
            left if left >= tile_width::<L>(R) => tile_width::<L>(R),
            left if left >= 2 && tile_width::<L>(R) > 2 => 2,
            _ => 1,
        };
        // SAFETY: done + width <= count.
        unsafe {
            let column = done * LANES;
            match width {
                8 => value_tile::<L, R, 8, C>(tile, column, weights, v, sums, ahead),
                4 => value_tile::<L, R, 4, C>(tile, column, weights, v, sums, ahead),
                2 => value_tile::<L, R, 2, C>(tile, column, weights, v, sums, ahead),
                _ => value_tile::<L, R, 1, C>(tile, column, weights, v, sums, ahead),
            }
        }
        done += width;
    }
}

/// # Safety
/// As [`value_rows_body`], for `16 * W` columns from `column` on.
#[inline(always)]
unsafe fn value_tile<L: Lanes, const R: usize, const W: usize, C: Cells>(
    tile: &ValueTile,
    column: usize,
    weights: *const f32,
    v: *const u8,
    sums: *mut f32,
    ahead: &mut Ahead,
) {
    // Lines that the columns of one cell cover; rounded up for narrow tiles.
    let lines = (W * LANES * C::BYTES).div_ceil(LINE);
    let mut soon = *ahead;
    // SAFETY: cells and columns are the tile's, and the tile covers R rows.
    unsafe {
        let sums = sums.add(column);
        let mut a = [[L::zero(); W]; R];
        for r in 0..R {
            for w in 0..W {
                a[r][w] = L::load(sums.add(r * tile.stride + w * LANES));
            }
        }
        for cell in tile.cells.clone() {
            for _ in 0..lines {
                soon.step::<L>();
            }
            let first = cell * tile.width + column;
            let mut row = [L::zero(); W];
            for (w, x) in row.iter_mut().enumerate() {
                *x = C::load::<L>(v, first + w * LANES, LANES);
            }
            for r in 0..R {
                let p = L::splat(*weights.add(r * CELLS + cell));
                for w in 0..W {
                    a[r][w] = row[w].fma(p, a[r][w]);
                }
            }
        }
        for r in 0..R {
            for w in 0..W {
                a[r][w].store(sums.add(r * tile.stride + w * LANES));
            }
        }
    }
    *ahead = soon;
}

//! Attention over a leaf that few rows share: K and V are read as they are stored.
//!
//! The results have the bits of [`attention_tiles`](super::attention_tiles); only the detour of
//! unpacked rows through memory is left out, which pays when many rows use them. A decoding row is
//! bound by the rate at which cells arrive, so the reading runs ahead of the arithmetic.
// A tile's loops run over several arrays by one index of constant range, which the compiler unrolls
// into registers.
#![allow(clippy::needless_range_loop)]

use tailrace_types::KvType;

use super::attention_tiles::{CELLS, TILE_ROWS_MAX, with_rows};
use super::cells::{Cells, with_cells};
use super::isa::Isa;
use super::lanes::{LANES, Lanes, lanes_kernel};

/// Cache lines that will be read soon, asked for one by one in the pace of the reading: the
/// processor's own prefetcher stops at the end of each page.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    next: *const u8,
    lines: usize,
    /// What follows when no line is left.
    then: (*const u8, usize),
}

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Bytes between what is read and what is asked for.
const AHEAD: usize = 8 * 1024;

impl Ahead {
    /// The lines of `first` that lie [`AHEAD`] of its start, then those of `second`.
    pub(super) fn new(first: &[u8], second: &[u8]) -> Self {
        let first = first.get(AHEAD..).unwrap_or_default();
        Ahead { next: first.as_ptr(), lines: first.len() / LINE, then: (second.as_ptr(), second.len() / LINE) }
    }

    /// Asks for the next line, if any is left.
    #[inline(always)]
    pub(super) fn step<L: Lanes>(&mut self) {
        if self.lines == 0 {
            (self.next, self.lines) = self.then;
            self.then.1 = 0;
        }
        if self.lines > 0 {
            L::prefetch(self.next);
            self.next = self.next.wrapping_add(LINE);
            self.lines -= 1;
        }
    }
}

/// `scores[r][cell] = <q[r], K[cell]>` for whole panels of stored K rows, `dk` a multiple of 16.
///
/// `scores` is laid out as by [`dot_panels`](super::attention_tiles::dot_panels).
pub(super) fn dot_packed(isa: Isa, ty: KvType, q: &[&[f32]], rows: &[u8], scores: &mut [f32], ahead: &mut Ahead) {
    let dk = q[0].len();
    let count = rows.len() / (LANES * ty.row_bytes(dk as u32) as usize);
    assert!(dk.is_multiple_of(LANES) && q.iter().all(|row| row.len() == dk));
    assert!(count * LANES <= CELLS && scores.len() >= (q.len() - 1) * CELLS + count * LANES);
    let mut queries = [std::ptr::null(); TILE_ROWS_MAX];
    for (pointer, row) in queries.iter_mut().zip(q) {
        *pointer = row.as_ptr();
    }
    let (k, scores) = (rows.as_ptr(), scores.as_mut_ptr());
    // SAFETY: `R` is the length of `q`; the sizes are asserted above.
    with_rows!(q.len(), R => with_cells!(ty, C => unsafe {
        packed_rows::<R, C>(isa, &queries, dk, k, count, scores, ahead)
    }))
}

lanes_kernel! {
    fn packed_rows[const R: usize, C: Cells](
        q: &[*const f32; TILE_ROWS_MAX],
        dk: usize,
        k: *const u8,
        count: usize,
        scores: *mut f32,
        ahead: &mut Ahead,
    ) = packed_rows_body[R, C];
}

/// # Safety
/// The first `R` pointers of `q` are readable for `dk` values, `k` for `16 * count` rows, and
/// `scores` is writable for `R` rows; `dk` is a multiple of 16.
#[inline(always)]
unsafe fn packed_rows_body<L: Lanes, const R: usize, C: Cells>(
    q: &[*const f32; TILE_ROWS_MAX],
    dk: usize,
    k: *const u8,
    count: usize,
    scores: *mut f32,
    ahead: &mut Ahead,
) {
    let lines = LANES * LANES * C::BYTES / LINE;
    let mut soon = *ahead;
    for panel in 0..count {
        // SAFETY: panel < count and d < dk.
        unsafe {
            let mut sums = [L::zero(); R];
            for d in (0..dk).step_by(LANES) {
                for _ in 0..lines {
                    soon.step::<L>();
                }
                let columns = C::load_columns::<L>(k, panel * LANES * dk + d, dk);
                for (i, column) in columns.into_iter().enumerate() {
                    for r in 0..R {
                        sums[r] = column.fma(L::splat(*q[r].add(d + i)), sums[r]);
                    }
                }
            }
            for r in 0..R {
                sums[r].store(scores.add(r * CELLS + panel * LANES));
            }
        }
    }
    *ahead = soon;
}

//! How a product with many rows is cut: some groups by some of `k` are unpacked into a *panel* on the
//! stack, then all rows pass over it. The order over `k` is ascending however many panels there are.
// Loops over a tile index several arrays with the same constants, which the compiler unrolls.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::lanes::{LANES, Lanes};
use super::matmul::{Columns, Epilogue};

/// Most groups in a panel.
pub(super) const GROUPS: usize = 2;

/// Rows that share a panel where `k` needs several panels, and whose sums wait in a [`Carry`] between.
pub(super) const CARRY_ROWS: usize = 128;

/// How far ahead weights that are read once are asked for, in bytes. Measured: the second-level cache at
/// this distance reads a third faster than the first-level cache, which has fewer requests in flight.
pub(super) const PREFETCH: usize = 8192;

/// Sums of unfinished rows.
pub(super) type Carry = [[f32; LANES]; CARRY_ROWS * GROUPS];

/// What one panel holds and which rows pass over it.
#[derive(Clone)]
pub(super) struct Step {
    /// First group.
    pub(super) group: usize,
    /// Groups: 1 or 2.
    pub(super) groups: usize,
    /// Part of `k`, in the units of the product.
    pub(super) k: Range<usize>,
    /// Whether it is the last part.
    pub(super) last: bool,
    /// Rows that pass over the panel; at most [`CARRY_ROWS`] if there are several parts.
    pub(super) rows: Range<usize>,
}

/// Calls `step` for each panel of a product of `rows` rows, `groups` groups and `k` units, with at most
/// `panel_k` units in a panel.
pub(super) fn walk((rows, groups, k): (usize, usize, usize), panel_k: usize, mut step: impl FnMut(&Step)) {
    let sharing = if k <= panel_k { rows } else { CARRY_ROWS };
    for row in (0..rows).step_by(sharing.max(1)) {
        for group in (0..groups).step_by(GROUPS) {
            for first in (0..k).step_by(panel_k) {
                let end = k.min(first + panel_k);
                step(&Step {
                    group,
                    groups: GROUPS.min(groups - group),
                    k: first..end,
                    last: end == k,
                    rows: row..rows.min(row + sharing),
                });
            }
        }
    }
}

/// A tile of `R` rows by `G` groups within a step.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// First row.
    pub(super) row: usize,
    /// First group.
    pub(super) group: usize,
    /// Whether the sums begin at zero (or with those of the panel before).
    pub(super) first: bool,
    /// Whether the sums are finished.
    pub(super) last: bool,
    /// Where unfinished sums wait: room for `R * G` vectors.
    pub(super) carry: *mut [f32; LANES],
}

impl Tile {
    /// The sums so far.
    ///
    /// # Safety
    /// The processor has the instructions of `F`; if the tile is not the first of its rows and groups,
    /// the one before was [left](Tile::leave) at the same place.
    #[inline(always)]
    pub(super) unsafe fn enter<F: Lanes, const R: usize, const G: usize>(&self) -> [[F; G]; R] {
        // SAFETY: the caller's contract.
        unsafe {
            let mut acc = [[F::zero(); G]; R];
            if !self.first {
                for r in 0..R {
                    for g in 0..G {
                        acc[r][g] = F::load(self.carry.add(r * G + g).cast());
                    }
                }
            }
            acc
        }
    }

    /// Stores the sums: in `y` if they are finished, else where they wait.
    ///
    /// # Safety
    /// The processor has the instructions of `F`; [`Tile::carry`] is writable.
    #[inline(always)]
    pub(super) unsafe fn leave<F: Lanes, const R: usize, const G: usize>(
        &self,
        acc: [[F; G]; R],
        y: &mut Columns<'_>,
        epilogue: &Epilogue<'_>,
    ) {
        for r in 0..R {
            for g in 0..G {
                // SAFETY: the caller's contract.
                unsafe {
                    if self.last {
                        finish(acc[r][g], epilogue, y, (self.row + r, (self.group + g) * LANES));
                    } else {
                        acc[r][g].store(self.carry.add(r * G + g).cast());
                    }
                }
            }
        }
    }
}

/// Stores 16 outputs, or those that are inside the matrix.
///
/// # Safety
/// The processor has the instructions of `F`.
#[inline(always)]
pub(super) unsafe fn finish<F: Lanes>(
    acc: F,
    epilogue: &Epilogue<'_>,
    y: &mut Columns<'_>,
    (row, column): (usize, usize),
) {
    let (at, inside) = y.at(row, column);
    // SAFETY: `at` has `inside` elements, and so has the bias behind `column`.
    unsafe {
        let mut sum = acc;
        if let Some(bias) = epilogue.bias {
            sum = sum.add(F::load_first(bias.as_ptr().add(column), inside));
        }
        if epilogue.accumulate {
            sum = sum.add(F::load_first(at, inside));
        }
        if inside == LANES {
            sum.store(at);
        } else {
            sum.store_first(at, inside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_product_is_covered_once_in_order() {
        for (rows, groups, k) in [(1, 1, 1), (7, 5, 9), (300, 3, 70), (129, 2, 64), (0, 3, 5)] {
            let mut next = vec![0; rows * groups];
            walk((rows, groups, k), 32, |step| {
                assert!(step.k.len() <= 32 && step.last == (step.k.end == k));
                assert!(step.rows.len() <= CARRY_ROWS || k <= 32);
                for row in step.rows.clone() {
                    for group in step.group..step.group + step.groups {
                        assert_eq!(next[row * groups + group], step.k.start);
                        next[row * groups + group] = step.k.end;
                    }
                }
            });
            assert!(next.iter().all(|&end| end == k));
        }
    }
}

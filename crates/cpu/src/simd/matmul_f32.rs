//! Kernels of [`matmul_f32`](super::matmul::matmul_f32): float activations, weights of any type.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::dispatch::Kernel;
use super::dot::Simd;
use super::lanes::{LANES, Lanes};
use super::matmul::{Columns, Epilogue, Weights};
use super::matmul_q8::finish;
use super::unpack::unit_values;
use super::weights::{Float, Weight, block_bytes, units};

/// Where the `f32` values of packed weights come from.
pub(super) trait Source: 'static {
    /// Writes the values of a group for `k` in `range` as `[range][16]`. The range starts at a multiple of
    /// 256 and ends at another or at the end of the row.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; `range` lies inside the group's rows, and `to` has room.
    unsafe fn fill<S: Simd>(group: &[u8], range: std::ops::Range<usize>, to: *mut f32);
}

/// Weights that are floats.
pub(super) struct Plain<T>(PhantomData<T>);
/// Quantised weights.
pub(super) struct Dequantised<W>(PhantomData<W>);

impl<T: Float> Source for Plain<T> {
    #[inline(always)]
    unsafe fn fill<S: Simd>(group: &[u8], range: std::ops::Range<usize>, to: *mut f32) {
        for (i, k) in range.enumerate() {
            // SAFETY: the caller's contract.
            unsafe { T::at::<S::F>(group.as_ptr(), k).store(to.add(LANES * i)) };
        }
    }
}

impl<W: Weight> Source for Dequantised<W> {
    #[inline(always)]
    unsafe fn fill<S: Simd>(group: &[u8], range: std::ops::Range<usize>, to: *mut f32) {
        let elements = 32 * units::<W>();
        let mut to = to;
        for b in range.start / elements..range.end / elements {
            for u in 0..units::<W>() {
                // SAFETY: the caller's contract; a range holds whole blocks of every type.
                unsafe {
                    let block = group.as_ptr().add(b * block_bytes::<W>());
                    unit_values::<S, W>(block, u, to);
                    to = to.add(32 * LANES);
                }
            }
        }
    }
}

/// Values of `k` in a panel.
const PANEL_K: usize = 256;
/// Groups in a panel.
const PANEL_GROUPS: usize = 2;
/// Rows that share a panel, whose sums wait in [`Scratch::carry`] from one panel to the next.
const CARRY_ROWS: usize = 128;

/// Working memory on the stack, 48 KiB.
#[repr(C, align(64))]
struct Scratch {
    panel: [MaybeUninit<[f32; LANES]>; PANEL_GROUPS * PANEL_K],
    carry: [MaybeUninit<[f32; LANES]>; CARRY_ROWS * PANEL_GROUPS],
}

/// A product of `f32` activations.
pub(super) struct F32Product<'a, 'b, T> {
    w: &'a Weights<'a>,
    x: &'a [f32],
    epilogue: Epilogue<'a>,
    y: Columns<'b>,
    source: PhantomData<T>,
}

impl<'a, 'b, T> F32Product<'a, 'b, T> {
    pub(super) fn new(
        w: &'a Weights<'a>,
        x: &'a [f32],
        epilogue: Epilogue<'a>,
        y: Columns<'b>,
    ) -> Self {
        F32Product {
            w,
            x,
            epilogue,
            y,
            source: PhantomData,
        }
    }
}

impl<T: Source> Kernel for F32Product<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        // SAFETY: all of a `Scratch` may be uninitialised.
        let scratch = unsafe { &mut *scratch.as_mut_ptr() };
        let groups = self.w.groups();
        let rows = self.x.len() / self.w.k;
        for first in (0..rows).step_by(CARRY_ROWS) {
            let rows = first..rows.min(first + CARRY_ROWS);
            // SAFETY: the caller vouches for the instructions.
            unsafe {
                let mut g = 0;
                while g + 2 <= groups {
                    self.groups::<S, 2>(g, rows.clone(), scratch);
                    g += 2;
                }
                while g < groups {
                    self.groups::<S, 1>(g, rows.clone(), scratch);
                    g += 1;
                }
            }
        }
    }
}

/// A tile's place: groups from `group`, rows from `row`, values `range` of `k`.
struct Place {
    group: usize,
    row: usize,
    range: std::ops::Range<usize>,
    /// Place of the tile's sums in [`Scratch::carry`].
    carry: usize,
}

impl<T: Source> F32Product<'_, '_, T> {
    /// `G` groups by some rows.
    #[inline(always)]
    unsafe fn groups<S: Simd, const G: usize>(
        &mut self,
        group: usize,
        rows: std::ops::Range<usize>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: the caller vouches for the instructions; the panel has room for `PANEL_K` values of
        // each of its groups.
        unsafe {
            for first in (0..self.w.k).step_by(PANEL_K) {
                let range = first..self.w.k.min(first + PANEL_K);
                for g in 0..G {
                    let panel = scratch.panel.as_mut_ptr().add(g * PANEL_K).cast::<f32>();
                    T::fill::<S>(self.w.group(group + g), range.clone(), panel);
                }
                let mut place = Place {
                    group,
                    row: rows.start,
                    range,
                    carry: 0,
                };
                if S::WIDE {
                    self.sweep::<S, 6, G>(&mut place, rows.end, scratch);
                }
                self.sweep::<S, 2, G>(&mut place, rows.end, scratch);
                self.sweep::<S, 1, G>(&mut place, rows.end, scratch);
            }
        }
    }

    /// Tiles of `R` rows from `place` on, while they end before row `end`.
    #[inline(always)]
    unsafe fn sweep<S: Simd, const R: usize, const G: usize>(
        &mut self,
        place: &mut Place,
        end: usize,
        scratch: &mut Scratch,
    ) {
        while place.row + R <= end {
            // SAFETY: the caller vouches for the instructions; the panel was filled for `place`.
            unsafe { self.tile::<S, R, G>(place, scratch) };
            place.row += R;
            place.carry += R * G;
        }
    }

    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const G: usize>(
        &mut self,
        place: &Place,
        scratch: &mut Scratch,
    ) {
        let mut x = [std::ptr::null(); R];
        for (r, x) in x.iter_mut().enumerate() {
            let row = &self.x[(place.row + r) * self.w.k..][..self.w.k];
            *x = row[place.range.clone()].as_ptr();
        }
        let last = place.range.end == self.w.k;
        // SAFETY: the panel and each row have these values; the rows of a sweep fit in `carry`, which
        // the panel before this one has written.
        unsafe {
            let carry = scratch.carry.as_mut_ptr().add(place.carry).cast::<f32>();
            let mut acc = [[S::F::zero(); G]; R];
            if place.range.start > 0 {
                for r in 0..R {
                    for g in 0..G {
                        acc[r][g] = S::F::load(carry.add(LANES * (r * G + g)));
                    }
                }
            }
            let panel = scratch.panel.as_ptr().cast::<f32>();
            for k in 0..place.range.len() {
                let mut w = [S::F::load(panel.add(LANES * k)); G];
                for (g, w) in w.iter_mut().enumerate().skip(1) {
                    *w = S::F::load(panel.add(LANES * (g * PANEL_K + k)));
                }
                for r in 0..R {
                    let x = S::F::splat(*x[r].add(k));
                    for g in 0..G {
                        acc[r][g] = w[g].fma(x, acc[r][g]);
                    }
                }
            }
            for r in 0..R {
                for g in 0..G {
                    if last {
                        let column = (place.group + g) * LANES;
                        finish(acc[r][g], &self.epilogue, &mut self.y, (place.row + r, column));
                    } else {
                        acc[r][g].store(carry.add(LANES * (r * G + g)));
                    }
                }
            }
        }
    }
}

//! Kernels of [`matmul_q8`](super::matmul::matmul_q8).
//!
//! Both kernels do, for every output and every unit of 32 values of `k`, exactly the operations of
//! [`fold`] in the same order; they differ in where the operands come from.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::dispatch::Kernel;
use super::dot::{Simd, pair};
use super::lanes::{LANES, Lanes};
use super::matmul::{Columns, Epilogue, Q8Product};
use super::weights::{Shape, Weight, block_bytes, units};
use crate::q8::Q8Block;

/// The integer sums of one unit start here: minus the offset times the sum of the activations of the
/// halves whose weights in the pair `which` are 1.
///
/// # Safety
/// The processor has the instructions of `S` (so for all functions here).
#[inline(always)]
unsafe fn start<S: Simd, P: Shape>(offset: i16, which: (i16, i16), x: *const Q8Block) -> S::Ints {
    // SAFETY: the caller's contract; `x` points at a block.
    unsafe {
        let sums = (&raw const (*x).sums).cast::<i32>().read_unaligned();
        if P::WIDE {
            S::start_wide(pair(which.0, which.1), sums)
        } else if P::MIN {
            S::ints(0)
        } else {
            S::dot_pairs(S::ints(0), pair(-offset * which.0, -offset * which.1), sums)
        }
    }
}

/// Four activations from `4 * quad` on.
#[inline(always)]
unsafe fn quad_of(x: *const Q8Block, quad: usize) -> i32 {
    // SAFETY: `x` points at a block, `quad` is below 8.
    unsafe { x.cast::<i32>().add(quad).read_unaligned() }
}

#[inline(always)]
unsafe fn dot<S: Simd, P: Shape>(acc: S::Ints, codes: S::Bytes, x: i32) -> S::Ints {
    // SAFETY: the caller's contract.
    unsafe {
        if P::WIDE {
            S::dot_wide(acc, codes, x)
        } else {
            S::dot(acc, codes, x)
        }
    }
}

/// Adds a unit, or half `half` of one, to an output: first the minimum's part, then the dot product.
#[inline(always)]
unsafe fn fold<S: Simd, P: Shape>(
    acc: S::F,
    sum: S::Ints,
    (scale, min): (S::F, S::F),
    x: *const Q8Block,
    half: usize,
) -> S::F {
    // SAFETY: the caller's contract; `x` points at a block.
    unsafe {
        let d = (*x).scale;
        let acc = if P::MIN {
            let weight = if P::HALVES {
                d * f32::from((*x).sums[half])
            } else {
                (*x).scaled_sum
            };
            min.fma(S::F::splat(weight), acc)
        } else {
            acc
        };
        S::to_f32(sum).fma(scale.mul(S::F::splat(d)), acc)
    }
}

/// Stores 16 outputs, or those that are inside the matrix.
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

/// How far ahead of the block in work memory is asked for, in bytes: about 200 ns at 12 GB/s.
const PREFETCH: usize = 2560;

/// Up to four rows: weights go from memory to registers, each byte once.
pub(super) struct FewRows<'a, 'b, W, const R: usize> {
    product: Q8Product<'a>,
    y: Columns<'b>,
    weight: PhantomData<W>,
}

impl<'a, 'b, W, const R: usize> FewRows<'a, 'b, W, R> {
    pub(super) fn new(product: Q8Product<'a>, y: Columns<'b>) -> Self {
        FewRows {
            product,
            y,
            weight: PhantomData,
        }
    }
}

impl<W: Weight, const R: usize> Kernel for FewRows<'_, '_, W, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let Q8Product { w, x, epilogue } = self.product;
        let mut rows = [std::ptr::null(); R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = x.row(r).as_ptr();
        }
        for g in 0..w.groups() {
            // SAFETY: the group has the blocks of a row of `k` values, each row of `x` has its units.
            unsafe {
                let acc = few_rows::<S, W, R>(w.group(g), rows);
                for (r, acc) in acc.into_iter().enumerate() {
                    finish(acc, &epilogue, &mut self.y, (r, g * LANES));
                }
            }
        }
    }
}

/// One group by `R` rows.
#[inline(always)]
unsafe fn few_rows<S: Simd, W: Weight, const R: usize>(
    group: &[u8],
    x: [*const Q8Block; R],
) -> [S::F; R] {
    // SAFETY: the caller vouches for the instructions and for the lengths of `x`.
    unsafe {
        let mut acc = [S::F::zero(); R];
        for b in 0..group.len() / block_bytes::<W>() {
            let block = group.as_ptr().add(b * block_bytes::<W>());
            for line in 0..block_bytes::<W>().div_ceil(64) {
                S::prefetch(block.wrapping_add(PREFETCH + 64 * line));
            }
            for u in 0..units::<W>() {
                let unit = W::unit::<S>(block, u);
                for r in 0..R {
                    let x = x[r].add(b * units::<W>() + u);
                    if W::Shape::HALVES {
                        let mut low = start::<S, W::Shape>(W::OFFSET, (1, 0), x);
                        let mut high = start::<S, W::Shape>(W::OFFSET, (0, 1), x);
                        for q in 0..4 {
                            low = dot::<S, W::Shape>(low, unit.quads[q], quad_of(x, q));
                            high = dot::<S, W::Shape>(high, unit.quads[q + 4], quad_of(x, q + 4));
                        }
                        let of = (unit.scale[0], unit.min[0]);
                        acc[r] = fold::<S, W::Shape>(acc[r], low, of, x, 0);
                        let of = (unit.scale[1], unit.min[1]);
                        acc[r] = fold::<S, W::Shape>(acc[r], high, of, x, 1);
                    } else {
                        let mut sum = start::<S, W::Shape>(W::OFFSET, (1, 1), x);
                        for q in 0..8 {
                            sum = dot::<S, W::Shape>(sum, unit.quads[q], quad_of(x, q));
                        }
                        let of = (unit.scale[0], unit.min[0]);
                        acc[r] = fold::<S, W::Shape>(acc[r], sum, of, x, 0);
                    }
                }
            }
        }
        acc
    }
}

/// Units of `k` in a panel: 1024 values.
const PANEL_UNITS: usize = 32;
/// Bytes of a unit in a panel: eight quads, then two scales, then two minima.
const UNIT_BYTES: usize = 512 + 4 * 64;
/// Groups in a panel.
const PANEL_GROUPS: usize = 2;
/// Rows that share a panel where `k` needs several panels, whose sums wait in [`Scratch::carry`].
const CARRY_ROWS: usize = 128;

/// Working memory of [`ManyRows`] on the stack, 64 KiB.
#[repr(C, align(64))]
struct Scratch {
    panel: [MaybeUninit<[u8; UNIT_BYTES]>; PANEL_GROUPS * PANEL_UNITS],
    carry: [MaybeUninit<[f32; LANES]>; CARRY_ROWS * PANEL_GROUPS],
}

/// Five and more rows: some groups by some of `k` are unpacked once, then all rows pass over them.
pub(super) struct ManyRows<'a, 'b, W> {
    product: Q8Product<'a>,
    y: Columns<'b>,
    weight: PhantomData<W>,
}

impl<'a, 'b, W> ManyRows<'a, 'b, W> {
    pub(super) fn new(product: Q8Product<'a>, y: Columns<'b>) -> Self {
        ManyRows {
            product,
            y,
            weight: PhantomData,
        }
    }
}

impl<W: Weight> Kernel for ManyRows<'_, '_, W> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        // SAFETY: all of a `Scratch` may be uninitialised.
        let scratch = unsafe { &mut *scratch.as_mut_ptr() };
        let mut tiles = Tiles::<S, W> {
            product: self.product,
            y: self.y,
            scratch,
            of: PhantomData,
        };
        let rows = self.product.x.rows();
        let sharing = if tiles.units() <= PANEL_UNITS {
            rows
        } else {
            CARRY_ROWS
        };
        let groups = self.product.w.groups();
        for first in (0..rows).step_by(sharing) {
            let rows = first..rows.min(first + sharing);
            // SAFETY: the caller vouches for the instructions.
            unsafe {
                let mut g = 0;
                if S::WIDE {
                    while g + 2 <= groups {
                        tiles.groups::<2>(g, rows.clone());
                        g += 2;
                    }
                }
                while g < groups {
                    tiles.groups::<1>(g, rows.clone());
                    g += 1;
                }
            }
        }
    }
}

/// A product in work.
struct Tiles<'a, 'b, 's, S, W> {
    product: Q8Product<'a>,
    y: Columns<'b>,
    scratch: &'s mut Scratch,
    of: PhantomData<(S, W)>,
}

/// A tile's place: groups from `group`, rows from `row`, units `units` of `k`.
#[derive(Clone)]
struct Place {
    group: usize,
    row: usize,
    units: std::ops::Range<usize>,
    /// Place of the tile's sums in [`Scratch::carry`].
    carry: usize,
}

impl<S: Simd, W: Weight> Tiles<'_, '_, '_, S, W> {
    /// Units of `k`.
    #[inline(always)]
    fn units(&self) -> usize {
        self.product.w.k / 32
    }

    /// `G` groups by some rows.
    #[inline(always)]
    unsafe fn groups<const G: usize>(&mut self, group: usize, rows: std::ops::Range<usize>) {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            for first in (0..self.units()).step_by(PANEL_UNITS) {
                let units = first..self.units().min(first + PANEL_UNITS);
                for g in 0..G {
                    self.fill(group + g, units.clone(), g);
                }
                let mut place = Place {
                    group,
                    row: rows.start,
                    units,
                    carry: 0,
                };
                if S::WIDE {
                    self.sweep::<6, G>(&mut place, rows.end);
                    self.sweep::<3, G>(&mut place, rows.end);
                } else {
                    self.sweep::<2, G>(&mut place, rows.end);
                }
                self.sweep::<1, G>(&mut place, rows.end);
            }
        }
    }

    /// Unpacks units of a group into part `part` of the panel.
    #[inline(always)]
    unsafe fn fill(&mut self, group: usize, units_wanted: std::ops::Range<usize>, part: usize) {
        let group = self.product.w.group(group);
        // A panel starts and ends at a block: it holds whole blocks of every type.
        let blocks = units_wanted.start / units::<W>()..units_wanted.end / units::<W>();
        let mut to = part * PANEL_UNITS;
        // SAFETY: the blocks lie in the group, and the panel's part has room for `PANEL_UNITS` units.
        unsafe {
            for b in blocks {
                let block = group.as_ptr().add(b * block_bytes::<W>());
                for u in 0..units::<W>() {
                    let unit = W::unit::<S>(block, u);
                    let at = self.scratch.panel.as_mut_ptr().add(to).cast::<u8>();
                    for (q, quad) in unit.quads.into_iter().enumerate() {
                        S::store(quad, at.add(64 * q));
                    }
                    let scales = at.add(512).cast::<f32>();
                    unit.scale[0].store(scales);
                    unit.scale[1].store(scales.add(LANES));
                    if W::Shape::MIN {
                        unit.min[0].store(scales.add(2 * LANES));
                        unit.min[1].store(scales.add(3 * LANES));
                    }
                    to += 1;
                }
            }
        }
    }

    /// Tiles of `R` rows from `place` on, while they end before row `end`.
    #[inline(always)]
    unsafe fn sweep<const R: usize, const G: usize>(&mut self, place: &mut Place, end: usize) {
        while place.row + R <= end {
            // SAFETY: the caller vouches for the instructions; the panel was filled for `place`.
            unsafe { self.tile::<R, G>(place) };
            place.row += R;
            place.carry += R * G;
        }
    }

    #[inline(always)]
    unsafe fn tile<const R: usize, const G: usize>(&mut self, place: &Place) {
        let Q8Product { x, epilogue, .. } = self.product;
        let mut rows = [std::ptr::null(); R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = x.row(place.row + r)[place.units.clone()].as_ptr();
        }
        let last = place.units.end == self.units();
        // SAFETY: the panel and each row have these units; where there is more than one panel the rows
        // of a sweep fit in `carry`, which the panel before this one has written.
        unsafe {
            let carry = self.scratch.carry.as_mut_ptr().add(place.carry).cast::<f32>();
            let mut acc = [[S::F::zero(); G]; R];
            if place.units.start > 0 {
                for r in 0..R {
                    for g in 0..G {
                        acc[r][g] = S::F::load(carry.add(LANES * (r * G + g)));
                    }
                }
            }
            let panel = self.scratch.panel.as_ptr().cast::<u8>();
            tile::<S, W::Shape, R, G>(panel, rows, place.units.len(), W::OFFSET, &mut acc);
            for r in 0..R {
                for g in 0..G {
                    if last {
                        let column = (place.group + g) * LANES;
                        finish(acc[r][g], &epilogue, &mut self.y, (place.row + r, column));
                    } else {
                        acc[r][g].store(carry.add(LANES * (r * G + g)));
                    }
                }
            }
        }
    }
}

/// `R` rows by `G` groups of a panel: the loop that prefill spends its time in.
#[inline(always)]
unsafe fn tile<S: Simd, P: Shape, const R: usize, const G: usize>(
    panel: *const u8,
    x: [*const Q8Block; R],
    units: usize,
    offset: i16,
    acc: &mut [[S::F; G]; R],
) {
    // SAFETY: the caller vouches for the instructions and for `units` units in panel and rows.
    unsafe {
        for u in 0..units {
            let unit = panel.add(u * UNIT_BYTES);
            let halves = if P::HALVES { 2 } else { 1 };
            for half in 0..halves {
                let which = match (P::HALVES, half) {
                    (false, _) => (1, 1),
                    (true, 0) => (1, 0),
                    (true, _) => (0, 1),
                };
                let mut sums = [[S::ints(0); G]; R];
                for r in 0..R {
                    sums[r] = [start::<S, P>(offset, which, x[r].add(u)); G];
                }
                let quads = 8 / halves;
                for q in half * quads..(half + 1) * quads {
                    let mut codes = [S::load(unit.add(64 * q)); G];
                    for (g, codes) in codes.iter_mut().enumerate().skip(1) {
                        *codes = S::load(unit.add(g * PANEL_UNITS * UNIT_BYTES + 64 * q));
                    }
                    for r in 0..R {
                        let x = quad_of(x[r].add(u), q);
                        for g in 0..G {
                            sums[r][g] = dot::<S, P>(sums[r][g], codes[g], x);
                        }
                    }
                }
                for g in 0..G {
                    let at = unit.add(g * PANEL_UNITS * UNIT_BYTES + 512 + 64 * half);
                    let scale = S::F::load(at.cast());
                    let min = if P::MIN {
                        S::F::load(at.add(128).cast())
                    } else {
                        scale
                    };
                    for r in 0..R {
                        acc[r][g] =
                            fold::<S, P>(acc[r][g], sums[r][g], (scale, min), x[r].add(u), half);
                    }
                }
            }
        }
    }
}

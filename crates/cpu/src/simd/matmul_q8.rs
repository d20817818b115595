//! Kernels of [`matmul_q8`](super::matmul::matmul_q8).
//!
//! [`FewRows`] takes operands from memory, [`Sweep`] from a panel; both do, for every output and every
//! unit of 32 values of `k`, exactly the operations of [`fold`] in the same order.
// Loops over a tile index several arrays with the same constants, which the compiler unrolls.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::dispatch::{Kernel, run};
use super::dot::{Simd, pair};
use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::matmul::{Columns, Epilogue, Weights};
use super::panel::{self, Carry, PREFETCH, Step, Tile, finish, walk};
use super::quantize::Q8Rows;
use super::weights::{Shape, Weight, block_bytes, units, with_weight};
use crate::q8::{Q8_VALUES, Q8Block};

/// The arguments of [`matmul_q8`](super::matmul::matmul_q8), which fit together.
pub(super) struct Product<'a> {
    pub(super) w: Weights<'a>,
    pub(super) x: Q8Rows<'a>,
    pub(super) y: Columns<'a>,
    pub(super) epilogue: Epilogue<'a>,
}

/// Rows up to which weights go straight from memory to registers.
const FEW: usize = 4;

/// Runs a product.
pub(super) fn product(isa: Isa, product: Product<'_>) {
    with_weight!(product.w.ty, W => match product.x.rows() {
        0 => (),
        1 => run(isa, FewRows::<W, 1> { product, weight: PhantomData }),
        2..=FEW => run(isa, FewRows::<W, FEW> { product, weight: PhantomData }),
        _ => many_rows::<W>(isa, product),
    }, else => unreachable!("float weights were rejected"));
}

/// The integer sums of one unit start here: minus the offset times the sum of the activations of the
/// halves whose weights in `which` are 1.
///
/// # Safety
/// The processor has the instructions of `S`; `x` points at a block (so for the next functions).
#[inline(always)]
unsafe fn start<S: Simd, P: Shape>(offset: i16, which: (i16, i16), x: *const Q8Block) -> S::Ints {
    // SAFETY: the caller's contract.
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
///
/// # Safety
/// As [`start`]; `quad` is below 8.
#[inline(always)]
unsafe fn quad_of(x: *const Q8Block, quad: usize) -> i32 {
    // SAFETY: the caller's contract.
    unsafe { x.cast::<i32>().add(quad).read_unaligned() }
}

/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
unsafe fn dot<S: Simd, P: Shape>(acc: S::Ints, codes: S::Bytes, x: i32) -> S::Ints {
    // SAFETY: the caller's contract.
    unsafe { if P::WIDE { S::dot_wide(acc, codes, x) } else { S::dot(acc, codes, x) } }
}

/// Adds a unit, or half `half` of one, to an output: first the minimum's part, then the dot product.
///
/// # Safety
/// As [`start`].
#[inline(always)]
unsafe fn fold<S: Simd, P: Shape>(
    acc: S::F,
    sum: S::Ints,
    (scale, min): (S::F, S::F),
    x: *const Q8Block,
    half: usize,
) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let d = (*x).scale;
        let acc = if P::MIN {
            let weight = if P::HALVES { d * f32::from((*x).sums[half]) } else { (*x).scaled_sum };
            min.fma(S::F::splat(weight), acc)
        } else {
            acc
        };
        S::to_f32(sum).fma(scale.mul(S::F::splat(d)), acc)
    }
}

/// At most `R` rows: weights go from memory to registers, each byte once.
struct FewRows<'a, W, const R: usize> {
    product: Product<'a>,
    weight: PhantomData<W>,
}

impl<W: Weight, const R: usize> Kernel for FewRows<'_, W, R> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if S::SCALAR {
            return many_rows::<W>(Isa::PORTABLE, self.product);
        }
        let Product { w, x, mut y, epilogue } = self.product;
        // Rows that are not there are computed as copies of the last, and not stored.
        let mut rows = [std::ptr::null(); R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = x.row(r.min(x.rows() - 1)).as_ptr();
        }
        for g in 0..w.groups() {
            // SAFETY: the group has the blocks of a row of `k` values, each row of `x` has its units.
            unsafe {
                let acc = few_rows::<S, W, R>(w.group(g), rows);
                for (r, acc) in acc.into_iter().enumerate().take(x.rows()) {
                    finish(acc, &epilogue, &mut y, (r, g * LANES));
                }
            }
        }
    }
}

/// Asks for the unit that lies [`PREFETCH`] bytes behind unit `u` of `block`.
///
/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
unsafe fn prefetch_unit<S: Simd, W: Weight>(block: *const u8, u: usize) {
    let unit_bytes = block_bytes::<W>() / units::<W>();
    for line in 0..unit_bytes.div_ceil(64) {
        // SAFETY: the caller's contract; the address need not be readable.
        unsafe { S::prefetch(block.wrapping_add(PREFETCH + u * unit_bytes + 64 * line)) };
    }
}

/// One group by `R` rows.
///
/// # Safety
/// The processor has the instructions of `S`; each `x` points at a row of the group's `k` values.
#[inline(always)]
unsafe fn few_rows<S: Simd, W: Weight, const R: usize>(group: &[u8], x: [*const Q8Block; R]) -> [S::F; R] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [S::F::zero(); R];
        for b in 0..group.len() / block_bytes::<W>() {
            let block = group.as_ptr().add(b * block_bytes::<W>());
            for u in 0..units::<W>() {
                prefetch_unit::<S, W>(block, u);
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

/// A unit in a panel.
#[repr(C, align(64))]
struct PanelUnit {
    quads: [[u8; 64]; 8],
    scale: [[f32; LANES]; 2],
    min: [[f32; LANES]; 2],
}

/// One group's part of a panel.
type PanelGroup = [PanelUnit; PANEL_UNITS];

/// Working memory on the stack, 64 KiB.
struct Scratch {
    panel: [PanelGroup; panel::GROUPS],
    carry: Carry,
}

/// Five and more rows.
fn many_rows<W: Weight>(isa: Isa, product: Product<'_>) {
    let Product { w, x, mut y, epilogue } = product;
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr();
    walk((x.rows(), w.groups(), w.k / Q8_VALUES), PANEL_UNITS, |step| {
        // SAFETY: the panel has room for the step's groups, each of at most `PANEL_UNITS` units.
        unsafe {
            let panel = (&raw mut (*scratch).panel).cast::<PanelGroup>();
            for g in 0..step.groups {
                let fill = Fill::<W> {
                    group: w.group(step.group + g),
                    units: step.k.clone(),
                    to: panel.add(g).cast(),
                    weight: PhantomData,
                };
                run(isa, fill);
            }
            let sweep = Sweep::<W::Shape> {
                panel,
                carry: (&raw mut (*scratch).carry).cast(),
                step,
                offset: W::OFFSET,
                x,
                y: y.reborrow(),
                epilogue,
                shape: PhantomData,
            };
            run(isa, sweep);
        }
    });
}

/// Unpacks units of a group into a panel.
struct Fill<'a, W> {
    group: &'a [u8],
    units: Range<usize>,
    to: *mut PanelUnit,
    weight: PhantomData<W>,
}

impl<W: Weight> Kernel for Fill<'_, W> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // Parts of `k` begin and end with whole blocks of every type.
        let mut to = self.to;
        for b in self.units.start / units::<W>()..self.units.end / units::<W>() {
            // SAFETY: the block lies in the group, and `to` has room for the units.
            unsafe {
                let block = self.group.as_ptr().add(b * block_bytes::<W>());
                for u in 0..units::<W>() {
                    prefetch_unit::<S, W>(block, u);
                    let unit = W::unit::<S>(block, u);
                    for (q, quad) in unit.quads.into_iter().enumerate() {
                        S::store(quad, (&raw mut (*to).quads[q]).cast());
                    }
                    for half in 0..if W::Shape::HALVES { 2 } else { 1 } {
                        unit.scale[half].store((&raw mut (*to).scale[half]).cast());
                        if W::Shape::MIN {
                            unit.min[half].store((&raw mut (*to).min[half]).cast());
                        }
                    }
                    to = to.add(1);
                }
            }
        }
    }
}

/// Passes rows over a panel that was filled for `step`.
struct Sweep<'a, P> {
    panel: *const PanelGroup,
    carry: *mut [f32; LANES],
    step: &'a Step,
    offset: i16,
    x: Q8Rows<'a>,
    y: Columns<'a>,
    epilogue: Epilogue<'a>,
    shape: PhantomData<P>,
}

impl<P: Shape> Kernel for Sweep<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let mut rows = self.step.rows.clone();
        // SAFETY: the caller's contract.
        unsafe {
            match (S::WIDE, self.step.groups) {
                (true, 2) => {
                    self.tiles::<S, 6, 2>(&mut rows);
                    self.tiles::<S, 2, 2>(&mut rows);
                    self.tiles::<S, 1, 2>(&mut rows);
                }
                (true, _) => {
                    self.tiles::<S, 6, 1>(&mut rows);
                    self.tiles::<S, 1, 1>(&mut rows);
                }
                (false, 2) => {
                    self.tiles::<S, 1, 2>(&mut rows);
                }
                (false, _) => {
                    self.tiles::<S, 1, 1>(&mut rows);
                }
            }
        }
    }
}

impl<P: Shape> Sweep<'_, P> {
    /// Takes `R` rows at a time off `rows`.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; the panel holds the step's units.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const R: usize, const G: usize>(&mut self, rows: &mut Range<usize>) {
        while rows.len() >= R {
            let units = self.step.k.clone();
            let mut x = [std::ptr::null(); R];
            for (r, x) in x.iter_mut().enumerate() {
                *x = self.x.row(rows.start + r)[units.clone()].as_ptr();
            }
            // SAFETY: the caller's contract; rows of a step with more than one part fit in `carry`.
            unsafe {
                let tile = Tile {
                    row: rows.start,
                    group: self.step.group,
                    first: units.start == 0,
                    last: self.step.last,
                    carry: self.carry.add((rows.start - self.step.rows.start) % panel::CARRY_ROWS * G),
                };
                let acc = tile.enter::<S::F, R, G>();
                let acc = pass::<S, P, R, G>(self.panel, x, units.len(), self.offset, acc);
                tile.leave(acc, &mut self.y, &self.epilogue);
            }
            rows.start += R;
        }
    }
}

/// `R` rows over `G` groups of a panel: the loop that prefill spends its time in.
///
/// # Safety
/// The processor has the instructions of `S`; the panel and each row have `units` units.
#[inline(always)]
unsafe fn pass<S: Simd, P: Shape, const R: usize, const G: usize>(
    panel: *const PanelGroup,
    x: [*const Q8Block; R],
    units: usize,
    offset: i16,
    mut acc: [[S::F; G]; R],
) -> [[S::F; G]; R] {
    let halves = if P::HALVES { 2 } else { 1 };
    // SAFETY: the caller's contract.
    unsafe {
        for u in 0..units {
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
                for q in half * 8 / halves..(half + 1) * 8 / halves {
                    let mut codes = [S::load((*panel)[u].quads[q].as_ptr()); G];
                    for g in 1..G {
                        codes[g] = S::load((*panel.add(g))[u].quads[q].as_ptr());
                    }
                    for r in 0..R {
                        let x = quad_of(x[r].add(u), q);
                        for g in 0..G {
                            sums[r][g] = dot::<S, P>(sums[r][g], codes[g], x);
                        }
                    }
                }
                for g in 0..G {
                    let unit = &raw const (*panel.add(g))[u];
                    let scale = S::F::load((*unit).scale[half].as_ptr());
                    let min = if P::MIN { S::F::load((*unit).min[half].as_ptr()) } else { scale };
                    for r in 0..R {
                        let x = x[r].add(u);
                        acc[r][g] = fold::<S, P>(acc[r][g], sums[r][g], (scale, min), x, half);
                    }
                }
            }
        }
    }
    acc
}

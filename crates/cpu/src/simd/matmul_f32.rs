//! Kernels of [`matmul_f32`](super::matmul::matmul_f32): float activations, weights of any type.
// Loops over a tile index several arrays with the same constants, which the compiler unrolls.
#![allow(clippy::needless_range_loop)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use tailrace_types::WeightType;

use super::dispatch::{Kernel, run};
use super::dot::Simd;
use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::matmul::{Columns, Epilogue, Weights};
use super::panel::{self, Carry, PREFETCH, Step, Tile, finish, walk};
use super::unpack::{PANEL_K, Values, fill};
use super::weights::{self, Float};

/// The arguments of [`matmul_f32`](super::matmul::matmul_f32), which fit together.
pub(super) struct Product<'a> {
    pub(super) w: Weights<'a>,
    pub(super) x: &'a [f32],
    pub(super) y: Columns<'a>,
    pub(super) epilogue: Epilogue<'a>,
}

/// Working memory on the stack, 48 KiB.
struct Scratch {
    panel: [Values; panel::GROUPS],
    carry: Carry,
}

/// Runs a product.
pub(super) fn product(isa: Isa, product: Product<'_>) {
    match (product.w.ty, product.x.len() / product.w.k) {
        (_, 0) => (),
        (WeightType::F32, 1..=FEW) => few_rows::<weights::F32>(isa, product),
        (WeightType::F16, 1..=FEW) => few_rows::<weights::F16>(isa, product),
        (WeightType::BF16, 1..=FEW) => few_rows::<weights::BF16>(isa, product),
        _ => many_rows(isa, product),
    }
}

/// Rows up to which float weights go straight from memory to registers.
const FEW: usize = 4;

fn few_rows<T: Float>(isa: Isa, product: Product<'_>) {
    if product.x.len() == product.w.k {
        run(isa, FewRows::<T, 1, 4> { product, of: PhantomData });
    } else {
        run(isa, FewRows::<T, FEW, 2> { product, of: PhantomData });
    }
}

/// At most `R` rows of float weights, `G` groups at a time to have as many sums in flight.
struct FewRows<'a, T, const R: usize, const G: usize> {
    product: Product<'a>,
    of: PhantomData<T>,
}

impl<T: Float, const R: usize, const G: usize> Kernel for FewRows<'_, T, R, G> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        if S::SCALAR {
            return many_rows(Isa::PORTABLE, self.product);
        }
        let Product { w, x, mut y, epilogue } = self.product;
        let count = x.len() / w.k;
        // Rows that are not there are computed as copies of the last, and not stored.
        let mut rows = [std::ptr::null(); R];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = x[r.min(count - 1) * w.k..][..w.k].as_ptr();
        }
        for first in (0..w.groups()).step_by(G) {
            let mut groups = [std::ptr::null(); G];
            for (g, group) in groups.iter_mut().enumerate() {
                *group = w.group((first + g).min(w.groups() - 1)).as_ptr();
            }
            // SAFETY: the caller's contract.
            let mut acc = [[unsafe { S::F::zero() }; G]; R];
            for k in 0..w.k {
                for g in 0..G {
                    // SAFETY: groups and rows have `k` values; prefetching may run past their ends.
                    unsafe {
                        S::prefetch(groups[g].wrapping_add(PREFETCH + T::BYTES * LANES * k));
                        let weight = T::at::<S::F>(groups[g], k);
                        for r in 0..R {
                            acc[r][g] = weight.fma(S::F::splat(*rows[r].add(k)), acc[r][g]);
                        }
                    }
                }
            }
            for r in 0..count {
                for g in 0..G.min(w.groups() - first) {
                    // SAFETY: the caller's contract.
                    unsafe { finish(acc[r][g], &epilogue, &mut y, (r, (first + g) * LANES)) };
                }
            }
        }
    }
}

/// Weights become floats in a panel, then all rows pass over it.
fn many_rows(isa: Isa, product: Product<'_>) {
    let Product { w, x, mut y, epilogue } = product;
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr();
    walk((x.len() / w.k, w.groups(), w.k), PANEL_K, |step| {
        // SAFETY: the panel has room for the step's groups, each of at most `PANEL_K` values.
        unsafe {
            let panel = (&raw mut (*scratch).panel).cast::<Values>();
            for g in 0..step.groups {
                let group = w.group(step.group + g);
                fill(isa, w.ty, group, step.k.clone(), panel.add(g));
            }
            let sweep =
                Sweep { panel, carry: (&raw mut (*scratch).carry).cast(), step, k: w.k, x, y: y.reborrow(), epilogue };
            run(isa, sweep);
        }
    });
}

/// Passes rows over a panel that was filled for `step`.
struct Sweep<'a> {
    panel: *const Values,
    carry: *mut [f32; LANES],
    step: &'a Step,
    k: usize,
    x: &'a [f32],
    y: Columns<'a>,
    epilogue: Epilogue<'a>,
}

impl Kernel for Sweep<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let mut rows = self.step.rows.clone();
        // SAFETY: the caller's contract.
        unsafe {
            match (S::WIDE, self.step.groups) {
                (true, 2) => {
                    self.tiles::<S, 6, 2>(&mut rows);
                    self.tiles::<S, 1, 2>(&mut rows);
                }
                (true, _) => {
                    self.tiles::<S, 6, 1>(&mut rows);
                    self.tiles::<S, 1, 1>(&mut rows);
                }
                (false, 2) => {
                    self.tiles::<S, 2, 2>(&mut rows);
                    self.tiles::<S, 1, 2>(&mut rows);
                }
                (false, _) => {
                    self.tiles::<S, 1, 1>(&mut rows);
                }
            }
        }
    }
}

impl Sweep<'_> {
    /// Takes `R` rows at a time off `rows`.
    ///
    /// # Safety
    /// The processor has the instructions of `S`; the panel holds the step's values.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const R: usize, const G: usize>(&mut self, rows: &mut Range<usize>) {
        while rows.len() >= R {
            let part = self.step.k.clone();
            let mut x = [std::ptr::null(); R];
            for (r, x) in x.iter_mut().enumerate() {
                let row = &self.x[(rows.start + r) * self.k..][..self.k];
                *x = row[part.clone()].as_ptr();
            }
            // SAFETY: the caller's contract; rows of a step with more than one part fit in `carry`.
            unsafe {
                let tile = Tile {
                    row: rows.start,
                    group: self.step.group,
                    first: part.start == 0,
                    last: self.step.last,
                    carry: self.carry.add((rows.start - self.step.rows.start) % panel::CARRY_ROWS * G),
                };
                let mut acc = tile.enter::<S::F, R, G>();
                for k in 0..part.len() {
                    let mut w = [S::F::load((*self.panel)[k].as_ptr()); G];
                    for g in 1..G {
                        w[g] = S::F::load((*self.panel.add(g))[k].as_ptr());
                    }
                    for r in 0..R {
                        let x = S::F::splat(*x[r].add(k));
                        for g in 0..G {
                            acc[r][g] = w[g].fma(x, acc[r][g]);
                        }
                    }
                }
                tile.leave(acc, &mut self.y, &self.epilogue);
            }
            rows.start += R;
        }
    }
}

//! Kernels of [`matmul_f32`](super::matmul::matmul_f32): float activations, weights of any type.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::dispatch::{Kernel, run};
use super::dot::Simd;
use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use super::matmul::{Columns, Epilogue, Weights};
use super::panel::{self, Carry, Step, Tile, walk};
use super::unpack::{PANEL_K, Values, fill};

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

/// Runs a product: weights become floats in a panel, then all rows pass over it.
pub(super) fn product(isa: Isa, product: Product<'_>) {
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

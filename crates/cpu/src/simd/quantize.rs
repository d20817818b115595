//! Quantisation of activations to [`Q8Block`]s.

use super::dispatch::{Kernel, run};
use super::dot::Simd;
use super::isa::Isa;
use super::lanes::{LANES, Lanes};
use crate::q8::{Q8_VALUES, Q8Block, SMALLEST_AMAX};

/// Rows of quantised activations.
#[derive(Clone, Copy, Debug)]
pub struct Q8Rows<'a> {
    blocks: &'a [Q8Block],
    blocks_per_row: usize,
}

impl<'a> Q8Rows<'a> {
    /// Rows of `k` values, from bytes that [`quantize_row`] filled.
    ///
    /// # Panics
    /// If the bytes are no whole number of rows or not aligned to 4.
    pub fn new(bytes: &'a [u8], k: usize) -> Self {
        // SAFETY: a `Q8Block` is plain numbers without padding, so any bytes make one.
        let (before, blocks, after) = unsafe { bytes.align_to::<Q8Block>() };
        assert!(before.is_empty() && after.is_empty(), "aligned, whole blocks");
        Self::from_blocks(blocks, k)
    }

    /// Rows of `k` values.
    ///
    /// # Panics
    /// If the blocks are no whole number of rows.
    pub fn from_blocks(blocks: &'a [Q8Block], k: usize) -> Self {
        let blocks_per_row = k / Q8_VALUES;
        assert!(k > 0 && k.is_multiple_of(Q8_VALUES), "rows of whole blocks");
        assert!(blocks.len().is_multiple_of(blocks_per_row), "whole rows");
        Q8Rows { blocks, blocks_per_row }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.blocks.len() / self.blocks_per_row
    }

    /// Values in a row.
    pub fn k(&self) -> usize {
        self.blocks_per_row * Q8_VALUES
    }

    /// The blocks of row `row`.
    pub fn row(&self, row: usize) -> &'a [Q8Block] {
        &self.blocks[row * self.blocks_per_row..][..self.blocks_per_row]
    }
}

/// Quantises one row into [`q8_row_bytes`](crate::q8::q8_row_bytes) bytes, aligned to 4.
///
/// Rounds to nearest, ties to even; the result is the same on every instruction set. A value that is not
/// finite makes its block's scale NaN, so that it shows in every product.
///
/// # Panics
/// If `x` is no whole number of blocks or `to` has not the size and alignment of as many.
pub fn quantize_row(isa: Isa, x: &[f32], to: &mut [u8]) {
    // SAFETY: a `Q8Block` is plain numbers without padding, so any bytes make one and it makes any bytes.
    let (before, blocks, after) = unsafe { to.align_to_mut::<Q8Block>() };
    assert!(before.is_empty() && after.is_empty(), "aligned, whole blocks");
    quantize_blocks(isa, x, blocks);
}

/// [`quantize_row`] into blocks.
///
/// # Panics
/// If `x` is not exactly 32 values for each block.
pub fn quantize_blocks(isa: Isa, x: &[f32], to: &mut [Q8Block]) {
    let (x, rest) = x.as_chunks::<Q8_VALUES>();
    assert!(rest.is_empty() && x.len() == to.len(), "32 values a block");
    run(isa, Quantize { x, to });
}

struct Quantize<'a> {
    x: &'a [[f32; Q8_VALUES]],
    to: &'a mut [Q8Block],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (x, to) in self.x.iter().zip(self.to) {
            // SAFETY: the caller vouches for the instructions; both halves of `x` and of `values` have
            // 16 elements.
            unsafe {
                let zero = S::F::zero();
                let x = [S::F::load(x.as_ptr()), S::F::load(x.as_ptr().add(LANES))];
                let magnitude = [x[0].max(zero.sub(x[0])), x[1].max(zero.sub(x[1]))];
                let (scale, inverse) = scales(magnitude[0].max(magnitude[1]).max_lane());
                let inverse = S::F::splat(inverse);
                let q = [x[0].mul(inverse).round(), x[1].mul(inverse).round()];
                S::store_i8(q[0], to.values.as_mut_ptr());
                S::store_i8(q[1], to.values.as_mut_ptr().add(LANES));
                let sums = [q[0].sum(), q[1].sum()];
                let total = sums[0] + sums[1];
                // The maximum may have ignored a NaN; the sums have not.
                to.scale = if total.is_nan() { f32::NAN } else { scale };
                to.scaled_sum = to.scale * total;
                to.sums = [sums[0] as i16, sums[1] as i16];
            }
        }
    }
}

/// The scale of a block and its reciprocal, from its largest magnitude.
#[inline(always)]
pub(crate) fn scales(amax: f32) -> (f32, f32) {
    if amax < SMALLEST_AMAX { (0.0, 0.0) } else { (amax / 127.0, 127.0 / amax) }
}

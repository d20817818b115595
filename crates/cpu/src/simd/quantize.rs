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
        for (x, to) in self.x.chunks(LANES).zip(self.to.chunks_mut(LANES)) {
            // SAFETY: the caller vouches for the instructions; both chunks have at most 16 blocks.
            unsafe { quantize_chunk::<S>(x, to) };
        }
    }
}

/// At most 16 blocks: their largest magnitudes are found for all at once, one block in each lane.
///
/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
unsafe fn quantize_chunk<S: Simd>(x: &[[f32; Q8_VALUES]], to: &mut [Q8Block]) {
    // SAFETY: the caller's contract; loads and stores are of 16 elements of `x`, `values` or local arrays.
    unsafe {
        let zero = S::F::zero();
        let mut magnitudes = [zero; LANES];
        for (x, magnitude) in x.iter().zip(&mut magnitudes) {
            let (a, b) = (S::F::load(x.as_ptr()), S::F::load(x.as_ptr().add(LANES)));
            let largest = a.max(zero.sub(a)).max(b.max(zero.sub(b)));
            // Maxima may ignore a NaN; this puts it back.
            *magnitude = largest.add(a.mul(zero).add(b.mul(zero)));
        }
        let magnitudes = S::F::transpose(magnitudes);
        let mut amax = zero;
        let mut poison = zero;
        for magnitude in magnitudes {
            amax = magnitude.max(amax);
            poison = magnitude.fma(zero, poison);
        }
        let smallest = zero.same(SMALLEST_AMAX);
        let (mut scale, mut inverse) = ([0f32; LANES], [0f32; LANES]);
        let of = amax.div(zero.same(127.0)).add(poison);
        amax.select_less(smallest, poison, of).store(scale.as_mut_ptr());
        let of = zero.same(127.0).div(amax);
        amax.select_less(smallest, zero, of).store(inverse.as_mut_ptr());
        for (b, (x, to)) in x.iter().zip(to).enumerate() {
            let inverse = S::F::splat(inverse[b]);
            let half = |at: *const f32| S::F::load(at).mul(inverse);
            let low = S::store_i8(half(x.as_ptr()), to.values.as_mut_ptr());
            let high = S::store_i8(half(x.as_ptr().add(LANES)), to.values.as_mut_ptr().add(LANES));
            to.scale = scale[b];
            to.scaled_sum = scale[b] * (low + high) as f32;
            to.sums = [low as i16, high as i16];
        }
    }
}

//! Random weights and cells: for measuring shapes without a file, and for the conformance cases.
//!
//! Everything is a function of a seed and of its own place, so parts can be made in any order and on any device.

use std::borrow::Cow;

use half::{bf16, f16};
use tailrace_types::WeightType;

use crate::plan::spec::TensorSlice;
use crate::{DeviceError, WeightFile};

/// The output function of SplitMix64 (Steele, Lea, Flood 2014): all bits depend on all bits.
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number of mean 0 and deviation 1, bell-shaped, of magnitude below 3.5: the sum of the four quarters of `bits`.
///
/// One product is its only rounding, so every device makes the same bits.
pub fn normal(bits: u64) -> f32 {
    // Four uniform numbers below 2^16 have the mean 4 * 32767.5 and the deviation 2^16 / sqrt(3).
    const PER_DEVIATION: f32 = 1.732_050_8 / 65_536.0;
    let sum = (0..4).map(|quarter| (bits >> (16 * quarter) & 0xffff) as i32).sum::<i32>();
    (sum - 131_070) as f32 * PER_DEVIATION
}

/// The numbers of one row: of a cell, or of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers(u64);

impl Numbers {
    /// The numbers of row `row` of the `which`-th thing.
    pub const fn new(seed: u64, which: u32, row: u32) -> Self {
        Numbers(mix(mix(seed) ^ ((which as u64) << 32 | row as u64)))
    }

    /// The number at `place`; any bits.
    pub const fn bits(self, place: u64) -> u64 {
        mix(self.0.wrapping_add(place))
    }

    /// The number at `place`, see [`normal`].
    pub fn normal(self, place: u64) -> f32 {
        normal(self.bits(place))
    }
}

/// What [`Executor::fill`](crate::Executor::fill) stores: element `place` of the cell at `position` of a layer, its keys
/// `[kv_head][dk]` first and then its values `[kv_head][dv]`, is `cell(..).normal(place)`.
pub const fn cell(seed: u64, layer: u32, position: u32) -> Numbers {
    Numbers::new(seed, layer, position)
}

/// A model file of random codes and scales. Matrices map inputs of deviation 1 to outputs of about as much; vectors
/// (gains, biases, factors) lie between 0.75 and 1.25.
///
/// Every code of every type occurs, and scales have the signs that they have in real files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticWeights {
    seed: u64,
}

impl SyntheticWeights {
    /// The file with that seed.
    pub const fn new(seed: u64) -> Self {
        SyntheticWeights { seed }
    }
}

impl WeightFile for SyntheticWeights {
    fn rows(&self, slice: &TensorSlice, first: u64, count: u64) -> Result<Cow<'_, [u8]>, DeviceError> {
        let block = slice.ty.block();
        let row_bytes =
            block.bytes_of(slice.cols).ok_or_else(|| DeviceError::Weights(format!("{slice:?} is uneven")))?;
        let scale = 1.0 / ((slice.cols as f32).sqrt() * deviation(slice.ty));
        let mut bytes = vec![0; (count * row_bytes) as usize];
        if bytes.is_empty() {
            return Ok(Cow::Owned(bytes));
        }
        for (row, bytes) in bytes.chunks_exact_mut(row_bytes as usize).enumerate() {
            let row = slice.first_row + first + row as u64;
            let numbers = Numbers::new(self.seed, slice.tensor, row as u32);
            for (at, bytes) in bytes.chunks_exact_mut(block.bytes as usize).enumerate() {
                fill_block(slice.ty, scale, numbers, at as u64, bytes);
            }
        }
        Ok(Cow::Owned(bytes))
    }

    fn release(&self, _slice: &TensorSlice, _first: u64, _count: u64) {}

    fn values(&self, slice: &TensorSlice) -> Result<Vec<f32>, DeviceError> {
        let numbers = Numbers::new(self.seed, slice.tensor, u32::MAX);
        let first = slice.first_row * slice.cols;
        Ok((first..first + slice.rows * slice.cols).map(|at| 0.75 + 0.5 * unit(numbers.bits(at))).collect())
    }
}

/// 0 up to 1.
fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 24) as f32
}

/// Words of random bits that a block takes at most, so that blocks do not share any.
const BLOCK_WORDS: u64 = 32;

/// The bytes of block `at` of a row: random codes, and scales around `scale`.
fn fill_block(ty: WeightType, scale: f32, numbers: Numbers, at: u64, block: &mut [u8]) {
    let first = at * BLOCK_WORDS;
    let own = numbers.bits(first + BLOCK_WORDS - 1);
    match ty {
        WeightType::F32 => return block.copy_from_slice(&(scale * normal(own)).to_le_bytes()),
        WeightType::F16 => return block.copy_from_slice(&f16::from_f32(scale * normal(own)).to_le_bytes()),
        WeightType::BF16 => return block.copy_from_slice(&bf16::from_f32(scale * normal(own)).to_le_bytes()),
        _ => (),
    }
    for (i, bytes) in block.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&numbers.bits(first + i as u64).to_le_bytes()[..bytes.len()]);
    }
    // Blocks differ: between 0.75 and 1.25 of the scale.
    let scale = scale * (0.75 + 0.5 * unit(own));
    if ty == WeightType::MXFP4 {
        // The scale is the exponent of a power of two.
        block[0] = (127.0 + scale.log2().round()).clamp(0.0, 254.0) as u8;
        return;
    }
    let signed = if own & 1 == 0 { scale } else { -scale };
    for (at, factor) in scales(ty) {
        // Types with minima have scales of one sign.
        let value = if scales(ty).len() == 1 { signed } else { factor * scale };
        block[*at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    }
}

/// Where a block has its f16 scale, and its minimum, which moves the mean of the values to 0; in units of the scale.
const fn scales(ty: WeightType) -> &'static [(usize, f32)] {
    match ty {
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 | WeightType::IQ4_NL | WeightType::IQ4_XS => &[(0, 1.0)],
        WeightType::Q3_K => &[(108, 1.0)],
        WeightType::Q6_K => &[(208, 1.0)],
        WeightType::Q4_1 => &[(0, 1.0), (2, -7.5)],
        WeightType::Q5_1 => &[(0, 1.0), (2, -15.5)],
        WeightType::Q4_K => &[(0, 1.0), (2, 7.5)],
        WeightType::Q5_K => &[(0, 1.0), (2, 15.5)],
        WeightType::Q2_K => &[(80, 1.0), (82, 1.5)],
        WeightType::MXFP4 | WeightType::F32 | WeightType::F16 | WeightType::BF16 => &[],
    }
}

/// Deviation of the values that random codes with a scale of 1 stand for, from the second moments of codes, sub-block
/// scales and minima.
const fn deviation(ty: WeightType) -> f32 {
    match ty {
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => 1.0,
        WeightType::Q4_0 | WeightType::Q4_1 => 4.64,
        WeightType::Q5_0 | WeightType::Q5_1 => 9.25,
        WeightType::Q8_0 => 73.9,
        WeightType::Q2_K => 13.9,
        WeightType::Q3_K => 43.3,
        WeightType::Q4_K => 258.0,
        WeightType::Q5_K => 527.0,
        WeightType::Q6_K => 1366.0,
        WeightType::IQ4_NL => 67.4,
        WeightType::IQ4_XS => 1246.0,
        WeightType::MXFP4 => 2.93,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_deviation_one() {
        let numbers: Vec<f64> = (0..20_000).map(|i| f64::from(cell(7, 3, 11).normal(i))).collect();
        let mean = numbers.iter().sum::<f64>() / 2e4;
        let square = numbers.iter().map(|x| x * x).sum::<f64>() / 2e4;
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.03, "{mean} {square}");
        assert!(numbers.iter().all(|x| x.abs() < 3.5));
        assert!((normal(0) + 3.464_05).abs() < 1e-4);
        assert_eq!(normal(u64::MAX), -normal(0));
    }

    #[test]
    fn parts_of_a_matrix_are_those_of_the_whole() {
        let file = SyntheticWeights::new(5);
        for &ty in WeightType::ALL {
            let slice = TensorSlice { tensor: 2, ty, first_row: 1, rows: 6, cols: 512 };
            let whole = file.rows(&slice, 0, 6).unwrap();
            let row = whole.len() / 6;
            assert_eq!(*file.rows(&slice, 2, 3).unwrap(), whole[2 * row..5 * row], "{ty}");
            let cut = TensorSlice { first_row: 4, rows: 2, ..slice };
            assert_eq!(*file.rows(&cut, 0, 2).unwrap(), whole[3 * row..5 * row], "{ty}");
            assert_ne!(whole[..row], whole[row..2 * row], "{ty}");
            let other = TensorSlice { tensor: 3, ..slice };
            assert_ne!(file.rows(&other, 0, 6).unwrap(), whole, "{ty}");
        }
        let uneven = TensorSlice { tensor: 0, ty: WeightType::Q4_K, first_row: 0, rows: 1, cols: 100 };
        assert!(file.rows(&uneven, 0, 1).is_err());
    }
}

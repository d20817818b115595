//! Block formats and their naive decoding: the oracle that every kernel is tested against.
//!
//! Plain loops in the order of the formulas, so that a reader can check them. Layouts and formulas are those of ggml
//! (`ggml-common.h`, `ggml-quants.c`); `golden/blocks` holds blocks that the `gguf` Python package decoded. Any bit pattern is
//! safe to decode: a scale may be infinite or no number, and only four or five masked bits ever index a table.

use half::{bf16, f16};
use tailrace_types::WeightType;

use crate::kquant;

/// Values of the 4-bit codes of IQ4_NL and IQ4_XS.
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of the 4-bit floats (E2M1) of MXFP4.
pub(crate) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Decodes `row`, a whole number of blocks of type `ty`, to as many values.
///
/// # Panics
///
/// If the lengths of `row` and `out` are not those of the same whole number of blocks.
pub fn decode_row(ty: WeightType, row: &[u8], out: &mut [f32]) {
    let block = ty.block();
    assert_eq!(
        block.bytes_of(out.len() as u64),
        Some(row.len() as u64),
        "{} bytes of {ty} are {} values",
        row.len(),
        out.len()
    );
    let decode: fn(&[u8], &mut [f32]) = match ty {
        WeightType::F32 => f32_value,
        WeightType::F16 => f16_value,
        WeightType::BF16 => bf16_value,
        WeightType::Q4_0 => q4_0,
        WeightType::Q4_1 => q4_1,
        WeightType::Q5_0 => q5_0,
        WeightType::Q5_1 => q5_1,
        WeightType::Q8_0 => q8_0,
        WeightType::IQ4_NL => iq4_nl,
        WeightType::MXFP4 => mxfp4,
        WeightType::Q2_K => kquant::q2_k,
        WeightType::Q3_K => kquant::q3_k,
        WeightType::Q4_K => kquant::q4_k,
        WeightType::Q5_K => kquant::q5_k,
        WeightType::Q6_K => kquant::q6_k,
        WeightType::IQ4_XS => kquant::iq4_xs,
    };
    let blocks = row.chunks_exact(block.bytes as usize);
    for (bytes, values) in blocks.zip(out.chunks_exact_mut(block.elements as usize)) {
        decode(bytes, values);
    }
}

/// The 16-bit float at byte `at`.
pub(crate) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The 4-bit code of element `j` of 32: low nibbles are the first half, high nibbles the second.
pub(crate) fn nibble(codes: &[u8], j: usize) -> u8 {
    match j {
        0..16 => codes[j] & 15,
        _ => codes[j - 16] >> 4,
    }
}

/// Bit `j` of 32 as the fifth bit of a code.
fn fifth_bit(bits: &[u8], j: usize) -> u8 {
    (bits[j / 8] >> (j % 8) & 1) << 4
}

fn f32_value(bytes: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
}

fn f16_value(bytes: &[u8], out: &mut [f32]) {
    out[0] = half_at(bytes, 0);
}

fn bf16_value(bytes: &[u8], out: &mut [f32]) {
    out[0] = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
}

/// `d: f16, codes: [u8; 16]`.
fn q4_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(nibble(&bytes[2..], j) as i8 - 8);
    }
}

/// `d: f16, m: f16, codes: [u8; 16]`.
fn q4_1(bytes: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(bytes, 0), half_at(bytes, 2));
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(nibble(&bytes[4..], j)) + m;
    }
}

/// `d: f16, fifth bits: u32, codes: [u8; 16]`.
fn q5_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (j, out) in out.iter_mut().enumerate() {
        let code = nibble(&bytes[6..], j) | fifth_bit(&bytes[2..6], j);
        *out = d * f32::from(code as i8 - 16);
    }
}

/// `d: f16, m: f16, fifth bits: u32, codes: [u8; 16]`.
fn q5_1(bytes: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(bytes, 0), half_at(bytes, 2));
    for (j, out) in out.iter_mut().enumerate() {
        let code = nibble(&bytes[8..], j) | fifth_bit(&bytes[4..8], j);
        *out = d * f32::from(code) + m;
    }
}

/// `d: f16, codes: [i8; 32]`.
fn q8_0(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(bytes[2 + j] as i8);
    }
}

/// `d: f16, codes: [u8; 16]` into [`IQ4_VALUES`].
fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(IQ4_VALUES[nibble(&bytes[2..], j) as usize]);
    }
}

/// `exponent: u8, codes: [u8; 16]` into [`MXFP4_VALUES`].
fn mxfp4(bytes: &[u8], out: &mut [f32]) {
    let d = mxfp4_scale(bytes[0]);
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(MXFP4_VALUES[nibble(&bytes[1..], j) as usize]);
    }
}

/// `2^(exponent - 128)`: half of the scale that the format means, because the table holds doubled values. The two smallest are
/// subnormal.
pub(crate) fn mxfp4_scale(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits((u32::from(exponent) - 1) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_of_mxfp4_are_powers_of_two() {
        for exponent in 0..=u8::MAX {
            let expected = 2f64.powi(i32::from(exponent) - 128);
            assert_eq!(f64::from(mxfp4_scale(exponent)), expected);
        }
    }

    #[test]
    #[should_panic(expected = "35 bytes of Q8_0")]
    fn lengths_must_agree() {
        decode_row(WeightType::Q8_0, &[0; 35], &mut [0.0; 32]);
    }
}

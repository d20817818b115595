//! Simple quantisers, for tests and tools.
//!
//! Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 round as the reference of ggml (`ggml-quants.c`, the `_ref` functions), bit for bit. The others round
//! to nearest within each sub-block: every block they make is valid and close to its input, but a quantiser that searches for better
//! scales loses less. Values that are no number become some code; nothing here panics on them.

use half::{bf16, f16};
use tailrace_types::WeightType;

use crate::block::{IQ4_VALUES, MXFP4_VALUES, mxfp4_scale};
use crate::quantize_k;

/// Encodes `values`, a whole number of blocks of type `ty`.
///
/// # Panics
///
/// If `values` are no whole number of blocks.
pub fn quantize_row(ty: WeightType, values: &[f32]) -> Vec<u8> {
    let block = ty.block();
    let bytes = block.bytes_of(values.len() as u64);
    let bytes = bytes.expect("a row is a whole number of blocks");
    let mut out = vec![0; bytes as usize];
    let encode: fn(&[f32], &mut [u8]) = match ty {
        WeightType::F32 => |x, out| out.copy_from_slice(&x[0].to_le_bytes()),
        WeightType::F16 => |x, out| put_half(out, 0, x[0]),
        WeightType::BF16 => |x, out| out.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()),
        WeightType::Q4_0 => q4_0,
        WeightType::Q4_1 => q4_1,
        WeightType::Q5_0 => q5_0,
        WeightType::Q5_1 => q5_1,
        WeightType::Q8_0 => q8_0,
        WeightType::IQ4_NL => iq4_nl,
        WeightType::MXFP4 => mxfp4,
        WeightType::Q2_K => quantize_k::q2_k,
        WeightType::Q3_K => quantize_k::q3_k,
        WeightType::Q4_K => quantize_k::q4_k,
        WeightType::Q5_K => quantize_k::q5_k,
        WeightType::Q6_K => quantize_k::q6_k,
        WeightType::IQ4_XS => quantize_k::iq4_xs,
    };
    let blocks = values.chunks_exact(block.elements as usize);
    for (values, out) in blocks.zip(out.chunks_exact_mut(block.bytes as usize)) {
        encode(values, out);
    }
    out
}

/// Stores `value` as a 16-bit float at byte `at`.
pub(crate) fn put_half(out: &mut [u8], at: usize, value: f32) {
    out[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// The value of the largest magnitude, with its sign; the first of equals.
pub(crate) fn absmax(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |max: f32, &x| if x.abs() > max.abs() { x } else { max })
}

/// Smallest and largest value.
pub(crate) fn min_max(values: &[f32]) -> (f32, f32) {
    let first = values.first().copied().unwrap_or(0.0);
    let widen = |(min, max): (f32, f32), &x: &f32| (min.min(x), max.max(x));
    values.iter().fold((first, first), widen)
}

/// `1 / scale`, or 0 for a scale of 0: then every code is that of 0.
pub(crate) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Index of the entry of `table` nearest to `x`; the first of equals.
pub(crate) fn nearest(table: &[i8; 16], x: f32) -> u8 {
    let mut best = 0;
    for (code, &value) in table.iter().enumerate() {
        let distance = |value: i8| (x - f32::from(value)).abs();
        if distance(value) < distance(table[best]) {
            best = code;
        }
    }
    best as u8
}

/// Stores the low four bits of 32 codes: the first half as low nibbles, the second as high ones.
pub(crate) fn put_nibbles(out: &mut [u8], codes: &[u8; 32]) {
    for j in 0..16 {
        out[j] = codes[j] & 15 | codes[j + 16] << 4;
    }
}

/// Stores the fifth bits of 32 codes.
fn put_fifth_bits(out: &mut [u8], codes: &[u8; 32]) {
    let bits = (0..32).fold(0u32, |bits, j| bits | u32::from(codes[j] >> 4 & 1) << j);
    out[..4].copy_from_slice(&bits.to_le_bytes());
}

/// Code of each of 32 values.
pub(crate) fn codes(values: &[f32], code: impl Fn(f32) -> u8) -> [u8; 32] {
    let mut codes = [0; 32];
    for (out, &x) in codes.iter_mut().zip(values) {
        *out = code(x);
    }
    codes
}

fn q4_0(values: &[f32], out: &mut [u8]) {
    let d = absmax(values) / -8.0;
    let id = inverse(d);
    put_half(out, 0, d);
    put_nibbles(&mut out[2..], &codes(values, |x| ((x * id + 8.5) as u8).min(15)));
}

fn q4_1(values: &[f32], out: &mut [u8]) {
    let (min, max) = min_max(values);
    let d = (max - min) / 15.0;
    let id = inverse(d);
    put_half(out, 0, d);
    put_half(out, 2, min);
    put_nibbles(&mut out[4..], &codes(values, |x| (((x - min) * id + 0.5) as u8).min(15)));
}

fn q5_0(values: &[f32], out: &mut [u8]) {
    let d = absmax(values) / -16.0;
    let id = inverse(d);
    let codes = codes(values, |x| ((x * id + 16.5) as u8).min(31));
    put_half(out, 0, d);
    put_fifth_bits(&mut out[2..], &codes);
    put_nibbles(&mut out[6..], &codes);
}

fn q5_1(values: &[f32], out: &mut [u8]) {
    let (min, max) = min_max(values);
    let d = (max - min) / 31.0;
    let id = inverse(d);
    let codes = codes(values, |x| (((x - min) * id + 0.5) as u8).min(31));
    put_half(out, 0, d);
    put_half(out, 2, min);
    put_fifth_bits(&mut out[4..], &codes);
    put_nibbles(&mut out[8..], &codes);
}

fn q8_0(values: &[f32], out: &mut [u8]) {
    let d = absmax(values).abs() / 127.0;
    let id = inverse(d);
    put_half(out, 0, d);
    for (out, &x) in out[2..].iter_mut().zip(values) {
        // `round` rounds halves away from zero.
        *out = (x * id).round() as i8 as u8;
    }
}

fn iq4_nl(values: &[f32], out: &mut [u8]) {
    let d = absmax(values) / f32::from(IQ4_VALUES[0]);
    let id = inverse(d);
    put_half(out, 0, d);
    put_nibbles(&mut out[2..], &codes(values, |x| nearest(&IQ4_VALUES, x * id)));
}

fn mxfp4(values: &[f32], out: &mut [u8]) {
    // The exponent of the largest value less that of the largest 4-bit float, 6 = 1.5 x 2^2, as the OCP specification of
    // microscaling formats has it (section 6.3).
    let exponent = absmax(values).abs().log2().floor() - 2.0 + 127.0;
    out[0] = exponent.clamp(0.0, 254.0) as u8;
    let id = 1.0 / mxfp4_scale(out[0]);
    put_nibbles(&mut out[1..], &codes(values, |x| nearest(&MXFP4_VALUES, x * id)));
}

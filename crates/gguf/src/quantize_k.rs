//! Round-to-nearest quantisers of the formats in super-blocks of 256 elements.
//!
//! All in the same three moves: an ideal scale for each sub-block, those scales rounded to integers of one common 16-bit scale, and
//! then codes for the scales as they will be decoded.

use half::f16;

use crate::block::IQ4_VALUES;
use crate::quantize::{absmax, inverse, min_max, nearest, put_half, put_nibbles};

/// `scale` as a decoder will see it.
fn rounded(scale: f32) -> f32 {
    f16::from_f32(scale).to_f32()
}

/// Signed scales of the sub-blocks as multiples of one: `(common scale, multiples)`, the largest with magnitude `max`.
fn signed_scales<const N: usize>(ideal: [f32; N], max: f32) -> (f32, [i8; N]) {
    let d = rounded(absmax(&ideal).abs() / max);
    let id = inverse(d);
    (d, ideal.map(|scale| (scale * id).round().clamp(-max, max) as i8))
}

/// Scales and minima of sub-blocks as multiples of one each, up to `max`.
struct Affine<const N: usize> {
    d: f32,
    d_min: f32,
    scales: [u8; N],
    mins: [u8; N],
}

impl<const N: usize> Affine<N> {
    /// For `values` in `N` equal sub-blocks with codes up to `code_max`. A minimum is subtracted, so it is never negative.
    fn of(values: &[f32], code_max: f32, max: f32) -> Self {
        let mut ideal = [0.0; N];
        let mut ideal_min = [0.0; N];
        for (sub, values) in values.chunks_exact(values.len() / N).enumerate() {
            let (low, high) = min_max(values);
            let low = low.min(0.0);
            ideal[sub] = (high.max(0.0) - low) / code_max;
            ideal_min[sub] = -low;
        }
        let d = rounded(absmax(&ideal) / max);
        let d_min = rounded(absmax(&ideal_min) / max);
        let multiples =
            |ideal: [f32; N], unit: f32| ideal.map(|value| (value * inverse(unit)).round().clamp(0.0, max) as u8);
        Self { d, d_min, scales: multiples(ideal, d), mins: multiples(ideal_min, d_min) }
    }

    /// The code of `x` in sub-block `sub`.
    fn code(&self, sub: usize, x: f32, code_max: f32) -> u8 {
        let scale = self.d * f32::from(self.scales[sub]);
        let min = self.d_min * f32::from(self.mins[sub]);
        ((x + min) * inverse(scale)).round().clamp(0.0, code_max) as u8
    }
}

pub(crate) fn q2_k(values: &[f32], out: &mut [u8]) {
    let affine = Affine::<16>::of(values, 3.0, 15.0);
    for (out, (scale, min)) in out.iter_mut().zip(affine.scales.iter().zip(affine.mins)) {
        *out = scale | min << 4;
    }
    for (element, &x) in values.iter().enumerate() {
        put_two_bits(&mut out[16..80], element, affine.code(element / 16, x, 3.0));
    }
    put_half(out, 80, affine.d);
    put_half(out, 82, affine.d_min);
}

/// Stores the low two bits of the code of an element of Q2_K and Q3_K: 32 bytes hold four groups of 32, two bits a group.
fn put_two_bits(codes: &mut [u8], element: usize, code: u8) {
    codes[element / 128 * 32 + element % 32] |= (code & 3) << (2 * (element % 128 / 32));
}

pub(crate) fn q3_k(values: &[f32], out: &mut [u8]) {
    let mut ideal = [0.0; 16];
    for (scale, values) in ideal.iter_mut().zip(values.chunks_exact(16)) {
        *scale = absmax(values) / -4.0;
    }
    let (d, scales) = signed_scales(ideal, 31.0);
    for (sub, &scale) in scales.iter().enumerate() {
        let code = (scale + 32) as u8;
        out[96 + sub % 8] |= (code & 15) << (4 * (sub / 8));
        out[104 + sub % 4] |= code >> 4 << (2 * (sub / 4));
    }
    for (element, &x) in values.iter().enumerate() {
        let id = inverse(d * f32::from(scales[element / 16]));
        let code = ((x * id).round().clamp(-4.0, 3.0) + 4.0) as u8;
        put_two_bits(&mut out[32..96], element, code);
        out[element % 32] |= code >> 2 << (element / 32);
    }
    put_half(out, 108, d);
}

/// Stores the scales and minima of Q4_K and Q5_K, six bits each.
fn put_scales_and_mins(out: &mut [u8], scales: &[u8; 8], mins: &[u8; 8]) {
    for sub in 0..4 {
        out[sub] = scales[sub] | scales[sub + 4] >> 4 << 6;
        out[sub + 4] = mins[sub] | mins[sub + 4] >> 4 << 6;
        out[sub + 8] = scales[sub + 4] & 15 | mins[sub + 4] << 4;
    }
}

/// Stores the low four bits of the code of an element of Q4_K and Q5_K.
fn put_four_bits(codes: &mut [u8], element: usize, code: u8) {
    codes[element / 64 * 32 + element % 32] |= (code & 15) << (4 * (element / 32 % 2));
}

pub(crate) fn q4_k(values: &[f32], out: &mut [u8]) {
    let affine = Affine::<8>::of(values, 15.0, 63.0);
    put_half(out, 0, affine.d);
    put_half(out, 2, affine.d_min);
    put_scales_and_mins(&mut out[4..16], &affine.scales, &affine.mins);
    for (element, &x) in values.iter().enumerate() {
        put_four_bits(&mut out[16..], element, affine.code(element / 32, x, 15.0));
    }
}

pub(crate) fn q5_k(values: &[f32], out: &mut [u8]) {
    let affine = Affine::<8>::of(values, 31.0, 63.0);
    put_half(out, 0, affine.d);
    put_half(out, 2, affine.d_min);
    put_scales_and_mins(&mut out[4..16], &affine.scales, &affine.mins);
    for (element, &x) in values.iter().enumerate() {
        let sub = element / 32;
        let code = affine.code(sub, x, 31.0);
        put_four_bits(&mut out[48..], element, code);
        out[16 + element % 32] |= code >> 4 << sub;
    }
}

pub(crate) fn q6_k(values: &[f32], out: &mut [u8]) {
    let mut ideal = [0.0; 16];
    for (scale, values) in ideal.iter_mut().zip(values.chunks_exact(16)) {
        *scale = absmax(values) / -32.0;
    }
    let (d, scales) = signed_scales(ideal, 127.0);
    for (element, &x) in values.iter().enumerate() {
        let id = inverse(d * f32::from(scales[element / 16]));
        let code = ((x * id).round().clamp(-32.0, 31.0) + 32.0) as u8;
        let (half, group, lane) = (element / 128, element % 128 / 32, element % 32);
        out[64 * half + 32 * (group % 2) + lane] |= (code & 15) << (4 * (group / 2));
        out[128 + 32 * half + lane] |= code >> 4 << (2 * group);
    }
    for (sub, scale) in scales.into_iter().enumerate() {
        out[192 + sub] = scale as u8;
    }
    put_half(out, 208, d);
}

pub(crate) fn iq4_xs(values: &[f32], out: &mut [u8]) {
    let mut ideal = [0.0; 8];
    for (scale, values) in ideal.iter_mut().zip(values.chunks_exact(32)) {
        *scale = absmax(values) / f32::from(IQ4_VALUES[0]);
    }
    let (d, scales) = signed_scales(ideal, 31.0);
    put_half(out, 0, d);
    let mut scales_high = 0u16;
    for (sub, &scale) in scales.iter().enumerate() {
        let code = (scale + 32) as u8;
        out[4 + sub / 2] |= (code & 15) << (4 * (sub % 2));
        scales_high |= u16::from(code >> 4) << (2 * sub);
    }
    out[2..4].copy_from_slice(&scales_high.to_le_bytes());
    for (sub, values) in values.chunks_exact(32).enumerate() {
        let id = inverse(d * f32::from(scales[sub]));
        let codes = crate::quantize::codes(values, |x| nearest(&IQ4_VALUES, x * id));
        put_nibbles(&mut out[8 + 16 * sub..], &codes);
    }
}

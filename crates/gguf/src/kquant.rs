//! Formats in super-blocks of 256 elements: K-quants and IQ4_XS.
//!
//! A super-block has one or two 16-bit scales and packed integer scales for its sub-blocks.

use crate::block::{IQ4_VALUES, half_at, nibble};

/// Where an element of Q2_K and Q3_K lies: halves of 128 elements, in each four groups of 32 that share 32 bytes, two bits a group.
struct Place {
    half: usize,
    group: usize,
    lane: usize,
    /// Sub-block of 16 elements.
    sub: usize,
}

impl Place {
    fn of(element: usize) -> Self {
        let (half, group, lane) = (element / 128, element % 128 / 32, element % 32);
        Self { half, group, lane, sub: 8 * half + 2 * group + lane / 16 }
    }

    /// The low two bits of the code.
    fn two_bits(&self, codes: &[u8]) -> u8 {
        codes[32 * self.half + self.lane] >> (2 * self.group) & 3
    }
}

/// `scales and minima: [u4, u4; 16], codes: [u2; 256], d: f16, dmin: f16`.
pub(crate) fn q2_k(bytes: &[u8], out: &mut [f32]) {
    let (scales, codes) = (&bytes[..16], &bytes[16..80]);
    let (d, d_min) = (half_at(bytes, 80), half_at(bytes, 82));
    for (element, out) in out.iter_mut().enumerate() {
        let place = Place::of(element);
        let scale = d * f32::from(scales[place.sub] & 15);
        let min = d_min * f32::from(scales[place.sub] >> 4);
        *out = scale * f32::from(place.two_bits(codes)) - min;
    }
}

/// `high bits: [u1; 256], codes: [u2; 256], scales: [u6; 16], d: f16`. A code is three bits less 4.
pub(crate) fn q3_k(bytes: &[u8], out: &mut [f32]) {
    let (high, codes, scales) = (&bytes[..32], &bytes[32..96], &bytes[96..108]);
    let d = half_at(bytes, 108);
    for (element, out) in out.iter_mut().enumerate() {
        let place = Place::of(element);
        let bit = high[place.lane] >> (4 * place.half + place.group) & 1;
        let code = (place.two_bits(codes) | bit << 2) as i8 - 4;
        *out = d * f32::from(q3_k_scale(scales, place.sub)) * f32::from(code);
    }
}

/// Scale `sub` of 16: low four bits as nibbles in the first 8 bytes, high two bits in the last 4.
fn q3_k_scale(packed: &[u8], sub: usize) -> i8 {
    let low = match sub {
        0..8 => packed[sub] & 15,
        _ => packed[sub - 8] >> 4,
    };
    let high = packed[8 + sub % 4] >> (2 * (sub / 4)) & 3;
    (low | high << 4) as i8 - 32
}

/// Scale and minimum `sub` of 8, six bits each, of Q4_K and Q5_K: the first four of each lie in the low six bits of 8 bytes, whose
/// high two bits complete the nibbles of the last four.
fn scale_and_min(packed: &[u8], sub: usize) -> (u8, u8) {
    match sub {
        0..4 => (packed[sub] & 63, packed[sub + 4] & 63),
        _ => (packed[sub + 4] & 15 | packed[sub - 4] >> 6 << 4, packed[sub + 4] >> 4 | packed[sub] >> 6 << 4),
    }
}

/// The low four bits of the code of an element of Q4_K and Q5_K: 32 bytes hold two sub-blocks, low nibbles and high nibbles.
fn four_bits(codes: &[u8], element: usize) -> u8 {
    let byte = codes[element / 64 * 32 + element % 32];
    match element / 32 % 2 {
        0 => byte & 15,
        _ => byte >> 4,
    }
}

/// `d: f16, dmin: f16, scales and minima: [u8; 12], codes: [u4; 256]`.
pub(crate) fn q4_k(bytes: &[u8], out: &mut [f32]) {
    let (d, d_min) = (half_at(bytes, 0), half_at(bytes, 2));
    let (packed, codes) = (&bytes[4..16], &bytes[16..144]);
    for (element, out) in out.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(packed, element / 32);
        let code = four_bits(codes, element);
        *out = d * f32::from(scale) * f32::from(code) - d_min * f32::from(min);
    }
}

/// `d: f16, dmin: f16, scales and minima: [u8; 12], fifth bits: [u8; 32], codes: [u4; 256]`. Sub-block `s` has bit `s` of each byte.
pub(crate) fn q5_k(bytes: &[u8], out: &mut [f32]) {
    let (d, d_min) = (half_at(bytes, 0), half_at(bytes, 2));
    let (packed, high, codes) = (&bytes[4..16], &bytes[16..48], &bytes[48..176]);
    for (element, out) in out.iter_mut().enumerate() {
        let sub = element / 32;
        let (scale, min) = scale_and_min(packed, sub);
        let code = four_bits(codes, element) | (high[element % 32] >> sub & 1) << 4;
        *out = d * f32::from(scale) * f32::from(code) - d_min * f32::from(min);
    }
}

/// `low bits: [u4; 256], high bits: [u2; 256], scales: [i8; 16], d: f16`. A code is six bits less 32.
///
/// A half of 128 elements has four groups of 32: the low nibbles of 64 bytes are groups 0 and 1, the high ones 2 and 3; two bits of
/// 32 bytes complete each group.
pub(crate) fn q6_k(bytes: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&bytes[..128], &bytes[128..192], &bytes[192..208]);
    let d = half_at(bytes, 208);
    for (element, out) in out.iter_mut().enumerate() {
        let (half, group, lane) = (element / 128, element % 128 / 32, element % 32);
        let byte = low[64 * half + 32 * (group % 2) + lane];
        let four_bits = if group < 2 { byte & 15 } else { byte >> 4 };
        let two_bits = high[32 * half + lane] >> (2 * group) & 3;
        let code = (four_bits | two_bits << 4) as i8 - 32;
        *out = d * f32::from(scales[element / 16] as i8) * f32::from(code);
    }
}

/// `d: f16, high bits of scales: [u2; 8], low bits of scales: [u4; 8], codes: [u4; 256]` into [`IQ4_VALUES`].
pub(crate) fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
    let d = half_at(bytes, 0);
    let scales_high = u16::from_le_bytes([bytes[2], bytes[3]]);
    for (element, out) in out.iter_mut().enumerate() {
        let sub = element / 32;
        let low = bytes[4 + sub / 2] >> (4 * (sub % 2)) & 15;
        let high = (scales_high >> (2 * sub) & 3) as u8;
        let scale = (low | high << 4) as i8 - 32;
        let code = nibble(&bytes[8 + 16 * sub..], element % 32);
        *out = d * f32::from(scale) * f32::from(IQ4_VALUES[code as usize]);
    }
}

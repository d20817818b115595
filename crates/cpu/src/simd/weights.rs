//! Reading packed weights: how each type's units of 32 values become operands of a dot product.
// Loops over a tile index several arrays with the same constants, which the compiler unrolls.
#![allow(clippy::needless_range_loop)]

use half::{bf16, f16};
use tailrace_types::WeightType;

use super::dot::Simd;
use super::lanes::{LANES, Lanes};
use crate::pack::layout as at;

/// An array of eight values, each from its own copy of an expression in which the index is a constant.
///
/// (`array::from_fn` would be a function compiled without the kernel's instruction set.)
macro_rules! eight {
    (|$q:ident| $value:expr) => {
        eight!(@ $q $value; 0 1 2 3 4 5 6 7)
    };
    (@ $q:ident $value:expr; $($i:literal)*) => {
        [$({
            #[allow(non_upper_case_globals)]
            const $q: usize = $i;
            $value
        }),*]
    };
}

/// What must be known of a type besides its operands: value = scale * (code - offset) + min.
pub(crate) trait Shape: 'static {
    /// Whether the two halves of a unit have scales (and minima) of their own.
    const HALVES: bool;
    /// Whether there are minima. Types with minima have no offset.
    const MIN: bool;
    /// Whether codes take all 8 bits; their offset is 128.
    const WIDE: bool;
}

macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident: $halves:literal, $min:literal, $wide:literal;)*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $name;
            impl Shape for $name {
                const HALVES: bool = $halves;
                const MIN: bool = $min;
                const WIDE: bool = $wide;
            }
        )*
    };
}

shapes! {
    /// One scale, a small offset.
    Offset: false, false, false;
    /// One scale, 8-bit codes.
    Wide: false, false, true;
    /// One scale and one minimum.
    Min: false, true, false;
    /// Two scales, a small offset.
    OffsetHalves: true, false, false;
    /// Two scales and two minima.
    MinHalves: true, true, false;
}

/// 32 values of `k` of 16 output rows.
#[derive(Clone, Copy)]
pub(crate) struct Unit<S: Simd> {
    /// The eight quads.
    pub(crate) quads: [S::Bytes; 8],
    /// Scales of both halves, equal where the type has one for both.
    pub(crate) scale: [S::F; 2],
    /// Minima of both halves; zero where the type has none.
    pub(crate) min: [S::F; 2],
}

/// A quantised type.
pub(crate) trait Weight: 'static {
    /// What its units look like.
    type Shape: Shape;
    /// Its GGUF type.
    const TYPE: WeightType;
    /// What is subtracted from each code.
    const OFFSET: i16;

    /// Unit `u` of the packed block at `block`.
    ///
    /// # Safety
    /// The processor has the instructions of `S`, `block` is readable for a packed block of
    /// [`Weight::TYPE`], and `u` is below its number of units.
    unsafe fn unit<S: Simd>(block: *const u8, u: usize) -> Unit<S>;
}

/// Units in a packed block.
pub(crate) const fn units<W: Weight>() -> usize {
    W::TYPE.block().elements as usize / 32
}

/// Bytes of a packed block.
pub(crate) const fn block_bytes<W: Weight>() -> usize {
    W::TYPE.block().bytes as usize * LANES
}

/// # Safety
/// As [`Weight::unit`], for 256 bytes (so for the other planes with their sizes).
#[inline(always)]
unsafe fn nibbles<S: Simd>(plane: *const u8) -> [S::Bytes; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        eight!(|q| {
            let vector = S::load(plane.add(64 * (q % 4)));
            S::right(vector, 4 * (q as u32 / 4), 15)
        })
    }
}

/// `quads` with the bits of a one-bit plane at `to`.
///
/// # Safety
/// As [`nibbles`].
#[inline(always)]
unsafe fn with_bits<S: Simd>(quads: [S::Bytes; 8], plane: *const u8, to: u32) -> [S::Bytes; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        let bits = S::load(plane);
        eight!(|q| S::or(quads[q], move_bits::<S>(bits, q as u32, to, 1 << to)))
    }
}

/// The quads of a two-bit plane, with their bits at `to`.
///
/// # Safety
/// As [`nibbles`].
#[inline(always)]
unsafe fn pairs<S: Simd>(plane: *const u8, to: u32) -> [S::Bytes; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        eight!(|q| {
            let vector = S::load(plane.add(64 * (q / 4)));
            move_bits::<S>(vector, 2 * (q as u32 % 4), to, 3 << to)
        })
    }
}

/// Moves bit `from` of each byte to bit `to` (and its neighbours along), then masks.
///
/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
unsafe fn move_bits<S: Simd>(a: S::Bytes, from: u32, to: u32, mask: u8) -> S::Bytes {
    // SAFETY: the caller's contract.
    unsafe { if from >= to { S::right(a, from - to, mask) } else { S::left(a, to - from, mask) } }
}

/// Codes replaced by their entries in a code book.
///
/// # Safety
/// The processor has the instructions of `S`; the codes are below 16.
#[inline(always)]
unsafe fn look_up<S: Simd>(codes: [S::Bytes; 8], book: &[u8; 16]) -> [S::Bytes; 8] {
    // SAFETY: the caller's contract.
    unsafe { eight!(|q| S::lookup(codes[q], book)) }
}

/// 16 half floats at `offset`.
///
/// # Safety
/// As [`Weight::unit`].
#[inline(always)]
unsafe fn halves_at<S: Simd>(block: *const u8, offset: usize) -> S::F {
    // SAFETY: the caller's contract; the load assumes no alignment.
    unsafe { S::F::load_f16(block.add(offset).cast::<f16>()) }
}

/// A unit with one scale and no minimum.
///
/// # Safety
/// The processor has the instructions of `S`.
#[inline(always)]
unsafe fn scaled<S: Simd>(quads: [S::Bytes; 8], scale: S::F) -> Unit<S> {
    Unit { quads, scale: [scale; 2], min: [scale.same(0.0); 2] }
}

/// The 6-bit scale and minimum of unit `u` of Q4_K and Q5_K, from their 12 transposed bytes.
///
/// # Safety
/// As [`Weight::unit`]: `bytes` is readable for 192 bytes.
#[inline(always)]
unsafe fn k_scales<S: Simd>(bytes: *const u8, u: usize) -> (S::Ints, S::Ints) {
    // SAFETY: the caller's contract; `u < 8`, so every index is below 12.
    unsafe {
        let this = S::load_u8(bytes.add(LANES * u));
        let low = S::load_u8(bytes.add(LANES * (u + 4)));
        if u < 4 {
            (S::ints_left(this, 0, 63), S::ints_left(low, 0, 63))
        } else {
            let other = S::load_u8(bytes.add(LANES * (u - 4)));
            let scale = S::ints_left(S::ints_right(other, 6, 3), 4, 0x30);
            let min = S::ints_left(S::ints_right(this, 6, 3), 4, 0x30);
            (S::ints_or(S::ints_left(low, 0, 15), scale), S::ints_or(S::ints_right(low, 4, 15), min))
        }
    }
}

/// A unit of Q4_K or Q5_K, whose first parts are the same.
///
/// # Safety
/// As [`Weight::unit`].
#[inline(always)]
unsafe fn k_unit<S: Simd>(block: *const u8, u: usize, quads: [S::Bytes; 8]) -> Unit<S> {
    // SAFETY: the caller's contract.
    unsafe {
        let (scale, min) = k_scales::<S>(block.add(at::q4_k::SCALES), u);
        let d = halves_at::<S>(block, at::q4_k::D);
        let dmin = halves_at::<S>(block, at::q4_k::DMIN);
        let min = dmin.mul(S::to_f32(min));
        Unit { quads, scale: [d.mul(S::to_f32(scale)); 2], min: [min.same(0.0).sub(min); 2] }
    }
}

/// The code book of IQ4_NL and IQ4_XS plus 128.
const IQ4: [u8; 16] = [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];

/// Twice the values of a 4-bit float (E2M1) plus 12.
const FP4: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// `2^(e - 128)`: half of what the exponent of MXFP4 means, as its code book is doubled.
fn half_powers(exponents: [u8; LANES]) -> [f32; LANES] {
    exponents.map(|e| {
        f32::from_bits(match e {
            0 => 0x0020_0000,
            1 => 0x0040_0000,
            _ => (u32::from(e) - 1) << 23,
        })
    })
}

macro_rules! weights {
    ($($name:ident: $shape:ident, $offset:literal, |$block:ident, $u:ident| $body:expr;)*) => {
        $(
            /// The type of this name.
            #[allow(non_camel_case_types)]
            pub(crate) struct $name;

            impl Weight for $name {
                type Shape = $shape;
                const TYPE: WeightType = WeightType::$name;
                const OFFSET: i16 = $offset;

                #[inline(always)]
                unsafe fn unit<S: Simd>($block: *const u8, $u: usize) -> Unit<S> {
                    // SAFETY: the caller's contract; all offsets lie inside a packed block.
                    unsafe { $body }
                }
            }
        )*
    };
}

weights! {
    Q4_0: Offset, 8, |block, _u| {
        scaled::<S>(nibbles::<S>(block.add(at::q4_0::NIBBLES)), halves_at::<S>(block, at::q4_0::D))
    };
    Q4_1: Min, 0, |block, _u| Unit {
        quads: nibbles::<S>(block.add(at::q4_1::NIBBLES)),
        scale: [halves_at::<S>(block, at::q4_1::D); 2],
        min: [halves_at::<S>(block, at::q4_1::M); 2],
    };
    Q5_0: Offset, 16, |block, _u| {
        let low = nibbles::<S>(block.add(at::q5_0::NIBBLES));
        let quads = with_bits::<S>(low, block.add(at::q5_0::BITS), 4);
        scaled::<S>(quads, halves_at::<S>(block, at::q5_0::D))
    };
    Q5_1: Min, 0, |block, _u| {
        let low = nibbles::<S>(block.add(at::q5_1::NIBBLES));
        Unit {
            quads: with_bits::<S>(low, block.add(at::q5_1::BITS), 4),
            scale: [halves_at::<S>(block, at::q5_1::D); 2],
            min: [halves_at::<S>(block, at::q5_1::M); 2],
        }
    };
    Q8_0: Wide, 128, |block, _u| {
        let quads = eight!(|q| S::load(block.add(at::q8_0::BYTES + 64 * q)));
        scaled::<S>(quads, halves_at::<S>(block, at::q8_0::D))
    };
    IQ4_NL: Wide, 128, |block, _u| {
        let codes = nibbles::<S>(block.add(at::q4_0::NIBBLES));
        scaled::<S>(look_up::<S>(codes, &IQ4), halves_at::<S>(block, at::q4_0::D))
    };
    MXFP4: Offset, 12, |block, _u| {
        let codes = nibbles::<S>(block.add(at::mxfp4::NIBBLES));
        let exponents = block.add(at::mxfp4::E).cast::<[u8; LANES]>().read();
        scaled::<S>(look_up::<S>(codes, &FP4), S::F::load(half_powers(exponents).as_ptr()))
    };
    Q2_K: MinHalves, 0, |block, u| {
        let d = halves_at::<S>(block, at::q2_k::D);
        let dmin = halves_at::<S>(block, at::q2_k::DMIN);
        let scales = block.add(at::q2_k::SCALES + LANES * 2 * u);
        let both = [S::load_u8(scales), S::load_u8(scales.add(LANES))];
        let (mut scale, mut min) = ([d; 2], [d.same(0.0); 2]);
        for half in 0..2 {
            scale[half] = d.mul(S::to_f32(S::ints_left(both[half], 0, 15)));
            min[half] = min[half].sub(dmin.mul(S::to_f32(S::ints_right(both[half], 4, 15))));
        }
        let quads = pairs::<S>(block.add(at::q2_k::PAIRS + at::PAIRS * u), 0);
        Unit { quads, scale, min }
    };
    Q3_K: OffsetHalves, 4, |block, u| {
        let low = pairs::<S>(block.add(at::q3_k::PAIRS + at::PAIRS * u), 0);
        let d = halves_at::<S>(block, at::q3_k::D);
        let rows = block.add(at::q3_k::SCALES);
        let mut scale = [d; 2];
        for half in 0..2 {
            let s = 2 * u + half;
            let low = S::ints_right(S::load_u8(rows.add(LANES * (s % 8))), 4 * (s as u32 / 8), 15);
            let high = S::ints_right(S::load_u8(rows.add(LANES * (8 + s % 4))), 2 * (s as u32 / 4), 3);
            let code = S::ints_or(low, S::ints_left(high, 4, 0x30));
            scale[half] = d.mul(S::to_f32(S::ints_add(code, -32)));
        }
        Unit {
            quads: with_bits::<S>(low, block.add(at::q3_k::BITS + at::BITS * u), 2),
            scale,
            min: [d.same(0.0); 2],
        }
    };
    Q4_K: Min, 0, |block, u| {
        let plane = block.add(at::q4_k::NIBBLES + at::NIBBLES * u);
        k_unit::<S>(block, u, nibbles::<S>(plane))
    };
    Q5_K: Min, 0, |block, u| {
        let low = nibbles::<S>(block.add(at::q5_k::NIBBLES + at::NIBBLES * u));
        let bits = block.add(at::q5_k::BITS + at::BITS * u);
        k_unit::<S>(block, u, with_bits::<S>(low, bits, 4))
    };
    Q6_K: OffsetHalves, 32, |block, u| {
        let low = nibbles::<S>(block.add(at::q6_k::NIBBLES + at::NIBBLES * u));
        let high = pairs::<S>(block.add(at::q6_k::PAIRS + at::PAIRS * u), 4);
        let scales = block.add(at::q6_k::SCALES + LANES * 2 * u).cast::<i8>();
        let d = halves_at::<S>(block, at::q6_k::D);
        Unit {
            quads: eight!(|q| S::or(low[q], high[q])),
            scale: [
                d.mul(S::to_f32(S::load_i8(scales))),
                d.mul(S::to_f32(S::load_i8(scales.add(LANES)))),
            ],
            min: [d.same(0.0); 2],
        }
    };
    IQ4_XS: Wide, 128, |block, u| {
        let plane = block.add(at::iq4_xs::NIBBLES + at::NIBBLES * u);
        let low = S::load_u8(block.add(at::iq4_xs::SCALES_LOW + LANES * (u / 2)));
        let high = S::load_u8(block.add(at::iq4_xs::SCALES_HIGH + LANES * (u / 4)));
        let high = S::ints_left(S::ints_right(high, 2 * (u as u32 % 4), 3), 4, 0x30);
        let scale = S::ints_or(S::ints_right(low, 4 * (u as u32 % 2), 15), high);
        let d = halves_at::<S>(block, at::iq4_xs::D);
        scaled::<S>(
            look_up::<S>(nibbles::<S>(plane), &IQ4),
            d.mul(S::to_f32(S::ints_add(scale, -32))),
        )
    };
}

/// Evaluates an expression in which a name stands for the [`Weight`] of a quantised type, or another
/// expression for a float type.
macro_rules! with_weight {
    ($ty:expr, $w:ident => $body:expr, else => $float:expr) => {
        with_weight!(@ $ty, $w, $body, $float; Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K
            IQ4_NL IQ4_XS MXFP4)
    };
    (@ $ty:expr, $w:ident, $body:expr, $float:expr; $($name:ident)*) => {
        match $ty {
            $(::tailrace_types::WeightType::$name => {
                type $w = $crate::simd::weights::$name;
                $body
            })*
            ::tailrace_types::WeightType::F32
            | ::tailrace_types::WeightType::F16
            | ::tailrace_types::WeightType::BF16 => $float,
        }
    };
}
pub(super) use with_weight;

/// A float type, packed as `[K][16]`.
pub(crate) trait Float: 'static {
    /// Bytes of a value.
    const BYTES: usize;

    /// The 16 rows' values at `k`.
    ///
    /// # Safety
    /// The processor has the instructions of `F`, and `group` is readable up to its `k`-th value.
    unsafe fn at<F: Lanes>(group: *const u8, k: usize) -> F;
}

/// 32-bit floats.
pub(crate) struct F32;
/// 16-bit floats.
pub(crate) struct F16;
/// bfloat16.
pub(crate) struct BF16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn at<F: Lanes>(group: *const u8, k: usize) -> F {
        // SAFETY: the caller's contract; the load assumes no alignment (so for the next two).
        unsafe { F::load(group.add(64 * k).cast()) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn at<F: Lanes>(group: *const u8, k: usize) -> F {
        // SAFETY: see `F32`.
        unsafe { F::load_f16(group.add(32 * k).cast::<f16>()) }
    }
}

impl Float for BF16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn at<F: Lanes>(group: *const u8, k: usize) -> F {
        // SAFETY: see `F32`.
        unsafe { F::load_bf16(group.add(32 * k).cast::<bf16>()) }
    }
}

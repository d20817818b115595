//! Integer vectors for products of quantised weights: 64 bytes of codes, 16 lanes of `i32`.

use super::lanes::{LANES, Lanes, PortableLanes};

/// A pair of 16-bit integers as the 32 bits that [`Simd::dot_pairs`] multiplies.
#[inline(always)]
pub(crate) fn pair(low: i16, high: i16) -> i32 {
    i32::from(low as u16) | i32::from(high) << 16
}

/// The vectors of one instruction set.
///
/// Integer results are exact, hence equal on all sets. Lane `i` of [`Simd::Ints`] is bytes
/// `4 * i .. 4 * i + 4` of [`Simd::Bytes`].
///
/// # Safety
/// (For every function.) The processor has the instructions of `Self`; pointers are readable or
/// writable for the elements that the function names, and need no alignment.
pub(crate) trait Simd: 'static {
    /// 16 `f32`.
    type F: Lanes;
    /// 64 bytes.
    type Bytes: Copy;
    /// 16 `i32`.
    type Ints: Copy;

    /// Whether there are 32 vector registers of 16 lanes, which decides the size of tiles.
    const WIDE: bool;
    /// Whether there are no vectors at all. Kernels that only save memory traffic are not worth their code.
    const SCALAR: bool = false;

    /// 64 bytes.
    unsafe fn load(from: *const u8) -> Self::Bytes;
    /// Writes 64 bytes.
    unsafe fn store(a: Self::Bytes, to: *mut u8);
    /// Each byte shifted left, then masked. Bits that cross into the next byte must be masked off.
    unsafe fn left(a: Self::Bytes, by: u32, mask: u8) -> Self::Bytes;
    /// Each byte shifted right, then masked. Bits that cross into the next byte must be masked off.
    unsafe fn right(a: Self::Bytes, by: u32, mask: u8) -> Self::Bytes;
    /// Bitwise or.
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `table[a]` for bytes below 16.
    unsafe fn lookup(a: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// The same bits, as lanes.
    unsafe fn lanes(a: Self::Bytes) -> Self::Ints;

    /// `a` in every lane.
    unsafe fn ints(a: i32) -> Self::Ints;
    /// 16 unsigned bytes.
    unsafe fn load_u8(from: *const u8) -> Self::Ints;
    /// 16 signed bytes.
    unsafe fn load_i8(from: *const i8) -> Self::Ints;
    /// Lanes shifted left, then masked.
    unsafe fn ints_left(a: Self::Ints, by: u32, mask: i32) -> Self::Ints;
    /// Lanes shifted right (unsigned), then masked.
    unsafe fn ints_right(a: Self::Ints, by: u32, mask: i32) -> Self::Ints;
    /// Bitwise or.
    unsafe fn ints_or(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// `a + b` in every lane.
    unsafe fn ints_add(a: Self::Ints, b: i32) -> Self::Ints;
    /// The nearest `f32`.
    unsafe fn to_f32(a: Self::Ints) -> Self::F;
    /// Stores 16 values of magnitude below 127.5 as the nearest integers (ties to even); their sum.
    unsafe fn store_i8(a: Self::F, to: *mut i8) -> i32;

    /// `acc + a.0 * b.0 + a.1 * b.1` in every lane, where `a` and `b` are [`pair`]s.
    unsafe fn dot_pairs(acc: Self::Ints, a: i32, b: i32) -> Self::Ints;
    /// `acc` plus, in every lane, the sum of products of its four codes (below 128) with the four
    /// signed bytes of `x`.
    unsafe fn dot(acc: Self::Ints, codes: Self::Bytes, x: i32) -> Self::Ints;

    /// What [`Simd::dot_wide`] starts from, given the sums of the `x` that follow: `sums` is a
    /// [`pair`], weighted by the pair `which` of zeros and ones.
    unsafe fn start_wide(which: i32, sums: i32) -> Self::Ints;
    /// As [`Simd::dot`] for the values `code - 128` of any codes, if `acc` began with
    /// [`Simd::start_wide`].
    unsafe fn dot_wide(acc: Self::Ints, codes: Self::Bytes, x: i32) -> Self::Ints;

    /// Asks the second-level cache for the line of `at`, which need not be readable.
    unsafe fn prefetch(at: *const u8);
}

/// Plain arrays, left to the compiler's vectoriser.
pub(crate) struct Portable;

#[inline(always)]
fn map<T: Copy, U, const N: usize>(a: [T; N], f: impl Fn(T) -> U) -> [U; N] {
    std::array::from_fn(|i| f(a[i]))
}

// SAFETY (of every block below): the trait's contract on pointers; the accesses assume no alignment.
impl Simd for Portable {
    type F = PortableLanes;
    type Bytes = [u8; 64];
    type Ints = [i32; LANES];

    const WIDE: bool = false;
    const SCALAR: bool = true;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::Bytes {
        // SAFETY: see the impl.
        unsafe { from.cast::<[u8; 64]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(a: Self::Bytes, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe { to.cast::<[u8; 64]>().write_unaligned(a) }
    }

    #[inline(always)]
    unsafe fn left(a: Self::Bytes, by: u32, mask: u8) -> Self::Bytes {
        map(a, |a| a << by & mask)
    }

    #[inline(always)]
    unsafe fn right(a: Self::Bytes, by: u32, mask: u8) -> Self::Bytes {
        map(a, |a| a >> by & mask)
    }

    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    unsafe fn lookup(a: Self::Bytes, table: &[u8; 16]) -> Self::Bytes {
        map(a, |a| table[usize::from(a & 15)])
    }

    #[inline(always)]
    unsafe fn lanes(a: Self::Bytes) -> Self::Ints {
        let quads = a.as_chunks::<4>().0;
        std::array::from_fn(|i| i32::from_le_bytes(quads[i]))
    }

    #[inline(always)]
    unsafe fn ints(a: i32) -> Self::Ints {
        [a; LANES]
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::Ints {
        // SAFETY: see the impl.
        map(unsafe { from.cast::<[u8; LANES]>().read() }, i32::from)
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::Ints {
        // SAFETY: see the impl.
        map(unsafe { from.cast::<[i8; LANES]>().read() }, i32::from)
    }

    #[inline(always)]
    unsafe fn ints_left(a: Self::Ints, by: u32, mask: i32) -> Self::Ints {
        map(a, |a| a << by & mask)
    }

    #[inline(always)]
    unsafe fn ints_right(a: Self::Ints, by: u32, mask: i32) -> Self::Ints {
        map(a, |a| (a as u32 >> by) as i32 & mask)
    }

    #[inline(always)]
    unsafe fn ints_or(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    unsafe fn ints_add(a: Self::Ints, b: i32) -> Self::Ints {
        map(a, |a| a.wrapping_add(b))
    }

    #[inline(always)]
    unsafe fn to_f32(a: Self::Ints) -> Self::F {
        // SAFETY: 16 values on the stack.
        unsafe { PortableLanes::load(map(a, |a| a as f32).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn store_i8(a: Self::F, to: *mut i8) -> i32 {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: see the impl.
        unsafe {
            a.store(lanes.as_mut_ptr());
            let bytes = map(lanes, |a| a.round_ties_even() as i8);
            to.cast::<[i8; LANES]>().write(bytes);
            bytes.iter().map(|&b| i32::from(b)).sum()
        }
    }

    #[inline(always)]
    unsafe fn dot_pairs(acc: Self::Ints, a: i32, b: i32) -> Self::Ints {
        let low = i32::from(a as i16) * i32::from(b as i16);
        let high = (a >> 16) * (b >> 16);
        map(acc, |acc| acc.wrapping_add(low.wrapping_add(high)))
    }

    #[inline(always)]
    unsafe fn dot(acc: Self::Ints, codes: Self::Bytes, x: i32) -> Self::Ints {
        let x = map(x.to_le_bytes(), |x| i32::from(x as i8));
        let codes = codes.as_chunks::<4>().0;
        std::array::from_fn(|i| {
            let code = map(codes[i], i32::from);
            acc[i] + code[0] * x[0] + code[1] * x[1] + code[2] * x[2] + code[3] * x[3]
        })
    }

    #[inline(always)]
    unsafe fn start_wide(which: i32, sums: i32) -> Self::Ints {
        let which = pair((which as i16) * -128, ((which >> 16) as i16) * -128);
        // SAFETY: no pointers.
        unsafe { Self::dot_pairs([0; LANES], which, sums) }
    }

    #[inline(always)]
    unsafe fn dot_wide(acc: Self::Ints, codes: Self::Bytes, x: i32) -> Self::Ints {
        // SAFETY: no pointers; in 32-bit arithmetic any code will do.
        unsafe { Self::dot(acc, codes, x) }
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
}

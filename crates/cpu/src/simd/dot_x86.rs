//! [`Simd`] on AVX-512 with VNNI, and on AVX2 with and without AVX-VNNI.

use std::arch::x86_64::*;

use super::dot::{Simd, pair};
use super::lanes_x86::{Avx2Lanes, Avx512Lanes};

/// AVX-512 F, BW, DQ, VL and VNNI.
pub(crate) struct Avx512;

/// A shift count for the instructions that take one from a register; the compiler turns the
/// constants that reach them into immediates.
#[inline(always)]
unsafe fn count(by: u32) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_cvtsi32_si128(by as i32) }
}

/// The sum of 16 signed bytes.
#[inline(always)]
unsafe fn sum_of_bytes(bytes: __m128i) -> i32 {
    // SAFETY: SSE2 is part of x86-64.
    unsafe {
        let unsigned = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
        let halves = _mm_sad_epu8(unsigned, _mm_setzero_si128());
        let sum = _mm_add_epi64(halves, _mm_unpackhi_epi64(halves, halves));
        _mm_cvtsi128_si32(sum) - 16 * 128
    }
}

// SAFETY (of every block below): the trait's contract: the instructions exist, and pointers are used
// for exactly the elements that the trait names, by instructions that need no alignment.
impl Simd for Avx512 {
    type F = Avx512Lanes;
    type Bytes = __m512i;
    type Ints = __m512i;

    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(a: __m512i, to: *mut u8) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_si512(to.cast(), a) }
    }

    #[inline(always)]
    unsafe fn left(a: __m512i, by: u32, mask: u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(_mm512_sll_epi16(a, count(by)), _mm512_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    unsafe fn right(a: __m512i, by: u32, mask: u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(_mm512_srl_epi16(a, count(by)), _mm512_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn lookup(a: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), a)
        }
    }

    #[inline(always)]
    unsafe fn lanes(a: __m512i) -> __m512i {
        a
    }

    #[inline(always)]
    unsafe fn ints(a: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_epi32(a) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn ints_left(a: __m512i, by: u32, mask: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(_mm512_sll_epi32(a, count(by)), _mm512_set1_epi32(mask)) }
    }

    #[inline(always)]
    unsafe fn ints_right(a: __m512i, by: u32, mask: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_and_si512(_mm512_srl_epi32(a, count(by)), _mm512_set1_epi32(mask)) }
    }

    #[inline(always)]
    unsafe fn ints_or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn ints_add(a: __m512i, b: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_add_epi32(a, _mm512_set1_epi32(b)) }
    }

    #[inline(always)]
    unsafe fn to_f32(a: __m512i) -> Avx512Lanes {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_cvtepi32_ps(a) })
    }

    #[inline(always)]
    unsafe fn store_i8(a: Avx512Lanes, to: *mut i8) -> i32 {
        // SAFETY: see the impl.
        unsafe {
            let bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.0));
            _mm_storeu_si128(to.cast(), bytes);
            sum_of_bytes(bytes)
        }
    }

    #[inline(always)]
    unsafe fn dot_pairs(acc: __m512i, a: i32, b: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_dpwssd_epi32(acc, _mm512_set1_epi32(a), _mm512_set1_epi32(b)) }
    }

    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, x: i32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x)) }
    }

    #[inline(always)]
    unsafe fn start_wide(which: i32, sums: i32) -> __m512i {
        let which = pair((which as i16) * -128, ((which >> 16) as i16) * -128);
        // SAFETY: see the impl.
        unsafe { Self::dot_pairs(_mm512_setzero_si512(), which, sums) }
    }

    #[inline(always)]
    unsafe fn dot_wide(acc: __m512i, codes: __m512i, x: i32) -> __m512i {
        // SAFETY: see the impl; the instruction takes any unsigned code.
        unsafe { Self::dot(acc, codes, x) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: prefetching never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}

/// AVX2, FMA and F16C.
pub(crate) struct Avx2;

/// AVX2, FMA, F16C and AVX-VNNI.
pub(crate) struct Avx2Vnni;

/// Two 256-bit registers: the lower and the upper half of a vector.
#[derive(Clone, Copy)]
pub(crate) struct Two(__m256i, __m256i);

impl Two {
    #[inline(always)]
    unsafe fn splat(a: i32) -> Two {
        // SAFETY: the caller has AVX2.
        unsafe { Two(_mm256_set1_epi32(a), _mm256_set1_epi32(a)) }
    }

    #[inline(always)]
    fn zip(self, b: Two, f: impl Fn(__m256i, __m256i) -> __m256i) -> Two {
        Two(f(self.0, b.0), f(self.1, b.1))
    }
}

/// The part of [`Simd`] that AVX-VNNI does not change.
macro_rules! avx2_common {
    () => {
        type F = Avx2Lanes;
        type Bytes = Two;
        type Ints = Two;

        const WIDE: bool = false;

        #[inline(always)]
        unsafe fn load(from: *const u8) -> Two {
            // SAFETY: see the impl.
            unsafe {
                let low = _mm256_loadu_si256(from.cast());
                Two(low, _mm256_loadu_si256(from.add(32).cast()))
            }
        }

        #[inline(always)]
        unsafe fn store(a: Two, to: *mut u8) {
            // SAFETY: see the impl.
            unsafe {
                _mm256_storeu_si256(to.cast(), a.0);
                _mm256_storeu_si256(to.add(32).cast(), a.1);
            }
        }

        #[inline(always)]
        unsafe fn left(a: Two, by: u32, mask: u8) -> Two {
            // SAFETY: see the impl.
            unsafe {
                let (by, mask) = (count(by), _mm256_set1_epi8(mask as i8));
                let shift = |a| _mm256_and_si256(_mm256_sll_epi16(a, by), mask);
                Two(shift(a.0), shift(a.1))
            }
        }

        #[inline(always)]
        unsafe fn right(a: Two, by: u32, mask: u8) -> Two {
            // SAFETY: see the impl.
            unsafe {
                let (by, mask) = (count(by), _mm256_set1_epi8(mask as i8));
                let shift = |a| _mm256_and_si256(_mm256_srl_epi16(a, by), mask);
                Two(shift(a.0), shift(a.1))
            }
        }

        #[inline(always)]
        unsafe fn or(a: Two, b: Two) -> Two {
            // SAFETY: see the impl.
            a.zip(b, |a, b| unsafe { _mm256_or_si256(a, b) })
        }

        #[inline(always)]
        unsafe fn lookup(a: Two, table: &[u8; 16]) -> Two {
            // SAFETY: see the impl.
            unsafe {
                let table = _mm_loadu_si128(table.as_ptr().cast());
                let table = _mm256_broadcastsi128_si256(table);
                Two(_mm256_shuffle_epi8(table, a.0), _mm256_shuffle_epi8(table, a.1))
            }
        }

        #[inline(always)]
        unsafe fn lanes(a: Two) -> Two {
            a
        }

        #[inline(always)]
        unsafe fn ints(a: i32) -> Two {
            // SAFETY: see the impl.
            unsafe { Two::splat(a) }
        }

        #[inline(always)]
        unsafe fn load_u8(from: *const u8) -> Two {
            // SAFETY: see the impl.
            unsafe {
                Two(
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())),
                    _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8).cast())),
                )
            }
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> Two {
            // SAFETY: see the impl.
            unsafe {
                Two(
                    _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())),
                    _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast())),
                )
            }
        }

        #[inline(always)]
        unsafe fn ints_left(a: Two, by: u32, mask: i32) -> Two {
            // SAFETY: see the impl.
            unsafe {
                let (by, mask) = (count(by), _mm256_set1_epi32(mask));
                let shift = |a| _mm256_and_si256(_mm256_sll_epi32(a, by), mask);
                Two(shift(a.0), shift(a.1))
            }
        }

        #[inline(always)]
        unsafe fn ints_right(a: Two, by: u32, mask: i32) -> Two {
            // SAFETY: see the impl.
            unsafe {
                let (by, mask) = (count(by), _mm256_set1_epi32(mask));
                let shift = |a| _mm256_and_si256(_mm256_srl_epi32(a, by), mask);
                Two(shift(a.0), shift(a.1))
            }
        }

        #[inline(always)]
        unsafe fn ints_or(a: Two, b: Two) -> Two {
            // SAFETY: see the impl.
            a.zip(b, |a, b| unsafe { _mm256_or_si256(a, b) })
        }

        #[inline(always)]
        unsafe fn ints_add(a: Two, b: i32) -> Two {
            // SAFETY: see the impl.
            unsafe { a.zip(Two::splat(b), |a, b| _mm256_add_epi32(a, b)) }
        }

        #[inline(always)]
        unsafe fn to_f32(a: Two) -> Avx2Lanes {
            // SAFETY: see the impl.
            unsafe { Avx2Lanes(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1)) }
        }

        #[inline(always)]
        unsafe fn store_i8(a: Avx2Lanes, to: *mut i8) -> i32 {
            // SAFETY: see the impl.
            unsafe {
                let (low, high) = (_mm256_cvtps_epi32(a.0), _mm256_cvtps_epi32(a.1));
                // Packing works within 128-bit halves, so the words are put in order between.
                let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
                let upper = _mm256_extracti128_si256::<1>(words);
                let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), upper);
                _mm_storeu_si128(to.cast(), bytes);
                sum_of_bytes(bytes)
            }
        }

        #[inline(always)]
        unsafe fn prefetch(at: *const u8) {
            // SAFETY: prefetching never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
    };
}

// SAFETY (of every block below): as for `Avx512`.
impl Simd for Avx2 {
    avx2_common!();

    #[inline(always)]
    unsafe fn dot_pairs(acc: Two, a: i32, b: i32) -> Two {
        // SAFETY: see the impl.
        unsafe {
            let products = _mm256_madd_epi16(_mm256_set1_epi32(a), _mm256_set1_epi32(b));
            acc.zip(Two(products, products), |acc, b| _mm256_add_epi32(acc, b))
        }
    }

    #[inline(always)]
    unsafe fn dot(acc: Two, codes: Two, x: i32) -> Two {
        // SAFETY: see the impl. A sum of two products is at most 2 * 127 * 128 < 2^15, so the
        // saturating addition of the first instruction is exact.
        unsafe {
            let (x, ones) = (_mm256_set1_epi32(x), _mm256_set1_epi16(1));
            acc.zip(codes, |acc, codes| {
                let words = _mm256_maddubs_epi16(codes, x);
                _mm256_add_epi32(acc, _mm256_madd_epi16(words, ones))
            })
        }
    }

    #[inline(always)]
    unsafe fn start_wide(_which: i32, _sums: i32) -> Two {
        // SAFETY: see the impl. `dot_wide` takes the offset off each code.
        unsafe { Two::splat(0) }
    }

    #[inline(always)]
    unsafe fn dot_wide(acc: Two, codes: Two, x: i32) -> Two {
        // SAFETY: see the impl. The sign of each value moves to its `x` (which is never -128), so that
        // the unsigned factor is at most 128 and a sum of two products at most 2 * 128 * 127 < 2^15.
        unsafe {
            let (x, ones) = (_mm256_set1_epi32(x), _mm256_set1_epi16(1));
            let flip = _mm256_set1_epi8(-128);
            acc.zip(codes, |acc, codes| {
                let values = _mm256_xor_si256(codes, flip);
                let x = _mm256_sign_epi8(x, values);
                let words = _mm256_maddubs_epi16(_mm256_abs_epi8(values), x);
                _mm256_add_epi32(acc, _mm256_madd_epi16(words, ones))
            })
        }
    }
}

// SAFETY (of every block below): as for `Avx512`.
impl Simd for Avx2Vnni {
    avx2_common!();

    #[inline(always)]
    unsafe fn dot_pairs(acc: Two, a: i32, b: i32) -> Two {
        // SAFETY: see the impl.
        unsafe {
            let (a, b) = (_mm256_set1_epi32(a), _mm256_set1_epi32(b));
            Two(_mm256_dpwssd_avx_epi32(acc.0, a, b), _mm256_dpwssd_avx_epi32(acc.1, a, b))
        }
    }

    #[inline(always)]
    unsafe fn dot(acc: Two, codes: Two, x: i32) -> Two {
        // SAFETY: see the impl.
        unsafe {
            let x = _mm256_set1_epi32(x);
            acc.zip(codes, |acc, codes| _mm256_dpbusd_avx_epi32(acc, codes, x))
        }
    }

    #[inline(always)]
    unsafe fn start_wide(which: i32, sums: i32) -> Two {
        let which = pair((which as i16) * -128, ((which >> 16) as i16) * -128);
        // SAFETY: see the impl.
        unsafe { Self::dot_pairs(Two::splat(0), which, sums) }
    }

    #[inline(always)]
    unsafe fn dot_wide(acc: Two, codes: Two, x: i32) -> Two {
        // SAFETY: see the impl; the instruction takes any unsigned code.
        unsafe { Self::dot(acc, codes, x) }
    }
}

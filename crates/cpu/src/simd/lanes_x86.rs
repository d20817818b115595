//! [`Lanes`] on AVX-512 (one register) and on AVX2 with FMA and F16C (two registers).

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::lanes::{LANES, Lanes};

/// Sixteen lanes in one 512-bit register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Lanes(pub(super) __m512);

/// The columns of 16 rows of 16 values, f16 or bfloat16. Two rows a register, so that half as many shuffles move the
/// same values, and the conversion comes last.
///
/// # Safety
/// The processor has AVX-512, and row `i` is readable for 16 values at `i * stride`.
#[inline(always)]
unsafe fn columns_of_16_bits<const BRAIN: bool>(from: *const u16, stride: usize) -> [Avx512Lanes; LANES] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut r = [_mm512_setzero_si512(); 8];
        for (i, r) in r.iter_mut().enumerate() {
            let low = _mm256_loadu_si256(from.add(i * stride).cast());
            let high = _mm256_loadu_si256(from.add((i + 8) * stride).cast());
            *r = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
        }
        // The quarters are 8 x 8 matrices: interleave by 1, 2 and 4 values.
        let mut by_2 = r;
        for i in 0..4 {
            by_2[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
            by_2[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
        }
        let mut by_4 = by_2;
        for i in 0..2 {
            for j in 0..2 {
                let (a, b) = (by_2[4 * i + j], by_2[4 * i + j + 2]);
                by_4[4 * i + 2 * j] = _mm512_unpacklo_epi32(a, b);
                by_4[4 * i + 2 * j + 1] = _mm512_unpackhi_epi32(a, b);
            }
        }
        let mut out = [Avx512Lanes::splat(0.0); LANES];
        for j in 0..4 {
            let (a, b) = (by_4[j], by_4[4 + j]);
            let pair = [_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)];
            for (k, columns) in pair.into_iter().enumerate() {
                // Column 2j + k of rows 0 .. 8 and 8 .. 16 is in quarters 0 and 2, column
                // 8 + 2j + k in quarters 1 and 3.
                let columns = _mm512_shuffle_i64x2::<0b11_01_10_00>(columns, columns);
                let low = _mm512_castsi512_si256(columns);
                let high = _mm512_extracti64x4_epi64::<1>(columns);
                out[2 * j + k].0 = widen::<BRAIN>(low);
                out[8 + 2 * j + k].0 = widen::<BRAIN>(high);
            }
        }
        out
    }
}

/// Sixteen 16-bit floats, or bfloat16 values.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
unsafe fn widen<const BRAIN: bool>(bits: __m256i) -> __m512 {
    // SAFETY: the caller's contract. A bfloat16 is the upper half of an f32.
    unsafe {
        match BRAIN {
            true => _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))),
            false => _mm512_cvtph_ps(bits),
        }
    }
}

/// A mask of the lanes with index below `n`.
#[inline(always)]
fn mask_first(n: usize) -> __mmask16 {
    if n >= LANES { !0 } else { (1 << n) - 1 }
}

// SAFETY (of every block below): a value of this type, or the caller of a constructor, proves
// that the processor has AVX-512; pointers are used for exactly the elements that the trait
// names, by instructions that need no alignment and do not touch masked elements.
unsafe impl Lanes for Avx512Lanes {
    const REGISTERS: usize = 32;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_set1_ps(x) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_maskz_loadu_ps(mask_first(n), from) })
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { widen::<false>(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { widen::<true>(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, n: usize) {
        // SAFETY: see the impl.
        unsafe { _mm512_mask_storeu_ps(to, mask_first(n), self.0) }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16) {
        // SAFETY: see the impl.
        unsafe {
            let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            _mm256_storeu_si256(to.cast(), half);
        }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_add_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_sub_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_mul_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_div_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_max_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_min_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(self.0) })
    }

    #[inline(always)]
    fn scale_by_power(self, n: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_scalef_ps(self.0, n.0) })
    }

    #[inline(always)]
    fn select_less(self, bound: Self, then: Self, otherwise: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let less = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, bound.0);
            Avx512Lanes(_mm512_mask_blend_ps(less, otherwise.0, then.0))
        }
    }

    #[inline(always)]
    fn first(self, n: usize, other: Self) -> Self {
        // SAFETY: see the impl.
        Avx512Lanes(unsafe { _mm512_mask_blend_ps(mask_first(n), other.0, self.0) })
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = halves(self.0);
            sum_of_8(_mm256_add_ps(low, high))
        }
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = halves(self.0);
            max_of_8(_mm256_max_ps(low, high))
        }
    }

    #[inline(always)]
    unsafe fn load_f16_columns(from: *const f16, stride: usize) -> [Self; LANES] {
        // SAFETY: the caller's contract.
        unsafe { columns_of_16_bits::<false>(from.cast(), stride) }
    }

    #[inline(always)]
    unsafe fn load_bf16_columns(from: *const bf16, stride: usize) -> [Self; LANES] {
        // SAFETY: the caller's contract.
        unsafe { columns_of_16_bits::<true>(from.cast(), stride) }
    }

    #[inline(always)]
    fn prefetch(from: *const u8) {
        // SAFETY: a prefetch of any address has no effect but on the cache.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    fn transpose(r: [Self; LANES]) -> [Self; LANES] {
        // SAFETY: see the impl. Pairs of rows are interleaved by 1 and by 2 values inside each
        // quarter of a register, then the quarters themselves form a 4 x 4 matrix.
        unsafe {
            let mut by_4 = r;
            for q in 0..4 {
                let [a, b, c, d] = [r[4 * q].0, r[4 * q + 1].0, r[4 * q + 2].0, r[4 * q + 3].0];
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                by_4[q].0 = _mm512_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
                by_4[4 + q].0 = _mm512_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
                by_4[8 + q].0 = _mm512_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
                by_4[12 + q].0 = _mm512_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
            }
            let mut out = by_4;
            for k in 0..4 {
                let [a, b, c, d] = [by_4[4 * k], by_4[4 * k + 1], by_4[4 * k + 2], by_4[4 * k + 3]];
                let ab_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(a.0, b.0);
                let ab_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(a.0, b.0);
                let cd_even = _mm512_shuffle_f32x4::<0b10_00_10_00>(c.0, d.0);
                let cd_odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(c.0, d.0);
                out[k].0 = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_even, cd_even);
                out[4 + k].0 = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab_odd, cd_odd);
                out[8 + k].0 = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_even, cd_even);
                out[12 + k].0 = _mm512_shuffle_f32x4::<0b11_01_11_01>(ab_odd, cd_odd);
            }
            out
        }
    }
}

/// Lanes 0 .. 8 and 8 .. 16.
///
/// # Safety
/// The processor has AVX-512 F and DQ.
#[inline(always)]
unsafe fn halves(x: __m512) -> (__m256, __m256) {
    // SAFETY: the caller's contract.
    unsafe { (_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x)) }
}

/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn sum_of_8(x: __m256) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn max_of_8(x: __m256) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let x = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
    }
}

/// Sixteen lanes in two 256-bit registers: lanes 0 .. 8 and 8 .. 16.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Lanes(pub(super) __m256, pub(super) __m256);

/// Eight lanes of ones followed by eight of zeros: the window that starts `n` before the border
/// is the mask of the first `n` lanes.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Masks of the lanes with index below `n`, for both registers.
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn masks_first(n: usize) -> (__m256i, __m256i) {
    let low = 8 - n.min(8);
    let high = 8 - n.saturating_sub(8).min(8);
    // SAFETY: both offsets are at most 8, so 8 values lie inside the table.
    unsafe { (_mm256_loadu_si256(MASKS.as_ptr().add(low).cast()), _mm256_loadu_si256(MASKS.as_ptr().add(high).cast())) }
}

/// `x * 2^n` in two factors, since 2^n itself may lie outside the normal range.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn scale_8(x: __m256, n: __m256) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        let bias = _mm256_set1_epi32(127);
        let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
        let rest = _mm256_sub_epi32(n, half);
        let second = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
        let x = _mm256_mul_ps(x, _mm256_castsi256_ps(first));
        _mm256_mul_ps(x, _mm256_castsi256_ps(second))
    }
}

/// The transposed 8 x 8 matrix whose rows are `r`.
///
/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn transpose_8(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut by_4 = r;
        for q in 0..2 {
            let [a, b, c, d] = [r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]];
            let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            by_4[q] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_low, cd_low);
            by_4[2 + q] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_low, cd_low);
            by_4[4 + q] = _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high);
            by_4[6 + q] = _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high);
        }
        let mut out = by_4;
        for k in 0..4 {
            let (a, b) = (by_4[2 * k], by_4[2 * k + 1]);
            out[k] = _mm256_permute2f128_ps::<0x20>(a, b);
            out[4 + k] = _mm256_permute2f128_ps::<0x31>(a, b);
        }
        out
    }
}

// SAFETY (of every block below): a value of this type, or the caller of a constructor, proves
// that the processor has AVX2, FMA and F16C; pointers are used for exactly the elements that the
// trait names, by instructions that need no alignment and do not touch masked elements.
unsafe impl Lanes for Avx2Lanes {
    const REGISTERS: usize = 8;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self {
        // SAFETY: see the impl. The second address may lie past the end, where nothing is
        // touched, hence the wrapping addition.
        unsafe {
            let (low, high) = masks_first(n);
            Avx2Lanes(_mm256_maskload_ps(from, low), _mm256_maskload_ps(from.wrapping_add(8), high))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: see the impl.
        unsafe {
            Avx2Lanes(
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: see the impl. A bfloat16 is the upper half of an f32.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            Avx2Lanes(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, n: usize) {
        // SAFETY: see the impl and `load_first`.
        unsafe {
            let (low, high) = masks_first(n);
            _mm256_maskstore_ps(to, low, self.0);
            _mm256_maskstore_ps(to.wrapping_add(8), high, self.1);
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16) {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
            let high = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.1);
            _mm_storeu_si128(to.cast(), low);
            _mm_storeu_si128(to.add(8).cast(), high);
        }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_min_ps(self.0, b.0), _mm256_min_ps(self.1, b.1)) }
    }

    #[inline(always)]
    fn round(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1)) }
    }

    #[inline(always)]
    fn scale_by_power(self, n: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Avx2Lanes(scale_8(self.0, n.0), scale_8(self.1, n.1)) }
    }

    #[inline(always)]
    fn select_less(self, bound: Self, then: Self, otherwise: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, bound.0);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, bound.1);
            Avx2Lanes(_mm256_blendv_ps(otherwise.0, then.0, low), _mm256_blendv_ps(otherwise.1, then.1, high))
        }
    }

    #[inline(always)]
    fn first(self, n: usize, other: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = masks_first(n);
            Avx2Lanes(
                _mm256_blendv_ps(other.0, self.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(other.1, self.1, _mm256_castsi256_ps(high)),
            )
        }
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { sum_of_8(_mm256_add_ps(self.0, self.1)) }
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { max_of_8(_mm256_max_ps(self.0, self.1)) }
    }

    #[inline(always)]
    fn prefetch(from: *const u8) {
        // SAFETY: a prefetch of any address has no effect but on the cache.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut out = rows;
        for top in [0, 8] {
            // SAFETY: see the impl. Four 8 x 8 matrices, the two off the diagonal swapped.
            let (left, right) = unsafe {
                (
                    transpose_8(std::array::from_fn(|i| rows[top + i].0)),
                    transpose_8(std::array::from_fn(|i| rows[top + i].1)),
                )
            };
            for i in 0..8 {
                if top == 0 {
                    out[i].0 = left[i];
                    out[8 + i].0 = right[i];
                } else {
                    out[i].1 = left[i];
                    out[8 + i].1 = right[i];
                }
            }
        }
        out
    }
}

//! Sixteen `f32` lanes, the vector that every floating-point kernel is written in.
//!
//! Lanes never mix except in [`Lanes::sum`] and [`Lanes::max_lane`], whose trees are fixed, so
//! a result depends on the instruction set level but never on how a kernel is tiled.

use half::{bf16, f16};

/// Lanes of one vector, on every instruction set.
pub(crate) const LANES: usize = 16;

/// The implementations of [`Lanes`], for the choice at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LanesKind {
    /// [`PortableLanes`].
    Portable,
    /// Two 256-bit registers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// One 512-bit register.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Compiles a generic kernel once for each implementation of [`Lanes`] and defines the function
/// that picks one.
///
/// `lanes_kernel! { fn name[params](args) -> ret = body[given]; }` defines
/// `unsafe fn name(isa, args) -> ret`. `body` is an `#[inline(always)]` function whose first type
/// parameter is the lanes; the brackets declare and pass further generic parameters.
macro_rules! lanes_kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident[$($params:tt)*]($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?
        = $body:ident[$($given:tt)*];) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name<$($params)*>(isa: $crate::simd::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512<$($params)*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's contract is passed on, and this function has the features.
                unsafe { $body::<$crate::simd::lanes_x86::Avx512Lanes, $($given)*>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2<$($params)*>($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: the caller's contract is passed on, and this function has the features.
                unsafe { $body::<$crate::simd::lanes_x86::Avx2Lanes, $($given)*>($($arg),*) }
            }
            // SAFETY: an `Isa` exists only for a detected set, so the features are present; the
            // rest of the contract is the caller's.
            unsafe {
                match isa.lanes() {
                    #[cfg(target_arch = "x86_64")]
                    $crate::simd::lanes::LanesKind::Avx512 => avx512::<$($given)*>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    $crate::simd::lanes::LanesKind::Avx2 => avx2::<$($given)*>($($arg),*),
                    $crate::simd::lanes::LanesKind::Portable => {
                        $body::<$crate::simd::lanes::PortableLanes, $($given)*>($($arg),*)
                    }
                }
            }
        }
    };
}

pub(crate) use lanes_kernel;

/// Sixteen `f32` values.
///
/// Everything is elementwise unless said otherwise. Constructors are unsafe because they use the
/// instructions of the implementing type; arithmetic is safe because a value is itself the
/// proof that the processor has them.
///
/// # Safety
/// An implementation must make `load*` and `store*` touch exactly the elements they name.
pub(crate) unsafe trait Lanes: Copy {
    /// How many values the register file holds: kernels size their tiles by it.
    const REGISTERS: usize;

    /// `x` in every lane.
    ///
    /// # Safety
    /// The processor has the instructions of `Self` (so for every constructor).
    unsafe fn splat(x: f32) -> Self;

    /// Sixteen values.
    ///
    /// # Safety
    /// `from` is readable for 16 values; it needs no alignment (so for every load).
    unsafe fn load(from: *const f32) -> Self;

    /// The first `n <= 16` values, zeros in the other lanes.
    ///
    /// # Safety
    /// `from` is readable for `n` values.
    unsafe fn load_first(from: *const f32, n: usize) -> Self;

    /// Sixteen 16-bit floats.
    ///
    /// # Safety
    /// `from` is readable for 16 values.
    unsafe fn load_f16(from: *const f16) -> Self;

    /// Sixteen bfloat16 values.
    ///
    /// # Safety
    /// `from` is readable for 16 values.
    unsafe fn load_bf16(from: *const bf16) -> Self;

    /// Writes sixteen values.
    ///
    /// # Safety
    /// `to` is writable for 16 values; it needs no alignment (so for every store).
    unsafe fn store(self, to: *mut f32);

    /// Writes the first `n <= 16` values.
    ///
    /// # Safety
    /// `to` is writable for `n` values.
    unsafe fn store_first(self, to: *mut f32, n: usize);

    /// Writes sixteen values as 16-bit floats, rounded to nearest even.
    ///
    /// # Safety
    /// `to` is writable for 16 values.
    unsafe fn store_f16(self, to: *mut f16);

    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self - b`.
    fn sub(self, b: Self) -> Self;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self / b`.
    fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once where the processor can, twice on the portable level.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `if self > b { self } else { b }`: `b` where either is NaN.
    fn max(self, b: Self) -> Self;
    /// `if self < b { self } else { b }`: `b` where either is NaN.
    fn min(self, b: Self) -> Self;
    /// The nearest integer, ties to even, for magnitudes below 2^22.
    fn round(self) -> Self;
    /// `self * 2^n` for integral `n` in -252 ..= 254, anything for other `n`.
    fn scale_by_power(self, n: Self) -> Self;
    /// `if self < bound { then } else { otherwise }`; `otherwise` where either is NaN.
    fn select_less(self, bound: Self, then: Self, otherwise: Self) -> Self;
    /// `self` in lanes with index below `n`, `other` in the rest.
    fn first(self, n: usize, other: Self) -> Self;

    /// Sum of all lanes by halving: lanes 8 apart, then 4, 2, 1.
    fn sum(self) -> f32;
    /// Greatest lane; lanes that are NaN may be ignored.
    fn max_lane(self) -> f32;

    /// The transposed matrix whose rows are `rows`.
    fn transpose(rows: [Self; LANES]) -> [Self; LANES];

    /// The columns of the 16 x 16 matrix of 16-bit floats whose row `i` starts at `i * stride`.
    ///
    /// # Safety
    /// Each row is readable for 16 values.
    #[inline(always)]
    unsafe fn load_f16_columns(from: *const f16, stride: usize) -> [Self; LANES] {
        // SAFETY: the caller's contract.
        unsafe {
            let mut rows = [Self::zero(); LANES];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = Self::load_f16(from.add(i * stride));
            }
            Self::transpose(rows)
        }
    }

    /// The columns of the 16 x 16 matrix of bfloat16 values whose row `i` starts at `i * stride`.
    ///
    /// # Safety
    /// Each row is readable for 16 values.
    #[inline(always)]
    unsafe fn load_bf16_columns(from: *const bf16, stride: usize) -> [Self; LANES] {
        // SAFETY: the caller's contract.
        unsafe {
            let mut rows = [Self::zero(); LANES];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = Self::load_bf16(from.add(i * stride));
            }
            Self::transpose(rows)
        }
    }

    /// Asks for the cache line at `from`, which may be any address.
    fn prefetch(from: *const u8);

    /// Zero in every lane.
    ///
    /// # Safety
    /// The processor has the instructions of `Self`.
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's contract.
        unsafe { Self::splat(0.0) }
    }

    /// `x` in every lane; `self` only proves that the processor has the instructions.
    #[inline(always)]
    fn same(self, x: f32) -> Self {
        // SAFETY: `self` exists.
        unsafe { Self::splat(x) }
    }

    /// The first `n <= 16` 16-bit floats, zeros in the other lanes.
    ///
    /// # Safety
    /// `from` is readable for `n` values.
    #[inline(always)]
    unsafe fn load_f16_first(from: *const f16, n: usize) -> Self {
        let mut whole = [f16::ZERO; LANES];
        // SAFETY: the caller vouches for `n` values, of which at most 16 are copied.
        unsafe {
            std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), n.min(LANES));
            Self::load_f16(whole.as_ptr())
        }
    }

    /// Writes the first `n <= 16` values as 16-bit floats, rounded to nearest even.
    ///
    /// # Safety
    /// `to` is writable for `n` values.
    #[inline(always)]
    unsafe fn store_f16_first(self, to: *mut f16, n: usize) {
        let mut whole = [f16::ZERO; LANES];
        // SAFETY: the caller vouches for `n` values, of which at most 16 are written.
        unsafe {
            self.store_f16(whole.as_mut_ptr());
            std::ptr::copy_nonoverlapping(whole.as_ptr(), to, n.min(LANES));
        }
    }

    /// The first `n <= 16` bfloat16 values, zeros in the other lanes.
    ///
    /// # Safety
    /// `from` is readable for `n` values.
    #[inline(always)]
    unsafe fn load_bf16_first(from: *const bf16, n: usize) -> Self {
        let mut whole = [bf16::ZERO; LANES];
        // SAFETY: the caller vouches for `n` values, of which at most 16 are copied.
        unsafe {
            std::ptr::copy_nonoverlapping(from, whole.as_mut_ptr(), n.min(LANES));
            Self::load_bf16(whole.as_ptr())
        }
    }

    /// Writes the first `n <= 16` values as bfloat16, rounded to nearest even. Few processors have an instruction for it,
    /// and a cell is stored once.
    ///
    /// # Safety
    /// `to` is writable for `n` values.
    #[inline(always)]
    unsafe fn store_bf16_first(self, to: *mut bf16, n: usize) {
        let mut whole = [0.0; LANES];
        // SAFETY: the array has room for all lanes; the caller vouches for `n` values, of which at most 16 are written.
        unsafe {
            self.store(whole.as_mut_ptr());
            std::ptr::copy_nonoverlapping(whole.map(bf16::from_f32).as_ptr(), to, n.min(LANES));
        }
    }

    /// `e^self` within 2 ulp: exactly 1 at 0, infinite above 88.73, 0 below -87.33 (no
    /// denormal results, which would be slow to compute with), NaN where `self` is NaN.
    ///
    /// `e^x = 2^n e^r` with `n = round(x / ln 2)`; on |r| <= ln 2 / 2 the minimax
    /// polynomial of degree 6 whose first two coefficients are exactly 1.
    #[inline(always)]
    fn exp(self) -> Self {
        let c = |x| self.same(x);
        // Keeps infinity out of the differences below; a NaN takes the second operand and stays.
        // What becomes of very small arguments does not matter, the last line replaces it.
        let x = c(90.0).min(self);
        let n = x.mul(c(std::f32::consts::LOG2_E)).round();
        // ln 2 in two parts; the first has so few bits that its product with n is exact.
        let r = n.fma(c(-0.693_359_4), x);
        let r = n.fma(c(2.121_944_4e-4), r);
        let p = r.fma(c(1.381_458_4e-3), c(8.368_724e-3));
        let p = p.fma(r, c(4.166_839e-2));
        let p = p.fma(r, c(1.666_652_1e-1));
        let p = p.fma(r, c(0.499_999_94));
        let p = r.mul(r).fma(p, r).add(c(1.0));
        self.select_less(c(-87.33), c(0.0), p.scale_by_power(n))
    }

    /// Hyperbolic tangent within 4 ulp; NaN where `self` is NaN.
    ///
    /// An odd polynomial near 0, where the quotient of exponentials would cancel.
    #[inline(always)]
    fn tanh(self) -> Self {
        let c = |x| self.same(x);
        let square = self.mul(self);
        let p = square.fma(c(-5.704_988_7e-3), c(2.063_909e-2));
        let p = p.fma(square, c(-5.373_971_6e-2));
        let p = p.fma(square, c(1.333_144_2e-1));
        let p = p.fma(square, c(-3.333_328e-1));
        let small = p.mul(square).fma(self, self);
        let e = self.add(self).exp();
        let large = c(1.0).sub(c(2.0).div(e.add(c(1.0))));
        square.select_less(c(0.625 * 0.625), small, large)
    }

    /// `self / (1 + e^-self)`.
    #[inline(always)]
    fn silu(self) -> Self {
        let c = |x| self.same(x);
        self.div(c(1.0).add(c(0.0).sub(self).exp()))
    }

    /// The tanh form of GELU, `self / 2 * (1 + tanh u)` with
    /// `u = sqrt(2/pi) (self + 0.044715 self^3)`, computed as `self / (1 + e^-2u)`.
    #[inline(always)]
    fn gelu_tanh(self) -> Self {
        let c = |x| self.same(x);
        let minus_2_root_2_over_pi = -1.595_769;
        let inner = self.mul(self).fma(c(0.044_715), c(1.0)).mul(self);
        self.div(c(1.0).add(inner.mul(c(minus_2_root_2_over_pi)).exp()))
    }

    /// The values rounded to 16-bit floats.
    #[inline(always)]
    fn through_f16(self) -> Self {
        let mut halves = [f16::ZERO; LANES];
        // SAFETY: the array has room for all lanes; a value of `Self` proves the instructions.
        unsafe {
            self.store_f16(halves.as_mut_ptr());
            Self::load_f16(halves.as_ptr())
        }
    }

    /// [`Lanes::gelu_tanh`] at the resolution of a 16-bit table: input and result are rounded, and from 10 on
    /// the input is the result.
    #[inline(always)]
    fn gelu_tanh_f16(self) -> Self {
        let inside = self.min(self.same(10.0));
        let beyond = self.sub(inside);
        inside.through_f16().gelu_tanh().through_f16().add(beyond)
    }
}

/// Sixteen lanes in an array, for processors without a level of their own. Loops over it are
/// simple enough for the compiler to vectorise with whatever the target has.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct PortableLanes([f32; LANES]);

impl PortableLanes {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self;
        for i in 0..LANES {
            out.0[i] = f(self.0[i], b.0[i]);
        }
        out
    }

    #[inline(always)]
    fn halving(mut self, f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut half = LANES / 2;
        while half > 0 {
            for i in 0..half {
                self.0[i] = f(self.0[i], self.0[i + half]);
            }
            half /= 2;
        }
        self.0[0]
    }
}

/// 2^n for integral n in -126 ..= 127, from the bits of the exponent.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

// SAFETY: every access goes through references to exactly the named elements.
unsafe impl Lanes for PortableLanes {
    /// Sixteen registers of four lanes, as on x86-64 without AVX and on AArch64 at least.
    const REGISTERS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        PortableLanes([x; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: 16 readable values by contract; the read assumes no alignment.
        PortableLanes(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self {
        let mut out = [0.0; LANES];
        for (i, lane) in out.iter_mut().enumerate().take(n) {
            // SAFETY: i < n, and n values are readable by contract.
            *lane = unsafe { from.add(i).read_unaligned() };
        }
        PortableLanes(out)
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: 16 readable values by contract; the read assumes no alignment.
        PortableLanes(unsafe { from.cast::<[f16; LANES]>().read_unaligned() }.map(f16::to_f32))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: 16 readable values by contract; the read assumes no alignment.
        PortableLanes(unsafe { from.cast::<[bf16; LANES]>().read_unaligned() }.map(bf16::to_f32))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: 16 writable values by contract; the write assumes no alignment.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, n: usize) {
        for (i, lane) in self.0.iter().enumerate().take(n) {
            // SAFETY: i < n, and n values are writable by contract.
            unsafe { to.add(i).write_unaligned(*lane) };
        }
    }

    #[inline(always)]
    unsafe fn store_f16(self, to: *mut f16) {
        // SAFETY: 16 writable values by contract; the write assumes no alignment.
        unsafe { to.cast::<[f16; LANES]>().write_unaligned(self.0.map(f16::from_f32)) }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.zip(b, |x, y| x + y)
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self.zip(b, |x, y| x - y)
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.zip(b, |x, y| x * y)
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.zip(b, |x, y| x / y)
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        let mut out = self;
        for i in 0..LANES {
            out.0[i] = self.0[i] * b.0[i] + c.0[i];
        }
        out
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self.zip(b, |x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        self.zip(b, |x, y| if x < y { x } else { y })
    }

    #[inline(always)]
    fn round(self) -> Self {
        // Adding 1.5 * 2^23 leaves no bits below the unit, so the addition rounds.
        let shift = 12_582_912.0;
        self.zip(self, |x, _| (x + shift) - shift)
    }

    #[inline(always)]
    fn scale_by_power(self, n: Self) -> Self {
        // Two factors, since 2^n itself may lie outside the normal range.
        self.zip(n, |x, n| {
            let n = (n as i32).clamp(-252, 254);
            let half = n >> 1;
            x * power_of_two(half) * power_of_two(n - half)
        })
    }

    #[inline(always)]
    fn select_less(self, bound: Self, then: Self, otherwise: Self) -> Self {
        let mut out = otherwise;
        for i in 0..LANES {
            if self.0[i] < bound.0[i] {
                out.0[i] = then.0[i];
            }
        }
        out
    }

    #[inline(always)]
    fn first(self, n: usize, other: Self) -> Self {
        let mut out = other;
        for i in 0..LANES {
            if i < n {
                out.0[i] = self.0[i];
            }
        }
        out
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        self.halving(|x, y| x + y)
    }

    #[inline(always)]
    fn max_lane(self) -> f32 {
        self.halving(|x, y| if x > y { x } else { y })
    }

    #[inline(always)]
    fn prefetch(_from: *const u8) {}

    #[inline(always)]
    fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut out = rows;
        for (i, row) in rows.iter().enumerate() {
            for (j, lane) in row.0.iter().enumerate() {
                out[j].0[i] = *lane;
            }
        }
        out
    }
}

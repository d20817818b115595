//! Operations on single rows: norms, rotary embedding, gates, sums.
//!
//! Each output element is one fixed expression of its inputs, except the sum of squares of
//! [`rms_norm`], whose order depends on the row's length alone.

use tailrace_device::plan::spec::Pairing;

use super::isa::Isa;
use super::lanes::{LANES, Lanes, lanes_kernel};

/// `out = x / sqrt(mean(x^2) + eps) * w` (root mean square norm).
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm(isa: Isa, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == w.len() && x.len() == out.len());
    // SAFETY: three slices of one length.
    unsafe { rms_norm_row(isa, x.as_ptr(), w.as_ptr(), eps, out.as_mut_ptr(), x.len()) };
}

/// [`rms_norm`] in place.
///
/// # Panics
/// If the lengths differ.
pub fn rms_norm_in_place(isa: Isa, x: &mut [f32], w: &[f32], eps: f32) {
    assert_eq!(x.len(), w.len());
    let p = x.as_mut_ptr();
    // SAFETY: two slices of one length; the kernel reads an element before it writes it.
    unsafe { rms_norm_row(isa, p, w.as_ptr(), eps, p, x.len()) };
}

lanes_kernel! {
    fn rms_norm_row[](x: *const f32, w: *const f32, eps: f32, out: *mut f32, n: usize)
        = rms_norm_body[];
}

/// # Safety
/// `x` and `w` are readable, `out` writable for `n` values; `out` may be `x`.
#[inline(always)]
unsafe fn rms_norm_body<L: Lanes>(x: *const f32, w: *const f32, eps: f32, out: *mut f32, n: usize) {
    // SAFETY: i < n.
    unsafe {
        // Four chains hide the latency of the addition.
        let mut sums = [L::zero(); 4];
        for i in (0..n).step_by(LANES) {
            let v = L::load_first(x.add(i), (n - i).min(LANES));
            let sum = &mut sums[i / LANES % 4];
            *sum = v.fma(v, *sum);
        }
        let sum = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
        let factor = L::splat(1.0 / (sum / n as f32 + eps).sqrt());
        for i in (0..n).step_by(LANES) {
            let left = (n - i).min(LANES);
            let v = L::load_first(x.add(i), left).mul(factor);
            v.mul(L::load_first(w.add(i), left)).store_first(out.add(i), left);
        }
    }
}

/// Cosines and sines of one position: `table = [cos(p f_0) ..][sin(p f_0) ..]`, scaled by
/// `magnitude`, for inverse frequencies `f`. Angles are computed in `f64`: at position 10^6
/// an `f32` angle is wrong by 0.03 rad.
///
/// # Panics
/// If `table` is not twice as long as `inverse_frequencies`.
pub fn rope_table(position: u32, inverse_frequencies: &[f64], magnitude: f32, table: &mut [f32]) {
    assert_eq!(table.len(), 2 * inverse_frequencies.len());
    let (cos, sin) = table.split_at_mut(inverse_frequencies.len());
    for (j, f) in inverse_frequencies.iter().enumerate() {
        let (s, c) = (f64::from(position) * f).sin_cos();
        cos[j] = (c * f64::from(magnitude)) as f32;
        sin[j] = (s * f64::from(magnitude)) as f32;
    }
}

/// Turns the first `table.len()` elements of a head by the angles of `table` (see
/// [`rope_table`]): `(a, b) -> (a cos - b sin, a sin + b cos)`. The rest stays.
///
/// # Panics
/// If the table's length is odd or exceeds the head's.
pub fn rope(isa: Isa, pairing: Pairing, head: &mut [f32], table: &[f32]) {
    assert!(table.len() <= head.len() && table.len().is_multiple_of(2));
    let (cos, sin) = table.split_at(table.len() / 2);
    match pairing {
        Pairing::Adjacent => {
            let (pairs, _) = head.as_chunks_mut::<2>();
            for (pair, (c, s)) in pairs.iter_mut().zip(cos.iter().zip(sin)) {
                let [a, b] = *pair;
                *pair = [a * c - b * s, a * s + b * c];
            }
        }
        Pairing::Half => {
            let half = cos.len();
            let (cos, sin) = (cos.as_ptr(), sin.as_ptr());
            // SAFETY: `head` holds at least `2 * half` values, the table's halves `half` each.
            unsafe { rope_neox(isa, head.as_mut_ptr(), cos, sin, half) };
        }
    }
}

lanes_kernel! {
    fn rope_neox[](head: *mut f32, cos: *const f32, sin: *const f32, half: usize)
        = rope_neox_body[];
}

/// # Safety
/// `head` holds `2 * half` values, `cos` and `sin` hold `half`.
#[inline(always)]
unsafe fn rope_neox_body<L: Lanes>(head: *mut f32, cos: *const f32, sin: *const f32, half: usize) {
    for j in (0..half).step_by(LANES) {
        let n = (half - j).min(LANES);
        // SAFETY: j + n <= half.
        unsafe {
            let (c, s) = (L::load_first(cos.add(j), n), L::load_first(sin.add(j), n));
            let a = L::load_first(head.add(j), n);
            let b = L::load_first(head.add(half + j), n);
            a.mul(c).sub(b.mul(s)).store_first(head.add(j), n);
            a.mul(s).add(b.mul(c)).store_first(head.add(half + j), n);
        }
    }
}

/// Defines `fn name(isa, out, a)`: `out[i] = op(out[i], a[i])`.
macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident, $body:ident: |$x:ident, $y:ident| $value:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        /// If the lengths differ.
        pub fn $name(isa: Isa, out: &mut [f32], a: &[f32]) {
            assert_eq!(out.len(), a.len());
            lanes_kernel! {
                fn run[](out: *mut f32, a: *const f32, n: usize) = $body[];
            }
            // SAFETY: two slices of one length.
            unsafe { run(isa, out.as_mut_ptr(), a.as_ptr(), a.len()) };
        }

        /// # Safety
        /// `out` and `a` hold `n` values.
        #[inline(always)]
        unsafe fn $body<L: Lanes>(out: *mut f32, a: *const f32, n: usize) {
            for i in (0..n).step_by(LANES) {
                let left = (n - i).min(LANES);
                // SAFETY: i + left <= n.
                unsafe {
                    let $x = L::load_first(out.add(i), left);
                    let $y = L::load_first(a.add(i), left);
                    $value.store_first(out.add(i), left);
                }
            }
        }
    )*};
}

binary! {
    /// `out += a`.
    add, add_body: |x, y| x.add(y);
    /// `gate = silu(gate) * up`, with `silu(z) = z / (1 + e^-z)`.
    silu_mul, silu_mul_body: |x, y| x.silu().mul(y);
    /// `gate = gelu(gate) * up`, with the tanh form of GELU.
    gelu_tanh_mul, gelu_tanh_mul_body: |x, y| x.gelu_tanh().mul(y);
    /// The same at the resolution of a 16-bit table.
    gelu_tanh_f16_mul, gelu_tanh_f16_mul_body: |x, y| x.gelu_tanh_f16().mul(y);
}

/// `x *= factor`.
pub fn scale(isa: Isa, x: &mut [f32], factor: f32) {
    // SAFETY: one slice.
    unsafe { scale_row(isa, x.as_mut_ptr(), factor, x.len()) };
}

lanes_kernel! {
    fn scale_row[](x: *mut f32, factor: f32, n: usize) = scale_body[];
}

/// # Safety
/// `x` holds `n` values.
#[inline(always)]
unsafe fn scale_body<L: Lanes>(x: *mut f32, factor: f32, n: usize) {
    for i in (0..n).step_by(LANES) {
        let left = (n - i).min(LANES);
        // SAFETY: i + left <= n.
        unsafe {
            let v = L::load_first(x.add(i), left).mul(L::splat(factor));
            v.store_first(x.add(i), left);
        }
    }
}

/// `x = cap * tanh(x / cap)`.
pub fn soft_cap(isa: Isa, x: &mut [f32], cap: f32) {
    // SAFETY: one slice.
    unsafe { soft_cap_row(isa, x.as_mut_ptr(), cap, x.len()) };
}

lanes_kernel! {
    fn soft_cap_row[](x: *mut f32, cap: f32, n: usize) = soft_cap_body[];
}

/// # Safety
/// `x` holds `n` values.
#[inline(always)]
unsafe fn soft_cap_body<L: Lanes>(x: *mut f32, cap: f32, n: usize) {
    for i in (0..n).step_by(LANES) {
        let left = (n - i).min(LANES);
        // SAFETY: i + left <= n.
        unsafe {
            let v = L::load_first(x.add(i), left).div(L::splat(cap)).tanh();
            v.mul(L::splat(cap)).store_first(x.add(i), left);
        }
    }
}

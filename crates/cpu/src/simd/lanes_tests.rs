//! Every operation of [`Lanes`] on every instruction set, against scalar arithmetic.

use half::{bf16, f16};

use super::isa::Isa;
use super::lanes::{LANES, Lanes, lanes_kernel};

#[inline(always)]
unsafe fn unary<L: Lanes, const OP: u8>(from: *const f32, to: *mut f32) {
    // SAFETY: the tests pass arrays of 16.
    unsafe {
        let x = L::load(from);
        let y = match OP {
            b'e' => x.exp(),
            b't' => x.tanh(),
            b's' => x.silu(),
            b'g' => x.gelu_tanh(),
            _ => x.round(),
        };
        y.store(to);
    }
}

lanes_kernel! {
    fn run_unary[const OP: u8](from: *const f32, to: *mut f32) = unary[OP];
}

fn apply<const OP: u8>(isa: Isa, x: [f32; LANES]) -> [f32; LANES] {
    let mut y = [0.0; LANES];
    // SAFETY: both arrays hold 16 values.
    unsafe { run_unary::<OP>(isa, x.as_ptr(), y.as_mut_ptr()) };
    y
}

/// Distance in units of the last place of the f32 nearest to `truth`.
fn ulps(value: f32, truth: f64) -> f64 {
    let near = (truth as f32).abs().max(f32::MIN_POSITIVE);
    let unit = f64::from(near.next_up()) - f64::from(near);
    (f64::from(value) - truth).abs() / unit
}

/// The largest distance over `steps` points between `low` and `high`.
fn worst<const OP: u8>(isa: Isa, low: f32, high: f32, steps: usize, f: fn(f64) -> f64) -> f64 {
    let mut worst: f64 = 0.0;
    for block in 0..steps / LANES {
        let point = |i: usize| (block * LANES + i) as f32 / steps as f32;
        let x: [f32; LANES] = std::array::from_fn(|i| low + (high - low) * point(i));
        for (x, y) in x.into_iter().zip(apply::<OP>(isa, x)) {
            worst = worst.max(ulps(y, f(f64::from(x))));
        }
    }
    worst
}

#[test]
fn exp_is_accurate_over_its_range() {
    for isa in Isa::available() {
        for (low, high) in [(-87.3, 88.7), (-1.0, 1.0), (-20.0, 0.0)] {
            let error = worst::<b'e'>(isa, low, high, 1 << 20, f64::exp);
            assert!(error < 2.0, "{isa:?}: {error} ulp in {low}..{high}");
        }
    }
}

#[test]
fn exp_at_its_ends() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for isa in Isa::available() {
        let x = [0.0, -0.0, -inf, inf, nan, -87.34, -1e30, 89.0, 1e30, -87.0, 1e-30];
        let mut all = [0.0; LANES];
        all[..x.len()].copy_from_slice(&x);
        let y = apply::<b'e'>(isa, all);
        assert_eq!(y[..4], [1.0, 1.0, 0.0, inf], "{isa:?}");
        assert!(y[4].is_nan(), "{isa:?}");
        assert_eq!(y[5..9], [0.0, 0.0, inf, inf], "{isa:?}");
        assert!(y[9] > 0.0 && y[10] == 1.0, "{isa:?}");
    }
}

#[test]
fn hyperbolic_and_gates_are_accurate() {
    let gelu = |x: f64| {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        x / (1.0 + (-2.0 * u).exp())
    };
    for isa in Isa::available() {
        let tanh = worst::<b't'>(isa, -12.0, 12.0, 1 << 18, f64::tanh);
        let near = worst::<b't'>(isa, -0.7, 0.7, 1 << 18, f64::tanh);
        assert!(tanh < 4.0 && near < 4.0, "{isa:?}: tanh {tanh} {near}");
        let silu = worst::<b's'>(isa, -20.0, 20.0, 1 << 18, |x| x / (1.0 + (-x).exp()));
        assert!(silu < 4.0, "{isa:?}: silu {silu}");
        // The cubic in the exponent magnifies its rounding where the gate is nearly shut.
        let open = worst::<b'g'>(isa, -1.0, 8.0, 1 << 18, gelu);
        assert!(open < 8.0, "{isa:?}: gelu {open}");
        for x in apply::<b't'>(isa, [f32::NAN; LANES]) {
            assert!(x.is_nan());
        }
        assert_eq!(apply::<b't'>(isa, [1e30; LANES]), [1.0; LANES]);
        assert_eq!(apply::<b's'>(isa, [-1e30; LANES]).map(f32::abs), [0.0; LANES]);
    }
}

#[test]
fn round_is_to_even() {
    for isa in Isa::available() {
        let x = std::array::from_fn(|i| i as f32 * 0.5 - 4.0);
        assert_eq!(apply::<b'r'>(isa, x), x.map(f32::round_ties_even), "{isa:?}");
    }
}

#[inline(always)]
unsafe fn conversions<L: Lanes>(from: *const u16, n: usize, f: *mut f32, b: *mut f32, back: *mut u16) {
    // SAFETY: the test passes arrays of 16 and n <= 16.
    unsafe {
        let x = L::load_f16(from.cast());
        x.store(f);
        L::load_bf16(from.cast()).store(b);
        x.store_f16_first(back.cast(), n);
    }
}

lanes_kernel! {
    fn run_conversions[](from: *const u16, n: usize, f: *mut f32, b: *mut f32, back: *mut u16)
        = conversions[];
}

#[test]
fn every_half_float_converts() {
    for isa in Isa::available() {
        for start in (0..=u16::MAX).step_by(LANES) {
            let bits: [u16; LANES] = std::array::from_fn(|i| start + i as u16);
            let (mut f, mut b, mut back) = ([0f32; LANES], [0f32; LANES], [0u16; LANES]);
            let (f, b) = (&mut f, &mut b);
            // SAFETY: all arrays hold 16 values.
            unsafe {
                let (f, b) = (f.as_mut_ptr(), b.as_mut_ptr());
                run_conversions(isa, bits.as_ptr(), LANES, f, b, back.as_mut_ptr());
            }
            for i in 0..LANES {
                let (half, brain) = (f16::from_bits(bits[i]), bf16::from_bits(bits[i]));
                assert!(f[i] == half.to_f32() || f[i].is_nan() && half.is_nan());
                assert!(b[i] == brain.to_f32() || b[i].is_nan() && brain.is_nan());
                assert!(back[i] == bits[i] || half.is_nan(), "{isa:?} {:#x}", bits[i]);
            }
        }
    }
}

#[inline(always)]
unsafe fn rounds_to_f16<L: Lanes>(from: *const f32, to: *mut u16) {
    // SAFETY: the test passes arrays of 16.
    unsafe { L::load(from).store_f16(to.cast()) }
}

lanes_kernel! {
    fn run_rounds_to_f16[](from: *const f32, to: *mut u16) = rounds_to_f16[];
}

#[test]
fn halves_round_to_nearest_even() {
    for isa in Isa::available() {
        let tie = 1.0 + f32::powi(2.0, -11);
        let odd_tie = 1.0 + 3.0 * f32::powi(2.0, -11);
        let mut x = [0.0; LANES];
        x[..5].copy_from_slice(&[tie, odd_tie, tie.next_up(), 70000.0, 6e-8]);
        let mut bits = [0u16; LANES];
        // SAFETY: both arrays hold 16 values.
        unsafe { run_rounds_to_f16(isa, x.as_ptr(), bits.as_mut_ptr()) };
        assert_eq!(bits, x.map(|x| f16::from_f32(x).to_bits()), "{isa:?}");
        assert_eq!(bits[..4], [0x3c00, 0x3c02, 0x3c01, 0x7c00], "{isa:?}");
    }
}

#[inline(always)]
unsafe fn partials<L: Lanes>(n: usize, from: *const f32, halves: *const f16, to: *mut f32) {
    // SAFETY: the test passes `n` inputs of each kind and room for 4 * 16 + n + 2 outputs.
    unsafe {
        let x = L::load_first(from, n);
        x.store(to);
        L::load_f16_first(halves, n).store(to.add(16));
        x.first(n, L::splat(-7.0)).store(to.add(32));
        x.select_less(L::splat(3.5), x, L::splat(100.0)).store(to.add(48));
        *to.add(64) = x.sum();
        *to.add(65) = x.max_lane();
        x.store_first(to.add(66), n);
    }
}

lanes_kernel! {
    fn run_partials[](n: usize, from: *const f32, halves: *const f16, to: *mut f32) = partials[];
}

#[test]
fn partial_vectors_touch_their_elements_only() {
    for isa in Isa::available() {
        for n in 0..=LANES {
            let x: Vec<f32> = (0..n).map(|i| i as f32 + 1.0).collect();
            let halves: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
            let mut y = vec![f32::NAN; 66 + n];
            // SAFETY: see `partials`; the vectors end where the contract says.
            unsafe { run_partials(isa, n, x.as_ptr(), halves.as_ptr(), y.as_mut_ptr()) };
            for i in 0..LANES {
                let value = if i < n { i as f32 + 1.0 } else { 0.0 };
                assert_eq!([y[i], y[16 + i]], [value; 2], "{isa:?} n = {n}");
                assert_eq!(y[32 + i], if i < n { value } else { -7.0 });
                assert_eq!(y[48 + i], if value < 3.5 { value } else { 100.0 });
            }
            assert_eq!(y[64], (n * (n + 1) / 2) as f32);
            assert_eq!(y[65], n as f32);
            assert_eq!(y[66..], x);
        }
    }
}

#[inline(always)]
unsafe fn transposed<L: Lanes>(from: *const f32, to: *mut f32) {
    // SAFETY: the test passes arrays of 256.
    unsafe {
        let mut rows = [L::zero(); LANES];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = L::load(from.add(LANES * i));
        }
        for (i, row) in L::transpose(rows).into_iter().enumerate() {
            row.store(to.add(LANES * i));
        }
    }
}

lanes_kernel! {
    fn run_transposed[](from: *const f32, to: *mut f32) = transposed[];
}

#[test]
fn transpose_swaps_rows_and_columns() {
    for isa in Isa::available() {
        let x: [f32; 256] = std::array::from_fn(|i| i as f32);
        let mut y = [0.0; 256];
        // SAFETY: both arrays hold 256 values.
        unsafe { run_transposed(isa, x.as_ptr(), y.as_mut_ptr()) };
        let swapped: [f32; 256] = std::array::from_fn(|i| x[i % 16 * 16 + i / 16]);
        assert_eq!(y, swapped, "{isa:?}");
    }
}

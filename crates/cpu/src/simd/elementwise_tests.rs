//! Row operations against their references, at every length around the vector's.

use tailrace_device::plan::spec::Pairing;

use super::elementwise::*;
use super::isa::Isa;
use crate::naive::elementwise as naive;

const LENGTHS: [usize; 9] = [1, 7, 15, 16, 17, 48, 63, 896, 1000];

/// Values between -4 and 4 without a pattern.
fn row(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2654435761) | 1;
    let mut next = || {
        state = state.wrapping_mul(747796405).wrapping_add(2891336453);
        (state >> 8) as f32 / (1 << 21) as f32 - 4.0
    };
    (0..n).map(|_| next()).collect()
}

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-5 * w.abs().max(1e-2), "{what}[{i}]: {g} instead of {w}");
    }
}

/// Holds `op` against `want` on rows of every length and instruction set.
fn each(op: impl Fn(Isa, &mut [f32], &[f32]), want: impl Fn(&[f32], &[f32]) -> Vec<f32>) {
    for isa in Isa::available() {
        for n in LENGTHS {
            let (x, y) = (row(n, 1), row(n, 2));
            let mut got = x.clone();
            op(isa, &mut got, &y);
            assert_close(&got, &want(&x, &y), &format!("{isa:?} n = {n}"));
        }
    }
}

fn zip(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    x.iter().zip(y).map(|(&x, &y)| f(x, y)).collect()
}

#[test]
fn norm() {
    let eps = 1e-5;
    each(|isa, x, w| rms_norm_in_place(isa, x, w, eps), |x, w| naive::rms_norm(x, w, eps));
    for isa in Isa::available() {
        let (x, w) = (row(100, 3), row(100, 4));
        let (mut out, mut same) = (vec![0.0; 100], x.clone());
        rms_norm(isa, &x, &w, eps, &mut out);
        rms_norm_in_place(isa, &mut same, &w, eps);
        assert_eq!(out, same);
        rms_norm(isa, &[0.0; 20], &[1.0; 20], eps, &mut out[..20]);
        assert_eq!(out[..20], [0.0; 20]);
    }
}

/// A rounding to 16 bits may fall to the other side: one step of 2^-10, or the smallest one.
#[test]
fn gelu_is_that_of_a_16_bit_table() {
    for isa in Isa::available() {
        for n in LENGTHS {
            let (x, up) = (row(n, 3).iter().map(|x| 4.0 * x).collect::<Vec<_>>(), row(n, 4));
            let mut gate = x.clone();
            gelu_tanh_f16_mul(isa, &mut gate, &up);
            for ((x, up), got) in x.iter().zip(&up).zip(&gate) {
                let wanted = naive::gelu_tanh_f16(*x) * up;
                assert!((got - wanted).abs() <= wanted.abs() / 1024.0 + 1e-6, "{isa:?} {x}: {got}, {wanted}");
            }
        }
        let mut exact = [0.0, 10.0, 12.345, -20.0];
        gelu_tanh_f16_mul(isa, &mut exact, &[1.0; 4]);
        assert_eq!(exact, [0.0, 10.0, 12.345, 0.0]);
    }
}

#[test]
fn gates_and_sums() {
    each(add, |x, y| zip(x, y, |x, y| x + y));
    each(silu_mul, |x, y| zip(x, y, |x, y| naive::silu(x) * y));
    each(gelu_tanh_mul, |x, y| zip(x, y, |x, y| naive::gelu_tanh(x) * y));
    each(|isa, x, _| scale(isa, x, -3.5), |x, _| zip(x, x, |x, _| x * -3.5));
    each(|isa, x, _| soft_cap(isa, x, 1.5), |x, _| zip(x, x, |x, _| naive::soft_cap(x, 1.5)));
}

#[test]
fn rope_turns_pairs_and_keeps_the_rest() {
    for isa in Isa::available() {
        for (dims, head) in [(2, 2), (32, 32), (20, 64), (64, 96), (128, 128)] {
            for (pairing, position) in [(Pairing::Adjacent, 7), (Pairing::Half, 1_000_003)] {
                let half = dims / 2;
                let frequency = |j: usize| 10000f64.powf(-2.0 * j as f64 / dims as f64);
                let frequencies: Vec<f64> = (0..half).map(frequency).collect();
                let mut table = vec![0.0; dims];
                rope_table(position, &frequencies, 1.25, &mut table);
                let mut got = row(head, 5);
                let mut want = got.clone();
                let pair = |j| match pairing {
                    Pairing::Adjacent => (2 * j, 2 * j + 1),
                    Pairing::Half => (j, j + half),
                };
                let pairs: Vec<_> = (0..half).map(pair).collect();
                let angles: Vec<f64> = frequencies.iter().map(|f| f * f64::from(position)).collect();
                naive::rope(&mut want, &pairs, &angles, 1.25);
                rope(isa, pairing, &mut got, &table);
                let what = format!("{isa:?} {pairing:?} {dims} of {head}");
                for (g, w) in got.iter().zip(&want) {
                    assert!((g - w).abs() < 2e-6, "{what}: {g} instead of {w}");
                }
                assert_eq!(got[dims..], row(head, 5)[dims..], "{what}");
            }
        }
    }
}

//! Operations on single rows, in `f64` where a sum or a function is involved.

use half::f16;

/// `x / sqrt(mean(x^2) + eps) * w`.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let factor = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
    let norm = |(&x, &w): (&f32, &f32)| (f64::from(x) * factor * f64::from(w)) as f32;
    x.iter().zip(w).map(norm).collect()
}

/// Turns each pair `(x[a], x[b])` by `angle`, times `magnitude`.
pub fn rope(x: &mut [f32], pairs: &[(usize, usize)], angles: &[f64], magnitude: f64) {
    for (&(a, b), angle) in pairs.iter().zip(angles) {
        let (sin, cos) = angle.sin_cos();
        let (p, q) = (f64::from(x[a]), f64::from(x[b]));
        x[a] = ((p * cos - q * sin) * magnitude) as f32;
        x[b] = ((p * sin + q * cos) * magnitude) as f32;
    }
}

/// `z / (1 + e^-z)`.
pub fn silu(z: f32) -> f32 {
    let z = f64::from(z);
    (z / (1.0 + (-z).exp())) as f32
}

/// `z / 2 * (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))`.
pub fn gelu_tanh(z: f32) -> f32 {
    gelu_tanh_f64(z.into()) as f32
}

/// The same as a table over 16-bit floats has it: `z` and the result are rounded, and from 10 on the result is `z`.
pub fn gelu_tanh_f16(z: f32) -> f32 {
    if z >= 10.0 {
        return z;
    }
    f16::from_f64(gelu_tanh_f64(f16::from_f32(z).to_f64())).to_f32()
}

/// `1 + tanh u = 2 / (1 + e^-2u)`, which loses nothing where the tangent is near -1.
fn gelu_tanh_f64(z: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (z + 0.044715 * z * z * z);
    z / (1.0 + (-2.0 * u).exp())
}

/// `cap * tanh(z / cap)`.
pub fn soft_cap(z: f32, cap: f32) -> f32 {
    let cap = f64::from(cap);
    (cap * (f64::from(z) / cap).tanh()) as f32
}

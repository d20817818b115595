//! Frequencies of rotary position embeddings.

use crate::plan::spec::Rope;

/// Angle per position of each pair of `rope`, in radians; `factors` are its tensor's values.
///
/// Su et al. 2021; YaRN after Peng et al. 2023, as GGUF engines apply it.
pub fn frequencies(rope: &Rope, factors: Option<&[f32]>) -> Box<[f64]> {
    let (dims, base) = (rope.dims as f64, rope.base as f64);
    let pair = |j: usize| {
        let factor = factors.and_then(|f| f.get(j)).map_or(1.0, |&f| f as f64);
        let extrapolated = base.powf(-2.0 * j as f64 / dims) / factor;
        let interpolated = extrapolated / rope.linear as f64;
        let Some(yarn) = rope.yarn else { return interpolated };
        // YaRN: dimensions that turn often are left alone, those that never complete a turn are interpolated.
        let turns = |n: f32| {
            let wavelengths = yarn.original_context as f64 / (n as f64 * std::f64::consts::TAU);
            dims * wavelengths.ln() / (2.0 * base.ln())
        };
        let low = turns(yarn.beta_fast).floor().max(0.0);
        let high = turns(yarn.beta_slow).ceil().min(dims - 1.0);
        let ramp = ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let weight = yarn.ext_factor as f64 * (1.0 - ramp);
        interpolated * (1.0 - weight) + extrapolated * weight
    };
    (0..rope.dims as usize / 2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::spec::{Pairing, Yarn};

    fn rope(yarn: Option<Yarn>, linear: f32) -> Rope {
        Rope { pairing: Pairing::Half, dims: 64, base: 10_000.0, linear, factors: None, yarn, mscale: 1.0 }
    }

    #[test]
    fn plain_and_linear() {
        let plain = frequencies(&rope(None, 1.0), None);
        assert_eq!(plain[0], 1.0);
        assert!((plain[16] - 0.01).abs() < 1e-12);
        let linear = frequencies(&rope(None, 4.0), None);
        assert!(plain.iter().zip(&linear).all(|(p, l)| (p / 4.0 - l).abs() < 1e-12));
    }

    #[test]
    fn factors_divide() {
        let factors: Vec<f32> = (0..32).map(|j| 1.0 + j as f32).collect();
        let (plain, scaled) = (rope(None, 1.0), rope(None, 1.0));
        let (plain, scaled) = (frequencies(&plain, None), frequencies(&scaled, Some(&factors)));
        assert!((0..32).all(|j| (plain[j] / (1.0 + j as f64) - scaled[j]).abs() < 1e-12));
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let yarn = Yarn { original_context: 4096, ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 };
        let (plain, yarn) = (frequencies(&rope(None, 1.0), None), frequencies(&rope(Some(yarn), 8.0), None));
        assert_eq!(plain[0], yarn[0]);
        assert!((plain[31] / 8.0 - yarn[31]).abs() < 1e-12);
        assert!((1..32).all(|j| yarn[j] <= plain[j] && yarn[j] >= plain[j] / 8.0 - 1e-15));
    }
}

//! Angles and pairs of rotary position embedding.

use std::f64::consts::TAU;

use tailrace_device::plan::spec::{Pairing, Rope, Yarn};

/// Angle per position of each pair, in radians; `factors` has a divisor for each pair.
pub(super) fn inverse_frequencies(rope: &Rope, factors: Option<&[f32]>) -> Vec<f64> {
    let base = f64::from(rope.base);
    let frequencies = (0..rope.dims / 2).map(|j| {
        let factor = factors.map_or(1.0, |f| f64::from(f[j as usize]));
        let kept = base.powf(-f64::from(2 * j) / f64::from(rope.dims)) / factor;
        let interpolated = kept / f64::from(rope.linear);
        let keep = rope.yarn.map_or(0.0, |yarn| kept_share(rope, &yarn, j));
        interpolated * (1.0 - keep) + kept * keep
    });
    frequencies.collect()
}

/// How much of a pair's own frequency YaRN keeps: all where it turns `beta_fast` times or more within the original
/// context, nothing where it turns `beta_slow` times or less, and a ramp over the pairs between.
fn kept_share(rope: &Rope, yarn: &Yarn, pair: u32) -> f64 {
    let dims = f64::from(rope.dims);
    let pair_of_turns = |turns: f32| {
        let positions_per_radian = f64::from(yarn.original_context) / (f64::from(turns) * TAU);
        dims * positions_per_radian.ln() / (2.0 * f64::from(rope.base).ln())
    };
    let first = pair_of_turns(yarn.beta_fast).floor().max(0.0);
    let last = pair_of_turns(yarn.beta_slow).ceil().min(dims - 1.0);
    let along = (f64::from(pair) - first) / (last - first).max(0.001);
    f64::from(yarn.ext_factor) * (1.0 - along.clamp(0.0, 1.0))
}

/// Turns the pairs of `head` by `table`, the cosines of all pairs and then their sines.
pub(super) fn turn(head: &mut [f32], pairing: Pairing, table: &[f32]) {
    let pairs = table.len() / 2;
    for j in 0..pairs {
        let (a, b) = match pairing {
            Pairing::Adjacent => (2 * j, 2 * j + 1),
            Pairing::Half => (j, j + pairs),
        };
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        let (cos, sin) = (f64::from(table[j]), f64::from(table[pairs + j]));
        head[a] = (x * cos - y * sin) as f32;
        head[b] = (x * sin + y * cos) as f32;
    }
}

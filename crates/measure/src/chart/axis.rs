//! Axes: from values to a share of their length, and where their ticks are.

/// Least and greatest magnitude that is drawn: beyond them differences and quotients leave what a float holds.
const MAGNITUDE: (f64, f64) = (1e-100, 1e100);
/// Ticks that fit an axis.
const TICKS_MAX: usize = 8;

/// Whether a value has a place on a linear axis.
pub(super) fn is_linear(value: f64) -> bool {
    value.abs() < MAGNITUDE.1
}

/// Whether a value has a place on a logarithmic axis.
pub(super) fn is_logarithmic(value: f64) -> bool {
    value > MAGNITUDE.0 && value < MAGNITUDE.1
}

/// An axis from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// A linear axis over `values`; `None` where none of them has a place.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Option<Scale> {
        let (low, high) = extent(values.filter(|&value| is_linear(value)))?;
        // One value, or values that a float hardly tells apart, are in the middle.
        let size = low.abs().max(high.abs());
        let near = high - low <= size * 1e-9 || high - low < MAGNITUDE.0;
        let room = if size < MAGNITUDE.0 { 1.0 } else { size * 0.1 };
        let (low, high) = if near { (low - room, high + room) } else { (low, high) };
        Some(Scale { low, high, log: false })
    }

    /// A logarithmic axis over `values` with some room at both ends; `None` where none of them has a place.
    pub(super) fn log(values: impl Iterator<Item = f64>) -> Option<Scale> {
        let (low, high) = extent(values.filter(|&value| is_logarithmic(value)))?;
        let room = (high / low).powf(0.05).max(1.02);
        Some(Scale { low: low / room, high: high * room, log: true })
    }

    /// The least value.
    pub(super) fn low(self) -> f64 {
        self.low
    }

    /// Where a value is, from 0 for the least to 1 for the greatest.
    pub(super) fn share(self, value: f64) -> f64 {
        if self.log {
            (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    /// Places of ticks and what is written there.
    pub(super) fn ticks(self) -> Vec<(f64, String)> {
        let decades = if self.log { self.log_ticks() } else { Vec::new() };
        let values = if decades.len() < 3 { self.linear_ticks() } else { decades };
        let step = values.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        values.into_iter().map(|value| (value, number(value, step))).collect()
    }

    /// Multiples of 1, 2 and 5, or powers of ten alone where those are too many.
    fn log_ticks(self) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let inside = |value: &f64| (self.low..=self.high).contains(value);
        let fine = decades.clone().flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)));
        let fine: Vec<_> = fine.filter(inside).collect();
        if fine.len() <= TICKS_MAX {
            return fine;
        }
        let powers: Vec<_> = decades.map(|decade| 10f64.powi(decade)).filter(inside).collect();
        let every = powers.len().div_ceil(TICKS_MAX).max(1);
        powers.into_iter().step_by(every).collect()
    }

    /// Multiples of the least of 1, 2 or 5 times a power of ten that are not too many.
    fn linear_ticks(self) -> Vec<f64> {
        let least = (self.high - self.low) / TICKS_MAX as f64;
        let power = 10f64.powf(least.log10().floor());
        let step =
            [1.0, 2.0, 5.0].map(|digit| digit * power).into_iter().find(|&step| step >= least).unwrap_or(10.0 * power);
        let first = (self.low / step).ceil();
        // Counted, not added up: sums of floats may stand still.
        let ticks = (0..=TICKS_MAX + 1).map(|i| (first + i as f64) * step);
        ticks.filter(|&value| value <= self.high + step * 1e-6).collect()
    }
}

fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |found, value| {
        let (low, high) = found.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

/// A number with the digits that tell it from others `step` away.
pub(super) fn number(value: f64, step: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e6).contains(&size) {
        return format!("{value:.2e}");
    }
    let digits = if step.is_finite() { (-step.log10().floor()).clamp(0.0, 6.0) as usize } else { 2 };
    let text = format!("{value:.digits$}");
    // Zero has no sign, whichever side a sum came to it from.
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|c| matches!(c, '0' | '.')) => rest.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Option<Scale>) -> Vec<String> {
        scale.expect("a scale").ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(Scale::linear([0.0, 23.0].into_iter())), ["0", "5", "10", "15", "20"]);
        assert_eq!(
            labels(Scale::linear([-0.1, 0.2].into_iter())),
            ["-0.10", "-0.05", "0.00", "0.05", "0.10", "0.15", "0.20"]
        );
        assert_eq!(labels(Scale::log([2.1, 94.0].into_iter())), ["2", "5", "10", "20", "50", "100"]);
        assert_eq!(labels(Scale::log([3400.0, 3600.0].into_iter()))[0], "3350");
        assert_eq!(labels(Scale::log([1.0, 1e5].into_iter())), ["1", "10", "100", "1000", "10000", "100000"]);
    }

    #[test]
    fn the_ends_of_an_axis_are_0_and_1() {
        let linear = Scale::linear([4.0, 2.0, f64::NAN].into_iter()).expect("a scale");
        assert_eq!((linear.share(2.0), linear.share(3.0), linear.share(4.0)), (0.0, 0.5, 1.0));
        let log = Scale::log([10.0, 1000.0, -1.0, 0.0].into_iter()).expect("a scale");
        assert!((log.share(100.0) - 0.5).abs() < 1e-12 && log.share(10.0) > 0.0 && log.share(1000.0) < 1.0);
    }

    #[test]
    fn one_value_is_in_the_middle_and_none_has_no_axis() {
        for value in [0.0, 7.0, -1e99, 1e-99] {
            let share = Scale::linear([value].into_iter()).expect("a scale").share(value);
            assert!((share - 0.5).abs() < 1e-9, "{value}");
        }
        assert!((Scale::log([7.0].into_iter()).expect("a scale").share(7.0) - 0.5).abs() < 1e-9);
        assert_eq!(Scale::linear([f64::NAN, f64::INFINITY].into_iter()), None);
        assert_eq!(Scale::log([0.0, -1.0].into_iter()), None);
    }
}

//! Means with their errors, and percentiles.

/// A running mean and its error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Estimate {
    /// Takes a value in.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    /// Values that were taken in.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 of none.
    pub fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    /// Variance of the mean: that of the values over `count - 1`; 0 of fewer than two.
    pub fn variance(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let count = self.count as f64;
        ((self.squares / count - self.mean() * self.mean()) / (count - 1.0)).max(0.0)
    }

    /// Standard error of the mean.
    pub fn error(&self) -> f64 {
        self.variance().sqrt()
    }

    /// Root of the mean square.
    pub fn rms(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

/// The value below which `fraction` of ascending values lie, between two of them in proportion; 0 of none.
pub fn percentile(sorted: &[f32], fraction: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = fraction.clamp(0.0, 1.0) * last as f64;
    let low = at.floor() as usize;
    let (a, b) = (f64::from(sorted[low]), f64::from(sorted[(low + 1).min(last)]));
    a + (b - a) * (at - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_errors() {
        let mut estimate = Estimate::default();
        assert_eq!((estimate.mean(), estimate.error()), (0.0, 0.0));
        [1.0, 2.0, 3.0, 6.0].iter().for_each(|&x| estimate.add(x));
        assert_eq!(estimate.mean(), 3.0);
        // Mean square 12.5 less 9, over 3.
        assert!((estimate.error() - (3.5_f64 / 3.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn percentiles_lie_between_values() {
        let sorted = [0.0, 10.0, 20.0];
        let of = [0.0, 0.25, 0.5, 0.75, 1.0].map(|fraction| percentile(&sorted, fraction));
        assert_eq!(of, [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!((percentile(&[], 0.5), percentile(&[7.0], 0.99)), (0.0, 7.0));
    }
}

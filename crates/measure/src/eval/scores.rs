//! Log-probabilities of one row of logits.

/// A row of logits with the logarithm of the sum of their exponentials. Exponentials are those of 32 bits and sums have 64, as
/// llama.cpp has them, so that figures compare.
#[derive(Clone, Copy, Debug)]
pub struct LogSoftmax<'a> {
    logits: &'a [f32],
    best: usize,
    /// `ln(sum(exp(logits - max)))`.
    log_sum: f64,
}

impl<'a> LogSoftmax<'a> {
    /// Of a row that is not empty.
    pub fn new(logits: &'a [f32]) -> Self {
        let best = likeliest(logits);
        let max = logits.get(best).copied().unwrap_or(0.0);
        let sum: f64 = logits.iter().map(|&x| f64::from((x - max).exp())).sum();
        LogSoftmax { logits, best, log_sum: sum.ln() }
    }

    /// The row.
    pub fn logits(&self) -> &'a [f32] {
        self.logits
    }

    /// The likeliest token; of several the first.
    pub fn best(&self) -> usize {
        self.best
    }

    /// The largest logit.
    pub fn max(&self) -> f32 {
        self.logits.get(self.best).copied().unwrap_or(0.0)
    }

    /// What is subtracted from a logit to make it a log-probability.
    pub fn normaliser(&self) -> f64 {
        f64::from(self.max()) + self.log_sum
    }

    /// The log-probability of a token, in nats; NaN for one that the row does not have.
    pub fn log_prob(&self, token: usize) -> f64 {
        self.logits.get(token).map_or(f64::NAN, |&x| f64::from(x) - self.normaliser())
    }
}

/// The largest of `logits`; of several the first.
pub(super) fn likeliest(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one() {
        let row: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 / 7.0 - 90.0).collect();
        let scores = LogSoftmax::new(&row);
        let sum: f64 = (0..row.len()).map(|i| scores.log_prob(i).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!(scores.log_prob(row.len()).is_nan());
    }

    #[test]
    fn of_equal_logits_the_first_is_the_best() {
        assert_eq!(LogSoftmax::new(&[1.0, 3.0, 3.0, -2.0]).best(), 1);
        assert!((LogSoftmax::new(&[5.0, 5.0]).log_prob(0) + 2.0_f64.ln()).abs() < 1e-12);
    }
}

//! How far a model's probabilities are from a reference's, with the statistics of `llama-perplexity --kl-divergence`.

use std::io::Read;

use tailrace_engine::Handle;

use super::{BaseFile, Chunks, Estimate, EvalError, LogSoftmax, Progress, percentile};

/// Below this log-probability the reference has no code of its own, and a token does not count.
const LEAST: f32 = -16.0;

/// Differences between a reference and what was computed, over scored positions.
#[derive(Clone, Debug, Default)]
pub struct Divergence {
    nll: Estimate,
    base_nll: Estimate,
    /// Differences of the two: their variance has the covariance in it.
    nll_difference: Estimate,
    nll_product: f64,
    kld: Estimate,
    klds: Vec<f32>,
    dp: Estimate,
    dps: Vec<f32>,
    same_best: u64,
}

/// Percentiles of a distribution, and its ends.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Its standard error.
    pub mean_error: f64,
    /// Largest value.
    pub max: f64,
    /// (percent, value), falling.
    pub percentiles: Vec<(f64, f64)>,
    /// Smallest value.
    pub min: f64,
}

impl Spread {
    fn new(estimate: &Estimate, values: &[f32], percents: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f32::total_cmp);
        let of = |percent: &f64| (*percent, percentile(&sorted, percent / 100.0));
        Spread {
            mean: estimate.mean(),
            mean_error: estimate.error(),
            max: percentile(&sorted, 1.0),
            percentiles: percents.iter().map(of).collect(),
            min: percentile(&sorted, 0.0),
        }
    }
}

/// What a comparison with a reference found.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct DivergenceSummary {
    /// Tokens that were scored.
    pub tokens: u64,
    /// Perplexity of the model, and its error.
    pub ppl: f64,
    /// Standard error of `ppl`.
    pub ppl_error: f64,
    /// Perplexity of the reference.
    pub base_ppl: f64,
    /// Standard error of `base_ppl`.
    pub base_ppl_error: f64,
    /// Correlation of the two runs' negative log-probabilities; 1 where neither varies.
    pub nll_correlation: f64,
    /// Mean of `ln(ppl / base_ppl)`.
    pub ln_ppl_ratio: f64,
    /// Its standard error, with the covariance of the two.
    pub ln_ppl_ratio_error: f64,
    /// `ppl / base_ppl`.
    pub ppl_ratio: f64,
    /// `ppl - base_ppl`.
    pub ppl_difference: f64,
    /// Kullback-Leibler divergence from the reference, in nats.
    pub kld: Spread,
    /// Change of the probability of the text's token.
    pub dp: Spread,
    /// Root of its mean square.
    pub dp_rms: f64,
    /// Share of positions with the same likeliest token.
    pub same_best: f64,
    /// Its standard error.
    pub same_best_error: f64,
}

const KLD_PERCENTS: [f64; 9] = [99.9, 99.0, 95.0, 90.0, 50.0, 10.0, 5.0, 1.0, 0.1];
const DP_PERCENTS: [f64; 11] = [99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1];

impl Divergence {
    /// Takes in a position: the reference's log-probabilities, the model's scores, and the token that follows in the text.
    pub fn add(&mut self, base: &[f32], scores: &LogSoftmax<'_>, next: usize) {
        let normaliser = scores.normaliser();
        let (mut kld, mut best, mut best_log_prob) = (0.0, 0, f32::NEG_INFINITY);
        for (token, (&log_p, &logit)) in base.iter().zip(scores.logits()).enumerate() {
            if log_p > best_log_prob {
                (best, best_log_prob) = (token, log_p);
            }
            if log_p > LEAST {
                kld += f64::from(log_p.exp()) * (f64::from(log_p) - (f64::from(logit) - normaliser));
            }
        }
        let (nll, base_nll) = (-scores.log_prob(next), -base.get(next).map_or(f64::NAN, |&p| f64::from(p)));
        let dp = (-nll).exp() - (-base_nll).exp();
        self.nll.add(nll);
        self.base_nll.add(base_nll);
        self.nll_difference.add(nll - base_nll);
        self.nll_product += nll * base_nll;
        self.kld.add(kld);
        self.klds.push(kld as f32);
        self.dp.add(dp);
        self.dps.push(dp as f32);
        self.same_best += u64::from(best == scores.best());
    }

    /// What came of it.
    pub fn summary(&self) -> DivergenceSummary {
        let count = self.nll.count();
        let (nll, base) = (self.nll.mean(), self.base_nll.mean());
        let (ppl, base_ppl) = (nll.exp(), base.exp());
        let degrees = (count.max(2) - 1) as f64;
        let covariance = (self.nll_product / count.max(1) as f64 - nll * base) / degrees;
        let spread = (self.nll.variance() * self.base_nll.variance()).sqrt();
        let same = self.same_best as f64 / count.max(1) as f64;
        DivergenceSummary {
            tokens: count,
            ppl,
            ppl_error: ppl * self.nll.error(),
            base_ppl,
            base_ppl_error: base_ppl * self.base_nll.error(),
            nll_correlation: if spread > 0.0 { covariance / spread } else { 1.0 },
            ln_ppl_ratio: nll - base,
            ln_ppl_ratio_error: self.nll_difference.error(),
            ppl_ratio: (nll - base).exp(),
            ppl_difference: ppl - base_ppl,
            kld: Spread::new(&self.kld, &self.klds, &KLD_PERCENTS),
            dp: Spread::new(&self.dp, &self.dps, &DP_PERCENTS),
            dp_rms: self.dp.rms(),
            same_best: same,
            same_best_error: (same * (1.0 - same) / degrees).sqrt(),
        }
    }
}

/// Evaluates `chunks` of the reference's text and compares every scored position. `progress` is told the mean divergence.
///
/// # Errors
///
/// The reference is of another vocabulary or ends early; and see [`Chunks::evaluate`].
pub fn measure_divergence<R: Read>(
    handle: &Handle,
    base: &mut BaseFile<R>,
    chunks: &Chunks,
    progress: &mut dyn FnMut(Progress),
) -> Result<DivergenceSummary, EvalError> {
    let (of_base, of_model) = (base.header().vocab, handle.vocab());
    if of_base != of_model {
        return Err(EvalError::Base(format!(
            "the reference logits are of a vocabulary of {of_base} tokens, the model has {of_model}: they are of another model"
        )));
    }
    let mut divergence = Divergence::default();
    for index in 0..chunks.count() {
        chunks.evaluate(handle, index, |scores, next| {
            divergence.add(base.next_row()?, scores, next);
            Ok(())
        })?;
        progress(Progress { done: index + 1, chunks: chunks.count(), value: divergence.kld.mean() });
    }
    Ok(divergence.summary())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_probs(row: &[f32]) -> Vec<f32> {
        let scores = LogSoftmax::new(row);
        (0..row.len()).map(|i| scores.log_prob(i) as f32).collect()
    }

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let mut divergence = Divergence::default();
        for seed in 0..50_u32 {
            let row: Vec<f32> = (0..9).map(|i| ((seed * 7 + i * 13) % 17) as f32 / 3.0).collect();
            divergence.add(&log_probs(&row), &LogSoftmax::new(&row), (seed % 9) as usize);
        }
        let summary = divergence.summary();
        assert!(summary.kld.max.abs() < 1e-6 && summary.dp_rms < 1e-6 && summary.same_best == 1.0);
        assert!((summary.nll_correlation - 1.0).abs() < 1e-6 && (summary.ppl_ratio - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_known_divergence() {
        // p = (1/2, 1/2), q = (3/4, 1/4): KL = ln 2 - (ln 3) / 2 + ... = 0.5 ln(4/3).
        let (base, test) = ([0.5_f32.ln(); 2], [0.75_f32.ln(), 0.25_f32.ln()]);
        let mut divergence = Divergence::default();
        divergence.add(&base, &LogSoftmax::new(&test), 1);
        let summary = divergence.summary();
        assert!((summary.kld.mean - 0.5 * (4.0_f64 / 3.0).ln()).abs() < 1e-6, "{}", summary.kld.mean);
        assert!((summary.dp.mean + 0.25).abs() < 1e-6 && (summary.ppl - 4.0).abs() < 1e-5);
        assert_eq!((summary.tokens, summary.same_best), (1, 1.0));
    }

    #[test]
    fn tokens_that_the_reference_floors_do_not_count() {
        let base = [0.0, -16.5];
        let mut divergence = Divergence::default();
        divergence.add(&base, &LogSoftmax::new(&[0.0, -40.0]), 0);
        assert!(divergence.summary().kld.mean.abs() < 1e-9);
    }
}

//! Whether two settings say the same: logits of the same tokens, position by position.

use super::scores::likeliest;
use super::{Estimate, EvalError, RowSource, percentile};

/// When the two runs' likeliest tokens differ although they are as good as equally likely: the smaller of the two leads is at most
/// this, in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near(pub f32);

impl Near {
    /// For caches and inputs of 16 bits or fewer.
    pub const DEFAULT: Near = Near(0.1);
    /// Where everything has 32.
    pub const F32: Near = Near(0.02);
}

/// Differences between a reference's rows and a test's.
#[derive(Clone, Debug)]
pub struct Equivalence {
    near: Near,
    identical: u64,
    other_best: u64,
    real: u64,
    tv: Estimate,
    tvs: Vec<f32>,
    kld: Estimate,
    max_difference: f64,
    sequences: u64,
    agreeing: u64,
    real_in_sequence: bool,
}

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct EquivalenceSummary {
    /// Positions that were compared.
    pub positions: u64,
    /// Of them, those whose logits are the same to the last bit.
    pub identical: u64,
    /// Share of positions whose likeliest tokens differ by more than a near tie.
    pub real_frac: f64,
    /// Share of positions whose likeliest tokens differ.
    pub strict_disagree_frac: f64,
    /// Share of sequences without a real difference of the likeliest token.
    pub frac_full_agree: f64,
    /// Total variation `sum |p - q| / 2`: mean.
    pub mean_tv: f64,
    /// 99th percentile.
    pub p99_tv: f64,
    /// Largest.
    pub max_tv: f64,
    /// Mean Kullback-Leibler divergence of the test from the reference, in nats.
    pub mean_kld: f64,
    /// Largest difference of a log-probability, in nats.
    pub max_log_prob_difference: f64,
}

impl Equivalence {
    /// Nothing compared yet.
    pub fn new(near: Near) -> Self {
        Equivalence {
            near,
            identical: 0,
            other_best: 0,
            real: 0,
            tv: Estimate::default(),
            tvs: Vec::new(),
            kld: Estimate::default(),
            max_difference: 0.0,
            sequences: 0,
            agreeing: 0,
            real_in_sequence: false,
        }
    }

    /// Takes in a position of the reference and of the test. Probabilities are computed in f64.
    pub fn add(&mut self, reference: &[f32], test: &[f32]) {
        if reference.iter().map(|x| x.to_bits()).eq(test.iter().map(|x| x.to_bits())) {
            self.identical += 1;
            self.tv.add(0.0);
            self.tvs.push(0.0);
            self.kld.add(0.0);
            return;
        }
        let (a, b) = (Exact::new(reference), Exact::new(test));
        let (mut tv, mut kld) = (0.0, 0.0);
        for (x, y) in reference.iter().zip(test) {
            let (x, y) = (f64::from(*x) - a.normaliser, f64::from(*y) - b.normaliser);
            let (p, q) = (x.exp(), y.exp());
            tv += (p - q).abs() / 2.0;
            if p > 0.0 {
                kld += p * (x - y);
            }
            // What is no number is as far as can be.
            let difference = (x - y).abs();
            self.max_difference = if difference.is_nan() { f64::INFINITY } else { self.max_difference.max(difference) };
        }
        self.tv.add(tv);
        self.tvs.push(tv as f32);
        self.kld.add(kld);
        if a.best != b.best {
            self.other_best += 1;
            let leads = [reference[a.best] - reference[b.best], test[b.best] - test[a.best]];
            let lead = leads[0].min(leads[1]);
            // A lead that is no number is real.
            if lead.is_nan() || lead > self.near.0 {
                self.real += 1;
                self.real_in_sequence = true;
            }
        }
    }

    /// Ends a sequence.
    pub fn end_sequence(&mut self) {
        self.sequences += 1;
        self.agreeing += u64::from(!std::mem::take(&mut self.real_in_sequence));
    }

    /// What came of it.
    pub fn summary(&self) -> EquivalenceSummary {
        let positions = self.tv.count();
        let share = |count: u64, of: u64| count as f64 / of.max(1) as f64;
        let mut sorted = self.tvs.clone();
        sorted.sort_by(f32::total_cmp);
        EquivalenceSummary {
            positions,
            identical: self.identical,
            real_frac: share(self.real, positions),
            strict_disagree_frac: share(self.other_best, positions),
            frac_full_agree: share(self.agreeing, self.sequences),
            mean_tv: self.tv.mean(),
            p99_tv: percentile(&sorted, 0.99),
            max_tv: percentile(&sorted, 1.0),
            mean_kld: self.kld.mean(),
            max_log_prob_difference: self.max_difference,
        }
    }
}

/// The likeliest token and the normaliser of a row, in f64.
struct Exact {
    best: usize,
    normaliser: f64,
}

impl Exact {
    fn new(row: &[f32]) -> Self {
        let best = likeliest(row);
        let max = f64::from(row[best]);
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        Exact { best, normaliser: max + sum.ln() }
    }
}

/// Walks two runs of the same tokens side by side and takes in every position, as one sequence. `each` is told of each position
/// and its total variation.
///
/// # Errors
///
/// Either run failed, or they have different numbers of rows.
pub fn compare(
    equivalence: &mut Equivalence,
    reference: &mut dyn RowSource,
    test: &mut dyn RowSource,
    each: &mut dyn FnMut(u32, f32),
) -> Result<(), EvalError> {
    loop {
        match (reference.next_row()?, test.next_row()?) {
            (Some((position, a)), Some((_, b))) if a.len() == b.len() => {
                equivalence.add(a, b);
                each(position, equivalence.tvs.last().copied().unwrap_or(0.0));
            }
            (None, None) => break,
            _ => return Err(EvalError::Rows),
        }
    }
    equivalence.end_sequence();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(pairs: &[([f32; 3], [f32; 3])]) -> EquivalenceSummary {
        let mut equivalence = Equivalence::new(Near::DEFAULT);
        pairs.iter().for_each(|(a, b)| equivalence.add(a, b));
        equivalence.end_sequence();
        equivalence.summary()
    }

    #[test]
    fn the_same_bits_are_identical() {
        let found = summary(&[([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])]);
        assert_eq!((found.identical, found.mean_tv, found.real_frac, found.frac_full_agree), (1, 0.0, 0.0, 1.0));
        // Zeros of two signs are as likely, and not the same bits.
        let found = summary(&[([0.0, 2.0, 3.0], [-0.0, 2.0, 3.0])]);
        assert_eq!((found.identical, found.mean_tv), (0, 0.0));
    }

    #[test]
    fn a_known_variation() {
        // (1/2, 1/4, 1/4) against (1/4, 1/2, 1/4).
        let [half, quarter] = [0.5_f32.ln(), 0.25_f32.ln()];
        let found = summary(&[([half, quarter, quarter], [quarter, half, quarter])]);
        assert!((found.mean_tv - 0.25).abs() < 1e-6 && (found.mean_kld - 0.25 * 2.0_f64.ln()).abs() < 1e-6);
        assert!((found.max_log_prob_difference - 2.0_f64.ln()).abs() < 1e-6);
        assert_eq!((found.real_frac, found.frac_full_agree), (1.0, 0.0));
    }

    #[test]
    fn a_near_tie_is_no_real_difference() {
        let found = summary(&[([1.0, 1.05, 0.0], [1.05, 1.0, 0.0])]);
        assert_eq!((found.strict_disagree_frac, found.real_frac, found.frac_full_agree), (1.0, 0.0, 1.0));
    }

    /// So many rows of one logit.
    struct Rows(u32, Vec<f32>);

    impl RowSource for Rows {
        fn next_row(&mut self) -> Result<Option<(u32, &[f32])>, EvalError> {
            let Some(left) = self.0.checked_sub(1) else { return Ok(None) };
            self.0 = left;
            Ok(Some((left, &self.1)))
        }
    }

    #[test]
    fn runs_of_different_lengths_are_not_compared() {
        let run = |a: u32, b: u32, vocab: usize| {
            let mut equivalence = Equivalence::new(Near::DEFAULT);
            let (mut a, mut b) = (Rows(a, vec![0.0; 2]), Rows(b, vec![0.0; vocab]));
            compare(&mut equivalence, &mut a, &mut b, &mut |_, _| ()).map(|()| equivalence.summary().identical)
        };
        assert_eq!(run(3, 3, 2).expect("as many"), 3);
        for (a, b, vocab) in [(3, 2, 2), (2, 3, 2), (3, 3, 1)] {
            assert!(matches!(run(a, b, vocab), Err(EvalError::Rows)), "{a} {b} {vocab}");
        }
    }

    #[test]
    fn what_is_no_number_is_a_difference() {
        let found = summary(&[([1.0, 2.0, 3.0], [1.0, f32::NAN, 3.0])]);
        assert!(found.identical == 0 && found.max_log_prob_difference.is_infinite() && found.mean_tv.is_nan());
    }
}

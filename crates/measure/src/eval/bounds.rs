//! Bounds that an evaluation is held to.

use std::str::FromStr;

use super::EquivalenceSummary;

/// A metric and the largest value it may have; of shares that should be 1 the smallest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    metric: Metric,
    value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    RealFrac,
    StrictDisagreeFrac,
    FracFullAgree,
    MeanTv,
    P99Tv,
    MaxTv,
    MeanKld,
    MaxLogProbDifference,
}

impl Metric {
    const ALL: [(Metric, &'static str); 8] = [
        (Metric::RealFrac, "real_frac"),
        (Metric::StrictDisagreeFrac, "strict_disagree_frac"),
        (Metric::FracFullAgree, "frac_full_agree"),
        (Metric::MeanTv, "mean_tv"),
        (Metric::P99Tv, "p99_tv"),
        (Metric::MaxTv, "max_tv"),
        (Metric::MeanKld, "mean_kld"),
        (Metric::MaxLogProbDifference, "max_log_prob_difference"),
    ];

    fn name(self) -> &'static str {
        Metric::ALL.iter().find(|(metric, _)| *metric == self).map_or("", |(_, name)| name)
    }

    fn of(self, summary: &EquivalenceSummary) -> f64 {
        match self {
            Metric::RealFrac => summary.real_frac,
            Metric::StrictDisagreeFrac => summary.strict_disagree_frac,
            Metric::FracFullAgree => summary.frac_full_agree,
            Metric::MeanTv => summary.mean_tv,
            Metric::P99Tv => summary.p99_tv,
            Metric::MaxTv => summary.max_tv,
            Metric::MeanKld => summary.mean_kld,
            Metric::MaxLogProbDifference => summary.max_log_prob_difference,
        }
    }
}

/// A text that is no bound.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum UnknownMetric {
    /// There is no such metric.
    #[error("unknown metric '{0}'; known: {known}", known = Metric::ALL.map(|(_, name)| name).join(", "))]
    Name(String),
    /// The value is no number.
    #[error("'{0}' is no bound; write NAME=VALUE, for example mean_tv=1e-4")]
    Value(String),
}

impl FromStr for Bound {
    type Err = UnknownMetric;

    fn from_str(text: &str) -> Result<Self, UnknownMetric> {
        let (name, value) = text.split_once('=').ok_or_else(|| UnknownMetric::Value(text.to_owned()))?;
        let known = Metric::ALL.iter().find(|(_, known)| *known == name.trim());
        let (metric, _) = known.ok_or_else(|| UnknownMetric::Name(name.trim().to_owned()))?;
        let value = value.trim().parse().ok().filter(|value: &f64| !value.is_nan());
        Ok(Bound { metric: *metric, value: value.ok_or_else(|| UnknownMetric::Value(text.to_owned()))? })
    }
}

impl Bound {
    /// One line that says how a summary breaks the bound; none where it keeps it. What is no number breaks it.
    pub fn broken_by(&self, summary: &EquivalenceSummary) -> Option<String> {
        let found = self.metric.of(summary);
        let (keeps, word) = match self.metric {
            Metric::FracFullAgree => (found >= self.value, "at least"),
            _ => (found <= self.value, "at most"),
        };
        (!keeps).then(|| format!("{} is {found:.3e}, {word} {:.3e} is allowed", self.metric.name(), self.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::{Equivalence, Near};

    #[test]
    fn bounds_are_kept_or_broken() {
        let mut equivalence = Equivalence::new(Near::DEFAULT);
        equivalence.add(&[0.0, 1.0], &[1.0, 0.0]);
        equivalence.end_sequence();
        let found = equivalence.summary();
        let broken = |text: &str| text.parse::<Bound>().expect("a bound").broken_by(&found);
        assert_eq!((broken("mean_tv=1"), broken("frac_full_agree=0")), (None, None));
        assert!(broken("mean_tv=0.1").expect("broken").contains("mean_tv is"));
        assert!(broken("frac_full_agree=1").expect("broken").contains("at least"));
    }

    #[test]
    fn what_is_no_bound_is_named() {
        let says = |text: &str| text.parse::<Bound>().expect_err("no bound").to_string();
        assert!(says("tv=1").contains("known: real_frac"));
        assert!(
            says("mean_tv").contains("NAME=VALUE")
                && says("mean_tv=x").contains("mean_tv=x")
                && says("mean_tv=nan").contains("no bound")
        );
    }
}

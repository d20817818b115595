//! Sampling from a device's candidates says the same tokens as sampling from all logits.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use tailrace_device::null::{NullExecutor, NullLoader};
use tailrace_device::plan::spec::Reach;
use tailrace_device::plan::{Limits, Plan};
use tailrace_device::{Candidate, DeviceError, Executor, HighWater, Submission, Traffic};
use tailrace_engine::{Handle, LogitsWanted, Request, SamplingParams};
use tailrace_types::TokenId;

/// A Null device that also finds the largest logits.
struct Ranking {
    inner: NullExecutor,
    top_max: u32,
    found: Vec<Candidate>,
    counts: Arc<Counts>,
}

/// Rows that were asked for.
#[derive(Default)]
struct Counts {
    ranked: AtomicUsize,
    whole: AtomicUsize,
}

impl Executor for Ranking {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.inner.submit(submission)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        self.counts.whole.fetch_add(rows.len(), Ordering::Relaxed);
        self.inner.logits(rows)
    }

    fn top_max(&self) -> u32 {
        self.top_max
    }

    fn top(&mut self, rows: &[u32], k: u32) -> Result<&[Candidate], DeviceError> {
        assert!((1..=self.top_max).contains(&k) && !rows.is_empty());
        self.counts.ranked.fetch_add(rows.len(), Ordering::Relaxed);
        self.found.clear();
        for row in self.inner.logits(rows)?.chunks_exact(VOCAB as usize) {
            let mut all: Vec<Candidate> =
                (0..).map(TokenId).zip(row).map(|(token, &logit)| Candidate { token, logit }).collect();
            all.sort_by(|a, b| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token)));
            self.found.extend_from_slice(&all[..k as usize]);
        }
        Ok(&self.found)
    }

    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.inner.fill(submission, seed)
    }

    fn high_water(&self) -> Vec<HighWater> {
        self.inner.high_water()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}

fn limits() -> Limits {
    Limits { sequences: 4, chunk: 64, logit_rows: 2, ..Limits::new(4 * 512) }
}

fn ranking(top_max: u32) -> (Handle, Arc<Counts>) {
    let counts = Arc::<Counts>::default();
    let inner = executor(&[Reach::Global], &limits(), NullLoader::default());
    (start_on(Ranking { inner, top_max, found: Vec::new(), counts: Arc::clone(&counts) }), counts)
}

/// Parameters, and whether 64 candidates suffice for them after a prompt of 100 tokens.
fn cases() -> Vec<(SamplingParams, bool)> {
    let default = || SamplingParams { seed: Some(11), ..SamplingParams::default() };
    let penalties = || SamplingParams { repeat_penalty: 1.3, repeat_last_n: 16, ..default() };
    vec![
        (SamplingParams::greedy(), true),
        (default(), true),
        (SamplingParams { temperature: 5.0, top_p: 1.0, min_p: 0.0, ..default() }, true),
        (penalties(), true),
        (SamplingParams { temperature: 0.0, repeat_last_n: -1, presence_penalty: 9.0, ..penalties() }, false),
        (SamplingParams { logit_bias: vec![(TokenId(3), -2.0), (TokenId(9), f32::NEG_INFINITY)], ..default() }, true),
        (SamplingParams { logit_bias: vec![(TokenId(3), 2.0)], ..default() }, false),
        (SamplingParams { repeat_penalty: 0.8, ..penalties() }, false),
        (SamplingParams { frequency_penalty: -0.1, ..penalties() }, false),
        (SamplingParams { top_k: 0, ..default() }, false),
        (SamplingParams { top_k: 65, ..default() }, false),
    ]
}

fn request(sampling: SamplingParams) -> Request {
    Request { sampling, ..greedy(prompt(5, 100), 60) }
}

#[test]
fn each_parameter_says_the_same_tokens() {
    let (plain, _) = ranking(0);
    let (ranked, counts) = ranking(64);
    for (sampling, suffices) in cases() {
        let (expected, tokens) = (run(&plain, request(sampling.clone())), run(&ranked, request(sampling.clone())));
        assert_eq!(tokens.tokens, expected.tokens, "{sampling:?}");
        let taken = counts.ranked.swap(0, Ordering::Relaxed);
        let whole = counts.whole.swap(0, Ordering::Relaxed);
        if suffices {
            assert_eq!((taken, whole), (60, 0), "{sampling:?}");
        } else {
            assert_eq!(taken + whole, 60, "{sampling:?}");
            assert!(whole > 0, "{sampling:?}");
        }
    }
}

#[test]
fn rows_of_one_step_may_be_chosen_in_both_ways() {
    let (plain, _) = ranking(0);
    let (ranked, counts) = ranking(64);
    for cases in cases().chunks(4) {
        let say = |handle: &Handle| {
            let start = |(sampling, _): &(SamplingParams, bool)| handle.submit(request(sampling.clone()));
            let generations: Vec<_> = cases.iter().map(|case| start(case).expect("it can run")).collect();
            generations.into_iter().map(|g| hear(g).tokens).collect::<Vec<_>>()
        };
        assert_eq!(say(&ranked), say(&plain));
    }
    assert!(counts.ranked.load(Ordering::Relaxed) > 0 && counts.whole.load(Ordering::Relaxed) > 0);
}

#[test]
fn logits_that_are_wanted_are_delivered_in_full() {
    let (ranked, counts) = ranking(64);
    let heard = run(&ranked, Request { logits: LogitsWanted::Last, ..request(SamplingParams::greedy()) });
    assert_eq!((heard.logits.len(), heard.tokens.len()), (1, 60));
    assert_eq!((counts.whole.load(Ordering::Relaxed), counts.ranked.load(Ordering::Relaxed)), (1, 59));
}

//! The loop does not allocate once it is warm.

mod common;

use std::alloc::System;
use std::sync::mpsc::{Receiver, Sender, channel};

use common::*;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tailrace_device::null::{NullExecutor, NullLoader};
use tailrace_device::plan::spec::Reach;
use tailrace_device::plan::{Limits, Plan};
use tailrace_device::{DeviceError, Executor, HighWater, Submission, Traffic};
use tailrace_engine::{Request, SamplingParams};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Submissions that warm the engine up, and submissions that are watched after them.
const WARM: u64 = 60;
const WATCHED: u64 = 150;

/// Counts allocations between two submissions. Clients sleep meanwhile, so whatever is counted is the engine's.
struct Watch {
    inner: NullExecutor,
    submissions: u64,
    region: Option<Region<'static, System>>,
    seen: Sender<usize>,
}

impl Executor for Watch {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.submissions += 1;
        if self.submissions == WARM {
            self.region = Some(Region::new(ALLOCATOR));
        }
        if let Some(region) = self.region.take_if(|_| self.submissions == WARM + WATCHED) {
            let change = region.change();
            // The test that reads it may have failed already.
            let _ = self.seen.send(change.allocations + change.reallocations);
        }
        self.inner.submit(submission)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        self.inner.logits(rows)
    }

    fn high_water(&self) -> Vec<HighWater> {
        self.inner.high_water()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}

fn watch(inner: NullExecutor) -> (Watch, Receiver<usize>) {
    let (seen, counts) = channel();
    (Watch { inner, submissions: 0, region: None, seen }, counts)
}

#[test]
fn decoding_and_prefill_do_not_allocate() {
    // A window of two blocks: the tail is read and blocks come and go, but no extent grows while it is watched.
    let spilled = Limits { window_cells: Some(512), sequences: 3, chunk: 32, ..Limits::new(3 * 4096) };
    let resident = Limits { window_cells: None, ..spilled.clone() };
    let penalties = SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, ..SamplingParams::default() };
    for (limits, sampling) in
        [(&resident, SamplingParams::greedy()), (&resident, penalties), (&spilled, SamplingParams::default())]
    {
        let (watch, counts) = watch(executor(&[Reach::Sliding(64), Reach::Global], limits, NullLoader::default()));
        let handle = start_on(watch);
        let request = |seed, tokens| Request { sampling: sampling.clone(), ..greedy(prompt(seed, tokens), 1000) };
        let submit = |request| handle.submit(request).expect("it can run");
        let short = submit(request(1, 700));
        let other = submit(request(2, 40));
        // Its prompt is computed in chunks all the while.
        let long = submit(request(3, 4000));
        let allocations = counts.recv().expect("the engine runs");
        assert_eq!(allocations, 0, "{sampling:?}");
        for generation in [short, other, long] {
            generation.cancel();
            hear(generation);
        }
    }
}

//! The loop does not allocate once it is warm.

mod common;

use std::alloc::System;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

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
    /// The first message says that the engine waits for `go`, the second what was counted.
    seen: Sender<usize>,
    go: Receiver<()>,
}

impl Executor for Watch {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.submissions += 1;
        if self.submissions == 1 {
            let _ = self.seen.send(0);
            let _ = self.go.recv();
        }
        if self.submissions == WARM {
            self.region = Some(Region::new(ALLOCATOR));
        }
        if let Some(region) = self.region.take_if(|_| self.submissions == WARM + WATCHED) {
            let change = region.change();
            let _ = self.seen.send(change.allocations + change.reallocations);
        }
        self.inner.submit(submission)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        self.inner.logits(rows)
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

#[test]
fn decoding_and_prefill_do_not_allocate() {
    // A window of two blocks: the tail is read and blocks come and go, but no extent grows while it is watched.
    let spilled = Limits { window_cells: Some(512), sequences: 3, chunk: 32, ..Limits::new(3 * 4096) };
    let resident = Limits { window_cells: None, ..spilled.clone() };
    let penalties = SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.1, ..SamplingParams::default() };
    for (limits, sampling) in
        [(&resident, SamplingParams::greedy()), (&resident, penalties), (&spilled, SamplingParams::default())]
    {
        let ((seen, counts), (start, go)) = (channel(), channel());
        let inner = executor(&[Reach::Sliding(64), Reach::Global], limits, NullLoader::default());
        let handle = start_on(Watch { inner, submissions: 0, region: None, seen, go });
        // The first wait of a thread on a channel allocates: this one's, and the test harness's meanwhile.
        counts.recv_timeout(Duration::from_millis(50)).expect_err("nothing was submitted");
        let request = |seed, tokens| Request { sampling: sampling.clone(), ..greedy(prompt(seed, tokens), 1000) };
        let submit = |request| handle.submit(request).expect("it can run");
        let short = submit(request(1, 700));
        let other = submit(request(2, 40));
        // Its prompt is computed in chunks all the while.
        let long = submit(request(3, 4000));
        // This thread has waited before, and has all its requests out: from here on it allocates nothing.
        counts.recv().expect("the engine runs");
        start.send(()).expect("the engine waits");
        let allocations = counts.recv().expect("the engine runs");
        assert_eq!(allocations, 0, "{sampling:?}");
        for generation in [short, other, long] {
            generation.cancel();
            hear(generation);
        }
    }
}

//! What one worker needs to share a program's work with the others: claims and barriers.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pool::Worker;

/// Work counters of two consecutive phases.
///
/// A phase is what happens between two barriers. In phase `k` workers claim from counter `k % 2`; the other one was last
/// used in phase `k - 1`, which nobody is in any more, and is reset for phase `k + 1`.
#[derive(Debug, Default)]
pub(super) struct Counters([Padded; 2]);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicUsize);

impl Counters {
    /// Makes ready for a region; no worker is in one.
    pub(super) fn reset(&self) {
        self.0.iter().for_each(|c| c.0.store(0, Ordering::Relaxed));
    }

    /// The view of `worker`; all workers of a region make one and go through the same phases.
    pub(super) fn crew<'a>(&'a self, worker: Worker<'a>) -> Crew<'a> {
        Crew { worker, counters: self, phase: Cell::new(0) }
    }
}

/// One worker among those that run a program.
pub(super) struct Crew<'a> {
    worker: Worker<'a>,
    counters: &'a Counters,
    phase: Cell<usize>,
}

impl Crew<'_> {
    /// Number of this worker.
    pub(super) fn index(&self) -> usize {
        self.worker.index()
    }

    /// Number of workers.
    pub(super) fn size(&self) -> usize {
        self.worker.count()
    }

    /// The next item of the current phase that nobody has, while it is below `items`.
    pub(super) fn claim(&self, items: usize) -> Option<usize> {
        let item = self.counters.0[self.phase.get() % 2].0.fetch_add(1, Ordering::Relaxed);
        (item < items).then_some(item)
    }

    /// Waits for all workers and begins the next phase.
    pub(super) fn barrier(&self) {
        let phase = self.phase.get();
        if self.index() == 0 {
            self.counters.0[(phase + 1) % 2].0.store(0, Ordering::Relaxed);
        }
        self.worker.barrier();
        self.phase.set(phase + 1);
    }
}

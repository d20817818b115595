//! Threads that run one closure at a time, all of them together.
//!
//! [`Pool::run`] starts a *region*: every worker, the caller among them, runs the same closure and
//! divides the work by its index, by [`Worker::share`] or by [`Worker::claim`]. Steps of a region
//! are separated by [`Worker::barrier`]. Nothing allocates and no lock is taken unless a thread
//! has waited so long that it went to sleep.
//!
//! Waiting has three stages, since a region lasts microseconds to seconds: spinning (the answer
//! comes soon), yielding (another thread may need this core to produce it), sleeping (nothing is
//! going on). With more workers than cores the first stage is left out: there a spinning thread
//! holds the core that the awaited one needs.
// A region lends the closure, which borrows from the caller's stack, to threads that outlive the
// call. Only raw pointers can say that; see `Job`.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Times a waiting thread looks before it first yields; about 0.1 ms.
const SPINS: u32 = 2000;

/// Times a waiting thread yields before it sleeps.
const YIELDS: u32 = 50;

/// Worker threads that run regions together with the thread that owns the pool.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `workers` workers, the caller of [`Pool::run`] included; at least one, and
    /// no more than this process has cores.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn new(workers: usize) -> std::io::Result<Self> {
        Self::oversubscribed(workers.min(cores()))
    }

    /// As [`Pool::new`], with as many workers as asked for even if there are fewer cores.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn oversubscribed(workers: usize) -> std::io::Result<Self> {
        let workers = workers.max(1);
        let spins = if workers > cores() { 0 } else { SPINS };
        let mut pool = Pool { shared: Arc::new(Shared::new(workers, spins)), threads: Vec::with_capacity(workers - 1) };
        for index in 1..workers {
            let shared = Arc::clone(&pool.shared);
            let name = format!("cpu-{index}");
            // On failure `pool` is dropped, which ends the threads started so far.
            let thread = thread::Builder::new().name(name).spawn(move || shared.serve(index))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Workers of every region.
    pub fn workers(&self) -> usize {
        self.shared.workers
    }

    /// Runs `body` on every worker and returns when all have finished. The caller is worker 0.
    ///
    /// # Panics
    /// If `body` panics on any worker, with the panic of the first that did; the other workers
    /// leave the region at their next barrier.
    pub fn run<F: Fn(Worker<'_>) + Sync>(&mut self, body: F) {
        let shared = &*self.shared;
        shared.claimed.store(0, Ordering::Relaxed);
        shared.arrived.store(0, Ordering::Relaxed);
        shared.failed.store(false, Ordering::Relaxed);
        let job = Job { call: call::<F>, body: (&raw const body).cast() };
        let others = shared.workers as u32 - 1;
        if others > 0 {
            shared.running.set(others);
            // SAFETY: `&mut self` excludes another region, and the workers read the job only
            // after the `epoch` moves, which the next line does.
            unsafe { *shared.job.get() = Some(job) };
            shared.epoch.advance();
        }
        shared.execute(0, job);
        // `execute` catches panics, so this point is always reached: no worker uses `body` after
        // the region.
        shared.running.wait(shared.spins, |left| left == 0);
        if shared.failed.load(Ordering::Relaxed) {
            let payload = lock(&shared.payload).take();
            resume_unwind(payload.unwrap_or_else(|| Box::new(Abandoned)));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.advance();
        for thread in self.threads.drain(..) {
            // A worker cannot panic outside of a body, and those panics are caught.
            let _ = thread.join();
        }
    }
}

/// One worker's view of a region.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    index: usize,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// Number of this worker, below [`Worker::count`].
    pub fn index(self) -> usize {
        self.index
    }

    /// Workers in the region.
    pub fn count(self) -> usize {
        self.shared.workers
    }

    /// This worker's part of `0 .. n`: contiguous, parts differ by at most one.
    pub fn share(self, n: usize) -> Range<usize> {
        let part = |i: usize| (n as u128 * i as u128 / self.count() as u128) as usize;
        part(self.index)..part(self.index + 1)
    }

    /// The next of the items `0 .. n` that no worker has claimed since the last barrier, or since
    /// the start of the region: work of uneven size divides itself.
    pub fn claim(self, n: usize) -> Option<usize> {
        let item = self.shared.claimed.fetch_add(1, Ordering::Relaxed);
        (item < n).then_some(item)
    }

    /// Waits until all workers are here; what any of them wrote before, all see after.
    ///
    /// # Panics
    /// If another worker panicked.
    pub fn barrier(self) {
        let shared = self.shared;
        let workers = shared.workers as u32;
        let phase = shared.phase.get();
        if shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == workers {
            shared.arrived.store(0, Ordering::Relaxed);
            shared.claimed.store(0, Ordering::Relaxed);
            shared.phase.advance();
        } else {
            let failed = || shared.failed.load(Ordering::Relaxed);
            shared.phase.wait(shared.spins, |now| now != phase || failed());
            if shared.phase.get() == phase {
                resume_unwind(Box::new(Abandoned));
            }
        }
    }
}

/// The panic of a worker that left a region because another one panicked.
struct Abandoned;

/// A closure without its type and lifetime.
///
/// `call(body, worker)` is sound while the closure behind `body` lives: `run` keeps it alive
/// until every worker has reported the end of its part.
#[derive(Clone, Copy)]
struct Job {
    call: unsafe fn(*const (), Worker<'_>),
    body: *const (),
}

/// # Safety
/// `body` points to a live `F`.
unsafe fn call<F: Fn(Worker<'_>)>(body: *const (), worker: Worker<'_>) {
    // SAFETY: the caller's contract.
    unsafe { (*body.cast::<F>())(worker) }
}

struct Shared {
    workers: usize,
    spins: u32,
    /// The region's closure; written before `epoch` moves, read after.
    job: UnsafeCell<Option<Job>>,
    /// Counts regions.
    epoch: Gate,
    /// Workers besides the caller that have not finished the region.
    running: Gate,
    /// Counts completed barriers.
    phase: Gate,
    /// Workers that wait at the barrier.
    arrived: AtomicU32,
    /// Items claimed since the last barrier.
    claimed: AtomicUsize,
    failed: AtomicBool,
    stop: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not `Sync`. `run` writes it while no region runs, and
// the workers read it between `epoch` (release and acquire) and their decrement of `running`
// (likewise), so no access races. The closure behind it is `Sync`, which `run` demands.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer in `job` is only followed during a region.
unsafe impl Send for Shared {}

impl Shared {
    fn new(workers: usize, spins: u32) -> Self {
        Shared {
            workers,
            spins,
            job: UnsafeCell::new(None),
            epoch: Gate::default(),
            running: Gate::default(),
            phase: Gate::default(),
            arrived: AtomicU32::new(0),
            claimed: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            payload: Mutex::new(None),
        }
    }

    /// The life of a worker thread.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.epoch.wait(self.spins, |now| now != seen);
            // One region at a time, so the epoch has moved by exactly one.
            seen = seen.wrapping_add(1);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: the epoch has moved, so the job is written and stays until this worker
            // decrements `running`.
            if let Some(job) = unsafe { *self.job.get() } {
                self.execute(index, job);
            }
            self.running.retreat();
        }
    }

    /// Runs one worker's part; a panic is kept for [`Pool::run`] and releases the others.
    fn execute(&self, index: usize, job: Job) {
        let worker = Worker { index, shared: self };
        // SAFETY: see `Job`; `run` has not returned yet.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (job.call)(job.body, worker) }));
        if let Err(payload) = result {
            let mut first = lock(&self.payload);
            // The flag is raised before any `Abandoned` can arrive, so the first is the cause.
            if !self.failed.swap(true, Ordering::Relaxed) {
                *first = Some(payload);
            }
            drop(first);
            self.phase.wake();
        }
    }
}

/// A number that threads wait on.
#[derive(Default)]
#[repr(align(64))]
struct Gate {
    value: AtomicU32,
    sleepers: AtomicU32,
    mutex: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    fn get(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Sets the value without waking anybody.
    fn set(&self, value: u32) {
        self.value.store(value, Ordering::Release);
    }

    /// Adds one.
    fn advance(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        self.wake();
    }

    /// Subtracts one.
    fn retreat(&self) {
        self.value.fetch_sub(1, Ordering::SeqCst);
        self.wake();
    }

    /// Lets sleepers look again.
    ///
    /// A sleeper announces itself, then looks, then sleeps, the last two under the mutex; the
    /// caller has changed the value, then looks for sleepers. Both orders are sequentially
    /// consistent, so either the sleeper sees the change or it is seen here and woken.
    fn wake(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.mutex));
            self.changed.notify_all();
        }
    }

    /// Returns when `ready(value)`.
    fn wait(&self, spins: u32, ready: impl Fn(u32) -> bool) {
        for _ in 0..spins {
            if ready(self.get()) {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..YIELDS {
            if ready(self.get()) {
                return;
            }
            thread::yield_now();
        }
        let mut guard = lock(&self.mutex);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        while !ready(self.value.load(Ordering::SeqCst)) {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Locks a mutex whose contents no panic can leave half written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Cores that this process may use.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, |n| n.get())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_worker_runs_once_a_region() {
        for workers in [1, 2, 3, 8] {
            let mut pool = Pool::oversubscribed(workers).unwrap();
            let seen: Vec<AtomicU32> = (0..workers).map(|_| AtomicU32::new(0)).collect();
            for _ in 0..200 {
                pool.run(|worker| {
                    assert_eq!(worker.count(), workers);
                    seen[worker.index()].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 200));
        }
    }

    #[test]
    fn shares_partition() {
        let mut pool = Pool::oversubscribed(3).unwrap();
        for n in [0, 1, 2, 3, 10, 1000] {
            let covered = AtomicUsize::new(0);
            let ends = Mutex::new(Vec::new());
            pool.run(|worker| {
                let share = worker.share(n);
                covered.fetch_add(share.len(), Ordering::Relaxed);
                ends.lock().unwrap().push((share.start, share.end));
            });
            let mut ends = ends.into_inner().unwrap();
            ends.sort_unstable();
            assert_eq!(covered.into_inner(), n);
            assert!(ends.windows(2).all(|pair| pair[0].1 == pair[1].0));
        }
    }

    #[test]
    fn claims_are_complete_and_start_again_after_a_barrier() {
        for workers in [1, 2, 5] {
            let mut pool = Pool::oversubscribed(workers).unwrap();
            let sums: Vec<AtomicU64> = (0..20).map(|_| AtomicU64::new(0)).collect();
            pool.run(|worker| {
                for sum in &sums {
                    while let Some(item) = worker.claim(100) {
                        sum.fetch_add(item as u64 + 1, Ordering::Relaxed);
                    }
                    worker.barrier();
                }
            });
            assert!(sums.iter().all(|sum| sum.load(Ordering::Relaxed) == 5050));
        }
    }

    #[test]
    fn a_barrier_orders_all_writes() {
        for workers in [2, 4, 7] {
            let mut pool = Pool::oversubscribed(workers).unwrap();
            let cells: Vec<AtomicU32> = (0..workers).map(|_| AtomicU32::new(0)).collect();
            pool.run(|worker| {
                for round in 1..2000 {
                    cells[worker.index()].store(round, Ordering::Relaxed);
                    worker.barrier();
                    assert!(cells.iter().all(|cell| cell.load(Ordering::Relaxed) == round));
                    worker.barrier();
                }
            });
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let mut pool = Pool::oversubscribed(3).unwrap();
        let runs = AtomicU32::new(0);
        for pause_ms in [0, 20, 0, 20] {
            thread::sleep(Duration::from_millis(pause_ms));
            pool.run(|worker| {
                if worker.index() == 1 {
                    thread::sleep(Duration::from_millis(pause_ms));
                }
                worker.barrier();
                runs.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(runs.into_inner(), 12);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let mut pool = Pool::oversubscribed(4).unwrap();
        for culprit in 0..4 {
            let region = AssertUnwindSafe(|| {
                pool.run(|worker| {
                    worker.barrier();
                    if worker.index() == culprit {
                        // Without the hook's message, which would look like a failing test.
                        resume_unwind(Box::new(culprit));
                    }
                    worker.barrier();
                    worker.barrier();
                });
            });
            let payload = catch_unwind(region).unwrap_err();
            assert_eq!(payload.downcast_ref::<usize>(), Some(&culprit));
            let after = AtomicU32::new(0);
            pool.run(|worker| {
                worker.barrier();
                after.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(after.into_inner(), 4);
        }
    }

    #[test]
    fn more_workers_than_cores_do_not_collapse() {
        let mut pool = Pool::oversubscribed(4 * cores()).unwrap();
        let start = Instant::now();
        pool.run(|worker| (0..200).for_each(|_| worker.barrier()));
        // A generous bound: spinning through time slices would take a second or more.
        assert!(start.elapsed() < Duration::from_millis(800), "{:?}", start.elapsed());
    }

    #[test]
    fn new_never_exceeds_the_cores() {
        assert_eq!(Pool::new(usize::MAX).unwrap().workers(), cores());
        assert_eq!(Pool::new(0).unwrap().workers(), 1);
    }
}

//! The engine: one owner of the device and all sequences, one loop.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use tailrace_device::kv::{Append, KvCache, KvConfig, KvError, StepPlan};
use tailrace_device::plan::CachePlan;
use tailrace_device::{Executor, Row};
use tailrace_text::Tokenizer;
use tailrace_types::{BLOCK_CELLS, SlotId};

use crate::mailbox::Outbox;
use crate::request::{DoneReason, SlotState, Snapshot};
use crate::sampling::Sampler;
use crate::sequence::Sequence;
use crate::{EngineError, Handle, Request};

/// What an engine runs.
pub struct EngineConfig {
    /// The device, with a model loaded.
    pub executor: Box<dyn Executor>,
    /// The tokenizer of that model.
    pub tokenizer: Arc<Tokenizer>,
}

/// What clients tell the engine.
#[derive(Debug)]
pub(crate) enum Command {
    /// A new request.
    Submit(Box<Submitted>),
    /// Go back to the first `keep` tokens of request `id`.
    Rewind { id: u64, keep: u32, reply: SyncSender<Result<(), EngineError>> },
    /// Report the state.
    Snapshot(SyncSender<Snapshot>),
    /// Look at the mailboxes: something was cancelled or taken.
    Wake,
    /// End.
    Stop,
}

/// A request that was checked.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) id: u64,
    pub(crate) request: Request,
    pub(crate) seed: u64,
    /// Seed of random cells; `None` computes them.
    pub(crate) fill: Option<u64>,
    pub(crate) outbox: Outbox,
    pub(crate) at: Instant,
}

/// Whether the loop goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    Stop,
}

/// One owner, one loop: see the crate. Clients use it through a [`Handle`].
pub struct Engine {
    pub(crate) executor: Box<dyn Executor>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) cache: KvCache,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) waiting: VecDeque<Submitted>,
    pub(crate) sampler: Sampler,
    pub(crate) sizes: Sizes,
    /// Requests that got a slot so far.
    pub(crate) clock: u64,
    pub(crate) prefills: u64,
    pub(crate) decodes: u64,
    /// The step being formed. Reused, so that no step allocates.
    pub(crate) step: StepPlan,
    pub(crate) appends: Vec<Append>,
    pub(crate) rows: Vec<Row>,
    /// Rows of the submission whose logits are needed.
    pub(crate) wanted: Vec<u32>,
    /// Rows of the submission that are sampled from the device's candidates.
    pub(crate) ranked: Vec<u32>,
    commands: Receiver<Command>,
    /// Commands that came in the middle of a step.
    pub(crate) deferred: VecDeque<Command>,
}

/// Sizes of the plan that the loop needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) sequence_cells: u32,
    pub(crate) chunk: u32,
    pub(crate) logit_rows: u32,
    pub(crate) vocab: usize,
    pub(crate) sliding: bool,
    pub(crate) frame_bytes: u64,
    pub(crate) extent_bytes: u64,
}

impl Engine {
    /// Starts the engine thread. It ends when the last [`Handle`] and [`Generation`](crate::Generation) are gone, or at
    /// [`Handle::stop`].
    ///
    /// # Errors
    ///
    /// The system refuses a thread, or the plan's cache sizes contradict each other.
    pub fn start(config: EngineConfig) -> Result<Handle, EngineError> {
        let (sender, receiver) = mpsc::channel();
        let failure = Arc::new(OnceLock::new());
        let plan = config.executor.plan();
        let handle = Handle::new(plan, Arc::clone(&config.tokenizer), sender, Arc::clone(&failure));
        let mut engine = Engine::new(config, receiver)?;
        let body = move || {
            let ended = catch_unwind(AssertUnwindSafe(|| engine.run()));
            let error = match ended {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(panic) => Some(EngineError::Panicked(panic_text(panic.as_ref()))),
            };
            if let Some(error) = error {
                // Set once, here. Clients read it when they find their mailboxes closed, which is what comes next.
                let _ = failure.set(error);
            }
            drop(engine);
        };
        let thread = thread::Builder::new().name("tailrace-engine".to_owned()).spawn(body);
        handle.runs_in(thread.map_err(|error| EngineError::Thread(error.to_string()))?);
        Ok(handle)
    }

    fn new(config: EngineConfig, commands: Receiver<Command>) -> Result<Self, EngineError> {
        let plan = config.executor.plan();
        let (limits, slots) = (&plan.limits, plan.limits.sequences as usize);
        let CachePlan { frame_bytes, extent_blocks, sliding, .. } = plan.cache;
        let sizes = Sizes {
            sequence_cells: plan.cache.sequence_cells,
            chunk: limits.chunk,
            logit_rows: limits.logit_rows,
            vocab: plan.vocab as usize,
            sliding: sliding.is_some(),
            frame_bytes,
            extent_bytes: frame_bytes * u64::from(extent_blocks),
        };
        let rows = limits.chunk.max(limits.sequences) as usize;
        let kv_config = KvConfig::of(plan);
        Ok(Engine {
            step: StepPlan::with_capacity(&kv_config),
            cache: KvCache::new(kv_config)?,
            sequences: (0..limits.sequences).map(|slot| Sequence::new(SlotId(slot))).collect(),
            waiting: VecDeque::new(),
            sampler: Sampler::new(sizes.vocab),
            sizes,
            clock: 0,
            prefills: 0,
            decodes: 0,
            appends: Vec::with_capacity(slots),
            rows: Vec::with_capacity(rows),
            wanted: Vec::with_capacity(rows),
            ranked: Vec::with_capacity(rows),
            commands,
            deferred: VecDeque::new(),
            executor: config.executor,
            tokenizer: config.tokenizer,
        })
    }

    /// Runs until nobody is left, someone asks for the end, or the device fails.
    fn run(&mut self) -> Result<(), EngineError> {
        while self.receive() == Flow::Continue {
            self.end_cancelled();
            self.admit();
            self.turn()?;
        }
        Ok(())
    }

    /// One prefill submission, then one decode submission, where there are rows for them.
    fn turn(&mut self) -> Result<(), EngineError> {
        if let Some(chunk) = self.next_chunk() {
            self.prefill(chunk)?;
            self.end_cancelled();
        }
        self.decode()?;
        for active in self.sequences.iter_mut().filter_map(|s| s.active.as_mut()) {
            active.outbox.flush();
        }
        Ok(())
    }

    /// Takes all commands that have come; waits for one where there is nothing else to do.
    fn receive(&mut self) -> Flow {
        while let Some(command) = self.deferred.pop_front() {
            if self.obey(command) == Flow::Stop {
                return Flow::Stop;
            }
        }
        if !self.has_work() {
            let Ok(command) = self.wait() else { return Flow::Stop };
            if self.obey(command) == Flow::Stop {
                return Flow::Stop;
            }
        }
        loop {
            match self.commands.try_recv() {
                Ok(command) => {
                    if self.obey(command) == Flow::Stop {
                        return Flow::Stop;
                    }
                }
                Err(TryRecvError::Empty) => return Flow::Continue,
                Err(TryRecvError::Disconnected) => return Flow::Stop,
            }
        }
    }

    /// Waits for a command; whatever clients may be waiting for is sent before.
    pub(crate) fn wait(&mut self) -> Result<Command, mpsc::RecvError> {
        for active in self.sequences.iter_mut().filter_map(|s| s.active.as_mut()) {
            active.outbox.flush_now();
        }
        self.commands.recv()
    }

    fn obey(&mut self, command: Command) -> Flow {
        match command {
            Command::Submit(submitted) => self.waiting.push_back(*submitted),
            Command::Rewind { id, keep, reply } => {
                // A client that does not wait for the answer has no use for it.
                let _ = reply.send(self.rewind(id, keep));
            }
            Command::Snapshot(reply) => self.report(&reply),
            Command::Wake => {}
            Command::Stop => return Flow::Stop,
        }
        Flow::Continue
    }

    /// Ends requests that their clients have cancelled.
    fn end_cancelled(&mut self) {
        for i in 0..self.sequences.len() {
            if self.sequences[i].active.as_ref().is_some_and(|a| a.outbox.is_cancelled()) {
                self.finish(i, DoneReason::Cancelled);
            }
        }
        while let Some(i) = self.waiting.iter().position(|w| w.outbox.is_cancelled()) {
            if let Some(submitted) = self.waiting.remove(i) {
                submitted.outbox.done(DoneReason::Cancelled, Default::default());
            }
        }
    }

    /// Ends the request in slot `i`; its cells stay for another one.
    pub(crate) fn finish(&mut self, i: usize, reason: DoneReason) {
        self.clock += 1;
        self.sequences[i].finish(reason, self.clock);
    }

    /// Ends the request in slot `i` with an error and gives its cells back.
    pub(crate) fn fail(&mut self, i: usize, error: EngineError) {
        self.sequences[i].fail(error);
        self.release(i);
    }

    /// Empties slot `i`.
    pub(crate) fn release(&mut self, i: usize) {
        let sequence = &mut self.sequences[i];
        sequence.clear();
        if std::mem::take(&mut sequence.live) {
            self.cache.release(sequence.slot).expect("no step is open, and a live slot has a sequence");
        }
    }

    /// Cuts the cells of slot `i` to the first `cells`, or to none where sliding layers cannot go back so far: the engine
    /// computes again what is missing.
    pub(crate) fn cut(&mut self, i: usize, cells: u32) {
        let sequence = &mut self.sequences[i];
        sequence.cells = match self.cache.rollback(sequence.slot, cells) {
            Ok(()) => cells,
            Err(KvError::NeedsPrefill { .. }) => {
                self.cache.rollback(sequence.slot, 0).expect("going back to 0 cells is always possible");
                0
            }
            Err(error) => panic!("the cache refuses a rollback of a live sequence: {error}"),
        };
    }

    fn rewind(&mut self, id: u64, keep: u32) -> Result<(), EngineError> {
        let running = |s: &Sequence| s.active.as_ref().is_some_and(|a| a.id == id);
        let Some(i) = self.sequences.iter().position(running) else {
            let waits = self.waiting.iter().any(|w| w.id == id);
            return Err(if waits { EngineError::Rewind { keep, tokens: 0 } } else { EngineError::Ended });
        };
        let tokens = self.sequences[i].tokens.len() as u32;
        if keep == 0 || keep > tokens {
            return Err(EngineError::Rewind { keep, tokens });
        }
        // The last token that stays is computed again: the next one is sampled from its logits.
        let cells = self.sequences[i].cells.min(keep - 1);
        self.cut(i, cells);
        self.sequences[i].rewind(keep);
        Ok(())
    }

    pub(crate) fn report(&self, reply: &SyncSender<Snapshot>) {
        // A client that does not wait for the answer has no use for it.
        let _ = reply.send(self.snapshot());
    }

    fn snapshot(&self) -> Snapshot {
        let slot = |sequence: &Sequence| {
            let tail_blocks = self.cache.tail_and_window(sequence.slot).map_or(0, |(tail, _)| tail);
            SlotState {
                active: sequence.active.is_some(),
                cells: sequence.cells,
                tail_cells: (tail_blocks * BLOCK_CELLS).min(sequence.cells),
            }
        };
        Snapshot {
            slots: self.sequences.iter().map(slot).collect(),
            waiting: self.waiting.len(),
            cache: self.cache.counters(),
            traffic: self.executor.traffic(),
            high_water: self.executor.high_water(),
            driver_bytes: self.executor.driver_bytes(),
            cell_bytes: self.sizes.frame_bytes / u64::from(BLOCK_CELLS),
            host_bytes: u64::from(self.cache.extents().0) * self.sizes.extent_bytes,
            prefills: self.prefills,
            decodes: self.decodes,
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no reason given").to_owned()
}

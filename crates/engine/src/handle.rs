//! What clients hold: a [`Handle`] to an engine, and a [`Generation`] for each request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tailrace_device::plan::{Limits, Plan};
use tailrace_text::Tokenizer;
use tailrace_types::TokenId;

use crate::engine::{Command, Submitted};
use crate::mailbox::{Inbox, Received, mailbox};
use crate::request::{DoneReason, Snapshot, Stats};
use crate::sampling::fresh_seed;
use crate::{EngineError, Event, Request};

/// What handles share.
struct Shared {
    plan: Plan,
    tokenizer: Arc<Tokenizer>,
    failure: Arc<OnceLock<EngineError>>,
    next_id: AtomicU64,
    /// Taken by whoever stops the engine.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A client's access to an engine. Clones are equal.
#[derive(Clone)]
pub struct Handle {
    sender: Sender<Command>,
    shared: Arc<Shared>,
}

impl Handle {
    /// A handle to the engine in `thread` that runs `plan`.
    pub(crate) fn new(
        plan: &Plan,
        tokenizer: Arc<Tokenizer>,
        sender: Sender<Command>,
        failure: Arc<OnceLock<EngineError>>,
    ) -> Self {
        let shared =
            Shared { plan: plan.clone(), tokenizer, failure, next_id: AtomicU64::new(0), thread: Mutex::new(None) };
        Handle { sender, shared: Arc::new(shared) }
    }

    /// Says which thread [`Handle::stop`] waits for.
    pub(crate) fn runs_in(&self, thread: JoinHandle<()>) {
        *self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Starts a generation. It waits for its turn where all sequences are in use.
    ///
    /// # Errors
    ///
    /// A request that can never run: see [`EngineError`]. Or the engine has ended.
    pub fn submit(&self, request: Request) -> Result<Generation, EngineError> {
        self.begin(request, None)
    }

    /// Gives `tokens` random cells instead of computing them: a deep cache without its prefill, for benchmarks. Everything else is
    /// as for a request that generates nothing: chunks, window, tail, cancellation. A later request that begins with the same
    /// tokens continues from there, so its text means nothing.
    ///
    /// # Errors
    ///
    /// As [`Handle::submit`].
    pub fn fill(&self, tokens: Vec<TokenId>, seed: u64) -> Result<Generation, EngineError> {
        self.begin(Request { max_tokens: 0, ..Request::new(tokens) }, Some(seed))
    }

    fn begin(&self, mut request: Request, fill: Option<u64>) -> Result<Generation, EngineError> {
        self.check(&mut request)?;
        let (outbox, inbox) = mailbox(&self.shared.failure);
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let seed = request.sampling.seed.unwrap_or_else(fresh_seed);
        let submitted = Submitted { id, request, seed, fill, outbox, at: Instant::now() };
        self.send(Command::Submit(Box::new(submitted)))?;
        Ok(Generation { id, inbox, handle: self.clone() })
    }

    fn check(&self, request: &mut Request) -> Result<(), EngineError> {
        let Shared { plan: Plan { limits, vocab, .. }, tokenizer, .. } = &*self.shared;
        if request.prompt.is_empty() {
            request.prompt.push(tokenizer.leading_bos().ok_or(EngineError::EmptyPrompt)?);
        }
        let (tokens, cells) = (request.prompt.len() + request.forced.len(), limits.sequence_cells());
        if tokens > cells as usize {
            return Err(EngineError::TooLong { tokens, cells });
        }
        if let Some(bad) = request.prompt.iter().chain(&request.forced).find(|t| t.0 >= *vocab) {
            return Err(EngineError::UnknownToken { token: bad.0, vocab: *vocab });
        }
        if request.stop.iter().any(String::is_empty) {
            return Err(EngineError::EmptyStopString);
        }
        Ok(request.sampling.validate(*vocab)?)
    }

    /// The engine's state at this moment; waits for the submission that is running.
    ///
    /// # Errors
    ///
    /// The engine has ended.
    pub fn snapshot(&self) -> Result<Snapshot, EngineError> {
        self.ask(Command::Snapshot)
    }

    /// Ends all requests with [`EngineError::Stopped`], and waits until the engine has given its memory back.
    pub fn stop(&self) {
        // An engine that has ended already is what was asked for.
        let _ = self.sender.send(Command::Stop);
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // Its panics were caught and told to every client.
            let _ = thread.join();
        }
    }

    /// The limits that the engine runs under.
    pub fn limits(&self) -> &Limits {
        &self.shared.plan.limits
    }

    /// What it executes and holds.
    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Tokens of the model: the length of a row of logits.
    pub fn vocab(&self) -> u32 {
        self.shared.plan.vocab
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.shared.tokenizer
    }

    fn ask<T>(&self, question: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, EngineError> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.send(question(reply))?;
        answer.recv().map_err(|_| self.failure())
    }

    fn send(&self, command: Command) -> Result<(), EngineError> {
        // An engine that failed may still be dropping what it holds.
        match self.shared.failure.get() {
            Some(failure) => Err(failure.clone()),
            None => self.sender.send(command).map_err(|_| self.failure()),
        }
    }

    /// Why there is no engine any more.
    fn failure(&self) -> EngineError {
        self.shared.failure.get().cloned().unwrap_or(EngineError::Stopped)
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("limits", self.limits()).finish_non_exhaustive()
    }
}

/// A running request: an iterator over its [`Event`]s, which ends after [`Event::Done`] or [`Event::Error`].
///
/// Dropping it cancels the request. Tokens wait here without bound for a client that is slow; logits do not: a request whose
/// logits are not taken pauses, and others go on.
#[derive(Debug)]
pub struct Generation {
    id: u64,
    inbox: Inbox,
    handle: Handle,
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Tokens sampled.
    pub tokens: Vec<TokenId>,
    /// Their text.
    pub text: String,
    /// Why it ended.
    pub reason: DoneReason,
    /// What it took.
    pub stats: Stats,
}

impl Generation {
    /// Waits for the next event; `None` after the last.
    pub fn receive(&mut self) -> Option<Event> {
        match self.inbox.receive(None) {
            Received::Event(event) => Some(self.taken(event)),
            Received::Nothing | Received::Ended => None,
        }
    }

    /// As [`Generation::receive`], but waits no longer than `timeout`; then it is `Some(None)`.
    pub fn receive_timeout(&mut self, timeout: Duration) -> Option<Option<Event>> {
        let deadline = Instant::now().checked_add(timeout);
        match self.inbox.receive(deadline) {
            Received::Event(event) => Some(Some(self.taken(event))),
            Received::Nothing => Some(None),
            Received::Ended => None,
        }
    }

    /// Wakes an engine that paused the request because of logits that nobody took.
    fn taken(&self, event: Event) -> Event {
        if matches!(event, Event::Logits { .. }) {
            // An engine that has ended needs no waking.
            let _ = self.handle.sender.send(Command::Wake);
        }
        event
    }

    /// Ends the request after the submission that is running; [`Event::Done`] with [`DoneReason::Cancelled`] follows.
    pub fn cancel(&self) {
        self.inbox.mailbox().cancel();
        // Wakes an engine that waits; one that has ended needs no waking.
        let _ = self.handle.sender.send(Command::Wake);
    }

    /// Goes back to the first `keep` tokens of the sequence (prompt included, at least 1) and continues from there.
    ///
    /// Everything follows: cache, penalties, random numbers, half characters, stop strings and the count of sampled tokens. The
    /// events before [`Event::Rewound`] belong to the sequence before it.
    ///
    /// # Errors
    ///
    /// `keep` is 0 or more than the sequence has, the request is still waiting or has ended.
    pub fn rewind(&self, keep: u32) -> Result<(), EngineError> {
        self.handle.ask(|reply| Command::Rewind { id: self.id, keep, reply })?
    }

    /// Waits for the end and returns what was generated. Logits are dropped.
    ///
    /// # Errors
    ///
    /// The request failed.
    pub fn complete(mut self) -> Result<Completion, EngineError> {
        let (mut tokens, mut texts) = (Vec::new(), Vec::new());
        while let Some(event) = self.receive() {
            match event {
                Event::Token { id, text } => {
                    tokens.push(id);
                    texts.push(text);
                }
                Event::Rewound { sampled, .. } => {
                    tokens.truncate(sampled as usize);
                    texts.truncate(sampled as usize);
                }
                Event::PrefillProgress { .. } | Event::Logits { .. } => {}
                Event::Done { reason, stats } => return Ok(Completion { tokens, text: texts.concat(), reason, stats }),
                Event::Error(error) => return Err(error),
            }
        }
        Err(EngineError::Ended)
    }
}

impl Iterator for Generation {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.receive()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
    }
}

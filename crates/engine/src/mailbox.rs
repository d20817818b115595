//! The way of events from the engine to one client.
//!
//! The engine must neither wait for a client nor allocate for it. So it stages events and moves them over with `try_lock`:
//! when the client happens to hold the lock, they go with the next ones. Text travels in one buffer; the strings that the
//! client gets are made on its own thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tailrace_types::TokenId;

use crate::request::{DoneReason, Stats};
use crate::{EngineError, Event};

/// Events that fit before a queue grows: a client that keeps up never makes it grow.
const EVENTS_AHEAD: usize = 256;
/// Bytes of text that fit before its buffer grows.
const TEXT_AHEAD: usize = 16 * EVENTS_AHEAD;

/// An event whose text lies in [`Queue::text`].
#[derive(Debug)]
enum Item {
    PrefillProgress { done: u32, total: u32 },
    Token { id: TokenId, text_bytes: usize },
    Logits { first_position: u32, rows: u32, values: Vec<f32> },
    Rewound { kept: u32, sampled: u32 },
    Done { reason: DoneReason, stats: Stats },
    Error(EngineError),
}

/// Events in order, and the texts of the tokens among them, one after the other.
#[derive(Debug)]
struct Queue {
    items: VecDeque<Item>,
    text: String,
    /// Bytes of `text` that were taken.
    text_taken: usize,
}

impl Queue {
    fn new() -> Self {
        Queue { items: VecDeque::with_capacity(EVENTS_AHEAD), text: String::with_capacity(TEXT_AHEAD), text_taken: 0 }
    }

    fn append(&mut self, other: &mut Queue) {
        self.items.append(&mut other.items);
        self.text.push_str(&other.text[other.text_taken..]);
        other.text.clear();
        other.text_taken = 0;
    }

    fn take(&mut self) -> Option<Event> {
        Some(match self.items.pop_front()? {
            Item::PrefillProgress { done, total } => Event::PrefillProgress { done, total },
            Item::Token { id, text_bytes } => Event::Token { id, text: self.take_text(text_bytes) },
            Item::Logits { first_position, rows, values } => Event::Logits { first_position, rows, values },
            Item::Rewound { kept, sampled } => Event::Rewound { kept, sampled },
            Item::Done { reason, stats } => Event::Done { reason, stats },
            Item::Error(error) => Event::Error(error),
        })
    }

    fn take_text(&mut self, bytes: usize) -> String {
        let end = self.text_taken + bytes;
        let text = self.text[self.text_taken..end].to_owned();
        self.text_taken = end;
        if end == self.text.len() {
            self.text.clear();
            self.text_taken = 0;
        } else if end > self.text.len() / 2 && end > TEXT_AHEAD {
            self.text.drain(..end);
            self.text_taken = 0;
        }
        text
    }
}

/// What the engine and one client share.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: Mutex<Queue>,
    ready: Condvar,
    /// The engine will send nothing more.
    closed: AtomicBool,
    /// The client wants nothing more.
    cancelled: AtomicBool,
    /// Rows of logits that the client has not taken yet.
    logit_rows: AtomicU32,
    /// Why the engine died, if it did.
    failure: Arc<OnceLock<EngineError>>,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A client that panicked while it held the lock has left the queue whole: every change is a single call.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
}

/// The client's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    mailbox: Arc<Mailbox>,
    ended: bool,
}

/// What a wait for an event ended with.
#[derive(Debug)]
pub(crate) enum Received {
    /// An event.
    Event(Event),
    /// Nothing until the deadline.
    Nothing,
    /// Nothing will ever come again.
    Ended,
}

impl Inbox {
    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Waits for the next event until `deadline` (`None`: for ever).
    pub(crate) fn receive(&mut self, deadline: Option<Instant>) -> Received {
        if self.ended {
            return Received::Ended;
        }
        let event = {
            let mut queue = self.mailbox.lock();
            loop {
                // Read before the queue: the engine closes after its last event.
                let closed = self.mailbox.closed.load(Ordering::Acquire);
                if let Some(event) = queue.take() {
                    break Some(event);
                }
                if closed {
                    break None;
                }
                let left = match deadline {
                    Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                    None => Duration::MAX,
                };
                if left.is_zero() {
                    return Received::Nothing;
                }
                let ready = &self.mailbox.ready;
                queue = match deadline {
                    Some(_) => ready.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0,
                    None => ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
                };
            }
        };
        // An engine that ends without a last event has died or was stopped.
        let event = event.unwrap_or_else(|| {
            let failure = self.mailbox.failure.get();
            Event::Error(failure.cloned().unwrap_or(EngineError::Stopped))
        });
        match &event {
            Event::Logits { rows, .. } => {
                self.mailbox.logit_rows.fetch_sub(*rows, Ordering::AcqRel);
            }
            Event::Done { .. } | Event::Error(_) => self.ended = true,
            Event::PrefillProgress { .. } | Event::Token { .. } | Event::Rewound { .. } => {}
        }
        Received::Event(event)
    }
}

/// The engine's end. Closes the mailbox when it is dropped, so that no client waits for an engine that is gone.
#[derive(Debug)]
pub(crate) struct Outbox {
    mailbox: Arc<Mailbox>,
    staged: Queue,
}

/// The two ends of a new mailbox.
pub(crate) fn mailbox(failure: &Arc<OnceLock<EngineError>>) -> (Outbox, Inbox) {
    let mailbox = Arc::new(Mailbox {
        queue: Mutex::new(Queue::new()),
        ready: Condvar::new(),
        closed: AtomicBool::new(false),
        cancelled: AtomicBool::new(false),
        logit_rows: AtomicU32::new(0),
        failure: Arc::clone(failure),
    });
    let outbox = Outbox { mailbox: Arc::clone(&mailbox), staged: Queue::new() };
    (outbox, Inbox { mailbox, ended: false })
}

impl Outbox {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.mailbox.cancelled.load(Ordering::Acquire)
    }

    /// Rows of logits that the client has not taken.
    pub(crate) fn logit_rows(&self) -> u32 {
        self.mailbox.logit_rows.load(Ordering::Acquire)
    }

    pub(crate) fn progress(&mut self, done: u32, total: u32) {
        self.staged.items.push_back(Item::PrefillProgress { done, total });
    }

    pub(crate) fn token(&mut self, id: TokenId, text: &str) {
        self.staged.text.push_str(text);
        self.staged.items.push_back(Item::Token { id, text_bytes: text.len() });
    }

    pub(crate) fn logits(&mut self, first_position: u32, rows: u32, values: &[f32]) {
        self.mailbox.logit_rows.fetch_add(rows, Ordering::AcqRel);
        self.staged.items.push_back(Item::Logits { first_position, rows, values: values.to_vec() });
    }

    pub(crate) fn rewound(&mut self, kept: u32, sampled: u32) {
        self.staged.items.push_back(Item::Rewound { kept, sampled });
    }

    /// Moves staged events over, unless the client holds the lock at this moment.
    pub(crate) fn flush(&mut self) {
        if self.staged.items.is_empty() {
            return;
        }
        if let Ok(mut queue) = self.mailbox.queue.try_lock() {
            queue.append(&mut self.staged);
            drop(queue);
            self.mailbox.ready.notify_one();
        }
    }

    /// Moves staged events over, waiting for the lock: for moments when the engine has nothing better to do.
    pub(crate) fn flush_now(&mut self) {
        if !self.staged.items.is_empty() {
            self.mailbox.lock().append(&mut self.staged);
            self.mailbox.ready.notify_one();
        }
    }

    pub(crate) fn done(mut self, reason: DoneReason, stats: Stats) {
        self.staged.items.push_back(Item::Done { reason, stats });
    }

    pub(crate) fn error(mut self, error: EngineError) {
        self.staged.items.push_back(Item::Error(error));
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        // The lock orders this with a client that is about to wait.
        let mut queue = self.mailbox.lock();
        queue.append(&mut self.staged);
        self.mailbox.closed.store(true, Ordering::Release);
        drop(queue);
        self.mailbox.ready.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Outbox, Inbox) {
        mailbox(&Arc::new(OnceLock::new()))
    }

    fn now(inbox: &mut Inbox) -> Option<Event> {
        match inbox.receive(Some(Instant::now())) {
            Received::Event(event) => Some(event),
            Received::Nothing | Received::Ended => None,
        }
    }

    #[test]
    fn texts_stay_with_their_tokens() {
        let (mut outbox, mut inbox) = pair();
        let texts: Vec<String> = (0..3000).map(|i| "é".repeat(i % 7)).collect();
        for (i, text) in texts.iter().enumerate() {
            outbox.token(TokenId(i as u32), text);
            if i % 3 == 0 {
                outbox.flush();
            }
            if i % 2 == 0 {
                continue;
            }
            // Reads at half the rate, so that the buffers grow and move.
            let event = now(&mut inbox);
            let at = i / 2;
            assert_eq!(event, Some(Event::Token { id: TokenId(at as u32), text: texts[at].clone() }));
        }
        outbox.flush_now();
        for (at, text) in texts.iter().enumerate().skip(1500) {
            assert_eq!(now(&mut inbox), Some(Event::Token { id: TokenId(at as u32), text: text.clone() }));
        }
        assert_eq!(now(&mut inbox), None);
    }

    #[test]
    fn a_held_lock_delays_events_and_loses_none() {
        let (mut outbox, mut inbox) = pair();
        let mailbox = Arc::clone(inbox.mailbox());
        let held = mailbox.lock();
        outbox.rewound(1, 0);
        outbox.flush();
        assert_eq!(held.items.len(), 0);
        drop(held);
        outbox.rewound(2, 0);
        outbox.flush();
        assert_eq!(now(&mut inbox), Some(Event::Rewound { kept: 1, sampled: 0 }));
        assert_eq!(now(&mut inbox), Some(Event::Rewound { kept: 2, sampled: 0 }));
    }

    #[test]
    fn a_dropped_outbox_is_an_error_and_then_the_end() {
        let failure = Arc::new(OnceLock::new());
        let (outbox, mut inbox) = mailbox(&failure);
        drop(outbox);
        assert_eq!(now(&mut inbox), Some(Event::Error(EngineError::Stopped)));
        assert!(matches!(inbox.receive(None), Received::Ended));

        let (outbox, mut inbox) = mailbox(&failure);
        failure.set(EngineError::Panicked("why".to_owned())).expect("set once");
        let waiting = std::thread::spawn(move || inbox.receive(None));
        drop(outbox);
        let received = waiting.join().expect("no panic");
        assert!(matches!(received, Received::Event(Event::Error(EngineError::Panicked(_)))));
    }

    #[test]
    fn logit_rows_are_counted_until_taken() {
        let (mut outbox, mut inbox) = pair();
        outbox.logits(5, 2, &[0.0; 6]);
        assert_eq!(outbox.logit_rows(), 2);
        outbox.flush();
        assert!(matches!(now(&mut inbox), Some(Event::Logits { first_position: 5, rows: 2, .. })));
        assert_eq!(outbox.logit_rows(), 0);
    }
}

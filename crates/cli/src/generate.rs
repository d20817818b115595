//! From a request to text that is written as it comes.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tailrace_engine::{DoneReason, EngineError, Event, Generation, Request, Stats};

use crate::interrupt::Watch;
use crate::session::{Progress, Session};

/// How often a generation looks whether Ctrl-C was pressed.
const POLL: Duration = Duration::from_millis(50);

/// How a generation ended, and what it took up to there.
pub(crate) struct Outcome {
    pub(crate) result: Result<DoneReason>,
    pub(crate) stats: Stats,
}

/// Tokens to generate at most: `-n`.
pub(crate) fn max_tokens(predict: i64) -> Result<u32> {
    match predict {
        // llama.cpp tells "for ever" from "until the context is full"; here the context always ends it.
        -1 | -2 => Ok(u32::MAX),
        n => u32::try_from(n).map_err(|_| {
            anyhow!("-n {n}: give a number of tokens from 0 to {}, or -1 for as many as the model writes", u32::MAX)
        }),
    }
}

/// Runs `request` and hands its text to `write` as it comes. Ctrl-C ends it early, and so does text that cannot be written.
///
/// # Errors
///
/// The request can never run.
pub(crate) fn generate(
    session: &Session,
    request: Request,
    write: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<Outcome, EngineError> {
    let watch = Watch::start();
    let mut generation = session.handle.submit(request)?;
    let mut tally = Tally::new();
    let mut progress = Progress::new();
    let mut stopped = None;
    let result = loop {
        if stopped.is_none() && watch.interrupted() {
            generation.cancel();
            stopped = Some(Ok(DoneReason::Cancelled));
        }
        let Some(event) = next(&mut generation) else { continue };
        tally.count(&event);
        match event {
            Event::Token { text, .. } => {
                progress.clear();
                if stopped.is_none()
                    && let Err(error) = write(&text)
                {
                    generation.cancel();
                    stopped = Some(Err(error).context("cannot write to standard output"));
                }
            }
            Event::PrefillProgress { done, total } => progress.show("prefill", done as f32 / total.max(1) as f32),
            Event::Logits { .. } | Event::Rewound { .. } => {}
            Event::Done { reason, .. } => break stopped.unwrap_or(Ok(reason)),
            Event::Error(error) => break Err(session.explain(error)),
        }
    };
    progress.clear();
    Ok(Outcome { result, stats: tally.stats })
}

/// The next event; `None` if there is none yet. An engine that is gone without a last word is an error like any other.
fn next(generation: &mut Generation) -> Option<Event> {
    generation.receive_timeout(POLL).unwrap_or(Some(Event::Error(EngineError::Stopped)))
}

/// What a generation took, for those that fail: they end without statistics of the engine.
struct Tally {
    stats: Stats,
    started: Instant,
    /// When the first token came.
    decoding: Option<Instant>,
}

impl Tally {
    fn new() -> Self {
        Tally { stats: Stats::default(), started: Instant::now(), decoding: None }
    }

    fn count(&mut self, event: &Event) {
        let stats = &mut self.stats;
        match event {
            Event::PrefillProgress { done, .. } => {
                stats.prompt_tokens = *done;
                stats.prefill_seconds = self.started.elapsed().as_secs_f64();
            }
            Event::Token { .. } => {
                stats.generated_tokens += 1;
                // The first token is drawn from what the prompt computed.
                stats.decoded_tokens = stats.generated_tokens - 1;
                stats.decode_seconds = self.decoding.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
            }
            Event::Done { stats: exact, .. } => *stats = *exact,
            Event::Logits { .. } | Event::Rewound { .. } | Event::Error(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_tokens() {
        assert_eq!((max_tokens(-1).unwrap(), max_tokens(-2).unwrap(), max_tokens(0).unwrap()), (u32::MAX, u32::MAX, 0));
        for wrong in [-5, i64::MIN, 1 << 32, i64::MAX] {
            let error = max_tokens(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("-n {wrong}")) && error.contains("-1 for"), "{error}");
        }
    }
}

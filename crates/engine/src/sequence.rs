//! A slot's sequence, and the request that runs in it.

use std::time::Instant;

use tailrace_types::{SlotId, TokenId};

use crate::EngineError;
use crate::mailbox::Outbox;
use crate::output::Output;
use crate::request::{DoneReason, LogitsWanted, Stats};
use crate::sampling::{Choice, Sampler, SamplingError, SamplingParams};

/// How a token's row is computed: devices may use different arithmetic for rows of prompts and for generated tokens. It is
/// part of the token's input, so a token that must be computed again is computed in its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowClass {
    /// With others of its sequence, in a prefill submission.
    Prompt,
    /// With one row of each decoding sequence, in a decode submission.
    Generated,
}

/// Class of the token at index `at` of a request whose first `prompt` tokens are its prompt.
fn given_class(at: usize, prompt: u32) -> RowClass {
    if at < prompt as usize { RowClass::Prompt } else { RowClass::Generated }
}

/// The tokens of a slot and how many of them have cells.
///
/// While a request runs, every token from `cells` on is computed in its class; when all are, the next one is sampled. When it
/// has ended, only tokens with cells remain, for a later request with the same beginning.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) slot: SlotId,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) classes: Vec<RowClass>,
    pub(crate) cells: u32,
    /// Whether the cache has a sequence in the slot.
    pub(crate) live: bool,
    /// When the last request ended, in requests.
    pub(crate) last_used: u64,
    pub(crate) active: Option<Active>,
}

/// A running request.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) id: u64,
    pub(crate) outbox: Outbox,
    pub(crate) sampling: SamplingParams,
    pub(crate) logits: LogitsWanted,
    /// Of prompt and forced tokens, the leading ones whose cells may be taken from elsewhere.
    pub(crate) reusable: u32,
    /// Seed of the random cells that its tokens get instead of computed ones.
    pub(crate) fill: Option<u64>,
    pub(crate) max_tokens: u32,
    /// Prompt and forced tokens: what was given, not sampled.
    pub(crate) given: u32,
    pub(crate) output: Output,
    pub(crate) stats: Stats,
    /// Requests that got a slot before it.
    pub(crate) order: u64,
    pub(crate) submitted: Instant,
    /// When the first row was submitted.
    pub(crate) started: Option<Instant>,
    /// When the last row of the prompt was computed.
    pub(crate) prefilled: Option<Instant>,
    /// Set by the token that ends the text.
    pub(crate) over: Option<DoneReason>,
}

impl Sequence {
    pub(crate) fn new(slot: SlotId) -> Self {
        Sequence { slot, tokens: Vec::new(), classes: Vec::new(), cells: 0, live: false, last_used: 0, active: None }
    }

    /// Leading tokens with cells that equal `tokens`.
    pub(crate) fn common_cells(&self, tokens: &[TokenId]) -> u32 {
        let cells = &self.tokens[..self.cells as usize];
        cells.iter().zip(tokens).take_while(|(a, b)| a == b).count() as u32
    }

    /// Class of the next token to compute, if there is one.
    pub(crate) fn next_class(&self) -> Option<RowClass> {
        self.active.as_ref()?;
        self.classes.get(self.cells as usize).copied()
    }

    /// Prompt tokens to compute next, at most `most`.
    pub(crate) fn prompt_run(&self, most: u32) -> u32 {
        let classes = &self.classes[self.cells as usize..];
        classes.iter().take(most as usize).take_while(|c| **c == RowClass::Prompt).count() as u32
    }

    /// Whether every token has its cell, so that the next one can be sampled.
    pub(crate) fn is_computed(&self) -> bool {
        self.cells as usize == self.tokens.len()
    }

    /// Replaces the tokens behind those with cells by those of a request, whose first tokens they are: `tokens`, of which the
    /// first `prompt` are its prompt and the others forced.
    pub(crate) fn set_tokens(&mut self, tokens: &[TokenId], prompt: u32) {
        let cells = self.cells as usize;
        self.tokens.truncate(cells);
        self.classes.truncate(cells);
        self.tokens.extend_from_slice(&tokens[cells..]);
        self.classes.extend((cells..tokens.len()).map(|at| given_class(at, prompt)));
    }

    /// Says that a row of the request is submitted at `now`.
    pub(crate) fn start_clocks(&mut self, now: Instant) {
        let next = self.next_class();
        let Some(active) = self.active.as_mut() else { return };
        if next == Some(RowClass::Generated) {
            active.prefilled.get_or_insert(now);
        }
        if active.started.is_none() {
            active.started = Some(now);
            self.count_reused();
        }
    }

    /// Counts the tokens whose cells were there already, and those of them whose class is not the request's.
    fn count_reused(&mut self) {
        let Some(active) = self.active.as_mut() else { return };
        let prompt = active.stats.prompt_tokens;
        let reused = self.classes[..self.cells as usize].iter().enumerate();
        active.stats.reused_tokens = self.cells;
        active.stats.reclassed_tokens = reused.filter(|(at, class)| **class != given_class(*at, prompt)).count() as u32;
    }

    /// Makes room for `tokens` tokens in all.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        self.tokens.reserve(tokens.saturating_sub(self.tokens.len()));
        self.classes.reserve(tokens.saturating_sub(self.classes.len()));
    }

    /// Forgets all tokens and cells.
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.classes.clear();
        self.cells = 0;
    }

    /// Whether the client wants the logits of the row that was computed last.
    pub(crate) fn delivers_logits(&self) -> bool {
        self.active.as_ref().is_some_and(|active| match active.logits {
            LogitsWanted::None => false,
            LogitsWanted::Last => self.cells == active.given,
            LogitsWanted::Continuation => self.cells >= active.stats.prompt_tokens.min(active.given),
            LogitsWanted::All => true,
        })
    }

    /// Whether the client wants the logits of every row.
    pub(crate) fn wants_all_logits(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.logits == LogitsWanted::All)
    }

    /// Whether the next token is to be sampled from the logits of the row that was computed last.
    pub(crate) fn samples(&self) -> bool {
        let more = |active: &Active| active.stats.generated_tokens < active.max_tokens;
        self.is_computed() && self.active.as_ref().is_some_and(more)
    }

    /// Sends the logits of the row that was computed last to the client.
    pub(crate) fn deliver(&mut self, row: &[f32]) {
        let position = self.cells - 1;
        if let Some(active) = self.active.as_mut() {
            active.outbox.logits(position, 1, row);
        }
    }

    /// How many of the `rows` logits of the row that was computed last suffice, largest first, to sample the next token; `None`
    /// if all are needed.
    pub(crate) fn candidates_needed(&self, sampler: &mut Sampler, rows: usize) -> Option<u32> {
        let active = self.active.as_ref().filter(|_| !self.delivers_logits())?;
        let vocab = rows.min(active.output.vocabulary());
        let needed = sampler.candidates_needed(&active.sampling, &self.tokens, vocab)?;
        // Any of the rows without a token may be among the largest.
        u32::try_from(rows - vocab).ok()?.checked_add(needed)
    }

    /// Samples the next token after the row that was computed last, says it, and decides whether it is the last one. `cells_max`
    /// is the room of a sequence.
    pub(crate) fn sample(
        &mut self,
        sampler: &mut Sampler,
        choice: Choice<'_>,
        cells_max: u32,
    ) -> Result<(), SamplingError> {
        let Some(active) = self.active.as_mut() else { return Ok(()) };
        let (params, seed, vocab) = (&active.sampling, active.stats.seed, active.output.vocabulary());
        let token = match choice {
            // An embedding may have more rows than there are tokens: the rest can never be right.
            Choice::All(row) => sampler.sample(params, seed, &self.tokens, &row[..row.len().min(vocab)])?,
            Choice::Likeliest(best) => sampler.sample_likeliest(params, seed, &self.tokens, best, vocab)?,
        };
        self.tokens.push(token);
        self.classes.push(RowClass::Generated);
        active.stats.generated_tokens += 1;
        active.over = active.output.push(token);
        if active.over.is_none() && active.stats.generated_tokens >= active.max_tokens {
            active.over = Some(DoneReason::MaxTokens);
        }
        if active.over.is_none() && self.cells >= cells_max {
            active.over = Some(DoneReason::Context);
        }
        if active.over.is_some_and(|reason| reason != DoneReason::StopString) {
            active.output.finish();
        }
        active.outbox.token(token, active.output.text());
        Ok(())
    }

    /// Why the request is over after the row that was computed last, if it is.
    pub(crate) fn over(&self) -> Option<DoneReason> {
        let active = self.active.as_ref()?;
        active.over.or((self.is_computed() && !self.samples()).then_some(DoneReason::MaxTokens))
    }

    /// Ends the request; tokens with cells stay.
    pub(crate) fn finish(&mut self, reason: DoneReason, clock: u64) {
        let Some(mut active) = self.active.take() else { return };
        let now = Instant::now();
        if let Some(started) = active.started {
            let prefilled = active.prefilled.unwrap_or(now);
            active.stats.prefill_seconds = (prefilled - started).as_secs_f64();
            active.stats.decode_seconds = (now - prefilled).as_secs_f64();
        }
        let first = active.started.unwrap_or(now);
        active.stats.queue_seconds = first.saturating_duration_since(active.submitted).as_secs_f64();
        active.outbox.done(reason, active.stats);
        self.tokens.truncate(self.cells as usize);
        self.classes.truncate(self.cells as usize);
        self.last_used = clock;
    }

    /// Ends the request with an error. Its cells must be released.
    pub(crate) fn fail(&mut self, error: EngineError) {
        if let Some(active) = self.active.take() {
            active.outbox.error(error);
        }
        self.clear();
    }

    /// Forgets the tokens behind the first `keep`, and what was made of them.
    pub(crate) fn rewind(&mut self, keep: u32) {
        self.tokens.truncate(keep as usize);
        self.classes.truncate(keep as usize);
        let Some(active) = self.active.as_mut() else { return };
        active.given = active.given.min(keep);
        active.stats.generated_tokens = keep - active.given;
        active.over = None;
        active.output.restart(&self.tokens[active.given as usize..]);
        active.outbox.rewound(keep, active.stats.generated_tokens);
    }
}

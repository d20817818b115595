//! Which request gets which slot, and which rows are computed next.
//!
//! Requests get slots in the order in which they came. Of the sequences with prompt tokens left, the one that came first gets
//! the next prefill submission: up to a chunk of its rows, ending where a chunk of the absolute positions ends. Every
//! sequence that is past its prompt has a row in every decode submission. So a long prompt delays the next token of the others by
//! one chunk at most.

use std::cmp::Reverse;
use std::mem;

use tailrace_device::kv::{Append, KvError};

use crate::engine::{Engine, Submitted};
use crate::output::Output;
use crate::request::{LogitsWanted, Stats};
use crate::sequence::{Active, RowClass, Sequence};
use crate::{EngineError, Request};

/// Cells from which on sharing the beginning of a running sequence is worth it: one block.
const SHARED_CELLS_MIN: u32 = tailrace_types::BLOCK_CELLS;

/// Logits that wait for their client at most, in groups of `logit_rows` rows.
const LOGIT_GROUPS_AHEAD: u32 = 2;

/// Rows of a prefill submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Index of the sequence.
    pub(crate) sequence: usize,
    /// How many of its tokens.
    pub(crate) rows: u32,
}

impl Engine {
    /// Gives free slots to waiting requests.
    pub(crate) fn admit(&mut self) {
        while self.has_free_slot() {
            let Some(submitted) = self.waiting.pop_front() else { return };
            self.begin(submitted);
        }
    }

    fn has_free_slot(&self) -> bool {
        self.sequences.iter().any(|s| s.active.is_none())
    }

    /// Puts a request into the free slot whose cells it can use most of.
    fn begin(&mut self, submitted: Submitted) {
        let Submitted { id, request, seed, fill, outbox, at } = submitted;
        let Request { mut prompt, forced, max_tokens, sampling, stop, stop_at_eog, logits, reuse_prefix } = request;
        let (prompt_tokens, given) = (prompt.len() as u32, (prompt.len() + forced.len()) as u32);
        let output = Output::new(&self.tokenizer, stop, stop_at_eog);
        let reusable = match logits {
            LogitsWanted::All => 0,
            _ if !reuse_prefix => 0,
            LogitsWanted::Continuation => prompt_tokens - 1,
            // The last token is always computed: the next one is sampled from its logits.
            LogitsWanted::None | LogitsWanted::Last => given - 1,
        };
        prompt.extend_from_slice(&forced);
        let beginning = &prompt[..reusable as usize];
        let Some(i) = self.choose_slot(beginning) else { return };
        let keep = self.sequences[i].common_cells(beginning);
        if !mem::replace(&mut self.sequences[i].live, true) {
            self.cache.create(self.sequences[i].slot).expect("no step is open, and the slot is free");
        }
        self.cut(i, keep);
        self.clock += 1;
        let sequence = &mut self.sequences[i];
        sequence.set_tokens(&prompt, prompt_tokens);
        // Room for every token that may follow, so that none of them allocates.
        let most = given.saturating_add(max_tokens).min(self.sizes.sequence_cells + 1);
        sequence.reserve(most as usize);
        sequence.active = Some(Active {
            id,
            outbox,
            sampling,
            logits,
            reusable,
            fill,
            max_tokens,
            given,
            output,
            stats: Stats { prompt_tokens, seed, ..Stats::default() },
            order: self.clock,
            submitted: at,
            started: None,
            prefilled: None,
            over: None,
        });
    }

    /// The free slot with the longest common beginning; of equal ones an empty one, then the one that was left first.
    fn choose_slot(&self, tokens: &[tailrace_types::TokenId]) -> Option<usize> {
        let free = self.sequences.iter().enumerate().filter(|(_, s)| s.active.is_none());
        free.max_by_key(|(_, s)| (s.common_cells(tokens), !s.live, Reverse(s.last_used))).map(|(i, _)| i)
    }

    /// Whether a submission can be formed, or a request can get a slot.
    pub(crate) fn has_work(&self) -> bool {
        self.others_have_work(usize::MAX)
    }

    /// The same, sequence `i` aside.
    pub(crate) fn others_have_work(&self, i: usize) -> bool {
        let runs = |(j, s): (usize, &Sequence)| j != i && s.next_class().is_some() && self.logit_room(s) > 0;
        let cancelled = |s: &Sequence| s.active.as_ref().is_some_and(|a| a.outbox.is_cancelled());
        self.sequences.iter().enumerate().any(runs)
            || self.sequences.iter().any(cancelled)
            || (!self.waiting.is_empty() && self.has_free_slot())
    }

    /// Rows of logits that the request's client can still be sent; without bound where it wants one at most.
    pub(crate) fn logit_room(&self, sequence: &Sequence) -> u32 {
        match &sequence.active {
            Some(active) if matches!(active.logits, LogitsWanted::All | LogitsWanted::Continuation) => {
                (LOGIT_GROUPS_AHEAD * self.sizes.logit_rows).saturating_sub(active.outbox.logit_rows())
            }
            _ => u32::MAX,
        }
    }

    /// The rows of the next prefill submission.
    pub(crate) fn next_chunk(&mut self) -> Option<Chunk> {
        let prefills = |s: &Sequence| s.next_class() == Some(RowClass::Prompt) && self.logit_room(s) > 0;
        let order = |s: &Sequence| s.active.as_ref().map(|a| a.order);
        let candidates = self.sequences.iter().enumerate().filter(|(_, s)| prefills(s));
        let i = candidates.min_by_key(|(_, s)| order(s)).map(|(i, _)| i)?;
        if self.sequences[i].active.as_ref().is_some_and(|a| a.started.is_none()) {
            self.share(i);
        }
        let sequence = &self.sequences[i];
        let mut most = self.sizes.chunk - sequence.cells % self.sizes.chunk;
        if self.others_have_work(i) && sequence.wants_all_logits() {
            // They would have to wait for a client that takes its logits slowly.
            most = most.min(self.logit_room(sequence));
        }
        // After sharing there may be none left.
        let rows = sequence.prompt_run(most);
        (rows > 0).then_some(Chunk { sequence: i, rows })
    }

    /// Lets a sequence that has not begun share the beginning of another one, where that saves more than it has.
    fn share(&mut self, i: usize) {
        let mine = &self.sequences[i];
        let reusable = mine.active.as_ref().map_or(0, |active| active.reusable);
        if reusable == 0 {
            return;
        }
        // A ring of sliding layers may have moved on, and then what the sequence has would be lost.
        if self.sizes.sliding && mine.cells > 0 {
            return;
        }
        let reusable = &mine.tokens[..reusable as usize];
        let others = self.sequences.iter().enumerate().filter(|(j, s)| *j != i && s.live);
        let best = others.map(|(j, s)| (s.common_cells(reusable), j)).max_by_key(|&(cells, j)| (cells, Reverse(j)));
        let Some((cells, j)) = best.filter(|(cells, _)| *cells >= mine.cells + SHARED_CELLS_MIN) else { return };
        let (src, dst) = (self.sequences[j].slot, mine.slot);
        self.cache.release(dst).expect("no step is open, and the sequence is live");
        let shared = match self.cache.fork(src, dst, cells) {
            Ok(()) => cells,
            Err(KvError::NeedsPrefill { .. }) => {
                self.cache.create(dst).expect("the slot was just released");
                0
            }
            Err(error) => panic!("the cache refuses to fork a live sequence: {error}"),
        };
        let Ok([mine, other]) = self.sequences.get_disjoint_mut([i, j]) else { return };
        mine.cells = shared;
        mine.classes[..shared as usize].copy_from_slice(&other.classes[..shared as usize]);
    }

    /// Collects one row of every sequence that is past its prompt.
    pub(crate) fn gather_decode(&mut self) {
        self.appends.clear();
        for sequence in &self.sequences {
            if sequence.next_class() == Some(RowClass::Generated) && self.logit_room(sequence) > 0 {
                self.appends.push(Append { slot: sequence.slot, cells: 1 });
            }
        }
    }

    /// Gives up the cells of the ended request that was used least recently; `false` if there is none.
    pub(crate) fn release_oldest(&mut self) -> bool {
        let ended = self.sequences.iter().enumerate().filter(|(_, s)| s.live && s.active.is_none());
        let Some((i, _)) = ended.min_by_key(|(_, s)| s.last_used) else { return false };
        self.release(i);
        true
    }

    /// What a request is told when no room can be made for it.
    pub(crate) fn no_room(&self, error: KvError) -> EngineError {
        match error {
            KvError::HostFull { limit, .. } => {
                EngineError::HostFull(tailrace_types::Bytes(u64::from(limit) * self.sizes.extent_bytes))
            }
            other => EngineError::Cache(other),
        }
    }
}

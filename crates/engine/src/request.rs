//! What a client asks for, and what it gets.

use tailrace_device::kv::Counters;
use tailrace_device::{HighWater, Traffic};
use tailrace_types::TokenId;

use crate::EngineError;
use crate::sampling::SamplingParams;

/// Which logits a request receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogitsWanted {
    /// None.
    #[default]
    None,
    /// Those of the last prompt (or forced) token: what the first sampled token is drawn from.
    Last,
    /// Those of the last prompt token and of every token behind it: what forced and sampled tokens are predicted from. Only
    /// tokens before them are reused from the cache.
    Continuation,
    /// Those of every token that is computed. Nothing is reused from the cache then, so that none is missing.
    All,
}

/// Tokens to continue.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The tokens to continue. If empty, the beginning-of-text token, where the model wants one.
    pub prompt: Vec<TokenId>,
    /// Fed one by one after the prompt as if they had been sampled (teacher forcing). They end nothing, count as no
    /// generated token and give no [`Event::Token`].
    pub forced: Vec<TokenId>,
    /// Tokens to sample after those at most; 0 only computes them.
    pub max_tokens: u32,
    /// How they are sampled.
    pub sampling: SamplingParams,
    /// Texts that end the generation; neither they nor what follows them is part of the text.
    pub stop: Vec<String>,
    /// Whether an end-of-generation token ends the generation.
    pub stop_at_eog: bool,
    /// Which logits to deliver.
    pub logits: LogitsWanted,
    /// Whether cells that the cache holds of the same tokens may be used instead of computing them again.
    pub reuse_prefix: bool,
}

impl Request {
    /// Continues `prompt` with default sampling until an end-of-generation token or the end of the context.
    pub fn new(prompt: Vec<TokenId>) -> Self {
        Request {
            prompt,
            forced: Vec::new(),
            max_tokens: u32::MAX,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            stop_at_eog: true,
            logits: LogitsWanted::None,
            reuse_prefix: true,
        }
    }
}

/// Why a generation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoneReason {
    /// The model ended its text.
    Eog,
    /// [`Request::max_tokens`] were sampled.
    MaxTokens,
    /// The text contains a stop string.
    StopString,
    /// The sequence has no cell left to compute the next token in.
    Context,
    /// The client asked for it.
    Cancelled,
}

/// What one request took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of prompt and forced tokens, those whose cells the cache had.
    pub reused_tokens: u32,
    /// Of the reused tokens, those that were computed in the other row class (prompt or generated) than this request would
    /// have: on devices with two classes their cells may differ in bits from freshly computed ones.
    pub reclassed_tokens: u32,
    /// Tokens sampled.
    pub generated_tokens: u32,
    /// Rows computed one at a time: forced and sampled tokens.
    pub decoded_tokens: u32,
    /// From submission to the first row.
    pub queue_seconds: f64,
    /// From the first row to the last prompt token.
    pub prefill_seconds: f64,
    /// From there to the end.
    pub decode_seconds: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Stats {
    /// Prompt tokens computed per second; 0 if none were.
    pub fn prefill_tps(&self) -> f64 {
        rate(self.prompt_tokens.saturating_sub(self.reused_tokens), self.prefill_seconds)
    }

    /// Tokens decoded per second; 0 if none were.
    pub fn decode_tps(&self) -> f64 {
        rate(self.decoded_tokens, self.decode_seconds)
    }
}

fn rate(tokens: u32, seconds: f64) -> f64 {
    if seconds > 0.0 { f64::from(tokens) / seconds } else { 0.0 }
}

/// What happens to a request, in order. [`Event::Done`] or [`Event::Error`] is the last.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A chunk of the prompt was computed.
    PrefillProgress {
        /// Tokens of the prompt (and forced ones) that have cells.
        done: u32,
        /// All of them.
        total: u32,
    },
    /// A token was sampled.
    Token {
        /// The token.
        id: TokenId,
        /// Text that is certain now: whole characters, and nothing that may turn out to be a stop string. The last token
        /// brings what was held back.
        text: String,
    },
    /// Logits `[rows][vocab]` of consecutive positions, at most `logit_rows` of them.
    Logits {
        /// Position of the first row. The row of position `p` predicts the token at `p + 1`.
        first_position: u32,
        /// Rows.
        rows: u32,
        /// Their values.
        values: Vec<f32>,
    },
    /// The sequence went back, as [`crate::Generation::rewind`] asked: tokens that follow come after the first `kept`.
    Rewound {
        /// Tokens that stayed, prompt included.
        kept: u32,
        /// Of them, those that were sampled.
        sampled: u32,
    },
    /// The end.
    Done {
        /// Why.
        reason: DoneReason,
        /// What it took.
        stats: Stats,
    },
    /// The end, because something failed.
    Error(EngineError),
}

/// One slot of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// Whether a request is running in it; otherwise its cells wait for a request with the same beginning.
    pub active: bool,
    /// Cells of its sequence.
    pub cells: u32,
    /// Of them, those that only the host has.
    pub tail_cells: u32,
}

/// The engine at one moment between two submissions.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Each slot.
    pub slots: Vec<SlotState>,
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// What the cache counted.
    pub cache: Counters,
    /// Bytes that the device moved.
    pub traffic: Traffic,
    /// Most bytes used of each row of the memory map.
    pub high_water: Vec<HighWater>,
    /// Device memory that the driver says the process has in use, in bytes; 0 where there is no driver to ask.
    pub driver_bytes: u64,
    /// Bytes of one cell, all layers of global reach: what a cell costs in window or tail.
    pub cell_bytes: u64,
    /// Host memory that the tail holds, in bytes, empty places included.
    pub host_bytes: u64,
    /// Prefill submissions so far.
    pub prefills: u64,
    /// Decode submissions so far.
    pub decodes: u64,
}

impl Snapshot {
    /// Cells in frames; those that sequences share count for each.
    pub fn window_cells(&self) -> u64 {
        self.slots.iter().map(|s| u64::from(s.cells - s.tail_cells)).sum()
    }

    /// Cells that only the host has; those that sequences share count for each.
    pub fn tail_cells(&self) -> u64 {
        self.slots.iter().map(|s| u64::from(s.tail_cells)).sum()
    }

    /// Bytes of the occupied tail.
    pub fn tail_bytes(&self) -> u64 {
        self.tail_cells() * self.cell_bytes
    }
}

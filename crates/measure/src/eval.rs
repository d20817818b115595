//! Evaluations: what a model says, and whether a setting changes it. Ordinary clients of the engine, with teacher-forced tokens:
//! what is fed never depends on what was answered, so that two runs are compared position by position.

mod base_file;
mod bounds;
mod company;
mod divergence;
mod equivalence;
mod forced;
mod needle;
mod perplexity;
mod saved;
mod scores;
mod statistics;

pub use base_file::{BaseFile, BaseHeader, BaseWriter};
pub use bounds::{Bound, UnknownMetric};
pub use company::{Company, SameAnswers};
pub use divergence::{Divergence, DivergenceSummary, measure_divergence};
pub use equivalence::{Equivalence, EquivalenceSummary, Near, compare};
pub use forced::{LogitRows, RowSource};
pub use needle::{ANSWER_ROOM, Encoder, Found, Haystack, NeedleKind, Place, Series, Trial, UNKNOWN};
pub use perplexity::{Chunks, Perplexity, PerplexitySummary, Progress, measure_perplexity};
pub use saved::{SavedHeader, SavedLogits, save_row};
pub use scores::LogSoftmax;
pub use statistics::{Estimate, percentile};

use std::io;

use tailrace_engine::EngineError;

/// Why an evaluation ended early.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A request failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The text has too few tokens.
    #[error("the text has {tokens} tokens, {needed} are needed: {why}; take a longer text or a smaller chunk")]
    Short {
        /// Tokens of the text.
        tokens: usize,
        /// How many it must have.
        needed: usize,
        /// What they are for.
        why: &'static str,
    },
    /// A chunk does not fit the context.
    #[error("chunks of {chunk} tokens do not fit a context of {context}; raise -c or lower the chunk")]
    Context {
        /// Tokens of a chunk.
        chunk: u32,
        /// Cells of a sequence.
        context: u32,
    },
    /// The chunk or the stride cannot be evaluated.
    #[error("{0}")]
    Chunk(String),
    /// Two runs of the same tokens have other numbers of rows, or rows of other sizes.
    #[error("the two runs have different numbers of rows, or rows of different vocabularies")]
    Rows,
    /// The length of a document has no room for what is hidden in it.
    #[error(
        "documents of {tokens} tokens have no room for needles and a question: {needed} are needed; take longer ones"
    )]
    Room {
        /// Tokens of a document.
        tokens: usize,
        /// How many it must have.
        needed: usize,
    },
    /// Sentences that are nothing to a tokenizer.
    #[error("the tokenizer makes no tokens of the text that needles are to be hidden in; take another one")]
    Sentences,
    /// More needles than names.
    #[error("{wanted} needles in one document are too many: there are names for {most}")]
    Names {
        /// How many were asked for.
        wanted: usize,
        /// How many there can be.
        most: usize,
    },
    /// A file of reference logits is none, or belongs to something else.
    #[error("{0}")]
    Base(String),
    /// A file of reference logits cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

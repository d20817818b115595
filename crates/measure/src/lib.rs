//! Benchmarks, as ordinary clients of the engine: what is measured is what is served.
//!
//! A [`Bench`] starts engines of one model under different limits and measures *cells*: a phase at a depth with so much of the
//! cache in the tail. Each cell becomes a [`Row`]: times, bytes that were counted, rates of the device and its link from the same
//! run, and how far from the laws the time is.
//!
//! With `C` the time of the resident step at the same depth, `X` the bytes of the occupied tail and `L` the rate of the link, a step
//! takes `C + X/L` where transfer and compute take turns, and `max(C, X/L)` where they overlap.
//!
//! Rows that were kept become a [`report()`]: tables in Markdown and pictures of ladders, drawn by [`chart`].

mod bench;
mod bytes;
mod cell;
pub mod chart;
pub mod eval;
mod laws;
mod report;
mod row;
mod tail;

pub use bench::{Bench, Engines, Options, RESIDENT, Spill};
pub use bytes::{kv_bytes, weight_bytes};
pub use cell::Phase;
pub use laws::Laws;
pub use report::{Picture, Report, Source, pictures, report};
pub use row::{LineError, Row, table_header};
pub use tail::{tail_blocks, window_for_tail};

use tailrace_device::DeviceError;
use tailrace_device::kv::KvError;
use tailrace_engine::{EngineError, LoadError};
use tailrace_plan::PlanError;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model does not start under the limits.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no plan for the limits.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A request failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device cannot be measured.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The depth does not go with the limits.
    #[error("the cache cannot hold the depth: {0}")]
    Cache(#[from] KvError),
    /// A sequence of this depth and what is measured behind it do not fit the context.
    #[error("a depth of {depth} needs a context of {needed} tokens, it has {context}; raise -c")]
    Depth {
        /// Cells before the measurement.
        depth: u32,
        /// Tokens in all.
        needed: u32,
        /// Tokens of a sequence.
        context: u32,
    },
    /// Fewer tokens came than were asked for.
    #[error("the generation ended after {0} tokens")]
    Short(usize),
}

//! The engine: one owner, one loop.
//!
//! A thread owns the device, the cache and all sequences; nothing of them is shared, so nothing is locked. Clients hold a
//! [`Handle`]. They submit a [`Request`] and get a [`Generation`], an iterator over [`Event`]s:
//!
//! ```no_run
//! use tailrace_engine::{Event, Handle, Request, SamplingParams};
//!
//! # fn example(handle: Handle) -> Result<(), tailrace_engine::EngineError> {
//! let prompt = handle.tokenizer().encode("Once upon a time", true, false);
//! let request = Request { max_tokens: 100, sampling: SamplingParams::greedy(), ..Request::new(prompt) };
//! for event in handle.submit(request)? {
//!     match event {
//!         Event::Token { text, .. } => print!("{text}"),
//!         Event::Done { stats, .. } => println!("\n{:.1} tokens/s", stats.decode_tps()),
//!         Event::Error(error) => return Err(error),
//!         Event::PrefillProgress { .. } | Event::Logits { .. } | Event::Rewound { .. } => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # A turn of the loop
//!
//! 1. Commands are taken: new requests, rewinds, questions. Cancelled requests end.
//! 2. Waiting requests get free slots. A slot keeps the cells of its last request; a new one gets the slot that has most of its
//!    beginning, or shares the beginning of a sequence that is running.
//! 3. One prefill submission: a chunk of the prompt of the request that came first.
//! 4. One decode submission: a row of every sequence that is past its prompt. Each is sampled, and the token is said.
//!
//! # What holds
//!
//! - What a request gets is a function of its tokens, its parameters and its seed: other requests, chunks, the window, and whether
//!   cells were reused, change no bit of it (on a device with one row class).
//! - A token that is past its prompt waits for at most one chunk of somebody else's.
//! - No step allocates memory after the first ones, but for logits that a client asked for, stop strings, and extents of the tail.
//! - The engine never waits for a client: events are staged where a client is slow, and a request whose logits are not taken
//!   pauses alone.
//! - A request that fails ends alone. When the device fails or the engine panics, every client is told, and none hangs.

mod engine;
mod error;
mod handle;
mod load;
mod mailbox;
mod output;
mod request;
mod sampling;
mod schedule;
mod sequence;
mod step;

pub use engine::{Engine, EngineConfig};
pub use error::EngineError;
pub use handle::{Completion, Generation, Handle};
pub use load::{GgufWeights, LoadError, OpenModel, open, start_shape};
pub use request::{DoneReason, Event, LogitsWanted, Request, SlotState, Snapshot, Stats};
pub use sampling::{Sampler, SamplingError, SamplingParams};

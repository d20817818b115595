//! The KV cache as a pure state machine.
//!
//! It holds no bytes and no pointers: it knows which block is where, and answers every step with the transfers to make
//! and the segments to read. Whoever owns memory (a device) executes them.
//!
//! # Words
//!
//! A *block* is 256 consecutive cells of a sequence, aligned to absolute position. A *frame* is the device memory of one
//! block, for all layers of global reach. Frames below [`KvConfig::core_frames`] are *core*; the others are *overlay* and
//! lie over memory that a prefill uses for other things. A block is *clean* when the host has a copy of it, else *dirty*.
//! Blocks in frames are the *window*, blocks that only the host has are the *tail*.
//!
//! # A step
//!
//! ```text
//! begin(appends, phase, &mut plan)   makes room
//!     plan.before                    transfers, in order, then
//!     plan.sequences                 the compute: reads segments, writes the new cells, then
//!     plan.after                     copies to the host, which may overlap whatever follows
//! commit()                           or abort(), or commit_uncleaned()
//! ```
//!
//! The cleaner works one step ahead: `after` copies the oldest dirty full blocks, those that this step fills included, until
//! [`KvConfig::landing_frames`] core frames are free or clean. So `before` never copies to the host: making room is to forget
//! a frame whose copy was issued by an earlier step.
//!
//! # What is guaranteed
//!
//! 1. For every sequence, whatever it shares, the tail is a prefix of its blocks and the window the rest; the clean part of the
//!    window comes before the dirty part. A step reads at most one tail segment and one window segment for each sequence.
//! 2. The residency of a block belongs to the block, not to a table: a shared prefix is stored once and is listed once in
//!    [`StepPlan::tail_reads`]. Two sequences that share a block share all blocks before it, so that evicting the
//!    oldest window block of one of them keeps rule 1 for the other. The price: a tail block comes back into a frame only
//!    if it is the youngest tail block of *every* sequence that holds it.
//! 3. Every block that a tail segment lists is full. Only the last block of a sequence can be partial, and a partial block is
//!    in a core frame unless it is a cut view of a full one.
//! 4. Appends go to core frames that no other sequence holds (copy on write).
//! 5. An error leaves the state as it was.

mod begin;
mod blocks;
mod cache;
mod check;
mod config;
mod error;
mod extents;
mod residency;
mod step;

pub use cache::{Counters, KvCache};
pub use config::{KvConfig, Sliding};
pub use error::KvError;
pub use step::{Append, Home, Phase, Place, Segment, SequencePlan, StepPlan, Transfer};

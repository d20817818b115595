//! One engine at one depth: how long a step takes there, and what it moves.

use std::time::Instant;

use tailrace_device::kv;
use tailrace_engine::{EngineError, Event, Generation, Handle, Request, SamplingParams, Snapshot};
use tailrace_types::TokenId;

use crate::{Error, Options};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Steps of one row, sampling included.
    Decode,
    /// A chunk of a prompt, sampling excluded.
    Prefill,
}

impl Phase {
    /// Name in rows and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Decode => "decode",
            Phase::Prefill => "prefill",
        }
    }

    /// The layout of device memory while it is measured.
    pub const fn layout(self) -> kv::Phase {
        match self {
            Phase::Decode => kv::Phase::Decode,
            Phase::Prefill => kv::Phase::Prefill,
        }
    }
}

/// Decode steps before the clock starts: graphs run for the first time, and the overlay fills.
pub(crate) const WARMUP_TOKENS: u32 = 8;

/// What was measured at a depth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    /// One step: the median of the repetitions.
    pub(crate) step_seconds: f64,
    /// Rows of a step.
    pub(crate) rows: f64,
    /// Bytes that came from the tail for a step.
    pub(crate) link_bytes: u64,
    /// Afterwards: the occupied tail in bytes, and cells in frames.
    pub(crate) tail_bytes: u64,
    pub(crate) window_cells: u64,
    /// Most device memory that the driver counted.
    pub(crate) driver_bytes: u64,
}

impl Timing {
    /// The time of a step in seconds, if nothing was in the tail.
    pub(crate) fn resident(&self) -> Option<f64> {
        (self.tail_bytes == 0).then_some(self.step_seconds)
    }
}

/// An engine that nobody else uses.
pub(crate) struct Station<'a> {
    pub(crate) handle: Handle,
    pub(crate) options: &'a Options,
}

impl Station<'_> {
    /// Measures `phase` behind `depth` cells. Depths must not fall from one call to the next.
    pub(crate) fn measure(&self, phase: Phase, depth: u32) -> Result<Timing, Error> {
        self.check(phase, depth)?;
        self.reach(depth)?;
        let mut timings = Vec::new();
        for round in 0..self.options.repetitions.max(1) {
            if round > 0 && self.handle.plan().cache.sliding.is_some() {
                // Rings cannot go back far: what the last round overwrote comes again.
                self.reach(depth)?;
            }
            timings.push(match phase {
                Phase::Decode => self.decode(depth)?,
                Phase::Prefill => self.prefill(depth, round)?,
            });
        }
        let driver_bytes = timings.iter().map(|t| t.driver_bytes).max().unwrap_or(0);
        timings.sort_by(|a, b| a.step_seconds.total_cmp(&b.step_seconds));
        Ok(Timing { driver_bytes, ..timings[timings.len() / 2] })
    }

    /// Tokens behind `depth` that a measurement of `phase` needs.
    pub(crate) fn room(phase: Phase, options: &Options, chunk: u32) -> u32 {
        match phase {
            Phase::Decode => 1 + WARMUP_TOKENS + options.tokens,
            Phase::Prefill => chunk,
        }
    }

    fn check(&self, phase: Phase, depth: u32) -> Result<(), Error> {
        let limits = self.handle.limits();
        let (context, room) = (limits.sequence_cells(), Self::room(phase, self.options, limits.chunk));
        let needed = depth.saturating_add(room);
        if needed > context { Err(Error::Depth { depth, needed, context }) } else { Ok(()) }
    }

    /// Brings the sequence to `depth` cells.
    fn reach(&self, depth: u32) -> Result<(), Error> {
        if depth == 0 {
            return Ok(());
        }
        let tokens = self.tokens(0, depth);
        let generation = match self.options.fill {
            true => self.handle.fill(tokens, self.options.seed)?,
            false => self.handle.submit(Request { max_tokens: 0, ..Request::new(tokens) })?,
        };
        generation.complete()?;
        Ok(())
    }

    /// Random tokens, of which a longer run begins with the shorter ones.
    fn tokens(&self, salt: u32, count: u32) -> Vec<TokenId> {
        let vocab = self.handle.vocab();
        let token = |i: u32| {
            // A multiplicative hash (Knuth): spread well enough for tokens that mean nothing.
            let x = (i ^ salt.rotate_left(16)).wrapping_mul(0x9e37_79b9);
            TokenId((x ^ (x >> 15)).wrapping_mul(0x85eb_ca6b) % vocab)
        };
        (0..count).map(token).collect()
    }

    fn decode(&self, depth: u32) -> Result<Timing, Error> {
        let request = Request {
            max_tokens: WARMUP_TOKENS + self.options.tokens,
            sampling: SamplingParams { seed: Some(self.options.seed), ..self.options.sampling.clone() },
            stop_at_eog: false,
            ..Request::new(self.tokens(0, depth + 1))
        };
        let submitted = self.handle.snapshot()?;
        let mut generation = self.handle.submit(request)?;
        take_tokens(&mut generation, WARMUP_TOKENS / 2)?;
        // Asked before the clock starts: the driver takes its time to answer.
        let warm = self.handle.snapshot()?;
        take_tokens(&mut generation, WARMUP_TOKENS - WARMUP_TOKENS / 2)?;
        let start = Instant::now();
        take_tokens(&mut generation, self.options.tokens)?;
        let seconds = start.elapsed().as_secs_f64();
        generation.complete()?;
        let after = self.handle.snapshot()?;
        // A device that outruns its client was done before it could be asked: then the first steps count too.
        let before = if warm.decodes < after.decodes { &warm } else { &submitted };
        Ok(timing(before, &after, seconds / f64::from(self.options.tokens), 1.0))
    }

    fn prefill(&self, depth: u32, round: u32) -> Result<Timing, Error> {
        let chunk = self.handle.limits().chunk;
        let mut tokens = self.tokens(0, depth);
        // Other tokens in each round, so that none of their cells is there already.
        tokens.extend(self.tokens(round + 1, chunk));
        let before = self.handle.snapshot()?;
        let stats = self.handle.submit(Request { max_tokens: 0, ..Request::new(tokens) })?.complete()?.stats;
        let after = self.handle.snapshot()?;
        let rows = f64::from(stats.prompt_tokens - stats.reused_tokens);
        // A depth that is no multiple of the chunk is two submissions.
        let seconds = stats.prefill_seconds * f64::from(chunk) / rows;
        Ok(timing(&before, &after, seconds, f64::from(chunk)))
    }
}

/// A step of `rows` rows that took `step_seconds`, with what all submissions between the snapshots moved on average.
fn timing(before: &Snapshot, after: &Snapshot, step_seconds: f64, rows: f64) -> Timing {
    let steps = |s: &Snapshot| s.prefills + s.decodes;
    let from_tail = |s: &Snapshot| s.traffic.from_tail_bytes();
    Timing {
        step_seconds,
        rows,
        link_bytes: (from_tail(after) - from_tail(before)) / (steps(after) - steps(before)).max(1),
        tail_bytes: after.tail_bytes(),
        window_cells: after.window_cells(),
        driver_bytes: before.driver_bytes.max(after.driver_bytes),
    }
}

/// Waits for `count` tokens.
fn take_tokens(generation: &mut Generation, count: u32) -> Result<(), Error> {
    let mut left = count;
    while left > 0 {
        match generation.receive() {
            Some(Event::Token { .. }) => left -= 1,
            Some(Event::Error(error)) => return Err(error.into()),
            Some(Event::Done { .. }) => return Err(Error::Short((count - left) as usize)),
            Some(Event::PrefillProgress { .. } | Event::Logits { .. } | Event::Rewound { .. }) => {}
            None => return Err(EngineError::Ended.into()),
        }
    }
    Ok(())
}

//! Forming, submitting and committing a step.

use std::time::Instant;

use tailrace_device::kv::{Append, KvError, Phase, Transfer};
use tailrace_device::{DeviceError, Row, Submission};
use tailrace_types::SlotId;

use crate::EngineError;
use crate::engine::{Command, Engine};
use crate::sampling::Choice;
use crate::schedule::Chunk;
use crate::sequence::RowClass;

impl Engine {
    /// Computes a chunk of a prompt.
    pub(crate) fn prefill(&mut self, chunk: Chunk) -> Result<(), EngineError> {
        let Chunk { sequence: i, rows } = chunk;
        self.appends.clear();
        self.appends.push(Append { slot: self.sequences[i].slot, cells: rows });
        if !self.open(Phase::Prefill)? {
            return Ok(());
        }
        let fill = self.sequences[i].active.as_ref().and_then(|active| active.fill);
        self.submit(Phase::Prefill, fill)?;
        self.prefills += 1;
        let first = self.sequences[i].cells;
        self.sequences[i].cells = first + rows;
        self.prefill_logits(i, first, rows)?;
        self.after_prefill(i);
        Ok(())
    }

    /// Reports progress of the prompt, and the end of it.
    fn after_prefill(&mut self, i: usize) {
        let sequence = &mut self.sequences[i];
        let (cells, past_prompt) = (sequence.cells, sequence.next_class() != Some(RowClass::Prompt));
        if let Some(active) = sequence.active.as_mut() {
            active.outbox.progress(cells.min(active.given), active.given);
            if past_prompt && active.prefilled.is_none() {
                active.prefilled = Some(Instant::now());
            }
            active.outbox.flush();
        }
        self.end_if_over(i);
    }

    fn end_if_over(&mut self, i: usize) {
        if let Some(reason) = self.sequences[i].over() {
            self.finish(i, reason);
        }
    }

    /// Delivers and uses the logits of the `rows` rows from position `first` on.
    fn prefill_logits(&mut self, i: usize, first: u32, rows: u32) -> Result<(), EngineError> {
        let sequence = &self.sequences[i];
        if !sequence.wants_all_logits() {
            if sequence.samples() || sequence.delivers_logits() {
                self.wanted.clear();
                self.wanted.push(rows - 1);
                self.use_logits()?;
            } else if sequence.over().is_some() {
                // Nobody has waited for these rows, and the client is told that they are done.
                self.executor.finish()?;
            }
            return Ok(());
        }
        self.prefill_all_logits(i, first, rows)
    }

    /// The same for a request that wants all of them.
    fn prefill_all_logits(&mut self, i: usize, first: u32, rows: u32) -> Result<(), EngineError> {
        let mut done = 0;
        while done < rows {
            let group = (rows - done).min(self.sizes.logit_rows);
            if !self.wait_for_room(i, group) {
                // Other sequences have work. The rest of the chunk is computed again when the client has caught up.
                self.cut(i, first + done);
                return Ok(());
            }
            self.wanted.clear();
            self.wanted.extend(done..done + group);
            let values = self.executor.logits(&self.wanted)?;
            let sequence = &mut self.sequences[i];
            if let Some(active) = sequence.active.as_mut() {
                active.outbox.logits(first + done, group, values);
            }
            done += group;
            if done == rows && sequence.samples() {
                let last = &values[values.len() - self.sizes.vocab..];
                let sampled = sequence.sample(&mut self.sampler, Choice::All(last), self.sizes.sequence_cells);
                if let Err(error) = sampled {
                    self.fail(i, error.into());
                }
            }
        }
        Ok(())
    }

    /// Waits until the client of sequence `i` can be sent `rows` rows of logits; `false` if others should not wait for that.
    fn wait_for_room(&mut self, i: usize, rows: u32) -> bool {
        loop {
            if self.logit_room(&self.sequences[i]) >= rows {
                return true;
            }
            let stops = |c: &Command| matches!(c, Command::Stop | Command::Rewind { .. });
            if self.others_have_work(i) || self.deferred.iter().any(stops) {
                return false;
            }
            match self.wait() {
                Ok(Command::Submit(submitted)) => self.waiting.push_back(*submitted),
                Ok(Command::Snapshot(reply)) => self.report(&reply),
                Ok(Command::Wake) => {}
                Ok(command) => self.deferred.push_back(command),
                // Nobody is left, so the client is gone too.
                Err(_) => return false,
            }
        }
    }

    /// Computes one row of every sequence that is past its prompt.
    pub(crate) fn decode(&mut self) -> Result<(), EngineError> {
        self.gather_decode();
        if !self.open(self.decode_layout())? {
            return Ok(());
        }
        self.submit(Phase::Decode, None)?;
        self.decodes += 1;
        self.wanted.clear();
        for (row, append) in self.appends.iter().enumerate() {
            let sequence = &mut self.sequences[append.slot.0 as usize];
            sequence.cells += 1;
            if let Some(active) = sequence.active.as_mut() {
                active.stats.decoded_tokens += 1;
            }
            if sequence.samples() || sequence.delivers_logits() {
                self.wanted.push(row as u32);
            }
        }
        self.use_logits()?;
        for row in 0..self.appends.len() {
            self.end_if_over(self.appends[row].slot.0 as usize);
        }
        Ok(())
    }

    /// Samples from, and delivers, the logits of the rows in `wanted`.
    fn use_logits(&mut self) -> Result<(), EngineError> {
        self.use_candidates()?;
        let Engine { executor, sequences, sampler, sizes, wanted, rows, appends, .. } = self;
        for group in wanted.chunks(sizes.logit_rows as usize) {
            let values = executor.logits(group)?;
            for (&row, logits) in group.iter().zip(values.chunks_exact(sizes.vocab)) {
                let append = &appends[rows[row as usize].view as usize];
                let sequence = &mut sequences[append.slot.0 as usize];
                if sequence.delivers_logits() {
                    sequence.deliver(logits);
                }
                if sequence.samples()
                    && let Err(error) = sequence.sample(sampler, Choice::All(logits), sizes.sequence_cells)
                {
                    sequence.fail(error.into());
                }
            }
        }
        for row in 0..self.appends.len() {
            let i = self.appends[row].slot.0 as usize;
            if self.sequences[i].active.is_none() {
                self.release(i);
            }
        }
        Ok(())
    }

    /// Samples those of the `wanted` rows for which the device's candidates suffice; the others stay.
    fn use_candidates(&mut self) -> Result<(), EngineError> {
        let Engine { executor, sequences, sampler, sizes, wanted, ranked, rows, appends, .. } = self;
        let (most, mut k) = (executor.top_max(), 0);
        if most == 0 {
            return Ok(());
        }
        let slot = |row: u32| appends[rows[row as usize].view as usize].slot.0 as usize;
        ranked.clear();
        wanted.retain(|&row| {
            let needed = sequences[slot(row)].candidates_needed(sampler, sizes.vocab);
            match needed.filter(|needed| *needed <= most) {
                None => true,
                Some(needed) => {
                    k = k.max(needed);
                    ranked.push(row);
                    false
                }
            }
        });
        for group in ranked.chunks(sizes.logit_rows as usize) {
            let candidates = executor.top(group, k)?;
            for (&row, candidates) in group.iter().zip(candidates.chunks_exact(k as usize)) {
                let sequence = &mut sequences[slot(row)];
                let choice = Choice::Likeliest(candidates);
                if let Err(error) = sequence.sample(sampler, choice, sizes.sequence_cells) {
                    sequence.fail(error.into());
                }
            }
        }
        Ok(())
    }

    /// While a prompt is waiting, the overlay stays empty: what a decode step would put there, the next prefill would drop.
    fn decode_layout(&self) -> Phase {
        let prefills = self.sequences.iter().any(|s| s.next_class() == Some(RowClass::Prompt));
        if prefills { Phase::Prefill } else { Phase::Decode }
    }

    /// Opens a step for the collected appends and forms its rows. Ended requests give their cells up where that makes room;
    /// requests for which there is none end with an error. `false`: nothing is left to compute.
    fn open(&mut self, layout: Phase) -> Result<bool, EngineError> {
        loop {
            if self.appends.is_empty() {
                return Ok(false);
            }
            match self.cache.begin(&self.appends, layout, &mut self.step) {
                Ok(()) => break,
                Err(KvError::HostFull { .. }) if self.release_oldest() => {}
                Err(KvError::NotClean) if self.clean(layout)? => {}
                Err(error) => {
                    let slot = culprit(&error).unwrap_or(self.appends[0].slot);
                    let error = self.no_room(error);
                    self.fail(slot.0 as usize, error);
                    self.appends.retain(|append| append.slot != slot);
                }
            }
        }
        self.rows.clear();
        let now = Instant::now();
        for (view, append) in self.appends.iter().enumerate() {
            let sequence = &mut self.sequences[append.slot.0 as usize];
            sequence.start_clocks(now);
            let tokens = sequence.tokens[sequence.cells as usize..].iter().zip(sequence.cells..);
            let row = |(&token, position)| Row { token, position, view: view as u32 };
            self.rows.extend(tokens.take(append.cells as usize).map(row));
        }
        Ok(true)
    }

    /// Copies blocks to the host in a step of its own; `false` if there was nothing to copy.
    fn clean(&mut self, layout: Phase) -> Result<bool, EngineError> {
        self.cache.begin(&[], layout, &mut self.step)?;
        let cleans = self.step.after.iter().any(|t| matches!(t, Transfer::Clean { .. }));
        self.rows.clear();
        self.submit(layout, None)?;
        Ok(cleans)
    }

    /// Submits the open step and commits it. With `fill`, the cells of its rows are random numbers of that seed.
    fn submit(&mut self, phase: Phase, fill: Option<u64>) -> Result<(), EngineError> {
        let submission = Submission { phase, rows: &self.rows, cache: &self.step };
        let submitted = match fill {
            None => self.executor.submit(&submission),
            Some(seed) => self.executor.fill(&submission, seed),
        };
        match submitted {
            Ok(()) => self.cache.commit()?,
            // Of all memory only the tail is taken while running, after the rows were computed. They count; the blocks that found
            // no place stay where they are, and what the host has now is its limit.
            Err(DeviceError::OutOfMemory { .. }) => self.cache.commit_uncleaned()?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// The sequence that the cache could not serve.
fn culprit(error: &KvError) -> Option<SlotId> {
    match error {
        KvError::HostFull { slot, .. } | KvError::NoFrames { slot, .. } => Some(*slot),
        _ => None,
    }
}

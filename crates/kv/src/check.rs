//! The invariants, checked against the state from scratch.

use tailrace_types::BLOCK_CELLS;

use crate::KvCache;
use crate::blocks::BlockId;

/// Fails with a sentence unless the rule holds.
fn ensure(holds: bool, rule: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(rule) }
}

impl KvCache {
    /// Checks every invariant of the state between two steps, in time proportional to all tables. For tests.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&self) -> Result<(), &'static str> {
        ensure(!self.step.open, "no step is open")?;
        for slot in 0..self.sequences.len() {
            self.check_sequence(slot)?;
        }
        self.check_references()?;
        self.check_homes()?;
        let step = &self.step;
        let cleaned = step.cleaning.len() <= self.config.core_frames as usize;
        let grown = step.grown.len().max(step.shrinking.len()) <= self.config.extents_max as usize;
        ensure(cleaned && grown, "lists stay within the memory they were given")?;
        ensure(self.extents.consistent(), "extent counts agree with places")
    }

    /// The part that costs nothing, checked after every step of a debug build.
    pub(crate) fn counts_agree(&self) -> bool {
        self.blocks.available() <= self.config.core_frames
            && self.extents.live() <= self.extents.limit()
            && self.blocks.unused().len() <= self.blocks.len()
            && u64::from(self.blocks.clean_core()) <= self.extents.used()
    }

    fn check_sequence(&self, slot: usize) -> Result<(), &'static str> {
        let sequence = &self.sequences[slot];
        let table = &sequence.table;
        ensure(sequence.live || table.is_empty(), "a free slot has no blocks")?;
        if !sequence.live {
            return Ok(());
        }
        let cells = sequence.cells;
        ensure(cells <= self.config.context_cells, "cells are within the context")?;
        ensure(table.len() == cells.div_ceil(BLOCK_CELLS) as usize, "a table covers the cells")?;
        let mut rank = 0;
        for (i, &id) in table.iter().enumerate() {
            let block = self.blocks.get(id);
            let seen = (cells - i as u32 * BLOCK_CELLS).min(BLOCK_CELLS);
            ensure(block.cells >= seen, "a block holds the cells that are seen")?;
            // Tail, clean window, dirty window: never back.
            let this = match (block.frame, block.host) {
                (None, _) => 0,
                (Some(_), Some(_)) => 1,
                (Some(_), None) => 2,
            };
            ensure(this >= rank, "tail, clean window, dirty window come in this order")?;
            rank = this;
        }
        let lower = cells == 0 || cells >= sequence.cells_min(self.config.sliding.as_ref());
        ensure(lower, "the ring holds the window of the next row")
    }

    fn check_references(&self) -> Result<(), &'static str> {
        let mut refs = vec![0; self.blocks.len()];
        for (s, sequence) in self.sequences.iter().enumerate() {
            for &id in &sequence.table {
                refs[id.0 as usize] += 1;
            }
            for other in &self.sequences[..s] {
                let pairs = sequence.table.iter().zip(&other.table);
                let shared = pairs.clone().take_while(|(a, b)| a == b).count();
                ensure(pairs.skip(shared).all(|(a, b)| a != b), "what two tables share is a prefix")?;
            }
        }
        let counted = |i: usize| self.blocks.get(BlockId(i as u32)).refs;
        ensure((0..refs.len()).all(|i| counted(i) == refs[i]), "reference counts agree with tables")?;
        let unused = refs.iter().filter(|&&r| r == 0).count();
        let listed = self.blocks.unused();
        ensure(
            unused == listed.len() && listed.iter().all(|id| refs[id.0 as usize] == 0),
            "unused blocks are listed once",
        )
    }

    fn check_homes(&self) -> Result<(), &'static str> {
        let frames = (self.config.core_frames + self.config.overlay_frames) as usize;
        let mut holders = vec![0; frames];
        let mut hosts = Vec::new();
        let mut clean_core = 0;
        for id in (0..self.blocks.len()).map(|i| BlockId(i as u32)) {
            let block = self.blocks.get(id);
            if block.refs == 0 {
                ensure(block.frame.is_none() && block.host.is_none(), "an unused block has no home")?;
                continue;
            }
            ensure(block.leavers == 0, "marks of the survey are gone")?;
            ensure(block.frame.is_some() || block.host.is_some(), "a block has a home")?;
            clean_core += u32::from(self.blocks.is_clean_core(id));
            if let Some(frame) = block.frame {
                holders[frame.0 as usize] += 1;
                ensure(self.blocks.is_core(frame) || block.host.is_some(), "overlay blocks are clean")?;
            }
            if let Some(host) = block.host {
                ensure(block.cells == BLOCK_CELLS, "only full blocks are clean")?;
                ensure(self.extents.is_used(host), "a host copy has its place")?;
                hosts.push(host);
            }
        }
        for frame in self.blocks.core_free().iter().chain(self.blocks.overlay_free()) {
            holders[frame.0 as usize] += 1;
        }
        ensure(holders.iter().all(|&h| h == 1), "a frame is free or holds one block")?;
        ensure(clean_core == self.blocks.clean_core(), "clean core blocks are counted")?;
        let places = hosts.len();
        hosts.sort_unstable();
        hosts.dedup();
        ensure(hosts.len() == places && places as u64 == self.extents.used(), "a place holds one block")
    }
}

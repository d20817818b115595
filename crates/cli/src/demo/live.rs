//! How far a document is, while it is read.

use std::io::IsTerminal;
use std::time::Instant;

use anyhow::Result;
use tailrace_engine::{Handle, Snapshot};
use tailrace_types::Bytes;

use crate::stderr;

/// Window, tail and speed on one line, in place on a terminal; elsewhere a line for each quarter.
pub(super) struct Live {
    total: usize,
    started: Instant,
    terminal: bool,
    /// Steps of the line that were shown.
    shown: usize,
}

impl Live {
    /// For a document of `total` tokens.
    pub(super) fn new(total: usize) -> Self {
        Live { total, started: Instant::now(), terminal: std::io::stderr().is_terminal(), shown: 0 }
    }

    /// Says that `done` tokens were read.
    pub(super) fn show(&mut self, done: usize, handle: &Handle) -> Result<()> {
        let steps = if self.terminal { 100 } else { 4 };
        let step = done * steps / self.total.max(1);
        if step == self.shown {
            return Ok(());
        }
        self.shown = step;
        let line = self.line(done, &handle.snapshot()?);
        if self.terminal && done < self.total {
            stderr::print(format_args!("\r{line}\x1b[K"));
        } else if self.terminal {
            stderr::print(format_args!("\r{line}\x1b[K\n"));
        } else {
            stderr::line(line);
        }
        Ok(())
    }

    fn line(&self, done: usize, snapshot: &Snapshot) -> String {
        format!(
            "reading {:>3} % · on the device {} cells, {} · in the tail {} cells, {} · {:.0} tokens/s",
            100 * done / self.total.max(1),
            snapshot.window_cells(),
            Bytes(snapshot.window_cells() * snapshot.cell_bytes),
            snapshot.tail_cells(),
            Bytes(snapshot.tail_bytes()),
            done as f64 / self.started.elapsed().as_secs_f64().max(1e-9),
        )
    }
}

impl Drop for Live {
    /// Whatever comes next, an error say, begins on a line of its own.
    fn drop(&mut self) {
        if self.terminal && (1..100).contains(&self.shown) {
            stderr::print("\n");
        }
    }
}

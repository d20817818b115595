//! Ctrl-C, and what else asks a program to end: it stops what is being generated, or the program where nothing is.

use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

/// Exit status of a program that was interrupted.
pub(crate) const STATUS: u8 = 130;

/// Nothing is being generated.
const IDLE: u8 = 0;
/// Something is.
const BUSY: u8 = 1;
/// It was asked to stop.
const ASKED: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(IDLE);

/// From now on an interrupt during a [`Watch`] raises a flag. At any other time, or if the flag is up already, it ends the program.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| {
        if STATE.compare_exchange(BUSY, ASKED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            std::process::exit(STATUS.into());
        }
    })
    .context("cannot watch for Ctrl-C")
}

/// A time during which interrupts raise a flag.
pub(crate) struct Watch(());

impl Watch {
    pub(crate) fn start() -> Self {
        STATE.store(BUSY, Ordering::Relaxed);
        Watch(())
    }

    /// Whether there was an interrupt since the start.
    pub(crate) fn interrupted(&self) -> bool {
        STATE.load(Ordering::Relaxed) == ASKED
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        STATE.store(IDLE, Ordering::Relaxed);
    }
}

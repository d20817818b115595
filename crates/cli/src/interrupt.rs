//! Ctrl-C: a flag that whoever generates looks at.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C raises the flag instead of ending the program.
pub(crate) fn install() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed)).context("cannot watch for Ctrl-C")
}

/// Whether Ctrl-C was pressed since the last call.
pub(crate) fn take() -> bool {
    INTERRUPTED.swap(false, Ordering::Relaxed)
}

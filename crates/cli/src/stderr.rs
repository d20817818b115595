//! Lines on standard error. A reader that has left is no reason to stop: what cannot be written is dropped.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints `text` as it is.
pub(crate) fn print(text: impl Display) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "{text}").and_then(|()| stderr.flush());
}

/// Prints a line.
pub(crate) fn line(text: impl Display) {
    print(format_args!("{text}\n"));
}

/// Prints a line that says who speaks.
pub(crate) fn note(text: impl Display) {
    line(format_args!("tailrace: {text}"));
}

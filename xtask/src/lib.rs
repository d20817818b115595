//! Tasks of the workspace, one module for each command; tests use them as functions.

pub mod bench;
pub mod drive;
pub mod exact;
pub mod model;
pub mod perplexity;
pub mod reference;
pub mod tidy;
pub mod toolchain;

use std::path::Path;

/// The folder of the workspace's manifest.
pub fn workspace() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

//! Paths in messages.

use std::path::Path;

use tailrace_gguf::escape;

/// A path as it can be printed.
pub(crate) fn shown(path: &Path) -> String {
    escape(path.as_os_str().as_encoded_bytes())
}

/// The name of a file without folder and extension, as it can be printed.
pub(crate) fn stem(path: &Path) -> String {
    escape(path.file_stem().unwrap_or(path.as_os_str()).as_encoded_bytes())
}

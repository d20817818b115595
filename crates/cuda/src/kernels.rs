//! The kernels as the build compiled them.

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// Whether a card may lack the kernels of a file: those for one architecture alone, which others do without.
pub(crate) fn optional(file: &str) -> bool {
    OPTIONAL.contains(&file)
}

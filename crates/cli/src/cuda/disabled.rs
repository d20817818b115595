//! The feature is off.

use super::{Gpu, NoGpu};

/// There is no card.
pub(crate) fn open(_ordinal: u32) -> Result<Gpu, NoGpu> {
    Err(NoGpu { reason: "this build has no support for GPUs (feature cuda)".to_owned(), present: false })
}

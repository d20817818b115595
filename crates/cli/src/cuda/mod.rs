//! NVIDIA GPUs, where this program was built with them.

use tailrace_device::Loader;

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;

#[cfg(not(feature = "cuda"))]
pub(crate) use disabled::open;
#[cfg(feature = "cuda")]
pub(crate) use enabled::open;

/// A card that is open.
pub(crate) struct Gpu {
    pub(crate) loader: Box<dyn Loader>,
    /// Device memory that could be had now, in bytes.
    pub(crate) free_bytes: u64,
}

/// Why there is no card.
pub(crate) struct NoGpu {
    pub(crate) reason: String,
    /// Whether there is one, which refuses.
    pub(crate) present: bool,
}

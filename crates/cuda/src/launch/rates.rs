//! Launches of `kernels/rates.cu`.

use super::Launch;
use crate::params::CopyParams;

/// Reads `params.bytes` bytes at `params.source`.
pub fn read_bytes(params: &CopyParams, multiprocessors: u32) -> Launch {
    Launch::new("read_bytes", [multiprocessors * 4, 1, 1], 512, params)
}

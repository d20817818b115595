//! Launches of `kernels/top.cu`.

use super::Launch;
use crate::params::TopParams;

/// Most candidates of a row.
pub const TOP_MAX: u32 = 128;
/// Groups that the vocabulary is cut into, and threads of the block that chooses among them.
const GROUPS: u32 = 1024;
const THREADS: u32 = 256;

/// Bytes of `TopParams::scratch` for `rows` rows: three words for each group.
pub fn top_scratch_bytes(rows: u32) -> u64 {
    u64::from(rows) * u64::from(GROUPS) * 12
}

/// The `params.k` largest logits of `params.rows` rows: two launches, in this order. `k` is at most [`TOP_MAX`] and at most
/// the vocabulary.
pub fn top(params: &TopParams) -> [Launch; 2] {
    debug_assert!(params.k >= 1 && params.k <= TOP_MAX.min(params.vocab));
    let warps = THREADS / 32;
    [
        Launch::new("group_maxima", [GROUPS / warps, params.rows, 1], THREADS, params),
        Launch::new("top_select", [params.rows, 1, 1], GROUPS, params),
    ]
}

//! Launches of `kernels/elementwise.cu`, `kernels/rope_store.cu` and `kernels/cells.cu`.
//!
//! `rows` is the number of rows that a launch can serve; how many there are stands in the step's header.

use super::Launch;
use crate::params::{
    AddNormParams, CopyParams, FillParams, GateParams, GatherParams, NormParams, Params, RopeStoreParams,
    RopeTableParams, SetParams, SoftCapParams,
};

const WARP: u32 = 32;
const THREADS: u32 = 256;
const THREADS_MAX: u32 = 1024;
/// Values of a thread's vector access.
const QUAD: u32 = 4;
/// Largest grid in y.
const GRID_Y_MAX: u32 = 65_535;
/// Thread blocks that fill the card with loads and stores.
const FILLING_BLOCKS: u32 = 2_048;

/// Rows from which memory counts, not latency: a thread of a norm takes two shares, and thread blocks are larger.
const MANY_ROWS: u32 = 64;

/// Shares that the quads of a row of `cols` values are dealt to for the sum of its squares. A row's bits depend on it, so it
/// must not depend on anything else.
fn norm_shares(cols: u32) -> u32 {
    let quads = cols.div_ceil(QUAD);
    let shares = if quads <= 512 { quads } else { quads.div_ceil(2) };
    shares.next_multiple_of(2 * WARP).min(THREADS_MAX)
}

/// A norm of `rows` rows. Its kernels have the same result: for few rows, for many, and for rows that are no whole quads.
fn norm<P: Params>(kernels: [&'static str; 3], params: &P, cols: u32, rows: u32) -> Launch {
    let [few, many, odd] = kernels;
    let shares = norm_shares(cols);
    let (kernel, threads) = match (cols % QUAD, rows) {
        (0, ..MANY_ROWS) => (few, shares),
        (0, _) => (many, shares / 2),
        _ => (odd, shares),
    };
    Launch::new(kernel, [rows, 1, 1], threads, params)
}

/// A launch whose blocks of `threads` threads cover the quads of `rows` rows.
fn quads<P: Params>(kernel: &'static str, params: &P, cols: u32, rows: u32, threads: u32) -> Launch {
    Launch::new(kernel, [cols.div_ceil(QUAD * threads), rows, 1], threads, params)
}

/// `dst = norm(src)`.
pub fn rms_norm(params: &NormParams, rows: u32) -> Launch {
    norm(["rms_norm", "rms_norm_many", "rms_norm_odd"], params, params.cols, rows)
}

/// `dst += norm(src)`.
pub fn add_norm(params: &AddNormParams, rows: u32) -> Launch {
    norm(["add_norm", "add_norm_many", "add_norm_odd"], params, params.cols, rows)
}

/// `dst = act(gate) * up`.
pub fn gate(params: &GateParams, rows: u32) -> Launch {
    quads("gate", params, params.cols, rows, if rows < MANY_ROWS { 64 } else { THREADS })
}

/// `x = cap * tanh(x / cap)`; `rows` as in the params where they give a number.
pub fn soft_cap(params: &SoftCapParams, rows: u32) -> Launch {
    quads("soft_cap", params, params.cols, rows, THREADS)
}

/// Cosines and sines of the rows' positions.
pub fn rope_table(params: &RopeTableParams, rows: u32) -> Launch {
    Launch::new("rope_table", [rows, 1, 1], params.pairs.next_multiple_of(WARP).clamp(WARP, THREADS), params)
}

/// Norms and rope of q and k; k and v go into the cache.
pub fn rope_store(params: &RopeStoreParams, rows: u32) -> Launch {
    let whole = params.dv == params.dk && 2 * params.pairs == params.dk;
    let (kernel, lanes) = match params.dk {
        64 if whole => ("rope_store_64", 8),
        128 if whole => ("rope_store_128", 16),
        256 if whole => ("rope_store_256", 32),
        _ => ("rope_store", WARP),
    };
    let heads = params.heads + 2 * params.kv_heads;
    Launch::new(kernel, [rows, heads.div_ceil(THREADS / lanes), 1], THREADS, params)
}

/// Copies `params.count` rows.
pub fn gather_rows(params: &GatherParams) -> Launch {
    quads("gather_rows", params, params.cols, params.count, THREADS)
}

/// Random cells for the step's rows.
pub fn fill_cells(params: &FillParams, rows: u32) -> Launch {
    Launch::new("fill_cells", [rows, params.kv_heads, 1], 128, params)
}

/// Blocks for `count` pieces of `bytes` bytes.
fn pieces_grid(bytes: u64, count: u32) -> [u32; 3] {
    let pieces = count.clamp(1, GRID_Y_MAX);
    let each = (FILLING_BLOCKS / pieces).max(1);
    [bytes.div_ceil(u64::from(16 * THREADS)).clamp(1, u64::from(each)) as u32, pieces, 1]
}

/// Sets bytes.
pub fn set_bytes(params: &SetParams) -> Launch {
    Launch::new("set_bytes", pieces_grid(params.bytes, params.count), THREADS, params)
}

/// Copies bytes.
pub fn copy_bytes(params: &CopyParams) -> Launch {
    Launch::new("copy_bytes", pieces_grid(params.bytes, params.count), THREADS, params)
}

//! Launches of attention: decode partials and their fold, prefill, and the plain kernel for everything else.
//!
//! A capability is the architecture's number as in `sm_90`. The figures here must agree with the kernels' files.

use super::Launch;
use crate::params::AttentionParams;

/// `KvKind` of `params.cuh`.
const KV_F16: u32 = 0;
const KV_BF16: u32 = 1;

const BLOCK_CELLS: u32 = 256;
/// Query heads that a thread block of decode takes at most.
const DECODE_HEADS_MAX: u32 = 8;
const DECODE_WARPS: u32 = 4;
/// Cells of a piece of K or V in a decode warp's ring.
const PIECE_CELLS: u32 = 16;
/// Floats between the rows of decode's merge buffers.
const MERGE_PAD: u32 = 8;
const MERGE_BUFFERS: u32 = 2;
/// Groups that a warp of the fold takes at a time, and its warps.
const FOLD_CHUNK_GROUPS: u32 = 16;
const FOLD_WARPS_MAX: u32 = 16;
/// Cells of a tile of prefill.
const TILE_CELLS: u32 = 64;
const PREFILL_WARPS: u32 = 4;
/// Share of the bytes of K and V that partials may take, as a divisor: 2.5 %.
const PARTIALS_DIVISOR: u64 = 40;

/// Floats of a record: m, l and the sums.
pub const fn record_floats(dv: u32) -> u32 {
    2 + dv
}

/// Whether the tensor-core kernels serve this shape; else `plain` does.
pub fn supported(
    heads: u32,
    kv_heads: u32,
    (dk, dv): (u32, u32),
    (k_type, v_type): (u32, u32),
    capability: u32,
) -> bool {
    let dims = dk == dv && matches!(dk, 64 | 96 | 128 | 256);
    let types = k_type == v_type && (k_type == KV_F16 || k_type == KV_BF16 && capability >= 80);
    // Of 256 values a tile does not fit the shared memory of older cards.
    dims && types && heads.is_multiple_of(kv_heads) && (capability >= 80 || dk <= 128)
}

/// Leaves that share a record, so that partials stay a small part of the bytes of K and V (`cell_bytes` of each KV head).
pub fn group_leaves(heads: u32, kv_heads: u32, dv: u32, cell_bytes: u32) -> u32 {
    let record_bytes = u64::from(heads) * u64::from(record_floats(dv)) * 4;
    let leaf_bytes = u64::from(kv_heads) * u64::from(cell_bytes) * u64::from(BLOCK_CELLS);
    let mut leaves = 1;
    while leaves < 16 && record_bytes * PARTIALS_DIVISOR > leaf_bytes * leaves {
        leaves *= 2;
    }
    leaves as u32
}

/// Attention of decode rows: the partials of the leaves that `params` names, and the fold of all records. `max_groups` is
/// the largest number of leaf groups of a row, `rows` the most rows of a step.
pub fn decode(params: &AttentionParams, max_groups: u32, rows: u32, sms: u32, capability: u32) -> [Launch; 2] {
    let heads = DecodeHeads::of(params, capability);
    let columns = params.kv_heads * heads.splits;
    // Thread blocks that a multiprocessor holds.
    let resident = sms
        * if params.dk <= 64 {
            4
        } else if params.dk <= 96 {
            3
        } else {
            2
        };
    let stride = (resident / (columns * rows)).clamp(1, max_groups.max(1));
    let shared = decode_shared(params.dk.max(params.dv), params.dv, heads.share, capability);
    let partials =
        Launch::new(decode_kernel(params), [columns, stride, rows], DECODE_WARPS * 32, params).shared(shared);
    [partials, fold(params, max_groups, rows)]
}

/// The fold of decode's records into finished rows.
fn fold(params: &AttentionParams, max_groups: u32, rows: u32) -> Launch {
    let warps = max_groups.div_ceil(FOLD_CHUNK_GROUPS).clamp(1, FOLD_WARPS_MAX);
    Launch::new("attention_fold", [params.dv / 32, params.heads, rows], warps * 32, params)
}

/// How the query heads of a KV head are shared out.
struct DecodeHeads {
    splits: u32,
    share: u32,
}

impl DecodeHeads {
    fn of(params: &AttentionParams, capability: u32) -> Self {
        let group = params.heads / params.kv_heads;
        let mut splits = group.div_ceil(DECODE_HEADS_MAX);
        let fits = |splits: u32| {
            let shared = decode_shared(params.dk.max(params.dv), params.dv, group.div_ceil(splits), capability);
            // The queries' fragments lie beside it.
            shared + params.dk * 32 + 256 <= shared_max(capability)
        };
        while splits < group && !fits(splits) {
            splits += 1;
        }
        DecodeHeads { splits, share: group.div_ceil(splits) }
    }
}

/// Shared memory that one thread block can have.
fn shared_max(capability: u32) -> u32 {
    match capability {
        75 => 64 << 10,
        80 | 87 => 163 << 10,
        90..120 => 227 << 10,
        _ => 99 << 10,
    }
}

fn decode_shared(dim: u32, dv: u32, heads: u32, capability: u32) -> u32 {
    let ring = match capability {
        80 | 90..120 => 12 << 10,
        _ => 8 << 10,
    };
    let slot = PIECE_CELLS * 2 * dim;
    let stages = (ring / slot).clamp(2, 8);
    let merge = MERGE_BUFFERS * heads * (dv + MERGE_PAD) * 4;
    DECODE_WARPS * (stages * slot + merge) + heads * record_floats(dv) * 4
}

fn decode_kernel(params: &AttentionParams) -> &'static str {
    match (params.k_type, params.dk) {
        (KV_F16, 64) => "attention_decode_f16_64",
        (KV_F16, 96) => "attention_decode_f16_96",
        (KV_F16, 128) => "attention_decode_f16_128",
        (KV_F16, 256) => "attention_decode_f16_256",
        (KV_BF16, 64) => "attention_decode_bf16_64",
        (KV_BF16, 96) => "attention_decode_bf16_96",
        (KV_BF16, 128) => "attention_decode_bf16_128",
        (KV_BF16, 256) => "attention_decode_bf16_256",
        shape => unreachable!("no decode kernel for (KV type, head size) {shape:?}"),
    }
}

/// Attention of at most `rows` prefill rows of one sequence over the leaves that `params` names.
pub fn prefill(params: &AttentionParams, rows: u32, capability: u32) -> Launch {
    match hopper_kernel(params) {
        Some(kernel) if capability == 90 => prefill_hopper(kernel, params, rows),
        _ => prefill_any(params, rows),
    }
}

/// With the matrix instructions of warp groups: `kernels/attention_hopper.cu`.
fn prefill_hopper(kernel: &'static str, params: &AttentionParams, rows: u32) -> Launch {
    const ROWS: u32 = 128;
    const THREADS: u32 = 384;
    let (tile, stages) = match params.dk {
        64 => (128, 3),
        128 => (128, 2),
        _ => (64, 2),
    };
    let barriers = 4 * stages * 8;
    let shared = 2 * params.dk * (ROWS + 2 * stages * tile) + barriers;
    Launch::new(kernel, [rows.div_ceil(ROWS), params.heads, 1], THREADS, params).shared(shared)
}

fn hopper_kernel(params: &AttentionParams) -> Option<&'static str> {
    match (params.k_type, params.dk) {
        (KV_F16, 64) => Some("attention_prefill_f16_64_hopper"),
        (KV_F16, 128) => Some("attention_prefill_f16_128_hopper"),
        (KV_F16, 256) => Some("attention_prefill_f16_256_hopper"),
        (KV_BF16, 64) => Some("attention_prefill_bf16_64_hopper"),
        (KV_BF16, 128) => Some("attention_prefill_bf16_128_hopper"),
        (KV_BF16, 256) => Some("attention_prefill_bf16_256_hopper"),
        _ => None,
    }
}

fn prefill_any(params: &AttentionParams, rows: u32) -> Launch {
    // Tiles of 16 rows of a warp.
    let tiles = if params.dk > 128 { 1 } else { 2 };
    let block_rows = PREFILL_WARPS * tiles * 16;
    let shared = 2 * (block_rows * params.dk + TILE_CELLS * (params.dk + params.dv));
    let grid = [rows.div_ceil(block_rows), params.heads, 1];
    Launch::new(prefill_kernel(params), grid, PREFILL_WARPS * 32, params).shared(shared)
}

fn prefill_kernel(params: &AttentionParams) -> &'static str {
    match (params.k_type, params.dk) {
        (KV_F16, 64) => "attention_prefill_f16_64",
        (KV_F16, 96) => "attention_prefill_f16_96",
        (KV_F16, 128) => "attention_prefill_f16_128",
        (KV_F16, 256) => "attention_prefill_f16_256",
        (KV_BF16, 64) => "attention_prefill_bf16_64",
        (KV_BF16, 96) => "attention_prefill_bf16_96",
        (KV_BF16, 128) => "attention_prefill_bf16_128",
        (KV_BF16, 256) => "attention_prefill_bf16_256",
        shape => unreachable!("no prefill kernel for (KV type, head size) {shape:?}"),
    }
}

/// Attention of `rows` rows of either class, for shapes and types without a kernel of their own.
pub fn plain(params: &AttentionParams, rows: u32) -> Launch {
    // Heads whose columns make whole blocks of 32.
    let bundle = 32 >> params.dv.trailing_zeros().min(5);
    Launch::new("attention_plain", [params.heads.div_ceil(bundle), rows, 1], BLOCK_CELLS, params)
}

//! Launches of the kernels that read or write stored weights: `kernels/{repack,dequant,embed,synthetic}.cu`.

use tailrace_types::WeightType;

use super::Launch;
use crate::layout::planes;
use crate::params::{DequantParams, EmbedParams, RepackParams, SyntheticParams};

/// Values of a row that one thread decodes.
const SUB_BLOCK: u64 = 32;

/// Blocks of `threads` threads for `work` threads. The grid's first dimension has 31 bits, more than any matrix needs.
fn blocks(work: u64, threads: u32) -> u32 {
    work.div_ceil(u64::from(threads)).max(1) as u32
}

/// File bytes of rows `first .. first + count` of a matrix to its planes. The source's address is even.
pub fn repack(ty: WeightType, params: &RepackParams) -> Launch {
    const THREADS: u32 = 256;
    let planes = planes(ty, 1, u64::from(ty.block().elements));
    // A thread writes a word of a plane, or the whole field where it is shorter.
    let words = planes.iter().map(|p| if p.block_bytes % 4 == 0 { p.block_bytes / 4 } else { 1 }).max().unwrap_or(0);
    let work = u64::from(params.count) * u64::from(params.blocks) * u64::from(words);
    Launch::new("repack", [blocks(work, THREADS), planes.len() as u32, 1], THREADS, params)
}

/// How `dequant` writes rows of bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLayout {
    /// `[count][k]`.
    Dense,
    /// The tiles of `kernels/tiles.cuh`: whole tiles of [`TILE_ROWS`] rows and [`TILE_COLS`] columns.
    Tiles,
}

/// Rows of a tile of weights.
pub const TILE_ROWS: u32 = 256;
/// Columns of a tile of weights.
pub const TILE_COLS: u32 = 64;

/// Rows `first .. first + count` of a matrix to bf16.
pub fn dequant(ty: WeightType, layout: RowLayout, params: &DequantParams) -> Launch {
    const THREADS: u32 = 256;
    let (dense, tiles) = dequant_kernels(ty);
    let kernel = if layout == RowLayout::Dense { dense } else { tiles };
    let work = u64::from(params.count) * (u64::from(params.k) / SUB_BLOCK);
    Launch::new(kernel, [blocks(work, THREADS), 1, 1], THREADS, params)
}

fn dequant_kernels(ty: WeightType) -> (&'static str, &'static str) {
    macro_rules! named {
        ($name:literal) => {
            (concat!("dequant_", $name), concat!("dequant_tiles_", $name))
        };
    }
    match ty {
        WeightType::F32 => named!("f32"),
        WeightType::F16 => named!("f16"),
        WeightType::BF16 => named!("bf16"),
        WeightType::Q4_0 => named!("q4_0"),
        WeightType::Q4_1 => named!("q4_1"),
        WeightType::Q5_0 => named!("q5_0"),
        WeightType::Q5_1 => named!("q5_1"),
        WeightType::Q8_0 => named!("q8_0"),
        WeightType::Q2_K => named!("q2_k"),
        WeightType::Q3_K => named!("q3_k"),
        WeightType::Q4_K => named!("q4_k"),
        WeightType::Q5_K => named!("q5_k"),
        WeightType::Q6_K => named!("q6_k"),
        WeightType::IQ4_NL => named!("iq4_nl"),
        WeightType::IQ4_XS => named!("iq4_xs"),
        WeightType::MXFP4 => named!("mxfp4"),
    }
}

/// Embedding rows of a step of at most `rows` rows.
pub fn embed(params: &EmbedParams, rows: u32) -> Launch {
    const THREADS: u32 = 128;
    Launch::new("embed", [rows.max(1), 1, 1], THREADS, params)
}

/// Random weights for a whole matrix.
pub fn synthetic(params: &SyntheticParams) -> Launch {
    const THREADS: u32 = 128;
    Launch::new("synthetic", [blocks(params.blocks, THREADS), 1, 1], THREADS, params)
}

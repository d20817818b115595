//! Launches of `kernels/matvec_rows*.cu`: weights x few rows of activations.

use tailrace_types::WeightType;

use super::Launch;
use crate::params::MatVecParams;

/// Rows that one launch computes from one pass over the weights.
pub const ROWS_MAX: u32 = 8;

const WARP: u32 = 32;
/// Warps of a block: few, so that the card's scheduler has many blocks to even out.
const WARPS: u32 = 4;
/// Output rows of a warp for 1, 2, 4 and 8 rows: `MATVEC_ROWS_KERNELS` of `kernels/matvec_rows_kernels.cuh`.
const OUTPUT_ROWS: [u32; 4] = [1, 2, 2, 2];

/// What a type's kernels are called for 1, 2, 4 and 8 rows.
fn kernels(ty: WeightType) -> [&'static str; 4] {
    macro_rules! named {
        ($name:literal) => {
            [
                concat!("matvec_rows_", $name, "_r1"),
                concat!("matvec_rows_", $name, "_r2"),
                concat!("matvec_rows_", $name, "_r4"),
                concat!("matvec_rows_", $name, "_r8"),
            ]
        };
    }
    match ty {
        WeightType::Q8_0 => named!("q8_0"),
        WeightType::Q4_0 => named!("q4_0"),
        WeightType::Q4_1 => named!("q4_1"),
        WeightType::Q5_0 => named!("q5_0"),
        WeightType::Q5_1 => named!("q5_1"),
        WeightType::IQ4_NL => named!("iq4_nl"),
        WeightType::MXFP4 => named!("mxfp4"),
        WeightType::Q2_K => named!("q2_k"),
        WeightType::Q3_K => named!("q3_k"),
        WeightType::Q4_K => named!("q4_k"),
        WeightType::Q5_K => named!("q5_k"),
        WeightType::Q6_K => named!("q6_k"),
        WeightType::IQ4_XS => named!("iq4_xs"),
        WeightType::F16 => named!("f16"),
        WeightType::BF16 => named!("bf16"),
        WeightType::F32 => named!("f32"),
    }
}

/// `y (+)= W x + bias` for at most `rows` rows.
pub fn matvec(ty: WeightType, params: &MatVecParams, rows: u32) -> Launch {
    let log = rows.clamp(1, ROWS_MAX).next_power_of_two().ilog2();
    let outputs: u32 = params.matrix[..params.matrices as usize].iter().map(|matrix| matrix.rows).sum();
    let grid = [outputs.div_ceil(OUTPUT_ROWS[log as usize] * WARPS), rows.div_ceil(1 << log), 1];
    Launch::new(kernels(ty)[log as usize], grid, WARPS * WARP, params)
}

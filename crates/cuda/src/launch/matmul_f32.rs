//! Launches of `kernels/matmul_f32.cu`: products in plain f32, for rows of either class.

use tailrace_types::WeightType;

use super::Launch;
use crate::params::MatVecParams;

/// Output rows, and rows of activations, of a thread block.
const WARPS: u32 = 8;
const ROWS: u32 = 8;

/// `y (+)= W x + bias` for at most `rows` rows.
pub fn matmul_f32(ty: WeightType, params: &MatVecParams, rows: u32) -> Launch {
    let outputs: u32 = params.matrix[..params.matrices as usize].iter().map(|m| m.rows).sum();
    Launch::new(kernel(ty), [outputs.div_ceil(WARPS), rows.div_ceil(ROWS), 1], WARPS * 32, params)
}

fn kernel(ty: WeightType) -> &'static str {
    match ty {
        WeightType::F32 => "matmul_f32_f32",
        WeightType::F16 => "matmul_f32_f16",
        WeightType::BF16 => "matmul_f32_bf16",
        WeightType::Q4_0 => "matmul_f32_q4_0",
        WeightType::Q4_1 => "matmul_f32_q4_1",
        WeightType::Q5_0 => "matmul_f32_q5_0",
        WeightType::Q5_1 => "matmul_f32_q5_1",
        WeightType::Q8_0 => "matmul_f32_q8_0",
        WeightType::Q2_K => "matmul_f32_q2_k",
        WeightType::Q3_K => "matmul_f32_q3_k",
        WeightType::Q4_K => "matmul_f32_q4_k",
        WeightType::Q5_K => "matmul_f32_q5_k",
        WeightType::Q6_K => "matmul_f32_q6_k",
        WeightType::IQ4_NL => "matmul_f32_iq4_nl",
        WeightType::IQ4_XS => "matmul_f32_iq4_xs",
        WeightType::MXFP4 => "matmul_f32_mxfp4",
    }
}

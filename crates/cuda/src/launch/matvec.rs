//! Launches of `kernels/matvec_*.cu`, weights x few rows of activations, and of `kernels/matmul_f32.cu`.

use tailrace_types::WeightType;

use super::Launch;
use crate::params::MatVecParams;

/// Rows that one launch computes from one pass over the weights.
pub const ROWS_MAX: u32 = 8;

const WARP: u32 = 32;
/// Warps of a block. There is one block for each multiprocessor.
const WARPS: u32 = 8;
/// Shared memory that the rings of a block may take: two products, one that ends and one that waits with full rings, and
/// the small kernels between them are on a multiprocessor together.
const RINGS_MAX: u32 = 80 << 10;
/// Of a stage's barrier.
const BARRIER_BYTES: u32 = 8;
const STAGES_MIN: u32 = 2;
const STAGES_MAX: u32 = 16;

/// What a type's kernels are called for 1, 2, 4 and 8 rows, and the bytes of a stage (`STAGE` blocks in
/// `kernels/matvec_types.cuh`).
fn kernels(ty: WeightType) -> ([&'static str; 4], u32) {
    macro_rules! named {
        ($name:literal, $stage:expr) => {
            (
                [
                    concat!("matvec_", $name, "_r1"),
                    concat!("matvec_", $name, "_r2"),
                    concat!("matvec_", $name, "_r4"),
                    concat!("matvec_", $name, "_r8"),
                ],
                $stage,
            )
        };
    }
    match ty {
        WeightType::Q8_0 => named!("q8_0", 64 * 34),
        WeightType::Q4_0 => named!("q4_0", 128 * 18),
        WeightType::Q4_1 => named!("q4_1", 128 * 20),
        WeightType::Q5_0 => named!("q5_0", 128 * 22),
        WeightType::Q5_1 => named!("q5_1", 128 * 24),
        WeightType::IQ4_NL => named!("iq4_nl", 128 * 18),
        WeightType::MXFP4 => named!("mxfp4", 128 * 17),
        WeightType::Q2_K => named!("q2_k", 16 * 84),
        WeightType::Q3_K => named!("q3_k", 16 * 110),
        WeightType::Q4_K => named!("q4_k", 16 * 144),
        WeightType::Q5_K => named!("q5_k", 16 * 176),
        WeightType::Q6_K => named!("q6_k", 16 * 210),
        WeightType::IQ4_XS => named!("iq4_xs", 16 * 136),
        WeightType::F16 => named!("f16", 4096),
        WeightType::BF16 => named!("bf16", 4096),
        WeightType::F32 => named!("f32", 4096),
    }
}

/// `y (+)= W x + bias` for at most `rows` rows, on a card with `multiprocessors` multiprocessors whose blocks may have
/// `shared_max` bytes of shared memory. `params.stages` is chosen here.
///
/// None where not even one row of `x` fits beside the smallest rings.
pub fn matvec(ty: WeightType, params: &MatVecParams, rows: u32, multiprocessors: u32, shared_max: u32) -> Option<Launch> {
    let (names, stage_bytes) = kernels(ty);
    let row_bytes = u32::try_from(params.x_row_bytes).ok()?;
    let stage = WARPS * (stage_bytes + BARRIER_BYTES);
    let fits = |rows: u32| rows.checked_mul(row_bytes)?.checked_add(STAGES_MIN * stage).filter(|bytes| *bytes <= shared_max);
    let bucket = rows.clamp(1, ROWS_MAX).next_power_of_two();
    let variant = (0..=bucket.ilog2()).rev().find(|log| fits(1 << log).is_some())?;
    let at_once = 1 << variant;

    let room = (shared_max - at_once * row_bytes).min(RINGS_MAX);
    let stages = (1 << (room / stage).ilog2()).min(STAGES_MAX);
    let params = MatVecParams { stages, ..*params };
    let grid = [multiprocessors, rows.div_ceil(at_once), 1];
    Some(Launch::new(names[variant as usize], grid, WARPS * WARP, &params).shared(stages * stage + at_once * row_bytes))
}

/// Output rows and rows of activations of a block of `kernels/matmul_f32.cu`.
const PLAIN_COLS: u32 = 8;
const PLAIN_ROWS: u32 = 8;

/// `y (+)= W x + bias` in plain f32 for at most `rows` rows: x is f32, whatever the type of the weights.
pub fn matmul_f32(ty: WeightType, params: &MatVecParams, rows: u32) -> Launch {
    let kernel = match ty {
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
    };
    let outputs: u32 = params.matrix[..params.matrices as usize].iter().map(|matrix| matrix.rows).sum();
    Launch::new(kernel, [outputs.div_ceil(PLAIN_COLS), rows.div_ceil(PLAIN_ROWS), 1], PLAIN_COLS * WARP, params)
}

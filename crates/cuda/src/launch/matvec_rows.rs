//! Launches of `kernels/matvec_rows*.cu`: weights x few rows of activations.

use tailrace_types::WeightType;

use super::Launch;
use crate::params::MatVecParams;

/// Rows that one launch computes from one pass over the weights.
pub const ROWS_MAX: u32 = 8;

const WARP: u32 = 32;
/// Warps of a block: few, so that the card's scheduler has many blocks to even out.
const WARPS: u32 = 4;

/// A type's kernels for 1, 2, 4 and 8 rows, and the output rows of a warp of each: `kernels/matvec_rows.cu`.
fn kernels(ty: WeightType) -> [(&'static str, u32); 4] {
    macro_rules! kernels {
        ($name:literal, [$one:literal, $two:literal, $four:literal, $eight:literal]) => {
            [
                (concat!("matvec_rows_", $name, "_r1"), $one),
                (concat!("matvec_rows_", $name, "_r2"), $two),
                (concat!("matvec_rows_", $name, "_r4"), $four),
                (concat!("matvec_rows_", $name, "_r8"), $eight),
            ]
        };
    }
    match ty {
        WeightType::Q8_0 => kernels!("q8_0", [1, 2, 4, 4]),
        WeightType::Q4_0 => kernels!("q4_0", [1, 2, 2, 4]),
        WeightType::Q4_1 => kernels!("q4_1", [1, 2, 2, 4]),
        WeightType::Q5_0 => kernels!("q5_0", [1, 2, 2, 2]),
        WeightType::Q5_1 => kernels!("q5_1", [1, 2, 2, 2]),
        WeightType::IQ4_NL => kernels!("iq4_nl", [1, 2, 2, 2]),
        WeightType::MXFP4 => kernels!("mxfp4", [1, 2, 2, 2]),
        WeightType::Q2_K => kernels!("q2_k", [2, 4, 4, 4]),
        WeightType::Q3_K => kernels!("q3_k", [4, 2, 4, 4]),
        WeightType::Q4_K => kernels!("q4_k", [1, 2, 2, 4]),
        WeightType::Q5_K => kernels!("q5_k", [1, 2, 2, 4]),
        WeightType::Q6_K => kernels!("q6_k", [1, 2, 2, 4]),
        WeightType::IQ4_XS => kernels!("iq4_xs", [1, 2, 2, 2]),
        WeightType::F16 => kernels!("f16", [1, 2, 4, 8]),
        WeightType::BF16 => kernels!("bf16", [1, 2, 4, 8]),
        WeightType::F32 => kernels!("f32", [1, 2, 4, 2]),
    }
}

/// `y (+)= W x + bias` for at most `rows` rows.
pub fn matvec(ty: WeightType, params: &MatVecParams, rows: u32) -> Launch {
    let log = rows.clamp(1, ROWS_MAX).next_power_of_two().ilog2();
    let outputs: u32 = params.matrix[..params.matrices as usize].iter().map(|matrix| matrix.rows).sum();
    let (kernel, output_rows) = kernels(ty)[log as usize];
    let grid = [outputs.div_ceil(output_rows * WARPS), rows.div_ceil(1 << log), 1];
    Launch::new(kernel, grid, WARPS * WARP, params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_rows_are_those_of_the_kernels() {
        let file = include_str!("../../kernels/matvec_rows.cu");
        let lines = file.lines().filter_map(|line| line.strip_prefix("MATVEC_ROWS_KERNELS(")?.strip_suffix(')'));
        let lines: Vec<Vec<_>> = lines.map(|line| line.split(',').map(str::trim).collect()).collect();
        for &ty in WeightType::ALL {
            let kernels = kernels(ty);
            let name = kernels[0].0.trim_start_matches("matvec_rows_").trim_end_matches("_r1");
            let fields = lines.iter().find(|fields| fields[0] == name).expect("every type has kernels");
            let output_rows = [2, 6, 8, 10].map(|at| fields[at].parse::<u32>().expect("a number"));
            assert_eq!(output_rows, kernels.map(|(_, n)| n), "{ty}");
        }
        assert_eq!(lines.len(), WeightType::ALL.len());
    }
}

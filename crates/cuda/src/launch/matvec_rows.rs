//! Launches of `kernels/matvec_rows*.cu`: weights x few rows of activations.

use tailrace_types::WeightType;

use super::Launch;
use crate::layout;
use crate::params::MatVecParams;

/// Rows that one launch computes from one pass over the weights.
pub const ROWS_MAX: u32 = 8;

const WARP: u32 = 32;
/// Bytes of codes that a lane loads at a time; a tile of a row is that of each lane.
const CHUNK_BYTES: u32 = 16;
/// Warps of a block: few, so that the card's scheduler has many blocks to even out.
const WARPS: u32 = 4;

/// A kernel for one row of activations: numbers of `kernels/matvec_rows.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OneRow {
    kernel: &'static str,
    /// Output rows of a warp.
    outputs: u32,
    /// Tiles of each output row in flight.
    depth: u32,
    /// Blocks that a multiprocessor holds.
    resident: u32,
}

/// A type's kernels: those for one row, and for 2, 4 and 8 rows a kernel and the output rows of a warp.
struct Kernels {
    one: &'static [OneRow],
    more: [(&'static str, u32); 3],
}

fn kernels(ty: WeightType) -> Kernels {
    macro_rules! kernels {
        ($name:literal, $(($out:literal, $depth:literal, $resident:literal)),+; $two:literal, $four:literal, $eight:literal) => {
            Kernels {
                one: &[$(OneRow {
                    kernel: concat!("matvec_rows_", $name, "_o", $out, "_d", $depth),
                    outputs: $out,
                    depth: $depth,
                    resident: $resident,
                }),+],
                more: [
                    (concat!("matvec_rows_", $name, "_r2"), $two),
                    (concat!("matvec_rows_", $name, "_r4"), $four),
                    (concat!("matvec_rows_", $name, "_r8"), $eight),
                ],
            }
        };
    }
    match ty {
        WeightType::Q8_0 => kernels!("q8_0", (1, 5, 6), (1, 4, 8), (1, 9, 4); 2, 4, 4),
        WeightType::Q4_0 => kernels!("q4_0", (2, 5, 4), (2, 4, 4), (2, 2, 6); 2, 2, 4),
        WeightType::Q4_1 => kernels!("q4_1", (2, 5, 4), (2, 4, 4), (2, 2, 6); 2, 2, 4),
        WeightType::Q5_0 => kernels!("q5_0", (1, 5, 5), (2, 4, 4), (2, 2, 5); 2, 2, 2),
        WeightType::Q5_1 => kernels!("q5_1", (1, 5, 5), (2, 4, 4), (2, 2, 5); 2, 2, 2),
        WeightType::IQ4_NL => kernels!("iq4_nl", (1, 5, 6), (2, 4, 4); 2, 2, 2),
        WeightType::MXFP4 => kernels!("mxfp4", (1, 5, 6), (2, 4, 4); 2, 2, 2),
        WeightType::Q2_K => kernels!("q2_k", (2, 2, 5), (4, 1, 4); 4, 4, 4),
        WeightType::Q3_K => kernels!("q3_k", (4, 1, 3); 2, 4, 4),
        WeightType::Q4_K => kernels!("q4_k", (2, 5, 4), (2, 4, 4), (2, 2, 5); 2, 2, 4),
        WeightType::Q5_K => kernels!("q5_k", (1, 5, 5), (2, 4, 4), (2, 2, 5); 2, 2, 4),
        WeightType::Q6_K => kernels!("q6_k", (1, 5, 4), (2, 2, 4); 2, 2, 4),
        WeightType::IQ4_XS => kernels!("iq4_xs", (1, 5, 5); 2, 2, 2),
        WeightType::F16 => kernels!("f16", (2, 2, 7); 2, 4, 8),
        WeightType::BF16 => kernels!("bf16", (2, 2, 7); 2, 4, 8),
        WeightType::F32 => kernels!("f32", (1, 8, 4); 2, 4, 2),
    }
}

/// Values of a row that a tile covers.
fn tile_values(ty: WeightType) -> u32 {
    let block = ty.block().elements;
    let codes = layout::planes(ty, 1, u64::from(block))[0].block_bytes;
    WARP * CHUNK_BYTES * block / codes
}

/// The kernel for one row of activations that should be the fastest for `outputs` rows of `k` values.
///
/// A warp's time goes with its tiles, rounded up to those in flight, and the card's with the rounds of what it holds at a
/// time, rounded up where there is more than one. Ties go to the first. This orders kernels as measurement does, but for
/// differences of a few percent (`docs/decisions/0008-between-products.md`).
fn one_row(ty: WeightType, outputs: u32, k: u32, multiprocessors: u32) -> OneRow {
    let tiles = k.div_ceil(tile_values(ty));
    let cost = |kernel: &&OneRow| {
        let at_a_time = multiprocessors * kernel.resident * WARPS * kernel.outputs;
        let rounds = f64::from(outputs) / f64::from(at_a_time);
        f64::from(tiles.next_multiple_of(kernel.depth)) * (rounds.ceil() / rounds.max(1.0))
    };
    let best = kernels(ty).one.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
    *best.expect("every type has kernels")
}

/// `y (+)= W x + bias` for at most `rows` rows.
pub fn matvec(ty: WeightType, params: &MatVecParams, rows: u32, multiprocessors: u32) -> Launch {
    let outputs: u32 = params.matrix[..params.matrices as usize].iter().map(|matrix| matrix.rows).sum();
    if rows <= 1 {
        let OneRow { kernel, outputs: of_warp, .. } = one_row(ty, outputs, params.k, multiprocessors);
        return Launch::new(kernel, [outputs.div_ceil(of_warp * WARPS), 1, 1], WARPS * WARP, params);
    }
    let log = rows.min(ROWS_MAX).next_power_of_two().ilog2();
    let (kernel, of_warp) = kernels(ty).more[log as usize - 1];
    Launch::new(kernel, [outputs.div_ceil(of_warp * WARPS), rows.div_ceil(1 << log), 1], WARPS * WARP, params)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of the lines of `kernels/matvec_rows.cu` that name `macro_name`.
    fn lines(macro_name: &str) -> Vec<Vec<&'static str>> {
        let file = include_str!("../../kernels/matvec_rows.cu");
        let of = |line: &'static str| line.strip_prefix(macro_name)?.strip_prefix('(')?.strip_suffix(')');
        file.lines().filter_map(of).map(|line| line.split(',').map(str::trim).collect()).collect()
    }

    #[test]
    fn numbers_are_those_of_the_kernels() {
        let (one, more) = (lines("MATVEC_ONE_ROW"), lines("MATVEC_ROWS"));
        let number = |field: &str| field.parse::<u32>().expect("a number");
        let mut seen = 0;
        for &ty in WeightType::ALL {
            let kernels = kernels(ty);
            let name = kernels.more[0].0.trim_start_matches("matvec_rows_").trim_end_matches("_r2");
            let fields = more.iter().find(|fields| fields[0] == name).expect("every type has kernels");
            assert_eq!([2, 4, 6].map(|at| number(fields[at])), kernels.more.map(|(_, n)| n), "{ty}");
            let of_type = one.iter().filter(|fields| fields[0] == name);
            let found: Vec<_> = of_type.map(|f| [2, 3, 4].map(|at| number(f[at]))).collect();
            let same = |(found, here): (&[u32; 3], &OneRow)| {
                found[..2] == [here.outputs, here.depth] && [0, here.resident].contains(&found[2])
            };
            assert!(found.len() == kernels.one.len() && found.iter().zip(kernels.one).all(same), "{ty}: {found:?}");
            seen += found.len();
        }
        assert_eq!((seen, more.len()), (one.len(), WeightType::ALL.len()));
        let warps = format!("constexpr int WARPS = {WARPS};");
        assert!(include_str!("../../kernels/matvec_rows.cuh").lines().any(|line| line == warps));
    }

    #[test]
    fn tiles_are_as_many_values_as_their_bytes_hold() {
        let cases =
            [(WeightType::Q8_0, 512), (WeightType::Q4_K, 1024), (WeightType::Q2_K, 2048), (WeightType::BF16, 256)];
        for (ty, values) in cases {
            assert_eq!(tile_values(ty), values, "{ty}");
        }
    }

    #[test]
    fn conformance_comes_by_every_kernel_for_one_row() {
        for &ty in WeightType::ALL {
            let chosen = tailrace_device::conformance::ROW_LAW_DEPTHS.map(|k| one_row(ty, 24, k as u32, 2));
            for kernel in kernels(ty).one {
                assert!(chosen.contains(kernel), "{}", kernel.kernel);
            }
        }
    }

    #[test]
    fn the_kernel_for_one_row_goes_by_tiles_and_rounds() {
        // Of qwen2.5-14b and qwen3-8b, on a card of 132 multiprocessors.
        let depth = |outputs, k| one_row(WeightType::Q8_0, outputs, k, 132).depth;
        assert_eq!([depth(7168, 5120), depth(5120, 5120), depth(27_648, 5120), depth(5120, 13_824)], [5, 5, 5, 9]);
        assert_eq!([depth(4096, 4096), depth(24_576, 4096), depth(4096, 12_288)], [4, 4, 4]);
    }
}

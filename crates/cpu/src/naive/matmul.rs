//! Products of weights as the file stores them with float and with quantised activations, in `f64`.

use tailrace_gguf::decode_row;
use tailrace_types::WeightType;

use crate::q8::{Q8_VALUES, Q8Block};

/// One output: its value and the sum of the magnitudes of its terms, to which rounding is relative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Output {
    /// The sum of products.
    pub value: f64,
    /// The sum of their magnitudes.
    pub magnitude: f64,
}

/// Quantises 32 values: scale is the largest magnitude / 127, values are rounded to nearest, ties to even.
pub fn quantize_block(x: &[f32; Q8_VALUES]) -> Q8Block {
    let amax = x.iter().fold(0f32, |a, x| a.max(x.abs()));
    let inverse = if amax < 2f32.powi(-100) { 0.0 } else { 127.0 / amax };
    let values = x.map(|x| (x * inverse).round_ties_even() as i8);
    let sum = |half: &[i8]| half.iter().map(|&v| i16::from(v)).sum::<i16>();
    let sums = [sum(&values[..16]), sum(&values[16..])];
    let scale = if inverse == 0.0 { 0.0 } else { amax / 127.0 };
    Q8Block { values, scale, scaled_sum: scale * f32::from(sums[0] + sums[1]), sums }
}

/// The activations that a row of blocks stands for.
pub fn dequantize(blocks: &[Q8Block]) -> Vec<f64> {
    let values = |b: &Q8Block| b.values.map(|v| f64::from(v) * f64::from(b.scale));
    blocks.iter().flat_map(values).collect()
}

/// `x W` for one row of `x`: an output for each of the file's rows in `w`, each of `x.len()` values.
pub fn product(ty: WeightType, w: &[u8], x: &[f64]) -> Vec<Output> {
    let row_bytes = ty.block().bytes_of(x.len() as u64).expect("rows of whole blocks") as usize;
    let mut row = vec![0f32; x.len()];
    let outputs = w.chunks_exact(row_bytes).map(|bytes| {
        decode_row(ty, bytes, &mut row);
        let mut output = Output::default();
        for (&w, &x) in row.iter().zip(x) {
            output.value += f64::from(w) * x;
            output.magnitude += (f64::from(w) * x).abs();
        }
        output
    });
    outputs.collect()
}

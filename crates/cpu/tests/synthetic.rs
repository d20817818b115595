//! Synthetic weights, decoded: of a sensible size whatever their type.

use tailrace_device::WeightFile;
use tailrace_device::plan::spec::TensorSlice;
use tailrace_device::synthetic::SyntheticWeights;
use tailrace_gguf::decode_row;
use tailrace_types::WeightType;

#[test]
fn matrices_keep_the_size_of_their_inputs() {
    let file = SyntheticWeights::new(3);
    for &ty in WeightType::ALL {
        for cols in [512, 8192] {
            let slice = TensorSlice { tensor: 1, ty, first_row: 0, rows: 64, cols };
            let bytes = file.rows(&slice, 0, 64).unwrap();
            let mut values = vec![0.0; 64 * cols as usize];
            let rows = bytes.chunks_exact(bytes.len() / 64).zip(values.chunks_exact_mut(cols as usize));
            rows.for_each(|(bytes, values)| decode_row(ty, bytes, values));
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64;
            let square = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / values.len() as f64;
            let (mean, deviation) = (mean * (cols as f64).sqrt(), (square * cols as f64).sqrt());
            // A power of two is off by up to a factor of sqrt(2).
            let most = if ty == WeightType::MXFP4 { 1.5 } else { 1.15 };
            assert!(deviation < most && deviation > 1.0 / most, "{ty} x {cols}: deviation {deviation}");
            assert!(mean.abs() < 0.1, "{ty} x {cols}: mean {mean}");
        }
    }
}

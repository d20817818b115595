//! Block formats against golden blocks of the `gguf` Python package, and quantisers against decoding.

use proptest::prelude::*;
use tailrace_gguf::{decode_row, quantize_row};
use tailrace_types::WeightType;

/// Blocks in each file of `golden/blocks/decode` (for plain floats: runs of 32).
const BLOCKS: usize = 8;

fn golden(folder: &str, ty: WeightType) -> Vec<u8> {
    let path = format!("{}/../../golden/blocks/{folder}/{ty}.bin", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / 4];
    decode_row(WeightType::F32, bytes, &mut values);
    values
}

#[test]
fn every_format_decodes_bit_for_bit() {
    for &ty in WeightType::ALL {
        let golden = golden("decode", ty);
        let run = if ty.is_float() { 32 } else { 1 };
        let elements = BLOCKS * run * ty.block().elements as usize;
        let (blocks, expected) = golden.split_at(BLOCKS * run * ty.block().bytes as usize);
        let expected = expected.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        assert_eq!(expected.len(), elements, "{ty}");

        let mut values = vec![f32::NAN; elements];
        decode_row(ty, blocks, &mut values);
        for (i, (value, expected)) in values.into_iter().zip(expected).enumerate() {
            assert_eq!(value.to_bits(), expected.to_bits(), "{ty} element {i}: {value} is not {expected}");
        }
    }
}

#[test]
fn reference_quantisers_round_bit_for_bit() {
    use WeightType::*;
    for ty in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0] {
        let golden = golden("quantize", ty);
        let (values, expected) = golden.split_at(4 * 256 * 4);
        let blocks = quantize_row(ty, &floats(values));
        let size = ty.block().bytes as usize;
        assert_eq!(blocks.len(), expected.len(), "{ty}");
        for (i, (block, expected)) in blocks.chunks(size).zip(expected.chunks(size)).enumerate() {
            assert_eq!(block, expected, "{ty} block {i}");
        }
    }
}

/// The largest error that rounding may leave, as a share of the largest magnitude of the super-block: half a step of the codes (of a
/// signed scale a whole one at the far end) plus what rounding the scales adds.
fn error_max(ty: WeightType) -> f32 {
    use WeightType::*;
    match ty {
        F32 => 0.0,
        F16 => 1.0 / 4096.0,
        BF16 => 1.0 / 512.0,
        Q8_0 => 0.005,
        Q6_K => 0.04,
        Q5_1 | Q5_K => 0.04,
        Q5_0 => 0.065,
        Q4_1 | Q4_K => 0.075,
        Q4_0 | IQ4_NL | IQ4_XS => 0.13,
        MXFP4 => 0.26,
        Q3_K => 0.28,
        Q2_K => 0.36,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quantising_loses_little(seed in prop::collection::vec(-1f32..1.0, 512), scale in -4i32..10) {
        let scale = 2f32.powi(scale);
        let mut values: Vec<f32> = seed.iter().map(|x| x * scale).collect();
        // Known largest magnitudes, so that no scale is a subnormal 16-bit float, of either sign.
        (values[7], values[300]) = (scale, -scale);
        for &ty in WeightType::ALL {
            let blocks = quantize_row(ty, &values);
            prop_assert_eq!(Some(blocks.len() as u64), ty.block().bytes_of(512));
            let mut decoded = vec![f32::NAN; 512];
            decode_row(ty, &blocks, &mut decoded);
            for (values, decoded) in values.chunks(256).zip(decoded.chunks(256)) {
                let largest = values.iter().fold(0f32, |max, x| max.max(x.abs()));
                let error = values.iter().zip(decoded).fold(0f32, |max, (x, y)| max.max((x - y).abs()));
                prop_assert!(error <= error_max(ty) * largest, "{}: error {} of {}", ty, error, largest);
            }
        }
    }

    #[test]
    fn any_bits_decode_without_panic(bytes in prop::collection::vec(any::<u8>(), 292)) {
        for &ty in WeightType::ALL {
            let block = ty.block();
            let mut values = vec![0.0; block.elements as usize];
            decode_row(ty, &bytes[..block.bytes as usize], &mut values);
        }
    }

    #[test]
    fn any_floats_quantise_without_panic(bits in prop::collection::vec(any::<u32>(), 256)) {
        let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        for &ty in WeightType::ALL {
            let blocks = quantize_row(ty, &values);
            decode_row(ty, &blocks, &mut [0.0; 256]);
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    for &ty in WeightType::ALL {
        let mut values = [f32::NAN; 256];
        decode_row(ty, &quantize_row(ty, &[0.0; 256]), &mut values);
        assert!(values.iter().all(|&x| x == 0.0), "{ty}");
    }
}

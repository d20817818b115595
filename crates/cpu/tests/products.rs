//! Packed weights and their products against the naive reference: every type on every instruction set.

use half::f16;
use proptest::prelude::*;
use tailrace_cpu::naive::matmul as naive;
use tailrace_cpu::pack::{group_bytes, pack_rows, row_bytes};
use tailrace_cpu::q8::Q8Block;
use tailrace_cpu::simd::isa::Isa;
use tailrace_cpu::simd::matmul::{Columns, Epilogue, Weights, matmul_f32, matmul_q8};
use tailrace_cpu::simd::quantize::{Q8Rows, quantize_blocks};
use tailrace_cpu::simd::unpack::unpack_row;
use tailrace_gguf::decode_row;
use tailrace_types::WeightType;

/// Numbers without a pattern.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Places of the half floats in a block.
fn scales(ty: WeightType) -> &'static [usize] {
    match ty {
        WeightType::Q4_0 | WeightType::Q5_0 | WeightType::Q8_0 => &[0],
        WeightType::IQ4_NL | WeightType::IQ4_XS => &[0],
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4_K | WeightType::Q5_K => &[0, 2],
        WeightType::Q2_K => &[80, 82],
        WeightType::Q3_K => &[108],
        WeightType::Q6_K => &[208],
        WeightType::MXFP4 | WeightType::F32 | WeightType::F16 | WeightType::BF16 => &[],
    }
}

/// `n` rows of `k` values in the file's format: any codes, scales from `scale`.
fn file_rows(
    ty: WeightType,
    (n, k): (usize, usize),
    random: &mut Random,
    mut scale: impl FnMut(&mut Random) -> f32,
) -> Vec<u8> {
    let mut bytes = vec![0; n * row_bytes(ty, k).unwrap()];
    for block in bytes.chunks_exact_mut(ty.block().bytes as usize) {
        block.fill_with(|| random.next() as u8);
        for &at in scales(ty) {
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale(random)).to_le_bytes());
        }
        match ty {
            WeightType::MXFP4 => block[0] = 120 + block[0] % 12,
            WeightType::F32 => block.copy_from_slice(&scale(random).to_le_bytes()),
            WeightType::F16 => block.copy_from_slice(&f16::from_f32(scale(random)).to_le_bytes()),
            WeightType::BF16 => block.copy_from_slice(&half::bf16::from_f32(scale(random)).to_le_bytes()),
            _ => (),
        }
    }
    bytes
}

/// Rows packed into groups.
fn packed(ty: WeightType, file: &[u8], k: usize) -> Vec<u8> {
    let group = group_bytes(ty, k).unwrap();
    let mut bytes = vec![0; file.len().div_ceil(group) * group];
    for (file, group) in file.chunks(group).zip(bytes.chunks_exact_mut(group)) {
        pack_rows(ty, file, k, group);
    }
    bytes
}

fn blocks_of(isa: Isa, x: &[f32]) -> Vec<Q8Block> {
    let mut blocks = vec![naive::quantize_block(&[0.0; 32]); x.len() / 32];
    quantize_blocks(isa, x, &mut blocks);
    blocks
}

/// Quantised or float activations.
#[derive(Clone, Copy)]
enum Input<'a> {
    Q8(&'a [Q8Block]),
    F32(&'a [f32]),
}

impl Input<'_> {
    fn rows(&self, k: usize) -> usize {
        match self {
            Input::Q8(blocks) => blocks.len() * 32 / k,
            Input::F32(x) => x.len() / k,
        }
    }

    fn row(&self, row: usize, k: usize) -> Input<'_> {
        match self {
            Input::Q8(blocks) => Input::Q8(&blocks[row * k / 32..(row + 1) * k / 32]),
            Input::F32(x) => Input::F32(&x[row * k..(row + 1) * k]),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            Input::Q8(blocks) => naive::dequantize(blocks),
            Input::F32(x) => x.iter().map(|&x| f64::from(x)).collect(),
        }
    }
}

/// A product whose output has `stride` columns to a row; what it does not own must stay as it was.
fn product(isa: Isa, w: &Weights<'_>, x: Input<'_>, n: usize, k: usize) -> Vec<f32> {
    let (rows, stride, first) = (x.rows(k), n + 5, 3);
    let mut y = vec![7.5; rows * stride];
    let columns = Columns::new(&mut y, stride, first..first + n);
    match x {
        Input::Q8(blocks) => {
            let x = Q8Rows::from_blocks(blocks, k);
            matmul_q8(isa, w, x, columns, Epilogue::default());
        }
        Input::F32(x) => matmul_f32(isa, w, x, columns, Epilogue::default()),
    }
    let mut out = Vec::new();
    for row in y.chunks_exact(stride) {
        assert!(row[..first].iter().chain(&row[first + n..]).all(|&y| y == 7.5));
        out.extend(&row[first..first + n]);
    }
    out
}

/// Depths that every type has, with one and with several panels, the last one whole or not.
fn depths(ty: WeightType) -> Vec<usize> {
    let mut depths = vec![256, 1536];
    if ty.block().elements <= 32 {
        depths.extend([32, 576, 896]);
    } else {
        depths.push(1280);
    }
    depths
}

#[test]
fn unpacking_gives_the_rows_of_the_file() {
    let mut random = Random(1);
    for &ty in WeightType::ALL {
        for k in depths(ty) {
            let n = 21;
            let file = file_rows(ty, (n, k), &mut random, Random::unit);
            let bytes = packed(ty, &file, k);
            let w = Weights::new(ty, k, &bytes);
            for isa in Isa::available() {
                for row in 0..n {
                    let (mut got, mut want) = (vec![f32::NAN; k], vec![0.0; k]);
                    unpack_row(isa, &w, (row / 16, row % 16), &mut got);
                    decode_row(ty, &file[row * file.len() / n..][..file.len() / n], &mut want);
                    assert_eq!(got, want, "{ty} {isa:?} row {row} of {k} values");
                }
            }
        }
    }
}

/// With scales of 1 and small activations every sum is an integer that `f32` holds, so nothing rounds.
#[test]
fn integer_products_are_exact() {
    let mut random = Random(3);
    let quantised = WeightType::ALL.iter().filter(|ty| !ty.is_float());
    for &ty in quantised {
        let (k, n) = (256, 32);
        let mut file = file_rows(ty, (n, k), &mut random, |_| 1.0);
        if ty == WeightType::MXFP4 {
            let blocks = file.chunks_exact_mut(17);
            blocks.for_each(|block| block[0] = 128);
        }
        let bytes = packed(ty, &file, k);
        let w = Weights::new(ty, k, &bytes);
        for rows in [1, 2, 5, 16, 33] {
            // 127 makes the scale 1, and -127 and the others reach every sign.
            let value = |i: usize, bits: u64| match i % 32 {
                5 => 127.0,
                17 => -127.0,
                _ => (bits % 3) as f32 - 1.0,
            };
            let x: Vec<f32> = (0..rows * k).map(|i| value(i, random.next())).collect();
            let blocks = blocks_of(Isa::PORTABLE, &x);
            let x = Input::Q8(&blocks);
            let want: Vec<f32> = (0..rows)
                .flat_map(|row| naive::product(ty, &file, &x.row(row, k).values()))
                .map(|want| want.value as f32)
                .collect();
            for isa in Isa::available() {
                assert_eq!(product(isa, &w, x, n, k), want, "{ty} {isa:?} {rows} rows");
            }
        }
    }
}

/// The largest codes against the largest activations: where saturating instructions would show.
#[test]
fn extreme_products_are_exact() {
    for ty in [WeightType::Q8_0, WeightType::IQ4_NL, WeightType::Q5_1] {
        for (fill, sign) in [(0x00, 127.0), (0x80, -127.0), (0x7f, 127.0), (0xff, -127.0)] {
            let k = 64;
            let mut file = vec![fill; 16 * row_bytes(ty, k).unwrap()];
            for block in file.chunks_exact_mut(ty.block().bytes as usize) {
                for &at in scales(ty) {
                    block[at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
                }
            }
            let bytes = packed(ty, &file, k);
            let w = Weights::new(ty, k, &bytes);
            let blocks = blocks_of(Isa::PORTABLE, &vec![sign; 7 * k]);
            for x in [Input::Q8(&blocks), Input::Q8(&blocks[..2])] {
                let want = naive::product(ty, &file, &x.row(0, k).values())[0].value as f32;
                for isa in Isa::available() {
                    let got = product(isa, &w, x, 16, k);
                    assert!(got.iter().all(|&y| y == want), "{ty} {isa:?} {fill}: {want}");
                }
            }
        }
    }
}

/// The row law: a row alone, in a batch, and with other groups around it has the same bits.
#[test]
fn bits_do_not_depend_on_rows_or_groups() {
    let mut random = Random(4);
    for &ty in WeightType::ALL {
        for (k, n) in [(1536, 40), (depths(ty)[2], 71)] {
            let file = file_rows(ty, (n, k), &mut random, Random::unit);
            let bytes = packed(ty, &file, k);
            let w = Weights::new(ty, k, &bytes);
            let x: Vec<f32> = (0..140 * k).map(|_| random.unit()).collect();
            let blocks = blocks_of(Isa::PORTABLE, &x);
            let q8 = (!ty.is_float()).then_some(Input::Q8(&blocks));
            for isa in Isa::available() {
                for input in q8.into_iter().chain([Input::F32(&x)]) {
                    let all = product(isa, &w, input, n, k);
                    let rows = if isa == Isa::PORTABLE { 130..140 } else { 0..140 };
                    for row in rows {
                        let alone = product(isa, &w, input.row(row, k), n, k);
                        assert_eq!(bits(&alone), bits(&all[row * n..][..n]), "{ty} {isa:?} {row}");
                    }
                    let last = w.slice(w.groups() - 1..w.groups());
                    let first = (w.groups() - 1) * 16;
                    let part = product(isa, &last, input, n - first, k);
                    for (part, all) in part.chunks(n - first).zip(all.chunks(n)) {
                        assert_eq!(bits(part), bits(&all[first..]), "{ty} {isa:?}");
                    }
                }
            }
        }
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn epilogues_add_in_order() {
    let mut random = Random(5);
    let (ty, k, n, rows) = (WeightType::Q4_0, 64, 19, 9);
    let file = file_rows(ty, (n, k), &mut random, Random::unit);
    let bytes = packed(ty, &file, k);
    let w = Weights::new(ty, k, &bytes);
    let x: Vec<f32> = (0..rows * k).map(|_| random.unit()).collect();
    let bias: Vec<f32> = (0..n).map(|_| random.unit()).collect();
    let before: Vec<f32> = (0..rows * n).map(|_| random.unit()).collect();
    for isa in Isa::available() {
        let plain = product(isa, &w, Input::F32(&x), n, k);
        for (bias, accumulate) in [(Some(&bias[..]), false), (None, true), (Some(&bias[..]), true)] {
            let mut y = before.clone();
            let epilogue = Epilogue { bias, accumulate };
            matmul_f32(isa, &w, &x, Columns::new(&mut y, n, 0..n), epilogue);
            for (i, y) in y.iter().enumerate() {
                let with_bias = plain[i] + bias.map_or(0.0, |bias| bias[i % n]);
                let want = with_bias + if accumulate { before[i] } else { 0.0 };
                assert_eq!(*y, want, "{isa:?} {i}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_shows() {
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 64];
            x[40] = bad;
            let blocks = blocks_of(isa, &x);
            assert!(blocks[0].scale.is_finite() && blocks[1].scale.is_nan());
            assert!(blocks[1].scaled_sum.is_nan());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Quantisation is the same on every instruction set and equal to the reference.
    #[test]
    fn quantisation_matches_the_reference(
        x in prop::array::uniform32(-3f32..3.0),
        exponent in -40i32..38,
        zeros in any::<u32>(),
    ) {
        let scale = 10f32.powi(exponent);
        let x: [f32; 32] = std::array::from_fn(|i| {
            if zeros >> i & 1 == 1 { 0.0 } else { x[i] * scale }
        });
        let want = naive::quantize_block(&x);
        for isa in Isa::available() {
            prop_assert_eq!(blocks_of(isa, &x)[0], want, "{:?}", isa);
        }
    }
}

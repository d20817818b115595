//! Damaged model files: whatever is wrong with one, opening and planning it gives a model or one line, never a panic.

use std::path::Path;

use tailrace_engine::OpenModel;
use tailrace_gguf::Gguf;
use tailrace_plan::{DeviceSizes, Limits};

/// A generator of the same numbers every time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// Values that sizes, counts and offsets go wrong with.
const EXTREMES: [u64; 10] = [0, 1, 2, 31, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX];

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    // Headers are where structure is; tensor data may hold anything.
    let header = bytes.len().min(24 << 10);
    let at = random.below(header);
    match random.below(5) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.below(256) as u8,
        2 => bytes.truncate(at),
        3 => {
            let width = [1, 2, 4, 8][random.below(4)];
            let value = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
        _ => {
            let (from, len) = (random.below(header), random.below(64));
            let end = (from + len).min(header);
            let piece = bytes[from..end].to_vec();
            let end = (at + piece.len()).min(header);
            bytes[at..end].copy_from_slice(&piece[..end - at]);
        }
    }
}

struct Sizes;

impl DeviceSizes for Sizes {
    fn matrix_bytes(&self, ty: tailrace_types::WeightType, rows: u64, cols: u64) -> u64 {
        ty.block().bytes_of(cols).expect("the reader checks that rows are whole blocks") * rows
    }
    fn q8_row_bytes(&self, cols: u64) -> u64 {
        cols * 2
    }
    fn attention_buffers(
        &self,
        _bucket: tailrace_plan::Bucket,
        shape: &tailrace_plan::AttentionShape,
    ) -> tailrace_plan::AttentionBuffers {
        let record = u64::from(shape.heads) * (u64::from(shape.dv) + 2);
        tailrace_plan::AttentionBuffers {
            carry_elements: record,
            partial_elements: 8 * record,
            scratch_bytes: shape.block_bytes(),
        }
    }
    fn ring_slots(&self, _slot_bytes: u64, _weight_bytes: u64) -> u32 {
        4
    }
}

#[test]
fn damaged_files_give_a_model_or_one_line() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/models");
    let (mut opened, mut refused) = (0, 0);
    for name in ["llama-tied", "gemma3", "qwen2", "type-q4_k"] {
        let whole = std::fs::read(folder.join(name).with_extension("gguf")).unwrap();
        let mut random = Random(name.len() as u64);
        for _ in 0..1500 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(3) {
                damage(&mut bytes, &mut random);
            }
            let model = Gguf::from_bytes(bytes).map_err(|e| e.to_string());
            match model.and_then(|gguf| OpenModel::new(gguf).map_err(|e| e.to_string())) {
                Ok(model) => {
                    opened += 1;
                    let cap = Some(1 << random.below(40));
                    let limits = Limits { device_bytes_max: cap, ..Limits::new(1 + random.below(1 << 20) as u32) };
                    // A plan or its refusal: only a panic is wrong.
                    let _ = model.plan(&limits, &Sizes);
                }
                Err(text) => {
                    refused += 1;
                    assert!(!text.is_empty() && !text.contains('\n'), "{text}");
                }
            }
        }
    }
    assert!(opened > 500 && refused > 500, "the damage should be neither harmless nor total: {opened}, {refused}");
}

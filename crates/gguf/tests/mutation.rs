//! Damaged files by the ten thousand: whatever happens to a good file, reading it ends in a usable model or in one line of error,
//! without a panic and without memory out of proportion. Deterministic, so a failure is found again.

mod common;

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tailrace_gguf::{Gguf, decode_row};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Values that break arithmetic.
const EXTREMES: [u64; 20] = [
    0,
    1,
    2,
    7,
    31,
    63,
    64,
    255,
    256,
    0xffff,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 60,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 31,
    u64::MAX,
];

/// A small generator (xorshift64*, Vigna 2016): the tests need variety, not quality.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as usize % limit
    }
}

/// Reads a model as its users do; answers whether it was good. Memory for it, the copies of `shards` aside, must stay within four
/// times their bytes (a key of 14 bytes becomes an owned name and value) and a little for the text of errors.
fn read(shards: Vec<Vec<u8>>) -> bool {
    let bytes: usize = shards.iter().map(Vec::len).sum();
    let region = Region::new(ALLOCATOR);
    let result = Gguf::from_shards(shards);
    let allocated = region.change().bytes_allocated;
    assert!(allocated <= 4 * bytes + (8 << 10), "{allocated} bytes allocated for a file of {bytes}");
    let gguf = match result {
        Ok(gguf) => gguf,
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("memory"), "{text}");
            assert!(!text.contains(char::is_control) && text.len() < 2000, "{text:?}");
            return false;
        }
    };
    for (key, value) in gguf.metadata().iter() {
        let text = value.to_string();
        assert!(!text.contains(char::is_control) && text.len() < 5000, "{text:?}");
        let metadata = gguf.metadata();
        let errors = [
            metadata.u32(key).err(),
            metadata.f32(key).err(),
            metadata.str(key).err(),
            metadata.strings(key).err(),
            metadata.i32s(key).err(),
        ];
        for error in errors.into_iter().flatten() {
            assert!(!error.to_string().contains(char::is_control));
        }
    }
    for (index, tensor) in gguf.tensors().iter().enumerate() {
        assert_eq!(gguf.tensor_index(&tensor.name), Some(index));
        let data = gguf.tensor_data(index);
        assert_eq!(data.len() as u64, tensor.bytes);
        assert_eq!(tensor.row_bytes() * tensor.rows(), tensor.bytes);
        let mut row = vec![0.0; tensor.ne[0] as usize];
        decode_row(tensor.ty, &data[..tensor.row_bytes() as usize], &mut row);
    }
    true
}

/// Damages one of `shards` in one way.
fn damage(shards: &mut [Vec<u8>], random: &mut Random) {
    let which = random.below(shards.len());
    let bytes = &mut shards[which];
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    let extreme = EXTREMES[random.below(EXTREMES.len())];
    let overwrite = |bytes: &mut Vec<u8>, with: &[u8]| {
        for (byte, &with) in bytes[at..].iter_mut().zip(with) {
            *byte = with;
        }
    };
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = extreme as u8,
        2 => overwrite(bytes, &(extreme as u32).to_le_bytes()),
        3 => overwrite(bytes, &extreme.to_le_bytes()),
        4 => bytes.truncate(at),
        5 => drop(bytes.remove(at)),
        6 => bytes.insert(at, extreme as u8),
        _ => {
            let len = random.below(64).min(bytes.len() - at);
            let copy = bytes[at..at + len].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copy);
        }
    }
}

/// One test, so that no other allocates while it counts.
#[test]
fn damaged_files_are_errors_or_models() {
    let originals = [vec![common::everything(2)], vec![common::everything(3)], common::split()];
    for original in &originals {
        assert!(read(original.clone()));
    }

    // Every byte of every header, overwritten by each extreme.
    for original in &originals {
        for which in 0..original.len() {
            let header = Gguf::from_shards(original.clone()).unwrap();
            let first =
                header.tensors().iter().filter(|tensor| tensor.shard == which).map(|tensor| tensor.offset).min();
            let header_bytes = first.unwrap() as usize;
            for at in 0..header_bytes {
                // The places where a field begins are not known here, so it is every place; one width a turn keeps it quick.
                let extreme = EXTREMES[at % EXTREMES.len()];
                for with in [&extreme.to_le_bytes()[..], &(extreme as u32).to_le_bytes(), &u64::MAX.to_le_bytes()] {
                    let mut shards = original.clone();
                    let end = (at + with.len()).min(header_bytes);
                    shards[which][at..end].copy_from_slice(&with[..end - at]);
                    read(shards);
                }
            }
        }
    }

    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut good = 0;
    const ROUNDS: usize = 15_000;
    for round in 0..ROUNDS {
        let mut shards = originals[round % originals.len()].clone();
        for _ in 0..1 + random.below(3) {
            damage(&mut shards, &mut random);
        }
        good += usize::from(read(shards));
    }
    // Both outcomes must be common, or the damage tests nothing: much of a file is data that may be anything.
    assert!((ROUNDS / 20..ROUNDS * 19 / 20).contains(&good), "{good} of {ROUNDS} are still models");
}

//! Packed weights: the same bytes as the file's rows, rearranged so that a vector holds 16 output rows.
//!
//! A weight matrix `[N, K]` becomes `ceil(N / 16)` *groups* of [`ROW_GROUP`] output rows; rows past `N` are
//! zero. A group is a sequence of *packed blocks*, one for each block of the type along `k`, and a packed
//! block is exactly 16 blocks of the file: the sizes never differ, only the order inside.
//!
//! Every quantised type is made of *codes*, unsigned integers of 2 to 8 bits, and of scales. Codes are kept
//! in units of 32 values of `k`, as eight *quads*: quad `q` is 64 bytes, byte `4 * row + j` of it belongs to
//! the value `k = 4 * q + j`. That is the operand of a dot product of unsigned by signed bytes (`vpdpbusd`),
//! with four bytes of the activations broadcast to all lanes; one 32-bit lane is one output row. The bits of
//! a code lie in up to two *planes*:
//!
//! | plane   | bytes | holds                                                                            |
//! |---------|-------|----------------------------------------------------------------------------------|
//! | bytes   | 512   | the eight quads                                                                  |
//! | nibbles | 256   | four vectors; vector `i`: low halves are bits 0..4 of quad `i`, high of `i + 4`  |
//! | pairs   | 128   | two vectors; vector `h`: bits `2i..2i + 2` of a byte belong to quad `4 * h + i`  |
//! | bits    | 64    | one vector; bit `q` of a byte belongs to quad `q`                                |
//!
//! Scales and minima are stored as in the file, but transposed: 16 rows of one kind are consecutive.
//! `layout` has the offsets. Float types are stored as `[K][16]`.

mod codes;
pub(crate) mod layout;

use layout as at;
use tailrace_types::{ROW_GROUP, WeightType};

/// Output rows in a group, as an index.
pub(crate) const ROWS: usize = ROW_GROUP as usize;

/// Bytes of one row of `k` values of type `ty`, or `None` if they are no whole number of blocks.
pub fn row_bytes(ty: WeightType, k: usize) -> Option<usize> {
    usize::try_from(ty.block().bytes_of(k as u64)?).ok()
}

/// Bytes of one packed group of rows of `k` values, or `None` if they are no whole number of blocks.
pub fn group_bytes(ty: WeightType, k: usize) -> Option<usize> {
    row_bytes(ty, k)?.checked_mul(ROWS)
}

/// Bytes of a packed matrix of `n` rows of `k` values, or `None` if `k` is no whole number of blocks.
pub fn packed_bytes(ty: WeightType, n: u64, k: u64) -> Option<u64> {
    let rows = n.checked_next_multiple_of(ROW_GROUP)?;
    ty.block().bytes_of(k)?.checked_mul(rows)
}

/// Packs up to 16 consecutive rows of a file into one group; missing rows become zero.
///
/// `src` holds whole rows of `k` values; `dst` is exactly one group.
///
/// # Panics
/// If `k` is zero or a length does not fit `ty` and `k`.
pub fn pack_rows(ty: WeightType, src: &[u8], k: usize, dst: &mut [u8]) {
    assert!(k > 0, "rows have values");
    let row_bytes = row_bytes(ty, k).expect("a row is a whole number of blocks");
    assert_eq!(dst.len(), row_bytes * ROWS, "one group");
    assert!(src.len().is_multiple_of(row_bytes) && src.len() <= dst.len(), "at most 16 whole rows");
    if src.len() < dst.len() {
        pack_zeros(ty, dst);
    }
    match ty {
        WeightType::F32 => return transpose::<4>(src, k, dst),
        WeightType::F16 | WeightType::BF16 => return transpose::<2>(src, k, dst),
        _ => (),
    }
    let block_bytes = ty.block().bytes as usize;
    for (row, src) in src.chunks_exact(row_bytes).enumerate() {
        let blocks = src.chunks_exact(block_bytes);
        for (src, dst) in blocks.zip(dst.chunks_exact_mut(block_bytes * ROWS)) {
            place_block(ty, src, &mut Lane { dst, row });
        }
    }
}

/// Packs rows of values of `N` bytes.
fn transpose<const N: usize>(src: &[u8], k: usize, dst: &mut [u8]) {
    let (src, dst) = (src.as_chunks::<N>().0, dst.as_chunks_mut::<N>().0);
    let rows = src.len() / k;
    for (at, lanes) in dst.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
        for (row, lane) in lanes.iter_mut().enumerate().take(rows) {
            *lane = src[row * k + at];
        }
    }
}

/// Fills a group with rows of zeros.
fn pack_zeros(ty: WeightType, dst: &mut [u8]) {
    let block_bytes = ty.block().bytes as usize;
    let zero = [0u8; MAX_BLOCK_BYTES];
    for dst in dst.chunks_exact_mut(block_bytes * ROWS) {
        for row in 0..ROWS {
            place_block(ty, &zero[..block_bytes], &mut Lane { dst, row });
        }
    }
}

/// Bytes of the largest block of any weight type (Q6_K).
const MAX_BLOCK_BYTES: usize = 210;

/// One row's places in a packed block.
struct Lane<'a> {
    dst: &'a mut [u8],
    row: usize,
}

impl Lane<'_> {
    /// `value` among the 16 values of its size at `offset`.
    fn put<const N: usize>(&mut self, offset: usize, value: [u8; N]) {
        self.dst[offset + N * self.row..][..N].copy_from_slice(&value);
    }

    /// Consecutive bytes, each among the bytes of 16 rows.
    fn put_each(&mut self, offset: usize, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            self.put(offset + ROWS * i, [byte]);
        }
    }

    /// Four bytes in each vector of a plane.
    fn put_vectors(&mut self, offset: usize, bytes: &[u8]) {
        for (i, quad) in bytes.as_chunks::<4>().0.iter().enumerate() {
            self.put(offset + 64 * i, *quad);
        }
    }

    /// A plane of bits 0..4 for each unit of 32 codes.
    fn put_nibbles(&mut self, offset: usize, codes: &[u8]) {
        for (unit, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            let quads = quads(codes).map(|quad| quad & 0x0f0f_0f0f);
            for i in 0..4 {
                let word = quads[i] | quads[i + 4] << 4;
                self.put(offset + unit * at::NIBBLES + 64 * i, word.to_le_bytes());
            }
        }
    }

    /// A plane of the two bits `shift..shift + 2` for each unit of 32 codes.
    fn put_pairs(&mut self, offset: usize, codes: &[u8], shift: u32) {
        for (unit, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            let quads = quads(codes).map(|quad| quad >> shift & 0x0303_0303);
            for (h, quads) in quads.as_chunks::<4>().0.iter().enumerate() {
                let word = quads[0] | quads[1] << 2 | quads[2] << 4 | quads[3] << 6;
                self.put(offset + unit * at::PAIRS + 64 * h, word.to_le_bytes());
            }
        }
    }

    /// A plane of bit `shift` for each unit of 32 codes.
    fn put_bits(&mut self, offset: usize, codes: &[u8], shift: u32) {
        for (unit, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            let quads = quads(codes).map(|quad| quad >> shift & 0x0101_0101);
            let word = (0..8).fold(0, |word, q| word | quads[q] << q);
            self.put(offset + unit * at::BITS, word.to_le_bytes());
        }
    }

    /// A plane of one bit from a word that has bit `k` for value `k`.
    fn put_bit_word(&mut self, offset: usize, bits: [u8; 4]) {
        let bits = u32::from_le_bytes(bits);
        // The product brings bit `j` of four to the lowest bit of byte `j`.
        let spread = |four: u32| ((four & 15) * 0x0020_4081) & 0x0101_0101;
        let word = (0..8).fold(0, |word, q| word | spread(bits >> (4 * q)) << q);
        self.put(offset, word.to_le_bytes());
    }
}

/// Each four codes as a word.
fn quads(codes: &[u8; 32]) -> [u32; 8] {
    let mut quads = [0; 8];
    for (quad, codes) in quads.iter_mut().zip(codes.as_chunks::<4>().0) {
        *quad = u32::from_le_bytes(*codes);
    }
    quads
}

/// The two bytes at `offset`.
fn two(block: &[u8], offset: usize) -> [u8; 2] {
    [block[offset], block[offset + 1]]
}

/// The four bytes at `offset`.
fn four(block: &[u8], offset: usize) -> [u8; 4] {
    [block[offset], block[offset + 1], block[offset + 2], block[offset + 3]]
}

/// Writes one block of one row. The offsets in `block` are those of the GGUF formats.
fn place_block(ty: WeightType, block: &[u8], lane: &mut Lane<'_>) {
    match ty {
        WeightType::F32 => lane.put(0, four(block, 0)),
        WeightType::F16 | WeightType::BF16 => lane.put(0, two(block, 0)),
        WeightType::Q4_0 | WeightType::IQ4_NL => {
            lane.put(at::q4_0::D, two(block, 0));
            lane.put_vectors(at::q4_0::NIBBLES, &block[2..18]);
        }
        WeightType::Q4_1 => {
            lane.put(at::q4_1::D, two(block, 0));
            lane.put(at::q4_1::M, two(block, 2));
            lane.put_vectors(at::q4_1::NIBBLES, &block[4..20]);
        }
        WeightType::Q5_0 => {
            lane.put(at::q5_0::D, two(block, 0));
            lane.put_bit_word(at::q5_0::BITS, four(block, 2));
            lane.put_vectors(at::q5_0::NIBBLES, &block[6..22]);
        }
        WeightType::Q5_1 => {
            lane.put(at::q5_1::D, two(block, 0));
            lane.put(at::q5_1::M, two(block, 2));
            lane.put_bit_word(at::q5_1::BITS, four(block, 4));
            lane.put_vectors(at::q5_1::NIBBLES, &block[8..24]);
        }
        WeightType::Q8_0 => {
            lane.put(at::q8_0::D, two(block, 0));
            let mut codes = [0; 32];
            for (code, value) in codes.iter_mut().zip(&block[2..34]) {
                *code = value ^ 0x80;
            }
            lane.put_vectors(at::q8_0::BYTES, &codes);
        }
        WeightType::MXFP4 => {
            lane.put(at::mxfp4::E, [block[0]]);
            lane.put_vectors(at::mxfp4::NIBBLES, &block[1..17]);
        }
        WeightType::IQ4_XS => {
            lane.put(at::iq4_xs::D, two(block, 0));
            lane.put_each(at::iq4_xs::SCALES_HIGH, &block[2..4]);
            lane.put_each(at::iq4_xs::SCALES_LOW, &block[4..8]);
            for (unit, nibbles) in block[8..136].as_chunks::<16>().0.iter().enumerate() {
                lane.put_vectors(at::iq4_xs::NIBBLES + unit * at::NIBBLES, nibbles);
            }
        }
        WeightType::Q2_K | WeightType::Q3_K | WeightType::Q4_K | WeightType::Q5_K | WeightType::Q6_K => {
            place_k_block(ty, block, lane)
        }
    }
}

/// [`place_block`] for the types with super-blocks of 256 values.
fn place_k_block(ty: WeightType, block: &[u8], lane: &mut Lane<'_>) {
    match ty {
        WeightType::Q2_K => {
            lane.put(at::q2_k::D, two(block, 80));
            lane.put(at::q2_k::DMIN, two(block, 82));
            lane.put_each(at::q2_k::SCALES, &block[..16]);
            lane.put_pairs(at::q2_k::PAIRS, &codes::q2_k(block), 0);
        }
        WeightType::Q3_K => {
            let codes = codes::q3_k(block);
            lane.put(at::q3_k::D, two(block, 108));
            lane.put_each(at::q3_k::SCALES, &block[96..108]);
            lane.put_bits(at::q3_k::BITS, &codes, 2);
            lane.put_pairs(at::q3_k::PAIRS, &codes, 0);
        }
        WeightType::Q4_K => {
            lane.put(at::q4_k::D, two(block, 0));
            lane.put(at::q4_k::DMIN, two(block, 2));
            lane.put_each(at::q4_k::SCALES, &block[4..16]);
            lane.put_nibbles(at::q4_k::NIBBLES, &codes::q4_k(block));
        }
        WeightType::Q5_K => {
            let codes = codes::q5_k(block);
            lane.put(at::q5_k::D, two(block, 0));
            lane.put(at::q5_k::DMIN, two(block, 2));
            lane.put_each(at::q5_k::SCALES, &block[4..16]);
            lane.put_bits(at::q5_k::BITS, &codes, 4);
            lane.put_nibbles(at::q5_k::NIBBLES, &codes);
        }
        _ => {
            let codes = codes::q6_k(block);
            lane.put(at::q6_k::D, two(block, 208));
            lane.put_each(at::q6_k::SCALES, &block[192..208]);
            lane.put_pairs(at::q6_k::PAIRS, &codes, 4);
            lane.put_nibbles(at::q6_k::NIBBLES, &codes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_file() {
        assert_eq!(packed_bytes(WeightType::Q4_1, 33, 64), Some(48 * 2 * 20));
        assert_eq!(packed_bytes(WeightType::Q4_K, 16, 32), None);
        assert_eq!(packed_bytes(WeightType::F32, u64::MAX, 32), None);
        let largest = WeightType::ALL.iter().map(|ty| ty.block().bytes).max();
        assert_eq!(largest, Some(MAX_BLOCK_BYTES as u32));
    }

    /// A rearrangement loses nothing: each bit of a row has exactly one place in the group, and no
    /// two rows share one.
    #[test]
    fn every_bit_has_its_own_place() {
        for &ty in WeightType::ALL {
            let k = ty.block().elements as usize;
            let bytes = ty.block().bytes as usize;
            let mut blank = vec![0; bytes * ROWS];
            pack_zeros(ty, &mut blank);
            let mut seen = vec![0u8; bytes * ROWS];
            for bit in 0..bytes * ROWS * 8 {
                let mut rows = vec![0u8; bytes * ROWS];
                rows[bit / 8] = 1 << (bit % 8);
                let mut packed = vec![0xff; bytes * ROWS];
                pack_rows(ty, &rows, k, &mut packed);
                let mut changed = 0;
                for ((seen, packed), blank) in seen.iter_mut().zip(&packed).zip(&blank) {
                    let flipped = packed ^ blank;
                    assert_eq!(*seen & flipped, 0, "{ty} bit {bit}");
                    *seen |= flipped;
                    changed += flipped.count_ones();
                }
                assert_eq!(changed, 1, "{ty} bit {bit}");
            }
        }
    }
}

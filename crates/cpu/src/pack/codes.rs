//! Codes of a block in order of `k`, from the bit orders of the GGUF formats.

/// Two-bit codes of Q2_K and the low bits of Q3_K, from 64 bytes.
///
/// A byte holds four values that lie 32 apart; each half of 128 values has its own 32 bytes.
fn pairs(qs: &[u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (codes, qs) in codes.as_chunks_mut::<128>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for (unit, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, q) in codes.iter_mut().zip(qs) {
                *code = q >> (2 * unit) & 3;
            }
        }
    }
    codes
}

/// Codes 0..4 of Q2_K; value = d * scale * code - dmin * min.
pub(super) fn q2_k(block: &[u8]) -> [u8; 256] {
    pairs(&block[16..80])
}

/// Codes 0..8 of Q3_K; value = d * scale * (code - 4).
pub(super) fn q3_k(block: &[u8]) -> [u8; 256] {
    let mut codes = pairs(&block[32..96]);
    for (unit, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, high) in codes.iter_mut().zip(&block[..32]) {
            *code |= (high >> unit & 1) << 2;
        }
    }
    codes
}

/// Four-bit codes of Q4_K and the low bits of Q5_K, from 128 bytes.
///
/// A byte holds two values that lie 32 apart; each 64 values have their own 32 bytes.
fn nibbles(qs: &[u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (codes, qs) in codes.as_chunks_mut::<64>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for (l, q) in qs.iter().enumerate() {
            codes[l] = q & 15;
            codes[32 + l] = q >> 4;
        }
    }
    codes
}

/// Codes 0..16 of Q4_K; value = d * scale * code - dmin * min.
pub(super) fn q4_k(block: &[u8]) -> [u8; 256] {
    nibbles(&block[16..144])
}

/// Codes 0..32 of Q5_K; value = d * scale * code - dmin * min.
pub(super) fn q5_k(block: &[u8]) -> [u8; 256] {
    let mut codes = nibbles(&block[48..176]);
    for (unit, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, high) in codes.iter_mut().zip(&block[16..48]) {
            *code |= (high >> unit & 1) << 4;
        }
    }
    codes
}

/// Codes 0..64 of Q6_K; value = d * scale * (code - 32).
///
/// Each half of 128 values has 64 bytes of low bits, a byte holding two values that lie 64 apart, and
/// 32 bytes of high bits, a byte holding four values that lie 32 apart.
pub(super) fn q6_k(block: &[u8]) -> [u8; 256] {
    let (low, high) = (block[..128].as_chunks::<64>().0, block[128..192].as_chunks::<32>().0);
    let mut codes = [0; 256];
    for (codes, (low, high)) in codes.as_chunks_mut::<128>().0.iter_mut().zip(low.iter().zip(high)) {
        for (l, high) in high.iter().enumerate() {
            codes[l] = low[l] & 15 | (high & 3) << 4;
            codes[32 + l] = low[32 + l] & 15 | (high >> 2 & 3) << 4;
            codes[64 + l] = low[l] >> 4 | (high >> 4 & 3) << 4;
            codes[96 + l] = low[32 + l] >> 4 | (high >> 6) << 4;
        }
    }
    codes
}

//! Byte offsets of the parts of a packed block, one module for each type.
//!
//! `D`, `DMIN` and `M` are 16 half floats; the other parts are described in the module above.

/// Bytes of a unit's plane of four bits.
pub(crate) const NIBBLES: usize = 256;
/// Bytes of a unit's plane of two bits.
pub(crate) const PAIRS: usize = 128;
/// Bytes of a unit's plane of one bit.
pub(crate) const BITS: usize = 64;

macro_rules! layouts {
    ($($(#[$doc:meta])* $module:ident { $($part:ident = $offset:literal),* } = $bytes:literal;)*) => {
        $($(#[$doc])* pub(crate) mod $module { $(pub(crate) const $part: usize = $offset;)* })*

        /// `(offset, bytes)` of the first part of each module, and its size, for the test below.
        #[cfg(test)]
        const SIZES: &[(&str, usize)] = &[$((stringify!($module), $bytes),)*];
    };
}

layouts! {
    /// 32 values; also IQ4_NL.
    q4_0 { D = 0, NIBBLES = 32 } = 288;
    /// 32 values.
    q4_1 { D = 0, M = 32, NIBBLES = 64 } = 320;
    /// 32 values.
    q5_0 { D = 0, BITS = 32, NIBBLES = 96 } = 352;
    /// 32 values.
    q5_1 { D = 0, M = 32, BITS = 64, NIBBLES = 128 } = 384;
    /// 32 values, stored with their sign bit flipped: code = value + 128.
    q8_0 { D = 0, BYTES = 32 } = 544;
    /// 32 values; `E` is 16 exponents.
    mxfp4 { E = 0, NIBBLES = 16 } = 272;
    /// 256 values; scales `[16 sub-blocks][16 rows]`, minimum in the high half.
    q2_k { D = 0, DMIN = 32, SCALES = 64, PAIRS = 320 } = 1344;
    /// 256 values; scales are the file's 12 bytes as `[12][16 rows]`.
    q3_k { D = 0, SCALES = 32, BITS = 224, PAIRS = 736 } = 1760;
    /// 256 values; scales are the file's 12 bytes as `[12][16 rows]`.
    q4_k { D = 0, DMIN = 32, SCALES = 64, NIBBLES = 256 } = 2304;
    /// 256 values; scales as Q4_K.
    q5_k { D = 0, DMIN = 32, SCALES = 64, BITS = 256, NIBBLES = 768 } = 2816;
    /// 256 values; scales `[16 sub-blocks][16 rows]`.
    q6_k { D = 0, SCALES = 32, PAIRS = 288, NIBBLES = 1312 } = 3360;
    /// 256 values; scales are the file's bytes as `[2][16 rows]` and `[4][16 rows]`.
    iq4_xs { D = 0, SCALES_HIGH = 32, SCALES_LOW = 64, NIBBLES = 128 } = 2176;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailrace_types::{ROW_GROUP, WeightType};

    #[test]
    fn packed_blocks_are_sixteen_blocks() {
        for &(name, bytes) in SIZES {
            let ty = WeightType::ALL.iter().find(|ty| ty.name().eq_ignore_ascii_case(name));
            let block = ty.expect("module names are type names").block();
            assert_eq!(u64::from(block.bytes) * ROW_GROUP, bytes as u64, "{name}");
        }
    }
}

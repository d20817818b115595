//! The vocabulary of Tailrace: identifiers, sizes and storage types that every room shares.
//!
//! A leaf without logic: nothing here allocates, reads or computes anything but products of sizes.

use std::fmt;

/// Cells in a block: the unit of residency, eviction and sharing, and the *leaf* of attention.
pub const BLOCK_CELLS: u32 = 256;

/// Output rows of a matrix that a device packs together; row counts are padded to it.
pub const ROW_GROUP: u64 = 16;

/// Index of a token in a model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct TokenId(pub u32);

/// Slot of a sequence: `0 .. Limits::sequences`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct SlotId(pub u32);

/// Device memory of one block (all layers that share a block table).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct FrameId(pub u32);

/// Host memory of one block: extent `id / E`, place `id % E` with `E` blocks in an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct HostBlockId(pub u32);

/// A run of consecutive blocks of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ExtentId(pub u32);

/// Geometry of a storage format: `elements` consecutive values occupy `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockType {
    /// Values in one block.
    pub elements: u32,
    /// Bytes of one block.
    pub bytes: u32,
}

impl BlockType {
    /// Bytes of `elements` values, or `None` if they are no whole number of blocks (or overflow).
    pub const fn bytes_of(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.elements as u64) {
            return None;
        }
        (elements / self.elements as u64).checked_mul(self.bytes as u64)
    }
}

macro_rules! weight_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $text:literal, $elements:literal, $bytes:literal;)*) => {
        /// Storage type of a weight tensor; discriminants are the type ids of GGUF.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[allow(non_camel_case_types)]
        pub enum WeightType { $($(#[$doc])* $name = $id,)* }

        impl WeightType {
            /// Every type, in order of id.
            pub const ALL: &[WeightType] = &[$(WeightType::$name,)*];

            /// The type with GGUF id `id`.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(WeightType::$name),)* _ => None }
            }

            /// The name that GGUF tools print.
            pub const fn name(self) -> &'static str {
                match self { $(WeightType::$name => $text,)* }
            }

            /// Elements and bytes of one block.
            pub const fn block(self) -> BlockType {
                match self { $(WeightType::$name => BlockType { elements: $elements, bytes: $bytes },)* }
            }
        }
    };
}

weight_types! {
    /// 32-bit float.
    F32 = 0, "F32", 1, 4;
    /// 16-bit float.
    F16 = 1, "F16", 1, 2;
    /// 4 bits, scale.
    Q4_0 = 2, "Q4_0", 32, 18;
    /// 4 bits, scale and minimum.
    Q4_1 = 3, "Q4_1", 32, 20;
    /// 5 bits, scale.
    Q5_0 = 6, "Q5_0", 32, 22;
    /// 5 bits, scale and minimum.
    Q5_1 = 7, "Q5_1", 32, 24;
    /// 8 bits, scale.
    Q8_0 = 8, "Q8_0", 32, 34;
    /// 2 bits, 16 sub-blocks of scale and minimum.
    Q2_K = 10, "Q2_K", 256, 84;
    /// 3 bits, 16 sub-block scales.
    Q3_K = 11, "Q3_K", 256, 110;
    /// 4 bits, 8 sub-blocks of scale and minimum.
    Q4_K = 12, "Q4_K", 256, 144;
    /// 5 bits, 8 sub-blocks of scale and minimum.
    Q5_K = 13, "Q5_K", 256, 176;
    /// 6 bits, 16 sub-block scales.
    Q6_K = 14, "Q6_K", 256, 210;
    /// 4-bit codebook, scale.
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    /// 4-bit codebook, 8 sub-block scales.
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    /// bfloat16.
    BF16 = 30, "BF16", 1, 2;
    /// 4-bit float, shared power-of-two scale.
    MXFP4 = 39, "MXFP4", 32, 17;
}

impl WeightType {
    /// Whether the type is a plain float (no blocks, no scales).
    pub const fn is_float(self) -> bool {
        matches!(self, WeightType::F32 | WeightType::F16 | WeightType::BF16)
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Storage type of K or V in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 16-bit float.
    F16,
    /// bfloat16: the range of f32 with 8 bits of precision.
    Bf16,
    /// 32-bit float.
    F32,
}

impl KvType {
    /// Every type.
    pub const ALL: &[KvType] = &[KvType::F16, KvType::Bf16, KvType::F32];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::F32 => "f32",
        }
    }

    /// The type with that command-line name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name() == name)
    }

    /// Elements and bytes of one block.
    pub const fn block(self) -> BlockType {
        match self {
            KvType::F16 | KvType::Bf16 => BlockType { elements: 1, bytes: 2 },
            KvType::F32 => BlockType { elements: 1, bytes: 4 },
        }
    }

    /// Bytes of one row of `elements` values.
    pub const fn row_bytes(self, elements: u32) -> u64 {
        match self.block().bytes_of(elements as u64) {
            Some(bytes) => bytes,
            None => panic!("a KV row is a whole number of blocks"),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A size in bytes that prints in binary units, exactly where it is a whole number of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        for (unit, size) in UNITS {
            if self.0 >= size {
                return write!(f, "{:.2} {unit}", self.0 as f64 / size as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        for &ty in WeightType::ALL {
            assert_eq!(WeightType::from_id(ty as u32), Some(ty));
        }
        for id in [4, 5, 9, 15, 31, 36, 43, u32::MAX] {
            assert_eq!(WeightType::from_id(id), None);
        }
    }

    #[test]
    fn sizes_are_whole_blocks() {
        assert_eq!(WeightType::Q4_K.block().bytes_of(512), Some(288));
        assert_eq!(WeightType::Q4_K.block().bytes_of(32), None);
        assert_eq!(WeightType::F32.block().bytes_of(u64::MAX), None);
        assert_eq!(KvType::F16.row_bytes(64), 128);
        assert_eq!(KvType::from_name("bf16"), Some(KvType::Bf16));
    }
}

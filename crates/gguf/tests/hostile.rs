//! Bad files, one rule at a time. The classes follow the vulnerabilities of other readers, named where a test repeats one.

mod common;

use tailrace_gguf::{Fault, Gguf, GgufError, TensorFault, ValueType, Writer};
use tailrace_types::WeightType;

/// A file put together field by field.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn header(tensors: u64, keys: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }

    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn string(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }

    /// A key and the type of its value.
    fn key(self, key: &[u8], ty: ValueType) -> Self {
        self.string(key).u32(ty as u32)
    }

    /// The head of an array.
    fn array(self, ty: ValueType, count: u64) -> Self {
        self.u32(ty as u32).u64(count)
    }

    fn tensor(self, name: &[u8], shape: &[u64], ty: u32, offset: u64) -> Self {
        let raw = self.string(name).u32(shape.len() as u32);
        shape.iter().fold(raw, |raw, &len| raw.u64(len)).u32(ty).u64(offset)
    }

    /// Padding to `alignment` and `len` bytes of data.
    fn data(mut self, alignment: usize, len: usize) -> Self {
        let start = self.0.len().next_multiple_of(alignment);
        self.0.resize(start + len, 0);
        self
    }

    /// The rule that the file breaks.
    fn fault(self) -> Fault {
        fault_of(vec![self.0])
    }

    /// The rule that its first bad tensor breaks.
    fn tensor_fault(self) -> TensorFault {
        match self.fault() {
            Fault::Tensor { fault, .. } => fault,
            other => panic!("{other:?}"),
        }
    }

    /// What is wrong with its first bad key.
    fn key_problem(self) -> String {
        match self.fault() {
            Fault::Key { problem, .. } => problem,
            other => panic!("{other:?}"),
        }
    }
}

fn fault_of(shards: Vec<Vec<u8>>) -> Fault {
    match Gguf::from_shards(shards) {
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.starts_with("memory"), "{text}");
            match error {
                GgufError::Invalid { fault, .. } => *fault,
                other => panic!("{other:?}"),
            }
        }
        Ok(gguf) => panic!("{gguf:?}"),
    }
}

const F32: u32 = WeightType::F32 as u32;

/// One tensor with 64 bytes of data behind it.
fn one(name: &[u8], shape: &[u64], ty: u32, offset: u64) -> Raw {
    Raw::header(1, 0).tensor(name, shape, ty, offset).data(32, 64)
}

#[test]
fn a_header_needs_24_bytes_magic_and_version() {
    let good = common::everything(3);
    for len in 0..24 {
        assert_eq!(fault_of(vec![good[..len].to_vec()]), Fault::TooShort(len as u64));
    }
    let mut bytes = good.clone();
    bytes[..4].copy_from_slice(b"GG\x1bL");
    assert_eq!(fault_of(vec![bytes]), Fault::Magic("GG\\u{1b}L".into()));
    for version in [0, 1, 4, u32::MAX] {
        let mut bytes = good.clone();
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        assert_eq!(fault_of(vec![bytes]), Fault::Version(version));
    }
    let mut bytes = good;
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert_eq!(fault_of(vec![bytes]), Fault::BigEndian);
}

/// Every prefix that cuts into something is an error: no field is read beyond the end, and no last tensor is half there.
#[test]
fn every_truncation_is_noticed() {
    for version in [2, 3] {
        let good = common::everything(version);
        let padding = good.iter().rev().take_while(|&&byte| byte == 0).count();
        for len in 24..good.len() - padding {
            match fault_of(vec![good[..len].to_vec()]) {
                Fault::Truncated { .. } | Fault::Count { .. } => {}
                Fault::Tensor { fault: TensorFault::Outside { .. }, .. } => {}
                other => panic!("{len}: {other:?}"),
            }
        }
    }
}

/// Counts of keys and tensors: CVE-2024-23605, CVE-2024-21836, CVE-2026-27940.
#[test]
fn counts_are_compared_with_the_file() {
    for count in [3, 1 << 31, 1 << 60, 1 << 63, u64::MAX / 24 + 1, u64::MAX] {
        let keys = Raw::header(0, count).bytes(&[0; 26]).fault();
        assert_eq!(keys, Fault::Count { field: "metadata keys".into(), count, max: 2 });
        let tensors = Raw::header(count, 0).bytes(&[0; 48]).fault();
        assert_eq!(tensors, Fault::Count { field: "tensors".into(), count, max: 2 });
    }
    let many = Raw::header(0, 1 << 17).bytes(&vec![0; 13 << 17]).fault();
    assert!(matches!(many, Fault::Count { max: 65_536, .. }), "{many:?}");
}

/// Lengths of strings: CVE-2024-23496; taken as signed: CVE-2025-49847.
#[test]
fn string_lengths_are_compared_with_the_file() {
    for len in [6, 1 << 20, 1 << 31, 1 << 60, i64::MAX as u64, i64::MIN as u64, u64::MAX - 7, u64::MAX] {
        let bad = |raw: Raw| match raw.u64(len).bytes(b"abcde").fault() {
            Fault::Truncated { .. } | Fault::Count { .. } => {}
            other => panic!("{len}: {other:?}"),
        };
        // 13 bytes, so that the count of keys is possible.
        bad(Raw::header(0, 1));
        bad(Raw::header(0, 1).key(b"k", ValueType::String));
        bad(Raw::header(0, 1).key(b"k", ValueType::Array).array(ValueType::String, 1));
        bad(Raw::header(0, 1).key(b"k", ValueType::Array).array(ValueType::String, 2).string(b"12345678"));
        bad(Raw::header(1, 0).bytes(&[]));
    }
    let long = Raw::header(0, 1).key(&[b'k'; 65_537], ValueType::U8).bytes(&[1]).fault();
    assert!(matches!(long, Fault::Count { count: 65_537, max: 65_536, .. }), "{long:?}");
}

#[test]
fn keys_are_unique_utf8() {
    let twice = Raw::header(0, 2).key(b"k", ValueType::U8).bytes(&[1]).key(b"k", ValueType::U8).bytes(&[1]);
    assert_eq!(twice.key_problem(), "occurs twice");
    assert_eq!(Raw::header(0, 1).key(b"", ValueType::U32).u32(1).key_problem(), "has an empty name");
    let invalid = Raw::header(0, 1).key(b"\xff\n", ValueType::U32).u32(1);
    assert_eq!(invalid.key_problem(), "has a name that is no UTF-8: \"\\xff\\n\"");
    let escaped = Raw::header(0, 1).string(b"\x1b[31m\nx").u32(99).u64(0).fault().to_string();
    assert_eq!(escaped, "metadata key \"\\u{1b}[31m\\nx\": has value type 99, and 0 to 12 are defined");
}

/// Arrays: CVE-2024-21825 and its family (CVE-2024-25664 to -25668).
#[test]
fn arrays_are_compared_with_the_file() {
    let array = || Raw::header(0, 1).key(b"k", ValueType::Array);
    for ty in [13, 1 << 16, u32::MAX] {
        assert!(array().u32(ty).u64(1).u64(0).key_problem().contains("value type"));
        assert!(Raw::header(0, 1).string(b"k").u32(ty).u64(0).key_problem().contains("value type"));
    }
    let nested = array().array(ValueType::Array, 1).array(ValueType::U8, 1).bytes(&[0]);
    assert!(nested.key_problem().contains("array of arrays"));
    let sizes = [
        (ValueType::U8, 1),
        (ValueType::Bool, 1),
        (ValueType::I16, 2),
        (ValueType::F32, 4),
        (ValueType::U64, 8),
        (ValueType::F64, 8),
        (ValueType::String, 8),
    ];
    for (ty, size) in sizes {
        let max = 64 / size;
        for count in [max + 1, 1 << 29, 1 << 32, 1 << 60, (1 << 61) + 1, 1 << 63, u64::MAX] {
            let fault = array().array(ty, count).bytes(&[0; 64]).fault();
            assert_eq!(fault, Fault::Count { field: "elements in metadata key \"k\"".into(), count, max });
        }
    }
}

#[test]
fn alignment_is_a_power_of_two_within_reason() {
    for bytes in [0, 1, 4, 7, 24, 48, 1 << 21, 1 << 31, u32::MAX] {
        let fault = Raw::header(0, 1).key(b"general.alignment", ValueType::U32).u32(bytes).fault();
        assert_eq!(fault, Fault::Alignment(format!("u32 {bytes}")));
    }
    let wide = Raw::header(0, 1).key(b"general.alignment", ValueType::U64).u64(32).fault();
    assert_eq!(wide, Fault::Alignment("u64 32".into()));
    let text = Raw::header(0, 1).key(b"general.alignment", ValueType::String).string(b"\n").fault();
    assert_eq!(text, Fault::Alignment("string \"\\n\"".into()));
}

#[test]
fn tensor_names_are_short_unique_utf8() {
    for name in [&b""[..], &[b'n'; 64], &[b'n'; 4096], b"\xc3\x28"] {
        let fault = one(name, &[4], F32, 0).tensor_fault();
        assert!(matches!(fault, TensorFault::Name(_)), "{fault:?}");
    }
    let twice = Raw::header(2, 0).tensor(b"t", &[4], F32, 0).tensor(b"t", &[4], F32, 32).data(32, 64);
    assert_eq!(twice.tensor_fault(), TensorFault::Duplicate);
    let escaped = one(b"\x1b]0;x\x07", &[0], F32, 0).fault().to_string();
    assert!(escaped.starts_with("tensor \"\\u{1b}]0;x\\u{7}\": has 0 elements"), "{escaped}");
}

/// Shapes: CVE-2024-21802.
#[test]
fn shapes_have_1_to_4_dimensions_within_reason() {
    for dims in [0, 5, 1 << 30, u32::MAX] {
        let raw = Raw::header(1, 0).string(b"t").u32(dims).bytes(&[1; 64]);
        assert_eq!(raw.tensor_fault(), TensorFault::Dimensions(dims));
    }
    for len in [0, (1 << 48) + 1, 1 << 63, u64::MAX] {
        for dimension in 0..4 {
            let mut shape = [1; 4];
            shape[dimension] = len;
            let fault = one(b"t", &shape, F32, 0).tensor_fault();
            assert_eq!(fault, TensorFault::Dimension { dimension, len });
        }
    }
}

/// Products of shapes and sizes: GHSA-96jg-mvhq-q7q7, CVE-2025-53630, and a padded size that wraps to zero.
#[test]
fn sizes_do_not_overflow() {
    let overflows: [&[u64]; 4] = [
        &[1 << 32, 1 << 32],
        &[1 << 48, 1 << 48, 1 << 48, 1 << 48],
        &[1 << 31, 1 << 31],       // 2^62 elements fit, 2^64 bytes do not
        &[1 << 31, 1 << 31, 1, 4], // wraps to 0 elements
    ];
    for shape in overflows {
        assert_eq!(one(b"t", shape, F32, 0).tensor_fault(), TensorFault::Size(shape.to_vec()));
    }
    // 2^64 - 16 bytes: the size fits, padding it to 32 does not.
    let shape = [4 * ((1 << 30) - 1), (1 << 30) + 1];
    for offset in [0, 32, u64::MAX - 31] {
        let fault = one(b"t", &shape, F32, offset).tensor_fault();
        assert_eq!(fault, TensorFault::Outside { bytes: u64::MAX - 15, offset, section: 64 });
    }
}

#[test]
fn unsupported_types_are_named() {
    let types = [
        (16, "IQ2_XXS (16)"),
        (9, "Q8_1 (9)"),
        (15, "Q8_K (15)"),
        (26, "I32 (26)"),
        (28, "F64 (28)"),
        (34, "TQ1_0 (34)"),
        (40, "NVFP4 (40)"),
        (42, "Q2_0 (42)"),
        (4, "4 (withdrawn from GGUF)"),
        (38, "38 (withdrawn from GGUF)"),
        (43, "43 (unknown)"),
        (u32::MAX, "4294967295 (unknown)"),
    ];
    for (id, name) in types {
        assert_eq!(one(b"t", &[256], id, 0).tensor_fault(), TensorFault::Type(name.into()));
    }
    // Every id is either a weight type or an error.
    for id in 0..100 {
        let fits = one(b"t", &[256], id, 0).data(32, 2048);
        assert_eq!(Gguf::from_bytes(fits.0).is_ok(), WeightType::from_id(id).is_some(), "{id}");
    }
    assert_eq!(
        one(b"blk.0.ffn_up.weight", &[256], 16, 0).fault().to_string(),
        "tensor \"blk.0.ffn_up.weight\": has type IQ2_XXS (16), which is not supported; requantise the model to one of F32 F16 \
         Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS BF16 MXFP4"
    );
}

#[test]
fn rows_are_whole_blocks() {
    for &ty in WeightType::ALL {
        let block = ty.block().elements;
        if block > 1 {
            // A whole number of blocks in all, but not in each row.
            let row = u64::from(block / 2);
            let fault = one(b"t", &[row, 2], ty as u32, 0).tensor_fault();
            assert_eq!(fault, TensorFault::Row { row, block, ty });
        }
    }
}

/// Offsets: CVE-2026-7482.
#[test]
fn data_lies_within_the_file() {
    for offset in [1, 16, 33, u64::MAX] {
        let fault = one(b"t", &[4], F32, offset).tensor_fault();
        assert_eq!(fault, TensorFault::Unaligned { offset, alignment: 32 });
    }
    for (len, offset) in [(17, 0), (9, 32), (1, 64), (1, 1 << 40), (1, 1 << 63), (1, u64::MAX - 31)] {
        let fault = one(b"t", &[len], F32, offset).tensor_fault();
        assert_eq!(fault, TensorFault::Outside { bytes: 4 * len, offset, section: 64 });
    }
    assert!(Gguf::from_bytes(one(b"t", &[16], F32, 0).0).is_ok());
    assert!(Gguf::from_bytes(one(b"t", &[8], F32, 32).0).is_ok());
    // The file ends before its data section begins.
    let headless = Raw::header(1, 0).tensor(b"t", &[1], F32, 0).tensor_fault();
    assert_eq!(headless, TensorFault::Outside { bytes: 4, offset: 0, section: 0 });
}

#[test]
fn tensors_do_not_overlap() {
    let two = |shape: u64, offset| {
        let raw = Raw::header(2, 0).tensor(b"a", &[shape], F32, offset);
        raw.tensor(b"b", &[8], F32, 32).data(32, 128)
    };
    assert!(Gguf::from_bytes(two(8, 0).0).is_ok());
    assert!(Gguf::from_bytes(two(8, 64).0).is_ok());
    for (shape, offset) in [(9, 0), (32, 0), (8, 32), (1, 32)] {
        let fault = two(shape, offset).tensor_fault();
        assert!(matches!(fault, TensorFault::Overlap(_)), "{fault:?}");
    }
}

#[test]
fn shards_must_belong_together() {
    let good = common::split();
    let problem = |shards: Vec<Vec<u8>>| match fault_of(shards) {
        Fault::Split(problem) => problem,
        other => panic!("{other:?}"),
    };
    let [a, b, c] = [0, 1, 2].map(|i| good[i].clone());
    assert!(problem(vec![a.clone(), b.clone()]).contains("is file 1 of 3, and 2 were given"));
    assert!(problem(vec![a.clone(), c.clone(), b.clone()]).contains("says that it is file 3 of 3"));
    assert!(problem(vec![a.clone(), a.clone(), c.clone()]).contains("says that it is file 1 of 3"));
    assert!(problem(vec![b.clone(), a.clone(), c.clone()]).contains("is file 2 of 3"));
    let stranger = common::everything(3);
    assert!(problem(vec![a.clone(), b.clone(), stranger.clone()]).contains("a model of its own"));
    assert!(problem(vec![stranger, b.clone()]).contains("is file 1 of 1"));

    let shard = |number: u16, tensors: i32, name: &str| {
        let mut writer = Writer::new();
        writer.set("split.no", number).set("split.count", 3u16).set("split.tensors.count", tensors);
        writer.tensor(name, &[1], WeightType::F32, vec![0; 4]).unwrap();
        writer.to_bytes()
    };
    let wrong_sum = vec![shard(0, 4, "t0"), b.clone(), c.clone()];
    assert!(problem(wrong_sum).contains("4 tensors in all its files"));
    let twice = fault_of(vec![a.clone(), shard(1, 3, "t0"), c]);
    assert!(matches!(twice, Fault::Tensor { fault: TensorFault::Duplicate, .. }), "{twice:?}");
    // Each shard is held against its own length.
    let cut = fault_of(vec![a, shard(1, 3, "t1"), good[2][..good[2].len() - 32].to_vec()]);
    assert!(matches!(cut, Fault::Tensor { fault: TensorFault::Outside { .. }, .. }), "{cut:?}");
}

#[test]
fn nothing_is_no_model() {
    assert_eq!(fault_of(Vec::new()), Fault::TooShort(0));
}

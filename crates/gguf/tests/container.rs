//! Good files: what is written is what is read, from memory, from disk, whole and in parts.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use tailrace_gguf::{Array, Fault, Gguf, GgufError, Metadata, Strings, Value, Writer, decode_row, quantize_row};
use tailrace_types::WeightType;

#[test]
fn every_value_and_every_type_come_back() {
    for version in [2, 3] {
        let gguf = Gguf::from_bytes(common::everything(version)).unwrap();
        for (number, value) in common::every_value().iter().enumerate() {
            assert_eq!(gguf.metadata().get(&format!("test.value.{number:02}")), Some(value));
        }
        assert_eq!(gguf.tensors().len(), WeightType::ALL.len());
        for (number, &ty) in WeightType::ALL.iter().enumerate() {
            let index = gguf.tensor_index(&format!("blk.{number}.weight")).unwrap();
            let tensor = &gguf.tensors()[index];
            assert_eq!((index, tensor.ty, tensor.dims, tensor.rows()), (number, ty, 2, 2));
            assert_eq!(tensor.shape(), &tensor.ne[..2]);
            assert_eq!(Some(tensor.row_bytes()), ty.block().bytes_of(tensor.ne[0]));
            assert_eq!(tensor.offset % 64, 0);
            let row = tensor.ne[0] as i64;
            let values: Vec<f32> = (0..2 * row).map(|i| (i - row) as f32).collect();
            assert_eq!(gguf.tensor_data(index), quantize_row(ty, &values));
        }
        assert_eq!(gguf.tensor_index("blk.99.weight"), None);
    }
}

/// The golden models were written by the `gguf` Python package.
#[test]
fn files_of_another_writer_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/models");
    let mut types = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let gguf = Gguf::open(&path).unwrap();
        assert!(gguf.metadata().str("general.architecture").unwrap().is_some());
        for (index, tensor) in gguf.tensors().iter().enumerate() {
            let mut values = vec![f32::NAN; tensor.elements() as usize];
            decode_row(tensor.ty, gguf.tensor_data(index), &mut values);
            assert!(values.iter().all(|x| x.is_finite() && x.abs() < 1e4), "{path:?} {tensor:?}");
            types.insert(tensor.ty);
        }
    }
    assert_eq!(types, BTreeSet::from_iter(WeightType::ALL.iter().copied()));
}

#[test]
fn a_file_without_tensors_ends_where_it_likes() {
    let mut bytes = Writer::with_metadata(Metadata::from_iter([("a", 1u8)])).to_bytes();
    while bytes.len() > 24 + 8 + 1 + 4 + 1 {
        bytes.pop();
        assert_eq!(Gguf::from_bytes(bytes.clone()).unwrap().metadata().u32("a").unwrap(), Some(1));
    }
}

#[test]
fn gaps_between_tensors_are_allowed() {
    let mut writer = Writer::new();
    writer.tensor("a", &[4], WeightType::F32, vec![1; 16]).unwrap();
    writer.tensor("b", &[4], WeightType::F32, vec![2; 16]).unwrap();
    let mut bytes = writer.to_bytes();
    // The last field before the padding of the header is the offset of `b`.
    let place = bytes.windows(8).rposition(|window| window == 32u64.to_le_bytes()).unwrap();
    bytes[place..place + 8].copy_from_slice(&96u64.to_le_bytes());
    bytes.extend([3; 64]);
    let gguf = Gguf::from_bytes(bytes).unwrap();
    assert_eq!(gguf.tensor_data(0), [1; 16]);
    assert_eq!(gguf.tensor_data(1), [3; 16]);
}

#[test]
fn a_split_model_is_one_model() {
    let check = |gguf: &Gguf| {
        assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("test"));
        for number in 0..3 {
            let index = gguf.tensor_index(&format!("t{number}")).unwrap();
            assert_eq!(gguf.tensors()[index].shard, number);
            assert_eq!(gguf.tensor_data(index), vec![number as u8; 34 * (1 + number)]);
        }
    };
    let shards = common::split();
    check(&Gguf::from_shards(shards.clone()).unwrap());

    let folder = tempfile::tempdir().unwrap();
    let path = |number: usize| folder.path().join(format!("m-{number:05}-of-00003.gguf"));
    for (i, shard) in shards.iter().enumerate() {
        std::fs::write(path(i + 1), shard).unwrap();
    }
    let gguf = Gguf::open(path(1)).unwrap();
    check(&gguf);
    assert_eq!(gguf.file_names().len(), 3);
    assert_eq!(gguf.file_bytes(), shards.iter().map(|shard| shard.len() as u64).sum());

    let text = Gguf::open(path(2)).unwrap_err().to_string();
    assert!(text.contains("is file 2 of 3") && text.contains("-00001-of-00003.gguf"), "{text}");
    std::fs::remove_file(path(3)).unwrap();
    let text = Gguf::open(path(1)).unwrap_err().to_string();
    assert!(text.contains("m-00003-of-00003.gguf: cannot be read"), "{text}");
    let renamed = folder.path().join("m.gguf");
    std::fs::rename(path(1), &renamed).unwrap();
    let text = Gguf::open(renamed).unwrap_err().to_string();
    assert!(text.contains("must end in \"-00001-of-00003.gguf\""), "{text}");
}

#[test]
fn released_data_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let data: Vec<u8> = (0..1u32 << 20).flat_map(|i| i.to_le_bytes()).collect();
    let mut writer = Writer::new();
    writer.tensor("a", &[1 << 20], WeightType::F32, data.clone()).unwrap();
    writer.tensor("b", &[4], WeightType::F32, vec![7; 16]).unwrap();
    writer.write(&path).unwrap();

    let gguf = Gguf::open(&path).unwrap();
    gguf.will_need(0, 0..data.len());
    for range in [0..data.len(), 0..0, 5..4096, 100_000..data.len(), data.len()..data.len()] {
        assert!(gguf.tensor_data(0) == data);
        gguf.release(0, range);
    }
    assert!(gguf.tensor_data(0) == data);
    gguf.release(1, 0..16);
    assert_eq!(gguf.tensor_data(1), [7; 16]);
}

/// Resident bytes of this process.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn a_release_gives_memory_back() {
    const BYTES: usize = 64 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let mut writer = Writer::new();
    writer.tensor("a", &[BYTES as u64 / 4], WeightType::F32, vec![1; BYTES]).unwrap();
    writer.write(&path).unwrap();
    drop(writer);

    let gguf = Gguf::open(&path).unwrap();
    let sum: usize = gguf.tensor_data(0).iter().step_by(1024).map(|&byte| usize::from(byte)).sum();
    assert_eq!(sum, BYTES / 1024);
    let before = resident();
    gguf.release(0, 0..BYTES);
    // Other tests run beside this one, so half of it is enough.
    assert!(resident() + BYTES as u64 / 2 < before, "{before} bytes before, {} after", resident());
}

#[test]
#[should_panic(expected = "lies within the 16 bytes of a")]
fn a_release_stays_within_its_tensor() {
    let mut writer = Writer::new();
    writer.tensor("a", &[4], WeightType::F32, vec![7; 16]).unwrap();
    Gguf::from_bytes(writer.to_bytes()).unwrap().release(0, 0..17);
}

#[test]
fn a_file_that_shrinks_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, common::everything(3)).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    gguf.check_length().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    match gguf.check_length() {
        Err(GgufError::Changed { opened, now: 100, .. }) => assert_eq!(opened, gguf.file_bytes()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_name_the_file_on_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = |path: &Path| {
        let text = Gguf::open(path).unwrap_err().to_string();
        assert!(!text.contains(char::is_control), "{text:?}");
        text
    };
    let missing = folder.path().join("missing\n\x1b.gguf");
    assert!(text(&missing).contains("missing\\n\\u{1b}.gguf: cannot be read"));
    assert!(text(folder.path()).contains("not a regular file"));
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    assert!(text(&empty).contains("empty.gguf: is 0 bytes long"));
    assert!(matches!(Gguf::open(&empty), Err(GgufError::Invalid { fault, .. }) if *fault == Fault::TooShort(0)));
}

#[test]
fn a_writer_refuses_data_that_does_not_match() {
    let mut writer = Writer::new();
    let mut refused = |shape: &[u64], ty, bytes| {
        let error = writer.tensor("a", shape, ty, vec![0; bytes]).unwrap_err();
        assert!(error.to_string().starts_with("tensor \"a\" cannot be written"), "{error}");
    };
    refused(&[4], WeightType::F32, 15);
    refused(&[16, 2], WeightType::Q8_0, 34);
    refused(&[1 << 40, 1 << 40], WeightType::F32, 0);
    refused(&[], WeightType::F32, 4);
}

fn value() -> impl Strategy<Value = Value> {
    let strings = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..8);
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u64>().prop_map(Value::U64),
        any::<bool>().prop_map(Value::Bool),
        prop::num::f32::NORMAL.prop_map(Value::F32),
        prop::num::f64::NORMAL.prop_map(Value::F64),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|text| Value::String(text.into())),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(Value::from),
        prop::collection::vec(any::<u16>(), 0..9).prop_map(|v| Array::U16(v).into()),
        strings.prop_map(|texts| texts.into_iter().collect::<Strings>().into()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(
        values in prop::collection::btree_map("[a-z.\u{e9}]{1,20}", value(), 0..12),
        tensors in prop::collection::btree_map("[a-z.0-9]{1,63}", (prop::collection::vec(1u64..5, 1..=4), 0usize..16), 0..8),
        alignment in 3u32..10,
    ) {
        let mut metadata: Metadata = values.iter().map(|(key, value)| (key, value.clone())).collect();
        metadata.insert("general.alignment", 1u32 << alignment);
        let mut writer = Writer::with_metadata(metadata.clone());
        let mut expected = Vec::new();
        for (number, (name, (shape, ty))) in tensors.into_iter().enumerate() {
            let ty = WeightType::ALL[ty];
            let mut shape = shape;
            shape[0] *= u64::from(ty.block().elements);
            let bytes = ty.block().bytes_of(shape.iter().product()).unwrap();
            let data = vec![number as u8 + 1; bytes as usize];
            writer.tensor(&name, &shape, ty, data.clone()).unwrap();
            expected.push((name, shape, ty, data));
        }
        let gguf = Gguf::from_bytes(writer.to_bytes()).unwrap();
        prop_assert_eq!(gguf.metadata(), &metadata);
        prop_assert_eq!(gguf.tensors().len(), expected.len());
        for (index, (name, shape, ty, data)) in expected.iter().enumerate() {
            let tensor = &gguf.tensors()[index];
            prop_assert_eq!((&tensor.name, tensor.shape(), &tensor.ty), (name, &shape[..], ty));
            prop_assert_eq!(gguf.tensor_index(name), Some(index));
            prop_assert_eq!(gguf.tensor_data(index), &data[..]);
        }
    }
}

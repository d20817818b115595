//! Small valid files for the tests of this crate.

use tailrace_gguf::{Array, Strings, Value, Writer, quantize_row};
use tailrace_types::WeightType;

/// A file of `version` with a value of every type and a tensor of every weight type.
pub(crate) fn everything(version: u32) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.version(version);
    for (number, value) in every_value().into_iter().enumerate() {
        writer.set(&format!("test.value.{number:02}"), value);
    }
    writer.set("general.architecture", "test").set("general.alignment", 64u32);
    for (number, &ty) in WeightType::ALL.iter().enumerate() {
        let row = u64::from(ty.block().elements) * (1 + number as u64 % 2);
        let values: Vec<f32> = (0..2 * row).map(|i| i as f32 - row as f32).collect();
        let name = format!("blk.{number}.weight");
        writer.tensor(&name, &[row, 2], ty, quantize_row(ty, &values)).unwrap();
    }
    writer.to_bytes()
}

/// A value of every type, scalar and array, and empty arrays.
pub(crate) fn every_value() -> Vec<Value> {
    let tokens: Strings = [&b"a"[..], b"", b"\xff\x00", "\u{2581}the".as_bytes()].into_iter().collect();
    vec![
        Value::U8(200),
        Value::I8(-100),
        Value::U16(60_000),
        Value::I16(-30_000),
        Value::U32(4_000_000_000),
        Value::I32(-2_000_000_000),
        Value::F32(1.5),
        Value::Bool(true),
        Value::from("text \u{1b}[2J"),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(-0.1),
        Array::U8(vec![1, 255]).into(),
        Array::I8(vec![-1]).into(),
        Array::U16(vec![1, 65_535]).into(),
        Array::I16(vec![-1]).into(),
        Array::U32(vec![1, 2, 3]).into(),
        Array::I32(vec![-1, 1]).into(),
        Array::F32(vec![0.5, -0.5]).into(),
        Array::Bool(vec![true, false]).into(),
        Array::Strings(tokens).into(),
        Array::U64(vec![1 << 60]).into(),
        Array::I64(vec![-1]).into(),
        Array::F64(vec![0.1]).into(),
        Array::Strings(Strings::default()).into(),
        Array::U32(Vec::new()).into(),
    ]
}

/// A model in three files of one tensor each, the last with no key but those of the split.
pub(crate) fn split() -> Vec<Vec<u8>> {
    (0..3u16)
        .map(|number| {
            let mut writer = Writer::new();
            if number == 0 {
                writer.set("general.architecture", "test");
            }
            writer.set("split.no", number).set("split.count", 3u16).set("split.tensors.count", 3i32);
            let data = vec![number as u8; 34 * (1 + number as usize)];
            let shape = [32, 1 + u64::from(number)];
            writer.tensor(&format!("t{number}"), &shape, WeightType::Q8_0, data).unwrap();
            writer.to_bytes()
        })
        .collect()
}

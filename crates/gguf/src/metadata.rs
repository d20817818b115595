//! The metadata of a model and its typed getters.

use std::collections::BTreeMap;

use crate::error::{GgufError, escape, quote};
use crate::value::{Array, Strings, Value};

/// Keys and values of a GGUF file, in order of key.
///
/// A getter answers `Ok(None)` where the key is absent and an error that names key, found and wanted type where the value does not
/// fit. Integers may have any width that holds the value, floats either width. An empty array passes for an array of any type:
/// writers that cannot know the element type of nothing put down an arbitrary one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// No keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key`, and answers the value that it had.
    pub fn insert(&mut self, key: &str, value: impl Into<Value>) -> Option<Value> {
        self.values.insert(key.to_owned(), value.into())
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Keys and values in order of key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The value of `key` as `u32`.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.integer(key, "u32")
    }

    /// The value of `key` as `u64`.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.integer(key, "u64")
    }

    /// The value of `key` as `i32`.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, GgufError> {
        self.integer(key, "i32")
    }

    /// The value of `key` as `f32`, rounded if the file has an `f64`. It may be infinite or no number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::F32(v)) => Ok(Some(*v)),
            Some(Value::F64(v)) => Ok(Some(*v as f32)),
            Some(other) => Err(wrong(key, other, "f32")),
        }
    }

    /// The value of `key` as `bool`.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => Err(wrong(key, other, "bool")),
        }
    }

    /// The text of `key`, which must be UTF-8.
    pub fn str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::String(text)) => match std::str::from_utf8(text) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(wrong_value(key, value, "string of UTF-8")),
            },
            Some(other) => Err(wrong(key, other, "string")),
        }
    }

    /// The texts of `key`; they may be any bytes.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Strings(strings))) => Ok(Some(strings)),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(Strings::EMPTY)),
            Some(other) => Err(wrong(key, other, "array of string")),
        }
    }

    /// The elements of `key` as `f32`, rounded if the file has `f64`.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(v))) => Ok(Some(v.clone())),
            Some(Value::Array(Array::F64(v))) => Ok(Some(v.iter().map(|&x| x as f32).collect())),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(Vec::new())),
            Some(other) => Err(wrong(key, other, "array of f32")),
        }
    }

    /// The elements of `key` as `i32`.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, GgufError> {
        self.integers(key, "array of i32")
    }

    /// The elements of `key` as `u32`.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, GgufError> {
        self.integers(key, "array of u32")
    }

    /// The elements of `key` as bytes: an array of `u8`, or of `i8` taken as bits.
    pub fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::U8(v))) => Ok(Some(v.clone())),
            Some(Value::Array(Array::I8(v))) => Ok(Some(v.iter().map(|&x| x as u8).collect())),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(Vec::new())),
            Some(other) => Err(wrong(key, other, "array of u8")),
        }
    }

    /// The elements of `key` as `bool`.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Bool(v))) => Ok(Some(v.clone())),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(Vec::new())),
            Some(other) => Err(wrong(key, other, "array of bool")),
        }
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, wanted: &'static str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let integer = value.as_integer().ok_or_else(|| wrong(key, value, wanted))?;
        match T::try_from(integer) {
            Ok(integer) => Ok(Some(integer)),
            Err(_) => Err(wrong_value(key, value, wanted)),
        }
    }

    fn integers<T: TryFrom<i128>>(&self, key: &str, wanted: &'static str) -> Result<Option<Vec<T>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(Vec::new())),
            Some(value @ Value::Array(array)) => match array.integers() {
                Some(Ok(integers)) => Ok(Some(integers)),
                Some(Err(outlier)) => Err(GgufError::WrongType {
                    key: escape(key.as_bytes()),
                    found: format!("{} with element {outlier}", value.type_name()),
                    wanted,
                }),
                None => Err(wrong(key, value, wanted)),
            },
            Some(other) => Err(wrong(key, other, wanted)),
        }
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(values: I) -> Self {
        Self { values: values.into_iter().map(|(key, value)| (key.into(), value.into())).collect() }
    }
}

fn wrong(key: &str, value: &Value, wanted: &'static str) -> GgufError {
    GgufError::WrongType { key: escape(key.as_bytes()), found: value.type_name(), wanted }
}

fn wrong_value(key: &str, value: &Value, wanted: &'static str) -> GgufError {
    let found = match value {
        Value::String(text) => format!("string {}", quote(text)),
        other => format!("{} {other}", other.type_name()),
    };
    GgufError::WrongType { key: escape(key.as_bytes()), found, wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("small", 7u8);
        metadata.insert("negative", -1i64);
        metadata.insert("float", 0.5f64);
        metadata.insert("text", "é");
        metadata.insert("broken", Value::String(b"\xff\n".as_slice().into()));
        metadata.insert("ids", vec![1i32, -2]);
        metadata.insert("none", Array::U64(Vec::new()));
        metadata.insert("flags", vec![true, false]);
        metadata.insert("map", Array::I8(vec![-1]));
        metadata.insert("tokens", ["a", "b"].into_iter().collect::<Strings>());
        metadata
    }

    #[test]
    fn getters_accept_what_fits() {
        let m = sample();
        assert_eq!(m.u32("small").unwrap(), Some(7));
        assert_eq!(m.u64("small").unwrap(), Some(7));
        assert_eq!(m.i32("negative").unwrap(), Some(-1));
        assert_eq!(m.f32("float").unwrap(), Some(0.5));
        assert_eq!(m.str("text").unwrap(), Some("é"));
        assert_eq!(m.i32s("ids").unwrap(), Some(vec![1, -2]));
        assert_eq!(m.bools("flags").unwrap(), Some(vec![true, false]));
        assert_eq!(m.bytes("map").unwrap(), Some(vec![255]));
        assert_eq!(m.strings("tokens").unwrap().unwrap().get(1), Some(&b"b"[..]));
    }

    #[test]
    fn an_absent_key_is_no_error() {
        let m = sample();
        assert_eq!(m.u32("x").unwrap(), None);
        assert_eq!(m.f32("x").unwrap(), None);
        assert_eq!(m.bool("x").unwrap(), None);
        assert_eq!(m.str("x").unwrap(), None);
        assert_eq!(m.strings("x").unwrap(), None);
        assert_eq!(m.u32s("x").unwrap(), None);
        assert_eq!(m.f32s("x").unwrap(), None);
        assert_eq!(m.bools("x").unwrap(), None);
        assert_eq!(m.bytes("x").unwrap(), None);
    }

    #[test]
    fn an_empty_array_has_every_element_type() {
        let m = sample();
        assert!(m.strings("none").unwrap().unwrap().is_empty());
        assert_eq!(m.u32s("none").unwrap(), Some(vec![]));
        assert_eq!(m.f32s("none").unwrap(), Some(vec![]));
        assert_eq!(m.bools("none").unwrap(), Some(vec![]));
        assert_eq!(m.bytes("none").unwrap(), Some(vec![]));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let m = sample();
        let text = |e: GgufError| e.to_string();
        assert_eq!(text(m.u32("negative").unwrap_err()), "metadata key \"negative\" holds i64 -1, but u32 is needed");
        assert_eq!(text(m.u32("text").unwrap_err()), "metadata key \"text\" holds string, but u32 is needed");
        assert_eq!(
            text(m.str("broken").unwrap_err()),
            "metadata key \"broken\" holds string \"\\xff\\n\", but string of UTF-8 is needed"
        );
        assert_eq!(
            text(m.u32s("ids").unwrap_err()),
            "metadata key \"ids\" holds array of 2 i32 with element -2, but array of u32 is needed"
        );
        assert!(m.f32("small").is_err());
        assert!(m.bool("small").is_err());
        assert!(m.strings("ids").is_err());
        assert!(m.f32s("ids").is_err());
        assert!(m.bools("ids").is_err());
        assert!(m.bytes("ids").is_err());
        assert!(m.u32s("small").is_err());
    }
}

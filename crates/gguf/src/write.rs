//! Writing GGUF files, for tests and tools.

use std::path::Path;

use tailrace_types::WeightType;

use crate::error::{GgufError, escape};
use crate::metadata::Metadata;
use crate::parse::{ALIGNMENT_DEFAULT, ALIGNMENT_KEY};
use crate::value::{Array, Value};

/// Builds a GGUF file in memory.
///
/// Keys are written in their order, tensors in the order in which they were added, each padded to the alignment. Only what a tensor's
/// data must match is checked: a writer that could not make broken files would be no help in testing a reader.
#[derive(Clone, Debug, PartialEq)]
pub struct Writer {
    version: u32,
    metadata: Metadata,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug, PartialEq)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    ty: WeightType,
    data: Vec<u8>,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// A file of version 3 without keys and tensors.
    pub fn new() -> Self {
        Self::with_metadata(Metadata::new())
    }

    /// A file of version 3 with the keys of `metadata`.
    pub fn with_metadata(metadata: Metadata) -> Self {
        Self { version: 3, metadata, tensors: Vec::new() }
    }

    /// Writes another version into the header; the layout is that of versions 2 and 3.
    pub fn version(&mut self, version: u32) -> &mut Self {
        self.version = version;
        self
    }

    /// Sets `key`. `general.alignment`, if it is a `u32` power of two, also aligns the tensors.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.metadata.insert(key, value);
        self
    }

    /// Adds a tensor of `shape` (the row first) and type `ty` with blocks `data`.
    ///
    /// # Errors
    ///
    /// [`GgufError::WriteTensor`] if `data` is not as long as `shape` and `ty` say.
    pub fn tensor(&mut self, name: &str, shape: &[u64], ty: WeightType, data: Vec<u8>) -> Result<&mut Self, GgufError> {
        let elements = shape.iter().try_fold(1u64, |product, &len| product.checked_mul(len));
        let whole_rows = shape.first().is_some_and(|row| row.is_multiple_of(ty.block().elements.into()));
        let bytes = elements.and_then(|elements| ty.block().bytes_of(elements));
        if !whole_rows || bytes != Some(data.len() as u64) {
            return Err(GgufError::WriteTensor {
                name: escape(name.as_bytes()),
                found: data.len(),
                shape: shape.to_vec(),
                ty,
            });
        }
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), ty, data });
        Ok(self)
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let alignment = match self.metadata.get(ALIGNMENT_KEY) {
            Some(&Value::U32(bytes)) if bytes.is_power_of_two() => bytes as usize,
            _ => ALIGNMENT_DEFAULT as usize,
        };
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_string(&mut out, key.as_bytes());
            out.extend((value.value_type() as u32).to_le_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&mut out, tensor.name.as_bytes());
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            out.extend(tensor.shape.iter().flat_map(|len| len.to_le_bytes()));
            out.extend((tensor.ty as u32).to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(alignment);
        }
        out.resize(out.len().next_multiple_of(alignment), 0);
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            out.resize(out.len().next_multiple_of(alignment), 0);
        }
        out
    }

    /// Writes the file to `path`.
    ///
    /// # Errors
    ///
    /// [`GgufError::Io`] if the system refuses.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), GgufError> {
        let path = path.as_ref();
        std::fs::write(path, self.to_bytes())
            .map_err(|source| GgufError::Io { file: escape(path.as_os_str().as_encoded_bytes()), source })
    }
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::String(text) => put_string(out, text),
        Value::Array(array) => {
            out.extend((array.element_type() as u32).to_le_bytes());
            out.extend((array.len() as u64).to_le_bytes());
            put_elements(out, array);
        }
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_elements(out: &mut Vec<u8>, array: &Array) {
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::U16(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I16(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::U32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::F32(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&v| u8::from(v))),
        Array::Strings(v) => v.iter().for_each(|text| put_string(out, text)),
        Array::U64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::I64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
        Array::F64(v) => out.extend(v.iter().flat_map(|v| v.to_le_bytes())),
    }
}

//! One container: header, metadata, tensor infos and the layout of the data section.

use tailrace_types::WeightType;

use crate::cursor::Cursor;
use crate::error::{Fault, TensorFault, escape, quote};
use crate::metadata::Metadata;
use crate::value::{Array, Strings, Value, ValueType};

/// Most keys in a file. The largest known models have about a hundred.
const KEYS_MAX: u64 = 1 << 16;
/// Most tensors in a file. A mixture of experts stored expert by expert reaches about 50,000.
const TENSORS_MAX: u64 = 1 << 18;
/// Longest key, in bytes.
const KEY_BYTES_MAX: u64 = 64 << 10;
/// Longest string value, in bytes. Chat templates reach some hundred KiB.
const STRING_BYTES_MAX: u64 = 64 << 20;
/// Most elements in an array. Merge lists reach 600,000.
const ELEMENTS_MAX: u64 = 1 << 26;
/// Largest dimension of a tensor.
const DIMENSION_MAX: u64 = 1 << 48;
/// Longest tensor name, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Fewest bytes of a key with its value: length, type and one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
/// Fewest bytes of a tensor info: length, number of dimensions, type and offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 4 + 8;

/// Alignment of the data section where the file names none.
pub(crate) const ALIGNMENT_DEFAULT: u64 = 32;
/// The key that names another one.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Where one tensor lies and what its bytes mean.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name, 1 to 63 bytes.
    pub name: String,
    /// Elements in each dimension, the contiguous one (the row) first; 1 beyond `dims`.
    pub ne: [u64; 4],
    /// How many dimensions the file gives, 1 to 4.
    pub dims: u32,
    /// Storage type.
    pub ty: WeightType,
    /// Bytes of data.
    pub bytes: u64,
    /// Which file of a split model holds it, from 0.
    pub shard: usize,
    /// Offset of the data from the start of that file, in bytes.
    pub offset: u64,
}

impl TensorInfo {
    /// Elements in each dimension that the file gives, the row first.
    pub fn shape(&self) -> &[u64] {
        &self.ne[..self.dims as usize]
    }

    /// Elements in all.
    pub fn elements(&self) -> u64 {
        // Checked when the file was read: the product fits.
        self.ne.iter().product()
    }

    /// Rows: elements in all but the first dimension.
    pub fn rows(&self) -> u64 {
        self.ne[1..].iter().product()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.rows()
    }
}

/// A container whose every field was checked against its bytes.
pub(crate) struct Container {
    pub(crate) metadata: Metadata,
    /// In file order.
    pub(crate) tensors: Vec<TensorInfo>,
    /// Bytes before the data section.
    pub(crate) header_bytes: usize,
}

/// Reads the container in `bytes`, which is file number `shard` of its model.
pub(crate) fn parse(bytes: &[u8], shard: usize) -> Result<Container, Fault> {
    let mut reader = Reader { cursor: Cursor::new(bytes), len: bytes.len() as u64 };
    let (tensor_count, key_count) = reader.header()?;
    let metadata = reader.metadata(key_count)?;
    let alignment = alignment(&metadata)?;
    let tensors = reader.tensors(tensor_count, shard)?;
    let header_bytes = reader.cursor.at();
    let tensors = place(tensors, header_bytes as u64, alignment, reader.len)?;
    Ok(Container { metadata, tensors, header_bytes })
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    len: u64,
}

impl<'a> Reader<'a> {
    /// Magic, version and the counts of tensors and of keys.
    fn header(&mut self) -> Result<(u64, u64), Fault> {
        let short = Fault::TooShort(self.len);
        if self.len < 24 {
            return Err(short);
        }
        let magic: [u8; 4] = self.cursor.array().ok_or(short.clone())?;
        if &magic != b"GGUF" {
            return Err(Fault::Magic(escape(&magic)));
        }
        match self.cursor.u32().ok_or(short.clone())? {
            2 | 3 => {}
            // Small numbers stored the other way round have a low half of zero.
            version if version != 0 && version & 0xffff == 0 => return Err(Fault::BigEndian),
            version => return Err(Fault::Version(version)),
        }
        let tensors = self.cursor.u64().ok_or(short.clone())?;
        let keys = self.cursor.u64().ok_or(short)?;
        Ok((tensors, keys))
    }

    fn metadata(&mut self, count: u64) -> Result<Metadata, Fault> {
        self.check_count(count, KEY_BYTES_MIN, KEYS_MAX, || "metadata keys".into())?;
        let mut metadata = Metadata::new();
        for number in 0..count {
            let key = self.string(KEY_BYTES_MAX, || format!("the name of metadata key {number}"))?;
            let fault = |problem: &str| Fault::Key { key: format!("number {number}"), problem: problem.to_owned() };
            if key.is_empty() {
                return Err(fault("has an empty name"));
            }
            // Copied first, then checked: the bytes of a mapped file may change under the reader.
            let key = String::from_utf8(key.to_vec())
                .map_err(|_| fault(&format!("has a name that is no UTF-8: {}", quote(key))))?;
            let value = self.value(&key)?;
            if metadata.insert(&key, value).is_some() {
                return Err(key_fault(&key, "occurs twice"));
            }
        }
        Ok(metadata)
    }

    fn value(&mut self, key: &str) -> Result<Value, Fault> {
        Ok(match self.value_type(key)? {
            ValueType::U8 => Value::U8(self.scalar(key)?),
            ValueType::I8 => Value::I8(self.scalar(key)?),
            ValueType::U16 => Value::U16(self.scalar(key)?),
            ValueType::I16 => Value::I16(self.scalar(key)?),
            ValueType::U32 => Value::U32(self.scalar(key)?),
            ValueType::I32 => Value::I32(self.scalar(key)?),
            ValueType::F32 => Value::F32(self.scalar(key)?),
            ValueType::Bool => Value::Bool(self.scalar(key)?),
            ValueType::U64 => Value::U64(self.scalar(key)?),
            ValueType::I64 => Value::I64(self.scalar(key)?),
            ValueType::F64 => Value::F64(self.scalar(key)?),
            ValueType::Array => Value::Array(self.array(key)?),
            ValueType::String => Value::String(self.string(STRING_BYTES_MAX, || value_of(key))?.into()),
        })
    }

    fn array(&mut self, key: &str) -> Result<Array, Fault> {
        let ty = self.value_type(key)?;
        let count = self.cursor.u64().ok_or_else(|| self.truncated(value_of(key)))?;
        Ok(match ty {
            ValueType::U8 => Array::U8(self.vector(count, key)?),
            ValueType::I8 => Array::I8(self.vector(count, key)?),
            ValueType::U16 => Array::U16(self.vector(count, key)?),
            ValueType::I16 => Array::I16(self.vector(count, key)?),
            ValueType::U32 => Array::U32(self.vector(count, key)?),
            ValueType::I32 => Array::I32(self.vector(count, key)?),
            ValueType::F32 => Array::F32(self.vector(count, key)?),
            ValueType::Bool => Array::Bool(self.vector(count, key)?),
            ValueType::U64 => Array::U64(self.vector(count, key)?),
            ValueType::I64 => Array::I64(self.vector(count, key)?),
            ValueType::F64 => Array::F64(self.vector(count, key)?),
            ValueType::String => Array::Strings(self.strings(count, key)?),
            ValueType::Array => return Err(key_fault(key, "is an array of arrays, which GGUF readers reject")),
        })
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, Fault> {
        let id = self
            .cursor
            .u32()
            .ok_or_else(|| self.truncated(format!("the type of metadata key {}", quote(key.as_bytes()))))?;
        ValueType::from_id(id).ok_or_else(|| key_fault(key, &format!("has value type {id}, and 0 to 12 are defined")))
    }

    fn scalar<T: Scalar>(&mut self, key: &str) -> Result<T, Fault> {
        let bytes = self.cursor.take(T::BYTES);
        bytes.map(T::read).ok_or_else(|| self.truncated(value_of(key)))
    }

    fn vector<T: Scalar>(&mut self, count: u64, key: &str) -> Result<Vec<T>, Fault> {
        self.check_count(count, T::BYTES, ELEMENTS_MAX, || elements_of(key))?;
        let bytes = self.cursor.take(count * T::BYTES).ok_or_else(|| self.truncated(value_of(key)))?;
        Ok(bytes.chunks_exact(T::BYTES as usize).map(T::read).collect())
    }

    fn strings(&mut self, count: u64, key: &str) -> Result<Strings, Fault> {
        self.check_count(count, 8, ELEMENTS_MAX, || elements_of(key))?;
        // A first pass over the lengths finds the size, so that the text is stored in one exact allocation.
        let start = self.cursor.at();
        for _ in 0..count {
            self.string(STRING_BYTES_MAX, || value_of(key))?;
        }
        let bytes = (self.cursor.at() - start).saturating_sub(8 * count as usize);
        let mut strings = Strings::with_capacity(count as usize, bytes);
        self.cursor.rewind(start);
        for _ in 0..count {
            let text = self.string(STRING_BYTES_MAX, || value_of(key))?;
            strings.push(text).ok_or_else(|| key_fault(key, "holds more than 4 GiB of text"))?;
        }
        Ok(strings)
    }

    /// A length of at most `max`, then as many bytes.
    fn string(&mut self, max: u64, field: impl Fn() -> String) -> Result<&'a [u8], Fault> {
        let len = self.cursor.u64().ok_or_else(|| self.truncated(field()))?;
        if len > max {
            return Err(Fault::Count {
                field: format!("bytes in {}", field()),
                count: len,
                max: max.min(self.cursor.remaining()),
            });
        }
        self.cursor.take(len).ok_or_else(|| self.truncated(field()))
    }

    /// Checks a count before anything is reserved or multiplied: each item takes at least `bytes_min` of what is left.
    fn check_count(&self, count: u64, bytes_min: u64, cap: u64, field: impl Fn() -> String) -> Result<(), Fault> {
        let max = cap.min(self.cursor.remaining() / bytes_min);
        if count <= max {
            return Ok(());
        }
        Err(Fault::Count { field: field(), count, max })
    }

    /// The tensor infos, with offsets still relative to the data section.
    fn tensors(&mut self, count: u64, shard: usize) -> Result<Vec<TensorInfo>, Fault> {
        self.check_count(count, TENSOR_BYTES_MIN, TENSORS_MAX, || "tensors".into())?;
        (0..count).map(|number| self.tensor(number, shard)).collect()
    }

    fn tensor(&mut self, number: u64, shard: usize) -> Result<TensorInfo, Fault> {
        let name = self.string(KEY_BYTES_MAX, || format!("the name of tensor number {number}"))?;
        let unnamed =
            |problem: String| Fault::Tensor { name: format!("number {number}"), fault: TensorFault::Name(problem) };
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(unnamed(format!("{} bytes long", name.len())));
        }
        // Copied first, then checked: the bytes of a mapped file may change under the reader.
        let name = String::from_utf8(name.to_vec()).map_err(|_| unnamed(quote(name)))?;
        let info = |part: &str| format!("the {part} of tensor {}", quote(name.as_bytes()));

        let dims = self.cursor.u32().ok_or_else(|| self.truncated(info("number of dimensions")))?;
        if !(1..=4).contains(&dims) {
            return Err(tensor_fault(&name, TensorFault::Dimensions(dims)));
        }
        let mut ne = [1; 4];
        for len in &mut ne[..dims as usize] {
            *len = self.cursor.u64().ok_or_else(|| self.truncated(info("shape")))?;
        }
        let id = self.cursor.u32().ok_or_else(|| self.truncated(info("type")))?;
        let offset = self.cursor.u64().ok_or_else(|| self.truncated(info("offset")))?;
        let (ty, bytes) = size(&ne, dims as usize, id).map_err(|fault| tensor_fault(&name, fault))?;
        Ok(TensorInfo { name, ne, dims, ty, bytes, shard, offset })
    }

    fn truncated(&self, field: String) -> Fault {
        Fault::Truncated { field, at: self.cursor.at() as u64, len: self.len }
    }
}

/// Type and bytes of a tensor of shape `ne` and type `id`; nothing overflows before it was checked.
fn size(ne: &[u64; 4], dims: usize, id: u32) -> Result<(WeightType, u64), TensorFault> {
    for (dimension, &len) in ne.iter().enumerate() {
        if !(1..=DIMENSION_MAX).contains(&len) {
            return Err(TensorFault::Dimension { dimension, len });
        }
    }
    let ty = WeightType::from_id(id).ok_or_else(|| TensorFault::Type(type_name(id)))?;
    let block = ty.block();
    if !ne[0].is_multiple_of(block.elements.into()) {
        return Err(TensorFault::Row { row: ne[0], block: block.elements, ty });
    }
    let overflow = || TensorFault::Size(ne[..dims].to_vec());
    let elements = ne.iter().try_fold(1u64, |product, &len| product.checked_mul(len)).ok_or_else(overflow)?;
    let bytes = block.bytes_of(elements).ok_or_else(overflow)?;
    Ok((ty, bytes))
}

/// Checks where the tensors lie and makes their offsets absolute. The tensor infos end at byte `infos_end` of `len`.
///
/// Offsets need not follow each other in file order, as llama.cpp demands: some writers leave gaps. But they must be aligned, lie
/// within the file and not overlap.
fn place(mut tensors: Vec<TensorInfo>, infos_end: u64, alignment: u64, len: u64) -> Result<Vec<TensorInfo>, Fault> {
    // The alignment is at most 1 MiB and `infos_end` at most the length of a slice: no overflow.
    let data_start = infos_end.next_multiple_of(alignment);
    let section = len.saturating_sub(data_start);
    for tensor in &mut tensors {
        let (offset, bytes) = (tensor.offset, tensor.bytes);
        if !offset.is_multiple_of(alignment) {
            let fault = TensorFault::Unaligned { offset, alignment };
            return Err(tensor_fault(&tensor.name, fault));
        }
        if offset.checked_add(bytes).is_none_or(|end| end > section) {
            let fault = TensorFault::Outside { bytes, offset, section };
            return Err(tensor_fault(&tensor.name, fault));
        }
        tensor.offset = data_start + offset;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| tensor.offset);
    for pair in order.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let other = escape(pair[0].name.as_bytes());
            return Err(tensor_fault(&pair[1].name, TensorFault::Overlap(other)));
        }
    }
    Ok(tensors)
}

/// The alignment of the data section, in bytes.
fn alignment(metadata: &Metadata) -> Result<u64, Fault> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(&Value::U32(bytes)) if bytes.is_power_of_two() && (8..=1 << 20).contains(&bytes) => Ok(bytes.into()),
        Some(other) => Err(Fault::Alignment(format!("{} {other}", other.type_name()))),
    }
}

/// A scalar as the file stores it.
trait Scalar {
    const BYTES: u64;
    /// From exactly `BYTES` bytes.
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! scalars {
    ($($ty:ty)*) => {
        $(impl Scalar for $ty {
            const BYTES: u64 = size_of::<$ty>() as u64;

            fn read(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$ty>()];
                array.copy_from_slice(bytes);
                <$ty>::from_le_bytes(array)
            }
        })*
    };
}

scalars! { u8 i8 u16 i16 u32 i32 f32 u64 i64 f64 }

impl Scalar for bool {
    const BYTES: u64 = 1;

    fn read(bytes: &[u8]) -> Self {
        bytes != [0]
    }
}

fn value_of(key: &str) -> String {
    format!("the value of metadata key {}", quote(key.as_bytes()))
}

fn elements_of(key: &str) -> String {
    format!("elements in metadata key {}", quote(key.as_bytes()))
}

fn key_fault(key: &str, problem: &str) -> Fault {
    Fault::Key { key: quote(key.as_bytes()), problem: problem.to_owned() }
}

pub(crate) fn tensor_fault(name: &str, fault: TensorFault) -> Fault {
    Fault::Tensor { name: quote(name.as_bytes()), fault }
}

/// How GGUF tools call a type that is no [`WeightType`].
fn type_name(id: u32) -> String {
    let name = match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        4 | 5 | 31..=33 | 36..=38 => return format!("{id} (withdrawn from GGUF)"),
        _ => return format!("{id} (unknown)"),
    };
    format!("{name} ({id})")
}

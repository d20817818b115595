//! Metadata values: scalars, strings and arrays of one element type.

use std::fmt;

use crate::error::escape;

/// Array elements that [`Value`]'s `Display` shows.
const SHOWN_MAX: usize = 6;

macro_rules! value_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $text:literal;)*) => {
        /// Type of a metadata value; discriminants are the ids of GGUF.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum ValueType { $($(#[$doc])* $name = $id,)* }

        impl ValueType {
            /// The type with GGUF id `id`.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(ValueType::$name),)* _ => None }
            }

            /// Its name, in Rust's words.
            pub const fn name(self) -> &'static str {
                match self { $(ValueType::$name => $text,)* }
            }
        }
    };
}

value_types! {
    /// Unsigned 8 bits.
    U8 = 0, "u8";
    /// Signed 8 bits.
    I8 = 1, "i8";
    /// Unsigned 16 bits.
    U16 = 2, "u16";
    /// Signed 16 bits.
    I16 = 3, "i16";
    /// Unsigned 32 bits.
    U32 = 4, "u32";
    /// Signed 32 bits.
    I32 = 5, "i32";
    /// 32-bit float.
    F32 = 6, "f32";
    /// One byte, zero for false.
    Bool = 7, "bool";
    /// Length and bytes.
    String = 8, "string";
    /// Elements of one type.
    Array = 9, "array";
    /// Unsigned 64 bits.
    U64 = 10, "u64";
    /// Signed 64 bits.
    I64 = 11, "i64";
    /// 64-bit float.
    F64 = 12, "f64";
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned 8 bits.
    U8(u8),
    /// Signed 8 bits.
    I8(i8),
    /// Unsigned 16 bits.
    U16(u16),
    /// Signed 16 bits.
    I16(i16),
    /// Unsigned 32 bits.
    U32(u32),
    /// Signed 32 bits.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// Truth.
    Bool(bool),
    /// Text; the format asks for UTF-8, the file may hold any bytes.
    String(Box<[u8]>),
    /// Elements of one type.
    Array(Array),
    /// Unsigned 64 bits.
    U64(u64),
    /// Signed 64 bits.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

/// An array of metadata: elements of one type, packed. Arrays do not nest.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned 8 bits.
    U8(Vec<u8>),
    /// Signed 8 bits.
    I8(Vec<i8>),
    /// Unsigned 16 bits.
    U16(Vec<u16>),
    /// Signed 16 bits.
    I16(Vec<i16>),
    /// Unsigned 32 bits.
    U32(Vec<u32>),
    /// Signed 32 bits.
    I32(Vec<i32>),
    /// 32-bit floats.
    F32(Vec<f32>),
    /// Truths.
    Bool(Vec<bool>),
    /// Texts.
    Strings(Strings),
    /// Unsigned 64 bits.
    U64(Vec<u64>),
    /// Signed 64 bits.
    I64(Vec<i64>),
    /// 64-bit floats.
    F64(Vec<f64>),
}

/// Many byte strings in one buffer: 4 bytes of overhead each, where the file has 8.
///
/// A vocabulary of 262,144 tokens would cost 24 bytes and an allocation each as a vector of vectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Strings {
    /// No strings.
    pub(crate) const EMPTY: &'static Strings = &Strings { bytes: Vec::new(), ends: Vec::new() };

    /// Room for `count` strings of `bytes` bytes together.
    pub(crate) fn with_capacity(count: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(count) }
    }

    /// Appends `text`; `None`, with nothing appended, if all texts together would pass 4 GiB.
    pub(crate) fn push(&mut self, text: &[u8]) -> Option<()> {
        let end = u32::try_from(self.bytes.len().checked_add(text.len())?).ok()?;
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        Some(())
    }

    /// How many strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all strings together.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// String number `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        Some(&self.bytes[start..end])
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let text = &self.bytes[start..end as usize];
            start = end as usize;
            text
        })
    }
}

/// # Panics
///
/// If the strings together pass 4 GiB.
impl<T: AsRef<[u8]>> FromIterator<T> for Strings {
    fn from_iter<I: IntoIterator<Item = T>>(texts: I) -> Self {
        let mut strings = Strings::default();
        for text in texts {
            strings.push(text.as_ref()).expect("strings of a value stay below 4 GiB");
        }
        strings
    }
}

/// Calls `$body` with `$v` bound to the payload of whichever vector variant `$array` is, and `$strings` for [`Array::Strings`].
macro_rules! each_array {
    ($array:expr, $v:ident => $body:expr, $s:ident => $strings:expr) => {
        match $array {
            Array::U8($v) => $body,
            Array::I8($v) => $body,
            Array::U16($v) => $body,
            Array::I16($v) => $body,
            Array::U32($v) => $body,
            Array::I32($v) => $body,
            Array::F32($v) => $body,
            Array::Bool($v) => $body,
            Array::U64($v) => $body,
            Array::I64($v) => $body,
            Array::F64($v) => $body,
            Array::Strings($s) => $strings,
        }
    };
}

impl Array {
    /// How many elements.
    pub fn len(&self) -> usize {
        each_array!(self, v => v.len(), s => s.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::F32(_) => ValueType::F32,
            Array::Bool(_) => ValueType::Bool,
            Array::Strings(_) => ValueType::String,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F64(_) => ValueType::F64,
        }
    }

    /// Every element as `T`, if the array holds integers: an element that does not fit is the error.
    pub(crate) fn integers<T: TryFrom<i128>>(&self) -> Option<Result<Vec<T>, i128>> {
        fn all<T: TryFrom<i128>, S: Copy + Into<i128>>(values: &[S]) -> Result<Vec<T>, i128> {
            let narrow = |&value: &S| T::try_from(value.into()).map_err(|_| value.into());
            values.iter().map(narrow).collect()
        }
        Some(match self {
            Array::U8(v) => all(v),
            Array::I8(v) => all(v),
            Array::U16(v) => all(v),
            Array::I16(v) => all(v),
            Array::U32(v) => all(v),
            Array::I32(v) => all(v),
            Array::U64(v) => all(v),
            Array::I64(v) => all(v),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::Strings(_) => return None,
        })
    }
}

impl Value {
    /// Type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The type in words, with element type and length for arrays: `array of 3 u32`.
    pub fn type_name(&self) -> String {
        match self {
            Value::Array(array) => {
                format!("array of {} {}", array.len(), array.element_type().name())
            }
            _ => self.value_type().name().to_owned(),
        }
    }

    /// The value, if it is an integer of any width.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(text.as_bytes().into())
    }
}

macro_rules! from {
    ($($ty:ty => $make:expr;)*) => {
        $(impl From<$ty> for Value {
            fn from(value: $ty) -> Self {
                $make(value)
            }
        })*
    };
}

from! {
    u8 => Value::U8; i8 => Value::I8; u16 => Value::U16; i16 => Value::I16; u32 => Value::U32; i32 => Value::I32;
    u64 => Value::U64; i64 => Value::I64; f32 => Value::F32; f64 => Value::F64; bool => Value::Bool; Array => Value::Array;
    Vec<u32> => |v| Value::Array(Array::U32(v)); Vec<i32> => |v| Value::Array(Array::I32(v));
    Vec<f32> => |v| Value::Array(Array::F32(v)); Vec<bool> => |v| Value::Array(Array::Bool(v));
    Strings => |v| Value::Array(Array::Strings(v));
}

/// One line: text escaped and cut off, arrays as their first elements and their length.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => v.fmt(f),
            Value::I8(v) => v.fmt(f),
            Value::U16(v) => v.fmt(f),
            Value::I16(v) => v.fmt(f),
            Value::U32(v) => v.fmt(f),
            Value::I32(v) => v.fmt(f),
            Value::F32(v) => v.fmt(f),
            Value::Bool(v) => v.fmt(f),
            Value::String(text) => write!(f, "\"{}\"", escape(text)),
            Value::Array(array) => array.fmt(f),
            Value::U64(v) => v.fmt(f),
            Value::I64(v) => v.fmt(f),
            Value::F64(v) => v.fmt(f),
        }
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list(f: &mut fmt::Formatter<'_>, items: impl ExactSizeIterator<Item = impl fmt::Display>) -> fmt::Result {
            let count = items.len();
            for (i, item) in items.take(SHOWN_MAX).enumerate() {
                write!(f, "{}{item}", if i == 0 { "[" } else { ", " })?;
            }
            match count {
                0 => f.write_str("[]"),
                1..=SHOWN_MAX => f.write_str("]"),
                _ => write!(f, ", ... {count} in all]"),
            }
        }
        each_array!(self, v => list(f, v.iter()), s => list(f, s.iter().map(|text| format!("\"{}\"", escape(text)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_keep_every_byte() {
        let texts: [&[u8]; 4] = [b"a", b"", b"\xff\0", b"bc"];
        let strings: Strings = texts.into_iter().collect();
        assert_eq!(strings.iter().collect::<Vec<_>>(), texts);
        assert_eq!(strings.iter().len(), 4);
        for (i, text) in texts.iter().enumerate() {
            assert_eq!(strings.get(i), Some(*text));
        }
        assert_eq!(strings.get(4), None);
        assert_eq!((strings.len(), strings.total_bytes()), (4, 5));
    }

    #[test]
    fn values_print_on_one_short_line() {
        assert_eq!(Value::from("a\nb").to_string(), "\"a\\nb\"");
        assert_eq!(Value::from(Vec::<u32>::new()).to_string(), "[]");
        assert_eq!(Value::from(vec![1u32, 2]).to_string(), "[1, 2]");
        let many: Vec<u32> = (0..9).collect();
        assert_eq!(Value::from(many).to_string(), "[0, 1, 2, 3, 4, 5, ... 9 in all]");
        let strings: Strings = ["x", "\x1b"].into_iter().collect();
        let value = Value::from(strings);
        assert_eq!(value.to_string(), "[\"x\", \"\\u{1b}\"]");
        assert_eq!(value.type_name(), "array of 2 string");
        assert_eq!(Value::from(1.5f32).to_string(), "1.5");
    }
}

//! What can be wrong with a file, said in one line each: where, what, and what would work.

use std::fmt::Write as _;
use std::io;

use tailrace_types::WeightType;
use thiserror::Error;

/// Why a GGUF file could not be opened, or a metadata value could not be used.
///
/// Every text from the file is escaped, so a message is safe to print on a terminal.
#[derive(Debug, Error)]
pub enum GgufError {
    /// The operating system refused.
    #[error("{file}: cannot be read: {source}")]
    Io {
        /// Path of the file, escaped.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file breaks a rule of the format.
    #[error("{file}: {fault}")]
    Invalid {
        /// Path of the file, escaped.
        file: String,
        /// The rule.
        fault: Box<Fault>,
    },
    /// The file became shorter after it was opened.
    #[error("{file}: had {opened} bytes when it was opened and has {now} now; leave it alone while the model loads")]
    Changed {
        /// Path of the file, escaped.
        file: String,
        /// Bytes when opened.
        opened: u64,
        /// Bytes now.
        now: u64,
    },
    /// A metadata value has another type than its reader needs, or does not fit in it.
    #[error("metadata key \"{key}\" holds {found}, but {wanted} is needed")]
    WrongType {
        /// The key, escaped.
        key: String,
        /// Type of the value, with the value where that is what does not fit.
        found: String,
        /// The type that is needed.
        wanted: &'static str,
    },
    /// A [`Writer`](crate::Writer) was asked for a tensor whose bytes do not match its shape and type.
    #[error("tensor \"{name}\" cannot be written: {found} bytes of data do not make shape {shape:?} of {ty}")]
    WriteTensor {
        /// The tensor, escaped.
        name: String,
        /// Bytes given.
        found: usize,
        /// Shape given.
        shape: Vec<u64>,
        /// Type given.
        ty: WeightType,
    },
}

/// A rule of the container that a file breaks.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Fault {
    /// Not even a header.
    #[error("is {0} bytes long, and a GGUF header alone takes 24; download the file again")]
    TooShort(u64),
    /// Some other file.
    #[error("is not a GGUF file: it begins with \"{0}\" instead of \"GGUF\"")]
    Magic(String),
    /// Not a version that this reader knows.
    #[error("has GGUF version {0}, and only versions 2 and 3 can be read; convert the model again with current tools")]
    Version(u32),
    /// Written for a big-endian machine.
    #[error(
        "is a big-endian GGUF file, and only little-endian ones can be read; convert the model for little-endian machines"
    )]
    BigEndian,
    /// The file ends inside a field of the header.
    #[error("ends inside {field} (byte {at} of {len}): the file is truncated or damaged; download it again")]
    Truncated {
        /// What was being read.
        field: String,
        /// Offset where reading stopped.
        at: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// A count that the file cannot hold, or above the reader's cap.
    #[error(
        "claims {count} {field}, and at most {max} are possible here: the file is truncated or damaged; download it again"
    )]
    Count {
        /// What is counted.
        field: String,
        /// The claim.
        count: u64,
        /// What the rest of the file, or the reader's cap, allows.
        max: u64,
    },
    /// A key that breaks a rule.
    #[error("metadata key {key}: {problem}")]
    Key {
        /// The key in quotes and escaped, or its number where it has no readable name.
        key: String,
        /// The rule.
        problem: String,
    },
    /// `general.alignment` is no usable alignment.
    #[error("metadata key \"general.alignment\" is {0}, but a u32 power of two from 8 to 1048576 is needed")]
    Alignment(String),
    /// A tensor that breaks a rule.
    #[error("tensor {name}: {fault}")]
    Tensor {
        /// The tensor in quotes and escaped, or its number where it has no readable name.
        name: String,
        /// The rule.
        fault: TensorFault,
    },
    /// The parts of a split model do not belong together.
    #[error("{0}")]
    Split(String),
}

/// A rule about one tensor that a file breaks.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TensorFault {
    /// Empty, too long or no UTF-8.
    #[error("a name must be 1 to 63 bytes of UTF-8, and this one is {0}")]
    Name(String),
    /// Two tensors of one name.
    #[error("the name occurs twice")]
    Duplicate,
    /// Not 1 to 4 dimensions.
    #[error("has {0} dimensions, and 1 to 4 are possible")]
    Dimensions(u32),
    /// A dimension of 0 or beyond reason.
    #[error("has {len} elements in dimension {dimension}, and 1 to 2^48 are possible")]
    Dimension {
        /// Which one, from 0.
        dimension: usize,
        /// Its length.
        len: u64,
    },
    /// The product of the dimensions leaves 64 bits.
    #[error("has shape {0:?}, whose size overflows")]
    Size(Vec<u64>),
    /// A real type that this reader does not decode, or an id that stands for none.
    #[error("has type {0}, which is not supported; requantise the model to one of {list}", list = supported())]
    Type(String),
    /// Rows that are no whole number of blocks.
    #[error("has rows of {row} elements, no multiple of the {block} elements in a block of {ty}")]
    Row {
        /// Elements in a row.
        row: u64,
        /// Elements in a block.
        block: u32,
        /// Type of the tensor.
        ty: WeightType,
    },
    /// Data at an unaligned offset.
    #[error("has its data at offset {offset}, which is no multiple of the alignment {alignment}")]
    Unaligned {
        /// Offset in the data section.
        offset: u64,
        /// Alignment of the file.
        alignment: u64,
    },
    /// Data that does not lie within the file.
    #[error(
        "has {bytes} bytes of data at offset {offset} of a data section of {section}: the file is truncated or damaged; download it again"
    )]
    Outside {
        /// Bytes of the tensor.
        bytes: u64,
        /// Offset in the data section.
        offset: u64,
        /// Bytes of the data section.
        section: u64,
    },
    /// Data shared with another tensor.
    #[error("has data that overlaps that of tensor \"{0}\"")]
    Overlap(String),
}

fn supported() -> String {
    let names: Vec<&str> = WeightType::ALL.iter().map(|ty| ty.name()).collect();
    names.join(" ")
}

/// Characters that [`escape`] keeps.
const ESCAPED_CHARS_MAX: usize = 128;

/// Text from a file made fit for one line of a terminal: control and other invisible characters, double quotes and bytes that are no UTF-8
/// become escape sequences, and what exceeds 128 characters is cut off with `...`.
pub fn escape(text: &[u8]) -> String {
    let mut out = String::new();
    let mut chars = 0;
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            if chars == ESCAPED_CHARS_MAX {
                return out + "...";
            }
            match c {
                '\'' => out.push(c),
                _ => out.extend(c.escape_debug()),
            }
            chars += 1;
        }
        if !chunk.invalid().is_empty() {
            if chars == ESCAPED_CHARS_MAX {
                return out + "...";
            }
            for byte in chunk.invalid() {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\x{byte:02x}");
            }
            chars += 1;
        }
    }
    out
}

/// [`escape`] in quotes.
pub(crate) fn quote(text: &[u8]) -> String {
    format!("\"{}\"", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_a_terminal_would_obey() {
        assert_eq!(escape("blk.0 é".as_bytes()), "blk.0 é");
        assert_eq!(escape(b"a\x1b[2J\n\"'\xff"), "a\\u{1b}[2J\\n\\\"'\\xff");
        assert_eq!(escape("\u{202e}\u{200b}\u{9b}".as_bytes()), "\\u{202e}\\u{200b}\\u{9b}");
        let long = escape(&[b'x'; 4000]);
        assert_eq!(long, "x".repeat(128) + "...");
        assert_eq!(escape(&[0xff; 4000]).len(), 128 * 4 + 3);
    }
}

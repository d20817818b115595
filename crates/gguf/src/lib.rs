//! GGUF files: metadata, tensors, block formats.
//!
//! This room reads and writes containers and knows nothing of transformers. A file comes from a stranger: every size, count, offset
//! and name in it is checked before use, and a bad file is one [`GgufError`] that fits on one line, never a panic and never an
//! allocation out of proportion to the file.
//!
//! - [`Gguf`] is a model on disk, mapped into memory, whole or in shards;
//! - [`Header`] is what a file says before its data; [`Metadata`] holds its keys, read through typed getters;
//! - [`TensorInfo`] says where each tensor's bytes lie, and [`Gguf::tensor_data`] hands them out;
//! - [`decode_row`] turns blocks of any [`WeightType`](tailrace_types::WeightType) into `f32`, slowly: it is the oracle of the kernels;
//! - [`Writer`] and [`quantize_row`] make files, for tests and tools.

mod block;
mod cursor;
mod error;
mod file;
mod header;
mod kquant;
mod metadata;
mod mmap;
mod parse;
mod quantize;
mod quantize_k;
mod split;
mod value;
mod write;

pub use block::decode_row;
pub use error::{Fault, GgufError, TensorFault, escape};
pub use file::Gguf;
pub use header::Header;
pub use metadata::Metadata;
pub use parse::TensorInfo;
pub use quantize::quantize_row;
pub use value::{Array, Strings, Value, ValueType};
pub use write::Writer;

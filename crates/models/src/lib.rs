//! Architectures: GGUF metadata and tensor shapes become a [`ModelSpec`].
//!
//! Pure: no tensor data is read, nothing is computed but sizes. Each architecture is one short file that puts shared parts together, and
//! one line of the registry; its name occurs in those two places only, and its best known models stand in its file ([`shapes`]). A file comes from a stranger: every hyper-parameter is checked for
//! its range and every tensor for shape and type before it enters the spec, so whatever reads the spec may rely on it:
//!
//! - `kv_heads` divides `heads`; head sizes are 1 to 1024; rotated dimensions are even and no more than the key's;
//! - matrices and vectors have the sizes that the hyper-parameters say, and each slice lies within its tensor;
//! - vectors are stored as F32, F16 or BF16; floats are finite, factors and divisors positive.

mod error;
mod gemma3;
mod keys;
mod llama;
mod parts;
mod qwen2;
mod qwen3;
mod registry;
mod rope;
pub mod shapes;
mod sizes;
mod tensors;

use tailrace_gguf::{Gguf, Header, escape};
use tailrace_plan::spec::ModelSpec;

pub use error::ModelError;

/// A model as its file describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The transformer.
    pub spec: ModelSpec,
    /// Name of the architecture, as in `general.architecture`.
    pub arch: &'static str,
    /// Name of the model for people, escaped for a terminal; the architecture's where the file has none.
    pub name: String,
    /// What a user should know before trusting the output, one line each.
    pub warnings: Vec<String>,
}

/// Reads the model in `file`.
///
/// # Errors
///
/// If the architecture is unknown, a hyper-parameter is missing or out of range, or a tensor is missing or has another shape or type
/// than the hyper-parameters ask for.
pub fn read(file: &Gguf) -> Result<Model, ModelError> {
    read_header(file.header())
}

/// Reads the model that `file` begins.
///
/// # Errors
///
/// As [`read`].
pub fn read_header(file: &Header) -> Result<Model, ModelError> {
    let architecture = registry::find(file.metadata())?;
    let mut reader = parts::Reader::new(file, architecture.name)?;
    let spec = (architecture.read)(&mut reader)?;
    // A name is decoration: one that is no text is no reason to refuse a model.
    let name = file.metadata().str("general.name").ok().flatten().filter(|name| !name.is_empty());
    Ok(Model {
        spec,
        arch: architecture.name,
        name: escape(name.unwrap_or(architecture.name).as_bytes()),
        warnings: reader.tensors.unclaimed().into_iter().collect(),
    })
}

/// Names of the architectures that [`read`] knows, in alphabetical order.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    registry::ARCHITECTURES.iter().map(|architecture| architecture.name)
}

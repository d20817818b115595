//! Why a file is no model that can be run, in one line each.

use tailrace_gguf::GgufError;
use thiserror::Error;

/// Why no [`Model`](crate::Model) could be read. Every text from the file is escaped.
#[derive(Debug, Error)]
pub enum ModelError {
    /// A metadata value has the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// Nobody wrote this architecture down yet.
    #[error("the architecture \"{found}\" is not supported; known are {known}")]
    UnknownArchitecture {
        /// What the file says.
        found: String,
        /// The names in the registry.
        known: String,
    },
    /// A required key is absent.
    #[error("metadata key \"{key}\" is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A value cannot be used.
    #[error("metadata key \"{key}\" is {found}, but {wanted} is needed")]
    Range {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// The values that can be used.
        wanted: String,
    },
    /// An array with one element a layer has another length.
    #[error("metadata key \"{key}\" has {found} elements for {layers} layers")]
    ArrayLength {
        /// The key.
        key: String,
        /// Elements.
        found: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A required tensor is absent.
    #[error("tensor \"{name}\" of shape {shape:?} is missing")]
    MissingTensor {
        /// The tensor.
        name: String,
        /// The shape that it would have, the row first.
        shape: Vec<u64>,
    },
    /// A tensor and the hyper-parameters disagree.
    #[error("tensor \"{name}\" has shape {found:?}, but the metadata asks for {wanted:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape, the row first.
        found: Vec<u64>,
        /// The shape that follows from the hyper-parameters.
        wanted: Vec<u64>,
    },
    /// A norm, bias or rope tensor is quantised.
    #[error("tensor \"{name}\" has type {found}, but F32, F16 or BF16 is needed for a vector")]
    VectorType {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// The file is sound, but asks for something that does not exist here.
    #[error("{what} is not supported")]
    Unsupported {
        /// The key, value or tensor that asks for it, and for what.
        what: String,
    },
}

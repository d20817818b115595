//! The architectures, one line each.

use tailrace_gguf::{Metadata, escape};
use tailrace_plan::spec::ModelSpec;

use crate::error::ModelError;
use crate::parts::Reader;
use crate::shapes::Family;
use crate::{gemma3, llama, qwen2, qwen3};

/// An architecture and its reader.
pub(crate) struct Architecture {
    /// `general.architecture`, and the prefix of the hyper-parameters' keys.
    pub(crate) name: &'static str,
    pub(crate) read: fn(&mut Reader<'_>) -> Result<ModelSpec, ModelError>,
    /// Models that can be had without a file.
    pub(crate) family: Family,
}

/// In order of name.
pub(crate) const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "gemma3", read: gemma3::read, family: gemma3::FAMILY },
    Architecture { name: "llama", read: llama::read, family: llama::FAMILY },
    Architecture { name: "qwen2", read: qwen2::read, family: qwen2::FAMILY },
    Architecture { name: "qwen3", read: qwen3::read, family: qwen3::FAMILY },
];

/// The architecture that the file names.
pub(crate) fn find(metadata: &Metadata) -> Result<&'static Architecture, ModelError> {
    const KEY: &str = "general.architecture";
    let found = metadata.str(KEY)?.ok_or_else(|| ModelError::MissingKey { key: KEY.to_owned() })?;
    let known = || ARCHITECTURES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ");
    ARCHITECTURES
        .iter()
        .find(|a| a.name == found)
        .ok_or_else(|| ModelError::UnknownArchitecture { found: escape(found.as_bytes()), known: known() })
}

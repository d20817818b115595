//! What a model file says before its data: keys, and tensors without their bytes.

use crate::metadata::Metadata;
use crate::parse::TensorInfo;

/// Keys and values, and where each tensor lies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Header {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors` in order of name.
    by_name: Vec<usize>,
}

impl Header {
    /// A header of these keys and tensors, whose names differ.
    pub fn new(metadata: Metadata, tensors: Vec<TensorInfo>) -> Self {
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        // Stable: of equal names the later stays the later.
        by_name.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
        Self { metadata, tensors, by_name }
    }

    /// Keys and values (of the first file, where the model is split).
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Index in [`Header::tensors`] of the tensor called `name`.
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        let place = self.by_name.binary_search_by(|&index| self.tensors[index].name.as_str().cmp(name));
        place.ok().map(|place| self.by_name[place])
    }

    /// The later of two tensors with the same name.
    pub(crate) fn duplicate(&self) -> Option<&TensorInfo> {
        let mut pairs = self.by_name.windows(2).map(|pair| [&self.tensors[pair[0]], &self.tensors[pair[1]]]);
        pairs.find(|[first, again]| first.name == again.name).map(|[_, again]| again)
    }
}

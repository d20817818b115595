//! Claims on tensors: each is checked against the hyper-parameters, and what nobody claims is reported.

use tailrace_gguf::{Header, TensorInfo, escape};
use tailrace_plan::spec::{Linear, Norm, TensorSlice};

use crate::error::ModelError;

/// How many names of unused tensors a warning lists.
const LISTED_MAX: usize = 5;

/// The tensors of a file, and which of them are in use.
pub(crate) struct Tensors<'a> {
    file: &'a Header,
    claimed: Vec<bool>,
}

impl<'a> Tensors<'a> {
    pub(crate) fn new(file: &'a Header) -> Self {
        Self { file, claimed: vec![false; file.tensors().len()] }
    }

    /// The tensor called `name`, unclaimed.
    pub(crate) fn get(&self, name: &str) -> Option<&'a TensorInfo> {
        self.file.tensor_index(name).map(|index| &self.file.tensors()[index])
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensor_index(name).is_some()
    }

    /// Claims a matrix of `rows` outputs and `cols` inputs, of any type.
    pub(crate) fn matrix(&mut self, name: &str, cols: u64, rows: u64) -> Result<TensorSlice, ModelError> {
        let index = self.claim(name, &[cols, rows])?;
        Ok(TensorSlice { tensor: index as u32, ty: self.file.tensors()[index].ty, first_row: 0, rows, cols })
    }

    /// Claims a vector of `len` floats.
    pub(crate) fn vector(&mut self, name: &str, len: u64) -> Result<TensorSlice, ModelError> {
        let index = self.claim(name, &[len])?;
        let ty = self.file.tensors()[index].ty;
        if !ty.is_float() {
            return Err(ModelError::VectorType { name: name.to_owned(), found: ty.to_string() });
        }
        Ok(TensorSlice { tensor: index as u32, ty, first_row: 0, rows: 1, cols: len })
    }

    /// Claims a vector if it is there.
    pub(crate) fn vector_if_any(&mut self, name: &str, len: u64) -> Result<Option<TensorSlice>, ModelError> {
        self.has(name).then(|| self.vector(name, len)).transpose()
    }

    /// Claims `name.weight`, and `name.bias` if it is there.
    pub(crate) fn linear(&mut self, name: &str, cols: u64, rows: u64) -> Result<Linear, ModelError> {
        self.no_scale(name)?;
        let weight = self.matrix(&format!("{name}.weight"), cols, rows)?;
        Ok(Linear { weight, bias: self.vector_if_any(&format!("{name}.bias"), rows)? })
    }

    /// Claims `name.weight`, a gain.
    pub(crate) fn norm(&mut self, name: &str, len: u32, eps: f32) -> Result<Norm, ModelError> {
        Ok(Norm { weight: self.vector(&format!("{name}.weight"), len.into())?, eps })
    }

    /// Refuses a matrix whose products would have to be scaled by a companion tensor.
    pub(crate) fn no_scale(&self, name: &str) -> Result<(), ModelError> {
        let scale = format!("{name}.scale");
        if self.has(&scale) {
            return Err(ModelError::Unsupported { what: format!("tensor \"{scale}\" (a scale of a whole tensor)") });
        }
        Ok(())
    }

    /// One line that names the tensors that nobody claimed.
    pub(crate) fn unclaimed(&self) -> Option<String> {
        let unused = || self.file.tensors().iter().zip(&self.claimed).filter(|(_, claimed)| !**claimed).map(|(t, _)| t);
        let count = unused().count();
        if count == 0 {
            return None;
        }
        let names: Vec<String> = unused().take(LISTED_MAX).map(|t| escape(t.name.as_bytes())).collect();
        let more = match count - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let what = if count == 1 { "tensor is" } else { "tensors are" };
        Some(format!("{count} {what} not used: {}{more}", names.join(", ")))
    }

    /// Marks a tensor of shape `wanted` (the row first) as used.
    fn claim(&mut self, name: &str, wanted: &[u64]) -> Result<usize, ModelError> {
        let Some(index) = self.file.tensor_index(name) else {
            return Err(ModelError::MissingTensor { name: name.to_owned(), shape: wanted.to_vec() });
        };
        let tensor = &self.file.tensors()[index];
        // Dimensions beyond those that the file gives are 1, and so are those beyond the wanted ones.
        let fits = (0..tensor.ne.len()).all(|i| tensor.ne[i] == wanted.get(i).copied().unwrap_or(1));
        if !fits {
            let found = tensor.shape().to_vec();
            return Err(ModelError::Shape { name: name.to_owned(), found, wanted: wanted.to_vec() });
        }
        self.claimed[index] = true;
        Ok(index)
    }
}

//! Hyper-parameters with range checks.

use std::fmt::Display;
use std::ops::RangeInclusive;

use tailrace_gguf::{Metadata, Value};

use crate::error::ModelError;

/// The keys of one architecture. Names are given without its prefix.
pub(crate) struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(metadata: &'a Metadata, prefix: &'static str) -> Self {
        Self { metadata, prefix }
    }

    /// The key with its prefix.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    pub(crate) fn missing(&self, name: &str) -> ModelError {
        ModelError::MissingKey { key: self.key(name) }
    }

    pub(crate) fn range(&self, name: &str, found: impl Display, wanted: impl Display) -> ModelError {
        ModelError::Range { key: self.key(name), found: found.to_string(), wanted: wanted.to_string() }
    }

    /// A size or an index.
    pub(crate) fn count(&self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, ModelError> {
        let value = self.metadata.u32(&self.key(name))?;
        value.map(|value| self.within(name, value, &range)).transpose()
    }

    /// A size or an index that has no default.
    pub(crate) fn required(&self, name: &str, range: RangeInclusive<u32>) -> Result<u32, ModelError> {
        self.count(name, range)?.ok_or_else(|| self.missing(name))
    }

    /// A size that is the same in every layer, or an array with one element a layer.
    pub(crate) fn per_layer(
        &self,
        name: &str,
        layers: usize,
        range: RangeInclusive<u32>,
    ) -> Result<Option<Vec<u32>>, ModelError> {
        let key = self.key(name);
        if !matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            return Ok(self.count(name, range)?.map(|value| vec![value; layers]));
        }
        let values = self.metadata.u32s(&key)?.unwrap_or_default();
        self.check_length(name, values.len(), layers)?;
        values.iter().map(|&value| self.within(name, value, &range)).collect::<Result<_, _>>().map(Some)
    }

    /// An array of `bool` with one element a layer; `None` if the value is absent or no array.
    pub(crate) fn flags(&self, name: &str, layers: usize) -> Result<Option<Vec<bool>>, ModelError> {
        let key = self.key(name);
        if !matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            return Ok(None);
        }
        let values = self.metadata.bools(&key)?.unwrap_or_default();
        self.check_length(name, values.len(), layers)?;
        Ok(Some(values))
    }

    /// A float.
    pub(crate) fn float(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ModelError> {
        let value = self.metadata.f32(&self.key(name))?;
        value.map(|value| self.within(name, value, &range)).transpose()
    }

    /// A float whose absence writers also express by 0.
    pub(crate) fn float_or_zero(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, ModelError> {
        match self.metadata.f32(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.float(name, range),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        Ok(self.metadata.str(&self.key(name))?)
    }

    fn check_length(&self, name: &str, found: usize, layers: usize) -> Result<(), ModelError> {
        if found == layers {
            return Ok(());
        }
        Err(ModelError::ArrayLength { key: self.key(name), found, layers })
    }

    /// `value` if it lies in `range`; what is no number lies in none.
    fn within<T: PartialOrd + Display>(
        &self,
        name: &str,
        value: T,
        range: &RangeInclusive<T>,
    ) -> Result<T, ModelError> {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(self.range(name, value, format_args!("{} to {}", range.start(), range.end())))
    }
}

//! From a model file to a running engine.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tailrace_device::plan::spec::TensorSlice;
use tailrace_device::plan::{DeviceSizes, Limits, ModelSpec, Plan, PlanError};
use tailrace_device::{DeviceError, LoadOptions, Loader, WeightFile, WeightSource};
use tailrace_gguf::{Gguf, GgufError, decode_row};
use tailrace_models::{Model, ModelError};
use tailrace_text::{ChatTemplate, TokenKind, Tokenizer, Vocabulary};

use crate::{Engine, EngineConfig, EngineError, Handle};

/// Why a model cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] GgufError),
    /// It holds no model that is known.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its tokenizer is unusable.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] tailrace_text::Error),
    /// It does not fit the limits.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device failed to load it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The engine did not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A model file that was read but for its weights.
#[derive(Debug)]
pub struct OpenModel {
    /// The file.
    pub gguf: Gguf,
    /// The transformer, and what it is called.
    pub model: Model,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat format, if the file has one that is usable.
    pub chat: Option<ChatTemplate>,
    /// What a user should know before trusting the output, one line each: of the model, the tokenizer and the chat format.
    pub warnings: Vec<String>,
}

/// Reads everything of the model at `path` but its weights.
///
/// # Errors
///
/// The file is damaged, or describes a model or tokenizer that is not supported.
pub fn open(path: impl AsRef<Path>) -> Result<OpenModel, LoadError> {
    OpenModel::new(Gguf::open(path)?)
}

impl OpenModel {
    /// Reads everything of the model in `gguf` but its weights.
    ///
    /// # Errors
    ///
    /// It describes a model or tokenizer that is not supported.
    pub fn new(gguf: Gguf) -> Result<Self, LoadError> {
        let model = tailrace_models::read(&gguf)?;
        let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf)?);
        let mut warnings = model.warnings.clone();
        warnings.extend(tokenizer.warnings().iter().map(|warning| format!("tokenizer: {warning}")));
        // A model without a usable chat format still completes text.
        let chat = match chat_template(&gguf, &tokenizer) {
            Ok(chat) => chat,
            Err(error) => {
                warnings.push(format!("the chat format is ignored: {error}"));
                None
            }
        };
        let (tokens, rows) = (tokenizer.vocab_size(), model.spec.vocab);
        if tokens > rows as usize {
            warnings.push(format!("the tokenizer has {tokens} tokens, the model only {rows}"));
        }
        Ok(OpenModel { gguf, model, tokenizer, chat, warnings })
    }

    /// The transformer.
    pub fn spec(&self) -> &ModelSpec {
        &self.model.spec
    }

    /// Everything that a run under `limits` will hold and execute.
    ///
    /// # Errors
    ///
    /// It does not fit; the error names the nearest limits that do.
    pub fn plan(&self, limits: &Limits, device: &dyn DeviceSizes) -> Result<Plan, PlanError> {
        Plan::new(&self.model.spec, limits, device)
    }

    /// Loads the weights and starts an engine. `progress` is told the fraction loaded. The plan is the handle's.
    ///
    /// # Errors
    ///
    /// The model does not fit the limits, its weights cannot be read, or the system refuses memory or a thread.
    pub fn start(
        &self,
        limits: &Limits,
        loader: &dyn Loader,
        options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Handle, LoadError> {
        let plan = self.plan(limits, loader)?;
        self.gguf.check_length()?;
        let executor = loader.load(plan, WeightSource::File(&GgufWeights::new(&self.gguf)), options, progress)?;
        let tokenizer = Arc::clone(&self.tokenizer);
        Ok(Engine::start(EngineConfig { executor, tokenizer })?)
    }
}

/// Starts an engine of `spec` without a file: random weights of a sensible size, and tokens without text. For measuring: its
/// time and memory are those of a real model.
///
/// # Errors
///
/// As [`OpenModel::start`].
pub fn start_shape(
    spec: &ModelSpec,
    limits: &Limits,
    loader: &dyn Loader,
    seed: u64,
    progress: &mut dyn FnMut(f32),
) -> Result<Handle, LoadError> {
    let plan = Plan::new(spec, limits, loader)?;
    let tokenizer = Arc::new(Tokenizer::new(wordless(spec.vocab))?);
    let executor = loader.load(plan, WeightSource::Synthetic { seed }, LoadOptions::default(), progress)?;
    Ok(Engine::start(EngineConfig { executor, tokenizer })?)
}

/// `tokens` tokens that print nothing and end nothing.
fn wordless(tokens: u32) -> Vocabulary {
    Vocabulary {
        model: "llama".to_owned(),
        tokens: (0..tokens).map(|token| token.to_string()).collect(),
        kinds: vec![TokenKind::Unused; tokens as usize],
        ..Vocabulary::default()
    }
}

fn chat_template(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, tailrace_text::Error> {
    let source = gguf.metadata().str("tokenizer.chat_template")?;
    ChatTemplate::for_tokenizer(source, tokenizer)
}

/// The weights of a GGUF file.
#[derive(Debug)]
pub struct GgufWeights<'a> {
    gguf: &'a Gguf,
}

impl<'a> GgufWeights<'a> {
    /// Reads from `gguf`.
    pub fn new(gguf: &'a Gguf) -> Self {
        GgufWeights { gguf }
    }

    /// Bytes of `count` rows of `slice` from its row `first` on, within the data of its tensor.
    fn range(&self, slice: &TensorSlice, first: u64, count: u64) -> Result<Range<usize>, DeviceError> {
        let range = || {
            let tensor = self.gguf.tensors().get(slice.tensor as usize)?;
            let row_bytes = slice.ty.block().bytes_of(slice.cols)?;
            let start = slice.first_row.checked_add(first)?.checked_mul(row_bytes)?;
            let end = start.checked_add(count.checked_mul(row_bytes)?)?;
            let inside = first.checked_add(count)? <= slice.rows && end <= tensor.bytes && tensor.ty == slice.ty;
            inside.then_some(start as usize..end as usize)
        };
        range().ok_or_else(|| DeviceError::Weights(format!("{count} rows from row {first} of {slice:?} do not exist")))
    }
}

impl WeightFile for GgufWeights<'_> {
    fn rows(&self, slice: &TensorSlice, first: u64, count: u64) -> Result<Cow<'_, [u8]>, DeviceError> {
        let range = self.range(slice, first, count)?;
        Ok(Cow::Borrowed(&self.gguf.tensor_data(slice.tensor as usize)[range]))
    }

    fn release(&self, slice: &TensorSlice, first: u64, count: u64) {
        // Rows that do not exist hold no memory.
        if let Ok(range) = self.range(slice, first, count) {
            self.gguf.release(slice.tensor as usize, range);
        }
    }

    fn values(&self, slice: &TensorSlice) -> Result<Vec<f32>, DeviceError> {
        let bytes = self.rows(slice, 0, slice.rows)?;
        let (rows, cols) = (slice.rows as usize, slice.cols as usize);
        let mut values = vec![0.0; rows * cols];
        if let Some(row_bytes) = bytes.len().checked_div(rows).filter(|_| cols > 0) {
            for (row, out) in bytes.chunks_exact(row_bytes).zip(values.chunks_exact_mut(cols)) {
                decode_row(slice.ty, row, out);
            }
        }
        Ok(values)
    }
}

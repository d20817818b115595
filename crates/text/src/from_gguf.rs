//! Reading a vocabulary out of GGUF metadata.

use std::path::Path;

use tailrace_gguf::{Gguf, Metadata};

use crate::vocabulary::{SpecialIds, TokenKind, Vocabulary};
use crate::{Error, Tokenizer};

impl Vocabulary {
    /// The vocabulary that `metadata` holds under `tokenizer.*`.
    ///
    /// # Errors
    ///
    /// The algorithm or the tokens are missing, or a value is of another type than its key asks for.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let text = |key: &str| Ok::<_, Error>(metadata.str(key)?.map(str::to_owned));
        let list = |key: &str| Ok::<_, Error>(metadata.strings(key)?.cloned());
        let id = |name: &str| metadata.u32(&format!("tokenizer.ggml.{name}"));
        let kinds = metadata.i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
        Ok(Self {
            model: text("tokenizer.ggml.model")?.ok_or(Error::MissingKey("tokenizer.ggml.model"))?,
            pre: text("tokenizer.ggml.pre")?,
            tokens: list("tokenizer.ggml.tokens")?.ok_or(Error::MissingKey("tokenizer.ggml.tokens"))?,
            scores: metadata.f32s("tokenizer.ggml.scores")?.unwrap_or_default(),
            kinds: kinds.into_iter().map(TokenKind::from_gguf).collect(),
            merges: list("tokenizer.ggml.merges")?.unwrap_or_default(),
            special: SpecialIds {
                bos: id("bos_token_id")?,
                eos: id("eos_token_id")?,
                eot: id("eot_token_id")?,
                eom: id("eom_token_id")?,
                unknown: id("unknown_token_id")?,
                fim_pad: id("fim_pad_token_id")?,
                fim_rep: id("fim_rep_token_id")?,
                fim_sep: id("fim_sep_token_id")?,
            },
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
        })
    }
}

impl Tokenizer {
    /// The tokenizer of an open model.
    ///
    /// # Errors
    ///
    /// Those of [`Vocabulary::from_metadata`] and [`Tokenizer::new`].
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, Error> {
        Self::new(Vocabulary::from_metadata(gguf.metadata())?)
    }

    /// The tokenizer of the model file at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, and those of [`Self::from_gguf`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::from_gguf(&Gguf::open(path)?)
    }
}

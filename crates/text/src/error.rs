//! What can go wrong with a tokenizer or a template. Every text taken from a file is escaped.

/// An unusable tokenizer or chat template.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A metadata key that every tokenizer needs is absent.
    #[error("the file has no `{0}`")]
    MissingKey(&'static str),

    /// A file that cannot be read, or a metadata value of another type than its key asks for.
    #[error(transparent)]
    Gguf(#[from] tailrace_gguf::GgufError),

    /// `tokenizer.ggml.model` names an algorithm that is not implemented.
    #[error("tokenizer model {name:?} is not supported; known: gpt2 (byte-level BPE), llama (SentencePiece BPE)")]
    UnknownModel {
        /// The name in the file.
        name: String,
    },

    /// `tokenizer.ggml.pre` names a splitting rule that is not in the table. Guessing one would
    /// silently degrade the model.
    #[error("pre-tokenizer {name:?} is not supported; known: {known}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// Every supported name.
        known: String,
    },

    /// Lists of the vocabulary contradict each other or a limit.
    #[error("bad vocabulary: {0}")]
    BadVocabulary(String),

    /// The chat template cannot be parsed, or rendering it failed.
    #[error("chat template, {}: {reason}", place(*.line))]
    Template {
        /// 1-based line of the template, where one is known.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
}

fn place(line: Option<usize>) -> String {
    match line {
        Some(line) => format!("line {line}"),
        None => "unknown line".to_owned(),
    }
}

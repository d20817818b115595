//! Text in and out of a model: tokenizers from GGUF vocabularies, streaming detokenization, stop
//! strings and chat templates.
//!
//! ```text
//! messages --ChatTemplate--> prompt text --Tokenizer--> tokens --(model)-->
//!     tokens --Detokenizer--> text --StopStrings--> text for the user
//! ```
//!
//! Everything here treats vocabularies, templates and texts as hostile: flaws are errors or warnings,
//! never panics, and neither time nor memory grows faster than about the size of the input.

mod bpe;
mod byte_alphabet;
mod chat;
mod detokenizer;
mod error;
mod from_gguf;
#[cfg(test)]
mod golden;
mod merge;
mod pretokenize;
mod roles;
mod special;
mod spm;
mod stop;
mod strings;
mod tokenizer;
mod vocabulary;

pub use chat::{ChatOptions, ChatTemplate, Message};
pub use detokenizer::Detokenizer;
pub use error::Error;
pub use stop::{Passed, StopStrings};
pub use tailrace_types::TokenId;
pub use tokenizer::Tokenizer;
pub use vocabulary::{SpecialIds, TokenKind, Vocabulary};

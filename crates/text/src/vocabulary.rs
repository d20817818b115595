//! What a GGUF file says about its tokenizer, as plain lists.

use tailrace_gguf::Strings;

/// Role of a token; discriminants are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TokenKind {
    /// Text.
    Normal = 1,
    /// What a SentencePiece model emits for text it cannot represent.
    Unknown = 2,
    /// Structure of the prompt, such as the start of a turn. Invisible in output, and recognised in
    /// input only where special tokens are asked for.
    Control = 3,
    /// Text that is a token wherever it occurs, before any other rule.
    UserDefined = 4,
    /// A number without meaning.
    Unused = 5,
    /// A single byte, spelled `<0xXX>`.
    Byte = 6,
}

impl TokenKind {
    /// The kind with that number; 0 ("undefined") and unknown numbers are normal text.
    pub fn from_gguf(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// Ids of tokens with a role, as the file gives them (not yet checked against the vocabulary).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Beginning of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Unknown.
    pub unknown: Option<u32>,
    /// Padding of fill-in-the-middle; ends generation.
    pub fim_pad: Option<u32>,
    /// Repository name in fill-in-the-middle prompts; ends generation.
    pub fim_rep: Option<u32>,
    /// File separator in fill-in-the-middle prompts; ends generation.
    pub fim_sep: Option<u32>,
}

/// A vocabulary as it lies in the file: everything in `tokenizer.*` that encoding needs.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// Algorithm: `tokenizer.ggml.model`.
    pub model: String,
    /// Splitting rule of byte-level BPE: `tokenizer.ggml.pre`.
    pub pre: Option<String>,
    /// Text of each token, in the alphabet of the algorithm; arbitrary bytes.
    pub tokens: Strings,
    /// Merge score of each token (SentencePiece), or empty.
    pub scores: Vec<f32>,
    /// Role of each token, or empty if all are text.
    pub kinds: Vec<TokenKind>,
    /// `"left right"` pairs in order of priority (BPE), or empty.
    pub merges: Strings,
    /// Ids with a role.
    pub special: SpecialIds,
    /// Whether to put the beginning-of-text token first; the algorithm's habit if not given.
    pub add_bos: Option<bool>,
    /// Whether to put the end-of-text token last; no if not given.
    pub add_eos: Option<bool>,
    /// Whether text gets a leading space (SentencePiece); yes if not given.
    pub add_space_prefix: Option<bool>,
}

//! Tokens to text, as they come.

use std::sync::Arc;

use crate::{TokenId, Tokenizer};

/// What stands for bytes that are no UTF-8.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Turns the tokens of one sequence into text that is valid UTF-8 at every step.
///
/// A character whose bytes are spread over several tokens appears with the token that completes it. Bytes that can no
/// longer become a character appear as U+FFFD as soon as that is certain. All text together equals
/// [`String::from_utf8_lossy`] of all pieces together, however it was cut.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character: at most three bytes.
    pending: Vec<u8>,
    /// Text of the last push.
    text: String,
    /// Whether the next space is the one that encoding has added.
    skip_space: bool,
}

impl Detokenizer {
    /// For tokens that continue a prompt: they are printed as they are.
    pub fn continuing(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, pending: Vec::new(), text: String::new(), skip_space: false }
    }

    /// For tokens from the start of a sequence: the leading space that encoding adds for some vocabularies
    /// ([`Tokenizer::adds_space_prefix`]) is taken away again.
    pub fn from_start(tokenizer: Arc<Tokenizer>) -> Self {
        let skip_space = tokenizer.adds_space_prefix();
        Self { skip_space, ..Self::continuing(tokenizer) }
    }

    /// The text that `token` adds, which is empty for control tokens and within a character.
    pub fn push(&mut self, token: TokenId) -> &str {
        self.text.clear();
        let mut piece = self.tokenizer.piece(token);
        if self.skip_space && !piece.is_empty() {
            piece = piece.strip_prefix(b" ").unwrap_or(piece);
            self.skip_space = false;
        }
        self.pending.extend_from_slice(piece);
        let mut left = self.pending.len();
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            left -= chunk.valid().len();
            let invalid = chunk.invalid();
            // Bytes at the end that may still become a character: their error has no length.
            if left == invalid.len() && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none()) {
                break;
            }
            left -= invalid.len();
            if !invalid.is_empty() {
                self.text.push(REPLACEMENT);
            }
        }
        self.pending.drain(..self.pending.len() - left);
        &self.text
    }

    /// Ends the sequence: the text for a character that was never completed.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(REPLACEMENT);
        }
        &self.text
    }
}

impl Tokenizer {
    /// The text of a whole sequence, without control tokens.
    pub fn decode(self: &Arc<Self>, tokens: &[TokenId]) -> String {
        let mut detokenizer = Detokenizer::from_start(Arc::clone(self));
        let mut text = String::new();
        for &token in tokens {
            text.push_str(detokenizer.push(token));
        }
        text.push_str(detokenizer.finish());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TokenKind, Vocabulary};

    /// A SentencePiece vocabulary: 256 bytes, a control token, and some text.
    fn bytes_and(texts: &[&str]) -> Arc<Tokenizer> {
        let bytes = (0..=255).map(|b| format!("<0x{b:02X}>"));
        let tokens = bytes.chain(["<s>".to_owned()]).chain(texts.iter().map(|t| t.to_string()));
        let kinds = [vec![TokenKind::Byte; 256], vec![TokenKind::Control], vec![TokenKind::Normal; texts.len()]];
        let vocabulary = Vocabulary {
            model: "llama".to_owned(),
            tokens: tokens.collect(),
            kinds: kinds.concat(),
            ..Vocabulary::default()
        };
        Arc::new(Tokenizer::new(vocabulary).unwrap())
    }

    fn pushed(detokenizer: &mut Detokenizer, ids: &[u32]) -> Vec<String> {
        ids.iter().map(|&id| detokenizer.push(TokenId(id)).to_owned()).collect()
    }

    #[test]
    fn characters_appear_whole() {
        let tokenizer = bytes_and(&["\u{2581}caf"]);
        let mut d = Detokenizer::continuing(tokenizer);
        assert_eq!(
            pushed(&mut d, &[257, 0xC3, 256, 0xA9, 0xF0, 0x9F, 0xA6, 0x99]),
            [" caf", "", "", "é", "", "", "", "🦙"]
        );
        assert_eq!(d.finish(), "");
    }

    #[test]
    fn broken_bytes_are_replaced_once_certain() {
        let mut d = Detokenizer::continuing(bytes_and(&["x"]));
        // A lone continuation byte, a lead that is cut off by text, a lead never continued.
        assert_eq!(pushed(&mut d, &[0xA9, 0xE2, 0x82, 257, 0xF0, 0x9F]), ["\u{fffd}", "", "", "\u{fffd}x", "", ""]);
        assert_eq!(d.finish(), "\u{fffd}");
        assert_eq!(d.finish(), "");
        assert_eq!(d.push(TokenId(9999)), "");
    }

    #[test]
    fn only_the_first_space_of_a_sequence_is_taken_away() {
        let tokenizer = bytes_and(&["\u{2581}a", "\u{2581}\u{2581}"]);
        assert_eq!(tokenizer.decode(&[256, 257, 257].map(TokenId)), "a a");
        assert_eq!(tokenizer.decode(&[258, 257].map(TokenId)), "  a");
        let mut d = Detokenizer::continuing(tokenizer);
        assert_eq!(pushed(&mut d, &[257]), [" a"]);
    }
}

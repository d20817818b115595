//! SentencePiece's BPE (`tokenizer.ggml.model` = `llama`): Llama 2 and Gemma 1 to 3.
//!
//! There is no pre-tokenizer and no list of merges: any two neighbours whose concatenation is a token may merge, the
//! token with the highest score first. Spaces are part of the text, spelled U+2581.

use std::borrow::Cow;

use hashbrown::HashSet;

use crate::merge::{Merge, Merger, NONE, Symbol};
use crate::strings::StringTable;
use crate::{Error, TokenId, TokenKind};

/// How SentencePiece spells a space.
pub(crate) const SPACE: &str = "\u{2581}";

/// Scores and byte tokens.
#[derive(Debug)]
pub(crate) struct Spm {
    /// Priority of the merge that yields each token: the higher its score, the lower.
    priorities: Vec<u32>,
    /// What to emit for a byte of a character that is no token.
    bytes: Box<[Option<u32>; 256]>,
    /// Characters that some token has before a space. Before a space that follows any other character the text can be
    /// cut without an effect, as no merge crosses that place.
    joined_to_space: HashSet<char>,
    /// Whether text that starts or follows a special token gets a leading space.
    pub(crate) add_space_prefix: bool,
}

impl Spm {
    /// Checks scores and byte tokens of the vocabulary `table`.
    pub(crate) fn new(
        table: &StringTable,
        kinds: &[TokenKind],
        scores: &[f32],
        unknown: Option<u32>,
        add_space_prefix: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        if scores.is_empty() {
            warnings.push("no scores: every merge counts the same".to_owned());
        } else if scores.len() < table.len() {
            return Err(Error::BadVocabulary(format!("{} scores for {} tokens", scores.len(), table.len())));
        }
        let nan = scores.iter().filter(|s| s.is_nan()).count();
        if nan > 0 {
            warnings.push(format!("{nan} scores are not numbers; those tokens merge last"));
        }
        let mut bytes = [unknown; 256];
        let mut bad = 0;
        for (id, _) in kinds.iter().enumerate().filter(|(_, k)| **k == TokenKind::Byte) {
            match table.get(id).and_then(byte_of) {
                Some(byte) => bytes[byte as usize] = Some(id as u32),
                None => bad += 1,
            }
        }
        if bad > 0 {
            warnings.push(format!("{bad} byte tokens are not spelled <0xXX>; they are never emitted"));
        }
        Ok(Self {
            priorities: scores.iter().map(|&s| priority(s)).collect(),
            bytes: Box::new(bytes),
            joined_to_space: joined_to_space(table),
            add_space_prefix,
        })
    }

    /// Appends the tokens of `text` to `out`; `prefix`: whether it starts or follows a special token.
    pub(crate) fn encode(
        &self,
        table: &StringTable,
        text: &str,
        prefix: bool,
        merger: &mut Merger,
        out: &mut Vec<TokenId>,
    ) {
        let text = spell(text, prefix && self.add_space_prefix);
        let mut start = 0;
        for (at, _) in text.match_indices(SPACE) {
            // The queue of candidates stays short when the pieces are.
            if text[start..at].chars().next_back().is_some_and(|c| !self.joined_to_space.contains(&c)) {
                self.encode_piece(table, &text[start..at], merger, out);
                start = at;
            }
        }
        self.encode_piece(table, &text[start..], merger, out);
    }

    fn encode_piece(&self, table: &StringTable, text: &str, merger: &mut Merger, out: &mut Vec<TokenId>) {
        let bytes = text.as_bytes();
        merger.clear();
        for c in text.chars() {
            merger.push(c.len_utf8(), NONE);
        }
        let rule = |left: &Symbol, right: &Symbol| {
            if (left.len + right.len) as usize > table.longest() {
                return None;
            }
            let pair = &bytes[left.start as usize..(right.start + right.len) as usize];
            let id = table.find(pair)?;
            let priority = self.priorities.get(id as usize).copied().unwrap_or_default();
            Some(Merge { priority, id })
        };
        for symbol in merger.run(rule) {
            let known = match symbol.id {
                NONE => table.find(symbol.bytes(bytes)), // a character that never merged
                id => Some(id),
            };
            match known {
                Some(id) => out.push(TokenId(id)),
                None => out.extend(symbol.bytes(bytes).iter().filter_map(|&b| self.bytes[b as usize]).map(TokenId)),
            }
        }
    }

    /// Heap bytes held.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.priorities.capacity() * size_of::<u32>() + self.joined_to_space.allocation_size()
    }
}

/// The characters that stand before a space within some token.
fn joined_to_space(table: &StringTable) -> HashSet<char> {
    let mut joined = HashSet::new();
    for token in (0..table.len()).filter_map(|i| table.get(i)) {
        let Ok(token) = std::str::from_utf8(token) else { continue };
        for (at, _) in token.match_indices(SPACE) {
            joined.extend(token[..at].chars().next_back());
        }
    }
    joined
}

/// `text` with spaces spelled out, after one more space if `prefix`.
fn spell(text: &str, prefix: bool) -> Cow<'_, str> {
    if !prefix && !text.contains(' ') {
        return Cow::Borrowed(text);
    }
    let mut spelled = String::with_capacity(text.len() + text.len() / 2 + SPACE.len());
    if prefix {
        spelled.push_str(SPACE);
    }
    for (i, part) in text.split(' ').enumerate() {
        if i > 0 {
            spelled.push_str(SPACE);
        }
        spelled.push_str(part);
    }
    Cow::Owned(spelled)
}

/// The byte that `<0xXX>` names: exactly two hexadecimal digits.
pub(crate) fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let [high, low] = digits else { return None };
    let value = |digit: &u8| char::from(*digit).to_digit(16);
    Some((value(high)? * 16 + value(low)?) as u8)
}

/// Maps scores to integers in reverse order; equal scores (0 and -0 too) stay equal, and what is no
/// number comes last.
fn priority(score: f32) -> u32 {
    if score.is_nan() {
        return u32::MAX;
    }
    let bits = (score + 0.0).to_bits(); // -0.0 + 0.0 = 0.0
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_have_lower_priorities() {
        let scores = [f32::INFINITY, 3.5, 1e-40, 0.0, -1e-40, -2.0, -2.5, f32::NEG_INFINITY, f32::NAN];
        for pair in scores.windows(2) {
            assert!(priority(pair[0]) < priority(pair[1]), "{pair:?}");
        }
        assert_eq!(priority(0.0), priority(-0.0));
    }

    #[test]
    fn bytes_need_two_digits() {
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0xff>"), Some(255));
        for bad in ["<0x-1>", "<0xA>", "<0x00A>", "<0xGG>", "0x0A", "<0x0A", "", "<0x+1>"] {
            assert_eq!(byte_of(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn spaces_are_spelled() {
        assert_eq!(spell("a  b ", true), "▁a▁▁b▁");
        assert_eq!(spell("ab", false), "ab");
        assert_eq!(spell("", true), "▁");
    }
}

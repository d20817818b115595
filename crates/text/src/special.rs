//! Cutting text at special tokens, before either algorithm sees it.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use memchr::memmem;

use crate::strings::StringTable;
use crate::{Error, TokenId, TokenKind};

/// A stretch of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// Text for the algorithm, as a range of the input.
    Text(Range<usize>),
    /// A special token.
    Token(TokenId),
}

/// One token that is matched in raw text.
#[derive(Debug)]
struct Special {
    text: Box<str>,
    id: TokenId,
    /// Matched in any text, not only where special tokens are asked for.
    always: bool,
}

/// The tokens that are matched in raw text, longest first (then by id).
#[derive(Debug)]
pub(crate) struct Specials {
    tokens: Vec<Special>,
    /// Finds which of them occur at all; there may be thousands, and a text holds a handful.
    finder: Option<AhoCorasick>,
}

impl Specials {
    /// Collects control, unknown and user-defined tokens. One that is not UTF-8 can never occur in
    /// a text and is left out.
    pub(crate) fn new(table: &StringTable, kinds: &[TokenKind]) -> Result<Self, Error> {
        let mut tokens = Vec::new();
        for (id, kind) in kinds.iter().enumerate() {
            let always = match kind {
                TokenKind::UserDefined => true,
                TokenKind::Control | TokenKind::Unknown => false,
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => continue,
            };
            let text = table.get(id).and_then(|t| std::str::from_utf8(t).ok());
            if let Some(text) = text.filter(|t| !t.is_empty()) {
                tokens.push(Special { text: text.into(), id: TokenId(id as u32), always });
            }
        }
        tokens.sort_by_key(|t| std::cmp::Reverse(t.text.len())); // stable: ids stay ascending
        let finder = if tokens.is_empty() {
            None
        } else {
            let texts = tokens.iter().map(|t| &*t.text);
            let finder = AhoCorasick::builder()
                .match_kind(MatchKind::Standard)
                .build(texts)
                .map_err(|e| Error::BadVocabulary(format!("special tokens: {e}")))?;
            Some(finder)
        };
        Ok(Self { tokens, finder })
    }

    /// Cuts `text`: each token in turn, longest first, takes all its occurrences in what is still
    /// text. (That is what llama.cpp does. The leftmost match would be another rule: of `ab` and
    /// `bcd` in `abcd` the longer one wins here.)
    pub(crate) fn split(&self, text: &str, parse_special: bool) -> Vec<Fragment> {
        let bytes = text.as_bytes();
        let mut blocked = vec![false; bytes.len()];
        let mut taken = Vec::new();
        for token in self.occurring(text, parse_special) {
            let finder = memmem::Finder::new(token.text.as_bytes());
            let mut from = 0;
            while let Some(at) = finder.find(&bytes[from..]) {
                let range = from + at..from + at + token.text.len();
                if let Some(last) = blocked[range.clone()].iter().rposition(|&b| b) {
                    from = range.start + last + 1;
                    continue;
                }
                from = range.end;
                blocked[range.clone()].fill(true);
                taken.push((range, token.id));
            }
        }
        taken.sort_unstable_by_key(|(range, _)| range.start);
        let mut fragments = Vec::with_capacity(2 * taken.len() + 1);
        let mut done = 0;
        for (range, id) in taken {
            push_text(&mut fragments, done..range.start);
            fragments.push(Fragment::Token(id));
            done = range.end;
        }
        push_text(&mut fragments, done..text.len());
        fragments
    }

    /// The tokens that occur in `text`, in order.
    fn occurring(&self, text: &str, parse_special: bool) -> impl Iterator<Item = &Special> {
        let mut occurs = vec![false; self.tokens.len()];
        if let Some(finder) = &self.finder {
            for found in finder.find_overlapping_iter(text) {
                occurs[found.pattern().as_usize()] = true;
            }
        }
        let tokens = self.tokens.iter().zip(occurs);
        tokens.filter(move |(token, occurs)| *occurs && (parse_special || token.always)).map(|(token, _)| token)
    }

    /// Heap bytes held.
    pub(crate) fn heap_bytes(&self) -> usize {
        let texts: usize = self.tokens.iter().map(|t| t.text.len()).sum();
        let finder = self.finder.as_ref().map_or(0, AhoCorasick::memory_usage);
        texts + finder + self.tokens.capacity() * size_of::<Special>()
    }
}

fn push_text(fragments: &mut Vec<Fragment>, range: Range<usize>) {
    if !range.is_empty() {
        fragments.push(Fragment::Text(range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(tokens: &[(&[u8], TokenKind)]) -> Specials {
        let strings = tokens.iter().map(|t| t.0).collect();
        let kinds: Vec<TokenKind> = tokens.iter().map(|t| t.1).collect();
        Specials::new(&StringTable::new(strings).0, &kinds).unwrap()
    }

    fn show(specials: &Specials, text: &str, parse: bool) -> String {
        let show = |f: &Fragment| match f {
            Fragment::Text(range) => text[range.clone()].to_owned(),
            Fragment::Token(id) => format!("#{}", id.0),
        };
        let all: Vec<String> = specials.split(text, parse).iter().map(show).collect();
        all.join("|")
    }

    #[test]
    fn longest_first_not_leftmost_first() {
        let s = specials(&[
            (b"ab", TokenKind::UserDefined),
            (b"bcd", TokenKind::UserDefined),
            (b"<s>", TokenKind::Control),
            (b"x", TokenKind::Normal),
            (b"\xff", TokenKind::Control),
            (b"", TokenKind::Control),
        ]);
        assert_eq!(show(&s, "abcd ab", true), "a|#1| |#0");
        assert_eq!(show(&s, "x<s>ab", false), "x<s>|#0");
        assert_eq!(show(&s, "x<s>ab<s>", true), "x|#2|#0|#2");
        assert_eq!(show(&s, "", true), "");
    }

    #[test]
    fn runs_take_the_longest_pieces() {
        let s = specials(&[
            (b"\n", TokenKind::UserDefined),
            (b"\n\n", TokenKind::UserDefined),
            (b"\n\n\n", TokenKind::UserDefined),
        ]);
        assert_eq!(show(&s, "a\n\n\n\n\nb", false), "a|#2|#1|b");
    }
}

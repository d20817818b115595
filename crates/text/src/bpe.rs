//! Byte-level byte pair encoding (`tokenizer.ggml.model` = `gpt2`).

use std::collections::HashMap;

use tailrace_gguf::Strings;

use crate::byte_alphabet;
use crate::merge::{Merge, Merger};
use crate::pretokenize::PreTokenizer;
use crate::strings::StringTable;
use crate::{Error, TokenId};

/// Merges that a vocabulary may list.
const MERGES_MAX: usize = 1 << 24;

/// Merge rules over symbol ids.
///
/// A symbol is a token, or one of the strings that merges name although they are no tokens; those
/// are numbered from the end of the vocabulary on, so that merging never looks at text.
#[derive(Debug)]
pub(crate) struct Bpe {
    pre: PreTokenizer,
    /// Symbol of each byte.
    bytes: Box<[u32; 256]>,
    /// (left, right) -> merge. The standard hasher would take a third of the time.
    pairs: hashbrown::HashMap<(u32, u32), Merge>,
    tokens: u32,
}

/// Numbers strings: tokens by their id, others from the end of the vocabulary on.
struct Symbols<'a> {
    table: &'a StringTable,
    others: HashMap<Vec<u8>, u32>,
}

impl Symbols<'_> {
    fn id(&mut self, text: &[u8]) -> u32 {
        if let Some(id) = self.table.find(text) {
            return id;
        }
        let next = (self.table.len() + self.others.len()) as u32;
        *self.others.entry(text.to_vec()).or_insert(next)
    }
}

impl Bpe {
    /// Reads `merges` against the vocabulary `table`; reports merges that name no pair.
    pub(crate) fn new(
        pre: PreTokenizer,
        table: &StringTable,
        merges: &Strings,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        if merges.len() > MERGES_MAX {
            return Err(Error::BadVocabulary(format!("{} merges, at most {MERGES_MAX} are supported", merges.len())));
        }
        let mut symbols = Symbols { table, others: HashMap::new() };
        let mut spelled = [0; 4];
        let bytes = std::array::from_fn(|byte| {
            let text = byte_alphabet::to_char(byte as u8).encode_utf8(&mut spelled);
            symbols.id(text.as_bytes())
        });
        let mut pairs = hashbrown::HashMap::with_capacity(merges.len());
        let (mut unusable, mut joined) = (0, Vec::new());
        for (rank, merge) in merges.iter().enumerate() {
            // A token may start with a space of its own, so the separator is the first space
            // after the first byte.
            let Some(at) = memchr::memchr(b' ', merge.get(1..).unwrap_or_default()) else {
                unusable += 1;
                continue;
            };
            let (left, right) = (&merge[..at + 1], &merge[at + 2..]);
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let merge = Merge { priority: rank as u32, id: symbols.id(&joined) };
            let pair = (symbols.id(left), symbols.id(right));
            pairs.entry(pair).or_insert(merge);
        }
        if unusable > 0 {
            warnings.push(format!("{unusable} merges without a space are ignored"));
        }
        Ok(Self { pre, bytes: Box::new(bytes), pairs, tokens: table.len() as u32 })
    }

    /// Whether these vocabularies put a beginning-of-text token first by habit.
    pub(crate) fn adds_bos(&self) -> bool {
        self.pre.add_bos
    }

    /// Appends the tokens of `text` to `out`.
    pub(crate) fn encode(&self, table: &StringTable, text: &str, out: &mut Vec<TokenId>) {
        let mut merger = Merger::default();
        let mut spelled = String::new();
        self.pre.split(text, &mut |piece| {
            if self.pre.ignore_merges {
                spelled.clear();
                byte_alphabet::spell(piece.as_bytes(), &mut spelled);
                if let Some(id) = table.find(spelled.as_bytes()) {
                    out.push(TokenId(id));
                    return;
                }
            }
            self.encode_piece(piece.as_bytes(), &mut merger, out);
        });
    }

    fn encode_piece(&self, piece: &[u8], merger: &mut Merger, out: &mut Vec<TokenId>) {
        merger.clear();
        for &byte in piece {
            merger.push(1, self.bytes[byte as usize]);
        }
        for symbol in merger.run(|l, r| self.pairs.get(&(l.id, r.id)).copied()) {
            if symbol.id < self.tokens {
                out.push(TokenId(symbol.id));
                continue;
            }
            // Merges led to a string that is no token: spell it. A byte without a token is lost,
            // as there is nothing in the vocabulary that could stand for it.
            let bytes = symbol.bytes(piece).iter().map(|&b| self.bytes[b as usize]);
            out.extend(bytes.filter(|&id| id < self.tokens).map(TokenId));
        }
    }

    /// Heap bytes held.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.pairs.allocation_size()
    }
}

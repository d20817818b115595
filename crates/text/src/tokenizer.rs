//! Text to tokens, and tokens to bytes.

use std::borrow::Cow;
use std::ops::Range;

use tailrace_gguf::Strings;

use crate::bpe::Bpe;
use crate::merge::Merger;
use crate::pretokenize::PreTokenizer;
use crate::special::{Fragment, Specials};
use crate::spm::{self, Spm};
use crate::strings::{self, StringTable};
use crate::vocabulary::{SpecialIds, Vocabulary};
use crate::{Error, TokenId, TokenKind, byte_alphabet, roles};

/// Tokens in a vocabulary.
const TOKENS_MAX: usize = 1 << 24;
/// Bytes of one token's text.
const TOKEN_BYTES_MAX: usize = 1 << 16;
/// Bytes of all tokens' texts.
const TEXT_BYTES_MAX: usize = 1 << 30;
/// Text between special tokens is encoded in stretches of at most this many bytes, so that offsets
/// fit in 32 bits even after every space has become three bytes.
const STRETCH_BYTES_MAX: usize = 1 << 30;

/// The tokenizer of one model.
///
/// Ids equal llama.cpp's for the supported vocabularies. Immutable and shareable; encoding allocates
/// its scratch memory per call.
#[derive(Debug)]
pub struct Tokenizer {
    algorithm: Algorithm,
    /// Token texts in the alphabet of the algorithm.
    table: StringTable,
    /// What each token prints.
    pieces: Strings,
    kinds: Vec<TokenKind>,
    specials: Specials,
    /// Ascending.
    ends: Vec<TokenId>,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    add_bos: bool,
    add_eos: bool,
    warnings: Vec<String>,
}

#[derive(Debug)]
enum Algorithm {
    Bpe(Bpe),
    Spm(Spm),
}

impl Tokenizer {
    /// Builds the tokenizer of `vocabulary`.
    ///
    /// # Errors
    ///
    /// An algorithm or splitting rule that is not supported, lists whose lengths contradict each
    /// other, or sizes beyond any real vocabulary. Flaws that leave the tokenizer usable (special
    /// ids out of range, repeated tokens, odd merges) are [`Self::warnings`] instead.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, Error> {
        let mut warnings = Vec::new();
        let is_bpe = match vocabulary.model.as_str() {
            "gpt2" => true,
            "llama" => false,
            name => return Err(Error::UnknownModel { name: name.to_owned() }),
        };
        let table = read_table(vocabulary.tokens, &mut warnings)?;
        let mut kinds = vocabulary.kinds;
        match kinds.len() {
            0 => kinds.resize(table.len(), TokenKind::Normal),
            n if n < table.len() => {
                let tokens = table.len();
                return Err(Error::BadVocabulary(format!("{n} token types for {tokens} tokens")));
            }
            _ => kinds.truncate(table.len()),
        }
        let special = read_special(vocabulary.special, is_bpe, &kinds, &mut warnings);
        let ends = roles::end_of_generation(&table, &mut kinds, &special);
        let algorithm = if is_bpe {
            let pre = vocabulary.pre.as_deref().filter(|p| !p.is_empty()).unwrap_or("default");
            if pre == "default" {
                warnings.push("no pre-tokenizer named, GPT-2's assumed: quality may suffer".into());
            }
            let pre = PreTokenizer::by_name(pre)?;
            Algorithm::Bpe(Bpe::new(pre, &table, &vocabulary.merges, &mut warnings)?)
        } else {
            let prefix = vocabulary.add_space_prefix.unwrap_or(true);
            let scores = &vocabulary.scores;
            let unknown = special.unknown;
            Algorithm::Spm(Spm::new(&table, &kinds, scores, unknown, prefix, &mut warnings)?)
        };
        let habit = match &algorithm {
            Algorithm::Bpe(bpe) => bpe.adds_bos(),
            Algorithm::Spm(_) => true,
        };
        let mut wanted = |wanted: bool, id: Option<u32>, what: &str| {
            if wanted && id.is_none() {
                warnings.push(format!("{what} is asked for, but no token has that role"));
            }
            wanted && id.is_some()
        };
        Ok(Self {
            add_bos: wanted(vocabulary.add_bos.unwrap_or(habit), special.bos, "beginning of text"),
            add_eos: wanted(vocabulary.add_eos.unwrap_or(false), special.eos, "end of text"),
            specials: Specials::new(&table, &kinds)?,
            pieces: print_all(&table, &kinds, is_bpe),
            bos: special.bos.map(TokenId),
            eos: special.eos.map(TokenId),
            algorithm,
            table,
            kinds,
            ends,
            warnings,
        })
    }

    /// The tokens of `text`.
    ///
    /// `add_special`: put the beginning-of-text (end-of-text) token first (last) if this vocabulary
    /// wants one. `parse_special`: recognise control tokens spelled out in `text`; without it such
    /// text is ordinary, which is what text from users should be.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<TokenId> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if add_special && self.add_bos {
            out.extend(self.bos);
        }
        let mut merger = Merger::default();
        let mut after_special = true;
        for fragment in self.specials.split(text, parse_special) {
            match fragment {
                Fragment::Token(id) => {
                    out.push(id);
                    after_special = true;
                }
                Fragment::Text(range) => {
                    for stretch in stretches(text, range) {
                        match &self.algorithm {
                            Algorithm::Bpe(bpe) => bpe.encode(&self.table, stretch, &mut out),
                            Algorithm::Spm(spm) => {
                                let table = &self.table;
                                spm.encode(table, stretch, after_special, &mut merger, &mut out);
                            }
                        }
                        after_special = false;
                    }
                }
            }
        }
        if add_special && self.add_eos {
            out.extend(self.eos);
        }
        out
    }

    /// The tokens of a whole prompt that spells out its special tokens, as a chat template renders it. The
    /// beginning-of-text token is added if this vocabulary wants one, unless the prompt has it already.
    pub fn encode_prompt(&self, text: &str) -> Vec<TokenId> {
        let mut tokens = self.encode(text, false, true);
        if self.add_bos && self.bos != tokens.first().copied() {
            tokens.splice(..0, self.bos);
        }
        tokens
    }

    /// The bytes that `token` prints: nothing for control, unknown and unused tokens and for ids
    /// outside the vocabulary. Not necessarily UTF-8; see [`crate::Detokenizer`].
    pub fn piece(&self, token: TokenId) -> &[u8] {
        match self.kind(token) {
            Some(TokenKind::Control | TokenKind::Unknown | TokenKind::Unused) | None => &[],
            Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte) => {
                self.pieces.get(token.0 as usize).unwrap_or_default()
            }
        }
    }

    /// What `token` stands for, for people: also the names of control tokens.
    pub fn token_text(&self, token: TokenId) -> Cow<'_, str> {
        String::from_utf8_lossy(self.pieces.get(token.0 as usize).unwrap_or_default())
    }

    /// The token whose text (in a file's spelling) is `text`, such as `<|im_start|>`.
    pub fn find(&self, text: &str) -> Option<TokenId> {
        self.table.find(text.as_bytes()).map(TokenId)
    }

    /// Role of `token`, or `None` outside the vocabulary.
    pub fn kind(&self, token: TokenId) -> Option<TokenKind> {
        self.kinds.get(token.0 as usize).copied()
    }

    /// Whether `token` ends generation.
    pub fn is_eog(&self, token: TokenId) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    /// The tokens that end generation, ascending.
    pub fn eog(&self) -> &[TokenId] {
        &self.ends
    }

    /// Beginning of text.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// End of text.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// Whether `encode(.., add_special = true, ..)` puts [`Self::bos`] first.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// What `encode(.., add_special = true, ..)` puts first.
    pub fn leading_bos(&self) -> Option<TokenId> {
        self.bos.filter(|_| self.add_bos)
    }

    /// Whether text at the start of a sequence is encoded with an added leading space, which
    /// decoding from the start takes away again.
    pub fn adds_space_prefix(&self) -> bool {
        matches!(&self.algorithm, Algorithm::Spm(spm) if spm.add_space_prefix)
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// Flaws of the file that were worked around, each one sentence.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Host memory that the tokenizer holds, in bytes. Matching patterns adds caches of up to 2 MiB for each thread that
    /// encodes at the same time.
    pub fn bytes(&self) -> usize {
        let algorithm = match &self.algorithm {
            Algorithm::Bpe(bpe) => bpe.heap_bytes(),
            Algorithm::Spm(spm) => spm.heap_bytes(),
        };
        let kinds = self.kinds.capacity();
        let strings = self.table.heap_bytes() + strings::heap_bytes(&self.pieces);
        algorithm + kinds + strings + self.specials.heap_bytes()
    }
}

/// Cuts a range of `text` at character boundaries into stretches whose offsets fit in 32 bits.
fn stretches(text: &str, range: Range<usize>) -> impl Iterator<Item = &str> {
    let mut left = &text[range];
    std::iter::from_fn(move || {
        let end = left.floor_char_boundary(STRETCH_BYTES_MAX);
        let (stretch, rest) = left.split_at(end);
        left = rest;
        Some(stretch).filter(|s| !s.is_empty())
    })
}

/// The token texts, checked.
fn read_table(tokens: Strings, warnings: &mut Vec<String>) -> Result<StringTable, Error> {
    let (count, bytes) = (tokens.len(), tokens.total_bytes());
    if count == 0 || count > TOKENS_MAX || bytes > TEXT_BYTES_MAX {
        return Err(Error::BadVocabulary(format!(
            "{count} tokens of {bytes} bytes, supported are 1 to {TOKENS_MAX} of at most {TEXT_BYTES_MAX} bytes in all"
        )));
    }
    if let Some((id, token)) = tokens.iter().enumerate().find(|(_, t)| t.len() > TOKEN_BYTES_MAX) {
        let bytes = token.len();
        return Err(Error::BadVocabulary(format!(
            "token {id} has {bytes} bytes, at most {TOKEN_BYTES_MAX} are supported"
        )));
    }
    let (table, repeated) = StringTable::new(tokens);
    if let Some(first) = repeated.first() {
        let n = repeated.len();
        warnings.push(format!("{n} tokens repeat an earlier one (first: {first}); never emitted"));
    }
    Ok(table)
}

/// The special ids that lie in the vocabulary, with the algorithm's defaults for absent ones.
fn read_special(given: SpecialIds, is_bpe: bool, kinds: &[TokenKind], warnings: &mut Vec<String>) -> SpecialIds {
    let mut check = |id: Option<u32>, role: &str| {
        let id = id?;
        if (id as usize) < kinds.len() {
            return Some(id);
        }
        warnings.push(format!("{role} token {id} is outside the vocabulary and ignored"));
        None
    };
    let mut special = SpecialIds {
        bos: check(given.bos, "beginning-of-text"),
        eos: check(given.eos, "end-of-text"),
        eot: check(given.eot, "end-of-turn"),
        eom: check(given.eom, "end-of-message"),
        unknown: check(given.unknown, "unknown"),
        fim_pad: check(given.fim_pad, "fill-in-the-middle padding"),
        fim_rep: check(given.fim_rep, "repository"),
        fim_sep: check(given.fim_sep, "file separator"),
    };
    // The ids that files of the first years left out. In GPT-2's own vocabulary 11 is a comma, so
    // it counts only where it is a control token.
    let old = |id: u32, kind: TokenKind| (kinds.get(id as usize) == Some(&kind)).then_some(id);
    let (bos, eos, unknown) = match is_bpe {
        true => (11, 11, None),
        false => (1, 2, old(0, TokenKind::Unknown)),
    };
    special.bos = special.bos.or_else(|| old(bos, TokenKind::Control));
    special.eos = special.eos.or_else(|| old(eos, TokenKind::Control));
    special.unknown = special.unknown.or(unknown);
    special
}

/// What each token prints (control tokens: what they are called).
fn print_all(table: &StringTable, kinds: &[TokenKind], is_bpe: bool) -> Strings {
    let print = |(id, kind): (usize, &TokenKind)| {
        let text = table.get(id).unwrap_or_default();
        let printed = match kind {
            TokenKind::Normal if is_bpe => byte_alphabet::read(text),
            TokenKind::Normal => unspell_spaces(text),
            TokenKind::Byte if !is_bpe => spm::byte_of(text).map(|b| vec![b]),
            _ => None,
        };
        printed.map_or(Cow::Borrowed(text), Cow::Owned)
    };
    kinds.iter().enumerate().map(print).collect()
}

/// `text` with U+2581 as spaces, or `None` if there are none.
fn unspell_spaces(text: &[u8]) -> Option<Vec<u8>> {
    let finder = memchr::memmem::Finder::new(spm::SPACE.as_bytes());
    finder.find(text)?;
    let mut out = Vec::with_capacity(text.len());
    let mut done = 0;
    for at in finder.find_iter(text) {
        out.extend_from_slice(&text[done..at]);
        out.push(b' ');
        done = at + spm::SPACE.len();
    }
    out.extend_from_slice(&text[done..]);
    Some(out)
}

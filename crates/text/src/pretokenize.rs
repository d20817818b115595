//! The first step of byte-level BPE: cutting text into pieces that no merge crosses.
//!
//! The patterns are those that the models were trained with (`pre_tokenizer` in their
//! `tokenizer.json`), named as GGUF files name them. All come from the table below, never from a
//! file. Two things differ in form, not in effect:
//!
//! - `\s+(?!\S)` is not written as a look-ahead, which would need a backtracking engine that an
//!   adversarial text can stall. Greedy `\s+` followed by [`WhiteSpace`]'s rule says the same.
//! - `(?i:'s|...)` is written out in ASCII, as llama.cpp does, so that `'ſ` is no contraction.

use regex::Regex;

use crate::Error;

/// Contractions in either case.
macro_rules! contractions {
    () => {
        "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"
    };
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const QWEN2: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const QWEN35: &str =
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+");
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?:",
    contractions!(),
    r")?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?:",
    contractions!(),
    r")?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
);
const DIGIT: &str = r"\p{N}";
const FALCON_PUNCTUATION: &str = r"[\p{P}$+<=>^~|`]+";
const FALCON_DIGITS: &str = r"[0-9][0-9][0-9]";

/// What becomes of a match that is white space only and that more text follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhiteSpace {
    /// It gives its last character back, to start the next piece: `\s+(?!\S)`.
    GivesBack,
    /// The same unless it ends in a line break, which another alternative has matched.
    GivesBackUnlessLineBreak,
}

/// One pass over the pieces left by the previous pass.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// The pattern matches at every place, so its matches are the pieces.
    Cover(&'static str, WhiteSpace),
    /// Matches are pieces, and so is the text between them.
    Isolate(&'static str),
}

use Rule::{Cover, Isolate};
use WhiteSpace::{GivesBack, GivesBackUnlessLineBreak};

/// How the vocabularies of one family are cut and what their tokenizers assume.
#[derive(Debug)]
struct Family {
    names: &'static [&'static str],
    rules: &'static [Rule],
    /// A piece that is a token is taken whole, whatever the merges say.
    ignore_merges: bool,
    /// Whether a beginning-of-text token is added when the file does not say.
    add_bos: bool,
}

const FAMILIES: &[Family] = &[
    Family {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        rules: &[Cover(LLAMA3, GivesBackUnlessLineBreak)],
        ignore_merges: true,
        add_bos: true,
    },
    Family {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        rules: &[Cover(LLAMA3, GivesBackUnlessLineBreak)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "kormo",
            "f2llmv2",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        rules: &[Cover(QWEN2, GivesBackUnlessLineBreak)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["qwen35"],
        rules: &[Cover(QWEN35, GivesBackUnlessLineBreak)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        rules: &[Isolate(DIGIT), Cover(GPT2, GivesBack)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "default",
        ],
        rules: &[Cover(GPT2, GivesBack)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        rules: &[Cover(GPT4O, GivesBackUnlessLineBreak)],
        ignore_merges: false,
        add_bos: false,
    },
    Family {
        names: &["tekken"],
        rules: &[Cover(TEKKEN, GivesBackUnlessLineBreak)],
        ignore_merges: true,
        add_bos: true,
    },
    Family {
        names: &["falcon"],
        rules: &[Isolate(FALCON_PUNCTUATION), Cover(GPT2, GivesBack), Isolate(FALCON_DIGITS)],
        ignore_merges: false,
        add_bos: false,
    },
];

#[derive(Debug)]
enum Pass {
    /// Anchored at the start of what is left.
    Cover(Regex, WhiteSpace),
    Isolate(Regex),
}

/// Cuts text into pieces.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    passes: Vec<Pass>,
    pub(crate) ignore_merges: bool,
    pub(crate) add_bos: bool,
}

impl PreTokenizer {
    /// The rules that GGUF files call `name` (`tokenizer.ggml.pre`).
    pub(crate) fn by_name(name: &str) -> Result<Self, Error> {
        let family = FAMILIES.iter().find(|f| f.names.contains(&name));
        let family =
            family.ok_or_else(|| Error::UnknownPreTokenizer { name: name.to_owned(), known: known_names() })?;
        let compile =
            |pattern: String| Regex::new(&pattern).map_err(|e| Error::BadVocabulary(format!("pre-tokenizer: {e}")));
        let passes = family.rules.iter().map(|rule| match *rule {
            Cover(pattern, space) => Ok(Pass::Cover(compile(format!(r"\A(?:{pattern})"))?, space)),
            Isolate(pattern) => Ok(Pass::Isolate(compile(pattern.to_owned())?)),
        });
        Ok(Self {
            passes: passes.collect::<Result<_, Error>>()?,
            ignore_merges: family.ignore_merges,
            add_bos: family.add_bos,
        })
    }

    /// Calls `sink` with each piece of `text`, in order; their concatenation is `text`.
    pub(crate) fn split<'t>(&self, text: &'t str, sink: &mut dyn FnMut(&'t str)) {
        split_by(&self.passes, text, sink);
    }
}

/// Every name, for an error message.
fn known_names() -> String {
    let names: Vec<&str> = FAMILIES.iter().flat_map(|f| f.names).copied().collect();
    names.join(", ")
}

fn split_by<'t>(passes: &[Pass], text: &'t str, sink: &mut dyn FnMut(&'t str)) {
    match passes.split_first() {
        None if text.is_empty() => {}
        None => sink(text),
        Some((Pass::Isolate(regex), rest)) => {
            let mut done = 0;
            for found in regex.find_iter(text) {
                split_by(rest, &text[done..found.start()], sink);
                split_by(rest, found.as_str(), sink);
                done = found.end();
            }
            split_by(rest, &text[done..], sink);
        }
        Some((Pass::Cover(regex, space), rest)) => {
            let mut left = text;
            while let Some(first) = left.chars().next() {
                // A pattern that covers everything always matches; were one to miss a character,
                // that character would become a piece of its own.
                let matched = regex.find(left).map_or(0, |m| m.end());
                let end = give_back(left, matched.max(first.len_utf8()), *space);
                split_by(rest, &left[..end], sink);
                left = &left[end..];
            }
        }
    }
}

/// The end of the piece at the start of `text` whose pattern matched up to `end`.
fn give_back(text: &str, end: usize, space: WhiteSpace) -> usize {
    let piece = &text[..end];
    if end == text.len() || !piece.chars().all(char::is_whitespace) {
        return end;
    }
    if space == GivesBackUnlessLineBreak && piece.ends_with(['\r', '\n']) {
        return end;
    }
    match piece.char_indices().next_back() {
        Some((last, _)) if last > 0 => last,
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        PreTokenizer::by_name(name).unwrap().split(text, &mut |p| pieces.push(p.to_owned()));
        pieces
    }

    #[test]
    fn every_family_compiles_and_loses_nothing() {
        let text = "I'll  pay \t\n\n  $1234.50 for ÀÉa नमस्ते\u{301}  !!\r\n\u{3000}x  ";
        for family in FAMILIES {
            for name in family.names {
                assert_eq!(split(name, text).concat(), text, "{name}");
            }
        }
    }

    #[test]
    fn white_space_gives_its_last_character_back() {
        assert_eq!(split("gpt-2", "a   b"), ["a", "  ", " b"]);
        assert_eq!(split("gpt-2", "a \n\nb"), ["a", " \n", "\n", "b"]);
        assert_eq!(split("gpt-2", "a  "), ["a", "  "]);
        assert_eq!(split("llama-bpe", "a \n\n  b"), ["a", " \n\n", " ", " b"]);
        assert_eq!(split("llama-bpe", "a\t\tb"), ["a", "\t", "\tb"]);
    }

    #[test]
    fn digits() {
        assert_eq!(split("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(split("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(split("smollm", "a 12b"), ["a", " ", "1", "2", "b"]);
        assert_eq!(split("falcon", " 12345"), [" ", "123", "45"]);
    }

    #[test]
    fn case_changes_start_pieces_for_gpt_4o() {
        assert_eq!(split("gpt-4o", "camelCaseHTTP's"), ["camel", "Case", "HTTP's"]);
        assert_eq!(split("tekken", "camelCase's"), ["camel", "Case", "'s"]);
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = PreTokenizer::by_name("no\u{1b}such").unwrap_err().to_string();
        assert!(error.contains("llama-bpe, llama3"), "{error}");
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}

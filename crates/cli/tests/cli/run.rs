//! `tailrace run`.

use std::fs;
use std::io::Read;

use tempfile::TempDir;

use crate::common::{command, feed, first_byte, largest, letters, number, run_with_stats, signal, tailrace};

#[test]
fn standard_output_is_the_text_alone() {
    let model = largest();
    let args = ["run", "-m", &model, "-p", "a model", "-n", "30", "--temp", "0", "--ignore-eos"];
    let output = tailrace(&args).ok();
    assert!(output.text().chars().count() > 10);
    let summaries: Vec<&str> = output.stderr.lines().filter(|line| line.starts_with("prefill ")).collect();
    assert_eq!(summaries.len(), 1, "{}", output.stderr);
    for part in
        ["tokens/s (6)", "decode", "window 512 cells", "tail 0 cells", "read from the tail 0 B", "weights", "process"]
    {
        assert!(summaries[0].contains(part), "{}", output.stderr);
    }
    // The table of -v goes where the rest of the talk is.
    let verbose = tailrace(&[&args[..], &["-v"]].concat()).ok();
    assert_eq!(verbose.stdout, output.stdout);
    assert!(verbose.stderr.contains("sum, what the cap bounds"), "{}", verbose.stderr);
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let model = largest();
    let text = |rest: &[&str]| {
        let args = [&["run", "-m", &model, "-p", "a model", "-n", "60", "--ignore-eos"], rest].concat();
        tailrace(&args).ok().stdout
    };
    assert_eq!(text(&["--temp", "0"]), text(&["--temp", "0", "-s", "5"]));
    let hot = ["--temp", "3", "--top-k", "0", "--top-p", "1", "--min-p", "0", "-s"];
    let seeded = |seed: &str| text(&[&hot[..], &[seed]].concat());
    assert_eq!(seeded("7"), seeded("7"));
    assert_ne!(seeded("7"), seeded("8"));
    assert_ne!(seeded("-1"), seeded("-1"));
}

#[test]
fn stop_strings() {
    let model = largest();
    let args = ["run", "-m", &model, "-p", "a model", "-n", "200", "--ignore-eos", "-s", "3", "--temp", "2"];
    let output = tailrace(&args).ok();
    let text = output.text();
    let (at, _) = text.char_indices().filter(|(_, c)| c.is_ascii_graphic()).nth(20).expect("letters");
    let end = text.char_indices().map(|(i, _)| i).find(|&i| i > at + 2).expect("more text");
    let stop = &text[at..end];
    let first = text.find(stop).expect("it is there");
    let stopped = tailrace(&[&args[..], &["-r", stop, "-r", "never in this text"]].concat()).ok();
    assert_eq!(stopped.text(), &text[..first]);
}

#[test]
fn prompts_come_from_arguments_files_and_standard_input() {
    let model = largest();
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("prompt.txt");
    let prompt = "two\nlines, a tab\t, and gr\u{fc}n\n";
    fs::write(&file, prompt).expect("a file");
    let rest = ["-n", "20", "--temp", "0", "--ignore-eos"];
    let args = |source: &[&str]| {
        [&["run", "-m", model.as_str()], source, &rest].concat().iter().map(|a| a.to_string()).collect()
    };
    let run = |source: &[&str], input: &str| {
        let args: Vec<String> = args(source);
        feed(&args.iter().map(String::as_str).collect::<Vec<_>>(), input.as_bytes()).ok().stdout
    };
    let expected = run(&["-p", prompt], "");
    assert!(!expected.is_empty());
    assert_eq!(run(&["-f", file.to_str().expect("UTF-8")], ""), expected);
    assert_eq!(run(&["-f", "-"], prompt), expected);
    assert_eq!(run(&[], prompt), expected);
    assert_ne!(run(&[], prompt.trim_end()), expected, "a prompt is fed byte for byte");
    // A prompt may look like a flag.
    assert_eq!(run(&["-p", "-ub"], ""), run(&["-f", "-"], "-ub"));
}

#[test]
fn statistics() {
    let model = largest();
    let prompt = letters(1500);
    let run = |rest: &[&str]| {
        let args = ["-m", &model, "-p", &prompt, "-c", "2048", "-ub", "64", "-n", "40", "--temp", "0", "--ignore-eos"];
        let (output, stats) = run_with_stats(&[&args[..], rest].concat());
        (output.ok(), stats)
    };
    let (resident, whole) = run(&[]);
    let (spilled, stats) = run(&["--kv-window", "256"]);
    assert_eq!(resident.stdout, spilled.stdout, "the window changes no token");
    assert!(resident.text().chars().count() > 10);

    assert_eq!((number(&whole, "window_cells"), number(&whole, "tail_cells")), (2048, 0));
    assert_eq!((number(&whole, "tail_bytes"), number(&whole, "tail_read_bytes")), (0, 0));

    let cell_bytes = 512;
    let (prompt_tokens, tail_cells) = (number(&stats, "prompt_tokens"), number(&stats, "tail_cells"));
    assert!(prompt_tokens > 1024 && number(&stats, "generated_tokens") == 40, "{stats}");
    assert_eq!(number(&stats, "window_cells"), 256);
    assert!(tail_cells.is_multiple_of(256) && (256..prompt_tokens).contains(&tail_cells), "{stats}");
    assert_eq!(number(&stats, "tail_bytes"), tail_cells * cell_bytes);
    assert!(number(&stats, "tail_written_bytes") >= number(&stats, "tail_bytes"), "{stats}");
    // Each of the 39 rows that were decoded reads the tail, which was no smaller for the last of them than for the first.
    assert!(number(&stats, "tail_read_bytes") >= 39 * number(&stats, "tail_bytes"), "{stats}");
    for rate in ["prefill_tps", "decode_tps"] {
        assert!(stats[rate].as_f64().expect("a number") > 0.0, "{stats}");
    }
    assert!(spilled.stderr.contains(&format!("tail {tail_cells} cells")), "{}", spilled.stderr);
}

#[test]
fn the_end_of_the_context_is_said() {
    let model = largest();
    let (output, stats) = run_with_stats(&["-m", &model, "-p", "hi", "-c", "40", "--ignore-eos"]);
    assert!(output.ok().stderr.contains("stopped at the end of the context (40 tokens)"));
    assert!((38..=39).contains(&number(&stats, "generated_tokens")), "{stats}");
}

#[test]
fn interrupts_keep_what_was_generated() {
    let model = largest();
    for name in ["INT", "TERM"] {
        let args = ["run", "-m", &model, "-p", "hi", "-c", "500000", "--ignore-eos", "-s", "1"];
        let mut child = command(&args).spawn().expect("the binary starts");
        let mut stdout = child.stdout.take().expect("a pipe");
        first_byte(&mut stdout);
        signal(&child, name);
        let mut text = Vec::new();
        stdout.read_to_end(&mut text).expect("the rest");
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        assert!(stderr.contains("prefill ") && stderr.ends_with("tailrace: interrupted\n"), "{stderr}");
    }
}

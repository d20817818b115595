//! What is wrong is said in one line, which names it and what would work.

use std::fs;
use std::path::Path;

use tailrace_gguf::{Gguf, Writer};
use tempfile::TempDir;

use crate::common::{Output, command, feed, largest, letters, model, tailrace};

/// Runs, and checks that nothing was printed but one line of error with each of `says` in it.
fn refused(args: &[&str], code: i32, says: &[&str]) {
    is_refusal(&tailrace(args), code, says);
}

fn is_refusal(output: &Output, code: i32, says: &[&str]) {
    let stderr = &output.stderr;
    assert_eq!(output.code, Some(code), "{stderr}");
    assert!(output.stdout.is_empty(), "{:?}", output.text());
    let errors: Vec<&str> = stderr.lines().filter(|line| !is_note(line)).collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    assert!(errors[0].starts_with("tailrace: "), "{stderr}");
    no_panic(stderr);
    for says in says {
        assert!(errors[0].contains(says), "no {says:?} in {stderr}");
    }
}

/// Lines that are no errors: warnings, and defaults that were chosen.
fn is_note(line: &str) -> bool {
    let notes = ["warning: ", "context ", "host memory for the tail"];
    line.strip_prefix("tailrace: ").is_some_and(|text| notes.iter().any(|note| text.starts_with(note)))
}

fn no_panic(stderr: &str) {
    for word in ["panicked", "backtrace", "RUST_BACKTRACE", "src/"] {
        assert!(!stderr.contains(word), "{stderr}");
    }
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> String {
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}

/// Every command that takes a model says what is wrong with it.
fn bad_model(path: &str, says: &[&str]) {
    refused(&["run", "-m", path, "-p", "hi"], 1, says);
    refused(&["chat", "-m", path], 1, says);
    refused(&["plan", "-m", path], 1, says);
}

#[test]
fn models_that_are_no_models() {
    let folder = TempDir::new().expect("a folder");
    let missing = folder.path().join("absent.gguf").to_str().expect("UTF-8").to_owned();
    bad_model(&missing, &["absent.gguf", "No such file"]);
    let output = tailrace(&["inspect", "-m", &missing]);
    is_refusal(&output, 1, &["absent.gguf"]);
    assert_eq!(output.stderr.matches("No such file").count(), 1, "a cause is said once: {}", output.stderr);
    bad_model(folder.path().to_str().expect("UTF-8"), &["not a regular file"]);
    bad_model(
        &write(&folder, "script", b"#!/bin/sh\necho this is a longer script\n"),
        &["script", "is not a GGUF file", "#!/b"],
    );
    bad_model(&write(&folder, "new\nline", b""), &["new\\nline", "0 bytes", "download"]);
}

#[test]
fn truncated_models() {
    let folder = TempDir::new().expect("a folder");
    let whole = fs::read(largest()).expect("a golden model");
    for len in [3, 23, 24, 100, 3000, 9000, whole.len() / 2, whole.len() - 33] {
        bad_model(&write(&folder, "cut.gguf", &whole[..len]), &["cut.gguf"]);
        let said = tailrace(&["inspect", "-m", &write(&folder, "cut.gguf", &whole[..len])]).stderr;
        assert!(
            said.contains("download it again") || said.contains("download the file") || said.contains("damaged"),
            "{said}"
        );
    }
}

#[test]
fn hostile_headers() {
    let folder = TempDir::new().expect("a folder");
    let header = |tensors: u64, keys: u64| {
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat();
        bytes.resize(200, 0xff);
        bytes
    };
    for (tensors, keys) in [(u64::MAX, 1), (1, u64::MAX), (1 << 40, 0), (0, 1 << 40), (3, 3)] {
        bad_model(&write(&folder, "hostile.gguf", &header(tensors, keys)), &["hostile.gguf", "damaged"]);
    }
}

#[test]
fn unknown_architectures() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("other.gguf");
    Writer::new().set("general.architecture", "perceptron").write(&path).expect("a file");
    bad_model(path.to_str().expect("UTF-8"), &["perceptron", "known are", "gemma3", "llama", "qwen2", "qwen3"]);
}

#[test]
fn contexts() {
    let model = largest();
    let run = |rest: &[&str]| tailrace(&[&["run", "-m", &model, "-n", "4", "-p"], rest].concat());
    let prompt = letters(400);
    let long = run(&[&prompt, "-c", "100"]);
    is_refusal(&long, 1, &["the context holds 100", "use -c "]);
    // What it proposes works, also for the share of one of several sequences.
    for parallel in ["1", "3"] {
        let refusal = run(&[&prompt, "-c", "100", "-np", parallel]).stderr;
        let works = refusal.split("use -c ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
        let output = run(&[&prompt, "-np", parallel, "--ignore-eos", "-c", works]).ok();
        assert!(!output.stderr.contains("end of the context"), "{}", output.stderr);
    }
    let beyond = run(&["hi", "-c", "4096"]).ok();
    assert!(beyond.stderr.contains("warning: the model was trained for 512 tokens"), "{}", beyond.stderr);
    // As in llama.cpp, 0 is all that the model was trained for.
    let zero = run(&["hi", "-c", "0"]).ok();
    assert!(zero.stderr.contains("context 512 tokens: what it was trained for"), "{}", zero.stderr);
    is_refusal(&run(&["hi", "-c", "2", "-np", "3"]), 1, &["context of 2", "-c 3"]);
    is_refusal(&run(&["hi", "-c", "-7"]), 2, &["-7"]);
}

#[test]
fn numbers_of_tokens() {
    let model = largest();
    let none = tailrace(&["run", "-m", &model, "-p", "hi", "-n", "0"]).ok();
    assert_eq!(none.text(), "");
    refused(&["run", "-m", &model, "-p", "hi", "-n", "-5"], 1, &["-n -5", "-1 for"]);
    refused(&["chat", "-m", &model, "-n", "-5"], 1, &["-n -5", "-1 for"]);
    refused(&["run", "-m", &model, "-p", "hi", "-n", "many"], 2, &["many", "--predict"]);
}

#[test]
fn prompts() {
    let model = largest();
    let folder = TempDir::new().expect("a folder");
    refused(&["run", "-m", &model, "-p", ""], 1, &["prompt is empty", "-p TEXT"]);
    refused(&["run", "-m", &model], 1, &["prompt is empty"]);
    refused(&["run", "-m", &model, "-f", "/no/such/file"], 1, &["/no/such/file", "No such file"]);
    refused(&["run", "-m", &model, "-f", folder.path().to_str().expect("UTF-8")], 1, &["prompt file", "directory"]);
    let latin = write(&folder, "latin.txt", b"gr\xfcn");
    refused(&["run", "-m", &model, "-f", &latin], 1, &["latin.txt", "not UTF-8", "0xfc", "offset 2"]);
    is_refusal(&feed(&["run", "-m", &model], b"\xff"), 1, &["standard input", "not UTF-8", "offset 0"]);
    refused(&["run", "-m", &model, "-p", "a", "-f", "b"], 2, &["--prompt", "cannot be used with"]);
}

#[test]
fn an_empty_prompt_is_the_beginning_of_text_where_there_is_one() {
    let folder = TempDir::new().expect("a folder");
    let path = rewritten(&folder, |writer| {
        writer.set("tokenizer.ggml.add_bos_token", true);
    });
    let output = tailrace(&["run", "-m", &path, "-p", "", "-n", "3", "--ignore-eos", "--temp", "0"]).ok();
    assert!(output.stderr.contains("prefill") && output.stderr.contains("(1)"), "{}", output.stderr);
}

#[test]
fn chat_templates() {
    let folder = TempDir::new().expect("a folder");
    let path = rewritten(&folder, |writer| {
        writer.set("tokenizer.chat_template", "{% for m in messages %}\n{{ m.content }");
    });
    refused(&["chat", "-m", &path], 1, &["chat template", "tailrace run"]);
    let run = tailrace(&["run", "-m", &path, "-p", "hi", "-n", "2"]).ok();
    assert!(run.stderr.contains("warning: the chat format is ignored: chat template"), "{}", run.stderr);
    // A template that refuses a conversation ends no conversation.
    let path = rewritten(&folder, |writer| {
        writer.set("tokenizer.chat_template", "{{ raise_exception('only poems') }}");
    });
    let refusal = feed(&["chat", "-m", &path], b"hello\n").ok();
    assert!(refusal.stderr.contains("only poems") && refusal.stdout.is_empty(), "{}", refusal.stderr);
}

/// Path of a copy of a golden model with other metadata.
fn rewritten(folder: &TempDir, change: impl Fn(&mut Writer)) -> String {
    let gguf = Gguf::open(model("llama-tied")).expect("a golden model");
    let mut writer = Writer::with_metadata(gguf.metadata().clone());
    change(&mut writer);
    for (i, tensor) in gguf.tensors().iter().enumerate() {
        writer.tensor(&tensor.name, tensor.shape(), tensor.ty, gguf.tensor_data(i).to_vec()).expect("its own size");
    }
    let path = folder.path().join("rewritten.gguf");
    writer.write(&path).expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn limits() {
    let model = largest();
    for (flag, value, code, says) in [
        ("--vram-target", "0", 1, "--vram-target"),
        ("--vram-target", "lots", 2, "is no size"),
        ("--kv-window", "0", 1, "--kv-window"),
        ("--host-mem", "0", 1, "--host-mem"),
        ("-t", "0", 1, "-t 0: at least one thread"),
        ("-np", "0", 1, "(-np) must be at least 1"),
        ("-np", "100000", 1, "at most 4096"),
        ("-ub", "0", 1, "(-ub) must be at least 1"),
        ("-ctk", "q3", 2, "known: f16, bf16, f32"),
        ("-ctv", "int9", 2, "known: f16, bf16, f32"),
        ("--activations", "f8", 2, "possible values: auto, f32"),
        ("-ngl", "99", 2, "-ngl is a flag of llama.cpp"),
    ] {
        refused(&["run", "-m", &model, "-p", "hi", flag, value], code, &[says]);
        refused(&["plan", "-m", &model, flag, value], code, &[says]);
    }
    let many = tailrace(&["run", "-m", &model, "-p", "hi", "-n", "3", "-t", "9999"]).ok();
    assert!(many.stderr.contains("warning: -t 9999 is more than"), "{}", many.stderr);
}

#[test]
fn a_cap_that_is_too_small_comes_with_a_table_and_what_fits() {
    let model = largest();
    let output = tailrace(&["run", "-m", &model, "-p", "hi", "--vram-target", "900K"]);
    assert_eq!((output.code, output.text()), (Some(1), ""));
    let mut lines = output.stderr.lines().filter(|line| !is_note(line));
    let first = lines.next().expect("an error");
    assert!(
        first.contains("cap of 921600 bytes") && first.contains("bytes (") && first.contains("are needed"),
        "{first}"
    );
    let fits = first.split("what fits: ").nth(1).expect("settings that fit");
    let rest: Vec<&str> = lines.collect();
    for row in ["weights", "window", "workspace", "device"] {
        assert!(rest.iter().any(|line| line.starts_with(row)), "{}", output.stderr);
    }
    assert!(fits.contains("; or "), "{fits}");
    for hint in fits.split("; or ") {
        let flags: Vec<&str> = hint.split(' ').collect();
        let cap = if flags[0] == "--vram-target" { &[][..] } else { &["--vram-target", "900K"] };
        tailrace(&[&["run", "-m", &model, "-p", "hi", "-n", "1"], cap, &flags].concat()).ok();
    }
}

#[test]
fn sampling() {
    let model = largest();
    for (flag, value, code, says) in [
        ("--top-p", "2", 1, "--top-p 2: it must be between 0 and 1"),
        ("--min-p", "-1", 1, "--min-p -1"),
        ("--temp", "nan", 1, "--temp NaN"),
        ("--repeat-penalty", "0", 1, "--repeat-penalty 0"),
        ("--repeat-last-n", "-7", 1, "--repeat-last-n -7"),
        ("--logit-bias", "9999+1", 1, "token 9999; those of this model are 0 to 299"),
        ("--logit-bias", "x", 1, "--logit-bias x: write a token id"),
        ("--top-k", "all", 2, "'all'"),
        ("-r", "", 2, "--reverse-prompt"),
    ] {
        refused(&["run", "-m", &model, "-p", "hi", flag, value], code, &[says]);
        refused(&["chat", "-m", &model, flag, value], code, &[says]);
    }
}

#[test]
fn statistics_that_cannot_be_written_are_found_before_anything_is_generated() {
    refused(
        &["run", "-m", &largest(), "-p", "hi", "--stats", "/no/such/folder/x"],
        1,
        &["cannot write /no/such/folder/x"],
    );
}

#[test]
fn host_memory_that_runs_out_keeps_what_was_generated() {
    let model = largest();
    let prompt = letters(700);
    let args =
        ["-m", &model, "-p", &prompt, "-c", "8192", "-ub", "64", "--kv-window", "256", "--temp", "0", "--ignore-eos"];
    let run = |rest: &[&str]| crate::common::run_with_stats(&[&args[..], rest].concat());
    let (output, stats) = run(&["-n", "3000", "--host-mem", "1M"]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    no_panic(&output.stderr);
    assert!(output.stderr.contains("1.00 MiB of host memory, and a full context needs"), "{}", output.stderr);
    assert!(output.stderr.contains("raise --host-mem, or lower -c"), "{}", output.stderr);
    let generated = stats["generated_tokens"].as_u64().expect("a number");
    assert!(generated > 500 && stats["decode_tps"].as_f64().expect("a number") > 0.0, "{stats}");
    let (whole, _) = run(&["-n", &generated.to_string()]);
    // Characters that were incomplete are not text.
    assert!(output.text().len() > 500 && whole.ok().text().starts_with(output.text()));
}

#[test]
fn readers_that_leave() {
    let model = largest();
    let generating = ["run", "-m", &model, "-p", "hi", "-c", "4096", "-n", "3000", "--ignore-eos"];
    for args in [&generating[..], &["plan", "-m", &model], &["inspect", "-m", &model, "--tensors"], &["--help"]] {
        let mut child = command(args).spawn().expect("the binary starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        no_panic(&stderr);
    }
    for args in [&generating[..], &["plan", "-m", "absent"], &["--no-such-flag"]] {
        let mut child = command(args).spawn().expect("the binary starts");
        drop((child.stdin.take(), child.stderr.take()));
        let output = child.wait_with_output().expect("it ends");
        let expected = if args[0] == "run" {
            0
        } else if args[0] == "plan" {
            1
        } else {
            2
        };
        assert_eq!(output.status.code(), Some(expected));
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    let model = largest();
    for args in [&["run", "-m", &model, "-p", "hi", "-n", "50", "--ignore-eos"][..], &["plan", "-m", &model]] {
        let device = fs::OpenOptions::new().write(true).open(full).expect("a device");
        let output = command(args).stdout(device).output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("cannot write to standard output: No space left"), "{stderr}");
    }
}

//! Running the binary on the golden models.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Path of a golden model.
pub(crate) fn model(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/models").join(format!("{name}.gguf"));
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Path of a needle model: `full` or `sliding`.
pub(crate) fn needle_model(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/needle");
    folder.join(format!("{name}-q8_0.gguf")).to_str().expect("a path in UTF-8").to_owned()
}

/// The largest golden model: 512 bytes a cell, trained for 512 tokens.
pub(crate) fn largest() -> String {
    model("qwen3-partial")
}

/// The binary on the CPU, whatever else the machine has.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailrace"));
    match args {
        [what @ ("run" | "chat" | "plan"), rest @ ..] => command.args([what, "--device", "cpu"]).args(rest),
        args => command.args(args),
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A panic would say so in full.
    command.env("RUST_BACKTRACE", "1");
    command
}

/// Runs to the end with `input` on standard input.
pub(crate) fn feed(args: &[&str], input: &[u8]) -> Output {
    let mut child = command(args).spawn().expect("the binary starts");
    // A program that fails early reads nothing.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8(output.stderr).expect("messages are UTF-8");
    Output { code: output.status.code(), stdout: output.stdout, stderr }
}

/// Runs to the end with nothing on standard input.
pub(crate) fn tailrace(args: &[&str]) -> Output {
    feed(args, b"")
}

impl Output {
    /// The same, known to have succeeded.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text is UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).expect("JSON on standard output")
    }
}

/// Runs `tailrace run` with `--stats`; its output and the statistics.
pub(crate) fn run_with_stats(args: &[&str]) -> (Output, Value) {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("stats.json");
    let args = [&["run", "--stats", file.to_str().expect("UTF-8")], args].concat();
    let output = tailrace(&args);
    let json = std::fs::read_to_string(&file).expect("statistics were written");
    (output, serde_json::from_str(&json).expect("statistics are JSON"))
}

pub(crate) fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} is a number in {value}"))
}

/// `bytes` lower-case letters, always the same.
pub(crate) fn letters(bytes: usize) -> String {
    let mut state = 1u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 24) as u8 % 26)
    };
    (0..bytes).map(|_| letter()).collect()
}

/// Sends a signal, as a terminal (`INT`) or `kill` (`TERM`) does.
pub(crate) fn signal(child: &Child, name: &str) {
    let kill = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
}

/// Waits for the first byte.
pub(crate) fn first_byte(stdout: &mut ChildStdout) {
    let mut byte = [0];
    stdout.read_exact(&mut byte).expect("something is generated");
}

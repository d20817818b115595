//! `tailrace chat`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{command, feed, model, signal};

/// Tokens that would end an answer of this vocabulary, made impossible.
const ENDLESS: [&str; 8] =
    ["--logit-bias", "256-inf", "--logit-bias", "257-inf", "--logit-bias", "258-inf", "--logit-bias", "259-inf"];

#[test]
fn two_turns() {
    let model = model("llama-tied");
    let args = ["chat", "-m", &model, "-n", "12", "--temp", "0", "--system", "Be brief."];
    let args = [&args[..], &ENDLESS].concat();
    let output = feed(&args, b"hello there\n\nand again\n/exit\nnot read\n").ok();
    let notes: Vec<&str> = output.stderr.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(notes.len(), 2, "{}", output.stderr);
    assert!(notes[0].contains("(0 from the cache), 12 generated"), "{}", notes[0]);
    let reused = |note: &str| note.split('(').nth(1)?.split(' ').next()?.parse::<u32>().ok();
    assert!(reused(notes[1]).is_some_and(|tokens| tokens > 20), "{}", notes[1]);
    // The first answer does not depend on what follows it, and a new conversation begins as the first did.
    let first = feed(&args, b"hello there\n").ok();
    assert!(first.stdout.len() > 1 && output.stdout.starts_with(&first.stdout));
    let cleared = feed(&args, b"hello there\n/clear\nhello there\n").ok();
    assert_eq!(cleared.stdout, first.stdout.repeat(2));
}

#[test]
fn a_conversation_that_outgrows_the_context_goes_on_after_clear() {
    let model = model("llama-tied");
    let args = [&["chat", "-m", &model, "-n", "30", "-c", "64"][..], &ENDLESS].concat();
    let output = feed(&args, b"hello\nhello again\n/clear\nhello\n").ok();
    assert!(output.stderr.contains("the context holds 64; /clear begins a new one"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().filter(|line| line.starts_with('[')).count(), 2, "{}", output.stderr);
}

#[test]
fn messages_that_are_no_text_are_left_out() {
    let output = feed(&["chat", "-m", &model("llama-tied"), "-n", "5"], b"\xff\xfe\nhello\n").ok();
    assert!(output.stderr.contains("not UTF-8"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().filter(|line| line.starts_with('[')).count(), 1, "{}", output.stderr);
}

/// A conversation whose answers never end.
struct Endless {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Bytes of answers so far.
    answered: Arc<AtomicUsize>,
}

impl Endless {
    fn start() -> Self {
        let model = model("llama-tied");
        let args = [&["chat", "-m", &model, "-c", "500000", "-s", "1"][..], &ENDLESS].concat();
        let mut child = command(&args).spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut stdout = child.stdout.take().expect("a pipe");
        let answered = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&answered);
        // What is left of one answer must not be taken for the beginning of the next: everything is read at once.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                counter.fetch_add(count, Ordering::SeqCst);
            }
        });
        Endless { child, stderr, answered }
    }

    /// Says `message`, interrupts the answer once it has begun, and returns the note about it.
    fn interrupted_turn(&mut self, message: &str) -> String {
        let before = self.settled();
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{message}").expect("it listens");
        while self.answered.load(Ordering::SeqCst) == before {
            assert_eq!(self.child.try_wait().expect("it is a child"), None, "it ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        signal(&self.child, "INT");
        loop {
            let mut line = String::new();
            assert_ne!(self.stderr.read_line(&mut line).expect("notes are UTF-8"), 0, "it ended");
            if line.starts_with('[') {
                return line;
            }
        }
    }

    /// Bytes of answers once no more come.
    fn settled(&self) -> usize {
        loop {
            let bytes = self.answered.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
            if self.answered.load(Ordering::SeqCst) == bytes {
                return bytes;
            }
        }
    }
}

#[test]
fn an_interrupt_stops_the_answer_and_not_the_conversation() {
    let mut chat = Endless::start();
    let first = chat.interrupted_turn("hello");
    assert!(first.starts_with("[stopped; "), "{first}");
    let second = chat.interrupted_turn("again");
    // What was said before the interrupt is part of the conversation.
    assert!(second.starts_with("[stopped; ") && !second.contains("(0 from the cache)"), "{second}");
    writeln!(chat.child.stdin.as_mut().expect("a pipe"), "/exit").expect("it listens");
    assert_eq!(chat.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn an_interrupt_between_answers_ends_the_program() {
    for name in ["INT", "TERM"] {
        let mut chat = Endless::start();
        chat.interrupted_turn("hello");
        signal(&chat.child, name);
        assert_eq!(chat.child.wait().expect("it ends").code(), Some(130));
    }
}

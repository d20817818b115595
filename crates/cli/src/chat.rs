//! `tailrace chat`: a conversation through the model's own template.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, Result};
use tailrace_engine::{DoneReason, Request};
use tailrace_text::{ChatOptions, ChatTemplate, Message};
use tailrace_types::TokenId;

use crate::args::ChatArgs;
use crate::session::Session;
use crate::{interrupt, run, sampling};

/// Lines that end a conversation.
const GOODBYES: [&str; 3] = ["/exit", "/quit", "/bye"];

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let max_tokens = run::max_tokens(args.predict)?;
    let sampling = sampling::params(&args.sampling)?;
    let mut model = Session::open(&args.model.model)?;
    let template = model.chat.take().context(
        "the model has no chat template, and its vocabulary matches none of the built-in ones; use `tailrace run`",
    )?;
    let session = Session::start(model, &args.model, args.model.parallel, 0, false)?;
    interrupt::install()?;
    let mut chat = Chat { session: &session, template, messages: Vec::new() };
    if let Some(system) = &args.system {
        chat.messages.push(Message::new("system", system));
    }
    if io::stdin().is_terminal() {
        eprintln!("Ctrl-C stops an answer; Ctrl-D or /exit ends the conversation.");
    }
    while let Some(line) = ask()? {
        chat.messages.push(Message::new("user", line));
        let request = |tokens| Request {
            max_tokens,
            sampling: sampling.clone(),
            stop: args.sampling.stop.clone(),
            ..Request::new(tokens)
        };
        if let Err(error) = chat.answer(request) {
            // The turn did not happen; the conversation so far is still there.
            chat.messages.pop();
            if error.downcast_ref::<io::Error>().is_some() {
                return Err(error);
            }
            eprintln!("tailrace: {error:#}");
        }
    }
    session.handle.stop();
    Ok(())
}

/// The next message; `None` at the end of the conversation.
fn ask() -> Result<Option<String>> {
    loop {
        if io::stdin().is_terminal() {
            eprint!("> ");
            io::stderr().flush()?;
        }
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        let pressed = interrupt::take();
        match read {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(error) if pressed || error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("cannot read a message from standard input"),
        }
        let line = line.trim();
        if GOODBYES.contains(&line) {
            return Ok(None);
        }
        if !line.is_empty() {
            return Ok(Some(line.to_owned()));
        }
    }
}

struct Chat<'a> {
    session: &'a Session,
    template: ChatTemplate,
    messages: Vec<Message>,
}

impl Chat<'_> {
    /// Streams the answer to the last message and keeps it. What earlier turns have in the cache is used again.
    fn answer(&mut self, request: impl Fn(Vec<TokenId>) -> Request) -> Result<()> {
        let tokens = self.tokens()?;
        let mut generation = self.session.handle.submit(request(tokens))?;
        let mut text = Tee { out: io::stdout().lock(), kept: Vec::new() };
        let (reason, stats) = run::stream(&mut generation, &mut text, self.session.progress())?;
        writeln!(text.out)?;
        let note = match reason {
            DoneReason::Cancelled => "stopped; ",
            DoneReason::Context => "the context is full; ",
            _ => "",
        };
        eprintln!(
            "[{note}{} prompt tokens ({} from the cache), {} generated, {:.1} tokens/s]",
            stats.prompt_tokens,
            stats.reused_tokens,
            stats.generated_tokens,
            stats.decode_tps()
        );
        self.messages.push(Message::new("assistant", String::from_utf8_lossy(&text.kept)));
        Ok(())
    }

    fn tokens(&self) -> Result<Vec<TokenId>> {
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        let rendered = self.template.render(&self.messages, &options)?;
        let tokenizer = self.session.handle.tokenizer();
        // Most templates of models with a beginning-of-text token write it themselves.
        let has_bos = tokenizer.bos().is_some_and(|bos| rendered.starts_with(&*tokenizer.token_text(bos)));
        Ok(tokenizer.encode(&rendered, !has_bos, true))
    }
}

/// Writes through and keeps a copy.
struct Tee<W> {
    out: W,
    kept: Vec<u8>,
}

impl<W: Write> Write for Tee<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.kept.extend_from_slice(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

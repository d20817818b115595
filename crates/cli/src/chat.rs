//! `tailrace chat`: a conversation through the model's own template.

use std::io::{self, BufRead, IsTerminal, Write};

use anyhow::{Context, Result, anyhow};
use tailrace_engine::{DoneReason, EngineError, OpenModel, Request};
use tailrace_text::{ChatOptions, ChatTemplate, Message};
use tailrace_types::TokenId;

use crate::args::ChatArgs;
use crate::generate::{self, generate};
use crate::session::Session;
use crate::{interrupt, sampling, stderr};

/// Lines that end a conversation.
const GOODBYES: [&str; 3] = ["/exit", "/quit", "/bye"];

/// The line that begins a new one.
const CLEAR: &str = "/clear";

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let max_tokens = generate::max_tokens(args.predict)?;
    let mut model = tailrace_engine::open(&args.model.model)?;
    let template = model.chat.take().map_or_else(|| Err(no_template(&model)), Ok)?;
    Session::warn(&model);
    let sampling = sampling::params(&args.sampling, model.spec().vocab)?;
    let session = Session::start(model, &args.model.limits, None, false)?;
    interrupt::install()?;
    let system: Vec<Message> = args.system.iter().map(|text| Message::new("system", text)).collect();
    let mut chat = Chat { session: &session, template, messages: system.clone() };
    if io::stdin().is_terminal() {
        stderr::line("Ctrl-C stops an answer; /clear begins a new conversation; Ctrl-D or /exit ends the program.");
    }
    while let Some(line) = ask()? {
        if line == CLEAR {
            chat.messages.clone_from(&system);
            continue;
        }
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
            stderr::note(crate::one_line(&error));
        }
    }
    session.handle.stop();
    Ok(())
}

/// Why `model` cannot chat.
fn no_template(model: &OpenModel) -> anyhow::Error {
    let source = model.gguf.metadata().str("tokenizer.chat_template");
    let reason = match source.map(|source| ChatTemplate::for_tokenizer(source, &model.tokenizer)) {
        Err(error) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(_)) => "the model has no chat template, and its vocabulary matches none of the built-in ones".to_owned(),
    };
    anyhow!("{reason}; without a chat template the model can only continue text: use `tailrace run`")
}

/// The next message; `None` at the end of the conversation.
fn ask() -> Result<Option<String>> {
    loop {
        if io::stdin().is_terminal() {
            stderr::print("> ");
        }
        let mut bytes = Vec::new();
        let read = io::stdin().lock().read_until(b'\n', &mut bytes);
        if read.context("cannot read a message from standard input")? == 0 {
            return Ok(None);
        }
        let Ok(text) = String::from_utf8(bytes) else {
            stderr::note("the message is not UTF-8 and was left out; write it again");
            continue;
        };
        let line = text.trim();
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
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        let rendered = self.template.render(&self.messages, &options)?;
        let tokens = self.session.handle.tokenizer().encode_prompt(&rendered);
        let mut stdout = io::stdout().lock();
        let mut text = String::new();
        let outcome = generate(self.session, request(tokens), &mut |part| {
            text.push_str(part);
            stdout.write_all(part.as_bytes())?;
            stdout.flush()
        });
        let outcome = outcome.map_err(|error| too_long(self.session, error))?;
        // Also an answer that failed has its line to itself.
        if !text.is_empty() || outcome.result.is_ok() {
            writeln!(stdout).context("cannot write to standard output")?;
        }
        let note = match outcome.result? {
            DoneReason::Cancelled => "stopped; ",
            DoneReason::Context => "the context is full; ",
            DoneReason::Eog | DoneReason::MaxTokens | DoneReason::StopString => "",
        };
        let stats = outcome.stats;
        stderr::line(format_args!(
            "[{note}{} prompt tokens ({} from the cache), {} generated, {:.1} tokens/s]",
            stats.prompt_tokens,
            stats.reused_tokens,
            stats.generated_tokens,
            stats.decode_tps()
        ));
        self.messages.push(Message::new("assistant", text));
        Ok(())
    }
}

/// What to do about a conversation that has outgrown its context.
fn too_long(session: &Session, error: EngineError) -> anyhow::Error {
    match error {
        EngineError::TooLong { tokens, cells } => anyhow!(
            "the conversation has {tokens} tokens, the context holds {cells}; /clear begins a new one, or start with a larger -c"
        ),
        other => session.explain(other),
    }
}

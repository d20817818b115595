//! `tailrace run`: continues a prompt.

use std::io::{self, IsTerminal, Write};

use anyhow::{Result, ensure};
use tailrace_engine::{DoneReason, Request};

use crate::args::RunArgs;
use crate::file::NewFile;
use crate::generate::{self, generate};
use crate::session::{Prompt, Session};
use crate::summary::Summary;
use crate::{interrupt, prompt, sampling, stderr};

/// Whether the text came to its end; otherwise it was interrupted.
pub(crate) fn run(args: &RunArgs) -> Result<bool> {
    let text = prompt::read(args)?;
    let max_tokens = generate::max_tokens(args.predict)?;
    let model = Session::open(&args.model.model)?;
    let sampling = sampling::params(&args.sampling, model.spec().vocab)?;
    let tokens = model.tokenizer.encode(&text, true, true);
    ensure!(
        !tokens.is_empty(),
        "the prompt is empty, and this model has no beginning-of-text token to start from; give one with -p TEXT or -f FILE"
    );
    let stats_file = args.stats.as_deref().map(NewFile::create).transpose()?;
    let prompt = Prompt { tokens: tokens.len(), max_tokens };
    let session = Session::start(model, &args.model.limits, Some(prompt), args.verbose)?;
    interrupt::install()?;
    let request = Request {
        max_tokens,
        sampling,
        stop: args.sampling.stop.clone(),
        stop_at_eog: !args.ignore_eos,
        ..Request::new(tokens)
    };
    let mut stdout = io::stdout().lock();
    let mut last = None;
    let outcome = generate(&session, request, &mut |text| {
        last = text.bytes().next_back().or(last);
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    })?;
    if wants_newline(last, stdout.is_terminal()) && outcome.result.is_ok() {
        writeln!(stdout)?;
    }
    // Whatever happened, what was produced is on standard output; the summary says how far it got.
    let summary = Summary::new(&session, outcome.stats)?;
    stderr::line(&summary);
    if let Some(file) = stats_file {
        file.fill(&format!("{:#}\n", summary.to_json()))?;
    }
    session.handle.stop();
    match outcome.result? {
        DoneReason::Cancelled => {
            stderr::note("interrupted");
            Ok(false)
        }
        DoneReason::Context => {
            let cells = session.plan.cache.sequence_cells;
            stderr::note(format_args!("stopped at the end of the context ({cells} tokens)"));
            Ok(true)
        }
        DoneReason::Eog | DoneReason::MaxTokens | DoneReason::StopString => Ok(true),
    }
}

/// In a terminal, text and summary must not share a line; anywhere else standard output is the text alone.
fn wants_newline(last: Option<u8>, terminal: bool) -> bool {
    terminal && last.is_some_and(|byte| byte != b'\n')
}

#[cfg(test)]
mod tests {
    use super::wants_newline;

    #[test]
    fn only_open_lines_of_a_terminal_are_ended() {
        assert!(wants_newline(Some(b'x'), true));
        for (last, terminal) in [(Some(b'\n'), true), (None, true), (Some(b'x'), false), (None, false)] {
            assert!(!wants_newline(last, terminal));
        }
    }
}

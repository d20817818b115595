//! `tailrace run`: continues a prompt.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tailrace_engine::{DoneReason, Event, Generation, Request, Stats};

use crate::args::RunArgs;
use crate::session::{Progress, Session};
use crate::summary::Summary;
use crate::{interrupt, prompt, sampling};

/// How often a generation looks whether Ctrl-C was pressed.
pub(crate) const POLL: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let text = prompt::read(args)?;
    let max_tokens = max_tokens(args.predict)?;
    let sampling = sampling::params(&args.sampling)?;
    let stats_file = args.stats.as_deref().map(create).transpose()?;
    let model = Session::open(&args.model.model)?;
    let tokens = model.tokenizer.encode(&text, true, true);
    // The last token of each sequence is all that `run` needs logits of.
    let session = Session::start(model, &args.model, args.model.parallel, tokens.len(), args.verbose)?;
    interrupt::install()?;
    let request = Request {
        max_tokens,
        sampling,
        stop: args.sampling.stop.clone(),
        stop_at_eog: !args.ignore_eos,
        ..Request::new(tokens)
    };
    let mut generation = session.handle.submit(request)?;
    let outcome = stream(&mut generation, &mut io::stdout().lock(), session.progress());
    // Whatever happened, what was produced is on standard output; the summary says how far it got.
    let summary = Summary::new(&session, outcome.as_ref().map_or(Stats::default(), |(_, stats)| *stats))?;
    eprintln!("{summary}");
    if let Some((mut file, path)) = stats_file {
        writeln!(file, "{:#}", summary.to_json()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    session.handle.stop();
    match outcome?.0 {
        DoneReason::Cancelled => bail!("interrupted"),
        DoneReason::Context if max_tokens > 0 => {
            eprintln!("tailrace: stopped at the end of the context ({} tokens)", session.plan.cache.sequence_cells);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Tokens to generate at most.
pub(crate) fn max_tokens(predict: i64) -> Result<u32> {
    match predict {
        -1 => Ok(u32::MAX),
        n => u32::try_from(n).with_context(|| format!("-n {n}: give a number of tokens, or -1 for no limit")),
    }
}

fn create(path: &Path) -> Result<(File, &Path)> {
    let file = File::create(path).with_context(|| format!("cannot write the statistics file {}", path.display()))?;
    Ok((file, path))
}

/// Writes the text of a generation to `out` as it comes; Ctrl-C cancels.
pub(crate) fn stream(
    generation: &mut Generation,
    out: &mut impl Write,
    mut progress: Progress,
) -> Result<(DoneReason, Stats)> {
    loop {
        if interrupt::take() {
            generation.cancel();
        }
        match generation.receive_timeout(POLL) {
            Some(Some(Event::Token { text, .. })) => {
                progress.clear();
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
            Some(Some(Event::PrefillProgress { done, total })) => {
                progress.show("prefill", done as f32 / total.max(1) as f32)
            }
            Some(Some(Event::Done { reason, stats })) => {
                progress.clear();
                return Ok((reason, stats));
            }
            Some(Some(Event::Error(error))) => {
                progress.clear();
                return Err(error.into());
            }
            Some(Some(Event::Logits { .. } | Event::Rewound { .. })) | Some(None) => {}
            None => bail!("the engine ended without a word"),
        }
    }
}

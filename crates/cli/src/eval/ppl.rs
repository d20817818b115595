//! `tailrace eval ppl` and `tailrace eval kld`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use tailrace_measure::chart::{self, Heading, Line, Lines};
use tailrace_measure::eval::{
    BaseFile, BaseWriter, Chunks, DivergenceSummary, EvalError, PerplexitySummary, Progress as Done,
    measure_divergence, measure_perplexity,
};

use super::{LOGIT_ROWS, Model, Output, OutputArgs, check_window, heading, row, tail_read};
use crate::args::{LimitArgs, ModelArgs};
use crate::file::NewFile;
use crate::path::shown;
use crate::picture::{Picture, PictureArgs};
use crate::session::{Progress, Session};
use crate::stderr;

/// Tokens of a chunk where -c names none: llama.cpp's.
const CHUNK: u32 = 512;

#[derive(Debug, Args)]
pub(crate) struct PplArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text. A chunk has -c tokens, 512 where none are named.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Evaluate no more than this many chunks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Slide a window of one chunk by so many tokens, and score those alone; 0 takes chunks one after the other. llama.cpp makes
    /// its chunk longer by half of the stride: add that to -c to compare.
    #[arg(long, value_name = "TOKENS", default_value_t = 0, alias = "ppl-stride")]
    stride: u32,
    /// Save the logits as a reference for eval kld, in llama.cpp's format.
    #[arg(long, value_name = "FILE")]
    save_logits: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    picture: PictureArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KldArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Reference logits: of eval ppl --save-logits, or of llama.cpp. The text is in it.
    #[arg(long, value_name = "FILE", alias = "kl-divergence-base")]
    base: PathBuf,
    /// Evaluate no more than this many chunks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    picture: PictureArgs,
}

pub(crate) fn run(args: &PplArgs) -> Result<()> {
    let (mut output, picture) = (Output::new(&args.output)?, Picture::new(&args.picture)?);
    let model = Model::open(&args.model)?;
    let size = args.model.limits.context.filter(|&cells| cells > 0).unwrap_or(CHUNK);
    let chunks = Chunks::new(model.tokens(&args.file)?, size, args.stride, args.chunks, model.bos())?;
    let limits = LimitArgs { context: Some(size), ..args.model.limits.clone() };
    check_window(&limits)?;
    let mut writer = match &args.save_logits {
        Some(path) => Some(BaseWriter::new(NewFile::create(path)?, &chunks, model.open.spec().vocab)?),
        None => None,
    };
    let session = Session::evaluate(&model.open, &limits, LOGIT_ROWS)?;
    let mut progress = Progress::new();
    let mut points = Vec::new();
    let mut show = |done: Done| show_chunk(&mut progress, &mut points, "perplexity", done);
    let found = measure_perplexity(&session.handle, &chunks, &mut show, &mut |scores, _| match &mut writer {
        Some(writer) => writer.add(scores),
        None => Ok(()),
    });
    progress.clear();
    let found = found.map_err(|error| explain(&session, error, "perplexity", &points))?;
    let what = json!({ "chunk": size, "chunks": chunks.count(), "stride": args.stride });
    let mut row = row("ppl", &model, (&limits, &session), tail_read(&session)?, found)?;
    row.extend(what.as_object().cloned().unwrap_or_default());
    output.result(&perplexity_table(&found, &chunks), row)?;
    if let Some(writer) = writer {
        writer.finish()?.finish()?;
    }
    picture.draw(|| by_chunk(heading("Perplexity", &model, &limits, &session.device), "perplexity so far", points))
}

fn perplexity_table(found: &PerplexitySummary, chunks: &Chunks) -> String {
    let PerplexitySummary { ppl, ppl_error, nll, tokens } = found;
    let (count, size) = (chunks.count(), chunks.size());
    format!(
        "perplexity {ppl:.4} +- {ppl_error:.4}, {nll:.5} nats a token, over {tokens} tokens in {count} chunks of {size}\n"
    )
}

pub(crate) fn run_divergence(args: &KldArgs) -> Result<()> {
    let (mut output, picture) = (Output::new(&args.output)?, Picture::new(&args.picture)?);
    let name = shown(&args.base);
    let file = File::open(&args.base).with_context(|| format!("cannot read the reference logits {name}"))?;
    let mut base = BaseFile::open(BufReader::with_capacity(1 << 20, file)).with_context(|| name.clone())?;
    let model = Model::open(&args.model)?;
    let chunks = base.chunks(args.chunks, model.bos());
    let limits = LimitArgs { context: Some(chunks.size() as u32), ..args.model.limits.clone() };
    check_window(&limits)?;
    let session = Session::evaluate(&model.open, &limits, LOGIT_ROWS)?;
    let mut progress = Progress::new();
    let mut points = Vec::new();
    let mut show = |done: Done| show_chunk(&mut progress, &mut points, "divergence", done);
    let found = measure_divergence(&session.handle, &mut base, &chunks, &mut show);
    progress.clear();
    let found = found.map_err(|error| explain(&session, error, "divergence", &points).context(name))?;
    let mut row = row("kld", &model, (&limits, &session), tail_read(&session)?, &found)?;
    row.insert("chunk".to_owned(), json!(chunks.size()));
    row.insert("chunks".to_owned(), json!(chunks.count()));
    output.result(&divergence_table(&found)?, row)?;
    let title = "KL divergence";
    picture.draw(|| by_chunk(heading(title, &model, &limits, &session.device), "mean divergence so far, nats", points))
}

fn divergence_table(found: &DivergenceSummary) -> Result<String> {
    let mut text = String::new();
    let mut line = |name: &str, value: f64, error: Option<f64>| match error {
        Some(error) => writeln!(text, "{name:<28}{value:>12.6} +- {error:.6}"),
        None => writeln!(text, "{name:<28}{value:>12.6}"),
    };
    line("perplexity", found.ppl, Some(found.ppl_error))?;
    line("of the reference", found.base_ppl, Some(found.base_ppl_error))?;
    line("ratio", found.ppl_ratio, None)?;
    line("difference", found.ppl_difference, None)?;
    line("ln of the ratio", found.ln_ppl_ratio, Some(found.ln_ppl_ratio_error))?;
    line("correlation", found.nll_correlation, None)?;
    for (name, spread) in [("KL divergence", &found.kld), ("change of p", &found.dp)] {
        line(name, spread.mean, Some(spread.mean_error))?;
        line("  maximum", spread.max, None)?;
        for (percent, value) in &spread.percentiles {
            line(&format!("  {percent} %"), *value, None)?;
        }
        line("  minimum", spread.min, None)?;
    }
    line("RMS change of p", found.dp_rms, None)?;
    line("same likeliest token", found.same_best, Some(found.same_best_error))?;
    writeln!(text, "over {} tokens", found.tokens)?;
    Ok(text)
}

/// A figure as it changed from chunk to chunk.
fn by_chunk(heading: Heading, y_label: &str, points: Vec<(f64, f64)>) -> String {
    let lines = vec![Line { label: y_label.to_owned(), points }];
    chart::lines(&Lines { heading, x_label: "chunks".to_owned(), y_label: y_label.to_owned(), lines })
}

fn show_chunk(progress: &mut Progress, points: &mut Vec<(f64, f64)>, what: &str, done: Done) {
    points.push((done.done as f64, done.value));
    let fraction = done.done as f32 / done.chunks as f32;
    progress.show(&format!("{what} {:.4} after {} of {} chunks,", done.value, done.done, done.chunks), fraction);
}

/// A failure of the engine with what would help; others as they are. What was found before it is said first.
fn explain(session: &Session, error: EvalError, what: &str, points: &[(f64, f64)]) -> anyhow::Error {
    if let Some((chunks, value)) = points.last() {
        stderr::note(format_args!("{what} {value:.4} after {chunks} chunks"));
    }
    match error {
        EvalError::Engine(error) => session.explain(error),
        error => error.into(),
    }
}

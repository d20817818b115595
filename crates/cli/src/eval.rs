//! `tailrace eval`: what a model says, and whether a setting changes it.

mod company;
mod logits;
mod needle;
mod ppl;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tailrace_engine::OpenModel;
use tailrace_measure::chart::Heading;
use tailrace_plan::{Limits, Plan};
use tailrace_types::{BLOCK_CELLS, TokenId};

use crate::args::{LimitArgs, ModelArgs};
use crate::file::append;
use crate::limits::{self, Resolved, with_a_tail};
use crate::path::stem;
use crate::prompt;
use crate::session::Session;
use crate::stdout::print;

/// Rows of logits that an evaluation takes at a time.
const LOGIT_ROWS: u32 = 32;

/// A comparison of a window that nothing has left cannot fail.
const EMPTY_TAIL: &str = "nothing was read from the tail, so nothing is shown; take longer texts, a smaller window or cap, or \
                          shorter chunks (-ub)";

/// What is compared with is not what it should be.
const NOT_RESIDENT: &str = "the run that should be resident read from the tail: there is too little memory for it";

#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Perplexity of a text, in llama.cpp's chunks.
    Ppl(ppl::PplArgs),
    /// Kullback-Leibler divergence from saved reference logits, with llama.cpp's statistics.
    Kld(ppl::KldArgs),
    /// Logits of the same tokens under two settings, position by position.
    Logits(logits::LogitsArgs),
    /// Needles in a haystack: whether codes are found, by length of the text and by depth.
    Needle(needle::NeedleArgs),
    /// The same requests alone and beside others, resident and with a window: the same tokens.
    ServeSame(company::CompanyArgs),
}

pub(crate) fn run(args: &EvalArgs) -> Result<()> {
    match &args.what {
        What::Ppl(args) => ppl::run(args),
        What::Kld(args) => ppl::run_divergence(args),
        What::Logits(args) => logits::run(args),
        What::Needle(args) => needle::run(args),
        What::ServeSame(args) => company::run(args),
    }
}

/// Where results go.
#[derive(Debug, Args)]
struct OutputArgs {
    /// Write a line of JSON for each result to standard output instead of a table.
    #[arg(long)]
    json: bool,
    /// Append the lines of JSON to this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What is above a picture.
fn heading(what: &str, model: &Model, limits: &LimitArgs, device: &str) -> Heading {
    let commit = env!("TAILRACE_COMMIT");
    Heading {
        title: format!("{what}: {}", model.name),
        subtitle: format!("{}; {device}; {commit}", settings_of(limits)),
    }
}

/// Results: to standard output, and to a file where one was named. The file is opened before anything is computed.
struct Output {
    json: bool,
    file: Option<File>,
}

impl Output {
    fn new(args: &OutputArgs) -> Result<Self> {
        Ok(Output { json: args.json, file: args.out.as_deref().map(append).transpose()? })
    }

    /// Writes a result: `row` for programs, `table` for people.
    fn result(&mut self, table: &str, row: Map<String, Value>) -> Result<()> {
        self.row(row)?;
        self.table(table)
    }

    /// Writes what people read, unless standard output is for programs.
    fn table(&mut self, text: &str) -> Result<()> {
        if self.json { Ok(()) } else { print(text) }
    }

    /// Writes a row for programs: to the file, and to standard output where that is theirs.
    fn row(&mut self, row: Map<String, Value>) -> Result<()> {
        let line = Value::Object(row).to_string() + "\n";
        if let Some(file) = &mut self.file {
            file.write_all(line.as_bytes()).context("cannot write the rows")?;
        }
        if self.json { print(&line) } else { Ok(()) }
    }
}

/// Bytes that came from the tail, in parts.
#[derive(Default)]
struct TailReads(u64);

impl TailReads {
    /// Bytes since the last call, or since the model was loaded.
    fn next(&mut self, session: &Session) -> Result<u64> {
        let all = tail_read(session)?;
        Ok(all - std::mem::replace(&mut self.0, all))
    }
}

/// What every row says of the model, its settings and the device; `tail_bytes` came from the tail for it.
fn row(
    what: &str,
    model: &Model,
    (limits, session): (&LimitArgs, &Session),
    tail_bytes: u64,
    results: impl serde::Serialize,
) -> Result<Map<String, Value>> {
    let mut row = Map::new();
    row.insert("eval".to_owned(), json!(what));
    row.insert("model".to_owned(), json!(model.name));
    row.insert("settings".to_owned(), json!(settings_of(limits)));
    row.insert("device".to_owned(), json!(session.device));
    row.insert("tail_read_bytes".to_owned(), json!(tail_bytes));
    row.insert("commit".to_owned(), json!(env!("TAILRACE_COMMIT")));
    if let Value::Object(results) = serde_json::to_value(results)? {
        row.extend(results);
    }
    Ok(row)
}

/// Bytes that came from the tail since the model was loaded.
fn tail_read(session: &Session) -> Result<u64> {
    Ok(session.handle.snapshot()?.traffic.from_tail_bytes())
}

/// Settings that may change what a model says, and those that must not, in one word each.
fn settings_of(limits: &LimitArgs) -> String {
    let mut words = vec![format!("{:?}", limits.device.device).to_ascii_lowercase()];
    if !spills(limits) {
        words.push("resident".to_owned());
    }
    words.extend(limits.kv_window.map(|cells| format!("window={cells}")));
    words.extend(limits.vram_target.map(|bytes| format!("vram-target={bytes}")));
    words.extend(limits.ubatch_size.map(|tokens| format!("ubatch={tokens}")));
    words.push(format!("ctk={},ctv={}", limits.cache_type_k.name(), limits.cache_type_v.name()));
    words.push(format!("activations={:?}", limits.activations).to_ascii_lowercase());
    words.join(",")
}

/// Whether part of the cache is meant to be in the tail.
fn spills(limits: &LimitArgs) -> bool {
    limits.kv_window.is_some() || limits.vram_target.is_some()
}

/// The same settings with everything resident.
fn resident(limits: &LimitArgs) -> LimitArgs {
    LimitArgs { kv_window: None, vram_target: None, ..limits.clone() }
}

/// A model that is open, and what it is called.
struct Model {
    open: OpenModel,
    name: String,
}

impl Model {
    fn open(args: &ModelArgs) -> Result<Self> {
        ensure!(args.limits.parallel == 1, "-np {}: an evaluation is of one sequence", args.limits.parallel);
        Ok(Model { open: Session::open(&args.model)?, name: stem(&args.model) })
    }

    /// The tokens of the text in a file, with the beginning-of-text token where the model wants one.
    fn tokens(&self, path: &Path) -> Result<Vec<TokenId>> {
        Ok(self.open.tokenizer.encode(&prompt::text(path, "text")?, true, false))
    }

    /// The beginning-of-text token, where the model wants one.
    fn bos(&self) -> Option<TokenId> {
        self.open.tokenizer.leading_bos()
    }
}

/// Chunks with which half of a sequence of `cells` tokens leaves the device, where the device's own are too long for that and
/// none are named.
fn shorter_chunks(model: &Model, limits: &LimitArgs, cells: u32) -> Option<u32> {
    if !spills(limits) || limits.ubatch_size.is_some() {
        return None;
    }
    // What cannot be planned is refused where it is loaded, with advice.
    let spec = model.open.spec();
    let Resolved { limits, device, .. } = limits::resolve(limits, spec, LOGIT_ROWS).ok()?;
    let plan = |chunk| Ok(Plan::new(spec, &Limits { chunk, ..limits.clone() }, device.loader.as_ref())?);
    let few_are_kept = |plan: &Plan| {
        let cache = &plan.cache;
        cache.spills && cache.core_frames() + cache.overlay_frames <= cells / 2 / BLOCK_CELLS
    };
    let found = with_a_tail(limits.chunk, plan, few_are_kept).ok()?;
    // Under a cap that everything fits into chunks change nothing.
    (found.cache.spills && found.limits.chunk < limits.chunk).then_some(found.limits.chunk)
}

/// The same limits with such chunks.
fn with_shorter_chunks(model: &Model, limits: LimitArgs, cells: u32) -> LimitArgs {
    let chunk = shorter_chunks(model, &limits, cells);
    LimitArgs { ubatch_size: chunk.or(limits.ubatch_size), ..limits }
}

/// Refuses a window that nothing would leave: what is evaluated then is the resident cache.
fn check_window(limits: &LimitArgs) -> Result<()> {
    let context = limits.context.unwrap_or(u32::MAX);
    if let Some(window) = limits.kv_window {
        ensure!(
            window < context,
            "a window of {window} cells is no smaller than the context of {context} tokens: nothing would leave the device; \
             lower it or take a larger chunk"
        );
    }
    Ok(())
}

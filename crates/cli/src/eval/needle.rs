//! `tailrace eval needle`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;
use tailrace_measure::chart::{self, Heading, HeatMap};
use tailrace_measure::eval::{Encoder, Found, Haystack, NeedleKind, Place, Trial};
use tailrace_types::Bytes;

use super::{Model, Output, OutputArgs, Picture, PictureArgs, check_window, heading, row, tail_read};
use crate::args::{LimitArgs, ModelArgs};
use crate::bench::tokens;
use crate::prompt;
use crate::session::{Progress, Session};

/// Room for an answer behind the question, in tokens.
const ANSWER: u32 = 64;

#[derive(Debug, Args)]
pub(crate) struct NeedleArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A text to hide needles in. Default: sentences that are made up.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Lengths of document and question in tokens; k is 1024.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1k,4k", value_parser = tokens)]
    lengths: Vec<u32>,
    /// Depths of the needle: 0 is the beginning, 1 the end.
    #[arg(long, value_name = "SHARE", value_delimiter = ',', default_value = "0,0.25,0.5,0.75,1", value_parser = share)]
    depths: Vec<f64>,
    /// Documents of a cell.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    trials: u32,
    /// What a needle says.
    #[arg(long, value_name = "number|word|several", default_value = "number")]
    kind: NeedleKind,
    /// The control that must fail: of every document only so many last tokens are read.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,
    /// Run the grid resident, too, and fail unless every answer is the same.
    #[arg(long, conflicts_with = "last")]
    same_as_resident: bool,
    /// Fail if fewer than this share of all needles is found.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    at_least: Option<f64>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    picture: PictureArgs,
}

/// A number from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| format!("'{text}' is no share; write a number from 0 to 1"))
}

/// What was found in each cell: by length, then depth.
type Grid = Vec<Vec<Vec<Found>>>;

pub(crate) fn run(args: &NeedleArgs) -> Result<()> {
    let (mut output, picture) = (Output::new(&args.output)?, Picture::new(&args.picture)?);
    let model = Model::open(&args.model)?;
    let haystack = match &args.file {
        Some(path) => Haystack::of(&prompt::text(path, "text")?),
        None => Haystack::MadeUp,
    };
    let tokenizer = model.open.tokenizer.clone();
    let encode = move |text: &str| tokenizer.encode(text, false, false);
    let encoder = Encoder { encode: &encode, bos: model.bos() };
    let trials = trials(args, &haystack, encoder)?;

    let longest = args.lengths.iter().copied().max().unwrap_or(0);
    let given = args.model.limits.context.filter(|&cells| cells > 0);
    let context = given.unwrap_or(longest + ANSWER);
    ensure!(context >= longest + ANSWER, "-c {context} has no room for {longest} tokens and an answer; raise it");
    let limits = LimitArgs { context: Some(context), ..args.model.limits.clone() };
    check_window(&limits)?;

    let session = Session::evaluate(&model.open, &limits, 1)?;
    let grid = walk(args, &trials, &session, encoder)?;
    for (length, row_of) in args.lengths.iter().zip(&grid) {
        for (depth, cell) in args.depths.iter().zip(row_of) {
            let found = cell.iter().filter(|found| found.found).count();
            let log_prob = cell.iter().map(|found| found.log_prob).sum::<f64>() / cell.len() as f64;
            let texts: Vec<_> = cell.iter().map(|found| &found.text).collect();
            let results = json!({
                "length": length, "depth": depth, "kind": args.kind, "trials": cell.len(),
                "found": found, "answer_log_prob": log_prob, "last": args.last, "answers": texts,
            });
            output.row(row("needle", &model, (&limits, &session), results)?)?;
        }
    }
    output.table(&table(args, &grid, tail_read(&session)?))?;
    picture.draw(|| heat_map(args, &grid, heading("Needles found", &model, &limits, &session.device)))?;
    session.handle.stop();
    drop(session);

    if args.same_as_resident {
        let resident = LimitArgs { kv_window: None, vram_target: None, ..limits };
        let session = Session::evaluate(&model.open, &resident, 1)?;
        let other = walk(args, &trials, &session, encoder)?;
        let cells = grid.iter().flatten().zip(other.iter().flatten());
        let differ = cells.filter(|(a, b)| a.iter().zip(*b).any(|(a, b)| a.text != b.text)).count();
        ensure!(differ == 0, "{differ} cells of the grid have other answers than resident");
        output.table("every answer is that of the resident run\n")?;
    }
    let all: Vec<_> = grid.iter().flatten().flatten().collect();
    let found = all.iter().filter(|found| found.found).count() as f64 / all.len().max(1) as f64;
    if let Some(least) = args.at_least {
        ensure!(
            found >= least,
            "{:.1} % of the needles were found, at least {:.1} % are asked for",
            100.0 * found,
            100.0 * least
        );
    }
    Ok(())
}

/// The documents: by length, depth and number.
fn trials(args: &NeedleArgs, haystack: &Haystack, encoder: Encoder<'_>) -> Result<Vec<Vec<Vec<Trial>>>> {
    let cell = |length: u32, depth: f64| {
        let place = Place { length, depth };
        (0..args.trials).map(|i| Ok(Trial::new(encoder, haystack, args.kind, place, i.into())?)).collect()
    };
    let row = |&length: &u32| args.depths.iter().map(|&depth| cell(length, depth)).collect();
    args.lengths.iter().map(row).collect()
}

fn walk(args: &NeedleArgs, trials: &[Vec<Vec<Trial>>], session: &Session, encoder: Encoder<'_>) -> Result<Grid> {
    let all = trials.iter().flatten().map(Vec::len).sum::<usize>();
    let (mut progress, mut done) = (Progress::new(), 0);
    let mut ask = |trial: &Trial| -> Result<Found> {
        let found = trial.ask(&session.handle, encoder, args.last.map(|last| last as usize))?;
        done += 1;
        progress.show("asking for needles", done as f32 / all as f32);
        Ok(found)
    };
    let mut cell = |trials: &Vec<Trial>| trials.iter().map(&mut ask).collect::<Result<Vec<_>>>();
    let mut row = |cells: &Vec<Vec<Trial>>| cells.iter().map(&mut cell).collect::<Result<Vec<_>>>();
    let grid = trials.iter().map(&mut row).collect();
    progress.clear();
    grid
}

/// The share of a cell's needles that were found.
fn share_of(cell: &[Found]) -> f64 {
    cell.iter().filter(|found| found.found).count() as f64 / cell.len().max(1) as f64
}

fn heat_map(args: &NeedleArgs, grid: &Grid, heading: Heading) -> String {
    chart::heat_map(&HeatMap {
        heading,
        column_label: "depth of the needle".to_owned(),
        row_label: "tokens".to_owned(),
        columns: args.depths.iter().map(|depth| format!("{depth:.2}")).collect(),
        rows: args.lengths.iter().map(u32::to_string).collect(),
        values: grid.iter().map(|cells| cells.iter().map(|cell| share_of(cell)).collect()).collect(),
    })
}

/// Percent of needles found, a line for each length.
fn table(args: &NeedleArgs, grid: &Grid, from_tail: u64) -> String {
    let mut text = format!("{:>10}", "tokens");
    for depth in &args.depths {
        let _ = write!(text, "{depth:>8.2}");
    }
    text.push('\n');
    for (length, cells) in args.lengths.iter().zip(grid) {
        let _ = write!(text, "{length:>10}");
        for cell in cells {
            let _ = write!(text, "{:>8.0}", 100.0 * share_of(cell));
        }
        text.push('\n');
    }
    let _ = writeln!(text, "percent found, {} documents a cell; {} read from the tail", args.trials, Bytes(from_tail));
    text
}

//! `tailrace eval needle`.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;
use tailrace_measure::chart::{self, Heading, HeatMap};
use tailrace_measure::eval::{ANSWER_ROOM, Encoder, Found, Haystack, NeedleKind, Place, Trial};
use tailrace_types::Bytes;

use super::{
    EMPTY_TAIL, Model, NOT_RESIDENT, Output, OutputArgs, TailReads, check_window, heading, resident, row, spills,
    tail_read, with_shorter_chunks,
};
use crate::args::{LimitArgs, ModelArgs};
use crate::picture::{Picture, PictureArgs};
use crate::session::{Progress, Session};
use crate::{prompt, size};

#[derive(Debug, Args)]
pub(crate) struct NeedleArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// A text to hide needles in. Default: sentences that are made up.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Lengths of document and question in tokens; k is 1024.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1k,4k", value_parser = size::tokens)]
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
    /// Fail if more than this share of all needles is found: for the control.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    at_most: Option<f64>,
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

pub(crate) fn run(args: &NeedleArgs) -> Result<()> {
    let (mut output, picture) = (Output::new(&args.output)?, Picture::new(&args.picture)?);
    let model = Model::open(&args.model)?;
    let haystack = match &args.file {
        Some(path) => Haystack::of(&prompt::text(path, "text")?),
        None => Haystack::MadeUp,
    };
    let longest = args.lengths.iter().copied().max().unwrap_or(0);
    let needed = longest.checked_add(ANSWER_ROOM).with_context(|| format!("no context holds {longest} tokens"))?;
    let context = args.model.limits.context.filter(|&cells| cells > 0).unwrap_or(needed);
    ensure!(context >= needed, "-c {context} has no room for {longest} tokens and an answer; raise it");
    let limits = LimitArgs { context: Some(context), ..args.model.limits.clone() };
    check_window(&limits)?;
    ensure!(
        !args.same_as_resident || spills(&limits),
        "--same-as-resident compares with a window or a cap: add --kv-window CELLS or --vram-target SIZE"
    );

    let tokenizer = model.open.tokenizer.clone();
    let encode = move |text: &str| tokenizer.encode(text, false, false);
    let encoder = Encoder { encode: &encode, bos: model.bos() };
    let grid = Grid { args, haystack, encoder };
    // Before the model is loaded: whether the shortest documents have room.
    grid.trial(args.lengths.iter().copied().min().unwrap_or(0), 0.0, 0)?;

    let limits = with_shorter_chunks(&model, limits, longest);
    let session = Session::evaluate(&model.open, &limits, 1)?;
    let (mut found, mut reads) = (Cells::new(), TailReads::default());
    let walked = grid.walk(&session, &mut |length, depth, cell: Vec<Found>| {
        let log_prob = cell.iter().map(|found| found.log_prob).sum::<f64>() / cell.len() as f64;
        let texts: Vec<_> = cell.iter().map(|found| &found.text).collect();
        let results = json!({
            "length": length, "depth": depth, "kind": args.kind, "trials": cell.len(),
            "found": count(&cell), "answer_log_prob": log_prob, "last": args.last, "answers": texts,
        });
        // Each cell when it is done: a grid can take hours.
        output.row(row("needle", &model, (&limits, &session), reads.next(&session)?, results)?)?;
        found.push(cell);
        Ok(())
    });
    let read = tail_read(&session)?;
    output.table(&table(args, &found, read))?;
    let what = match args.last {
        Some(last) => format!("Needles found ({:?}), last {last} tokens alone", args.kind),
        None => format!("Needles found ({:?})", args.kind),
    };
    picture.draw(|| heat_map(args, &found, heading(&what, &model, &limits, &session.device)))?;
    session.handle.stop();
    drop(session);
    walked?;

    if args.same_as_resident {
        ensure!(read > 0, EMPTY_TAIL);
        let session = Session::evaluate(&model.open, &resident(&limits), 1)?;
        let mut cells = found.iter();
        let mut differ = 0;
        grid.walk(&session, &mut |_, _, cell| {
            let same = cells.next().is_some_and(|other| texts(other).eq(texts(&cell)));
            differ += usize::from(!same);
            Ok(())
        })?;
        ensure!(tail_read(&session)? == 0, NOT_RESIDENT);
        ensure!(differ == 0, "{differ} cells of the grid have other answers than resident");
        output.table("every answer is that of the resident run\n")?;
    }
    let (found, all) = (found.iter().map(|cell| count(cell)).sum::<usize>(), found.iter().map(Vec::len).sum::<usize>());
    let share = found as f64 / all.max(1) as f64;
    for (bound, broken, word) in [
        (args.at_least, args.at_least > Some(share), "least"),
        (args.at_most, args.at_most.is_some_and(|most| share > most), "most"),
    ] {
        let asked = 100.0 * bound.unwrap_or(0.0);
        ensure!(!broken, "{:.1} % of the needles were found, at {word} {asked:.1} % are asked for", 100.0 * share);
    }
    Ok(())
}

/// What was found in each cell: depths of the first length, then of the next.
type Cells = Vec<Vec<Found>>;

/// The documents, and how they are asked about. Each is made when it is its turn: all of them could be too many.
struct Grid<'a> {
    args: &'a NeedleArgs,
    haystack: Haystack,
    encoder: Encoder<'a>,
}

impl Grid<'_> {
    fn trial(&self, length: u32, depth: f64, number: u32) -> Result<Trial> {
        Ok(Trial::new(self.encoder, &self.haystack, self.args.kind, Place { length, depth }, number.into())?)
    }

    /// Asks for all needles; `each` is given every cell with its length and depth.
    fn walk(&self, session: &Session, each: &mut dyn FnMut(u32, f64, Vec<Found>) -> Result<()>) -> Result<()> {
        let NeedleArgs { lengths, depths, trials, last, .. } = self.args;
        let (mut progress, mut done) = (Progress::new(), 0);
        let all = lengths.len() * depths.len() * *trials as usize;
        for &length in lengths {
            for &depth in depths {
                let mut cell = Vec::new();
                for number in 0..*trials {
                    let trial = self.trial(length, depth, number)?;
                    cell.push(trial.ask(&session.handle, self.encoder, last.map(|last| last as usize))?);
                    done += 1;
                    progress.show("asking for needles", done as f32 / all as f32);
                }
                progress.clear();
                each(length, depth, cell)?;
            }
        }
        Ok(())
    }
}

fn texts(cell: &[Found]) -> impl Iterator<Item = &str> {
    cell.iter().map(|found| found.text.as_str())
}

/// Needles of a cell that were found.
fn count(cell: &[Found]) -> usize {
    cell.iter().filter(|found| found.found).count()
}

/// The share of a cell's needles that were found.
fn share_of(cell: &[Found]) -> f64 {
    count(cell) as f64 / cell.len().max(1) as f64
}

fn heat_map(args: &NeedleArgs, cells: &Cells, heading: Heading) -> String {
    chart::heat_map(&HeatMap {
        heading,
        column_label: "depth of the needle".to_owned(),
        row_label: "tokens".to_owned(),
        columns: args.depths.iter().map(|depth| format!("{depth:.2}")).collect(),
        rows: args.lengths.iter().map(u32::to_string).collect(),
        values: cells.chunks(args.depths.len()).map(|row| row.iter().map(|cell| share_of(cell)).collect()).collect(),
    })
}

/// Percent of needles found, a line for each length.
fn table(args: &NeedleArgs, cells: &Cells, from_tail: u64) -> String {
    let mut text = format!("{:>10}", "tokens");
    for depth in &args.depths {
        let _ = write!(text, "{depth:>8.2}");
    }
    text.push('\n');
    for (length, row) in args.lengths.iter().zip(cells.chunks(args.depths.len())) {
        let _ = write!(text, "{length:>10}");
        for cell in row {
            let _ = write!(text, "{:>8.0}", 100.0 * share_of(cell));
        }
        text.push('\n');
    }
    let _ = writeln!(text, "percent found, {} documents a cell; {} read from the tail", args.trials, Bytes(from_tail));
    text
}

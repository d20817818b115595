//! `tailrace bench`: measures steps.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use tailrace_device::{LoadOptions, Loader, Rates};
use tailrace_engine::{Handle, LoadError, OpenModel, SamplingParams, start_shape};
use tailrace_measure::{Bench, Engines, Options, Phase, RESIDENT, Row, Spill, table_header};
use tailrace_models::{Model, shapes};
use tailrace_plan::{Limits, ModelSpec};

use crate::args::LimitArgs;
use crate::device::{self, Device, DeviceArgs};
use crate::file::append;
use crate::path::stem;
use crate::picture::{Picture, PictureArgs};
use crate::report::ReportArgs;
use crate::session::{Progress, Session};
use crate::{limits, report, size, stderr};

/// Seed of weights, cells and draws: runs are comparable.
const SEED: u64 = 1;

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Steps that generate one token, at each depth.
    Decode(CellArgs),
    /// Chunks of a prompt, at each depth.
    Prefill(CellArgs),
    /// Resident steps, then the same with more and more of the cache in the tail. Its picture is speed against the tail, beside
    /// the laws.
    Ladder(LadderArgs),
    /// Rates of the device and its link.
    Link(LinkArgs),
    /// Tables and pictures of rows that were kept. Needs no device.
    Report(ReportArgs),
}

#[derive(Debug, Args)]
struct CellArgs {
    /// Model file (GGUF).
    #[arg(short, long, value_name = "FILE", required_unless_present = "shape", conflicts_with = "shape")]
    model: Option<PathBuf>,
    /// A known model with random weights instead of a file, such as qwen2.5-14b:q8_0.
    #[arg(long, value_name = "NAME:TYPE")]
    shape: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Cells before the measurement; k is 1024.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "0", value_parser = size::tokens)]
    depth: Vec<u32>,
    /// Fill depths with random cells instead of computing them. Shapes always are.
    #[arg(long)]
    fill: bool,
    /// Tokens to time in each decode.
    #[arg(short = 'n', long = "predict", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    predict: u32,
    /// Measurements of each cell; the median counts.
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Draw tokens with the default sampling instead of taking the likeliest.
    #[arg(long)]
    sampled: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct LadderArgs {
    #[command(flatten)]
    cells: CellArgs,
    /// What to measure.
    #[arg(long, value_name = "PHASE", value_delimiter = ',', default_value = "decode")]
    phase: Vec<PhaseArg>,
    /// Bytes of the occupied tail, one rung each: the window comes as near as whole blocks can.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size::parse)]
    tail: Vec<u64>,
    /// Caps on device memory, one rung each.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size::parse)]
    targets: Vec<u64>,
    #[command(flatten)]
    picture: PictureArgs,
}

#[derive(Debug, Args)]
struct LinkArgs {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// Append the rows to this file instead of writing them to standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Commit to name in the rows. Default: the one that was built.
    #[arg(long, value_name = "HASH", default_value = env!("TAILRACE_COMMIT"))]
    commit: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PhaseArg {
    Decode,
    Prefill,
}

impl From<PhaseArg> for Phase {
    fn from(value: PhaseArg) -> Self {
        match value {
            PhaseArg::Decode => Phase::Decode,
            PhaseArg::Prefill => Phase::Prefill,
        }
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        What::Decode(cells) => measure(cells, &[Phase::Decode], &[], Picture::default()),
        What::Prefill(cells) => measure(cells, &[Phase::Prefill], &[], Picture::default()),
        What::Ladder(ladder) => {
            let tails = ladder.tail.iter().map(|&bytes| Spill::Tail(bytes));
            let spills: Vec<_> = tails.chain(ladder.targets.iter().map(|&bytes| Spill::Target(bytes))).collect();
            ensure!(!spills.is_empty(), "a ladder needs rungs: --tail SIZE,... or --targets SIZE,...");
            let phases: Vec<_> = ladder.phase.iter().map(|&phase| phase.into()).collect();
            measure(&ladder.cells, &phases, &spills, Picture::new(&ladder.picture)?)
        }
        What::Link(link) => measure_link(link),
        What::Report(args) => report::run(args),
    }
}

/// Measures the cells; with `spills` a ladder, of which there can be a picture.
fn measure(args: &CellArgs, phases: &[Phase], spills: &[Spill], picture: Picture) -> Result<()> {
    ensure!(args.limits.parallel == 1, "-np {}: one sequence is measured", args.limits.parallel);
    let subject = Subject::open(args)?;
    let mut notes = Vec::new();
    let device = device::open(&args.limits.device, &mut notes)?;
    let options = Options {
        phases: phases.to_vec(),
        depths: args.depth.clone(),
        tokens: args.predict,
        repetitions: args.repetitions,
        fill: args.fill || args.shape.is_some(),
        sampling: if args.sampled { SamplingParams::default() } else { SamplingParams::greedy() },
        seed: SEED,
        commit: args.output.commit.clone(),
    };
    let chunk = args.limits.ubatch_size.unwrap_or(device.chunk);
    let context = args.limits.context.filter(|&cells| cells > 0).unwrap_or_else(|| Bench::context(&options, chunk));
    let limits = LimitArgs { context: Some(context), ..args.limits.clone() };
    let resolved = limits::resolve_on(device, notes, &limits, subject.spec(), 1)?;
    resolved.notes.iter().for_each(stderr::note);
    let mut output = Output::new(&args.output)?;
    let Device { loader, .. } = &resolved.device;
    let engines = Loading { subject: &subject, loader: loader.as_ref() };
    let mut rows = Vec::new();
    let mut each = |row: &Row| {
        output.row(row);
        rows.push(row.clone());
    };
    let mut bench = Bench::new(&engines, loader.as_ref(), &options, &mut each)?;
    let measured = match spills {
        [] => bench.run(&resolved.limits, &variant(&args.limits)),
        spills => bench.ladder(&resolved.limits, spills),
    };
    // A ladder that broke off is drawn as far as it came; that it broke off is said first.
    let drawn = if rows.is_empty() { Ok(()) } else { picture.draw(|| report::ladders(rows)) };
    measured?;
    output.end()?;
    drawn
}

/// What cells under these limits are called.
fn variant(args: &LimitArgs) -> String {
    match (args.kv_window, args.vram_target) {
        (Some(cells), _) => format!("window-{cells}"),
        (None, Some(bytes)) => Spill::Target(bytes).to_string(),
        (None, None) => RESIDENT.to_owned(),
    }
}

/// The model that is measured.
enum Subject {
    File(Box<OpenModel>, String),
    Shape(Box<Model>),
}

impl Subject {
    fn open(args: &CellArgs) -> Result<Self> {
        match (&args.model, &args.shape) {
            (Some(path), _) => Ok(Subject::File(Box::new(Session::open(path)?), stem(path))),
            (None, Some(shape)) => Ok(Subject::Shape(Box::new(shapes::read(shape)?))),
            (None, None) => bail!("name a model: -m FILE or --shape NAME:TYPE"),
        }
    }

    fn spec(&self) -> &ModelSpec {
        match self {
            Subject::File(model, _) => model.spec(),
            Subject::Shape(model) => &model.spec,
        }
    }
}

/// Starts engines of the subject, and says how far loading is.
struct Loading<'a> {
    subject: &'a Subject,
    loader: &'a dyn Loader,
}

impl Engines for Loading<'_> {
    fn spec(&self) -> &ModelSpec {
        self.subject.spec()
    }

    fn name(&self) -> String {
        match self.subject {
            Subject::File(_, name) => name.clone(),
            Subject::Shape(model) => model.name.clone(),
        }
    }

    fn start(&self, limits: &Limits) -> Result<Handle, LoadError> {
        let progress = RefCell::new(Progress::new());
        let mut show = |fraction| progress.borrow_mut().show("loading", fraction);
        let started = match self.subject {
            Subject::File(model, _) => model.start(limits, self.loader, LoadOptions::default(), &mut show),
            Subject::Shape(model) => start_shape(&model.spec, limits, self.loader, SEED, &mut show),
        };
        progress.borrow_mut().clear();
        started
    }
}

fn measure_link(args: &LinkArgs) -> Result<()> {
    let mut notes = Vec::new();
    let device = device::open(&args.device, &mut notes)?;
    notes.iter().for_each(stderr::note);
    let (rates, name) = (device.loader.rates()?, device.loader.name());
    let mut output = Output::new(&args.output)?;
    output.row(&Row::of_link(&rates, &name, &args.output.commit));
    let Rates { link, link_loaded, device_read, host_read } = rates;
    let gb_s = |rate: f64| rate / 1e9;
    stderr::line(format_args!(
        "{name}: link {:.1} GB/s, {:.1} beside a busy device; device memory {:.0} GB/s; host memory {:.1} GB/s",
        gb_s(link),
        gb_s(link_loaded),
        gb_s(device_read),
        gb_s(host_read)
    ));
    output.end()
}

/// Where rows go: JSON to a file or standard output, a table to standard error.
struct Output {
    file: Option<File>,
    rows: usize,
    /// The first row that could not be written.
    failed: Option<io::Error>,
}

impl Output {
    fn new(args: &OutputArgs) -> Result<Self> {
        Ok(Output { file: args.out.as_deref().map(append).transpose()?, rows: 0, failed: None })
    }

    fn row(&mut self, row: &Row) {
        let line = row.to_json() + "\n";
        let written = match &mut self.file {
            Some(file) => file.write_all(line.as_bytes()),
            None => io::stdout().lock().write_all(line.as_bytes()),
        };
        if self.rows == 0 {
            stderr::line(table_header());
        }
        stderr::line(row.to_line());
        self.rows += 1;
        self.failed = self.failed.take().or(written.err());
    }

    fn end(self) -> Result<()> {
        self.failed.map_or(Ok(()), |error| Err(anyhow::Error::from(error).context("cannot write the rows")))
    }
}

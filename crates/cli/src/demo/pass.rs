//! One engine reads the document and is asked.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tailrace_device::LoadOptions;
use tailrace_engine::{Event, Handle, LogitsWanted, OpenModel, Request, Stats};
use tailrace_measure::eval::{ANSWER_ROOM, LogitRows, RowSource, Series, Trial};
use tailrace_plan::{Limits, Plan, Room};

use super::live::Live;
use super::verdict;
use crate::device::Device;
use crate::limits::{available_bytes, with_a_tail};

/// The window is so small a part of the document, rounded up to a block.
const WINDOW_SHARE: u32 = 32;
/// So small a part of it may stay on the device while the answers are decoded.
const DECODE_SHARE: u64 = 16;
/// Rows of logits that are delivered at once.
const LOGIT_ROWS: u32 = 256;

/// What both passes have in common.
pub(super) struct Stage<'a> {
    model: &'a OpenModel,
    device: &'a Device,
    series: &'a Series,
    /// Under the cap.
    pub(super) rolling: Plan,
    /// Without one.
    pub(super) resident: Plan,
}

impl<'a> Stage<'a> {
    pub(super) fn new(model: &'a OpenModel, device: &'a Device, series: &'a Series) -> Result<Self> {
        let longest = series.trials.iter().map(|trial| trial.prompt.len()).max().unwrap_or(0) as u32;
        let limits = Limits {
            chunk: device.chunk,
            logit_rows: LOGIT_ROWS,
            host_bytes_max: available_bytes() / 2,
            ..Limits::new(longest + ANSWER_ROOM)
        };
        let plan = |limits: &Limits| model.plan(limits, device.loader.as_ref());
        let capped = |chunk| {
            let windowed = plan(&Limits { chunk, window_cells: Some(longest / WINDOW_SHARE), ..limits.clone() })?;
            // The cap, not the window, is what the run is given.
            let cap = windowed.memory.device_bytes();
            Ok(plan(&Limits { chunk, device_bytes_max: Some(cap), ..limits.clone() })?)
        };
        let few_are_kept = |plan: &Plan| u64::from(plan.window_cells_decode()) * DECODE_SHARE <= u64::from(longest);
        let rolling = with_a_tail(device.chunk, capped, few_are_kept)?;
        Ok(Stage { model, device, series, rolling, resident: plan(&limits)? })
    }
}

/// What was answered.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) text: String,
    /// The logits that its tokens were drawn from.
    pub(super) logits: Vec<f32>,
    pub(super) stats: Stats,
}

/// What one engine said, and what it took.
#[derive(Default)]
pub(super) struct Pass {
    /// Logits of one token.
    pub(super) vocab: usize,
    /// Logits of every token of the document.
    pub(super) document: Vec<f32>,
    pub(super) reading_seconds: f64,
    pub(super) answers: Vec<Answer>,
    /// The answer to the first question from the last cells alone, as many as the window has: where there is a tail.
    pub(super) without_tail: Option<String>,
    /// Cells of the cache before the last question was answered, and how many of them were in the tail.
    pub(super) cells: u64,
    pub(super) tail_cells: u64,
    pub(super) tail_bytes: u64,
    /// Bytes that came from the tail, up to there.
    pub(super) read_bytes: u64,
    /// Most device memory that was in use, in bytes.
    pub(super) device_bytes: u64,
}

impl Pass {
    /// Reads the document, asks, and writes what was answered.
    pub(super) fn run(stage: &Stage<'_>, plan: &Plan, out: &mut dyn Write) -> Result<Pass> {
        let Stage { model, device, series, .. } = *stage;
        let started = model.start(&plan.limits, device.loader.as_ref(), LoadOptions::default(), &mut |_| ());
        let handle = started.context("the demonstration does not start; take fewer --tokens, or --device cpu")?;
        let clock = Instant::now();
        let document = read(&handle, series)?;
        let reading_seconds = clock.elapsed().as_secs_f64();

        let mut answers = Vec::new();
        for trial in &series.trials {
            answers.push(ask(&handle, trial, None, out)?);
        }
        let snapshot = handle.snapshot()?;
        // Last: the engine forgets the document over it.
        let without_tail = if snapshot.tail_cells() > 0 {
            let window = plan.window_cells() as usize;
            writeln!(out, "  and from the last {window} tokens alone, what a context that is cut short leaves:")?;
            Some(ask(&handle, &series.trials[0], Some(window), out)?.text)
        } else {
            None
        };
        handle.stop();
        let on_device = snapshot.high_water.iter().filter(|high| high.kind.room() == Room::Device);
        Ok(Pass {
            vocab: handle.vocab() as usize,
            document,
            reading_seconds,
            answers,
            without_tail,
            cells: snapshot.window_cells() + snapshot.tail_cells(),
            tail_cells: snapshot.tail_cells(),
            tail_bytes: snapshot.tail_bytes(),
            read_bytes: snapshot.traffic.from_tail_bytes(),
            device_bytes: on_device.map(|high| high.used_bytes).sum(),
        })
    }

    /// All logits, in the order in which they came.
    pub(super) fn logits(&self) -> impl Iterator<Item = f32> {
        let answers = self.answers.iter().flat_map(|answer| &answer.logits);
        self.document.iter().chain(answers).copied()
    }

    /// Tokens of the document.
    pub(super) fn document_tokens(&self) -> usize {
        self.document.len() / self.vocab.max(1)
    }

    /// Tokens of answers that were decoded per second; 0 if none were.
    pub(super) fn answered_tps(&self) -> f64 {
        let stats = || self.answers.iter().map(|answer| &answer.stats);
        let tokens: u32 = stats().map(|stats| stats.decoded_tokens).sum();
        let seconds: f64 = stats().map(|stats| stats.decode_seconds).sum();
        if seconds > 0.0 { f64::from(tokens) / seconds } else { 0.0 }
    }

    /// The share of the cache that was in the tail.
    pub(super) fn tail_share(&self) -> f64 {
        self.tail_cells as f64 / self.cells.max(1) as f64
    }
}

/// The logits of every token of the document.
fn read(handle: &Handle, series: &Series) -> Result<Vec<f32>> {
    let mut live = Live::new(series.document.len());
    let mut logits = Vec::with_capacity(series.document.len() * handle.vocab() as usize);
    let mut rows = LogitRows::start(handle, &series.document, &[])?;
    while let Some((position, row)) = rows.next_row()? {
        logits.extend_from_slice(row);
        live.show(position as usize + 1, handle)?;
    }
    Ok(logits)
}

/// Asks, and writes question and answer; `last` is that of [`Trial::request`].
fn ask(handle: &Handle, trial: &Trial, last: Option<usize>, out: &mut dyn Write) -> Result<Answer> {
    let place = match trial.needle_at {
        Some(at) => format!("{:.0} %", 100.0 * at as f64 / trial.prompt.len() as f64),
        None => "nowhere".to_owned(),
    };
    write!(out, "  {place:>7}  {:<43}", trial.question)?;
    let mut answer = Answer::default();
    let request = Request { logits: LogitsWanted::Continuation, ..trial.request(last) };
    for event in handle.submit(request)? {
        match event {
            Event::Token { text, .. } => {
                write!(out, "{text}")?;
                out.flush()?;
                answer.text += &text;
            }
            Event::Logits { values, .. } => answer.logits.extend(values),
            Event::Done { stats, .. } => answer.stats = stats,
            Event::Error(error) => bail!(error),
            Event::PrefillProgress { .. } | Event::Rewound { .. } => {}
        }
    }
    writeln!(out, "  {}", verdict::mark(trial, &answer.text))?;
    Ok(answer)
}

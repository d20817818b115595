//! `xtask reference FILE`: tokens and log-probabilities against recorded runs of another engine.
//!
//! The file holds greedy runs: prompt, prompt tokens, and for each step the five likeliest tokens with their
//! log-probabilities, of the model as it is (`q_native`) and of its weights in f32 (`f32_weights`). The reference's tokens
//! are fed; what is compared are log-probabilities of its five tokens.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Deserialize;
use tailrace_device::Loader;
use tailrace_engine::OpenModel;
use tailrace_plan::{ActivationType, Limits};
use tailrace_types::{KvType, TokenId};

use crate::drive::{self, Checked, Device};

/// Largest difference of a log-probability with f32 activations and an f32 cache.
const F32_MAX: f64 = 2e-3;

/// A GPU with default types is no farther from the reference than this many times what the CPU is.
const CPU_FACTOR: f64 = 1.25;

/// Cases of a model from which on its statistics are held to the narrower factors.
const MANY_CASES: usize = 5;

/// Check tokens and log-probabilities against a file of reference runs; a GPU's default types also against the CPU's.
#[derive(clap::Args)]
pub struct Args {
    /// File of reference runs.
    file: PathBuf,
    /// Run with a window of so many cells.
    #[arg(long, value_name = "CELLS")]
    kv_window: Option<u32>,
    /// Check f32 arithmetic alone, or default types alone; both where it is absent.
    #[arg(long, value_enum)]
    activations: Option<Activations>,
    #[command(flatten)]
    checked: Checked,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Activations {
    /// f32 matrix inputs and f32 cache.
    F32,
    /// Default types.
    Auto,
}

#[derive(Deserialize)]
struct File {
    models: Vec<ModelRuns>,
}

#[derive(Deserialize)]
struct ModelRuns {
    model: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    id: String,
    prompt: String,
    add_bos: bool,
    #[serde(default)]
    parse_special: bool,
    prompt_tokens: Vec<u32>,
    n_ctx: u32,
    #[serde(default)]
    robust_prefix: usize,
    q_native: Option<Run>,
    f32_weights: Option<Run>,
}

#[derive(Deserialize)]
struct Run {
    output_tokens: Vec<u32>,
    /// For each step: (token, logit, log-probability), best first.
    top5: Vec<Vec<(u32, f64, f64)>>,
}

impl Args {
    /// Runs the check; fails past the bounds.
    pub fn run(self) -> Result<ExitCode> {
        let name = self.file.display();
        let text = std::fs::read_to_string(&self.file).with_context(|| format!("cannot read {name}"))?;
        let file: File = serde_json::from_str(&text).with_context(|| format!("{name} is no file of reference runs"))?;
        let wanted = |runs: &&ModelRuns| self.checked.wants(&runs.model);
        let mut good = true;
        for runs in file.models.iter().filter(wanted) {
            match self.checked.path(&runs.model) {
                Ok(path) => good &= self.check(runs, &drive::open(&path)?)?,
                Err(error) => println!("{}: skipped: {error:#}", runs.model),
            }
        }
        println!("{}", if good { "within the bounds" } else { "FAILED" });
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn check(&self, runs: &ModelRuns, model: &OpenModel) -> Result<bool> {
        let mut good = true;
        for case in &runs.cases {
            good &= tokens_match(case, model, &runs.model);
        }
        if self.activations != Some(Activations::Auto) {
            good &= self.check_f32(runs, model)?;
        }
        if self.activations != Some(Activations::F32) {
            good &= self.check_default(runs, model)?;
        }
        Ok(good)
    }

    /// f32 arithmetic against the runs with f32 weights: every difference is bounded.
    fn check_f32(&self, runs: &ModelRuns, model: &OpenModel) -> Result<bool> {
        let (mut all, mut good) = (Statistics::default(), true);
        for case in &runs.cases {
            let Some(reference) = &case.f32_weights else { continue };
            let steps = self.log_probabilities(case, reference, model, Activations::F32)?;
            let mut one = Statistics::default();
            one.add_steps(&steps, reference);
            println!("{} f32 {}: {one}", runs.model, case.id);
            good &= one.max <= F32_MAX;
            all.merge(&one);
        }
        if all.count > 0 {
            println!("{} f32: {} cases, {all}, bound {F32_MAX}", runs.model, runs.cases.len());
        }
        Ok(good)
    }

    /// Default types against f32 weights: no farther than the reference's own quantised run, up to a factor.
    fn check_default(&self, runs: &ModelRuns, model: &OpenModel) -> Result<bool> {
        let (mut ours, mut theirs, mut judged, mut good) = (Statistics::default(), Statistics::default(), 0, true);
        let (mut device, mut cpu) = (Statistics::default(), Statistics::default());
        for case in &runs.cases {
            let Some(reference) = case.f32_weights.as_ref().or(case.q_native.as_ref()) else { continue };
            let steps = self.log_probabilities(case, reference, model, Activations::Auto)?;
            if self.checked.device != Device::Cpu {
                device.add_steps(&steps, reference);
                let on_cpu = drive::device(Device::Cpu, self.checked.threads)?;
                cpu.add_steps(
                    &self.log_probabilities_on(&*on_cpu, case, reference, model, Activations::Auto)?,
                    reference,
                );
            }
            good &= robust(case, reference, &steps, &runs.model);
            let mut one = Statistics::default();
            one.add_steps(&steps, reference);
            let (Some(exact), Some(native)) = (&case.f32_weights, &case.q_native) else {
                println!("{} default {}: {one} (not judged: no run with f32 weights)", runs.model, case.id);
                continue;
            };
            println!("{} default {}: {one}", runs.model, case.id);
            judged += 1;
            compare(exact, native, &steps, &mut ours, &mut theirs);
        }
        if cpu.count > 0 {
            let (mean, rms) = (device.mean() / cpu.mean(), device.rms() / cpu.rms());
            println!("{} default: the device: {device}; the CPU: {cpu}", runs.model);
            println!("{} default: mean x{mean:.3}, RMS x{rms:.3} of the CPU's (bound {CPU_FACTOR})", runs.model);
            good &= mean <= CPU_FACTOR && rms <= CPU_FACTOR;
        }
        if judged == 0 {
            return Ok(good);
        }
        let (mean, rms) = if judged >= MANY_CASES { (1.25, 1.35) } else { (1.35, 1.5) };
        let (mean_ratio, rms_ratio) = (ours.mean() / theirs.mean(), ours.rms() / theirs.rms());
        println!("{} default: {judged} cases, {ours}; the reference's own: {theirs}", runs.model);
        println!("{} default: mean x{mean_ratio:.3} (bound {mean}), RMS x{rms_ratio:.3} (bound {rms})", runs.model);
        Ok(good && mean_ratio <= mean && rms_ratio <= rms)
    }

    /// Log-probabilities of each step along the reference's tokens.
    fn log_probabilities(
        &self,
        case: &Case,
        reference: &Run,
        model: &OpenModel,
        activations: Activations,
    ) -> Result<Vec<Step>> {
        let device = drive::device(self.checked.device, self.checked.threads)?;
        self.log_probabilities_on(&*device, case, reference, model, activations)
    }

    fn log_probabilities_on(
        &self,
        device: &dyn Loader,
        case: &Case,
        reference: &Run,
        model: &OpenModel,
        activations: Activations,
    ) -> Result<Vec<Step>> {
        let mut limits = Limits { window_cells: self.kv_window, ..Limits::new(case.n_ctx) };
        if activations == Activations::F32 {
            limits.activations = ActivationType::F32;
            (limits.k_type, limits.v_type) = (KvType::F32, KvType::F32);
        }
        let handle = drive::start(model, &limits, device, true)?;
        let ids = |tokens: &[u32]| tokens.iter().map(|&t| TokenId(t)).collect::<Vec<_>>();
        let (prompt, output) = (ids(&case.prompt_tokens), ids(&reference.output_tokens));
        let mut steps = Vec::with_capacity(output.len());
        drive::force(&handle, &prompt, &output[..output.len() - 1], |position, row| {
            if position + 1 >= prompt.len() {
                let top = &reference.top5[position + 1 - prompt.len()];
                steps.push(Step::new(row, top.iter().map(|t| t.0)));
            }
        })?;
        handle.stop();
        Ok(steps)
    }
}

/// One step's log-probabilities.
struct Step {
    best: u32,
    of: HashMap<u32, f64>,
}

impl Step {
    fn new(row: &[f32], tokens: impl Iterator<Item = u32>) -> Step {
        let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
        let max = f64::from(row[best]);
        let log_sum = max + row.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln();
        let of = tokens.map(|t| (t, row.get(t as usize).map_or(f64::NAN, |&x| f64::from(x) - log_sum))).collect();
        Step { best: best as u32, of }
    }

    /// The log-probability of one of the tokens that were asked for.
    fn of(&self, token: u32) -> f64 {
        self.of.get(&token).copied().unwrap_or(f64::NAN)
    }
}

fn tokens_match(case: &Case, model: &OpenModel, name: &str) -> bool {
    let tokens = model.tokenizer.encode(&case.prompt, case.add_bos, case.parse_special);
    let same = tokens.iter().map(|t| t.0).eq(case.prompt_tokens.iter().copied());
    if !same {
        println!("{name} {}: prompt tokens differ from the reference", case.id);
    }
    same
}

/// Whether the likeliest tokens are the reference's where it has a clear winner.
fn robust(case: &Case, reference: &Run, steps: &[Step], name: &str) -> bool {
    let ours = steps.iter().map(|s| s.best);
    let same = ours.zip(&reference.output_tokens).take_while(|(a, b)| a == *b).count();
    let good = same >= case.robust_prefix;
    if !good {
        println!("{name} {}: {same} tokens as the reference, {} expected", case.id, case.robust_prefix);
    }
    good
}

/// Over steps with a common prefix, and tokens that both runs list: our and the native run's distance from f32 weights.
fn compare(exact: &Run, native: &Run, steps: &[Step], ours: &mut Statistics, theirs: &mut Statistics) {
    let common = exact.output_tokens.iter().zip(&native.output_tokens).take_while(|(a, b)| a == b).count();
    for ((step, exact), native) in steps.iter().zip(&exact.top5).zip(&native.top5).take(common + 1) {
        for &(token, _, expected) in exact {
            if let Some(&(_, _, native)) = native.iter().find(|t| t.0 == token) {
                theirs.add(native - expected);
                ours.add(step.of(token) - expected);
            }
        }
    }
}

/// Mean, root mean square and maximum of absolute differences.
#[derive(Default)]
struct Statistics {
    count: usize,
    sum: f64,
    squares: f64,
    max: f64,
}

impl Statistics {
    /// A difference; one that is no number counts as infinite.
    fn add(&mut self, difference: f64) {
        let size = if difference.is_nan() { f64::INFINITY } else { difference.abs() };
        self.count += 1;
        self.sum += size;
        self.squares += size * size;
        self.max = self.max.max(size);
    }

    /// The differences of all steps.
    fn add_steps(&mut self, steps: &[Step], reference: &Run) {
        for (step, top) in steps.iter().zip(&reference.top5) {
            top.iter().for_each(|&(token, _, expected)| self.add(step.of(token) - expected));
        }
    }

    fn merge(&mut self, other: &Statistics) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
        self.max = self.max.max(other.max);
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    fn rms(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

impl std::fmt::Display for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} values, mean {:.2e}, RMS {:.2e}, max {:.2e}", self.count, self.mean(), self.rms(), self.max)
    }
}

//! `xtask bench MODEL`: tokens per second of whole requests, and of llama.cpp's `llama-bench` beside them.
//!
//! Ours and theirs run in turn, A B A B, so that a machine whose speed drifts slows both; medians are compared.
//! Definitions are those of `llama-bench`: prefill of N tokens and decode of M tokens at a depth of D tokens.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use tailrace_engine::{Handle, Request, SamplingParams, Stats};
use tailrace_plan::Limits;
use tailrace_types::TokenId;

use crate::{drive, model};

/// Measure prefill and decode, beside llama.cpp if its `llama-bench` is named.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the model, or path of a file.
    model: String,
    /// Tokens in the cache before a measurement.
    #[arg(long, value_delimiter = ',', default_value = "0,4096")]
    depths: Vec<usize>,
    /// Tokens of a prefill.
    #[arg(long, default_value_t = 512)]
    prefill: usize,
    /// Tokens of a decode.
    #[arg(long, default_value_t = 64)]
    decode: u32,
    /// Measurements of each kind.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Worker threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Cells of the window, to measure with a tail.
    #[arg(long, value_name = "CELLS")]
    kv_window: Option<u32>,
    /// The program `llama-bench` of a native build.
    #[arg(long, value_name = "PATH")]
    llama_bench: Option<PathBuf>,
}

/// Tokens per second.
#[derive(Clone, Copy, Debug)]
struct Rates {
    prefill: f64,
    decode: f64,
}

impl Args {
    /// Prints a table row for each depth.
    pub fn run(self) -> Result<ExitCode> {
        let path = match Path::new(&self.model) {
            path if path.is_file() => path.to_owned(),
            _ => model::fetch(&self.model)?,
        };
        println!("| depth | what | tailrace, tokens/s | llama.cpp, tokens/s | ratio |");
        println!("|---|---|---|---|---|");
        for &depth in &self.depths {
            let ours = Ours::new(&self, &path, depth)?;
            let mut theirs =
                self.llama_bench.as_deref().map(|bench| Theirs::new(&self, bench, &path, depth)).transpose()?;
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for round in 0..self.rounds {
                a.push(ours.measure(round as u32)?);
                if let Some(theirs) = &mut theirs {
                    b.push(theirs.measure()?);
                }
            }
            ours.handle.stop();
            let flash =
                theirs.map_or(String::new(), |t| format!(" (flash attention {})", if t.flash { "on" } else { "off" }));
            report(
                depth,
                &format!("prefill {}", self.prefill),
                a.iter().map(|r| r.prefill),
                b.iter().map(|r| r.prefill),
                &flash,
            );
            report(
                depth,
                &format!("decode {}", self.decode),
                a.iter().map(|r| r.decode),
                b.iter().map(|r| r.decode),
                &flash,
            );
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn report(depth: usize, what: &str, ours: impl Iterator<Item = f64>, theirs: impl Iterator<Item = f64>, note: &str) {
    let (ours, theirs) = (Spread::of(ours.collect()), Spread::of(theirs.collect()));
    match (ours, theirs) {
        (Some(a), Some(b)) => println!("| {depth} | {what} | {a} | {b}{note} | {:.2} |", a.median / b.median),
        (Some(a), None) => println!("| {depth} | {what} | {a} | | |"),
        (None, _) => {}
    }
}

/// Median, least and most.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (&least, &most) = (values.first()?, values.last()?);
        Some(Spread { median: values[values.len() / 2], least, most })
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} ({:.1} to {:.1})", self.median, self.least, self.most)
    }
}

struct Ours {
    handle: Handle,
    context: Vec<TokenId>,
    prefill: usize,
    decode: u32,
}

impl Ours {
    fn new(args: &Args, path: &Path, depth: usize) -> Result<Ours> {
        let model = drive::open(path)?;
        let cells = depth + args.prefill.max(args.decode as usize) + 1;
        let limits = Limits { logit_rows: 1, window_cells: args.kv_window, ..Limits::new(cells as u32) };
        let handle = drive::start(&model, &limits, &drive::cpu(args.threads), false)?;
        let context = tokens(depth, 1, handle.vocab());
        let ours = Ours { handle, context, prefill: args.prefill, decode: args.decode };
        // Warms up, and leaves the depth's tokens in the cache.
        ours.measure(u32::MAX)?;
        Ok(ours)
    }

    fn measure(&self, round: u32) -> Result<Rates> {
        let vocab = self.handle.vocab();
        let fresh = tokens(self.prefill, round.wrapping_add(2), vocab);
        let prefill = self.request([self.context.as_slice(), &fresh].concat(), 0)?;
        let computed = prefill.prompt_tokens - prefill.reused_tokens;
        ensure!(round == u32::MAX || computed as usize == self.prefill, "{computed} tokens were computed");
        // One token at least is computed again before the first is sampled.
        let prompt = if self.context.is_empty() { fresh[..1].to_vec() } else { self.context.clone() };
        let decode = self.request(prompt, self.decode)?;
        Ok(Rates { prefill: prefill.prefill_tps(), decode: decode.decode_tps() })
    }

    fn request(&self, prompt: Vec<TokenId>, max_tokens: u32) -> Result<Stats> {
        let request = Request {
            max_tokens,
            sampling: SamplingParams::greedy(),
            stop_at_eog: false,
            reuse_prefix: !self.context.is_empty(),
            ..Request::new(prompt)
        };
        Ok(self.handle.submit(request)?.complete()?.stats)
    }
}

/// Random tokens of a vocabulary, the same for the same seed.
fn tokens(count: usize, seed: u32, vocab: u32) -> Vec<TokenId> {
    let mut state = u64::from(seed) | 1 << 40;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        TokenId((state >> 33) as u32 % vocab)
    };
    (0..count).map(|_| next()).collect()
}

struct Theirs<'a> {
    args: &'a Args,
    bench: &'a Path,
    path: &'a Path,
    depth: usize,
    flash: bool,
}

impl<'a> Theirs<'a> {
    /// Tries flash attention off and on, and keeps the better.
    fn new(args: &'a Args, bench: &'a Path, path: &'a Path, depth: usize) -> Result<Self> {
        let theirs = |flash| Theirs { args, bench, path, depth, flash };
        let [off, on] = [theirs(false).measure()?, theirs(true).measure()?];
        Ok(theirs(on.prefill * on.decode > off.prefill * off.decode))
    }

    fn measure(&self) -> Result<Rates> {
        let args = [
            ("-t", self.args.threads.to_string()),
            ("-p", self.args.prefill.to_string()),
            ("-n", self.args.decode.to_string()),
            ("-d", self.depth.to_string()),
            ("-fa", u8::from(self.flash).to_string()),
            ("-r", "1".to_owned()),
            ("-o", "json".to_owned()),
        ];
        let mut command = Command::new(self.bench);
        command.arg("-m").arg(self.path);
        args.iter().for_each(|(flag, value)| {
            command.arg(flag).arg(value);
        });
        let output = command.output().with_context(|| format!("cannot run {}", self.bench.display()))?;
        ensure!(output.status.success(), "llama-bench failed: {}", String::from_utf8_lossy(&output.stderr));
        let tests: Vec<serde_json::Value> =
            serde_json::from_slice(&output.stdout).context("llama-bench wrote no JSON")?;
        let rate = |key: &str| {
            let test = tests.iter().find(|t| t[key].as_u64().is_some_and(|n| n > 0));
            test.and_then(|t| t["avg_ts"].as_f64())
        };
        match (rate("n_prompt"), rate("n_gen")) {
            (Some(prefill), Some(decode)) => Ok(Rates { prefill, decode }),
            _ => bail!("llama-bench reported no rates"),
        }
    }
}

//! `xtask exact MODEL`: overflow does not change a bit.
//!
//! A model reads the same tokens resident and alone, then under every row of a covering array of window, chunk, threads
//! and company: first as prefill chunks, then one by one. The logits of each position must have the same bits.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use tailrace_device::kv::{Home, StepPlan};
use tailrace_device::plan::{AttentionBuffers, AttentionShape, Bucket, DeviceSizes, Plan};
use tailrace_device::{
    DeviceError, Executor, HighWater, LoadOptions, Loader, Rates, Submission, Traffic, WeightSource,
};
use tailrace_engine::{Handle, OpenModel};
use tailrace_plan::Limits;
use tailrace_types::{Bytes, TokenId, WeightType};

use crate::drive::Device;
use crate::{drive, model};

/// Check that window, chunk, threads and company change no bit of the logits.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the model, or path of a file.
    model: String,
    /// Tokens of the check; a third of them, but at least 1,000 where there are as many, are single-token steps.
    #[arg(long, value_name = "N", default_value_t = 3000)]
    tokens: usize,
    /// Swap two tail blocks in every step: the check must fail.
    #[arg(long)]
    mutate: bool,
    /// Device that computes.
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
}

/// One run: what must not change anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    /// Cells of the window.
    window: u32,
    /// Rows of a prefill chunk.
    chunk: u32,
    /// Worker threads.
    threads: usize,
    /// Sequences that run beside the one that is checked.
    others: u32,
}

const fn case(window: u32, chunk: u32, threads: usize, others: u32) -> Case {
    Case { window, chunk, threads, others }
}

/// Every value of each factor and every pair of values at least once.
const CASES: [Case; 12] = [
    case(256, 1, 1, 0),
    case(256, 7, 2, 2),
    case(256, 64, 1, 2),
    case(256, 512, 2, 0),
    case(512, 1, 2, 2),
    case(512, 7, 1, 0),
    case(512, 64, 2, 0),
    case(512, 512, 1, 2),
    case(1024, 1, 1, 0),
    case(1024, 7, 2, 0),
    case(1024, 64, 2, 2),
    case(1024, 512, 1, 2),
];

/// The same for a GPU, which has no threads of ours, and two classes of rows: all cases split the tokens alike.
const CUDA_CASES: [Case; 9] = [
    case(256, 128, 1, 0),
    case(256, 512, 1, 2),
    case(256, 2048, 1, 0),
    case(1024, 128, 1, 2),
    case(1024, 512, 1, 0),
    case(1024, 2048, 1, 2),
    case(4096, 128, 1, 0),
    case(4096, 512, 1, 2),
    case(4096, 2048, 1, 0),
];

fn cases(device: Device) -> &'static [Case] {
    match device {
        Device::Cpu => &CASES,
        Device::Cuda => &CUDA_CASES,
    }
}

/// Fewer tokens would leave nothing for the tail.
const TOKENS_MIN: usize = 1000;

/// 128 bits of the hash of a row's logits.
type Hash = [u8; 16];

impl Args {
    /// Runs the check; fails where a bit differs.
    pub fn run(self) -> Result<ExitCode> {
        let path = match Path::new(&self.model) {
            path if path.is_file() => path.to_owned(),
            _ => model::fetch(&self.model)?,
        };
        let runs = cases(self.device).len();
        match failures(&path, self.tokens, self.mutate, self.device)? {
            0 => {
                println!("all {runs} runs bit-identical to resident and alone");
                Ok(ExitCode::SUCCESS)
            }
            failed => {
                println!("FAILED: {failed} of {runs} runs differ");
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

/// Runs every case on the model at `path`, prints a line for each and returns how many differ from resident and alone in a bit
/// of a logit or in a byte of traffic. With `mutate` two tail blocks are swapped in every step.
pub fn failures(path: &Path, tokens: usize, mutate: bool, device: Device) -> Result<usize> {
    let model = drive::open(path)?;
    let check = Check::new(&model, tokens, mutate, device)?;
    let (prompt, forced) = (check.prompt.len(), check.forced.len());
    println!("{}: {} tokens, {forced} of them as single-token steps", path.display(), prompt + forced);
    let (mut failed, mut spilled) = (0, 0);
    for &case in cases(device) {
        let run = check.run(&model, case)?;
        failed += usize::from(!run.good);
        spilled += usize::from(run.read_bytes > 0);
    }
    if spilled == 0 {
        bail!("no run read from the tail: give more --tokens");
    }
    Ok(failed)
}

struct Outcome {
    /// Whether every bit and byte was right.
    good: bool,
    read_bytes: u64,
}

struct Check {
    prompt: Vec<TokenId>,
    forced: Vec<TokenId>,
    /// What the other sequences read.
    other: Vec<TokenId>,
    expected: Vec<Hash>,
    mutate: bool,
    device: Device,
}

impl Check {
    /// Chooses the tokens and computes the hashes resident and alone.
    fn new(model: &OpenModel, tokens: usize, mutate: bool, device: Device) -> Result<Check> {
        if mutate && device == Device::Cuda {
            bail!("--mutate is a check of the check, on the CPU");
        }
        if tokens < TOKENS_MIN {
            bail!("--tokens {tokens}: give at least {TOKENS_MIN}, so that something is in the tail");
        }
        let single = (tokens / 3).max(1000.min(tokens / 2));
        let text = text(model, 2 * tokens)?;
        let (prompt, forced) = (text[..tokens - single].to_vec(), text[tokens - single..tokens].to_vec());
        let mut check = Check { prompt, forced, other: text[tokens..].to_vec(), expected: Vec::new(), mutate, device };
        let limits = Limits::new(tokens as u32);
        let handle = drive::start(model, &limits, &*drive::device(device, 2)?, true)?;
        check.expected = check.hashes(&handle)?;
        handle.stop();
        Ok(check)
    }

    /// The hash of each position's logits.
    fn hashes(&self, handle: &Handle) -> Result<Vec<Hash>> {
        let mut hashes = vec![Hash::default(); self.prompt.len() + self.forced.len()];
        drive::force(handle, &self.prompt, &self.forced, |position, row| {
            let mut hasher = Sha256::new();
            row.iter().for_each(|x| hasher.update(x.to_le_bytes()));
            hashes[position].copy_from_slice(&hasher.finalize()[..16]);
        })?;
        match hashes.iter().position(|h| *h == Hash::default()) {
            Some(position) => bail!("no logits came for position {position}"),
            None => Ok(hashes),
        }
    }

    /// Runs one case and prints a line.
    fn run(&self, model: &OpenModel, case: Case) -> Result<Outcome> {
        let (tokens, sequences) = (self.prompt.len() + self.forced.len(), 1 + case.others);
        let limits = Limits {
            sequences,
            chunk: case.chunk,
            window_cells: Some(case.window),
            ..Limits::new(tokens as u32 * sequences)
        };
        let device = drive::device(self.device, case.threads)?;
        let swapping = Swapping(drive::cpu(case.threads));
        let loader: &dyn Loader = if self.mutate { &swapping } else { &*device };
        let handle = drive::start(model, &limits, loader, true)?;
        // What is read once the last token is in: all blocks but those that frames can hold.
        let cache = &handle.plan().cache;
        let must_read = cache.spills && cache.sequence_blocks > cache.core_frames();
        let others = self.others(&handle, case.others)?;
        let hashes = self.hashes(&handle)?;
        drop(others);
        let snapshot = handle.snapshot()?;
        handle.stop();

        let block_bytes = snapshot.cell_bytes * u64::from(tailrace_types::BLOCK_CELLS);
        let counted = Traffic {
            tail_written_bytes: snapshot.cache.cleaned * block_bytes,
            tail_read_bytes: snapshot.cache.tail_reads * block_bytes,
            tail_fetched_bytes: snapshot.cache.fetched * block_bytes,
        };
        // Over a link blocks are on their way before the step that reads them is known to come.
        let traffic_agrees = match self.device {
            Device::Cpu => snapshot.traffic == counted,
            Device::Cuda => {
                let Traffic { tail_read_bytes, .. } = snapshot.traffic;
                tail_read_bytes >= counted.tail_read_bytes && Traffic { tail_read_bytes, ..counted } == snapshot.traffic
            }
        };
        let differs = hashes.iter().zip(&self.expected).filter(|(a, b)| a != b).count();
        let traffic = snapshot.traffic;
        println!(
            "window {:>4} chunk {:>3} threads {} others {}: {differs} of {tokens} positions differ; tail written {} ({} bytes), read {} ({} bytes){}",
            case.window,
            case.chunk,
            case.threads,
            case.others,
            Bytes(traffic.tail_written_bytes),
            traffic.tail_written_bytes,
            Bytes(traffic.tail_read_bytes),
            traffic.tail_read_bytes,
            if traffic_agrees { String::new() } else { format!("; the state machine counted {counted:?}") },
        );
        // Overlay frames may have fetched what would else have been read.
        let read_bytes = traffic.tail_read_bytes + traffic.tail_fetched_bytes;
        Ok(Outcome { good: differs == 0 && traffic_agrees && (read_bytes > 0 || !must_read), read_bytes })
    }

    /// Requests that run beside the checked one for as long as they are kept.
    fn others(&self, handle: &Handle, count: u32) -> Result<Vec<tailrace_engine::Generation>> {
        let other = |i: u32| {
            let from = i as usize * 137 % (self.other.len() / 2);
            let tokens = &self.other[from..from + self.other.len() / 3];
            let request = tailrace_engine::Request {
                sampling: tailrace_engine::SamplingParams { seed: Some(u64::from(i)), ..Default::default() },
                stop_at_eog: false,
                reuse_prefix: false,
                ..tailrace_engine::Request::new(tokens.to_vec())
            };
            handle.submit(request).context("cannot start another sequence")
        };
        (0..count).map(other).collect()
    }
}

/// At least `tokens` tokens of English-looking text that no two places repeat.
fn text(model: &OpenModel, tokens: usize) -> Result<Vec<TokenId>> {
    const SUBJECTS: [&str; 7] =
        ["The miller", "A clerk", "My sister", "The old dam", "Their engineer", "Nobody", "The river"];
    const VERBS: [&str; 6] = ["measured", "forgot", "painted", "carried away", "described", "sold"];
    const OBJECTS: [&str; 8] =
        ["the gate", "a ledger", "three barrels", "the water", "an iron wheel", "the map", "every lamp", "the bridge"];
    let mut state = 0x9e37_79b9_u64;
    let mut pick = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let mut text = String::new();
    let mut out = Vec::new();
    while out.len() < tokens {
        for _ in 0..200 {
            let (s, v, o) = (SUBJECTS[pick(7)], VERBS[pick(6)], OBJECTS[pick(8)]);
            text += &format!("{s} {v} {o} in {}, for {} coins. ", 1500 + pick(500), pick(10_000));
        }
        out = model.tokenizer.encode(&text, true, false);
    }
    out.truncate(tokens);
    let vocab = model.spec().vocab;
    match out.iter().find(|t| t.0 >= vocab) {
        Some(t) => bail!("the tokenizer gives token {}, the model has {vocab}", t.0),
        None => Ok(out),
    }
}

/// A CPU that reads two blocks of each tail in the other's place: what the check must notice.
struct Swapping(tailrace_cpu::CpuLoader);

impl DeviceSizes for Swapping {
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64 {
        self.0.matrix_bytes(ty, rows, cols)
    }
    fn q8_row_bytes(&self, cols: u64) -> u64 {
        self.0.q8_row_bytes(cols)
    }
    fn attention_buffers(&self, bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers {
        self.0.attention_buffers(bucket, shape)
    }
    fn ring_slots(&self, slot_bytes: u64, weight_bytes: u64) -> u32 {
        self.0.ring_slots(slot_bytes, weight_bytes)
    }
}

impl Loader for Swapping {
    fn load(
        &self,
        plan: Plan,
        weights: WeightSource<'_>,
        options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Executor>, DeviceError> {
        Ok(Box::new(SwappingExecutor(self.0.load(plan, weights, options, progress)?)))
    }
    fn rates(&self) -> Result<Rates, DeviceError> {
        self.0.rates()
    }
    fn name(&self) -> String {
        self.0.name()
    }
}

struct SwappingExecutor(Box<dyn Executor>);

impl Executor for SwappingExecutor {
    fn plan(&self) -> &Plan {
        self.0.plan()
    }
    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let mut cache: StepPlan = submission.cache.clone();
        let tail = |home: &Home| matches!(home, Home::Host(_));
        let first = cache.table.iter().position(tail);
        let second = first.and_then(|first| Some(first + 1 + cache.table[first + 1..].iter().position(tail)?));
        if let (Some(first), Some(second)) = (first, second) {
            cache.table.swap(first, second);
        }
        self.0.submit(&Submission { cache: &cache, ..*submission })
    }
    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        self.0.logits(rows)
    }
    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.0.fill(submission, seed)
    }
    fn high_water(&self) -> Vec<HighWater> {
        self.0.high_water()
    }
    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases cover every pair of values of any two factors.
    #[test]
    fn cases_cover_all_pairs() {
        let factors: [fn(&Case) -> u32; 4] = [|c| c.window, |c| c.chunk, |c| c.threads as u32, |c| c.others.min(1)];
        let values: [&[u32]; 4] = [&[256, 512, 1024], &[1, 7, 64, 512], &[1, 2], &[0, 1]];
        for (i, f) in factors.iter().enumerate() {
            for (j, g) in factors.iter().enumerate().skip(i + 1) {
                for a in values[i] {
                    for b in values[j] {
                        let covered = CASES.iter().any(|c| f(c) == *a && g(c) == *b);
                        assert!(covered, "factor {i} = {a} with factor {j} = {b}");
                    }
                }
            }
        }
    }

    /// A check that cannot fail would prove nothing: it passes on a tiny model, and fails when two tail blocks are swapped.
    #[test]
    fn swapped_tail_blocks_are_noticed() {
        let path = crate::workspace().join("golden/models/llama-tied.gguf");
        assert_eq!(failures(&path, 2000, false, Device::Cpu).unwrap(), 0);
        let failed = failures(&path, 2000, true, Device::Cpu).unwrap();
        assert!(failed >= 6, "only {failed} runs noticed");
    }
}

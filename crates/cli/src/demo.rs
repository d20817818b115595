//! `tailrace demo`: a model that is part of the program answers from the tail of its cache.

mod live;
mod pass;
mod verdict;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use tailrace_engine::OpenModel;
use tailrace_gguf::Gguf;
use tailrace_measure::eval::{ANSWER_ROOM, Encoder, Haystack, Series, Trial};
use tailrace_types::Bytes;

use crate::device::{self, Device, DeviceArgs};
use crate::path::stem;
use crate::session::Session;
use crate::stdout::Stdout;
use crate::{size, stderr};
use pass::{Pass, Stage};
use verdict::Difference;

/// See models/needle: full attention, trained to find codes in up to 131,072 tokens.
const MODEL: &[u8] = include_bytes!("../../../models/needle/full-q8_0.gguf");
const NAME: &str = "needle-full";

/// Depths of what is hidden.
const DEPTHS: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
/// Which document.
const SEED: u64 = 1;
/// Tokens of a vocabulary at most: logits of the whole document are kept.
const VOCAB_MAX: u32 = 1024;
/// Tokens that a CPU reads in seconds.
const CPU_TOKENS: u32 = 16 << 10;

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Another model of tools/needle (GGUF). Default: the one that is part of this program.
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Tokens of document and question; k is 1024. Default: 16k on the CPU, all that the model was trained for on a GPU.
    #[arg(long, value_name = "TOKENS", value_parser = size::tokens)]
    tokens: Option<u32>,
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let (model, name) = match &args.model {
        Some(path) => (Session::open(path)?, stem(path)),
        None => (OpenModel::new(Gguf::from_bytes(MODEL.to_vec())?)?, NAME.to_owned()),
    };
    let vocab = model.spec().vocab;
    ensure!(
        vocab <= VOCAB_MAX,
        "{name} has a vocabulary of {vocab} tokens, a needle model has 257: see tailrace eval needle for other models"
    );
    let mut notes = Vec::new();
    let device = device::open(&args.device, &mut notes)?;
    notes.iter().for_each(stderr::note);
    let series = series(&model, &device, args.tokens)?;
    let stage = Stage::new(&model, &device, &series)?;

    let out = &mut Stdout::lock();
    let on = device.loader.name();
    writeln!(out, "{name} on {on}: {} tokens, {} codes hidden in them.", series.document.len(), DEPTHS.len())?;
    writeln!(
        out,
        "Resident, this takes {} of device memory. The cap is {}, which leaves a window of {} cells.\n",
        Bytes(stage.resident.memory.device_bytes()),
        Bytes(stage.rolling.memory.device_bytes()),
        stage.rolling.window_cells(),
    )?;
    writeln!(out, "Under the cap:")?;
    let rolling = Pass::run(&stage, &stage.rolling, out)?;
    writeln!(out, "\nAll resident:")?;
    let resident = Pass::run(&stage, &stage.resident, out)?;
    let difference = Difference::new(&rolling, &resident);
    writeln!(out, "\n{}{difference}", verdict::table(&rolling, &resident))?;
    verdict::check(&series.trials, &rolling, &resident, &difference)?;
    let count = series.trials.len();
    writeln!(out, "{count} of {count} answers are right, and the same both times.")?;
    Ok(())
}

/// The document and the questions.
fn series(model: &OpenModel, device: &Device, wanted: Option<u32>) -> Result<Series> {
    let most = model.spec().context.saturating_sub(ANSWER_ROOM);
    let is_gpu = device.free_bytes.is_some();
    let length = wanted.unwrap_or(if is_gpu { most } else { most.min(CPU_TOKENS) });
    ensure!(length <= most, "--tokens {length}: the model was trained for {most} and an answer; lower it");
    let encode = |text: &str| model.tokenizer.encode(text, false, false);
    let encoder = Encoder { encode: &encode, bos: model.tokenizer.leading_bos() };
    Ok(Trial::series(encoder, &Haystack::MadeUp, &DEPTHS, length, SEED)?)
}

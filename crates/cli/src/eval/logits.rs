//! `tailrace eval logits`: whether two settings say the same.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;
use tailrace_engine::Handle;
use tailrace_gguf::{Gguf, escape};
use tailrace_measure::chart::{self, Heading, Line, Lines};
use tailrace_measure::eval::{
    Bound, Equivalence, EquivalenceSummary, LogitRows, Near, RowSource, SavedHeader, SavedLogits, compare, save_row,
};
use tailrace_types::{Bytes, KvType, TokenId};

use super::{
    EMPTY_TAIL, LOGIT_ROWS, Model, Output, OutputArgs, check_window, heading, row, settings_of, shorter_chunks, spills,
    tail_read, with_shorter_chunks,
};
use crate::args::{Activations, LimitArgs, ModelArgs, kv_type};
use crate::file::NewFile;
use crate::path::shown;
use crate::picture::{Picture, PictureArgs};
use crate::session::{Progress, Session};
use crate::{size, stderr};

#[derive(Debug, Args)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text, from which sequences are cut.
    #[arg(short, long, value_name = "FILE", required_unless_present = "reference", conflicts_with = "reference")]
    file: Option<PathBuf>,
    /// Tokens of a sequence.
    #[arg(long, value_name = "N", default_value_t = 3072, conflicts_with = "reference", value_parser = clap::value_parser!(u32).range(2..))]
    tokens: u32,
    /// Sequences.
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "reference", value_parser = clap::value_parser!(u32).range(1..))]
    sequences: u32,
    /// Tokens at the end of a sequence that are single steps; the others are prefill chunks. Default: a third.
    #[arg(long, value_name = "N", conflicts_with = "reference")]
    steps: Option<u32>,
    /// A setting to compare with the one of the other flags: KEY=VALUE,... of window, vram-target, ctk, ctv, activations,
    /// device, ubatch. May be repeated. Default: window=256 and window=1024.
    #[arg(long, value_name = "SETTING", conflicts_with_all = ["save", "reference"])]
    against: Vec<String>,
    /// Compare with logits that were saved, instead of computing the reference.
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Save the logits under the setting of the other flags, and compare nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["reference", "bound", "exact", "json", "out", "svg"])]
    save: Option<PathBuf>,
    /// Fail past this: NAME=VALUE, for example mean_tv=1e-4. May be repeated.
    #[arg(long, value_name = "BOUND")]
    bound: Vec<Bound>,
    /// Fail unless every logit is the same to the last bit.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    picture: PictureArgs,
}

/// Tokens that are compared.
struct Text {
    sequences: Vec<Vec<TokenId>>,
    steps: usize,
}

impl Text {
    fn rows(&self, handle: &Handle, sequence: usize) -> Result<LogitRows> {
        let tokens = &self.sequences[sequence];
        let (prompt, steps) = tokens.split_at(tokens.len() - self.steps);
        Ok(LogitRows::start(handle, prompt, steps)?)
    }

    fn longest(&self) -> u32 {
        self.sequences.iter().map(Vec::len).max().unwrap_or(0) as u32
    }
}

pub(crate) fn run(args: &LogitsArgs) -> Result<()> {
    let (mut output, picture) = (Output::new(&args.output)?, Picture::new(&args.picture)?);
    let model = Model::open(&args.model)?;
    match (&args.reference, &args.file) {
        (Some(path), _) => against_saved(args, &model, path, (&mut output, picture)),
        (None, Some(path)) => {
            let text = cut(args, &model, path)?;
            match &args.save {
                Some(to) => save(args, &model, &text, to),
                None => against_settings(args, &model, &text, (&mut output, picture)),
            }
        }
        (None, None) => bail!("name a text with -f FILE"),
    }
}

/// Sequences of the text in a file.
fn cut(args: &LogitsArgs, model: &Model, path: &Path) -> Result<Text> {
    let (tokens, length) = (model.tokens(path)?, args.tokens as usize);
    let steps = args.steps.map_or(length / 3, |steps| steps as usize);
    ensure!(steps < length, "--steps {steps} leaves nothing of {length} tokens for a prompt; lower it");
    let count = (tokens.len() / length).min(args.sequences as usize);
    let have = tokens.len();
    ensure!(count > 0, "the text has {have} tokens, a sequence needs {length}; take a longer text or lower --tokens");
    Ok(Text { sequences: tokens.chunks_exact(length).take(count).map(<[_]>::to_vec).collect(), steps })
}

/// The flags with a context that holds the text.
fn limits_for(args: &LimitArgs, text: &Text) -> Result<LimitArgs> {
    let needed = text.longest();
    let context = args.context.filter(|&cells| cells > 0).unwrap_or(needed);
    ensure!(context >= needed, "-c {context} does not hold sequences of {needed} tokens; raise it or lower --tokens");
    let limits = LimitArgs { context: Some(context), ..args.clone() };
    check_window(&limits)?;
    Ok(limits)
}

fn against_settings(
    args: &LogitsArgs,
    model: &Model,
    text: &Text,
    (output, picture): (&mut Output, Picture),
) -> Result<()> {
    let mut limits = limits_for(&args.model.limits, text)?;
    let default = ["window=256".to_owned(), "window=1024".to_owned()];
    let settings = if args.against.is_empty() { &default[..] } else { &args.against };
    // All are read before anything is computed.
    let mut tests = settings.iter().map(|setting| apply(setting, &limits)).collect::<Result<Vec<_>>>()?;
    // The same chunks for all that name none: they are not what is compared.
    if let Some(chunk) = tests.iter().filter_map(|test| shorter_chunks(model, test, text.longest())).min() {
        for each in tests.iter_mut().chain([&mut limits]) {
            each.ubatch_size.get_or_insert(chunk);
        }
    }
    let reference = Session::evaluate(&model.open, &limits, LOGIT_ROWS)?;
    let (mut broken, mut lines) = (Vec::new(), Vec::new());
    for test in &tests {
        let session = Session::evaluate(&model.open, test, LOGIT_ROWS)?;
        let mut variations = Variations::default();
        let found =
            walk(text, near(&limits, test), Reference::Engine(&reference.handle), &session.handle, &mut variations)?;
        lines.push(variations.line(settings_of(test)));
        broken.extend(report(args, model, &settings_of(&limits), (test, &session), &found, output)?);
        session.handle.stop();
    }
    let above = heading("Logits against this setting", model, &limits, &reference.device);
    picture.draw(|| by_position(above, lines))?;
    verdict(&broken)
}

fn against_saved(
    args: &LogitsArgs,
    model: &Model,
    path: &Path,
    (output, picture): (&mut Output, Picture),
) -> Result<()> {
    let name = shown(path);
    let file = File::open(path).with_context(|| format!("cannot read the saved logits {name}"))?;
    let mut saved = SavedLogits::open(BufReader::with_capacity(1 << 20, file)).with_context(|| name.clone())?;
    let header = saved.header().clone();
    ensure!(
        header.model == fingerprint(&model.open.gguf),
        "{name} is of another model than {}: save the logits of this one",
        model.name
    );
    let (saved_vocab, vocab) = (header.vocab, model.open.spec().vocab);
    ensure!(saved_vocab == vocab, "{name} has logits of {saved_vocab} tokens, the model has {vocab}");
    let text = Text { sequences: header.tokens(), steps: header.steps };
    let limits = with_shorter_chunks(model, limits_for(&args.model.limits, &text)?, text.longest());
    let session = Session::evaluate(&model.open, &limits, LOGIT_ROWS)?;
    // Of what was saved only its name is known.
    let (near, mut variations) = (Near::DEFAULT, Variations::default());
    let found = walk(&text, near, Reference::Saved(&mut saved), &session.handle, &mut variations)?;
    let reference = format!("{name} ({})", escape(header.settings.as_bytes()));
    let broken = report(args, model, &reference, (&limits, &session), &found, output)?;
    let above = heading("Logits against saved ones", model, &limits, &session.device);
    picture.draw(|| by_position(above, vec![variations.line(reference)]))?;
    verdict(&broken)
}

/// Total variation by position, as the mean of some positions of all sequences.
#[derive(Default)]
struct Variations(Vec<(f64, f64)>);

impl Variations {
    /// Positions of a point.
    const POSITIONS: usize = 32;

    fn add(&mut self, position: u32, tv: f32) {
        let point = position as usize / Self::POSITIONS;
        if self.0.len() <= point {
            self.0.resize(point + 1, (0.0, 0.0));
        }
        self.0[point].0 += f64::from(tv);
        self.0[point].1 += 1.0;
    }

    fn line(&self, label: String) -> Line {
        let x = |point: usize| ((point * Self::POSITIONS) + Self::POSITIONS / 2) as f64;
        Line { label, points: self.0.iter().enumerate().map(|(i, (sum, count))| (x(i), sum / count)).collect() }
    }
}

fn by_position(heading: Heading, lines: Vec<Line>) -> String {
    let y_label = "mean total variation".to_owned();
    chart::lines(&Lines { heading, x_label: "position, tokens".to_owned(), y_label, lines })
}

/// What a test is compared with.
enum Reference<'a> {
    Engine(&'a Handle),
    Saved(&'a mut dyn RowSource),
}

/// Compares every sequence.
fn walk(
    text: &Text,
    near: Near,
    mut reference: Reference<'_>,
    test: &Handle,
    variations: &mut Variations,
) -> Result<EquivalenceSummary> {
    let mut progress = Progress::new();
    let mut equivalence = Equivalence::new(near);
    for sequence in 0..text.sequences.len() {
        let mut test = text.rows(test, sequence)?;
        let mut each = |position, tv| {
            variations.add(position, tv);
            show(&mut progress, text, sequence, position);
        };
        match &mut reference {
            Reference::Engine(handle) => {
                compare(&mut equivalence, &mut text.rows(handle, sequence)?, &mut test, &mut each)?;
            }
            Reference::Saved(saved) => compare(&mut equivalence, *saved, &mut test, &mut each)?,
        }
    }
    Ok(equivalence.summary())
}

fn show(progress: &mut Progress, text: &Text, sequence: usize, position: u32) {
    let of_sequence = (position + 1) as f32 / text.sequences[sequence].len() as f32;
    progress.show("comparing", (sequence as f32 + of_sequence) / text.sequences.len() as f32);
}

fn save(args: &LogitsArgs, model: &Model, text: &Text, path: &Path) -> Result<()> {
    let limits = with_shorter_chunks(model, limits_for(&args.model.limits, text)?, text.longest());
    let mut file = NewFile::create(path)?;
    let session = Session::evaluate(&model.open, &limits, LOGIT_ROWS)?;
    let (of, vocab) = (fingerprint(&model.open.gguf), session.handle.vocab());
    let mut progress = Progress::new();
    SavedHeader::new(of, settings_of(&limits), vocab, text.steps, &text.sequences).write(&mut file)?;
    for sequence in 0..text.sequences.len() {
        let mut rows = text.rows(&session.handle, sequence)?;
        while let Some((position, row)) = rows.next_row()? {
            save_row(&mut file, row)?;
            show(&mut progress, text, sequence, position);
        }
    }
    file.finish()
}

/// How close two likeliest tokens must be to count as a tie.
fn near(a: &LimitArgs, b: &LimitArgs) -> Near {
    let is_f32 = |limits: &LimitArgs| {
        limits.activations == Activations::F32
            && [limits.cache_type_k, limits.cache_type_v].iter().all(|&ty| ty == KvType::F32)
    };
    if is_f32(a) && is_f32(b) { Near::F32 } else { Near::DEFAULT }
}

/// `limits` with a setting over them.
fn apply(setting: &str, limits: &LimitArgs) -> Result<LimitArgs> {
    let mut limits = limits.clone();
    ensure!(!setting.trim().is_empty(), "--against is empty; write KEY=VALUE, for example window=256");
    for pair in setting.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| anyhow!("'{pair}' is no setting; write KEY=VALUE, for example window=256"))?;
        let bad = |why: String| anyhow!("--against {key}={value}: {why}");
        let number = || value.parse::<u32>().map_err(|_| bad("a whole number is needed".to_owned()));
        match key {
            "window" => limits.kv_window = Some(number()?),
            "ubatch" => limits.ubatch_size = Some(number()?),
            "vram-target" => limits.vram_target = Some(size::parse(value).map_err(|why| bad(why.to_string()))?),
            "ctk" => limits.cache_type_k = kv_type(value).map_err(bad)?,
            "ctv" => limits.cache_type_v = kv_type(value).map_err(bad)?,
            "activations" => limits.activations = Activations::from_str(value, true).map_err(bad)?,
            "device" => limits.device.device = value.parse().map_err(bad)?,
            _ => bail!("unknown setting '{key}'; known: window, vram-target, ctk, ctv, activations, device, ubatch"),
        }
    }
    check_window(&limits)?;
    Ok(limits)
}

/// Writes a result; what it breaks.
fn report(
    args: &LogitsArgs,
    model: &Model,
    reference: &str,
    (test, session): (&LimitArgs, &Session),
    found: &EquivalenceSummary,
    output: &mut Output,
) -> Result<Vec<String>> {
    let tail_bytes = tail_read(session)?;
    let mut row = row("logits", model, (test, session), tail_bytes, found)?;
    row.insert("reference".to_owned(), json!(reference));
    let setting = settings_of(test);
    let EquivalenceSummary { positions, identical, .. } = found;
    let from_tail = Bytes(tail_bytes);
    let is_vacuous = spills(test) && tail_bytes == 0;
    let decides = args.exact || !args.bound.is_empty();
    if is_vacuous && !decides {
        stderr::note(format_args!("warning: {EMPTY_TAIL}"));
    }
    let table = format!(
        "{setting}\n  against {reference}: {identical} of {positions} positions bit-identical, {from_tail} read from the tail\n  \
         real_frac {:.6}, strict_disagree_frac {:.6}, frac_full_agree {:.6}\n  \
         mean_tv {:.3e}, p99_tv {:.3e}, max_tv {:.3e}, mean_kld {:.3e}, max_log_prob_difference {:.3e}\n",
        found.real_frac,
        found.strict_disagree_frac,
        found.frac_full_agree,
        found.mean_tv,
        found.p99_tv,
        found.max_tv,
        found.mean_kld,
        found.max_log_prob_difference
    );
    output.result(&table, row)?;
    let mut broken: Vec<_> = args.bound.iter().filter_map(|bound| bound.broken_by(found)).collect();
    if is_vacuous && decides {
        broken.push(EMPTY_TAIL.to_owned());
    }
    if args.exact && identical != positions {
        broken.push(format!("{} of {positions} positions differ", positions - identical));
    }
    Ok(broken.into_iter().map(|what| format!("{setting}: {what}")).collect())
}

/// Fails where anything is broken.
fn verdict(broken: &[String]) -> Result<()> {
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    Ok(())
}

/// What tells a model's file from others: its metadata, and of its tensors names, types, sizes and beginnings.
fn fingerprint(gguf: &Gguf) -> String {
    const BEGINNING: usize = 4096;
    // FNV-1a, of 64 bits.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add =
        |bytes: &[u8]| bytes.iter().for_each(|&b| hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    for (key, value) in gguf.metadata().iter() {
        add(key.as_bytes());
        add(format!("{value}").as_bytes());
    }
    for (index, tensor) in gguf.tensors().iter().enumerate() {
        add(tensor.name.as_bytes());
        add(tensor.ty.name().as_bytes());
        add(&tensor.bytes.to_le_bytes());
        let data = gguf.tensor_data(index);
        add(&data[..data.len().min(BEGINNING)]);
    }
    format!("{hash:016x}")
}

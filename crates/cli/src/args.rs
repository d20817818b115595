//! The command line: collected first, then raised once to limits.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use tailrace_plan::ActivationType;
use tailrace_types::KvType;

use crate::bench::BenchArgs;
use crate::demo::DemoArgs;
use crate::device::DeviceArgs;
use crate::eval::EvalArgs;
use crate::size;

/// Runs GGUF models whose KV cache does not fit on the device.
#[derive(Debug, Parser)]
#[command(name = "tailrace", version, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continues a prompt, fed as it is: no template, no echo.
    Run(RunArgs),
    /// Talks with a model, turn by turn, through its own chat template.
    Chat(ChatArgs),
    /// Asks a model that is part of this program about a long document, nearly all of whose cache is in the tail.
    Demo(DemoArgs),
    /// Prints what a run would occupy, without loading weights.
    Plan(PlanArgs),
    /// Prints the metadata and tensors of a model file.
    Inspect(InspectArgs),
    /// Measures steps: one line of JSON for each.
    Bench(BenchArgs),
    /// Evaluates: perplexity, divergence, and whether a setting changes any answer.
    Eval(EvalArgs),
}

/// Flags that a user of llama.cpp knows as one dash and several letters, and the long names that clap reads.
const SHORT_NAMES: [(&str, &str); 5] = [
    ("-ub", "--ubatch-size"),
    ("-np", "--parallel"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system"),
];

/// More of those, which have no counterpart here. Read as one letter and its value they would be misunderstood.
const FOREIGN_NAMES: [&str; 24] = [
    "-ngl", "-fa", "-tb", "-mg", "-sm", "-ts", "-cnv", "-no-cnv", "-st", "-sysf", "-bf", "-nkvo", "-ot", "-md", "-cb",
    "-mu", "-mv", "-cmoe", "-ncmoe", "-fit", "-ptc", "-sp", "-nr", "-mli",
];

/// Flags whose value is any text, also one that looks like a flag.
const TEXT_FLAGS: [&str; 8] =
    ["-p", "--prompt", "-r", "--reverse-prompt", "-sys", "--system", "--system-prompt", "--logit-bias"];

/// The arguments with multi-letter short flags (`-ub 256`, `-ub=256`) replaced by their long names.
///
/// # Errors
///
/// A flag of llama.cpp that is not known here.
pub(crate) fn with_long_names(args: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, String> {
    let mut is_text = false;
    let long = |arg: OsString| {
        let was_text = std::mem::replace(&mut is_text, arg.to_str().is_some_and(|arg| TEXT_FLAGS.contains(&arg)));
        let Some(text) = arg.to_str().filter(|_| !was_text) else {
            is_text &= !was_text;
            return Ok(arg);
        };
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        if FOREIGN_NAMES.contains(&name) {
            return Err(format!(
                "{name} is a flag of llama.cpp without a counterpart here; leave it out, or see --help"
            ));
        }
        Ok(match (SHORT_NAMES.iter().find(|(short, _)| *short == name), value) {
            (Some((_, long)), None) => (*long).into(),
            (Some((_, long)), Some(value)) => format!("{long}={value}").into(),
            (None, _) => arg,
        })
    };
    args.map(long).collect()
}

/// A usage error in one line: without the synopsis, with its tips.
pub(crate) fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let parts = text.split("\n\n").map(str::trim).filter(|part| !part.is_empty() && !part.starts_with("Usage:"));
    let parts = parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let line = parts.collect::<Vec<_>>().join("; ").replace("For more information, try '--help'.", "try --help");
    line.strip_prefix("error: ").map(str::to_owned).unwrap_or(line)
}

/// Which model, and how much of everything it may use.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Model file (GGUF); of a split model the first part.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// How much of everything a model may use.
#[derive(Clone, Debug, Args)]
pub(crate) struct LimitArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Context in tokens, all sequences together. 0, the default: what the model was trained for, or what the host can hold.
    #[arg(short, long = "ctx-size", value_name = "TOKENS")]
    pub(crate) context: Option<u32>,
    /// Cap on device memory: bare numbers are MiB; K, M, G. Default: what is free on a GPU; none on the CPU.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) vram_target: Option<u64>,
    /// Cells of older, full blocks that stay on the device. Default: as many as fit under the cap.
    #[arg(long, value_name = "CELLS")]
    pub(crate) kv_window: Option<u32>,
    /// Host memory that the tail may take. Default: half of what is available.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) host_mem: Option<u64>,
    /// Sequences that can be live at once; -c is shared between them [-np].
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) parallel: u32,
    /// Tokens of a prefill chunk [-ub]. Default: 512 on the CPU, 2048 on a GPU.
    #[arg(long, value_name = "N")]
    pub(crate) ubatch_size: Option<u32>,
    /// Storage type of keys [-ctk].
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_type)]
    pub(crate) cache_type_k: KvType,
    /// Storage type of values [-ctv].
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_type)]
    pub(crate) cache_type_v: KvType,
    /// Type of matrix inputs: 8-bit blocks for quantised weights (auto), or f32 everywhere.
    #[arg(long, value_enum, default_value_t = Activations::Auto)]
    pub(crate) activations: Activations,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Activations {
    Auto,
    F32,
}

impl From<Activations> for ActivationType {
    fn from(value: Activations) -> Self {
        match value {
            Activations::Auto => ActivationType::Auto,
            Activations::F32 => ActivationType::F32,
        }
    }
}

pub(crate) fn kv_type(text: &str) -> Result<KvType, String> {
    let known = || KvType::ALL.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ");
    KvType::from_name(text).ok_or_else(|| format!("unknown type '{text}'; known: {}", known()))
}

/// How tokens are chosen. Defaults are those of llama.cpp.
#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Temperature; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8, alias = "temperature", allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Keep the K likeliest tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    pub(crate) top_k: i32,
    /// Keep the likeliest tokens whose probabilities sum to P.
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Keep tokens at least P times as likely as the likeliest.
    #[arg(long, value_name = "P", default_value_t = 0.05, allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Divide the logits of recent tokens by this; 1 is off.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Recent tokens that the penalties look at; -1 is the whole context.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub(crate) repeat_last_n: i32,
    /// Subtract this from the logits of recent tokens.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtract this from the logits of recent tokens for each time they occur.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Seed of the random choice; -1 takes a new one each time.
    #[arg(short, long, value_name = "SEED", default_value_t = -1, allow_negative_numbers = true)]
    pub(crate) seed: i64,
    /// Add to a token's logit: ID(+|-)VALUE, for example 15043+1.5. May be repeated.
    #[arg(long, value_name = "BIAS", allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<String>,
    /// Stop before this text. May be repeated.
    #[arg(short = 'r', long = "reverse-prompt", value_name = "TEXT", allow_hyphen_values = true, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// The prompt.
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// File that holds the prompt; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Tokens to generate at most; -1 until the model ends or the context is full.
    #[arg(short = 'n', long = "predict", alias = "n-predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub(crate) predict: i64,
    /// Go on past the model's end-of-text tokens.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Write the summary as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// Print the memory table before the run.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// System message [-sys].
    #[arg(long, value_name = "TEXT", alias = "system-prompt", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Tokens of an answer at most; -1 until the model ends it.
    #[arg(short = 'n', long = "predict", alias = "n-predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub(crate) predict: i64,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Model file (GGUF).
    #[arg(short, long, value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// List every tensor.
    #[arg(long)]
    pub(crate) tensors: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        let args = ["tailrace"].iter().chain(args).map(|s| (*s).into());
        Cli::try_parse_from(with_long_names(args).expect("flags that are known here"))
    }

    #[test]
    fn flags_of_llama_cpp_that_are_foreign() {
        let names = |args: &[&str]| with_long_names(args.iter().map(Into::into));
        for args in [&["-ngl", "99"][..], &["-fa=on"], &["-p", "hi", "-no-cnv"]] {
            let error = names(args).unwrap_err();
            assert!(error.contains("flag of llama.cpp"), "{error}");
        }
        // Text is not looked at, and its value ends there.
        assert_eq!(names(&["-p", "-ub", "-ub", "3"]).unwrap(), ["-p", "-ub", "--ubatch-size", "3"]);
        assert_eq!(names(&["-p", "-p", "-ub", "3"]).unwrap(), ["-p", "-p", "--ubatch-size", "3"]);
        assert_eq!(names(&["-sys", "-fa"]).unwrap(), ["--system", "-fa"]);
    }

    #[test]
    fn text_may_begin_with_a_dash() {
        let cli = parse(&["run", "-m", "x", "-p", "- item", "-r", "--"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("run") };
        assert_eq!((run.prompt.as_deref(), &run.sampling.stop[..]), (Some("- item"), &["--".to_owned()][..]));
    }

    #[test]
    fn usage_errors_are_one_line() {
        for (args, says) in [
            (&["run", "-p", "a"][..], "--model <FILE>"),
            (&["run", "-m", "x", "--topp", "1"], "--top-p"),
            (&["run", "-m", "x", "-r", ""], "--reverse-prompt"),
            (&["plan", "-m", "x", "--activations", "f99"], "possible values: auto, f32"),
        ] {
            let line = one_line(&parse(args).unwrap_err());
            assert!(line.contains(says) && !line.contains('\n') && !line.contains("Usage"), "{line}");
        }
    }

    #[test]
    fn flags_of_llama_cpp() {
        let cli =
            parse(&["plan", "-m", "x.gguf", "-ub", "64", "-np=2", "-ctk", "f32", "-c", "100", "--vram-target", "1G"]);
        let Command::Plan(plan) = cli.unwrap().command else { panic!("plan") };
        let limits = plan.model.limits;
        assert_eq!((limits.ubatch_size, limits.parallel), (Some(64), 2));
        assert_eq!((limits.cache_type_k, limits.cache_type_v), (KvType::F32, KvType::F16));
        assert_eq!((limits.context, limits.vram_target), (Some(100), Some(1 << 30)));
    }

    #[test]
    fn negative_values() {
        let cli = parse(&["run", "-m", "x", "-p", "hi", "-n", "-1", "-s", "-1", "--temp", "-1"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("run") };
        assert_eq!((run.predict, run.sampling.seed, run.sampling.temp), (-1, -1, -1.0));
    }

    #[test]
    fn refusals_name_the_flag() {
        for (args, says) in [
            (&["plan", "-m", "x", "-ctk", "q3"][..], "known: f16, bf16, f32"),
            (&["plan", "-m", "x", "--vram-target", "lots"], "is no size"),
            (&["plan", "-m", "x", "-c", "-5"], "-5"),
            (&["run", "-m", "x", "-p", "a", "-f", "b"], "cannot be used with"),
        ] {
            let text = parse(args).unwrap_err().to_string();
            assert!(text.contains(says), "{text}");
        }
    }
}

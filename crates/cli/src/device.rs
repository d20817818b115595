//! Which device computes.

use std::str::FromStr;

use anyhow::{Result, bail};
use clap::Args;
use tailrace_cpu::{CpuLoader, Isa};
use tailrace_device::Loader;
use tailrace_plan::Limits;

use crate::cuda::{self, Gpu, NoGpu};

/// Which device, and its workers.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Device that computes: auto (a GPU if one is usable), cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: Choice,
    /// Worker threads of the CPU. Default: one for each core.
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// The device that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The first GPU where there is one, else the CPU.
    Auto,
    Cpu,
    /// The GPU with that number.
    Cuda(u32),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("'{text}' is no number of a GPU; write cuda:0"));
        match text.split_once(':') {
            None if text == "auto" => Ok(Choice::Auto),
            None if text == "cpu" => Ok(Choice::Cpu),
            None if text == "cuda" => Ok(Choice::Cuda(0)),
            Some(("cuda", ordinal)) => number(ordinal).map(Choice::Cuda),
            _ => Err(format!("unknown device '{text}'; known: auto, cpu, cuda, cuda:N")),
        }
    }
}

/// A device that is open.
pub(crate) struct Device {
    pub(crate) loader: Box<dyn Loader>,
    /// Tokens of a prefill chunk where the user names none.
    pub(crate) chunk: u32,
    /// Device memory that could be had now, in bytes; `None` where the device's memory is the host's.
    pub(crate) free_bytes: Option<u64>,
}

/// Opens the device that `args` asks for.
///
/// # Errors
///
/// A GPU was asked for and there is none, or one is there and fails.
pub(crate) fn open(args: &DeviceArgs, notes: &mut Vec<String>) -> Result<Device> {
    let opened = match args.device {
        Choice::Cpu => return cpu(args, notes),
        Choice::Auto => cuda::open(0),
        Choice::Cuda(ordinal) => cuda::open(ordinal),
    };
    match (opened, args.device) {
        (Ok(Gpu { loader, free_bytes }), _) => {
            notes.push(format!("using {}", loader.name()));
            Ok(Device { loader, chunk: Limits::CHUNK_GPU, free_bytes: Some(free_bytes) })
        }
        (Err(NoGpu { reason, present: false }), Choice::Auto) => {
            notes.push(format!("using the CPU: {reason}"));
            cpu(args, notes)
        }
        (Err(NoGpu { reason, present: true }), Choice::Auto) => bail!("{reason}; --device cpu does without the GPU"),
        (Err(NoGpu { reason, .. }), _) => bail!("no GPU can be used: {reason}"),
    }
}

fn cpu(args: &DeviceArgs, notes: &mut Vec<String>) -> Result<Device> {
    let loader = Box::new(CpuLoader::new(threads(args, notes)?, Isa::detect()));
    Ok(Device { loader, chunk: Limits::CHUNK_CPU, free_bytes: None })
}

fn threads(args: &DeviceArgs, notes: &mut Vec<String>) -> Result<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match args.threads {
        Some(0) => bail!("-t 0: at least one thread is needed; this machine has {cores} cores"),
        Some(n) if n > cores => {
            notes.push(format!("warning: -t {n} is more than the {cores} cores here; using {cores}"));
            Ok(cores)
        }
        Some(n) => Ok(n),
        None => Ok(cores),
    }
}

#[cfg(test)]
mod tests {
    use super::Choice;

    #[test]
    fn devices() {
        let cases =
            [("auto", Choice::Auto), ("cpu", Choice::Cpu), ("cuda", Choice::Cuda(0)), ("cuda:3", Choice::Cuda(3))];
        for (text, choice) in cases {
            assert_eq!(text.parse(), Ok(choice));
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cpu:0", "cuda:-1"] {
            assert!(text.parse::<Choice>().is_err(), "{text}");
        }
    }
}

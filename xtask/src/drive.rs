//! Driving the engine as any client does: a model, limits, teacher-forced tokens, and the logits of each position.

use std::path::{Path, PathBuf};

use anyhow::Result;
use tailrace_cpu::{CpuLoader, Isa};
use tailrace_cuda::CudaLoader;
use tailrace_device::{LoadOptions, Loader};
use tailrace_engine::{Handle, OpenModel};
use tailrace_measure::eval::{LogitRows, RowSource};
use tailrace_plan::Limits;
use tailrace_types::TokenId;

use crate::model;

/// Opens the model at `path`; its warnings go to stderr.
pub fn open(path: &Path) -> Result<OpenModel> {
    let model = tailrace_engine::open(path)?;
    for warning in &model.warnings {
        eprintln!("{}: {warning}", path.display());
    }
    Ok(model)
}

/// A CPU of `threads` workers.
pub fn cpu(threads: usize) -> CpuLoader {
    CpuLoader::new(threads, Isa::detect())
}

/// Where a check runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The processor.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
}

/// Which models of a file of records are checked, and where they run.
#[derive(clap::Args)]
pub struct Checked {
    /// Only these models.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub models: Vec<String>,
    /// Worker threads.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Device that computes.
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    pub device: Device,
    /// Folder that holds the models, as NAME.gguf. Default: the cache, which is filled.
    #[arg(long, value_name = "DIR")]
    pub model_dir: Option<PathBuf>,
}

impl Checked {
    /// Whether `model` is to be checked.
    pub fn wants(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|wanted| wanted == model)
    }

    /// The file of `model`, fetched if it is not there.
    pub fn path(&self, model: &str) -> Result<PathBuf> {
        match &self.model_dir {
            Some(folder) => Ok(folder.join(format!("{model}.gguf"))),
            None => model::fetch(model),
        }
    }
}

/// A device with `threads` workers, where it has such.
pub fn device(device: Device, threads: usize) -> Result<Box<dyn Loader>> {
    Ok(match device {
        Device::Cpu => Box::new(cpu(threads)),
        Device::Cuda => Box::new(CudaLoader::open(0)?),
    })
}

/// Loads `model` under `limits`; dropped frames and consumed ring slots hold NaN if `poison`.
pub fn start(model: &OpenModel, limits: &Limits, loader: &dyn Loader, poison: bool) -> Result<Handle> {
    Ok(model.start(limits, loader, LoadOptions { poison }, &mut |_| {})?)
}

/// Prefills `prompt`, then feeds `forced` one by one, and calls `each` with every position and its row of logits. Nothing is
/// sampled and nothing reused.
pub fn force(
    handle: &Handle,
    prompt: &[TokenId],
    forced: &[TokenId],
    mut each: impl FnMut(usize, &[f32]),
) -> Result<()> {
    let mut rows = LogitRows::start(handle, prompt, forced)?;
    while let Some((position, row)) = rows.next_row()? {
        each(position as usize, row);
    }
    Ok(())
}

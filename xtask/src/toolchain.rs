//! `xtask cuda-toolchain`: nvcc from Python wheels, for machines without a CUDA toolkit.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// What makes a compiler: nvcc, its front end's and PTX's parts, and the headers that kernels include. Newer releases write PTX
/// that drivers of the 580 series cannot load.
const PACKAGES: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// Install nvcc into the cache, where the build finds it, unless this machine has one.
#[derive(clap::Args)]
pub struct Args {}

impl Args {
    /// Installs what is missing.
    pub fn run(self) -> Result<ExitCode> {
        let folder = crate::workspace().join(".cache/cuda");
        let installed = folder.join("nvidia/cu13/bin/nvcc");
        if let Some(nvcc) = of_the_machine().or_else(|| installed.is_file().then(|| installed.clone())) {
            println!("nvcc: {}", nvcc.display());
            return Ok(ExitCode::SUCCESS);
        }
        install(&folder)?;
        if !installed.is_file() {
            bail!("pip ended well, but there is no {}", installed.display());
        }
        println!("nvcc: {} (installed)", installed.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// The compiler that the build of `tailrace-cuda` finds without the cache.
fn of_the_machine() -> Option<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    let homes = homes.map(|home| Path::new(&home).join("bin/nvcc"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path: Vec<_> = std::env::split_paths(&path).map(|folder| folder.join("nvcc")).collect();
    let named = std::env::var_os("TAILRACE_NVCC").map(PathBuf::from);
    let usual = PathBuf::from("/usr/local/cuda/bin/nvcc");
    named.into_iter().chain(homes).chain(on_path).chain([usual]).find(|path| path.is_file())
}

fn install(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-deps",
        "--upgrade",
    ]);
    pip.arg("--target").arg(folder).args(PACKAGES);
    let output = pip.output().context("cannot run python3: install Python 3 with pip")?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| line.starts_with("ERROR") || line.contains("No module named pip"));
    bail!("pip could not install nvcc: {}", last.or(text.lines().last()).unwrap_or("no reason given"))
}

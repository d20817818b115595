//! `xtask cuda-toolchain`: nvcc in the cache folder, for machines without a CUDA toolkit.
//!
//! The compiler comes out of Python packages of pinned versions. It is a CUDA 13.0: what a newer one writes, drivers of the
//! oldest kind that 13 runs on cannot load.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use crate::model::pip;

/// Packages that add up to nvcc with its headers; others that they name are not needed.
const PACKAGES: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];

/// The compiler, in the folder that it is installed to. The build of `tailrace-cuda` looks for it in `.cache/cuda`.
const NVCC: &str = "nvidia/cu13/bin/nvcc";

/// What looks for nvcc.
const BUILD_SCRIPT: &str = "crates/cuda/build.rs";

/// Install the compiler of GPU kernels into the cache folder, unless there is one.
#[derive(clap::Args)]
pub struct Args {}

impl Args {
    /// Prints what compiles the kernels, and where it was installed.
    pub fn run(self) -> Result<ExitCode> {
        match there(|name| env::var_os(name).map(PathBuf::from), Path::new(SYSTEM)) {
            Some(nvcc) => println!("{} compiles the kernels; nothing was installed", nvcc.display()),
            None => {
                let cache = crate::workspace().join(".cache");
                let folder = cache.join("cuda");
                match install(&cache, |to| pip::install(&PACKAGES, to))? {
                    true => {
                        rebuild(&crate::workspace().join(BUILD_SCRIPT))?;
                        println!("installed nvcc into {}", folder.display());
                    }
                    false => println!("nvcc is already in {}", folder.display()),
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where a toolkit's installer puts nvcc.
const SYSTEM: &str = "/usr/local/cuda/bin/nvcc";

/// The nvcc that the build would take before an installed one, as `build.rs` of `tailrace-cuda` looks for it.
fn there(variable: impl Fn(&str) -> Option<PathBuf>, system: &Path) -> Option<PathBuf> {
    let named = variable("TAILRACE_NVCC");
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| Some(variable(name)?.join("bin/nvcc")));
    let path = variable("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join("nvcc")).collect::<Vec<_>>();
    let mut places = named.into_iter().chain(homes).chain(on_path).chain([system.to_owned()]);
    places.find(|path| path.is_file())
}

/// Fills `cuda` in the cache folder with `install`; false where it is already there.
fn install(cache: &Path, install: impl FnOnce(&Path) -> Result<()>) -> Result<bool> {
    let folder = cache.join("cuda");
    if folder.join(NVCC).is_file() {
        return Ok(false);
    }
    fs::create_dir_all(cache).with_context(|| format!("cannot make the folder {}", cache.display()))?;
    // The folder gets its name when it is whole, so an interrupted installation is not taken for one.
    let partial = tempfile::tempdir_in(cache).context("cannot make a folder in the cache")?;
    let made = partial.path().join("cuda");
    install(&made)?;
    if !made.join(NVCC).is_file() {
        bail!("the packages hold no {NVCC}; give the build another nvcc by TAILRACE_NVCC");
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove what is left in {}", folder.display()))?;
    }
    fs::rename(&made, &folder).with_context(|| format!("cannot write {}", folder.display()))?;
    Ok(true)
}

/// Makes the build look for nvcc again: this task was itself built, maybe without kernels, and cargo notices no new file
/// outside the package.
fn rebuild(script: &Path) -> Result<()> {
    let touched = fs::File::options().write(true).open(script).and_then(|file| file.set_modified(SystemTime::now()));
    touched.with_context(|| format!("cannot touch {}; run cargo clean -p tailrace-cuda", script.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) -> Result<()> {
        fs::create_dir_all(path.parent().unwrap())?;
        Ok(fs::write(path, "")?)
    }

    #[test]
    fn what_is_installed_is_not_installed_again() {
        let cache = tempfile::tempdir().unwrap();
        // What an earlier version left.
        touch(&cache.path().join("cuda/old")).unwrap();
        assert!(install(cache.path(), |to| touch(&to.join(NVCC))).unwrap());
        assert!(cache.path().join("cuda").join(NVCC).is_file() && !cache.path().join("cuda/old").exists());
        assert!(!install(cache.path(), |_| panic!("it is there")).unwrap());
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn half_an_installation_is_none() {
        let cache = tempfile::tempdir().unwrap();
        let failed = install(cache.path(), |to| {
            touch(&to.join(NVCC))?;
            bail!("no space left")
        });
        assert_eq!(failed.unwrap_err().to_string(), "no space left");
        let empty = install(cache.path(), |to| touch(&to.join("nvidia/cu13/bin/other")));
        assert!(empty.unwrap_err().to_string().contains("hold no nvidia/cu13/bin/nvcc"));
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_nvcc_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["named", "home/bin/nvcc", "path/nvcc", "system"] {
            touch(&at(path)).unwrap();
        }
        let all = [("TAILRACE_NVCC", "named"), ("CUDA_PATH", "home"), ("PATH", "path")];
        for (skipped, expected) in ["named", "home/bin/nvcc", "path/nvcc", "system"].into_iter().enumerate() {
            let variable = |name: &str| Some(at(all[skipped..].iter().find(|entry| entry.0 == name)?.1));
            assert_eq!(there(variable, &at("system")), Some(at(expected)));
        }
        assert_eq!(there(|_| None, &at("nowhere")), None);
        // A variable that names nothing is passed over.
        assert_eq!(there(|name| (name == "TAILRACE_NVCC").then(|| at("nowhere")), &at("system")), Some(at("system")));
    }
}

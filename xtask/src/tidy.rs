//! `xtask tidy`: the rules of the code base that a compiler does not know.
//!
//! Every rule is a function from a [`Tree`] to violations, so that a test can hand it a tree that breaks the rule.

mod docs;
mod edges;
mod files;
mod rust;
mod tree;
mod words;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

pub use tree::{File, Tree};

/// Check the rules that the compiler does not know.
#[derive(clap::Args)]
pub struct Args {}

impl Args {
    /// Prints one line for each violation; fails where there is one.
    pub fn run(self) -> Result<ExitCode> {
        let violations = check(crate::workspace())?;
        for violation in &violations {
            println!("{violation}");
        }
        match violations.len() {
            0 => Ok(ExitCode::SUCCESS),
            n => anyhow::bail!("{n} violations"),
        }
    }
}

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Path from the root of the workspace, with `/`.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl Violation {
    fn new(file: &File, line: usize, what: impl Into<String>) -> Self {
        Violation { file: file.path.clone(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// All violations in the files that git tracks under `root`, by file and line.
pub fn check(root: &Path) -> Result<Vec<Violation>> {
    let tree = Tree::read(root)?;
    let rules: [fn(&Tree) -> Vec<Violation>; 4] = [edges::check, rust::check, files::check, docs::check];
    let mut violations: Vec<Violation> = rules.iter().flat_map(|rule| rule(&tree)).collect();
    violations.extend(words::check(&tree));
    violations.sort();
    Ok(violations)
}

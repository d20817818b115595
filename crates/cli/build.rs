//! Says which commit is built, for the rows of benchmarks: `TAILRACE_COMMIT` if that is set, else what git says, else nothing.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=TAILRACE_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    // The log of HEAD grows with every commit, checkout and rebase.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| std::path::Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    let commit = std::env::var("TAILRACE_COMMIT").ok().or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    println!("cargo:rustc-env=TAILRACE_COMMIT={}", commit.unwrap_or_default());
}

/// One line from git; a copy of the sources has none.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

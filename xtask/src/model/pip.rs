//! Downloading wheels with pip, which knows the index, its mirrors and its proxies.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};

/// What to install where pip cannot run.
const INSTALL: &str = "install Python 3 with pip (Debian: apt-get install python3 python3-pip)";

/// Downloads the wheel of `package` at `version` into `dir`; runs no code of the package.
pub(super) fn download(package: &str, version: &str, dir: &Path) -> Result<()> {
    let requirement = format!("{package}=={version}");
    run(&["download", "--quiet", "-d"], dir, &[&requirement])
}

/// Unpacks the wheels of `requirements` into `dir`, without what they depend on; runs no code of theirs.
pub(crate) fn install(requirements: &[&str], dir: &Path) -> Result<()> {
    run(&["install", "--quiet", "--target"], dir, requirements)
}

fn run(command: &[&str], dir: &Path, requirements: &[&str]) -> Result<()> {
    let output = Command::new("python3")
        .args(["-m", "pip", "--disable-pip-version-check", "--no-input"])
        .args(command)
        .arg(dir)
        .args(["--no-deps", "--only-binary", ":all:"])
        .args(requirements)
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("python3 is missing: {INSTALL}"),
        other => other.context("cannot run python3")?,
    };
    match output.status.success() {
        true => Ok(()),
        false => Err(reason(&requirements.join(" "), &String::from_utf8_lossy(&output.stderr))),
    }
}

/// One line that says what went wrong and what to do.
fn reason(requirement: &str, stderr: &str) -> anyhow::Error {
    let has = |text: &str| stderr.contains(text);
    if has("No module named pip") {
        anyhow!("pip is missing: {INSTALL}")
    } else if has("No space left on device") {
        anyhow!("no space left for {requirement}: free some, then run this again (finished packages are kept)")
    } else if has("NewConnectionError") || has("ConnectTimeoutError") || has("ProxyError") || has("NameResolutionError")
    {
        anyhow!("the package index cannot be reached for {requirement}: run this again with a network")
    } else if has("No matching distribution found") {
        anyhow!("package {requirement} is gone from the index and cannot be fetched")
    } else {
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message").trim();
        anyhow!("pip could not download {requirement}: {}", last.trim_start_matches("ERROR: "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_own_line() {
        let gone = "ERROR: Could not find a version that satisfies the requirement a==1 (from versions: none)\n\
                    ERROR: No matching distribution found for a==1\n";
        let offline =
            format!("WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\n{gone}");
        let cases = [
            ("/usr/bin/python3: No module named pip\n", "pip is missing"),
            ("ERROR: Could not install packages: [Errno 28] No space left on device\n", "no space left"),
            (offline.as_str(), "cannot be reached"),
            (gone, "is gone"),
            ("ERROR: Something else.\n\n", "a==1: Something else."),
            ("", "no message"),
        ];
        for (stderr, expected) in cases {
            let line = reason("a==1", stderr).to_string();
            assert!(line.contains(expected) && !line.contains('\n'), "{stderr:?} gave {line:?}");
        }
    }
}

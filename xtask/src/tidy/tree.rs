//! The files that the rules look at.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// A text file.
#[derive(Clone, Debug)]
pub struct File {
    /// Path from the root of the workspace, with `/`.
    pub path: String,
    /// Its content; empty for binary files.
    pub text: String,
}

impl File {
    /// The folder of the file, without a `/` at the end.
    pub(super) fn dir(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(dir, _)| dir)
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// The files of the workspace.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// By path.
    pub files: Vec<File>,
}

impl Tree {
    /// The tracked files under `root`, as they are on disk.
    ///
    /// In a copy of the sources without git: all files outside hidden and build folders.
    pub fn read(root: &Path) -> Result<Self> {
        let mut paths = match root.join(".git").exists() {
            true => tracked(root)?,
            false => {
                let mut paths = Vec::new();
                walk(root, "", &mut paths)?;
                paths
            }
        };
        paths.sort();
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            // A tracked file that was just deleted is not there to be checked.
            if let Ok(bytes) = fs::read(root.join(&path)) {
                files.push(File { path, text: String::from_utf8(bytes).unwrap_or_default() });
            }
        }
        Ok(Tree { files })
    }

    pub(super) fn get(&self, path: &str) -> Option<&File> {
        self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok().map(|at| &self.files[at])
    }

    /// Whether `path` is a file or a folder with files in it.
    pub(super) fn exists(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty() || self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }

    /// The folders of the crates: `crates/NAME` and `xtask`.
    pub(super) fn crate_dirs(&self) -> impl Iterator<Item = &str> {
        let manifests = self.files.iter().filter_map(|file| file.path.strip_suffix("/Cargo.toml"));
        manifests.filter(|dir| *dir == "xtask" || dir.strip_prefix("crates/").is_some_and(|name| !name.contains('/')))
    }

    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let mut files: Vec<File> =
            files.iter().map(|&(path, text)| File { path: path.to_owned(), text: text.to_owned() }).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Tree { files }
    }
}

fn tracked(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().context("cannot run git")?;
    anyhow::ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    let paths = String::from_utf8(output.stdout).context("a tracked path is not UTF-8")?;
    Ok(paths.split_terminator('\0').map(str::to_owned).collect())
}

/// Dot folders with files of the project.
const HIDDEN: [&str; 2] = [".cargo", ".ci"];

fn walk(root: &Path, dir: &str, paths: &mut Vec<String>) -> Result<()> {
    let folder = root.join(dir);
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if name != "target" && name != "__pycache__" && (!name.starts_with('.') || HIDDEN.contains(&&*name)) {
            walk(root, &path, paths)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_without_git_is_walked() {
        let dir = tempfile::tempdir().unwrap();
        for path in
            ["a.md", ".ci/run", ".cache/models/x", "target/debug/y", "crates/a/src/lib.rs", "crates/a/Cargo.toml"]
        {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, [0xff, b'x']).unwrap();
        }
        let tree = Tree::read(dir.path()).unwrap();
        let paths: Vec<_> = tree.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, [".ci/run", "a.md", "crates/a/Cargo.toml", "crates/a/src/lib.rs"]);
        assert!(tree.exists("crates/a") && tree.exists("a.md") && !tree.exists("crates/b"));
        assert!(tree.files.iter().all(|file| file.text.is_empty()), "binary files have no text");
        assert_eq!(tree.crate_dirs().collect::<Vec<_>>(), ["crates/a"]);
    }
}

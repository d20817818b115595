//! Rules on which Rust files there are: every crate says what it is, and no file lies outside all modules.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenTree};
use toml::{Table, Value};

use super::rust::tokens;
use super::{File, Tree, Violation};

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for dir in tree.crate_dirs() {
        for root in ["src/lib.rs", "src/main.rs"].iter().filter_map(|path| tree.get(&format!("{dir}/{path}"))) {
            let first = root.text.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
            if !first.is_some_and(|line| line.starts_with("//!")) {
                violations.push(Violation::new(root, 1, "no crate docs; begin with `//!` and what the crate is for"));
            }
        }
        let live = live(tree, dir);
        let prefix = format!("{dir}/");
        let files = tree.files.iter().filter(|file| file.is_rust() && file.path.starts_with(&prefix));
        for file in files.filter(|file| !live.contains(&file.path)) {
            violations.push(Violation::new(file, 1, "no module includes the file; add a `mod` or delete it"));
        }
    }
    violations
}

/// Paths of the files that the targets of the crate in `dir` are made of.
fn live(tree: &Tree, dir: &str) -> BTreeSet<String> {
    let mut live = BTreeSet::new();
    let mut open = roots(tree, dir);
    while let Some((path, is_root)) = open.pop() {
        let Some(file) = tree.get(&path) else { continue };
        if !live.insert(path) {
            continue;
        }
        let Ok(tokens) = tokens(file) else { continue };
        let is_mod = is_root || file.path.ends_with("/mod.rs");
        let base = if is_mod { file.dir().to_owned() } else { file.path.trim_end_matches(".rs").to_owned() };
        let mut found = Vec::new();
        modules(&tokens, file, &base, &mut found);
        open.extend(found.into_iter().map(|path| (path, false)));
    }
    live
}

/// The root files of all targets, found or named by the manifest.
fn roots(tree: &Tree, dir: &str) -> Vec<(String, bool)> {
    let mut roots: Vec<String> = ["src/lib.rs", "src/main.rs", "build.rs"].map(|path| format!("{dir}/{path}")).into();
    for folder in ["src/bin", "tests", "benches", "examples"] {
        let prefix = format!("{dir}/{folder}/");
        let names = tree.files.iter().filter_map(|file| Some((file, file.path.strip_prefix(&prefix)?)));
        let targets = names.filter(|(_, name)| match name.split_once('/') {
            None => name.ends_with(".rs"),
            Some((_, rest)) => rest == "main.rs",
        });
        roots.extend(targets.map(|(file, _)| file.path.clone()));
    }
    let manifest = tree.get(&format!("{dir}/Cargo.toml")).and_then(|file| file.text.parse::<Table>().ok());
    for target in manifest.iter().flat_map(|table| table.values()) {
        let entries = target.as_array().map_or(std::slice::from_ref(target), Vec::as_slice);
        let paths = entries.iter().filter_map(|entry| entry.get("path").and_then(Value::as_str));
        roots.extend(paths.map(|path| normalise(&format!("{dir}/{path}"))));
    }
    roots.into_iter().map(|path| (path, true)).collect()
}

/// Paths that `mod` items and `include!` may mean; `base` is the folder of child modules.
fn modules(tokens: &[TokenTree], file: &File, base: &str, found: &mut Vec<String>) {
    let mut attribute_paths = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(ident) if ident == "mod" => match (tokens.get(i + 1), tokens.get(i + 2)) {
                (Some(TokenTree::Ident(name)), Some(TokenTree::Group(body))) => {
                    let body: Vec<_> = body.stream().into_iter().collect();
                    modules(&body, file, &format!("{base}/{name}"), found);
                }
                (Some(TokenTree::Ident(name)), _) if attribute_paths.is_empty() => {
                    found.extend([format!("{base}/{name}.rs"), format!("{base}/{name}/mod.rs")]);
                }
                _ => found.extend(attribute_paths.drain(..).map(|path: String| normalise(&join(file.dir(), &path)))),
            },
            TokenTree::Ident(ident) if ident == "include" => {
                if let Some(TokenTree::Group(argument)) = tokens.get(i + 2) {
                    let argument: Vec<_> = argument.stream().into_iter().collect();
                    let path = argument.first().and_then(literal);
                    found.extend(path.map(|path| normalise(&join(file.dir(), &path))));
                }
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                attribute_paths.extend(path_values(&group.stream().into_iter().collect::<Vec<_>>()));
            }
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                attribute_paths.clear();
                // Modules and includes in the bodies of functions and macros.
                modules(&group.stream().into_iter().collect::<Vec<_>>(), file, base, found);
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => attribute_paths.clear(),
            _ => {}
        }
    }
}

/// Every `path = "..."` in an attribute.
fn path_values(attribute: &[TokenTree]) -> Vec<String> {
    let mut paths = Vec::new();
    for (i, token) in attribute.iter().enumerate() {
        match token {
            TokenTree::Ident(ident) if ident == "path" => paths.extend(attribute.get(i + 2).and_then(literal)),
            TokenTree::Group(group) => paths.extend(path_values(&group.stream().into_iter().collect::<Vec<_>>())),
            _ => {}
        }
    }
    paths
}

fn literal(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else { return None };
    Some(literal.to_string().strip_prefix('"')?.strip_suffix('"')?.to_owned())
}

/// `path` as seen from the folder `dir`.
pub(super) fn join(dir: &str, path: &str) -> String {
    if dir.is_empty() { path.to_owned() } else { format!("{dir}/{path}") }
}

/// `path` without `.` and `..`.
pub(super) fn normalise(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Violation::to_string).collect()
    }

    #[test]
    fn a_crate_says_what_it_is() {
        let manifest = ("crates/a/Cargo.toml", "");
        assert!(found(&[manifest, ("crates/a/src/lib.rs", "#![no_std]\n\n//! Things.\n")]).is_empty());
        assert!(found(&[manifest, ("crates/a/src/lib.rs", "// Things.\n")])[0].contains("no crate docs"));
        assert!(found(&[manifest, ("crates/a/src/main.rs", "")])[0].starts_with("crates/a/src/main.rs:1:"));
    }

    #[test]
    fn a_file_outside_all_modules_is_dead() {
        let lib = "//! A.\nmod b;\nmod c { mod d; }\n#[cfg(x)]\n#[path = \"other/e.rs\"]\nmod e;\n";
        let mut files = vec![
            ("xtask/Cargo.toml", "[[bench]]\nname = \"n\"\npath = \"extra/n.rs\"\n"),
            ("xtask/src/lib.rs", lib),
            ("xtask/src/b.rs", "pub mod f;"),
            ("xtask/src/b/f/mod.rs", "mod g;\nfn h() { include!(\"h.in.rs\"); }"),
            ("xtask/src/b/f/g.rs", ""),
            ("xtask/src/b/f/h.in.rs", ""),
            ("xtask/src/c/d.rs", ""),
            ("xtask/src/other/e.rs", ""),
            ("xtask/src/bin/tool.rs", ""),
            ("xtask/tests/t.rs", "mod common;"),
            ("xtask/tests/common/mod.rs", ""),
            ("xtask/benches/n/main.rs", ""),
            ("xtask/extra/n.rs", ""),
        ];
        assert_eq!(found(&files), [""; 0]);
        let dead = ["xtask/src/b/g.rs", "xtask/src/e.rs", "xtask/src/f.rs", "xtask/tests/common/t.rs"];
        files.extend(dead.map(|path| (path, "")));
        let expected = dead.map(|path| format!("{path}:1: no module includes the file; add a `mod` or delete it"));
        assert_eq!(found(&files), expected);
    }

    #[test]
    fn paths_are_normalised() {
        assert_eq!(normalise("a/./b/../c//d"), "a/c/d");
        assert_eq!(normalise("../a"), "../a");
        assert_eq!(join("", "a"), "a");
    }
}

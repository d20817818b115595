//! Rules on one source file: a budget of lines, and in Rust of functions' lines, `unsafe`, features.

use std::str::FromStr;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::{File, Tree, Violation};

/// Files with a budget: Rust, and kernels with their emulator.
const SOURCES: [&str; 5] = [".rs", ".cu", ".cuh", ".cpp", ".h"];

/// Most lines of a file.
const FILE_LINES_MAX: usize = 700;

/// Most lines of a function, from `fn` to its last brace.
const FUNCTION_LINES_MAX: usize = 100;

/// The only files, and folders, with `unsafe` code.
const UNSAFE_ROOMS: [&str; 9] = [
    "crates/gguf/src/mmap.rs",
    "crates/cpu/src/simd/",
    "crates/cpu/src/arena.rs",
    "crates/cpu/src/pool.rs",
    "crates/cpu/src/exec/",
    "crates/cpu/benches/",
    "crates/cuda/src/driver/",
    "crates/cuda/src/host.rs",
    "crates/cuda/src/params.rs",
];

/// The only folders whose code depends on a feature of its crate.
const FEATURE_ROOMS: [&str; 3] = ["crates/cli/src/cuda/", "crates/cuda/src/driver/", "crates/cuda/tests/"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let sources = tree.files.iter().filter(|file| SOURCES.iter().any(|extension| file.path.ends_with(extension)));
    sources.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines; split the file, at most {FILE_LINES_MAX}");
        violations.push(Violation::new(file, FILE_LINES_MAX + 1, what));
    }
    if !file.is_rust() {
        return violations;
    }
    match tokens(file) {
        Ok(tokens) => walk(file, tokens, &mut violations),
        Err(violation) => violations.push(violation),
    }
    violations
}

/// The tokens of a file.
pub(super) fn tokens(file: &File) -> Result<Vec<TokenTree>, Violation> {
    match TokenStream::from_str(&file.text) {
        Ok(stream) => Ok(stream.into_iter().collect()),
        Err(error) => Err(Violation::new(file, error.span().start().line, "not Rust: fix the syntax")),
    }
}

fn walk(file: &File, tokens: Vec<TokenTree>, violations: &mut Vec<Violation>) {
    for (i, token) in tokens.iter().enumerate() {
        let line = token.span().start().line;
        let TokenTree::Ident(ident) = token else { continue };
        let rest = &tokens[i + 1..];
        if ident == "unsafe" && !UNSAFE_ROOMS.iter().any(|room| file.path.starts_with(room)) {
            let what = format!("`unsafe` outside its rooms; only in {}", UNSAFE_ROOMS.join(", "));
            violations.push(Violation::new(file, line, what));
        } else if ident == "fn" {
            violations.extend(too_long(file, line, rest));
        } else if (ident == "cfg" || ident == "cfg_attr")
            && !FEATURE_ROOMS.iter().any(|room| file.path.starts_with(room))
        {
            let group = rest.iter().take(2).find_map(group);
            if group.is_some_and(|group| names_feature(group.stream())) {
                let what = format!("cfg on a feature; keep what depends on a feature in {}", FEATURE_ROOMS.join(", "));
                violations.push(Violation::new(file, line, what));
            }
        }
    }
    for token in tokens {
        if let TokenTree::Group(group) = token {
            walk(file, group.stream().into_iter().collect(), violations);
        }
    }
}

fn group(token: &TokenTree) -> Option<&Group> {
    match token {
        TokenTree::Group(group) => Some(group),
        _ => None,
    }
}

/// The function whose tokens after `fn` are `rest`, where it has a body that is too long.
fn too_long(file: &File, line: usize, rest: &[TokenTree]) -> Option<Violation> {
    // `fn(u32) -> u32` is a type.
    let Some(TokenTree::Ident(name)) = rest.first() else { return None };
    let semicolon = |token: &&TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ';');
    let signature = rest.iter().take_while(|token| !semicolon(token));
    let body = signature.filter_map(group).find(|group| group.delimiter() == Delimiter::Brace)?;
    let lines = body.span_close().end().line + 1 - line;
    (lines > FUNCTION_LINES_MAX)
        .then(|| Violation::new(file, line, format!("{name} has {lines} lines; at most {FUNCTION_LINES_MAX}")))
}

/// Whether a cfg predicate contains `feature = "..."`.
fn names_feature(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == "feature",
        TokenTree::Group(group) => names_feature(group.stream()),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).iter().map(Violation::to_string).collect()
    }

    #[test]
    fn files_have_a_budget() {
        assert!(found("a.rs", &"//\n".repeat(700)).is_empty());
        assert_eq!(found("a.rs", &"//\n".repeat(701)), ["a.rs:701: 701 lines; split the file, at most 700"]);
        assert_eq!(found("a.cuh", &"{\n".repeat(701)), ["a.cuh:701: 701 lines; split the file, at most 700"]);
        assert!(found("a.json", &"\n".repeat(701)).is_empty());
    }

    #[test]
    fn functions_have_a_budget() {
        let function = |lines: usize| format!("impl A {{\n    pub fn long() -> u8 {{{}}}\n}}", "\n".repeat(lines - 1));
        assert!(found("a.rs", &function(100)).is_empty());
        assert_eq!(found("a.rs", &function(101)), ["a.rs:2: long has 101 lines; at most 100"]);
        let in_macro = format!("m! {{ {} }}", function(101));
        assert_eq!(found("a.rs", &in_macro).len(), 1);
        // Neither a declaration nor a type has a body.
        let others = format!("trait A {{ fn a(); }}\nstatic F: fn(u8) = g;\nmod m {{{}}}", "\n".repeat(200));
        assert!(found("a.rs", &others).is_empty());
    }

    #[test]
    fn unsafe_code_has_its_rooms() {
        let text = "fn a() {\n    unsafe { b() }\n}";
        assert!(found("crates/cpu/src/simd/avx2.rs", text).is_empty());
        assert!(found("crates/gguf/src/mmap.rs", text).is_empty());
        for path in ["crates/cpu/src/lib.rs", "crates/kv/src/simd/a.rs", "crates/gguf/src/mmap/a.rs"] {
            let violations = found(path, text);
            assert!(violations[0].starts_with(&format!("{path}:2: `unsafe`")), "{violations:?}");
        }
        let words = "// unsafe\n#![forbid(unsafe_code)]\nconst A: &str = \"unsafe\";";
        assert!(found("a.rs", words).is_empty());
    }

    #[test]
    fn features_have_their_rooms() {
        let gated = ["#[cfg(feature = \"cuda\")]\nmod a;", "#![cfg_attr(all(unix, not(feature = \"a\")), b)]"];
        let tested = ["fn a() { if cfg!(feature = \"a\") {} }"];
        for text in gated.into_iter().chain(tested) {
            assert_eq!(found("crates/cpu/src/lib.rs", text).len(), 1, "{text}");
            assert!(found("crates/cli/src/cuda/mod.rs", text).is_empty());
        }
        assert!(
            found("a.rs", "#[cfg(target_feature = \"avx2\")]\n#[target_feature(enable = \"avx2\")]\nfn a() {}")
                .is_empty()
        );
    }

    #[test]
    fn broken_syntax_is_a_violation() {
        assert_eq!(found("a.rs", "fn a() {\n"), ["a.rs:1: not Rust: fix the syntax"]);
    }
}

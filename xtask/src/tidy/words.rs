//! Words that no tracked file may contain.

use super::{Tree, Violation};

/// A word, whether it ends at word boundaries, and what to do instead. `concat!` keeps this file clean.
const WORDS: &[(&str, bool, &str)] = &[
    (concat!("TO", "DO"), true, "finish it, or file an issue"),
    (concat!("FIX", "ME"), true, "fix it, or file an issue"),
    (concat!("X", "XX"), true, "say what is meant"),
    (concat!("dbg", "!("), false, "remove the trace"),
    (concat!("/wo", "rk/"), false, "use a path from the root of the workspace"),
    (concat!("/ro", "ot/"), false, "use a path from the root of the workspace"),
    (concat!("/ho", "me/"), false, "use a path from the root of the workspace"),
    (concat!("crates", ".io"), false, "name the package, not its host"),
    (concat!("py", "pi.org"), false, "name the package, not its host"),
    (concat!("python", "hosted.org"), false, "name the package, not its host"),
];

/// Files that a tool writes, and data.
const EXEMPT: [&str; 2] = ["Cargo.lock", "golden/"];

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in tree.files.iter().filter(|file| !EXEMPT.iter().any(|path| file.path.starts_with(path))) {
        for (i, line) in file.text.lines().enumerate() {
            for (word, bounded, right) in WORDS {
                if contains(line, word, *bounded) {
                    violations.push(Violation::new(file, i + 1, format!("{word:?} in the file; {right}")));
                }
            }
        }
    }
    violations
}

fn contains(line: &str, word: &str, bounded: bool) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !bounded || !before.ends_with(inside) && !after.starts_with(inside)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_found() {
        for (word, _, right) in WORDS {
            let text = format!("fine\nhere: {word}: there\n");
            let violations = check(&Tree::of(&[("docs/a.md", &text), ("Cargo.lock", &text), ("golden/a.json", &text)]));
            let lines: Vec<String> = violations.iter().map(Violation::to_string).collect();
            assert_eq!(lines, [format!("docs/a.md:2: {word:?} in the file; {right}")]);
        }
    }

    #[test]
    fn a_part_of_a_word_is_no_word() {
        let text = format!("A{}S, {}S, x_{}", WORDS[0].0, WORDS[1].0, WORDS[2].0);
        assert!(check(&Tree::of(&[("a.rs", &text)])).is_empty());
    }
}

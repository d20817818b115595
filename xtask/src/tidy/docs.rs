//! Rules on documentation: links lead somewhere, decisions are numbered.

use std::collections::HashMap;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::files::{join, normalise};
use super::{File, Tree, Violation};

/// The folder of decision records: `0001-title.md`, `0002-title.md`, ...
const DECISIONS: &str = "docs/decisions/";

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let pages = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    let mut violations: Vec<Violation> = pages.flat_map(|page| dead_links(tree, page)).collect();
    violations.extend(misnumbered(tree));
    violations
}

fn misnumbered(tree: &Tree) -> Vec<Violation> {
    let records = tree.files.iter().filter_map(|file| Some((file, file.path.strip_prefix(DECISIONS)?)));
    let mut violations = Vec::new();
    let mut next = 1;
    for (file, name) in records.filter(|(_, name)| *name != "README.md") {
        let number = name.split_once('-').filter(|(number, _)| number.len() == 4).and_then(|(n, _)| n.parse().ok());
        if number != Some(next) || !name.ends_with(".md") {
            let what = format!("{name} is out of sequence; the next decision record is {next:04}-title.md");
            violations.push(Violation::new(file, 1, what));
        }
        next = number.map_or(next, |number: u32| number.saturating_add(1));
    }
    violations
}

fn dead_links(tree: &Tree, page: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (event, range) in Parser::new_ext(&page.text, Options::ENABLE_TABLES).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event else { continue };
        // `scheme:` leads out of the repository.
        if dest_url.split(['/', '#']).next().is_some_and(|start| start.contains(':')) {
            continue;
        }
        if let Some(what) = broken(tree, page, &dest_url) {
            let line = page.text[..range.start].matches('\n').count() + 1;
            violations.push(Violation::new(page, line, what));
        }
    }
    violations
}

/// What is wrong with a link from `page` to `to`.
fn broken(tree: &Tree, page: &File, to: &str) -> Option<String> {
    let (path, anchor) = to.split_once('#').map_or((to, None), |(path, anchor)| (path, Some(anchor)));
    let path = match path {
        "" => page.path.clone(),
        path if path.starts_with('/') => return Some(format!("link to {to}; use a relative path")),
        path => normalise(&join(page.dir(), path)),
    };
    if !tree.exists(&path) {
        return Some(format!("link to {to}, but there is no {path}; correct the path"));
    }
    let anchors = anchors(tree.get(&path).filter(|file| file.path.ends_with(".md"))?);
    match anchor {
        Some(anchor) if !anchors.iter().any(|known| known == anchor) => {
            Some(format!("link to {to}, but {path} has no such heading; it has #{}", anchors.join(" #")))
        }
        _ => None,
    }
}

/// The anchors of a page's headings, as code hosts form them: lower case, spaces as `-`, no punctuation.
fn anchors(page: &File) -> Vec<String> {
    let (mut anchors, mut heading, mut seen) = (Vec::new(), None::<String>, HashMap::<String, u32>::new());
    for event in Parser::new(&page.text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let text = heading.take().unwrap_or_default().to_lowercase();
                let kept = text.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
                let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
                let before = seen.entry(anchor.clone()).or_default();
                anchors.push(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
                *before += 1;
            }
            _ => {}
        }
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(Violation::to_string).collect()
    }

    #[test]
    fn links_lead_somewhere() {
        let page = "# One `two`, three!\n\n[a](docs/b.md) [c](docs) [d](https://e.f/g) ![h](h.svg) [i](#one-two-three)\n\
                    [j](docs/b.md#k-1) [l]\n\n[l]: docs/b.md#k\n\n`[code](nowhere)`\n\n```\n[code](nowhere)\n```\n";
        let other = ("docs/b.md", "## K\n\n## K\n\n[up](../README.md#one-two-three)\n");
        assert_eq!(found(&[("README.md", page), other, ("h.svg", "")]), [""; 0]);
        let bad = [
            ("[a](docs/c.md)", "there is no docs/c.md"),
            ("![a](c.svg)", "there is no c.svg"),
            ("[a](#k)", "no such heading"),
            ("[a](docs/b.md#l)", "it has #k #k-1"),
            ("[a][b]\n\n[b]: ../a", "there is no ../a"),
            ("[a](/docs/b.md)", "use a relative path"),
        ];
        for (link, expected) in bad {
            let violations = found(&[("README.md", &format!("text\n\n{link}\n")), ("docs/b.md", "# K\n\n# K\n")]);
            assert!(violations.len() == 1 && violations[0].contains(expected), "{link}: {violations:?}");
            assert!(violations[0].starts_with("README.md:3: "), "{violations:?}");
        }
    }

    #[test]
    fn decisions_have_no_gaps() {
        let record = |name: &'static str| (name, "");
        let first = record("docs/decisions/0001-a.md");
        assert_eq!(found(&[first, record("docs/decisions/0002-b.md"), record("docs/decisions/README.md")]), [""; 0]);
        for second in ["0003-b.md", "0001-b.md", "02-b.md", "b.md", "0002-b.txt"] {
            let path = format!("docs/decisions/{second}");
            let expected = format!("{path}:1: {second} is out of sequence; the next decision record is 0002-title.md");
            assert_eq!(found(&[first, (&path, "")]), [expected]);
        }
    }
}

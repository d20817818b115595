//! Which crate may depend on which.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::{File, Tree, Violation};

/// The workspace's crates that each crate may name in its dependencies, besides `types`.
const EDGES: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("gguf", &[]),
    ("plan", &[]),
    ("kv", &["plan"]),
    ("models", &["gguf", "plan"]),
    ("device", &["plan", "kv"]),
    ("cpu", &["device", "gguf"]),
    ("cuda", &["device"]),
    ("text", &["gguf"]),
    ("engine", &["device", "kv", "plan", "models", "text", "gguf"]),
    ("measure", &["engine", "device", "plan"]),
    ("cli", &["types", "gguf", "plan", "kv", "models", "device", "cpu", "cuda", "text", "engine", "measure"]),
    ("xtask", &["types", "gguf", "plan", "kv", "models", "device", "cpu", "cuda", "text", "engine", "measure"]),
];

/// A dependency of one crate of the workspace on another.
struct Edge<'a> {
    manifest: &'a File,
    from: &'a str,
    to: String,
    dev: bool,
}

impl Edge<'_> {
    fn violation(&self, what: String) -> Violation {
        let line = self.manifest.text.lines().position(|line| line.trim_start().starts_with(&package(&self.to)));
        Violation::new(self.manifest, line.map_or(1, |line| line + 1), what)
    }
}

fn package(name: &str) -> String {
    format!("tailrace-{name}")
}

pub(super) fn check(tree: &Tree) -> Vec<Violation> {
    let (mut violations, mut edges) = (Vec::new(), Vec::new());
    for dir in tree.crate_dirs() {
        let Some(manifest) = tree.get(&format!("{dir}/Cargo.toml")) else { continue };
        let name = dir.rsplit('/').next().unwrap_or(dir);
        if !EDGES.iter().any(|(known, _)| *known == name) {
            let what = format!("crate {name} is unknown; add it to EDGES in xtask/src/tidy/edges.rs");
            violations.push(Violation::new(manifest, 1, what));
        }
        match manifest.text.parse::<Table>() {
            Ok(table) => edges.extend(edges_of(manifest, name, &table)),
            Err(error) => violations.push(Violation::new(manifest, 1, format!("not TOML: {}", error.message()))),
        }
    }
    violations.extend(edges.iter().filter(|edge| !edge.dev).filter_map(forbidden));
    violations.extend(edges.iter().filter(|edge| edge.dev).filter_map(|edge| cyclic(edge, &edges)));
    violations
}

fn edges_of<'a>(manifest: &'a File, from: &'a str, table: &Table) -> Vec<Edge<'a>> {
    let mut edges = Vec::new();
    let targets = table.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values().filter_map(Value::as_table));
    for section in targets.chain([table]) {
        for (kind, dev) in [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)] {
            let Some(entries) = section.get(kind).and_then(Value::as_table) else { continue };
            for (key, value) in entries {
                let name = value.get("package").and_then(Value::as_str).unwrap_or(key);
                if let Some(to) = name.strip_prefix("tailrace-") {
                    edges.push(Edge { manifest, from, to: to.to_owned(), dev });
                }
            }
        }
    }
    edges
}

fn forbidden(edge: &Edge<'_>) -> Option<Violation> {
    let allowed = EDGES.iter().find(|(from, _)| *from == edge.from).map_or(&[][..], |(_, allowed)| allowed);
    if edge.to == "types" && edge.from != "types" || allowed.contains(&edge.to.as_str()) {
        return None;
    }
    let right = match allowed {
        [] => "types".to_owned(),
        allowed => format!("types, {}", allowed.join(", ")),
    };
    Some(edge.violation(format!("{} must not depend on {}; it may use {right}", edge.from, edge.to)))
}

/// A dev-dependency on a crate that is built on this one: tests would then see two copies of it.
fn cyclic(edge: &Edge<'_>, edges: &[Edge<'_>]) -> Option<Violation> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![edge.to.as_str()]);
    while let Some(at) = open.pop() {
        if seen.insert(at) {
            open.extend(edges.iter().filter(|e| !e.dev && e.from == at).map(|e| e.to.as_str()));
        }
    }
    seen.contains(edge.from)
        .then(|| edge.violation(format!("{} is built on {}; move the test to {0} or above it", edge.to, edge.from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(manifests: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(manifests)).iter().map(Violation::to_string).collect()
    }

    #[test]
    fn an_edge_outside_the_table_is_found() {
        let good = "[dependencies]\ntailrace-types.workspace = true\ntailrace-gguf = { path = \"../gguf\" }\n";
        assert!(found(&[("crates/text/Cargo.toml", good)]).is_empty());
        let bad = "[dependencies]\ntailrace-types.workspace = true\ntailrace-engine.workspace = true\n";
        let expected = "crates/kv/Cargo.toml:3: kv must not depend on engine; it may use types, plan";
        assert_eq!(found(&[("crates/kv/Cargo.toml", bad)]), [expected]);
    }

    #[test]
    fn every_section_counts() {
        for section in ["build-dependencies", "target.'cfg(unix)'.dependencies", "target.x86_64.build-dependencies"] {
            let text = format!("[{section}]\ntailrace-engine.workspace = true\n");
            assert_eq!(found(&[("crates/types/Cargo.toml", &text)]).len(), 1, "{section}");
        }
        let renamed = "[dependencies]\nother = { package = \"tailrace-engine\", path = \"../engine\" }\n";
        assert_eq!(found(&[("crates/gguf/Cargo.toml", renamed)]).len(), 1);
    }

    #[test]
    fn dev_dependencies_may_go_anywhere_but_round() {
        let models = ("crates/models/Cargo.toml", "[dependencies]\ntailrace-plan.workspace = true\n");
        let kv = ("crates/kv/Cargo.toml", "[dev-dependencies]\ntailrace-models.workspace = true\n");
        assert!(found(&[models, kv]).is_empty());
        let plan = ("crates/plan/Cargo.toml", "[dev-dependencies]\ntailrace-models.workspace = true\n");
        let expected = "crates/plan/Cargo.toml:2: models is built on plan; move the test to models or above it";
        assert_eq!(found(&[models, plan]), [expected]);
    }

    #[test]
    fn an_unknown_crate_must_be_entered() {
        assert!(found(&[("crates/extra/Cargo.toml", "")])[0].contains("EDGES"));
        assert!(found(&[("crates/kv/Cargo.toml", "[")])[0].contains("not TOML"));
    }

    #[test]
    fn the_table_has_no_cycle() {
        // Each crate names earlier ones only.
        for (i, (name, allowed)) in EDGES.iter().enumerate() {
            for to in *allowed {
                assert!(EDGES[..i].iter().any(|(earlier, _)| earlier == to), "{name} -> {to}");
            }
        }
    }
}

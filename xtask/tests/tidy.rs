//! The workspace keeps its own rules.

#[test]
fn the_workspace_is_tidy() {
    let violations = xtask::tidy::check(xtask::workspace()).expect("the files of the workspace can be read");
    let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
}

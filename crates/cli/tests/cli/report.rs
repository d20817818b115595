//! `tailrace bench report`, and pictures of ladders.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::common::{Output, largest, tailrace};

fn folder() -> TempDir {
    TempDir::new().expect("a folder")
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// A row with a tail of so many GiB.
fn rung(tail_gib: u64, step_ms: f64) -> String {
    format!(
        "{{\"cell\":\"m/decode/0/tail-{tail_gib}G\",\"shape\":\"m\",\"phase\":\"decode\",\"depth_tokens\":0,\"tail_bytes\":{},\
         \"tokens_per_s\":{},\"step_ms\":{step_ms},\"resident_ms\":10,\"link_gb_s\":50,\"link_loaded_gb_s\":45,\
         \"commit\":\"c\",\"device\":\"d\"}}\n",
        tail_gib << 30,
        1e3 / step_ms
    )
}

/// Writes a file of rows.
fn file(folder: &TempDir, name: &str, rows: &[String]) -> String {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(&path, rows.concat()).expect("rows are written");
    text(&path)
}

fn report(args: &[&str]) -> Output {
    tailrace(&[&["bench", "report"], args].concat())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn files_become_a_page_and_pictures() {
    let folder = folder();
    let before = file(&folder, "before.jsonl", &[rung(1, 33.0), rung(4, 99.0)]);
    let after = file(&folder, "after.jsonl", &[rung(1, 22.0)]);
    let again = file(&folder, "more/after.jsonl", &[rung(2, 44.0)]);
    let out = folder.path().join("new/folder");
    let args = [&before, &after, &again, "--out", &text(&out), "--title", "What | was"];
    let output = report(&args).ok();
    assert_eq!((output.text(), output.stderr.lines().count()), ("", 1), "{}", output.stderr);
    assert!(output.stderr.contains("report.md; pictures beside it: 1"), "{}", output.stderr);
    let page = read(&out.join("report.md"));
    for part in ["# What \\| was\n", "| 1.00 | 22.000 |", "| 2.00 | 44.000 |", "| 4.00 | 99.000 |", "(m-decode-0.svg)"]
    {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("33.000"), "{page}");
    let picture = read(&out.join("m-decode-0.svg"));
    for part in [">before<", ">after<", ">after (2)<", "before: 1.00 GiB", "m, decode after 0 cells", "d, commit c"] {
        assert!(picture.contains(part), "{part} in {picture}");
    }
    // The same files give the same bytes, over what is there.
    report(&args).ok();
    assert_eq!((read(&out.join("report.md")), read(&out.join("m-decode-0.svg"))), (page, picture));
}

#[test]
fn what_cannot_be_reported() {
    let folder = folder();
    let good = file(&folder, "good.jsonl", &[rung(1, 22.0)]);
    let empty = file(&folder, "empty.jsonl", &["\n \n".to_owned()]);
    let bad = file(&folder, "bad\n.jsonl", &[rung(1, 22.0), "\n".to_owned(), "{\"cell\":\"c\"}\n".to_owned()]);
    let missing = text(&folder.path().join("missing.jsonl"));
    let out = text(&folder.path().join("out"));
    let (below, directory) = (format!("{good}/out"), text(folder.path()));
    for (args, code, says) in [
        (&[&missing, "--out", &out][..], 1, &["cannot read ", "missing.jsonl", "No such file"][..]),
        (&[&directory, "--out", &out], 1, &["cannot read "]),
        (&[&good, &empty, "--out", &out], 1, &["empty.jsonl has no rows"]),
        (&[&good, &bad, "--out", &out], 1, &["bad\\n.jsonl: line 3 is no row", "missing field `shape` (column 12)"]),
        (&[&good, "--out", &below], 1, &["cannot make the folder ", "good.jsonl/out"]),
        (&["--out", &out], 2, &["ROWS.jsonl"]),
        (&[&good], 2, &["--out"]),
    ] {
        let output = report(args);
        assert_eq!(
            (output.code, output.text(), output.stderr.lines().count()),
            (Some(code), "", 1),
            "{}",
            output.stderr
        );
        assert!(says.iter().all(|part| output.stderr.contains(part)), "{args:?}: {}", output.stderr);
        // What cannot be read is found before anything is written.
        assert!(!Path::new(&out).exists(), "{args:?}");
    }
    fs::create_dir_all(folder.path().join("out/report.md")).expect("a folder");
    let output = report(&[&good, "--out", &out]);
    assert!(output.code == Some(1) && output.stderr.contains("cannot write "), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

/// A short ladder on the CPU, drawn to `svg`.
fn ladder(svg: &Path, args: &[&str]) -> Output {
    let (model, svg) = (largest(), text(svg));
    let fixed =
        ["bench", "ladder", "-m", &model, "--fill", "-ub", "64", "-n", "4", "-r", "1", "--device", "cpu", "-t", "1"];
    tailrace(&[&fixed[..], &["--svg", &svg], args].concat())
}

#[test]
fn a_ladder_is_drawn() {
    let folder = folder();
    let path = folder.path().join("one.svg");
    let rows = ladder(&path, &["--depth", "6k", "--tail", "1M", "--commit", "abc"]).ok();
    assert_eq!(rows.text().lines().count(), 2);
    let one = read(&path);
    for part in ["qwen3-partial, decode after 6k cells", "commit abc", "measured: 0.00 GiB"] {
        assert!(one.contains(part), "{part} in {one}");
    }
    assert_eq!(one.matches("<svg ").count(), 1);
    // Two ladders are below each other.
    ladder(&path, &["--depth", "6k", "--tail", "1M", "--phase", "decode,prefill"]).ok();
    let two = read(&path);
    assert!(two.matches("<svg ").count() == 3 && two.contains("prefill after 6k cells"), "{two}");
}

#[test]
fn rows_outlive_their_picture() {
    let folder = folder();
    let unwritable = |path: &Path| {
        let output = ladder(path, &["--depth", "6k", "--tail", "1M"]);
        assert!(output.stderr.lines().last().is_some_and(|line| line.contains("cannot write ")), "{}", output.stderr);
        (output.code, output.text().lines().count())
    };
    // Before anything is measured, where that can be known.
    assert_eq!(unwritable(folder.path()), (Some(1), 0));
    if cfg!(target_os = "linux") {
        assert_eq!(unwritable(Path::new("/dev/full")), (Some(1), 2));
    }
    // A rung that does not fit: what came before it is printed and drawn.
    let path = folder.path().join("part.svg");
    let output = ladder(&path, &["--depth", "6k", "--tail", "1M", "--targets", "1B"]);
    assert_eq!((output.code, output.text().lines().count()), (Some(1), 2), "{}", output.stderr);
    assert!(output.stderr.contains("what fits"), "{}", output.stderr);
    assert!(read(&path).contains("decode after 6k cells"));
}

#[test]
fn the_kept_report_is_that_of_its_rows() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks/h200");
    let rows = kept.join("2026-11-30.jsonl");
    let out = folder();
    report(&[&text(&rows), "--out", &text(out.path()), "--title", "One H200, every cell"]).ok();
    for entry in fs::read_dir(out.path()).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        assert_eq!(read(&path), read(&kept.join(name)), "{name:?} is not what `bench report` makes of the rows");
    }
}

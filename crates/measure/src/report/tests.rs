use std::collections::BTreeSet;

use super::*;

const GIB: u64 = 1 << 30;

fn row(variant: &str, step_ms: f64) -> Row {
    Row {
        cell: format!("m:q8_0/decode/32768/{variant}"),
        shape: "m:q8_0".to_owned(),
        phase: "decode".to_owned(),
        depth_tokens: 32768,
        tail_bytes: Some(0),
        tokens_per_s: Some(1e3 / step_ms),
        step_ms: Some(step_ms),
        resident_ms: Some(10.0),
        link_gb_s: Some(50.0),
        link_loaded_gb_s: Some(45.0),
        device_read_gb_s: Some(4000.0),
        commit: "new".to_owned(),
        device: "a device".to_owned(),
        ..Row::default()
    }
}

fn rung(tail_gib: u64, step_ms: f64) -> Row {
    let laws = (Some(20.0), Some(30.0), Some(step_ms / 20.0));
    let (law_overlapped_ms, law_serial_ms, ratio_overlapped) = laws;
    let tail_bytes = Some(tail_gib * GIB);
    Row { tail_bytes, law_overlapped_ms, law_serial_ms, ratio_overlapped, ..row(&format!("tail-{tail_gib}G"), step_ms) }
}

fn source(label: &str, rows: Vec<Row>) -> Source {
    Source { label: label.to_owned(), rows }
}

#[test]
fn the_last_row_of_a_cell_counts() {
    let old = |row: Row| Row { commit: "old".to_owned(), ..row };
    let first = source("first", vec![old(row("resident", 99.0)), old(rung(4, 88.0)), old(rung(1, 44.0))]);
    let second = source("second", vec![row("resident", 10.0), rung(4, 82.0), rung(1, 22.0)]);
    let found = report("A | title", &[first.clone(), second.clone()]);
    assert_eq!(found, report("A | title", &[first.clone(), second]));
    for line in [
        "# A \\| title",
        "6 rows of `tailrace bench`. For a cell the row that comes last counts: 3 cells, 3 older rows.",
        "## a device",
        "Link alone 50.0 GB/s, beside a busy device 45.0 GB/s; device memory 4000 GB/s.",
        "### m:q8_0",
        "| decode | 32k | 10.000 | 100.00 | - | new |",
        "Ladder, decode after 32k cells:",
        "| 0 | 10.000 | 100.00 | - | - | - | new |",
        "| 1.00 | 22.000 | 45.45 | 1.100 | 20.000 | 30.000 | new |\n| 4.00 | 82.000 | 12.20 | 4.100 | 20.000 | 30.000 | new |",
        "![m:q8_0, decode after 32k cells](m-q8_0-decode-32k.svg)",
    ] {
        assert!(found.markdown.contains(&format!("{line}\n")), "{line} in {}", found.markdown);
    }
    assert!(!found.markdown.contains("99.000") && !found.markdown.contains("| old |"), "{}", found.markdown);
    assert_eq!(found.pictures.len(), 1);
    let svg = &found.pictures[0].svg;
    for text in
        ["m:q8_0, decode after 32k cells", "a device, commit old; new", ">first<", ">second<", "first: 4.00 GiB"]
    {
        assert!(svg.contains(text), "{text} in {svg}");
    }
    assert_eq!(pictures(&[first])[0].file, "m-q8_0-decode-32k.svg");
}

#[test]
fn caps_and_other_windows_have_tables() {
    let cap = |tail: u64, peak: u64| Row {
        tail_bytes: Some(tail),
        vram_target_bytes: Some(18 * GIB),
        driver_peak_bytes: Some(peak),
        resident_ms: None,
        ..row("target-18G", 400.0)
    };
    let page = |row: Row| report("t", &[source("s", vec![row])]);
    let capped = page(cap(20 * GIB, 18 * GIB - GIB / 4)).markdown;
    assert!(
        capped.contains("| decode | 32k | 19,327,352,832 | 19,058,917,376 | 1.39 % | 20.00 | 400.000 | 2.50 | new |")
    );
    assert!(page(cap(0, GIB)).markdown.contains("| resident | 0.00 |"));
    assert!(page(Row { vram_target_bytes: Some(0), ..cap(1, GIB) }).markdown.contains("| 0 | 1,073,741,824 | - |"));
    // No run of its own measured a resident step: no ladder. With one it is a rung.
    let with_resident = page(Row { resident_ms: Some(10.0), ..cap(20 * GIB, GIB) });
    assert_eq!((page(cap(GIB, GIB)).pictures.len(), with_resident.pictures.len()), (0, 1));
    assert!(page(row("window-512", 11.0)).markdown.contains("| m:q8_0/decode/32768/window-512 | 0.00 | 11.000 |"));
    let sampled = Row { cell: "m/decode/0/resident/sampled".to_owned(), depth_tokens: 0, ..row("", 10.0) };
    assert!(page(sampled).markdown.contains("| decode, sampled | 0 | 10.000 |"));
}

#[test]
fn laws_are_of_the_run_that_was_last() {
    let again = Row { resident_ms: Some(8.0), ..rung(1, 21.0) };
    let page = report("t", &[source("s", vec![rung(1, 22.0), rung(4, 82.0), again])]).markdown;
    assert!(page.contains("| 0 | 8.000 | 125.00 |") && page.contains("| 1.00 | 21.000 |"), "{page}");
}

#[test]
fn devices_are_apart() {
    let other = |row: Row| Row { device: "../other <device>".to_owned(), ..row };
    let rows = vec![rung(1, 22.0), other(rung(1, 33.0)), Row { phase: LINK.to_owned(), ..Row::default() }];
    let found = report("t", &[source("s", rows)]);
    let files: Vec<_> = found.pictures.iter().map(|picture| picture.file.as_str()).collect();
    assert_eq!(files, ["other--device--m-q8_0-decode-32k.svg", "a-device-m-q8_0-decode-32k.svg"]);
    for text in ["## ../other \\<device\\>", "## a device", "## (no name)", "Link alone not measured"] {
        assert!(found.markdown.contains(text), "{text} in {}", found.markdown);
    }
}

#[test]
fn names_of_files_are_safe_and_differ() {
    let shaped = |shape: &str| Row { shape: shape.to_owned(), ..rung(1, 22.0) };
    let shapes = ["a/b", "a:b", "A B", "../..", "\u{0}", "", &"x".repeat(999)];
    let rows = shapes.iter().map(|shape| Row { cell: format!("{shape}/tail-1G"), ..shaped(shape) }).collect();
    let files: BTreeSet<_> = pictures(&[source("s", rows)]).into_iter().map(|picture| picture.file).collect();
    assert_eq!(files.len(), shapes.len(), "{files:?}");
    for file in &files {
        assert!(file.len() < 140 && !file.starts_with('.') && !file.contains(['/', ' ', ':']), "{file}");
    }
}

#[test]
fn nothing_panics_without_numbers() {
    let bare = |row: Row| Row { cell: row.cell, phase: row.phase, ..Row::default() };
    let zero = Row { step_ms: Some(0.0), tokens_per_s: Some(0.0), resident_ms: Some(0.0), ..rung(3, 1.0) };
    let rows = vec![bare(rung(1, 1.0)), bare(row("target-1G", 1.0)), bare(row("resident", 1.0)), zero];
    let found = report("", &[source("", rows), Source::default()]);
    assert!(found.pictures.iter().all(|picture| roxmltree::Document::parse(&picture.svg).is_ok()));
    assert!(!found.markdown.contains("NaN") && !found.markdown.contains("inf"), "{}", found.markdown);
    assert_eq!(report("t", &[]).pictures, []);
}

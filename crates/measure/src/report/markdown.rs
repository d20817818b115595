//! Tables in Markdown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{At, Kind, Picture, cells, gib, is_rung};
use crate::Row;

/// The page: `count` rows were read, `rows` of them count.
pub(super) fn page(title: &str, count: usize, rows: &[&Row], pictures: &BTreeMap<At<'_>, Picture>) -> String {
    let mut page = Page { out: String::new() };
    page.line(&format!("# {}\n", escape(title)));
    page.line(&format!(
        "{count} rows of `tailrace bench`. For a cell the row that comes last counts: {} cells, {} older rows.\n\
         `C` is the resident step, `X` the bytes of the occupied tail, `L` the rate of the link, all from the run of the row. A ladder without a tail, and\n\
         the laws in its picture, are of the run that its newest row is from.",
        rows.len(),
        count - rows.len()
    ));
    for device in rows.iter().map(|row| row.device.as_str()).collect::<BTreeSet<_>>() {
        let of_device: Vec<&Row> = rows.iter().copied().filter(|row| row.device == device).collect();
        page.line(&format!("\n## {}\n", heading(device)));
        page.line(&rates(&of_device));
        let with_shape = of_device.iter().filter(|row| Kind::of(row) != Kind::Link);
        for shape in with_shape.map(|row| row.shape.as_str()).collect::<BTreeSet<_>>() {
            let of_shape: Vec<&Row> =
                of_device.iter().copied().filter(|row| row.shape == shape && Kind::of(row) != Kind::Link).collect();
            page.line(&format!("\n### {}", heading(shape)));
            page.shape(&of_shape, pictures);
        }
    }
    page.out
}

/// What the device and its link carried, from the least to the most of the rows that count.
fn rates(rows: &[&Row]) -> String {
    let range = |digits: usize, of: fn(&Row) -> Option<f64>| -> String {
        let values = || rows.iter().filter_map(|row| of(row));
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        match values().count() {
            0 => "not measured".to_owned(),
            _ => {
                let (low, high) = (format!("{low:.digits$}"), format!("{high:.digits$}"));
                if low == high { format!("{low} GB/s") } else { format!("{low} to {high} GB/s") }
            }
        }
    };
    format!(
        "Link alone {}, beside a busy device {}; device memory {}.",
        range(1, |row| row.link_gb_s),
        range(1, |row| row.link_loaded_gb_s),
        range(0, |row| row.device_read_gb_s)
    )
}

struct Page {
    out: String,
}

impl Page {
    fn line(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{text}");
    }

    fn table(&mut self, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        self.line(&format!("| {} |", heads.join(" | ")));
        self.line(&format!("|{}", "---|".repeat(heads.len())));
        for row in rows {
            self.line(&format!("| {} |", row.join(" | ")));
        }
    }

    /// Everything of one shape on one device.
    fn shape(&mut self, rows: &[&Row], pictures: &BTreeMap<At<'_>, Picture>) {
        let of_kind = |kind: Kind| -> Vec<&Row> { rows.iter().copied().filter(|row| Kind::of(row) == kind).collect() };
        self.resident(of_kind(Kind::Resident));
        let mut ladders: BTreeMap<At<'_>, Vec<&Row>> = BTreeMap::new();
        for row in rows.iter().filter(|row| is_rung(row)) {
            ladders.entry(At::of(row)).or_default().push(row);
        }
        for (at, rungs) in ladders {
            self.ladder(&at, rungs, pictures.get(&at));
        }
        self.targets(of_kind(Kind::Target));
        self.other(of_kind(Kind::Other));
    }

    fn resident(&mut self, mut rows: Vec<&Row>) {
        if rows.is_empty() {
            return;
        }
        rows.sort_by_key(|row| At::of(row));
        self.line("\nResident:\n");
        let heads = ["phase", "cells", "ms", "tokens/s", "of the read rate", "commit"];
        let line = |row: &&Row| {
            let at = At::of(row);
            let share = number(row.roofline_ratio, 3);
            vec![at.phase(), cells(at.depth_tokens), ms(row.step_ms), speed(row), share, escape(&row.commit)]
        };
        self.table(&heads, rows.iter().map(line));
    }

    fn ladder(&mut self, at: &At<'_>, mut rungs: Vec<&Row>, picture: Option<&Picture>) {
        let resident = rungs.last().and_then(|last| Some((last.resident_ms?, last)));
        let resident = resident.map(|(c, last)| {
            let tokens = last.tokens_per_s.zip(last.step_ms).map(|(speed, step)| speed * step / c);
            let dash = || "-".to_owned();
            let speed = number(tokens.filter(|speed| speed.is_finite()), 2);
            vec!["0".to_owned(), ms(Some(c)), speed, dash(), dash(), dash(), escape(&last.commit)]
        });
        rungs.sort_by_key(|row| (row.tail_bytes, &row.cell));
        let title = format!("{} after {} cells", at.phase(), cells(at.depth_tokens));
        self.line(&format!("\nLadder, {title}:\n"));
        let heads = ["tail, GiB", "ms", "tokens/s", "of `max(C, X/L)`", "`max(C, X/L)`, ms", "`C + X/L`, ms", "commit"];
        let line = |row: &Row| {
            vec![
                number(row.tail_bytes.map(gib), 2),
                ms(row.step_ms),
                speed(row),
                number(row.ratio_overlapped, 3),
                ms(row.law_overlapped_ms),
                ms(row.law_serial_ms),
                escape(&row.commit),
            ]
        };
        self.table(&heads, resident.into_iter().chain(rungs.into_iter().map(line)));
        if let Some(picture) = picture {
            self.line(&format!("\n![{}, {title}]({})", escape(at.shape), picture.file));
        }
    }

    fn targets(&mut self, mut rows: Vec<&Row>) {
        if rows.is_empty() {
            return;
        }
        rows.sort_by_key(|row| (At::of(row), row.vram_target_bytes));
        self.line("\nCaps on device memory:\n");
        let heads = ["phase", "cells", "cap, bytes", "most in use", "unused", "tail, GiB", "ms", "tokens/s", "commit"];
        let line = |row: &&Row| {
            let at = At::of(row);
            let unused = match (row.tail_bytes, row.vram_target_bytes, row.driver_peak_bytes) {
                (Some(0), ..) => "resident".to_owned(),
                (_, Some(cap), Some(peak)) if cap > 0 => {
                    format!("{:.2} %", (cap as f64 - peak as f64) / cap as f64 * 100.0)
                }
                _ => "-".to_owned(),
            };
            vec![
                at.phase(),
                cells(at.depth_tokens),
                bytes(row.vram_target_bytes),
                bytes(row.driver_peak_bytes),
                unused,
                number(row.tail_bytes.map(gib), 2),
                ms(row.step_ms),
                speed(row),
                escape(&row.commit),
            ]
        };
        self.table(&heads, rows.iter().map(line));
    }

    fn other(&mut self, mut rows: Vec<&Row>) {
        if rows.is_empty() {
            return;
        }
        rows.sort_by_key(|row| (At::of(row), &row.cell));
        self.line("\nOther windows:\n");
        let line = |row: &&Row| {
            let tail = number(row.tail_bytes.map(gib), 2);
            vec![escape(&row.cell), tail, ms(row.step_ms), speed(row), escape(&row.commit)]
        };
        self.table(&["cell", "tail, GiB", "ms", "tokens/s", "commit"], rows.iter().map(line));
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn ms(value: Option<f64>) -> String {
    number(value, 3)
}

fn speed(row: &Row) -> String {
    number(row.tokens_per_s, 2)
}

/// Bytes with commas between thousands.
fn bytes(value: Option<u64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let digits = value.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Text of a heading, which must have some.
fn heading(text: &str) -> String {
    if text.is_empty() { "(no name)".to_owned() } else { escape(text) }
}

/// Text that Markdown shows as it is, on one line.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let chars: Vec<char> = text.chars().collect();
    for (i, &c) in chars.iter().enumerate() {
        let is_word = |at: Option<usize>| at.and_then(|at| chars.get(at)).is_some_and(|c| c.is_alphanumeric());
        match c {
            // Within a word it is a letter.
            '_' if is_word(i.checked_sub(1)) && is_word(Some(i + 1)) => out.push(c),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '&' | '~' | '#' | '!' => out.extend(['\\', c]),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("qwen2.5-14b:q8_0"), "qwen2.5-14b:q8_0");
        assert_eq!(escape("_a_|[b](c)\n<i>"), "\\_a\\_\\|\\[b\\](c)\u{fffd}\\<i\\>");
    }

    #[test]
    fn thousands_are_apart() {
        let of = |value| bytes(Some(value));
        assert_eq!(
            (of(0), of(999), of(1000), of(19_327_352_832)),
            ("0".to_owned(), "999".to_owned(), "1,000".to_owned(), "19,327,352,832".to_owned())
        );
    }
}

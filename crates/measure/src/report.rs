//! A report of rows: tables in Markdown, and pictures of ladders.
//!
//! For a cell on a device the row that comes last counts; older ones are history. In pictures each source is a series of its own, so
//! that runs can be compared.

mod markdown;
mod pictures;

use std::collections::BTreeMap;

use crate::row::LINK;
use crate::{RESIDENT, Row};

pub use pictures::pictures;

/// Rows that belong together, such as those of a file, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    /// What pictures call them.
    pub label: String,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A picture and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Name of the file: lower-case letters, digits, `.`, `-` and `_` alone, and no two pictures have the same.
    pub file: String,
    /// Its text.
    pub svg: String,
}

/// What becomes of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// A page that shows the pictures, which lie beside it.
    pub markdown: String,
    /// The pictures.
    pub pictures: Vec<Picture>,
}

/// The report of `sources`, oldest first, under a title. The same rows give the same bytes.
pub fn report(title: &str, sources: &[Source]) -> Report {
    let all = sources.iter().flat_map(|source| &source.rows);
    let count = all.clone().count();
    let rows = newest(all);
    let pictures = pictures::by_ladder(sources);
    let markdown = markdown::page(title, count, &rows, &pictures);
    Report { markdown, pictures: pictures.into_values().collect() }
}

/// For each cell on a device the row that comes last, in the order of these rows.
fn newest<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<&'a Row> {
    let places = rows.enumerate().map(|(place, row)| ((&row.device, &row.cell), (place, row)));
    let mut newest: Vec<_> = places.collect::<BTreeMap<_, _>>().into_values().collect();
    newest.sort_unstable_by_key(|&(place, _)| place);
    newest.into_iter().map(|(_, row)| row).collect()
}

/// What rows have in common that differ in the tail alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At<'a> {
    device: &'a str,
    shape: &'a str,
    phase: &'a str,
    depth_tokens: u32,
    /// Whether tokens were drawn.
    sampled: bool,
}

impl<'a> At<'a> {
    fn of(row: &'a Row) -> At<'a> {
        At {
            device: &row.device,
            shape: &row.shape,
            phase: &row.phase,
            depth_tokens: row.depth_tokens,
            sampled: row.cell.ends_with("/sampled"),
        }
    }

    /// `decode`, or `decode, sampled`.
    fn phase(&self) -> String {
        format!("{}{}", self.phase, if self.sampled { ", sampled" } else { "" })
    }
}

/// What is to be learnt from a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Rates of a device.
    Link,
    /// A step without a tail.
    Resident,
    /// A step beside so much of a tail.
    Rung,
    /// A step under a cap.
    Target,
    /// Anything else, such as the widest window that a device holds.
    Other,
}

impl Kind {
    fn of(row: &Row) -> Kind {
        let name = row.cell.strip_suffix("/sampled").unwrap_or(&row.cell);
        let variant = name.rsplit('/').next().unwrap_or_default();
        match variant {
            _ if row.phase == LINK => Kind::Link,
            RESIDENT => Kind::Resident,
            _ if variant.starts_with("tail-") => Kind::Rung,
            _ if variant.starts_with("target-") => Kind::Target,
            _ => Kind::Other,
        }
    }
}

/// Whether a row is part of a ladder: it has a tail, from a rung or a cap, and its run measured the resident step too.
fn is_rung(row: &Row) -> bool {
    match Kind::of(row) {
        Kind::Rung => true,
        Kind::Target => row.resident_ms.is_some() && row.tail_bytes.is_some_and(|bytes| bytes > 0),
        Kind::Link | Kind::Resident | Kind::Other => false,
    }
}

/// Bytes as GiB.
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// A number of cells as it is written on the command line: `32k`, or `100`.
fn cells(count: u32) -> String {
    if count > 0 && count.is_multiple_of(1024) { format!("{}k", count / 1024) } else { count.to_string() }
}

#[cfg(test)]
mod tests;

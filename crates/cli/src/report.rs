//! `tailrace bench report`: tables and pictures of rows that were kept.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use tailrace_measure::chart::stack;
use tailrace_measure::{Row, Source, pictures, report};

use crate::file::NewFile;
use crate::path::{shown, stem};
use crate::stderr;

/// Name of the page in its folder.
const PAGE: &str = "report.md";

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Files of rows, oldest first: where a cell occurs twice, the last row counts. Pictures show each file as a series.
    #[arg(required = true, value_name = "ROWS.jsonl")]
    rows: Vec<PathBuf>,
    /// Folder for report.md and the pictures; made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Heading of the page.
    #[arg(long, value_name = "TEXT", default_value = "Benchmarks")]
    title: String,
}

pub(crate) fn run(args: &ReportArgs) -> Result<()> {
    let mut sources: Vec<Source> = Vec::new();
    for path in &args.rows {
        let rows = read(path)?;
        let label = label(path, &sources);
        sources.push(Source { label, rows });
    }
    let found = report(&args.title, &sources);
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make the folder {}", shown(&args.out)))?;
    for picture in &found.pictures {
        NewFile::create(&args.out.join(&picture.file))?.fill(&picture.svg)?;
    }
    let page = args.out.join(PAGE);
    NewFile::create(&page)?.fill(&found.markdown)?;
    stderr::note(format_args!("wrote {}; pictures beside it: {}", shown(&page), found.pictures.len()));
    Ok(())
}

/// The ladders of `rows`, one below the other, as one picture.
pub(crate) fn ladders(rows: Vec<Row>) -> String {
    let pictures = pictures(&[Source { label: "measured".to_owned(), rows }]).into_iter().map(|picture| picture.svg);
    <[String; 1]>::try_from(pictures.collect::<Vec<_>>()).map_or_else(|several| stack(&several), |[one]| one)
}

fn read(path: &Path) -> Result<Vec<Row>> {
    let file = fs::read(path).with_context(|| format!("cannot read {}", shown(path)))?;
    let rows = Row::read(&file).map_err(|error| anyhow::anyhow!("{}: {error}", shown(path)))?;
    ensure!(!rows.is_empty(), "{} has no rows; `tailrace bench ... --out FILE` writes them", shown(path));
    Ok(rows)
}

/// What pictures call the rows of a file: its name, numbered where another has the same.
fn label(path: &Path, others: &[Source]) -> String {
    let name = stem(path);
    let numbered = (2..).map(|number| format!("{name} ({number})"));
    let is_free = |label: &String| others.iter().all(|other| other.label != *label);
    std::iter::once(name.clone()).chain(numbered).find(is_free).unwrap_or(name)
}

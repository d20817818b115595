//! Pictures of ladders.

use std::collections::{BTreeMap, BTreeSet};

use super::{At, Picture, Source, cells, gib, is_rung, newest};
use crate::Row;
use crate::chart::{Heading, Ladder, LadderRun, RunRates, ladder};

/// Characters of a file's name that come from rows.
const NAME_CHARS_MAX: usize = 100;

/// A picture of each ladder in `sources`, oldest first: in each, one series for each source.
pub fn pictures(sources: &[Source]) -> Vec<Picture> {
    by_ladder(sources).into_values().collect()
}

/// The same by ladder.
pub(super) fn by_ladder(sources: &[Source]) -> BTreeMap<At<'_>, Picture> {
    let mut ladders: BTreeMap<At<'_>, Vec<(&str, Vec<&Row>)>> = BTreeMap::new();
    for source in sources {
        let mut of_source: BTreeMap<At<'_>, Vec<&Row>> = BTreeMap::new();
        for row in newest(source.rows.iter()).into_iter().filter(|row| is_rung(row)) {
            of_source.entry(At::of(row)).or_default().push(row);
        }
        for (at, rungs) in of_source {
            ladders.entry(at).or_default().push((&source.label, rungs));
        }
    }
    let several = ladders.keys().map(|at| at.device).collect::<BTreeSet<_>>().len() > 1;
    let mut taken = BTreeSet::new();
    let mut pictures = BTreeMap::new();
    for (at, runs) in ladders {
        let file = file_name(&at, several, &mut taken);
        let svg = draw(&at, &runs);
        pictures.insert(at, Picture { file, svg });
    }
    pictures
}

fn draw(at: &At<'_>, runs: &[(&str, Vec<&Row>)]) -> String {
    let commits = |rungs: &[&Row]| {
        let mut commits: Vec<String> = rungs.iter().map(|rung| rung.commit.clone()).collect();
        commits.dedup();
        commits.join(", ")
    };
    let mut all: Vec<String> = runs.iter().map(|(_, rungs)| commits(rungs)).collect();
    all.dedup();
    let title = format!("{}, {} after {} cells", at.shape, at.phase(), cells(at.depth_tokens));
    let subtitle = format!("{}, commit {}", at.device, all.join("; "));
    let runs = runs.iter().map(|(label, rungs)| run(label, rungs)).collect();
    ladder(&Ladder { heading: Heading { title, subtitle }, runs })
}

/// One series. What is resident, and the laws, are those of the run that the last rung is from.
fn run(label: &str, rungs: &[&Row]) -> LadderRun {
    let rates = rungs.last().and_then(|rung| rates(rung));
    let resident = rates.map(|rates| (0.0, rates.step_tokens / rates.resident_ms * 1e3));
    let mut points: Vec<_> = resident.into_iter().collect();
    points.extend(rungs.iter().filter_map(|rung| Some((gib(rung.tail_bytes?), rung.tokens_per_s?))));
    LadderRun { label: label.to_owned(), points, rates }
}

fn rates(rung: &Row) -> Option<RunRates> {
    Some(RunRates {
        step_tokens: rung.tokens_per_s? * rung.step_ms? / 1e3,
        resident_ms: rung.resident_ms?,
        // Without a link there is no law with a tail, but there still is a resident step.
        link_gb_s: rung.link_gb_s.unwrap_or(0.0),
        link_loaded_gb_s: rung.link_loaded_gb_s.unwrap_or(0.0),
    })
}

/// A name that no other picture has. It is safe in any folder and any link, whatever shapes and devices are called.
fn file_name(at: &At<'_>, with_device: bool, taken: &mut BTreeSet<String>) -> String {
    let device = if with_device { format!("{}-", at.device) } else { String::new() };
    let sampled = if at.sampled { "-sampled" } else { "" };
    let name = format!("{device}{}", at.shape);
    let safe = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(safe).take(NAME_CHARS_MAX).collect();
    // A dot in front hides a file.
    let name = name.trim_start_matches(['.', '-']);
    let name =
        format!("{}-{}-{}{sampled}", if name.is_empty() { "model" } else { name }, at.phase, cells(at.depth_tokens));
    let mut file = format!("{name}.svg");
    let mut number = 2;
    while !taken.insert(file.clone()) {
        file = format!("{name}-{number}.svg");
        number += 1;
    }
    file
}

//! Plain lines.

use super::Heading;
use super::axis::{Scale, is_linear};
use super::frame::{Frame, Sample};
use super::svg::{At, Stroke, colour};

/// A chart of lines, such as perplexity by chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// What is above it.
    pub heading: Heading,
    /// What the axes show, with units.
    pub x_label: String,
    /// The same for the other axis.
    pub y_label: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line through points, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// What the legend calls it.
    pub label: String,
    /// The points; one that has no place (not a number, infinite) is a gap.
    pub points: Vec<(f64, f64)>,
}

/// Draws lines over linear axes. A point between two gaps is a mark.
pub fn lines(chart: &Lines) -> String {
    let points = || chart.lines.iter().flat_map(|line| &line.points).filter(|point| has_place(point));
    let x = Scale::linear(points().map(|point| point.0));
    let y = Scale::linear(points().map(|point| point.1));
    let legend = chart.lines.iter().enumerate().map(|(i, line)| (Sample::Line(stroke(i)), line.label.clone()));
    let frame =
        Frame { heading: &chart.heading, x_label: &chart.x_label, y_label: &chart.y_label, legend: legend.collect() };
    let mut plot = match frame.draw(x, y) {
        Ok(plot) => plot,
        Err(finished) => return finished,
    };
    for (i, line) in chart.lines.iter().enumerate() {
        for piece in line.points.split(|point| !has_place(point)) {
            let piece: Vec<At> = piece.iter().map(|&point| plot.at(point)).collect();
            match piece[..] {
                [] => {}
                [at] => plot.canvas.mark(i, at, &line.label),
                _ => plot.canvas.path(&thin(&piece), stroke(i)),
            }
        }
    }
    plot.canvas.end()
}

fn has_place(&(x, y): &At) -> bool {
    is_linear(x) && is_linear(y)
}

fn stroke(index: usize) -> Stroke {
    Stroke { colour: colour(index), width: 1.5, dashes: ["", "8 5", "2 4"][index / 6 % 3] }
}

/// The same line with at most four points for each pixel of its way: the first, the lowest, the highest and the last in it.
fn thin(points: &[At]) -> Vec<At> {
    let mut kept = Vec::new();
    for column in points.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        let by_height = |a: &usize, b: &usize| column[*a].1.total_cmp(&column[*b].1);
        let extreme = [(0..column.len()).min_by(by_height), (0..column.len()).max_by(by_height)];
        let mut indices: Vec<usize> = extreme.into_iter().flatten().chain([0, column.len() - 1]).collect();
        indices.sort_unstable();
        indices.dedup();
        kept.extend(indices.into_iter().map(|i| column[i]));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Lines {
        let line = Line { label: "a <line>".to_owned(), points };
        let heading = Heading { title: "t".to_owned(), subtitle: String::new() };
        Lines { heading, x_label: "chunk".to_owned(), y_label: "perplexity".to_owned(), lines: vec![line] }
    }

    /// Points of each line, and the number of marks.
    fn drawn(chart: &Lines) -> (Vec<usize>, usize) {
        let svg = lines(chart);
        assert_eq!(svg, lines(chart));
        let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
        let of_line = document.descendants().filter(|node| node.attribute("stroke") == Some(colour(0)));
        let points = of_line.filter_map(|node| node.attribute("points")).map(|points| points.split(' ').count());
        let marks = document.descendants().filter(|node| node.has_tag_name("circle")).count();
        (points.collect(), marks)
    }

    #[test]
    fn what_has_no_place_is_a_gap() {
        let gap = (2.0, f64::NAN);
        // The first line is the legend's.
        assert_eq!(
            drawn(&chart(vec![(0.0, 1.0), (1.0, 2.0), gap, (3.0, 1.0), (4.0, 1.0), (5.0, 0.0)])),
            (vec![2, 2, 3], 0)
        );
        assert_eq!(drawn(&chart(vec![(0.0, 1.0), gap, (3.0, 1.0), (4.0, 1.0)])), (vec![2, 2], 1));
    }

    #[test]
    fn long_lines_stay_small_and_keep_their_peaks() {
        let mut points: Vec<_> = (0..100_000).map(|i| (f64::from(i), f64::from(i % 7))).collect();
        points[40_000].1 = 100.0;
        let svg = lines(&chart(points.clone()));
        assert!(svg.len() < 40_000, "{}", svg.len());
        let thinned = thin(&points.iter().map(|&(x, y)| (x / 200.0, y)).collect::<Vec<_>>());
        assert!(thinned.contains(&(200.0, 100.0)) && thinned.len() <= 4 * 500);
        assert_eq!((thinned.first(), thinned.last()), (Some(&(0.0, 0.0)), Some(&(99_999.0 / 200.0, 4.0))));
    }
}

//! Charts as SVG text.
//!
//! Every function here is total: values that cannot be drawn (not a number, infinite, not positive on a logarithmic axis) are left
//! out, and a chart without any says so. The same input gives the same bytes, so that pictures can be kept under version control.
//! The text is written here: plotters, read for this, has no ticks within a decade of a logarithmic axis, puts everything on whole
//! pixels, and asserts what input may break.

mod axis;
mod frame;
mod heat;
mod ladder;
mod lines;
mod svg;

pub use heat::{HeatMap, heat_map};
pub use ladder::{Ladder, LadderRun, RunRates, ladder};
pub use lines::{Line, Lines, lines};
pub use svg::stack;

/// What is above a chart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heading {
    /// The first line: what is shown.
    pub title: String,
    /// The second, smaller: what it was measured on, and with which program.
    pub subtitle: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "<a href=\"x\">&amp;'\u{0}\u{1b}[2J]]>\u{ffff}\u{202e}--\n";

    /// Text of all `text` elements of a picture that must be well-formed.
    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).expect("well-formed XML");
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.map(|node| node.text().unwrap_or_default().to_owned()).collect()
    }

    fn values() -> Vec<f64> {
        let tiny = f64::MIN_POSITIVE / 4.0;
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, tiny, -tiny];
        [&odd[..], &[0.0, -0.0, -1.0, 1.0, 1.0 + f64::EPSILON, 1e-9, 1e17, 1e99]].concat()
    }

    fn heading() -> Heading {
        Heading { title: HOSTILE.repeat(20), subtitle: HOSTILE.to_owned() }
    }

    #[test]
    fn any_value_anywhere_is_drawn_or_left_out() {
        let values = values();
        for &a in &values {
            for &b in &values {
                let points = vec![(a, b), (b, a)];
                let run = RunRates { step_tokens: a, resident_ms: b, link_gb_s: a, link_loaded_gb_s: b };
                let run = LadderRun { label: HOSTILE.to_owned(), points: points.clone(), rates: Some(run) };
                let drawn = ladder(&Ladder { heading: heading(), runs: vec![run] });
                assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{a} {b}");
                texts(&drawn);
                let line = Line { label: HOSTILE.to_owned(), points };
                let drawn = lines(&Lines { heading: heading(), lines: vec![line], ..Lines::default() });
                assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{a} {b}");
                texts(&drawn);
            }
        }
        texts(&heat_map(&HeatMap { values: vec![values.clone(), vec![]], ..HeatMap::default() }));
    }

    #[test]
    fn nothing_to_draw_is_said() {
        let empty = [ladder(&Ladder::default()), lines(&Lines::default()), heat_map(&HeatMap::default())];
        for svg in &empty {
            assert!(texts(svg).iter().any(|text| text == "nothing to draw"), "{svg}");
        }
        texts(&stack(&empty));
        texts(&stack(&[]));
    }
}

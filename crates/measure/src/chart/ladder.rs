//! Speed against the occupied tail, beside the laws.

use super::Heading;
use super::axis::{Scale, is_linear, is_logarithmic};
use super::frame::{Frame, Sample};
use super::svg::{At, GREY, Stroke, colour};
use crate::Laws;

/// A ladder: the same step with more and more of the cache in the tail.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ladder {
    /// What is above it.
    pub heading: Heading,
    /// Runs, one over the other.
    pub runs: Vec<LadderRun>,
}

/// One run of a ladder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LadderRun {
    /// What the legend calls it.
    pub label: String,
    /// What was measured: GiB of the occupied tail, and tokens per second.
    pub points: Vec<(f64, f64)>,
    /// What the laws are drawn from, all of the same run. Without it there are only points.
    pub rates: Option<RunRates>,
}

/// What the laws of a run need.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunRates {
    /// Tokens of a step: 1 in decode, a chunk in prefill.
    pub step_tokens: f64,
    /// The step with the whole cache resident, in ms.
    pub resident_ms: f64,
    /// The link alone, in GB/s.
    pub link_gb_s: f64,
    /// The link beside a busy device, in GB/s.
    pub link_loaded_gb_s: f64,
}

/// Dashes of a law and its name in the legend.
const LAWS: [(&str, &str); 3] =
    [("2 4", "resident: 1 / C"), ("", "overlapped: 1 / max(C, X/L)"), ("8 5", "serial: 1 / (C + X/L)")];

/// Places of a law that are computed.
const LAW_POINTS: u32 = 160;

impl RunRates {
    /// Tokens per second with `tail_gib` in the tail, by the laws in their order in the legend. Without a link only the first is known.
    fn speeds(&self, tail_gib: f64) -> [Option<f64>; 3] {
        let tail_bytes = (tail_gib * f64::from(1 << 30)) as u64;
        let (link, loaded) = (self.link_gb_s * 1e9, self.link_loaded_gb_s * 1e9);
        let laws = Laws::of(self.resident_ms, tail_bytes, link, loaded).filter(|_| link > 0.0);
        let times = [Some(self.resident_ms), laws.map(|laws| laws.overlapped_ms), laws.map(|laws| laws.serial_ms)];
        times.map(|ms| ms.map(|ms| self.step_tokens / ms * 1e3).filter(|&speed| is_logarithmic(speed)))
    }

    /// The curves of the laws from no tail to `tail_gib_max`.
    fn curves(&self, tail_gib_max: f64) -> [Vec<At>; 3] {
        let mut curves = [const { Vec::new() }; 3];
        for i in 0..=LAW_POINTS {
            let tail_gib = tail_gib_max * f64::from(i) / f64::from(LAW_POINTS);
            for (curve, speed) in curves.iter_mut().zip(self.speeds(tail_gib)) {
                curve.extend(speed.map(|speed| (tail_gib, speed)));
            }
        }
        curves
    }
}

/// Draws tokens per second, logarithmic, against GiB of the occupied tail: what was measured as points, the laws as lines in the colour
/// of their run.
pub fn ladder(ladder: &Ladder) -> String {
    let has_place = |&&(x, y): &&At| is_linear(x) && is_logarithmic(y);
    let points: Vec<Vec<At>> =
        ladder.runs.iter().map(|run| run.points.iter().filter(has_place).copied().collect()).collect();
    let tails = || points.iter().flatten().map(|point| point.0);
    let longest = tails().fold(0.0, f64::max);
    let curves: Vec<_> = ladder.runs.iter().map(|run| run.rates.map(|rates| rates.curves(longest))).collect();
    let lines = curves.iter().flatten().flatten().flatten();
    // Without a measurement the laws say nothing.
    let x = (tails().count() > 0).then(|| Scale::linear(tails().chain([0.0]))).flatten();
    let y = Scale::log(points.iter().flatten().chain(lines).map(|point| point.1));
    let frame = Frame {
        heading: &ladder.heading,
        x_label: "occupied tail X, GiB",
        y_label: "tokens/s, logarithmic",
        legend: legend(ladder, [0, 1, 2].map(|law| curves.iter().flatten().any(|curves| !curves[law].is_empty()))),
    };
    let mut plot = match frame.draw(x, y) {
        Ok(plot) => plot,
        Err(finished) => return finished,
    };
    for (i, curves) in curves.iter().enumerate() {
        for (curve, (dashes, _)) in curves.iter().flatten().zip(LAWS).filter(|(curve, _)| !curve.is_empty()) {
            plot.path(curve, Stroke { colour: colour(i), width: 1.5, dashes });
        }
    }
    for (i, (run, points)) in ladder.runs.iter().zip(&points).enumerate() {
        for &(tail_gib, speed) in points {
            let at = plot.at((tail_gib, speed));
            plot.canvas.mark(i, at, &format!("{}: {tail_gib:.2} GiB, {speed:.2} tokens/s", run.label));
        }
    }
    plot.canvas.end()
}

/// The runs, and those laws that are drawn.
fn legend(ladder: &Ladder, drawn: [bool; 3]) -> Vec<(Sample, String)> {
    let runs = ladder.runs.iter().enumerate().map(|(i, run)| (Sample::Mark(i), run.label.clone()));
    let laws = LAWS
        .into_iter()
        .zip(drawn)
        .filter(|&(_, drawn)| drawn)
        .map(|((dashes, name), _)| (Sample::Line(Stroke { colour: GREY, width: 1.5, dashes }), name.to_owned()));
    runs.chain(laws).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> RunRates {
        RunRates { step_tokens: 1.0, resident_ms: 10.0, link_gb_s: 50.0, link_loaded_gb_s: 40.0 }
    }

    fn two_runs() -> Ladder {
        let run = |label: &str, rates| LadderRun {
            label: label.to_owned(),
            points: vec![(0.0, 100.0), (2.0, 23.0), (4.0, f64::NAN)],
            rates,
        };
        let heading = Heading { title: "a model, decode".to_owned(), subtitle: "a device, commit c".to_owned() };
        Ladder { heading, runs: vec![run("before", Some(rates())), run("after", None)] }
    }

    #[test]
    fn laws_have_their_values() {
        // 5 GB take 100 ms.
        let speeds = rates().speeds(5e9 / f64::from(1 << 30));
        let expected = [100.0, 10.0, 1e3 / 110.0];
        assert!(speeds.iter().zip(expected).all(|(a, b)| a.is_some_and(|a| (a - b).abs() < 1e-6)), "{speeds:?}");
        assert_eq!(rates().speeds(0.0), [Some(100.0); 3]);
        // Half of the time of the resident step hides, and a step of many tokens is as many times as fast.
        let half = RunRates { step_tokens: 2048.0, ..rates() }.speeds(0.25e9 / f64::from(1 << 30));
        assert!(half[1] == half[0] && half[2].is_some_and(|speed| (speed - 204_800.0 / 1.5).abs() < 1e-2), "{half:?}");
        let without_link = RunRates { link_gb_s: 0.0, ..rates() };
        assert_eq!(
            (without_link.speeds(0.0), without_link.speeds(1.0)),
            ([Some(100.0), None, None], [Some(100.0), None, None])
        );
        let [resident, overlapped, serial] = rates().curves(4.0);
        assert!(resident.iter().all(|&(_, speed)| speed == 100.0));
        assert!(overlapped.iter().zip(&serial).all(|(o, s)| o.0 == s.0 && o.1 >= s.1));
        assert_eq!((serial[0], serial.len()), ((0.0, 100.0), LAW_POINTS as usize + 1));
    }

    #[test]
    fn points_are_marks_and_laws_are_lines() {
        let svg = ladder(&two_runs());
        assert_eq!(svg, ladder(&two_runs()));
        let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
        let count = |name: &str| document.descendants().filter(|node| node.has_tag_name(name)).count();
        let of_colour = |attribute: &str, index: usize| {
            document.descendants().filter(|node| node.attribute(attribute) == Some(colour(index))).count()
        };
        // Two measurements each, and the legend.
        assert_eq!((count("circle"), of_colour("fill", 1)), (3, 3));
        assert_eq!((of_colour("stroke", 0), of_colour("stroke", 1)), (3, 0));
        let texts: Vec<_> =
            document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|n| n.text()).collect();
        for expected in ["a model, decode", "a device, commit c", "before", "after", "occupied tail X, GiB", LAWS[2].1]
        {
            assert!(texts.contains(&expected), "{expected} in {texts:?}");
        }
    }

    #[test]
    fn laws_that_are_not_known_have_no_place_in_the_legend() {
        let mut ladder_of = two_runs();
        ladder_of.runs[0].rates = Some(RunRates { link_gb_s: 0.0, ..rates() });
        let svg = ladder(&ladder_of);
        assert!(svg.contains(LAWS[0].1) && !svg.contains(LAWS[1].1) && !svg.contains(LAWS[2].1), "{svg}");
    }

    #[test]
    fn more_is_higher_and_a_longer_tail_further_right() {
        let svg = ladder(&two_runs());
        let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
        let circles = document.descendants().filter(|node| node.has_tag_name("circle"));
        let number =
            |node: &roxmltree::Node<'_, '_>, name: &str| node.attribute(name).and_then(|n| n.parse::<f64>().ok());
        let at: Vec<_> = circles.map(|node| (number(&node, "cx"), number(&node, "cy"))).collect();
        // The first is the legend's.
        assert!(at[1].0 < at[2].0 && at[1].1 < at[2].1, "{at:?}");
    }
}

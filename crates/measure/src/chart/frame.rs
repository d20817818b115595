//! What charts of points share: heading, axes with their ticks, legend.

use super::Heading;
use super::axis::Scale;
use super::svg::{Anchor, At, Canvas, Font, GREY, GRID, INK, Stroke};

/// Pixels of a picture; many entries in the legend make it higher.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 460.0;
/// The area of the plot: from the left and the top, and what is left free on the right and below.
const LEFT: f64 = 78.0;
const TOP: f64 = 66.0;
const RIGHT: f64 = 270.0;
const BELOW: f64 = 58.0;
/// From one line of the legend to the next.
const ENTRY: f64 = 20.0;

/// How an entry of the legend looks in the plot.
pub(super) enum Sample {
    /// The mark of a series.
    Mark(usize),
    Line(Stroke),
}

/// A chart without its points.
pub(super) struct Frame<'a> {
    pub(super) heading: &'a Heading,
    /// What an axis shows, with its unit.
    pub(super) x_label: &'a str,
    pub(super) y_label: &'a str,
    pub(super) legend: Vec<(Sample, String)>,
}

/// Where points go.
pub(super) struct Plot {
    pub(super) canvas: Canvas,
    x: Scale,
    y: Scale,
    height: f64,
}

impl Plot {
    /// The place of a point.
    pub(super) fn at(&self, (x, y): At) -> At {
        (
            LEFT + self.x.share(x) * (WIDTH - LEFT - RIGHT),
            self.height - BELOW - self.y.share(y) * (self.height - TOP - BELOW),
        )
    }

    /// A line through points.
    pub(super) fn path(&mut self, points: &[At], stroke: Stroke) {
        let points: Vec<_> = points.iter().map(|&point| self.at(point)).collect();
        self.canvas.path(&points, stroke);
    }

    fn axes(&mut self, frame: &Frame<'_>) {
        let (right, bottom) = (WIDTH - RIGHT, self.height - BELOW);
        let grid = Stroke { colour: GRID, width: 1.0, dashes: "" };
        let font = |anchor| Font { pixels: 12, colour: INK, anchor };
        for (value, label) in self.x.ticks() {
            let x = self.at((value, self.y.low())).0;
            self.canvas.path(&[(x, TOP), (x, bottom)], grid);
            self.canvas.text((x, bottom + 18.0), &label, 12, font(Anchor::Middle));
        }
        for (value, label) in self.y.ticks() {
            let y = self.at((self.x.low(), value)).1;
            self.canvas.path(&[(LEFT, y), (right, y)], grid);
            self.canvas.text((LEFT - 8.0, y + 4.0), &label, 12, font(Anchor::End));
        }
        let ink = Stroke { colour: INK, width: 1.0, dashes: "" };
        self.canvas.path(&[(LEFT, TOP), (LEFT, bottom), (right, bottom)], ink);
        self.canvas.text(((LEFT + right) / 2.0, bottom + 42.0), frame.x_label, 80, font(Anchor::Middle));
        self.canvas.text((20.0, (TOP + bottom) / 2.0), frame.y_label, 50, font(Anchor::Upwards));
    }

    fn legend(&mut self, entries: &[(Sample, String)]) {
        let x = WIDTH - RIGHT + 18.0;
        for (i, (sample, label)) in entries.iter().enumerate() {
            let y = TOP + 10.0 + i as f64 * ENTRY;
            match sample {
                Sample::Mark(index) => self.canvas.mark(*index, (x + 14.0, y), label),
                Sample::Line(stroke) => self.canvas.path(&[(x, y), (x + 28.0, y)], *stroke),
            }
            let font = Font { pixels: 12, colour: INK, anchor: Anchor::Start };
            self.canvas.text((x + 36.0, y + 4.0), label, 32, font);
        }
    }
}

/// Draws the heading alone.
pub(super) fn heading(canvas: &mut Canvas, heading: &Heading) {
    let font = |pixels, colour| Font { pixels, colour, anchor: Anchor::Start };
    canvas.text((20.0, 28.0), &heading.title, 96, font(16, INK));
    canvas.text((20.0, 48.0), &heading.subtitle, 130, font(12, GREY));
}

impl Frame<'_> {
    /// Draws everything but points; without a scale there are none, which is said.
    ///
    /// # Errors
    ///
    /// The finished picture, where there is nothing to draw.
    pub(super) fn draw(&self, x: Option<Scale>, y: Option<Scale>) -> Result<Plot, String> {
        let height = HEIGHT.max(TOP + BELOW + ENTRY * self.legend.len() as f64);
        let mut canvas = Canvas::new((WIDTH, height), &self.heading.title);
        heading(&mut canvas, self.heading);
        let (Some(x), Some(y)) = (x, y) else {
            return Err(nothing(canvas, (WIDTH / 2.0, HEIGHT / 2.0)));
        };
        let mut plot = Plot { canvas, x, y, height };
        plot.axes(self);
        plot.legend(&self.legend);
        Ok(plot)
    }
}

/// Says that there is nothing, and ends the picture.
pub(super) fn nothing(mut canvas: Canvas, at: At) -> String {
    canvas.text(at, "nothing to draw", 40, Font { pixels: 14, colour: GREY, anchor: Anchor::Middle });
    canvas.end()
}

//! A grid of shares.

use super::Heading;
use super::frame;
use super::svg::{Anchor, At, Canvas, Font, GREY, INK};

/// A grid of values from 0 to 1, such as how often something was found by length and depth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeatMap {
    /// What is above it.
    pub heading: Heading,
    /// What columns differ in, with its unit.
    pub column_label: String,
    /// What rows differ in, with its unit.
    pub row_label: String,
    /// Columns, from the left.
    pub columns: Vec<String>,
    /// Rows, from the top.
    pub rows: Vec<String>,
    /// Values, one list for each row. One that is missing or not finite is an empty cell, one outside of 0 to 1 has the colour of
    /// the nearer end; those without a row or column are left out.
    pub values: Vec<Vec<f64>>,
}

/// Pixels.
const LEFT: f64 = 130.0;
const TOP: f64 = 92.0;
const CELL_HEIGHT: f64 = 30.0;
const WIDTH_MIN: f64 = 560.0;
/// The scale of colours on the right, and room for what is written beside it.
const SCALE: f64 = 90.0;
const BELOW: f64 = 24.0;
const STEPS: u32 = 20;

/// Colours from 0 to 1: brightness rises evenly and hues are blue and yellow, so that all readers see the same order (cividis).
const COLOURS: [[f64; 3]; 6] = [
    [0.0, 32.0, 77.0],
    [49.0, 68.0, 107.0],
    [102.0, 105.0, 112.0],
    [149.0, 143.0, 120.0],
    [203.0, 186.0, 105.0],
    [255.0, 234.0, 70.0],
];
/// From here on cells are so bright that black reads better on them than white.
const BRIGHT: f64 = 0.5;
/// A cell without a value.
const EMPTY: &str = "#eeeeee";

/// Draws the grid with the number in each cell.
pub fn heat_map(map: &HeatMap) -> String {
    let (columns, rows) = (map.columns.len() as f64, map.rows.len() as f64);
    let cell_width = (640.0 / columns.max(1.0)).clamp(44.0, 90.0);
    let (width, height) = ((LEFT + columns * cell_width + SCALE).max(WIDTH_MIN), TOP + rows * CELL_HEIGHT + BELOW);
    // The scale needs some height.
    let mut canvas = Canvas::new((width, height.max(TOP + 120.0)), &map.heading.title);
    frame::heading(&mut canvas, &map.heading);
    if map.columns.is_empty() || map.rows.is_empty() {
        return frame::nothing(canvas, (width / 2.0, TOP + 20.0));
    }
    labels(&mut canvas, map, cell_width);
    for r in 0..map.rows.len() {
        for c in 0..map.columns.len() {
            let at = (LEFT + c as f64 * cell_width, TOP + r as f64 * CELL_HEIGHT);
            let value = map.values.get(r).and_then(|row| row.get(c)).copied();
            cell(&mut canvas, at, cell_width, value.filter(|value| value.is_finite()));
        }
    }
    scale(&mut canvas, LEFT + columns * cell_width + 24.0);
    canvas.end()
}

fn labels(canvas: &mut Canvas, map: &HeatMap, cell_width: f64) {
    let font = |anchor| Font { pixels: 12, colour: INK, anchor };
    let (width, height) = (map.columns.len() as f64 * cell_width, map.rows.len() as f64 * CELL_HEIGHT);
    canvas.text((LEFT + width / 2.0, TOP - 26.0), &map.column_label, 60, font(Anchor::Middle));
    canvas.text((20.0, TOP + height / 2.0), &map.row_label, (height / 6.0) as usize + 8, font(Anchor::Upwards));
    for (c, label) in map.columns.iter().enumerate() {
        let x = LEFT + (c as f64 + 0.5) * cell_width;
        canvas.text((x, TOP - 8.0), label, (cell_width / 7.0) as usize, font(Anchor::Middle));
    }
    for (r, label) in map.rows.iter().enumerate() {
        let y = TOP + (r as f64 + 0.5) * CELL_HEIGHT + 4.0;
        canvas.text((LEFT - 8.0, y), label, 13, font(Anchor::End));
    }
}

fn cell(canvas: &mut Canvas, (x, y): At, width: f64, value: Option<f64>) {
    let fill = value.map_or(EMPTY.to_owned(), fill);
    // A pixel of white keeps neighbours apart.
    canvas.rect((x, y), (width - 1.0, CELL_HEIGHT - 1.0), &fill);
    let (text, colour) = match value {
        None => ("-".to_owned(), GREY),
        Some(value) => (number(value), if value < BRIGHT { "#ffffff" } else { "#000000" }),
    };
    let font = Font { pixels: 12, colour, anchor: Anchor::Middle };
    canvas.text((x + width / 2.0, y + CELL_HEIGHT / 2.0 + 4.0), &text, 9, font);
}

/// A value as it is written in a cell.
fn number(value: f64) -> String {
    if value.abs() < 1e3 { format!("{value:.2}") } else { format!("{value:.0e}") }
}

/// The colour of a value.
fn fill(value: f64) -> String {
    let place = value.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let low = (place as usize).min(COLOURS.len() - 2);
    let share = place - low as f64;
    let [r, g, b] =
        [0, 1, 2].map(|i| (COLOURS[low][i] + share * (COLOURS[low + 1][i] - COLOURS[low][i])).round() as u8);
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn scale(canvas: &mut Canvas, x: f64) {
    let step = 5.0;
    for i in 0..STEPS {
        let value = 1.0 - (f64::from(i) + 0.5) / f64::from(STEPS);
        canvas.rect((x, TOP + f64::from(i) * step), (14.0, step), &fill(value));
    }
    for (value, label) in [(0.0, "0"), (0.5, "0.5"), (1.0, "1")] {
        let y = TOP + (1.0 - value) * step * f64::from(STEPS) + 4.0;
        canvas.text((x + 20.0, y), label, 4, Font { pixels: 12, colour: INK, anchor: Anchor::Start });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> HeatMap {
        let strings = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        HeatMap {
            heading: Heading { title: "needles".to_owned(), subtitle: "a model".to_owned() },
            column_label: "length, tokens".to_owned(),
            row_label: "depth, %".to_owned(),
            columns: strings(&["4k", "<8k>", "16k"]),
            rows: strings(&["0", "50"]),
            values: vec![vec![0.0, 0.5, 1.0, 9.0], vec![2.0, f64::NAN]],
        }
    }

    #[test]
    fn every_cell_has_its_number_and_colour() {
        let svg = heat_map(&map());
        assert_eq!(svg, heat_map(&map()));
        let document = roxmltree::Document::parse(&svg).expect("well-formed XML");
        let texts: Vec<_> =
            document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|n| n.text()).collect();
        let expected = ["0.00", "0.50", "1.00", "2.00", "-", "-"];
        let found: Vec<_> = texts.iter().copied().filter(|text| expected.contains(text)).collect();
        assert_eq!(found, expected);
        for label in ["needles", "a model", "length, tokens", "depth, %", "4k", "<8k>", "16k", "50"] {
            assert!(texts.contains(&label), "{label} in {texts:?}");
        }
        let fills: Vec<_> = document.descendants().filter_map(|node| node.attribute("fill")).collect();
        let count = |colour: &str| fills.iter().filter(|&&fill| fill == colour).count();
        assert_eq!((count("#00204d"), count("#ffea46"), count(EMPTY)), (1, 2, 2));
    }

    #[test]
    fn colours_grow_brighter() {
        let brightness = |value: f64| {
            let text = fill(value);
            let part = |i: usize| u32::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal");
            2 * part(1) + 7 * part(3) + part(5)
        };
        let all: Vec<_> = (0..=100).map(|i| brightness(f64::from(i) / 100.0)).collect();
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]) && all[0] < all[100], "{all:?}");
        assert_eq!((fill(-1.0), fill(7.0)), (fill(0.0), fill(1.0)));
    }
}

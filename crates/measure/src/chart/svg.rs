//! SVG elements, one a line.

use std::fmt::{Display, Write};

/// Fonts that some machine in front of every reader has.
const FONTS: &str = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif";
/// Text, axes.
pub(super) const INK: &str = "#1a1a1a";
/// Lines behind what is measured.
pub(super) const GRID: &str = "#dddddd";
/// Explanations.
pub(super) const GREY: &str = "#555555";

/// Colours of series that the colour-blind tell apart (Okabe and Ito), dark enough for lines on white.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07800", "#000000"];

/// The colour of series `index`.
pub(super) fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// A place in pixels, from the upper left.
pub(super) type At = (f64, f64);

/// How a line is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stroke {
    pub(super) colour: &'static str,
    pub(super) width: f64,
    /// Pixels of dashes and gaps; empty for a solid line.
    pub(super) dashes: &'static str,
}

/// Where text is in relation to its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
    /// Middle, read upwards.
    Upwards,
}

/// How text is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Font {
    pub(super) pixels: u32,
    pub(super) colour: &'static str,
    pub(super) anchor: Anchor,
}

/// A picture that is being drawn.
pub(super) struct Canvas {
    out: String,
}

impl Canvas {
    /// A white picture, so that dark pages show it too; `title` is what is read out.
    pub(super) fn new((width, height): At, title: &str) -> Canvas {
        let mut canvas = Canvas { out: String::new() };
        canvas.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0}\" height=\"{1:.0}\" viewBox=\"0 0 {0:.0} {1:.0}\" \
             role=\"img\" font-family=\"{FONTS}\">",
            width, height
        ));
        canvas.put(format_args!("<title>{}</title>", escape(title)));
        canvas.rect((0.0, 0.0), (width, height), "#ffffff");
        canvas
    }

    /// The finished text.
    pub(super) fn end(mut self) -> String {
        self.put("</svg>");
        self.out
    }

    pub(super) fn rect(&mut self, (x, y): At, (width, height): At, fill: &str) {
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        ));
    }

    /// A line through `points`.
    pub(super) fn path(&mut self, points: &[At], stroke: Stroke) {
        let mut text = String::new();
        for (x, y) in points {
            let separator = if text.is_empty() { "" } else { " " };
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{x:.1},{y:.1}");
        }
        let Stroke { colour, width, dashes } = stroke;
        let dashes = if dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dashes}\"") };
        self.put(format_args!(
            "<polyline points=\"{text}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"{dashes}/>"
        ));
    }

    /// The mark of series `index`: shapes differ as colours do. `tip` is shown to whoever points at it.
    pub(super) fn mark(&mut self, index: usize, (x, y): At, tip: &str) {
        let fill = colour(index);
        let tip = escape(tip);
        let corners: &[At] = match index % 4 {
            0 => {
                self.put(format_args!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\"><title>{tip}</title></circle>"
                ));
                return;
            }
            1 => &[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)],
            2 => &[(0.0, -5.0), (4.6, 3.6), (-4.6, 3.6)],
            _ => &[(0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)],
        };
        let corners: Vec<_> = corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
        let corners = corners.join(" ");
        self.put(format_args!("<polygon points=\"{corners}\" fill=\"{fill}\"><title>{tip}</title></polygon>"));
    }

    /// One line of text. One that is longer than `chars_max` characters is cut, and is whole where a reader points at it.
    pub(super) fn text(&mut self, (x, y): At, text: &str, chars_max: usize, font: Font) {
        let Font { pixels, colour, anchor } = font;
        let (anchor, turned) = match anchor {
            Anchor::Start => ("start", false),
            Anchor::Middle => ("middle", false),
            Anchor::End => ("end", false),
            Anchor::Upwards => ("middle", true),
        };
        let turn = if turned { format!(" transform=\"rotate(-90 {x:.1} {y:.1})\"") } else { String::new() };
        let cut = cut(text, chars_max);
        let whole = if cut == text { String::new() } else { format!("<title>{}</title>", escape(text)) };
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{pixels}\" fill=\"{colour}\" text-anchor=\"{anchor}\"{turn}>{}{whole}</text>",
            escape(&cut)
        ));
    }

    fn put(&mut self, element: impl Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{element}");
    }
}

/// At most `chars_max` characters of `text`.
fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) => text.chars().take(chars_max.saturating_sub(1)).chain(['\u{2026}']).collect(),
    }
}

/// Text as XML: marks of the language are written as entities, and what no document may hold, or what would turn the direction of
/// reading, is replaced.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Pictures of this module, one below the other in one picture.
pub fn stack(pictures: &[String]) -> String {
    let sizes: Vec<At> =
        pictures.iter().map(|picture| (attribute(picture, "width"), attribute(picture, "height"))).collect();
    let width = sizes.iter().fold(0.0, |most: f64, size| most.max(size.0));
    let height = sizes.iter().map(|size| size.1).sum();
    let mut canvas = Canvas::new((width, height), "");
    let mut y = 0.0;
    for (picture, size) in pictures.iter().zip(&sizes) {
        canvas.put(picture.trim_end().replacen("<svg ", &format!("<svg y=\"{y:.0}\" "), 1));
        y += size.1;
    }
    canvas.end()
}

/// A number among the attributes of the first element; 0 where there is none.
fn attribute(picture: &str, name: &str) -> f64 {
    let behind = picture.split_once(&format!(" {name}=\"")).map_or("", |(_, behind)| behind);
    behind.split('"').next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_cut() {
        assert_eq!(escape("a<b>&\"'\u{1}\u{202e}\u{e9}"), "a&lt;b&gt;&amp;&quot;&apos;\u{fffd}\u{fffd}\u{e9}");
        assert_eq!(
            (cut("abc", 3), cut("abcd", 3), cut("\u{e9}\u{e9}", 1), cut("", 0)),
            ("abc".to_owned(), "ab\u{2026}".to_owned(), "\u{2026}".to_owned(), String::new())
        );
    }

    #[test]
    fn pictures_are_stacked() {
        let pictures = [Canvas::new((30.0, 20.0), "a").end(), Canvas::new((10.0, 50.0), "b").end()];
        let stacked = stack(&pictures);
        let document = roxmltree::Document::parse(&stacked).expect("well-formed XML");
        let root = document.root_element();
        assert_eq!((root.attribute("width"), root.attribute("height")), (Some("30"), Some("70")));
        let inner: Vec<_> =
            root.children().filter(|node| node.has_tag_name("svg")).map(|node| node.attribute("y")).collect();
        assert_eq!(inner, [Some("0"), Some("20")]);
    }
}

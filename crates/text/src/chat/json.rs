//! The `tojson` filter as `transformers` defines it: Python's `json.dumps`, without escapes for HTML.

use std::fmt::Write as _;
use std::io;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Spaces of indentation that a template may ask for.
const INDENT_MAX: usize = 64;

/// `json.dumps(value, ensure_ascii=False, ...)`. Options: `indent` (spaces), `separators` (item and key separator),
/// `ensure_ascii`, `sort_keys`.
pub(super) fn dump(value: &Value, options: &Kwargs) -> Result<String, Error> {
    let fail = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;

    let mut value = serde_json::to_value(value).map_err(fail)?;
    if sort_keys == Some(true) {
        value.sort_all_objects();
    }
    let mut text = Vec::new();
    match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(INDENT_MAX));
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, formatter)).map_err(fail)?;
        }
        None => {
            let [item, key] = match separators.as_deref() {
                Some([item, key]) => [item.as_str(), key.as_str()],
                Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson takes two separators")),
                None => [", ", ": "],
            };
            let formatter = Separated { item, key };
            value.serialize(&mut Serializer::with_formatter(&mut text, formatter)).map_err(fail)?;
        }
    }
    let text = String::from_utf8(text).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(if ensure_ascii == Some(true) { escape_non_ascii(&text) } else { text })
}

/// One line with the given separators.
struct Separated<'a> {
    item: &'a str,
    key: &'a str,
}

impl Formatter for Separated<'_> {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(self.item.as_bytes()) }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(self.item.as_bytes()) }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }
}

/// JSON in ASCII: other characters as `\uXXXX`, beyond the basic plane as two of them.
fn escape_non_ascii(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

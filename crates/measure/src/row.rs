//! One measured cell: a line of JSON, and a line for people.

use serde::{Deserialize, Serialize};
use tailrace_device::Rates;

use crate::Phase;

/// A measured cell. What a device does not have, or a run did not measure, is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured, the same for the same cell in every run.
    pub cell: String,
    /// Model: a shape's name with its weight type, or a file's name.
    pub shape: String,
    /// `decode`, `prefill` or `link`.
    pub phase: String,
    /// Cells before the measured steps.
    pub depth_tokens: u32,
    /// Cells in frames after them.
    pub window_cells: Option<u64>,
    /// Bytes of the occupied tail after them.
    pub tail_bytes: Option<u64>,
    /// Bytes that came from the tail for each step, counted.
    pub link_bytes: Option<u64>,
    /// Tokens per second.
    pub tokens_per_s: Option<f64>,
    /// A step: one token decoded, or one chunk of a prompt.
    pub step_ms: Option<f64>,
    /// The same step with the whole cache resident, from the same run.
    pub resident_ms: Option<f64>,
    /// Host to device, otherwise idle.
    pub link_gb_s: Option<f64>,
    /// The same while the device reads its memory.
    pub link_loaded_gb_s: Option<f64>,
    /// The device reading its own memory.
    pub device_read_gb_s: Option<f64>,
    /// Weights and cells that a step reads.
    pub bytes_per_step: Option<u64>,
    /// The resident step, then the transfer of the tail.
    pub law_serial_ms: Option<f64>,
    /// The longer of the two.
    pub law_overlapped_ms: Option<f64>,
    /// `step_ms / law_overlapped_ms`.
    pub ratio_overlapped: Option<f64>,
    /// Share of `step_ms` that reading `bytes_per_step` at `device_read_gb_s` takes.
    pub roofline_ratio: Option<f64>,
    /// Cap on device memory.
    pub vram_target_bytes: Option<u64>,
    /// Most device memory in use by the process, as the driver counts.
    pub driver_peak_bytes: Option<u64>,
    /// Commit of the program.
    pub commit: String,
    /// Name of the device.
    pub device: String,
}

/// The phase of a row of rates alone.
pub(crate) const LINK: &str = "link";

/// Why a line of a file of rows is no row.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line} is no row of a benchmark: {what}")]
pub struct LineError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

impl Row {
    /// The rows of a file: one JSON object a line, as [`Row::to_json`] writes them. Lines without anything are skipped, fields that are not
    /// known ignored; numbers that are missing are `None`.
    ///
    /// # Errors
    ///
    /// The first line that is no row.
    pub fn read(file: &[u8]) -> Result<Vec<Row>, LineError> {
        let lines = file.split(|&byte| byte == b'\n').enumerate();
        let lines = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
        lines.map(|(i, line)| Row::of_json(line).map_err(|what| LineError { line: i + 1, what })).collect()
    }

    /// The row of one line, or what is wrong with it.
    fn of_json(line: &[u8]) -> Result<Row, String> {
        let row: Row = serde_json::from_slice(line).map_err(|error| without_place(&error))?;
        let known = [Phase::Decode.name(), Phase::Prefill.name(), LINK];
        if known.contains(&row.phase.as_str()) {
            return Ok(row);
        }
        Err(format!("its phase is {:?}; known: {}", row.phase, known.join(", ")))
    }

    /// The row of a device and its link alone.
    pub fn of_link(rates: &Rates, device: &str, commit: &str) -> Row {
        let rate = |rate: f64| (rate > 0.0).then_some(rate / 1e9);
        Row {
            cell: "link".to_owned(),
            phase: LINK.to_owned(),
            link_gb_s: rate(rates.link),
            link_loaded_gb_s: rate(rates.link_loaded),
            device_read_gb_s: rate(rates.device_read),
            commit: commit.to_owned(),
            device: device.to_owned(),
            ..Row::default()
        }
    }

    /// The row as one line of JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings alone: nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The row as a line of the table under [`table_header`].
    pub fn to_line(&self) -> String {
        let number = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
        let gib = |value: Option<u64>| number(value.map(|bytes| bytes as f64 / f64::from(1 << 30)), 3);
        [
            format!("{:<52}", self.cell),
            format!("{:>9}", gib(self.tail_bytes)),
            format!("{:>9}", gib(self.link_bytes)),
            format!("{:>10}", number(self.tokens_per_s, 2)),
            format!("{:>9}", number(self.step_ms, 3)),
            format!("{:>9}", number(self.resident_ms, 3)),
            format!("{:>9}", number(self.law_overlapped_ms, 3)),
            format!("{:>7}", number(self.ratio_overlapped, 3)),
            format!("{:>7}", number(self.roofline_ratio, 3)),
            format!("{:>7}", number(self.link_gb_s, 1)),
            format!("{:>8}", number(self.device_read_gb_s, 0)),
            format!("{:>8}", gib(self.driver_peak_bytes)),
        ]
        .join(" ")
    }
}

/// An error of one line of JSON without "at line 1": its line is counted in the file.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).map_or(text.clone(), |what| format!("{what} (column {})", error.column()))
}

/// Heads of the columns of [`Row::to_line`]: memory in GiB, times in ms, rates in GB/s.
pub fn table_header() -> String {
    format!(
        "{:<52} {:>9} {:>9} {:>10} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>8} {:>8}",
        "cell", "tail", "link", "tokens/s", "step", "resident", "law", "ratio", "roof", "L", "D", "driver"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let row = Row::of_link(&Rates { link: 55e9, ..Rates::default() }, "d \"e\"", "c");
        Row { step_ms: Some(0.25), ..row }
    }

    #[test]
    fn fields_have_their_names_and_order() {
        let json = row().to_json();
        let names = "cell shape phase depth_tokens window_cells tail_bytes link_bytes tokens_per_s step_ms resident_ms \
             link_gb_s link_loaded_gb_s device_read_gb_s bytes_per_step law_serial_ms law_overlapped_ms ratio_overlapped \
             roofline_ratio vram_target_bytes driver_peak_bytes commit device";
        let parsed: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let found: Vec<_> = parsed.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(found, names.split_whitespace().collect::<Vec<_>>());
        assert!(json.contains("\"step_ms\":0.25") && json.contains("\"link_bytes\":null") && !json.contains('\n'));
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let rows = [row(), Row { phase: "decode".to_owned(), tail_bytes: Some(u64::MAX), ..row() }];
        let file = format!("{}\r\n\n{}", rows[0].to_json(), rows[1].to_json());
        assert_eq!(Row::read(file.as_bytes()), Ok(rows.to_vec()));
        let later = "{\"cell\":\"c\",\"shape\":\"\",\"phase\":\"link\",\"depth_tokens\":0,\"commit\":\"\",\"device\":\"\",\"new\":[1]}";
        assert_eq!(Row::read(later.as_bytes()).map(|rows| rows.len()), Ok(1));
        assert_eq!(Row::read(b" \n\n"), Ok(Vec::new()));
    }

    #[test]
    fn a_line_that_is_no_row_is_named() {
        let good = row().to_json();
        let phase = good.replace("\"link\",\"depth", "\"x\\ny\",\"depth");
        let huge = good.replace("0.25", "1e999");
        for (bad, says) in [
            (&b"hello"[..], "expected value"),
            (b"{}", "missing field `cell`"),
            (b"[1]", "invalid type"),
            (b"{\"cell\": 1}", "expected a string (column 10)"),
            (b"\xff", "expected value"),
            (&good.as_bytes()[..40], "EOF"),
            (phase.as_bytes(), "its phase is \"x\\ny\"; known: decode, prefill, link"),
            (huge.as_bytes(), "out of range"),
        ] {
            let file = [good.as_bytes(), b"\n\n", bad, b"\n"].concat();
            let error = Row::read(&file).expect_err("a bad line").to_string();
            assert!(error.starts_with("line 3 is no row of a benchmark: ") && error.contains(says), "{error}");
            assert!(error.lines().count() == 1 && !error.contains("at line"), "{error}");
        }
    }

    #[test]
    fn lines_fit_their_header() {
        assert_eq!(row().to_line().len(), table_header().len());
    }
}

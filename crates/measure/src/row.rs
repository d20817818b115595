//! One measured cell: a line of JSON, and a line for people.

use serde::Serialize;
use tailrace_device::Rates;

/// A measured cell. What a device does not have, or a run did not measure, is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// What was measured, the same for the same cell in every run.
    pub cell: String,
    /// Model: a shape's name with its weight type, or a file's name.
    pub shape: String,
    /// `decode`, `prefill` or `link`.
    pub phase: &'static str,
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

impl Row {
    /// The row of a device and its link alone.
    pub fn of_link(rates: &Rates, device: &str, commit: &str) -> Row {
        let rate = |rate: f64| (rate > 0.0).then_some(rate / 1e9);
        Row {
            cell: "link".to_owned(),
            phase: "link",
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
    fn lines_fit_their_header() {
        assert_eq!(row().to_line().len(), table_header().len());
    }
}

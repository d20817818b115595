//! The cap bounds what is really used, and what is used is what the plan says.

use serde_json::Value;

use crate::common::{largest, letters, number, run_with_stats, tailrace};

const PAGE: u64 = 4096;

/// A cell of the model, all layers.
const CELL_BYTES: u64 = 512;

/// Rows below this are compared to a page: rounding is a large part of them.
const SMALL: u64 = 64 << 10;

fn rows(json: &Value) -> &Vec<Value> {
    json["rows"].as_array().expect("rows")
}

#[test]
fn rows_are_used_up_and_not_exceeded() {
    let model = largest();
    let limits = ["-m", &model, "-c", "4096", "-ub", "64", "--kv-window", "512"];
    let plan = tailrace(&[&["plan", "--json"], &limits[..]].concat()).ok().json();
    let cap = number(&plan, "device_bytes");
    let cap_bytes = format!("{cap}B");
    let capped = [&limits[..], &["--vram-target", &cap_bytes]].concat();

    let prompt = letters(3800);
    let full = ["-p", &prompt, "--ignore-eos", "--temp", "0"];
    let (output, stats) = run_with_stats(&[&capped[..], &full].concat());
    let output = output.ok();
    assert!(output.stderr.contains("stopped at the end of the context"), "{}", output.stderr);
    assert_eq!(rows(&stats).len(), rows(&plan).len(), "a row in use is a row of the plan");
    for (row, planned) in rows(&stats).iter().zip(rows(&plan)) {
        let (used, bytes) = (number(row, "used_bytes"), number(row, "bytes"));
        assert_eq!((&row["name"], bytes), (&planned["name"], number(planned, "bytes")));
        assert!(used <= bytes, "{row}");
        // The tail has a place for each block of a sequence; those of the window stay empty.
        let bytes = if row["name"] == "tail" { number(&plan, "tail_cells_max") * CELL_BYTES } else { bytes };
        let slack = if bytes < SMALL { PAGE } else { bytes / 50 };
        assert!(used + slack >= bytes, "{row} is used to less than its plan");
    }
    let device = rows(&stats).iter().filter(|row| row["room"] == "device");
    assert!(device.map(|row| number(row, "used_bytes")).sum::<u64>() <= cap);

    // Nothing grows beside the rows: what the process holds without them is what it holds after a word.
    let (_, short) = run_with_stats(&[&capped[..], &["-p", "hi", "-n", "0"]].concat());
    let (filled, idle) = (number(&stats, "process_bytes"), number(&short, "process_bytes"));
    assert!(filled <= idle + (1 << 20), "{filled} bytes beside the rows, {idle} after a word");
}

//! `tailrace bench`.

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Output, largest, number, tailrace};

/// Rows of `tailrace bench` on the CPU.
fn bench(args: &[&str]) -> Vec<Value> {
    let output = run(args).ok();
    output.text().lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

fn run(args: &[&str]) -> Output {
    tailrace(&[&["bench"], args, &["--device", "cpu", "-t", "1"]].concat())
}

#[test]
fn a_ladder_of_a_file() {
    let model = largest();
    let args =
        ["ladder", "-m", &model, "--depth", "6k", "--fill", "-ub", "64", "-n", "4", "-r", "1", "--commit", "abc"];
    // 512 bytes a cell: eight blocks are 1 MiB.
    let rows = bench(&[&args[..], &["--phase", "decode,prefill", "--tail", "1M"]].concat());
    let cells: Vec<_> = rows.iter().map(|row| row["cell"].as_str().expect("a name")).collect();
    let cell = |phase: &str, variant: &str| format!("qwen3-partial/{phase}/6144/{variant}");
    assert_eq!(
        cells,
        [
            cell("decode", "resident"),
            cell("decode", "tail-1M"),
            cell("prefill", "resident"),
            cell("prefill", "tail-1M")
        ]
    );
    for pair in rows.chunks_exact(2) {
        let (resident, spilled) = (&pair[0], &pair[1]);
        assert_eq!((number(resident, "tail_bytes"), number(resident, "link_bytes")), (0, 0));
        assert_eq!(number(spilled, "tail_bytes"), 1 << 20, "{spilled}");
        assert!(number(spilled, "link_bytes") >= 7 << 17, "{spilled}");
        assert_eq!((&spilled["resident_ms"], &spilled["commit"]), (&resident["step_ms"], &Value::from("abc")));
        for key in ["tokens_per_s", "step_ms", "device_read_gb_s", "roofline_ratio"] {
            assert!(resident[key].as_f64().is_some_and(|value| value > 0.0), "{key} in {resident}");
        }
    }
}

#[test]
fn depths_of_a_shape_are_appended_to_a_file() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("rows.jsonl");
    let path = file.to_str().expect("UTF-8");
    let args = ["-c", "600", "-n", "2", "-r", "1", "--out", path, "--shape", "smollm2-135m:q8_0"];
    assert!(bench(&[&["decode", "--depth", "256,0", "--sampled"], &args[..]].concat()).is_empty());
    assert!(bench(&[&["prefill", "-ub", "32"], &args[..]].concat()).is_empty());
    let rows = std::fs::read_to_string(&file).expect("rows were written");
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let cells: Vec<_> = rows.iter().map(|row| row["cell"].as_str().expect("a name")).collect();
    let cell = |rest: &str| format!("smollm2-135m:q8_0/{rest}");
    assert_eq!(
        cells,
        [cell("decode/0/resident/sampled"), cell("decode/256/resident/sampled"), cell("prefill/0/resident")]
    );
    assert_eq!(number(&rows[1], "window_cells"), 256 + 1 + 8 + 2 - 1);
}

#[test]
fn rates_need_no_model() {
    let rows = bench(&["link"]);
    assert_eq!((rows.len(), &rows[0]["cell"], &rows[0]["shape"]), (1, &Value::from("link"), &Value::from("")));
}

#[test]
fn a_device_that_is_not_there() {
    let link = |device: &str| tailrace(&["bench", "link", "--device", device]);
    let unknown = link("gpu");
    assert!(unknown.code == Some(2) && unknown.stderr.contains("known: auto, cpu, cuda, cuda:N"), "{}", unknown.stderr);
    // Whether for want of a driver, of kernels or of so many cards.
    let absent = link("cuda:99");
    assert_eq!((absent.code, absent.text(), absent.stderr.lines().count()), (Some(1), "", 1), "{}", absent.stderr);
    assert!(absent.stderr.contains("no GPU can be used: "), "{}", absent.stderr);
}

#[test]
fn what_cannot_be_measured() {
    let model = largest();
    for (args, code, says) in [
        (&["decode"][..], 2, "--model"),
        (&["decode", "-m", &model, "--shape", "x"], 2, "cannot be used with"),
        (&["decode", "--shape", "gpt-5:q8_0"], 1, "known: "),
        (&["decode", "-m", &model, "--depth", "many"], 2, "no number of tokens"),
        (&["decode", "-m", &model, "--depth", "400", "-c", "410"], 1, "raise -c"),
        (&["decode", "-m", &model, "-np", "2"], 1, "one sequence"),
        (&["ladder", "-m", &model], 1, "--tail"),
        (&["ladder", "-m", &model, "--targets", "1B"], 1, "what fits"),
    ] {
        let output = run(args);
        assert_eq!(output.code, Some(code), "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{args:?}: {}", output.stderr);
    }
}

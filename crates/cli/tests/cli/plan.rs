//! `tailrace plan`.

use crate::common::{largest, model, number, tailrace};

#[test]
fn everything_resident() {
    let model = largest();
    for (args, cells) in [(&[][..], 512), (&["-c", "300"], 300), (&["-c", "0"], 512), (&["-c", "700", "-np", "2"], 700)]
    {
        let plan = tailrace(&[&["plan", "--json", "-m", &model], args].concat()).ok().json();
        for key in ["context_cells", "window_cells", "window_cells_decode"] {
            assert_eq!(number(&plan, key), cells, "{plan}");
        }
        assert_eq!(number(&plan, "tail_cells_max"), 0);
        assert!(plan["device_bytes_max"].is_null());
    }
}

#[test]
fn a_window() {
    let model = largest();
    let args = ["-m", &model, "-c", "8192", "-ub", "64", "--kv-window", "1024"];
    let plan = tailrace(&[&["plan", "--json"], &args[..]].concat()).ok().json();
    assert_eq!((number(&plan, "context_cells"), number(&plan, "window_cells")), (8192, 1024));
    assert!((1024..8192).contains(&number(&plan, "window_cells_decode")), "{plan}");
    assert_eq!(number(&plan, "tail_cells_max"), 8192 - 1024);
    let rows = plan["rows"].as_array().expect("rows");
    let sum = |room: &str| rows.iter().filter(|row| row["room"] == room).map(|row| number(row, "bytes")).sum::<u64>();
    assert_eq!(sum("device"), number(&plan, "device_bytes"));
    assert!(sum("host") >= number(&plan, "tail_cells_max") * 512, "{plan}");
    for row in rows {
        let product = number(row, "count") * number(row, "unit_bytes");
        assert_eq!(number(row, "bytes"), product.next_multiple_of(4096), "{row}");
    }
    // The same for people.
    let text = tailrace(&[&["plan"], &args[..]].concat()).ok();
    for part in ["context 8192 cells", "window 1024 cells in prefill", "tail up to 7168 cells", "tail (host)"] {
        assert!(text.text().contains(part), "{}", text.text());
    }
}

#[test]
fn the_least_cap_starts_and_a_byte_less_does_not() {
    for (name, rest) in [
        ("qwen3-partial", &["-c", "8192"][..]),
        ("gemma3", &["-c", "4096", "-ub", "96", "-np", "3"]),
        ("type-q4_k", &[]),
    ] {
        let model = model(name);
        let with_cap = |command: &[&str], bytes: u64| {
            tailrace(&[command, &["-m", &model, "--vram-target", &format!("{bytes}B")], rest].concat())
        };
        let refusal = with_cap(&["plan"], 1);
        assert_eq!(refusal.code, Some(1));
        let needed = refusal.stderr.split(" are needed").next().and_then(|text| text.rsplit("too small: ").next());
        let needed = needed.and_then(|text| text.split(' ').next()?.parse().ok()).expect("bytes that are needed");
        let plan = with_cap(&["plan", "--json"], needed).ok().json();
        assert!(number(&plan, "device_bytes") <= needed, "{plan}");
        assert_eq!(with_cap(&["plan"], needed - 1).code, Some(1));
        with_cap(&["run", "-p", "hi", "-n", "2"], needed).ok();
        assert_eq!(with_cap(&["run", "-p", "hi", "-n", "2"], needed - 1).code, Some(1));
    }
}

#[test]
fn more_memory_than_there_is_is_said() {
    let model = largest();
    let args = ["plan", "-m", &model, "-c", "1000000000"];
    let without = tailrace(&args).ok();
    assert!(without.stderr.contains("476.84 GiB, and"), "{}", without.stderr);
    assert!(without.stderr.contains("set a cap with --vram-target"), "{}", without.stderr);
    let with = tailrace(&[&args[..], &["--vram-target", "100"]].concat()).ok();
    assert!(
        !with.stderr.contains("set a cap") && with.stderr.contains("raise --host-mem or lower -c"),
        "{}",
        with.stderr
    );
}

#[test]
fn inspect_prints_metadata_and_tensors() {
    let model = largest();
    let short = tailrace(&["inspect", "-m", &model]).ok();
    for part in ["general.architecture = \"qwen3\"", "25 tensors", "2 layers, width 64, trained for 512 tokens"] {
        assert!(short.text().contains(part), "{}", short.text());
    }
    let long = tailrace(&["inspect", "-m", &model, "--tensors"]).ok();
    assert_eq!(long.text().lines().count(), short.text().lines().count() + 25);
    assert!(long.text().contains("token_embd.weight"), "{}", long.text());
}

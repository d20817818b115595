//! `tailrace plan`.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use tailrace_gguf::{Gguf, Writer};
use tempfile::TempDir;

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

/// How much wider the feed-forward part of [`vast_model`] is than that of the golden model.
const WIDER: u64 = 1 << 17;

/// The header of a golden model with a far wider feed-forward part, and a hole where its weights belong.
fn vast_model(file: &mut File) {
    let gguf = Gguf::open(largest()).expect("a golden model");
    let mut metadata = gguf.metadata().clone();
    let ffn = 96 * WIDER;
    metadata.insert("qwen3.feed_forward_length", ffn as u32);
    // The writer pads to the alignment. A note of the right length leaves it nothing to pad.
    let keys = |note: usize| {
        let mut writer = Writer::with_metadata(metadata.clone());
        writer.set("general.note", "x".repeat(note).as_str()).to_bytes()
    };
    let mut header = (0..64).map(keys).find(|bytes| {
        let note = bytes.iter().rev().take_while(|&&byte| byte == b'x').count();
        keys(note + 1).len() > bytes.len()
    });
    let header = header.as_mut().expect("a length that needs no padding");
    header[8..16].copy_from_slice(&(gguf.tensors().len() as u64).to_le_bytes());
    let mut offset = 0u64;
    for tensor in gguf.tensors() {
        let shape: Vec<u64> = tensor.shape().iter().map(|&len| if len == 96 { ffn } else { len }).collect();
        header.extend((tensor.name.len() as u64).to_le_bytes());
        header.extend(tensor.name.as_bytes());
        header.extend((shape.len() as u32).to_le_bytes());
        header.extend(shape.iter().flat_map(|len| len.to_le_bytes()));
        header.extend((tensor.ty as u32).to_le_bytes());
        header.extend(offset.to_le_bytes());
        let bytes = tensor.ty.block().bytes_of(shape.iter().product()).expect("whole blocks");
        offset += bytes.next_multiple_of(32);
    }
    header.resize(header.len().next_multiple_of(32), 0);
    file.write_all(header).expect("a file");
    file.set_len(header.len() as u64 + offset).expect("a sparse file");
}

#[test]
fn weights_are_not_read() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("vast.gguf");
    vast_model(&mut File::create(&path).expect("a file"));
    let started = std::time::Instant::now();
    let plan = tailrace(&["plan", "--json", "-m", path.to_str().expect("UTF-8"), "-c", "4096"]).ok().json();
    let weights = plan["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["name"] == "weights"));
    assert!(number(weights.expect("weights"), "bytes") > 9 << 30, "{plan}");
    assert!(started.elapsed() < Duration::from_secs(2), "10 GB take longer to read than {:?}", started.elapsed());
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

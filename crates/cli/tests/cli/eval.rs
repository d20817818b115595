//! `tailrace eval`.

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Output, command, largest, model, needle_model, tailrace};

/// A folder with a text of some thousand tokens for the golden models.
struct Texts {
    folder: TempDir,
}

impl Texts {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let text: String = (0..900).map(|i| format!("line {} of {}\n", i * 7919 % 1000, i)).collect();
        std::fs::write(folder.path().join("text"), text).expect("a text");
        std::fs::write(folder.path().join("short"), "a few words").expect("a text");
        Texts { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }
}

fn eval(args: &[&str]) -> Output {
    tailrace(&[&["eval"], args, &["--device", "cpu", "-t", "1"]].concat())
}

/// The rows of an evaluation that succeeds.
fn rows(args: &[&str]) -> Vec<Value> {
    let output = eval(&[args, &["--json"]].concat()).ok();
    output.text().lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

fn float(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("no {key} in {row}"))
}

#[test]
fn a_perplexity_is_that_of_the_saved_logits() {
    let (texts, model) = (Texts::new(), largest());
    let (text, saved) = (texts.path("text"), texts.path("logits"));
    // The first chunk, once as perplexity and once as exact logits whose scores are summed up here.
    let found = &rows(&["ppl", "-m", &model, "-f", &text, "-c", "256", "--chunks", "1"])[0];
    let args = ["logits", "-m", &model, "-f", &text, "--tokens", "256", "--sequences", "1", "--steps", "0"];
    eval(&[&args[..], &["--save", &saved]].concat()).ok();
    let bytes = std::fs::read(&saved).expect("logits");
    let end = bytes.iter().position(|&b| b == b'\n').expect("a line");
    let header: Value = serde_json::from_slice(&bytes[..end]).expect("JSON");
    let tokens: Vec<usize> = serde_json::from_value(header["sequences"][0].clone()).expect("tokens");
    let vocab = header["vocab"].as_u64().expect("a number") as usize;
    let floats: Vec<f64> =
        bytes[end + 1..].chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect();
    let nll = |position: usize| {
        let row = &floats[position * vocab..(position + 1) * vocab];
        row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[tokens[position + 1]]
    };
    let mean = (128..255).map(nll).sum::<f64>() / 127.0;
    assert_eq!(found["tokens"], 127);
    assert!((float(found, "nll") - mean).abs() < 1e-5, "{found} {mean}");
    assert!((float(found, "ppl") - mean.exp()).abs() < 1e-3 * mean.exp());
}

#[test]
fn chunks_strides_and_windows() {
    let (texts, model) = (Texts::new(), largest());
    let (text, log) = (texts.path("text"), texts.path("rows"));
    let base = ["ppl", "-m", &model, "-f", &text, "-c", "512", "--chunks", "2"];
    let resident = &rows(&base)[0];
    assert_eq!(
        (&resident["chunks"], &resident["tokens"], &resident["tail_read_bytes"]),
        (&2.into(), &510.into(), &0.into())
    );
    let windowed = &rows(&[&base[..], &["--kv-window", "256", "-ub", "64", "--out", &log]].concat())[0];
    assert_eq!(windowed["ppl"], resident["ppl"]);
    let written = std::fs::read_to_string(&log).expect("rows");
    assert_eq!(serde_json::from_str::<Value>(written.trim()).expect("a row"), *windowed);
    let strided = &rows(&[&base[..], &["--stride", "128"]].concat())[0];
    assert_eq!((&strided["tokens"], &strided["stride"]), (&256.into(), &128.into()));
}

#[test]
fn a_model_does_not_diverge_from_itself() {
    let (texts, model) = (Texts::new(), largest());
    let (text, base) = (texts.path("text"), texts.path("base"));
    let ppl = &rows(&["ppl", "-m", &model, "-f", &text, "-c", "256", "--chunks", "2", "--save-logits", &base])[0];
    let picture = texts.path("kld.svg");
    let kld = &rows(&["kld", "-m", &model, "--base", &base, "--svg", &picture])[0];
    assert!(std::fs::read_to_string(&picture).expect("a picture").contains("mean divergence"));
    assert_eq!((&kld["tokens"], float(kld, "same_best")), (&ppl["tokens"], 1.0));
    assert!((float(kld, "ppl") - float(ppl, "ppl")).abs() < 1e-9 && float(&kld["kld"], "max").abs() < 1e-4, "{kld}");
    let table = eval(&["kld", "-m", &model, "--base", &base, "-ctk", "bf16", "--chunks", "1"]).ok();
    assert!(table.text().contains("KL divergence") && table.text().contains("over 127 tokens"), "{}", table.text());
}

#[test]
fn a_window_changes_no_bit_and_a_coarser_cache_does() {
    let (texts, model) = (Texts::new(), largest());
    let text = texts.path("text");
    // Chunks of 512 tokens would leave nothing in the tail: shorter ones are taken where none are named.
    let base = ["logits", "-m", &model, "-f", &text, "--tokens", "1100", "--sequences", "2", "--steps", "150"];
    let same = rows(&[&base[..], &["--against", "window=256", "--exact", "--bound", "mean_tv=0"]].concat());
    assert_eq!((&same[0]["identical"], &same[0]["positions"]), (&2200.into(), &2200.into()));
    assert!(same[0]["tail_read_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{}", same[0]);
    for settings in ["settings", "reference"] {
        assert!(same[0][settings].as_str().is_some_and(|words| words.contains("ubatch=64")), "{}", same[0]);
    }
    let named = eval(&[&base[..], &["-ub", "512", "--exact"]].concat());
    assert!(named.code == Some(1) && named.stderr.contains("nothing was read from the tail"), "{}", named.stderr);
    // Under a cap that everything fits into no chunk would help.
    let capped = &rows(&[&base[..], &["--against", "vram-target=1G"]].concat())[0];
    assert!(capped["settings"].as_str().is_some_and(|words| !words.contains("ubatch")), "{capped}");
    let other = eval(&[&base[..], &["--against", "ctk=bf16", "--exact", "--bound", "max_tv=1e-9"]].concat());
    assert_eq!(other.code, Some(1));
    assert!(other.stderr.contains("positions differ") && other.stderr.contains("max_tv is"), "{}", other.stderr);
    // What was found is printed although it is too much.
    assert!(other.text().contains("mean_tv"), "{}", other.text());
}

#[test]
fn saved_logits_are_a_reference_for_their_model() {
    let (texts, model_path) = (Texts::new(), largest());
    let (text, saved) = (texts.path("text"), texts.path("saved"));
    eval(&["logits", "-m", &model_path, "-f", &text, "--tokens", "1100", "--sequences", "2", "--save", &saved]).ok();
    let args = ["logits", "-m", &model_path, "--reference", &saved, "--kv-window", "256", "-ub", "96", "--exact"];
    let row = &rows(&args)[0];
    assert_eq!((&row["identical"], &row["frac_full_agree"]), (&2200.into(), &1.0.into()));
    let other = eval(&["logits", "-m", &model("type-q8_0"), "--reference", &saved]);
    assert!(other.code == Some(1) && other.stderr.contains("of another model"), "{}", other.stderr);
}

#[test]
fn requests_get_the_same_alone_and_in_company() {
    let (texts, model) = (Texts::new(), largest());
    let text = texts.path("text");
    let args = ["serve-same", "-m", &model, "-f", &text, "--requests", "3", "--tokens", "2000", "-n", "6"];
    let picture = texts.path("runs.svg");
    let found = rows(&[&args[..], &["--sampled", "--svg", &picture]].concat());
    assert!(std::fs::read_to_string(&picture).expect("a picture").contains("window, together"));
    let runs: Vec<_> =
        found.iter().map(|row| (row["run"].as_str().expect("a run"), &row["same"], &row["tokens"])).collect();
    let (three, all) = (&Value::from(3), &Value::from(18));
    let names = ["resident, alone", "resident, together", "window, alone", "window, together"];
    assert_eq!(runs, names.map(|name| (name, three, all)));
    assert!(found[3]["tail_read_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{}", found[3]);
}

#[test]
fn needles_by_length_and_depth() {
    let (texts, model) = (Texts::new(), largest());
    let picture = texts.path("grid.svg");
    let base = ["needle", "-m", &model, "--lengths", "500,1100", "--depths", "0,1", "--trials", "1"];
    let found = rows(&[&base[..], &["--kv-window", "256", "--same-as-resident", "--svg", &picture]].concat());
    let cells: Vec<_> = found.iter().map(|row| (float(row, "length"), float(row, "depth"))).collect();
    assert_eq!(cells, [(500.0, 0.0), (500.0, 1.0), (1100.0, 0.0), (1100.0, 1.0)]);
    assert!(found.iter().all(|row| float(row, "answer_log_prob") < 0.0), "{found:?}");
    assert!(std::fs::read_to_string(&picture).expect("a picture").starts_with("<svg"));
    // Weights are random: nothing is found, and that is said after the table.
    let failed = eval(&[&base[..], &["--kind", "word", "--last", "256", "--at-least", "0.5"]].concat());
    assert!(failed.code == Some(1) && failed.stderr.contains("0.0 % of the needles"), "{}", failed.stderr);
    assert!(failed.text().contains("percent found"), "{}", failed.text());
}

#[test]
fn what_cannot_be_evaluated_is_said_in_one_line() {
    let (texts, model) = (Texts::new(), largest());
    let (text, short) = (texts.path("text"), texts.path("short"));
    let (base, picture) = (texts.path("base"), texts.path("picture.svg"));
    eval(&["ppl", "-m", &needle_model("full"), "-f", &text, "-c", "64", "--chunks", "1", "--save-logits", &base]).ok();
    std::fs::write(&picture, "before").expect("a file");
    let cases: [(&[&str], &str); 25] = [
        (&["ppl", "-m", &model, "-f", &short], "1024 are needed"),
        (&["ppl", "-m", &model, "-f", "/nowhere"], "cannot read the text file"),
        (&["ppl", "-m", &model, "-f", &text, "-c", "512", "--kv-window", "512"], "a window of 512 cells is no smaller"),
        (&["ppl", "-m", &model, "-f", &text, "--stride", "512"], "a stride of 512"),
        (&["ppl", "-m", &model, "-f", &text, "--out", "/nowhere/rows"], "cannot write /nowhere/rows"),
        (&["kld", "-m", &model, "--base", &text], "no file of reference logits"),
        (&["logits", "-m", &model, "-f", &short], "a sequence needs 3072"),
        (&["logits", "-m", &model, "-f", &text, "--bound", "tv=1"], "unknown metric 'tv'"),
        (
            &["logits", "-m", &model, "-f", &text, "--tokens", "300", "--against", "colour=red"],
            "unknown setting 'colour'",
        ),
        (
            &["logits", "-m", &model, "-f", &text, "--tokens", "300", "--against", "window=300"],
            "no smaller than the context",
        ),
        (
            &["logits", "-m", &model, "-f", &text, "--tokens", "400", "--against", "window=256", "--exact"],
            "nothing was read from the tail",
        ),
        (&["needle", "-m", &model, "--lengths", "50"], "needles and a question"),
        (&["kld", "-m", &model, "--base", &base], "they are of another model"),
        (
            &[
                "logits",
                "-m",
                &model,
                "-f",
                &text,
                "--tokens",
                "400",
                "--against",
                "window=256",
                "--bound",
                "mean_tv=0",
            ],
            "nothing was read from the tail",
        ),
        (&["logits", "-m", &model, "-f", &text, "--tokens", "400", "--against", ""], "--against is empty"),
        (&["logits", "-m", &model, "-f", &text, "--save", &base, "--exact"], "cannot be used with"),
        (&["needle", "-m", &model, "--same-as-resident"], "add --kv-window CELLS or --vram-target SIZE"),
        (&["needle", "-m", &model, "--lengths", "4294967295"], "no context holds 4294967295 tokens"),
        (&["serve-same", "-m", &model, "-f", &text, "-n", "4294967295"], "no context holds 4 requests"),
        (&["serve-same", "-m", &model, "-f", &text, "--tokens", "600", "-n", "4"], "nothing was read from the tail"),
        (&["ppl", "-m", "/nowhere", "-f", &text, "--svg", &picture], "/nowhere"),
        (&["needle", "-m", &model, "--kind", "colour"], "unknown kind 'colour'"),
        (&["needle", "-m", &model, "--depths", "2"], "'2' is no share"),
        (&["serve-same", "-m", &model, "-f", &short], "take a longer text or lower --tokens"),
        (&["ppl", "-m", &model, "-f", &text, "--svg", "/nowhere/picture"], "cannot write /nowhere/picture"),
    ];
    for (args, says) in cases {
        let output = eval(args);
        // Notes may come before it, nothing after it.
        let last = output.stderr.lines().last().unwrap_or_default();
        assert!(output.code.is_some_and(|code| code != 0) && last.contains(says), "{args:?}: {}", output.stderr);
        let lines = output.stderr.lines().filter(|line| line.contains(says)).count();
        assert_eq!(lines, 1, "{args:?}: {}", output.stderr);
    }
    assert_eq!(std::fs::read_to_string(&picture).expect("a file"), "before", "nothing is lost to what was refused");
}

#[test]
fn a_verdict_is_not_lost_with_its_reader() {
    let (texts, model) = (Texts::new(), largest());
    let (text, rows) = (texts.path("text"), texts.path("rows"));
    let args =
        ["eval", "logits", "-m", &model, "-f", &text, "--tokens", "400", "--sequences", "1", "--exact", "-t", "1"];
    let args = [&args[..], &["--device", "cpu", "--against", "ctk=bf16", "--out", &rows]].concat();
    let mut child = command(&args).spawn().expect("the binary starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert_eq!(std::fs::read_to_string(&rows).expect("rows").lines().count(), 1);
}

#[test]
fn saved_logits_that_claim_too_much_are_refused() {
    let (texts, model) = (Texts::new(), largest());
    let (text, saved) = (texts.path("text"), texts.path("saved"));
    eval(&["logits", "-m", &model, "-f", &text, "--tokens", "100", "--sequences", "1", "--save", &saved]).ok();
    let bytes = std::fs::read(&saved).expect("logits");
    let end = bytes.iter().position(|&b| b == b'\n').expect("a line");
    let header: Value = serde_json::from_slice(&bytes[..end]).expect("JSON");
    for (key, value, says) in [
        ("vocab", Value::from(4_294_967_295_u32), "the model has"),
        ("vocab", Value::from(1000), "the model has"),
        ("sequences", Value::Array(Vec::new()), "no file of saved logits"),
    ] {
        let mut changed = header.clone();
        changed[key] = value;
        std::fs::write(&saved, [changed.to_string().as_bytes(), &bytes[end..]].concat()).expect("a file");
        let output = eval(&["logits", "-m", &model, "--reference", &saved]);
        assert!(output.code == Some(1) && output.stderr.contains(says), "{key}: {}", output.stderr);
    }
}

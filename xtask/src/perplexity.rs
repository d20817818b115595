//! `xtask perplexity FILE`: perplexities of a text beside those that another engine computed over the same chunks.
//!
//! The file names the text, which lies beside it, tokens of a chunk, how many chunks, and for each model the perplexity.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use tailrace_measure::eval::{Chunks, measure_perplexity};
use tailrace_plan::Limits;

use crate::drive::{self, Checked};

/// Largest difference, as a share of the recorded perplexity.
const DIFFERENCE_MAX: f64 = 0.005;

/// Rows of logits that are taken at a time.
const LOGIT_ROWS: u32 = 32;

/// Check perplexities against those in a file.
#[derive(clap::Args)]
pub struct Args {
    /// File of perplexities.
    file: PathBuf,
    #[command(flatten)]
    checked: Checked,
}

/// Runs of another engine over one text.
#[derive(Deserialize)]
struct Record {
    text: String,
    context: u32,
    chunks: u32,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    model: String,
    perplexity: f64,
}

impl Args {
    /// Runs the check; fails past the bound.
    pub fn run(self) -> Result<ExitCode> {
        let read =
            |path: &Path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let name = self.file.display();
        let record: Record =
            serde_json::from_str(&read(&self.file)?).with_context(|| format!("{name} is no file of perplexities"))?;
        let text = read(&self.file.with_file_name(&record.text))?;
        for model in &self.checked.models {
            ensure!(record.runs.iter().any(|run| run.model == *model), "{name} has no perplexity of {model}");
        }
        ensure!(!record.runs.is_empty(), "{name} has no perplexities");
        let mut good = true;
        for run in record.runs.iter().filter(|run| self.checked.wants(&run.model)) {
            let ratio = self.perplexity(run, &record, &text)? / run.perplexity;
            good &= (ratio - 1.0).abs() <= DIFFERENCE_MAX;
        }
        println!("{}", if good { "within the bound" } else { "FAILED" });
        Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn perplexity(&self, run: &Run, record: &Record, text: &str) -> Result<f64> {
        let model = drive::open(&self.checked.path(&run.model)?)?;
        let (tokens, bos) = (model.tokenizer.encode(text, true, false), model.tokenizer.leading_bos());
        let chunks = Chunks::new(tokens, record.context, 0, Some(record.chunks), bos)?;
        ensure!(
            chunks.count() == record.chunks as usize,
            "{} has {} chunks of {} tokens, {} were recorded",
            record.text,
            chunks.count(),
            record.context,
            record.chunks
        );
        let limits = Limits { logit_rows: LOGIT_ROWS, ..Limits::new(record.context) };
        let handle = drive::start(&model, &limits, &*drive::device(self.checked.device, self.checked.threads)?, false)?;
        let found = measure_perplexity(&handle, &chunks, &mut |_| (), &mut |_, _| Ok(()))?.ppl;
        let (name, recorded) = (&run.model, run.perplexity);
        println!("{name}: {found:.4}, recorded {recorded:.4}, ratio {:.5}", found / recorded);
        Ok(found)
    }
}

//! `tailrace eval serve-same`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;
use tailrace_engine::SamplingParams;
use tailrace_measure::eval::{Company, SameAnswers};

use super::{EMPTY_TAIL, Model, Output, OutputArgs, check_window, row, tail_read};
use crate::args::{LimitArgs, ModelArgs};
use crate::session::Session;

/// Cells of the window where none are named.
const WINDOW: u32 = 256;

#[derive(Debug, Args)]
pub(crate) struct CompanyArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text, from which prompts of several lengths are cut.
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Requests.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    requests: u32,
    /// Tokens of the longest prompt; the others are shorter.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(2..))]
    tokens: u32,
    /// Tokens to generate for each.
    #[arg(short = 'n', long = "predict", value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    predict: u32,
    /// Draw tokens with the default sampling, with a seed for each request, instead of taking the likeliest.
    #[arg(long)]
    sampled: bool,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &CompanyArgs) -> Result<()> {
    let mut output = Output::new(&args.output)?;
    let model = Model::open(&args.model)?;
    let company = company(args, &model)?;
    let of_one = args.tokens + args.predict;
    let limits = LimitArgs {
        context: Some(of_one * args.requests),
        parallel: args.requests,
        kv_window: None,
        ..args.model.limits.clone()
    };
    let windowed = LimitArgs { kv_window: Some(args.model.limits.kv_window.unwrap_or(WINDOW)), ..limits.clone() };
    check_window(&LimitArgs { context: Some(of_one), ..windowed.clone() })?;

    let mut reference = None;
    let mut broken = Vec::new();
    for (limits, memory) in [(&limits, "resident"), (&windowed, "window")] {
        let session = Session::evaluate(&model.open, limits, args.requests)?;
        for (company_name, answers) in
            [("alone", company.alone(&session.handle)), ("together", company.together(&session.handle))]
        {
            let answers = answers?;
            let same = SameAnswers::new(reference.get_or_insert_with(|| answers.clone()), &answers);
            let run = format!("{memory}, {company_name}");
            let mut row = row("serve-same", &model, (limits, &session), &same)?;
            row.insert("run".to_owned(), json!(run));
            let SameAnswers { requests, same: equal, tokens, first_difference } = &same;
            output.result(&format!("{run:<20} {equal} of {requests} requests the same, {tokens} tokens\n"), row)?;
            if let Some((request, token)) = first_difference {
                broken.push(format!("{run}: request {request} differs from token {token} on"));
            }
        }
        if limits.kv_window.is_some() && tail_read(&session)? == 0 {
            broken.push(EMPTY_TAIL.to_owned());
        }
        session.handle.stop();
    }
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    Ok(())
}

/// Requests whose prompts are pieces of the text, of a whole, a half, a third ... of the longest length.
fn company(args: &CompanyArgs, model: &Model) -> Result<Company> {
    let (text, count) = (model.tokens(&args.file)?, args.requests as usize);
    let lengths = (1..=count).map(|i| (args.tokens as usize / i).max(1));
    let needed: usize = lengths.clone().sum();
    ensure!(
        text.len() >= needed,
        "the text has {} tokens, {count} prompts of up to {} need {needed}; take a longer text or lower --tokens",
        text.len(),
        args.tokens
    );
    let mut rest = &text[..];
    let mut prompts = Vec::new();
    for length in lengths {
        let (prompt, behind) = rest.split_at(length);
        prompts.push(prompt.to_vec());
        rest = behind;
    }
    let sampling = if args.sampled { SamplingParams::default() } else { SamplingParams::greedy() };
    Ok(Company { prompts, tokens: args.predict, sampling })
}

//! `tailrace eval serve-same`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;
use tailrace_engine::SamplingParams;
use tailrace_measure::chart::{self, HeatMap};
use tailrace_measure::eval::{Company, SameAnswers};

use super::{
    EMPTY_TAIL, Model, NOT_RESIDENT, Output, OutputArgs, TailReads, check_window, heading, resident, row, spills,
    with_shorter_chunks,
};
use crate::args::{LimitArgs, ModelArgs};
use crate::picture::{Picture, PictureArgs};
use crate::session::{Progress, Session};

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
    #[command(flatten)]
    picture: PictureArgs,
}

pub(crate) fn run(args: &CompanyArgs) -> Result<()> {
    let (mut output, picture) = (Output::new(&args.output)?, Picture::new(&args.picture)?);
    let model = Model::open(&args.model)?;
    let company = company(args, &model)?;
    let given = &args.model.limits;
    ensure!(given.context.is_none(), "-c has no meaning here: the context is what the requests need");
    let of_one = args.tokens.checked_add(args.predict);
    let all = of_one.and_then(|tokens| tokens.checked_mul(args.requests));
    let context = all.with_context(|| {
        format!(
            "no context holds {} requests of {} and {} tokens; lower them",
            args.requests, args.tokens, args.predict
        )
    })?;
    let kv_window = if spills(given) { given.kv_window } else { Some(WINDOW) };
    let windowed = LimitArgs { context: Some(context), parallel: args.requests, kv_window, ..given.clone() };
    check_window(&LimitArgs { context: of_one, ..windowed.clone() })?;
    let windowed = with_shorter_chunks(&model, windowed, args.tokens);
    let limits = resident(&windowed);

    let (mut reference, mut broken) = (None, Vec::new());
    let (mut runs, mut shares, mut device) = (Vec::new(), Vec::new(), String::new());
    let (mut progress, all) = (Progress::new(), 4 * args.requests as usize);
    for (limits, memory) in [(&limits, "resident"), (&windowed, "window")] {
        let session = Session::evaluate(&model.open, limits, args.requests)?;
        let mut reads = TailReads::default();
        for company_name in ["alone", "together"] {
            let done = runs.len() * args.requests as usize;
            let show = &mut |count| progress.show("asking", (done + count) as f32 / all as f32);
            let answers = match company_name {
                "alone" => company.alone(&session.handle, show),
                _ => company.together(&session.handle, show),
            };
            progress.clear();
            let answers = answers?;
            let same = SameAnswers::new(reference.get_or_insert_with(|| answers.clone()), &answers);
            let run = format!("{memory}, {company_name}");
            let from_tail = reads.next(&session)?;
            match (spills(limits), from_tail) {
                (true, 0) => broken.push(format!("{run}: {EMPTY_TAIL}")),
                (false, 1..) => broken.push(format!("{run}: {NOT_RESIDENT}")),
                _ => {}
            }
            let mut row = row("serve-same", &model, (limits, &session), from_tail, &same)?;
            row.insert("run".to_owned(), json!(run));
            let SameAnswers { requests, same: equal, tokens, first_difference, .. } = &same;
            output.result(&format!("{run:<20} {equal} of {requests} requests the same, {tokens} tokens\n"), row)?;
            if let Some((request, token)) = first_difference {
                broken.push(format!("{run}: request {} differs from token {} on", request + 1, token + 1));
            }
            runs.push(run);
            shares.push(same.shares);
        }
        device.clone_from(&session.device);
        session.handle.stop();
    }
    let above = heading("Tokens that are the same alone and beside others", &model, &windowed, &device);
    picture.draw(|| {
        chart::heat_map(&HeatMap {
            heading: above,
            column_label: "request".to_owned(),
            row_label: "run".to_owned(),
            columns: (1..=args.requests).map(|request| request.to_string()).collect(),
            rows: runs,
            values: shares,
        })
    })?;
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

//! `xtask demo`: a real model answers from the tail of its cache.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use tailrace_engine::{Event, Request, SamplingParams};
use tailrace_plan::{Limits, Plan, RowKind};
use tailrace_types::Bytes;

use crate::{drive, model};

/// Fetch SmolLM2, and ask it about a long document of which most of the cache is in the tail.
#[derive(clap::Args)]
pub struct Args {
    /// Cells of the window that the cap must leave.
    #[arg(long, default_value_t = 512)]
    window: u32,
}

const MODEL: &str = "smollm2-135m";
const CONTEXT: u32 = 5120;
const QUESTION: &str =
    "\n\nQuestion: What is the name of the lighthouse keeper?\nAnswer: The name of the lighthouse keeper is";

/// What the document says near its beginning, thousands of tokens before the question.
const FACT: &str = "The lighthouse keeper's name is Tobias Wren. He has a blue boat called Juniper.";
const ANSWER: &str = "Tobias Wren";

const SENTENCES: [&str; 25] = [
    "The harbour woke slowly that morning.",
    "Gulls walked along the wall and complained about the wind.",
    "A cart of salt stood in front of the chandlery.",
    "Nobody had repaired the third lamp on the quay.",
    "Old ropes lay in neat coils beside the winch.",
    "The ferry left at nine with eleven passengers and a goat.",
    "Two apprentices argued about the price of tar.",
    "Rain came in from the west and went out again.",
    "The baker sent a tray of rolls to the customs house.",
    "Someone had painted the mission's door a dark green.",
    "A letter from the capital lay unopened on the desk.",
    "The tide table for the month had been copied twice.",
    "Children counted the masts and never agreed on the number.",
    "The doctor walked to the point and back before dinner.",
    "A barrel of apples rolled down the lane and stopped at the pump.",
    "The schoolmaster wrote the names of the winds on the board.",
    "In the evening the pilots played cards by the stove.",
    "The clock in the tower was four minutes slow, as always.",
    "A grey dog followed the postman from door to door.",
    "The fish market closed early because the ice had not come.",
    "Fog covered the bay, and the bell rang every half minute.",
    "The captain of the dredger asked for a second cook.",
    "Her brother mended nets in the loft above the smithy.",
    "They hung the washing between the two chimneys.",
    "The museum received a box of shells from a retired sailor.",
];

/// Paragraphs of seven sentences, one of them the fact.
fn document() -> String {
    let mut state = 7_u64;
    let mut pick = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        SENTENCES[(state >> 33) as usize % SENTENCES.len()]
    };
    let mut paragraphs: Vec<String> = (0..52).map(|_| (0..7).map(|_| pick()).collect::<Vec<_>>().join(" ")).collect();
    paragraphs.insert(5, FACT.to_owned());
    paragraphs.join("\n\n")
}

impl Args {
    /// Runs the demonstration; fails if the answer is wrong or nothing was in the tail.
    pub fn run(self) -> Result<ExitCode> {
        let model = drive::open(&model::fetch(MODEL)?)?;
        let document = document();
        let document_tokens = model.tokenizer.encode(&document, true, false).len();
        let prompt = model.tokenizer.encode(&(document + QUESTION), true, false);
        let cpu = drive::cpu(std::thread::available_parallelism().map_or(1, usize::from));

        // The least cap that leaves the window, so that the cap and not the window is what the run is given.
        let limits = Limits { logit_rows: 1, ..Limits::new(CONTEXT) };
        let windowed = Limits { window_cells: Some(self.window), ..limits.clone() };
        let cap = model.plan(&windowed, &cpu)?.memory.device_bytes();
        let resident = model.plan(&limits, &cpu)?.memory.device_bytes();
        let limits = Limits { device_bytes_max: Some(cap), ..limits };
        let plan = model.plan(&limits, &cpu)?;
        describe(&plan, document_tokens, resident, cap);

        let handle = drive::start(&model, &limits, &cpu, false)?;
        let request = Request {
            max_tokens: 12,
            sampling: SamplingParams::greedy(),
            stop: vec![".".to_owned()],
            ..Request::new(prompt)
        };
        print!("{}", QUESTION.trim_start());
        let mut answer = String::new();
        for event in handle.submit(request)? {
            match event {
                Event::Token { text, .. } => {
                    print!("{text}");
                    std::io::stdout().flush()?;
                    answer += &text;
                }
                Event::Done { stats, .. } => {
                    println!(".\n");
                    println!("prefill {:.0} tokens/s, decode {:.0} tokens/s", stats.prefill_tps(), stats.decode_tps());
                }
                Event::Error(error) => return Err(error.into()),
                Event::PrefillProgress { .. } | Event::Logits { .. } | Event::Rewound { .. } => {}
            }
        }
        let snapshot = handle.snapshot()?;
        println!(
            "tail: {} cells, {}; read from it in all: {}",
            snapshot.tail_cells(),
            Bytes(snapshot.tail_bytes()),
            Bytes(snapshot.traffic.tail_read_bytes)
        );
        handle.stop();
        ensure!(snapshot.tail_cells() > 0, "nothing was in the tail");
        ensure!(answer.contains(ANSWER), "the answer should be {ANSWER}");
        Ok(ExitCode::SUCCESS)
    }
}

fn describe(plan: &Plan, document_tokens: usize, resident: u64, cap: u64) {
    println!("document: {document_tokens} tokens; the answer stands near its beginning");
    println!("everything resident would take {}; the cap is {}:", Bytes(resident), Bytes(cap));
    println!(
        "weights {}, a window of {} cells, at most {} cells in the tail\n",
        Bytes(plan.memory.bytes(RowKind::Weights)),
        plan.window_cells(),
        plan.tail_cells_max()
    );
}

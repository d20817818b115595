//! Whatever the engine does at once (batches, chunks, windows, reuse, sharing, cancelled and rewound neighbours), every
//! request gets what it gets alone on a device that holds everything.

mod common;

use std::collections::HashMap;
use std::thread;

use common::*;
use proptest::prelude::*;
use tailrace_device::null::NullLoader;
use tailrace_device::plan::Limits;
use tailrace_device::plan::spec::Reach;
use tailrace_engine::{DoneReason, EngineError, Generation, Handle, LogitsWanted, Request, SamplingParams};
use tailrace_types::TokenId;

const SEQUENCE_CELLS: u32 = 1600;

/// The machine that a case runs on.
#[derive(Clone, Debug)]
struct Machine {
    layers: Vec<Reach>,
    sequences: u32,
    chunk: u32,
    logit_rows: u32,
    rollback_cells: u32,
    window_cells: Option<u32>,
    host_blocks: Option<u32>,
}

/// What a client does while its request runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Listen,
    /// Cancels after so many events.
    Cancel(usize),
    /// Goes back to this share of the sequence (in 256ths) after so many events.
    Rewind(usize, u32),
}

#[derive(Clone, Debug)]
struct Job {
    request: Request,
    deed: Deed,
    /// Whether it is submitted while the jobs before it are running.
    at_once: bool,
    /// Whether its prompt continues what the job before it said; for jobs that are not submitted at once.
    continues: bool,
}

fn machine() -> impl Strategy<Value = Machine> {
    let reach = prop_oneof![
        3 => Just(vec![Reach::Global]),
        2 => (1u32..400).prop_map(|w| vec![Reach::Sliding(w), Reach::Global]),
        1 => (1u32..400, 1u32..400).prop_map(|(a, b)| vec![Reach::Sliding(a), Reach::Global, Reach::Sliding(b)]),
        1 => (1u32..400).prop_map(|w| vec![Reach::Sliding(w)]),
    ];
    let chunk = prop_oneof![1u32..40, Just(64), Just(256), 200u32..700];
    let window = prop_oneof![1 => Just(None), 3 => (1u32..500).prop_map(Some)];
    let host = prop_oneof![2 => Just(None), 1 => (0u32..12).prop_map(Some)];
    (reach, 1u32..5, chunk, 1u32..20, 0u32..600, window, host).prop_map(
        |(layers, sequences, chunk, logit_rows, rollback_cells, window_cells, host_blocks)| Machine {
            layers,
            sequences,
            chunk,
            logit_rows,
            rollback_cells,
            window_cells,
            host_blocks,
        },
    )
}

/// Few beginnings, so that requests share them; cut anywhere, so that they part anywhere.
fn given() -> impl Strategy<Value = (Vec<TokenId>, Vec<TokenId>)> {
    let sizes = (0u32..2, 1usize..1480, 0u32..4, 0usize..100, 0usize..12);
    sizes.prop_map(|(base, cut, tail, more, forced)| {
        let mut tokens = prompt(base, cut);
        tokens.extend(prompt(100 + tail, more));
        (tokens, prompt(base, cut + forced)[cut..].to_vec())
    })
}

fn request() -> impl Strategy<Value = Request> {
    let logits = prop_oneof![
        6 => Just(LogitsWanted::None),
        1 => Just(LogitsWanted::Last),
        1 => Just(LogitsWanted::Continuation),
        1 => Just(LogitsWanted::All)
    ];
    let draws = |seed| SamplingParams { seed: Some(seed), repeat_penalty: 1.2, ..SamplingParams::default() };
    let sampling = prop_oneof![Just(SamplingParams::greedy()), (0u64..3).prop_map(draws)];
    let stop = prop_oneof![4 => Just(vec![]), 1 => Just(vec!["a".to_owned(), "xyz".to_owned()])];
    let flags = (any::<bool>(), prop::bool::weighted(0.8));
    (given(), 0u32..40, sampling, logits, stop, flags).prop_map(
        |((prompt, forced), max_tokens, sampling, logits, stop, (stop_at_eog, reuse_prefix))| Request {
            prompt,
            forced,
            max_tokens,
            sampling,
            stop,
            stop_at_eog,
            logits,
            reuse_prefix,
        },
    )
}

fn job() -> impl Strategy<Value = Job> {
    let deed = prop_oneof![
        4 => Just(Deed::Listen),
        1 => (0usize..12).prop_map(Deed::Cancel),
        1 => (0usize..12, 0u32..257).prop_map(|(after, share)| Deed::Rewind(after, share)),
    ];
    let job = (request(), deed, prop::bool::weighted(0.6), any::<bool>());
    job.prop_map(|(request, deed, at_once, continues)| Job { request, deed, at_once, continues })
}

fn limits(machine: &Machine) -> Limits {
    Limits {
        sequences: machine.sequences,
        chunk: machine.chunk,
        logit_rows: machine.logit_rows,
        rollback_cells: machine.rollback_cells,
        window_cells: machine.window_cells,
        host_bytes_max: machine.host_blocks.map_or(u64::MAX, |blocks| u64::from(blocks.max(1)) * FRAME_BYTES),
        ..Limits::new(SEQUENCE_CELLS * machine.sequences)
    }
}

/// Requests alone, one after the other, with everything resident and nothing reused.
struct Oracle {
    handle: Handle,
    known: HashMap<String, Heard>,
}

impl Oracle {
    fn new(layers: &[Reach]) -> Self {
        let limits = Limits { rollback_cells: 0, ..Limits::new(SEQUENCE_CELLS) };
        Oracle { handle: start_on(executor(layers, &limits, NullLoader::default())), known: HashMap::new() }
    }

    fn ask(&mut self, request: &Request) -> Heard {
        let request = Request { logits: LogitsWanted::All, reuse_prefix: false, ..request.clone() };
        let key = format!("{request:?}");
        self.known.entry(key).or_insert_with(|| run(&self.handle, request)).clone()
    }
}

/// Runs a client to the end of its request.
fn client(mut generation: Generation, job: &Job) -> Heard {
    let mut heard = Heard::default();
    let mut events = 0;
    let given = (job.request.prompt.len() + job.request.forced.len()) as u32;
    loop {
        match job.deed {
            Deed::Cancel(after) if after == events => generation.cancel(),
            Deed::Rewind(after, share) if after == events => {
                // Within what was sampled, so that the result stays comparable.
                let keep = given + (heard.tokens.len() as u32 * share) / 256;
                match generation.rewind(keep) {
                    Ok(()) | Err(EngineError::Ended | EngineError::Rewind { tokens: 0, .. }) => {}
                    Err(error) => panic!("a rewind to {keep} was refused: {error}"),
                }
            }
            _ => {}
        }
        events += 1;
        let Some(event) = generation.receive() else { return heard };
        heard.take(event);
    }
}

/// Fails unless a client heard what the oracle says, or the beginning of it where it was cancelled.
fn compare(heard: &Heard, alone: &Heard, job: &Job, host_is_small: bool) -> Result<(), TestCaseError> {
    let whole = match &heard.end {
        Some(Ok((DoneReason::Cancelled, _))) => {
            prop_assert!(matches!(job.deed, Deed::Cancel(_)));
            false
        }
        Some(Ok((reason, stats))) => {
            prop_assert_eq!(*reason, alone.reason());
            prop_assert_eq!(stats.generated_tokens as usize, alone.tokens.len());
            true
        }
        Some(Err(EngineError::HostFull(_))) if host_is_small => false,
        other => return Err(TestCaseError::fail(format!("the request ended with {other:?}"))),
    };
    prop_assert!(alone.tokens.starts_with(&heard.tokens), "{:?} {:?}", heard.tokens, alone.tokens);
    let all: HashMap<u32, &Vec<f32>> = alone.logits.iter().map(|(position, row)| (*position, row)).collect();
    for (position, row) in &heard.logits {
        prop_assert_eq!(all.get(position), Some(&row));
    }
    if whole {
        prop_assert_eq!(&heard.tokens, &alone.tokens);
        prop_assert_eq!(&heard.text, &alone.text);
        let expected = match job.request.logits {
            LogitsWanted::None => 0,
            LogitsWanted::Last => 1,
            LogitsWanted::Continuation => alone.logits.len() + 1 - job.request.prompt.len(),
            LogitsWanted::All => alone.logits.len(),
        };
        let rewound = matches!(job.deed, Deed::Rewind(..));
        prop_assert!(heard.logits.len() == expected || (rewound && heard.logits.len() > expected));
    }
    Ok(())
}

/// The prompt of `job` behind the conversation that `before` and what was heard of it make.
fn continued(job: &Job, before: &Request, heard: &Heard) -> Job {
    let request = &job.request;
    let mut prompt = [&before.prompt[..], &before.forced, &heard.tokens, &request.prompt].concat();
    prompt.truncate(SEQUENCE_CELLS as usize - request.forced.len());
    Job { request: Request { prompt, ..request.clone() }, ..job.clone() }
}

fn run_case(machine: &Machine, jobs: &[Job]) -> Result<(), TestCaseError> {
    let mut oracle = Oracle::new(&machine.layers);
    let handle = start_on(executor(&machine.layers, &limits(machine), NullLoader::default()));
    let (mut done, mut next) = (Vec::new(), 0);
    while next < jobs.len() {
        // A group of jobs that run together; the first may continue what was said before.
        let together = 1 + jobs[next + 1..].iter().take_while(|job| job.at_once).count();
        let mut group = jobs[next..next + together].to_vec();
        if let Some((before, heard)) = done.last().filter(|_| group[0].continues) {
            let before: &Job = before;
            group[0] = continued(&group[0], &before.request, heard);
        }
        let submit = |job: &Job| handle.submit(job.request.clone()).expect("a request that can run");
        let heard: Vec<Heard> = thread::scope(|scope| {
            let run = |job| {
                let generation = submit(job);
                scope.spawn(move || client(generation, job))
            };
            let clients: Vec<_> = group.iter().map(run).collect();
            clients.into_iter().map(|client| client.join().expect("a client panicked")).collect()
        });
        done.extend(group.into_iter().zip(heard));
        next += together;
    }
    for (job, heard) in &done {
        compare(heard, &oracle.ask(&job.request), job, machine.host_blocks.is_some())?;
    }
    let snapshot = handle.snapshot().map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert!(snapshot.slots.iter().all(|slot| !slot.active));
    prop_assert_eq!(snapshot.waiting, 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn company_changes_nothing(machine in machine(), jobs in prop::collection::vec(job(), 1..9)) {
        run_case(&machine, &jobs)?;
    }
}

/// A fixed case for each mechanism, so that none depends on luck: what it did is read from the counters.
#[test]
fn the_cases_reach_what_they_are_for() {
    let machine = Machine {
        layers: vec![Reach::Global],
        sequences: 3,
        chunk: 100,
        logit_rows: 4,
        rollback_cells: 0,
        window_cells: Some(256),
        host_blocks: None,
    };
    let handle = start_on(executor(&machine.layers, &limits(&machine), NullLoader::default()));
    let mut oracle = Oracle::new(&machine.layers);
    let requests: Vec<Request> = (0..6u32).map(|i| greedy(prompt(i % 2, 1300 + i as usize), 30)).collect();
    let generations: Vec<_> = requests.iter().map(|r| handle.submit(r.clone()).expect("it can run")).collect();
    let heard: Vec<Heard> = generations.into_iter().map(hear).collect();
    for (heard, request) in heard.iter().zip(&requests) {
        assert_eq!(heard.tokens, oracle.ask(request).tokens);
    }
    let snapshot = handle.snapshot().expect("the engine runs");
    assert!(snapshot.cache.evicted > 0 && snapshot.cache.tail_reads > 0 && snapshot.cache.fetched > 0);
    assert!(snapshot.traffic.tail_written_bytes > 0 && snapshot.traffic.tail_read_bytes > 0);
    assert!(snapshot.tail_cells() > 0 && snapshot.window_cells() > 0 && snapshot.host_bytes >= snapshot.cell_bytes);
    assert!(heard.iter().filter(|h| h.stats().reused_tokens >= 1299).count() >= 4);
    let empty: [TokenId; 0] = [];
    assert_ne!(heard[0].tokens, empty);
}

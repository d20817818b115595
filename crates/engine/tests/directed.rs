//! The engine on the Null device, one property at a time.

mod common;

use std::time::Duration;

use common::*;
use tailrace_device::kv::Phase;
use tailrace_device::null::NullLoader;
use tailrace_device::plan::Limits;
use tailrace_device::plan::spec::Reach;
use tailrace_device::{DeviceError, Executor, HighWater, Submission, Traffic};
use tailrace_engine::{DoneReason, EngineError, LogitsWanted, Request, SamplingError, SamplingParams};
use tailrace_types::TokenId;

fn limits(cells: u32, sequences: u32, chunk: u32) -> Limits {
    Limits { sequences, chunk, ..Limits::new(cells * sequences) }
}

#[test]
fn a_request_says_tokens_progress_and_statistics() {
    let handle = start(&limits(1024, 1, 64));
    let heard = run(&handle, greedy(prompt(1, 150), 20));
    assert_eq!((heard.tokens.len(), heard.reason()), (20, DoneReason::MaxTokens));
    assert_eq!(heard.progress, [(64, 150), (128, 150), (150, 150)]);
    let stats = heard.stats();
    assert_eq!((stats.prompt_tokens, stats.reused_tokens, stats.generated_tokens), (150, 0, 20));
    // The last token is said and never computed.
    assert_eq!(stats.decoded_tokens, 19);
    assert!(stats.prefill_tps() > 0.0 && stats.decode_tps() > 0.0);
    let snapshot = handle.snapshot().expect("the engine runs");
    assert_eq!((snapshot.prefills, snapshot.decodes), (3, 19));
    assert_eq!((snapshot.slots[0].active, snapshot.slots[0].cells), (false, 169));
}

#[test]
fn requests_that_cannot_run_are_refused_with_numbers() {
    let handle = start(&limits(300, 2, 64));
    let refused = |request: Request| handle.submit(request).map(drop).expect_err("it cannot run");
    let error = refused(greedy(prompt(1, 301), 1));
    assert_eq!(error, EngineError::TooLong { tokens: 301, cells: 300 });
    assert_eq!(error.to_string(), "the prompt has 301 tokens, a sequence has room for 300");
    let forced = Request { forced: prompt(2, 10), ..greedy(prompt(1, 291), 1) };
    assert_eq!(refused(forced), EngineError::TooLong { tokens: 301, cells: 300 });
    let unknown = greedy(vec![TokenId(VOCAB)], 1);
    assert_eq!(refused(unknown), EngineError::UnknownToken { token: VOCAB, vocab: VOCAB });
    let stop = Request { stop: vec![String::new()], ..greedy(prompt(1, 3), 1) };
    assert_eq!(refused(stop), EngineError::EmptyStopString);
    let sampling = SamplingParams { top_p: 2.0, ..SamplingParams::default() };
    let sampling = refused(Request { sampling, ..greedy(prompt(1, 3), 1) });
    assert!(matches!(sampling, EngineError::Sampling(SamplingError::OutOfRange { name: "top_p", .. })));
}

#[test]
fn an_empty_prompt_is_the_beginning_of_text_or_an_error() {
    let handle = start(&limits(256, 1, 64));
    let (empty, bos) = (run(&handle, greedy(vec![], 5)), run(&handle, greedy(vec![BOS], 5)));
    assert_eq!((empty.tokens, empty.end.is_some()), (bos.tokens, true));

    let executor = executor(&[Reach::Global], &limits(256, 1, 64), NullLoader::default());
    let config = tailrace_engine::EngineConfig { executor: Box::new(executor), tokenizer: tokenizer(false) };
    let handle = tailrace_engine::Engine::start(config).expect("the engine starts");
    assert_eq!(handle.submit(greedy(vec![], 5)).map(drop), Err(EngineError::EmptyPrompt));
}

#[test]
fn a_context_is_filled_to_its_last_cell() {
    let handle = start(&limits(300, 1, 64));
    // The last token that is said has no cell any more.
    let full = run(&handle, greedy(prompt(1, 300), 50));
    assert_eq!((full.tokens.len(), full.reason()), (1, DoneReason::Context));
    let nearly = run(&handle, greedy(prompt(2, 297), 50));
    assert_eq!((nearly.tokens.len(), nearly.reason()), (4, DoneReason::Context));
    let exactly = run(&handle, greedy(prompt(2, 297), 4));
    assert_eq!(exactly.reason(), DoneReason::MaxTokens);
    assert_eq!(exactly.tokens, nearly.tokens);
}

#[test]
fn no_token_is_sampled_where_none_is_asked_for() {
    let handle = start(&limits(1024, 1, 64));
    for logits in [LogitsWanted::None, LogitsWanted::Last, LogitsWanted::Continuation, LogitsWanted::All] {
        let heard = run(&handle, Request { logits, ..greedy(prompt(1, 100), 0) });
        assert_eq!((heard.tokens.len(), heard.reason()), (0, DoneReason::MaxTokens));
        let expected = [
            (LogitsWanted::None, 0),
            (LogitsWanted::Last, 1),
            (LogitsWanted::Continuation, 1),
            (LogitsWanted::All, 100),
        ];
        assert!(expected.contains(&(logits, heard.logits.len())));
    }
}

#[test]
fn end_of_generation_ends_or_does_not() {
    let handle = start(&limits(1024, 1, 64));
    let bias = vec![(EOS, 1000.0)];
    let sampling = SamplingParams { logit_bias: bias, ..SamplingParams::greedy() };
    let request = Request { sampling, ..greedy(prompt(1, 10), 5) };
    let heard = run(&handle, Request { stop_at_eog: true, ..request.clone() });
    assert_eq!((heard.tokens.as_slice(), heard.text.as_str(), heard.reason()), (&[EOS][..], "", DoneReason::Eog));
    let heard = run(&handle, request);
    assert_eq!(heard.reason(), DoneReason::MaxTokens);
    assert_eq!(heard.tokens, [EOS; 5]);
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let handle = start(&limits(1024, 1, 64));
    let whole = run(&handle, greedy(prompt(3, 30), 60));
    let text: Vec<char> = whole.text.chars().collect();
    for (from, to) in [(0, 1), (10, 14), (20, 29)] {
        let stop: String = text[from..to].iter().collect();
        let expected = &whole.text[..whole.text.find(&stop).expect("it is a part of the text")];
        let request = Request { stop: vec!["never said".to_owned(), stop], ..greedy(prompt(3, 30), 60) };
        let heard = run(&handle, request);
        assert_eq!((heard.text.as_str(), heard.reason()), (expected, DoneReason::StopString));
        assert!(whole.tokens.starts_with(&heard.tokens));
    }
    // What was held back as a possible beginning comes with the last token.
    let beginning = format!("{}no", text[text.len() - 3..].iter().collect::<String>());
    let heard = run(&handle, Request { stop: vec![beginning], ..greedy(prompt(3, 30), 60) });
    assert_eq!(heard.reason(), DoneReason::MaxTokens);
    assert_eq!(heard.text, whole.text);
}

#[test]
fn forced_tokens_are_decoded_and_give_the_same_logits() {
    let handle = start(&limits(1024, 1, 64));
    let all = |request| Request { logits: LogitsWanted::All, ..request };
    let free = run(&handle, all(greedy(prompt(4, 70), 30)));
    let forced = Request { forced: free.tokens[..20].to_vec(), ..greedy(prompt(4, 70), 10) };
    let forced = run(&handle, all(forced));
    assert_eq!(forced.tokens, free.tokens[20..]);
    assert_eq!(forced.logits, free.logits);
    assert_eq!(forced.progress.last(), Some(&(70, 90)));
    // 20 forced ones and all but the last of the sampled ones.
    assert_eq!((forced.stats().decoded_tokens, forced.stats().generated_tokens), (29, 10));
    // Last: those that the first sampled token is drawn from.
    let request = Request { forced: free.tokens[..20].to_vec(), ..greedy(prompt(4, 70), 10) };
    let last = run(&handle, Request { logits: LogitsWanted::Last, ..request.clone() });
    assert_eq!(last.logits, free.logits[89..90]);
    // Continuation: from the last prompt token on, although the cells of most forced tokens are there.
    let behind = run(&handle, Request { logits: LogitsWanted::Continuation, ..request });
    assert_eq!(behind.logits, free.logits[69..]);
    assert_eq!(behind.stats().reused_tokens, 69);
}

#[test]
fn logits_come_in_order_and_in_groups() {
    let handle = start(&Limits { logit_rows: 7, ..limits(1024, 1, 50) });
    let heard = run(&handle, Request { logits: LogitsWanted::All, ..greedy(prompt(5, 120), 3) });
    let positions: Vec<u32> = heard.logits.iter().map(|(position, _)| *position).collect();
    assert_eq!(positions, (0..122).collect::<Vec<_>>());
    assert!(heard.groups.iter().all(|rows| *rows <= 7));
    assert_eq!(heard.groups.iter().filter(|rows| **rows == 7).count(), 7 + 7 + 2);
    // Greedy sampling took the largest of the row before.
    for (token, (_, row)) in heard.tokens.iter().zip(&heard.logits[119..]) {
        assert!(row.iter().all(|logit| *logit <= row[token.0 as usize]));
    }
}

#[test]
fn a_client_that_takes_no_logits_pauses_alone() {
    let handle = start(&Limits { logit_rows: 4, ..limits(1024, 3, 64) });
    let wanting = |seed| Request { logits: LogitsWanted::All, ..greedy(prompt(seed, 200), 8) };
    let alone = [run(&handle, wanting(1)), run(&handle, wanting(2))];
    let first = handle.submit(wanting(1)).expect("it can run");
    let second = handle.submit(wanting(2)).expect("it can run");
    // Neither has its events taken, and a third finishes.
    assert_eq!(run(&handle, greedy(prompt(3, 300), 20)).tokens.len(), 20);
    // Asking does not hang either.
    assert_eq!(handle.snapshot().expect("the engine runs").slots.iter().filter(|s| s.active).count(), 2);
    // The later one first: the earlier one still pauses alone.
    for (generation, alone) in [(second, &alone[1]), (first, &alone[0])] {
        let heard = hear(generation);
        assert_eq!((heard.logits, heard.tokens), (alone.logits.clone(), alone.tokens.clone()));
    }
    // Alone it pauses in the middle of a chunk, and goes back when another one comes.
    let first = handle.submit(wanting(1)).expect("it can run");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(run(&handle, greedy(prompt(3, 300), 20)).tokens.len(), 20);
    assert_eq!(hear(first).logits, alone[0].logits);
}

#[test]
fn a_cancelled_request_ends_within_one_chunk() {
    let (gate, keeper) = gate(executor(&[Reach::Global], &limits(2048, 1, 64), NullLoader::default()));
    let handle = start_on(gate);
    let generation = handle.submit(greedy(prompt(1, 1000), 10)).expect("it can run");
    assert_eq!(keeper.pass(), (Phase::Prefill, 64));
    let second = keeper.told.recv().expect("the engine runs");
    generation.cancel();
    keeper.permits.send(()).expect("the engine runs");
    let heard = hear(generation);
    assert_eq!((second, heard.reason()), ((Phase::Prefill, 64), DoneReason::Cancelled));
    // Nothing was submitted after it, and the engine goes on.
    assert!(keeper.told.try_recv().is_err());
    drop(keeper);
    assert_eq!(run(&handle, greedy(prompt(1, 100), 3)).stats().reused_tokens, 99);
}

#[test]
fn dropping_a_generation_cancels_it() {
    let handle = start(&limits(1 << 16, 1, 64));
    drop(handle.submit(greedy(prompt(1, 10), u32::MAX)).expect("it can run"));
    let waiting = handle.submit(greedy(prompt(2, 10), 5)).expect("it can run");
    assert_eq!(hear(waiting).tokens.len(), 5);
}

#[test]
fn requests_beyond_the_slots_wait_in_order() {
    let (gate, keeper) = gate(executor(&[Reach::Global], &limits(512, 2, 64), NullLoader::default()));
    let handle = start_on(gate);
    let submit = |i| handle.submit(greedy(prompt(i, 10 + i as usize), 2)).expect("it can run");
    let generations: Vec<_> = (0..5).map(submit).collect();
    let mut prompts = vec![keeper.told.recv().expect("the engine runs")];
    generations[3].cancel();
    keeper.permits.send(()).expect("the engine runs");
    // Each has one prefill; the second token, which is the last, is sampled from a decoded row.
    while prompts.len() < 4 {
        prompts.extend(Some(keeper.pass()).filter(|(phase, _)| *phase == Phase::Prefill));
    }
    drop(keeper);
    let rows: Vec<usize> = prompts.iter().map(|(_, rows)| *rows).collect();
    assert_eq!(rows, [10, 11, 12, 14]);
    let ends: Vec<_> = generations.into_iter().map(|generation| hear(generation).reason()).collect();
    let (done, cancelled) = (DoneReason::MaxTokens, DoneReason::Cancelled);
    assert_eq!(ends, [done, done, done, cancelled, done]);
    assert_eq!(handle.snapshot().expect("the engine runs").waiting, 0);
}

#[test]
fn a_long_prompt_delays_others_by_one_chunk() {
    let (gate, keeper) = gate(executor(&[Reach::Global], &limits(2048, 2, 64), NullLoader::default()));
    let handle = start_on(gate);
    let short = handle.submit(greedy(prompt(1, 5), 12)).expect("it can run");
    assert_eq!(keeper.pass(), (Phase::Prefill, 5));
    assert_eq!(keeper.told.recv(), Ok((Phase::Decode, 1)));
    let long = handle.submit(greedy(prompt(2, 640), 3)).expect("it can run");
    keeper.permits.send(()).expect("the engine runs");
    // From now on chunks and single rows take turns.
    for _ in 0..10 {
        assert_eq!(keeper.pass(), (Phase::Prefill, 64));
        keeper.pass();
    }
    drop(keeper);
    assert_eq!((hear(short).tokens.len(), hear(long).tokens.len()), (12, 3));
}

#[test]
fn a_second_request_computes_only_what_is_new() {
    let handle = start(&limits(1024, 1, 64));
    let first = run(&handle, greedy(prompt(1, 200), 20));
    let mut longer = prompt(1, 200);
    longer.extend(&first.tokens);
    longer.extend(prompt(9, 80));
    let again = run(&handle, greedy(longer.clone(), 10));
    // The last token of the first request has no cell.
    assert_eq!(again.stats().reused_tokens, 219);
    // Its generated tokens are prompt tokens of the second.
    assert_eq!(again.stats().reclassed_tokens, 19);
    // The first chunk ends where a chunk of the absolute positions ends.
    assert_eq!(again.progress, [(256, 300), (300, 300)]);
    let fresh = run(&handle, Request { reuse_prefix: false, ..greedy(longer.clone(), 10) });
    assert_eq!((fresh.stats().reused_tokens, fresh.tokens), (0, again.tokens));
    // At least one token is computed, for its logits.
    let same = run(&handle, greedy(longer, 1));
    assert_eq!(same.stats().reused_tokens, 299);
}

#[test]
fn a_request_gets_the_slot_that_has_most_of_it() {
    let handle = start(&limits(1024, 3, 64));
    for seed in [1, 2] {
        run(&handle, greedy(prompt(seed, 300), 1));
    }
    // An empty slot before one that something else is cached in.
    run(&handle, greedy(prompt(3, 300), 1));
    for seed in [3, 1, 2] {
        assert_eq!(run(&handle, greedy(prompt(seed, 300), 1)).stats().reused_tokens, 299);
    }
    // With no match the one that was left first goes.
    run(&handle, greedy(prompt(4, 300), 1));
    let reused = [1, 2, 4].map(|seed| run(&handle, greedy(prompt(seed, 300), 1)).stats().reused_tokens);
    assert_eq!(reused, [299, 299, 299]);
}

#[test]
fn running_sequences_share_their_beginning() {
    let handle = start(&limits(2048, 3, 64));
    let alone = run(&handle, greedy(prompt(1, 700), 40));
    let handle = start(&limits(2048, 3, 64));
    let requests = (0..3).map(|_| handle.submit(greedy(prompt(1, 700), 40)).expect("it can run"));
    let generations: Vec<_> = requests.collect();
    let heard: Vec<_> = generations.into_iter().map(hear).collect();
    assert!(heard.iter().all(|h| h.tokens == alone.tokens));
    let reused: Vec<u32> = heard.iter().map(|h| h.stats().reused_tokens).collect();
    assert_eq!(reused, [0, 699, 699]);
}

#[test]
fn host_memory_at_its_limit_ends_one_request() {
    // The limit allows two extents of one block; or the machine has nothing to give.
    let machine = |host_bytes_max, extents_max| {
        let limits = Limits { window_cells: Some(256), host_bytes_max, ..limits(4096, 2, 256) };
        start_on(executor(&[Reach::Global], &limits, NullLoader { extents_max }))
    };
    let roomy = machine(1 << 30, None);
    let expected = run(&roomy, greedy(prompt(2, 300), 30)).tokens;
    for handle in [machine(2 * FRAME_BYTES, None), machine(1 << 30, Some(0))] {
        let long = handle.submit(greedy(prompt(1, 4000), 5)).expect("it can run");
        let short = handle.submit(greedy(prompt(2, 300), 30)).expect("it can run");
        let long = hear(long);
        assert!(matches!(long.end, Some(Err(EngineError::HostFull(_)))), "{:?}", long.end);
        assert_eq!(hear(short).tokens, expected);
        // The memory is free again.
        assert_eq!(run(&handle, greedy(prompt(2, 300), 30)).tokens, expected);
    }
}

#[test]
fn idle_cells_give_way_before_a_request_fails() {
    let limits = Limits { window_cells: Some(256), host_bytes_max: 8 * FRAME_BYTES, ..limits(4096, 2, 256) };
    let handle = start_on(executor(&[Reach::Global], &limits, NullLoader::default()));
    for seed in 0..4 {
        assert_eq!(run(&handle, greedy(prompt(seed, 2200), 3)).tokens.len(), 3);
    }
}

#[test]
fn a_rewound_generation_says_the_same_again() {
    for layers in [vec![Reach::Global], vec![Reach::Sliding(30), Reach::Global]] {
        // Logits that are not taken hold the engine, so that it cannot run away before the rewind.
        let limits = Limits { rollback_cells: 10, logit_rows: 4, ..limits(2048, 1, 32) };
        let handle = start_on(executor(&layers, &limits, NullLoader::default()));
        let sampling = SamplingParams { seed: Some(3), frequency_penalty: 0.3, ..SamplingParams::default() };
        let request = Request { sampling, stop: vec!["zzzz".to_owned()], ..greedy(prompt(1, 500), 40) };
        let request = Request { logits: LogitsWanted::All, ..request };
        let whole = run(&handle, request.clone());
        let mut generation = handle.submit(request.clone()).expect("it can run");
        let mut heard = Heard::default();
        for (hear_first, keep) in [(12, 511), (12, 505), (30, 501), (3, 500)] {
            while heard.tokens.len() < hear_first {
                heard.take(generation.receive().expect("there is more"));
            }
            generation.rewind(keep).expect("the sequence has as many");
            while heard.rewound != Some(keep) {
                heard.take(generation.receive().expect("there is more"));
            }
            assert_eq!(heard.tokens.len() as u32, keep - 500);
        }
        for keep in [0, 600] {
            assert!(matches!(generation.rewind(keep), Err(EngineError::Rewind { tokens: 500..600, .. })));
        }
        generation.by_ref().for_each(|event| heard.take(event));
        assert_eq!((&heard.tokens, &heard.text), (&whole.tokens, &whole.text));
        // Every row, however often it was computed.
        assert!(heard.logits.len() > whole.logits.len());
        assert!(heard.logits.iter().all(|(position, row)| whole.logits[*position as usize].1 == *row));
        assert_eq!(heard.stats().generated_tokens, 40);
        assert_eq!(generation.rewind(501), Err(EngineError::Ended));

        // Into the prompt: what follows is what follows the shorter prompt, logits included.
        let request = Request { logits: LogitsWanted::Continuation, ..request };
        let mut generation = handle.submit(request.clone()).expect("it can run");
        let mut heard = Heard::default();
        while heard.tokens.len() < 5 {
            heard.take(generation.receive().expect("there is more"));
        }
        generation.rewind(77).expect("the sequence has as many");
        generation.by_ref().for_each(|event| heard.take(event));
        let shorter = run(&handle, Request { prompt: prompt(1, 77), ..request });
        assert_eq!((heard.tokens, heard.text), (shorter.tokens, shorter.text));
        assert_eq!(shorter.logits[0].0, 76);
        assert!(heard.logits.ends_with(&shorter.logits));
    }
}

/// Fails, or panics, at a given submission.
struct Faulty {
    inner: tailrace_device::null::NullExecutor,
    left: u32,
    panics: bool,
}

impl Executor for Faulty {
    fn plan(&self) -> &tailrace_device::plan::Plan {
        self.inner.plan()
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.left -= 1;
        match (self.left, self.panics) {
            (0, true) => panic!("a defect"),
            (0, false) => Err(DeviceError::Worker),
            _ => self.inner.submit(submission),
        }
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        self.inner.logits(rows)
    }

    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.inner.fill(submission, seed)
    }

    fn high_water(&self) -> Vec<HighWater> {
        self.inner.high_water()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}

#[test]
fn a_device_that_fails_ends_everything_with_its_error() {
    for (panics, expected) in
        [(false, EngineError::Device(DeviceError::Worker)), (true, EngineError::Panicked("a defect".to_owned()))]
    {
        let inner = executor(&[Reach::Global], &limits(512, 2, 64), NullLoader::default());
        let handle = start_on(Faulty { inner, left: 8, panics });
        // The last ones may come too late to be taken.
        let ends: Vec<_> = (0..5).map(|seed| handle.submit(greedy(prompt(seed, 100), 400))).collect();
        assert!(ends[0].is_ok());
        for end in ends {
            let error = end.map(|generation| hear(generation).end).unwrap_or_else(|error| Some(Err(error)));
            assert_eq!(error, Some(Err(expected.clone())));
        }
        assert_eq!(handle.submit(greedy(prompt(1, 3), 1)).map(drop), Err(expected.clone()));
        assert_eq!(handle.snapshot(), Err(expected));
    }
}

#[test]
fn a_stopped_engine_tells_everyone() {
    let handle = start(&limits(1 << 16, 1, 64));
    let generations: Vec<_> =
        (0..3).map(|s| handle.submit(greedy(prompt(s, 10), u32::MAX)).expect("it can run")).collect();
    handle.clone().stop();
    for generation in generations {
        assert_eq!(hear(generation).end, Some(Err(EngineError::Stopped)));
    }
    assert_eq!(handle.submit(greedy(prompt(1, 3), 1)).map(drop), Err(EngineError::Stopped));
    handle.stop();
}

#[test]
fn logits_that_are_no_numbers_end_one_request() {
    let handle = start(&limits(512, 2, 64));
    let everything = (0..VOCAB).map(|t| (TokenId(t), f32::NEG_INFINITY)).collect();
    let sampling = SamplingParams { logit_bias: everything, ..SamplingParams::greedy() };
    let bad = handle.submit(Request { sampling, ..greedy(prompt(1, 100), 5) }).expect("it can run");
    let good = handle.submit(greedy(prompt(2, 100), 5)).expect("it can run");
    assert_eq!(hear(bad).end, Some(Err(EngineError::Sampling(SamplingError::NoToken))));
    assert_eq!(hear(good).tokens.len(), 5);
}

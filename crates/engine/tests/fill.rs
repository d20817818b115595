//! Sequences that are filled instead of computed.

mod common;

use common::*;
use tailrace_device::Traffic;
use tailrace_device::kv::Phase;
use tailrace_device::null::NullLoader;
use tailrace_device::plan::Limits;
use tailrace_device::plan::spec::Reach;
use tailrace_engine::{DoneReason, EngineError, Handle, Request};
use tailrace_types::TokenId;

const DEPTH: usize = 3000;

fn limits(window_cells: Option<u32>) -> Limits {
    Limits { chunk: 256, window_cells, ..Limits::new(4096) }
}

/// `DEPTH` filled cells, then `count` tokens after one more.
fn continued(handle: &Handle, seed: u64, count: u32) -> Heard {
    let mut tokens = prompt(1, DEPTH);
    let filled = hear(handle.fill(tokens.clone(), seed).expect("it can run"));
    assert_eq!((filled.reason(), filled.tokens.len()), (DoneReason::MaxTokens, 0));
    assert_eq!(filled.progress.last(), Some(&(DEPTH as u32, DEPTH as u32)));
    tokens.push(TokenId(300));
    let heard = run(handle, greedy(tokens, count));
    assert_eq!(heard.stats().reused_tokens, DEPTH as u32);
    heard
}

#[test]
fn a_filled_sequence_is_continued_like_any_other() {
    let resident = start(&limits(None));
    let spilled = start(&limits(Some(512)));
    let expected = continued(&resident, 7, 40);
    assert_eq!(continued(&spilled, 7, 40).tokens, expected.tokens);
    let (resident, spilled) = (resident.snapshot().expect("it runs"), spilled.snapshot().expect("it runs"));
    assert_eq!(resident.traffic, Traffic::default());
    assert!(spilled.traffic.tail_read_bytes > 0);
}

#[test]
fn a_fill_moves_the_window_as_a_prefill_does() {
    let tail = |fill: bool| {
        let handle = start(&limits(Some(512)));
        let generation = match fill {
            true => handle.fill(prompt(1, DEPTH), 1),
            false => handle.submit(greedy(prompt(1, DEPTH), 0)),
        };
        hear(generation.expect("it can run"));
        let snapshot = handle.snapshot().expect("it runs");
        (snapshot.tail_cells(), snapshot.traffic.tail_written_bytes)
    };
    assert_eq!(tail(true), tail(false));
    // All but the window, the chunk's frames and one partial block.
    assert!(tail(true).0 >= DEPTH as u64 - 512 - 3 * 256);
}

#[test]
fn cells_depend_on_the_seed() {
    let tokens = |seed| continued(&start(&limits(None)), seed, 20).tokens;
    assert_eq!(tokens(1), tokens(1));
    assert_ne!(tokens(1), tokens(2));
}

#[test]
fn a_fill_ends_when_it_is_cancelled() {
    let (gate, keeper) =
        gate(executor(&[Reach::Sliding(64), Reach::Global], &limits(Some(512)), NullLoader::default()));
    let handle = start_on(gate);
    let generation = handle.fill(prompt(1, DEPTH), 1).expect("it can run");
    assert_eq!(keeper.pass(), (Phase::Prefill, 256));
    generation.cancel();
    // The device may be at the next chunk already.
    drop(keeper);
    assert_eq!(hear(generation).reason(), DoneReason::Cancelled);
    // What was filled is there for the next one.
    assert_eq!(continued(&handle, 1, 5).tokens.len(), 5);
}

#[test]
fn a_fill_beyond_the_context_is_refused() {
    let handle = start(&limits(None));
    let error = handle.fill(prompt(1, 5000), 1).map(drop).expect_err("too long");
    assert_eq!(error, EngineError::TooLong { tokens: 5000, cells: 4096 });
    assert_eq!(run(&handle, Request { max_tokens: 2, ..greedy(prompt(1, 5), 2) }).tokens.len(), 2);
}

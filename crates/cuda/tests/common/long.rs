//! One sequence that decodes for long while others come and go: thousands of steps on a card, some on the emulator.

use std::collections::VecDeque;

use tailrace_cuda::CudaLoader;
use tailrace_device::LoadOptions;
use tailrace_device::plan::{Limits, RowKind};
use tailrace_engine::{Event, Generation, Handle, LogitsWanted, Request, SamplingParams, SlotState, Snapshot};
use tailrace_types::{BLOCK_CELLS, TokenId};

use crate::models::{Golden, Way};

/// Tokens of the prompt. With those that follow there are more blocks than frames, those of the overlay included.
const PROMPT: usize = 1490;

/// Sequences at once.
const SEQUENCES: u32 = 3;

/// Steps after which a sequence that does nothing may lose its frames to one that decodes, and some.
const SETTLING: usize = 20;

/// How long a run is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    /// Steps of one row.
    pub(crate) steps: usize,
    /// Of them, those whose bytes over the link are counted; fewer than half a block.
    pub(crate) counted: usize,
    /// Steps from one change of the other sequences to the next.
    pub(crate) between: usize,
    /// Tokens of the others' prompts at most.
    pub(crate) others: usize,
}

/// Checks that the sequence has the logits that it has alone and resident, that device memory in use stays what it is, and that
/// the link carries the occupied tail once a step.
pub(crate) fn check(golden: &Golden, loader: &CudaLoader, length: Length) {
    let tokens = golden.repeated(PROMPT + length.steps);
    let way = Way { prompt: PROMPT, ..Way::default_types(tokens.len()) };
    let expected = way.run(&golden.model, loader, &tokens).0.bits();

    // A small chunk has a small workspace, and so little room for an overlay. Few rows of logits keep the engine near its client.
    let context_cells = SEQUENCES * way.limits.context_cells;
    let limits = Limits { sequences: SEQUENCES, context_cells, chunk: 32, logit_rows: 4, ..way.spilled().limits };
    let options = LoadOptions { poison: true };
    let handle = golden.model.start(&limits, loader, options, &mut |_| ()).expect("it fits");
    let mut main = Main::start(&handle, &tokens);
    let mut others = Others { handle: &handle, golden, length, round: 0, running: VecDeque::new() };
    main.take(PROMPT);
    others.beside(&mut main, PROMPT + length.steps / 4);
    let warm = snapshot(&handle);
    others.beside(&mut main, PROMPT + length.steps / 2);
    others.end();
    check_link(&handle, &mut main, length.counted);
    others.beside(&mut main, tokens.len());
    others.end();

    let after = snapshot(&handle);
    handle.stop();
    assert!(warm.driver_bytes > 0 && after.driver_bytes == warm.driver_bytes, "{warm:?}\n{after:?}");
    assert!(after.traffic.tail_written_bytes > warm.traffic.tail_written_bytes, "{after:?}");
    assert!(after.traffic.tail_read_bytes > warm.traffic.tail_read_bytes, "{after:?}");
    assert!(after.cache.evicted > warm.cache.evicted, "{after:?}");
    assert!(main.bits == expected, "{}", golden.name);
}

/// Counts what crosses the link in steps of this sequence alone.
fn check_link(handle: &Handle, main: &mut Main, counted: usize) {
    main.take(main_slot(&snapshot(handle)).cells as usize + SETTLING);
    // Behind the beginning of a block: none begins in these steps, so the tail stays as it is.
    let begun = |snapshot: &Snapshot| (1..BLOCK_CELLS / 2 - 32).contains(&(main_slot(snapshot).cells % BLOCK_CELLS));
    let before = std::iter::repeat_with(|| {
        main.take(main.rows + 1);
        snapshot(handle)
    });
    let before = before.take(BLOCK_CELLS as usize).find(begun).expect("a block begins");
    main.take(main_slot(&before).cells as usize + counted);
    let after = snapshot(handle);

    let [first, last] = [&before, &after].map(main_slot);
    let steps = u64::from(last.cells - first.cells);
    assert!(steps >= counted as u64);
    assert_eq!((after.decodes - before.decodes, after.prefills), (steps, before.prefills), "it ran alone");
    assert!(first.tail_cells > 0 && first.tail_cells == last.tail_cells, "{first:?} {last:?}");
    let carried = |s: &Snapshot| s.traffic.from_tail_bytes();
    let (carried, tail) = (carried(&after) - carried(&before), u64::from(first.tail_cells) * before.cell_bytes);
    let ring = handle.plan().memory.bytes(RowKind::Ring);
    assert!(carried.abs_diff(steps * tail) <= ring, "{carried} bytes in {steps} steps with {tail} in the tail");
}

fn snapshot(handle: &Handle) -> Snapshot {
    handle.snapshot().expect("the engine runs")
}

/// The slot of the sequence that runs alone.
fn main_slot(snapshot: &Snapshot) -> SlotState {
    let mut active = snapshot.slots.iter().filter(|slot| slot.active);
    let slot = *active.next().expect("it runs");
    assert!(active.next().is_none(), "{snapshot:?}");
    slot
}

/// The sequence under test. The engine is never more than some rows ahead of what was taken of its logits.
struct Main {
    generation: Generation,
    rows: usize,
    bits: Vec<u32>,
}

impl Main {
    fn start(handle: &Handle, tokens: &[TokenId]) -> Main {
        let (prompt, forced) = tokens.split_at(PROMPT);
        let (forced, max_tokens, logits) = (forced.to_vec(), 0, LogitsWanted::All);
        let request = Request { forced, max_tokens, logits, ..Request::new(prompt.to_vec()) };
        Main { generation: handle.submit(request).expect("it can run"), rows: 0, bits: Vec::new() }
    }

    /// Takes logits until there are those of `rows` rows.
    fn take(&mut self, rows: usize) {
        while self.rows < rows {
            match self.generation.receive().expect("it goes on") {
                Event::Logits { rows, values, .. } => {
                    self.rows += rows as usize;
                    self.bits.extend(values.iter().map(|x| x.to_bits()));
                }
                Event::Error(error) => panic!("{error}"),
                Event::PrefillProgress { .. } | Event::Token { .. } | Event::Rewound { .. } | Event::Done { .. } => {}
            }
        }
    }
}

/// Sequences that come and go.
struct Others<'a> {
    handle: &'a Handle,
    golden: &'a Golden,
    length: Length,
    round: usize,
    running: VecDeque<Generation>,
}

impl Others<'_> {
    /// Lets them come and go until `main` has so many rows.
    fn beside(&mut self, main: &mut Main, rows: usize) {
        while main.rows < rows {
            self.change();
            main.take(rows.min(main.rows + self.length.between));
        }
    }

    /// One comes. Of more than there are slots for, the oldest goes: it may end, or is stopped wherever it is.
    fn change(&mut self) {
        let Others { golden, round, .. } = *self;
        let (from, count) = (round % golden.tokens.len(), 1 + (round + 1) * 131 % self.length.others);
        let prompt = golden.repeated(from + count).split_off(from);
        let (max_tokens, sampling) = (12, SamplingParams::greedy());
        let request = Request { max_tokens, sampling, stop_at_eog: false, ..Request::new(prompt) };
        self.running.push_back(self.handle.submit(request).expect("it can run"));
        if self.running.len() >= SEQUENCES as usize {
            let oldest = self.running.pop_front().expect("there are some");
            if round.is_multiple_of(2) {
                oldest.complete().expect("it ends");
            }
        }
        self.round += 1;
    }

    fn end(&mut self) {
        for other in self.running.drain(..) {
            other.complete().expect("it ends");
        }
    }
}

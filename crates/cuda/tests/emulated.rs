//! The tiny models of `golden/models` through the whole executor, on the emulator: its kernels, streams and ring, without a
//! GPU.

#![cfg(feature = "emulator")]

#[path = "../../engine/tests/common/golden.rs"]
mod models;

#[path = "common/long.rs"]
mod long;

use std::sync::Arc;

use models::{GOLDEN_BOUND, Golden, Way, forced, golden, largest_and_median, named};
use tailrace_cpu::{CpuLoader, Isa};
use tailrace_cuda::CudaLoader;
use tailrace_cuda::driver::emulated::{Emulated, Order};
use tailrace_device::kv::{Append, KvCache, KvConfig, Phase, StepPlan};
use tailrace_device::plan::{Limits, Plan};
use tailrace_device::{LoadOptions, Loader, Row, Submission, WeightSource};
use tailrace_types::{BLOCK_CELLS, SlotId, TokenId};

fn emulated(order: Order) -> CudaLoader {
    CudaLoader::on(Arc::new(Emulated::new(order))).with_short_ring()
}

#[test]
fn golden_values() {
    let (mut computed, mut wrong) = (0, Vec::new());
    for golden in golden("") {
        let way = Way::exact(golden.tokens.len());
        let loader = emulated(Order::LinkFirst);
        // Kernels take rows of whole groups of 32; some of these models have others.
        match golden.model.start(&way.limits, &loader, LoadOptions::default(), &mut |_| ()) {
            Err(error) => assert!(error.to_string().contains("multiple of 32"), "{error}"),
            Ok(handle) => {
                let error = golden.error(&forced(&handle, &golden.tokens, way.prompt));
                handle.stop();
                computed += 1;
                if error.is_nan() || error > GOLDEN_BOUND {
                    wrong.push((golden.name, error));
                }
            }
        }
    }
    assert_eq!(wrong, [], "off by more than {GOLDEN_BOUND:e}");
    assert!(computed >= 19, "{computed}");
}

/// Trained models with f32 activations and an f32 cache: kernels and those of the CPU differ by what an order of sums does.
#[test]
fn exact_types_say_what_the_cpu_says() {
    // Attention in full; windows of 128 cells and GELU.
    for name in ["full", "sliding"] {
        let path = format!("{}/../../models/needle/{name}-q8_0.gguf", env!("CARGO_MANIFEST_DIR"));
        let model = tailrace_engine::open(path).expect("a good file");
        let text = include_str!("../../../golden/perplexity/text.txt");
        let tokens = &model.tokenizer.encode(text, false, false)[..150];
        let way = Way::exact(tokens.len());
        let (card, _) = way.run(&model, &emulated(Order::LinkFirst), tokens);
        let (cpu, _) = way.run(&model, &CpuLoader::new(1, Isa::detect()), tokens);
        let (largest, median) = largest_and_median(&card.distances(&cpu));
        assert!(largest <= 2e-4 && median <= 5e-5, "{name}: {largest:e}, {median:e}");
    }
}

/// Long enough that blocks leave a window of one block and three landing frames, one of them during single-token steps.
const LONG: usize = 1300;

/// Tokens of it that are fed one by one.
const SINGLE: usize = 30;

/// A tail that is really read, with the streams in each of these orders.
fn assert_spilled(golden: &Golden, way: &Way, orders: &[Order]) {
    let (tokens, way) = (golden.repeated(LONG), Way { prompt: LONG - SINGLE, ..way.clone() });
    let (expected, _) = way.run(&golden.model, &emulated(Order::ComputeFirst), &tokens);
    for &order in orders {
        let (logits, state) = way.clone().spilled().run(&golden.model, &emulated(order), &tokens);
        assert!(state.traffic.tail_written_bytes > 0 && state.traffic.tail_read_bytes > 0, "{}", golden.name);
        assert!(logits.bits() == expected.bits(), "{}: {order:?}", golden.name);
    }
}

#[test]
fn a_spilled_tail_changes_no_bit() {
    assert_spilled(&named("type-q8_0"), &Way::default_types(LONG), &[Order::LinkFirst, Order::ComputeFirst]);
}

#[test]
fn nor_beside_sliding_layers() {
    assert_spilled(&named("gemma3-cap"), &Way::default_types(LONG), &[Order::LinkFirst]);
}

#[test]
fn nor_with_exact_types() {
    // Of these tests the one that reuses a slot of the ring while it is read.
    assert_spilled(&named("qwen3-partial"), &Way::exact(LONG), &[Order::LinkFirst]);
}

#[test]
fn other_sequences_change_no_bit() {
    const SEQUENCES: u32 = 3;
    let golden = named("type-q4_k");
    let way = Way { prompt: LONG - SINGLE, ..Way::default_types(LONG) }.spilled();
    let limits =
        Limits { sequences: SEQUENCES, context_cells: SEQUENCES * way.limits.context_cells, ..way.limits.clone() };
    let options = LoadOptions { poison: true };
    let loader = emulated(Order::LinkFirst);
    let handle = golden.model.start(&limits, &loader, options, &mut |_| ()).expect("it fits");
    // The second is the beginning of the first; each has its own length.
    let tokens = golden.repeated(LONG + 7);
    let sequences = [&tokens[..LONG], &tokens[..LONG - 10], &tokens[7..LONG - 10]];
    let together = std::thread::scope(|scope| {
        let threads = sequences.map(|tokens| scope.spawn(|| forced(&handle, tokens, way.prompt)));
        threads.map(|thread| thread.join().expect("it runs").bits())
    });
    handle.stop();
    let alone = |tokens| way.run(&golden.model, &emulated(Order::ComputeFirst), tokens).0.bits();
    let (first, third) = (alone(sequences[0]), alone(sequences[2]));
    let second = &first[..together[1].len()];
    assert!(together[0] == first && together[1] == second && together[2] == third, "{}", golden.name);
}

#[test]
fn nor_do_sequences_that_come_and_go() {
    let length = long::Length { steps: 140, counted: 20, between: 12, others: 300 };
    long::check(&named("type-q8_0"), &emulated(Order::LinkFirst), length);
}

/// Logits of a step of `rows` rows behind three blocks that were filled one by one, and the tail blocks that it read. The host
/// waits for nothing before the end, so what was written to the host and comes back is in flight all the time.
fn logits_without_waits(
    golden: &Golden,
    order: Order,
    window_cells: Option<u32>,
    (phase, rows): (Phase, u32),
) -> (Vec<u32>, usize) {
    let loader = emulated(order);
    let limits = Limits { chunk: BLOCK_CELLS, window_cells, ..Limits::new(8 * BLOCK_CELLS) };
    let plan = Plan::new(golden.model.spec(), &limits, &loader).expect("it fits");
    let mut cache = KvCache::new(KvConfig::of(&plan)).expect("sizes of a plan");
    let mut step = StepPlan::with_capacity(cache.config());
    let (source, options) = (WeightSource::Synthetic { seed: 1 }, LoadOptions { poison: true });
    let mut executor = loader.load(plan, source, options, &mut |_| ()).expect("it loads");
    let slot = SlotId(0);
    cache.create(slot).expect("a free slot");
    for block in 0..4 {
        let cells = if block < 3 { BLOCK_CELLS } else { rows };
        // In the layout of a prefill nothing comes back into frames.
        cache.begin(&[Append { slot, cells }], Phase::Prefill, &mut step).expect("there is room");
        let first = block * BLOCK_CELLS;
        let row = |position| Row { token: TokenId(position % 7), position, view: 0 };
        let rows: Vec<Row> = (first..first + cells).map(row).collect();
        let submission = |phase| Submission { phase, rows: &rows, cache: &step };
        match block {
            3 => executor.submit(&submission(phase)),
            _ => executor.fill(&submission(Phase::Prefill), 1),
        }
        .expect("it runs");
        cache.commit().expect("a step is open");
    }
    let wanted: Vec<u32> = (0..rows).collect();
    let logits = executor.logits(&wanted).expect("rows of the last step");
    (logits.iter().map(|x| x.to_bits()).collect(), step.tail_reads.len())
}

#[test]
fn a_block_comes_back_although_nothing_waited_for_its_way_out() {
    let golden = named("type-f16");
    for last in [(Phase::Prefill, 2), (Phase::Decode, 1)] {
        let (expected, _) = logits_without_waits(&golden, Order::ComputeFirst, None, last);
        assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        for order in [Order::LinkFirst, Order::ComputeFirst] {
            let (logits, read) = logits_without_waits(&golden, order, Some(BLOCK_CELLS), last);
            assert!(read > 0 && logits == expected, "{last:?}, {order:?}");
        }
    }
}

/// Loading fails at each thing that it asks the driver for in turn, until there are enough of them.
#[test]
fn what_was_loaded_in_part_or_whole_is_given_back() {
    let golden = named("gemma3-cap");
    let limits = Limits { chunk: BLOCK_CELLS, window_cells: Some(BLOCK_CELLS), ..Limits::new(8 * BLOCK_CELLS) };
    let mut failed = 0;
    loop {
        let driver = Arc::new(Emulated::new(Order::ComputeFirst));
        let loader = CudaLoader::on(Arc::<Emulated>::clone(&driver)).with_short_ring();
        let plan = Plan::new(golden.model.spec(), &limits, &loader).expect("it fits");
        driver.give_only(failed);
        let loaded = loader.load(plan, WeightSource::Synthetic { seed: 1 }, LoadOptions::default(), &mut |_| ());
        let whole = loaded.is_ok();
        drop(loaded);
        assert_eq!(driver.given(), 0, "after {failed}");
        if whole {
            break;
        }
        failed += 1;
    }
    // Memory, staging, streams' events, the graphs of a step.
    assert!(failed > 20, "{failed}");
}

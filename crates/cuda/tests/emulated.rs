//! The tiny models of `golden/models` through the whole executor, on the emulator: its kernels, streams and ring, without a
//! GPU.

#![cfg(feature = "emulator")]

#[path = "../../engine/tests/common/golden.rs"]
mod models;

use std::sync::Arc;

use models::{GOLDEN_BOUND, Golden, Way, forced, golden, named};
use tailrace_cuda::CudaLoader;
use tailrace_cuda::driver::emulated::{Emulated, Order};
use tailrace_device::LoadOptions;
use tailrace_device::plan::Limits;

fn emulated(order: Order) -> CudaLoader {
    CudaLoader::on(Arc::new(Emulated::new(order)))
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

/// Long enough that blocks leave a window of one block and three landing frames.
const LONG: usize = 1400;

/// Both orders in which the streams may run, over a tail that is really read.
fn assert_spilled(golden: &Golden, way: &Way) {
    let tokens = golden.repeated(LONG);
    let (expected, _) = way.run(&golden.model, &emulated(Order::ComputeFirst), &tokens);
    for order in [Order::LinkFirst, Order::ComputeFirst] {
        let (logits, state) = way.clone().spilled().run(&golden.model, &emulated(order), &tokens);
        assert!(state.traffic.tail_written_bytes > 0 && state.traffic.tail_read_bytes > 0, "{}", golden.name);
        assert!(logits.bits() == expected.bits(), "{}: {order:?}", golden.name);
    }
}

#[test]
fn a_spilled_tail_changes_no_bit() {
    for golden in ["type-q8_0", "gemma3-cap"].map(named) {
        assert_spilled(&golden, &Way { prompt: LONG - 60, ..Way::default_types(LONG) });
    }
}

#[test]
fn nor_with_exact_types() {
    let golden = named("qwen3-partial");
    assert_spilled(&golden, &Way { prompt: LONG - 30, ..Way::exact(LONG) });
}

#[test]
fn other_sequences_change_no_bit() {
    const SEQUENCES: usize = 3;
    let golden = named("type-q4_k");
    let way = Way { prompt: LONG - 40, ..Way::default_types(LONG) }.spilled();
    let context_cells = SEQUENCES as u32 * way.limits.context_cells;
    let limits = Limits { sequences: SEQUENCES as u32, context_cells, ..way.limits.clone() };
    let options = LoadOptions { poison: true };
    let loader = emulated(Order::LinkFirst);
    let handle = golden.model.start(&limits, &loader, options, &mut |_| ()).expect("it fits");
    // The same beginning for two of them; each its own length.
    let tokens = golden.repeated(LONG + 7);
    let sequences = [&tokens[..LONG], &tokens[..LONG - 10], &tokens[7..LONG - 20]];
    let together = std::thread::scope(|scope| {
        let threads = sequences.map(|tokens| scope.spawn(|| forced(&handle, tokens, way.prompt)));
        threads.map(|thread| thread.join().expect("it runs"))
    });
    handle.stop();
    for (tokens, logits) in sequences.iter().zip(together) {
        let (alone, _) = way.run(&golden.model, &emulated(Order::ComputeFirst), tokens);
        assert!(logits.bits() == alone.bits(), "{}", golden.name);
    }
}

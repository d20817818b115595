//! The tiny models of `golden/models`, through the whole engine: against the exact log-probabilities beside them, and one
//! executor against the other.

#[path = "common/golden.rs"]
mod models;

use models::{GOLDEN_BOUND, MODELS, TYPE_MODELS, Way, forced, golden, largest_and_median, named};
use tailrace_cpu::naive::NaiveLoader;
use tailrace_cpu::{CpuLoader, Isa};
use tailrace_device::plan::Limits;
use tailrace_device::{LoadOptions, Loader};
use tailrace_engine::Snapshot;
use tailrace_types::KvType;

fn simd(isa: Isa) -> CpuLoader {
    CpuLoader::new(2, isa)
}

/// Runs every golden model on a device and compares.
fn assert_golden(name: &str, loader: &dyn Loader) {
    let models = golden("");
    assert_eq!(models.len(), MODELS);
    for golden in models {
        let (logits, _) = Way::exact(golden.tokens.len()).run(&golden.model, loader, &golden.tokens);
        let error = golden.error(&logits);
        assert!(error <= GOLDEN_BOUND, "{} on {name}: off by {error:e}", golden.name);
    }
}

#[test]
fn every_instruction_set_computes_the_golden_values() {
    for isa in Isa::available() {
        assert_golden(isa.level().name(), &simd(isa));
    }
}

#[test]
fn the_naive_executor_computes_the_golden_values() {
    assert_golden("naive", &NaiveLoader);
}

/// Long enough that most blocks leave a window of one block and three landing frames.
const LONG: usize = 1500;

#[test]
fn a_spilled_tail_changes_no_bit() {
    let models = golden("");
    assert_eq!(models.len(), MODELS);
    let mut decoded_from_tail = 0;
    for golden in models {
        let tokens = golden.repeated(LONG);
        for way in [Way::exact(LONG), Way::default_types(LONG)] {
            let device = simd(Isa::detect());
            // One thread, other chunks, everything prompt: none of it is part of what a row's value depends on.
            let resident = Way { limits: Limits { chunk: 512, ..way.limits.clone() }, prompt: LONG, ..way.clone() };
            let (expected, _) = resident.run(&golden.model, &CpuLoader::new(1, Isa::detect()), &tokens);
            let (logits, state) = Way { prompt: 1300, ..way }.spilled().run(&golden.model, &device, &tokens);
            assert!(state.traffic.tail_written_bytes > 0 && state.traffic.tail_read_bytes > 0, "{}", golden.name);
            assert!(logits.bits() == expected.bits(), "{}", golden.name);
            decoded_from_tail += usize::from(state.tail_cells() > 0);
        }
    }
    // Where a frame is small, overlay frames bring the whole tail back for the decode.
    assert!(decoded_from_tail >= MODELS);
}

#[test]
fn naive_and_simd_agree_on_a_spilled_tail() {
    // Grouped heads; head norms and half of each head rotated; sliding layers, GELU and a cap.
    let chosen = ["llama-tied", "qwen3-partial", "gemma3-cap"];
    for golden in chosen.map(named) {
        let tokens = golden.repeated(LONG);
        let way = Way { prompt: 1400, ..Way::exact(LONG) }.spilled();
        let (naive, naive_state) = way.run(&golden.model, &NaiveLoader, &tokens);
        let (simd, simd_state) = way.run(&golden.model, &simd(Isa::detect()), &tokens);
        let (largest, _) = largest_and_median(&simd.distances(&naive));
        assert!(largest <= 1e-4, "{}: {largest:e}", golden.name);
        assert!(naive_state.traffic.tail_read_bytes > 0, "{}", golden.name);
        let written = |state: &Snapshot| state.traffic.tail_written_bytes;
        assert_eq!(written(&naive_state), written(&simd_state), "{}", golden.name);
        // The oracle obeys the row law as well.
        let resident = Way { prompt: LONG, ..Way::exact(LONG) };
        let (expected, _) = resident.run(&golden.model, &NaiveLoader, &tokens);
        assert!(naive.bits() == expected.bits(), "{}", golden.name);
    }
}

/// Two executors round a cell differently now and then, which moves a row by a small part of what the type itself does.
#[test]
fn every_cache_type_spills_without_a_change() {
    let golden = named("llama-tied");
    let tokens = golden.repeated(LONG);
    let device = simd(Isa::detect());
    let way = |k_type, v_type| {
        let limits = Limits { k_type, v_type, ..Way::exact(LONG).limits };
        Way { limits, prompt: 1400, poison: false }
    };
    let spilled = |way: Way| {
        let (spilled, state) = way.clone().spilled().run(&golden.model, &device, &tokens);
        let (resident, _) = way.run(&golden.model, &device, &tokens);
        assert!(state.traffic.tail_read_bytes > 0 && spilled.bits() == resident.bits());
        spilled
    };
    let exact = spilled(way(KvType::F32, KvType::F32));
    for (k_type, v_type) in [(KvType::F16, KvType::F16), (KvType::Bf16, KvType::Bf16), (KvType::Bf16, KvType::F32)] {
        let logits = spilled(way(k_type, v_type));
        let (naive, _) = way(k_type, v_type).spilled().run(&golden.model, &NaiveLoader, &tokens);
        let (apart, _) = largest_and_median(&logits.distances(&naive));
        let (rounding, _) = largest_and_median(&logits.distances(&exact));
        assert!(rounding > 1e-3 && apart < rounding / 4.0, "{k_type}, {v_type}: {apart:e} of {rounding:e}");
    }
}

#[test]
fn other_sequences_change_no_bit() {
    const SEQUENCES: usize = 3;
    for golden in ["gemma3", "llama-tied", "type-q4_k"].map(named) {
        let way = Way { prompt: 900, ..Way::default_types(LONG) }.spilled();
        let limits = Limits {
            sequences: SEQUENCES as u32,
            context_cells: SEQUENCES as u32 * way.limits.context_cells,
            ..way.limits.clone()
        };
        let options = LoadOptions { poison: true };
        let handle = golden.model.start(&limits, &simd(Isa::detect()), options, &mut |_| ()).expect("it fits");
        // The same beginning for two of them; each its own length.
        let tokens = golden.repeated(LONG + 7);
        let sequences = [&tokens[..LONG], &tokens[..LONG - 100], &tokens[7..LONG - 200]];
        let together = std::thread::scope(|scope| {
            let threads = sequences.map(|tokens| scope.spawn(|| forced(&handle, tokens, way.prompt)));
            threads.map(|thread| thread.join().expect("it runs"))
        });
        let state = handle.snapshot().expect("the engine runs");
        handle.stop();
        let steps = sequences.iter().map(|tokens| tokens.len() - way.prompt).sum::<usize>() as u64;
        assert!(state.decodes < steps, "sequences shared steps");
        assert!(state.traffic.tail_read_bytes > 0);
        for (tokens, logits) in sequences.iter().zip(together) {
            let (alone, _) = way.run(&golden.model, &simd(Isa::detect()), tokens);
            assert!(logits.bits() == alone.bits(), "{}", golden.name);
        }
    }
}

/// With default types products of 8-bit activations are exact integers, so two executors differ by the order of f32 sums,
/// about 1e-6 in a row. Now and then that decides how an activation or a cell is rounded; such a row differs by as much as
/// quantisation itself does (0.1 and more), and later rows which attend to it by less. So most rows must agree
/// closely, and all of them roughly. Over all types, levels and rows the largest median was 1.8e-5, the largest distance 0.12.
#[test]
fn default_types_agree_for_every_weight_type() {
    const MEDIAN_BOUND: f64 = 6e-5;
    const LARGEST_BOUND: f64 = 0.4;
    let models = golden("type-");
    assert_eq!(models.len(), TYPE_MODELS);
    for golden in models {
        let count = golden.tokens.len();
        let way = Way::default_types(count);
        let (naive, _) = way.run(&golden.model, &NaiveLoader, &golden.tokens);
        for isa in Isa::available() {
            let (logits, _) = way.run(&golden.model, &simd(isa), &golden.tokens);
            let (largest, median) = largest_and_median(&logits.distances(&naive));
            let what = format!("{} on {}: largest {largest:e}, median {median:e}", golden.name, isa.level().name());
            assert!(largest <= LARGEST_BOUND && median <= MEDIAN_BOUND, "{what}");
        }
        // Were the types ignored, most rows would be far outside the bound.
        let (exact, _) = Way::exact(count).run(&golden.model, &NaiveLoader, &golden.tokens);
        let (_, median) = largest_and_median(&exact.distances(&naive));
        assert!(median > 10.0 * MEDIAN_BOUND, "{}: median {median:e}", golden.name);
    }
}

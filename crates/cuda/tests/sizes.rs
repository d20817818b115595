//! What plans for a card promise about their workspace and partials.

use tailrace_cuda::{Card, Sizes};
use tailrace_device::plan::{DeviceSizes, Limits, Plan, RowKind};
use tailrace_models::shapes;

const CONTEXT: u32 = 131_072;

fn plan(shape: &str, context: u32) -> Plan {
    plan_under(shape, Limits::new(context))
}

fn plan_under(shape: &str, limits: Limits) -> Plan {
    let model = shapes::read(shape).expect("a known shape");
    let sizes = Sizes::new(Card::new((9, 0), 132), 600 << 20);
    Plan::new(&model.spec, &Limits { chunk: Limits::CHUNK_GPU, ..limits }, &sizes).expect("it fits")
}

const SHAPES: [&str; 6] =
    ["qwen2.5-0.5b:q8_0", "qwen2.5-7b:q4_k", "qwen2.5-14b:q8_0", "qwen3-8b:q8_0", "llama3-8b:q4_k", "gemma3-12b:q8_0"];

#[test]
fn a_longer_context_needs_no_more_workspace() {
    for shape in SHAPES {
        let workspace = |context| plan(shape, context).memory.bytes(RowKind::Workspace);
        assert_eq!(workspace(CONTEXT / 4), workspace(CONTEXT), "{shape}");
    }
}

#[test]
fn partials_are_a_small_part_of_one_layers_cells() {
    for shape in SHAPES {
        let plan = plan(shape, CONTEXT);
        let blocks = u64::from(plan.cache.sequence_blocks);
        let layer = plan.layers.iter().map(|layer| layer.shape.block_bytes() * blocks).max().expect("it has layers");
        let partials = plan.memory.bytes(RowKind::Partials);
        assert!(partials > 0 && partials * 40 <= layer, "{shape}: {partials} of {layer}");
    }
}

#[test]
fn a_ring_holds_a_layers_tail_where_sliding_layers_lie_between() {
    let windowed = |shape, blocks: u32| {
        let plan = plan_under(shape, Limits { window_cells: Some(blocks * 256), ..Limits::new(CONTEXT) });
        let Plan { cache, memory, .. } = plan;
        assert_eq!(u64::from(cache.ring_slots) * cache.slot_bytes, memory.bytes(RowKind::Ring), "{shape}");
        // Of one layer.
        let tail = u64::from(cache.sequence_blocks - cache.core_frames()) * cache.slot_bytes;
        (memory.bytes(RowKind::Ring), tail)
    };
    // Eight layers of 48, blocks of 2 MiB: 4 GiB in the tail, then all but two blocks.
    let (ring, tail) = windowed("gemma3-12b:q8_0", 512 - 9 - 256);
    assert_eq!((ring, tail), (512 << 20, 512 << 20));
    assert_eq!(windowed("gemma3-12b:q8_0", 1).0, 1004 << 20);
    assert_eq!(windowed("gemma3-12b:q8_0", 512 - 9 - 2).0, 128 << 20);
    for shape in ["qwen2.5-7b:q4_k", "qwen2.5-14b:q8_0", "qwen3-8b:q8_0", "llama3-8b:q4_k"] {
        assert_eq!(windowed(shape, 8).0, 128 << 20, "{shape}");
    }
}

#[test]
fn the_ring_of_a_small_model_is_no_more_than_an_eighth_of_its_weights_or_8_mib() {
    let sizes = Sizes::new(Card::new((9, 0), 132), 0);
    let slots = |slot_kib: u64, weights_mib: u64| sizes.ring_slots(slot_kib << 10, weights_mib << 20);
    assert_eq!([slots(128, 3), slots(128, 64), slots(128, 80)], [64, 64, 80]);
    assert_eq!(slots(4096, 3), 8, "slots at least");
    assert_eq!(sizes.ring_slots_max(128 << 10, 3 << 20), 64);
}

#[test]
fn a_cap_gives_the_ring_no_more_than_a_quarter_of_the_window() {
    let capped = |gib: u64| {
        let cap = gib << 30;
        let plan = plan_under("gemma3-12b:q8_0", Limits { device_bytes_max: Some(cap), ..Limits::new(CONTEXT) });
        assert!(plan.cache.spills && plan.memory.device_bytes() <= cap);
        plan
    };
    let mut before = capped(15).cache;
    for cache in (16..22).map(|gib| capped(gib).cache) {
        let tail = cache.sequence_blocks - cache.core_frames();
        assert_eq!(cache.ring_slots, tail.min(2 * cache.window_frames).max(64));
        assert!(before.window_frames < cache.window_frames);
        before = cache;
    }
}

#[test]
fn an_embedding_that_is_not_the_head_stays_on_the_host() {
    let untied = plan("qwen2.5-14b:q8_0", 4096);
    assert_eq!(untied.memory.bytes(RowKind::Embedding), (152_064 * 5120 / 32 * 34u64).next_multiple_of(4096));
    // The products of a step and the vectors: what the card holds.
    let weights = untied.memory.bytes(RowKind::Weights) as f64;
    assert!((weights / 14.87e9 - 1.0).abs() < 5e-3, "{weights}");
    assert_eq!(plan("gemma3-12b:q8_0", 4096).memory.bytes(RowKind::Embedding), 0);
}

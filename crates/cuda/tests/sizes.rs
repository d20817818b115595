//! What plans for a card promise about their workspace and partials.

use tailrace_cuda::{Card, Sizes};
use tailrace_device::plan::{Limits, Plan, RowKind};
use tailrace_models::shapes;

const CONTEXT: u32 = 131_072;

fn plan(shape: &str, context: u32) -> Plan {
    let model = shapes::read(shape).expect("a known shape");
    let sizes = Sizes { card: Card::new((9, 0), 132), driver_bytes: 600 << 20 };
    let limits = Limits { chunk: Limits::CHUNK_GPU, ..Limits::new(context) };
    Plan::new(&model.spec, &limits, &sizes).expect("no cap, so it fits")
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
fn an_embedding_that_is_not_the_head_stays_on_the_host() {
    let untied = plan("qwen2.5-14b:q8_0", 4096);
    assert_eq!(untied.memory.bytes(RowKind::Embedding), (152_064 * 5120 / 32 * 34u64).next_multiple_of(4096));
    // The products of a step and the vectors: what the card holds.
    let weights = untied.memory.bytes(RowKind::Weights) as f64;
    assert!((weights / 14.87e9 - 1.0).abs() < 5e-3, "{weights}");
    assert_eq!(plan("gemma3-12b:q8_0", 4096).memory.bytes(RowKind::Embedding), 0);
}

//! Shapes of well-known models: what reading their files would say.

mod common;

use tailrace_models::shapes::{self, ShapeError};
use tailrace_plan::spec::{Pairing, Reach};
use tailrace_types::WeightType;

fn spec(text: &str) -> tailrace_plan::ModelSpec {
    let model = shapes::read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!((model.name.as_str(), model.warnings.len()), (text, 0));
    model.spec
}

/// Parameters of the matrices, the embedding counted once.
fn parameters(spec: &tailrace_plan::ModelSpec) -> u64 {
    let layer = |block: &tailrace_plan::spec::Block| {
        let (a, f) = (block.attention(), &block.ffn.inner);
        [&a.q, &a.k, &a.v, &a.o, &f.gate, &f.up, &f.down].iter().map(|l| l.weight.rows * l.weight.cols).sum::<u64>()
    };
    let embed = spec.embed.rows * spec.embed.cols;
    let head = if spec.head.weight == spec.embed { 0 } else { embed };
    spec.blocks.iter().map(layer).sum::<u64>() + embed + head
}

#[test]
fn every_shape_is_a_sound_model_of_its_size() {
    // Parameters as published, in billions.
    let published = [
        ("gemma3-270m", 0.268),
        ("gemma3-1b", 1.0),
        ("gemma3-4b", 3.88),
        ("gemma3-12b", 11.77),
        ("gemma3-27b", 27.01),
        ("llama3-8b", 8.03),
        ("llama3.1-70b", 70.55),
        ("llama3.2-1b", 1.236),
        ("llama3.2-3b", 3.213),
        ("smollm2-135m", 0.1345),
        ("smollm2-360m", 0.3618),
        ("smollm2-1.7b", 1.711),
        ("qwen2.5-0.5b", 0.494),
        ("qwen2.5-1.5b", 1.543),
        ("qwen2.5-3b", 3.086),
        ("qwen2.5-7b", 7.616),
        ("qwen2.5-14b", 14.77),
        ("qwen2.5-32b", 32.76),
        ("qwen3-0.6b", 0.596),
        ("qwen3-1.7b", 1.72),
        ("qwen3-4b", 4.02),
        ("qwen3-8b", 8.19),
        ("qwen3-14b", 14.77),
        ("qwen3-32b", 32.76),
    ];
    let names: Vec<_> = shapes::names().collect();
    for (name, billions) in published {
        assert!(names.contains(&name), "{name}");
        let found = parameters(&spec(&format!("{name}:f16"))) as f64 / 1e9;
        assert!((found / billions - 1.0).abs() < 0.006, "{name}: {found} billion parameters");
    }
    assert_eq!(names.len(), published.len());
}

#[test]
fn what_sets_a_family_apart_is_in_the_spec() {
    let qwen = spec("qwen2.5-14b:q8_0");
    let a = qwen.blocks[47].attention();
    assert_eq!((qwen.width, qwen.vocab, qwen.blocks.len()), (5120, 152_064, 48));
    assert_eq!((a.heads, a.kv_heads, a.dk, a.dv, a.rope.base, a.rope.pairing), (40, 8, 128, 128, 1e6, Pairing::Half));
    assert_eq!(a.k.bias.map(|b| (b.ty, b.cols)), Some((WeightType::F32, 1024)));
    assert_ne!(qwen.head.weight, qwen.embed);
    assert_eq!(qwen.head.weight.ty, WeightType::Q8_0);
    let smol = spec("smollm2-135m:q8_0");
    assert_eq!(smol.head.weight, smol.embed);
    assert!(spec("qwen3-8b:q4_k").blocks[0].attention().q_norm.is_some());
    assert!(spec("llama3.2-1b:q4_0").blocks[0].attention().rope.factors.is_some());
    assert!(spec("llama3-8b:q4_0").blocks[0].attention().rope.factors.is_none());
    let gemma = spec("gemma3-4b:q4_k");
    assert_eq!(gemma.blocks[4].attention().reach, Reach::Sliding(1024));
    assert_eq!((gemma.blocks[5].attention().reach, gemma.blocks[5].attention().rope.linear), (Reach::Global, 8.0));
    assert!(gemma.blocks[0].ffn.post.is_some());
}

#[test]
fn what_is_no_shape_is_said() {
    for (text, says) in [
        ("qwen2.5-14b", "NAME:TYPE"),
        ("gpt-5:q8_0", "qwen2.5-14b"),
        ("qwen2.5-14b:q8_1", "q8_0"),
        ("smollm2-135m:q4_k", "576"),
        (":", "known"),
    ] {
        let error = shapes::read(text).expect_err("no shape").to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    }
    let rows = shapes::read("smollm2-135m:q4_k").expect_err("576 is no multiple of 256");
    assert!(matches!(rows, ShapeError::Rows { elements: 576, ty: WeightType::Q4_K, .. }));
}

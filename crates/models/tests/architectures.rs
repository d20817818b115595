//! What each architecture makes of a sound file.

mod common;

use common::{ARCHITECTURES, SIZES, Sizes, Tiny};
use tailrace_plan::spec::{Activation, Pairing, Reach, Yarn};
use tailrace_types::WeightType;

#[test]
fn every_architecture_reads_its_tiny_file() {
    assert_eq!(tailrace_models::architectures().collect::<Vec<_>>(), ARCHITECTURES);
    for arch in ARCHITECTURES {
        let model = Tiny::new(arch).model();
        assert_eq!((model.arch, model.name.as_str()), (arch, arch));
        assert_eq!(model.warnings, Vec::<String>::new());
        let spec = model.spec;
        assert_eq!((spec.width, spec.vocab, spec.context, spec.blocks.len()), (8, 5, 16, 2));
        assert_eq!(spec.head.weight, spec.embed, "the head is tied");
        let attention = spec.blocks[1].attention();
        assert_eq!((attention.heads, attention.kv_heads, attention.dk, attention.dv), (2, 1, 4, 4));
        assert_eq!((attention.scale, attention.cap, attention.reach), (0.5, None, Reach::Global));
        assert_eq!((attention.rope.dims, attention.rope.base, attention.rope.linear), (4, 10000.0, 1.0));
        let pairing = if arch == "llama" { Pairing::Adjacent } else { Pairing::Half };
        assert_eq!(attention.rope.pairing, pairing);
        assert_eq!(attention.q_norm.is_some(), matches!(arch, "qwen3" | "gemma3"));
        let gemma = arch == "gemma3";
        assert_eq!(spec.blocks[0].ffn.post.is_some(), gemma);
        assert_eq!(spec.blocks[0].mixer.post.is_some(), gemma);
        let activation = if gemma { Activation::GeluTanh } else { Activation::Silu };
        assert_eq!(spec.blocks[0].ffn.inner.activation, activation);
        assert_eq!(spec.embed_scale, if gemma { 8f32.sqrt() } else { 1.0 });
    }
}

#[test]
fn the_name_is_for_people_and_escaped() {
    let mut tiny = Tiny::new("llama");
    tiny.keys.insert("general.name".into(), "a\x1b[2J".into());
    assert_eq!(tiny.model().name, "a\\u{1b}[2J");
    for useless in ["".into(), 3u32.into()] {
        tiny.keys.insert("general.name".into(), useless);
        assert_eq!(tiny.model().name, "llama");
    }
}

#[test]
fn sizes_have_the_usual_defaults() {
    let mut tiny = Tiny::with("qwen2", Sizes { kv_heads: 2, ..SIZES });
    for key in ["attention.head_count_kv", "attention.key_length", "attention.value_length"] {
        tiny.unset(key);
    }
    let spec = tiny.spec();
    let attention = spec.blocks[0].attention();
    assert_eq!((attention.kv_heads, attention.dk, attention.dv), (2, 4, 4));
}

#[test]
fn key_and_value_heads_may_differ_in_size() {
    let spec = Tiny::with("qwen3", Sizes { dk: 6, dv: 10, ..SIZES }).spec();
    assert_eq!(spec.blocks[0].attention().o.weight.cols, 20);
    assert_eq!(spec.blocks[0].attention().scale, 1.0 / 6f32.sqrt());
}

#[test]
fn sizes_may_differ_between_layers() {
    let mut tiny = Tiny::new("llama");
    tiny.set("attention.head_count", vec![2u32, 4]);
    tiny.set("attention.head_count_kv", vec![1u32, 2]);
    tiny.set("feed_forward_length", vec![6u32, 3]);
    tiny.reshape("blk.1.attn_q.weight", &[8, 16]).reshape("blk.1.attn_output.weight", &[16, 8]);
    tiny.reshape("blk.1.attn_k.weight", &[8, 8]).reshape("blk.1.attn_v.weight", &[8, 8]);
    tiny.reshape("blk.1.ffn_gate.weight", &[8, 3]).reshape("blk.1.ffn_up.weight", &[8, 3]);
    tiny.reshape("blk.1.ffn_down.weight", &[3, 8]);
    let spec = tiny.spec();
    let heads: Vec<_> = spec.blocks.iter().map(|b| (b.attention().heads, b.attention().kv_heads)).collect();
    assert_eq!(heads, [(2, 1), (4, 2)]);
}

#[test]
fn a_file_without_tokens_has_the_vocabulary_of_its_embedding() {
    let mut tiny = Tiny::new("llama");
    tiny.keys.remove("tokenizer.ggml.tokens");
    tiny.reshape("token_embd.weight", &[8, 7]);
    assert_eq!(tiny.spec().vocab, 7);
}

#[test]
fn a_head_of_its_own_and_biases_are_used() {
    let mut tiny = Tiny::new("qwen2");
    tiny.add("output.weight", &[8, 5]).add("output.bias", &[5]);
    tiny.add("blk.0.attn_q.bias", &[8]).add("blk.0.attn_output.bias", &[8]).add("blk.1.ffn_up.bias", &[6]);
    let model = tiny.model();
    let spec = model.spec;
    assert_ne!(spec.head.weight, spec.embed);
    assert!(spec.head.bias.is_some());
    assert!(spec.blocks[0].attention().q.bias.is_some() && spec.blocks[0].attention().o.bias.is_some());
    assert!(spec.blocks[0].attention().k.bias.is_none());
    assert!(spec.blocks[1].ffn.inner.up.bias.is_some());
    assert!(model.warnings.is_empty());
}

#[test]
fn a_tied_head_may_have_a_bias() {
    let mut tiny = Tiny::new("qwen2");
    tiny.add("output.bias", &[5]);
    let spec = tiny.spec();
    assert_eq!(spec.head.weight, spec.embed);
    assert!(spec.head.bias.is_some());
}

/// A file whose first layer has a fused projection.
fn fused() -> Tiny {
    let mut tiny = Tiny::with("llama", Sizes { dv: 6, ..SIZES });
    for name in ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"] {
        tiny.remove(name);
    }
    tiny.add("blk.0.attn_qkv.weight", &[8, 18]);
    tiny
}

#[test]
fn a_fused_projection_is_cut_into_rows() {
    let mut tiny = fused();
    tiny.add("blk.0.attn_qkv.bias", &[18]);
    let spec = tiny.spec();
    let a = spec.blocks[0].attention();
    let rows = |slice: &tailrace_plan::spec::TensorSlice| (slice.first_row, slice.rows, slice.cols);
    assert_eq!([&a.q, &a.k, &a.v].map(|l| rows(&l.weight)), [(0, 8, 8), (8, 4, 8), (12, 6, 8)]);
    let biases = [&a.q, &a.k, &a.v].map(|l| rows(l.bias.as_ref().unwrap()));
    assert_eq!(biases, [(0, 8, 1), (8, 4, 1), (12, 6, 1)]);
    assert_eq!(a.q.weight.tensor, a.v.weight.tensor);
}

#[test]
fn a_fused_projection_may_have_separate_biases() {
    let mut tiny = fused();
    tiny.add("blk.0.attn_v.bias", &[6]);
    let model = tiny.model();
    let a = model.spec.blocks[0].attention();
    assert!(a.q.bias.is_none() && a.k.bias.is_none());
    assert_eq!(a.v.bias.unwrap().cols, 6);
    assert!(model.warnings.is_empty());
}

#[test]
fn matrices_may_have_any_type_and_vectors_any_float() {
    for &ty in WeightType::ALL {
        let mut tiny = Tiny::with("llama", Sizes { width: 256, ffn: 256, heads: 1, dk: 256, dv: 256, ..SIZES });
        for (_, shape, tensor_ty) in &mut tiny.tensors {
            if shape.len() == 2 || ty.is_float() {
                *tensor_ty = ty;
            }
        }
        let spec = tiny.spec();
        assert_eq!(spec.blocks[0].attention().q.weight.ty, ty);
    }
}

#[test]
fn rope_factors_belong_to_llama() {
    let mut tiny = Tiny::new("llama");
    tiny.add("rope_freqs.weight", &[2]);
    let model = tiny.model();
    assert!(model.spec.blocks[1].attention().rope.factors.is_some());
    assert!(model.warnings.is_empty());
}

#[test]
fn llama_takes_its_scale_from_the_file() {
    for (stored, scale) in [(0.25f32, 0.25), (0.0, 0.5)] {
        assert_eq!(Tiny::new("llama").set("attention.scale", stored).spec().blocks[0].attention().scale, scale);
    }
    assert_eq!(Tiny::new("qwen3").set("attention.scale", 0.25f32).spec().blocks[0].attention().scale, 0.5);
}

#[test]
fn rope_may_turn_a_part_of_a_head_where_the_architecture_allows_it() {
    let spec = Tiny::new("qwen3").set("rope.dimension_count", 2u32).spec();
    assert_eq!(spec.blocks[0].attention().rope.dims, 2);
}

#[test]
fn linear_scaling_has_an_old_and_a_new_key() {
    let linear = |tiny: &mut Tiny| tiny.spec().blocks[0].attention().rope.linear;
    let mut tiny = Tiny::new("llama");
    assert_eq!(linear(tiny.set("rope.scale_linear", 2f32)), 2.0);
    assert_eq!(linear(tiny.set("rope.scaling.factor", 4f32)), 4.0);
    assert_eq!(linear(tiny.set("rope.scaling.type", "linear")), 4.0);
    assert_eq!(linear(tiny.set("rope.scaling.type", "none")), 1.0);
    assert_eq!(linear(Tiny::new("llama").set("rope.scaling.factor", 0f32)), 1.0);
}

#[test]
fn yarn_has_the_defaults_of_its_paper() {
    let mut tiny = Tiny::new("qwen2");
    tiny.set("rope.scaling.type", "yarn").set("rope.scaling.factor", 4f32);
    let rope = tiny.spec().blocks[0].attention().rope.clone();
    assert_eq!(rope.linear, 4.0);
    assert_eq!(rope.yarn, Some(Yarn { original_context: 16, ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 }));
    assert!((rope.mscale - 1.138_629_4).abs() < 1e-6);

    tiny.set("rope.scaling.original_context_length", 8u32).set("rope.scaling.attn_factor", 0.5f32);
    tiny.set("rope.scaling.yarn_beta_fast", 16f32).set("rope.scaling.yarn_beta_slow", 2f32);
    tiny.set("rope.scaling.yarn_ext_factor", -1f32);
    let rope = tiny.spec().blocks[0].attention().rope.clone();
    assert_eq!(rope.yarn, Some(Yarn { original_context: 8, ext_factor: 1.0, beta_fast: 16.0, beta_slow: 2.0 }));
    assert!((rope.mscale - 0.569_314_7).abs() < 1e-6);

    tiny.set("rope.scaling.yarn_ext_factor", 0f32);
    let rope = tiny.spec().blocks[0].attention().rope.clone();
    assert_eq!((rope.yarn, rope.linear, rope.mscale), (None, 4.0, 0.5));

    // Shrinking a context is no reason to flatten the softmax.
    tiny.set("rope.scaling.factor", 0.5f32).set("rope.scaling.yarn_ext_factor", 1f32);
    assert_eq!(tiny.spec().blocks[0].attention().rope.mscale, 0.5);
}

/// What the layers of a gemma3 file with window 3 see.
fn reach(layers: u64, pattern: impl FnOnce(&mut Tiny)) -> Vec<bool> {
    let mut tiny = Tiny::with("gemma3", Sizes { layers, ..SIZES });
    tiny.set("attention.sliding_window", 3u32);
    pattern(&mut tiny);
    let slides = |reach| match reach {
        Reach::Sliding(window) => {
            assert_eq!(window, 3);
            true
        }
        Reach::Global => false,
    };
    tiny.spec().blocks.iter().map(|b| slides(b.attention().reach)).collect()
}

#[test]
fn gemma3_slides_by_period_or_by_list() {
    const KEY: &str = "attention.sliding_window_pattern";
    assert_eq!(reach(7, |_| {}), [true, true, true, true, true, false, true]);
    assert_eq!(reach(4, |t| _ = t.set(KEY, 2u32)), [true, false, true, false]);
    assert_eq!(reach(2, |t| _ = t.set(KEY, 1u32)), [false, false]);
    assert_eq!(reach(2, |t| _ = t.set(KEY, vec![false, true])), [false, true]);
    assert_eq!(reach(2, |t| _ = t.set("attention.sliding_window", 0u32)), [false, false]);
}

#[test]
fn gemma3_scales_positions_of_global_layers_only() {
    let mut tiny = Tiny::new("gemma3");
    tiny.set("attention.sliding_window", 3u32).set("attention.sliding_window_pattern", 2u32);
    tiny.set("rope.freq_base", 1e6f32).set("rope.scaling.factor", 8f32);
    let ropes = |tiny: &Tiny| {
        let spec = tiny.spec();
        [0, 1].map(|i| (spec.blocks[i].attention().rope.base, spec.blocks[i].attention().rope.linear))
    };
    assert_eq!(ropes(&tiny), [(10000.0, 1.0), (1e6, 8.0)]);
    assert_eq!(ropes(tiny.set("rope.freq_base_swa", 5000f32)), [(5000.0, 1.0), (1e6, 8.0)]);
}

#[test]
fn gemma3_27b_scales_by_its_width() {
    let spec = Tiny::with("gemma3", Sizes { layers: 62, width: 18, dk: 4, ..SIZES }).spec();
    assert!((spec.blocks[0].attention().scale - 1.0 / 3.0).abs() < 1e-7);
}

#[test]
fn gemma3_caps_its_logits_if_the_file_says_so() {
    assert_eq!(Tiny::new("gemma3").set("final_logit_softcapping", 30f32).spec().logit_cap, Some(30.0));
    assert_eq!(Tiny::new("gemma3").set("final_logit_softcapping", 0f32).spec().logit_cap, None);
}

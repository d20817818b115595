//! Each kind of defect and the line that a user reads about it.

mod common;

use common::{ARCHITECTURES, SIZES, Sizes, Tiny};
use tailrace_gguf::{Array, Strings, Value};
use tailrace_types::WeightType;

/// The error of a llama file with one key changed.
fn with(key: &str, value: impl Into<Value>) -> String {
    Tiny::new("llama").set(key, value).error()
}

#[test]
fn an_unknown_architecture_is_told_the_known_ones() {
    let mut tiny = Tiny::new("llama");
    tiny.keys.insert("general.architecture".into(), "mamba\n".into());
    assert_eq!(tiny.error(), "the architecture \"mamba\\n\" is not supported; known are gemma3, llama, qwen2, qwen3");
    tiny.keys.remove("general.architecture");
    assert_eq!(tiny.error(), "metadata key \"general.architecture\" is missing");
    tiny.keys.insert("general.architecture".into(), 3u32.into());
    assert_eq!(tiny.error(), "metadata key \"general.architecture\" holds u32, but string is needed");
}

#[test]
fn every_required_key_is_missed_by_name() {
    for arch in ARCHITECTURES {
        for key in [
            "context_length",
            "embedding_length",
            "block_count",
            "feed_forward_length",
            "attention.head_count",
            "attention.layer_norm_rms_epsilon",
        ] {
            assert_eq!(Tiny::new(arch).unset(key).error(), format!("metadata key \"{arch}.{key}\" is missing"));
        }
    }
}

#[test]
fn every_tensor_is_missed_by_name() {
    for arch in ARCHITECTURES {
        for (name, shape, _) in Tiny::new(arch).tensors {
            let error = Tiny::new(arch).remove(&name).error();
            assert_eq!(error, format!("tensor \"{name}\" of shape {shape:?} is missing"));
        }
    }
}

#[test]
fn every_tensor_of_another_shape_is_named() {
    for arch in ARCHITECTURES {
        for (name, shape, _) in Tiny::new(arch).tensors {
            let mut wrong = shape.clone();
            for i in 0..shape.len() {
                wrong[i] += 1;
                let error = Tiny::new(arch).reshape(&name, &wrong).error();
                assert_eq!(
                    error,
                    format!("tensor \"{name}\" has shape {wrong:?}, but the metadata asks for {shape:?}")
                );
                wrong[i] -= 1;
            }
            wrong.push(2);
            assert!(Tiny::new(arch).reshape(&name, &wrong).error().contains("but the metadata asks for"));
            *wrong.last_mut().unwrap() = 1;
            assert!(Tiny::new(arch).reshape(&name, &wrong).read().is_ok(), "a last dimension of 1 says nothing");
        }
    }
}

#[test]
fn optional_tensors_are_checked_too() {
    let wrong = |arch, name, shape: &[u64]| Tiny::new(arch).add(name, shape).error();
    assert_eq!(
        wrong("llama", "rope_freqs.weight", &[4]),
        "tensor \"rope_freqs.weight\" has shape [4], but the metadata asks for [2]"
    );
    assert!(wrong("qwen2", "blk.1.attn_k.bias", &[8]).contains("\"blk.1.attn_k.bias\" has shape [8]"));
    assert!(wrong("gemma3", "output.weight", &[8, 6]).contains("\"output.weight\" has shape [8, 6]"));
    assert!(wrong("qwen2", "output.bias", &[6]).contains("\"output.bias\" has shape [6]"));
    assert!(wrong("llama", "blk.0.attn_qkv.weight", &[8, 15]).contains("asks for [8, 16]"));
}

#[test]
fn a_quantised_vector_is_refused() {
    let mut tiny = Tiny::with("llama", Sizes { width: 32, ..SIZES });
    let norm = tiny.tensors.iter_mut().find(|t| t.0 == "blk.1.ffn_norm.weight").unwrap();
    norm.2 = WeightType::Q8_0;
    assert_eq!(
        tiny.error(),
        "tensor \"blk.1.ffn_norm.weight\" has type Q8_0, but F32, F16 or BF16 is needed for a vector"
    );
}

#[test]
fn sizes_out_of_range_are_refused() {
    for (key, value, wanted) in [
        ("block_count", 0, "1 to 512"),
        ("block_count", 513, "1 to 512"),
        ("embedding_length", 0, "1 to 1048576"),
        ("context_length", 0, "1 to 1073741824"),
        ("context_length", u32::MAX, "1 to 1073741824"),
        ("feed_forward_length", 0, "1 to 16777216"),
        ("attention.head_count", 0, "1 to 4096"),
        ("attention.head_count_kv", 0, "1 to 4096"),
        ("attention.key_length", 0, "1 to 1024"),
        ("attention.key_length", 1025, "1 to 1024"),
        ("attention.key_length", 3, "an even number"),
        ("attention.value_length", 0, "1 to 1024"),
        ("rope.dimension_count", 0, "2 to 4"),
        ("rope.dimension_count", 6, "2 to 4"),
        ("rope.dimension_count", 3, "an even number"),
        ("rope.dimension_count", 2, "the 4 elements of a key head"),
    ] {
        let error = format!("metadata key \"llama.{key}\" is {value}, but {wanted} is needed");
        assert_eq!(with(key, value), error);
    }
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    assert_eq!(
        with("attention.head_count_kv", 3u32),
        "metadata key \"llama.attention.head_count_kv\" is 3, but a divisor of the 2 heads in \"llama.attention.head_count\" is needed"
    );
    let mut tiny = Tiny::new("llama");
    tiny.unset("attention.key_length").set("attention.head_count", 3u32);
    assert_eq!(
        tiny.error(),
        "metadata key \"llama.embedding_length\" is 8, but a multiple of the 3 heads (or \"llama.attention.key_length\") is needed"
    );
    let mut tiny = Tiny::with("llama", Sizes { width: 2048, heads: 1, ..SIZES });
    tiny.unset("attention.key_length");
    assert_eq!(
        tiny.error(),
        "metadata key \"llama.attention.head_count\" is 1, but heads of 1 to 1024 elements, not 2048, is needed"
    );
}

#[test]
fn floats_out_of_range_are_refused() {
    for (key, values) in [
        ("attention.layer_norm_rms_epsilon", vec![0.0, -1e-5, f32::NAN, f32::INFINITY, 2.0]),
        ("rope.freq_base", vec![0.0, 1.0, -1e4, f32::NAN, f32::INFINITY]),
        ("rope.scaling.factor", vec![-1.0, f32::NAN, f32::INFINITY, 1e-30]),
        ("rope.scale_linear", vec![-1.0, f32::NAN]),
        ("rope.scaling.attn_factor", vec![-1.0, f32::NAN]),
        ("attention.scale", vec![-1.0, f32::NAN, f32::INFINITY]),
    ] {
        for value in values {
            let error = with(key, value);
            assert!(error.starts_with(&format!("metadata key \"llama.{key}\" is {value}, but ")), "{error}");
        }
    }
    for key in ["beta_fast", "beta_slow", "ext_factor"] {
        let mut tiny = Tiny::new("llama");
        tiny.set("rope.scaling.type", "yarn").set(&format!("rope.scaling.yarn_{key}"), f32::NAN);
        assert!(tiny.error().contains(&format!("yarn_{key}\" is NaN")));
    }
    assert!(Tiny::new("gemma3").set("final_logit_softcapping", -30f32).error().contains("softcapping\" is -30"));
    assert!(Tiny::new("gemma3").set("rope.freq_base_swa", 0f32).error().contains("freq_base_swa\" is 0"));
}

#[test]
fn arrays_have_one_element_a_layer() {
    assert_eq!(
        with("attention.head_count", vec![2u32, 2, 2]),
        "metadata key \"llama.attention.head_count\" has 3 elements for 2 layers"
    );
    assert_eq!(
        with("feed_forward_length", Array::U32(Vec::new())),
        "metadata key \"llama.feed_forward_length\" has 0 elements for 2 layers"
    );
    assert!(with("attention.head_count_kv", vec![1u32, 0]).contains("head_count_kv\" is 0, but 1 to 4096"));
    let mut tiny = Tiny::new("gemma3");
    tiny.set("attention.sliding_window", 3u32);
    assert!(tiny.set("attention.sliding_window_pattern", vec![true]).error().contains("has 1 elements for 2 layers"));
    assert!(tiny.set("attention.sliding_window_pattern", 0u32).error().contains("pattern\" is 0, but 1 to"));
    assert!(tiny.set("attention.sliding_window_pattern", "x").error().contains("holds string"));
}

#[test]
fn values_of_another_type_are_refused() {
    assert_eq!(with("block_count", "two"), "metadata key \"llama.block_count\" holds string, but u32 is needed");
    assert_eq!(with("block_count", -1i32), "metadata key \"llama.block_count\" holds i32 -1, but u32 is needed");
    assert!(with("attention.layer_norm_rms_epsilon", 1u32).contains("but f32 is needed"));
}

#[test]
fn vocabulary_and_embedding_agree() {
    let mut tiny = Tiny::new("llama");
    tiny.reshape("token_embd.weight", &[8, 6]);
    assert_eq!(tiny.error(), "tensor \"token_embd.weight\" has shape [8, 6], but the metadata asks for [8, 5]");
    tiny.keys.insert("tokenizer.ggml.tokens".into(), Strings::default().into());
    assert_eq!(tiny.error(), "metadata key \"tokenizer.ggml.tokens\" is 0 tokens long, but 1 to 67108864 is needed");
    tiny.keys.remove("tokenizer.ggml.tokens");
    tiny.remove("token_embd.weight");
    assert!(tiny.error().starts_with("tensor \"token_embd.weight\""));
}

#[test]
fn what_is_not_supported_is_said_so() {
    assert_eq!(
        Tiny::new("llama").add("blk.0.ffn_gate_inp.weight", &[8, 4]).error(),
        "a mixture of experts (tensor \"blk.0.ffn_gate_inp.weight\") is not supported"
    );
    assert_eq!(with("rope.scaling.type", "longrope"), "the \"llama.rope.scaling.type\" \"longrope\" is not supported");
    assert_eq!(
        Tiny::new("qwen2").add("blk.1.ffn_down.scale", &[1]).error(),
        "tensor \"blk.1.ffn_down.scale\" (a scale of a whole tensor) is not supported"
    );
}

#[test]
fn unused_tensors_are_listed_in_one_warning() {
    let mut tiny = Tiny::new("qwen3");
    tiny.add("cls.output.weight", &[8, 2]);
    assert_eq!(tiny.model().warnings, ["1 tensor is not used: cls.output.weight"]);
    for i in 0..6 {
        tiny.add(&format!("extra\n.{i}"), &[1]);
    }
    let list = "cls.output.weight, extra\\n.0, extra\\n.1, extra\\n.2, extra\\n.3";
    assert_eq!(tiny.model().warnings, [format!("7 tensors are not used: {list} and 2 more")]);
}

//! Random files: whatever the metadata says, the answer is an error or a spec that keeps its promises.

mod common;

use common::{ARCHITECTURES, Sizes, Tiny, check};
use proptest::prelude::*;
use tailrace_gguf::{Array, Value};

const KEYS: [&str; 25] = [
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "final_logit_softcapping",
    "vocab_size",
];

fn value() -> impl Strategy<Value = Value> {
    let float = prop_oneof![
        any::<f32>(),
        prop::sample::select(vec![0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, 1e-40, f32::MAX])
    ];
    let kind = prop::sample::select(vec!["none", "linear", "yarn", "longrope", ""]);
    prop_oneof![
        3 => (0u32..9).prop_map(Value::from),
        1 => any::<u32>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        3 => float.prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        2 => kind.prop_map(Value::from),
        1 => prop::collection::vec(0u32..5, 0..4).prop_map(Value::from),
        1 => prop::collection::vec(any::<bool>(), 0..4).prop_map(Value::from),
        1 => prop::collection::vec(any::<f32>(), 0..4).prop_map(|v| Value::Array(Array::F32(v))),
    ]
}

fn sizes() -> impl Strategy<Value = Sizes> {
    (1u64..9, 1u64..9, 1u64..4, 1u64..4, 1u64..4, 1u64..5, 1u64..9, 1u64..9).prop_map(
        |(width, vocab, layers, group, kv_heads, half, dv, ffn)| Sizes {
            width,
            vocab,
            layers,
            heads: group * kv_heads,
            kv_heads,
            dk: 2 * half,
            dv,
            ffn,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_sound_sizes_are_read(arch in prop::sample::select(ARCHITECTURES.to_vec()), sizes in sizes()) {
        let model = Tiny::with(arch, sizes).model();
        prop_assert!(model.warnings.is_empty());
        prop_assert_eq!(model.spec.blocks.len() as u64, sizes.layers);
        let attention = model.spec.blocks[0].attention();
        prop_assert_eq!(u64::from(attention.heads), sizes.heads);
        prop_assert_eq!(u64::from(attention.dv), sizes.dv);
    }

    #[test]
    fn any_metadata_is_refused_or_sound(
        arch in prop::sample::select(ARCHITECTURES.to_vec()),
        yarn in any::<bool>(),
        changes in prop::collection::vec((prop::sample::select(KEYS.to_vec()), value()), 1..4),
    ) {
        let mut tiny = Tiny::new(arch);
        if yarn {
            tiny.set("rope.scaling.type", "yarn");
        }
        for (key, value) in changes {
            tiny.set(key, value);
        }
        let file = tiny.file();
        match tailrace_models::read(&file) {
            Ok(model) => check(&model.spec, &file),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }

    #[test]
    fn any_shape_is_refused_or_sound(
        arch in prop::sample::select(ARCHITECTURES.to_vec()),
        tensor in any::<prop::sample::Index>(),
        shape in prop::collection::vec(1u64..10, 1..5),
    ) {
        let mut tiny = Tiny::new(arch);
        let (name, wanted, _) = tiny.tensors[tensor.index(tiny.tensors.len())].clone();
        let file = tiny.reshape(&name, &shape).file();
        match tailrace_models::read(&file) {
            Ok(model) => {
                prop_assert_eq!(&shape[..wanted.len()], &wanted[..]);
                check(&model.spec, &file);
            }
            Err(error) => prop_assert!(error.to_string().contains(&name)),
        }
    }
}

//! Tiny model files that tests break one piece at a time, and the promises that a spec keeps.

#![allow(dead_code, unreachable_pub)] // each test binary uses its part

use std::collections::BTreeMap;

use tailrace_gguf::{Gguf, Strings, Value, Writer};
use tailrace_models::{Model, ModelError};
use tailrace_plan::spec::{Attention, Linear, ModelSpec, Norm, TensorSlice};
use tailrace_types::WeightType;

pub const ARCHITECTURES: [&str; 4] = ["gemma3", "llama", "qwen2", "qwen3"];

/// Sizes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub width: u64,
    pub vocab: u64,
    pub layers: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub dk: u64,
    pub dv: u64,
    pub ffn: u64,
}

pub const SIZES: Sizes = Sizes { width: 8, vocab: 5, layers: 2, heads: 2, kv_heads: 1, dk: 4, dv: 4, ffn: 6 };

/// The keys and tensors of a model file.
#[derive(Clone)]
pub struct Tiny {
    pub arch: &'static str,
    pub keys: BTreeMap<String, Value>,
    pub tensors: Vec<(String, Vec<u64>, WeightType)>,
}

impl Tiny {
    /// A sound file.
    pub fn new(arch: &'static str) -> Self {
        Self::with(arch, SIZES)
    }

    pub fn with(arch: &'static str, sizes: Sizes) -> Self {
        let mut tiny = Self { arch, keys: BTreeMap::new(), tensors: Vec::new() };
        tiny.keys.insert("general.architecture".into(), arch.into());
        let tokens: Strings = (0..sizes.vocab).map(|i| format!("t{i}")).collect();
        tiny.keys.insert("tokenizer.ggml.tokens".into(), tokens.into());
        let Sizes { width, vocab, layers, heads, kv_heads, dk, dv, ffn } = sizes;
        for (key, value) in [
            ("context_length", 16),
            ("embedding_length", width),
            ("block_count", layers),
            ("feed_forward_length", ffn),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", dk),
            ("attention.value_length", dv),
        ] {
            tiny.set(key, value as u32);
        }
        tiny.set("attention.layer_norm_rms_epsilon", 1e-5f32);
        tiny.add("token_embd.weight", &[width, vocab]);
        tiny.add("output_norm.weight", &[width]);
        for layer in 0..layers {
            let mut add = |name: &str, shape: &[u64]| {
                tiny.add(&format!("blk.{layer}.{name}.weight"), shape);
            };
            add("attn_norm", &[width]);
            add("attn_q", &[width, heads * dk]);
            add("attn_k", &[width, kv_heads * dk]);
            add("attn_v", &[width, kv_heads * dv]);
            add("attn_output", &[heads * dv, width]);
            add("ffn_norm", &[width]);
            add("ffn_gate", &[width, ffn]);
            add("ffn_up", &[width, ffn]);
            add("ffn_down", &[ffn, width]);
            if matches!(arch, "qwen3" | "gemma3") {
                add("attn_q_norm", &[dk]);
                add("attn_k_norm", &[dk]);
            }
            if arch == "gemma3" {
                add("post_attention_norm", &[width]);
                add("post_ffw_norm", &[width]);
            }
        }
        tiny
    }

    /// Sets a key of the architecture.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.keys.insert(format!("{}.{key}", self.arch), value.into());
        self
    }

    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.keys.remove(&format!("{}.{key}", self.arch)).expect("the key is there");
        self
    }

    pub fn add(&mut self, name: &str, shape: &[u64]) -> &mut Self {
        self.tensors.push((name.to_owned(), shape.to_vec(), WeightType::F32));
        self
    }

    pub fn remove(&mut self, name: &str) -> &mut Self {
        let index = self.tensors.iter().position(|t| t.0 == name).expect("the tensor is there");
        self.tensors.remove(index);
        self
    }

    pub fn reshape(&mut self, name: &str, shape: &[u64]) -> &mut Self {
        self.remove(name).add(name, shape)
    }

    pub fn file(&self) -> Gguf {
        let mut writer = Writer::new();
        for (key, value) in &self.keys {
            writer.set(key, value.clone());
        }
        for (name, shape, ty) in &self.tensors {
            let bytes = ty.block().bytes_of(shape.iter().product()).expect("whole blocks");
            writer.tensor(name, shape, *ty, vec![0; bytes as usize]).expect("as long as its shape");
        }
        Gguf::from_bytes(writer.to_bytes()).expect("a sound container")
    }

    pub fn read(&self) -> Result<Model, ModelError> {
        tailrace_models::read(&self.file())
    }

    /// The model, which keeps its promises.
    pub fn model(&self) -> Model {
        let file = self.file();
        let model = tailrace_models::read(&file).unwrap();
        check(&model.spec, &file);
        model
    }

    pub fn spec(&self) -> ModelSpec {
        self.model().spec
    }

    pub fn error(&self) -> String {
        self.read().expect_err("the file is broken").to_string()
    }
}

/// Panics unless `spec` keeps what the crate promises of it.
pub fn check(spec: &ModelSpec, file: &Gguf) {
    let check = Check { file, width: spec.width.into() };
    assert!(!spec.blocks.is_empty());
    assert_eq!((spec.embed.rows, spec.embed.cols), (spec.vocab.into(), spec.width.into()));
    check.slice(&spec.embed);
    check.linear(&spec.head, check.width, spec.vocab.into());
    check.norm(&spec.out_norm, check.width);
    assert!(spec.embed_scale.is_finite() && spec.embed_scale > 0.0);
    assert!(spec.logit_cap.is_none_or(|cap| cap.is_finite() && cap > 0.0));
    for block in &spec.blocks {
        check.norm(&block.mixer.pre, check.width);
        check.norm(&block.ffn.pre, check.width);
        block.mixer.post.iter().chain(&block.ffn.post).for_each(|norm| check.norm(norm, check.width));
        check.attention(block.attention());
        let ffn = &block.ffn.inner;
        check.linear(&ffn.gate, check.width, ffn.down.weight.cols);
        check.linear(&ffn.up, check.width, ffn.down.weight.cols);
        check.linear(&ffn.down, ffn.down.weight.cols, check.width);
    }
}

struct Check<'a> {
    file: &'a Gguf,
    width: u64,
}

impl Check<'_> {
    fn attention(&self, a: &Attention) {
        let [heads, kv_heads, dk, dv] = [a.heads, a.kv_heads, a.dk, a.dv].map(u64::from);
        assert!(heads.is_multiple_of(kv_heads));
        assert!((1..=1024).contains(&dk) && (1..=1024).contains(&dv));
        self.linear(&a.q, self.width, heads * dk);
        self.linear(&a.k, self.width, kv_heads * dk);
        self.linear(&a.v, self.width, kv_heads * dv);
        self.linear(&a.o, heads * dv, self.width);
        a.q_norm.iter().chain(&a.k_norm).for_each(|norm| self.norm(norm, dk));
        let rope = &a.rope;
        assert!(rope.dims >= 2 && rope.dims.is_multiple_of(2) && rope.dims <= a.dk);
        assert!(rope.base.is_finite() && rope.base > 1.0);
        for positive in [rope.linear, rope.mscale, a.scale] {
            assert!(positive.is_finite() && positive > 0.0);
        }
        if let Some(factors) = &rope.factors {
            self.vector(factors, u64::from(rope.dims) / 2);
        }
        if let Some(yarn) = &rope.yarn {
            assert!(yarn.original_context > 0);
            for positive in [yarn.ext_factor, yarn.beta_fast, yarn.beta_slow] {
                assert!(positive.is_finite() && positive > 0.0);
            }
        }
    }

    fn linear(&self, linear: &Linear, cols: u64, rows: u64) {
        assert_eq!((linear.weight.cols, linear.weight.rows), (cols, rows));
        self.slice(&linear.weight);
        if let Some(bias) = &linear.bias {
            self.vector(bias, rows);
        }
    }

    fn norm(&self, norm: &Norm, len: u64) {
        assert!(norm.eps.is_finite() && norm.eps > 0.0);
        self.vector(&norm.weight, len);
    }

    fn vector(&self, slice: &TensorSlice, len: u64) {
        assert_eq!(slice.rows * slice.cols, len);
        assert!(slice.ty.is_float());
        self.slice(slice);
    }

    fn slice(&self, slice: &TensorSlice) {
        let tensor = &self.file.tensors()[slice.tensor as usize];
        assert_eq!(tensor.ty, slice.ty);
        assert!((slice.first_row + slice.rows) * slice.cols <= tensor.elements());
    }
}

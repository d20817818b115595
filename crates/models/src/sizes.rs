//! The sizes that every decoder has.

use tailrace_gguf::Metadata;

use crate::error::ModelError;
use crate::keys::Keys;
use crate::tensors::Tensors;

/// Most layers.
const LAYERS_MAX: u32 = 512;
/// Widest residual stream.
const WIDTH_MAX: u32 = 1 << 20;
/// Widest feed-forward network.
const FFN_MAX: u32 = 1 << 24;
/// Most heads of a layer.
const HEADS_MAX: u32 = 1 << 12;
/// Most elements of a head.
const HEAD_MAX: u32 = 1024;
/// Longest context: positions stay exact in every integer type that holds them.
const CONTEXT_MAX: u32 = 1 << 30;
/// Most tokens of a vocabulary.
const VOCAB_MAX: u64 = 1 << 26;

/// Sizes of a model, each within its range.
pub(crate) struct Sizes {
    pub(crate) width: u32,
    pub(crate) vocab: u32,
    pub(crate) context: u32,
    /// Added to mean squares by every norm.
    pub(crate) eps: f32,
    /// Elements of a query or key head; even.
    pub(crate) dk: u32,
    /// Elements of a value head.
    pub(crate) dv: u32,
    pub(crate) layers: Vec<LayerSizes>,
}

/// Sizes that may differ between layers.
pub(crate) struct LayerSizes {
    pub(crate) heads: u32,
    /// Divides `heads`.
    pub(crate) kv_heads: u32,
    /// Inner width of the feed-forward network.
    pub(crate) ffn: u32,
}

impl Sizes {
    pub(crate) fn read(metadata: &Metadata, keys: &Keys<'_>, tensors: &Tensors<'_>) -> Result<Self, ModelError> {
        let width = keys.required("embedding_length", 1..=WIDTH_MAX)?;
        let layers = layers(keys)?;
        let heads = layers[0].heads;
        let eps = "attention.layer_norm_rms_epsilon";
        let dk = head(keys, "attention.key_length", width, heads)?;
        if !dk.is_multiple_of(2) {
            return Err(keys.range("attention.key_length", dk, "an even number"));
        }
        Ok(Self {
            width,
            vocab: vocab(metadata, keys, tensors, width)?,
            context: keys.required("context_length", 1..=CONTEXT_MAX)?,
            eps: keys.float(eps, 1e-20..=1.0)?.ok_or_else(|| keys.missing(eps))?,
            dk,
            dv: head(keys, "attention.value_length", width, heads)?,
            layers,
        })
    }
}

fn layers(keys: &Keys<'_>) -> Result<Vec<LayerSizes>, ModelError> {
    let count = keys.required("block_count", 1..=LAYERS_MAX)? as usize;
    let per_layer = |name: &str, max| keys.per_layer(name, count, 1..=max);
    let required = |name: &str, max| per_layer(name, max)?.ok_or_else(|| keys.missing(name));
    let heads = required("attention.head_count", HEADS_MAX)?;
    let kv_heads = per_layer("attention.head_count_kv", HEADS_MAX)?.unwrap_or_else(|| heads.clone());
    let ffn = required("feed_forward_length", FFN_MAX)?;
    let mut layers = Vec::with_capacity(count);
    for ((heads, kv_heads), ffn) in heads.into_iter().zip(kv_heads).zip(ffn) {
        if !heads.is_multiple_of(kv_heads) {
            let wanted = format!("a divisor of the {heads} heads in \"{}\"", keys.key("attention.head_count"));
            return Err(keys.range("attention.head_count_kv", kv_heads, wanted));
        }
        layers.push(LayerSizes { heads, kv_heads, ffn });
    }
    Ok(layers)
}

/// Elements of a head: those that the file gives, else an equal part of the width.
fn head(keys: &Keys<'_>, name: &str, width: u32, heads: u32) -> Result<u32, ModelError> {
    if let Some(size) = keys.count(name, 1..=HEAD_MAX)? {
        return Ok(size);
    }
    if !width.is_multiple_of(heads) {
        let wanted = format!("a multiple of the {heads} heads (or \"{}\")", keys.key(name));
        return Err(keys.range("embedding_length", width, wanted));
    }
    match width / heads {
        size @ 1..=HEAD_MAX => Ok(size),
        size => {
            Err(keys.range("attention.head_count", heads, format!("heads of 1 to {HEAD_MAX} elements, not {size},")))
        }
    }
}

/// Rows of the embedding: one for each token of the tokenizer; without one, as many as there are.
fn vocab(metadata: &Metadata, keys: &Keys<'_>, tensors: &Tensors<'_>, width: u32) -> Result<u32, ModelError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let (key, count) = match metadata.strings(TOKENS)? {
        Some(tokens) => (TOKENS.to_owned(), tokens.len() as u64),
        None => {
            let name = "token_embd.weight".to_owned();
            let Some(embedding) = tensors.get(&name) else {
                return Err(ModelError::MissingTensor { name, shape: vec![width.into()] });
            };
            (keys.key("vocab_size"), embedding.ne[1])
        }
    };
    match u32::try_from(count) {
        Ok(vocab) if (1..=VOCAB_MAX).contains(&count) => Ok(vocab),
        _ => Err(ModelError::Range { key, found: format!("{count} tokens long"), wanted: format!("1 to {VOCAB_MAX}") }),
    }
}

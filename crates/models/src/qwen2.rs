//! Qwen2, Qwen2.5 and their coders.

use tailrace_plan::spec::{Activation, ModelSpec, Pairing};

use crate::error::ModelError;
use crate::parts::Reader;
use crate::shapes::{Family, Len, Shape};

/// Attention with rope on the halves of a head and biases of q, k and v, then a SiLU-gated network.
pub(crate) fn read(r: &mut Reader<'_>) -> Result<ModelSpec, ModelError> {
    let rope = r.rope(Pairing::Half, "rope.freq_base")?;
    let rope = r.scaled(rope)?;
    let blocks = r.blocks(|r, layer, prefix| {
        let attention = r.attention(layer, prefix, &rope)?;
        let ffn = r.ffn(layer, prefix, Activation::Silu)?;
        r.pre_norm_block(prefix, attention, ffn)
    })?;
    r.decoder(blocks)
}

/// Qwen2.5.
pub(crate) const FAMILY: Family = Family {
    vectors: &[("attn_q.bias", Len::Heads), ("attn_k.bias", Len::KvHeads), ("attn_v.bias", Len::KvHeads)],
    shapes: &[
        Shape { name: "qwen2.5-0.5b", width: 896, layers: 24, heads: 14, kv_heads: 2, head: 64, ffn: 4864, ..SMALL },
        Shape {
            name: "qwen2.5-1.5b",
            width: 1536,
            layers: 28,
            heads: 12,
            kv_heads: 2,
            ffn: 8960,
            context: 131_072,
            ..SMALL
        },
        Shape { name: "qwen2.5-3b", width: 2048, layers: 36, heads: 16, kv_heads: 2, ffn: 11_008, ..SMALL },
        Shape { name: "qwen2.5-7b", width: 3584, layers: 28, heads: 28, kv_heads: 4, ffn: 18_944, eps: 1e-6, ..LARGE },
        Shape { name: "qwen2.5-14b", width: 5120, layers: 48, heads: 40, kv_heads: 8, ffn: 13_824, ..LARGE },
        Shape { name: "qwen2.5-32b", width: 5120, layers: 64, heads: 40, kv_heads: 8, ffn: 27_648, ..LARGE },
    ],
};

/// What the smaller ones have in common.
const SMALL: Shape = Shape { head: 128, vocab: 151_936, context: 32_768, tied: true, ..Shape::NONE };

/// The same of the larger ones.
const LARGE: Shape = Shape { head: 128, vocab: 152_064, context: 131_072, eps: 1e-5, ..Shape::NONE };

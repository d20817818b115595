//! Qwen3, dense.

use tailrace_plan::spec::{Activation, ModelSpec, Pairing};

use crate::error::ModelError;
use crate::parts::Reader;
use crate::shapes::{Family, Len, Shape};

/// Attention with norms of query and key heads before rope on their halves, then a SiLU-gated network.
pub(crate) fn read(r: &mut Reader<'_>) -> Result<ModelSpec, ModelError> {
    let rope = r.rope(Pairing::Half, "rope.freq_base")?;
    let rope = r.scaled(rope)?;
    let blocks = r.blocks(|r, layer, prefix| {
        let attention = r.attention(layer, prefix, &rope)?;
        let attention = r.with_head_norms(prefix, attention)?;
        let ffn = r.ffn(layer, prefix, Activation::Silu)?;
        r.pre_norm_block(prefix, attention, ffn)
    })?;
    r.decoder(blocks)
}

/// Qwen3, dense.
pub(crate) const FAMILY: Family = Family {
    vectors: &[("attn_q_norm.weight", Len::Head), ("attn_k_norm.weight", Len::Head)],
    shapes: &[
        Shape { name: "qwen3-0.6b", width: 1024, layers: 28, heads: 16, kv_heads: 8, ffn: 3072, ..SMALL },
        Shape { name: "qwen3-1.7b", width: 2048, layers: 28, heads: 16, kv_heads: 8, ffn: 6144, ..SMALL },
        Shape { name: "qwen3-4b", width: 2560, layers: 36, heads: 32, kv_heads: 8, ffn: 9728, ..SMALL },
        Shape { name: "qwen3-8b", width: 4096, layers: 36, heads: 32, kv_heads: 8, ffn: 12_288, ..LARGE },
        Shape { name: "qwen3-14b", width: 5120, layers: 40, heads: 40, kv_heads: 8, ffn: 17_408, ..LARGE },
        Shape { name: "qwen3-32b", width: 5120, layers: 64, heads: 64, kv_heads: 8, ffn: 25_600, ..LARGE },
    ],
};

/// What the smaller ones have in common.
const SMALL: Shape = Shape { head: 128, vocab: 151_936, context: 40_960, tied: true, ..Shape::NONE };

/// The same of the larger ones.
const LARGE: Shape = Shape { head: 128, vocab: 151_936, context: 40_960, ..Shape::NONE };

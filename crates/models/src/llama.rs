//! Llama 2 and 3, SmolLM2, Mistral and the many models with their shape.

use tailrace_plan::spec::{Activation, Attention, ModelSpec, Pairing};

use crate::error::ModelError;
use crate::parts::Reader;
use crate::shapes::{Family, Shape};

/// Attention with rope on adjacent pairs (writers permute the rows of q and k for it), then a SiLU-gated network.
pub(crate) fn read(r: &mut Reader<'_>) -> Result<ModelSpec, ModelError> {
    let mut rope = r.rope(Pairing::Adjacent, "rope.freq_base")?;
    if rope.dims != r.sizes.dk {
        let wanted = format!("the {} elements of a key head", r.sizes.dk);
        return Err(r.keys.range("rope.dimension_count", rope.dims, wanted));
    }
    rope = r.scaled(rope)?;
    // Llama 3 has its scaling baked into factors of the frequencies.
    rope.factors = r.tensors.vector_if_any("rope_freqs.weight", u64::from(rope.dims / 2))?;
    let scale = r.keys.float_or_zero("attention.scale", 1e-6..=1e6)?;
    let blocks = r.blocks(|r, layer, prefix| {
        let attention = r.attention(layer, prefix, &rope)?;
        let attention = Attention { scale: scale.unwrap_or(attention.scale), ..attention };
        let ffn = r.ffn(layer, prefix, Activation::Silu)?;
        r.pre_norm_block(prefix, attention, ffn)
    })?;
    r.decoder(blocks)
}

/// Llama 3 and SmolLM2.
pub(crate) const FAMILY: Family = Family {
    vectors: &[],
    shapes: &[
        Shape {
            name: "llama3-8b",
            width: 4096,
            layers: 32,
            heads: 32,
            kv_heads: 8,
            ffn: 14_336,
            context: 8192,
            rope_factors: false,
            ..LLAMA
        },
        Shape { name: "llama3.1-70b", width: 8192, layers: 80, heads: 64, kv_heads: 8, ffn: 28_672, ..LLAMA },
        Shape {
            name: "llama3.2-1b",
            width: 2048,
            layers: 16,
            heads: 32,
            kv_heads: 8,
            head: 64,
            ffn: 8192,
            tied: true,
            ..LLAMA
        },
        Shape { name: "llama3.2-3b", width: 3072, layers: 28, heads: 24, kv_heads: 8, ffn: 8192, tied: true, ..LLAMA },
        Shape { name: "smollm2-135m", width: 576, layers: 30, heads: 9, kv_heads: 3, ffn: 1536, ..SMOL },
        Shape { name: "smollm2-360m", width: 960, layers: 32, heads: 15, kv_heads: 5, ffn: 2560, ..SMOL },
        Shape {
            name: "smollm2-1.7b",
            width: 2048,
            layers: 24,
            heads: 32,
            kv_heads: 32,
            ffn: 8192,
            rope_base: 1.3e5,
            ..SMOL
        },
    ],
};

/// What the models of Llama 3.1 and 3.2 have in common.
const LLAMA: Shape =
    Shape { head: 128, vocab: 128_256, context: 131_072, eps: 1e-5, rope_base: 5e5, rope_factors: true, ..Shape::NONE };

/// What the models of SmolLM2 have in common.
const SMOL: Shape =
    Shape { head: 64, vocab: 49_152, context: 8192, eps: 1e-5, rope_base: 1e5, tied: true, ..Shape::NONE };

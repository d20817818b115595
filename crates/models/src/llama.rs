//! Llama 2 and 3, SmolLM2, Mistral and the many models with their shape.

use tailrace_plan::spec::{Activation, Attention, ModelSpec, Pairing};

use crate::error::ModelError;
use crate::parts::Reader;

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

//! Qwen2, Qwen2.5 and their coders.

use tailrace_plan::spec::{Activation, ModelSpec, Pairing};

use crate::error::ModelError;
use crate::parts::Reader;

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

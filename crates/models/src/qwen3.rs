//! Qwen3, dense.

use tailrace_plan::spec::{Activation, ModelSpec, Pairing};

use crate::error::ModelError;
use crate::parts::Reader;

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

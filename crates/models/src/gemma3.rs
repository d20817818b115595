//! Gemma 3, text.

use tailrace_plan::spec::{Activation, Attention, Block, ModelSpec, Pairing, Reach, Residual};

use crate::error::ModelError;
use crate::parts::Reader;
use crate::shapes::{Family, Len, Shape};

/// Layers from one global layer to the next, where the file does not say.
const PERIOD_DEFAULT: u32 = 6;
/// Layers of the 27B model, whose scale is no function of its head size and stands in no key.
const LAYERS_27B: usize = 62;

/// Sliding and global layers with ropes of their own, norms before and after each branch, a GELU-gated network.
pub(crate) fn read(r: &mut Reader<'_>) -> Result<ModelSpec, ModelError> {
    let reach = reach(r)?;
    let rope = r.rope(Pairing::Half, "rope.freq_base")?;
    // Only global layers scale their positions.
    let global = r.scaled(rope)?;
    let local = r.rope(Pairing::Half, "rope.freq_base_swa")?;
    let blocks = r.blocks(|r, layer, prefix| {
        let rope = if reach[layer] == Reach::Global { &global } else { &local };
        let attention = r.attention(layer, prefix, rope)?;
        let attention = r.with_head_norms(prefix, attention)?;
        let scale = match reach.len() {
            LAYERS_27B => (attention.heads as f32 / r.sizes.width as f32).sqrt(),
            _ => attention.scale,
        };
        let attention = Attention { scale, reach: reach[layer], ..attention };
        let ffn = r.ffn(layer, prefix, Activation::GeluTanh)?;
        let Block { mixer, ffn } = r.pre_norm_block(prefix, attention, ffn)?;
        Ok(Block {
            mixer: Residual { post: Some(r.norm(&format!("{prefix}post_attention_norm"))?), ..mixer },
            ffn: Residual { post: Some(r.norm(&format!("{prefix}post_ffw_norm"))?), ..ffn },
        })
    })?;
    let spec = r.decoder(blocks)?;
    let logit_cap = r.keys.float_or_zero("final_logit_softcapping", 1e-3..=1e6)?;
    Ok(ModelSpec { embed_scale: (spec.width as f32).sqrt(), logit_cap, ..spec })
}

/// What each layer sees: a window, or everything in the last layer of each period.
fn reach(r: &Reader<'_>) -> Result<Vec<Reach>, ModelError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let layers = r.sizes.layers.len();
    let window = match r.keys.count("attention.sliding_window", 0..=u32::MAX)? {
        None | Some(0) => return Ok(vec![Reach::Global; layers]),
        Some(window) => window,
    };
    let sliding = match r.keys.flags(PATTERN, layers)? {
        Some(flags) => flags,
        None => {
            let period = r.keys.count(PATTERN, 1..=u32::MAX)?.unwrap_or(PERIOD_DEFAULT) as usize;
            (0..layers).map(|layer| layer % period < period - 1).collect()
        }
    };
    Ok(sliding.into_iter().map(|slides| if slides { Reach::Sliding(window) } else { Reach::Global }).collect())
}

/// Gemma 3, text.
pub(crate) const FAMILY: Family = Family {
    vectors: &[
        ("attn_q_norm.weight", Len::Head),
        ("attn_k_norm.weight", Len::Head),
        ("post_attention_norm.weight", Len::Width),
        ("post_ffw_norm.weight", Len::Width),
    ],
    shapes: &[
        Shape { name: "gemma3-270m", width: 640, layers: 18, heads: 4, kv_heads: 1, ffn: 2048, ..SMALL },
        Shape { name: "gemma3-1b", width: 1152, layers: 26, heads: 4, kv_heads: 1, ffn: 6912, ..SMALL },
        Shape { name: "gemma3-4b", width: 2560, layers: 34, heads: 8, kv_heads: 4, ffn: 10_240, ..LARGE },
        Shape { name: "gemma3-12b", width: 3840, layers: 48, heads: 16, kv_heads: 8, ffn: 15_360, ..LARGE },
        Shape { name: "gemma3-27b", width: 5376, layers: 62, heads: 32, kv_heads: 16, head: 128, ffn: 21_504, ..LARGE },
    ],
};

/// What the models without eyes have in common.
const SMALL: Shape = Shape { head: 256, vocab: 262_144, context: 32_768, tied: true, window: 512, ..Shape::NONE };

/// The same of the larger ones, whose vocabulary is padded.
const LARGE: Shape =
    Shape { head: 256, vocab: 262_208, context: 131_072, rope_linear: 8.0, tied: true, window: 1024, ..Shape::NONE };

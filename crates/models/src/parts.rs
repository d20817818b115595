//! The parts that architectures are put together from.

use tailrace_gguf::Header;
use tailrace_plan::spec::{
    Activation, Attention, Block, Ffn, Linear, Mixer, ModelSpec, Norm, Reach, Residual, Rope, TensorSlice,
};

use crate::error::ModelError;
use crate::keys::Keys;
use crate::sizes::{LayerSizes, Sizes};
use crate::tensors::Tensors;

/// Reads hyper-parameters and claims tensors.
pub(crate) struct Reader<'a> {
    pub(crate) keys: Keys<'a>,
    pub(crate) sizes: Sizes,
    pub(crate) tensors: Tensors<'a>,
}

impl<'a> Reader<'a> {
    /// A reader of the keys with `prefix`.
    pub(crate) fn new(file: &'a Header, prefix: &'static str) -> Result<Self, ModelError> {
        let keys = Keys::new(file.metadata(), prefix);
        let tensors = Tensors::new(file);
        let sizes = Sizes::read(file.metadata(), &keys, &tensors)?;
        Ok(Self { keys, sizes, tensors })
    }

    /// The layers, each read by `block` from its number and the prefix of its tensors' names.
    pub(crate) fn blocks(
        &mut self,
        mut block: impl FnMut(&mut Self, usize, &str) -> Result<Block, ModelError>,
    ) -> Result<Vec<Block>, ModelError> {
        (0..self.sizes.layers.len()).map(|layer| block(self, layer, &format!("blk.{layer}."))).collect()
    }

    /// Attention over all earlier cells, scaled by the root of the head's size, without norms of heads.
    pub(crate) fn attention(&mut self, layer: usize, prefix: &str, rope: &Rope) -> Result<Attention, ModelError> {
        let Sizes { width, dk, dv, .. } = self.sizes;
        let LayerSizes { heads, kv_heads, .. } = self.sizes.layers[layer];
        let [q, k, v] = self.qkv(prefix, [(heads, dk), (kv_heads, dk), (kv_heads, dv)].map(product))?;
        Ok(Attention {
            q,
            k,
            v,
            o: self.tensors.linear(&format!("{prefix}attn_output"), product((heads, dv)), width.into())?,
            q_norm: None,
            k_norm: None,
            rope: rope.clone(),
            heads,
            kv_heads,
            dk,
            dv,
            scale: 1.0 / (dk as f32).sqrt(),
            cap: None,
            reach: Reach::Global,
        })
    }

    /// `attention` with the norms of query and key heads.
    pub(crate) fn with_head_norms(&mut self, prefix: &str, attention: Attention) -> Result<Attention, ModelError> {
        let dk = attention.dk;
        let mut norm = |name: &str| self.tensors.norm(&format!("{prefix}{name}"), dk, self.sizes.eps).map(Some);
        Ok(Attention { q_norm: norm("attn_q_norm")?, k_norm: norm("attn_k_norm")?, ..attention })
    }

    /// The gated feed-forward network of `layer`.
    pub(crate) fn ffn(&mut self, layer: usize, prefix: &str, activation: Activation) -> Result<Ffn, ModelError> {
        let router = format!("{prefix}ffn_gate_inp.weight");
        if self.tensors.has(&router) {
            return Err(ModelError::Unsupported { what: format!("a mixture of experts (tensor \"{router}\")") });
        }
        let (width, inner) = (self.sizes.width.into(), self.sizes.layers[layer].ffn.into());
        let mut linear = |name: &str, cols, rows| self.tensors.linear(&format!("{prefix}{name}"), cols, rows);
        Ok(Ffn {
            gate: linear("ffn_gate", width, inner)?,
            up: linear("ffn_up", width, inner)?,
            down: linear("ffn_down", inner, width)?,
            activation,
        })
    }

    /// A norm of the residual stream.
    pub(crate) fn norm(&mut self, name: &str) -> Result<Norm, ModelError> {
        self.tensors.norm(name, self.sizes.width, self.sizes.eps)
    }

    /// A layer whose two branches begin with a norm.
    pub(crate) fn pre_norm_block(&mut self, prefix: &str, attention: Attention, ffn: Ffn) -> Result<Block, ModelError> {
        let attn_norm = self.norm(&format!("{prefix}attn_norm"))?;
        let ffn_norm = self.norm(&format!("{prefix}ffn_norm"))?;
        Ok(Block {
            mixer: Residual { pre: attn_norm, inner: Mixer::Attention(attention), post: None },
            ffn: Residual { pre: ffn_norm, inner: ffn, post: None },
        })
    }

    /// The model around `blocks`: embedding, last norm, and a head, which is the embedding where the file has none.
    pub(crate) fn decoder(&mut self, blocks: Vec<Block>) -> Result<ModelSpec, ModelError> {
        let Sizes { width, vocab, context, .. } = self.sizes;
        self.tensors.no_scale("token_embd")?;
        let embed = self.tensors.matrix("token_embd.weight", width.into(), vocab.into())?;
        let out_norm = self.norm("output_norm")?;
        let head = match self.tensors.has("output.weight") {
            true => self.tensors.linear("output", width.into(), vocab.into())?,
            false => Linear { weight: embed, bias: self.tensors.vector_if_any("output.bias", vocab.into())? },
        };
        Ok(ModelSpec { width, vocab, context, embed, embed_scale: 1.0, blocks, out_norm, head, logit_cap: None })
    }

    /// The projections of queries, keys and values with `rows` outputs: three tensors, or one that holds them one after the other.
    fn qkv(&mut self, prefix: &str, rows: [u64; 3]) -> Result<[Linear; 3], ModelError> {
        let width = self.sizes.width.into();
        let names = ["attn_q", "attn_k", "attn_v"].map(|name| format!("{prefix}{name}"));
        let fused = format!("{prefix}attn_qkv");
        if !self.tensors.has(&format!("{fused}.weight")) {
            let mut linear = |i: usize| self.tensors.linear(&names[i], width, rows[i]);
            return Ok([linear(0)?, linear(1)?, linear(2)?]);
        }
        let Linear { weight, bias } = self.tensors.linear(&fused, width, rows.iter().sum())?;
        let first = [0, rows[0], rows[0] + rows[1]];
        let mut part = |i: usize| {
            let part = |whole: TensorSlice, cols| TensorSlice { first_row: first[i], rows: rows[i], cols, ..whole };
            let bias = match bias {
                // Part of a vector: rows of one element.
                Some(bias) => Some(part(bias, 1)),
                None => self.tensors.vector_if_any(&format!("{}.bias", names[i]), rows[i])?,
            };
            Ok::<_, ModelError>(Linear { weight: part(weight, width), bias })
        };
        Ok([part(0)?, part(1)?, part(2)?])
    }
}

fn product((heads, elements): (u32, u32)) -> u64 {
    u64::from(heads) * u64::from(elements)
}

//! `ModelSpec`: a transformer as a typed tree, one value per layer.
//!
//! Differences between layers are data. The structs hold mathematics only; nothing here knows an architecture by name.

use tailrace_types::WeightType;

/// Rows of a weight tensor in the model file: a matrix `[rows x cols]` whose row `o` gives `y[o] = sum_i W[o][i] x[i]`.
///
/// It is elements `first_row * cols .. (first_row + rows) * cols` of the tensor. A vector (norm weight, bias, rope factors) is one row;
/// part of a vector (the bias of a fused projection) is `rows` rows of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorSlice {
    /// Index of the tensor in the file's tensor table.
    pub tensor: u32,
    /// Storage type.
    pub ty: WeightType,
    /// First row of the tensor that belongs to the slice (fused tensors are cut into slices).
    pub first_row: u64,
    /// Output rows.
    pub rows: u64,
    /// Input columns: elements of a row.
    pub cols: u64,
}

/// `y = W x + b`.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// The matrix.
    pub weight: TensorSlice,
    /// Added to the product; `rows` elements.
    pub bias: Option<TensorSlice>,
}

/// `x / sqrt(mean(x^2) + eps) * w`.
#[derive(Clone, Debug, PartialEq)]
pub struct Norm {
    /// The gain `w`.
    pub weight: TensorSlice,
    /// Added to the mean square.
    pub eps: f32,
}

/// `x += post(inner(pre(x)))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual<T> {
    /// Norm of the branch's input.
    pub pre: Norm,
    /// The branch.
    pub inner: T,
    /// Norm of the branch's output, where the model has one.
    pub post: Option<Norm>,
}

/// Which elements of a head form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairing {
    /// Elements `2j` and `2j + 1` (GGUF "NORM").
    Adjacent,
    /// Elements `j` and `j + dims / 2` (GGUF "NEOX").
    Half,
}

/// YaRN context extension (Peng et al. 2023), as GGUF engines apply it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Context length that the model was first trained for.
    pub original_context: u32,
    /// Weight of extrapolation, 1 for YaRN proper.
    pub ext_factor: f32,
    /// Rotations above which a dimension is extrapolated.
    pub beta_fast: f32,
    /// Rotations below which a dimension is interpolated.
    pub beta_slow: f32,
}

/// Rotary position embedding (Su et al. 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Which elements form a pair.
    pub pairing: Pairing,
    /// Rotated elements of a head; the rest passes through.
    pub dims: u32,
    /// Base of the frequencies: pair `j` turns by `position * base^(-2j / dims)`.
    pub base: f32,
    /// Positions are divided by this factor (linear scaling, or the interpolated part of YaRN); 1 where there is none.
    pub linear: f32,
    /// Each frequency is divided by its factor; `dims / 2` elements.
    pub factors: Option<TensorSlice>,
    /// YaRN interpolation.
    pub yarn: Option<Yarn>,
    /// Factor of cosines and sines.
    pub mscale: f32,
}

/// Which earlier cells a row attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// All of them.
    Global,
    /// Itself and the `w - 1` before it.
    Sliding(u32),
}

/// Softmax attention with grouped query heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query projection, `heads * dk` rows.
    pub q: Linear,
    /// Key projection, `kv_heads * dk` rows.
    pub k: Linear,
    /// Value projection, `kv_heads * dv` rows.
    pub v: Linear,
    /// Output projection, `heads * dv` columns.
    pub o: Linear,
    /// Norm of each query head before rope.
    pub q_norm: Option<Norm>,
    /// Norm of each key head before rope.
    pub k_norm: Option<Norm>,
    /// Position embedding of q and k.
    pub rope: Rope,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Elements of a query or key head.
    pub dk: u32,
    /// Elements of a value head.
    pub dv: u32,
    /// Factor of `q.k`.
    pub scale: f32,
    /// Soft cap of the logits: `cap * tanh(s / cap)`.
    pub cap: Option<f32>,
    /// Visible cells.
    pub reach: Reach,
}

/// What mixes information between positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention.
    Attention(Attention),
}

/// Activation of a gated feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// The same at the resolution of a table over 16-bit floats: input and result are rounded, and from 10 on the result is
    /// the input. What [`Activation::GeluTanh`] becomes unless f32 activations are asked for.
    GeluTanhF16,
}

/// `down(act(gate(x)) * up(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ffn {
    /// Gate projection.
    pub gate: Linear,
    /// Up projection.
    pub up: Linear,
    /// Down projection.
    pub down: Linear,
    /// Activation of the gate.
    pub activation: Activation,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Mixes positions.
    pub mixer: Residual<Mixer>,
    /// Mixes channels.
    pub ffn: Residual<Ffn>,
}

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Width of the residual stream.
    pub width: u32,
    /// Rows of the embedding and of the head.
    pub vocab: u32,
    /// Context length that the model was trained for.
    pub context: u32,
    /// Token embedding, one row a token.
    pub embed: TensorSlice,
    /// Factor of the embedding.
    pub embed_scale: f32,
    /// Layers, first to last.
    pub blocks: Vec<Block>,
    /// Norm before the head.
    pub out_norm: Norm,
    /// Output projection; the same slice as `embed` where the two are tied.
    pub head: Linear,
    /// Soft cap of the logits.
    pub logit_cap: Option<f32>,
}

impl Block {
    /// The attention of the layer.
    pub fn attention(&self) -> &Attention {
        let Mixer::Attention(attention) = &self.mixer.inner;
        attention
    }
}

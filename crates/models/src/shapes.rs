//! Well-known models by name, without their files: for plans and for measuring.
//!
//! A shape becomes the header of the file that a converter would write of the model, and is read like any other. All matrices
//! have one type, embedding and head included; vectors are F32.

use tailrace_gguf::{Header, Metadata, TensorInfo, Value};
use tailrace_types::WeightType;

use crate::error::ModelError;
use crate::registry::ARCHITECTURES;
use crate::{Model, read_header};

/// What the models of an architecture have in common.
pub(crate) struct Family {
    /// Vectors of a layer that not every architecture has.
    pub(crate) vectors: &'static [(&'static str, Len)],
    pub(crate) shapes: &'static [Shape],
}

/// Length of a vector.
#[derive(Clone, Copy)]
pub(crate) enum Len {
    /// The residual stream.
    Width,
    /// One head.
    Head,
    /// All query heads.
    Heads,
    /// All key or value heads.
    KvHeads,
}

/// The hyper-parameters of a model.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) width: u32,
    pub(crate) layers: u32,
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    /// Elements of a head.
    pub(crate) head: u32,
    pub(crate) ffn: u32,
    pub(crate) vocab: u32,
    /// Trained context, in tokens.
    pub(crate) context: u32,
    pub(crate) eps: f32,
    pub(crate) rope_base: f32,
    /// Divisor of positions; 1 for none.
    pub(crate) rope_linear: f32,
    /// Whether frequencies have factors.
    pub(crate) rope_factors: bool,
    /// Whether the embedding is the head too.
    pub(crate) tied: bool,
    /// Cells that sliding layers see; 0 where there are none.
    pub(crate) window: u32,
}

impl Shape {
    /// What the shapes of the table are written as differences from.
    pub(crate) const NONE: Shape = Shape {
        name: "",
        width: 0,
        layers: 0,
        heads: 0,
        kv_heads: 0,
        head: 0,
        ffn: 0,
        vocab: 0,
        context: 0,
        eps: 1e-6,
        rope_base: 1e6,
        rope_linear: 1.0,
        rope_factors: false,
        tied: false,
        window: 0,
    };
}

/// Why there is no such shape.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    /// Not written as `NAME:TYPE`.
    #[error("\"{0}\" is no shape; write NAME:TYPE, for example {example}", example = EXAMPLE)]
    Form(String),
    /// No model has that name.
    #[error("no shape is called \"{name}\"; known: {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// No weight type has that name.
    #[error("no weight type is called \"{name}\"; known: {known}")]
    Type {
        /// What was asked for.
        name: String,
        /// All names.
        known: String,
    },
    /// The rows of a matrix are no whole blocks of the type.
    #[error("{tensor} has rows of {elements} elements, which are no whole blocks of {ty}; use another type")]
    Rows {
        /// The matrix.
        tensor: String,
        /// Elements of a row.
        elements: u64,
        /// The type.
        ty: WeightType,
    },
    /// The architecture refuses it: a defect of the table.
    #[error(transparent)]
    Model(#[from] ModelError),
}

const EXAMPLE: &str = "qwen2.5-14b:q8_0";

/// Names of all shapes, without types.
pub fn names() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().flat_map(|architecture| architecture.family.shapes).map(|shape| shape.name)
}

/// The model that `text` names, such as `qwen2.5-14b:q8_0`.
///
/// # Errors
///
/// No such name or type, or the type cannot hold one of the model's matrices.
pub fn read(text: &str) -> Result<Model, ShapeError> {
    let (name, ty) = text.split_once(':').ok_or_else(|| ShapeError::Form(text.escape_debug().to_string()))?;
    let of = |a: &'static crate::registry::Architecture| a.family.shapes.iter().map(move |shape| (a, shape));
    let found = ARCHITECTURES.iter().flat_map(of).find(|(_, shape)| shape.name.eq_ignore_ascii_case(name));
    let (architecture, shape) = found.ok_or_else(|| ShapeError::Unknown {
        name: name.escape_debug().to_string(),
        known: names().collect::<Vec<_>>().join(", "),
    })?;
    let known_types = || WeightType::ALL.iter().map(|ty| ty.name().to_lowercase()).collect::<Vec<_>>().join(", ");
    let ty = WeightType::ALL
        .iter()
        .copied()
        .find(|known| known.name().eq_ignore_ascii_case(ty))
        .ok_or_else(|| ShapeError::Type { name: ty.escape_debug().to_string(), known: known_types() })?;
    let tensors = Table { ty, tensors: Vec::new() }.of(shape, architecture.family.vectors)?;
    Ok(read_header(&Header::new(metadata(architecture.name, shape, ty), tensors))?)
}

/// The keys that a converter would write, those of the tokenizer aside.
fn metadata(architecture: &str, shape: &Shape, ty: WeightType) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", architecture);
    metadata.insert("general.name", format!("{}:{}", shape.name, ty.name().to_lowercase()).as_str());
    let mut set = |key: &str, value: Value| {
        metadata.insert(&format!("{architecture}.{key}"), value);
    };
    set("context_length", shape.context.into());
    set("embedding_length", shape.width.into());
    set("block_count", shape.layers.into());
    set("feed_forward_length", shape.ffn.into());
    set("attention.head_count", shape.heads.into());
    set("attention.head_count_kv", shape.kv_heads.into());
    set("attention.key_length", shape.head.into());
    set("attention.value_length", shape.head.into());
    set("attention.layer_norm_rms_epsilon", shape.eps.into());
    set("rope.freq_base", shape.rope_base.into());
    if shape.rope_linear != 1.0 {
        set("rope.scaling.type", "linear".into());
        set("rope.scaling.factor", shape.rope_linear.into());
    }
    if shape.window > 0 {
        set("attention.sliding_window", shape.window.into());
    }
    metadata
}

/// The tensor table of a file that is being described.
struct Table {
    /// Type of the matrices.
    ty: WeightType,
    tensors: Vec<TensorInfo>,
}

impl Table {
    fn of(mut self, shape: &Shape, vectors: &[(&str, Len)]) -> Result<Vec<TensorInfo>, ShapeError> {
        let [width, ffn, vocab, head] = [shape.width, shape.ffn, shape.vocab, shape.head].map(u64::from);
        let (heads, kv_heads) = (u64::from(shape.heads) * head, u64::from(shape.kv_heads) * head);
        self.matrix("token_embd", width, vocab)?;
        self.vector("output_norm.weight", width);
        if !shape.tied {
            self.matrix("output", width, vocab)?;
        }
        if shape.rope_factors {
            self.vector("rope_freqs.weight", head / 2);
        }
        for layer in 0..shape.layers {
            let name = |name: &str| format!("blk.{layer}.{name}");
            for (matrix, cols, rows) in [
                ("attn_q", width, heads),
                ("attn_k", width, kv_heads),
                ("attn_v", width, kv_heads),
                ("attn_output", heads, width),
                ("ffn_gate", width, ffn),
                ("ffn_up", width, ffn),
                ("ffn_down", ffn, width),
            ] {
                self.matrix(&name(matrix), cols, rows)?;
            }
            for (vector, len) in
                [("attn_norm.weight", Len::Width), ("ffn_norm.weight", Len::Width)].iter().chain(vectors)
            {
                let len = match len {
                    Len::Width => width,
                    Len::Head => head,
                    Len::Heads => heads,
                    Len::KvHeads => kv_heads,
                };
                self.vector(&name(vector), len);
            }
        }
        Ok(self.tensors)
    }

    /// Adds `name.weight` with `rows` rows of `cols` elements.
    fn matrix(&mut self, name: &str, cols: u64, rows: u64) -> Result<(), ShapeError> {
        let (ty, name) = (self.ty, format!("{name}.weight"));
        match ty.block().bytes_of(cols) {
            Some(row_bytes) => self.push(name, ty, [cols, rows], row_bytes * rows),
            None => return Err(ShapeError::Rows { tensor: name, elements: cols, ty }),
        }
        Ok(())
    }

    fn vector(&mut self, name: &str, len: u64) {
        self.push(name.to_owned(), WeightType::F32, [len, 1], len * size_of::<f32>() as u64);
    }

    fn push(&mut self, name: String, ty: WeightType, [cols, rows]: [u64; 2], bytes: u64) {
        let dims = if rows > 1 { 2 } else { 1 };
        self.tensors.push(TensorInfo { name, ne: [cols, rows, 1, 1], dims, ty, bytes, shard: 0, offset: 0 });
    }
}

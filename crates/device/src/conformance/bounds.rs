//! How far a device may be from the reference, and why.

use tailrace_types::{KvType, WeightType};

use super::{AttentionCase, Case, CaseOp};
use crate::plan::spec::Activation;
use crate::plan::{Content, MatrixInput};

/// The arithmetic that a device promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32 throughout, but for what the plan itself keeps in other formats.
    Single,
    /// 16-bit operands and f32 sums where tensor cores compute: prefill products and attention.
    TensorCores,
}

/// Largest distance of a row from the reference's, apart from the rounding to the format of its buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Of the distance's Euclidean norm, in norms of the reference's row.
    pub norm: f64,
    /// Of the distance of any element, in root mean squares of the reference's row.
    pub element: f64,
}

impl Bound {
    const fn new(norm: f64, element: f64) -> Self {
        Bound { norm, element }
    }
}

/// The most that a value is off by when it is rounded to the format of its buffer, which a [`Bound`] does not count: of the
/// value itself, and of the largest of its 32.
pub(super) fn rounding(content: Content) -> (f64, f64) {
    // Slack for a value that is a little off itself before it is rounded.
    const SLACK: f64 = 1.001;
    match content {
        Content::F32 | Content::Scratch => (0.0, 0.0),
        // 8 bits of precision: half a step is 2^-8 of the value at most.
        Content::Bf16 => (SLACK / 256.0, 0.0),
        // The largest of a block is 127 steps.
        Content::Q8 => (0.0, SLACK / 254.0),
    }
}

impl Case {
    /// The bound of the result, beyond its rounding to a buffer's format, on a device whose products read `input`.
    pub(super) fn bound(&self, precision: Precision, input: MatrixInput) -> Bound {
        match &self.op {
            // One product of f32 more or less than the reference.
            CaseOp::Embed { .. } => Bound::new(3e-7, 2e-6),
            // Angles are exact to 1e-9 radians in f64; sines and cosines are rounded to f32.
            CaseOp::RopeTable { .. } => Bound::new(5e-7, 1e-6),
            // A sum of up to some thousand squares in f32, and some roundings of each element.
            CaseOp::Norm { .. } | CaseOp::AddNorm { .. } => Bound::new(1e-6, 1e-5),
            // Exponentials within some units of the last place.
            CaseOp::Gate { activation: Activation::Silu | Activation::GeluTanh, .. } => Bound::new(1e-6, 1e-5),
            // The reference rounds input and result to f16: half a step each, 2^-11.
            CaseOp::Gate { activation: Activation::GeluTanhF16, .. } => Bound::new(6e-4, 5e-3),
            CaseOp::SoftCap { .. } => Bound::new(1e-6, 1e-5),
            CaseOp::MatMul { ty, .. } | CaseOp::Head { ty, .. } => product(*ty, input),
            CaseOp::Attention(case) => match precision {
                Precision::Single => attention(case),
                // Queries and weights are rounded to 16 bits: a score of s moves by up to s / 256, its weight with it.
                Precision::TensorCores => Bound::new(4e-3, 4e-2),
            },
        }
    }

    /// The bound of rotated queries, normed before.
    pub(super) fn queries_bound() -> Bound {
        Bound::new(1e-6, 1e-5)
    }
}

/// Products given their inputs.
fn product(ty: WeightType, input: MatrixInput) -> Bound {
    match (input, ty) {
        // Integers are exact, sums of f32 are not: an error of each of hundreds of terms, relative to their magnitude.
        (MatrixInput::F32 | MatrixInput::Q8, _) => Bound::new(3e-6, 3e-5),
        // Tensor cores sum products of bf16 with fewer bits than f32 between roundings.
        (MatrixInput::Bf16, WeightType::BF16) => Bound::new(3e-5, 3e-4),
        // Weights are rounded to bf16, by 2^-8 at most and 0.42 of that in the mean: independent errors, which add up as their
        // terms do.
        (MatrixInput::Bf16, _) => Bound::new(2.6e-3, 1.2e-2),
    }
}

/// Attention in f32: a chain over each head, an exponential, and chains over cells. Where new keys differ in their last bit,
/// one of them is stored a step apart now and then.
fn attention(case: &AttentionCase) -> Bound {
    let step = match case.shape.k_type {
        KvType::F32 => 0.0,
        KvType::F16 => 1.0 / 2048.0,
        KvType::Bf16 => 1.0 / 256.0,
    };
    let step = if case.prepares_keys() { step } else { 0.0 };
    Bound::new(1e-5 + step / 4.0, 1e-4 + step * 2.0)
}

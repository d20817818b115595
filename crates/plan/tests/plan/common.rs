//! Small models and a device of round numbers.

use proptest::prelude::*;
use tailrace_plan::spec::{
    Activation, Attention, Block, Ffn, Linear, Mixer, ModelSpec, Norm, Pairing, Reach, Residual, Rope, TensorSlice,
};
use tailrace_plan::{AttentionBuffers, AttentionShape, Bucket, DeviceSizes, Limits, Plan};
use tailrace_types::{KvType, ROW_GROUP, WeightType};

/// A device whose sizes are simple products.
#[derive(Clone, Debug)]
pub(crate) struct Fake {
    pub(crate) ring_slots: u32,
    pub(crate) ring_slots_max: u32,
    pub(crate) leaf_batch: u32,
    pub(crate) scratch_bytes: u64,
}

impl Fake {
    pub(crate) const SMALL: Fake = Fake { ring_slots: 4, ring_slots_max: 4, leaf_batch: 8, scratch_bytes: 10_000 };
}

impl DeviceSizes for Fake {
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64 {
        rows.next_multiple_of(ROW_GROUP) * ty.block().bytes_of(cols).expect("whole blocks")
    }

    fn q8_row_bytes(&self, cols: u64) -> u64 {
        cols.div_ceil(32) * 44
    }

    fn attention_buffers(&self, bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers {
        let record = shape.heads as u64 * (shape.dv as u64 + 2);
        AttentionBuffers {
            carry_elements: record,
            partial_elements: if bucket == Bucket::Decode { self.leaf_batch as u64 * record } else { 0 },
            scratch_bytes: self.scratch_bytes * shape.heads as u64,
        }
    }

    fn ring_slots(&self, _slot_bytes: u64, _weight_bytes: u64) -> u32 {
        self.ring_slots
    }

    fn ring_slots_max(&self, _slot_bytes: u64, _weight_bytes: u64) -> u32 {
        self.ring_slots_max
    }
}

/// What varies between the models of these tests.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) reaches: Vec<Reach>,
    pub(crate) kv_heads: u32,
    pub(crate) group: u32,
    pub(crate) head_elements: u32,
    pub(crate) weights: WeightType,
    pub(crate) post_norms: bool,
    pub(crate) context: u32,
}

impl Shape {
    /// Every layer sees every cell, as in llama.
    pub(crate) fn global(layers: usize) -> Self {
        Shape {
            reaches: vec![Reach::Global; layers],
            kv_heads: 2,
            group: 3,
            head_elements: 32,
            weights: WeightType::Q8_0,
            post_norms: false,
            context: 8192,
        }
    }

    /// Five layers with a window, then one without, as in gemma3.
    pub(crate) fn mixed(layers: usize, window: u32) -> Self {
        let reach = |i| if i % 6 == 5 { Reach::Global } else { Reach::Sliding(window) };
        Shape { reaches: (0..layers).map(reach).collect(), post_norms: true, ..Shape::global(layers) }
    }

    /// Every layer has a window.
    pub(crate) fn sliding(layers: usize, window: u32) -> Self {
        Shape { reaches: vec![Reach::Sliding(window); layers], ..Shape::global(layers) }
    }

    pub(crate) fn spec(&self) -> ModelSpec {
        let (width, ffn, vocab) = (128, 256, 512);
        let mut tensors = 0;
        let mut slice = |ty, rows: u64, cols: u64| {
            tensors += 1;
            TensorSlice { tensor: tensors - 1, ty, first_row: 0, rows, cols }
        };
        let embed = slice(WeightType::F16, vocab, width);
        let heads = (self.kv_heads * self.group) as u64;
        let head = self.head_elements as u64;
        let mut block = |reach| {
            let mut linear = |rows, cols| Linear { weight: slice(self.weights, rows, cols), bias: None };
            let (q, o) = (linear(heads * head, width), linear(width, heads * head));
            let (k, v) = (linear(self.kv_heads as u64 * head, width), linear(self.kv_heads as u64 * head, width));
            let (gate, up, down) = (linear(ffn, width), linear(ffn, width), linear(width, ffn));
            let mut norm = || Norm { weight: slice(WeightType::F32, 1, width), eps: 1e-6 };
            let attention = Attention {
                q,
                k,
                v,
                o,
                q_norm: None,
                k_norm: None,
                rope: Rope {
                    pairing: Pairing::Half,
                    dims: self.head_elements,
                    base: if reach == Reach::Global { 1e6 } else { 1e4 },
                    linear: 1.0,
                    factors: None,
                    yarn: None,
                    mscale: 1.0,
                },
                heads: self.kv_heads * self.group,
                kv_heads: self.kv_heads,
                dk: self.head_elements,
                dv: self.head_elements,
                scale: 0.125,
                cap: None,
                reach,
            };
            let ffn = Ffn { gate, up, down, activation: Activation::Silu };
            let post = [norm(), norm()].map(|n| self.post_norms.then_some(n));
            let [mixer_post, ffn_post] = post;
            Block {
                mixer: Residual { pre: norm(), inner: Mixer::Attention(attention), post: mixer_post },
                ffn: Residual { pre: norm(), inner: ffn, post: ffn_post },
            }
        };
        let blocks = self.reaches.iter().map(|&reach| block(reach)).collect();
        let out_norm = Norm { weight: slice(WeightType::F32, 1, width), eps: 1e-6 };
        ModelSpec {
            width: width as u32,
            vocab: vocab as u32,
            context: self.context,
            embed,
            embed_scale: 1.0,
            blocks,
            out_norm,
            head: Linear { weight: embed, bias: None },
            logit_cap: None,
        }
    }
}

/// The window in frames; a cache that never spills counts as more than any that does.
pub(crate) fn window(plan: &Plan) -> u64 {
    if plan.cache.spills { plan.cache.window_frames as u64 } else { u64::MAX }
}

/// A model, a device and limits without a cap.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) device: Fake,
    pub(crate) limits: Limits,
}

impl Case {
    pub(crate) fn plan(&self, limits: &Limits) -> Result<Plan, tailrace_plan::PlanError> {
        Plan::new(&self.shape.spec(), limits, &self.device)
    }

    pub(crate) fn under(&self, cap: u64) -> Result<Plan, tailrace_plan::PlanError> {
        self.plan(&Limits { device_bytes_max: Some(cap), ..self.limits.clone() })
    }

    /// Bytes of the plan without a cap: everything resident.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.plan(&self.limits).expect("nothing bounds it").memory.device_bytes()
    }
}

pub(crate) fn shapes() -> impl Strategy<Value = Shape> {
    let window = prop_oneof![Just(100u32), Just(256), Just(512), Just(1000)];
    let reaches = (1usize..8, window, 0..4).prop_map(|(layers, window, kind)| match kind {
        0 => Shape::mixed(layers, window).reaches,
        1 => Shape::sliding(layers, window).reaches,
        _ => Shape::global(layers).reaches,
    });
    let weights = prop_oneof![Just(WeightType::Q8_0), Just(WeightType::F16)];
    (reaches, 1u32..4, 1u32..4, prop_oneof![Just(32u32), Just(64)], weights, any::<bool>()).prop_map(
        |(reaches, kv_heads, group, head_elements, weights, post_norms)| Shape {
            reaches,
            kv_heads,
            group,
            head_elements,
            weights,
            post_norms,
            context: 8192,
        },
    )
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let device = (1u32..12, 0u32..60, 1u32..20, 0u64..200_000).prop_map(
        |(ring_slots, ring_slots_max, leaf_batch, scratch_bytes)| Fake {
            ring_slots,
            ring_slots_max,
            leaf_batch,
            scratch_bytes,
        },
    );
    let kv = prop::sample::select(KvType::ALL);
    let limits = (1u32..16_000, 1u32..6, 1u32..1500, 1u32..20, 0u32..600, kv.clone(), kv).prop_map(
        |(context, sequences, chunk, logit_rows, rollback_cells, k_type, v_type)| Limits {
            sequences,
            chunk,
            logit_rows,
            rollback_cells,
            k_type,
            v_type,
            ..Limits::new(context.max(sequences))
        },
    );
    (shapes(), device, limits).prop_map(|(shape, device, limits)| Case { shape, device, limits })
}

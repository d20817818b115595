//! Sizes that a plan asks a card for: weight layout, formats of activations, buffers of attention, the ring.

use tailrace_device::plan::{
    ActivationType, AttentionBuffers, AttentionShape, Bucket, DeviceSizes, Limits, MatrixInput,
};
use tailrace_types::WeightType;

use crate::launch::{attention, gemm};
use crate::layout;
use crate::program::{ROW_TILE, kv_kind};
use crate::step::StepLayout;

/// Bytes of the ring: at 50 GB/s it hides 2.5 ms in which the link would have to wait for the device, and it holds some layers'
/// tails where those are small.
const RING_BYTES: u64 = 128 << 20;

/// The same where sliding layers lie between those with a tail: in the time that they take for a chunk the link carries some
/// hundreds of MiB.
const RING_BYTES_MAX: u64 = 1 << 30;

/// A model's ring takes no more than this part of its weights, or `RING_BYTES_MIN`.
const RING_WEIGHTS_PART: u64 = 8;

/// What the ring of a small model may take all the same. A launch takes no more of the tail than half of the ring and then waits
/// for the link: on an H200 a model of 3 MB read its tail at 26 GB/s with 1 MiB, at 44 with 4, at 51 with 8 and at 52 with 32.
const RING_BYTES_MIN: u64 = 8 << 20;

/// Slots of the ring at least, so that copies and kernels overlap.
const RING_SLOTS_MIN: u64 = 8;

/// What launches depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// Compute capability, such as 90.
    pub capability: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

impl Card {
    /// The card of that compute capability.
    pub fn new((major, minor): (u32, u32), multiprocessors: u32) -> Self {
        Card { capability: major * 10 + minor, multiprocessors }
    }

    /// Whether tensor-core kernels serve that attention.
    pub(crate) fn tensor_cores(&self, shape: &AttentionShape) -> bool {
        let types = (kv_kind(shape.k_type), kv_kind(shape.v_type));
        attention::supported(shape.heads, shape.kv_heads, (shape.dk, shape.dv), types, self.capability)
    }
}

/// Leaves of that attention that share a record of partials.
pub(crate) fn group_leaves(shape: &AttentionShape) -> u32 {
    let cell_bytes = shape.k_type.row_bytes(shape.dk) + shape.v_type.row_bytes(shape.dv);
    attention::group_leaves(shape.heads, shape.kv_heads, shape.dv, cell_bytes as u32)
}

/// What a product reads: tensor cores take bf16, few rows are multiplied in 8 bits.
pub(crate) fn matrix_input(bucket: Bucket, ty: WeightType, activations: ActivationType) -> MatrixInput {
    match (activations, bucket) {
        (ActivationType::F32, _) => MatrixInput::F32,
        (ActivationType::Auto, Bucket::Prefill) => MatrixInput::Bf16,
        (ActivationType::Auto, _) if ty.is_float() => MatrixInput::F32,
        (ActivationType::Auto, _) => MatrixInput::Q8,
    }
}

/// The sizes of a card whose process holds `driver_bytes` beside its arenas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The card.
    pub card: Card,
    /// Context, code and graphs.
    pub driver_bytes: u64,
    /// What the ring of a small model may take, in bytes.
    ring_bytes_min: u64,
}

impl Sizes {
    /// The sizes of that card.
    pub fn new(card: Card, driver_bytes: u64) -> Self {
        Sizes { card, driver_bytes, ring_bytes_min: RING_BYTES_MIN }
    }

    /// The same with as short a ring for small models as there can be.
    pub(crate) fn with_short_ring(self) -> Self {
        Sizes { ring_bytes_min: 0, ..self }
    }

    /// Slots of a ring of up to `bytes` bytes, for a model of `weight_bytes`.
    fn ring(&self, bytes: u64, slot_bytes: u64, weight_bytes: u64) -> u32 {
        let bytes = bytes.min(self.ring_bytes_min.max(weight_bytes / RING_WEIGHTS_PART));
        (bytes / slot_bytes.max(1)).max(RING_SLOTS_MIN) as u32
    }
}

impl DeviceSizes for Sizes {
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64 {
        layout::matrix_bytes(ty, rows, cols)
    }

    fn q8_row_bytes(&self, cols: u64) -> u64 {
        (cols + cols / 32 * 8).next_multiple_of(16)
    }

    fn matrix_input(&self, bucket: Bucket, ty: WeightType, activations: ActivationType) -> MatrixInput {
        matrix_input(bucket, ty, activations)
    }

    fn keeps_f32(&self) -> bool {
        false
    }

    fn row_multiple(&self) -> u32 {
        ROW_TILE
    }

    fn matmul_scratch_bytes(&self, input: MatrixInput, ty: WeightType, rows: u64, cols: u64) -> u64 {
        match input {
            MatrixInput::Bf16 => gemm::scratch_bytes(ty, rows, cols, self.card.capability),
            MatrixInput::F32 | MatrixInput::Q8 => 0,
        }
    }

    fn attention_buffers(&self, bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers {
        let record = u64::from(shape.heads) * u64::from(attention::record_floats(shape.dv));
        let carries = bucket == Bucket::Prefill || !self.card.tensor_cores(shape);
        AttentionBuffers { carry_elements: if carries { record } else { 0 }, ..AttentionBuffers::default() }
    }

    fn partials_bytes(&self, shape: &AttentionShape, sequences: u32, sequence_blocks: u32) -> u64 {
        if !self.card.tensor_cores(shape) {
            return 0;
        }
        let record = u64::from(shape.heads) * u64::from(attention::record_floats(shape.dv)) * 4;
        u64::from(sequences) * u64::from(sequence_blocks.div_ceil(group_leaves(shape))) * record
    }

    fn ring_slots(&self, slot_bytes: u64, weight_bytes: u64) -> u32 {
        self.ring(RING_BYTES, slot_bytes, weight_bytes)
    }

    fn ring_slots_max(&self, slot_bytes: u64, weight_bytes: u64) -> u32 {
        self.ring(RING_BYTES_MAX, slot_bytes, weight_bytes)
    }

    fn step_bytes(&self, limits: &Limits, gathered_row_bytes: u64) -> u64 {
        StepLayout::new(limits, gathered_row_bytes).bytes
    }

    fn embedding_on_host(&self) -> bool {
        true
    }

    fn driver_bytes(&self) -> u64 {
        self.driver_bytes
    }
}

//! The parameter structs of `kernels/params.cuh`, field by field. Addresses are `u64`.

#![allow(unsafe_code)]
#![allow(missing_docs)]

/// A home is a frame's number, or this bit and the block's index among the distinct tail blocks of the step.
pub const HOME_TAIL: u32 = 1 << 31;

/// Plain data that the device reads as it is.
///
/// # Safety
/// Without padding, of integers and floats only.
pub unsafe trait Plain: Copy {}

// SAFETY: integers and floats.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f64 {}

/// The bytes of plain values.
pub fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: the trait's contract: every byte is initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// A parameter struct that a kernel takes by value.
pub trait Params: Plain {
    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        bytes_of(std::slice::from_ref(self))
    }
}

impl<T: Plain> Params for T {}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct StepHeader {
    pub rows: u32,
    pub views: u32,
    pub reserved: [u32; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct StepRow {
    pub token: u32,
    pub position: u32,
    pub view: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct StepView {
    pub slot: u32,
    pub first_row: u32,
    pub rows: u32,
    pub first_position: u32,
    pub table_first: u32,
    pub leaves: u32,
    pub reserved: [u32; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Step {
    pub header: u64,
    pub rows: u64,
    pub views: u64,
    pub table: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct LayerBlocks {
    pub core: u64,
    pub overlay: u64,
    pub ring: u64,
    pub sliding: u64,
    pub overlay_stride: u64,
    pub block_bytes: u64,
    pub slot_bytes: u64,
    pub core_frames: u32,
    pub ring_slots: u32,
    pub ring_first: u32,
    pub sliding_blocks: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Q8Scale {
    pub scale: f32,
    pub sum_lo: i16,
    pub sum_hi: i16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Outputs {
    pub f32: u64,
    pub q8: u64,
    pub bf16: u64,
    pub q8_row_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Matrix {
    pub plane: [u64; 4],
    pub bias: u64,
    pub rows: u32,
    pub first_col: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct MatVecParams {
    pub step: Step,
    pub x: u64,
    pub y: u64,
    pub x_row_bytes: u64,
    pub y_cols: u32,
    pub k: u32,
    pub accumulate: u32,
    pub matrices: u32,
    pub matrix: [Matrix; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct DequantParams {
    pub plane: [u64; 4],
    pub out: u64,
    pub first: u32,
    pub count: u32,
    pub k: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct GemmParams {
    pub a: u64,
    pub b: u64,
    pub bias: [u64; 3],
    pub c: u64,
    pub begins: [u32; 3],
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub c_cols: u32,
    pub accumulate: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct RepackParams {
    pub source: u64,
    pub plane: [u64; 4],
    pub first: u32,
    pub count: u32,
    pub blocks: u32,
    pub ty: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct SyntheticParams {
    pub plane: [u64; 4],
    pub seed: u64,
    pub blocks: u64,
    pub scale: f32,
    pub ty: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct RopeTableParams {
    pub step: Step,
    pub frequencies: u64,
    pub dst: u64,
    pub pairs: u32,
    pub mscale: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct EmbedParams {
    pub step: Step,
    pub plane: [u64; 4],
    pub gathered: u64,
    pub dst: u64,
    pub cols: u32,
    pub ty: u32,
    pub scale: f32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct NormParams {
    pub step: Step,
    pub src: u64,
    pub gain: u64,
    pub dst: Outputs,
    pub cols: u32,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct AddNormParams {
    pub step: Step,
    pub src: u64,
    pub gain: u64,
    pub dst: u64,
    pub cols: u32,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct GateParams {
    pub step: Step,
    pub src: u64,
    pub dst: Outputs,
    pub cols: u32,
    pub activation: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct SoftCapParams {
    pub step: Step,
    pub values: u64,
    pub cols: u32,
    pub cap: f32,
    pub rows: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct RopeStoreParams {
    pub step: Step,
    pub blocks: LayerBlocks,
    pub qkv: u64,
    pub q_gain: u64,
    pub k_gain: u64,
    pub table: u64,
    pub q_eps: f32,
    pub k_eps: f32,
    pub heads: u32,
    pub kv_heads: u32,
    pub dk: u32,
    pub dv: u32,
    pub pairs: u32,
    pub adjacent: u32,
    pub k_type: u32,
    pub v_type: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct AttentionParams {
    pub step: Step,
    pub blocks: LayerBlocks,
    pub qkv: u64,
    pub dst: Outputs,
    pub partials: u64,
    pub carry: u64,
    pub qkv_cols: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub dk: u32,
    pub dv: u32,
    pub window: u32,
    pub scale: f32,
    pub cap: f32,
    pub k_type: u32,
    pub v_type: u32,
    pub group_leaves: u32,
    pub groups: u32,
    pub frames: u32,
    pub tail_first: u32,
    pub tail_end: u32,
    pub leaf_first: u32,
    pub leaf_end: u32,
    pub begins: u32,
    pub ends: u32,
    pub rows: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct GatherParams {
    pub rows: u64,
    pub src: u64,
    pub dst: u64,
    pub cols: u32,
    pub count: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Candidate {
    pub token: u32,
    pub logit: f32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct TopParams {
    pub logits: u64,
    pub out: u64,
    pub scratch: u64,
    pub vocab: u32,
    pub rows: u32,
    pub k: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct SetParams {
    pub base: u64,
    pub stride: u64,
    pub bytes: u64,
    pub count: u32,
    pub value: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct CopyParams {
    pub source: u64,
    pub target: u64,
    pub source_stride: u64,
    pub target_stride: u64,
    pub bytes: u64,
    pub count: u32,
    pub reserved: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct FillParams {
    pub step: Step,
    pub blocks: LayerBlocks,
    pub seed: u64,
    pub kv_heads: u32,
    pub dk: u32,
    pub dv: u32,
    pub k_type: u32,
    pub v_type: u32,
    pub k_scale: f32,
    pub v_scale: f32,
    pub reserved: u32,
}

// SAFETY: `#[repr(C)]` structs of integers and floats; fields are ordered and counted so that there is no padding.
unsafe impl Plain for StepHeader {}
unsafe impl Plain for StepRow {}
unsafe impl Plain for StepView {}
unsafe impl Plain for Step {}
unsafe impl Plain for LayerBlocks {}
unsafe impl Plain for Q8Scale {}
unsafe impl Plain for Outputs {}
unsafe impl Plain for Matrix {}
unsafe impl Plain for MatVecParams {}
unsafe impl Plain for DequantParams {}
unsafe impl Plain for GemmParams {}
unsafe impl Plain for RepackParams {}
unsafe impl Plain for SyntheticParams {}
unsafe impl Plain for RopeTableParams {}
unsafe impl Plain for EmbedParams {}
unsafe impl Plain for NormParams {}
unsafe impl Plain for AddNormParams {}
unsafe impl Plain for GateParams {}
unsafe impl Plain for SoftCapParams {}
unsafe impl Plain for RopeStoreParams {}
unsafe impl Plain for AttentionParams {}
unsafe impl Plain for GatherParams {}
unsafe impl Plain for Candidate {}
unsafe impl Plain for TopParams {}
unsafe impl Plain for SetParams {}
unsafe impl Plain for CopyParams {}
unsafe impl Plain for FillParams {}

/// What every struct must measure; `emulator/emulator.cpp` asserts the same of the kernels' side.
macro_rules! sizes {
    ($($name:ident = $bytes:literal;)*) => {
        $(const _: () = assert!(size_of::<$name>() == $bytes);)*
    };
}

sizes! {
    StepHeader = 16;
    StepRow = 16;
    StepView = 32;
    Step = 32;
    LayerBlocks = 72;
    Q8Scale = 8;
    Outputs = 32;
    Matrix = 48;
    MatVecParams = 216;
    DequantParams = 56;
    GemmParams = 80;
    RepackParams = 56;
    SyntheticParams = 56;
    RopeTableParams = 56;
    EmbedParams = 96;
    NormParams = 88;
    AddNormParams = 64;
    GateParams = 80;
    SoftCapParams = 56;
    RopeStoreParams = 176;
    AttentionParams = 240;
    GatherParams = 32;
    Candidate = 8;
    TopParams = 40;
    SetParams = 32;
    CopyParams = 48;
    FillParams = 144;
}

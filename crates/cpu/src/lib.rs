//! The CPU device: kernels on vector registers, their plain references, and the threads they run on.

pub mod naive;
pub mod simd;

//! The CPU device: kernels on vector registers, their plain references, and the threads they run on.

mod arena;
mod exec;
pub mod naive;
pub mod pool;
pub mod simd;
pub mod pack;
pub mod q8;

pub use exec::CpuLoader;
pub use simd::isa::Isa;

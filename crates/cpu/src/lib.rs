//! The CPU device: kernels on vector registers, their plain references, and the threads they run on.

mod arena;
mod exec;
pub mod naive;
pub mod pack;
pub mod pool;
pub mod q8;
mod rates;
pub mod simd;

pub use exec::CpuLoader;
pub use simd::isa::Isa;

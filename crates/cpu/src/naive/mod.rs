//! Reference kernels: the shortest loops that state what each operation means, never optimised; and an executor that
//! runs a plan with them, on one thread. Tests hold the SIMD kernels and their executor against them.

pub mod attention;
pub mod elementwise;
mod executor;
pub mod matmul;
mod memory;
mod ops;
mod rope;

pub use executor::NaiveLoader;

//! Reference kernels: the shortest loops that state what each operation means, never optimised.
//! Tests hold the SIMD kernels against them.

pub mod attention;
pub mod elementwise;
pub mod matmul;

//! Kernels on vector registers, and the only place besides the arena that uses `unsafe`.
//!
//! A kernel is generic over its vectors and compiled once for each instruction set;
//! [`isa::Isa`] picks one at run time.
#![allow(unsafe_code)]

pub mod isa;
pub(crate) mod lanes;
#[cfg(test)]
mod lanes_tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes_x86;

//! Kernels on vector registers, and the only place besides the arena that uses `unsafe`.
//!
//! A kernel is generic over its vectors and compiled once for each instruction set;
//! [`isa::Isa`] picks one at run time.
#![allow(unsafe_code)]

pub mod attention;
mod attention_direct;
#[cfg(test)]
mod attention_tests;
mod attention_tiles;
pub mod cells;
pub(crate) mod dispatch;
pub(crate) mod dot;
#[cfg(target_arch = "x86_64")]
pub(crate) mod dot_x86;
pub mod elementwise;
#[cfg(test)]
mod elementwise_tests;
pub mod isa;
pub(crate) mod lanes;
#[cfg(test)]
mod lanes_tests;
#[cfg(target_arch = "x86_64")]
pub(crate) mod lanes_x86;
pub mod matmul;
mod matmul_f32;
mod matmul_q8;
mod panel;
pub mod quantize;
pub mod rates;
pub mod unpack;
mod weights;

//! Integer kernels compiled once for each instruction set.
//!
//! A kernel is a [`Kernel`]: its body is generic over [`Simd`], and [`run`] instantiates it for every
//! instruction set inside a function that carries the matching `target_feature`s.

use super::dot::{Portable, Simd};
#[cfg(target_arch = "x86_64")]
use super::dot_x86::{Avx2, Avx2Vnni, Avx512};
use super::isa::{Isa, IsaLevel};

/// A computation that is written once for every instruction set.
///
/// `run` must be `#[inline(always)]`, as must all that it calls with `S`: code that is not inlined into
/// the runners of this module would be compiled without the instruction set it was written for.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;

    /// The computation, over the vectors of `S`.
    ///
    /// # Safety
    /// The processor has the instructions of `S`.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Runs `kernel` compiled for `isa`. AVX-512 without its integer dot products counts as AVX2.
#[inline]
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: an `Isa` is proof that the features of its level, which are those of the runner, exist.
    unsafe {
        match isa.level() {
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512Vnni => run_avx512(kernel),
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx2Vnni => run_avx2_vnni(kernel),
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512 | IsaLevel::Avx2 => run_avx2(kernel),
            _ => run_portable(kernel),
        }
    }
}

/// Kept out of line like its siblings, so that no caller holds a copy.
#[inline(never)]
fn run_portable<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: every processor has these instructions.
    unsafe { kernel.run::<Portable>() }
}

/// # Safety
/// The processor has the enabled features, which are those of [`Avx2`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's contract.
    unsafe { kernel.run::<Avx2>() }
}

/// # Safety
/// The processor has the enabled features, which are those of [`Avx2Vnni`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn run_avx2_vnni<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's contract.
    unsafe { kernel.run::<Avx2Vnni>() }
}

/// # Safety
/// The processor has the enabled features, which are those of [`Avx512`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's contract.
    unsafe { kernel.run::<Avx512>() }
}

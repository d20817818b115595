//! What one core can do, as a yardstick for kernels.

use super::dispatch::{Kernel, run};
use super::dot::Simd;
use super::isa::Isa;
use super::lanes::{LANES, Lanes, lanes_kernel};

/// Runs `rounds` rounds of independent multiply-adds in registers and returns the floating-point
/// operations that were done, two for each multiply-add.
pub fn multiply_adds(isa: Isa, rounds: usize) -> f64 {
    // SAFETY: the kernel uses no memory of the caller.
    unsafe { chains(isa, rounds) }
}

lanes_kernel! {
    fn chains[](rounds: usize) -> f64 = chains_body[];
}

/// # Safety
/// The processor has the instructions of `L`.
#[inline(always)]
unsafe fn chains_body<L: Lanes>(rounds: usize) -> f64 {
    const CHAINS_MAX: usize = 12;
    let count = CHAINS_MAX.min(L::REGISTERS - 2);
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [L::splat(1.0); CHAINS_MAX];
        // Not constants to the compiler, which would otherwise compute the result itself.
        let factor = L::splat(std::hint::black_box(0.5));
        let term = L::splat(std::hint::black_box(0.25));
        for _ in 0..rounds {
            for sum in sums.iter_mut().take(count) {
                *sum = sum.fma(factor, term);
            }
        }
        for sum in sums {
            std::hint::black_box(sum.sum());
        }
    }
    (2 * LANES * count * rounds) as f64
}

/// Runs `rounds` rounds of independent dot products of bytes in registers and returns the
/// multiply-adds that were done.
pub fn dot_products(isa: Isa, rounds: usize) -> f64 {
    run(isa, Dots { rounds })
}

struct Dots {
    rounds: usize,
}

impl Kernel for Dots {
    type Output = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        const CHAINS: usize = 12;
        let bytes = std::hint::black_box([[1u8; 64]; 2]);
        // SAFETY: the caller vouches for the instructions; 64 bytes are loaded from arrays of 64.
        unsafe {
            let codes = [S::load(bytes[0].as_ptr()), S::load(bytes[1].as_ptr())];
            let mut sums = [S::ints(0); CHAINS];
            for _ in 0..self.rounds {
                // Not a constant to the compiler, which would otherwise move the product out of the loop.
                let x = std::hint::black_box(1);
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::dot(*sum, codes[i % 2], x);
                }
            }
            for sum in sums {
                std::hint::black_box(S::to_f32(sum).sum());
            }
        }
        (64 * CHAINS * self.rounds) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted() {
        for isa in Isa::available() {
            assert_eq!(multiply_adds(isa, 10), 10.0 * multiply_adds(isa, 1));
            assert_eq!(dot_products(isa, 10), 10.0 * dot_products(isa, 1));
        }
    }
}

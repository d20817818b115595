//! What one core can do, as a yardstick for kernels.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted() {
        for isa in Isa::available() {
            assert_eq!(multiply_adds(isa, 10), 10.0 * multiply_adds(isa, 1));
        }
    }
}

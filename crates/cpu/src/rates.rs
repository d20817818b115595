//! What the machine's memory carries, as a yardstick for everything that reads weights or cells.

use std::hint::black_box;
use std::time::Instant;

use tailrace_device::DeviceError;

use crate::pool::Pool;

/// Bytes that a pass reads: more than caches hold of it from one pass to the next.
const BYTES: usize = 512 << 20;

/// Passes, the fastest of which counts.
const PASSES: usize = 5;

/// Bytes per second at which `threads` threads together read memory, best of 5 passes over 512 MiB.
///
/// # Errors
/// The system refuses the memory or a thread.
pub(crate) fn host_read(threads: usize) -> Result<f64, DeviceError> {
    let mut memory = Vec::new();
    let refused = |_| DeviceError::OutOfMemory { what: "measuring the memory's rate", bytes: BYTES as u64 };
    memory.try_reserve_exact(BYTES).map_err(refused)?;
    // Written once: pages that were never touched are all the same one.
    memory.resize(BYTES, 1u8);
    let mut pool = Pool::new(threads).map_err(|_| DeviceError::Worker)?;
    let pass = |_| {
        let start = Instant::now();
        pool.run(|worker| {
            black_box(read(&memory[worker.share(memory.len())]));
        });
        BYTES as f64 / start.elapsed().as_secs_f64()
    };
    Ok((0..PASSES).map(pass).fold(0.0, f64::max))
}

/// Reads every byte.
fn read(memory: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for line in memory.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_one_of_memory() {
        let rate = host_read(2).unwrap();
        assert!(rate > 1e8 && rate < 1e13, "{rate:e} bytes per second");
    }
}

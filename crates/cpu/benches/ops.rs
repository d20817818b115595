//! Whole ops at the sizes of a 14B model, through the executor: time, bytes and operations per second, and the share of what
//! the memory carries.
//!
//! `cargo bench -p tailrace-cpu --bench ops [-- WORD...]` runs the cases whose names hold all words.

use std::time::Duration;

use tailrace_cpu::{CpuLoader, Isa};
use tailrace_device::conformance::{bench, bench_cases};
use tailrace_device::{DeviceError, Loader};

fn main() -> Result<(), DeviceError> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = CpuLoader::new(threads, Isa::detect());
    let rate = device.rates()?.device_read;
    println!("{}, {:.1} GB/s", device.name(), rate / 1e9);
    println!("{:<64} {:>10} {:>8} {:>6} {:>9}", "op", "us", "GB/s", "share", "GFLOP/s");
    for case in bench_cases().iter().filter(|case| words.iter().all(|word| case.case.name.contains(word))) {
        let name = &case.case.name;
        match bench(case, &device, Duration::from_millis(500)) {
            Ok(measured) => println!(
                "{name:<64} {:>10.1} {:>8.1} {:>5.0}% {:>9.1}",
                measured.seconds * 1e6,
                measured.bytes_per_second / 1e9,
                100.0 * measured.bytes_per_second / rate,
                measured.flops_per_second / 1e9,
            ),
            Err(error) => println!("{name:<64} {error}"),
        }
    }
    Ok(())
}

//! Speed of the weight kernels: bytes of weights per second for few rows, multiply-adds per second for
//! many, beside the rate at which plain loads read the same amount of memory in the same run.
//!
//! `cargo bench -p tailrace-cpu --bench matmul -- [isa=NAME] [TYPE...]`

use std::hint::black_box;
use std::time::Instant;

use tailrace_cpu::pack::group_bytes;
use tailrace_cpu::q8::{Q8_BYTES, Q8Block};
use tailrace_cpu::simd::isa::Isa;
use tailrace_cpu::simd::matmul::{Columns, Epilogue, Weights, matmul_f32, matmul_q8};
use tailrace_cpu::simd::quantize::{Q8Rows, quantize_row};
use tailrace_types::WeightType;

/// Depth and bytes of the matrices: larger than any cache that one core owns, a layer's depth.
const K: usize = 1536;
const BYTES: usize = 96 << 20;

/// Best of several runs, in seconds.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

/// Runs `work(part)` for the parts of `0..n` on `threads` threads.
fn parallel(threads: usize, n: usize, work: impl Fn(std::ops::Range<usize>) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let part = n * thread / threads..n * (thread + 1) / threads;
            let work = &work;
            scope.spawn(move || work(part));
        }
    });
}

/// GB/s of plain loads.
fn read_rate(memory: &[u8], threads: usize) -> f64 {
    let words = memory.as_chunks::<64>().0;
    let seconds = best(5, || {
        parallel(threads, words.len(), |part| {
            let mut sums = [0u64; 8];
            for line in &words[part] {
                for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                    *sum ^= u64::from_le_bytes(*word);
                }
            }
            black_box(sums);
        });
    });
    memory.len() as f64 / seconds / 1e9
}

/// Seconds of a product of `rows` rows with the groups of `w`, split over threads.
fn product(isa: Isa, w: &Weights<'_>, x: &[f32], q8: &[u8], threads: usize, runs: usize) -> f64 {
    let rows = x.len() / K;
    let n = w.groups() * 16;
    let mut y = vec![0f32; rows * n];
    let base = y.as_mut_ptr() as usize;
    best(runs, || {
        parallel(threads, w.groups(), |groups| {
            let first = groups.start * 16;
            let columns = groups.len() * 16;
            // SAFETY: the threads' columns are disjoint, and `y` outlives them.
            let y = unsafe { Columns::from_raw((base as *mut f32).add(first), rows, columns, n) };
            let w = w.slice(groups);
            if q8.is_empty() {
                matmul_f32(isa, &w, x, y, Epilogue::default());
            } else {
                matmul_q8(isa, &w, Q8Rows::new(q8, K), y, Epilogue::default());
            }
        });
    })
}

fn measure(isa: Isa, ty: WeightType, memory: &[u8], plain: &[f64; 2]) {
    let group = group_bytes(ty, K).expect("K is a multiple of 256");
    let w = Weights::new(ty, K, &memory[..memory.len() / group * group]);
    let x: Vec<f32> = (0..512 * K).map(|i| (i % 31) as f32 - 15.0).collect();
    let mut q8 = vec![0u8; 512 * K / 32 * Q8_BYTES];
    let quantise = best(5, || {
        let rows = x.chunks_exact(K).zip(q8.chunks_exact_mut(K / 32 * Q8_BYTES));
        rows.for_each(|(x, to)| quantize_row(isa, x, to));
    });
    if ty == WeightType::Q8_0 {
        println!("quantise: {:.2} ns for 32 values", quantise * 1e9 / (512 * K / 32) as f64);
    }
    let row_bytes = if ty.is_float() { 0 } else { K / 32 * size_of::<Q8Block>() };
    for rows in [1, 4, 512] {
        // Many rows run over fewer groups: the whole matrix would take minutes.
        let part = w.slice(0..if rows > 4 { w.groups().min(64) } else { w.groups() });
        for threads in [1, 2] {
            let seconds = product(isa, &part, &x[..rows * K], &q8[..rows * row_bytes], threads, 5);
            let read = part.bytes().len() as f64 / seconds / 1e9;
            let macs = (part.groups() * 16 * K * rows) as f64 / seconds / 1e9;
            let share = 100.0 * read / plain[threads - 1];
            println!(
                "{ty:<7} rows {rows:<3} threads {threads}: {read:6.2} GB/s ({share:3.0} % of plain reads) {macs:7.1} GMAC/s"
            );
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let isa = Isa::available()
        .filter(|isa| arguments.iter().any(|a| a.strip_prefix("isa=") == Some(isa.level().name())))
        .last()
        .unwrap_or(Isa::detect());
    // Any bytes do as weights, except that random scales would overflow: speed does not depend on them.
    let memory = vec![0x11u8; BYTES];
    let plain = [1, 2].map(|threads| read_rate(&memory, threads));
    println!("{}; plain reads: {:.2} GB/s, two threads {:.2} GB/s", isa.level().name(), plain[0], plain[1]);
    for &ty in WeightType::ALL {
        let named = arguments.iter().any(|a| a.eq_ignore_ascii_case(ty.name()));
        if named || arguments.iter().all(|a| a.starts_with("isa=")) {
            measure(isa, ty, &memory, &plain);
        }
    }
}

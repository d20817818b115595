//! Speed of the weight kernels: bytes of weights per second for few rows, multiply-adds per second for
//! many, against what plain loads and bare dot products reach in the same run.
//!
//! `cargo bench -p tailrace-cpu --bench matmul [-- isa=NAME] [TYPE...]`

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use tailrace_cpu::pack::group_bytes;
use tailrace_cpu::q8::q8_row_bytes;
use tailrace_cpu::simd::isa::Isa;
use tailrace_cpu::simd::matmul::{Columns, Epilogue, Weights, matmul_f32, matmul_q8};
use tailrace_cpu::simd::quantize::{Q8Rows, quantize_row};
use tailrace_cpu::simd::rates::{dot_products, multiply_adds};
use tailrace_types::WeightType;

/// Depth of the matrices, a usual one.
const K: usize = 1536;
/// Bytes of the matrices that few rows read: more than caches hold of it from one pass to the next.
const BYTES: usize = 160 << 20;
/// Groups that many rows pass over: enough to last some milliseconds.
const GROUPS: usize = 64;
/// Rows of a prefill chunk.
const CHUNK: usize = 512;

/// The least of several times, in seconds: at least three runs and a third of a second.
fn best(mut work: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut least = f64::INFINITY;
    let mut runs = 0;
    while runs < 3 || begin.elapsed().as_millis() < 333 {
        let start = Instant::now();
        work();
        least = least.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    least
}

/// Runs `work(part)` for the parts of `0..n` on `threads` threads.
fn parallel(threads: usize, n: usize, work: impl Fn(Range<usize>) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let work = &work;
            scope.spawn(move || work(n * thread / threads..n * (thread + 1) / threads));
        }
    });
}

/// GB/s of plain loads.
fn read_rate(memory: &[u8], threads: usize) -> f64 {
    let lines = memory.as_chunks::<64>().0;
    let seconds = best(|| {
        parallel(threads, lines.len(), |part| {
            let mut sums = [0u64; 8];
            for line in &lines[part] {
                for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                    *sum ^= u64::from_le_bytes(*word);
                }
            }
            black_box(sums);
        });
    });
    memory.len() as f64 / seconds / 1e9
}

/// Billions of operations per second of `threads` threads that each do `work`, which counts them.
fn arithmetic_rate(threads: usize, work: impl Fn() -> f64 + Sync) -> f64 {
    let seconds = best(|| parallel(threads, threads, |_| _ = black_box(work())));
    work() * threads as f64 / seconds / 1e9
}

/// Activations of [`CHUNK`] rows.
struct Activations {
    f32: Vec<f32>,
    q8: Vec<u8>,
}

impl Activations {
    fn new(isa: Isa) -> Self {
        let f32: Vec<f32> = (0..CHUNK * K).map(|i| (i % 31) as f32 - 15.0).collect();
        let mut q8 = vec![0u8; CHUNK * q8_row_bytes(K)];
        let mut quantise = || {
            let rows = f32.chunks_exact(K).zip(q8.chunks_exact_mut(q8_row_bytes(K)));
            rows.for_each(|(x, to)| quantize_row(isa, x, to));
        };
        let seconds = best(&mut quantise);
        println!("quantise: {:.2} ns for 32 values", seconds * 1e9 / (CHUNK * K / 32) as f64);
        Activations { f32, q8 }
    }
}

/// Seconds of a product of `rows` rows with the groups of `w`, split over threads.
fn product(isa: Isa, ty: WeightType, w: &Weights<'_>, x: &Activations, rows: usize, threads: usize) -> f64 {
    best(|| {
        parallel(threads, w.groups(), |groups| {
            let columns = groups.len() * 16;
            let mut y = vec![0f32; rows * columns];
            let y = Columns::new(&mut y, columns, 0..columns);
            let w = w.slice(groups);
            if ty.is_float() {
                matmul_f32(isa, &w, &x.f32[..rows * K], y, Epilogue::default());
            } else {
                let x = Q8Rows::new(&x.q8[..rows * q8_row_bytes(K)], K);
                matmul_q8(isa, &w, x, y, Epilogue::default());
            }
        });
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let forced = arguments.iter().find_map(|a| a.strip_prefix("isa="));
    let isa = match forced {
        Some(name) => Isa::available().find(|isa| isa.level().name() == name).expect("a set this machine has"),
        None => Isa::detect(),
    };
    // Speed does not depend on the values, except that these scales are no denormal numbers.
    let memory = vec![0x2cu8; BYTES];
    let threads = [1, 2];
    let reads = threads.map(|n| read_rate(&memory, n));
    let dots = threads.map(|n| arithmetic_rate(n, || dot_products(isa, 100_000)));
    let adds = threads.map(|n| arithmetic_rate(n, || multiply_adds(isa, 100_000) / 2.0));
    println!("{}; one and two threads:", isa.level().name());
    println!("plain reads {:.1} and {:.1} GB/s", reads[0], reads[1]);
    println!("dot products {:.0} and {:.0} GMAC/s, floats {:.0} and {:.0}", dots[0], dots[1], adds[0], adds[1]);
    let x = Activations::new(isa);
    for &ty in WeightType::ALL {
        let named = arguments.iter().any(|a| a.eq_ignore_ascii_case(ty.name()));
        if !named && arguments.iter().any(|a| !a.starts_with("isa=")) {
            continue;
        }
        let group = group_bytes(ty, K).expect("whole blocks of every type");
        let w = Weights::new(ty, K, &memory[..memory.len() / group * group]);
        for rows in [1, 4, CHUNK] {
            let w = if rows == CHUNK { w.slice(0..GROUPS) } else { w };
            for (i, &threads) in threads.iter().enumerate() {
                let seconds = product(isa, ty, &w, &x, rows, threads);
                let read = w.bytes().len() as f64 / seconds / 1e9;
                let macs = (w.groups() * 16 * K * rows) as f64 / seconds / 1e9;
                let peak = if ty.is_float() { adds[i] } else { dots[i] };
                println!(
                    "{:7} {rows:3} rows, {threads} threads: {read:6.2} GB/s = {:4.0} % of plain reads, \
                     {macs:6.1} GMAC/s = {:3.0} % of bare products",
                    ty.name(),
                    100.0 * read / reads[i],
                    100.0 * macs / peak,
                );
            }
        }
    }
}

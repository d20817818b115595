//! Attention rates against what the machine can do, measured in the same run:
//! decode against the plain read rate of memory, prefill against the rate of multiply-adds.
//!
//! `cargo bench -p tailrace-cpu --bench attention [-- THREADS]`

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::time::Instant;

use tailrace_cpu::pool::{Pool, Worker};
use tailrace_cpu::simd::attention::{HeadShape, Leaf, Queries, fold_leaf, leaf_partials, reset};
use tailrace_cpu::simd::isa::Isa;
use tailrace_cpu::simd::rates::multiply_adds;
use tailrace_types::{BLOCK_CELLS, KvType};

const REPEATS: usize = 5;
const CELLS: usize = 32 * 1024;
const LAYERS: usize = 4;

fn main() {
    let threads = std::env::args().filter_map(|arg| arg.parse().ok()).next();
    let mut pool = Pool::new(threads.unwrap_or(usize::MAX)).expect("threads");
    let isa = Isa::detect();
    let dram = read_rate(&mut pool);
    let peak = multiply_add_rate(&mut pool, isa);
    println!("{isa:?}, {} threads, best of {REPEATS}", pool.workers());
    println!("plain read {dram:.1} GB/s, multiply-adds {peak:.0} GFLOP/s");
    for (name, kv_heads, shape) in shapes() {
        let rate = decode_rate(&mut pool, isa, kv_heads, &shape);
        println!("decode  {name:36} {rate:6.1} GB/s {:5.1} %", 100.0 * rate / dram);
    }
    for (name, kv_heads, shape) in shapes() {
        let rate = prefill_rate(&mut pool, isa, kv_heads, &shape);
        println!("prefill {name:36} {rate:6.1} GFLOP/s {:5.1} %", 100.0 * rate / peak);
    }
}

fn shapes() -> Vec<(&'static str, usize, HeadShape)> {
    let shape = |group, d: usize, ty| HeadShape {
        group,
        dk: d,
        dv: d,
        k_type: ty,
        v_type: ty,
        scale: 1.0 / (d as f32).sqrt(),
        cap: None,
        window: None,
    };
    vec![
        ("8 heads x 4, 128, f16", 8, shape(4, 128, KvType::F16)),
        ("8 heads x 4, 128, bf16", 8, shape(4, 128, KvType::Bf16)),
        ("8 heads x 4, 128, f32", 8, shape(4, 128, KvType::F32)),
        ("3 heads x 3, 64, f16 (SmolLM2)", 3, shape(3, 64, KvType::F16)),
        ("2 heads x 7, 64, f16 (Qwen2.5 0.5B)", 2, shape(7, 64, KvType::F16)),
        ("1 head x 4, 256, f16 (Gemma 3 1B)", 1, shape(4, 256, KvType::F16)),
        ("8 heads x 1, 128, f16", 8, shape(1, 128, KvType::F16)),
    ]
}

/// The best of some runs of `body`, as `amount` per nanosecond.
fn best(amount: f64, mut body: impl FnMut()) -> f64 {
    body();
    let mut best: f64 = 0.0;
    for _ in 0..REPEATS {
        let start = Instant::now();
        body();
        best = best.max(amount / start.elapsed().as_nanos() as f64);
    }
    best
}

/// Memory that each worker uses a part of, one of `workers` equal parts.
struct Parts<T>(Vec<UnsafeCell<Vec<T>>>);

// SAFETY: a part is used by the worker with its index alone.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for Parts<T> {}

impl<T: Clone> Parts<T> {
    fn new(workers: usize, part: Vec<T>) -> Self {
        Parts((0..workers).map(|_| UnsafeCell::new(part.clone())).collect())
    }

    #[allow(unsafe_code, clippy::mut_from_ref)]
    fn of(&self, worker: Worker<'_>) -> &mut Vec<T> {
        // SAFETY: indices of workers are distinct, and each takes its part once a region.
        unsafe { &mut *self.0[worker.index()].get() }
    }
}

/// Bytes a nanosecond of a sum over 1 GiB.
fn read_rate(pool: &mut Pool) -> f64 {
    let memory: Vec<u64> = (0..1 << 27).collect();
    best((memory.len() * 8) as f64, || {
        pool.run(|worker| {
            let mut sums = [0u64; 32];
            for chunk in memory[worker.share(memory.len() / 32 * 32)].chunks_exact(32) {
                for (sum, value) in sums.iter_mut().zip(chunk) {
                    *sum = sum.wrapping_add(*value);
                }
            }
            black_box(sums);
        });
    })
}

/// Floating-point operations a nanosecond of independent multiply-adds in registers.
fn multiply_add_rate(pool: &mut Pool, isa: Isa) -> f64 {
    let rounds = 4_000_000;
    let flops = pool.workers() as f64 * multiply_adds(isa, 1) * rounds as f64;
    best(flops, || {
        pool.run(|_| {
            black_box(multiply_adds(isa, rounds));
        });
    })
}

/// One layer of a cache: `[block][K of all heads, V of all heads]`.
struct Layer {
    bytes: Vec<u8>,
    k_head: usize,
    v_head: usize,
    kv_heads: usize,
}

impl Layer {
    fn new(kv_heads: usize, shape: &HeadShape, cells: usize, seed: u32) -> Self {
        let head = |ty: KvType, d| BLOCK_CELLS as usize * ty.row_bytes(d as u32) as usize;
        let (k_head, v_head) = (head(shape.k_type, shape.dk), head(shape.v_type, shape.dv));
        let size = cells / BLOCK_CELLS as usize * kv_heads * (k_head + v_head);
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(747796405).wrapping_add(2891336453);
            // Small values: exponents from 2^-8 to 2^-1.
            [(state >> 8) as u8, 0x20 | (state >> 24) as u8 & 0x9b]
        };
        let bytes = match shape.k_type {
            KvType::F16 => (0..size / 2).flat_map(|_| next()).collect(),
            KvType::Bf16 => (0..size / 2).flat_map(|_| [next()[0], 0x3d]).collect(),
            KvType::F32 => (0..size / 4).flat_map(|_| [0, 0, next()[0], 0x3d]).collect(),
        };
        Layer { bytes, k_head, v_head, kv_heads }
    }

    fn leaf(&self, block: usize, head: usize) -> Leaf<'_> {
        let block_bytes = self.kv_heads * (self.k_head + self.v_head);
        let bytes = &self.bytes[block * block_bytes..][..block_bytes];
        let (k, v) = bytes.split_at(self.kv_heads * self.k_head);
        Leaf {
            first: block as u32 * BLOCK_CELLS,
            k: &k[head * self.k_head..][..self.k_head],
            v: &v[head * self.v_head..][..self.v_head],
        }
    }
}

fn queries(shape: &HeadShape, rows: usize) -> Vec<f32> {
    (0..rows * shape.group * shape.dk).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect()
}

/// Bytes of cache a nanosecond of one row's partials, rotating over layers.
fn decode_rate(pool: &mut Pool, isa: Isa, kv_heads: usize, shape: &HeadShape) -> f64 {
    let layers: Vec<_> = (0..LAYERS as u32).map(|i| Layer::new(kv_heads, shape, CELLS, i)).collect();
    let q = queries(shape, 1);
    let row = Queries { q: &q, stride: q.len(), positions: &[CELLS as u32 - 1] };
    let scratch = Parts::new(pool.workers(), vec![0.0; shape.scratch_floats()]);
    let items = CELLS / BLOCK_CELLS as usize * kv_heads;
    let record = shape.group * shape.record_floats();
    let records = Parts::new(pool.workers(), vec![0.0; items * record]);
    let bytes = LAYERS * layers[0].bytes.len();
    best(bytes as f64, || {
        pool.run(|worker| {
            let (records, scratch) = (records.of(worker), scratch.of(worker));
            for layer in &layers {
                while let Some(item) = worker.claim(items) {
                    let leaf = layer.leaf(item / kv_heads, item % kv_heads);
                    let records = &mut records[item * record..][..record];
                    leaf_partials(isa, shape, &row, &leaf, records, scratch);
                }
                worker.barrier();
            }
        });
    })
}

/// Floating-point operations a nanosecond (visible cells only) of a chunk of 512 rows that ends
/// a context of 4096 cells.
fn prefill_rate(pool: &mut Pool, isa: Isa, kv_heads: usize, shape: &HeadShape) -> f64 {
    const CHUNK: usize = 512;
    const SPLIT: usize = 128;
    let cells = 4096;
    let layer = Layer::new(kv_heads, shape, cells, 1);
    let q = queries(shape, SPLIT);
    let positions: Vec<u32> = (cells - CHUNK..cells).map(|p| p as u32).collect();
    let scratch = Parts::new(pool.workers(), vec![0.0; shape.scratch_floats()]);
    let record = shape.group * shape.record_floats();
    let carries = Parts::new(pool.workers(), vec![0.0; SPLIT * record]);
    let visible: f64 = positions.iter().map(|&p| f64::from(p) + 1.0).sum();
    let flops = visible * (2 * kv_heads * shape.group * (shape.dk + shape.dv)) as f64;
    best(flops, || {
        pool.run(|worker| {
            let (carries, scratch) = (carries.of(worker), scratch.of(worker));
            while let Some(item) = worker.claim(kv_heads * CHUNK / SPLIT) {
                let part = item / kv_heads * SPLIT;
                let positions = &positions[part..part + SPLIT];
                let rows = Queries { q: &q, stride: shape.group * shape.dk, positions };
                reset(shape.dv, carries);
                for block in 0..cells / BLOCK_CELLS as usize {
                    let leaf = layer.leaf(block, item % kv_heads);
                    fold_leaf(isa, shape, &rows, &leaf, carries, scratch);
                }
            }
        });
    })
}

//! The same ops at the sizes of a model of 14 billion weights, timed, beside what they cannot do without.

use std::time::{Duration, Instant};

use tailrace_types::{KvType, WeightType};

use super::build::Role;
use super::run::{Failure, Session};
use super::{AttentionCase, Case, CaseOp};
use crate::plan::{ActivationType, AttentionShape, Bucket};
use crate::{LoadOptions, Loader, WeightSource};

/// A case to time, and its floor.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchCase {
    /// The op, `repeat` times.
    pub case: Case,
    /// Bytes of weights and cells that one op reads.
    pub bytes: f64,
    /// Floating-point operations of one op, two for each multiply-add.
    pub flops: f64,
}

/// How long an op took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Seconds of one op, the best of all passes.
    pub seconds: f64,
    /// Bytes of the floor per second.
    pub bytes_per_second: f64,
    /// Operations of the floor per second.
    pub flops_per_second: f64,
}

/// Width of the stream, of queries with keys and values, and of the feed-forward network.
const WIDTH: u64 = 5120;
const QKV: [u64; 3] = [5120, 1024, 1024];
const FFN: u64 = 13824;

/// Matrices that follow each other, so that no cache holds what the next pass reads.
const REPEAT: u32 = 8;

/// Layers whose cells follow each other.
const LAYERS: u32 = 4;

/// Products, attention and the head of a 14B model, in decode and in prefill.
pub fn bench_cases() -> Vec<BenchCase> {
    let mut cases = Vec::new();
    for ty in [WeightType::Q4_0, WeightType::Q4_K, WeightType::Q6_K, WeightType::Q8_0, WeightType::BF16] {
        for (k, n) in [(WIDTH, QKV.to_vec()), (WIDTH, vec![FFN, FFN]), (FFN, vec![WIDTH])] {
            for (bucket, rows) in [
                (Bucket::Decode, 1),
                (Bucket::Decode, 4),
                (Bucket::Decode, 16),
                (Bucket::Prefill, 512),
                (Bucket::Prefill, 2048),
            ] {
                cases.push(product(ty, (k, n.clone()), bucket, rows));
            }
        }
    }
    let shape = AttentionShape { heads: 40, kv_heads: 8, dk: 128, dv: 128, k_type: KvType::F16, v_type: KvType::F16 };
    for (bucket, rows, cells) in [
        (Bucket::Decode, 1, 4096),
        (Bucket::Decode, 1, 32_768),
        (Bucket::Decode, 8, 8192),
        (Bucket::Prefill, 512, 8192),
        (Bucket::Prefill, 2048, 8192),
        (Bucket::Prefill, 2048, 32_768),
    ] {
        cases.push(attention(shape, bucket, rows, cells));
    }
    cases
}

fn case(bucket: Bucket, rows: u32, op: CaseOp, repeat: u32) -> Case {
    Case { name: String::new(), bucket, rows, activations: ActivationType::Auto, op, repeat, quick: false }.named()
}

fn product(ty: WeightType, (k, n): (u64, Vec<u64>), bucket: Bucket, rows: u32) -> BenchCase {
    let weights = k * n.iter().sum::<u64>();
    let bytes = ty.block().bytes_of(weights).unwrap_or(0) as f64;
    let flops = 2.0 * weights as f64 * f64::from(rows);
    BenchCase {
        case: case(bucket, rows, CaseOp::MatMul { ty, k, n, bias: false, accumulate: false }, REPEAT),
        bytes,
        flops,
    }
}

fn attention(shape: AttentionShape, bucket: Bucket, rows: u32, cells: u32) -> BenchCase {
    let op = CaseOp::Attention(AttentionCase { cells: vec![cells], ..AttentionCase::new(shape) });
    let cell_bytes = u64::from(shape.kv_heads) * (shape.k_type.row_bytes(shape.dk) + shape.v_type.row_bytes(shape.dv));
    let multiply_adds = f64::from(shape.heads) * f64::from(shape.dk + shape.dv);
    let rows_f64 = f64::from(rows);
    // Cells that are read once, and pairs of a row and a cell that it sees.
    let (read, pairs) = match bucket {
        Bucket::Decode => (rows_f64 * f64::from(cells), rows_f64 * f64::from(cells)),
        _ => (f64::from(cells + rows), rows_f64 * (f64::from(cells) + rows_f64 / 2.0)),
    };
    BenchCase {
        case: case(bucket, rows, op, LAYERS),
        bytes: read * cell_bytes as f64,
        flops: 2.0 * pairs * multiply_adds,
    }
}

/// Times a case: passes over its program, each waited for, until `budget` is spent, three at least. The first is not counted.
///
/// The op is in the program several times, so that a launch and what feeds the op are a small part.
///
/// # Errors
/// The device fails.
pub fn bench(bench: &BenchCase, device: &dyn Loader, budget: Duration) -> Result<Measured, Failure> {
    let case = &bench.case;
    let weights = WeightSource::Synthetic { seed: 1 };
    let mut session = Session::with_weights(case, device, Role::Tested, LoadOptions::default(), weights)?;
    session.fill(case)?;
    session.finish()?;
    let begin = Instant::now();
    let (mut passes, mut least) = (0, f64::INFINITY);
    while passes < 4 || begin.elapsed() < budget {
        let start = Instant::now();
        session.step(case)?;
        session.finish()?;
        if passes > 0 {
            least = least.min(start.elapsed().as_secs_f64());
        }
        passes += 1;
        session.undo(case)?;
    }
    let seconds = least / f64::from(case.repeat);
    Ok(Measured { seconds, bytes_per_second: bench.bytes / seconds, flops_per_second: bench.flops / seconds })
}

//! Bytes that a step must read, from shapes alone.

use tailrace_plan::spec::{Linear, Reach, TensorSlice};
use tailrace_plan::{Limits, ModelSpec};

/// Bytes of all matrices that a step multiplies with, in the model's storage types: all but an embedding that is not also the head.
pub fn weight_bytes(spec: &ModelSpec) -> u64 {
    let bytes = |slice: &TensorSlice| slice.ty.block().bytes_of(slice.rows * slice.cols).unwrap_or(0);
    let of = |linears: [&Linear; 7]| linears.iter().map(|linear| bytes(&linear.weight)).sum::<u64>();
    let blocks = spec.blocks.iter().map(|block| {
        let (a, f) = (block.attention(), &block.ffn.inner);
        of([&a.q, &a.k, &a.v, &a.o, &f.gate, &f.up, &f.down])
    });
    blocks.sum::<u64>() + bytes(&spec.head.weight)
}

/// Bytes of the cells that `rows` rows after `depth` cells see, each read once. Sliding layers read only what their windows cover.
pub fn kv_bytes(spec: &ModelSpec, limits: &Limits, depth: u32, rows: u32) -> u64 {
    let layer = |block: &tailrace_plan::spec::Block| {
        let a = block.attention();
        let cell = u64::from(a.kv_heads) * (limits.k_type.row_bytes(a.dk) + limits.v_type.row_bytes(a.dv));
        let seen = match a.reach {
            Reach::Global => depth + rows,
            Reach::Sliding(window) => (depth + rows).min(window + rows - 1),
        };
        cell * u64::from(seen)
    };
    spec.blocks.iter().map(layer).sum()
}

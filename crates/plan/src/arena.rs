//! Packing of buffers into one arena by lifetime.

use crate::op::Buffer;

/// Alignment of every buffer and row: a cache line, and the widest vector.
pub const ALIGN: u64 = 64;

/// `value` rounded up to a multiple of `to`.
pub const fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

/// Gives every buffer an offset such that buffers alive at the same op do not overlap; returns the arena's bytes.
///
/// Greedy by size: large buffers first, each at the lowest offset that is free during its whole life.
pub(crate) fn pack(buffers: &mut [Buffer]) -> u64 {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(buffers[i].bytes()), i));
    let mut placed: Vec<usize> = Vec::with_capacity(buffers.len());
    let mut end = 0;
    for i in order {
        let offset = lowest_gap(buffers, &placed, i);
        buffers[i].offset = offset;
        end = end.max(offset + round_up(buffers[i].bytes(), ALIGN));
        let at = placed.partition_point(|&p| buffers[p].offset <= offset);
        placed.insert(at, i);
    }
    end
}

/// Lowest offset at which `buffers[i]` fits beside the `placed` ones (sorted by offset) that are alive with it.
fn lowest_gap(buffers: &[Buffer], placed: &[usize], i: usize) -> u64 {
    let (want, mut offset) = (&buffers[i], 0);
    for &p in placed {
        let other = &buffers[p];
        if other.first_op > want.last_op || other.last_op < want.first_op {
            continue;
        }
        if offset + want.bytes() <= other.offset {
            break;
        }
        offset = offset.max(round_up(other.offset + other.bytes(), ALIGN));
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Content;
    use proptest::prelude::*;

    fn buffer(bytes: u64, first_op: u32, ops: u32) -> Buffer {
        Buffer {
            name: String::new(),
            content: Content::Scratch,
            rows: 1,
            cols: bytes,
            row_bytes: bytes,
            offset: 0,
            first_op,
            last_op: first_op + ops,
        }
    }

    proptest! {
        #[test]
        fn live_buffers_never_overlap(specs in prop::collection::vec((1u64..5000, 0u32..30, 0u32..10), 1..40)) {
            let mut buffers: Vec<Buffer> = specs.iter().map(|&(b, f, n)| buffer(b, f, n)).collect();
            let end = pack(&mut buffers);
            for (i, a) in buffers.iter().enumerate() {
                prop_assert_eq!(a.offset % ALIGN, 0);
                prop_assert!(a.offset + a.bytes() <= end);
                for b in &buffers[i + 1..] {
                    let together = a.first_op <= b.last_op && b.first_op <= a.last_op;
                    let apart = a.offset + a.bytes() <= b.offset || b.offset + b.bytes() <= a.offset;
                    prop_assert!(!together || apart, "{:?} {:?}", a, b);
                }
            }
            // No better than the busiest op, no worse than everything side by side.
            let busiest = (0..40u32)
                .map(|op| buffers.iter().filter(|b| b.first_op <= op && op <= b.last_op).map(Buffer::bytes).sum::<u64>())
                .max()
                .unwrap_or(0);
            let all: u64 = buffers.iter().map(|b| round_up(b.bytes(), ALIGN)).sum();
            prop_assert!(busiest <= end && end <= all);
        }
    }
}

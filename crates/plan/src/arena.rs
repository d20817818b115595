//! Packing of buffers into one arena by lifetime.

use crate::op::{Buffer, Content};

/// Alignment of every buffer and row: a cache line, and the widest vector.
pub const ALIGN: u64 = 64;

/// `value` rounded up to a multiple of `to`.
pub const fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

/// Rows that the order of the buffers is chosen for.
const TYPICAL_ROWS: u64 = 512;

/// Gives every buffer an offset such that buffers alive at the same op do not overlap; returns the arena's bytes.
///
/// More rows never take fewer bytes. Packing anew for each number of rows would break that, since a greedy packing can
/// be lucky; so what lies below what is decided once, for a typical number of rows, and then stacked at the real sizes.
pub(crate) fn pack(buffers: &mut [Buffer]) -> u64 {
    let stacked = order(buffers);
    let mut end = 0;
    for (at, &i) in stacked.iter().enumerate() {
        let below = stacked[..at].iter().filter(|&&b| together(&buffers[b], &buffers[i]));
        buffers[i].offset = below.map(|&b| buffers[b].offset + round_up(buffers[b].bytes(), ALIGN)).max().unwrap_or(0);
        end = end.max(buffers[i].offset + round_up(buffers[i].bytes(), ALIGN));
    }
    end
}

/// The buffers from bottom to top.
///
/// Greedy by size: large buffers first, each at the lowest offset that is free during its whole life.
fn order(buffers: &[Buffer]) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..buffers.len()).collect();
    by_size.sort_by_key(|&i| (std::cmp::Reverse(typical_bytes(&buffers[i])), i));
    // Offset and index, sorted.
    let mut placed: Vec<(u64, usize)> = Vec::with_capacity(buffers.len());
    for i in by_size {
        let offset = lowest_gap(buffers, &placed, i);
        placed.insert(placed.partition_point(|&(other, _)| other <= offset), (offset, i));
    }
    placed.into_iter().map(|(_, i)| i).collect()
}

/// Size of the buffer at the typical number of rows.
fn typical_bytes(buffer: &Buffer) -> u64 {
    let rows = if buffer.content == Content::Scratch { 1 } else { TYPICAL_ROWS };
    round_up(rows * buffer.row_bytes, ALIGN)
}

/// Whether both are alive at some op.
fn together(a: &Buffer, b: &Buffer) -> bool {
    a.first_op <= b.last_op && b.first_op <= a.last_op
}

/// Lowest offset at which buffer `i` fits beside the `placed` ones that are alive with it.
fn lowest_gap(buffers: &[Buffer], placed: &[(u64, usize)], i: usize) -> u64 {
    let mut lowest = 0;
    for &(offset, other) in placed.iter().filter(|&&(_, other)| together(&buffers[other], &buffers[i])) {
        if lowest + typical_bytes(&buffers[i]) <= offset {
            break;
        }
        lowest = lowest.max(offset + typical_bytes(&buffers[other]));
    }
    lowest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `rows` rows, or scratch where there are none.
    fn buffer(rows: u32, row_bytes: u64, first_op: u32, ops: u32) -> Buffer {
        Buffer {
            name: String::new(),
            content: if rows == 0 { Content::Scratch } else { Content::F32 },
            rows: rows.max(1),
            cols: row_bytes,
            row_bytes,
            offset: 0,
            first_op,
            last_op: first_op + ops,
        }
    }

    proptest! {
        #[test]
        fn live_buffers_never_overlap(
            specs in prop::collection::vec((any::<bool>(), 1u64..5000, 0u32..30, 0u32..10), 1..40),
            rows in 1u32..1000,
        ) {
            let mut buffers: Vec<Buffer> =
                specs.iter().map(|&(scratch, b, f, n)| buffer(if scratch { 0 } else { rows }, b, f, n)).collect();
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

        #[test]
        fn more_rows_take_no_fewer_bytes(
            specs in prop::collection::vec((any::<bool>(), 1u64..5000, 0u32..30, 0u32..10), 1..40),
            rows in 1u32..1000,
            more in 1u32..100,
        ) {
            let bytes = |rows| {
                let one = |&(scratch, b, f, n): &(bool, u64, u32, u32)| {
                    // Scratch is as large as some hundred rows.
                    if scratch { buffer(0, b * 300, f, n) } else { buffer(rows, b, f, n) }
                };
                pack(&mut specs.iter().map(one).collect::<Vec<_>>())
            };
            prop_assert!(bytes(rows) <= bytes(rows + more));
        }
    }
}

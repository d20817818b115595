//! A submission as the kernels read it: one block at a fixed device address, uploaded by one copy, and a second one of
//! embedding rows where the host has them.

use tailrace_device::kv::{Home, Phase};
use tailrace_device::plan::{Limits, Plan};
use tailrace_device::{Row, Submission};
use tailrace_types::{BLOCK_CELLS, HostBlockId};

use crate::launch::head::{TOP_MAX, top_scratch_bytes};
use crate::params::{Candidate, HOME_TAIL, Step, StepHeader, StepRow, StepView};

/// Bytes for the frequencies of all position embeddings.
const FREQUENCY_BYTES: u64 = 64 << 10;

/// Bytes of the head's header.
const WANTED_FIRST: u64 = size_of::<StepHeader>() as u64;

/// Places in the step's arena, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLayout {
    views: u64,
    table: u64,
    /// A header for the head, which counts the rows whose logits are wanted, and those rows' numbers.
    pub(crate) wanted: u64,
    wanted_max: u32,
    rows: u64,
    /// Embedding rows in the file's format.
    pub(crate) gathered: u64,
    /// f64 frequencies; written once. What comes before is uploaded, what follows stays on the device.
    pub(crate) frequencies: u64,
    /// `[logit row][TOP_MAX]` candidates, and what choosing them needs.
    pub(crate) candidates: u64,
    pub(crate) top_scratch: u64,
    pub(crate) bytes: u64,
}

impl StepLayout {
    pub(crate) fn new(limits: &Limits, gathered_row_bytes: u64) -> Self {
        let rows = u64::from(limits.chunk.max(limits.sequences));
        let homes = u64::from(limits.sequence_cells().div_ceil(BLOCK_CELLS)) * u64::from(limits.sequences);
        let mut end = 0u64;
        let mut place = |bytes: u64| {
            let at = end.next_multiple_of(256);
            end = at + bytes;
            at
        };
        place(size_of::<StepHeader>() as u64);
        let views = place(u64::from(limits.sequences) * size_of::<StepView>() as u64);
        let table = place(homes * 4);
        let wanted = place(WANTED_FIRST + u64::from(limits.logit_rows) * 4);
        let rows_at = place(rows * size_of::<StepRow>() as u64);
        let gathered = place(rows * gathered_row_bytes);
        let frequencies = place(FREQUENCY_BYTES);
        let candidates = place(u64::from(limits.logit_rows * TOP_MAX) * size_of::<Candidate>() as u64);
        let top_scratch = place(top_scratch_bytes(limits.logit_rows));
        StepLayout {
            views,
            table,
            wanted,
            wanted_max: limits.logit_rows,
            rows: rows_at,
            gathered,
            frequencies,
            candidates,
            top_scratch,
            bytes: end,
        }
    }

    /// The same for the head's kernels.
    pub(crate) fn head_addresses(&self, base: u64) -> Step {
        Step { header: base + self.wanted, ..self.addresses(base) }
    }

    /// Address of the wanted rows' numbers.
    pub(crate) fn wanted_rows(&self, base: u64) -> u64 {
        base + self.wanted + WANTED_FIRST
    }

    /// The addresses that kernels get, for an arena at `base`.
    pub(crate) fn addresses(&self, base: u64) -> Step {
        Step { header: base, rows: base + self.rows, views: base + self.views, table: base + self.table }
    }
}

/// The current submission. Reused, so that no step allocates.
#[derive(Debug)]
pub(crate) struct FlatStep {
    pub(crate) phase: Phase,
    pub(crate) rows: Vec<StepRow>,
    pub(crate) views: Vec<StepView>,
    table: Vec<u32>,
    /// The tail blocks, in the order in which the views read them: distinct ones where kernels can share them.
    pub(crate) tail: Vec<HostBlockId>,
    /// Of each view, its first entry of `tail`, where they are not shared.
    tail_first: Vec<u32>,
    shares_tail: bool,
}

impl FlatStep {
    /// `shares_tail`: a tail block of several views is listed once.
    pub(crate) fn with_capacity(plan: &Plan, shares_tail: bool) -> Self {
        let limits = &plan.limits;
        let blocks = plan.cache.sequence_blocks as usize * limits.sequences as usize;
        FlatStep {
            phase: Phase::Prefill,
            rows: Vec::with_capacity(limits.chunk.max(limits.sequences) as usize),
            views: Vec::with_capacity(limits.sequences as usize),
            table: Vec::with_capacity(blocks),
            tail: Vec::with_capacity(blocks),
            tail_first: Vec::with_capacity(limits.sequences as usize),
            shares_tail,
        }
    }

    /// Entries of `tail` of one view, leaf 0 first. Only where they are not shared.
    pub(crate) fn tail_of(&self, view: usize) -> std::ops::Range<u32> {
        let end = self.tail_first.get(view + 1).copied().unwrap_or(self.tail.len() as u32);
        self.tail_first[view]..end
    }

    /// Takes over a submission that was checked.
    pub(crate) fn set(&mut self, submission: &Submission<'_>) {
        let cache = submission.cache;
        self.phase = submission.phase;
        self.rows.clear();
        self.views.clear();
        self.table.clear();
        self.tail.clear();
        self.tail_first.clear();
        let row = |row: &Row| StepRow { token: row.token.0, position: row.position, view: row.view, reserved: 0 };
        self.rows.extend(submission.rows.iter().map(row));
        let mut first_row = 0;
        for sequence in &cache.sequences {
            let table_first = self.table.len() as u32;
            self.tail_first.push(self.tail.len() as u32);
            for &home in cache.segments_of(sequence).iter().flat_map(|segment| cache.homes(segment)) {
                let code = self.code(home);
                self.table.push(code);
            }
            self.views.push(StepView {
                slot: sequence.slot.0,
                first_row,
                rows: sequence.cells,
                first_position: sequence.first_cell,
                table_first,
                leaves: self.table.len() as u32 - table_first,
                reserved: [0; 2],
            });
            first_row += sequence.cells;
        }
    }

    fn code(&mut self, home: Home) -> u32 {
        match home {
            Home::Frame(frame) => frame.0,
            Home::Host(block) => {
                // A prefix that sequences share is staged once. The first view never finds its own blocks here.
                let shared = self.shares_tail && !self.views.is_empty();
                let known = if shared { self.tail.iter().position(|&b| b == block) } else { None };
                let index = known.unwrap_or_else(|| {
                    self.tail.push(block);
                    self.tail.len() - 1
                });
                HOME_TAIL | index as u32
            }
        }
    }

    /// Writes header, views, table and rows into `out`, at the layout's places; returns the bytes that must be uploaded.
    pub(crate) fn write(&self, layout: &StepLayout, out: &mut [u8]) -> u64 {
        let header = StepHeader { rows: self.rows.len() as u32, views: self.views.len() as u32, reserved: [0; 2] };
        put(out, 0, &[header]);
        put(out, layout.views, &self.views);
        put(out, layout.table, &self.table);
        put(out, layout.rows, &self.rows);
        if self.phase == Phase::Decode {
            // The head of a decode step follows at once, over all rows that it has room for.
            let count = self.rows.len().min(layout.wanted_max as usize);
            write_wanted(&mut out[layout.wanted as usize..], 0..count as u32, count);
        }
        layout.rows + size_of_val(&self.rows[..]) as u64
    }
}

/// Writes the head's header and the numbers of the wanted rows; returns the bytes.
pub(crate) fn write_wanted(out: &mut [u8], rows: impl Iterator<Item = u32>, count: usize) -> u64 {
    put(out, 0, &[StepHeader { rows: count as u32, views: 0, reserved: [0; 2] }]);
    for (row, at) in rows.zip((WANTED_FIRST..).step_by(4)) {
        put(out, at, &[row]);
    }
    WANTED_FIRST + count as u64 * 4
}

/// Copies plain values to `at`.
fn put<T: crate::params::Plain>(out: &mut [u8], at: u64, values: &[T]) {
    let bytes = crate::params::bytes_of(values);
    out[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
}

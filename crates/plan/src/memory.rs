//! The memory map: one row for each thing that will occupy memory.

use std::fmt;

use tailrace_types::Bytes;

use crate::arena::round_up;

/// Granularity of an arena: memory is handed out in pages.
pub const PAGE: u64 = 4096;

/// Which memory a row occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Room {
    /// The device's: counted against the cap.
    Device,
    /// The host's: printed beside it.
    Host,
}

/// What a row holds; also the device's arenas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKind {
    /// Weights in the device's layout.
    Weights,
    /// Frames of older, full blocks.
    Window,
    /// Frames that new cells land in.
    Landing,
    /// Rings of the sliding-window layers.
    Sliding,
    /// Slots that tail blocks are staged in.
    Ring,
    /// Buffers of the programs; the decode layout keeps overlay frames in the same bytes.
    Workspace,
    /// Buffers of the head, logits included.
    Head,
    /// Partials of decode attention, which all layers share.
    Partials,
    /// What is uploaded for each step.
    Step,
    /// What the process holds beside its arenas: driver context, code, graphs.
    Driver,
    /// The tail at its largest.
    Tail,
    /// Embedding rows that are gathered from the model file.
    Embedding,
}

impl RowKind {
    /// Which memory it is in.
    pub const fn room(self) -> Room {
        match self {
            RowKind::Tail | RowKind::Embedding => Room::Host,
            _ => Room::Device,
        }
    }

    /// Name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            RowKind::Weights => "weights",
            RowKind::Window => "window",
            RowKind::Landing => "landing",
            RowKind::Sliding => "sliding",
            RowKind::Ring => "ring",
            RowKind::Workspace => "workspace",
            RowKind::Head => "head",
            RowKind::Partials => "partials",
            RowKind::Step => "step",
            RowKind::Driver => "driver",
            RowKind::Embedding => "embedding",
            RowKind::Tail => "tail",
        }
    }
}

/// `count` things of `unit_bytes` each, in whole pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryRow {
    /// What it is.
    pub kind: RowKind,
    /// How many.
    pub count: u64,
    /// Size of one, in bytes.
    pub unit_bytes: u64,
    /// What one is, for the table: `frame`, `slot`, `byte`.
    pub unit: &'static str,
}

impl MemoryRow {
    /// Size of the row in bytes: the product, rounded up to a page.
    pub fn bytes(&self) -> u64 {
        round_up(self.count * self.unit_bytes, PAGE)
    }
}

/// Everything that a run will hold.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct MemoryMap {
    /// One row for each thing.
    pub rows: Vec<MemoryRow>,
}

impl MemoryMap {
    /// The row of that kind; rows that hold nothing are absent.
    pub fn row(&self, kind: RowKind) -> Option<&MemoryRow> {
        self.rows.iter().find(|r| r.kind == kind)
    }

    /// Bytes of the row of that kind, 0 where there is none.
    pub fn bytes(&self, kind: RowKind) -> u64 {
        self.row(kind).map_or(0, MemoryRow::bytes)
    }

    /// Sum over the device's rows: what the cap bounds.
    pub fn device_bytes(&self) -> u64 {
        self.rows.iter().filter(|r| r.kind.room() == Room::Device).map(MemoryRow::bytes).sum()
    }

    pub(crate) fn push(&mut self, kind: RowKind, count: u64, unit_bytes: u64, unit: &'static str) {
        if count * unit_bytes > 0 {
            self.rows.push(MemoryRow { kind, count, unit_bytes, unit });
        }
    }
}

impl fmt::Display for MemoryMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, bytes: u64, how: &str| {
            let line = format!("{name:<12} {bytes:>16} {:>12}  {how}", Bytes(bytes).to_string());
            writeln!(f, "{}", line.trim_end())
        };
        writeln!(f, "{:<12} {:>16}", "row", "bytes")?;
        for room in [Room::Device, Room::Host] {
            for row in self.rows.iter().filter(|r| r.kind.room() == room) {
                let how = match row.count {
                    1 => String::new(),
                    n => format!("{n} {}s of {}", row.unit, Bytes(row.unit_bytes)),
                };
                let name = row.kind.name().to_owned() + if room == Room::Host { " (host)" } else { "" };
                line(f, &name, row.bytes(), &how)?;
            }
            if room == Room::Device {
                line(f, "device", self.device_bytes(), "sum, what the cap bounds")?;
            }
        }
        Ok(())
    }
}

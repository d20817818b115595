//! The one line after a run, and its JSON.

use std::fmt;

use anyhow::Result;
use serde_json::json;
use tailrace_device::HighWater;
use tailrace_engine::{Snapshot, Stats};
use tailrace_plan::{Room, RowKind};
use tailrace_types::Bytes;

use crate::session::Session;

pub(crate) struct Summary {
    stats: Stats,
    snapshot: Snapshot,
    /// Cells of older, full blocks that the plan keeps on the device.
    window_cells: u32,
    /// Host memory of the process beside arenas and tail at its largest: code, heap, stacks, mapped file, in bytes.
    process_bytes: u64,
}

impl Summary {
    pub(crate) fn new(session: &Session, stats: Stats) -> Result<Self> {
        let snapshot = session.handle.snapshot()?;
        // Where no driver counts it, the device's memory is the host's.
        let on_host = |h: &&HighWater| h.kind.room() == Room::Host || snapshot.driver_bytes == 0;
        let arenas: u64 = snapshot.high_water.iter().filter(on_host).map(|h| h.used_bytes).sum();
        let process_bytes = peak_bytes().saturating_sub(arenas);
        Ok(Summary { stats, snapshot, window_cells: session.plan.window_cells(), process_bytes })
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        let Summary { stats, snapshot, .. } = self;
        let arena = |h: &HighWater| {
            json!({
                "name": h.kind.name(),
                "room": if h.kind.room() == Room::Device { "device" } else { "host" },
                "used_bytes": h.used_bytes,
                "bytes": h.row_bytes,
            })
        };
        json!({
            "prompt_tokens": stats.prompt_tokens,
            "generated_tokens": stats.generated_tokens,
            "prefill_tps": stats.prefill_tps(),
            "decode_tps": stats.decode_tps(),
            "window_cells": self.window_cells,
            "tail_cells": snapshot.tail_cells(),
            "tail_bytes": snapshot.tail_bytes(),
            "tail_read_bytes": snapshot.traffic.tail_read_bytes,
            "tail_written_bytes": snapshot.traffic.tail_written_bytes,
            "rows": snapshot.high_water.iter().map(arena).collect::<Vec<_>>(),
            "driver_bytes": snapshot.driver_bytes,
            "process_bytes": self.process_bytes,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { stats, snapshot, .. } = self;
        write!(
            f,
            "prefill {:.1} tokens/s ({}) · decode {:.1} tokens/s ({}) · window {} cells · tail {} cells, {} · read from the tail {}",
            stats.prefill_tps(),
            stats.prompt_tokens,
            stats.decode_tps(),
            stats.decoded_tokens,
            self.window_cells,
            snapshot.tail_cells(),
            Bytes(snapshot.tail_bytes()),
            Bytes(snapshot.traffic.tail_read_bytes),
        )?;
        for high in snapshot.high_water.iter().filter(|h| h.kind != RowKind::Tail) {
            write!(f, " · {} {} of {}", high.kind.name(), Bytes(high.used_bytes), Bytes(high.row_bytes))?;
        }
        if snapshot.driver_bytes > 0 {
            write!(f, " · process (device) {}", Bytes(snapshot.driver_bytes))?;
        }
        write!(f, " · process (host) {}", Bytes(self.process_bytes))
    }
}

/// Most memory that the process ever had resident, in bytes; 0 where the system does not say.
fn peak_bytes() -> u64 {
    let kib = |text: String| {
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.trim().to_owned();
        line.strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    std::fs::read_to_string("/proc/self/status").ok().and_then(kib).map_or(0, |kib| kib * 1024)
}

//! `tailrace plan`: what a run would occupy.

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde_json::json;
use tailrace_gguf::Gguf;
use tailrace_plan::{Plan, Room};

use crate::args::PlanArgs;
use crate::{limits, stderr};

pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let file = Gguf::open(&args.model.model)?;
    let model = tailrace_models::read(&file)?;
    let logit_rows = args.model.limits.parallel;
    let mut resolved = limits::resolve(&args.model.limits, &model.spec, logit_rows)?;
    let plan = limits::plan(&model.spec, &mut resolved)?;
    for warning in &model.warnings {
        stderr::note(format_args!("warning: {warning}"));
    }
    resolved.notes.iter().for_each(stderr::note);
    let text = if args.json { format!("{:#}\n", to_json(&plan)) } else { describe(&plan) };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to standard output")
}

/// The plan as text: cells, then the memory table.
pub(crate) fn describe(plan: &Plan) -> String {
    let limits = &plan.limits;
    let mut text = format!(
        "context {} cells, {} sequence(s), chunks of {}\n",
        limits.context_cells, limits.sequences, limits.chunk
    );
    if plan.cache.spills {
        text += &format!(
            "window {} cells in prefill, {} in decode; tail up to {} cells\n",
            plan.window_cells(),
            plan.window_cells_decode(),
            plan.tail_cells_max()
        );
    } else {
        text += "everything stays on the device: no tail\n";
    }
    text + &plan.memory.to_string()
}

fn to_json(plan: &Plan) -> serde_json::Value {
    let rows: Vec<_> = plan
        .memory
        .rows
        .iter()
        .map(|row| {
            json!({
                "name": row.kind.name(),
                "room": if row.kind.room() == Room::Device { "device" } else { "host" },
                "count": row.count,
                "unit": row.unit,
                "unit_bytes": row.unit_bytes,
                "bytes": row.bytes(),
            })
        })
        .collect();
    json!({
        "context_cells": plan.limits.context_cells,
        "sequences": plan.limits.sequences,
        "chunk": plan.limits.chunk,
        "window_cells": plan.window_cells(),
        "window_cells_decode": plan.window_cells_decode(),
        "tail_cells_max": plan.tail_cells_max(),
        "device_bytes": plan.memory.device_bytes(),
        "device_bytes_max": plan.limits.device_bytes_max,
        "host_bytes_max": plan.limits.host_bytes_max,
        "rows": rows,
    })
}

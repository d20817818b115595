//! From arguments to the limits of a plan, with the defaults that depend on the machine.

use anyhow::{Result, bail};
use tailrace_cpu::{CpuLoader, Isa};
use tailrace_plan::{Limits, ModelSpec, Plan, RowKind};
use tailrace_types::Bytes;

use crate::args::ModelArgs;

/// What a run was asked for, resolved on this machine.
pub(crate) struct Resolved {
    pub(crate) limits: Limits,
    pub(crate) loader: CpuLoader,
    /// Lines for standard error: defaults that were chosen, and what to be wary of.
    pub(crate) notes: Vec<String>,
}

/// Resolves `args` for `spec`. `logit_rows` is what the command will ask for at once.
pub(crate) fn resolve(args: &ModelArgs, spec: &ModelSpec, logit_rows: u32) -> Result<Resolved> {
    let mut notes = Vec::new();
    let loader = CpuLoader::new(threads(args, &mut notes)?, Isa::detect());
    let mut limits = Limits {
        sequences: args.parallel,
        chunk: args.ubatch_size,
        logit_rows,
        k_type: args.cache_type_k,
        v_type: args.cache_type_v,
        activations: args.activations.into(),
        device_bytes_max: args.vram_target,
        host_bytes_max: args.host_mem.unwrap_or_else(|| available_bytes() / 2),
        window_cells: args.kv_window,
        ..Limits::new(args.context.unwrap_or(spec.context))
    };
    let trained = u64::from(spec.context) * u64::from(args.parallel);
    match args.context.filter(|&cells| cells > 0) {
        Some(cells) if u64::from(cells) > trained => notes.push(format!(
            "warning: the model was trained for {} tokens of context; beyond them (-c {cells}) it may answer badly",
            spec.context
        )),
        Some(_) => {}
        None => {
            limits.context_cells = Plan::default_context(spec, &limits, &loader)?;
            let why = if u64::from(limits.context_cells) < trained {
                "what the host can hold"
            } else {
                "what it was trained for"
            };
            notes.push(format!("context {} tokens: {why}", limits.context_cells));
        }
    }
    Ok(Resolved { limits, loader, notes })
}

/// The plan, with notes where this machine cannot hold all of it.
pub(crate) fn plan(spec: &ModelSpec, resolved: &mut Resolved) -> Result<Plan> {
    let plan = Plan::new(spec, &resolved.limits, &resolved.loader)?;
    let (tail, host) = (plan.memory.bytes(RowKind::Tail), resolved.limits.host_bytes_max);
    let (device, available) = (plan.memory.device_bytes(), available_bytes());
    if resolved.limits.device_bytes_max.is_none() && device > available {
        resolved.notes.push(format!(
            "warning: a full context needs {}, and {} are available; lower -c, or set a cap with --vram-target",
            Bytes(device),
            Bytes(available)
        ));
    }
    if tail > 0 {
        resolved.notes.push(format!("host memory for the tail: up to {} of {}", Bytes(tail.min(host)), Bytes(host)));
    }
    if tail > host {
        resolved.notes.push(format!(
            "warning: a full context needs {} of host memory for its tail, the limit is {}; raise --host-mem or lower -c",
            Bytes(tail),
            Bytes(host)
        ));
    }
    Ok(plan)
}

fn threads(args: &ModelArgs, notes: &mut Vec<String>) -> Result<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match args.threads {
        Some(0) => bail!("-t 0: at least one thread is needed; this machine has {cores} cores"),
        Some(n) if n > cores => {
            notes.push(format!("warning: -t {n} is more than the {cores} cores here; using {cores}"));
            Ok(cores)
        }
        Some(n) => Ok(n),
        None => Ok(cores),
    }
}

/// Memory that the system could hand out now, in bytes; 8 GiB where it does not say.
fn available_bytes() -> u64 {
    let kib = |text: String| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.trim().to_owned();
        line.strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    std::fs::read_to_string("/proc/meminfo").ok().and_then(kib).map_or(8 << 30, |kib| kib * 1024)
}

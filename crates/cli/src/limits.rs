//! From arguments to the limits of a plan, with the defaults that depend on the machine.

use anyhow::{Result, anyhow};
use tailrace_device::DeviceError;
use tailrace_engine::LoadError;
use tailrace_plan::{Limits, ModelSpec, Plan, RowKind};
use tailrace_types::Bytes;

use crate::args::LimitArgs;
use crate::device::{self, Device};

/// Device memory that is left alone where the user names no cap, in bytes: other programs come and go.
const FREE_MARGIN: u64 = 512 << 20;

/// Tokens of a chunk at least, where chunks are shortened.
const CHUNK_MIN: u32 = 64;

/// What a run was asked for, resolved on this machine.
pub(crate) struct Resolved {
    pub(crate) limits: Limits,
    pub(crate) device: Device,
    /// Lines for standard error: defaults that were chosen, and what to be wary of.
    pub(crate) notes: Vec<String>,
}

/// Resolves `args` for `spec`. `logit_rows` is what the command will ask for at once.
pub(crate) fn resolve(args: &LimitArgs, spec: &ModelSpec, logit_rows: u32) -> Result<Resolved> {
    let mut notes = Vec::new();
    let device = device::open(&args.device, &mut notes)?;
    resolve_on(device, notes, args, spec, logit_rows)
}

/// The same on a device that is open already; `notes` are what there is to say of it.
pub(crate) fn resolve_on(
    device: Device,
    mut notes: Vec<String>,
    args: &LimitArgs,
    spec: &ModelSpec,
    logit_rows: u32,
) -> Result<Resolved> {
    let mut limits = Limits {
        sequences: args.parallel,
        chunk: args.ubatch_size.unwrap_or(device.chunk),
        logit_rows,
        k_type: args.cache_type_k,
        v_type: args.cache_type_v,
        activations: args.activations.into(),
        device_bytes_max: args.vram_target.or_else(|| device.free_bytes.map(|free| free.saturating_sub(FREE_MARGIN))),
        host_bytes_max: args.host_mem.unwrap_or_else(|| available_bytes() / 2),
        window_cells: args.kv_window,
        ..Limits::new(args.context.unwrap_or(spec.context))
    };
    if let (None, Some(free), Some(cap)) = (args.vram_target, device.free_bytes, limits.device_bytes_max) {
        notes.push(format!(
            "cap on device memory {}: {} are free, less {}",
            Bytes(cap),
            Bytes(free),
            Bytes(FREE_MARGIN)
        ));
    }
    let trained = u64::from(spec.context) * u64::from(args.parallel);
    match args.context.filter(|&cells| cells > 0) {
        Some(cells) if u64::from(cells) > trained => notes.push(format!(
            "warning: the model was trained for {} tokens of context; beyond them (-c {cells}) it may answer badly",
            spec.context
        )),
        Some(_) => {}
        None => {
            limits.context_cells = Plan::default_context(spec, &limits, device.loader.as_ref())?;
            let why = if u64::from(limits.context_cells) < trained {
                "what the host can hold"
            } else {
                "what it was trained for"
            };
            notes.push(format!("context {} tokens: {why}", limits.context_cells));
        }
    }
    Ok(Resolved { limits, device, notes })
}

/// The plan, with notes where this machine cannot hold all of it.
pub(crate) fn plan(spec: &ModelSpec, resolved: &mut Resolved) -> Result<Plan> {
    let plan = Plan::new(spec, &resolved.limits, resolved.device.loader.as_ref())?;
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

/// The plan with the longest chunks, halved from `chunk` on, that `leaves_enough` in the tail; the one with the shortest where none
/// does.
///
/// A chunk of a prompt lands beside the window, and a decoding step keeps cells where the workspace of prefill was: what is to show
/// a tail over a short text needs short chunks.
pub(crate) fn with_a_tail(
    mut chunk: u32,
    plan: impl Fn(u32) -> Result<Plan>,
    leaves_enough: impl Fn(&Plan) -> bool,
) -> Result<Plan> {
    loop {
        let plan = plan(chunk)?;
        if leaves_enough(&plan) || chunk / 2 < CHUNK_MIN {
            return Ok(plan);
        }
        chunk /= 2;
    }
}

/// A failure to start, with the memory that was to be had where that was refused.
pub(crate) fn explain(error: LoadError, plan: &Plan) -> anyhow::Error {
    match error {
        LoadError::Device(refused @ DeviceError::OutOfMemory { .. }) => anyhow!(
            "{refused}; other programs may hold memory: lower the cap (--vram-target), -c or -ub\n{}",
            plan.memory
        ),
        other => other.into(),
    }
}

/// Memory that the system could hand out now, in bytes; 8 GiB where it does not say.
pub(crate) fn available_bytes() -> u64 {
    let kib = |text: String| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.trim().to_owned();
        line.strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    std::fs::read_to_string("/proc/meminfo").ok().and_then(kib).map_or(8 << 30, |kib| kib * 1024)
}

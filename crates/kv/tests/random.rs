//! Random operations against a device that stores the identity of every cell.

mod sim;

use proptest::prelude::*;
use sim::{Copies, End, Sim};
use tailrace_kv::{KvConfig, KvError, Phase, Sliding};

#[derive(Clone, Debug)]
enum Op {
    Create(u32),
    Release(u32),
    /// Source, destination, part of the source's cells.
    Fork(u32, u32, f64),
    /// Slot, part of its cells.
    Cut(u32, f64),
    /// Slot, cells below the newest.
    Back(u32, u32),
    /// Slot, cells.
    Prefill(u32, u32, End),
    /// Sequences (a bit each), steps.
    Decode(u32, u32, End),
    Idle,
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![8 => Just(End::Commit), 1 => Just(End::Abort)]
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0u32..6;
    prop_oneof![
        3 => slot.clone().prop_map(Op::Create),
        1 => slot.clone().prop_map(Op::Release),
        2 => (slot.clone(), slot.clone(), 0.0..=1.0).prop_map(|(s, d, f)| Op::Fork(s, d, f)),
        1 => (slot.clone(), 0.0..=1.0).prop_map(|(s, f)| Op::Cut(s, f)),
        1 => (slot.clone(), 0u32..300).prop_map(|(s, n)| Op::Back(s, n)),
        8 => (slot, 1u32..=700, end()).prop_map(|(s, n, e)| Op::Prefill(s, n, e)),
        4 => (1u32..64, 1u32..40, end()).prop_map(|(m, n, e)| Op::Decode(m, n, e)),
        1 => Just(Op::Idle),
    ]
}

#[derive(Clone, Debug)]
struct Case {
    config: KvConfig,
    chunk: u32,
    copies: Copies,
    ops: Vec<Op>,
}

/// Sizes: host memory is `None` for "as much as could ever be used".
fn case(host: impl Strategy<Value = Option<u32>>) -> impl Strategy<Value = Case> {
    let sizes = (1u32..=6, 1u32..=700, 0u32..=3, 0u32..=6, 700u32..3500);
    let sliding = proptest::option::weighted(0.4, 2u32..600);
    let rest = (prop_oneof![Just(1u32), Just(2), Just(4)], host, sliding, 0u32..300);
    let copies = prop_oneof![Just(Copies::Eager), Just(Copies::Lazy)];
    let ops = prop::collection::vec(op(), 1..70);
    (sizes, rest, copies, ops).prop_map(|(sizes, rest, copies, ops)| {
        let (slots, chunk, window, overlay_frames, context_cells) = sizes;
        let (extent_blocks, host, sliding, rollback_max) = rest;
        let mut config = sim::config(slots, chunk, window);
        config.context_cells = context_cells;
        config.overlay_frames = overlay_frames;
        config.extent_blocks = extent_blocks;
        config.extents_max = host.unwrap_or(slots * context_cells.div_ceil(256));
        config.rollback_max = rollback_max;
        config.sliding =
            sliding.map(|window| Sliding { window, ring_blocks: (window + chunk + rollback_max).div_ceil(256) });
        Case { config, chunk, copies, ops }
    })
}

/// Runs one operation. `limited`: host memory may be full.
fn run(sim: &mut Sim, op: &Op, chunk: u32, limited: bool) -> Result<(), String> {
    let slots = sim.model.len() as u32;
    let context = sim.kv.config().context_cells;
    let room = |sim: &Sim, slot: u32| sim.len(slot).map_or(0, |cells| context - cells);
    match *op {
        Op::Create(s) => _ = sim.create(s % slots),
        Op::Release(s) => _ = sim.release(s % slots),
        Op::Fork(s, d, part) => {
            let (s, d) = (s % slots, d % slots);
            let cells = sim.len(s).map_or(0, |c| (f64::from(c) * part) as u32);
            _ = sim.fork(s, d, cells)?;
        }
        Op::Cut(s, part) => {
            let cells = sim.len(s % slots).map_or(0, |c| (f64::from(c) * part) as u32);
            _ = sim.rollback(s % slots, cells)?;
        }
        Op::Back(s, n) => {
            let cells = sim.len(s % slots).map_or(0, |c| c.saturating_sub(n));
            _ = sim.rollback(s % slots, cells)?;
        }
        Op::Prefill(s, n, end) => {
            let cells = n.min(chunk).min(room(sim, s % slots));
            if cells > 0 {
                step(sim, &[(s % slots, cells)], Phase::Prefill, end, limited)?;
            }
        }
        Op::Decode(mask, steps, end) => {
            for i in 0..steps {
                let appends: Vec<(u32, u32)> =
                    (0..slots).filter(|s| mask >> s & 1 == 1 && room(sim, *s) > 0).map(|s| (s, 1)).collect();
                let end = if i + 1 == steps { end } else { End::Commit };
                step(sim, &appends, Phase::Decode, end, limited)?;
            }
        }
        Op::Idle => step(sim, &[], Phase::Decode, End::Commit, limited)?,
    }
    sim.kv.check()?;
    Ok(())
}

/// A step as an engine runs it: room that is still to be cleaned is cleaned once; a request that finds the host full ends.
fn step(sim: &mut Sim, appends: &[(u32, u32)], phase: Phase, end: End, limited: bool) -> Result<(), String> {
    let mut appends = appends.to_vec();
    let mut cleaned = false;
    loop {
        match sim.step(&appends, phase, end)? {
            Ok(()) => return Ok(()),
            Err(KvError::HostFull { slot, .. }) if limited => {
                sim.release(slot.0).map_err(|e| e.to_string())?;
                appends.retain(|a| a.0 != slot.0);
                cleaned = false;
            }
            Err(KvError::NotClean) if limited && !cleaned => {
                sim.step(&[], phase, End::Commit)?.map_err(|e| e.to_string())?;
                cleaned = true;
            }
            Err(e) => return Err(format!("{appends:?}: {e}")),
        }
    }
}

fn play(case: &Case, limited: bool) -> Result<(), TestCaseError> {
    let mut sim = Sim::new(case.config.clone(), case.copies);
    for (i, op) in case.ops.iter().enumerate() {
        run(&mut sim, op, case.chunk, limited).map_err(|e| TestCaseError::fail(format!("op {i} {op:?}: {e}")))?;
    }
    sim.audit_and_release().map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// With enough host memory no step is ever refused for want of room, so no eviction ever waits for a copy.
    #[test]
    fn cells_survive_and_reserve_holds(case in case(Just(None))) {
        play(&case, false)?;
    }

    /// At the host's limit requests end one by one, and the others go on.
    #[test]
    fn host_limit_hits_single_requests(case in case((0u32..6).prop_map(Some))) {
        play(&case, true)?;
    }

    /// The machine may refuse memory below the limit at any time.
    #[test]
    fn refused_growth_is_a_lower_limit(mut case in case(Just(None)), refuse in 0u32..7) {
        for op in case.ops.iter_mut().skip(refuse as usize * 5) {
            if let Op::Prefill(_, _, end) | Op::Decode(_, _, end) = op {
                *end = if *end == End::Commit { End::Refused } else { *end };
            }
        }
        play(&case, true)?;
    }

    /// Where all contexts fit, nothing is kept on the host and nothing moves.
    #[test]
    fn without_spill_nothing_moves(mut case in case(Just(Some(0)))) {
        let blocks = case.config.slots * case.config.context_blocks();
        case.config.spills = false;
        case.config.core_frames = blocks.max(case.config.landing_frames);
        let mut sim = Sim::new(case.config.clone(), case.copies);
        for op in &case.ops {
            run(&mut sim, op, case.chunk, false).map_err(TestCaseError::fail)?;
        }
        let counters = sim.kv.counters();
        prop_assert_eq!(counters.cleaned + counters.evicted + counters.tail_reads + counters.fetched, 0);
        sim.audit_and_release().map_err(TestCaseError::fail)?;
    }
}

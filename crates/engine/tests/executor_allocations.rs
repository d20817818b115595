//! Between submit and return the CPU's executor allocates nothing but extents of the tail.

use std::alloc::System;
use std::path::Path;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tailrace_cpu::{CpuLoader, Isa};
use tailrace_device::kv::{Append, KvCache, KvConfig, Phase, StepPlan, Transfer};
use tailrace_device::plan::{Limits, Plan};
use tailrace_device::{LoadOptions, Loader, Row, Submission, WeightSource};
use tailrace_engine::{GgufWeights, open};
use tailrace_types::{SlotId, TokenId};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tokens of a sequence that fills window and tail.
const TOKENS: u32 = 2000;
const CHUNK: u32 = 48;

#[test]
fn submissions_and_logits_do_not_allocate() {
    for name in ["llama-tied", "gemma3", "type-q4_k"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/models").join(name).with_extension("gguf");
        let model = open(path).unwrap();
        let loader = CpuLoader::new(2, Isa::detect());
        let limits = Limits { window_cells: Some(256), chunk: CHUNK, ..Limits::new(TOKENS) };
        let plan = Plan::new(model.spec(), &limits, &loader).unwrap();
        let mut cache = KvCache::new(KvConfig::of(&plan)).unwrap();
        let mut step = StepPlan::with_capacity(cache.config());
        let vocab = plan.vocab;
        let weights = GgufWeights::new(&model.gguf);
        let mut executor =
            loader.load(plan, WeightSource::File(&weights), LoadOptions::default(), &mut |_| {}).unwrap();
        let slot = SlotId(0);
        cache.create(slot).unwrap();
        let (mut position, mut counted) = (0, 0);
        let mut rows = Vec::new();
        while position < TOKENS {
            let prefill = position < TOKENS / 2;
            let cells = if prefill { CHUNK } else { 1 }.min(TOKENS - position);
            let phase = if prefill { Phase::Prefill } else { Phase::Decode };
            cache.begin(&[Append { slot, cells }], phase, &mut step).unwrap();
            rows.clear();
            rows.extend((position..position + cells).map(|p| Row {
                token: TokenId(p * 7 % vocab),
                position: p,
                view: 0,
            }));
            let grows = step.after.iter().any(|t| matches!(t, Transfer::Grow { .. }));
            let region = Region::new(ALLOCATOR);
            executor.submit(&Submission { phase, rows: &rows, cache: &step }).unwrap();
            let logits = executor.logits(&[cells - 1]).unwrap();
            let change = region.change();
            assert!(logits[0].is_finite());
            if !grows {
                counted += 1;
                let allocations = change.allocations + change.reallocations;
                // The second worker's first wait on its condition variable may allocate, once.
                assert!(allocations == 0 || counted == 1, "{name}: {allocations} allocations at position {position}");
            }
            cache.commit().unwrap();
            position += cells;
        }
        assert!(counted > 900 && executor.traffic().tail_read_bytes > 0, "{name}");
    }
}

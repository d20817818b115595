//! What every device may rely on in a submission: the rest is refused before anything is done.

use tailrace_device::kv::{Append, KvCache, KvConfig, StepPlan};
use tailrace_device::null::NullLoader;
use tailrace_device::plan::{Limits, Plan};
use tailrace_device::{DeviceError, Phase, Row, Submission};
use tailrace_models::shapes;
use tailrace_types::{BLOCK_CELLS, SlotId, TokenId};

const CHUNK: u32 = 64;

/// A step that appends `cells` cells to each of `sequences` new sequences, and the rows that belong to it.
fn step(phase: Phase, sequences: u32, cells: u32) -> (Plan, StepPlan, Vec<Row>) {
    let shape = shapes::read("smollm2-135m:q8_0").expect("a known shape");
    let limits = Limits { sequences: 2, chunk: CHUNK, ..Limits::new(4 * BLOCK_CELLS) };
    let plan = Plan::new(&shape.spec, &limits, &NullLoader::default()).expect("it fits");
    let mut cache = KvCache::new(KvConfig::of(&plan)).expect("sizes of a plan");
    let mut step = StepPlan::with_capacity(cache.config());
    let appends: Vec<Append> = (0..sequences).map(|slot| Append { slot: SlotId(slot), cells }).collect();
    appends.iter().for_each(|append| cache.create(append.slot).expect("a free slot"));
    cache.begin(&appends, phase, &mut step).expect("there is room");
    let row = |view| (0..cells).map(move |position| Row { token: TokenId(1), position, view });
    (plan, step, (0..sequences).flat_map(row).collect())
}

fn check(plan: &Plan, phase: Phase, rows: &[Row], cache: &StepPlan) -> Result<(), DeviceError> {
    Submission { phase, rows, cache }.check(plan)
}

#[test]
fn rows_of_another_kind_than_the_steps_are_refused() {
    for (phase, sequences, cells) in [(Phase::Prefill, 1, CHUNK), (Phase::Decode, 2, 1)] {
        let (plan, step, rows) = step(phase, sequences, cells);
        assert_eq!(check(&plan, phase, &rows, &step), Ok(()));
        let changes: [fn(&mut Vec<Row>); 6] = [
            |rows| rows[0].token = TokenId(u32::MAX),
            |rows| rows[1].position += 1,
            |rows| rows[1].view += 1,
            |rows| rows.swap(0, 1),
            |rows| rows.truncate(1),
            |rows| rows.push(rows[0]),
        ];
        for (i, change) in changes.iter().enumerate() {
            let mut rows = rows.clone();
            change(&mut rows);
            assert!(matches!(check(&plan, phase, &rows, &step), Err(DeviceError::Misuse(_))), "{phase:?} {i}");
        }
    }
}

#[test]
fn a_decode_of_several_cells_and_a_prefill_of_several_sequences_are_refused() {
    for (made, phase, sequences, cells) in
        [(Phase::Prefill, Phase::Decode, 1, 2), (Phase::Decode, Phase::Prefill, 2, 1)]
    {
        let (plan, step, rows) = step(made, sequences, cells);
        assert!(matches!(check(&plan, phase, &rows, &step), Err(DeviceError::Misuse(_))), "{phase:?}");
    }
}

#[test]
fn segments_that_leave_out_a_block_are_refused() {
    let (plan, mut step, rows) = step(Phase::Prefill, 1, CHUNK);
    step.segments[0].first_block += 1;
    assert!(matches!(check(&plan, Phase::Prefill, &rows, &step), Err(DeviceError::Misuse(_))));
}

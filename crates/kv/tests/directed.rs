//! The rules one by one, with the transfers that are expected.

mod sim;

use sim::{Copies, End, Sim, config};
use tailrace_kv::{Append, Home, KvCache, KvConfig, KvError, Phase, Place, Sliding, StepPlan, Transfer};
use tailrace_types::{ExtentId, FrameId, HostBlockId, SlotId};

const PREFILL: Phase = Phase::Prefill;
const DECODE: Phase = Phase::Decode;

fn sim(config: KvConfig) -> Sim {
    Sim::new(config, Copies::Lazy)
}

/// A step that must succeed.
fn step(sim: &mut Sim, appends: &[(u32, u32)], phase: Phase) {
    sim.step(appends, phase, End::Commit).unwrap().unwrap();
}

/// A sequence of `cells` cells, prefilled in chunks of 256.
fn grown(sim: &mut Sim, slot: u32, cells: u32) {
    sim.create(slot).unwrap();
    for start in (0..cells).step_by(256) {
        step(sim, &[(slot, (cells - start).min(256))], PREFILL);
    }
}

fn residency(sim: &Sim, slot: u32) -> (u32, u32) {
    sim.kv.tail_and_window(SlotId(slot)).unwrap()
}

fn fresh(frame: u32) -> Transfer {
    Transfer::Fresh { frame: FrameId(frame) }
}

fn drop_of(frame: u32) -> Transfer {
    Transfer::Drop { frame: FrameId(frame) }
}

fn clean(from: u32, to: u32) -> Transfer {
    Transfer::Clean { from: FrameId(from), to: HostBlockId(to) }
}

fn fetch(from: u32, to: u32) -> Transfer {
    Transfer::Fetch { from: HostBlockId(from), to: FrameId(to) }
}

fn copy(from: u32, to: u32) -> Transfer {
    Transfer::Copy { from: FrameId(from), to: FrameId(to) }
}

#[test]
fn a_chunk_lands_while_the_one_before_it_is_clean() {
    let mut s = sim(config(1, 512, 0));
    s.create(0).unwrap();
    step(&mut s, &[(0, 512)], PREFILL);
    assert_eq!(s.plan.before, [fresh(0), fresh(1)]);
    // Three landing frames, one is free: two blocks are copied after the compute that fills them, into one extent.
    let grow = Transfer::Grow { extent: ExtentId(0) };
    assert_eq!(s.plan.after, [grow, clean(0, 0), clean(1, 1)]);

    step(&mut s, &[(0, 512)], PREFILL);
    assert_eq!(s.plan.before, [fresh(2), drop_of(0), fresh(0)]);
    assert_eq!(s.plan.after, [clean(2, 2), clean(0, 3)]);
    assert_eq!(s.plan.table[..2], [Home::Host(HostBlockId(0)), Home::Frame(FrameId(1))]);
    assert_eq!(s.plan.tail_reads, [HostBlockId(0)]);
    let places: Vec<_> = s.plan.segments.iter().map(|s| (s.place, s.first_block, s.blocks.clone())).collect();
    assert_eq!(places, [(Place::Tail, 0, 0..1), (Place::Window, 1, 1..4)]);
    assert_eq!(s.plan.sequences[0].writes, 2..4);
}

#[test]
fn a_window_keeps_the_youngest_blocks() {
    let mut s = sim(config(1, 256, 3));
    grown(&mut s, 0, 256 * 9 + 10);
    // Two landing frames, three more: five frames in use, all others in the tail.
    assert_eq!(residency(&s, 0), (5, 5));
    step(&mut s, &[(0, 1)], DECODE);
    assert!(s.plan.before.is_empty() && s.plan.after.is_empty());
    assert_eq!(s.plan.tail_reads, (0..5).map(HostBlockId).collect::<Vec<_>>());
    assert_eq!(s.kv.counters().fetched, 0);
}

#[test]
fn link_blocks_are_counted_exactly() {
    let mut s = sim(config(1, 256, 1));
    grown(&mut s, 0, 256 * 6);
    let before = s.kv.counters().tail_reads;
    let mut expected = 0;
    for _ in 0..600 {
        step(&mut s, &[(0, 1)], DECODE);
        expected += u64::from(residency(&s, 0).0);
    }
    assert_eq!(s.kv.counters().tail_reads - before, expected);
    assert!(expected >= 600 * 3);
}

#[test]
fn a_shared_prefix_is_stored_and_streamed_once() {
    let mut s = sim(config(4, 256, 0));
    grown(&mut s, 0, 256 * 8);
    let stored = s.kv.host_blocks();
    for dst in 1..4 {
        s.fork(0, dst, 256 * 8).unwrap().unwrap();
    }
    step(&mut s, &[(0, 1), (1, 1), (2, 1), (3, 1)], DECODE);
    assert!(s.kv.host_blocks() <= stored + 4);
    let tail = residency(&s, 0).0;
    assert!(tail >= 6);
    assert_eq!(s.plan.tail_reads.len() as u32, tail);
    let listed = s.plan.table.iter().filter(|h| matches!(h, Home::Host(_))).count();
    assert_eq!(listed as u32, 4 * tail);
    s.audit_and_release().unwrap();
}

#[test]
fn a_shared_partial_block_is_copied_for_all_but_the_last() {
    let mut s = sim(config(3, 256, 0));
    grown(&mut s, 0, 100);
    s.fork(0, 1, 100).unwrap().unwrap();
    s.fork(0, 2, 40).unwrap().unwrap();
    step(&mut s, &[(0, 1), (2, 1), (1, 1)], DECODE);
    // The first two leave, the third keeps the block.
    assert_eq!(s.plan.before, [copy(0, 1), copy(0, 2)]);
    step(&mut s, &[(2, 1), (1, 1), (0, 1)], DECODE);
    assert!(s.plan.before.is_empty());
    s.audit_and_release().unwrap();
}

#[test]
fn a_cut_in_the_tail_is_fetched_before_the_append() {
    let mut s = sim(config(1, 256, 0));
    grown(&mut s, 0, 256 * 6);
    assert!(residency(&s, 0).0 >= 4);
    let stored = s.kv.host_blocks();
    s.rollback(0, 256 * 2 + 7).unwrap().unwrap();
    assert_eq!(residency(&s, 0), (3, 0));
    assert_eq!(s.kv.host_blocks(), 3, "{stored} before");
    step(&mut s, &[(0, 1)], PREFILL);
    assert_eq!(s.plan.before.last(), Some(&fetch(2, 0)));
    assert_eq!(s.kv.host_blocks(), 2);
    assert_eq!(residency(&s, 0), (2, 1));
}

#[test]
fn a_cut_in_the_window_becomes_dirty_on_append() {
    let mut s = sim(config(1, 256, 0));
    grown(&mut s, 0, 256 * 2);
    assert_eq!(s.kv.host_blocks(), 2);
    s.rollback(0, 300).unwrap().unwrap();
    step(&mut s, &[(0, 1)], DECODE);
    assert!(s.plan.before.is_empty());
    assert_eq!(s.kv.host_blocks(), 1);
    // Filled again, it is copied again, to its old place.
    step(&mut s, &[(0, 211)], PREFILL);
    step(&mut s, &[(0, 256)], PREFILL);
    assert!(s.plan.after.contains(&clean(1, 1)) || s.kv.host_blocks() >= 2);
    s.audit_and_release().unwrap();
}

fn with_overlay(mut config: KvConfig, frames: u32) -> KvConfig {
    config.overlay_frames = frames;
    config
}

#[test]
fn decode_fills_the_overlay_and_prefill_drops_it() {
    let mut s = sim(with_overlay(config(1, 256, 1), 3));
    grown(&mut s, 0, 256 * 9);
    let (tail, _) = residency(&s, 0);
    let copied = s.kv.counters().cleaned;
    step(&mut s, &[(0, 1)], DECODE);
    let fetched: Vec<_> = s.plan.before.iter().filter(|t| matches!(t, Transfer::Fetch { .. })).copied().collect();
    // The append evicted one more; the three youngest come back, youngest first.
    assert_eq!(fetched, [fetch(tail, 3), fetch(tail - 1, 4), fetch(tail - 2, 5)]);
    assert_eq!(s.plan.tail_reads.len() as u32, tail - 2);
    assert_eq!(s.kv.counters().overlay_frames_max, 3);
    step(&mut s, &[(0, 1)], DECODE);
    assert!(s.plan.before.is_empty());
    step(&mut s, &[(0, 1)], PREFILL);
    assert_eq!(s.plan.before, [drop_of(5), drop_of(4), drop_of(3)]);
    assert_eq!(s.plan.tail_reads.len() as u32, tail + 1);
    assert!(s.kv.counters().cleaned - copied <= 1);
}

#[test]
fn an_eviction_below_an_overlay_swaps_and_leaves_no_hole() {
    let mut s = sim(with_overlay(config(1, 256, 1), 2));
    grown(&mut s, 0, 256 * 8 + 255);
    step(&mut s, &[(0, 1)], DECODE);
    let fetched = s.kv.counters().fetched;
    let (tail, window) = residency(&s, 0);
    step(&mut s, &[(0, 1)], DECODE);
    let [
        Transfer::Drop { frame: overlay },
        Transfer::Copy { from, to },
        Transfer::Drop { frame },
        Transfer::Fresh { .. },
    ] = s.plan.before[..]
    else {
        panic!("{:?}", s.plan.before);
    };
    assert_eq!((overlay, frame), (to, from));
    assert_eq!(residency(&s, 0), (tail + 1, window));
    assert_eq!(s.kv.counters().fetched, fetched);
}

#[test]
fn frames_of_a_finished_sequence_serve_the_others() {
    let mut s = sim(config(2, 256, 6));
    grown(&mut s, 0, 256 * 10);
    grown(&mut s, 1, 256 * 10);
    let (tail, _) = residency(&s, 0);
    assert!(tail > 5);
    s.release(1).unwrap();
    step(&mut s, &[(0, 1)], DECODE);
    assert_eq!(residency(&s, 0), (2, 9));
    // They are clean: a prefill takes them without a copy to the host.
    let cleaned = s.kv.counters().cleaned;
    grown(&mut s, 1, 256);
    assert_eq!(s.kv.counters().cleaned, cleaned);
}

#[test]
fn idle_sequences_lend_their_window() {
    let mut s = sim(config(2, 256, 6));
    grown(&mut s, 0, 256 * 10);
    grown(&mut s, 1, 256 * 10);
    step(&mut s, &[(0, 1), (1, 1)], DECODE);
    let before = (residency(&s, 0), residency(&s, 1));
    for _ in 0..16 {
        step(&mut s, &[(1, 1)], DECODE);
    }
    assert_eq!((residency(&s, 0), residency(&s, 1)), before, "not yet idle");
    step(&mut s, &[(1, 1)], DECODE);
    // What is dirty or partial stays.
    let lent = residency(&s, 0).0 - before.0.0;
    assert!(lent > 0);
    assert_eq!(residency(&s, 1).0, before.1.0 - lent);
    s.audit_and_release().unwrap();
}

#[test]
fn an_idle_sequence_keeps_its_window_where_lending_would_not_help() {
    // Slot 1 continues the tail of slot 0: to lend a frame for it, slot 0 would lose the next block and get a hole.
    let mut s = sim(config(2, 256, 4));
    grown(&mut s, 0, 256 * 8);
    s.fork(0, 1, 256 * 3).unwrap().unwrap();
    step(&mut s, &[(0, 1), (1, 1)], DECODE);
    let before = (residency(&s, 0), residency(&s, 1));
    assert_eq!(before, ((3, 6), (3, 1)));
    for _ in 0..20 {
        step(&mut s, &[(1, 1)], DECODE);
    }
    assert_eq!((residency(&s, 0), residency(&s, 1)), before);

    // Slot 1 shares the window of slot 0, which is idle; slot 2 would gain what slot 1 would lose.
    let mut s = sim(config(3, 256, 6));
    grown(&mut s, 2, 256 * 10);
    grown(&mut s, 0, 256 * 7);
    s.fork(0, 1, 256 * 7).unwrap().unwrap();
    step(&mut s, &[(0, 1), (1, 1), (2, 1)], DECODE);
    let before = [0, 1, 2].map(|slot| residency(&s, slot));
    assert!(before[1].1 > 1 && before[2].0 > before[1].0, "{before:?}");
    for _ in 0..20 {
        step(&mut s, &[(1, 1), (2, 1)], DECODE);
    }
    assert_eq!([0, 1, 2].map(|slot| residency(&s, slot)), before);
}

#[test]
fn the_longest_window_gives_way() {
    let mut s = sim(config(2, 256, 6));
    grown(&mut s, 0, 256 * 7);
    assert_eq!(residency(&s, 0), (0, 7));
    grown(&mut s, 1, 256 * 4);
    assert_eq!((residency(&s, 0), residency(&s, 1)), ((2, 5), (0, 4)));
}

#[test]
fn a_full_host_ends_one_request_and_the_others_go_on() {
    let mut c = config(2, 256, 0);
    (c.extent_blocks, c.extents_max) = (2, 2);
    let mut s = sim(c);
    grown(&mut s, 0, 256 * 2);
    s.create(1).unwrap();
    let refused = loop {
        let before = (s.kv.cells(SlotId(1)), s.kv.host_blocks(), s.kv.free_core_frames());
        match s.step(&[(1, 256)], PREFILL, End::Commit).unwrap() {
            Ok(()) => {}
            Err(e) => {
                assert_eq!(before, (s.kv.cells(SlotId(1)), s.kv.host_blocks(), s.kv.free_core_frames()));
                break e;
            }
        }
    };
    assert_eq!(refused, KvError::HostFull { slot: SlotId(1), needed: 3, limit: 2 });
    assert!(refused.to_string().contains("limit is 2"));
    // Everything that fits is used: 4 host blocks and 3 frames.
    assert_eq!(s.len(0).unwrap() + s.len(1).unwrap(), 256 * 7);
    s.release(1).unwrap();
    step(&mut s, &[(0, 1)], DECODE);
    step(&mut s, &[(0, 255)], PREFILL);
    step(&mut s, &[(0, 256)], PREFILL);
    s.audit_and_release().unwrap();
}

#[test]
fn room_on_the_host_alone_asks_for_one_empty_step() {
    let mut c = config(3, 256, 0);
    (c.extent_blocks, c.extents_max) = (1, 2);
    let mut s = sim(c);
    // The host holds two blocks of slot 0 and the frames four dirty ones of slots 1 and 2.
    grown(&mut s, 0, 256 * 2);
    grown(&mut s, 1, 256 * 2);
    grown(&mut s, 2, 256 * 2);
    assert!(matches!(s.step(&[(2, 1)], DECODE, End::Commit).unwrap(), Err(KvError::HostFull { .. })));
    s.release(0).unwrap();
    assert_eq!(s.step(&[(2, 1)], DECODE, End::Commit).unwrap(), Err(KvError::NotClean));
    step(&mut s, &[], DECODE);
    step(&mut s, &[(2, 1)], DECODE);
    s.audit_and_release().unwrap();
}

#[test]
fn refused_memory_becomes_the_limit() {
    let mut s = sim(config(1, 256, 0));
    s.create(0).unwrap();
    s.step(&[(0, 256)], PREFILL, End::Refused).unwrap().unwrap();
    assert_eq!(s.kv.extents(), (0, 0));
    step(&mut s, &[(0, 256)], PREFILL);
    let refused = s.step(&[(0, 256)], PREFILL, End::Commit).unwrap();
    assert_eq!(refused, Err(KvError::HostFull { slot: SlotId(0), needed: 1, limit: 0 }));
}

#[test]
fn an_aborted_step_leaves_the_cells() {
    let mut s = sim(config(2, 512, 0));
    grown(&mut s, 0, 300);
    s.fork(0, 1, 280).unwrap().unwrap();
    let (free, stored, extents) = (s.kv.free_core_frames(), s.kv.host_blocks(), s.kv.extents());
    s.step(&[(0, 500)], PREFILL, End::Abort).unwrap().unwrap();
    // The first block has left its frame for a new one, the copy of the shared block stays, copies to the host do not.
    assert_eq!((residency(&s, 0), residency(&s, 1)), ((1, 1), (1, 1)));
    assert_eq!((s.kv.free_core_frames(), s.kv.host_blocks(), s.kv.extents()), (free, stored, extents));
    step(&mut s, &[(0, 500), (1, 1)], DECODE);
    s.audit_and_release().unwrap();
}

#[test]
fn a_block_that_an_aborted_step_filled_is_partial_again() {
    let mut s = sim(config(1, 256, 0));
    grown(&mut s, 0, 200);
    s.step(&[(0, 56)], PREFILL, End::Abort).unwrap().unwrap();
    step(&mut s, &[], PREFILL);
    assert!(s.plan.after.is_empty());
}

#[test]
fn an_empty_extent_is_used_again_before_another_grows() {
    let mut s = sim(config(1, 256, 0));
    grown(&mut s, 0, 256 * 6);
    assert_eq!(s.kv.extents().0, 2);
    s.release(0).unwrap();
    s.create(0).unwrap();
    step(&mut s, &[(0, 256)], PREFILL);
    let shrink = Transfer::Shrink { extent: ExtentId(1) };
    assert_eq!(s.plan.after, [clean(0, 0), shrink]);
    assert_eq!(s.kv.extents().0, 1);
}

#[test]
fn runs_of_a_sequence_are_runs_of_host_memory() {
    let mut s = sim(config(2, 256, 0));
    s.create(0).unwrap();
    s.create(1).unwrap();
    for _ in 0..10 {
        step(&mut s, &[(0, 256)], PREFILL);
        step(&mut s, &[(1, 256)], PREFILL);
    }
    step(&mut s, &[(0, 1), (1, 1)], DECODE);
    for sequence in &s.plan.sequences {
        let tail = &s.plan.segments_of(sequence)[0];
        for (block, home) in s.plan.homes(tail).iter().enumerate() {
            let Home::Host(host) = home else { panic!("{home:?} in a tail") };
            assert_eq!(host.0 as usize % 4, block % 4);
        }
    }
    assert_eq!(s.kv.extents().0, 6);
}

fn sliding(mut config: KvConfig, window: u32, ring_blocks: u32) -> KvConfig {
    config.sliding = Some(Sliding { window, ring_blocks });
    config.rollback_max = 100;
    config
}

#[test]
fn a_rollback_beyond_the_ring_needs_a_prefill() {
    // 512 cells in the ring, 200 are seen.
    let mut s = sim(sliding(config(2, 256, 0), 200, 2));
    grown(&mut s, 0, 512);
    // Not wrapped: any length is possible.
    s.rollback(0, 1).unwrap().unwrap();
    step(&mut s, &[(0, 255)], PREFILL);
    step(&mut s, &[(0, 256)], PREFILL);
    step(&mut s, &[(0, 88)], PREFILL);
    // 600 written: positions 88 to 599 are there, so the first row that sees 200 cells is 287.
    let refused = KvError::NeedsPrefill { slot: SlotId(0), cells: 286, cells_min: 287 };
    assert_eq!(s.rollback(0, 286).unwrap(), Err(refused));
    assert_eq!(s.fork(0, 1, 286).unwrap(), Err(refused));
    s.fork(0, 1, 287).unwrap().unwrap();
    s.rollback(0, 287).unwrap().unwrap();
    step(&mut s, &[(0, 256), (1, 1)], DECODE);
    assert_eq!(s.plan.before[0], Transfer::CopyRing { from: SlotId(0), to: SlotId(1) });
    // The copy has lost what the original had lost.
    let refused = KvError::NeedsPrefill { slot: SlotId(1), cells: 286, cells_min: 287 };
    assert_eq!(s.rollback(1, 286).unwrap(), Err(refused));
    s.rollback(0, 0).unwrap().unwrap();
    step(&mut s, &[(0, 256)], PREFILL);
    let too_long = s.step(&[(0, 314)], PREFILL, End::Commit).unwrap();
    assert_eq!(too_long, Err(KvError::ChunkTooLong { slot: SlotId(0), cells: 314, limit: 313 }));
}

#[test]
fn ring_copies_of_chained_forks_run_in_order() {
    let mut s = sim(sliding(config(3, 256, 4), 64, 2));
    grown(&mut s, 0, 300);
    s.fork(0, 1, 290).unwrap().unwrap();
    s.fork(1, 2, 280).unwrap().unwrap();
    s.release(0).unwrap();
    s.fork(2, 0, 270).unwrap().unwrap();
    step(&mut s, &[(0, 1), (1, 1), (2, 1)], DECODE);
    s.audit_and_release().unwrap();
}

#[test]
fn wrong_arguments_are_errors() {
    let c = config(2, 256, 0);
    let mut kv = KvCache::new(c.clone()).unwrap();
    let mut plan = StepPlan::with_capacity(&c);
    let (a, b, far) = (SlotId(0), SlotId(1), SlotId(u32::MAX));
    let one = |slot| Append { slot, cells: 1 };
    assert_eq!(kv.create(far), Err(KvError::SlotBusy(far)));
    assert_eq!(kv.release(far), Err(KvError::UnknownSlot(far)));
    assert_eq!(kv.rollback(a, 0), Err(KvError::UnknownSlot(a)));
    assert_eq!(kv.fork(a, b, 0), Err(KvError::UnknownSlot(a)));
    kv.create(a).unwrap();
    assert_eq!(kv.create(a), Err(KvError::SlotBusy(a)));
    assert_eq!(kv.fork(a, a, 0), Err(KvError::SlotBusy(a)));
    assert_eq!(kv.rollback(a, 1), Err(KvError::TooFewCells { slot: a, has: 0, asked: 1 }));
    let mut begin = |kv: &mut KvCache, appends: &[Append]| kv.begin(appends, DECODE, &mut plan);
    assert_eq!(begin(&mut kv, &[one(b)]), Err(KvError::UnknownSlot(b)));
    assert_eq!(begin(&mut kv, &[one(a), one(a)]), Err(KvError::DuplicateSlot(a)));
    assert_eq!(begin(&mut kv, &[Append { slot: a, cells: 0 }]), Err(KvError::EmptyAppend(a)));
    let huge = Append { slot: a, cells: u32::MAX };
    let full = KvError::ContextFull { slot: a, needed: u64::from(u32::MAX), limit: 4096 };
    assert_eq!(begin(&mut kv, &[huge]), Err(full));
    let long = Append { slot: a, cells: 1025 };
    assert_eq!(begin(&mut kv, &[long]), Err(KvError::NoFrames { slot: a, needed: 5, available: 3 }));
    assert_eq!(kv.commit(), Err(KvError::NoStep));
    begin(&mut kv, &[one(a)]).unwrap();
    assert_eq!(begin(&mut kv, &[one(a)]), Err(KvError::StepOpen));
    assert_eq!(kv.release(a), Err(KvError::StepOpen));
    assert_eq!(kv.check(), Err("no step is open"));
    kv.commit().unwrap();
    assert_eq!(kv.commit_uncleaned(), Err(KvError::NoStep));
    assert_eq!(kv.abort(), Err(KvError::NoStep));
    kv.check().unwrap();
}

#[test]
fn sizes_that_cannot_work_are_refused() {
    let good = config(2, 256, 0);
    let broken: [fn(&mut KvConfig); 9] = [
        |c| c.slots = 0,
        |c| c.context_cells = 0,
        |c| c.extent_blocks = 0,
        |c| c.landing_frames = 2,
        |c| c.core_frames = 2,
        |c| c.overlay_frames = u32::MAX,
        |c| c.slots = u32::MAX - 1,
        |c| c.extents_max = u32::MAX,
        |c| c.sliding = Some(Sliding { window: 257, ring_blocks: 2 }),
    ];
    for breaks in broken {
        let mut c = good.clone();
        breaks(&mut c);
        assert!(matches!(KvCache::new(c.clone()), Err(KvError::Config { .. })), "{c:?}");
    }
    assert!(KvCache::new(good).is_ok());
}

/// What a bug does to a plan.
type Tamper = (&'static str, fn(&mut StepPlan));

/// The harness must notice what a bug would do to a plan.
#[test]
fn the_simulated_device_catches_wrong_plans() {
    let tampers: [Tamper; 7] = [
        ("swapped tail blocks", |p| p.table.swap(0, 1)),
        ("a tail block for another", |p| p.table[1] = p.table[0]),
        ("swapped frames", |p| {
            let last = p.table.len() - 1;
            p.table.swap(last - 1, last);
        }),
        ("a segment that starts late", |p| p.segments[0].first_block += 1),
        ("a segment that ends early", |p| p.segments[1].blocks.end -= 1),
        ("a missing segment", |p| p.sequences[0].segments.start += 1),
        ("a frame that was not zeroed", |p| p.before.retain(|t| !matches!(t, Transfer::Fresh { .. }))),
    ];
    for (name, tamper) in tampers {
        let mut s = sim(config(1, 256, 1));
        grown(&mut s, 0, 256 * 6);
        s.tamper = Some(tamper);
        let result = s.step(&[(0, 1)], DECODE, End::Commit);
        assert!(result.is_err(), "{name} went unnoticed");
    }
    // Copies that are missing or go to the wrong place are noticed when the block is read.
    let tampers: [Tamper; 2] = [
        ("a copy that was not made", |p| p.after.retain(|t| !matches!(t, Transfer::Clean { .. }))),
        ("copies to each other's place", |p| {
            for t in &mut p.after {
                if let Transfer::Clean { to, .. } = t {
                    to.0 ^= 1;
                }
            }
        }),
    ];
    for (name, tamper) in tampers {
        let mut s = sim(config(1, 256, 0));
        s.create(0).unwrap();
        s.tamper = Some(tamper);
        let result = (0..4).try_for_each(|_| s.step(&[(0, 256)], PREFILL, End::Commit).map(drop));
        assert!(result.is_err(), "{name} went unnoticed");
    }
}

//! What a cap on device memory promises: the rows stay under it, the window is the largest that does, and more of
//! one thing never gives more of another.

use crate::common::{Case, Fake, Shape, cases, window};
use proptest::prelude::*;
use tailrace_plan::spec::Reach;
use tailrace_plan::{CachePlace, CachePlan, Limits, PAGE, Plan, PlanError, Room, RowKind};
use tailrace_types::BLOCK_CELLS;

/// The least cap that `case` starts under, as the refusal of a cap of one byte says.
fn needed(case: &Case) -> u64 {
    match case.under(1) {
        Err(PlanError::DoesNotFit { needed, .. }) => needed,
        other => panic!("one byte cannot be enough: {other:?}"),
    }
}

/// The least cap in `(low, high]` whose window is larger than the one under `low`.
fn next_threshold(case: &Case, mut low: u64, mut high: u64) -> u64 {
    let at = |cap| window(&case.under(cap).expect("above the least cap"));
    let before = at(low);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if at(middle) > before { high = middle } else { low = middle }
    }
    high
}

/// Slots of a ring beside `frames` frames, where it may take `most` of them.
fn ring(case: &Case, plan: &Plan, frames: u32, most: u64) -> u32 {
    let (Fake { ring_slots, ring_slots_max, .. }, cache) = (&case.device, &plan.cache);
    // A layer's tail, where layers without one lie between several that have one.
    let grows = cache.sliding.is_some() && cache.frame_bytes > cache.slot_bytes;
    let blocks = cache.sequence_blocks * plan.limits.sequences;
    let tail = if grows { blocks - cache.landing_frames - frames } else { 0 };
    most.min((*ring_slots_max).min(tail).into()).max((*ring_slots).into()) as u32
}

/// The same, where window and ring are fitted: the ring takes a quarter of the window's bytes at most.
fn fitted_ring(case: &Case, plan: &Plan, frames: u32) -> u32 {
    ring(case, plan, frames, u64::from(frames) * plan.cache.frame_bytes / 4 / plan.cache.slot_bytes)
}

/// Everything that holds for every plan.
fn check_plan(case: &Case, plan: &Plan) {
    let (limits, cache, memory) = (&plan.limits, &plan.cache, &plan.memory);
    if let Some(cap) = limits.device_bytes_max {
        assert!(memory.device_bytes() <= cap);
    }
    check_rows(case, plan);
    let blocks = limits.sequence_cells().div_ceil(BLOCK_CELLS) as u64 * limits.sequences as u64;
    let frames = cache.core_frames() as u64 + cache.overlay_frames as u64;
    assert_eq!(
        plan.window_cells() == limits.context_cells,
        !cache.spills,
        "all cells are in the window or some can leave it"
    );
    assert_eq!(plan.tail_cells_max(), limits.context_cells - plan.window_cells());
    assert!(plan.window_cells() <= plan.window_cells_decode() && plan.window_cells_decode() <= limits.context_cells);
    if cache.spills {
        assert!((cache.core_frames() as u64) < blocks && frames <= blocks);
        assert!(cache.window_frames >= 1);
        assert_eq!(cache.landing_frames, limits.chunk.div_ceil(BLOCK_CELLS) + limits.sequences);
        assert!(cache.ring_slots > 0);
        match (limits.window_cells, limits.device_bytes_max) {
            (None, _) => assert_eq!(cache.ring_slots, fitted_ring(case, plan, cache.window_frames)),
            (Some(_), None) => assert_eq!(cache.ring_slots, ring(case, plan, cache.window_frames, u64::MAX)),
            (Some(_), Some(_)) => assert!(cache.ring_slots <= ring(case, plan, cache.window_frames, u64::MAX)),
        }
    } else {
        let global = cache.frame_bytes > 0;
        assert_eq!(frames, if global { blocks } else { 0 });
        assert_eq!((cache.landing_frames, cache.overlay_frames, cache.ring_slots), (0, 0, 0));
    }
    if cache.overlay_frames > 0 {
        assert!(cache.overlay_offset >= plan.decode.bytes, "decode buffers and overlay frames share the workspace");
        let end = cache.overlay_offset + cache.overlay_frames as u64 * cache.frame_bytes;
        assert!(end <= memory.bytes(RowKind::Workspace));
    }
    let extent_bytes = cache.extent_blocks as u64 * cache.frame_bytes;
    assert!(cache.extent_blocks.is_power_of_two());
    assert!(cache.extents_max as u64 * extent_bytes <= limits.host_bytes_max, "extents exceed the host limit");
}

/// Each row is the product that limits and model say.
fn check_rows(case: &Case, plan: &Plan) {
    let (limits, cache, memory) = (&plan.limits, &plan.cache, &plan.memory);
    let shape = &case.shape;
    let cell = shape.head_elements as u64 * (limits.k_type.row_bytes(1) + limits.v_type.row_bytes(1));
    let block = shape.kv_heads as u64 * cell * BLOCK_CELLS as u64;
    let globals = cache.layers.iter().filter(|l| matches!(l.place, CachePlace::Frames { .. })).count() as u64;
    let sliding = cache.layers.len() as u64 - globals;
    assert!(cache.layers.iter().all(|layer| layer.block_bytes == block));
    assert_eq!((cache.frame_bytes, cache.slot_bytes), (globals * block, if globals > 0 { block } else { 0 }));
    let page = |bytes: u64| bytes.div_ceil(PAGE) * PAGE;
    let ring_blocks = cache.sliding.map_or(0, |s| {
        assert_eq!(s.block_bytes, sliding * block);
        let cells = s.window_cells + limits.chunk + limits.rollback_cells;
        assert_eq!(s.ring_blocks, cells.div_ceil(BLOCK_CELLS).min(cache.sequence_blocks));
        s.ring_blocks as u64 * limits.sequences as u64
    });
    let weights = plan.weights.last().map_or(0, |w| (w.offset + w.bytes).next_multiple_of(64));
    let expected = [
        (RowKind::Weights, page(weights)),
        (RowKind::Window, page(cache.window_frames as u64 * globals * block)),
        (RowKind::Landing, page(cache.landing_frames as u64 * globals * block)),
        (RowKind::Sliding, page(ring_blocks * sliding * block)),
        (RowKind::Ring, page(cache.ring_slots as u64 * cache.slot_bytes)),
        (RowKind::Workspace, page(plan.prefill.bytes.max(plan.decode.bytes))),
        (RowKind::Head, page(plan.head.bytes)),
    ];
    for (kind, bytes) in expected {
        assert_eq!(memory.bytes(kind), bytes, "{}", kind.name());
    }
    assert_eq!(memory.device_bytes(), expected.iter().map(|(_, bytes)| bytes).sum::<u64>());
    assert!(memory.rows.iter().all(|row| (row.kind.room() == Room::Host) == (row.kind == RowKind::Tail)));
    // The tail of each sequence takes whole extents.
    let extents = cache.sequence_blocks.div_ceil(cache.extent_blocks) as u64 * limits.sequences as u64;
    let tail = extents * cache.extent_blocks as u64 * globals * block;
    assert_eq!(memory.bytes(RowKind::Tail), if cache.spills { page(tail) } else { 0 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_least_cap_is_exact(case in cases()) {
        let least = needed(&case);
        let plan = case.under(least).expect("the least cap starts");
        prop_assert_eq!(plan.memory.device_bytes(), least);
        check_plan(&case, &plan);
        prop_assert!(case.under(least - 1).is_err());
        prop_assert!(case.under(u64::MAX).is_ok());
    }

    #[test]
    fn the_window_grows_with_the_cap_at_byte_steps(case in cases(), start in 0u64..1000) {
        let (least, resident) = (needed(&case), case.resident_bytes());
        prop_assert!(least <= resident);
        // A few thresholds in a row, from anywhere up to the last one.
        let mut at = least + (resident - least) * start / 1000;
        for _ in 0..4 {
            if window(&case.under(at).unwrap()) == u64::MAX {
                break;
            }
            let threshold = next_threshold(&case, at, resident);
            let [below, exact, above] = [threshold - 1, threshold, threshold + 1].map(|cap| case.under(cap).unwrap());
            prop_assert!(window(&below) < window(&exact) && window(&exact) == window(&above));
            prop_assert!(below.window_cells_decode() <= exact.window_cells_decode());
            // The cap that a window appears at is the bytes that it takes.
            prop_assert_eq!(exact.memory.device_bytes(), threshold);
            for plan in [&below, &exact, &above] {
                check_plan(&case, plan);
            }
            at = threshold;
        }
        prop_assert_eq!(window(&case.under(resident).unwrap()), u64::MAX);
    }

    #[test]
    fn the_window_is_the_largest_that_fits(case in cases(), share in 0u64..1000) {
        let (least, resident) = (needed(&case), case.resident_bytes());
        let cap = least + (resident - least) * share / 1000;
        let plan = case.under(cap).unwrap();
        check_plan(&case, &plan);
        if plan.cache.spills {
            let asked = |frames| Limits { window_cells: Some(frames * BLOCK_CELLS), ..case.limits.clone() };
            let same = case.plan(&asked(plan.cache.window_frames)).unwrap();
            prop_assert_eq!(&CachePlan { ring_slots: plan.cache.ring_slots, ..same.cache }, &plan.cache);
            let frames = plan.cache.window_frames + 1;
            let more = case.plan(&asked(frames)).unwrap();
            let ring = if more.cache.spills { fitted_ring(&case, &more, frames) } else { 0 };
            let without = more.memory.device_bytes() - more.memory.bytes(RowKind::Ring);
            prop_assert!(without + u64::from(ring) * plan.cache.slot_bytes > cap && resident > cap);
            check_plan(&case, &more);
        }
    }

    #[test]
    fn the_host_limit_moves_no_window_and_is_kept(case in cases(), share in 0u64..1000, a in 1u64..1 << 34, more in 0u64..1 << 24) {
        let (least, resident) = (needed(&case), case.resident_bytes());
        let cap = least + (resident - least) * share / 1000;
        let with = |host_bytes_max| {
            let limits = Limits { host_bytes_max, device_bytes_max: Some(cap), ..case.limits.clone() };
            case.plan(&limits).unwrap()
        };
        // From a size of a few frames to far more than the tail.
        let a = (a >> (share % 24)).max(1);
        let (small, large) = (with(a), with(a + more));
        check_plan(&case, &small);
        prop_assert_eq!(window(&small), window(&large));
        prop_assert_eq!(small.window_cells_decode(), large.window_cells_decode());
        let capacity = |plan: &Plan| plan.cache.extents_max as u64 * plan.cache.extent_blocks as u64;
        prop_assert!(capacity(&small) <= capacity(&large));
    }

    #[test]
    fn the_window_never_grows_with_context_or_chunk(case in cases(), share in 0u64..1300, more in 1u32..3000) {
        let (least, resident) = (needed(&case), case.resident_bytes());
        let cap = (least as u128 + (resident - least) as u128 * share as u128 / 1000) as u64;
        let small = window(&case.under(cap).unwrap());
        let wider = [
            Limits { context_cells: case.limits.context_cells + more, ..case.limits.clone() },
            Limits { chunk: case.limits.chunk + more, ..case.limits.clone() },
            Limits { chunk: case.limits.chunk + 1, ..case.limits.clone() },
        ];
        for limits in wider {
            let wide = Case { limits, ..case.clone() };
            if let Ok(plan) = wide.under(cap) {
                check_plan(&wide, &plan);
                prop_assert!(window(&plan) <= small, "{} to {} frames", small, window(&plan));
            }
        }
    }

    /// The form of monotony that leaves no room: between two byte counts lies a cap.
    #[test]
    fn the_same_window_takes_no_fewer_bytes_under_wider_limits(case in cases(), frames in 1u32..20, more in 1u32..600) {
        for window_cells in [None, Some(frames * BLOCK_CELLS)] {
            let base = Limits { window_cells, ..case.limits.clone() };
            let small = case.plan(&base).unwrap();
            let wider = [
                Limits { context_cells: base.context_cells + more, ..base.clone() },
                Limits { chunk: base.chunk + 1, ..base.clone() },
                Limits { chunk: base.chunk + more, ..base.clone() },
            ];
            for limits in wider {
                let wide = case.plan(&limits).unwrap();
                if wide.cache.spills == small.cache.spills {
                    prop_assert!(wide.memory.device_bytes() >= small.memory.device_bytes());
                }
            }
        }
    }

    #[test]
    fn the_ring_of_layers_that_all_have_a_tail_does_not_grow(case in cases(), share in 0u64..1000, most in 0u32..10_000) {
        let kind = |reach: &&Reach| **reach == Reach::Global;
        let globals = case.shape.reaches.iter().filter(kind).count();
        prop_assume!(globals <= 1 || globals == case.shape.reaches.len());
        let with = |ring_slots_max| Case { device: Fake { ring_slots_max, ..case.device.clone() }, ..case.clone() };
        let (least, resident) = (needed(&case), case.resident_bytes());
        let cap = least + (resident - least) * share / 1000;
        prop_assert_eq!(with(most).under(cap).unwrap(), with(case.device.ring_slots).under(cap).unwrap());
    }

    /// A window that is asked for keeps its size under any cap that it fits under; the ring takes what is left.
    #[test]
    fn the_ring_beside_a_window_that_was_asked_for_is_the_largest_that_fits(case in cases(), frames in 1u32..20, share in 0u64..1200) {
        let asked = Limits { window_cells: Some(frames * BLOCK_CELLS), ..case.limits.clone() };
        let free = case.plan(&asked).unwrap();
        prop_assume!(free.cache.spills);
        let without = free.memory.device_bytes() - free.memory.bytes(RowKind::Ring);
        let slots = |n: u32| without + (u64::from(n) * free.cache.slot_bytes).next_multiple_of(PAGE);
        let (least, most) = (slots(case.device.ring_slots), free.memory.device_bytes());
        let cap = least + (most - least) * share / 1000;
        let plan = case.plan(&Limits { device_bytes_max: Some(cap), ..asked.clone() }).unwrap();
        check_plan(&case, &plan);
        let cache = plan.cache;
        prop_assert!(slots(cache.ring_slots + 1) > cap || cache.ring_slots == free.cache.ring_slots);
        prop_assert_eq!(CachePlan { ring_slots: free.cache.ring_slots, ..cache }, free.cache);
        let limits = Limits { device_bytes_max: Some(least - 1), ..asked };
        prop_assert!(case.plan(&limits).is_err());
    }

    /// Shares that are no whole number of blocks waste up to a block each: four sequences can need fewer blocks than
    /// three. Where they need no fewer, more sequences get no more window.
    #[test]
    fn the_window_never_grows_with_sequences(case in cases(), share in 0u64..1300, more in 1u32..8) {
        let (least, resident) = (needed(&case), case.resident_bytes());
        let cap = (least as u128 + (resident - least) as u128 * share as u128 / 1000) as u64;
        let few = case.under(cap).unwrap();
        let sequences = case.limits.sequences + more;
        prop_assume!(sequences <= case.limits.context_cells);
        let wide = Case { limits: Limits { sequences, ..case.limits.clone() }, ..case.clone() };
        if let Ok(many) = wide.under(cap) {
            check_plan(&wide, &many);
            let blocks = |plan: &Plan| plan.cache.sequence_blocks * plan.limits.sequences;
            let rings = |plan: &Plan| plan.cache.sliding.map_or(0, |s| s.ring_blocks) * plan.limits.sequences;
            let wasted_less = blocks(&many) < blocks(&few) || rings(&many) < rings(&few);
            prop_assert!(window(&many) <= window(&few) || wasted_less);
        }
    }

    #[test]
    fn a_refusal_shows_the_table_and_hints_that_work(case in cases(), share in 1u64..1000, asked in prop::option::of(1u32..20_000)) {
        let case = Case { limits: Limits { window_cells: asked, ..case.limits.clone() }, ..case };
        let cap = (needed(&case) - 1) * share / 1000 + 1;
        let limits = Limits { device_bytes_max: Some(cap), ..case.limits.clone() };
        let error = case.plan(&limits).unwrap_err();
        let PlanError::DoesNotFit { needed: least, map, hints, .. } = &error else { panic!("{error:?}") };
        prop_assert_eq!(*least, needed(&case));
        prop_assert_eq!(map.device_bytes(), *least);
        let text = error.to_string();
        prop_assert!(text.contains(&map.to_string()) && text.contains("weights") && text.contains("workspace"));
        prop_assert!(!hints.is_empty());
        for hint in hints {
            prop_assert!(text.contains(hint));
            case.plan(&applied(&limits, hint)).unwrap_or_else(|e| panic!("{hint}: {e}"));
        }
    }
}

/// `limits` with one more option from the command line.
fn applied(limits: &Limits, hint: &str) -> Limits {
    let mut limits = limits.clone();
    let (flag, value) = hint.split_once(' ').expect("a flag and its value");
    let number = |text: &str| text.parse::<u32>().expect("a number");
    match flag {
        "--vram-target" => {
            let kib: u64 = value.strip_suffix('K').expect("KiB").parse().expect("a number");
            limits.device_bytes_max = Some(kib * 1024);
        }
        "--kv-window" => limits.window_cells = Some(number(value)),
        "-ub" => limits.chunk = number(value),
        "-np" => limits.sequences = number(value),
        "-c" => limits.context_cells = number(value),
        other => panic!("unknown flag {other}"),
    }
    limits
}

#[test]
fn every_threshold_of_one_model() {
    let growing = Fake { ring_slots: 1, ring_slots_max: 100, ..Fake::SMALL };
    let cases = [
        (Shape::global(4), Fake::SMALL),
        (Shape::mixed(12, 512), Fake::SMALL),
        (Shape::mixed(12, 512), growing.clone()),
        (Shape::mixed(48, 512), growing),
    ];
    for (shape, device) in cases {
        let case = Case { shape, device, limits: Limits::new(16 * BLOCK_CELLS) };
        let (mut at, resident) = (needed(&case), case.resident_bytes());
        let mut windows = vec![window(&case.under(at).unwrap())];
        while *windows.last().unwrap() != u64::MAX {
            at = next_threshold(&case, at, resident);
            windows.push(window(&case.under(at).unwrap()));
        }
        // 16 blocks, 3 of them in landing frames. The ring goes where nothing spills, so residency comes early.
        let frames: Vec<u64> = (1..windows.len() as u64).chain([u64::MAX]).collect();
        assert_eq!(windows, frames);
        assert!(windows.len() > 8, "{windows:?}");
        assert_eq!(at, resident);
    }
}

#[test]
fn without_global_layers_nothing_spills() {
    let case = Case { shape: Shape::sliding(6, 300), device: Fake::SMALL, limits: Limits::new(100_000) };
    for window_cells in [None, Some(1), Some(5000)] {
        let plan = case.plan(&Limits { window_cells, ..case.limits.clone() }).unwrap();
        check_plan(&case, &plan);
        assert!(!plan.cache.spills);
        assert_eq!(plan.memory.row(RowKind::Window), None);
        assert_eq!(plan.cache.sliding.unwrap().ring_blocks, (300u32 + 512 + 256).div_ceil(256));
    }
    let least = needed(&case);
    assert_eq!(least, case.resident_bytes());
}

#[test]
fn sliding_layers_make_the_ring_as_large_as_one_layers_tail() {
    let device = Fake { ring_slots: 4, ring_slots_max: 300, ..Fake::SMALL };
    let case = Case { shape: Shape::mixed(48, 512), device, limits: Limits::new(256 * BLOCK_CELLS) };
    let ring = |frames: u32, limits: &Limits| {
        let plan = case.plan(&Limits { window_cells: Some(frames * BLOCK_CELLS), ..limits.clone() }).unwrap();
        check_plan(&case, &plan);
        assert_eq!(plan.cache.window_frames, frames);
        plan.cache.ring_slots
    };
    // Of 256 blocks, 3 are in landing frames.
    assert_eq!([1, 100, 250, 252].map(|frames| ring(frames, &case.limits)), [252, 153, 4, 4]);
    // Fitted, it takes at most what 8 layers have in a quarter of the window's frames.
    let (least, resident) = (needed(&case), case.resident_bytes());
    let mut whole = 0;
    for part in 0..100 {
        let plan = case.under(least + (resident - least) * part / 100).unwrap();
        check_plan(&case, &plan);
        let (frames, tail) = (plan.cache.window_frames, 253 - plan.cache.window_frames);
        assert_eq!(plan.cache.ring_slots, tail.min(2 * frames).max(4));
        whole += u32::from(plan.cache.ring_slots == tail);
    }
    assert!(0 < whole && whole < 100, "{whole}");
}

/// With a large ring, a context of few blocks takes less where all of it is resident; the refusal must know.
#[test]
fn a_small_context_is_cheaper_resident_than_with_a_ring() {
    let device = Fake { ring_slots: 1000, ..Fake::SMALL };
    let case = Case { shape: Shape::global(4), device, limits: Limits::new(8 * BLOCK_CELLS) };
    assert_eq!(needed(&case), case.resident_bytes());
    assert!(!case.under(needed(&case)).unwrap().cache.spills);
}

#[test]
fn overlay_frames_use_the_prefill_workspace() {
    let limits = Limits { window_cells: Some(256), ..Limits::new(64 * BLOCK_CELLS) };
    let case = Case { shape: Shape::global(1), device: Fake::SMALL, limits };
    let plan = case.plan(&case.limits).unwrap();
    check_plan(&case, &plan);
    assert!(plan.cache.overlay_frames > 0);
    assert_eq!(plan.window_cells(), 256);
    assert_eq!(plan.window_cells_decode(), 256 * (1 + plan.cache.overlay_frames));
}

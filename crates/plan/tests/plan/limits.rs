//! Limits at their edges: refused with a reason or planned, never a panic; and the context that is chosen without one.

use crate::common::{Case, Fake, Shape, cases, shapes};
use proptest::prelude::*;
use tailrace_plan::spec::Activation;
use tailrace_plan::{ActivationType, Limits, Op, Plan, PlanError, RowKind};
use tailrace_types::{BLOCK_CELLS, KvType};

/// Any value, edges more often.
fn any_u32() -> impl Strategy<Value = u32> {
    let edges = prop::sample::select(vec![0, 1, 2, 255, 256, 257, 4096, 65_536, 1 << 30, (1 << 30) + 1, u32::MAX]);
    prop_oneof![edges, any::<u32>(), (0u32..32, any::<u32>()).prop_map(|(shift, n)| n >> shift)]
}

fn any_u64() -> impl Strategy<Value = u64> {
    prop_oneof![any_u32().prop_map(u64::from), any::<u64>(), Just(u64::MAX), Just(u64::MAX - 1)]
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let counts = (any_u32(), any_u32(), any_u32(), any_u32(), any_u32());
    let memory = (prop::option::of(any_u64()), any_u64(), prop::option::of(any_u32()));
    let kv = || prop::sample::select(KvType::ALL.to_vec());
    let activations = prop_oneof![Just(ActivationType::Auto), Just(ActivationType::F32)];
    (counts, memory, kv(), kv(), activations).prop_map(|(counts, memory, k_type, v_type, activations)| Limits {
        context_cells: counts.0,
        sequences: counts.1,
        chunk: counts.2,
        logit_rows: counts.3,
        rollback_cells: counts.4,
        k_type,
        v_type,
        activations,
        device_bytes_max: memory.0,
        host_bytes_max: memory.1,
        window_cells: memory.2,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn no_limits_make_it_panic(shape in shapes(), limits in any_limits()) {
        match Plan::new(&shape.spec(), &limits, &Fake::SMALL) {
            Ok(plan) => {
                prop_assert!(plan.memory.device_bytes() <= limits.device_bytes_max.unwrap_or(u64::MAX));
                prop_assert!(plan.window_cells() <= plan.window_cells_decode());
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn a_default_context_can_be_planned(context in any_u32(), limits in any_limits()) {
        let spec = Shape { context, ..Shape::mixed(6, 512) }.spec();
        if let Ok(cells) = Plan::default_context(&spec, &limits, &Fake::SMALL) {
            let plan = Plan::new(&spec, &Limits { context_cells: cells, ..limits.clone() }, &Fake::SMALL);
            prop_assert!(plan.is_ok(), "{:?}", plan.unwrap_err());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_default_context_is_the_largest_that_the_host_can_hold(case in cases(), context in 1u32..40_000, share in 0u64..1200, host in 1u64..64 << 20) {
        let spec = Shape { context, ..case.shape.clone() }.spec();
        let trained = context * case.limits.sequences;
        let whole = Limits { context_cells: trained, host_bytes_max: host, ..case.limits.clone() };
        let resident = Plan::new(&spec, &whole, &case.device).unwrap().memory.device_bytes();
        let limits = Limits { device_bytes_max: Some((resident / 1000 * share).max(1)), ..whole };
        let at = |cells| Plan::new(&spec, &Limits { context_cells: cells, ..limits.clone() }, &case.device);
        let holds = |plan: &Plan| plan.memory.bytes(RowKind::Tail) <= host;
        match Plan::default_context(&spec, &limits, &case.device) {
            Err(error) => prop_assert_eq!(Err(error), at(trained)),
            Ok(cells) => {
                prop_assert!(holds(&at(cells).unwrap()) && cells <= trained);
                if cells < trained {
                    prop_assert_eq!(cells % BLOCK_CELLS, 0);
                    prop_assert!(!holds(&at((cells + BLOCK_CELLS).min(trained)).unwrap()));
                }
            }
        }
    }
}

#[test]
fn each_limit_has_its_refusal() {
    let case = Case { shape: Shape::global(2), device: Fake::SMALL, limits: Limits::new(4096) };
    let base = &case.limits;
    let zeros = [
        (Limits { context_cells: 0, ..base.clone() }, "-c"),
        (Limits { sequences: 0, ..base.clone() }, "-np"),
        (Limits { chunk: 0, ..base.clone() }, "-ub"),
        (Limits { logit_rows: 0, ..base.clone() }, "logit rows"),
        (Limits { device_bytes_max: Some(0), ..base.clone() }, "--vram-target"),
        (Limits { host_bytes_max: 0, ..base.clone() }, "--host-mem"),
        (Limits { window_cells: Some(0), ..base.clone() }, "--kv-window"),
    ];
    for (limits, name) in zeros {
        let error = case.plan(&limits).unwrap_err();
        assert!(matches!(error, PlanError::Zero(_)), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let large = [
        (Limits { context_cells: u32::MAX, ..base.clone() }, "-c"),
        (Limits { sequences: 4097, ..base.clone() }, "-np"),
        (Limits { chunk: u32::MAX, ..base.clone() }, "-ub"),
        (Limits { logit_rows: u32::MAX, ..base.clone() }, "logit rows"),
        (Limits { rollback_cells: u32::MAX, ..base.clone() }, "rollback"),
    ];
    for (limits, name) in large {
        let error = case.plan(&limits).unwrap_err();
        assert!(matches!(error, PlanError::TooLarge { .. }), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = case.plan(&Limits { context_cells: 7, sequences: 8, ..base.clone() }).unwrap_err();
    assert!(error.to_string().contains("-c 8"), "{error}");
}

#[test]
fn the_largest_limits_are_planned() {
    let limits = Limits {
        sequences: 4096,
        chunk: 1 << 16,
        logit_rows: 1 << 16,
        rollback_cells: 1 << 30,
        ..Limits::new(1 << 30)
    };
    for shape in [Shape::global(4), Shape::mixed(12, u32::MAX), Shape::sliding(4, u32::MAX)] {
        let case = Case { shape, device: Fake::SMALL, limits: limits.clone() };
        case.plan(&limits).unwrap();
        case.plan(&Limits { window_cells: Some(1), ..limits.clone() }).unwrap();
    }
}

/// The trained context is no whole number of blocks, and its last, broken block is what the host cannot hold.
#[test]
fn the_default_context_can_lack_a_broken_block() {
    let shape = Shape { context: 16 * BLOCK_CELLS + 10, ..Shape::global(2) };
    let spec = shape.spec();
    let mut limits = Limits { window_cells: Some(BLOCK_CELLS), ..Limits::new(16 * BLOCK_CELLS) };
    limits.host_bytes_max = Plan::new(&spec, &limits, &Fake::SMALL).unwrap().memory.bytes(RowKind::Tail);
    assert_eq!(Plan::default_context(&spec, &limits, &Fake::SMALL), Ok(16 * BLOCK_CELLS));
}

#[test]
fn f32_activations_are_those_of_gelu_too() {
    let mut spec = Shape::global(2).spec();
    for block in &mut spec.blocks {
        block.ffn.inner.activation = Activation::GeluTanh;
    }
    let gates = |activations| {
        let limits = Limits { activations, ..Limits::new(4 * BLOCK_CELLS) };
        let plan = Plan::new(&spec, &limits, &Fake::SMALL).expect("a plan");
        let gates = plan.prefill.ops.iter().chain(&plan.decode.ops).filter_map(|op| match op {
            Op::Gate { activation, .. } => Some(*activation),
            _ => None,
        });
        gates.collect::<Vec<_>>()
    };
    assert_eq!(gates(ActivationType::Auto), [Activation::GeluTanhF16; 4]);
    assert_eq!(gates(ActivationType::F32), [Activation::GeluTanh; 4]);
}

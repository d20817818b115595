//! Benchmarks on the Null device: everything but the times.

use tailrace_device::Loader;
use tailrace_device::null::NullLoader;
use tailrace_engine::{Handle, LoadError, SamplingParams, start_shape};
use tailrace_measure::{Bench, Engines, Error, Options, Phase, Row, Spill, tail_blocks, window_for_tail};
use tailrace_models::shapes;
use tailrace_plan::{Limits, ModelSpec, Plan};

struct Shape {
    spec: ModelSpec,
    loader: NullLoader,
}

impl Engines for Shape {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn name(&self) -> String {
        "shape".to_owned()
    }

    fn start(&self, limits: &Limits) -> Result<Handle, LoadError> {
        start_shape(&self.spec, limits, &self.loader, 1, &mut |_| {})
    }
}

fn shape(name: &str) -> Shape {
    Shape { spec: shapes::read(name).expect("a shape").spec, loader: NullLoader::default() }
}

fn options(phases: &[Phase], depths: &[u32]) -> Options {
    Options {
        phases: phases.to_vec(),
        depths: depths.to_vec(),
        tokens: 6,
        repetitions: 2,
        fill: true,
        sampling: SamplingParams::greedy(),
        seed: 5,
        commit: "0123abc".to_owned(),
    }
}

fn limits(options: &Options) -> Limits {
    Limits { chunk: 256, logit_rows: 1, ..Limits::new(Bench::context(options, 256)) }
}

fn measure(shape: &Shape, options: &Options, run: impl FnOnce(&mut Bench<'_>) -> Result<(), Error>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut each = |row: &Row| rows.push(row.clone());
    let mut bench = Bench::new(shape, &shape.loader, options, &mut each).expect("the device has rates");
    run(&mut bench).expect("it can be measured");
    rows
}

const FRAME: u64 = 30 * 2 * 3 * 64 * 2 * 256;

#[test]
fn a_ladder_has_a_resident_rung_and_the_tails_that_were_asked_for() {
    let (shape, options) = (shape("smollm2-135m:q8_0"), options(&[Phase::Decode, Phase::Prefill], &[4096, 2048]));
    let spills = [Spill::Tail(4 * FRAME), Spill::Tail(1)];
    let rows = measure(&shape, &options, |bench| bench.ladder(&limits(&options), &spills));
    let cells: Vec<_> = rows.iter().map(|row| row.cell.as_str()).collect();
    let expected = |phase: &str| {
        let variants = ["resident", "tail-22.5M", "tail-1B"].into_iter();
        let cells = variants.flat_map(|v| ["2048", "4096"].map(|depth| format!("shape/{phase}/{depth}/{v}")));
        cells.collect::<Vec<_>>()
    };
    assert_eq!(cells, [expected("decode"), expected("prefill")].concat());
    for row in &rows {
        let resident = row.cell.contains("resident") || row.cell.contains("tail-1B");
        let tail = row.tail_bytes.expect("it is known");
        assert_eq!(tail, if resident { 0 } else { 4 * FRAME }, "{}", row.cell);
        // A step reads the tail once, and what comes back into frames.
        let link = row.link_bytes.expect("it is counted");
        assert!(if resident { link == 0 } else { (3 * FRAME..=6 * FRAME).contains(&link) }, "{}: {link}", row.cell);
        assert!(row.step_ms.is_some_and(|ms| ms > 0.0) && row.resident_ms.is_some());
        assert_eq!((row.commit.as_str(), &row.device), ("0123abc", &shape.loader.name()));
        assert_eq!(row.law_overlapped_ms.is_some(), tail == 0, "there is no link");
    }
}

#[test]
fn a_window_is_found_for_any_tail() {
    let Shape { spec, loader } = shape("smollm2-135m:q8_0");
    let limits = Limits { chunk: 512, ..Limits::new(20_000) };
    for phase in [Phase::Decode, Phase::Prefill] {
        for (depth, blocks) in [(16_384, 1), (16_384, 30), (15_000, 7), (5000, 0)] {
            let at = (depth, phase.layout());
            let cells = window_for_tail(&spec, &limits, &loader, at, blocks * FRAME + FRAME / 3).expect("a window");
            let plan = Plan::new(&spec, &Limits { window_cells: Some(cells), ..limits.clone() }, &loader);
            let tail = tail_blocks(&plan.expect("it fits"), depth, phase.layout()).expect("there is room");
            assert_eq!(u64::from(tail), blocks, "{phase:?} at {depth}");
        }
    }
}

#[test]
fn sliding_layers_are_filled_again_for_each_round() {
    let (shape, options) = (shape("gemma3-270m:q8_0"), options(&[Phase::Prefill, Phase::Decode], &[0, 1500]));
    let rows = measure(&shape, &options, |bench| bench.run(&limits(&options), "resident"));
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.tail_bytes == Some(0)));
    assert_eq!(rows[1].window_cells, Some(1500 + 256));
}

#[test]
fn a_device_too_small_for_the_context_is_not_called_resident() {
    let (shape, options) = (shape("smollm2-135m:q8_0"), options(&[Phase::Decode], &[4096]));
    let roomy = Plan::new(&shape.spec, &limits(&options), &shape.loader).expect("it fits").memory.device_bytes();
    let limits = Limits { device_bytes_max: Some(roomy - 8 * FRAME), ..limits(&options) };
    let rows = measure(&shape, &options, |bench| bench.ladder(&limits, &[Spill::Tail(9 * FRAME)]));
    let told: Vec<_> = rows.iter().map(|row| (row.cell.as_str(), row.resident_ms)).collect();
    assert_eq!(told, [("shape/decode/4096/widest", None), ("shape/decode/4096/tail-51840K", None)]);
    assert!(rows[0].tail_bytes > Some(0) && rows[1].tail_bytes == Some(9 * FRAME));
    assert_eq!(rows[0].vram_target_bytes, limits.device_bytes_max);
}

#[test]
fn a_depth_without_room_is_refused() {
    let (shape, options) = (shape("smollm2-135m:q8_0"), options(&[Phase::Decode], &[300]));
    let mut each = |_: &Row| {};
    let mut bench = Bench::new(&shape, &shape.loader, &options, &mut each).expect("rates");
    let error = bench.run(&Limits::new(310), "resident").expect_err("too deep");
    assert!(matches!(error, Error::Depth { depth: 300, needed: 315, context: 310 }), "{error}");
}

//! Running a case on a device and on the reference.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;

use tailrace_types::{SlotId, TokenId};

use super::bounds::{Bound, Precision, rounding};
use super::build::{LOGIT_ROWS, Role};
use super::{Case, CaseOp};
use crate::kv::{Append, KvCache, KvConfig, KvError, Phase, StepPlan};
use crate::plan::{Bucket, BufferId, Content, DeviceSizes, MatrixInput, Op, Plan, PlanError, Program};
use crate::synthetic::{Numbers, SyntheticWeights};
use crate::{Candidate, DeviceError, Executor, LoadOptions, Loader, Row, Submission, WeightSource};

/// Seed of weights, tokens and cells.
const SEED: u64 = 0x7a11_ace5;

/// Why a case could not be run.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// It has no plan.
    Plan(PlanError),
    /// The cache refused a step.
    Cache(KvError),
    /// A device failed.
    Device(DeviceError),
    /// A device's buffers cannot be seen.
    Opaque,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Plan(error) => write!(f, "{error}"),
            Failure::Cache(error) => write!(f, "{error}"),
            Failure::Device(error) => write!(f, "{error}"),
            Failure::Opaque => write!(f, "the device does not show its buffers"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        Failure::Plan(error)
    }
}

impl From<KvError> for Failure {
    fn from(error: KvError) -> Self {
        Failure::Cache(error)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Failure::Device(error)
    }
}

/// What a buffer is to a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// What the op is for.
    Result,
    /// Queries that attention rotates in place.
    Queries,
}

/// What a device left in one buffer, row after row.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Its rows.
    pub values: Vec<f32>,
    /// Values of a row.
    pub cols: usize,
    name: Name,
    content: Content,
}

impl Output {
    /// The buffer, and its format.
    pub fn what(&self) -> String {
        format!("{:?} ({:?})", self.name, self.content)
    }
}

/// A buffer that was compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The buffer, and its format.
    pub what: String,
    /// Largest distance of a row, see [`Bound::norm`].
    pub norm: f64,
    /// Largest distance of an element, see [`Bound::element`].
    pub element: f64,
    /// What is allowed.
    pub bound: Bound,
}

impl Checked {
    /// Whether the distances are within their bounds; not so where there is a NaN.
    pub fn holds(&self) -> bool {
        self.norm <= self.bound.norm && self.element <= self.bound.element
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Checked { what, norm, element, bound } = self;
        write!(f, "{what}: norm {norm:.1e} of {:.1e}, element {element:.1e} of {:.1e}", bound.norm, bound.element)
    }
}

/// The executor that devices are compared with. It remembers its results, since several devices run the same cases.
pub struct Reference<'a> {
    loader: &'a dyn Loader,
    known: HashMap<String, Known>,
}

/// A result of the reference, and the inputs that were given to it.
struct Known {
    inputs: Vec<f32>,
    outputs: Vec<Output>,
}

impl<'a> Reference<'a> {
    /// Executors of `loader`, whose buffers can be written.
    pub fn new(loader: &'a dyn Loader) -> Self {
        Reference { loader, known: HashMap::new() }
    }

    /// What the op of a case should write, given what it reads where it is a product.
    fn outputs(&mut self, case: &Case, inputs: Vec<f32>) -> Result<&[Output], Failure> {
        let known = self.known.get(&case.name).is_some_and(|known| known.inputs == inputs);
        if !known {
            let mut session = Session::new(case, self.loader, Role::Reference, LoadOptions::default())?;
            if !inputs.is_empty() {
                let to = find(session.program(case.bucket), "in", Content::F32).ok_or(Failure::Opaque)?;
                session.executor.probe().ok_or(Failure::Opaque)?.write(case.bucket, to, &inputs)?;
            }
            session.run(case)?;
            let outputs = session.outputs(case)?;
            self.known.insert(case.name.clone(), Known { inputs, outputs });
        }
        Ok(&self.known[&case.name].outputs)
    }
}

/// A line for everything in `cases` that fails or is out of its bounds.
pub fn failures<'a>(
    cases: impl IntoIterator<Item = &'a Case>,
    device: &dyn Loader,
    reference: &mut Reference<'_>,
    precision: Precision,
) -> Vec<String> {
    let mut failures = Vec::new();
    for case in cases {
        match check(case, device, reference, precision) {
            Ok(checked) => {
                let wrong = checked.iter().filter(|checked| !checked.holds());
                failures.extend(wrong.map(|checked| format!("{}: {checked}", case.name)));
            }
            Err(error) => failures.push(format!("{}: {error}", case.name)),
        }
    }
    failures
}

/// Runs a case on a device and on the reference, and compares every buffer that the op writes.
///
/// # Errors
/// One of them fails, or does not show its buffers; or the device's candidates are not its largest logits.
pub fn check(
    case: &Case,
    device: &dyn Loader,
    reference: &mut Reference<'_>,
    precision: Precision,
) -> Result<Vec<Checked>, Failure> {
    let mut session = Session::new(case, device, Role::Tested, LoadOptions { poison: true })?;
    session.run(case)?;
    let inputs = session.inputs(case)?;
    let expected = reference.outputs(case, inputs)?;
    let input = product_input(case, device);
    let mut checked = Vec::new();
    for output in session.outputs(case)? {
        let wanted = expected.iter().find(|expected| expected.name == output.name).ok_or(Failure::Opaque)?;
        let bound = match output.name {
            Name::Queries => Case::queries_bound(),
            Name::Result => case.bound(precision, input),
        };
        let (norm, element) = distance(&output, wanted);
        checked.push(Checked { what: output.what(), norm, element, bound });
    }
    Ok(checked)
}

/// What the op of a case writes on a device.
///
/// # Errors
/// The device fails, or does not show its buffers.
pub fn outputs(case: &Case, device: &dyn Loader) -> Result<Vec<Output>, Failure> {
    let mut session = Session::new(case, device, Role::Tested, LoadOptions { poison: true })?;
    session.run(case)?;
    session.outputs(case)
}

/// Whether the rows that all `cases` have in common have the same bits on a device: the *row law*. Names the first case
/// that differs from the first of all.
///
/// # Errors
/// The device fails, or does not show its buffers.
pub fn row_law(cases: &[Case], device: &dyn Loader) -> Result<Option<String>, Failure> {
    let Some((first, others)) = cases.split_first() else { return Ok(None) };
    let expected = outputs(first, device)?;
    for case in others {
        for (output, expected) in outputs(case, device)?.iter().zip(&expected) {
            let common = output.values.len().min(expected.values.len());
            let bits = |output: &Output| output.values[..common].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            if common == 0 || bits(output) != bits(expected) {
                return Ok(Some(format!("{}: {} is not that of {}", case.name, output.what(), first.name)));
            }
        }
    }
    Ok(None)
}

/// The format that the products of a case read.
fn product_input(case: &Case, sizes: &dyn DeviceSizes) -> MatrixInput {
    match &case.op {
        CaseOp::MatMul { ty, .. } | CaseOp::Head { ty, .. } => sizes.matrix_input(case.bucket, *ty, case.activations),
        _ => MatrixInput::F32,
    }
}

/// Values that are rounded together in 8-bit blocks.
const BLOCK: usize = 32;

/// Largest distances of a row and of an element, less what rounding to the buffer's format does; NaN where there is one.
fn distance(output: &Output, expected: &Output) -> (f64, f64) {
    if output.values.len() != expected.values.len() || output.values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let (of_value, of_block) = rounding(output.content);
    let worst = |a: f64, b: f64| if a.is_nan() || a >= b { a } else { b };
    let rows = output.values.chunks_exact(output.cols).zip(expected.values.chunks_exact(output.cols));
    let distances = rows.map(|(row, expected)| {
        let (mut squares, mut largest) = (0.0, 0.0);
        for (values, expected) in row.chunks(BLOCK).zip(expected.chunks(BLOCK)) {
            let most = f64::from(expected.iter().fold(0f32, |most, x| most.max(x.abs())));
            for (&value, &expected) in values.iter().zip(expected) {
                let (value, expected) = (f64::from(value), f64::from(expected));
                let apart = (value - expected).abs() - of_value * expected.abs() - of_block * most;
                let apart = if apart < 0.0 { 0.0 } else { apart };
                squares += apart * apart;
                largest = worst(apart, largest);
            }
        }
        let norm = expected.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        (squares.sqrt() / norm, largest * (row.len() as f64).sqrt() / norm)
    });
    distances.fold((0.0, 0.0), |(a, b), (norm, element)| (worst(norm, a), worst(element, b)))
}

/// The buffer of that name and format.
fn find(program: &Program, name: &str, content: Content) -> Option<BufferId> {
    let at = program.buffers.iter().position(|b| b.name == name && b.content == content);
    at.map(|at| BufferId(at as u32))
}

/// An executor, and the cache that says where its cells are.
pub(super) struct Session {
    executor: Box<dyn Executor>,
    cache: KvCache,
    step: StepPlan,
    rows: Vec<Row>,
}

impl Session {
    pub(super) fn new(case: &Case, loader: &dyn Loader, role: Role, options: LoadOptions) -> Result<Self, Failure> {
        let weights = SyntheticWeights::new(SEED);
        Self::with_weights(case, loader, role, options, WeightSource::File(&weights))
    }

    pub(super) fn with_weights(
        case: &Case,
        loader: &dyn Loader,
        role: Role,
        options: LoadOptions,
        weights: WeightSource<'_>,
    ) -> Result<Self, Failure> {
        let plan = case.plan(loader, role)?;
        let cache = KvCache::new(KvConfig::of(&plan))?;
        let step = StepPlan::with_capacity(cache.config());
        let executor = loader.load(plan, weights, options, &mut |_| ())?;
        Ok(Session { executor, cache, step, rows: Vec::new() })
    }

    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        Ok(self.executor.finish()?)
    }

    fn plan(&self) -> &Plan {
        self.executor.plan()
    }

    fn program(&self, bucket: Bucket) -> &Program {
        match bucket {
            Bucket::Prefill => &self.plan().prefill,
            Bucket::Decode => &self.plan().decode,
            Bucket::Head => &self.plan().head,
        }
    }

    /// Fills the cells that the case begins with, makes its step, and its logits where it is about them.
    fn run(&mut self, case: &Case) -> Result<(), Failure> {
        self.fill(case)?;
        self.step(case)?;
        if let CaseOp::Head { vocab, .. } = case.op {
            let rows: Vec<u32> = (0..case.rows.min(LOGIT_ROWS)).collect();
            let logits = self.executor.logits(&rows)?.to_vec();
            let k = self.executor.top_max().min(vocab as u32);
            if k > 0 && self.executor.top(&rows, k)? != largest(&logits, vocab as usize, k as usize) {
                return Err(Failure::Device(DeviceError::Misuse("the candidates are not the largest logits")));
            }
        }
        Ok(())
    }

    /// Fills the cells that the case begins with.
    pub(super) fn fill(&mut self, case: &Case) -> Result<(), Failure> {
        let shared = matches!(&case.op, CaseOp::Attention(attention) if attention.shared);
        for (slot, cells) in (0..).map(SlotId).zip(case.cells()) {
            if shared && slot.0 > 0 {
                let all = self.cache.cells(SlotId(0)).unwrap_or(0);
                self.cache.fork(SlotId(0), slot, cells.min(all))?;
            } else {
                self.cache.create(slot)?;
            }
            while let Some(missing) = cells.checked_sub(self.cache.cells(slot).unwrap_or(0)).filter(|&n| n > 0) {
                let append = Append { slot, cells: missing.min(self.plan().limits.chunk) };
                self.submit(Phase::Prefill, &[append], Some(SEED + u64::from(slot.0)))?;
            }
        }
        Ok(())
    }

    /// The step of the case.
    pub(super) fn step(&mut self, case: &Case) -> Result<(), Failure> {
        let appends: Vec<Append> = match case.phase() {
            Phase::Prefill => vec![Append { slot: SlotId(0), cells: case.rows }],
            Phase::Decode => (0..case.rows).map(|slot| Append { slot: SlotId(slot), cells: 1 }).collect(),
        };
        self.submit(case.phase(), &appends, None)
    }

    /// Goes back to where the last step began.
    pub(super) fn undo(&mut self, case: &Case) -> Result<(), Failure> {
        for (slot, cells) in (0..).map(SlotId).zip(case.cells()) {
            self.cache.rollback(slot, cells)?;
        }
        Ok(())
    }

    fn submit(&mut self, phase: Phase, appends: &[Append], fill: Option<u64>) -> Result<(), Failure> {
        self.cache.begin(appends, phase, &mut self.step)?;
        let vocab = u64::from(self.plan().vocab);
        self.rows.clear();
        for (view, sequence) in (0..).zip(&self.step.sequences) {
            for position in sequence.first_cell..sequence.first_cell + sequence.cells {
                let token = TokenId((Numbers::new(SEED, sequence.slot.0, position).bits(0) % vocab) as u32);
                self.rows.push(Row { token, position, view });
            }
        }
        let submission = Submission { phase, rows: &self.rows, cache: &self.step };
        match fill {
            Some(seed) => self.executor.fill(&submission, seed)?,
            None => self.executor.submit(&submission)?,
        }
        Ok(self.cache.commit()?)
    }

    /// What the op under test reads, if it is a product.
    fn inputs(&mut self, case: &Case) -> Result<Vec<f32>, Failure> {
        let src = self.program(case.bucket).ops.iter().find_map(|op| match op {
            Op::MatMul { src, .. } => Some(*src),
            _ => None,
        });
        // Quantised weights read quantised rows where there are any, tensor cores read bf16; f32 rows are left where others do.
        match src.and_then(|src| src.q8.or(src.bf16).or(src.f32)) {
            Some(inputs) => self.read(case, inputs),
            None => Ok(Vec::new()),
        }
    }

    /// The case's rows of a buffer.
    fn read(&mut self, case: &Case, buffer: BufferId) -> Result<Vec<f32>, Failure> {
        let rows = if case.bucket == Bucket::Head { case.rows.min(LOGIT_ROWS) } else { case.rows };
        Ok(self.executor.probe().ok_or(Failure::Opaque)?.read(case.bucket, buffer, rows)?)
    }

    /// What the op under test left.
    fn outputs(&mut self, case: &Case) -> Result<Vec<Output>, Failure> {
        let name = |name: &str| match name {
            "y" => Some(Name::Result),
            "qkv" => Some(Name::Queries),
            _ => None,
        };
        let buffers = (0..).map(BufferId).zip(&self.program(case.bucket).buffers);
        let written = buffers.filter_map(|(id, b)| Some((id, name(&b.name)?, b.cols as usize, b.content)));
        let written: Vec<_> = written.collect();
        let mut outputs = Vec::new();
        for (id, name, mut cols, content) in written {
            let mut values = self.read(case, id)?;
            if let (CaseOp::Attention(attention), Name::Queries) = (&case.op, name) {
                // Only queries are promised to stay in the buffer.
                let queries = (attention.shape.heads * attention.shape.dk) as usize;
                values = values.chunks_exact(cols).flat_map(|row| &row[..queries]).copied().collect();
                cols = queries;
            }
            outputs.push(Output { values, cols, name, content });
        }
        Ok(outputs)
    }
}

/// The `k` largest of each row of logits; of equal ones the lower token first.
fn largest(logits: &[f32], vocab: usize, k: usize) -> Vec<Candidate> {
    let row = |row: &[f32]| {
        let mut all: Vec<Candidate> =
            (0..).map(TokenId).zip(row).map(|(token, &logit)| Candidate { token, logit }).collect();
        all.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token)));
        all.truncate(k);
        all
    };
    logits.chunks_exact(vocab).flat_map(row).collect()
}

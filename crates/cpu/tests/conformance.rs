//! The table of op cases, on every instruction set against the naive executor.

use tailrace_cpu::naive::NaiveLoader;
use tailrace_cpu::simd::isa::IsaLevel;
use tailrace_cpu::{CpuLoader, Isa};
use tailrace_device::conformance::{
    Case, CaseOp, Precision, Reference, cases, check, failures, row_law, row_law_cases,
};
use tailrace_device::plan::{AttentionBuffers, AttentionShape, Bucket, BufferId, DeviceSizes, Plan};
use tailrace_device::{
    DeviceError, Executor, HighWater, LoadOptions, Loader, Probe, Rates, Submission, Traffic, WeightSource,
};
use tailrace_types::WeightType;

/// All cases run on the fastest level and on AVX2, whose tiles differ; the others share their parts.
fn suits(isa: Isa, case: &Case) -> bool {
    case.quick || isa == Isa::detect() || isa.level() == IsaLevel::Avx2
}

#[test]
fn every_case_on_every_instruction_set() {
    let (cases, mut reference, mut failed) = (cases(), Reference::new(&NaiveLoader), Vec::new());
    for isa in Isa::available() {
        let device = CpuLoader::new(2, isa);
        let suited = cases.iter().filter(|case| suits(isa, case));
        let lines = failures(suited, &device, &mut reference, Precision::Single);
        failed.extend(lines.into_iter().map(|line| format!("{}: {line}", isa.level().name())));
    }
    assert!(failed.is_empty(), "{} failures\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn rows_have_the_same_bits_whatever_is_computed_with_them() {
    for isa in [Isa::PORTABLE, Isa::detect()] {
        let device = CpuLoader::new(2, isa);
        for mut group in row_law_cases() {
            group.retain(|case| suits(isa, case));
            let differs = row_law(&group, &device).expect("it runs");
            assert_eq!(differs, None, "{}", isa.level().name());
        }
    }
}

/// A device that is a little wrong: one element of one row is off by a part of the row's root mean square.
#[derive(Debug)]
struct Wrong {
    device: CpuLoader,
    off: f32,
}

impl DeviceSizes for Wrong {
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64 {
        self.device.matrix_bytes(ty, rows, cols)
    }

    fn q8_row_bytes(&self, cols: u64) -> u64 {
        self.device.q8_row_bytes(cols)
    }

    fn attention_buffers(&self, bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers {
        self.device.attention_buffers(bucket, shape)
    }

    fn ring_slots(&self, slot_bytes: u64, weight_bytes: u64) -> u32 {
        self.device.ring_slots(slot_bytes, weight_bytes)
    }
}

impl Loader for Wrong {
    fn load(
        &self,
        plan: Plan,
        weights: WeightSource<'_>,
        options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Executor>, DeviceError> {
        let inner = self.device.load(plan, weights, options, progress)?;
        Ok(Box::new(WrongExecutor { inner, off: self.off }))
    }

    fn rates(&self) -> Result<Rates, DeviceError> {
        self.device.rates()
    }

    fn name(&self) -> String {
        "wrong".to_owned()
    }
}

struct WrongExecutor {
    inner: Box<dyn Executor>,
    off: f32,
}

impl Executor for WrongExecutor {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.inner.submit(submission)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        self.inner.logits(rows)
    }

    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.inner.fill(submission, seed)
    }

    fn probe(&mut self) -> Option<&mut dyn Probe> {
        Some(self)
    }

    fn high_water(&self) -> Vec<HighWater> {
        self.inner.high_water()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
}

impl Probe for WrongExecutor {
    fn read(&mut self, bucket: Bucket, buffer: BufferId, rows: u32) -> Result<Vec<f32>, DeviceError> {
        let program = self.inner.plan().program(bucket);
        let (is_result, cols) = (program.buffer(buffer).name == "y", program.buffer(buffer).cols as usize);
        let mut values = self.inner.probe().expect("the CPU shows its buffers").read(bucket, buffer, rows)?;
        if is_result {
            let last = values.len() - cols..;
            let row = &mut values[last];
            let square = row.iter().map(|x| x * x).sum::<f32>() / cols as f32;
            row[cols / 2] += self.off * square.sqrt();
        }
        Ok(values)
    }
}

#[test]
fn one_wrong_element_is_noticed() {
    let mut reference = Reference::new(&NaiveLoader);
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.quick).step_by(5).collect();
    let mut failed = |case: &Case, off| {
        let device = Wrong { device: CpuLoader::new(2, Isa::detect()), off };
        let checked = check(case, &device, &mut reference, Precision::Single).expect("it runs");
        checked.iter().any(|checked| !checked.holds())
    };
    for case in &cases {
        assert!(!failed(case, 0.0), "{}", case.name);
        // Coarser than any bound and any format.
        assert!(failed(case, 0.05), "{}", case.name);
        assert!(failed(case, f32::NAN), "{}", case.name);
    }
    // Products of integers, to the last bits.
    let products = cases.iter().filter(|case| matches!(case.op, CaseOp::MatMul { .. }));
    assert!(products.filter(|case| failed(case, 1e-4)).count() > 10);
}

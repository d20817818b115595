//! The loader: opens a card, and makes executors on it.

use std::sync::Arc;

use tailrace_device::plan::{
    ActivationType, AttentionBuffers, AttentionShape, Bucket, DeviceSizes, Limits, MatrixInput, Plan, WeightForm,
};
use tailrace_device::{DeviceError, Executor, LoadOptions, Loader, Rates, WeightSource};
use tailrace_types::{Bytes, WeightType};

use crate::arenas::{ALLOCATION_UNIT, Arenas};
use crate::driver::real::{self, Cuda};
use crate::driver::{Driver, Stream};
use crate::executor::{CudaExecutor, Parts};
use crate::load;
use crate::program::Programs;
use crate::rates;
use crate::sizes::{Card, Sizes};
use crate::step::StepLayout;

/// Device memory that graphs and the driver's own bookkeeping take once an executor is made, beyond what opening the card took.
/// With 20 GiB of host memory page-locked some 26 MiB were seen for a model of 48 layers. Sealing checks that it was enough, and
/// so does every extent that the tail grows by.
const SEAL_BYTES: u64 = 64 << 20;

/// Why GPUs cannot be used on this machine or by this build, if so.
pub fn available() -> Result<(), String> {
    if !crate::kernels::COMPILED {
        return Err("this build has no GPU kernels: nvcc was not found when it was built".to_owned());
    }
    real::missing().map_or(Ok(()), |reason| Err(reason.to_owned()))
}

/// Makes executors on one card.
pub struct CudaLoader {
    driver: Arc<dyn Driver>,
    sizes: Sizes,
}

impl CudaLoader {
    /// Opens card number `ordinal`: makes its context and loads every kernel.
    ///
    /// # Errors
    ///
    /// There is no driver or no such card, or the card is not supported.
    pub fn open(ordinal: u32) -> Result<Self, DeviceError> {
        if !crate::kernels::COMPILED {
            let reason = available().err().unwrap_or_default();
            return Err(DeviceError::Device(reason));
        }
        let cuda = Cuda::open(ordinal)?;
        if cuda.capability() < (7, 5) {
            let (major, minor) = cuda.capability();
            let reason = format!("{} has compute capability {major}.{minor}; 7.5 is the oldest supported", cuda.name());
            return Err(DeviceError::Device(reason));
        }
        Ok(Self::on(Arc::new(cuda)))
    }

    /// A loader on any driver.
    pub fn on(driver: Arc<dyn Driver>) -> Self {
        let card = Card::new(driver.capability(), driver.multiprocessors());
        let opened = driver.used_bytes();
        let driver_bytes = if opened == 0 { 0 } else { (opened + SEAL_BYTES).next_multiple_of(ALLOCATION_UNIT) };
        CudaLoader { driver, sizes: Sizes::new(card, driver_bytes) }
    }

    /// The same with as short a ring for small models as there can be, so that tails of a few blocks go round it: for tests.
    #[must_use]
    pub fn with_short_ring(self) -> Self {
        CudaLoader { sizes: self.sizes.with_short_ring(), ..self }
    }

    /// Device memory that is free now, in bytes, counted as a cap is: what this process already holds is included.
    ///
    /// # Errors
    ///
    /// The driver does not say.
    pub fn free_bytes(&self) -> Result<u64, DeviceError> {
        Ok(self.driver.free_bytes()? + self.driver.used_bytes())
    }

    /// Checks that the sealed process is within its cap, as the driver counts.
    fn check_cap(&self, plan: &Plan) -> Result<(), DeviceError> {
        let Some(cap) = plan.limits.device_bytes_max else { return Ok(()) };
        let used = self.driver.used_bytes();
        if used <= cap {
            return Ok(());
        }
        Err(DeviceError::Device(format!(
            "the driver counts {used} bytes ({}) for this process, more than the cap of {cap} bytes ({}); use --vram-target {}K or more",
            Bytes(used),
            Bytes(cap),
            (cap + (used - cap)).div_ceil(1024)
        )))
    }
}

/// Refuses matrices that the kernels cannot read: they take 32 values of a row at a time.
fn check_shapes(plan: &Plan) -> Result<(), DeviceError> {
    let odd = plan.weights.iter().find(|w| w.form != WeightForm::Vector && !w.slice.cols.is_multiple_of(32));
    odd.map_or(Ok(()), |w| {
        let cols = w.slice.cols;
        Err(DeviceError::Device(format!("a matrix has rows of {cols} values, no multiple of 32; use --device cpu")))
    })
}

impl DeviceSizes for CudaLoader {
    fn matrix_bytes(&self, ty: WeightType, rows: u64, cols: u64) -> u64 {
        self.sizes.matrix_bytes(ty, rows, cols)
    }

    fn q8_row_bytes(&self, cols: u64) -> u64 {
        self.sizes.q8_row_bytes(cols)
    }

    fn matrix_input(&self, bucket: Bucket, ty: WeightType, activations: ActivationType) -> MatrixInput {
        self.sizes.matrix_input(bucket, ty, activations)
    }

    fn keeps_f32(&self) -> bool {
        self.sizes.keeps_f32()
    }

    fn row_multiple(&self) -> u32 {
        self.sizes.row_multiple()
    }

    fn matmul_scratch_bytes(&self, input: MatrixInput, ty: WeightType, rows: u64, cols: u64) -> u64 {
        self.sizes.matmul_scratch_bytes(input, ty, rows, cols)
    }

    fn attention_buffers(&self, bucket: Bucket, shape: &AttentionShape) -> AttentionBuffers {
        self.sizes.attention_buffers(bucket, shape)
    }

    fn partials_bytes(&self, shape: &AttentionShape, sequences: u32, sequence_blocks: u32) -> u64 {
        self.sizes.partials_bytes(shape, sequences, sequence_blocks)
    }

    fn ring_slots(&self, slot_bytes: u64, weight_bytes: u64) -> u32 {
        self.sizes.ring_slots(slot_bytes, weight_bytes)
    }

    fn ring_slots_max(&self, slot_bytes: u64, weight_bytes: u64) -> u32 {
        self.sizes.ring_slots_max(slot_bytes, weight_bytes)
    }

    fn step_bytes(&self, limits: &Limits, gathered_row_bytes: u64) -> u64 {
        self.sizes.step_bytes(limits, gathered_row_bytes)
    }

    fn embedding_on_host(&self) -> bool {
        self.sizes.embedding_on_host()
    }

    fn driver_bytes(&self) -> u64 {
        self.sizes.driver_bytes()
    }
}

impl Loader for CudaLoader {
    fn load(
        &self,
        plan: Plan,
        weights: WeightSource<'_>,
        options: LoadOptions,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Box<dyn Executor>, DeviceError> {
        let driver = &self.driver;
        driver.enter()?;
        check_shapes(&plan)?;
        let arenas = Arenas::new(Arc::clone(driver), &plan)?;
        let gathered_row_bytes = load::gathered_row_bytes(&plan);
        let layout = StepLayout::new(&plan.limits, gathered_row_bytes);
        let gathered = load::weights(driver, &plan, &arenas, weights, progress)?;
        load::frequencies(driver, &plan, &arenas, &layout, weights)?;
        let programs = Programs::new(driver, &plan, &arenas, &layout, self.sizes.card)?;
        driver.synchronize(Stream::Compute)?;
        let poison = options.poison;
        let executor =
            CudaExecutor::new(Parts { driver: Arc::clone(driver), plan, arenas, programs, layout, gathered, poison })?;
        self.check_cap(executor.plan())?;
        Ok(Box::new(executor))
    }

    fn rates(&self) -> Result<Rates, DeviceError> {
        rates::measure(&self.driver, &self.sizes.card)
    }

    fn name(&self) -> String {
        self.driver.name()
    }
}

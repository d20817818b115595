//! What a card and its link carry, measured.

use std::sync::Arc;
use std::time::Instant;

use tailrace_device::{DeviceError, Rates};

use crate::driver::owned::Owned;
use crate::driver::{Driver, Event, Kernel, Stream};
use crate::host::Pinned;
use crate::launch::rates::read_bytes;
use crate::params::CopyParams;
use crate::sizes::Card;

/// Bytes of one copy over the link.
const COPY_BYTES: u64 = 4 << 20;

/// Page-locked memory that is copied from, over and over.
const HOST_BYTES: u64 = 256 << 20;

/// Device memory that is read: many times what its cache holds.
const DEVICE_BYTES: u64 = 2 << 30;

/// Rounds of each measurement; the best counts.
const ROUNDS: usize = 5;

struct Bench<'a> {
    driver: &'a Arc<dyn Driver>,
    card: &'a Card,
    host: Pinned,
    /// Bytes that are read, and behind them those that copies land in.
    device: u64,
    device_bytes: u64,
    read: Kernel,
    times: [Owned<Event>; 4],
}

/// Measures link and memory.
pub(crate) fn measure(driver: &Arc<dyn Driver>, card: &Card) -> Result<Rates, DeviceError> {
    driver.enter()?;
    // What is free bounds what can be read; a small card gives a quarter.
    let device_bytes = DEVICE_BYTES.min(driver.free_bytes()? / 4) / COPY_BYTES * COPY_BYTES;
    let host = Pinned::new(Arc::clone(driver), HOST_BYTES)?;
    let device = driver.alloc(device_bytes + COPY_BYTES)?;
    let event = || Owned::event(driver, true);
    let bench = Bench {
        driver,
        card,
        host,
        device,
        device_bytes,
        read: driver.kernel("read_bytes", 0)?,
        times: [event()?, event()?, event()?, event()?],
    };
    let rates = bench.all();
    driver.synchronize(Stream::Link)?;
    driver.synchronize(Stream::Compute)?;
    driver.free(device);
    rates
}

impl Bench<'_> {
    fn all(&self) -> Result<Rates, DeviceError> {
        let mut rates = Rates { host_read: self.host_read(), ..Rates::default() };
        // The first round wakes the card up.
        for _ in 0..ROUNDS + 1 {
            rates.device_read = rates.device_read.max(self.device_read()?);
            rates.link = rates.link.max(self.link()?);
            rates.link_loaded = rates.link_loaded.max(self.link_loaded()?);
        }
        Ok(rates)
    }

    fn start_read(&self, times: u32) -> Result<(), DeviceError> {
        let params = CopyParams { source: self.device, bytes: self.device_bytes, ..CopyParams::default() };
        let launch = read_bytes(&params, self.card.multiprocessors);
        (0..times).try_for_each(|_| self.driver.launch(Stream::Compute, self.read, &launch))
    }

    /// Bytes per second of the device reading its memory.
    fn device_read(&self) -> Result<f64, DeviceError> {
        let [start, end, ..] = self.times();
        self.driver.record(Stream::Compute, start)?;
        self.start_read(4)?;
        self.driver.record(Stream::Compute, end)?;
        self.driver.synchronize(Stream::Compute)?;
        self.rate(4 * self.device_bytes, start, end)
    }

    fn start_copies(&self) -> Result<(), DeviceError> {
        let [_, _, start, end] = self.times();
        self.driver.record(Stream::Link, start)?;
        for at in (0..HOST_BYTES).step_by(COPY_BYTES as usize) {
            self.driver.copy_in(Stream::Link, self.device + self.device_bytes, self.host.at(at), COPY_BYTES)?;
        }
        self.driver.record(Stream::Link, end)
    }

    /// Bytes per second over the link.
    fn link(&self) -> Result<f64, DeviceError> {
        let [_, _, start, end] = self.times();
        self.start_copies()?;
        self.driver.synchronize(Stream::Link)?;
        self.rate(HOST_BYTES, start, end)
    }

    /// The same while the device reads its memory, which takes longer than the copies.
    fn link_loaded(&self) -> Result<f64, DeviceError> {
        let [_, _, start, end] = self.times();
        self.start_read(64)?;
        self.start_copies()?;
        self.driver.synchronize(Stream::Link)?;
        self.driver.synchronize(Stream::Compute)?;
        self.rate(HOST_BYTES, start, end)
    }

    fn times(&self) -> [Event; 4] {
        self.times.each_ref().map(|event| **event)
    }

    fn rate(&self, bytes: u64, start: Event, end: Event) -> Result<f64, DeviceError> {
        let ms = self.driver.elapsed_ms(start, end)?;
        Ok(bytes as f64 / (f64::from(ms) / 1e3))
    }

    /// Bytes per second of all cores reading host memory.
    fn host_read(&self) -> f64 {
        let words = self.host.values(0, (HOST_BYTES / 4) as usize);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let read = || {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for part in words.chunks(words.len().div_ceil(cores)) {
                    scope.spawn(move || {
                        std::hint::black_box(part.iter().map(|x| x.to_bits()).fold(0u32, u32::wrapping_add))
                    });
                }
            });
            HOST_BYTES as f64 / start.elapsed().as_secs_f64()
        };
        (0..ROUNDS).map(|_| read()).fold(0.0, f64::max)
    }
}

//! Engines of one model under different limits, and the rows that they give.

use std::fmt;

use tailrace_device::{Loader, Rates};
use tailrace_engine::{Handle, LoadError, SamplingParams};
use tailrace_plan::{Limits, ModelSpec};
use tailrace_types::BLOCK_CELLS;

use crate::bytes::{kv_bytes, weight_bytes};
use crate::cell::{Station, Timing};
use crate::{Error, Laws, Phase, Row, window_for_tail};

/// Starts engines of the model that is measured.
pub trait Engines {
    /// The transformer.
    fn spec(&self) -> &ModelSpec;

    /// What the model is called in rows.
    fn name(&self) -> String;

    /// An engine under `limits`.
    ///
    /// # Errors
    ///
    /// It does not fit, or the device fails.
    fn start(&self, limits: &Limits) -> Result<Handle, LoadError>;
}

/// How cells are measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Phases.
    pub phases: Vec<Phase>,
    /// Depths, in cells.
    pub depths: Vec<u32>,
    /// Decode steps that are timed.
    pub tokens: u32,
    /// Measurements of each cell; the median counts.
    pub repetitions: u32,
    /// Whether depths are filled with random cells instead of computed.
    pub fill: bool,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Seed of cells and draws.
    pub seed: u64,
    /// Commit of the program.
    pub commit: String,
}

/// What pushes the cache into the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spill {
    /// A window that makes the occupied tail come near so many bytes.
    Tail(u64),
    /// A cap on device memory in bytes.
    Target(u64),
}

impl fmt::Display for Spill {
    /// As cells are called.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spill::Tail(bytes) => write!(f, "tail-{}", size(*bytes)),
            Spill::Target(bytes) => write!(f, "target-{}", size(*bytes)),
        }
    }
}

/// What cells are called that nothing pushes into the tail.
pub const RESIDENT: &str = "resident";

/// A benchmark of one model on one device.
pub struct Bench<'a> {
    engines: &'a dyn Engines,
    loader: &'a dyn Loader,
    options: &'a Options,
    rates: Rates,
    /// Told of each row as it is measured.
    each: &'a mut dyn FnMut(&Row),
}

impl<'a> Bench<'a> {
    /// Measures the rates of the device. `each` is told of every row.
    ///
    /// # Errors
    ///
    /// The device cannot be measured.
    pub fn new(
        engines: &'a dyn Engines,
        loader: &'a dyn Loader,
        options: &'a Options,
        each: &'a mut dyn FnMut(&Row),
    ) -> Result<Self, Error> {
        let rates = loader.rates()?;
        Ok(Bench { engines, loader, options, rates, each })
    }

    /// Tokens of context that every cell fits, in whole chunks.
    pub fn context(options: &Options, chunk: u32) -> u32 {
        let deepest = options.depths.iter().copied().max().unwrap_or(0);
        let room = options.phases.iter().map(|&phase| Station::room(phase, options, chunk)).max().unwrap_or(0);
        deepest.saturating_add(room).div_ceil(chunk.max(1)).saturating_mul(chunk.max(1)).max(BLOCK_CELLS)
    }

    /// Every phase at every depth under `limits`, which cells call `variant`, in one engine for each phase.
    ///
    /// # Errors
    ///
    /// The model does not fit, or something fails: rows that were measured before have been told.
    pub fn run(&mut self, limits: &Limits, variant: &str) -> Result<(), Error> {
        for &phase in &self.options.phases {
            let station = self.station(limits)?;
            for depth in self.depths() {
                let timing = station.measure(phase, depth)?;
                self.tell(&station, (phase, depth), variant, timing, timing.resident());
            }
            station.handle.stop();
        }
        Ok(())
    }

    /// For every phase and depth: the resident step, then the same step with each of `spills`.
    ///
    /// `limits` are those of the resident engine; one that is over is stopped before the next starts.
    ///
    /// # Errors
    ///
    /// As [`Bench::run`].
    pub fn ladder(&mut self, limits: &Limits, spills: &[Spill]) -> Result<(), Error> {
        for &phase in &self.options.phases {
            let mut resident = Vec::new();
            let station = self.station(&Limits { window_cells: None, ..limits.clone() })?;
            for depth in self.depths() {
                let timing = station.measure(phase, depth)?;
                resident.push((depth, timing.resident()));
                self.tell(&station, (phase, depth), RESIDENT, timing, timing.resident());
            }
            station.handle.stop();
            drop(station);
            for &spill in spills {
                for &(depth, resident) in &resident {
                    self.rung(limits, (phase, depth), spill, resident)?;
                }
            }
        }
        Ok(())
    }

    /// One cell with a tail, in an engine of its own; `resident` is the time of the resident step in seconds.
    fn rung(&mut self, limits: &Limits, at: (Phase, u32), spill: Spill, resident: Option<f64>) -> Result<(), Error> {
        let (phase, depth) = at;
        let (limits, variant) = match spill {
            Spill::Target(bytes) => {
                let limits = Limits { device_bytes_max: Some(bytes), window_cells: None, ..limits.clone() };
                (limits, spill.to_string())
            }
            Spill::Tail(bytes) => {
                let at = (depth, phase.layout());
                let cells = window_for_tail(self.engines.spec(), limits, self.loader, at, bytes)?;
                (Limits { window_cells: Some(cells), ..limits.clone() }, spill.to_string())
            }
        };
        let station = self.station(&limits)?;
        let timing = station.measure(phase, depth)?;
        self.tell(&station, at, &variant, timing, resident);
        station.handle.stop();
        Ok(())
    }

    /// Depths in ascending order: a sequence only grows.
    fn depths(&self) -> Vec<u32> {
        let mut depths = self.options.depths.clone();
        depths.sort_unstable();
        depths.dedup();
        depths
    }

    fn station(&self, limits: &Limits) -> Result<Station<'a>, Error> {
        Ok(Station { handle: self.engines.start(limits)?, options: self.options })
    }

    fn tell(
        &mut self,
        station: &Station<'_>,
        (phase, depth): (Phase, u32),
        variant: &str,
        timing: Timing,
        resident: Option<f64>,
    ) {
        let limits = station.handle.limits();
        let rows = timing.rows as u32;
        let spec = self.engines.spec();
        let bytes_per_step = weight_bytes(spec) + kv_bytes(spec, limits, depth, rows);
        let step_ms = timing.step_seconds * 1e3;
        let resident_ms = resident.map(|seconds| seconds * 1e3);
        let Rates { link, link_loaded, device_read, .. } = self.rates;
        let laws = resident_ms.and_then(|c| Laws::of(c, timing.tail_bytes, link, link_loaded));
        let name = self.engines.name();
        // A device too small for the whole context keeps what it can.
        let variant = if variant == RESIDENT && timing.tail_bytes > 0 { "widest" } else { variant };
        let mut cell = format!("{name}/{}/{depth}/{variant}", phase.name());
        if phase == Phase::Decode && !self.options.sampling.is_greedy() {
            cell += "/sampled";
        }
        let row = Row {
            cell,
            shape: name,
            phase: phase.name().to_owned(),
            depth_tokens: depth,
            window_cells: Some(timing.window_cells),
            tail_bytes: Some(timing.tail_bytes),
            link_bytes: Some(timing.link_bytes),
            tokens_per_s: Some(timing.rows / timing.step_seconds),
            step_ms: Some(step_ms),
            resident_ms,
            bytes_per_step: Some(bytes_per_step),
            law_serial_ms: laws.map(|l| l.serial_ms),
            law_overlapped_ms: laws.map(|l| l.overlapped_ms),
            ratio_overlapped: laws.map(|l| step_ms / l.overlapped_ms),
            roofline_ratio: (device_read > 0.0).then(|| bytes_per_step as f64 / device_read * 1e3 / step_ms),
            vram_target_bytes: limits.device_bytes_max,
            driver_peak_bytes: (timing.driver_bytes > 0).then_some(timing.driver_bytes),
            ..Row::of_link(&self.rates, &self.loader.name(), &self.options.commit)
        };
        (self.each)(&row);
    }
}

/// A size as it is written on the command line.
fn size(bytes: u64) -> String {
    let units = [("G", 1u64 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    // Quarters of a unit are exact in two digits.
    let unit = units.into_iter().find(|(_, unit)| bytes >= *unit && (bytes * 4).is_multiple_of(*unit));
    match unit {
        Some((name, unit)) => format!("{}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_are_written_as_they_are_read() {
        let cases = [(1 << 30, "1G"), (3 << 29, "1.5G"), (1 << 28, "256M"), (900 << 20, "900M"), (4097, "4097B")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}

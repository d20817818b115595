//! Loading: weights go through page-locked buffers in the file's layout, and are rearranged on the device.

use std::sync::Arc;
use std::thread;

use tailrace_device::plan::{Plan, RowKind, Weight, WeightForm};
use tailrace_device::synthetic::SyntheticWeights;
use tailrace_device::{DeviceError, WeightFile, WeightSource, rope};

use crate::arenas::Arenas;
use crate::driver::owned::Owned;
use crate::driver::{Driver, Event, Kernel, Stream};
use crate::host::{Gathered, Pinned};
use crate::launch::weights;
use crate::layout::{self, PLANES_MAX};
use crate::params::{RepackParams, SyntheticParams, bytes_of};
use crate::step::StepLayout;

/// Bytes of a page-locked buffer: large copies carry the link's full rate, and two of them keep it busy.
const PIECE_BYTES: u64 = 16 << 20;

/// Threads that read from the file's map: one cannot keep up with the link.
const READERS: usize = 4;

/// Embedding rows that random weights have.
const SYNTHETIC_ROWS: u64 = 256;

/// A page-locked buffer, and the event after which it may be filled again.
struct Piece {
    memory: Pinned,
    free: Owned<Event>,
    /// Where on the device its bytes go first.
    landing: u64,
}

struct Loading<'a> {
    driver: &'a Arc<dyn Driver>,
    arenas: &'a Arenas,
    pieces: [Piece; 2],
    piece_bytes: u64,
    next: usize,
    repack: Kernel,
    synthetic: Kernel,
    total: u64,
    done: u64,
    progress: &'a mut dyn FnMut(f32),
}

/// Fills the weight arena, and returns the embedding rows that stay on the host. The workspace is idle before the first step:
/// it is where the file's bytes land.
pub(crate) fn weights(
    driver: &Arc<dyn Driver>,
    plan: &Plan,
    arenas: &Arenas,
    source: WeightSource<'_>,
    progress: &mut dyn FnMut(f32),
) -> Result<Option<Gathered>, DeviceError> {
    let landing = [RowKind::Workspace, RowKind::Window, RowKind::Landing, RowKind::Head];
    let landing = landing.into_iter().max_by_key(|&kind| arenas.row_bytes(kind)).expect("there are several");
    let half = arenas.row_bytes(landing) / 2 / 256 * 256;
    let piece_bytes = PIECE_BYTES.min(half);
    let piece = |i: u64| {
        let memory = Pinned::new(Arc::clone(driver), piece_bytes)?;
        let free = Owned::event(driver, false)?;
        driver.record(Stream::Compute, *free)?;
        Ok::<_, DeviceError>(Piece { memory, free, landing: arenas.row(landing) + i * half })
    };
    let mut loading = Loading {
        driver,
        arenas,
        pieces: [piece(0)?, piece(1)?],
        piece_bytes,
        next: 0,
        repack: driver.kernel("repack", 0)?,
        synthetic: driver.kernel("synthetic", 0)?,
        total: plan.weights.iter().map(|w| w.bytes).sum(),
        done: 0,
        progress,
    };
    let result = loading.all(plan, source);
    driver.synchronize(Stream::Compute)?;
    result
}

impl Loading<'_> {
    fn all(&mut self, plan: &Plan, source: WeightSource<'_>) -> Result<Option<Gathered>, DeviceError> {
        let mut gathered = None;
        let random;
        let file: &dyn WeightFile = match source {
            WeightSource::File(file) => file,
            WeightSource::Synthetic { seed } => {
                random = SyntheticWeights::new(seed);
                &random
            }
        };
        for (index, weight) in plan.weights.iter().enumerate() {
            match (weight.form, source) {
                (WeightForm::Vector, _) => self.vector(file, weight)?,
                (WeightForm::Matrix, WeightSource::File(_)) => self.matrix(file, weight)?,
                (WeightForm::Matrix, WeightSource::Synthetic { seed }) => {
                    self.random_matrix(weight, seed.wrapping_add(index as u64))?;
                }
                (WeightForm::HostRows, _) => gathered = Some(host_rows(file, weight, source)?),
            }
            self.done += weight.bytes;
            (self.progress)(self.done as f32 / self.total.max(1) as f32);
        }
        Ok(gathered)
    }

    /// Gives `fill` a buffer to write `bytes` bytes to, and copies them to its landing place, which is returned.
    fn send(
        &mut self,
        bytes: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<(), DeviceError>,
    ) -> Result<(u64, usize), DeviceError> {
        let index = self.next;
        self.next = (index + 1) % self.pieces.len();
        let piece = &mut self.pieces[index];
        self.driver.wait_host(*piece.free)?;
        fill(&mut piece.memory.bytes_mut()[..bytes as usize])?;
        self.driver.copy_in(Stream::Compute, piece.landing, piece.memory.address(), bytes)?;
        Ok((piece.landing, index))
    }

    /// Says that a buffer can be filled again once what was given to the device so far is done.
    fn release(&self, index: usize) -> Result<(), DeviceError> {
        self.driver.record(Stream::Compute, *self.pieces[index].free)
    }

    fn vector(&mut self, file: &dyn WeightFile, weight: &Weight) -> Result<(), DeviceError> {
        let values = file.values(&weight.slice)?;
        if values.len() as u64 * 4 != weight.bytes {
            return Err(DeviceError::Weights("a vector of another length than planned".to_owned()));
        }
        let mut to = self.arenas.weight(weight);
        for part in values.chunks((self.piece_bytes / 4).max(1) as usize) {
            let bytes = bytes_of(part);
            let (landing, index) = self.send(bytes.len() as u64, |out| {
                out.copy_from_slice(bytes);
                Ok(())
            })?;
            self.driver.copy(Stream::Compute, to, landing, bytes.len() as u64)?;
            self.release(index)?;
            to += bytes.len() as u64;
        }
        Ok(())
    }

    fn matrix(&mut self, file: &dyn WeightFile, weight: &Weight) -> Result<(), DeviceError> {
        let slice = &weight.slice;
        let block = slice.ty.block();
        let row_bytes = block.bytes_of(slice.cols).expect("the plan's matrices are whole blocks");
        let rows = (self.piece_bytes / row_bytes).max(1);
        if row_bytes > self.piece_bytes {
            return Err(DeviceError::Weights(format!("a row of {row_bytes} bytes is longer than the workspace")));
        }
        let plane = planes(weight, self.arenas.weight(weight));
        let mut first = 0;
        while first < slice.rows {
            let count = rows.min(slice.rows - first);
            let (source, index) = self.send(count * row_bytes, |out| read_rows(file, weight, first, row_bytes, out))?;
            file.release(slice, first, count);
            let params = RepackParams {
                source,
                plane,
                first: first as u32,
                count: count as u32,
                blocks: (slice.cols / u64::from(block.elements)) as u32,
                ty: slice.ty as u32,
            };
            self.driver.launch(Stream::Compute, self.repack, &weights::repack(slice.ty, &params))?;
            self.release(index)?;
            first += count;
        }
        Ok(())
    }

    fn random_matrix(&mut self, weight: &Weight, seed: u64) -> Result<(), DeviceError> {
        let slice = &weight.slice;
        let params = SyntheticParams {
            plane: planes(weight, self.arenas.weight(weight)),
            seed,
            blocks: slice.rows * slice.cols / u64::from(slice.ty.block().elements),
            // Inputs of deviation 1 give outputs of about as much.
            scale: 1.0 / (slice.cols as f32).sqrt(),
            ty: slice.ty as u32,
        };
        self.driver.launch(Stream::Compute, self.synthetic, &weights::synthetic(&params))
    }
}

fn planes(weight: &Weight, base: u64) -> [u64; PLANES_MAX] {
    let slice = &weight.slice;
    layout::planes(slice.ty, slice.rows, slice.cols).addresses(base)
}

/// Copies rows out of the file's map, on several threads where that pays.
fn read_rows(
    file: &dyn WeightFile,
    weight: &Weight,
    first: u64,
    row_bytes: u64,
    out: &mut [u8],
) -> Result<(), DeviceError> {
    let rows = out.len() as u64 / row_bytes;
    let each = rows.div_ceil(READERS as u64).max(1);
    let read = |at: u64, out: &mut [u8]| {
        let count = out.len() as u64 / row_bytes;
        out.copy_from_slice(&file.rows(&weight.slice, first + at, count)?);
        Ok(())
    };
    if out.len() < 1 << 20 {
        return read(0, out);
    }
    thread::scope(|scope| {
        let parts = out.chunks_mut((each * row_bytes) as usize).enumerate();
        let threads: Vec<_> = parts.map(|(i, part)| scope.spawn(move || read(i as u64 * each, part))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err(DeviceError::Worker)))
    })
}

/// The rows of an embedding that stays on the host.
fn host_rows(file: &dyn WeightFile, weight: &Weight, source: WeightSource<'_>) -> Result<Gathered, DeviceError> {
    let slice = &weight.slice;
    let row_bytes = slice.ty.block().bytes_of(slice.cols).expect("the plan's matrices are whole blocks");
    let rows = match source {
        WeightSource::File(_) => slice.rows,
        WeightSource::Synthetic { .. } => slice.rows.min(SYNTHETIC_ROWS),
    };
    let mut bytes = vec![0; (rows * row_bytes) as usize];
    let step = (PIECE_BYTES / row_bytes).max(1);
    for first in (0..rows).step_by(step as usize) {
        let count = step.min(rows - first);
        let part = &mut bytes[(first * row_bytes) as usize..((first + count) * row_bytes) as usize];
        part.copy_from_slice(&file.rows(slice, first, count)?);
        file.release(slice, first, count);
    }
    Ok(Gathered { rows: bytes, row_bytes: row_bytes as usize })
}

/// Uploads the frequencies of every position embedding, one after the other.
pub(crate) fn frequencies(
    driver: &Arc<dyn Driver>,
    plan: &Plan,
    arenas: &Arenas,
    layout: &StepLayout,
    source: WeightSource<'_>,
) -> Result<(), DeviceError> {
    let mut all = Vec::new();
    for spec in &plan.ropes {
        let factors = match (&spec.factors, source) {
            (Some(slice), WeightSource::File(file)) => Some(file.values(slice)?),
            (Some(slice), WeightSource::Synthetic { seed }) => Some(SyntheticWeights::new(seed).values(slice)?),
            (None, _) => None,
        };
        all.extend_from_slice(&rope::frequencies(spec, factors.as_deref()));
    }
    let bytes = bytes_of(&all);
    if bytes.len() as u64 > layout.candidates - layout.frequencies {
        return Err(DeviceError::Weights("more position embeddings than a step has room for".to_owned()));
    }
    let mut memory = Pinned::new(Arc::clone(driver), bytes.len() as u64)?;
    memory.bytes_mut().copy_from_slice(bytes);
    let to = arenas.row(RowKind::Step) + layout.frequencies;
    driver.copy_in(Stream::Compute, to, memory.address(), bytes.len() as u64)?;
    driver.synchronize(Stream::Compute)
}

/// Bytes of an embedding row that the host gathers; 0 where the embedding is on the device.
pub(crate) fn gathered_row_bytes(plan: &Plan) -> u64 {
    let on_host = plan.weights.iter().find(|w| w.form == WeightForm::HostRows);
    on_host.and_then(|w| w.slice.ty.block().bytes_of(w.slice.cols)).unwrap_or(0)
}

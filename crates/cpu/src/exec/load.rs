//! Loading: weights are rearranged, piece by piece, from the file into the arena.

use std::sync::Mutex;

use tailrace_device::plan::spec::Rope;
use tailrace_device::plan::{Plan, Weight, WeightForm};
use tailrace_device::{DeviceError, WeightFile, rope};
use tailrace_types::ROW_GROUP;

use super::memory::Memory;
use crate::pack;
use crate::pool::Pool;

/// Groups of rows that are read, packed and released together: a megabyte or so of file.
const PIECE_GROUPS: u64 = 32;

/// Fills the weight arena. The file's pages are given back piece by piece, so that the weights are never held twice.
pub(super) fn weights(
    plan: &Plan,
    memory: &Memory,
    pool: &mut Pool,
    file: &dyn WeightFile,
    progress: &mut dyn FnMut(f32),
) -> Result<(), DeviceError> {
    let total: u64 = plan.weights.iter().map(|w| w.bytes).sum();
    let mut done = 0;
    for weight in &plan.weights {
        match weight.form {
            WeightForm::Vector => vector(memory, file, weight)?,
            WeightForm::Matrix => matrix(memory, pool, file, weight)?,
            WeightForm::HostRows => return Err(DeviceError::Misuse("the CPU keeps no weights beside its arena")),
        }
        done += weight.bytes;
        progress(done as f32 / total.max(1) as f32);
    }
    Ok(())
}

fn vector(memory: &Memory, file: &dyn WeightFile, weight: &Weight) -> Result<(), DeviceError> {
    let values = file.values(&weight.slice)?;
    if values.len() as u64 * 4 != weight.bytes {
        return Err(DeviceError::Weights("a vector of another length than planned".to_owned()));
    }
    // SAFETY: the plan gave this weight `values.len()` f32 of the arena, and nothing runs yet.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), memory.weight(weight).cast::<f32>(), values.len()) };
    Ok(())
}

fn matrix(memory: &Memory, pool: &mut Pool, file: &dyn WeightFile, weight: &Weight) -> Result<(), DeviceError> {
    let slice = &weight.slice;
    let groups = slice.rows.div_ceil(ROW_GROUP);
    let group_bytes = weight.bytes / groups.max(1);
    let failed = Mutex::new(None);
    pool.run(|worker| {
        let base = memory.weight(weight);
        while let Some(piece) = worker.claim(groups.div_ceil(PIECE_GROUPS) as usize) {
            let first = piece as u64 * PIECE_GROUPS;
            let count = PIECE_GROUPS.min(groups - first);
            // SAFETY: pieces are disjoint parts of the weight's `groups * group_bytes` bytes, and nothing else runs yet.
            let packed = unsafe {
                std::slice::from_raw_parts_mut(base.add((first * group_bytes) as usize), (count * group_bytes) as usize)
            };
            if let Err(error) = pack_piece(file, weight, first, packed) {
                *failed.lock().unwrap_or_else(|e| e.into_inner()) = Some(error);
                return;
            }
        }
    });
    failed.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}

/// Packs the groups from `first_group` on into `packed`.
fn pack_piece(file: &dyn WeightFile, weight: &Weight, first_group: u64, packed: &mut [u8]) -> Result<(), DeviceError> {
    let slice = &weight.slice;
    let k = slice.cols as usize;
    let group_bytes = pack::group_bytes(slice.ty, k).expect("the plan's matrices are whole blocks");
    let first = first_group * ROW_GROUP;
    let rows = ((packed.len() / group_bytes) as u64 * ROW_GROUP).min(slice.rows - first);
    let bytes = file.rows(slice, first, rows)?;
    for (source, group) in bytes.chunks(group_bytes).zip(packed.chunks_exact_mut(group_bytes)) {
        pack::pack_rows(slice.ty, source, k, group);
    }
    drop(bytes);
    file.release(slice, first, rows);
    Ok(())
}

/// Angle per position of each pair of each rope (`spec::Rope`), factors and YaRN applied.
pub(super) fn frequencies(plan: &Plan, file: &dyn WeightFile) -> Result<Vec<Box<[f64]>>, DeviceError> {
    let of = |rope: &Rope| {
        let factors = rope.factors.as_ref().map(|f| file.values(f)).transpose()?;
        Ok(rope::frequencies(rope, factors.as_deref()))
    };
    plan.ropes.iter().map(of).collect()
}

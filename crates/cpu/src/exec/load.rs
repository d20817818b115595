//! Loading: weights are rearranged, piece by piece, from the file into the arena.

use std::sync::Mutex;

use tailrace_device::plan::spec::Rope;
use tailrace_device::plan::{Plan, Weight, WeightForm};
use tailrace_device::{DeviceError, WeightFile};
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
        Ok(inverse_frequencies(rope, factors.as_deref()))
    };
    plan.ropes.iter().map(of).collect()
}

fn inverse_frequencies(rope: &Rope, factors: Option<&[f32]>) -> Box<[f64]> {
    let (dims, base) = (rope.dims as f64, rope.base as f64);
    let pair = |j: usize| {
        let factor = factors.and_then(|f| f.get(j)).map_or(1.0, |&f| f as f64);
        let extrapolated = base.powf(-2.0 * j as f64 / dims) / factor;
        let interpolated = extrapolated / rope.linear as f64;
        let Some(yarn) = rope.yarn else { return interpolated };
        // YaRN: dimensions that turn often are left alone, those that never complete a turn are interpolated.
        let turns = |n: f32| {
            let wavelengths = yarn.original_context as f64 / (n as f64 * std::f64::consts::TAU);
            dims * wavelengths.ln() / (2.0 * base.ln())
        };
        let low = turns(yarn.beta_fast).floor().max(0.0);
        let high = turns(yarn.beta_slow).ceil().min(dims - 1.0);
        let ramp = ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let weight = yarn.ext_factor as f64 * (1.0 - ramp);
        interpolated * (1.0 - weight) + extrapolated * weight
    };
    (0..rope.dims as usize / 2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailrace_device::plan::spec::{Pairing, Yarn};

    fn rope(yarn: Option<Yarn>, linear: f32) -> Rope {
        Rope { pairing: Pairing::Half, dims: 64, base: 10_000.0, linear, factors: None, yarn, mscale: 1.0 }
    }

    #[test]
    fn plain_and_linear() {
        let plain = inverse_frequencies(&rope(None, 1.0), None);
        assert_eq!(plain[0], 1.0);
        assert!((plain[16] - 0.01).abs() < 1e-12);
        let linear = inverse_frequencies(&rope(None, 4.0), None);
        assert!(plain.iter().zip(&linear).all(|(p, l)| (p / 4.0 - l).abs() < 1e-12));
    }

    #[test]
    fn factors_divide() {
        let factors: Vec<f32> = (0..32).map(|j| 1.0 + j as f32).collect();
        let (plain, scaled) = (rope(None, 1.0), rope(None, 1.0));
        let (plain, scaled) = (inverse_frequencies(&plain, None), inverse_frequencies(&scaled, Some(&factors)));
        assert!((0..32).all(|j| (plain[j] / (1.0 + j as f64) - scaled[j]).abs() < 1e-12));
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let yarn = Yarn { original_context: 4096, ext_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 };
        let (plain, yarn) =
            (inverse_frequencies(&rope(None, 1.0), None), inverse_frequencies(&rope(Some(yarn), 8.0), None));
        assert_eq!(plain[0], yarn[0]);
        assert!((plain[31] / 8.0 - yarn[31]).abs() < 1e-12);
        assert!((1..32).all(|j| yarn[j] <= plain[j] && yarn[j] >= plain[j] / 8.0 - 1e-15));
    }
}

//! Buffers as f32, for the conformance cases.

use std::sync::Arc;

use half::bf16;
use tailrace_device::plan::{Bucket, BufferId, Content};
use tailrace_device::{DeviceError, Probe};

use crate::driver::Stream;
use crate::executor::CudaExecutor;
use crate::host::Pinned;

/// Values that share a scale in 8-bit rows, and bytes of a scale with its sums.
const Q8_VALUES: usize = 32;
const Q8_SCALE_BYTES: usize = 8;

impl Probe for CudaExecutor {
    fn read(&mut self, bucket: Bucket, buffer: BufferId, rows: u32) -> Result<Vec<f32>, DeviceError> {
        let buffer = self.plan.program(bucket).buffers.get(buffer.0 as usize).filter(|buffer| rows <= buffer.rows);
        let buffer = buffer.ok_or(DeviceError::Misuse("rows that do not exist are read"))?;
        let bytes = u64::from(rows) * buffer.row_bytes;
        if bytes == 0 {
            return Ok(Vec::new());
        }
        self.driver.enter()?;
        let mut copy = Pinned::new(Arc::clone(&self.driver), bytes)?;
        let from = self.arenas.buffer(buffer, bucket == Bucket::Head);
        self.driver.copy_out(Stream::Compute, copy.at_mut(0), from, bytes)?;
        self.driver.synchronize(Stream::Compute)?;
        let cols = buffer.cols as usize;
        let decode = match buffer.content {
            Content::F32 => f32_row,
            Content::Q8 => q8_row,
            Content::Bf16 => bf16_row,
            Content::Scratch => return Err(DeviceError::Misuse("a buffer without values is read")),
        };
        let mut values = Vec::with_capacity(rows as usize * cols);
        copy.bytes_mut().chunks_exact(buffer.row_bytes as usize).for_each(|row| decode(row, cols, &mut values));
        Ok(values)
    }
}

fn f32_row(row: &[u8], _cols: usize, out: &mut Vec<f32>) {
    out.extend(row.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)));
}

fn bf16_row(row: &[u8], _cols: usize, out: &mut Vec<f32>) {
    out.extend(row.as_chunks::<2>().0.iter().map(|&bytes| bf16::from_le_bytes(bytes).to_f32()));
}

/// A row of codes, then their scales.
fn q8_row(row: &[u8], cols: usize, out: &mut Vec<f32>) {
    let (codes, scales) = row.split_at(cols);
    for (codes, scale) in codes.chunks(Q8_VALUES).zip(scales.as_chunks::<Q8_SCALE_BYTES>().0) {
        let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
        out.extend(codes.iter().map(|&code| f32::from(code as i8) * scale));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_decoded() {
        let mut row: Vec<u8> = (0..64).map(|i| (i as i8 - 32) as u8).collect();
        row.extend([0.5f32, 2.0].into_iter().flat_map(|scale| [scale.to_le_bytes(), [0; 4]]).flatten());
        let mut values = Vec::new();
        q8_row(&row, 64, &mut values);
        assert_eq!((values.len(), values[0], values[31], values[63]), (64, -16.0, -0.5, 62.0));
        values.clear();
        bf16_row(&[0x80, 0x3f, 0x40, 0xc0], 2, &mut values);
        assert_eq!(values, [1.0, -3.0]);
    }
}

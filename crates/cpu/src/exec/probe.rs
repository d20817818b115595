//! Buffers as f32, for the conformance cases.

use tailrace_device::plan::{Bucket, BufferId, Content};
use tailrace_device::{DeviceError, Probe};

use super::CpuExecutor;
use crate::q8::{Q8_BYTES, Q8Block};

impl Probe for CpuExecutor {
    fn read(&mut self, bucket: Bucket, buffer: BufferId, rows: u32) -> Result<Vec<f32>, DeviceError> {
        let (plan, memory) = (&self.machine.plan, &self.machine.memory);
        let buffer = plan.program(bucket).buffers.get(buffer.0 as usize).filter(|buffer| rows <= buffer.rows);
        let buffer = buffer.ok_or(DeviceError::Misuse("rows that do not exist are read"))?;
        let from = if bucket == Bucket::Head { memory.head(buffer) } else { memory.workspace(buffer) };
        let mut values = Vec::with_capacity(rows as usize * from.cols);
        for row in 0..rows as usize {
            // SAFETY: no worker runs, since `&mut self` is held.
            match buffer.content {
                Content::F32 => values.extend_from_slice(unsafe { from.f32(row) }),
                Content::Q8 => unsafe { from.bytes_mut(row) }.chunks_exact(Q8_BYTES).for_each(|block| {
                    // SAFETY: a whole block, of a type that any bytes are a value of.
                    let block = unsafe { block.as_ptr().cast::<Q8Block>().read_unaligned() };
                    values.extend(block.values.map(|value| f32::from(value) * block.scale));
                }),
                Content::Bf16 | Content::Scratch => return Err(DeviceError::Misuse("a buffer without values is read")),
            }
        }
        Ok(values)
    }
}

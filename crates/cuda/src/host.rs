//! Host memory of the executor: page-locked staging, and embedding rows that stay on the host.

#![allow(unsafe_code)]

use std::sync::Arc;

use tailrace_device::DeviceError;

use crate::driver::{Driver, HostMemory};
use crate::params::Candidate;

/// Page-locked memory of an owner.
pub(crate) struct Pinned {
    driver: Arc<dyn Driver>,
    memory: Option<HostMemory>,
    address: *mut u8,
    len: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(driver: Arc<dyn Driver>, bytes: u64) -> Result<Self, DeviceError> {
        let memory = driver.alloc_host(bytes)?;
        // SAFETY: just allocated; written once so that slices of it are initialised.
        unsafe { memory.address.write_bytes(0, bytes as usize) };
        Ok(Pinned { driver, address: memory.address, len: bytes as usize, memory: Some(memory) })
    }

    pub(crate) fn address(&self) -> *const u8 {
        self.address
    }

    /// Address of a byte.
    pub(crate) fn at(&self, offset: u64) -> *const u8 {
        assert!(offset as usize <= self.len, "inside the memory");
        self.address.wrapping_add(offset as usize)
    }

    /// The same, for the device to write to.
    pub(crate) fn at_mut(&mut self, offset: u64) -> *mut u8 {
        assert!(offset as usize <= self.len, "inside the memory");
        self.address.wrapping_add(offset as usize)
    }

    /// All of it. The device must not be using it: the caller has waited.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned, initialised, and `&mut self` keeps others away.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }

    /// `count` floats from `offset` on.
    pub(crate) fn values(&self, offset: u64, count: usize) -> &[f32] {
        assert!(offset as usize + count * 4 <= self.len && offset.is_multiple_of(4), "inside the memory");
        // SAFETY: owned, initialised, aligned as checked (the allocation is page-aligned).
        unsafe { std::slice::from_raw_parts(self.address.wrapping_add(offset as usize).cast(), count) }
    }

    /// `count` candidates from `offset` on.
    pub(crate) fn candidates(&self, offset: u64, count: usize) -> &[Candidate] {
        assert!(offset as usize + count * 8 <= self.len && offset.is_multiple_of(4), "inside the memory");
        // SAFETY: as in `values`; any bits are a candidate.
        unsafe { std::slice::from_raw_parts(self.address.wrapping_add(offset as usize).cast(), count) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.driver.free_host(memory);
        }
    }
}

/// Embedding rows in the file's format.
pub(crate) struct Gathered {
    pub(crate) rows: Vec<u8>,
    pub(crate) row_bytes: usize,
}

impl Gathered {
    /// Copies the rows of `tokens` to `out`, one after the other; returns the bytes. Where there are fewer rows than tokens
    /// (random weights), they are used in turn.
    pub(crate) fn gather(&self, tokens: impl Iterator<Item = u32>, out: &mut [u8]) -> u64 {
        let count = self.rows.len() / self.row_bytes;
        let mut end = 0;
        for token in tokens {
            let first = (token as usize % count) * self.row_bytes;
            out[end..end + self.row_bytes].copy_from_slice(&self.rows[first..first + self.row_bytes]);
            end += self.row_bytes;
        }
        end as u64
    }
}

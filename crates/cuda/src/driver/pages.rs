//! Host memory in large pages, present before it is locked: locking pages that are there and large is several times as fast
//! as letting the driver allocate them one by one.

#![allow(unsafe_code)]

use std::{ptr, thread};

use tailrace_device::DeviceError;

/// Size of a large page.
const LARGE: u64 = 2 << 20;

/// Threads that touch new pages: the system zeroes them then, and one thread is slower than the link.
const THREADS: usize = 4;

/// Anonymous memory, given back on drop.
pub(super) struct Pages {
    pub(super) address: *mut u8,
    pub(super) bytes: u64,
}

impl Pages {
    /// Bytes of the pages that hold `bytes`.
    pub(super) fn whole(bytes: u64) -> u64 {
        let unit = if bytes >= LARGE { LARGE } else { 4096 };
        bytes.max(1).next_multiple_of(unit)
    }

    /// Memory of at least `bytes` bytes, all zeros and present.
    pub(super) fn new(bytes: u64) -> Result<Self, DeviceError> {
        let refused = DeviceError::OutOfMemory { what: "page-locked host memory", bytes };
        let whole = Self::whole(bytes);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping.
        let address = unsafe { libc::mmap(ptr::null_mut(), whole as usize, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(refused);
        }
        let pages = Pages { address: address.cast(), bytes: whole };
        // A hint: without large pages it is slower, not wrong.
        // SAFETY: the mapping above.
        unsafe { libc::madvise(address, whole as usize, libc::MADV_HUGEPAGE) };
        pages.touch();
        Ok(pages)
    }

    fn touch(&self) {
        let each = (self.bytes as usize / THREADS).next_multiple_of(LARGE as usize);
        let (base, bytes) = (self.address as usize, self.bytes as usize);
        let touch = move |first: usize| {
            let end = (first + each).min(bytes);
            for at in (first..end).step_by(4096) {
                // SAFETY: inside the mapping, which nobody else knows yet; parts are disjoint.
                unsafe { ((base + at) as *mut u8).write_volatile(0) };
            }
        };
        if self.bytes < 4 * LARGE {
            return (0..bytes).step_by(each).for_each(touch);
        }
        thread::scope(|scope| {
            for first in (0..bytes).step_by(each) {
                scope.spawn(move || touch(first));
            }
        });
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, which nobody uses any more.
        unsafe { libc::munmap(self.address.cast(), self.bytes as usize) };
    }
}

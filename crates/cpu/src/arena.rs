//! Memory that is taken from the system once: page-aligned, zero, and given back as a whole.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use tailrace_device::DeviceError;

/// How the pages of an arena are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// All of them, again and again: large pages save most TLB misses of a pass over the weights.
    Dense,
    /// As they are needed, here and there: a large page would hold memory that nobody asked for.
    Sparse,
}

/// A run of pages. Pages that were never touched cost nothing.
///
/// Workers write disjoint parts of an arena at the same time, so an arena hands out raw pointers; who dereferences them
/// proves that no other worker uses the same bytes.
#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an arena is plain memory; its pointers are only dereferenced in unsafe blocks that justify the access.
unsafe impl Send for Arena {}
// SAFETY: as above; `&Arena` gives addresses, not access.
unsafe impl Sync for Arena {}

impl Arena {
    /// `bytes` of zeros for `what`, or the system's refusal.
    pub(crate) fn new(bytes: u64, what: &'static str, pages: Pages) -> Result<Self, DeviceError> {
        let refused = || DeviceError::OutOfMemory { what, bytes };
        let len = usize::try_from(bytes).map_err(|_| refused())?;
        if len == 0 {
            return Ok(Arena { base: NonNull::dangling(), bytes: 0 });
        }
        // SAFETY: a fresh anonymous mapping aliases nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(refused());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(refused)?;
        let advice = match pages {
            Pages::Dense => libc::MADV_HUGEPAGE,
            Pages::Sparse => libc::MADV_NOHUGEPAGE,
        };
        // Advice that the system does not take costs time or memory, nothing else.
        // SAFETY: the range is the mapping made above.
        unsafe { libc::madvise(base.as_ptr().cast(), len, advice) };
        Ok(Arena { base, bytes: len })
    }

    /// Address of the byte at `offset`; `offset + len` is checked against the arena.
    pub(crate) fn at(&self, offset: u64, len: u64) -> *mut u8 {
        let end = offset.checked_add(len).expect("an arena range does not wrap");
        assert!(end <= self.bytes as u64, "range {offset}..{end} of an arena of {} bytes", self.bytes);
        // SAFETY: `offset` lies inside the mapping, or is its end.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the mapping was made by `new` with this length, and nothing borrows from it any more.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let arena = Arena::new(100, "test", Pages::Dense).unwrap();
        assert_eq!(arena.at(0, 100) as usize % 4096, 0);
        assert!(std::panic::catch_unwind(|| arena.at(1, 100)).is_err());
        assert!(std::panic::catch_unwind(|| arena.at(u64::MAX, 2)).is_err());
    }

    #[test]
    fn a_refusal_is_an_error() {
        let error = Arena::new(1 << 62, "the test", Pages::Sparse).unwrap_err();
        assert!(error.to_string().contains("for the test"), "{error}");
    }
}

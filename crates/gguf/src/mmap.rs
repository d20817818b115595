//! A file mapped into memory: the only `unsafe` code of this room.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, MmapOptions};

/// A touch maps more than the page that it needs: its neighbours, up to a whole large folio of the page cache. So a release begins
/// this much earlier than asked. Without it a loader that goes tensor by tensor kept 25 KiB mapped for each.
#[cfg(unix)]
const NEIGHBOURS_BYTES: usize = 2 << 20;

/// A whole file, read-only.
pub(crate) struct Mapping {
    map: Mmap,
    file: File,
}

impl Mapping {
    /// Maps the regular file at `path`, exactly as long as it is now.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let stat = file.metadata()?;
        if !stat.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let len = usize::try_from(stat.len())
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than the address space"))?;
        // SAFETY: the map is read-only and private to this struct, which keeps it alive as long as any slice of it. Its bytes are
        // plain `u8`, for which every pattern is valid; the parser copies what it checks, and tensor data is sound for any bits. What
        // remains is the contract of every memory-mapped reader: a file that another process truncates while it is mapped ends this
        // one with SIGBUS (it cannot corrupt memory), and callers check `len_now` before they read tensor data.
        let map = unsafe { MmapOptions::new().len(len).map(&file)? };
        Ok(Self { map, file })
    }

    /// The bytes of the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The length of the file now.
    pub(crate) fn len_now(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Asks the system to read `range` ahead of its use. Only a hint: a refusal changes nothing.
    pub(crate) fn will_need(&self, range: Range<usize>) {
        #[cfg(unix)]
        if !range.is_empty() {
            let _ = self.map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Gives the pages of `range`, rounded outward, back to the system; a later read brings them in again. Only a hint.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if !range.is_empty() {
            let start = range.start.saturating_sub(NEIGHBOURS_BYTES);
            // SAFETY: the mapping is file-backed and was never written, so a dropped page is read again from the file with the bytes
            // it had; slices of the map stay valid. `advise_range` checks the range against the map.
            let _ = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, range.end - start)
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

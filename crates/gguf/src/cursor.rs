//! A checked cursor over untrusted bytes.

/// Reads little-endian values front to back. Every method answers `None`, and moves nothing, where the bytes run out.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Goes back to `at`, a place that was read before.
    pub(crate) fn rewind(&mut self, at: usize) {
        debug_assert!(at <= self.at);
        self.at = self.at.min(at);
    }

    /// Bytes not yet read.
    pub(crate) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `len` bytes. `len` comes from the file, so it is compared as it is, never added or narrowed first.
    pub(crate) fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        if len > self.remaining() {
            return None;
        }
        let start = self.at;
        self.at += len as usize;
        Some(&self.bytes[start..self.at])
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N as u64)?.try_into().ok()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_reads_past_the_end() {
        let mut cursor = Cursor::new(&[1, 0, 0, 0, 9]);
        assert_eq!(cursor.u32(), Some(1));
        assert_eq!(cursor.u32(), None);
        assert_eq!(cursor.take(u64::MAX), None);
        assert_eq!((cursor.at(), cursor.remaining()), (4, 1));
        assert_eq!(cursor.array(), Some([9]));
        assert_eq!(cursor.take(0), Some(&[][..]));
        assert_eq!(cursor.array::<1>(), None);
    }
}

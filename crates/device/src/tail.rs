//! How much of the tail's memory was written.

use tailrace_types::{ExtentId, HostBlockId};

/// Blocks of the tail that were written, now and at most. Blocks of an extent are filled in order, so those that were written
/// are its first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailUse {
    extent_blocks: u32,
    /// Of each extent.
    written: Vec<u32>,
    blocks: u32,
    most: u32,
}

impl TailUse {
    /// A tail of at most `extents` extents of `extent_blocks` blocks, none of them written.
    pub fn new(extents: u32, extent_blocks: u32) -> Self {
        TailUse { extent_blocks, written: vec![0; extents as usize], blocks: 0, most: 0 }
    }

    /// Says that a block was written.
    pub fn wrote(&mut self, block: HostBlockId) {
        if let Some(written) = self.written.get_mut((block.0 / self.extent_blocks) as usize) {
            let now = (block.0 % self.extent_blocks + 1).max(*written);
            self.blocks += now - *written;
            *written = now;
            self.most = self.most.max(self.blocks);
        }
    }

    /// Says that an extent was given back.
    pub fn gave_back(&mut self, extent: ExtentId) {
        if let Some(written) = self.written.get_mut(extent.0 as usize) {
            self.blocks -= std::mem::take(written);
        }
    }

    /// Most blocks at once.
    pub fn most(&self) -> u32 {
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_at_once() {
        let mut tail = TailUse::new(2, 4);
        // A block written last has those before it in its extent.
        [2, 1, 4].into_iter().for_each(|block| tail.wrote(HostBlockId(block)));
        assert_eq!(tail.most(), 4);
        tail.gave_back(ExtentId(0));
        tail.wrote(HostBlockId(5));
        assert_eq!(tail.most(), 4);
        [6, 7].into_iter().for_each(|block| tail.wrote(HostBlockId(block)));
        tail.wrote(HostBlockId(0));
        assert_eq!(tail.most(), 5);
        // Past the limit: nothing to count.
        tail.wrote(HostBlockId(8));
        tail.gave_back(ExtentId(2));
        assert_eq!(tail.most(), 5);
    }
}

//! The ring that tail blocks are staged in, as arithmetic: which block is copied next, and to which slot.
//!
//! A step reads the same list of `n` tail blocks in each of its layers, ascending: entry `j` of layer `l` is number `l n + j`
//! of the step. Numbers go on from step to step, and number `i` lies in slot `i % slots`. So the copies of all layers, and of
//! the next step as long as its list is the same, form one sequence that never depends on a query (streaming-attention,
//! section 13); the link idles only when every slot holds a block that was not consumed yet.

use tailrace_types::HostBlockId;

/// Blocks that are copied in one go: consecutive in host memory and in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Number of its first block in the sequence of copies.
    pub(crate) first: u64,
    /// Index among the layers that have a tail.
    pub(crate) layer: u32,
    /// Its first block.
    pub(crate) block: HostBlockId,
    /// How many.
    pub(crate) blocks: u32,
    /// The slot of its first block.
    pub(crate) slot: u32,
}

/// Positions in the sequence of copies.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    slots: u64,
    layers: u64,
    extent_blocks: u32,
    tile_blocks: u64,
    list: Vec<HostBlockId>,
    /// Number of entry 0 of layer 0 of the current step.
    base: u64,
    /// Copies that were given to the link.
    issued: u64,
    /// Copies whose readers were given to the device.
    consumed: u64,
    /// Whether the sequence may go on into the next step.
    ahead: bool,
}

impl Ring {
    /// A ring of `slots` for `layers` layers with a tail. Copies take at most `tile_blocks` blocks, and lists at most `blocks_max`.
    pub(crate) fn new(slots: u32, layers: u32, extent_blocks: u32, tile_blocks: u32, blocks_max: usize) -> Self {
        Ring {
            slots: slots.into(),
            layers: layers.into(),
            extent_blocks: extent_blocks.max(1),
            tile_blocks: tile_blocks.clamp(1, slots.max(1)).into(),
            list: Vec::with_capacity(blocks_max),
            base: 0,
            issued: 0,
            consumed: 0,
            ahead: false,
        }
    }

    /// Begins a step that reads `list`. What was copied ahead for another list is passed over. `ahead`: the next step will
    /// probably read the same list.
    pub(crate) fn begin(&mut self, list: &[HostBlockId], ahead: bool) {
        if self.list != list {
            self.list.clear();
            self.list.extend_from_slice(list);
            self.forget();
        }
        self.ahead = ahead;
    }

    /// Passes over what was copied ahead: its blocks may hold something else now.
    pub(crate) fn forget(&mut self) {
        (self.base, self.consumed) = (self.issued, self.issued);
    }

    /// Whether a copy ahead of the current step has read, or is going to read, `block`.
    pub(crate) fn holds(&self, block: HostBlockId) -> bool {
        self.issued > self.base && self.list.contains(&block)
    }

    /// Ends the step.
    pub(crate) fn end(&mut self) {
        self.base += self.layers * self.entries();
        debug_assert!(self.consumed == self.base && self.issued >= self.base);
    }

    /// Blocks of the current step's list.
    pub(crate) fn entries(&self) -> u64 {
        self.list.len() as u64
    }

    /// Number of entry 0 of `layer`.
    pub(crate) fn first(&self, layer: u32) -> u64 {
        self.base + u64::from(layer) * self.entries()
    }

    /// Slot of entry 0 of `layer`.
    pub(crate) fn first_slot(&self, layer: u32) -> u32 {
        (self.first(layer) % self.slots.max(1)) as u32
    }

    /// Entries of one launch: the whole layer where the ring holds it twice, so that the next one arrives meanwhile; else half
    /// of what the ring holds.
    pub(crate) fn launch_entries(&self) -> u64 {
        if 2 * self.entries() <= self.slots { self.entries() } else { (self.slots / 2).max(1) }
    }

    /// The next copy, if there is a slot for it and something left to send. Copies cut short by a lack of slots wait for more,
    /// unless number `needed` is not yet among them.
    pub(crate) fn next(&mut self, needed: u64) -> Option<Tile> {
        let entries = self.entries();
        let steps = if self.ahead { 2 } else { 1 };
        let at = self.issued - self.base;
        let free = self.consumed + self.slots - self.issued;
        // Slots are taken up some at a time: each time the link waits for a mark of their readers, which costs the readers' stream
        // a few microseconds.
        let enough = if self.issued < needed { 1 } else { (self.slots / 8).max(1) };
        if entries == 0 || at >= steps * self.layers * entries || free < enough {
            return None;
        }
        let (layer, entry) = (at / entries % self.layers, at % entries);
        let slot = self.issued % self.slots;
        let most = self.tile_blocks.min(entries - entry).min(self.slots - slot);
        let run = self.run(entry as usize, most as usize);
        if run > free && self.issued >= needed {
            return None;
        }
        let blocks = run.min(free);
        let tile = Tile {
            first: self.issued,
            layer: layer as u32,
            block: self.list[entry as usize],
            blocks: blocks as u32,
            slot: slot as u32,
        };
        self.issued += blocks;
        Some(tile)
    }

    /// Entries from `entry` on, at most `most`, that follow each other in one extent.
    fn run(&self, entry: usize, most: usize) -> u64 {
        let first = self.list[entry];
        let follows = |(i, block): (usize, &HostBlockId)| {
            block.0 == first.0 + i as u32 && block.0 / self.extent_blocks == first.0 / self.extent_blocks
        };
        self.list[entry..entry + most].iter().enumerate().take_while(|&x| follows(x)).count() as u64
    }

    /// Number before which the readers of everything were given to the device.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Says that the readers of everything before number `end` were given to the device.
    pub(crate) fn consume(&mut self, end: u64) {
        debug_assert!(self.consumed <= end && end <= self.issued);
        self.consumed = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a step as the executor does; checks that every launch finds its blocks in their slots.
    fn step(ring: &mut Ring, held: &mut [Option<(u32, HostBlockId)>], list: &[HostBlockId], ahead: bool) -> u64 {
        ring.begin(list, ahead);
        let mut copied = 0;
        for layer in 0..ring.layers as u32 {
            let (first, entries) = (ring.first(layer), ring.entries());
            let mut done = 0;
            while done < entries {
                let end = entries.min(done + ring.launch_entries());
                while let Some(tile) = ring.next(first + end) {
                    for i in 0..tile.blocks {
                        let entry = HostBlockId(tile.block.0 + i);
                        held[(tile.slot + i) as usize] = Some((tile.layer, entry));
                    }
                    assert_eq!(tile.block.0 / 4, (tile.block.0 + tile.blocks - 1) / 4, "one extent");
                    copied += u64::from(tile.blocks);
                }
                assert!(ring.issued >= first + end, "what a launch needs was issued");
                for entry in done..end {
                    let slot = (u64::from(ring.first_slot(layer)) + entry) % ring.slots;
                    assert_eq!(held[slot as usize], Some((layer, list[entry as usize])));
                }
                ring.consume(first + end);
                done = end;
            }
        }
        while let Some(tile) = ring.next(0) {
            for i in 0..tile.blocks {
                held[(tile.slot + i) as usize] = Some((tile.layer, HostBlockId(tile.block.0 + i)));
            }
            copied += u64::from(tile.blocks);
        }
        ring.end();
        copied
    }

    proptest! {
        #[test]
        fn launches_find_their_blocks(
            slots in 1u32..40,
            layers in 1u32..6,
            tile in 1u32..9,
            steps in prop::collection::vec((0u32..30, 0u32..50, any::<bool>()), 1..8),
        ) {
            let mut ring = Ring::new(slots, layers, 4, tile, 64);
            let mut held = vec![None; slots as usize];
            let (mut copied, mut read) = (0, 0);
            for (first, count, ahead) in steps {
                let list: Vec<_> = (first..first + count).filter(|b| b % 7 != 3).map(HostBlockId).collect();
                copied += step(&mut ring, &mut held, &list, ahead);
                read += u64::from(layers) * list.len() as u64;
                // Nothing is copied twice but what was copied ahead for another list: one ring at most for each change.
                prop_assert!(copied >= read);
            }
        }

        #[test]
        fn a_steady_list_is_copied_once_a_step(slots in 1u32..40, layers in 1u32..6, count in 1u32..50, steps in 1u64..6) {
            let mut ring = Ring::new(slots, layers, 4, 4, 64);
            let mut held = vec![None; slots as usize];
            let list: Vec<_> = (0..count).map(HostBlockId).collect();
            let copied: u64 = (0..steps).map(|_| step(&mut ring, &mut held, &list, true)).sum();
            let read = steps * u64::from(layers * count);
            prop_assert!(copied >= read && copied <= read + u64::from(slots));
        }
    }

    #[test]
    fn another_list_passes_over_what_was_ahead() {
        let mut ring = Ring::new(8, 2, 4, 4, 16);
        let mut held = vec![None; 8];
        let one: Vec<_> = (0..3).map(HostBlockId).collect();
        let two: Vec<_> = (4..7).map(HostBlockId).collect();
        assert_eq!(step(&mut ring, &mut held, &one, true), 12, "the step's 6 and the next one's");
        assert!(ring.holds(HostBlockId(1)));
        assert_eq!(step(&mut ring, &mut held, &two, false), 6);
        assert!(!ring.holds(HostBlockId(1)) && !ring.holds(HostBlockId(5)));
    }
}

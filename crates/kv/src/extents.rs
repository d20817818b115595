//! Host memory: extents of consecutive blocks.
//!
//! A block prefers the place after its predecessor, so that a run of blocks of a sequence is one run of host memory. Only at
//! the limit are free places of other extents used, in any order: then every place counts.

use tailrace_types::{ExtentId, HostBlockId};

use crate::KvConfig;

/// One extent.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    /// Whether its memory exists.
    live: bool,
    /// Places in use.
    used: u32,
}

/// All extents that the limit allows.
#[derive(Clone, Debug)]
pub(crate) struct Extents {
    extent_blocks: u32,
    extents: Vec<Extent>,
    /// For each host block: whether it is in use.
    used: Vec<bool>,
    live: u32,
    used_count: u64,
    /// Extents that may be live; falls when the machine refuses memory.
    limit: u32,
}

impl Extents {
    pub(crate) fn new(config: &KvConfig) -> Self {
        let extents_max = if config.spills { config.extents_max } else { 0 };
        let blocks = u64::from(extents_max) * u64::from(config.extent_blocks);
        Self {
            extent_blocks: config.extent_blocks,
            extents: vec![Extent::default(); extents_max as usize],
            used: vec![false; blocks as usize],
            live: 0,
            used_count: 0,
            limit: extents_max,
        }
    }

    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn used(&self) -> u64 {
        self.used_count
    }

    pub(crate) fn is_used(&self, block: HostBlockId) -> bool {
        self.used[block.0 as usize]
    }

    /// Blocks that can still be placed.
    pub(crate) fn room(&self) -> u64 {
        (u64::from(self.limit) * u64::from(self.extent_blocks)).saturating_sub(self.used_count)
    }

    /// Extents that `more` further blocks would need.
    pub(crate) fn needed(&self, more: u64) -> u64 {
        (self.used_count + more).div_ceil(u64::from(self.extent_blocks))
    }

    /// A place for block number `block` of a sequence whose previous block is at `previous`, and the extent that must grow for
    /// it. `None` at the limit.
    pub(crate) fn place(
        &mut self,
        block: u32,
        previous: Option<HostBlockId>,
    ) -> Option<(HostBlockId, Option<ExtentId>)> {
        let lane = block % self.extent_blocks;
        let neighbour =
            previous.map(|p| HostBlockId(p.0 + 1)).filter(|n| n.0 % self.extent_blocks != 0 && !self.is_used(*n));
        let mut grown = None;
        let host = if let Some(host) = neighbour {
            host
        } else if let Some(e) = self.find(|e| e.live && e.used == 0) {
            HostBlockId(e * self.extent_blocks + lane)
        } else if self.live < self.limit {
            let e = self.find(|e| !e.live)?;
            self.extents[e as usize].live = true;
            self.live += 1;
            grown = Some(ExtentId(e));
            HostBlockId(e * self.extent_blocks + lane)
        } else {
            let e = self.find(|e| e.live && e.used < self.extent_blocks)?;
            let first = e * self.extent_blocks;
            let free = (first..first + self.extent_blocks).find(|&b| !self.used[b as usize])?;
            HostBlockId(free)
        };
        self.used[host.0 as usize] = true;
        self.extents[(host.0 / self.extent_blocks) as usize].used += 1;
        self.used_count += 1;
        Some((host, grown))
    }

    fn find(&self, rule: impl Fn(&Extent) -> bool) -> Option<u32> {
        self.extents.iter().position(rule).map(|e| e as u32)
    }

    /// Frees a place.
    pub(crate) fn free(&mut self, block: HostBlockId) {
        self.used[block.0 as usize] = false;
        self.extents[(block.0 / self.extent_blocks) as usize].used -= 1;
        self.used_count -= 1;
    }

    /// Live extents without a block.
    pub(crate) fn empty(&self) -> impl Iterator<Item = ExtentId> {
        let empty = |(_, e): &(usize, &Extent)| e.live && e.used == 0;
        let id = |(i, _)| ExtentId(i as u32);
        self.extents.iter().enumerate().filter(empty).map(id)
    }

    /// The memory of an empty extent is gone.
    pub(crate) fn retire(&mut self, extent: ExtentId) {
        self.extents[extent.0 as usize].live = false;
        self.live -= 1;
    }

    /// The machine refused to grow: what is live now is the limit.
    pub(crate) fn limit_to_live(&mut self) {
        self.limit = self.live;
    }

    /// Whether the counts agree with the places.
    pub(crate) fn consistent(&self) -> bool {
        let places = self.used.chunks(self.extent_blocks as usize);
        let count = |p: &[bool]| p.iter().filter(|u| **u).count() as u32;
        let each = self.extents.iter().zip(places);
        each.clone().all(|(e, p)| e.used == count(p) && (e.live || e.used == 0))
            && each.clone().map(|(e, _)| u64::from(e.used)).sum::<u64>() == self.used_count
            && each.filter(|(e, _)| e.live).count() == self.live as usize
            && self.live <= self.limit
    }
}

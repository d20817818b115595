//! Transfers: the movements of whole blocks that a step plan asks for.
//!
//! Blocks go to the host on a stream of their own. Each batch of copies has a number; frames and host blocks remember the last
//! batch that named them, and whoever uses them next waits for it.

use std::sync::Arc;

use tailrace_device::kv::{KvConfig, Transfer};
use tailrace_device::plan::{CachePlace, Plan};
use tailrace_device::{DeviceError, Traffic};
use tailrace_types::{ExtentId, FrameId, HostBlockId, KvType, SlotId};

use crate::arenas::Arenas;
use crate::driver::owned::Owned;
use crate::driver::{Driver, Event, Stream};
use crate::marks::Marks;
use crate::ring::Ring;

/// Batches of copies to the host that are told apart.
const BATCHES: usize = 32;

/// What a transfer works on.
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) arenas: &'a mut Arenas,
    pub(crate) traffic: &'a mut Traffic,
    /// Fill dropped frames with NaN.
    pub(crate) poison: bool,
    /// Says whether the link may still read a host block, ahead of a step.
    pub(crate) ring: &'a Ring,
}

/// The cleaner: copies to the host, and who waits for them.
pub(crate) struct Transfers {
    driver: Arc<dyn Driver>,
    /// Marks of the batches, for the compute stream and for the link.
    to_compute: Marks,
    to_link: Marks,
    /// The last batch.
    batch: u64,
    /// Last batch that read each core frame, and that wrote each host block.
    frame_batch: Vec<u64>,
    block_batch: Vec<u64>,
    /// Marks work that the cleaner must wait for.
    computed: Owned<Event>,
    linked: Owned<Event>,
    /// A copy that is ahead in the ring is out of date.
    stale: bool,
}

impl Transfers {
    pub(crate) fn new(driver: Arc<dyn Driver>, plan: &Plan) -> Result<Self, DeviceError> {
        let cache = &plan.cache;
        // The cache names frames even where no layer keeps anything in them.
        let KvConfig { core_frames, overlay_frames, .. } = KvConfig::of(plan);
        Ok(Transfers {
            to_compute: Marks::new(&driver, Stream::Clean, Stream::Compute, BATCHES)?,
            to_link: Marks::new(&driver, Stream::Clean, Stream::Link, BATCHES)?,
            batch: 0,
            frame_batch: vec![0; (core_frames + overlay_frames) as usize],
            block_batch: vec![0; cache.extents_max as usize * cache.extent_blocks as usize],
            computed: Owned::event(&driver, false)?,
            linked: Owned::event(&driver, false)?,
            stale: false,
            driver,
        })
    }

    /// Whether what the ring copied ahead must be forgotten; asked once.
    pub(crate) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }

    /// Lets the link wait until a host block is written.
    pub(crate) fn link_waits_for(&mut self, block: HostBlockId) -> Result<(), DeviceError> {
        let batch = self.block_batch[block.0 as usize];
        self.to_link.wait(&*self.driver, batch)
    }

    fn compute_waits_for_frame(&mut self, frame: FrameId) -> Result<(), DeviceError> {
        let batch = self.frame_batch[frame.0 as usize];
        self.to_compute.wait(&*self.driver, batch)
    }

    /// Makes the transfers that come before a step.
    pub(crate) fn before(&mut self, context: &mut Context<'_>, transfers: &[Transfer]) -> Result<(), DeviceError> {
        for &transfer in transfers {
            match transfer {
                Transfer::Drop { frame } => {
                    self.compute_waits_for_frame(frame)?;
                    if context.poison {
                        self.poison(context, frame)?;
                    }
                }
                Transfer::Fresh { frame } => {
                    self.compute_waits_for_frame(frame)?;
                    self.zero_values(context, frame)?;
                }
                Transfer::Fetch { from, to } => self.fetch(context, from, to)?,
                Transfer::Copy { from, to } => self.copy(context, from, to)?,
                Transfer::CopyRing { from, to } => self.copy_ring(context, from, to)?,
                Transfer::Grow { .. } | Transfer::Clean { .. } | Transfer::Shrink { .. } => {
                    return Err(DeviceError::Misuse("a transfer that comes after the compute came before it"));
                }
            }
        }
        Ok(())
    }

    /// Starts the transfers that come after a step. If the system refuses memory for a `Grow`, what grew before it is given back,
    /// nothing is copied, and what was to shrink still does.
    pub(crate) fn after(&mut self, context: &mut Context<'_>, transfers: &[Transfer]) -> Result<(), DeviceError> {
        if transfers.is_empty() {
            return Ok(());
        }
        let grown = self.grow(context, transfers);
        if grown.is_ok() {
            self.clean(context, transfers)?;
        }
        for &transfer in transfers {
            if let Transfer::Shrink { extent } = transfer {
                self.shrink(context, extent)?;
            }
        }
        grown
    }

    fn grow(&mut self, context: &mut Context<'_>, transfers: &[Transfer]) -> Result<(), DeviceError> {
        for (i, &transfer) in transfers.iter().enumerate() {
            let Transfer::Grow { extent } = transfer else { continue };
            let Err(refusal) = context.arenas.grow(context.plan, extent) else { continue };
            for &made in &transfers[..i] {
                if let Transfer::Grow { extent } = made {
                    context.arenas.shrink(extent)?;
                }
            }
            return Err(refusal);
        }
        Ok(())
    }

    /// Copies full blocks to the host, after the step that filled them.
    fn clean(&mut self, context: &mut Context<'_>, transfers: &[Transfer]) -> Result<(), DeviceError> {
        let mut any = false;
        for &transfer in transfers {
            let Transfer::Clean { from, to } = transfer else { continue };
            if !any {
                self.batch += 1;
                self.driver.record(Stream::Compute, *self.computed)?;
                self.driver.wait(Stream::Clean, *self.computed)?;
                any = true;
            }
            if context.ring.holds(to) {
                self.stale = true;
                self.driver.record(Stream::Link, *self.linked)?;
                self.driver.wait(Stream::Clean, *self.linked)?;
            }
            for (_, layer) in context.plan.cache.global_layers() {
                let source = context.arenas.frame_block(context.plan, layer, from);
                let target = context.arenas.host_block(context.plan, layer, to)?;
                self.driver.copy_out(Stream::Clean, target, source, layer.block_bytes)?;
            }
            self.frame_batch[from.0 as usize] = self.batch;
            self.block_batch[to.0 as usize] = self.batch;
            context.arenas.note_host_block(to);
            context.traffic.tail_written_bytes += context.plan.cache.frame_bytes;
        }
        if any {
            self.to_compute.record(&*self.driver, self.batch)?;
            self.to_link.record(&*self.driver, self.batch)?;
        }
        Ok(())
    }

    fn fetch(&mut self, context: &mut Context<'_>, from: HostBlockId, to: FrameId) -> Result<(), DeviceError> {
        self.compute_waits_for_frame(to)?;
        let batch = self.block_batch[from.0 as usize];
        self.to_compute.wait(&*self.driver, batch)?;
        for (_, layer) in context.plan.cache.global_layers() {
            let source = context.arenas.host_block(context.plan, layer, from)?;
            let target = context.arenas.frame_block(context.plan, layer, to);
            self.driver.copy_in(Stream::Compute, target, source, layer.block_bytes)?;
        }
        context.traffic.tail_fetched_bytes += context.plan.cache.frame_bytes;
        Ok(())
    }

    fn copy(&mut self, context: &mut Context<'_>, from: FrameId, to: FrameId) -> Result<(), DeviceError> {
        self.compute_waits_for_frame(to)?;
        for (_, layer) in context.plan.cache.global_layers() {
            let source = context.arenas.frame_block(context.plan, layer, from);
            let target = context.arenas.frame_block(context.plan, layer, to);
            self.driver.copy(Stream::Compute, target, source, layer.block_bytes)?;
        }
        Ok(())
    }

    fn copy_ring(&self, context: &mut Context<'_>, from: SlotId, to: SlotId) -> Result<(), DeviceError> {
        let plan = context.plan;
        let Some(ring) = plan.cache.sliding else { return Ok(()) };
        for layer in plan.cache.layers.iter().filter(|l| matches!(l.place, CachePlace::Rings { .. })) {
            let (source, target) = (context.arenas.sliding(plan, layer, from), context.arenas.sliding(plan, layer, to));
            self.driver.copy(Stream::Compute, target, source, u64::from(ring.ring_blocks) * layer.block_bytes)?;
        }
        Ok(())
    }

    /// A frame handed out for appends has its V zeroed: a product of weight 0 with garbage could be NaN.
    fn zero_values(&self, context: &mut Context<'_>, frame: FrameId) -> Result<(), DeviceError> {
        for (i, layer) in context.plan.cache.global_layers() {
            let shape = &context.plan.layers[i].shape;
            let k_bytes = u64::from(shape.kv_heads) * shape.k_head_bytes();
            let block = context.arenas.frame_block(context.plan, layer, frame);
            self.driver.set(Stream::Compute, block + k_bytes, 0, layer.block_bytes - k_bytes)?;
        }
        Ok(())
    }

    /// Fills a frame with NaN, whatever its types: all ones is a NaN in f16, bf16 and f32.
    fn poison(&self, context: &mut Context<'_>, frame: FrameId) -> Result<(), DeviceError> {
        const { assert!(KvType::ALL.len() <= 3, "check that all ones is a NaN of the new type") };
        for (_, layer) in context.plan.cache.global_layers() {
            let block = context.arenas.frame_block(context.plan, layer, frame);
            self.driver.set(Stream::Compute, block, 0xff, layer.block_bytes)?;
        }
        Ok(())
    }

    /// Gives an extent back once nothing uses it.
    fn shrink(&mut self, context: &mut Context<'_>, extent: ExtentId) -> Result<(), DeviceError> {
        let each = context.plan.cache.extent_blocks;
        for block in extent.0 * each..(extent.0 + 1) * each {
            self.stale |= context.ring.holds(HostBlockId(block));
        }
        for stream in [Stream::Link, Stream::Clean, Stream::Compute] {
            self.driver.synchronize(stream)?;
        }
        context.arenas.shrink(extent)
    }
}

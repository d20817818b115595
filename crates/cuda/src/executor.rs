//! The executor: gives a plan's launches, copies and waits to three streams, and never waits for the device itself but where
//! its caller wants a result.

use std::ops::Range;
use std::sync::Arc;

use tailrace_device::kv::Phase;
use tailrace_device::plan::{MemoryRow, Plan, RowKind};
use tailrace_device::{Candidate, DeviceError, Executor, HighWater, Probe, Submission, Traffic};
use tailrace_types::{BLOCK_CELLS, HostBlockId};

use crate::arenas::Arenas;
use crate::driver::owned::Owned;
use crate::driver::{Driver, Event, Kernel, Stream};
use crate::host::{Gathered, Pinned};
use crate::launch::head::TOP_MAX;
use crate::marks::Marks;
use crate::params::{AttentionParams, StepView};
use crate::program::{Compiled, Item, Programs, Site, SiteKind};
use crate::ring::Ring;
use crate::step::{FlatStep, StepLayout, write_wanted};
use crate::transfer::{self, Transfers};

/// Steps that may be uploaded before the first of them has begun.
const STAGING: usize = 3;

/// Bytes of one copy over the link at most: with more, one copy delays the next block that something waits for.
const TILE_BYTES: u64 = 8 << 20;

/// A page-locked copy of what is uploaded for a step, and the event after which it may be written again.
struct Staging {
    memory: Pinned,
    free: Owned<Event>,
}

/// The copies in turn.
struct Stagings {
    copies: [Staging; STAGING],
    next: usize,
}

impl Stagings {
    fn new(driver: &Arc<dyn Driver>, bytes: u64) -> Result<Self, DeviceError> {
        let copy = || {
            let memory = Pinned::new(Arc::clone(driver), bytes)?;
            Ok::<_, DeviceError>(Staging { memory, free: Owned::event(driver, false)? })
        };
        Ok(Stagings { copies: [copy()?, copy()?, copy()?], next: 0 })
    }

    /// The next one, once the device has read what it held.
    fn take(&mut self, driver: &dyn Driver) -> Result<&mut Staging, DeviceError> {
        let staging = &mut self.copies[self.next];
        self.next = (self.next + 1) % STAGING;
        driver.wait_host(*staging.free)?;
        Ok(staging)
    }
}

/// What the last submission left in the head's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    /// Nothing.
    Empty,
    /// Logits and candidates of its first rows, in order.
    First(u32),
}

/// A card that runs a plan.
pub(crate) struct CudaExecutor {
    // Dropped in this order: what uses memory before the memory.
    programs: Programs,
    staging: Stagings,
    /// Logits and candidates on the host.
    results: Pinned,
    candidates: Vec<Candidate>,
    done: Owned<Event>,
    transfers: Transfers,
    arrived: Marks,
    consumed: Marks,
    pub(crate) arenas: Arenas,
    ring: Ring,
    step: FlatStep,
    layout: StepLayout,
    gathered: Option<Gathered>,
    head: Head,
    traffic: Traffic,
    poison: bool,
    pub(crate) plan: Plan,
    pub(crate) driver: Arc<dyn Driver>,
}

/// What an executor is made of.
pub(crate) struct Parts {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) plan: Plan,
    pub(crate) arenas: Arenas,
    pub(crate) programs: Programs,
    pub(crate) layout: StepLayout,
    pub(crate) gathered: Option<Gathered>,
    pub(crate) poison: bool,
}

impl CudaExecutor {
    pub(crate) fn new(parts: Parts) -> Result<Self, DeviceError> {
        let Parts { driver, plan, arenas, programs, layout, gathered, poison } = parts;
        let cache = &plan.cache;
        let layers = cache.global_layers().count() as u32;
        let tile_blocks = (TILE_BYTES / cache.slot_bytes.max(1)).clamp(1, u64::from(cache.extent_blocks)) as u32;
        let blocks = cache.sequence_blocks as usize * plan.limits.sequences as usize;
        let marks = cache.ring_slots as usize + 2;
        let logits = u64::from(plan.limits.logit_rows) * u64::from(plan.vocab) * 4;
        let candidates = plan.limits.logit_rows as usize * TOP_MAX as usize;
        Ok(CudaExecutor {
            staging: Stagings::new(&driver, layout.frequencies)?,
            results: Pinned::new(Arc::clone(&driver), logits + candidates as u64 * 8)?,
            candidates: Vec::with_capacity(candidates),
            done: Owned::event(&driver, false)?,
            transfers: Transfers::new(Arc::clone(&driver), &plan)?,
            arrived: Marks::new(&driver, Stream::Link, Stream::Compute, marks)?,
            consumed: Marks::new(&driver, Stream::Compute, Stream::Link, marks)?,
            ring: Ring::new(cache.ring_slots, layers, cache.extent_blocks, tile_blocks, blocks),
            step: FlatStep::with_capacity(&plan, programs.shares_tail()),
            head: Head::Empty,
            traffic: Traffic::default(),
            programs,
            arenas,
            layout,
            gathered,
            poison,
            plan,
            driver,
        })
    }

    /// Takes over a submission and makes what comes before its compute.
    fn begin(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.driver.enter()?;
        submission.check(&self.plan)?;
        self.step.set(submission);
        self.head = Head::Empty;
        if self.transfers.take_stale() {
            self.ring.forget();
        }
        let (transfers, mut context) = self.transfers();
        transfers.before(&mut context, &submission.cache.before)?;
        if !self.step.rows.is_empty() {
            self.upload()?;
        }
        Ok(())
    }

    /// Starts what comes after the compute.
    fn end(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        let (transfers, mut context) = self.transfers();
        transfers.after(&mut context, &submission.cache.after)
    }

    /// The transfers, and what they work on.
    fn transfers(&mut self) -> (&mut Transfers, transfer::Context<'_>) {
        let CudaExecutor { plan, arenas, traffic, ring, transfers, poison, .. } = self;
        (transfers, transfer::Context { plan, arenas, traffic, ring, poison: *poison })
    }

    /// Uploads the step's rows and tables to their fixed place.
    fn upload(&mut self) -> Result<(), DeviceError> {
        let base = self.arenas.row(RowKind::Step);
        let staging = self.staging.take(&*self.driver)?;
        let bytes = self.step.write(&self.layout, staging.memory.bytes_mut());
        self.driver.copy_in(Stream::Compute, base, staging.memory.address(), bytes)?;
        if let Some(gathered) = &self.gathered {
            let at = self.layout.gathered;
            let tokens = self.step.rows.iter().map(|row| row.token);
            let bytes = gathered.gather(tokens, &mut staging.memory.bytes_mut()[at as usize..]);
            self.driver.copy_in(Stream::Compute, base + at, staging.memory.at(at), bytes)?;
        }
        self.driver.record(Stream::Compute, *staging.free)?;
        self.arenas.note(RowKind::Step, self.layout.bytes);
        Ok(())
    }

    /// Gives the step's program to the device.
    fn compute(&mut self) -> Result<(), DeviceError> {
        let (phase, rows) = (self.step.phase, self.step.rows.len() as u32);
        let program = match phase {
            Phase::Prefill => &self.plan.prefill,
            Phase::Decode => &self.plan.decode,
        };
        self.arenas.note_program(RowKind::Workspace, program, rows);
        self.note_fixed();
        // A decode step is mostly followed by one that reads the same tail; a chunk is followed by one that reads more.
        self.ring.begin(&self.step.tail, phase == Phase::Decode);
        let compiled = match phase {
            Phase::Prefill => self.programs.prefill(rows),
            Phase::Decode => self.programs.decode(rows),
        };
        match self.step.tail.is_empty() && !compiled.graphs.is_empty() {
            true => compiled.graphs.iter().try_for_each(|graph| self.driver.launch_graph(**graph))?,
            false => {
                let (driver, poison) = (Arc::clone(&self.driver), self.poison);
                let mut flow = Flow {
                    driver: &*driver,
                    plan: &self.plan,
                    arenas: &mut self.arenas,
                    step: &self.step,
                    ring: &mut self.ring,
                    arrived: &mut self.arrived,
                    consumed: &mut self.consumed,
                    transfers: &mut self.transfers,
                    traffic: &mut self.traffic,
                    poison,
                };
                flow.run(compiled)?;
                flow.pump(0)?;
            }
        }
        self.ring.end();
        if phase == Phase::Decode && compiled.rows <= self.plan.limits.logit_rows {
            self.copy_out_candidates(rows)?;
            self.head = Head::First(rows);
        }
        Ok(())
    }

    fn note_fixed(&mut self) {
        for kind in [RowKind::Partials, RowKind::Sliding] {
            let bytes = self.arenas.row_bytes(kind);
            self.arenas.note(kind, bytes);
        }
    }

    /// Runs the head over `rows`, unless the last program did.
    fn run_head(&mut self, rows: &[u32]) -> Result<(), DeviceError> {
        if rows.len() > self.plan.limits.logit_rows as usize {
            return Err(DeviceError::Misuse("more logit rows than the plan holds"));
        }
        if rows.iter().any(|&row| row as usize >= self.step.rows.len()) {
            return Err(DeviceError::Misuse("logits of a row that was not computed"));
        }
        self.driver.enter()?;
        if let Head::First(count) = self.head
            && rows.len() as u32 <= count
            && rows.iter().zip(0..).all(|(&row, i)| row == i)
        {
            return Ok(());
        }
        self.arenas.note_program(RowKind::Head, &self.plan.head, rows.len() as u32);
        let wanted = self.layout.wanted;
        let staging = self.staging.take(&*self.driver)?;
        let bytes = write_wanted(staging.memory.bytes_mut(), rows.iter().copied(), rows.len());
        let at = self.arenas.row(RowKind::Step) + wanted;
        self.driver.copy_in(Stream::Compute, at, staging.memory.address(), bytes)?;
        self.driver.record(Stream::Compute, *staging.free)?;
        for item in &self.programs.head(self.step.phase, rows.len() as u32).items {
            let Item::Launch(prepared) = item else { continue };
            self.driver.launch(Stream::Compute, prepared.kernel, &prepared.launch)?;
        }
        self.head = Head::Empty;
        self.copy_out_candidates(rows.len() as u32)
    }

    /// Copies the candidates of the head's first rows to the host.
    fn copy_out_candidates(&mut self, rows: u32) -> Result<(), DeviceError> {
        self.arenas.note_program(RowKind::Head, &self.plan.head, rows);
        let from = self.arenas.row(RowKind::Step) + self.layout.candidates;
        let at = self.logit_bytes();
        self.driver.copy_out(Stream::Compute, self.results.at_mut(at), from, u64::from(rows * TOP_MAX) * 8)?;
        self.driver.record(Stream::Compute, *self.done)
    }

    fn logit_bytes(&self) -> u64 {
        u64::from(self.plan.limits.logit_rows) * u64::from(self.plan.vocab) * 4
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        [Stream::Compute, Stream::Link, Stream::Clean].into_iter().try_for_each(|s| self.driver.synchronize(s))
    }
}

impl Executor for CudaExecutor {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn submit(&mut self, submission: &Submission<'_>) -> Result<(), DeviceError> {
        self.begin(submission)?;
        if !self.step.rows.is_empty() {
            self.compute()?;
        }
        self.end(submission)
    }

    fn logits(&mut self, rows: &[u32]) -> Result<&[f32], DeviceError> {
        self.run_head(rows)?;
        let bytes = rows.len() as u64 * u64::from(self.plan.vocab) * 4;
        if bytes > 0 {
            let from = self.programs.logits();
            self.driver.copy_out(Stream::Compute, self.results.at_mut(0), from, bytes)?;
            self.driver.record(Stream::Compute, *self.done)?;
            self.driver.wait_host(*self.done)?;
        }
        Ok(self.results.values(0, rows.len() * self.plan.vocab as usize))
    }

    fn top_max(&self) -> u32 {
        TOP_MAX.min(self.plan.vocab)
    }

    fn top(&mut self, rows: &[u32], k: u32) -> Result<&[Candidate], DeviceError> {
        if k > self.top_max() {
            return Err(DeviceError::Misuse("more candidates than the device gives"));
        }
        self.run_head(rows)?;
        self.driver.wait_host(*self.done)?;
        self.candidates.clear();
        let all = self.results.candidates(self.logit_bytes(), rows.len() * TOP_MAX as usize);
        for row in all.chunks_exact(TOP_MAX as usize) {
            let candidate =
                |c: &crate::params::Candidate| Candidate { token: tailrace_types::TokenId(c.token), logit: c.logit };
            self.candidates.extend(row[..k as usize].iter().map(candidate));
        }
        Ok(&self.candidates)
    }

    fn fill(&mut self, submission: &Submission<'_>, seed: u64) -> Result<(), DeviceError> {
        self.begin(submission)?;
        if !self.step.rows.is_empty() {
            let rows = self.step.rows.len() as u32;
            let driver = Arc::clone(&self.driver);
            self.programs
                .fill(rows, seed, |prepared| driver.launch(Stream::Compute, prepared.kernel, &prepared.launch))?;
        }
        self.end(submission)
    }

    fn finish(&mut self) -> Result<(), DeviceError> {
        self.driver.enter()?;
        self.synchronize()
    }

    fn probe(&mut self) -> Option<&mut dyn Probe> {
        Some(self)
    }

    fn driver_bytes(&self) -> u64 {
        self.driver.used_bytes()
    }

    fn high_water(&self) -> Vec<HighWater> {
        let of = |row: &MemoryRow| HighWater {
            kind: row.kind,
            used_bytes: self.arenas.used_bytes(&self.plan, row.kind),
            row_bytes: row.bytes(),
        };
        self.plan.memory.rows.iter().map(of).collect()
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Nothing may be in flight when events and memory go; a failure has nobody to go to.
        let _ = self.driver.enter();
        let _ = self.synchronize();
    }
}

/// One step on its way to the device.
struct Flow<'a> {
    driver: &'a dyn Driver,
    plan: &'a Plan,
    arenas: &'a mut Arenas,
    step: &'a FlatStep,
    ring: &'a mut Ring,
    arrived: &'a mut Marks,
    consumed: &'a mut Marks,
    transfers: &'a mut Transfers,
    traffic: &'a mut Traffic,
    poison: bool,
}

impl Flow<'_> {
    fn run(&mut self, program: &Compiled) -> Result<(), DeviceError> {
        for item in &program.items {
            match item {
                Item::Launch(prepared) => self.driver.launch(Stream::Compute, prepared.kernel, &prepared.launch)?,
                Item::Attention(site) => self.attention(site)?,
            }
        }
        Ok(())
    }

    /// Attention of one layer: over the tail as it arrives, then over the window.
    fn attention(&mut self, site: &Site) -> Result<(), DeviceError> {
        match site.kind {
            SiteKind::Decode { partials, fold } => {
                let mut params = AttentionParams { frames: 1, ..site.params };
                match site.tail_layer.filter(|_| self.ring.entries() > 0) {
                    None => self.driver.launch(Stream::Compute, partials, &site.partials(&params))?,
                    Some(layer) => self.over_tail(layer, 0..self.ring.entries(), |flow, entries, last| {
                        params.blocks.ring_first = flow.ring.first_slot(layer);
                        (params.frames, params.tail_first, params.tail_end) = (last.into(), entries.start, entries.end);
                        flow.driver.launch(Stream::Compute, partials, &site.partials(&params))
                    })?,
                }
                self.driver.launch(Stream::Compute, fold, &site.fold(&params))
            }
            SiteKind::Whole { kernel } => {
                (0..self.step.views.len()).try_for_each(|view| self.attention_of_view(site, kernel, view))
            }
        }
    }

    /// Attention of one view by a kernel with a carry: its tail is its first leaves.
    fn attention_of_view(&mut self, site: &Site, kernel: Kernel, view: usize) -> Result<(), DeviceError> {
        let StepView { first_row, rows, first_position, leaves, .. } = self.step.views[view];
        let mut params = site.params_of_rows(first_row);
        params.rows = rows;
        let tail = self.step.tail_of(view);
        match site.tail_layer.filter(|_| !tail.is_empty()) {
            None => {
                let first = match params.window {
                    0 => 0,
                    window => (first_position + 1).saturating_sub(window) / BLOCK_CELLS,
                };
                (params.leaf_first, params.leaf_end, params.begins, params.ends) = (first, leaves, 1, 1);
                self.driver.launch(Stream::Compute, kernel, &site.whole(&params, rows))
            }
            Some(layer) => {
                let entries = u64::from(tail.start)..u64::from(tail.end);
                self.over_tail(layer, entries, |flow, entries, last| {
                    params.blocks.ring_first = flow.ring.first_slot(layer);
                    params.leaf_first = entries.start - tail.start;
                    params.leaf_end = if last { leaves } else { entries.end - tail.start };
                    (params.begins, params.ends) = ((params.leaf_first == 0).into(), last.into());
                    flow.driver.launch(Stream::Compute, kernel, &site.whole(&params, rows))
                })
            }
        }
    }

    /// Calls `launch` with `entries` of a layer's tail, as many at a time as have arrived, and whether they are the last.
    fn over_tail(
        &mut self,
        layer: u32,
        entries: Range<u64>,
        mut launch: impl FnMut(&mut Self, Range<u32>, bool) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let first = self.ring.first(layer);
        let mut done = entries.start;
        while done < entries.end {
            let end = entries.end.min(done + self.ring.launch_entries());
            self.pump(first + end)?;
            self.arrived.wait(self.driver, first + end)?;
            launch(self, done as u32..end as u32, end == entries.end)?;
            self.consume(layer, first, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// Says that slots were read, and gives them back to the link.
    fn consume(&mut self, layer: u32, first: u64, entries: Range<u64>) -> Result<(), DeviceError> {
        if self.poison {
            let (base, cache) = (self.arenas.row(RowKind::Ring), &self.plan.cache);
            for entry in entries.clone() {
                let slot = (u64::from(self.ring.first_slot(layer)) + entry) % u64::from(cache.ring_slots);
                self.driver.set(Stream::Compute, base + slot * cache.slot_bytes, 0xff, cache.slot_bytes)?;
            }
        }
        self.ring.consume(first + entries.end);
        self.pump(0)
    }

    /// Gives the link everything that there is room for.
    fn pump(&mut self, needed: u64) -> Result<(), DeviceError> {
        let cache = &self.plan.cache;
        let base = self.arenas.row(RowKind::Ring);
        while let Some(tile) = self.ring.next(needed) {
            let end = tile.first + u64::from(tile.blocks);
            // The slots' last readers.
            let readers = end.saturating_sub(u64::from(cache.ring_slots));
            if readers > self.consumed.recorded() {
                self.consumed.record(self.driver, self.ring.consumed())?;
            }
            self.consumed.wait(self.driver, readers)?;
            let (_, layer) = cache.global_layers().nth(tile.layer as usize).expect("a layer with a tail");
            for block in 0..tile.blocks {
                self.transfers.link_waits_for(HostBlockId(tile.block.0 + block))?;
            }
            let to = base + u64::from(tile.slot) * cache.slot_bytes;
            let from = self.arenas.host_block(self.plan, layer, tile.block)?;
            let bytes = u64::from(tile.blocks) * layer.block_bytes;
            if layer.block_bytes == cache.slot_bytes {
                self.driver.copy_in(Stream::Link, to, from, bytes)?;
            } else {
                for block in 0..u64::from(tile.blocks) {
                    let from = from.wrapping_add((block * layer.block_bytes) as usize);
                    self.driver.copy_in(Stream::Link, to + block * cache.slot_bytes, from, layer.block_bytes)?;
                }
            }
            self.arrived.record(self.driver, end)?;
            self.traffic.tail_read_bytes += bytes;
            let used = (u64::from(tile.slot) + u64::from(tile.blocks)) * cache.slot_bytes;
            self.arenas.note(RowKind::Ring, used);
        }
        Ok(())
    }
}

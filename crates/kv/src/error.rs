//! Why an operation was refused. No refusal changes the state.

use tailrace_types::SlotId;

/// Why an operation was refused. The state is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// The sizes cannot work.
    #[error("KV cache sizes: {reason}")]
    Config {
        /// What is wrong with them.
        reason: &'static str,
    },
    /// No sequence lives in the slot.
    #[error("slot {} holds no sequence", .0.0)]
    UnknownSlot(SlotId),
    /// A sequence lives in the slot already, or the slot is out of range.
    #[error("slot {} is not free", .0.0)]
    SlotBusy(SlotId),
    /// A step names the slot twice.
    #[error("slot {} occurs twice in a step", .0.0)]
    DuplicateSlot(SlotId),
    /// A step appends no cell to the slot.
    #[error("a step appends nothing to slot {}", .0.0)]
    EmptyAppend(SlotId),
    /// The sequence would pass the context limit.
    #[error("slot {} needs {needed} cells, the context has {limit}", .slot.0)]
    ContextFull {
        /// The sequence.
        slot: SlotId,
        /// Cells it would have.
        needed: u64,
        /// Cells it may have.
        limit: u32,
    },
    /// More cells in one step than the ring of sliding layers allows.
    #[error("slot {} appends {cells} cells in one step, its sliding layers allow {limit}", .slot.0)]
    ChunkTooLong {
        /// The sequence.
        slot: SlotId,
        /// Cells of the append.
        cells: u32,
        /// Cells that one step may append.
        limit: u64,
    },
    /// More frames in one step than can be had: the chunk is larger than the landing frames were planned for, or nothing
    /// spills and the frames are used up.
    #[error("slot {}: the step needs {needed} frames, {available} can be had", .slot.0)]
    NoFrames {
        /// The first sequence that cannot be served.
        slot: SlotId,
        /// Frames that the step needs up to and including it.
        needed: u64,
        /// Frames that are free or clean.
        available: u64,
    },
    /// Host memory is at its limit, so that no room can be made for the sequence.
    #[error("slot {}: host memory for {needed} extents is needed, the limit is {limit}", .slot.0)]
    HostFull {
        /// The first sequence that cannot be served.
        slot: SlotId,
        /// Extents that would be needed.
        needed: u64,
        /// Extents that are allowed.
        limit: u32,
    },
    /// Room can be made, but the copies to the host are still to be issued. Occurs only after host memory was full and a
    /// sequence has been released: run one step without appends, then try again.
    #[error("blocks must be copied to the host first: run a step without appends")]
    NotClean,
    /// The sliding layers have overwritten cells that the sequence would need. Roll back to 0 cells and prefill again.
    #[error("slot {}: sliding layers cannot go back to {cells} cells; prefill again", .slot.0)]
    NeedsPrefill {
        /// The sequence whose ring was asked for.
        slot: SlotId,
        /// Cells that were asked for.
        cells: u32,
        /// The least number of cells, other than 0, that is possible.
        cells_min: u32,
    },
    /// More cells were asked for than the sequence has.
    #[error("slot {} has {has} cells, {asked} were asked for", .slot.0)]
    TooFewCells {
        /// The sequence.
        slot: SlotId,
        /// Cells it has.
        has: u32,
        /// Cells that were asked for.
        asked: u32,
    },
    /// The operation must wait until the open step is committed or aborted.
    #[error("a step is open")]
    StepOpen,
    /// There is no step to commit or abort.
    #[error("no step is open")]
    NoStep,
}

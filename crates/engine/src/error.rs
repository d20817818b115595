//! Why a request or the engine failed.

use tailrace_device::DeviceError;
use tailrace_device::kv::KvError;
use tailrace_types::Bytes;

use crate::sampling::SamplingError;

/// Why a request or the engine failed. Prints as one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// Neither a prompt nor a beginning-of-text token to stand in for it.
    #[error("the prompt is empty, and the model has no beginning-of-text token that could take its place")]
    EmptyPrompt,
    /// The request needs more cells than a sequence has.
    #[error("the prompt has {tokens} tokens, a sequence has room for {cells}")]
    TooLong {
        /// Tokens of the prompt, forced ones included.
        tokens: usize,
        /// Cells of a sequence.
        cells: u32,
    },
    /// A token that the model does not have.
    #[error("token {token} does not exist: the vocabulary has {vocab}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// A stop string that would match everywhere.
    #[error("a stop string is empty")]
    EmptyStopString,
    /// A parameter out of range, or logits that nothing can be sampled from.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// A rewind beyond what the sequence has.
    #[error("cannot keep {keep} tokens: the sequence has {tokens}, and at least 1 must stay")]
    Rewind {
        /// Tokens to keep.
        keep: u32,
        /// Tokens that there are.
        tokens: u32,
    },
    /// The generation is over.
    #[error("the generation has ended")]
    Ended,
    /// Host memory for the tail is at its limit, and nothing that could be given up is left.
    #[error("the KV cache has used up its {0} of host memory; raise --host-mem, or use fewer or shorter sequences")]
    HostFull(Bytes),
    /// The cache refused a step: a defect.
    #[error("internal error: {0}")]
    Cache(#[from] KvError),
    /// The device failed. The engine has stopped.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The engine thread panicked: a defect. The engine has stopped.
    #[error("internal error: the engine panicked: {0}")]
    Panicked(String),
    /// The engine thread could not be started.
    #[error("cannot start the engine thread: {0}")]
    Thread(String),
    /// The engine was stopped.
    #[error("the engine was stopped")]
    Stopped,
}

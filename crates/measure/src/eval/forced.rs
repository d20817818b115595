//! Logits of tokens that are given.

use tailrace_engine::{EngineError, Event, Generation, Handle, LogitsWanted, Request};
use tailrace_types::TokenId;

use super::EvalError;

/// Rows of logits in the order of positions.
pub trait RowSource {
    /// The next position and its logits: those that predict the token after it. None after the last.
    ///
    /// # Errors
    ///
    /// The rows cannot be had.
    fn next_row(&mut self) -> Result<Option<(u32, &[f32])>, EvalError>;
}

/// The logits of every position of a sequence, in order. Rows are taken one by one, so that two runs can be walked side by side:
/// the engine waits for whom does not take them.
#[derive(Debug)]
pub struct LogitRows {
    generation: Generation,
    vocab: usize,
    rows: Vec<f32>,
    next: usize,
    position: u32,
}

impl LogitRows {
    /// Computes `prompt` in chunks, then `steps` one by one. Nothing of it is taken from the cache.
    ///
    /// # Errors
    ///
    /// The tokens do not fit the context, or the engine has ended.
    pub fn start(handle: &Handle, prompt: &[TokenId], steps: &[TokenId]) -> Result<Self, EvalError> {
        let request = Request {
            forced: steps.to_vec(),
            max_tokens: 0,
            logits: LogitsWanted::All,
            reuse_prefix: false,
            ..Request::new(prompt.to_vec())
        };
        let generation = handle.submit(request)?;
        Ok(LogitRows { generation, vocab: handle.vocab() as usize, rows: Vec::new(), next: 0, position: 0 })
    }
}

impl RowSource for LogitRows {
    fn next_row(&mut self) -> Result<Option<(u32, &[f32])>, EvalError> {
        while self.next >= self.rows.len() {
            match self.generation.receive() {
                Some(Event::Logits { first_position, values, .. }) => {
                    (self.rows, self.next, self.position) = (values, 0, first_position);
                }
                Some(Event::Done { .. }) => return Ok(None),
                Some(Event::Error(error)) => return Err(error.into()),
                Some(Event::PrefillProgress { .. } | Event::Token { .. } | Event::Rewound { .. }) => {}
                None => return Err(EngineError::Ended.into()),
            }
        }
        let (first, position) = (self.next, self.position);
        self.next += self.vocab;
        self.position += 1;
        Ok(Some((position, &self.rows[first..self.next])))
    }
}

//! Perplexity, as llama.cpp's `llama-perplexity` computes it: the same chunks, the same positions, so that figures compare.

use tailrace_engine::Handle;
use tailrace_types::TokenId;

use super::{Estimate, EvalError, LogSoftmax, LogitRows, RowSource};

/// How far an evaluation is: told after each chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Chunks that are done.
    pub done: usize,
    /// All of them.
    pub chunks: usize,
    /// The figure so far.
    pub value: f64,
}

/// A text in pieces that are evaluated alone, each from an empty cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunks {
    tokens: Vec<TokenId>,
    /// Tokens of a chunk.
    size: usize,
    /// Tokens from one chunk's first to the next one's.
    stride: usize,
    count: usize,
    /// Positions that are scored, of each chunk: those whose token has this much before it.
    first_scored: usize,
    /// What every chunk's first token is replaced with.
    bos: Option<TokenId>,
}

impl Chunks {
    /// `size` tokens each; their second halves are scored. With a stride (not 0), windows of `size` tokens whose last `stride`
    /// predictions are scored. At most `most` chunks. `bos`: what the first token of a chunk is replaced with.
    ///
    /// # Errors
    ///
    /// A chunk of fewer than 4 tokens, a stride of a whole chunk or more, or a text of fewer than two chunks.
    pub fn new(
        tokens: Vec<TokenId>,
        size: u32,
        stride: u32,
        most: Option<u32>,
        bos: Option<TokenId>,
    ) -> Result<Self, EvalError> {
        let (size, stride, have) = (size as usize, stride as usize, tokens.len());
        if size < 4 {
            return Err(EvalError::Chunk(format!("a chunk of {size} tokens is too short; 512 is usual, 4 the least")));
        }
        if stride >= size {
            return Err(EvalError::Chunk(format!(
                "a stride of {stride} leaves nothing of chunks of {size} tokens before what is scored; lower it"
            )));
        }
        if have < 2 * size {
            return Err(EvalError::Short { tokens: have, needed: 2 * size, why: "two chunks" });
        }
        let (count, first_scored, stride) = match stride {
            0 => (have / size, size / 2, size),
            // The last prediction of a window is for the token after its last but one.
            stride => ((have - size).div_ceil(stride), size - stride - 1, stride),
        };
        let count = most.map_or(count, |most| count.min(most as usize)).max(1);
        Ok(Chunks { tokens, size, stride, count, first_scored, bos })
    }

    /// The chunks as they were saved by whoever made the reference: `size` tokens each.
    pub(super) fn saved(tokens: Vec<TokenId>, size: usize, bos: Option<TokenId>) -> Self {
        let count = tokens.len() / size;
        Chunks { tokens, size, stride: size, count, first_scored: size / 2, bos }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens of a chunk.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The tokens of chunks `0 .. count`, as they stand in the text.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens[..((self.count - 1) * self.stride + self.size).min(self.tokens.len())]
    }

    /// Whether chunks lie one after the other: only then their logits can be saved.
    pub fn are_apart(&self) -> bool {
        self.stride == self.size
    }

    /// Positions of a chunk that are scored.
    pub fn scored(&self) -> usize {
        self.size - 1 - self.first_scored
    }

    /// Calls `each` with the scores of every scored position of chunk `index` and the token that follows there.
    ///
    /// # Errors
    ///
    /// The chunk does not fit the context, the engine fails, or `each` does.
    pub fn evaluate(
        &self,
        handle: &Handle,
        index: usize,
        mut each: impl FnMut(&LogSoftmax<'_>, usize) -> Result<(), EvalError>,
    ) -> Result<(), EvalError> {
        let context = handle.limits().sequence_cells();
        if self.size > context as usize {
            return Err(EvalError::Context { chunk: self.size as u32, context });
        }
        let first = index * self.stride;
        let text = &self.tokens[first..(first + self.size).min(self.tokens.len())];
        let mut fed = text.to_vec();
        if let Some(bos) = self.bos {
            fed[0] = bos;
        }
        let mut rows = LogitRows::start(handle, &fed, &[])?;
        while let Some((position, logits)) = rows.next_row()? {
            let position = position as usize;
            if position >= self.first_scored
                && let Some(next) = text.get(position + 1)
            {
                each(&LogSoftmax::new(logits), next.0 as usize)?;
            }
        }
        Ok(())
    }
}

/// Negative log-probabilities of the tokens of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    nll: Estimate,
}

/// What a perplexity run found.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct PerplexitySummary {
    /// `exp` of the mean negative log-probability.
    pub ppl: f64,
    /// Its standard error.
    pub ppl_error: f64,
    /// Mean negative log-probability, in nats.
    pub nll: f64,
    /// Tokens that were scored.
    pub tokens: u64,
}

impl Perplexity {
    /// Takes in a token's log-probability.
    pub fn add(&mut self, log_prob: f64) {
        self.nll.add(-log_prob);
    }

    /// What came of it.
    pub fn summary(&self) -> PerplexitySummary {
        let ppl = self.nll.mean().exp();
        PerplexitySummary { ppl, ppl_error: ppl * self.nll.error(), nll: self.nll.mean(), tokens: self.nll.count() }
    }
}

/// Evaluates every chunk. `progress` is told after each, `scored` of each row that counts and the token after it.
///
/// # Errors
///
/// See [`Chunks::evaluate`].
pub fn measure_perplexity(
    handle: &Handle,
    chunks: &Chunks,
    progress: &mut dyn FnMut(Progress),
    scored: &mut dyn FnMut(&LogSoftmax<'_>, usize) -> Result<(), EvalError>,
) -> Result<PerplexitySummary, EvalError> {
    let mut perplexity = Perplexity::default();
    for index in 0..chunks.count() {
        chunks.evaluate(handle, index, |row, next| {
            perplexity.add(row.log_prob(next));
            scored(row, next)
        })?;
        progress(Progress { done: index + 1, chunks: chunks.count(), value: perplexity.summary().ppl });
    }
    Ok(perplexity.summary())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(count: u32) -> Vec<TokenId> {
        (0..count).map(TokenId).collect()
    }

    #[test]
    fn whole_chunks_are_scored_in_their_second_half() {
        let chunks = Chunks::new(tokens(1100), 512, 0, None, None).expect("two chunks");
        assert_eq!((chunks.count(), chunks.scored(), chunks.tokens().len()), (2, 255, 1024));
    }

    #[test]
    fn strided_windows_score_their_last_predictions() {
        // Windows at 0, 128, .., 640 of 1280 tokens: what is left after the first window, in strides.
        let chunks = Chunks::new(tokens(1280), 512, 128, None, None).expect("windows");
        assert_eq!((chunks.count(), chunks.scored()), (6, 128));
        assert_eq!(Chunks::new(tokens(1300), 512, 128, None, None).expect("one more").count(), 7);
        assert!(!chunks.are_apart());
    }

    #[test]
    fn what_cannot_be_evaluated_is_refused_in_one_line() {
        let says = |tokens_count, size, stride, part: &str| {
            let error = Chunks::new(tokens(tokens_count), size, stride, None, None).expect_err("refused").to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        };
        says(1000, 512, 0, "the text has 1000 tokens, 1024 are needed");
        says(10, 3, 0, "too short");
        says(4096, 512, 512, "a stride of 512");
    }

    #[test]
    fn a_known_perplexity() {
        let mut perplexity = Perplexity::default();
        [0.5_f64, 0.25].iter().for_each(|p| perplexity.add(p.ln()));
        let summary = perplexity.summary();
        assert!((summary.ppl - 8.0_f64.sqrt()).abs() < 1e-12 && summary.tokens == 2);
        // The two lie ln 2 apart: half of that from their mean, over one degree of freedom.
        assert!((summary.ppl_error - summary.ppl * 2.0_f64.ln() / 2.0).abs() < 1e-12);
    }
}

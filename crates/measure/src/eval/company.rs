//! Whether a request gets the same tokens alone and beside others.

use tailrace_engine::{Handle, Request, SamplingParams};
use tailrace_types::TokenId;

use super::EvalError;

/// Requests that are run alone, one after the other, and all at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Company {
    /// Their prompts.
    pub prompts: Vec<Vec<TokenId>>,
    /// Tokens to generate for each.
    pub tokens: u32,
    /// How they are chosen; request `i` draws with seed `i`.
    pub sampling: SamplingParams,
}

/// How many requests got the tokens that they got in another run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SameAnswers {
    /// Requests.
    pub requests: usize,
    /// Of them, those with the same tokens.
    pub same: usize,
    /// Tokens that were generated.
    pub tokens: usize,
    /// The first difference: request and token, from 0.
    pub first_difference: Option<(usize, usize)>,
}

impl Company {
    fn request(&self, index: usize) -> Request {
        Request {
            max_tokens: self.tokens,
            sampling: SamplingParams { seed: Some(index as u64), ..self.sampling.clone() },
            stop_at_eog: false,
            reuse_prefix: false,
            ..Request::new(self.prompts[index].clone())
        }
    }

    /// The tokens of each request, run alone.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub fn alone(&self, handle: &Handle) -> Result<Vec<Vec<TokenId>>, EvalError> {
        let run = |index| Ok(handle.submit(self.request(index))?.complete()?.tokens);
        (0..self.prompts.len()).map(run).collect()
    }

    /// The tokens of each request, all submitted at once.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub fn together(&self, handle: &Handle) -> Result<Vec<Vec<TokenId>>, EvalError> {
        let submitted = (0..self.prompts.len()).map(|index| handle.submit(self.request(index)));
        let running = submitted.collect::<Result<Vec<_>, _>>()?;
        running.into_iter().map(|generation| Ok(generation.complete()?.tokens)).collect()
    }
}

impl SameAnswers {
    /// Compares the tokens of two runs of the same requests.
    pub fn new(reference: &[Vec<TokenId>], test: &[Vec<TokenId>]) -> Self {
        let difference = |(a, b): (&Vec<TokenId>, &Vec<TokenId>)| {
            let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            (same < a.len().max(b.len())).then_some(same)
        };
        let differences: Vec<_> = reference.iter().zip(test).map(difference).collect();
        SameAnswers {
            requests: reference.len(),
            same: differences.iter().filter(|difference| difference.is_none()).count(),
            tokens: test.iter().map(Vec::len).sum(),
            first_difference: differences.iter().enumerate().find_map(|(i, difference)| Some((i, (*difference)?))),
        }
    }

    /// Whether all are the same.
    pub fn all(&self) -> bool {
        self.same == self.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let answers = |rows: &[&[u32]]| -> Vec<Vec<TokenId>> {
            rows.iter().map(|row| row.iter().map(|&token| TokenId(token)).collect()).collect()
        };
        let reference = answers(&[&[1, 2], &[3, 4, 5], &[6]]);
        assert!(SameAnswers::new(&reference, &reference).all());
        let found = SameAnswers::new(&reference, &answers(&[&[1, 2], &[3, 9, 5], &[6, 7]]));
        assert_eq!((found.same, found.tokens, found.first_difference, found.all()), (1, 7, Some((1, 1)), false));
    }
}

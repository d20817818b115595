//! Whether a request gets the same tokens alone and beside others.

use tailrace_engine::{Generation, Handle, Request, SamplingParams};
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
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SameAnswers {
    /// Requests.
    pub requests: usize,
    /// Of them, those with the same tokens.
    pub same: usize,
    /// Tokens that were generated.
    pub tokens: usize,
    /// The first difference: request and token, from 0.
    pub first_difference: Option<(usize, usize)>,
    /// For each request the share of its tokens up to the first other one.
    pub shares: Vec<f64>,
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

    /// The tokens of each request, run alone. `progress` is told how many are done.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub fn alone(&self, handle: &Handle, progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<TokenId>>, EvalError> {
        let run = |index| Ok(handle.submit(self.request(index))?);
        self.complete((0..self.prompts.len()).map(run), progress)
    }

    /// The tokens of each request, all submitted at once. `progress` is told how many are done.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub fn together(&self, handle: &Handle, progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<TokenId>>, EvalError> {
        let submitted = (0..self.prompts.len()).map(|index| handle.submit(self.request(index)));
        let running = submitted.collect::<Result<Vec<_>, _>>()?;
        self.complete(running.into_iter().map(Ok), progress)
    }

    /// The tokens of generations, each of which is asked for when the one before it is complete.
    fn complete(
        &self,
        generations: impl Iterator<Item = Result<Generation, EvalError>>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<TokenId>>, EvalError> {
        let mut answers = Vec::with_capacity(self.prompts.len());
        for generation in generations {
            answers.push(generation?.complete()?.tokens);
            progress(answers.len());
        }
        Ok(answers)
    }
}

impl SameAnswers {
    /// Compares the tokens of two runs of the same requests.
    pub fn new(reference: &[Vec<TokenId>], test: &[Vec<TokenId>]) -> Self {
        let same_of = |(a, b): (&Vec<TokenId>, &Vec<TokenId>)| {
            (a.iter().zip(b).take_while(|(a, b)| a == b).count(), a.len().max(b.len()))
        };
        let counts: Vec<_> = reference.iter().zip(test).map(same_of).collect();
        SameAnswers {
            requests: reference.len(),
            same: counts.iter().filter(|(same, all)| same == all).count(),
            tokens: test.iter().map(Vec::len).sum(),
            first_difference: counts.iter().enumerate().find_map(|(i, (same, all))| (same < all).then_some((i, *same))),
            shares: counts.iter().map(|&(same, all)| same as f64 / all.max(1) as f64).collect(),
        }
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
        let same = SameAnswers::new(&reference, &reference);
        assert_eq!((same.same, same.first_difference), (3, None));
        let found = SameAnswers::new(&reference, &answers(&[&[1, 2], &[3, 9, 5], &[6, 7]]));
        assert_eq!((found.same, found.tokens, found.first_difference), (1, 7, Some((1, 1))));
        assert_eq!(found.shares, [1.0, 1.0 / 3.0, 0.5]);
    }
}

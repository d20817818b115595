//! From logits to a token.
//!
//! The stages and their order are those of llama.cpp: logit bias, penalties, top-k, top-p, min-p, temperature, draw. There
//! is no state between tokens: the random number is a function of the seed and the position, and the penalties of the
//! tokens before it. So a sequence that is rolled back samples as if the tokens behind it had never been.
//!
//! Where few tokens can be chosen, the likeliest ones are enough to choose from ([`Sampler::candidates_needed`]), and a device
//! that finds them need not hand over all logits. The token is the same.

use std::cmp::Ordering;

use tailrace_device::Candidate;
use tailrace_types::TokenId;

/// How a token is chosen. The default is llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits before the draw; at 0 or below the likeliest token is taken, of equal ones the lowest id.
    pub temperature: f32,
    /// Keep the `top_k` likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest likeliest tokens whose probabilities reach `top_p`, at least one; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Positive logits of tokens in the penalty window are divided by it, negative ones multiplied; 1 is off.
    pub repeat_penalty: f32,
    /// Tokens of the penalty window, which ends at the last token: 0 is off, -1 the whole sequence.
    pub repeat_last_n: i32,
    /// Subtracted from the logits of tokens in the penalty window; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from them once for each occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// Seed of the draw; `None` draws a seed for each request, which its statistics report.
    pub seed: Option<u64>,
    /// Added to the logits of single tokens; `-inf` bans a token. A token that occurs twice is biased twice.
    pub logit_bias: Vec<(TokenId, f32)>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
            logit_bias: Vec::new(),
        }
    }
}

impl SamplingParams {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Whether the likeliest token is taken without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Checks every parameter against its range, and biased tokens against a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    ///
    /// The first parameter out of range.
    pub fn validate(&self, vocab: u32) -> Result<(), SamplingError> {
        let unit = 0.0..=1.0;
        let rules = [
            ("temperature", self.temperature, self.temperature.is_finite(), "a finite number"),
            ("top_p", self.top_p, unit.contains(&self.top_p), "between 0 and 1"),
            ("min_p", self.min_p, unit.contains(&self.min_p), "between 0 and 1"),
            (
                "repeat_penalty",
                self.repeat_penalty,
                self.repeat_penalty > 0.0 && self.repeat_penalty.is_finite(),
                "above 0 and finite",
            ),
            ("presence_penalty", self.presence_penalty, self.presence_penalty.is_finite(), "a finite number"),
            ("frequency_penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), "a finite number"),
        ];
        if let Some(&(name, value, _, range)) = rules.iter().find(|(_, _, holds, _)| !holds) {
            return Err(SamplingError::OutOfRange { name, value, range });
        }
        if self.repeat_last_n < -1 {
            let value = self.repeat_last_n as f32;
            return Err(SamplingError::OutOfRange { name: "repeat_last_n", value, range: "-1 or more" });
        }
        for &(token, bias) in &self.logit_bias {
            if token.0 >= vocab {
                return Err(SamplingError::BiasedToken { token: token.0, vocab });
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(SamplingError::OutOfRange { name: "logit_bias", value: bias, range: "finite or -inf" });
            }
        }
        Ok(())
    }

    fn has_penalties(&self) -> bool {
        self.repeat_last_n != 0
            && (self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }

    /// Whether penalties or biases can make a token likelier than its logit says.
    fn can_raise(&self) -> bool {
        let penalties = self.repeat_penalty < 1.0 || self.presence_penalty < 0.0 || self.frequency_penalty < 0.0;
        self.has_penalties() && penalties || self.logit_bias.iter().any(|(_, bias)| *bias > 0.0)
    }

    /// `logit` of a token that occurs `count` times in the penalty window, at least once.
    fn penalized(&self, logit: f32, count: u32) -> f32 {
        let logit = if logit > 0.0 { logit / self.repeat_penalty } else { logit * self.repeat_penalty };
        logit - (count as f32 * self.frequency_penalty + self.presence_penalty)
    }

    /// The tokens that penalties look at.
    fn penalty_window<'a>(&self, history: &'a [TokenId]) -> &'a [TokenId] {
        match usize::try_from(self.repeat_last_n) {
            Ok(n) => &history[history.len() - n.min(history.len())..],
            Err(_) => history,
        }
    }
}

/// Why no token can be sampled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A parameter has no meaning.
    #[error("{name} is {value}, it must be {range}")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What it must be.
        range: &'static str,
    },
    /// A bias for a token that the model does not have.
    #[error("logit_bias names token {token}, the vocabulary has {vocab}")]
    BiasedToken {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: u32,
    },
    /// The model computed something that is no number.
    #[error("the model's logit of token {token} is {value}")]
    BadLogit {
        /// The token.
        token: u32,
        /// NaN or infinity.
        value: f32,
    },
    /// Every token has the logit `-inf`.
    #[error("no token is left to choose from: every logit is -inf")]
    NoToken,
}

/// What a token is chosen from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice<'a> {
    /// The logits of all tokens.
    All(&'a [f32]),
    /// The likeliest tokens, at least as many as [`Sampler::candidates_needed`] says.
    Likeliest(&'a [Candidate]),
}

/// Likeliest first, of equal ones the lowest id: a total order, for no candidate is NaN.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// Keeps the `k` likeliest candidates; the least likely of them becomes the last.
fn cut(candidates: &mut Vec<Candidate>, k: usize) {
    if candidates.len() > k {
        candidates.select_nth_unstable_by(k - 1, likelier);
        candidates.truncate(k);
    }
}

/// Logits that are compared at once.
const LANES: usize = 32;

/// First try of the search for the nucleus; it grows by the factor below.
const NUCLEUS_FIRST: usize = 128;
const NUCLEUS_GROWTH: usize = 8;

/// Working memory of sampling; after its first token with the same parameters it does not allocate.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Logits after bias and penalties.
    logits: Vec<f32>,
    candidates: Vec<Candidate>,
    /// Occurrences of each token in the penalty window; all 0 between calls.
    counts: Vec<u32>,
}

impl Sampler {
    /// Working memory for a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        Sampler { logits: Vec::with_capacity(vocab), candidates: Vec::with_capacity(vocab), counts: vec![0; vocab] }
    }

    /// Samples the token that follows `history`, from its `logits`. `seed` is the request's.
    ///
    /// # Errors
    ///
    /// Logits that are NaN or infinite, or leave nothing to choose.
    pub fn sample(
        &mut self,
        params: &SamplingParams,
        seed: u64,
        history: &[TokenId],
        logits: &[f32],
    ) -> Result<TokenId, SamplingError> {
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        for &(token, bias) in &params.logit_bias {
            if let Some(logit) = self.logits.get_mut(token.0 as usize) {
                *logit += bias;
            }
        }
        if params.has_penalties() {
            self.penalize(params, history);
        }
        check(&self.logits)?;
        if params.is_greedy() {
            return self.likeliest();
        }
        self.keep_top_k(params.top_k as usize)?;
        Ok(self.choose(params, seed, history))
    }

    /// How many of the likeliest of `vocab` tokens must be known to sample as from all logits; `None` if all must.
    ///
    /// A token that is lowered can fall behind any other, but passes none. So whatever is among the first `k` after penalties and
    /// biases that only lower was among the first `k` and as many more as there are lowered tokens.
    pub fn candidates_needed(&mut self, params: &SamplingParams, history: &[TokenId], vocab: usize) -> Option<u32> {
        let k = if params.is_greedy() { 1 } else { params.top_k as usize };
        if k == 0 || params.can_raise() {
            return None;
        }
        let mut lowered = params.logit_bias.len();
        if params.has_penalties() {
            self.count(params.penalty_window(history), vocab);
            self.take_counts(params.penalty_window(history), |_, _| lowered += 1);
        }
        u32::try_from((k + lowered).min(vocab)).ok()
    }

    /// As [`Sampler::sample`], from the likeliest of `vocab` tokens: [`Sampler::candidates_needed`] of them or more.
    ///
    /// # Errors
    ///
    /// As [`Sampler::sample`], as far as the candidates show it.
    pub fn sample_likeliest(
        &mut self,
        params: &SamplingParams,
        seed: u64,
        history: &[TokenId],
        likeliest: &[Candidate],
        vocab: usize,
    ) -> Result<TokenId, SamplingError> {
        self.candidates.clear();
        // An embedding may have more rows than there are tokens: the rest can never be right.
        self.candidates.extend(likeliest.iter().filter(|c| (c.token.0 as usize) < vocab));
        for candidate in &mut self.candidates {
            for (_, bias) in params.logit_bias.iter().filter(|(token, _)| *token == candidate.token) {
                candidate.logit += bias;
            }
        }
        if params.has_penalties() {
            let window = params.penalty_window(history);
            self.count(window, vocab);
            for candidate in &mut self.candidates {
                match self.counts.get(candidate.token.0 as usize) {
                    Some(&count) if count > 0 => candidate.logit = params.penalized(candidate.logit, count),
                    _ => {}
                }
            }
            self.take_counts(window, |_, _| {});
        }
        if let Some(bad) = self.candidates.iter().find(|c| is_bad(c.logit)) {
            return Err(SamplingError::BadLogit { token: bad.token.0, value: bad.logit });
        }
        self.candidates.retain(|c| c.logit > f32::NEG_INFINITY);
        if params.is_greedy() {
            let best = self.candidates.iter().min_by(|a, b| likelier(a, b));
            return best.map(|c| c.token).ok_or(SamplingError::NoToken);
        }
        if self.candidates.is_empty() {
            return Err(SamplingError::NoToken);
        }
        cut(&mut self.candidates, params.top_k as usize);
        Ok(self.choose(params, seed, history))
    }

    /// Draws from the candidates, of which there is one at least.
    fn choose(&mut self, params: &SamplingParams, seed: u64, history: &[TokenId]) -> TokenId {
        if params.top_p < 1.0 {
            self.keep_top_p(params.top_p);
        }
        if params.min_p > 0.0 {
            let floor = self.max_logit() + params.min_p.ln();
            self.candidates.retain(|c| c.logit >= floor);
        }
        self.draw(params.temperature, uniform(seed, history.len() as u64))
    }

    fn penalize(&mut self, params: &SamplingParams, history: &[TokenId]) {
        let mut logits = std::mem::take(&mut self.logits);
        let window = params.penalty_window(history);
        self.count(window, logits.len());
        self.take_counts(window, |token, count| logits[token] = params.penalized(logits[token], count));
        self.logits = logits;
    }

    /// Counts the occurrences in `window` of each of `vocab` tokens.
    fn count(&mut self, window: &[TokenId], vocab: usize) {
        self.counts.resize(vocab, 0);
        for token in window {
            if let Some(count) = self.counts.get_mut(token.0 as usize) {
                *count += 1;
            }
        }
    }

    /// Calls `each` with every token that was counted in `window` and its count, and leaves all counts 0.
    fn take_counts(&mut self, window: &[TokenId], mut each: impl FnMut(usize, u32)) {
        for token in window {
            let token = token.0 as usize;
            // The first visit takes the count with it, so each token comes once.
            let count = self.counts.get_mut(token).map_or(0, std::mem::take);
            if count > 0 {
                each(token, count);
            }
        }
    }

    fn likeliest(&self) -> Result<TokenId, SamplingError> {
        let (lanes, rest) = self.logits.as_chunks::<LANES>();
        let mut best = [f32::NEG_INFINITY; LANES];
        for lane in lanes {
            for (best, &logit) in best.iter_mut().zip(lane) {
                *best = if logit > *best { logit } else { *best };
            }
        }
        let best = best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
        let id = self.logits.iter().position(|logit| *logit == best).filter(|_| best > f32::NEG_INFINITY);
        id.map(|id| TokenId(id as u32)).ok_or(SamplingError::NoToken)
    }

    /// Fills the candidates with the `k` likeliest tokens (0: all), in any order.
    ///
    /// One pass: whatever does not beat the k-th best of the tokens seen so far is skipped, and each time `k` others have
    /// been collected a selection halves the list.
    fn keep_top_k(&mut self, k: usize) -> Result<(), SamplingError> {
        let k = if k == 0 { usize::MAX } else { k };
        let Sampler { logits, candidates, .. } = self;
        candidates.clear();
        let mut floor = f32::NEG_INFINITY;
        for (lane, first) in logits.chunks(LANES).zip((0u32..).step_by(LANES)) {
            // Nearly every lane has nothing above the floor, and this is one vector comparison.
            if !lane.iter().fold(false, |any, logit| any | (*logit > floor)) {
                continue;
            }
            for (token, &logit) in (first..).map(TokenId).zip(lane) {
                // Of equal logits the lower id is the likelier one and comes first, so `>` is enough.
                if logit > floor {
                    candidates.push(Candidate { token, logit });
                    if candidates.len() == k.saturating_mul(2) {
                        cut(candidates, k);
                        floor = candidates[k - 1].logit;
                    }
                }
            }
        }
        cut(candidates, k);
        if candidates.is_empty() { Err(SamplingError::NoToken) } else { Ok(()) }
    }

    /// Keeps the shortest run of likeliest candidates whose probabilities reach `top_p`.
    fn keep_top_p(&mut self, top_p: f32) {
        let max = self.max_logit();
        let mass = |c: &Candidate| f64::from(c.logit - max).exp();
        // Summed in the order of ids, so that the sum is a function of the candidates alone.
        self.candidates.sort_unstable_by_key(|c| c.token);
        let target = f64::from(top_p) * self.candidates.iter().map(mass).sum::<f64>();
        let (mut sorted, mut reached) = (0, 0.0);
        while sorted < self.candidates.len() {
            let rest = &mut self.candidates[sorted..];
            let more = (sorted * (NUCLEUS_GROWTH - 1)).max(NUCLEUS_FIRST).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable_by(more - 1, likelier);
            }
            rest[..more].sort_unstable_by(likelier);
            for (i, candidate) in rest[..more].iter().enumerate() {
                reached += mass(candidate);
                if reached >= target {
                    self.candidates.truncate(sorted + i + 1);
                    return;
                }
            }
            sorted += more;
        }
    }

    fn max_logit(&self) -> f32 {
        self.candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    /// Draws by inversion: candidates in the order of ids lie side by side on a line, and `uniform` in `[0, 1)` points at one.
    fn draw(&mut self, temperature: f32, uniform: f64) -> TokenId {
        let max = self.max_logit();
        let mass = |c: &Candidate| (f64::from(c.logit - max) / f64::from(temperature)).exp();
        self.candidates.sort_unstable_by_key(|c| c.token);
        let mut left = uniform * self.candidates.iter().map(mass).sum::<f64>();
        let mut last = TokenId(0);
        for candidate in &self.candidates {
            let mass = mass(candidate);
            if mass > 0.0 {
                last = candidate.token;
                if left < mass {
                    break;
                }
            }
            left -= mass;
        }
        // Rounding can leave a remainder behind the last candidate: then it is that one.
        last
    }
}

/// Refuses logits that are no numbers, or infinitely likely.
fn check(logits: &[f32]) -> Result<(), SamplingError> {
    // One branch for all: the pass runs at the speed of memory.
    if logits.iter().fold(true, |good, logit| good & (*logit < f32::INFINITY)) {
        return Ok(());
    }
    let bad = logits.iter().zip(0u32..).find(|(logit, _)| is_bad(**logit));
    bad.map_or(Ok(()), |(&value, token)| Err(SamplingError::BadLogit { token, value }))
}

fn is_bad(logit: f32) -> bool {
    logit.is_nan() || logit == f32::INFINITY
}

/// A number in `[0, 1)` that depends on its arguments alone.
fn uniform(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed).wrapping_add(position));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit of `x`.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A seed for a request that names none.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library keys its hash maps with random numbers of the system.
    RandomState::new().hash_one(0u8)
}

#[cfg(test)]
#[path = "sampling_tests.rs"]
mod tests;

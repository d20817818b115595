use super::*;
use proptest::prelude::*;

/// The stages by their definitions: full sorts, fresh vectors.
fn naive(params: &SamplingParams, seed: u64, history: &[TokenId], logits: &[f32]) -> u32 {
    let mut logits = logits.to_vec();
    for (token, bias) in &params.logit_bias {
        logits[token.0 as usize] += bias;
    }
    let n = if params.repeat_last_n < 0 { history.len() } else { params.repeat_last_n as usize };
    let window: Vec<u32> = history.iter().rev().take(n).map(|t| t.0).collect();
    for (id, logit) in logits.iter_mut().enumerate() {
        let count = window.iter().filter(|t| **t == id as u32).count();
        if count > 0 {
            *logit = if *logit > 0.0 { *logit / params.repeat_penalty } else { *logit * params.repeat_penalty };
            *logit -= count as f32 * params.frequency_penalty + params.presence_penalty;
        }
    }
    let mut list: Vec<(u32, f32)> = (0..).zip(logits).filter(|(_, l)| *l > f32::NEG_INFINITY).collect();
    list.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no NaN").then(a.0.cmp(&b.0)));
    if params.temperature <= 0.0 {
        return list[0].0;
    }
    if params.top_k > 0 {
        list.truncate(params.top_k as usize);
    }
    let max = list[0].1;
    if params.top_p < 1.0 {
        let mut by_id = list.clone();
        by_id.sort_by_key(|c| c.0);
        let total: f64 = by_id.iter().map(|c| f64::from(c.1 - max).exp()).sum();
        let mut sum = 0.0;
        let reached = list.iter().position(|c| {
            sum += f64::from(c.1 - max).exp();
            sum >= f64::from(params.top_p) * total
        });
        list.truncate(reached.map_or(list.len(), |i| i + 1));
    }
    if params.min_p > 0.0 {
        list.retain(|c| c.1 >= max + params.min_p.ln());
    }
    list.sort_by_key(|c| c.0);
    let mass: Vec<f64> = list.iter().map(|c| (f64::from(c.1 - max) / f64::from(params.temperature)).exp()).collect();
    let mut left = uniform(seed, history.len() as u64) * mass.iter().sum::<f64>();
    for (c, m) in list.iter().zip(&mass) {
        if left < *m {
            return c.0;
        }
        left -= m;
    }
    list[list.len() - 1].0
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let first = (
        prop_oneof![Just(0.0f32), 0.05f32..3.0],
        prop_oneof![Just(0u32), 1u32..60, Just(1_000_000)],
        prop_oneof![Just(1.0f32), Just(0.0), 0.0f32..1.0],
        prop_oneof![Just(0.0f32), 0.0f32..1.0],
    );
    let second = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(-1i32), Just(0), 1i32..80],
        -1.0f32..1.0,
        prop_oneof![Just(0.0f32), -1.0f32..1.0],
        prop::collection::vec((0u32..40, prop_oneof![-5.0f32..5.0, Just(f32::NEG_INFINITY)]), 0..4),
    );
    (first, second).prop_map(|((temperature, top_k, top_p, min_p), (repeat, last_n, presence, frequency, bias))| {
        SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty: repeat,
            repeat_last_n: last_n,
            presence_penalty: presence,
            frequency_penalty: frequency,
            seed: None,
            logit_bias: bias.into_iter().map(|(t, b)| (TokenId(t), b)).collect(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn equals_the_definition(
        params in params(),
        seed: u64,
        history in prop::collection::vec(0u32..40, 0..100),
        // Few distinct values, so that ties are common; long enough for several rounds of both searches.
        logits in prop::collection::vec((-12i8..12).prop_map(|q| f32::from(q) / 4.0), 40..700),
    ) {
        let history: Vec<TokenId> = history.into_iter().map(TokenId).collect();
        let mut sampler = Sampler::new(logits.len());
        let sampled = sampler.sample(&params, seed, &history, &logits).expect("there are tokens left");
        prop_assert_eq!(sampled.0, naive(&params, seed, &history, &logits));
        // Nothing is left behind that the next call could see.
        prop_assert!(sampler.counts.iter().all(|c| *c == 0));
    }

    #[test]
    fn candidates_choose_as_all_logits_do(
        params in params(),
        seed: u64,
        history in prop::collection::vec(0u32..40, 0..100),
        logits in prop::collection::vec((-12i8..12).prop_map(|q| f32::from(q) / 4.0), 40..300),
        // Rows of the embedding without a token, and candidates beyond the needed ones.
        (hidden, more) in (0usize..3, 0usize..5),
    ) {
        let history: Vec<TokenId> = history.into_iter().map(TokenId).collect();
        let vocab = logits.len() - hidden;
        let mut sampler = Sampler::new(logits.len());
        let needed = sampler.candidates_needed(&params, &history, vocab);
        prop_assert!(sampler.counts.iter().all(|c| *c == 0));
        if let Some(needed) = needed {
            let mut best: Vec<Candidate> =
                (0..).map(TokenId).zip(&logits).map(|(token, &logit)| Candidate { token, logit }).collect();
            best.sort_by(likelier);
            best.truncate(needed as usize + hidden + more);
            let all = sampler.sample(&params, seed, &history, &logits[..vocab]);
            prop_assert_eq!(sampler.sample_likeliest(&params, seed, &history, &best, vocab), all);
            prop_assert!(sampler.counts.iter().all(|c| *c == 0));
        }
    }

    #[test]
    fn any_logits_give_a_token_or_an_error(
        params in params(),
        logits in prop::collection::vec(prop_oneof![any::<f32>(), Just(f32::NAN), Just(f32::INFINITY)], 40..80),
    ) {
        let bad = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY);
        let result = Sampler::new(0).sample(&params, 1, &[], &logits);
        match bad {
            Some(_) => {
                let refused = matches!(result, Err(SamplingError::BadLogit { .. }));
                prop_assert!(refused, "{:?}", result);
            }
            None => prop_assert!(result.is_ok_and(|t| (t.0 as usize) < logits.len())),
        }
    }
}

fn token(params: &SamplingParams, history: &[u32], logits: &[f32]) -> Result<u32, SamplingError> {
    let history: Vec<TokenId> = history.iter().copied().map(TokenId).collect();
    Sampler::new(logits.len()).sample(params, 7, &history, logits).map(|t| t.0)
}

#[test]
fn greedy_takes_the_lowest_of_equal_ids() {
    let greedy = SamplingParams::greedy();
    assert_eq!(token(&greedy, &[], &[1.0, 3.0, 3.0, 2.0]), Ok(1));
    assert_eq!(token(&greedy, &[], &[0.0, -0.0]), Ok(0));
    let banned = SamplingParams { logit_bias: vec![(TokenId(1), f32::NEG_INFINITY)], ..greedy };
    assert_eq!(token(&banned, &[], &[1.0, 3.0, 3.0, 2.0]), Ok(2));
}

#[test]
fn raised_tokens_need_all_logits() {
    let needed = |params: &SamplingParams| Sampler::new(99).candidates_needed(params, &[TokenId(4); 9], 99);
    let drawn = SamplingParams::default();
    assert_eq!((needed(&SamplingParams::greedy()), needed(&drawn)), (Some(1), Some(40)));
    // One token is penalised, however often it occurs.
    let penalised = SamplingParams { frequency_penalty: 0.5, ..drawn.clone() };
    assert_eq!(needed(&penalised), Some(41));
    assert_eq!(needed(&SamplingParams { top_k: 1000, ..drawn.clone() }), Some(99));
    for raising in [
        SamplingParams { top_k: 0, ..drawn.clone() },
        SamplingParams { repeat_penalty: 0.9, ..drawn.clone() },
        SamplingParams { presence_penalty: -0.5, ..drawn.clone() },
        SamplingParams { logit_bias: vec![(TokenId(1), 1.0)], ..drawn.clone() },
    ] {
        assert_eq!(needed(&raising), None, "{raising:?}");
    }
    // Penalties without a window raise nothing.
    assert_eq!(needed(&SamplingParams { repeat_penalty: 0.9, repeat_last_n: 0, ..drawn }), Some(40));
}

#[test]
fn no_token_left_is_an_error() {
    for params in [SamplingParams::greedy(), SamplingParams::default()] {
        assert_eq!(token(&params, &[], &[f32::NEG_INFINITY; 3]), Err(SamplingError::NoToken));
    }
}

#[test]
fn a_draw_depends_on_seed_and_position_alone() {
    let flat = SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    let logits = [0.0; 64];
    let mut sampler = Sampler::new(64);
    let mut at = |seed, n: usize| sampler.sample(&flat, seed, &vec![TokenId(0); n], &logits).expect("a token").0;
    let first: Vec<u32> = (0..50).map(|n| at(1, n)).collect();
    let again: Vec<u32> = (0..50).rev().map(|n| at(1, n)).collect();
    assert!(first.iter().eq(again.iter().rev()));
    assert_ne!(first, (0..50).map(|n| at(2, n)).collect::<Vec<_>>());
}

#[test]
fn draws_follow_the_probabilities() {
    let flat = SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    let logits = [0.5f32.ln(), 0.25f32.ln(), 0.125f32.ln(), 0.125f32.ln()];
    let (mut counts, mut sampler) = ([0u32; 4], Sampler::new(4));
    let draws = 20_000;
    for seed in 0..draws {
        counts[sampler.sample(&flat, seed, &[], &logits).expect("a token").0 as usize] += 1;
    }
    for (count, p) in counts.iter().zip([0.5, 0.25, 0.125, 0.125]) {
        // Five standard deviations.
        let (mean, deviation) = (draws as f64 * p, (draws as f64 * p * (1.0 - p)).sqrt());
        assert!((f64::from(*count) - mean).abs() < 5.0 * deviation, "{counts:?}");
    }
}

#[test]
fn parameters_out_of_range_are_named() {
    let ok = SamplingParams::default();
    assert_eq!(ok.validate(10), Ok(()));
    assert_eq!(SamplingParams::greedy().validate(10), Ok(()));
    let named = |params: SamplingParams| params.validate(10).expect_err("out of range").to_string();
    for (params, name) in [
        (SamplingParams { temperature: f32::NAN, ..ok.clone() }, "temperature"),
        (SamplingParams { top_p: 1.5, ..ok.clone() }, "top_p"),
        (SamplingParams { min_p: -0.1, ..ok.clone() }, "min_p"),
        (SamplingParams { repeat_penalty: 0.0, ..ok.clone() }, "repeat_penalty"),
        (SamplingParams { presence_penalty: f32::INFINITY, ..ok.clone() }, "presence_penalty"),
        (SamplingParams { frequency_penalty: f32::NAN, ..ok.clone() }, "frequency_penalty"),
        (SamplingParams { repeat_last_n: -2, ..ok.clone() }, "repeat_last_n"),
        (SamplingParams { logit_bias: vec![(TokenId(10), 0.0)], ..ok.clone() }, "logit_bias"),
        (SamplingParams { logit_bias: vec![(TokenId(0), f32::NAN)], ..ok.clone() }, "logit_bias"),
    ] {
        let error = named(params);
        assert!(error.starts_with(name), "{error}");
    }
}

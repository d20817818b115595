//! Sampling flags as parameters.

use anyhow::{Context, Result};
use tailrace_engine::SamplingParams;
use tailrace_types::TokenId;

use crate::args::SamplingArgs;

/// The parameters that the flags ask for; the engine checks their ranges.
pub(crate) fn params(args: &SamplingArgs) -> Result<SamplingParams> {
    Ok(SamplingParams {
        temperature: args.temp,
        top_k: u32::try_from(args.top_k).unwrap_or(0),
        top_p: args.top_p,
        min_p: args.min_p,
        repeat_penalty: args.repeat_penalty,
        repeat_last_n: args.repeat_last_n,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        seed: u64::try_from(args.seed).ok(),
        logit_bias: args.logit_bias.iter().map(|text| bias(text)).collect::<Result<_>>()?,
    })
}

/// `ID+VALUE` or `ID-VALUE`.
fn bias(text: &str) -> Result<(TokenId, f32)> {
    let parse = || {
        let sign = text.find(['+', '-'])?;
        Some((TokenId(text[..sign].parse().ok()?), text[sign..].parse().ok()?))
    };
    parse().with_context(|| format!("--logit-bias {text}: write a token id, + or -, and a number, such as 15043+1.5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases() {
        assert_eq!(bias("15043+1.5").unwrap(), (TokenId(15043), 1.5));
        assert_eq!(bias("7-inf").unwrap(), (TokenId(7), f32::NEG_INFINITY));
        for wrong in ["", "7", "+1", "x+1", "7+x"] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }
}

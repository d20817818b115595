//! Sampling flags as parameters.

use anyhow::{Context, Result, anyhow};
use tailrace_engine::{SamplingError, SamplingParams};
use tailrace_types::TokenId;

use crate::args::SamplingArgs;

/// The parameters that the flags ask for, for a vocabulary of `vocab` tokens.
///
/// # Errors
///
/// A value out of its range; the flag is named.
pub(crate) fn params(args: &SamplingArgs, vocab: u32) -> Result<SamplingParams> {
    let params = SamplingParams {
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
    };
    params.validate(vocab).map_err(in_flags)?;
    Ok(params)
}

/// The error in the words of the command line.
fn in_flags(error: SamplingError) -> anyhow::Error {
    match error {
        SamplingError::OutOfRange { name, value, range } => {
            let flag = if name == "temperature" { "temp".to_owned() } else { name.replace('_', "-") };
            anyhow!("--{flag} {value}: it must be {range}")
        }
        SamplingError::BiasedToken { token, vocab } => {
            anyhow!("--logit-bias names token {token}; those of this model are 0 to {}", vocab.saturating_sub(1))
        }
        other => other.into(),
    }
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

//! Sizes on the command line. Of bytes: a bare number is MiB; K, M and G are powers of 1024; B is bytes. Of tokens: k is 1024.

/// Bytes of a size such as `900`, `512K`, `1.5G` or `4096B`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size; write for example 900 (MiB), 512K, 1.5G or 4096B");
    let text_upper = text.trim().to_ascii_uppercase();
    let digits = text_upper.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text_upper[digits.len()..].as_ref() {
        "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "" | "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(unit).ok_or_else(|| format!("'{text}' is more than this machine can address"));
    }
    let fraction: f64 = digits.parse().map_err(|_| wrong())?;
    let bytes = fraction * unit as f64;
    if !bytes.is_finite() || !(0.0..u64::MAX as f64).contains(&bytes) {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// A number of tokens, such as `4096` or `32k`.
pub(crate) fn tokens(text: &str) -> Result<u32, String> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, unit) = lower.strip_suffix('k').map_or((lower.as_str(), 1), |digits| (digits, 1024));
    let count = digits.parse::<u32>().ok().and_then(|count| count.checked_mul(unit));
    count.ok_or_else(|| format!("'{text}' is no number of tokens; write for example 4096 or 32k"))
}

#[cfg(test)]
mod tests {
    use super::{parse, tokens};

    #[test]
    fn numbers_of_tokens() {
        assert_eq!((tokens("0"), tokens("4096"), tokens("32k"), tokens("1K")), (Ok(0), Ok(4096), Ok(32768), Ok(1024)));
        for text in ["", "k", "-1", "1.5k", "4194304k", "1m"] {
            assert!(tokens(text).is_err(), "{text}");
        }
    }

    #[test]
    fn units() {
        assert_eq!(parse("900"), Ok(900 << 20));
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("512k"), Ok(512 << 10));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("4097B"), Ok(4097));
        assert_eq!(
            parse(" 2 MiB"),
            Err("' 2 MiB' is no size; write for example 900 (MiB), 512K, 1.5G or 4096B".into())
        );
    }

    #[test]
    fn refused() {
        for text in ["", "G", "-1", "1e40G", "nan", "1T", "18446744073709551615G", "5 0"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}

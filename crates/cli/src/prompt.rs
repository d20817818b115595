//! Where a prompt comes from.

use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use crate::args::RunArgs;
use crate::path::shown;

/// The prompt as it was given, byte for byte.
pub(crate) fn read(args: &RunArgs) -> Result<String> {
    match (&args.prompt, &args.file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) if path.as_os_str() == "-" => stdin(),
        (None, Some(path)) => text(path, "prompt"),
        (None, None) if !std::io::stdin().is_terminal() => stdin(),
        (None, None) => bail!("no prompt: give one with -p TEXT or -f FILE"),
    }
}

/// The text of a file; `what` it is, for errors.
pub(crate) fn text(path: &Path, what: &str) -> Result<String> {
    let name = shown(path);
    let bytes = std::fs::read(path).with_context(|| format!("cannot read the {what} file {name}"))?;
    decode(bytes, &format!("the {what} file {name}"))
}

fn stdin() -> Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read the prompt from standard input")?;
    decode(bytes, "the prompt on standard input")
}

fn decode(bytes: Vec<u8>, what: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        anyhow!("{what} is not UTF-8: byte {:#04x} at offset {offset}; convert it to UTF-8", error.as_bytes()[offset])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_bad_byte_is_named() {
        let error = decode(b"abc\xffdef".to_vec(), "the prompt").unwrap_err().to_string();
        assert!(error.contains("0xff at offset 3"), "{error}");
        assert_eq!(decode("gr\u{fc}n\n".into(), "").unwrap(), "gr\u{fc}n\n");
    }
}

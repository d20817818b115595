//! The printable alphabet of byte-level BPE: one character for each of the 256 bytes.
//!
//! Bytes that print (`!`..`~`, `¡`..`¬`, `®`..`ÿ`) stand for themselves; the other 68, in ascending
//! order, are U+0100, U+0101, ... Source: Radford et al. 2019 (GPT-2).

use std::sync::LazyLock;

const ALPHABET_LEN: usize = 0x100 + 68;

static TO_CHAR: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut next = 0x100u32;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            return char::from(byte);
        }
        next += 1;
        char::from_u32(next - 1).unwrap_or_default()
    })
});

static TO_BYTE: LazyLock<[Option<u8>; ALPHABET_LEN]> = LazyLock::new(|| {
    let mut bytes = [None; ALPHABET_LEN];
    for (byte, &c) in TO_CHAR.iter().enumerate() {
        bytes[c as usize] = Some(byte as u8);
    }
    bytes
});

/// The character that stands for `byte`.
pub(crate) fn to_char(byte: u8) -> char {
    TO_CHAR[byte as usize]
}

/// Appends `bytes` to `text` in the alphabet.
pub(crate) fn spell(bytes: &[u8], text: &mut String) {
    text.extend(bytes.iter().map(|&b| to_char(b)));
}

/// The bytes that `text` spells, or `None` if it leaves the alphabet.
pub(crate) fn read(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    text.chars().map(|c| TO_BYTE.get(c as usize).copied().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_spellings() {
        let spelled = |bytes: &[u8]| {
            let mut text = String::new();
            spell(bytes, &mut text);
            text
        };
        assert_eq!(spelled(b" \n\t\0\x7f\xad"), "ĠĊĉĀġŃ");
        assert_eq!(spelled("é".as_bytes()), "Ã©");
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(read(spelled(&all).as_bytes()), Some(all));
        assert_eq!(read("a b".as_bytes()), None);
        assert_eq!(read("\u{2581}".as_bytes()), None);
        assert_eq!(read(b"\xff"), None);
    }
}

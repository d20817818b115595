//! Files of exact logits: a line of JSON that says of what, then the rows as little-endian f32, sequence after sequence.

use std::io::{BufRead, Read, Write};

use tailrace_types::TokenId;

use super::EvalError;
use super::forced::RowSource;

/// What makes a file one of these.
const FORMAT: &str = "tailrace logits 1";

/// Bytes that the first line may have.
const HEADER_MAX: u64 = 256 << 20;

/// What a file is of.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SavedHeader {
    format: String,
    /// Fingerprint of the model's file.
    pub model: String,
    /// Settings that made it, for people.
    pub settings: String,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Tokens of each sequence at the end that were single steps.
    pub steps: usize,
    /// The tokens.
    pub sequences: Vec<Vec<u32>>,
}

impl SavedHeader {
    /// Of `sequences` of a model.
    pub fn new(model: String, settings: String, vocab: u32, steps: usize, sequences: &[Vec<TokenId>]) -> Self {
        let ids = |tokens: &Vec<TokenId>| tokens.iter().map(|token| token.0).collect();
        let sequences = sequences.iter().map(ids).collect();
        SavedHeader { format: FORMAT.to_owned(), model, settings, vocab, steps, sequences }
    }

    /// The tokens of each sequence.
    pub fn tokens(&self) -> Vec<Vec<TokenId>> {
        self.sequences.iter().map(|tokens| tokens.iter().map(|&token| TokenId(token)).collect()).collect()
    }

    /// Writes the first line.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write(&self, mut to: impl Write) -> Result<(), EvalError> {
        let line = serde_json::to_string(self).map_err(|error| EvalError::Base(error.to_string()))?;
        Ok(to.write_all(line.as_bytes()).and_then(|()| to.write_all(b"\n"))?)
    }
}

/// Writes a row.
///
/// # Errors
///
/// It cannot be written.
pub fn save_row(mut to: impl Write, row: &[f32]) -> Result<(), EvalError> {
    let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
    Ok(to.write_all(&bytes)?)
}

/// Reads a file.
#[derive(Debug)]
pub struct SavedLogits<R> {
    from: R,
    header: SavedHeader,
    bytes: Vec<u8>,
    row: Vec<f32>,
    sequence: usize,
    position: u32,
}

impl<R: BufRead> SavedLogits<R> {
    /// Reads what the file is of.
    ///
    /// # Errors
    ///
    /// It is no such file.
    pub fn open(mut from: R) -> Result<Self, EvalError> {
        let no_file =
            || EvalError::Base("this is no file of saved logits; make one with eval logits --save".to_owned());
        let mut line = Vec::new();
        (&mut from).take(HEADER_MAX).read_until(b'\n', &mut line)?;
        let header: SavedHeader = serde_json::from_slice(&line).map_err(|_| no_file())?;
        let good = |tokens: &Vec<u32>| tokens.len() > header.steps && tokens.iter().all(|&token| token < header.vocab);
        if header.format != FORMAT || header.sequences.is_empty() || !header.sequences.iter().all(good) {
            return Err(no_file());
        }
        Ok(SavedLogits { from, bytes: Vec::new(), row: Vec::new(), header, sequence: 0, position: 0 })
    }

    /// What the file is of.
    pub fn header(&self) -> &SavedHeader {
        &self.header
    }
}

impl<R: BufRead> RowSource for SavedLogits<R> {
    /// The next row of the sequence; after its last, once, none.
    fn next_row(&mut self) -> Result<Option<(u32, &[f32])>, EvalError> {
        let length = self.header.sequences.get(self.sequence).map_or(0, Vec::len);
        if self.position as usize == length {
            (self.sequence, self.position) = (self.sequence + 1, 0);
            return Ok(None);
        }
        let short =
            |_| EvalError::Base("the file of saved logits ends early: it was not written to its end".to_owned());
        // Not before: a file may claim any vocabulary, and who asks for a row has checked it.
        let vocab = self.header.vocab as usize;
        self.bytes.resize(4 * vocab, 0);
        self.row.resize(vocab, 0.0);
        self.from.read_exact(&mut self.bytes).map_err(short)?;
        for (value, bytes) in self.row.iter_mut().zip(self.bytes.chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        self.position += 1;
        Ok(Some((self.position - 1, &self.row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SavedHeader {
        let sequences = [vec![TokenId(0), TokenId(2)], vec![TokenId(1)]];
        SavedHeader::new("abc".to_owned(), "resident".to_owned(), 3, 0, &sequences)
    }

    #[test]
    fn what_is_written_is_read() {
        let mut file = Vec::new();
        header().write(&mut file).expect("a header");
        let rows = [[1.0, -0.0, f32::MIN_POSITIVE], [2.0, 3.0, 4.0], [f32::INFINITY, 0.5, 6.0]];
        rows.iter().for_each(|row| save_row(&mut file, row).expect("a row"));
        let mut saved = SavedLogits::open(&file[..]).expect("a file");
        assert_eq!(saved.header(), &header());
        let mut read = Vec::new();
        for _ in 0..2 {
            while let Some((position, row)) = saved.next_row().expect("a row") {
                read.push((position, row.to_vec()));
            }
        }
        let expected: Vec<_> = [0, 1, 0].into_iter().zip(rows.map(|row| row.to_vec())).collect();
        assert_eq!(read, expected);
    }

    #[test]
    fn other_files_and_short_ones_are_refused() {
        let mut beyond = header();
        beyond.sequences[1][0] = 3;
        let mut file = Vec::new();
        beyond.write(&mut file).expect("a header");
        let mut empty = Vec::new();
        SavedHeader { sequences: Vec::new(), ..header() }.write(&mut empty).expect("a header");
        for bytes in [&b""[..], b"{}", b"GGUF\x03", b"\xff\xfe\n", &file, &empty] {
            let error = SavedLogits::open(bytes).expect_err("no file").to_string();
            assert!(error.contains("no file of saved logits"), "{error}");
        }
        let mut file = Vec::new();
        header().write(&mut file).expect("a header");
        file.extend([0; 11]);
        let error = SavedLogits::open(&file[..]).expect("a header").next_row().map(|_| ()).expect_err("short");
        assert!(error.to_string().contains("ends early"));
    }
}

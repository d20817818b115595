//! Files of reference log-probabilities in the format of `llama-perplexity --kl-divergence-base`, so that either program reads the
//! other's: `_logits_`, then as little-endian i32 tokens of a chunk, vocabulary and chunks, then the tokens; then for each scored
//! position a scale and the least log-probability as f32, and a code of 16 bits for each token (one more where their number is
//! odd): `log p = scale * code + least`. Log-probabilities more than 16 below the largest are floored there.

use std::io::{Read, Write};

use tailrace_types::TokenId;

use super::{Chunks, EvalError, LogSoftmax};

const MAGIC: &[u8; 8] = b"_logits_";

/// How far below the largest a log-probability is kept, in nats.
const DEPTH: f32 = 16.0;

/// Codes of 16 bits: the largest.
const CODE_MAX: f32 = 65535.0;

/// Tokens that a file may say it has: one that says more is not read into memory.
const TOKENS_MAX: u64 = 1 << 28;

/// What a file is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseHeader {
    /// Tokens of a chunk.
    pub chunk: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// The text, in whole chunks.
    pub tokens: Vec<TokenId>,
}

impl BaseHeader {
    /// Bytes of one position.
    fn row_bytes(&self) -> usize {
        2 * (self.vocab as usize).next_multiple_of(2) + 8
    }
}

/// Writes a file.
#[derive(Debug)]
pub struct BaseWriter<W: Write> {
    to: W,
    header: BaseHeader,
    row: Vec<u8>,
}

impl<W: Write> BaseWriter<W> {
    /// Begins a file for `chunks` of a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    ///
    /// Windows that overlap have no place in the format; or it cannot be written.
    pub fn new(mut to: W, chunks: &Chunks, vocab: u32) -> Result<Self, EvalError> {
        if !chunks.are_apart() {
            return Err(EvalError::Base("logits of strided windows cannot be saved; leave the stride out".to_owned()));
        }
        let header = BaseHeader { chunk: chunks.size() as u32, vocab, tokens: chunks.tokens().to_vec() };
        let mut bytes = MAGIC.to_vec();
        for value in [header.chunk, vocab, chunks.count() as u32] {
            bytes.extend(value.to_le_bytes());
        }
        header.tokens.iter().for_each(|token| bytes.extend(token.0.to_le_bytes()));
        to.write_all(&bytes)?;
        Ok(BaseWriter { to, row: Vec::with_capacity(header.row_bytes()), header })
    }

    /// Adds the next scored position.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn add(&mut self, scores: &LogSoftmax<'_>) -> Result<(), EvalError> {
        let max = scores.max();
        let least = scores.logits().iter().copied().fold(max, f32::min).max(max - DEPTH);
        let scale = (max - least) / CODE_MAX;
        self.row.clear();
        self.row.extend(scale.to_le_bytes());
        self.row.extend(((f64::from(least) - scores.normaliser()) as f32).to_le_bytes());
        for &logit in scores.logits() {
            // A cast saturates: what is not finite becomes an end of the range.
            let code =
                if scale > 0.0 && logit > least { ((logit - least) / scale).round_ties_even() as u16 } else { 0 };
            self.row.extend(code.to_le_bytes());
        }
        self.row.resize(self.header.row_bytes(), 0);
        Ok(self.to.write_all(&self.row)?)
    }

    /// Ends the file, and returns what it was written to.
    ///
    /// # Errors
    ///
    /// The last bytes cannot be written.
    pub fn finish(mut self) -> Result<W, EvalError> {
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Reads a file, position by position.
#[derive(Debug)]
pub struct BaseFile<R: Read> {
    from: R,
    header: BaseHeader,
    row: Vec<u8>,
    log_probs: Vec<f32>,
}

impl<R: Read> BaseFile<R> {
    /// Reads what the file is of.
    ///
    /// # Errors
    ///
    /// It is no such file, or ends early.
    pub fn open(mut from: R) -> Result<Self, EvalError> {
        let no_file = |what: &str| {
            EvalError::Base(format!(
                "this is no file of reference logits: {what}; make one with eval ppl --save-logits"
            ))
        };
        let mut magic = [0; 8];
        from.read_exact(&mut magic).map_err(|_| no_file("it is too short"))?;
        if &magic != MAGIC {
            return Err(no_file("it does not begin with _logits_"));
        }
        let mut number = || -> Result<u32, EvalError> {
            let mut bytes = [0; 4];
            from.read_exact(&mut bytes).map_err(|_| no_file("it ends in its header"))?;
            u32::try_from(i32::from_le_bytes(bytes)).map_err(|_| no_file("a negative number in its header"))
        };
        let (chunk, vocab, chunks) = (number()?, number()?, number()?);
        let count = u64::from(chunk) * u64::from(chunks);
        if chunk < 4 || vocab == 0 || chunks == 0 || count > TOKENS_MAX {
            return Err(no_file(&format!("{chunks} chunks of {chunk} tokens, a vocabulary of {vocab}")));
        }
        let mut tokens = Vec::new();
        for _ in 0..count {
            let token = number()?;
            if token >= vocab {
                return Err(no_file(&format!("token {token} of a vocabulary of {vocab}")));
            }
            tokens.push(TokenId(token));
        }
        Ok(BaseFile { from, header: BaseHeader { chunk, vocab, tokens }, row: Vec::new(), log_probs: Vec::new() })
    }

    /// What the file is of.
    pub fn header(&self) -> &BaseHeader {
        &self.header
    }

    /// The text, cut as it was saved; see [`Chunks::new`] for `bos`. At most `most` chunks.
    pub fn chunks(&self, most: Option<u32>, bos: Option<TokenId>) -> Chunks {
        let size = self.header.chunk as usize;
        let count = most.map_or(usize::MAX, |most| (most as usize).max(1)).min(self.header.tokens.len() / size);
        Chunks::saved(self.header.tokens[..count * size].to_vec(), size, bos)
    }

    /// Log-probabilities of the next scored position, in nats.
    ///
    /// # Errors
    ///
    /// The file ends before it.
    pub fn next_row(&mut self) -> Result<&[f32], EvalError> {
        let short =
            |_| EvalError::Base("the file of reference logits ends early: it was not written to its end".to_owned());
        // Not before: a file may claim any vocabulary, and who asks for a row has checked it.
        self.row.resize(self.header.row_bytes(), 0);
        self.from.read_exact(&mut self.row).map_err(short)?;
        let float = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let (scale, least) = (float(&self.row[..4]), float(&self.row[4..8]));
        self.log_probs.clear();
        let codes = self.row[8..].chunks_exact(2).take(self.header.vocab as usize);
        self.log_probs.extend(codes.map(|code| scale * f32::from(u16::from_le_bytes([code[0], code[1]])) + least));
        Ok(&self.log_probs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(vocab: u32) -> Chunks {
        let tokens = (0..16).map(|i| TokenId(i % vocab)).collect();
        Chunks::new(tokens, 8, 0, None, None).expect("two chunks")
    }

    #[test]
    fn what_is_written_is_read() {
        for vocab in [5, 6] {
            let rows: Vec<Vec<f32>> =
                (0..6).map(|r| (0..vocab).map(|i| (i * r) as f32 - 3.0 * i as f32).collect()).collect();
            let mut bytes = Vec::new();
            let mut writer = BaseWriter::new(&mut bytes, &chunks(vocab), vocab).expect("a header");
            rows.iter().for_each(|row| writer.add(&LogSoftmax::new(row)).expect("a row"));
            writer.finish().expect("an end");
            let mut file = BaseFile::open(&bytes[..]).expect("a file");
            assert_eq!((file.header().chunk, file.header().vocab), (8, vocab));
            assert_eq!(file.chunks(None, None), chunks(vocab));
            for row in &rows {
                let scores = LogSoftmax::new(row);
                let floor = scores.log_prob(scores.best()) - f64::from(DEPTH);
                for (token, &read) in file.next_row().expect("a row").iter().enumerate() {
                    let exact = scores.log_prob(token).max(floor);
                    assert!((f64::from(read) - exact).abs() < 2e-4, "{read} {exact}");
                }
            }
            let error = file.next_row().expect_err("the end").to_string();
            assert!(error.contains("ends early"), "{error}");
        }
    }

    #[test]
    fn hostile_files_are_refused() {
        let header = |numbers: [i32; 3], tokens: &[i32]| {
            let mut bytes = MAGIC.to_vec();
            numbers.iter().chain(tokens).for_each(|n| bytes.extend(n.to_le_bytes()));
            bytes
        };
        let cases = [
            (b"".to_vec(), "too short"),
            (b"_logitz_".to_vec(), "does not begin"),
            (header([8, 5, 2], &[])[..14].to_vec(), "ends in its header"),
            (header([8, 5, -2], &[]), "negative"),
            (header([0, 5, 2], &[]), "0 tokens"),
            (header([i32::MAX, 5, i32::MAX], &[]), "chunks of"),
            (header([8, 5, 1], &[0, 1, 2, 3, 4, 5, 0, 0]), "token 5"),
            (header([8, 5, 1], &[0, 1]), "ends in its header"),
        ];
        for (bytes, part) in cases {
            let error = BaseFile::open(&bytes[..]).expect_err(part).to_string();
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn flat_and_broken_rows_stay_in_range() {
        let mut bytes = Vec::new();
        let mut writer = BaseWriter::new(&mut bytes, &chunks(4), 4).expect("a header");
        for row in [[1.0; 4], [f32::NAN, 0.0, f32::INFINITY, -1.0]] {
            writer.add(&LogSoftmax::new(&row)).expect("a row");
        }
        let mut file = BaseFile::open(&bytes[..]).expect("a file");
        let flat = file.next_row().expect("a row").to_vec();
        assert!(flat.iter().all(|p| (f64::from(*p) + 4.0_f64.ln()).abs() < 1e-6), "{flat:?}");
        file.next_row().expect("a row that may say anything");
    }
}

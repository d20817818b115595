//! From sampled tokens to text that a client may see.

use std::sync::Arc;

use tailrace_text::{Detokenizer, StopStrings, Tokenizer};
use tailrace_types::TokenId;

use crate::request::DoneReason;

/// The text of one request, token by token.
#[derive(Debug)]
pub(crate) struct Output {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    /// Absent without stop strings: then text passes without a copy.
    stops: Option<StopStrings>,
    stop: Vec<String>,
    stop_at_eog: bool,
    /// What the last token made certain.
    text: String,
}

impl Output {
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>, stop: Vec<String>, stop_at_eog: bool) -> Self {
        Output {
            tokenizer: Arc::clone(tokenizer),
            detokenizer: Detokenizer::continuing(Arc::clone(tokenizer)),
            stops: matcher(&stop),
            stop,
            stop_at_eog,
            text: String::new(),
        }
    }

    /// Tokens of the vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// Takes a token; says why the text ends with it, if it does.
    pub(crate) fn push(&mut self, token: TokenId) -> Option<DoneReason> {
        self.text.clear();
        let part = self.detokenizer.push(token);
        match &mut self.stops {
            None => self.text.push_str(part),
            Some(stops) => {
                let passed = stops.push(part);
                self.text.push_str(&passed.text);
                if passed.stop.is_some() {
                    return Some(DoneReason::StopString);
                }
            }
        }
        (self.stop_at_eog && self.tokenizer.is_eog(token)).then_some(DoneReason::Eog)
    }

    /// Ends the text without a stop string: adds what was held back to the text of the last token.
    pub(crate) fn finish(&mut self) {
        let rest = self.detokenizer.finish();
        match &mut self.stops {
            None => self.text.push_str(rest),
            Some(stops) => {
                self.text.push_str(&stops.push(rest).text);
                if stops.matched().is_none() {
                    self.text.push_str(&stops.finish());
                }
            }
        }
    }

    /// What the last token made certain.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Begins again, as if only `tokens` had been taken.
    pub(crate) fn restart(&mut self, tokens: &[TokenId]) {
        self.detokenizer = Detokenizer::continuing(Arc::clone(&self.tokenizer));
        self.stops = matcher(&self.stop);
        for &token in tokens {
            self.push(token);
        }
    }
}

fn matcher(stop: &[String]) -> Option<StopStrings> {
    (!stop.is_empty()).then(|| StopStrings::new(stop.to_vec()))
}

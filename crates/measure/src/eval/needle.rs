//! A needle in a haystack: a sentence with a code, somewhere in a long text, and a question for it at the end.

use std::collections::HashSet;
use std::str::FromStr;

use tailrace_engine::{EngineError, Event, Handle, LogitsWanted, Request, SamplingParams};
use tailrace_types::TokenId;

use super::{EvalError, LogSoftmax};

/// What a needle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NeedleKind {
    /// A code of digits.
    Number,
    /// A word.
    Word,
    /// A code of digits, among needles with codes of other names.
    Several,
}

impl FromStr for NeedleKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "number" => Ok(NeedleKind::Number),
            "word" => Ok(NeedleKind::Word),
            "several" => Ok(NeedleKind::Several),
            _ => Err(format!("unknown kind '{text}'; known: number, word, several")),
        }
    }
}

/// Needles beside the one that is asked for, where there are several.
const OTHERS: usize = 5;

/// Tokens that an answer may have.
const ANSWER_TOKENS: u32 = 40;

/// Those that the models of `tools/needle` are trained with.
const KINDS: [&str; 12] = [
    "access", "archive", "customs", "door", "engine", "garage", "harbour", "launch", "locker", "radio", "station",
    "vault",
];
const NAMES: [&str; 16] = [
    "MARLOWE",
    "QUILLON",
    "ASTERVANE",
    "BRACKEN",
    "DUNMORE",
    "ELSINGER",
    "FARROW",
    "GILDEN",
    "HOLLIS",
    "IVERSEN",
    "JUNIPER",
    "KESTREL",
    "LORIMER",
    "NORTHCOTE",
    "OSWALD",
    "PELHAM",
];
const WORDS: [&str; 12] = [
    "lantern", "compass", "meadow", "anchor", "velvet", "thistle", "copper", "saffron", "granite", "willow", "ember",
    "falcon",
];
const SUBJECTS: [&str; 10] = [
    "The old bridge",
    "A quiet street",
    "The river",
    "Her brother",
    "The morning train",
    "A grey cat",
    "The baker",
    "Our neighbour",
    "The long road",
    "A small boat",
];
const VERBS: [&str; 8] = [
    "leads past",
    "was seen near",
    "waited behind",
    "turned towards",
    "stood beside",
    "came from",
    "slept under",
    "rested by",
];
const OBJECTS: [&str; 10] = [
    "the mill",
    "an empty square",
    "the orchard",
    "a row of poplars",
    "the schoolhouse",
    "a stone wall",
    "the ferry",
    "the hill",
    "a shuttered shop",
    "the station",
];
const ENDS: [&str; 6] =
    ["in the rain", "before noon", "every autumn", "without a word", "as it always had", "long after dark"];

/// Random numbers of a trial (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }

    fn of<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

/// The text that needles are hidden in.
#[derive(Clone, Debug)]
pub enum Haystack {
    /// Sentences that are made up.
    MadeUp,
    /// Sentences of a text, over and over.
    Text(Vec<String>),
}

impl Haystack {
    /// The sentences of `text`; made up where it has none.
    pub fn of(text: &str) -> Self {
        let mut sentences = Vec::new();
        for piece in text.split_inclusive(['.', '!', '?', '\n']) {
            let piece = piece.trim();
            if !piece.is_empty() {
                sentences.push(format!("{piece} "));
            }
        }
        if sentences.is_empty() { Haystack::MadeUp } else { Haystack::Text(sentences) }
    }

    fn sentence(&self, index: usize, draw: &mut Draw) -> String {
        match self {
            Haystack::Text(sentences) => sentences[index % sentences.len()].clone(),
            Haystack::MadeUp => {
                let (subject, verb, object, end) =
                    (draw.of(&SUBJECTS), draw.of(&VERBS), draw.of(&OBJECTS), draw.of(&ENDS));
                format!("{subject} {verb} {object} {end}. ")
            }
        }
    }
}

/// A document with a question at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The document and the question.
    pub prompt: Vec<TokenId>,
    /// Tokens before the needle.
    pub needle_at: usize,
    /// What comes before the answer in a full sentence.
    pub lead: String,
    /// What the answer must contain.
    pub answer: String,
}

/// One cell of the grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Tokens of document and question.
    pub length: u32,
    /// Where the needle is: 0 at the beginning, 1 right before the question.
    pub depth: f64,
}

impl Trial {
    /// Makes the document `number` of a cell: the same for every setting.
    ///
    /// # Errors
    ///
    /// The length has no room for needle and question.
    pub fn new(
        encode: &dyn Fn(&str) -> Vec<TokenId>,
        haystack: &Haystack,
        kind: NeedleKind,
        place: Place,
        number: u64,
    ) -> Result<Self, EvalError> {
        let mut draw = Draw(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(place.length));
        let mut names = HashSet::new();
        let mut needle = |draw: &mut Draw, kind| {
            let mut name = draw.of(&NAMES);
            while !names.insert(name) {
                name = draw.of(&NAMES);
            }
            Needle::new(kind, name, draw)
        };
        let asked = needle(&mut draw, kind);
        let others = if kind == NeedleKind::Several { OTHERS } else { 0 };
        let others: Vec<_> = (0..others).map(|_| (draw.next(), needle(&mut draw, kind))).collect();
        let question = format!("\nQuestion: What is the {} of {}?\nAnswer:", asked.what, asked.name);

        let room = |text: &str| encode(text).len();
        let of_others = others.iter().map(|(_, needle)| room(&needle.sentence())).sum::<usize>();
        let fixed_tokens = room(&asked.sentence()) + room(&question) + of_others;
        let length = place.length as usize;
        if length < 2 * fixed_tokens {
            return Err(EvalError::Short {
                tokens: length,
                needed: 2 * fixed_tokens,
                why: "a needle and its question",
            });
        }
        // Sentences until the length is reached; tokens of pieces add up to those of the whole, but for a few.
        let (mut sentences, mut tokens) = (Vec::new(), fixed_tokens);
        let first = draw.below(1 << 20);
        while tokens < length {
            let sentence = haystack.sentence(first + sentences.len(), &mut draw);
            tokens += room(&sentence);
            sentences.push(sentence);
        }
        loop {
            let text = Self::text(&sentences, &asked, &others, place.depth);
            let (before, rest) = text;
            let mut prompt = encode(&before);
            let needle_at = prompt.len();
            prompt.extend(encode(&format!("{rest}{question}")));
            if prompt.len() <= length || sentences.pop().is_none() {
                let lead = format!(" The {} of {} is", asked.what, asked.name);
                return Ok(Trial { prompt, needle_at, lead, answer: asked.answer });
            }
        }
    }

    /// The text before the needle, and from it on.
    fn text(sentences: &[String], asked: &Needle, others: &[(u64, Needle)], depth: f64) -> (String, String) {
        let at = (depth.clamp(0.0, 1.0) * sentences.len() as f64).round() as usize;
        let mut halves = [String::new(), asked.sentence()];
        for (index, sentence) in sentences.iter().enumerate() {
            let half = &mut halves[usize::from(index >= at)];
            for (_, other) in others.iter().filter(|(place, _)| (*place as usize) % sentences.len() == index) {
                half.push_str(&other.sentence());
            }
            half.push_str(sentence);
        }
        let [before, rest] = halves;
        (before, rest)
    }
}

struct Needle {
    what: String,
    name: &'static str,
    answer: String,
}

impl Needle {
    fn new(kind: NeedleKind, name: &'static str, draw: &mut Draw) -> Self {
        let thing = draw.of(&KINDS);
        match kind {
            NeedleKind::Word => Needle { what: format!("{thing} word"), name, answer: draw.of(&WORDS).to_owned() },
            NeedleKind::Number | NeedleKind::Several => {
                let answer = (10_000 + draw.below(90_000)).to_string();
                Needle { what: format!("{thing} code"), name, answer }
            }
        }
    }

    fn sentence(&self) -> String {
        format!("The {} of {} is {}. ", self.what, self.name, self.answer)
    }
}

/// What became of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Whether the answer was in what was generated.
    pub found: bool,
    /// What was generated, to the end of its line.
    pub text: String,
    /// Mean log-probability of the answer's tokens behind the beginning of the needle's sentence: graded, where presence is not.
    pub log_prob: f64,
}

impl Trial {
    /// Asks. `last` cuts the prompt to its last tokens: what is left when a context is cut short, the control.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub fn ask(
        &self,
        handle: &Handle,
        encode: &dyn Fn(&str) -> Vec<TokenId>,
        last: Option<usize>,
    ) -> Result<Found, EvalError> {
        let cut = last.map_or(0, |last| self.prompt.len().saturating_sub(last));
        let prompt = &self.prompt[cut..];
        let request = Request {
            max_tokens: ANSWER_TOKENS,
            sampling: SamplingParams::greedy(),
            stop: vec!["\n".to_owned()],
            ..Request::new(prompt.to_vec())
        };
        let text = handle.submit(request)?.complete()?.text;
        let found = text.to_lowercase().contains(&self.answer.to_lowercase());
        let prompt = [prompt, &encode(&self.lead)].concat();
        Ok(Found { found, log_prob: log_prob(handle, &prompt, &encode(&format!(" {}", self.answer)))?, text })
    }
}

/// Mean log-probability of `answer` after `prompt`. Every request but the first finds its cells in the cache.
fn log_prob(handle: &Handle, prompt: &[TokenId], answer: &[TokenId]) -> Result<f64, EvalError> {
    let mut sum = 0.0;
    for (given, next) in answer.iter().enumerate() {
        let tokens = [prompt, &answer[..given]].concat();
        let request = Request { max_tokens: 0, logits: LogitsWanted::Last, ..Request::new(tokens) };
        let mut of_next = None;
        for event in handle.submit(request)? {
            match event {
                Event::Logits { values, .. } => of_next = Some(LogSoftmax::new(&values).log_prob(next.0 as usize)),
                Event::Error(error) => return Err(error.into()),
                _ => {}
            }
        }
        sum += of_next.ok_or(EngineError::Ended)?;
    }
    Ok(sum / answer.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token for each byte.
    fn bytes(text: &str) -> Vec<TokenId> {
        text.bytes().map(|b| TokenId(b.into())).collect()
    }

    fn text(trial: &Trial) -> String {
        String::from_utf8(trial.prompt.iter().map(|token| token.0 as u8).collect()).expect("UTF-8")
    }

    fn trial(kind: NeedleKind, depth: f64, number: u64) -> Trial {
        Trial::new(&bytes, &Haystack::MadeUp, kind, Place { length: 4000, depth }, number).expect("room")
    }

    #[test]
    fn the_needle_lies_where_it_was_asked_for() {
        for depth in [0.0, 0.25, 0.5, 1.0] {
            let trial = trial(NeedleKind::Number, depth, 7);
            let text = text(&trial);
            assert!(text.len() <= 4000 && text.len() > 3800, "{}", text.len());
            let needle = text.find(&format!(" is {}. ", trial.answer)).expect("the needle is there");
            assert!(text[trial.needle_at..].starts_with("The "), "{}", &text[trial.needle_at..]);
            assert!((needle as f64 / text.len() as f64 - depth).abs() < 0.05, "{needle} {depth}");
            assert!(text.ends_with("?\nAnswer:"));
        }
    }

    #[test]
    fn trials_differ_and_repeat() {
        assert_eq!(trial(NeedleKind::Word, 0.5, 1), trial(NeedleKind::Word, 0.5, 1));
        assert_ne!(trial(NeedleKind::Word, 0.5, 1).prompt, trial(NeedleKind::Word, 0.5, 2).prompt);
        let several = text(&trial(NeedleKind::Several, 0.5, 3));
        assert_eq!(several.matches(" code of ").count(), 2 + OTHERS);
    }

    #[test]
    fn any_text_is_a_haystack() {
        let haystack = Haystack::of("One sentence. Another!\nA line\n\n");
        let Haystack::Text(sentences) = &haystack else { panic!("a text") };
        assert_eq!(sentences, &["One sentence. ", "Another! ", "A line "]);
        assert!(matches!(Haystack::of(" \n"), Haystack::MadeUp));
        let place = Place { length: 1000, depth: 0.3 };
        let trial = Trial::new(&bytes, &haystack, NeedleKind::Number, place, 0).expect("room");
        assert!(text(&trial).contains("Another! A line One sentence. "));
    }

    #[test]
    fn a_length_without_room_is_refused() {
        let place = Place { length: 90, depth: 0.5 };
        let error = Trial::new(&bytes, &Haystack::MadeUp, NeedleKind::Number, place, 0).expect_err("no room");
        assert!(error.to_string().contains("a needle and its question"), "{error}");
    }
}

//! A needle in a haystack: a sentence with a code, somewhere in a long text, and a question for it at the end.

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
const ANSWER_TOKENS: u32 = 48;

/// Tokens that a context needs behind a question: for the answer, and for its beginning where that is given.
pub const ANSWER_ROOM: u32 = 64;

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

    /// A number from 0 to 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
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
        for mut piece in text.split_inclusive(['.', '!', '?', '\n', '\u{3002}', '\u{ff01}', '\u{ff1f}']).map(str::trim)
        {
            while !piece.is_empty() {
                let (sentence, rest) = piece.split_at(end_of_sentence(piece));
                sentences.push(format!("{} ", sentence.trim_end()));
                piece = rest.trim_start();
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

/// Bytes of the longest sentence: what has no end is cut, so that a needle can lie in it.
const SENTENCE_MAX: usize = 400;

/// Bytes of `text` that make a sentence: all, or as many whole words as fit; whole characters where no word does.
fn end_of_sentence(text: &str) -> usize {
    if text.len() <= SENTENCE_MAX {
        return text.len();
    }
    let most = text.floor_char_boundary(SENTENCE_MAX);
    text[..most].rfind(char::is_whitespace).filter(|&end| end > 0).unwrap_or(most)
}

/// How text becomes tokens.
#[derive(Clone, Copy)]
pub struct Encoder<'a> {
    /// The tokens of a text, without special ones.
    pub encode: &'a dyn Fn(&str) -> Vec<TokenId>,
    /// The token that a sequence begins with, if the model wants one.
    pub bos: Option<TokenId>,
}

impl Encoder<'_> {
    fn tokens(&self, text: &str) -> Vec<TokenId> {
        (self.encode)(text)
    }

    fn count(&self, text: &str) -> usize {
        self.tokens(text).len()
    }
}

/// A document with a question at its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The document and the question.
    pub prompt: Vec<TokenId>,
    /// The question alone, in words.
    pub question: String,
    /// Tokens of the document, before the question.
    document: usize,
    /// Tokens before the needle; none if what is asked for is nowhere.
    pub needle_at: Option<usize>,
    /// What comes before the answer in a full sentence.
    pub lead: String,
    /// What the answer must contain.
    pub answer: String,
    /// The token that a sequence begins with, if the model wants one.
    bos: Option<TokenId>,
}

/// One cell of the grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Tokens of document and question.
    pub length: u32,
    /// Where the needle is: 0 at the beginning, 1 right before the question.
    pub depth: f64,
}

/// Questions about one document.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What all prompts begin with.
    pub document: Vec<TokenId>,
    /// A question for each of the depths as they were given, then one for a name that is nowhere, whose answer is [`UNKNOWN`].
    pub trials: Vec<Trial>,
}

/// What the models of `tools/needle` say where a name has no code.
pub const UNKNOWN: &str = "unknown";

impl Trial {
    /// Makes the document `number` of a cell: the same for every setting.
    ///
    /// # Errors
    ///
    /// The length has no room for needle and question.
    pub fn new(
        encoder: Encoder<'_>,
        haystack: &Haystack,
        kind: NeedleKind,
        place: Place,
        number: u64,
    ) -> Result<Self, EvalError> {
        let mut draw = Draw(number.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(place.length));
        let others = if kind == NeedleKind::Several { OTHERS } else { 0 };
        let names = names(&mut draw, 1 + others)?;
        let asked = Needle::new(kind, names[0], &mut draw);
        let mut needles = vec![(place.depth, asked)];
        for &name in &names[1..] {
            needles.push((draw.fraction(), Needle::new(kind, name, &mut draw)));
        }
        let question = encoder.count(&asking(&needles[0].1.question()));
        let (document, places) = hide(encoder, haystack, &mut draw, &needles, place.length as usize, question)?;
        Ok(needles[0].1.ask(encoder, &document, Some(places[0])))
    }

    /// Makes one document of `length` tokens, a question included, with a number at each of the `depths`.
    ///
    /// # Errors
    ///
    /// The length has no room for needles and question, or there are more of them than names.
    pub fn series(
        encoder: Encoder<'_>,
        haystack: &Haystack,
        depths: &[f64],
        length: u32,
        number: u64,
    ) -> Result<Series, EvalError> {
        let mut draw = Draw(number);
        let names = names(&mut draw, depths.len() + 1)?;
        let mut needle = |name| Needle::new(NeedleKind::Number, name, &mut draw);
        let needles: Vec<_> = depths.iter().zip(&names).map(|(&depth, &name)| (depth, needle(name))).collect();
        let nowhere = Needle { answer: UNKNOWN.to_owned(), ..needle(names[depths.len()]) };
        let all = || needles.iter().map(|(_, needle)| needle).chain([&nowhere]);
        let question = all().map(|needle| encoder.count(&asking(&needle.question()))).max().unwrap_or(0);
        let (document, places) = hide(encoder, haystack, &mut draw, &needles, length as usize, question)?;
        let places = places.into_iter().map(Some).chain([None]);
        let trials = all().zip(places).map(|(needle, place)| needle.ask(encoder, &document, place)).collect();
        Ok(Series { document, trials })
    }
}

/// Makes a document with `needles` at their depths that has room for a question within `length` tokens; says how many tokens
/// are before each needle.
fn hide(
    encoder: Encoder<'_>,
    haystack: &Haystack,
    draw: &mut Draw,
    needles: &[(f64, Needle)],
    length: usize,
    question: usize,
) -> Result<(Vec<TokenId>, Vec<usize>), EvalError> {
    let of_needles: usize = needles.iter().map(|(_, needle)| encoder.count(&needle.sentence())).sum();
    let fixed = of_needles + question + usize::from(encoder.bos.is_some());
    if length < 2 * fixed {
        return Err(EvalError::Room { tokens: length, needed: 2 * fixed });
    }
    let first = draw.below(1 << 20);
    let (mut sentences, (mut document, mut places)) = (Vec::new(), join(encoder, &[], needles));
    // Sentences that are joined have fewer tokens than alone, so their number is found by trying: too many, then fewer.
    while document.len() + question <= length {
        let tokens = document.len() + question;
        let of_one = (tokens.saturating_sub(fixed) / sentences.len().max(1)).max(1);
        // What one takes is known when there is one.
        let more = if sentences.is_empty() { 1 } else { (length - tokens) / of_one + 1 };
        if sentences.len() + more > 2 * length {
            return Err(EvalError::Sentences);
        }
        for _ in 0..more {
            sentences.push(haystack.sentence(first + sentences.len(), draw));
        }
        (document, places) = join(encoder, &sentences, needles);
    }
    while document.len() + question > length {
        let of_one = (document.len() / sentences.len().max(1)).max(1);
        let excess = document.len() + question - length;
        sentences.truncate(sentences.len() - (excess / of_one / 2 + 1).min(sentences.len()));
        if sentences.is_empty() {
            return Err(EvalError::Room { tokens: length, needed: 2 * (fixed + of_one) });
        }
        (document, places) = join(encoder, &sentences, needles);
    }
    Ok((document, places))
}

/// The tokens of `sentences` with `needles` among them at their depths, and how many are before each needle.
fn join(encoder: Encoder<'_>, sentences: &[String], needles: &[(f64, Needle)]) -> (Vec<TokenId>, Vec<usize>) {
    let mut order: Vec<usize> = (0..needles.len()).collect();
    order.sort_by(|&a, &b| needles[a].0.total_cmp(&needles[b].0));
    let (mut document, mut places) = (Vec::from_iter(encoder.bos), vec![0; needles.len()]);
    let (mut piece, mut done) = (String::new(), 0);
    for index in order {
        let (depth, needle) = &needles[index];
        let at = (depth.clamp(0.0, 1.0) * sentences.len() as f64).round() as usize;
        piece.extend(sentences[done..at].iter().map(String::as_str));
        document.extend(encoder.tokens(&piece));
        (places[index], done, piece) = (document.len(), at, needle.sentence());
    }
    piece.extend(sentences[done..].iter().map(String::as_str));
    document.extend(encoder.tokens(&piece));
    (document, places)
}

/// Different names.
fn names(draw: &mut Draw, count: usize) -> Result<Vec<&'static str>, EvalError> {
    let mut left = NAMES.to_vec();
    if count > left.len() {
        return Err(EvalError::Names { wanted: count, most: left.len() });
    }
    Ok((0..count).map(|_| left.swap_remove(draw.below(left.len()))).collect())
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

    fn lead(&self) -> String {
        format!("The {} of {} is", self.what, self.name)
    }

    fn sentence(&self) -> String {
        format!("{} {}. ", self.lead(), self.answer)
    }

    fn question(&self) -> String {
        format!("What is the {} of {}?", self.what, self.name)
    }

    /// The question for this needle, after `document`.
    fn ask(&self, encoder: Encoder<'_>, document: &[TokenId], needle_at: Option<usize>) -> Trial {
        Trial {
            prompt: [document, &encoder.tokens(&asking(&self.question()))].concat(),
            document: document.len(),
            question: self.question(),
            needle_at,
            lead: format!(" {}", self.lead()),
            answer: self.answer.clone(),
            bos: encoder.bos,
        }
    }
}

/// What stands behind a document to ask `question`, as the models of `tools/needle` are trained.
fn asking(question: &str) -> String {
    format!("\nQuestion: {question}\nAnswer:")
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
    /// The request that asks. `last` cuts the prompt to its last tokens: what is left when a context is cut short, the control.
    pub fn request(&self, last: Option<usize>) -> Request {
        Request {
            max_tokens: ANSWER_TOKENS,
            sampling: SamplingParams::greedy(),
            stop: vec!["\n".to_owned()],
            ..Request::new(self.cut(&self.prompt, last))
        }
    }

    /// The last tokens of `prompt`. A context that was cut begins as every sequence does.
    fn cut(&self, prompt: &[TokenId], last: Option<usize>) -> Vec<TokenId> {
        let from = last.map_or(0, |last| prompt.len().saturating_sub(last));
        self.bos.filter(|_| from > 0).into_iter().chain(prompt[from..].iter().copied()).collect()
    }

    /// Whether `text` has the answer.
    pub fn is_answered_by(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.answer.to_lowercase())
    }

    /// Asks. `last` is that of [`Trial::request`].
    ///
    /// # Errors
    ///
    /// A request failed.
    pub fn ask(&self, handle: &Handle, encoder: Encoder<'_>, last: Option<usize>) -> Result<Found, EvalError> {
        let text = handle.submit(self.request(last))?.complete()?.text;
        let (prompt, answer) = self.led(encoder);
        let log_prob = log_prob(handle, self.cut(&prompt, last), answer)?;
        Ok(Found { found: self.is_answered_by(&text), log_prob, text })
    }

    /// The prompt with the beginning of the answer's sentence, and the tokens that follow in it: those of the text as a whole,
    /// since words may begin in the token before.
    fn led(&self, encoder: Encoder<'_>) -> (Vec<TokenId>, Vec<TokenId>) {
        let led = asking(&self.question) + &self.lead;
        let (before, whole) = (encoder.tokens(&led), encoder.tokens(&format!("{led} {}", self.answer)));
        let common = before.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        ([&self.prompt[..self.document], &whole[..common]].concat(), whole[common..].to_vec())
    }
}

/// Mean log-probability of `answer` after `prompt`.
fn log_prob(handle: &Handle, prompt: Vec<TokenId>, answer: Vec<TokenId>) -> Result<f64, EvalError> {
    let (first, vocab) = (prompt.len() - 1, handle.vocab() as usize);
    let (forced, logits) = (answer.clone(), LogitsWanted::Continuation);
    let (mut sum, mut rows_seen) = (0.0, 0);
    for event in handle.submit(Request { forced, max_tokens: 0, logits, ..Request::new(prompt) })? {
        match event {
            Event::Logits { first_position, values, .. } => {
                let next = &answer[first_position as usize - first..];
                // The row of the last token predicts what was not given.
                for (token, row) in next.iter().zip(values.chunks_exact(vocab)) {
                    sum += LogSoftmax::new(row).log_prob(token.0 as usize);
                    rows_seen += 1;
                }
            }
            Event::Error(error) => return Err(error.into()),
            _ => {}
        }
    }
    if rows_seen < answer.len() {
        return Err(EngineError::Ended.into());
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

    const ENCODER: Encoder<'_> = Encoder { encode: &bytes, bos: None };

    fn text(trial: &Trial) -> String {
        String::from_utf8(trial.prompt.iter().map(|token| token.0 as u8).collect()).expect("UTF-8")
    }

    fn trial(kind: NeedleKind, depth: f64, number: u64) -> Trial {
        Trial::new(ENCODER, &Haystack::MadeUp, kind, Place { length: 4000, depth }, number).expect("room")
    }

    #[test]
    fn the_needle_lies_where_it_was_asked_for() {
        for depth in [0.0, 0.25, 0.5, 1.0] {
            let trial = trial(NeedleKind::Number, depth, 7);
            let text = text(&trial);
            assert!(text.len() <= 4000 && text.len() > 3800, "{}", text.len());
            let needle = text.find(&format!(" is {}. ", trial.answer)).expect("the needle is there");
            let at = trial.needle_at.expect("it has a place");
            assert!(text[at..].starts_with(&format!("{} {}. ", &trial.lead[1..], trial.answer)), "{}", &text[at..]);
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
    fn questions_of_a_series_share_their_document() {
        let depths = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
        let series = Trial::series(ENCODER, &Haystack::MadeUp, &depths, 4000, 5).expect("room");
        assert_eq!(series.trials.len(), depths.len() + 1);
        let document = text(&series.trials[0])[..series.document.len()].to_owned();
        for (i, trial) in series.trials.iter().enumerate() {
            assert!(trial.prompt.starts_with(&series.document));
            assert!(trial.prompt.len() <= 4000 && trial.prompt.len() > 3800, "{}", trial.prompt.len());
            assert!(text(trial).ends_with(&format!("Question: {}\nAnswer:", trial.question)));
            let found = document.find(&format!("{} {}. ", &trial.lead[1..], trial.answer));
            assert_eq!(found, trial.needle_at);
            match depths.get(i) {
                Some(depth) => assert!((found.expect("a place") as f64 / 4000.0 - depth).abs() < 0.06),
                None => assert_eq!((found, trial.answer.as_str()), (None, UNKNOWN)),
            }
        }
        assert!(!document.contains(&series.trials[depths.len()].lead[1..]), "the last name is nowhere");
    }

    #[test]
    fn what_is_cut_begins_like_every_sequence() {
        let bos = Some(TokenId(256));
        let encoder = Encoder { bos, ..ENCODER };
        let place = Place { length: 1000, depth: 0.5 };
        let trial = Trial::new(encoder, &Haystack::MadeUp, NeedleKind::Number, place, 0).expect("room");
        assert_eq!(trial.request(None).prompt, trial.prompt);
        assert_eq!(trial.prompt.iter().filter(|&&token| Some(token) == bos).count(), 1);
        let cut = trial.request(Some(100)).prompt;
        assert_eq!((cut[0], &cut[1..]), (TokenId(256), &trial.prompt[trial.prompt.len() - 100..]));
    }

    #[test]
    fn any_text_is_a_haystack() {
        let haystack = Haystack::of("One sentence. Another!\nA line\n\n");
        let Haystack::Text(sentences) = &haystack else { panic!("a text") };
        assert_eq!(sentences, &["One sentence. ", "Another! ", "A line "]);
        assert!(matches!(Haystack::of(" \n"), Haystack::MadeUp));
        let place = Place { length: 1000, depth: 0.3 };
        let trial = Trial::new(ENCODER, &haystack, NeedleKind::Number, place, 0).expect("room");
        assert!(text(&trial).contains("Another! A line One sentence. "));
    }

    /// Tokens of up to 4 letters that take the space before them along: a text in pieces has more of them than whole.
    fn words(text: &str) -> Vec<TokenId> {
        let mut tokens = Vec::new();
        for word in text.split_inclusive(' ') {
            tokens.extend(word.as_bytes().chunks(4).map(|part| TokenId(part.iter().map(|&b| u32::from(b)).sum())));
        }
        if text.ends_with(' ') {
            tokens.push(TokenId(0));
        }
        tokens
    }

    #[test]
    fn documents_are_as_long_as_asked() {
        let encoder = Encoder { encode: &words, bos: Some(TokenId(1)) };
        for length in [300, 1000, 20_000] {
            for number in 0..4 {
                let place = Place { length, depth: 0.4 };
                let trial = Trial::new(encoder, &Haystack::MadeUp, NeedleKind::Several, place, number).expect("room");
                assert!(trial.prompt.len() <= length as usize && trial.prompt.len() + 24 > length as usize);
            }
        }
    }

    #[test]
    fn text_without_ends_of_sentences_is_a_haystack() {
        for text in ["\u{4e00}\u{4e8c}".repeat(5000), "word ".repeat(3000), "x".repeat(5000)] {
            let Haystack::Text(sentences) = Haystack::of(&text) else { panic!("a text") };
            assert!(sentences.len() > 10 && sentences.iter().all(|s| s.len() <= SENTENCE_MAX + 1 && s.ends_with(' ')));
            let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count();
            assert_eq!(sentences.iter().map(|s| letters(s)).sum::<usize>(), letters(&text));
            let place = Place { length: 3000, depth: 0.5 };
            let trial = Trial::new(ENCODER, &Haystack::of(&text), NeedleKind::Number, place, 0).expect("room");
            assert!(trial.prompt.len() > 2500, "{}", trial.prompt.len());
        }
    }

    #[test]
    fn the_answer_is_what_follows_its_beginning() {
        let encoder = Encoder { encode: &words, ..ENCODER };
        for encoder in [ENCODER, encoder] {
            let place = Place { length: 1000, depth: 0.5 };
            let trial = Trial::new(encoder, &Haystack::MadeUp, NeedleKind::Number, place, 3).expect("room");
            let (prompt, answer) = trial.led(encoder);
            assert!(prompt.starts_with(&trial.prompt[..trial.document]) && (1..=8).contains(&answer.len()));
            let whole = encoder.tokens(&format!("{}{} {}", asking(&trial.question), trial.lead, trial.answer));
            assert_eq!([&prompt[trial.document..], &answer].concat(), whole);
        }
    }

    #[test]
    fn more_needles_than_names_are_refused() {
        let error = Trial::series(ENCODER, &Haystack::MadeUp, &[0.5; 16], 9000, 0).expect_err("too many").to_string();
        assert!(error.contains("17 needles") && error.contains("names for 16"), "{error}");
    }

    #[test]
    fn text_that_cannot_fill_a_document_is_refused() {
        let place = Place { length: 300, depth: 0.5 };
        let none = Encoder { encode: &|_| Vec::new(), bos: None };
        let error = Trial::new(none, &Haystack::MadeUp, NeedleKind::Number, place, 0).expect_err("no tokens");
        assert!(matches!(error, EvalError::Sentences), "{error}");
        // A single sentence is longer than the room.
        let long = Haystack::of(&"x".repeat(SENTENCE_MAX));
        let error = Trial::new(ENCODER, &long, NeedleKind::Number, place, 0).expect_err("no room");
        assert!(matches!(error, EvalError::Room { tokens: 300, .. }), "{error}");
    }

    #[test]
    fn a_length_without_room_is_refused() {
        let place = Place { length: 90, depth: 0.5 };
        let error = Trial::new(ENCODER, &Haystack::MadeUp, NeedleKind::Number, place, 0).expect_err("no room");
        assert!(error.to_string().contains("needles and a question"), "{error}");
    }
}

//! Stop strings on streamed text.

/// Looks for the first of some strings in a text that arrives in parts.
///
/// Text that may turn out to begin a stop string is held back until that is decided; everything else passes at once.
/// The match that ends first wins, and of those that end together the longest, so that neither depends on how the text
/// was cut.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text held back; after a match, what followed it.
    held: String,
    matched: Option<usize>,
}

/// What [`StopStrings::push`] made of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Text that is certainly not part of a stop string.
    pub text: String,
    /// Index of the stop string that ended the text.
    pub stop: Option<usize>,
}

impl StopStrings {
    /// Matches any of `stops`. Empty strings never match.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), matched: None }
    }

    /// Takes the next part of the text. After a match nothing passes any more.
    pub fn push(&mut self, part: &str) -> Passed {
        self.held.push_str(part);
        if self.matched.is_some() {
            return Passed { text: String::new(), stop: self.matched };
        }
        let found = |(index, stop): (usize, &String)| {
            let start = self.held.find(stop.as_str()).filter(|_| !stop.is_empty())?;
            Some((start + stop.len(), start, index))
        };
        if let Some((end, start, index)) = self.stops.iter().enumerate().filter_map(found).min() {
            let text = self.held[..start].to_owned();
            self.held.drain(..end);
            self.matched = Some(index);
            return Passed { text, stop: self.matched };
        }
        let rest = self.held.split_off(self.undecided());
        Passed { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Ends the text: what was held back without a match, or what followed the match.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Index of the stop string that was found.
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    /// Start of the longest end of the held text that begins a stop string.
    fn undecided(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = (self.held.len() + 1).saturating_sub(longest);
        let begins = |&at: &usize| {
            let end = &self.held.as_bytes()[at..];
            self.stops.iter().any(|stop| stop.as_bytes().starts_with(end))
        };
        // A stop string starts with a whole character, so a match never starts within one.
        (from..self.held.len()).find(begins).unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], parts: &[&str]) -> (Vec<String>, Option<usize>, String) {
        let mut matcher = StopStrings::new(stops.iter().map(|s| s.to_string()).collect());
        let passed = parts.iter().map(|part| matcher.push(part).text).collect();
        let matched = matcher.matched();
        (passed, matched, matcher.finish())
    }

    #[test]
    fn a_possible_beginning_is_held_back() {
        let (passed, stop, rest) = run(&["\nUser:"], &["Hi", "\n", "Us", "eful\nUser", ": more"]);
        assert_eq!(passed, ["Hi", "", "", "\nUseful", ""]);
        assert_eq!((stop, rest.as_str()), (Some(0), " more"));
    }

    #[test]
    fn nothing_is_lost_without_a_match() {
        let (passed, stop, rest) = run(&["abc"], &["xa", "b", "ab"]);
        assert_eq!(passed, ["x", "", "ab"]);
        assert_eq!((stop, rest.as_str()), (None, "ab"));
    }

    #[test]
    fn the_match_that_ends_first_wins() {
        assert_eq!(run(&["abcd", "bc"], &["abcd"]).1, Some(1));
        assert_eq!(run(&["bc", "abc"], &["abc"]).1, Some(1));
        assert_eq!(run(&["", "é"], &["aé"]), (vec!["a".to_owned()], Some(1), String::new()));
        assert_eq!(run(&[], &["a", ""]), (vec!["a".to_owned(), String::new()], None, String::new()));
    }
}

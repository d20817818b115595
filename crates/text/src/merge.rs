//! Greedy pair merging, the inner loop of both byte-level BPE and SentencePiece's BPE.
//!
//! A text starts as a row of symbols. Of all adjacent pairs that the rules allow, the one with the
//! lowest priority number is merged (the leftmost of equals), until no pair is left. A queue of
//! candidates makes that O(n log n) for a text of n symbols; candidates that a later merge has made
//! void are recognised when they are popped instead of being removed.
//!
//! Source: Sennrich et al. 2016 (BPE); Kudo and Richardson 2018 (SentencePiece).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// "No symbol": the end of the row, or the id of a symbol that is no token.
pub(crate) const NONE: u32 = u32::MAX;

/// A run of bytes of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    /// First byte.
    pub(crate) start: u32,
    /// Bytes; 0 once it was merged into its left neighbour.
    pub(crate) len: u32,
    /// What the rules call this run.
    pub(crate) id: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    /// Its bytes in `text`.
    pub(crate) fn bytes<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        &text[self.start as usize..(self.start + self.len) as usize]
    }
}

/// What a merge would yield.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Merge {
    /// Lower merges first.
    pub(crate) priority: u32,
    /// Id of the merged symbol.
    pub(crate) id: u32,
}

/// Ordered by priority, then by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: u32,
    /// Bytes of the pair when it was queued. Symbols only grow, so the pair is still the same one
    /// exactly if its length is.
    len: u32,
    id: u32,
}

/// Scratch memory of merging, reused from piece to piece.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets the previous text.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends a symbol of `len` bytes to the row.
    pub(crate) fn push(&mut self, len: usize, id: u32) {
        let index = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |s| s.start + s.len);
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        self.symbols.push(Symbol {
            start,
            len: len as u32,
            id,
            prev: index.wrapping_sub(1), // NONE for the first
            next: NONE,
        });
    }

    /// Merges until `rule(left, right)` allows no pair, and returns the symbols that remain.
    pub(crate) fn run(&mut self, rule: impl Fn(&Symbol, &Symbol) -> Option<Merge>) -> impl Iterator<Item = &Symbol> {
        for left in 0..self.symbols.len().saturating_sub(1) {
            self.consider(left as u32, &rule);
        }
        while let Some(Reverse(candidate)) = self.queue.pop() {
            if !self.holds(&candidate) {
                continue;
            }
            let left = self.symbols[candidate.left as usize];
            let right = self.symbols[left.next as usize];
            self.symbols[left.next as usize].len = 0;
            if right.next != NONE {
                self.symbols[right.next as usize].prev = candidate.left;
            }
            let merged = &mut self.symbols[candidate.left as usize];
            merged.len = candidate.len;
            merged.id = candidate.id;
            merged.next = right.next;
            if left.prev != NONE {
                self.consider(left.prev, &rule);
            }
            self.consider(candidate.left, &rule);
        }
        self.symbols.iter().filter(|s| s.len > 0)
    }

    /// Queues the pair that starts at symbol `left`, if there is one and the rules allow it.
    fn consider(&mut self, left: u32, rule: &impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let first = &self.symbols[left as usize];
        if first.next == NONE {
            return;
        }
        let second = &self.symbols[first.next as usize];
        if let Some(Merge { priority, id }) = rule(first, second) {
            let len = first.len + second.len;
            self.queue.push(Reverse(Candidate { priority, left, len, id }));
        }
    }

    fn holds(&self, candidate: &Candidate) -> bool {
        let left = &self.symbols[candidate.left as usize];
        left.len > 0 && left.next != NONE && left.len + self.symbols[left.next as usize].len == candidate.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges `text` with pairs whose concatenation is listed, priority by place in the list.
    fn merge(text: &str, list: &[&str]) -> Vec<String> {
        let bytes = text.as_bytes();
        let mut merger = Merger::default();
        merger.clear();
        for c in text.chars() {
            merger.push(c.len_utf8(), NONE);
        }
        let rule = |l: &Symbol, r: &Symbol| {
            let pair = &bytes[l.start as usize..(r.start + r.len) as usize];
            let at = list.iter().position(|s| s.as_bytes() == pair)?;
            Some(Merge { priority: at as u32, id: at as u32 })
        };
        merger.run(rule).map(|s| String::from_utf8_lossy(s.bytes(bytes)).into_owned()).collect()
    }

    #[test]
    fn lowest_priority_first_then_leftmost() {
        assert_eq!(merge("aaa", &["aa"]), ["aa", "a"]);
        assert_eq!(merge("abc", &["bc", "ab"]), ["a", "bc"]);
        assert_eq!(merge("abc", &["ab", "bc", "abc"]), ["abc"]);
        assert_eq!(merge("abcd", &["bc", "ab", "cd", "abc", "abcd"]), ["abcd"]);
        assert_eq!(merge("", &["x"]), Vec::<String>::new());
        assert_eq!(merge("äö", &["äö"]), ["äö"]);
    }
}

//! The texts of a vocabulary, looked up by index and by content.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use tailrace_gguf::Strings;

/// [`Strings`] that can also be looked up by content, at about eight bytes a string. Of equal strings the first is found.
#[derive(Debug)]
pub(crate) struct StringTable {
    strings: Strings,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    longest: usize,
}

impl StringTable {
    /// Indexes `strings`; returns the table and the indices of strings that repeat an earlier one.
    /// Empty strings are stored but never found.
    pub(crate) fn new(strings: Strings) -> (Self, Vec<u32>) {
        let mut table = Self {
            index: HashTable::with_capacity(strings.len()),
            hasher: DefaultHashBuilder::default(),
            longest: 0,
            strings,
        };
        let mut repeated = Vec::new();
        for i in 0..table.strings.len() {
            let Some(string) = table.strings.get(i).filter(|s| !s.is_empty()) else {
                continue;
            };
            if table.find(string).is_some() {
                repeated.push(i as u32);
                continue;
            }
            table.longest = table.longest.max(string.len());
            let (strings, hasher) = (&table.strings, &table.hasher);
            let rehash = |&i: &u32| hasher.hash_one(strings.get(i as usize).unwrap_or_default());
            table.index.insert_unique(hasher.hash_one(string), i as u32, rehash);
        }
        (table, repeated)
    }

    /// Index of the first string equal to `string`.
    pub(crate) fn find(&self, string: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(string);
        self.index.find(hash, |&i| self.strings.get(i as usize) == Some(string)).copied()
    }

    /// The string at `index`, or `None` past the end.
    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        self.strings.get(index)
    }

    /// Number of strings.
    pub(crate) fn len(&self) -> usize {
        self.strings.len()
    }

    /// Bytes of the longest string.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Heap bytes held.
    pub(crate) fn heap_bytes(&self) -> usize {
        heap_bytes(&self.strings) + self.index.allocation_size()
    }
}

/// Heap bytes that `strings` needs.
pub(crate) fn heap_bytes(strings: &Strings) -> usize {
    strings.total_bytes() + strings.len() * size_of::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_of_equal_strings_is_found() {
        let strings: Strings = ["a", "", "bc", "a", "\u{2581}x"].iter().collect();
        let (table, repeated) = StringTable::new(strings);
        assert_eq!(repeated, [3]);
        assert_eq!(table.find(b"a"), Some(0));
        assert_eq!(table.find(b"bc"), Some(2));
        assert_eq!(table.find(b""), None);
        assert_eq!(table.find(b"b"), None);
        assert_eq!(table.get(3), Some(&b"a"[..]));
        assert_eq!(table.get(5), None);
        assert_eq!(table.longest(), 4);
    }
}

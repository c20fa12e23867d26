//! Where is the newest flushed copy of a key?
//!
//! One [`Index`] per shard and table: what the store asks of it, whatever it keeps of a key. There is
//! one, [`KeyIndex`]: exact, it knows every key with a live entry in a current file, tombstones
//! included, and no other.
//!
//! Invariants:
//! - A key has a class beside its location: how often its row was used, for a row that is not in memory.
//!   Who points a key to a new copy sets it to 0; a move keeps it. It is lost with the process, except for what the
//!   index snapshot says of it.
//! - Every change of a location goes through [`Index::repoint`] or [`Index::forget`], which keep
//!   the stale counters of both files exact.

use super::data_file::{DataFile, Location};
use super::held::Tally;
use crate::keymap::{ABSENT, Builder, CLASS_BITS, CLASS_SHIFT, CLASSES, KeyMap};
use crate::units::to_usize;
use std::sync::Arc;

/// Files by slot, as borrowed for a batch.
pub type Files = [Option<Arc<DataFile>>];

/// What an index says of a key that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry(u64);

impl IndexEntry {
    /// A location with a class, below [`CLASSES`].
    #[inline]
    #[must_use]
    pub fn new(location: Location, class: u8) -> IndexEntry {
        IndexEntry(location.0 | u64::from(class) << CLASS_SHIFT & CLASS_BITS)
    }

    /// Where the newest copy is.
    #[inline]
    #[must_use]
    pub fn location(self) -> Location {
        Location(self.0 & !CLASS_BITS)
    }

    /// The class, below [`CLASSES`].
    #[inline]
    #[must_use]
    pub fn class(self) -> u8 {
        let [class, ..] = ((self.0 & CLASS_BITS) >> CLASS_SHIFT).to_le_bytes();
        class
    }
}

/// hash → location. Nothing is asked of it with a lock taken or a call by pointer for each key.
pub trait Index: Sized + std::fmt::Debug {
    /// An empty index for hashes in `[range.0, range.1]`.
    #[must_use]
    fn new(range: (u64, u64)) -> Self;

    /// Number of keys, tombstones included.
    #[must_use]
    fn keys(&self) -> usize;

    /// Memory in bytes.
    #[must_use]
    fn bytes(&self) -> u64;

    /// The location of one key.
    #[must_use]
    fn get(&self, hash: u64) -> Option<Location>;

    /// Location and class of each key of a batch, `None` for absent keys.
    fn get_batch(&self, hashes: &[u64], out: &mut Vec<Option<IndexEntry>>);

    /// Sets the class of a key, if it is known: its row leaves memory.
    fn set_class(&mut self, hash: u64, class: u8);

    /// Replaces the class of each key by the table's, of about so many keys from the hash `from` on.
    /// Returns where to go on, or that all are done; the next round begins with 0. A round meets each
    /// key once, whatever comes between its steps.
    ///
    /// # Cost
    /// Two to four nanoseconds a key.
    fn replace_classes(&mut self, from: u64, keys: usize, classes: &[u8; CLASSES]) -> Option<u64>;

    /// Adds hash and entry of each key of a class that is not 0 to `found`, of about so many keys from the hash
    /// `from` on. Returns where to go on, as [`Index::replace_classes`] does.
    ///
    /// # Cost
    /// Some nanoseconds a key.
    fn classed(&self, from: u64, keys: usize, found: &mut Vec<(u64, IndexEntry)>) -> Option<u64>;

    /// Announces to the processor that [`Index::prefetch_line`] or [`Index::prefetch_place`] of a key is called soon.
    fn prefetch_segment(&self, hash: u64);

    /// Announces to the processor that a key is looked up soon.
    fn prefetch_line(&self, hash: u64);

    /// Announces to the processor that a key, which may be new, is repointed soon.
    fn prefetch_place(&self, hash: u64);

    /// Points a key to its newest copy. Returns where it pointed before.
    fn repoint(
        &mut self,
        files: &Files,
        hash: u64,
        to: Location,
        tally: &mut Tally<'_>,
    ) -> Option<Location>;

    /// Moves a key from a compaction's input to its output, if it still points to the input.
    fn moved(
        &mut self,
        files: &Files,
        hash: u64,
        from: Location,
        to: Location,
        tally: &mut Tally<'_>,
    ) -> bool;

    /// Forgets a key that still points to `from` (a tombstone that no older copy needs).
    fn forget(&mut self, files: &Files, hash: u64, from: Location, tally: &mut Tally<'_>) -> bool;

    /// Forgets all keys: the table was dropped. `range`: as it was made for.
    ///
    /// # Cost
    /// A look at each key; the memory is given back.
    fn forget_all(&mut self, files: &Files, range: (u64, u64));
}

/// Makes an [`Index`] of keys in hash order.
pub trait IndexBuilder: Sized {
    /// What it makes.
    type Index: Index;

    /// Starts an index for hashes in `[range.0, range.1]`, of about `expected` keys or fewer.
    #[must_use]
    fn new(range: (u64, u64), expected: u64) -> Self;

    /// Adds a key; false, and nothing is added, if it is out of order.
    fn push(&mut self, hash: u64, to: IndexEntry) -> bool;

    /// Adds keys, each with its location as a number; false, and nothing is added, if one is out of
    /// order.
    fn extend(&mut self, keys: &[(u64, u64)]) -> bool;

    /// The index.
    #[must_use]
    fn finish(self) -> Self::Index;
}

/// An index with an address of its own for each key, and all bits of it.
#[derive(Debug)]
pub struct KeyIndex {
    map: KeyMap,
}

fn file(files: &Files, location: Location) -> &Arc<DataFile> {
    let found = files.get(location.slot().index()).and_then(Option::as_ref);
    match found {
        Some(file) => file,
        None => unreachable!("the index points into files of the current version"),
    }
}

impl Index for KeyIndex {
    fn new(range: (u64, u64)) -> KeyIndex {
        KeyIndex {
            map: KeyMap::new(range.0, range.1),
        }
    }

    fn keys(&self) -> usize {
        self.map.len()
    }

    fn bytes(&self) -> u64 {
        self.map.bytes() as u64
    }

    #[inline]
    fn get(&self, hash: u64) -> Option<Location> {
        self.map.get(hash).map(|found| IndexEntry(found).location())
    }

    fn get_batch(&self, hashes: &[u64], out: &mut Vec<Option<IndexEntry>>) {
        let mut raw = vec![ABSENT; hashes.len()];
        self.map.get_batch(hashes, &mut raw);
        out.clear();
        let entry = |value: &u64| (*value != ABSENT).then_some(IndexEntry(*value));
        out.extend(raw.iter().map(entry));
    }

    #[inline]
    fn set_class(&mut self, hash: u64, class: u8) {
        self.map.set_class(hash, class);
    }

    fn replace_classes(&mut self, from: u64, keys: usize, classes: &[u8; CLASSES]) -> Option<u64> {
        self.map.replace_classes(from, keys, classes)
    }

    fn classed(&self, from: u64, keys: usize, found: &mut Vec<(u64, IndexEntry)>) -> Option<u64> {
        let mut keep = |hash, value| {
            if value & CLASS_BITS != 0 {
                found.push((hash, IndexEntry(value)));
            }
        };
        self.map.walk(from, keys, &mut keep)
    }

    #[inline]
    fn prefetch_segment(&self, hash: u64) {
        self.map.prefetch_segment(hash);
    }

    #[inline]
    fn prefetch_line(&self, hash: u64) {
        self.map.prefetch_line(hash);
    }

    #[inline]
    fn prefetch_place(&self, hash: u64) {
        self.map.prefetch_place(hash);
    }

    fn repoint(
        &mut self,
        files: &Files,
        hash: u64,
        to: Location,
        tally: &mut Tally<'_>,
    ) -> Option<Location> {
        self.point(files, hash, IndexEntry(to.0), tally)
    }

    fn moved(
        &mut self,
        files: &Files,
        hash: u64,
        from: Location,
        to: Location,
        tally: &mut Tally<'_>,
    ) -> bool {
        match self.map.get(hash).map(IndexEntry) {
            Some(old) if old.location() == from => {
                let class = old.0 & CLASS_BITS;
                self.point(files, hash, IndexEntry(to.0 | class), tally);
                true
            }
            _ => false,
        }
    }

    fn forget(&mut self, files: &Files, hash: u64, from: Location, tally: &mut Tally<'_>) -> bool {
        if self.get(hash) != Some(from) {
            return false;
        }
        self.map.remove(hash);
        tally.sub_live(file(files, from), from.entry());
        true
    }

    fn forget_all(&mut self, files: &Files, range: (u64, u64)) {
        let tally = |file| Option::as_deref(file).map(Tally::of);
        let mut tallies: Vec<Option<Tally<'_>>> = files.iter().map(tally).collect();
        for (_, entry) in self.map.iter_ordered() {
            let from = IndexEntry(entry).location();
            let file = file(files, from);
            if let Some(tally) = &mut tallies[from.slot().index()] {
                tally.sub_live(file, from.entry());
            }
        }
        *self = KeyIndex::new(range);
    }
}

impl KeyIndex {
    fn point(
        &mut self,
        files: &Files,
        hash: u64,
        to: IndexEntry,
        tally: &mut Tally<'_>,
    ) -> Option<Location> {
        let before = self.map.insert(hash, to.0);
        let before = before.map(|old| IndexEntry(old).location());
        let to = to.location();
        tally.add_live(file(files, to), to.entry());
        if let Some(old) = before {
            tally.sub_live(file(files, old), old.entry());
        }
        before
    }

    /// Hash and location in hash order.
    #[cfg(any(test, feature = "sim"))]
    pub fn iter(&self) -> impl Iterator<Item = (u64, Location)> + '_ {
        let all = self.map.iter_ordered();
        all.map(|(hash, entry)| (hash, IndexEntry(entry).location()))
    }
}

/// Makes a [`KeyIndex`].
#[derive(Debug)]
pub struct KeyIndexBuilder {
    builder: Builder,
}

impl IndexBuilder for KeyIndexBuilder {
    type Index = KeyIndex;

    fn new(range: (u64, u64), expected: u64) -> KeyIndexBuilder {
        let expected = to_usize(expected);
        KeyIndexBuilder {
            builder: Builder::new(range.0, range.1, expected),
        }
    }

    #[inline]
    fn push(&mut self, hash: u64, to: IndexEntry) -> bool {
        self.builder.push(hash, to.0)
    }

    fn extend(&mut self, keys: &[(u64, u64)]) -> bool {
        self.builder.extend(keys)
    }

    fn finish(self) -> KeyIndex {
        KeyIndex {
            map: self.builder.finish(),
        }
    }
}

#[cfg(test)]
mod tests;

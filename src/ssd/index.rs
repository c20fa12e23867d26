//! Where is the newest flushed copy of a key?
//!
//! One [`Index`] per shard and table. Exact: it knows every key with a live entry in a current
//! file, tombstones included, and no other.
//!
//! Invariants:
//! - Every change of a location goes through [`Index::repoint`] or [`Index::forget`], which keep
//!   the stale counters of both files exact.

use super::data_file::{DataFile, Location};
use super::held::Tally;
use crate::keymap::{Builder, KeyMap, Load};
use crate::units::to_usize;
use std::sync::Arc;

/// Files by slot, as borrowed for a batch.
pub type Files = [Option<Arc<DataFile>>];

/// hash → location.
#[derive(Debug)]
pub struct Index {
    map: KeyMap,
}

fn file(files: &Files, location: Location) -> &Arc<DataFile> {
    let found = files.get(location.slot().index()).and_then(Option::as_ref);
    match found {
        Some(file) => file,
        None => unreachable!("the index points into files of the current version"),
    }
}

impl Index {
    /// An empty index for hashes in `[range.0, range.1]`.
    #[must_use]
    pub fn new(range: (u64, u64)) -> Index {
        Index {
            map: KeyMap::new(range.0, range.1, Load::Dense),
        }
    }

    /// Keys, tombstones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether it holds no key.
    #[must_use]
    #[cfg(any(test, feature = "sim"))]
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// Memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.map.bytes() as u64
    }

    /// The location of one key.
    #[must_use]
    pub fn get(&self, hash: u64) -> Option<Location> {
        self.map.get(hash).map(Location)
    }

    /// The locations of a batch, `None` for absent keys.
    pub fn get_batch(&self, hashes: &[u64], out: &mut Vec<Option<Location>>) {
        let mut raw = vec![u64::MAX; hashes.len()];
        self.map.get_batch(hashes, &mut raw);
        out.clear();
        out.extend(raw.iter().map(|&v| (v != u64::MAX).then_some(Location(v))));
    }

    /// Announces to the processor that a key is looked up or repointed soon.
    #[inline]
    pub fn prefetch_line(&self, hash: u64) {
        self.map.prefetch_line(hash);
    }

    /// Points a key to its newest copy. Returns where it pointed before.
    pub fn repoint(
        &mut self,
        files: &Files,
        hash: u64,
        to: Location,
        tally: &mut Tally<'_>,
    ) -> Option<Location> {
        let before = self.map.insert(hash, to.0).map(Location);
        tally.add_live(file(files, to));
        if let Some(old) = before {
            tally.sub_live(file(files, old));
        }
        before
    }

    /// Moves a key from a compaction's input to its output, if it still points to the input.
    pub fn moved(
        &mut self,
        files: &Files,
        hash: u64,
        from: Location,
        to: Location,
        tally: &mut Tally<'_>,
    ) -> bool {
        if self.get(hash) != Some(from) {
            return false;
        }
        self.repoint(files, hash, to, tally);
        true
    }

    /// Forgets a key that still points to `from` (a tombstone that no older copy needs).
    pub fn forget(
        &mut self,
        files: &Files,
        hash: u64,
        from: Location,
        tally: &mut Tally<'_>,
    ) -> bool {
        if self.get(hash) != Some(from) {
            return false;
        }
        self.map.remove(hash);
        tally.sub_live(file(files, from));
        true
    }

    /// Forgets all keys: the table was dropped. `range`: as it was made for.
    ///
    /// # Cost
    /// A look at each key; the memory is given back.
    pub fn forget_all(&mut self, files: &Files, range: (u64, u64)) {
        let mut entries = vec![0; files.len()];
        for (_, location) in self.map.iter_ordered() {
            entries[Location(location).slot().index()] += 1;
        }
        for (file, entries) in files.iter().zip(entries) {
            if let Some(file) = file {
                file.sub_live_many(entries);
            }
        }
        *self = Index::new(range);
    }

    /// Hash and location in hash order.
    #[cfg(any(test, feature = "sim"))]
    pub fn iter(&self) -> impl Iterator<Item = (u64, Location)> + '_ {
        self.map.iter_ordered().map(|(h, v)| (h, Location(v)))
    }
}

/// Makes an [`Index`] of keys in hash order.
#[derive(Debug)]
pub struct IndexBuilder {
    builder: Builder,
}

impl IndexBuilder {
    /// Starts an index for hashes in `[range.0, range.1]`, of about `expected` keys or fewer.
    #[must_use]
    pub fn new(range: (u64, u64), expected: u64) -> IndexBuilder {
        let expected = to_usize(expected);
        IndexBuilder {
            builder: Builder::new(range.0, range.1, Load::Dense, expected),
        }
    }

    /// Adds a key; false, and nothing is added, if it is out of order.
    #[inline]
    pub fn push(&mut self, hash: u64, to: Location) -> bool {
        self.builder.push(hash, to.0)
    }

    /// Adds keys, each with its location as a number; false, and nothing is added, if one is out of
    /// order.
    pub fn extend(&mut self, keys: &[(u64, u64)]) -> bool {
        self.builder.extend(keys)
    }

    /// The index.
    #[must_use]
    pub fn finish(self) -> Index {
        Index {
            map: self.builder.finish(),
        }
    }
}

#[cfg(test)]
mod tests;

//! Where do the keys of a pass come from?

use std::ops::Range;
use std::path::Path;

use crate::error::Result;
use crate::io::{KeyFile, KeyType};
use crate::units::{TableId, mix64, range_of, unmix64};

/// Keys that are brought in at a time. More take a shard's lock for longer, fewer keep the device less busy.
const PIECE_KEYS: usize = 1 << 15;
/// Keys of a file that are put in order at once: 32 MiB.
const SORTED_KEYS: usize = 1 << 22;

/// Keys of one table that a pass needs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PassPart<'a> {
    /// The table.
    pub table: TableId,
    keys: Keys<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Keys<'a> {
    Slice(&'a [u64]),
    File(&'a Path, KeyType),
}

impl<'a> PassPart<'a> {
    /// Keys in memory, in any order. Room is asked for each of them; what is there twice is brought in once.
    ///
    /// # Shapes
    /// keys: `[n]`
    #[must_use]
    pub fn new(table: TableId, keys: &'a [u64]) -> PassPart<'a> {
        let keys = Keys::Slice(keys);
        PassPart { table, keys }
    }

    /// Those of a keyset file, which is read piece by piece while the pass is brought in: keys one after
    /// the other, little-endian, in any order, each once.
    #[must_use]
    pub fn from_file(table: TableId, path: &'a Path, key_type: KeyType) -> PassPart<'a> {
        let keys = Keys::File(path, key_type);
        PassPart { table, keys }
    }
}

/// Keys that were not brought in yet.
///
/// Rows lie on SSD by mix64 of their keys. So many keys are put into that order at once; a piece then has
/// keys of a narrow range of each shard, whose rows are neighbours.
#[derive(Debug)]
pub struct Source {
    from: From,
    /// By mix64, shard after shard.
    sorted: Vec<u64>,
    /// What is left of `sorted`, by shard.
    left: Vec<Range<usize>>,
}

#[derive(Debug)]
enum From {
    Memory(Vec<u64>),
    File(KeyFile),
}

impl Source {
    /// Keys of a part, for a store with so many shards.
    ///
    /// # Errors
    /// As [`KeyFile::open`].
    pub fn of(part: &PassPart<'_>, shards: usize) -> Result<Source> {
        let from = match part.keys {
            Keys::Slice(keys) => From::Memory(keys.to_vec()),
            Keys::File(path, key_type) => From::File(KeyFile::open(path, key_type)?),
        };
        Ok(Source {
            from,
            sorted: Vec::new(),
            left: vec![0..0; shards],
        })
    }

    /// Keys that are left.
    pub fn keys_left(&self) -> u64 {
        let sorted: usize = self.left.iter().map(ExactSizeIterator::len).sum();
        let others = match &self.from {
            From::Memory(keys) => keys.len() as u64,
            From::File(file) => file.keys_left(),
        };
        sorted as u64 + others
    }

    /// The next piece; empty at the end.
    ///
    /// # Errors
    /// `Io`.
    pub fn next_piece(&mut self, piece: &mut Vec<u64>) -> Result<()> {
        piece.clear();
        if self.left.iter().all(Range::is_empty) {
            self.sort_more()?;
        }
        let of_shard = PIECE_KEYS.div_ceil(self.left.len());
        for left in &mut self.left {
            let end = left.end.min(left.start + of_shard);
            piece.extend(
                self.sorted[left.start..end]
                    .iter()
                    .map(|hash| unmix64(*hash)),
            );
            left.start = end;
        }
        Ok(())
    }

    fn sort_more(&mut self) -> Result<()> {
        self.sorted.clear();
        match &mut self.from {
            // They are a copy already.
            From::Memory(keys) => self.sorted = std::mem::take(keys),
            From::File(file) => file.read(SORTED_KEYS, &mut self.sorted)?,
        }
        for key in &mut self.sorted {
            *key = mix64(*key);
        }
        self.sorted.sort_unstable();
        self.sorted.dedup();
        let shards = self.left.len();
        let mut start = 0;
        for (shard, left) in self.left.iter_mut().enumerate() {
            let others = &self.sorted[start..];
            let end = start + others.partition_point(|hash| range_of(*hash, shards) == shard);
            *left = start..end;
            start = end;
        }
        if self.sorted.is_empty() {
            self.sorted = Vec::new();
        }
        Ok(())
    }
}

//! Where do the keys of a pass come from?

use std::ops::Range;
use std::path::Path;

use crate::error::Result;
use crate::io::{KeyFile, KeyType};
use crate::units::{TableId, mix64, range_of, unmix64};

/// Keys of a run: positions in it have 16 bits.
pub const RUN_ROWS: usize = 1 << 16;
/// Keys that are brought in at a time. More take a shard's lock for longer, fewer keep the device less busy.
const PIECE_KEYS: usize = 1 << 15;
/// Keys of a file that are put in order at once, whole runs: 24 bytes each meanwhile.
const SORTED_KEYS: usize = 1 << 21;
/// Keys in memory that are, whole runs: a position has 32 bits.
const MEMORY_KEYS: usize = 1 << 31;
const _: () = assert!(SORTED_KEYS.is_multiple_of(RUN_ROWS) && MEMORY_KEYS.is_multiple_of(RUN_ROWS));

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
    /// Keys in memory, in any order. Room is asked for each of them; what is there twice is brought in once
    /// (and may be counted twice where the whole table is in memory).
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
/// Rows lie on SSD by mix64 of their keys. So many keys, a stretch, are put into that order at once; a piece then
/// has keys of a narrow range of each shard, whose rows are neighbours. Where all rows are in memory, pieces are the
/// runs of [`RUN_ROWS`] keys instead.
#[derive(Debug)]
pub struct Source {
    from: From,
    in_order: bool,
    /// By mix64, shard after shard; with the positions in the stretch.
    sorted: Vec<(u64, u32)>,
    /// What is left of `sorted`, by shard.
    left: Vec<Range<usize>>,
}

#[derive(Debug)]
enum From {
    /// Keys, and how many of them were given.
    Memory(Vec<u64>, usize),
    File(KeyFile),
}

/// Keys that come in together.
#[derive(Debug, Default)]
pub struct Piece {
    pub keys: Vec<u64>,
    /// Their positions in the stretch, if they are of one.
    pub positions: Vec<u32>,
    /// None: they are a run of the part.
    pub stretch: Option<PieceOf>,
}

/// The stretch of a piece.
#[derive(Debug)]
pub struct PieceOf {
    /// Its keys.
    pub keys: usize,
    /// Whether this is its last piece.
    pub is_over: bool,
}

impl From {
    /// The next keys, at most so many.
    fn with_next<T>(&mut self, most: usize, work: impl FnOnce(&[u64]) -> T) -> Result<T> {
        match self {
            From::Memory(all, given) => {
                let end = all.len().min(*given + most);
                let done = work(&all[*given..end]);
                *given = end;
                if end == all.len() {
                    (*all, *given) = (Vec::new(), 0);
                }
                Ok(done)
            }
            From::File(file) => {
                let mut keys = Vec::new();
                file.read(most, &mut keys)?;
                Ok(work(&keys))
            }
        }
    }
}

impl Source {
    /// Keys of a part, for a store with so many shards; with `in_order`, those whose rows are in memory.
    ///
    /// # Errors
    /// As [`KeyFile::open`].
    pub fn of(part: &PassPart<'_>, shards: usize, in_order: bool) -> Result<Source> {
        let from = match part.keys {
            Keys::Slice(keys) => From::Memory(keys.to_vec(), 0),
            Keys::File(path, key_type) => From::File(KeyFile::open(path, key_type)?),
        };
        Ok(Source {
            from,
            in_order,
            sorted: Vec::new(),
            left: vec![0..0; shards],
        })
    }

    /// Keys that are left.
    pub fn keys_left(&self) -> u64 {
        let sorted: usize = self.left.iter().map(ExactSizeIterator::len).sum();
        let others = match &self.from {
            From::Memory(keys, given) => (keys.len() - given) as u64,
            From::File(file) => file.keys_left(),
        };
        sorted as u64 + others
    }

    /// The next piece; without keys at the end. What is there twice in a stretch is in one piece.
    ///
    /// # Errors
    /// `Io`.
    pub fn next_piece(&mut self, piece: &mut Piece) -> Result<()> {
        piece.keys.clear();
        piece.positions.clear();
        // The piece before may have been of another part.
        piece.stretch = None;
        if self.in_order {
            let give = |keys: &[u64]| piece.keys.extend_from_slice(keys);
            return self.from.with_next(RUN_ROWS, give);
        }
        if self.left.iter().all(Range::is_empty) {
            self.sort_more()?;
        }
        let of_shard = PIECE_KEYS.div_ceil(self.left.len());
        for left in &mut self.left {
            let mut end = left.end.min(left.start + of_shard);
            while end > left.start && end < left.end && self.sorted[end].0 == self.sorted[end - 1].0
            {
                end += 1;
            }
            for (hash, position) in &self.sorted[left.start..end] {
                piece.keys.push(unmix64(*hash));
                piece.positions.push(*position);
            }
            left.start = end;
        }
        piece.stretch = Some(PieceOf {
            keys: self.sorted.len(),
            is_over: self.left.iter().all(Range::is_empty),
        });
        Ok(())
    }

    fn sort_more(&mut self) -> Result<()> {
        self.sorted.clear();
        let most = match &self.from {
            From::Memory(..) => MEMORY_KEYS,
            From::File(_) => SORTED_KEYS,
        };
        self.from.with_next(most, |keys| {
            let hashes = keys.iter().map(|key| mix64(*key));
            self.sorted.extend(hashes.zip(0..));
        })?;
        self.sorted.sort_unstable();
        let shards = self.left.len();
        let mut start = 0;
        for (shard, left) in self.left.iter_mut().enumerate() {
            let others = &self.sorted[start..];
            let end = start + others.partition_point(|(hash, _)| range_of(*hash, shards) == shard);
            *left = start..end;
            start = end;
        }
        if self.sorted.is_empty() {
            self.sorted = Vec::new();
        }
        Ok(())
    }
}

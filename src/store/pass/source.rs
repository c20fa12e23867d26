//! Where do the keys of a pass come from?

use std::path::Path;

use crate::error::Result;
use crate::io::{KeyFile, KeyType};
use crate::units::TableId;

/// Keys that are brought in at a time. More take a shard's lock for longer, fewer keep the device less busy.
pub const PIECE_KEYS: usize = 1 << 15;

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
    /// Keys in memory, each once: one that is there twice counts twice.
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
#[derive(Debug)]
pub enum Source {
    Memory { keys: Vec<u64>, next: usize },
    File(KeyFile),
}

impl Source {
    /// # Errors
    /// As [`KeyFile::open`].
    pub fn of(part: &PassPart<'_>) -> Result<Source> {
        Ok(match part.keys {
            Keys::Slice(keys) => Source::Memory {
                keys: keys.to_vec(),
                next: 0,
            },
            Keys::File(path, key_type) => Source::File(KeyFile::open(path, key_type)?),
        })
    }

    /// Keys that are left.
    pub fn keys_left(&self) -> u64 {
        match self {
            Source::Memory { keys, next } => (keys.len() - next) as u64,
            Source::File(file) => file.keys_left(),
        }
    }

    /// The next piece; empty at the end.
    ///
    /// # Errors
    /// `Io`.
    pub fn next_piece(&mut self, piece: &mut Vec<u64>) -> Result<()> {
        piece.clear();
        match self {
            Source::Memory { keys, next } => {
                let end = keys.len().min(*next + PIECE_KEYS);
                piece.extend_from_slice(&keys[*next..end]);
                *next = end;
                if end == keys.len() {
                    (*keys, *next) = (Vec::new(), 0);
                }
                Ok(())
            }
            Source::File(file) => file.read(PIECE_KEYS, piece),
        }
    }
}

//! Where are sorted keys that wait to be merged?
//!
//! - In memory, if everything fits; else in files that have no name, so that nothing is left of them
//!   whatever ends the process.
//! - A thread writes its runs one behind the other into a file of its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use hps::Error;

/// Bytes of a key in a run.
const KEY: usize = 8;

/// Sorted unique keys.
#[derive(Clone, Debug)]
pub struct Run {
    place: Place,
    /// How many.
    pub keys: u64,
}

#[derive(Clone, Debug)]
enum Place {
    Memory(Arc<Vec<u64>>),
    File { file: Arc<Spill>, first: u64 },
}

/// A file without a name, and the folder that it is in.
#[derive(Debug)]
pub struct Spill {
    file: File,
    folder: PathBuf,
}

impl Run {
    /// A run that stays in memory.
    #[must_use]
    pub fn in_memory(mut keys: Vec<u64>) -> Run {
        keys.shrink_to_fit();
        Run {
            keys: keys.len() as u64,
            place: Place::Memory(Arc::new(keys)),
        }
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match &self.place {
            Place::Memory(keys) => keys.len() * KEY,
            Place::File { .. } => 0,
        }
    }

    /// Appends keys from the one with a number on to `out`, through `bytes`.
    ///
    /// # Errors
    /// What reading the file met.
    pub fn read(
        &self,
        from: u64,
        count: usize,
        bytes: &mut [u8],
        out: &mut Vec<u64>,
    ) -> Result<()> {
        match &self.place {
            Place::Memory(keys) => {
                let from = usize::try_from(from)?;
                out.extend_from_slice(&keys[from..from + count]);
            }
            Place::File { file, first } => {
                let mut at = (first + from) * KEY as u64;
                let mut left = count * KEY;
                while left > 0 {
                    let piece = left.min(bytes.len() / KEY * KEY);
                    file.read(&mut bytes[..piece], at)?;
                    let (keys, _) = bytes[..piece].as_chunks::<KEY>();
                    out.extend(keys.iter().map(|key| u64::from_le_bytes(*key)));
                    left -= piece;
                    at += piece as u64;
                }
            }
        }
        Ok(())
    }

    /// The key with a number.
    ///
    /// # Errors
    /// As [`Run::read`].
    pub fn key(&self, number: u64) -> Result<u64> {
        match &self.place {
            Place::Memory(keys) => Ok(keys[usize::try_from(number)?]),
            Place::File { file, first } => {
                let mut bytes = [0; KEY];
                file.read(&mut bytes, (first + number) * KEY as u64)?;
                Ok(u64::from_le_bytes(bytes))
            }
        }
    }

    /// How many keys are less than `key`.
    ///
    /// # Errors
    /// As [`Run::read`].
    pub fn below(&self, key: u64) -> Result<u64> {
        let (mut low, mut high) = (0, self.keys);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle)? < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

impl Spill {
    /// Makes a file in a folder.
    ///
    /// # Errors
    /// What the file system says.
    pub fn new(folder: &Path) -> Result<Spill> {
        let made = tempfile::tempfile_in(folder);
        let file = made.map_err(|e| Error::io("make a temporary file in", folder, e))?;
        Ok(Spill {
            file,
            folder: folder.to_path_buf(),
        })
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        let read = self.file.read_exact_at(bytes, at);
        Ok(read.map_err(|e| Error::io("read a temporary file in", &self.folder, e))?)
    }

    /// Writes at a place.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        let written = self.file.write_all_at(bytes, at);
        Ok(written.map_err(|e| Error::io("write a temporary file in", &self.folder, e))?)
    }
}

/// Writes runs into one file.
#[derive(Debug)]
pub struct Writer {
    file: Arc<Spill>,
    bytes: Vec<u8>,
    bytes_max: usize,
    /// Keys in the file, and those of them that are in runs that have ended.
    keys: u64,
    ended: u64,
}

impl Writer {
    /// Through a buffer of so many bytes.
    ///
    /// # Errors
    /// As [`Spill::new`].
    pub fn new(folder: &Path, bytes_max: usize) -> Result<Writer> {
        Ok(Writer {
            file: Arc::new(Spill::new(folder)?),
            bytes: Vec::with_capacity(bytes_max),
            bytes_max: bytes_max.max(KEY),
            keys: 0,
            ended: 0,
        })
    }

    /// Appends keys, which are greater than those that the run has.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&mut self, keys: &[u64]) -> Result<()> {
        for piece in keys.chunks(self.bytes_max / KEY) {
            self.bytes.clear();
            self.bytes
                .extend(piece.iter().flat_map(|key| key.to_le_bytes()));
            self.file.write(&self.bytes, self.keys * KEY as u64)?;
            self.keys += piece.len() as u64;
        }
        Ok(())
    }

    /// Ends a run; the next key begins another.
    pub fn end_run(&mut self) -> Run {
        let first = std::mem::replace(&mut self.ended, self.keys);
        Run {
            place: Place::File {
                file: Arc::clone(&self.file),
                first,
            },
            keys: self.keys - first,
        }
    }
}

//! How are several runs of one table walked in the order of mix64?
//!
//! - Rows may be read ahead: while a window of a run is walked, the next one is on its way.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::ahead::ReadAhead;
use super::tournament::Tournament;
use super::{Entry, KEYS_SHARE, RunCursor};
use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::io::Engine;
use crate::ssd::data_file::DataFile;
use crate::units::FileNumber;

/// Windows for a merge of so many files that reads no rows: their key blocks take 64 MiB together.
#[must_use]
pub fn keys_window_bytes(files: usize) -> u64 {
    const KEYS_BYTES: u64 = 64 << 20;
    (KEYS_BYTES / files.max(1) as u64).clamp(16 << 10, 512 << 10) * KEYS_SHARE
}

/// Walks several runs of one table in the order of mix64; of equal keys the one with the
/// greatest rank comes out.
pub struct Merge {
    pub(super) cursors: Vec<RunCursor>,
    tournament: Tournament,
    /// The cursor that was handed out.
    standing: Option<usize>,
    /// What came out last: older copies of its key are stepped over.
    last: Option<Last>,
    contradictions: Contradictions,
    ahead: Option<ReadAhead>,
}

/// The newest copy of a key.
#[derive(Clone, Copy, Debug)]
struct Last {
    hash: u64,
    interval: u32,
    /// That of the last of its copies.
    rank: u64,
}

/// What becomes of copies of a key that contradict each other: an older one of a later interval, two of
/// one rank. No store writes these.
enum Contradictions {
    /// They are an error.
    Refused,
    /// Ranks alone decide, and of copies of one rank the first cursor.
    Noted(Contradicting),
}

/// Copies that contradict newer ones, as a repair notes them.
#[derive(Debug, Default)]
pub struct Contradicting {
    /// Numbers of the files that have them.
    pub files: BTreeSet<FileNumber>,
    /// How many there are.
    pub copies: u64,
}

impl Contradicting {
    /// Adds those of another table.
    pub fn add(&mut self, other: Contradicting) {
        self.files.extend(other.files);
        self.copies += other.copies;
    }
}

impl Merge {
    /// Opens the runs of `table` in `files`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn new(files: &[Arc<DataFile>], table: u32, window_bytes: u64) -> Result<Merge> {
        Merge::within(files, table, &(0..=u64::MAX), 0, window_bytes)
    }

    /// Opens the runs of `table` in `files` at a range of mix64, without entries of earlier
    /// intervals than the given one: what comes out is the newest copy of a key if that is not of one.
    ///
    /// # Cost
    /// Where files reach beyond the range, about twice log2 of a run's key blocks reads of 4 KiB each. Where
    /// entries are left out, rows are read that are wanted, and gaps of less than a block between them.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn within(
        files: &[Arc<DataFile>],
        table: u32,
        hashes: &RangeInclusive<u64>,
        first_interval: u32,
        window_bytes: u64,
    ) -> Result<Merge> {
        let mut cursors = Vec::new();
        for file in files {
            for (i, run) in file.runs.iter().enumerate() {
                if run.table == table {
                    cursors.push(RunCursor::within(
                        file,
                        i,
                        hashes,
                        first_interval,
                        window_bytes,
                    )?);
                }
            }
        }
        let stands = cursors.iter().map(RunCursor::stand);
        Ok(Merge {
            tournament: Tournament::new(stands),
            cursors,
            standing: None,
            last: None,
            contradictions: Contradictions::Refused,
            ahead: None,
        })
    }

    /// Notes copies that contradict each other instead of refusing them: for a repair, which meets
    /// anything, and guesses intervals.
    #[must_use]
    pub fn by_rank(mut self) -> Merge {
        self.contradictions = Contradictions::Noted(Contradicting::default());
        self
    }

    /// Reads rows ahead from here on, where a run has more than a window of them; the windows of a cursor are two
    /// then. Where the engine has no queue to give, rows are read when they are needed. The windows come from `files`: the
    /// same as those it was opened with, or what these count the reads of; [`Merge::bytes_ahead`] counts here.
    pub fn read_ahead(&mut self, engine: &dyn Engine, files: &[Arc<DataFile>]) {
        self.ahead = ReadAhead::begin(engine, files, &mut self.cursors);
    }

    /// Bytes of windows that were read ahead and taken.
    #[must_use]
    pub fn bytes_ahead(&self) -> u64 {
        self.ahead.as_ref().map_or(0, ReadAhead::read_bytes)
    }

    /// Reads and verifies the row at which the cursor stands that [`Merge::newest`] gave.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read_row(&mut self, index: usize, row: &mut [f32]) -> Result<()> {
        let cursor = &mut self.cursors[index];
        if let Some(ahead) = &mut self.ahead {
            cursor.take_window(index, ahead)?;
        }
        cursor.read_row(row)
    }

    /// The cursor that stands at the next key's newest copy; older copies of the one before are stepped over. The
    /// same one until [`Merge::step`].
    ///
    /// # Cost
    /// Logarithmic in the number of runs.
    ///
    /// # Errors
    /// `Io`, `Corrupt` (also when rank and interval of the last key's copies contradict each other, or copies have
    /// one rank).
    pub fn newest(&mut self) -> Result<Option<usize>> {
        if self.standing.is_some() {
            return Ok(self.standing);
        }
        while let Some((index, hash)) = self.tournament.first() {
            let cursor = &self.cursors[index];
            let interval = cursor.entry().map_or(0, |e| e.interval);
            let rank = cursor.file.meta.rank;
            let Some(last) = self.last.filter(|last| last.hash == hash) else {
                self.last = Some(Last {
                    hash,
                    interval,
                    rank,
                });
                self.standing = Some(index);
                break;
            };
            self.last = Some(Last { rank, ..last });
            if rank == last.rank || last.interval < interval {
                self.contradicts(index, rank == last.rank)?;
            }
            self.advance(index)?;
        }
        Ok(self.standing)
    }

    /// Steps the first cursor on.
    fn advance(&mut self, first: usize) -> Result<()> {
        let cursor = &mut self.cursors[first];
        cursor.advance()?;
        self.tournament.moved(cursor.stand());
        Ok(())
    }

    /// An older copy of a key is not what an older copy can be.
    fn contradicts(&mut self, older: usize, one_rank: bool) -> Result<()> {
        let cursor = &self.cursors[older];
        let (file, key) = (&cursor.file, cursor.entry().map_or(0, |e| e.key));
        if let Contradictions::Noted(noted) = &mut self.contradictions {
            noted.files.insert(file.meta.number);
            noted.copies += 1;
            return Ok(());
        }
        let what = match one_rank {
            true => format!("key {key:#x} has two copies of one rank"),
            false => format!("rank and interval of key {key:#x} disagree"),
        };
        Err(Error::corrupt(&file.path, file.keys_offset, what))
    }

    /// All cursors, by index.
    #[must_use]
    pub fn cursors(&self) -> &[RunCursor] {
        &self.cursors
    }

    /// The cursor with this index.
    #[must_use]
    pub fn cursor(&mut self, index: usize) -> &mut RunCursor {
        &mut self.cursors[index]
    }

    /// Memory of all cursors.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let ahead = self.ahead.as_ref().map(ReadAhead::windows_bytes);
        let own: usize = self.cursors.iter().map(|c| c.bytes(ahead.is_none())).sum();
        own + ahead.unwrap_or(0)
    }

    /// Hands out the newest copy of every key: its file, entry and kind. Gives the copies that
    /// contradict newer ones; none where that is an error.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_newest(
        mut self,
        each: &mut dyn FnMut(&DataFile, Entry, RunKind),
    ) -> Result<Contradicting> {
        while let Some(index) = self.newest()? {
            let cursor = &self.cursors[index];
            if let Some(entry) = cursor.entry() {
                each(&cursor.file, entry, cursor.run.kind);
            }
            self.step()?;
        }
        Ok(match self.contradictions {
            Contradictions::Refused => Contradicting::default(),
            Contradictions::Noted(noted) => noted,
        })
    }

    /// Leaves the entry that [`Merge::newest`] gave.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn step(&mut self) -> Result<()> {
        if let Some(index) = self.standing.take() {
            self.advance(index)?;
        }
        Ok(())
    }
}

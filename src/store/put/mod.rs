//! How do rows come into the store that nobody has to read first?
//!
//! Piece by piece: keys are split by shard, and each shard takes what it has room for, until all is
//! in. Room is made between that, by the caller's thread, with no shard locked. Of a long call, what is not in memory
//! goes straight to files ([`straight`]).
//!
//! Invariants:
//! - No device read, and no wait for one of a row: the new content replaces what is read. (Where there is no room
//!   beside slots that another batch was promised, the put waits until that has them: its rows may be the same.)
//! - What can be refused is refused before the first row is changed: lengths, values that are not finite,
//!   room beside the leases. (Values of a long put are looked at while its first file is written: [`look`].)
//! - The gate is held to the end: a cut has all of a call, or nothing.
//! - No wait for a lease to be dropped, and none with a shard locked or a worker busy.

mod apply;
mod call;
mod look;
mod pinned;
mod room;
mod rows;
mod straight;

use std::sync::{Arc, PoisonError};
use std::time::Instant;

pub use pinned::Pinned;
pub use rows::{PutReport, PutRows};

use super::core::{Core, Shard, Stretch, Table, point};
use super::flush::Flusher;
use super::pull::Puller;
use super::workers::{VecPool, Workers};
use crate::batch::{ShardPart, share, split_into};
use crate::error::{ArgumentError, Result, check_length};
use crate::options::NonFinite;
use crate::row::all_finite;
use crate::stats::Wait;
use crate::sync::{Mutex, MutexGuard};
use apply::{Lack, Rest, Step, put_some};
use look::Look;
use room::Room;

/// Keys that are split by shard at a time: all shards fill at the same pace, so that flushes have rows of
/// each; and the arrays are of a size that is kept for the next piece.
const PIECE_KEYS: usize = 16 << 10;

/// A put, checked.
#[derive(Clone, Copy)]
struct Job<'a> {
    table: &'a Table,
    rows: PutRows<'a>,
    /// f32s of a key's values, and those of them that are numbers.
    width: usize,
    looked: usize,
    /// Keys whose values are not finite, and whether these are left out.
    non_finite: u64,
    skip: bool,
    /// The first position of the piece at hand.
    first: usize,
    /// While nobody has looked at all values.
    look: Option<&'a Look<'a>>,
}

impl<'a> Job<'a> {
    /// A put of so many keys, of which no value was looked at.
    ///
    /// # Errors
    /// `InvalidArgument`: not as many values as the keys have.
    fn new(table: &'a Table, keys: usize, rows: PutRows<'a>) -> Result<Job<'a>> {
        let width = rows.width(table);
        check_length("values of a put (f32s)", keys * width, rows.values.len())?;
        Ok(Job {
            table,
            rows,
            width,
            looked: width.min(table.layout.metadata_range().start),
            non_finite: 0,
            skip: false,
            first: 0,
            look: None,
        })
    }

    /// Whether a value that is not finite was found while nobody had looked at all values.
    fn is_refused(&self) -> bool {
        self.look.is_some_and(Look::is_refused)
    }

    /// What putting so many keys comes to.
    fn report(&self, keys: usize) -> PutReport {
        let left_out = if self.skip { self.non_finite } else { 0 };
        PutReport {
            rows: keys as u64 - left_out,
            non_finite: self.non_finite,
        }
    }

    fn is_finite(&self, position: usize) -> bool {
        let start = position * self.width;
        all_finite(&self.rows.values[start..start + self.looked])
    }

    /// The values at a position of the piece at hand.
    fn values(&self, position: u32) -> &[f32] {
        let start = (self.first + position as usize) * self.width;
        &self.rows.values[start..start + self.width]
    }

    /// Whether they are finite.
    fn is_finite_at(&self, position: u32) -> bool {
        self.is_finite(self.first + position as usize)
    }
}

/// One shard's share of a piece.
type Cell<T = u64> = Mutex<Rest<T>>;

fn open<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rows that are left to put.
fn rows_of<T>(cells: &[Cell<T>]) -> usize {
    cells.iter().map(|cell| open(cell).len()).sum()
}

/// Puts rows.
#[derive(Debug)]
pub struct Putter {
    core: Arc<Core>,
    workers: Arc<Workers>,
    flusher: Arc<Flusher>,
    puller: Arc<Puller>,
    /// By data directory: held by whoever writes a file of a long put there, until all its writes were asked for.
    writing: Vec<Mutex<()>>,
}

impl Putter {
    /// Nothing is put yet.
    pub fn new(
        core: &Arc<Core>,
        workers: &Arc<Workers>,
        flusher: &Arc<Flusher>,
        puller: &Arc<Puller>,
    ) -> Putter {
        Putter {
            core: Arc::clone(core),
            workers: Arc::clone(workers),
            flusher: Arc::clone(flusher),
            puller: Arc::clone(puller),
            writing: core
                .ssd
                .directories
                .iter()
                .map(|_| Mutex::new(()))
                .collect(),
        }
    }

    /// Writes rows, whatever they held.
    ///
    /// # Errors
    /// `InvalidArgument`, `OverBudget`, `ReadOnly`: nothing changed. `Io`, `NoSpace`, `Poisoned`: some
    /// rows may be.
    pub fn put(&self, table: &Table, keys: &[u64], rows: PutRows<'_>) -> Result<PutReport> {
        self.core.check_writable()?;
        let mut job = Job::new(table, keys.len(), rows)?;
        let look = Look::new(job.rows.values);
        if self.begins_first(&job, keys.len()) {
            job.look = Some(&look);
        } else {
            self.check(&mut job, (keys.len(), &|index| keys[index]))?;
        }
        if job.report(keys.len()).rows > 0 {
            // Before the gate, so that nobody has it to himself while admissions are held back.
            let room = self.promise(table, keys)?;
            let _whole = self.core.gate_shared();
            // Given back before the gate is: whoever has that next finds nothing in use.
            let room = room;
            if job.look.is_none() {
                self.core.changes.note();
            }
            let (mut rest, mut fill) = (keys, None);
            let straight = self.goes_straight(table, keys);
            while !rest.is_empty() {
                // Tried again after each piece: a checkpoint may have ended that held a long put back.
                if straight && self.put_straight(&job, rest, &room)? {
                    break;
                }
                if job.look.take().is_some() {
                    // Nothing has changed yet.
                    self.check(&mut job, (keys.len(), &|index| keys[index]))?;
                    if job.report(keys.len()).rows == 0 {
                        break;
                    }
                    self.core.changes.note();
                    continue;
                }
                fill.get_or_insert_with(|| self.flusher.begin_fill());
                let (piece, others) = rest.split_at(rest.len().min(PIECE_KEYS));
                self.put_piece(&job, piece, &room)?;
                job.first += piece.len();
                rest = others;
                self.flusher.look();
            }
        }
        table.note_non_finite(job.non_finite);
        Ok(job.report(keys.len()))
    }

    /// Whether the rows may be put as they are: waits until all values were looked at. Then something is about to
    /// change.
    fn may_change(&self, job: &Job<'_>) -> bool {
        let Some(look) = job.look else {
            return true;
        };
        let finite = look.are_finite();
        if finite {
            self.core.changes.note();
        }
        finite
    }

    /// Checks the values.
    ///
    /// # Errors
    /// `InvalidArgument`, where values that are not finite are rejected.
    fn check(
        &self,
        job: &mut Job<'_>,
        (keys, key_at): (usize, &dyn Fn(usize) -> u64),
    ) -> Result<()> {
        if job.rows.are_verbatim || self.workers.are_finite(&[job.rows.values], keys) {
            return Ok(());
        }
        for index in 0..keys {
            if job.is_finite(index) {
                continue;
            }
            job.non_finite += 1;
            if self.core.options.non_finite == NonFinite::Reject {
                let (table, key) = (job.table.descriptor.name.clone(), key_at(index));
                return Err(ArgumentError::NonFinite { table, key, index }.into());
            }
        }
        job.skip = job.non_finite > 0 && self.core.options.non_finite == NonFinite::Skip;
        Ok(())
    }

    /// Puts the rows of some keys, as room is made for them.
    fn put_piece(&self, job: &Job<'_>, keys: &[u64], room: &Room) -> Result<()> {
        let cells = self.split(job, keys);
        let rows = rows_of(&cells);
        self.put_cells(job, cells, room)?;
        job.table.note_put(rows as u64);
        Ok(())
    }

    /// Puts rows of a piece, as room is made for them.
    fn put_cells(&self, job: &Job<'_>, cells: Vec<Cell>, room: &Room) -> Result<()> {
        let put = |s: usize, shard: &mut Shard, rest: &mut Rest| {
            put_some(shard, job, &room.shards[s], rest)
        };
        self.put_all(job, cells, put, &self.workers.arrays.hashes)
    }

    /// Puts all rows of some cells by `put`, which is told the shard; where that lacks room it is made, or waited for.
    fn put_all<T: Send>(
        &self,
        job: &Job<'_>,
        cells: Vec<Cell<T>>,
        put: impl Fn(usize, &mut Shard, &mut Rest<T>) -> Step + Sync,
        arrays: &VecPool<T>,
    ) -> Result<()> {
        let mut left = rows_of(&cells);
        let mut stretch = Stretch::default();
        while left > 0 {
            let pool = self.workers.foreground();
            let lacks = pool.shards(cells.len(), left, |s| {
                self.put_shard(s, &put, &mut open(&cells[s]))
            });
            let before = std::mem::replace(&mut left, rows_of(&cells));
            if left < before {
                stretch.end();
            }
            let lack = lacks
                .into_iter()
                .enumerate()
                .find_map(|(s, l)| Some((s, l?)));
            match lack {
                None => {}
                Some((s, Lack::Slot)) => self.flusher.make_room(s, job.table, &mut stretch)?,
                Some((s, Lack::Copies)) => {
                    job.table.waits_on(&mut stretch, Wait::Room, Instant::now());
                    self.wait_for_copies(s, &put, &mut open(&cells[s]))?;
                }
            }
        }
        for cell in cells {
            let rest = cell.into_inner().unwrap_or_else(PoisonError::into_inner);
            arrays.put(rest.rows);
            self.workers.arrays.numbers.put(rest.positions);
        }
        Ok(())
    }

    /// Splits keys by shard, without those that are left out.
    fn split(&self, job: &Job<'_>, keys: &[u64]) -> Vec<Cell> {
        let (arrays, count) = (&self.workers.arrays, self.core.shards.len());
        let share = share(keys.len(), count);
        let part = |_| ShardPart {
            positions: arrays.numbers.take(share),
            hashes: arrays.hashes.take(share),
        };
        let mut parts: Vec<ShardPart> = (0..count).map(part).collect();
        let mut shards = arrays.shards.take(keys.len());
        shards.resize(keys.len(), 0);
        split_into(keys, 0, &mut parts, &mut shards);
        arrays.shards.put(shards);
        let rest = |mut part: ShardPart| {
            if job.skip {
                let finite = |position: &u32| job.is_finite_at(*position);
                let keep: Vec<bool> = part.positions.iter().map(finite).collect();
                let mut kept = keep.iter();
                part.hashes
                    .retain(|_| kept.next().is_some_and(|kept| *kept));
                let mut kept = keep.iter();
                part.positions
                    .retain(|_| kept.next().is_some_and(|kept| *kept));
            }
            let ShardPart { positions, hashes } = part;
            Mutex::new(Rest {
                rows: hashes,
                positions,
                next: 0,
            })
        };
        parts.into_iter().map(rest).collect()
    }

    /// Puts what a shard has room for.
    fn put_shard<T>(
        &self,
        s: usize,
        put: &impl Fn(usize, &mut Shard, &mut Rest<T>) -> Step,
        rest: &mut Rest<T>,
    ) -> Option<Lack> {
        let cell = &self.core.shards[s];
        while rest.len() > 0 {
            let mut shard = cell.lock();
            let Step { lack, filled } = put(s, &mut shard, rest);
            point("put");
            drop(shard);
            if filled {
                cell.notify();
            }
            if lack.is_some() {
                return lack;
            }
        }
        None
    }

    /// Waits until the rows that a running checkpoint needs as they are were copied, or written.
    ///
    /// # Errors
    /// `Poisoned` when a thread panicked: perhaps the one that would have written them.
    fn wait_for_copies<T>(
        &self,
        s: usize,
        put: &impl Fn(usize, &mut Shard, &mut Rest<T>) -> Step,
        rest: &mut Rest<T>,
    ) -> Result<()> {
        let cell = &self.core.shards[s];
        let mut shard = cell.lock();
        loop {
            let Step { lack, filled } = put(s, &mut shard, rest);
            if lack != Some(Lack::Copies) {
                drop(shard);
                if filled {
                    cell.notify();
                }
                return Ok(());
            }
            self.core.ssd.poison.check_threads()?;
            cell.wait(&mut shard);
        }
    }
}

#[cfg(test)]
mod straight_tests;
#[cfg(test)]
mod tests;

//! How do the rows of a put get into one shard?
//!
//! - A call of [`put_some`] is one locking of the shard: nobody sees a row half written, or a slot
//!   without content.
//! - Resident rows are changed in place, whoever has them pinned or is reading them in; then the
//!   others get free slots. What finds none stays to be done, in the caller's order.

use super::super::core::Shard;
use super::Job;
use super::room::ShardRoom;
use crate::mem::{AHEAD_ROWS, Cache, Flags, Place};
use crate::pages::prefetch;
use crate::units::Slot;

/// Rows per locking of a shard.
pub const LOCK_ROWS: usize = 512;

/// Rows between the one that is written and the one whose values the processor is asked to fetch.
const AHEAD_VALUES: usize = 8;

/// Why rows can't be put yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No slot is free.
    Slot,
    /// None for the copies of rows that a running checkpoint still needs as they are.
    Copies,
}

/// What is left to put into one shard: rows by mix64 of their keys, or by the slots where they are pinned.
#[derive(Debug, Default)]
pub struct Rest<T = u64> {
    pub rows: Vec<T>,
    /// Their positions in the call's piece.
    pub positions: Vec<u32>,
    /// The first that is not done.
    pub next: usize,
}

impl<T> Rest<T> {
    /// Rows to put.
    pub fn len(&self) -> usize {
        self.rows.len() - self.next
    }
}

/// How far a call of [`put_some`] or [`put_pinned`] came.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Why it ended early, if it did.
    pub lack: Option<Lack>,
    /// A row was filled that others may wait for.
    pub filled: bool,
}

/// Puts up to [`LOCK_ROWS`] rows of a shard.
pub fn put_some(shard: &mut Shard, job: &Job<'_>, room: &ShardRoom, rest: &mut Rest) -> Step {
    let (interval, _) = shard.intervals();
    let table = job.table.id.0 as usize;
    let (start, end) = (rest.next, rest.rows.len().min(rest.next + LOCK_ROWS));
    let mut slots = [Slot::NONE; LOCK_ROWS];
    let slots = &mut slots[..end - start];
    shard.cache.lookup(table, &rest.rows[start..end], slots);

    let found = |slot: &Slot| *slot != Slot::NONE;
    let positions = rest.positions[start..end].iter().copied();
    let filled = match put_resident(shard, job, slots, positions) {
        Ok(filled) => filled,
        Err(lack) => {
            let lack = Some(lack);
            return Step {
                lack,
                filled: false,
            };
        }
    };

    let mut places = Vec::new();
    let absent = slots.iter().filter(|slot| !found(slot)).count();
    shard.reclaim(table, absent);
    let mut new: Vec<Slot> = Vec::with_capacity(absent);
    let (mut positions, mut left, mut taken) = (Vec::with_capacity(absent), Vec::new(), 0);
    for (i, _) in slots.iter().enumerate().filter(|(_, slot)| !found(slot)) {
        if let Some(ahead) = rest.rows.get(start + i + 2 * AHEAD_ROWS) {
            shard.cache.prefetch_word(table, *ahead);
        }
        let (hash, position) = (rest.rows[start + i], rest.positions[start + i]);
        // A key that is there twice may have got its slot by now.
        let got = match left.is_empty() {
            true => shard.cache.find_or_insert(table, hash, 0),
            false => None,
        };
        if let Some((slot, is_new)) = got {
            new.push(slot);
            positions.push(position);
            taken += usize::from(is_new);
        } else {
            left.push((hash, position));
        }
    }
    // New rows are clean: nothing is copied, and there is nothing that could lack.
    let marked = (shard.cache).begin_at(&new, (interval, None), true, &mut places);
    assert!(marked.is_ok(), "rows that are new have no older state");
    job.write(&mut shard.cache, &places, positions.into_iter());
    room.take(&mut shard.tables[table], taken);

    rest.next = end - left.len();
    for (i, (hash, position)) in left.iter().enumerate() {
        (rest.rows[rest.next + i], rest.positions[rest.next + i]) = (*hash, *position);
    }
    let lack = (!left.is_empty()).then_some(Lack::Slot);
    Step { lack, filled }
}

/// Changes those of some rows that are in memory. Whether others may wait for one of them.
///
/// # Errors
/// [`Lack::Copies`]: nothing has changed.
pub fn put_resident(
    shard: &mut Shard,
    job: &Job<'_>,
    slots: &[Slot],
    positions: impl Iterator<Item = u32> + Clone,
) -> Result<bool, Lack> {
    let found = |slot: &Slot| *slot != Slot::NONE;
    let resident: Vec<Slot> = slots.iter().copied().filter(found).collect();
    if resident.is_empty() {
        return Ok(false);
    }
    let (intervals, mut places) = (shard.intervals(), Vec::new());
    // Pinned: room for copies is not made of them.
    let makes_copies = intervals.1.is_some();
    if makes_copies {
        shard.cache.pin(&resident);
    }
    let marked = (shard.cache).begin_at(&resident, intervals, true, &mut places);
    let filled = marked.is_ok() && {
        let positions = positions.zip(slots).filter(|(_, slot)| found(slot));
        job.write(&mut shard.cache, &places, positions.map(|(p, _)| p));
        end_reading(&mut shard.cache, &resident)
    };
    if makes_copies {
        shard.cache.unpin(&resident);
    }
    match marked {
        Ok(()) => Ok(filled),
        Err(_copies) => Err(Lack::Copies),
    }
}

/// Changes up to [`LOCK_ROWS`] rows that are in memory and pinned.
pub fn put_pinned(shard: &mut Shard, job: &Job<'_>, rest: &mut Rest<Slot>) -> Step {
    let end = rest.rows.len().min(rest.next + LOCK_ROWS);
    let (intervals, mut places) = (shard.intervals(), Vec::new());
    let slots = &rest.rows[rest.next..end];
    let marked = (shard.cache).begin_at(slots, intervals, true, &mut places);
    // Rows that left for copies.
    shard.remember_left();
    if marked.is_ok() {
        let positions = rest.positions[rest.next..end].iter().copied();
        job.write(&mut shard.cache, &places, positions);
        rest.next = end;
    }
    Step {
        lack: marked.err().map(|_copies| Lack::Copies),
        filled: false,
    }
}

/// Rows have their content, also those that a batch is reading or could not read: what it reads, it
/// leaves alone. Whether there was one.
fn end_reading(cache: &mut Cache, slots: &[Slot]) -> bool {
    let unread = Flags::LOADING | Flags::FAILED;
    let mut any = false;
    for slot in slots {
        if cache.flags(*slot).any(unread) {
            cache.clear(*slot, unread);
            any = true;
        }
    }
    any
}

impl Job<'_> {
    /// Writes the rows at some places, each with the position of its values in the piece.
    fn write(
        &self,
        cache: &mut Cache,
        places: &[Place],
        mut positions: impl Iterator<Item = u32> + Clone,
    ) {
        let row_f32s = self.table.descriptor.row_f32s();
        let mut ahead = positions.clone();
        for position in ahead.by_ref().take(AHEAD_VALUES) {
            prefetch(self.values(position));
        }
        cache.change_rows(places, row_f32s, |row| {
            if let Some(position) = ahead.next() {
                prefetch(self.values(position));
            }
            let Some(position) = positions.next() else {
                return;
            };
            self.fill(position, row);
        });
    }

    /// Makes the row at a position of the piece.
    pub fn fill(&self, position: u32, row: &mut [f32]) {
        row[..self.width].copy_from_slice(self.values(position));
        if !self.rows.are_whole {
            self.table.layout.default_state(row);
        }
    }
}

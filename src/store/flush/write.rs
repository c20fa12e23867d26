//! How are picked rows written to files, and their keys repointed?
//!
//! Files of one pick are written at the same time, each by a submission queue of its own.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::super::compact::PICK_FILES;
use super::super::core::{Shard, add, point};
use super::pick::Picked;
use super::{Flusher, WriterGuard};
use crate::error::Result;
use crate::io::Queue;
use crate::mem::Victim;
use crate::pages::own_pages;
use crate::ssd::NewFile;
use crate::ssd::data_file::Location;
use crate::ssd::held::Tally;
use crate::ssd::index::Index as _;
use crate::ssd::writer::FileWriter;
use crate::sync::{Mutex, by_team, step_aside};
use crate::units::{FileSlot, narrow, unmix64};

/// Rows copied out per locking of a shard.
const COPY_ROWS: usize = 512;

/// Rows repointed per locking of a shard.
const SETTLE_ROWS: usize = 1024;

/// Rows between the one at hand and the one whose lines the processor is asked to fetch.
const AHEAD_ROWS: usize = 8;

/// What became of a victim.
///
/// There is one per row of a file, so it is four bytes: the number of its entry, with a bit more for a tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome(u32);

impl Outcome {
    /// It no longer qualified.
    const LEFT_OUT: Outcome = Outcome(u32::MAX);
    /// It is a tombstone that nobody needs: there is no entry.
    const POINTLESS: Outcome = Outcome(u32::MAX - 1);
    /// It is a tombstone, which gets its entry when all rows of the table have theirs.
    const TOMBSTONE: u32 = 1 << 31;

    fn row(entry: usize) -> Outcome {
        Outcome(narrow(entry))
    }

    fn tombstone(entry: usize) -> Outcome {
        Outcome(narrow::<u32>(entry) | Outcome::TOMBSTONE)
    }

    /// Whether it was copied out, so that the cache waits for a report.
    fn is_out(self) -> bool {
        self != Outcome::LEFT_OUT
    }

    /// Its entry, and whether that is a tombstone.
    fn entry(self) -> Option<(u32, bool)> {
        let is_tombstone = self.0 & Outcome::TOMBSTONE != 0;
        let has_one = self.is_out() && self != Outcome::POINTLESS;
        has_one.then_some((self.0 & !Outcome::TOMBSTONE, is_tombstone))
    }
}

/// What became of the victims of a file, in their order.
type Outcomes = Vec<Outcome>;

/// Each part with what became of its victims; those that the writer did not come to are left out.
fn with_outcomes<'a>(
    picked: &'a [Picked],
    outcomes: &'a [Outcome],
) -> impl Iterator<Item = (&'a Picked, &'a [Outcome])> {
    let mut rest = outcomes;
    picked.iter().map(move |part| {
        let (own, others) = rest.split_at(part.victims.len().min(rest.len()));
        rest = others;
        (part, own)
    })
}

/// Rows of one table copied out of a shard, not yet in the file. Its arrays serve one chunk after the other.
#[derive(Default)]
struct CopiedRows {
    /// `[COPY_ROWS, row_f32s]`; those of `entries` count.
    rows: Vec<f32>,
    /// Position in the chunk, hash, interval.
    entries: Vec<(usize, u64, u32)>,
    tombstones: Vec<(usize, u64, u32)>,
    pointless: Vec<usize>,
}

impl Flusher {
    /// Writes victims to files and repoints the index; returns rows written, and counts them.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`; the rows of files that failed are dirty again.
    pub(super) fn write_files(&self, writer: &WriterGuard<'_>, picked: Vec<Picked>) -> Result<u64> {
        let mut picked = Some(picked);
        self.write_picks(writer, 1, &mut || picked.take())
    }

    /// As [`Flusher::write_files`], with all that `next` picks until it picks nothing, by so many threads or
    /// more.
    ///
    /// # Errors
    /// As of that.
    pub(super) fn write_picks(
        &self,
        writer: &WriterGuard<'_>,
        threads: usize,
        next: &mut (dyn FnMut() -> Option<Vec<Picked>> + Send),
    ) -> Result<u64> {
        let mark = self.core.changes.mark();
        // Between a cut and its capture only rows are written that are the checkpoint's. Neither comes
        // to its end meanwhile: the writer's role is held.
        let (_, frozen) = self.core.shards[0].lock().intervals();
        let (written, result) = self.write_all(writer, threads, next);
        if written > 0 {
            // Also where another file failed: these rows are dirty no more.
            add(&self.flushes, 1);
            if frozen.is_none() {
                self.core.changes.flushed(mark, written);
            }
            if result.is_err() {
                // Whoever gets the error says nothing of the files before it.
                self.compactor.files_were_added();
            }
        }
        result.map(|()| written)
    }

    /// Writes what `next` picks until it picks nothing: files of one pick at the same time, and the
    /// next pick's while those are still being written; by so many threads, or as many as the first
    /// pick has files where these are more. Those beyond [`PICK_FILES`] end as soon as somebody asks
    /// for rows. Returns the rows that were written, and as [`Flusher::write_files`] the error of the
    /// first file that failed; no other was begun after it.
    pub(super) fn write_all(
        &self,
        _writer: &WriterGuard<'_>,
        threads: usize,
        next: &mut (dyn FnMut() -> Option<Vec<Picked>> + Send),
    ) -> (u64, Result<()>) {
        if let Err(poisoned) = self.core.ssd.check_writable() {
            return (0, Err(poisoned));
        }
        let jobs = match next() {
            Some(picked) => self.jobs_of(picked),
            None => return (0, Ok(())),
        };
        let mut taken = self.queues.take(threads.max(jobs.len()));
        let work = Mutex::new((jobs, Some(next)));
        let open = || work.lock().unwrap_or_else(PoisonError::into_inner);
        let take = || {
            let mut work = open();
            // After a panic beside this one nothing more is begun.
            if self.core.ssd.check_writable().is_err() {
                *work = (VecDeque::new(), None);
            }
            while work.0.is_empty() {
                let picked = work.1.as_mut().and_then(|next| next());
                match picked {
                    Some(picked) => work.0 = self.jobs_of(picked),
                    None => {
                        work.1 = None;
                        return None;
                    }
                }
            }
            work.0.pop_front()
        };
        // More writers than one pick has files would take the processor from whoever trains.
        let asked = || self.core.demand.asked();
        let before = asked();
        let write = |queue: &mut dyn Queue, spare: bool| -> (u64, Result<()>) {
            let _alarm = self.core.ssd.poison.alarm();
            let mut total = 0;
            while !(spare && asked() != before)
                && let Some((directory, rows)) = take()
            {
                match self.write_file(queue, directory, &rows) {
                    Ok(written) => total += written,
                    Err(error) => {
                        *open() = (VecDeque::new(), None);
                        return (total, Err(error));
                    }
                }
            }
            (total, Ok(()))
        };
        let write = &write;
        let writers = taken.queues.iter_mut().zip(0..);
        let writers = writers.map(|(queue, i)| move || write(&mut **queue, i >= PICK_FILES));
        let outcomes = by_team("hps-write", writers);
        let written = outcomes.iter().map(|(written, _)| written).sum();
        let result = outcomes.into_iter().try_for_each(|(_, result)| result);
        (written, result)
    }

    fn write_file(
        &self,
        queue: &mut dyn Queue,
        directory: usize,
        picked: &[Picked],
    ) -> Result<u64> {
        // What is full may have been filled by an index snapshot.
        let ssd = &self.core.ssd;
        ssd.with_snapshot_room(|| self.write_file_once(queue, directory, picked))
    }

    fn write_file_once(
        &self,
        queue: &mut dyn Queue,
        directory: usize,
        picked: &[Picked],
    ) -> Result<u64> {
        let expected = self.bytes_of(picked);
        let rows = picked.iter().map(|p| p.victims.len()).sum();
        let mut outcomes = own_pages(rows);
        // Beside it the victims, and the keys that the file will list.
        let each = size_of::<Outcome>() + size_of::<Victim>() + FileWriter::ENTRY_BYTES;
        let mut held = self.in_use.begin();
        held.set(rows * each);
        let result = self.fill_file(queue, directory, picked, expected + 16384, &mut outcomes);
        let rows = outcomes.iter().filter(|o| o.entry().is_some()).count() as u64;
        match result {
            Ok(Some(new)) => {
                self.commit_file(new, picked, &outcomes)?;
                self.note_flushed(picked, &outcomes);
            }
            Ok(None) => self.settle(picked, &outcomes, None),
            Err(e) => {
                self.take_back(picked, &outcomes);
                return Err(e);
            }
        }
        Ok(rows)
    }

    fn fill_file(
        &self,
        queue: &mut dyn Queue,
        directory: usize,
        picked: &[Picked],
        expected_bytes: u64,
        outcomes: &mut Outcomes,
    ) -> Result<Option<NewFile>> {
        let (number, mut file) =
            self.core
                .ssd
                .create_file(queue, directory, expected_bytes, self.core.file_bytes)?;
        let tables = self.core.all_tables();
        let mut copied = CopiedRows::default();
        for group in picked.chunk_by(|a, b| a.table == b.table) {
            let width = tables[group[0].table].descriptor.row_f32s();
            let id = narrow(group[0].table);
            let mut tombstones = Vec::new();
            for part in group {
                for victims in part.victims.chunks(COPY_ROWS) {
                    self.let_others_go_first();
                    self.copy_out(part, victims, width, &mut copied);
                    let first = outcomes.len();
                    outcomes.resize(first + victims.len(), Outcome::LEFT_OUT);
                    let rows = copied.rows.chunks_exact(width.max(1));
                    for ((i, hash, interval), row) in copied.entries.drain(..).zip(rows) {
                        outcomes[first + i] = Outcome::row(file.entries());
                        file.row(id, unmix64(hash), interval, row);
                    }
                    let gone = copied.tombstones.drain(..);
                    tombstones.extend(gone.map(|(i, hash, interval)| (first + i, hash, interval)));
                    for i in copied.pointless.drain(..) {
                        outcomes[first + i] = Outcome::POINTLESS;
                    }
                }
            }
            for (at, hash, interval) in tombstones {
                outcomes[at] = Outcome::tombstone(file.entries());
                file.tombstone(id, unmix64(hash), interval);
            }
        }
        if file.entries() == 0 {
            return Ok(None);
        }
        let finished = file.finish()?;
        let directory = narrow(directory);
        Ok(Some(NewFile {
            finished,
            number,
            directory,
        }))
    }

    /// Between two chunks, unless somebody waits for the room that they make.
    pub(super) fn let_others_go_first(&self) {
        if !self.is_awaited() {
            step_aside();
        }
    }

    /// Copies a chunk of victims out of their shard.
    fn copy_out(&self, part: &Picked, victims: &[Victim], width: usize, copied: &mut CopiedRows) {
        // More than was there before is zeroed, once.
        let f32s = victims.len() * width;
        if copied.rows.len() < f32s {
            copied.rows = own_pages(f32s);
            copied.rows.resize(f32s, 0.0);
        }
        let mut guard = self.core.shards[part.shard].lock();
        let interval_max = guard.interval_max();
        let Shard { tables, cache, .. } = &mut *guard;
        let index = &tables[part.table].index;
        let mut end = 0;
        for (i, victim) in victims.iter().enumerate() {
            if let Some(ahead) = victims.get(i + 2 * AHEAD_ROWS) {
                cache.prefetch_state_of(ahead);
            }
            if let Some(ahead) = victims.get(i + AHEAD_ROWS) {
                cache.prefetch_row_of(ahead);
            }
            let row = &mut copied.rows[end..end + width];
            let Some(taken) = cache.copy_out(victim, interval_max, row) else {
                continue;
            };
            let of = (i, taken.hash, taken.interval);
            if !taken.tombstone {
                copied.entries.push(of);
                end += width;
                continue;
            }
            // Without a copy on SSD there is nothing that a tombstone would have to hide.
            match index.get(taken.hash) {
                Some(_) => copied.tombstones.push(of),
                None => copied.pointless.push(i),
            }
        }
    }

    /// Makes the file current and repoints its keys.
    fn commit_file(&self, new: NewFile, picked: &[Picked], outcomes: &[Outcome]) -> Result<()> {
        let _ranks = self.core.ranks_shared();
        add(&self.written_bytes, new.finished.bytes);
        let file = match self.core.ssd.install(new, None) {
            Ok(file) => file,
            Err(e) => {
                self.take_back(picked, outcomes);
                return Err(e);
            }
        };
        self.settle(picked, outcomes, Some(file.slot));
        Ok(())
    }

    fn settle(&self, picked: &[Picked], outcomes: &[Outcome], slot: Option<FileSlot>) {
        for (part, outcomes) in with_outcomes(picked, outcomes) {
            let chunks = part
                .victims
                .chunks(SETTLE_ROWS)
                .zip(outcomes.chunks(SETTLE_ROWS));
            for (victims, outcomes) in chunks {
                self.let_others_go_first();
                let mut guard = self.core.shards[part.shard].lock();
                let files = self.core.ssd.file_slots();
                let new = slot.and_then(|slot| files[slot.index()].as_deref());
                let mut tally = new.map(Tally::of);
                let Shard { tables, cache, .. } = &mut *guard;
                let index = &mut tables[part.table].index;
                for (i, (victim, outcome)) in victims.iter().zip(outcomes).enumerate() {
                    if let Some(ahead) = victims.get(i + 2 * AHEAD_ROWS) {
                        index.prefetch_segment(ahead.hash);
                    }
                    if let Some(ahead) = victims.get(i + AHEAD_ROWS) {
                        cache.prefetch_state_of(ahead);
                        index.prefetch_place(ahead.hash);
                    }
                    if let (Some(new), Some(tally), Some((number, tombstone))) =
                        (new, &mut tally, outcome.entry())
                    {
                        let to = Location::new(new.slot, tombstone, number);
                        index.repoint(&files, victim.hash, to, tally);
                    }
                    if outcome.is_out() {
                        let _kept = cache.written(victim, true);
                    }
                }
                point("settle");
            }
            self.core.shards[part.shard].notify();
        }
    }

    /// Counts what is in a file, by table.
    fn note_flushed(&self, picked: &[Picked], outcomes: &[Outcome]) {
        let tables = self.core.all_tables();
        for (part, outcomes) in with_outcomes(picked, outcomes) {
            let entries = outcomes.iter().filter(|o| o.entry().is_some()).count();
            tables[part.table].note_flushed(entries as u64);
        }
    }

    fn take_back(&self, picked: &[Picked], outcomes: &[Outcome]) {
        for (part, outcomes) in with_outcomes(picked, outcomes) {
            let chunks = part
                .victims
                .chunks(SETTLE_ROWS)
                .zip(outcomes.chunks(SETTLE_ROWS));
            for (victims, outcomes) in chunks {
                let mut guard = self.core.shards[part.shard].lock();
                for (victim, outcome) in victims.iter().zip(outcomes) {
                    if outcome.is_out() && !guard.cache.written(victim, false) {
                        guard.mark_lost();
                    }
                }
            }
        }
        for cell in &self.core.shards {
            cell.notify();
        }
    }
}

//! How do the rows of a long put reach SSD without a place in memory?
//!
//! A call's keys are cut into rounds, and the hashes into ranges: rows of one round and one range become one
//! file, rounds of a range one after the other. Files of one data directory are written one after the other, while rows
//! of the next are gathered and sorted and keys are pointed to the last.
//!
//! Invariants:
//! - No cut comes, and none is on its way to its capture: the gate is held, and was taken after the end of the
//!   last cut. So whatever becomes current is of the checkpoint that follows the put.
//! - What is in memory is changed there, whatever comes to be in a file: the file's copy is then an older one.
//! - The key of a copy with a higher rank, which came between this file's rank and its last repoint, is put
//!   once more, in memory: a checkpoint's files and the index say the same of every key.
//! - The values were looked at before anything is changed: where rows are in memory, before the first of them is; else
//!   before the first file is finished, which is removed where one value is not finite.
//! - Nobody has a shard locked, or holds compactions back from their ranks, when a row waits for room.

use super::super::core::{Shard, ShardCell, Stretch, Table, point};
use super::apply::{LOCK_ROWS, put_resident};
use super::room::Room;
use super::{Cell, Job, Putter, Rest, open};
use crate::error::Result;
use crate::pages::{own_pages, prefetch};
use crate::ssd::NewFile;
use crate::ssd::data_file::Location;
use crate::ssd::held::Tally;
use crate::ssd::index::Index as _;
use crate::ssd::writer::FileWriter;
use crate::sync::{Mutex, by_team, step_aside};
use crate::units::{FileSlot, Slot, mix64, narrow, range_of, to_usize, unmix64};

/// A put with this part of a file's rows or more, for each data directory, goes past the cache.
const PUT_SHARE_MIN: u64 = 4;

/// A put becomes several files if each has this part of a file's rows or more: files that are smaller on the average are
/// merged (`Limits::files_max`), and puts wait for that.
const FILE_SHARE_MIN: usize = 2;

/// Most rows of a file.
const FILE_ROWS_MAX: u64 = 1 << 22;

/// Memory of a row while its file is made: two entries while those in memory are left out, then one, a key and an
/// interval.
const ROW_BYTES: usize = 2 * size_of::<Entry>();
const _: () = assert!(size_of::<Entry>() + FileWriter::ENTRY_BYTES <= ROW_BYTES);

/// Rows of a thread that points them to a file, at least: it takes as long to start one as to point a few hundred.
const SETTLE_ROWS_MIN: usize = 4096;

/// Rows of a file between two moments at which others may have the processor.
const ASIDE_ROWS: usize = 256;

/// Keys of a call that are looked up in the index, to tell whether it brings in rows or changes them.
const SAMPLED_KEYS: usize = 256;

/// Rows between the one at hand and the one whose lines the processor is asked to fetch.
const AHEAD_ROWS: usize = 8;

/// A row of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// mix64 of the key.
    pub hash: u64,
    /// Its position in the round.
    pub position: u32,
}

/// How a call is cut into files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cuts {
    /// Ranges of the hash: each data directory has as many.
    ranges: usize,
    /// Keys of a round.
    round: usize,
    /// A file has about so many rows at least,
    rows_min: usize,
    /// and at most.
    rows_max: usize,
    /// A thread points so many of them at least.
    settle_min: usize,
}

/// The data directory of a range: each has as many, one after the other.
fn directory_of(range: usize, ranges: usize, directories: usize) -> usize {
    range * directories / ranges
}

/// The rounds of each range that are begun, and whether a thread is at one.
pub(super) struct Turns {
    pub ranges: Vec<(usize, bool)>,
    pub rounds: usize,
    /// Data directories.
    pub directories: usize,
    /// Threads of the call that may still help others: less those that do.
    pub threads: usize,
}

impl Turns {
    /// A range of which nobody writes, with its next round: of the directory in which the fewest are at work, the one
    /// that is furthest behind.
    pub fn take(&mut self) -> Option<(usize, usize)> {
        let home = |range| directory_of(range, self.ranges.len(), self.directories);
        let busy_in = |directory| {
            let ranges = self.ranges.iter().enumerate();
            let busy = ranges.filter(|(range, (_, busy))| *busy && home(*range) == directory);
            busy.count()
        };
        let free = |range: &usize| {
            let (next, busy) = self.ranges[*range];
            !busy && next < self.rounds
        };
        let range = (0..self.ranges.len()).filter(free);
        let range = range.min_by_key(|range| (busy_in(home(*range)), self.ranges[*range].0))?;
        let (next, busy) = &mut self.ranges[range];
        *busy = true;
        *next += 1;
        Some((range, *next - 1))
    }

    /// Threads of the call that have nothing to do any more, up to so many: they help the one that asks until it says
    /// that they are done.
    pub fn take_idle(&mut self, most: usize) -> usize {
        let begun = |(next, _): &(usize, bool)| *next >= self.rounds;
        let busy = self.ranges.iter().filter(|(_, busy)| *busy).count();
        let idle = match self.ranges.iter().all(begun) {
            true => self.threads.saturating_sub(busy).min(most),
            false => 0,
        };
        self.threads -= idle;
        idle
    }
}

impl Putter {
    /// How so many keys are cut; `None` where they are too few for files of their own.
    fn cuts(&self, table: &Table, keys: usize) -> Option<Cuts> {
        let rows = (self.core.file_bytes / table.file_bytes()).clamp(1, FILE_ROWS_MAX);
        let (rows_min, file_rows, settle_min) =
            match self.core.options.thresholds_in_force().straight_rows {
                0 => (
                    to_usize(rows.div_ceil(PUT_SHARE_MIN)),
                    to_usize(rows),
                    SETTLE_ROWS_MIN,
                ),
                rows => (rows, rows.saturating_mul(4), rows),
            };
        let directories = self.core.ssd.directories.len();
        if keys / rows_min < directories {
            return None;
        }
        let writers = self.flusher.put_writers().div_ceil(directories);
        let files = keys / (file_rows / FILE_SHARE_MIN).max(1) / directories;
        let ranges = directories * files.clamp(1, writers);
        let rounds = keys.div_ceil(ranges.saturating_mul(file_rows));
        Some(Cuts {
            ranges,
            round: keys.div_ceil(rounds),
            rows_min,
            // Hashes spread, but not evenly.
            rows_max: file_rows + file_rows / 8,
            settle_min,
        })
    }

    /// Whether the rows of these keys are such as go past the cache, if nothing else keeps them from it.
    pub(super) fn goes_straight(&self, table: &Table, keys: &[u64]) -> bool {
        let is_told = self.core.options.thresholds_in_force().straight_rows > 0;
        !table.tuning().policy.keeps_all()
            && self.cuts(table, keys.len()).is_some()
            && (is_told || !self.are_mostly_known(table, keys))
    }

    /// Whether more than half of the keys have rows on SSD. Rows that are written again and again are better kept in
    /// memory for a while: they need not be written each time, and the next ones who want them find them there.
    fn are_mostly_known(&self, table: &Table, keys: &[u64]) -> bool {
        let (table, shards) = (table.id.0 as usize, &self.core.shards);
        let is_known = |key: &&u64| {
            let hash = mix64(**key);
            let shard = shards[range_of(hash, shards.len())].lock();
            shard.tables[table].index.get(hash).is_some()
        };
        let sample = || keys.iter().step_by(keys.len().div_ceil(SAMPLED_KEYS));
        2 * sample().filter(is_known).count() > sample().len()
    }

    /// Whether the values of a put of so many keys are looked at while its first file is written: its rows are as many
    /// as go past the cache, there is a thread that has no file yet, and no row of the table is in memory. All values are
    /// looked at, so all have to be numbers.
    pub(super) fn begins_first(&self, job: &Job<'_>, keys: usize) -> bool {
        let writers = |cuts: Cuts| cuts.ranges.min(self.flusher.put_writers());
        !job.rows.are_verbatim
            && job.looked == job.width
            && !job.table.tuning().policy.keeps_all()
            && self.cuts(job.table, keys).map_or(0, writers) > 1
            && !self.has_rows_in_memory(job.table)
    }

    /// Whether a row of a table is in memory.
    fn has_rows_in_memory(&self, table: &Table) -> bool {
        let table = table.id.0 as usize;
        let any = |cell: &ShardCell| cell.lock().cache.resident_of(table) > 0;
        self.core.shards.iter().any(any)
    }

    /// Writes the rows of these keys to files, if they are enough for that, no cut needs older states and no value that
    /// nobody has looked at before is not finite; whether it did: else nothing has changed. The gate is held.
    pub(super) fn put_straight(&self, job: &Job<'_>, keys: &[u64], room: &Room) -> Result<bool> {
        // What is current is captured before the end of the last cut, which the last shard is told last.
        let last = self.core.shards.last();
        let is_cut = last.is_some_and(|cell| cell.lock().intervals().1.is_some());
        let cuts = self.cuts(job.table, keys.len());
        let Some(cuts) = cuts.filter(|_| !is_cut) else {
            return Ok(false);
        };
        let threads = cuts.ranges.min(self.flusher.put_writers());
        let turns = Mutex::new(Turns {
            ranges: vec![(0, false); cuts.ranges],
            rounds: keys.len().div_ceil(cuts.round),
            directories: self.core.ssd.directories.len(),
            threads,
        });
        let write = |looks: bool| -> Result<()> {
            let _alarm = self.core.ssd.poison.alarm();
            if looks && !self.may_change(job) {
                return Ok(());
            }
            loop {
                let Some((range, round)) = open(&turns).take() else {
                    return Ok(());
                };
                let start = round * cuts.round;
                let end = keys.len().min(start + cuts.round);
                let job = Job {
                    first: job.first + start,
                    ..*job
                };
                let written = self.put_range(&job, &keys[start..end], &cuts, range, (&turns, room));
                let mut turns = open(&turns);
                turns.ranges[range].1 = false;
                if written.is_err() || job.is_refused() {
                    turns.rounds = 0;
                    return written;
                }
            }
        };
        let write = &write;
        // The first one writes.
        let all = by_team("hps-put", (0..threads).map(|i| move || write(i > 0)));
        all.into_iter().collect::<Result<()>>()?;
        Ok(self.may_change(job))
    }

    /// Writes those of a round's rows that are of one range.
    fn put_range(
        &self,
        job: &Job<'_>,
        keys: &[u64],
        cuts: &Cuts,
        range: usize,
        (turns, room): (&Mutex<Turns>, &Room),
    ) -> Result<()> {
        self.core.check_open()?;
        let mut held = self.flusher.hold_bytes();
        let mut entries = entries_of(job, keys, range, cuts.ranges);
        let rows = entries.len();
        held.set(rows * ROW_BYTES);
        keep_last(&mut entries);
        if self.has_rows_in_memory(job.table) {
            if !self.may_change(job) {
                return Ok(());
            }
            self.put_resident_ones(job, &mut entries);
        }
        let mut rest = entries;
        if rest.len() >= (cuts.rows_min / 2).max(1) {
            let directories = self.core.ssd.directories.len();
            let directory = directory_of(range, cuts.ranges, directories);
            // One, unless the keys came by their hashes.
            let files = rest.len().div_ceil(cuts.rows_max);
            let mut again = Vec::new();
            for some in rest.chunks(rest.len().div_ceil(files)) {
                match self.put_file(job, some, directory, (cuts, turns))? {
                    Some(mut some) => again.append(&mut some),
                    None => return Ok(()),
                }
            }
            rest = again;
        }
        if !rest.is_empty() {
            if !self.may_change(job) {
                return Ok(());
            }
            self.put_cells(job, self.cells_of(&rest), room)?;
        }
        job.table.note_put(rows as u64);
        Ok(())
    }

    /// Those of the entries that are of one shard, piece by piece.
    fn by_shard<'a>(&self, entries: &'a [Entry]) -> impl Iterator<Item = (usize, &'a [Entry])> {
        let count = self.core.shards.len();
        let shard = move |entry: &Entry| range_of(entry.hash, count);
        let shards = entries.chunk_by(move |a, b| shard(a) == shard(b));
        shards.flat_map(move |all| {
            all.chunks(LOCK_ROWS)
                .map(move |some| (shard(&some[0]), some))
        })
    }

    /// Changes the rows that are in memory, and leaves the others.
    fn put_resident_ones(&self, job: &Job<'_>, entries: &mut Vec<Entry>) {
        let mut absent = own_pages(entries.len());
        let mut slots = Vec::new();
        for (s, some) in self.by_shard(entries) {
            let cell = &self.core.shards[s];
            let mut shard = cell.lock();
            let filled = put_those(&mut shard, job, some, &mut slots);
            drop(shard);
            if filled {
                cell.notify();
            }
            let both = some.iter().zip(&slots);
            absent.extend(
                both.filter(|(_, slot)| **slot == Slot::NONE)
                    .map(|(entry, _)| *entry),
            );
        }
        *entries = absent;
    }

    /// Writes rows to a file, and gives back those that are to be put once more, in memory. `None`: the call is given up.
    fn put_file(
        &self,
        job: &Job<'_>,
        entries: &[Entry],
        directory: usize,
        (cuts, turns): (&Cuts, &Mutex<Turns>),
    ) -> Result<Option<Vec<Entry>>> {
        let mut stretch = Stretch::default();
        self.flusher.wait_for_space(job.table, &mut stretch);
        stretch.end();
        // One file at a time: alone it keeps the device busy while others are sorted or pointed to. Written at the same
        // time they would be in need of the processor at the same time, too (decision 0057).
        let mut writing = Some(open(&self.writing[directory]));
        self.core.check_open()?;
        self.core.ssd.check_writable()?;
        if open(turns).rounds == 0 {
            // Another thread of the call has failed, and says so.
            return Ok(None);
        }
        let mark = self.core.changes.mark();
        // What is full may have been filled by an index snapshot.
        let ssd = &self.core.ssd;
        let new = ssd.with_snapshot_room(|| {
            // The next file is begun while the last bytes of this one are on their way.
            let first = writing.take();
            let writing = first.unwrap_or_else(|| open(&self.writing[directory]));
            self.write_file(job, entries, directory, || drop(writing))
        })?;
        let Some(new) = new else { return Ok(None) };
        let bytes = new.finished.bytes;
        let again = {
            let _ranks = self.core.ranks_shared();
            let file = ssd.install(new, None)?;
            // At the end of a call nothing else is left to do for the others, and the device waits for the next call.
            let parts = entries.len() / cuts.settle_min.max(1);
            let helpers = open(turns).take_idle(parts.saturating_sub(1));
            let again = self.settle_put(job, entries, (file.slot, file.meta.rank), 1 + helpers);
            open(turns).threads += helpers;
            again
        };
        self.core.changes.flushed(mark, entries.len() as u64);
        self.flusher
            .file_was_put(job.table, bytes, entries.len() as u64);
        Ok(Some(again))
    }

    /// `None`, and no file: a value is not finite. `asked` is called when all writes are on their way.
    pub(super) fn write_file(
        &self,
        job: &Job<'_>,
        entries: &[Entry],
        directory: usize,
        asked: impl FnOnce(),
    ) -> Result<Option<NewFile>> {
        let mut taken = self.flusher.queue_for_put(job.table);
        let (interval, _) = self.core.shards[0].lock().intervals();
        let ssd = &self.core.ssd;
        let expected = entries.len() as u64 * job.table.file_bytes() + 16384;
        let queue = &mut *taken.queues[0];
        // Others of this call's files are not counted yet.
        let reserve = self.core.file_bytes * self.flusher.put_writers() as u64;
        let (number, mut file) = ssd.create_file(queue, directory, expected, reserve)?;
        let id = job.table.id.0;
        let mut whole = vec![0.0; job.table.descriptor.row_f32s()];
        for (i, entry) in entries.iter().enumerate() {
            if let Some(ahead) = entries.get(i + AHEAD_ROWS) {
                prefetch(job.values(ahead.position));
            }
            let row = match job.rows.are_whole {
                true => job.values(entry.position),
                false => {
                    job.fill(entry.position, &mut whole);
                    &whole
                }
            };
            file.row(id, unmix64(entry.hash), interval, row);
            if i.is_multiple_of(ASIDE_ROWS) {
                if job.is_refused() {
                    return Ok(None);
                }
                step_aside();
            }
        }
        if !self.may_change(job) {
            return Ok(None);
        }
        let finished = file.finish_then(asked)?;
        Ok(Some(NewFile {
            finished,
            number,
            directory: narrow(directory),
        }))
    }

    /// Points the keys to their copies in a file, by so many threads; rows that came into memory meanwhile are changed
    /// there, too. Gives those of which there is a copy with a higher rank.
    pub(super) fn settle_put(
        &self,
        job: &Job<'_>,
        entries: &[Entry],
        to: (FileSlot, u64),
        threads: usize,
    ) -> Vec<Entry> {
        if threads <= 1 {
            return self.settle_part(job, entries, 0, to);
        }
        let share = entries.len().div_ceil(threads).max(1);
        let parts = Mutex::new(entries.chunks(share).zip((0..).step_by(share)));
        let settle = || {
            let _alarm = self.core.ssd.poison.alarm();
            let mut again = Vec::new();
            loop {
                let taken = open(&parts).next();
                let Some((part, first)) = taken else {
                    return again;
                };
                again.append(&mut self.settle_part(job, part, first, to));
            }
        };
        let mut again = by_team("hps-put", (0..threads).map(|_| &settle)).concat();
        again.sort_unstable_by_key(|entry| entry.hash);
        again
    }

    /// The same, of those entries of the file that begin with number `first`.
    fn settle_part(
        &self,
        job: &Job<'_>,
        entries: &[Entry],
        first: usize,
        (slot, rank): (FileSlot, u64),
    ) -> Vec<Entry> {
        let table = job.table.id.0 as usize;
        let (mut again, mut slots, mut number) = (Vec::new(), Vec::new(), narrow(first));
        for (s, some) in self.by_shard(entries) {
            step_aside();
            let cell = &self.core.shards[s];
            let mut guard = cell.lock();
            let filled = put_those(&mut guard, job, some, &mut slots);
            let files = self.core.ssd.file_slots();
            let rank_of = |slot: FileSlot| files[slot.index()].as_ref().map(|file| file.meta.rank);
            if let Some(new) = files[slot.index()].as_deref() {
                let mut tally = Tally::of(new);
                let index = &mut guard.tables[table].index;
                for (i, entry) in some.iter().enumerate() {
                    if let Some(ahead) = some.get(i + 2 * AHEAD_ROWS) {
                        index.prefetch_segment(ahead.hash);
                    }
                    if let Some(ahead) = some.get(i + AHEAD_ROWS) {
                        index.prefetch_place(ahead.hash);
                    }
                    let to = Location::new(slot, false, number);
                    number += 1;
                    // Asked before anything is changed: a file whose last live entry is let go may be retired at once.
                    let before = index.get(entry.hash);
                    if before.is_some_and(|before| rank_of(before.slot()) > Some(rank)) {
                        if slots[i] == Slot::NONE {
                            again.push(*entry);
                        }
                    } else {
                        index.repoint(&files, entry.hash, to, &mut tally);
                    }
                }
            }
            drop(files);
            point("put_straight");
            drop(guard);
            if filled {
                cell.notify();
            }
        }
        again
    }

    /// Rows that go through memory, by shard.
    pub(super) fn cells_of(&self, entries: &[Entry]) -> Vec<Cell> {
        let mut cells: Vec<Rest> = self.core.shards.iter().map(|_| Rest::default()).collect();
        for (s, some) in self.by_shard(entries) {
            cells[s].rows.extend(some.iter().map(|entry| entry.hash));
            cells[s]
                .positions
                .extend(some.iter().map(|entry| entry.position));
        }
        cells.into_iter().map(Mutex::new).collect()
    }
}

/// The rows of one range, by hash, equal ones by position; without those that are left out.
pub(super) fn entries_of(job: &Job<'_>, keys: &[u64], range: usize, ranges: usize) -> Vec<Entry> {
    let share = keys.len() / ranges;
    let mut found: Vec<Entry> = own_pages(share + share / 16 + 64);
    let hashes = keys.iter().map(|key| mix64(*key)).zip(0..);
    let own = hashes.filter(|(hash, position)| {
        range_of(*hash, ranges) == range && (!job.skip || job.is_finite_at(*position))
    });
    found.extend(own.map(|(hash, position)| Entry { hash, position }));
    found.sort_unstable_by_key(|entry| (entry.hash, entry.position));
    found
}

/// Of rows of one key, only the last stays.
pub(super) fn keep_last(entries: &mut Vec<Entry>) {
    entries.dedup_by(|next, kept| {
        let same = next.hash == kept.hash;
        if same {
            *kept = *next;
        }
        same
    });
}

/// Changes those of the rows that are in memory, of one shard; `slots` tells which are. Whether others may wait for
/// one of them.
fn put_those(shard: &mut Shard, job: &Job<'_>, entries: &[Entry], slots: &mut Vec<Slot>) -> bool {
    let table = job.table.id.0 as usize;
    slots.clear();
    slots.resize(entries.len(), Slot::NONE);
    if shard.cache.resident_of(table) == 0 {
        return false;
    }
    let mut hashes = [0; LOCK_ROWS];
    for (hash, entry) in hashes.iter_mut().zip(entries) {
        *hash = entry.hash;
    }
    shard.cache.lookup(table, &hashes[..entries.len()], slots);
    let positions = entries.iter().map(|entry| entry.position);
    match put_resident(shard, job, slots, positions) {
        Ok(filled) => filled,
        Err(_lack) => unreachable!("no cut needs older states while a long put has the gate"),
    }
}

//! How are picked rows written to files, and their keys repointed?
//!
//! Files of one pick are written at the same time, each by a submission queue of its own.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::super::core::{Shard, add, point};
use super::pick::{PICK_FILES, Picked};
use super::{Flusher, Writer};
use crate::error::{Error, Result};
use crate::io::Queue;
use crate::mem::Victim;
use crate::ssd::NewFile;
use crate::ssd::data_file::Location;
use crate::ssd::held::Tally;
use crate::ssd::index::Index as _;
use crate::ssd::writer::FileWriter;
use crate::sync::{Mutex, by_team};
use crate::units::{FileSlot, narrow, unmix64};

/// Rows copied out per locking of a shard.
const COPY_ROWS: usize = 512;

/// Rows between the one at hand and the one whose lines the processor is asked to fetch.
const AHEAD_ROWS: usize = 8;

/// A row or tombstone in the file being written.
struct Written {
    victim: Victim,
    /// Entry number; `None` for a tombstone that nobody needs.
    entry: Option<u32>,
    table: u16,
    shard: u16,
    tombstone: bool,
}

// There is one per row of a file: it stays small.
const _: () = assert!(size_of::<Written>() <= 32);

impl Written {
    fn new(
        table: usize,
        shard: usize,
        victim: Victim,
        entry: Option<u32>,
        tombstone: bool,
    ) -> Written {
        let (table, shard) = (narrow(table), narrow(shard));
        Written {
            victim,
            entry,
            table,
            shard,
            tombstone,
        }
    }
}

/// Rows of one table copied out of a shard, not yet in the file.
#[derive(Default)]
struct CopiedRows {
    rows: Vec<f32>,
    entries: Vec<(u64, u32, Victim)>,
    tombstones: Vec<(u64, u32, Victim)>,
    pointless: Vec<Victim>,
}

impl Flusher {
    /// Writes victims to files and repoints the index; returns rows written, and counts them.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`; the rows of files that failed are dirty again.
    pub(super) fn write_files(&self, writer: &mut Writer, picked: Vec<Picked>) -> Result<u64> {
        let mut picked = Some(picked);
        let mark = self.core.changes.mark();
        // Between a cut and its capture only rows are written that are the checkpoint's. Neither comes
        // to its end meanwhile: the writer's role is held.
        let (_, frozen) = self.core.shards[0].lock().intervals();
        let (written, result) = self.write_all(writer, false, &mut || picked.take());
        if written > 0 {
            // Also where another file failed: these rows are dirty no more.
            add(&self.flushes, 1);
            if frozen.is_none() {
                self.core.changes.flushed(mark, written);
            }
        }
        result.map(|()| written)
    }

    /// Writes what `next` picks until it picks nothing: files of one pick at the same time, and the
    /// next pick's while those are still being written; with `many` by all queues while nobody asks
    /// for rows, else by as many as the first pick has files. Returns the rows that were written,
    /// and as [`Flusher::write_files`] the error of the first file that failed; no other was begun
    /// after it.
    pub(super) fn write_all(
        &self,
        writer: &mut Writer,
        many: bool,
        next: &mut (dyn FnMut() -> Option<Vec<Picked>> + Send),
    ) -> (u64, Result<()>) {
        if let Err(poisoned) = self.core.ssd.check_writable() {
            return (0, Err(poisoned));
        }
        let queues = writer.queues.len();
        let jobs = match next() {
            Some(picked) => self.jobs_of(picked),
            None => return (0, Ok(())),
        };
        let threads = if many {
            queues
        } else {
            jobs.len().clamp(1, queues)
        };
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
        let writers = writer.queues.iter_mut().take(threads).zip(0..);
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
        match self.write_file_once(queue, directory, picked) {
            // What is full may have been filled by an index snapshot.
            Err(Error::NoSpace { .. }) if self.core.ssd.take_snapshot_room() => {
                self.write_file_once(queue, directory, picked)
            }
            result => result,
        }
    }

    fn write_file_once(
        &self,
        queue: &mut dyn Queue,
        directory: usize,
        picked: &[Picked],
    ) -> Result<u64> {
        let expected = self.bytes_of(picked);
        let rows = picked.iter().map(|p| p.victims.len()).sum();
        let mut written = Vec::with_capacity(rows);
        // Beside it the victims, and the keys that the file will list.
        let each = size_of::<Written>() + size_of::<Victim>() + FileWriter::ENTRY_BYTES;
        let mut held = self.in_use.begin();
        held.set(rows * each);
        let result = self.fill_file(queue, directory, picked, expected + 16384, &mut written);
        let rows = written.iter().filter(|w| w.entry.is_some()).count() as u64;
        match result {
            Ok(Some(new)) => {
                self.commit_file(new, &written)?;
                self.note_flushed(&written);
            }
            Ok(None) => self.settle(&written, None),
            Err(e) => {
                self.take_back(&written);
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
        written: &mut Vec<Written>,
    ) -> Result<Option<NewFile>> {
        let (number, mut file) =
            self.core
                .ssd
                .create_file(queue, directory, expected_bytes, self.core.file_bytes)?;
        let tables = self.core.all_tables();
        for group in picked.chunk_by(|a, b| a.table == b.table) {
            let width = tables[group[0].table].descriptor.row_f32s();
            let mut tombstones = Vec::new();
            for part in group {
                for victims in part.victims.chunks(COPY_ROWS) {
                    let copied = self.copy_out(part, victims, width);
                    append(&mut file, part, copied, &mut tombstones, written);
                }
            }
            for (shard, hash, interval, victim) in tombstones {
                let table = group[0].table;
                let entry = u32::try_from(file.entries()).ok();
                let id = narrow(table);
                file.tombstone(id, unmix64(hash), interval);
                written.push(Written::new(table, shard, victim, entry, true));
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

    /// Copies a chunk of victims out of their shard.
    fn copy_out(&self, part: &Picked, victims: &[Victim], width: usize) -> CopiedRows {
        let mut copied = CopiedRows::default();
        let mut guard = self.core.shards[part.shard].lock();
        let interval_max = guard.interval_max();
        let Shard { tables, cache, .. } = &mut *guard;
        let index = &tables[part.table].index;
        copied.rows.reserve(victims.len() * width);
        for (i, victim) in victims.iter().enumerate() {
            if let Some(ahead) = victims.get(i + AHEAD_ROWS) {
                cache.prefetch_lines_of_victim(ahead, true);
            }
            let start = copied.rows.len();
            copied.rows.resize(start + width, 0.0);
            let row = &mut copied.rows[start..];
            let Some(taken) = cache.copy_out(victim, interval_max, row) else {
                copied.rows.truncate(start);
                continue;
            };
            if !taken.tombstone {
                copied.entries.push((taken.hash, taken.interval, *victim));
                continue;
            }
            copied.rows.truncate(start);
            // Without a copy on SSD there is nothing that a tombstone would have to hide.
            match index.get(taken.hash) {
                Some(_) => copied
                    .tombstones
                    .push((taken.hash, taken.interval, *victim)),
                None => copied.pointless.push(*victim),
            }
        }
        copied
    }

    /// Makes the file current and repoints its keys.
    fn commit_file(&self, new: NewFile, written: &[Written]) -> Result<()> {
        let _ranks = self.core.ranks_shared();
        add(&self.written_bytes, new.finished.bytes);
        let file = match self.core.ssd.install(new, None) {
            Ok(file) => file,
            Err(e) => {
                self.take_back(written);
                return Err(e);
            }
        };
        self.settle(written, Some(file.slot));
        Ok(())
    }

    fn settle(&self, written: &[Written], slot: Option<FileSlot>) {
        for chunk in written.chunk_by(|a, b| a.shard == b.shard) {
            for some in chunk.chunks(1024) {
                let mut guard = self.core.shards[usize::from(some[0].shard)].lock();
                let files = self.core.ssd.file_slots();
                let new = slot.and_then(|slot| files[slot.index()].as_deref());
                let mut tally = new.map(Tally::of);
                for (i, w) in some.iter().enumerate() {
                    if let Some(ahead) = some.get(i + 2 * AHEAD_ROWS) {
                        let entry = &guard.tables[usize::from(ahead.table)];
                        entry.index.prefetch_segment(ahead.victim.hash);
                    }
                    if let Some(ahead) = some.get(i + AHEAD_ROWS) {
                        guard.cache.prefetch_lines_of_victim(&ahead.victim, false);
                        let entry = &guard.tables[usize::from(ahead.table)];
                        entry.index.prefetch_line(ahead.victim.hash);
                    }
                    let entry = &mut guard.tables[usize::from(w.table)];
                    if let (Some(new), Some(tally), Some(number)) = (new, &mut tally, w.entry) {
                        let to = Location::new(new.slot, w.tombstone, number);
                        entry.index.repoint(&files, w.victim.hash, to, tally);
                    }
                    let _kept = guard.cache.written(&w.victim, true);
                }
                point("settle");
            }
            self.core.shards[usize::from(chunk[0].shard)].notify();
        }
    }

    /// Counts what is in a file, by table.
    fn note_flushed(&self, written: &[Written]) {
        let tables = self.core.all_tables();
        for rows in written.chunk_by(|a, b| a.table == b.table) {
            let entries = rows.iter().filter(|w| w.entry.is_some()).count();
            tables[usize::from(rows[0].table)].note_flushed(entries as u64);
        }
    }

    fn take_back(&self, written: &[Written]) {
        for w in written {
            let mut guard = self.core.shards[usize::from(w.shard)].lock();
            if !guard.cache.written(&w.victim, false) {
                guard.mark_lost();
            }
        }
        for cell in &self.core.shards {
            cell.notify();
        }
    }
}

fn append(
    file: &mut FileWriter<'_>,
    part: &Picked,
    copied: CopiedRows,
    tombstones: &mut Vec<(usize, u64, u32, Victim)>,
    written: &mut Vec<Written>,
) {
    let (table, shard) = (part.table, part.shard);
    let width = copied.rows.len() / copied.entries.len().max(1);
    let id = narrow(table);
    for ((hash, interval, victim), row) in copied
        .entries
        .into_iter()
        .zip(copied.rows.chunks_exact(width.max(1)))
    {
        let entry = u32::try_from(file.entries()).ok();
        file.row(id, unmix64(hash), interval, row);
        written.push(Written::new(table, shard, victim, entry, false));
    }
    tombstones.extend(
        copied
            .tombstones
            .into_iter()
            .map(|(h, e, v)| (shard, h, e, v)),
    );
    for victim in copied.pointless {
        written.push(Written::new(table, shard, victim, None, true));
    }
}

//! How do dirty rows reach parameter files?
//!
//! One writer at a time takes victims, copies them out under their shard's lock, writes one file
//! per data directory and repoints the index.
//!
//! Invariants:
//! - Until the repoint a row being written stays in memory: a reader never sees an older copy.
//! - While a checkpoint's cut is not captured, only rows changed before the cut are written.
//! - A write that fails loses nothing: the rows are dirty again, the file is removed.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::engine::{Counters, Engine, ShardCell, Table, Writer};
use crate::error::{Error, Result};
use crate::io::Queue;
use crate::mem::Victim;
use crate::ssd::NewFile;
use crate::ssd::version::Location;
use crate::ssd::writer::FileWriter;
use crate::units::{range_of, unmix64};

/// Rows copied out per locking of a shard.
const COPY_ROWS: usize = 512;

/// Rows between the one at hand and the one announced to the processor.
const AHEAD_ROWS: usize = 8;

/// Victims of one table in one shard, by hash.
#[derive(Debug)]
pub struct Picked {
    /// Table id.
    pub table: usize,
    /// Shard.
    pub shard: usize,
    /// The rows, sorted by hash before they are written.
    pub victims: Vec<Victim>,
}

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
        let narrow = |x: usize| u16::try_from(x).unwrap_or(u16::MAX);
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
struct Staged {
    rows: Vec<f32>,
    entries: Vec<(u64, u32, Victim)>,
    tombstones: Vec<(u64, u32, Victim)>,
    pointless: Vec<Victim>,
}

impl Engine {
    /// Sees to it that one more place of a table in a shard can be had.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned` when dirty rows can't be written.
    pub fn make_room(&self, s: usize, table: &Table) -> Result<()> {
        let id = table.id.0 as usize;
        let has_room = || {
            let shard = self.shards[s].lock();
            let cache = &shard.tables[id].cache;
            cache.at_hand() > 0
        };
        self.wait_for_space();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut writer = self.lock_writer();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if has_room() {
            return Ok(());
        }
        let mut picked = self.pick_cold(&writer);
        if picked.is_empty() {
            picked = self.pick_anything(s, id);
        }
        let written = self.write_files(&mut writer, picked)?;
        drop(writer);
        self.after_flush(written)?;
        if written == 0 {
            // Rows changed after a running checkpoint's cut wait for its capture.
            let cell = &self.shards[s];
            let mut shard = cell.lock();
            let cache = &shard.tables[id].cache;
            if cache.at_hand() == 0 {
                cell.wait(&mut shard);
            }
        }
        Ok(())
    }

    /// Writes out cold rows of every cache that runs low; returns rows written.
    ///
    /// # Errors
    /// As [`Engine::make_room`].
    pub fn flush_low(&self) -> Result<u64> {
        if !self.is_low() {
            return Ok(0);
        }
        self.wait_for_space();
        let mut writer = self.lock_writer();
        let picked = self.pick_cold(&writer);
        let written = self.write_files(&mut writer, picked)?;
        drop(writer);
        self.after_flush(written)?;
        Ok(written)
    }

    /// Writes out every dirty row that may be written, pinned or not.
    ///
    /// # Errors
    /// As [`Engine::make_room`].
    pub fn flush_all(&self) -> Result<u64> {
        let mut total = 0;
        loop {
            self.wait_for_space();
            let mut writer = self.lock_writer();
            let picked = self.pick_frozen(&writer, &mut vec![0; self.cursors()], None);
            let Some(picked) = picked else {
                return Ok(total);
            };
            let written = self.write_files(&mut writer, picked)?;
            drop(writer);
            self.after_flush(written)?;
            total += written;
        }
    }

    /// One cursor per (table, shard).
    pub fn cursors(&self) -> usize {
        self.all_tables().len() * self.shards.len()
    }

    fn after_flush(&self, written: u64) -> Result<()> {
        if written == 0 {
            return Ok(());
        }
        Counters::add(&self.counters.flushes, 1);
        Counters::add(&self.counters.flushed_rows, written);
        self.flushed.notify();
        self.compact_inline();
        Ok(())
    }

    /// Holds flushes back while `current` is far over its bound and compaction can help.
    pub fn wait_for_space(&self) {
        let mut stalled: Option<Instant> = None;
        while self.is_over_space() {
            stalled.get_or_insert_with(Instant::now);
            let seen = self.compacted.count();
            self.flushed.notify();
            self.compacted.wait(seen, Duration::from_millis(10));
        }
        if let Some(since) = stalled {
            self.counters.stalled(since);
        }
    }

    fn is_over_space(&self) -> bool {
        if self.options.inline
            || self.closed.load(Ordering::Acquire)
            || self.compaction_failed.load(Ordering::Acquire)
            || self.ssd.check_writable().is_err()
        {
            return false;
        }
        let usage = self.ssd.usage();
        let limits = self.limits(false);
        (usage.current_bytes > limits.hard_bytes(usage.live_bytes)
            || usage.files > limits.files_hard(usage.live_bytes))
            && self.is_compaction_due()
    }

    fn is_low(&self) -> bool {
        let low = |cell: &ShardCell| cell.lock().tables.iter().any(|t| t.cache.low());
        self.shards.iter().any(low)
    }

    /// The coldest dirty rows of caches that run low, or soon would.
    fn pick_cold(&self, writer: &Writer) -> Vec<Picked> {
        let mut picked = Vec::new();
        // While somebody waits for room, two files are written at a time.
        let hurry = self.waiting.load(Ordering::Relaxed) > 0;
        let steps = if hurry { writer.queues.len() } else { 1 };
        for table in 0..self.all_tables().len() {
            for (shard, cell) in self.shards.iter().enumerate() {
                let mut guard = cell.lock();
                let epoch_max = guard.epoch_max();
                let cache = &mut guard.tables[table].cache;
                if !cache.lowish() {
                    continue;
                }
                let mut victims = Vec::new();
                cache.take_victims(steps * cache.flush_step_rows(), epoch_max, &mut victims);
                if !victims.is_empty() {
                    picked.push(Picked {
                        table,
                        shard,
                        victims,
                    });
                }
            }
        }
        picked
    }

    /// Dirty rows of one cache, in the order of their places: when the policy names none.
    fn pick_anything(&self, shard: usize, table: usize) -> Vec<Picked> {
        let mut guard = self.shards[shard].lock();
        let epoch_max = guard.epoch_max();
        let cache = &mut guard.tables[table].cache;
        let want = cache.flush_step_rows();
        let (mut cursor, mut victims) = (0, Vec::new());
        while victims.is_empty() && cache.take_frozen(&mut cursor, want, epoch_max, &mut victims) {}
        vec![Picked {
            table,
            shard,
            victims,
        }]
    }

    /// Dirty rows at or before `cut` (`None`: any that may be written), about a file's worth, on
    /// from `cursors`; `None` when there are none left.
    pub fn pick_frozen(
        &self,
        writer: &Writer,
        cursors: &mut [usize],
        cut: Option<u32>,
    ) -> Option<Vec<Picked>> {
        let tables = self.all_tables();
        let mut room = self.file_bytes * writer.queues.len() as u64;
        // Of each shard, that is of each range of the hash, an equal share: files written at the
        // same time are ranges, too.
        let share_max = match writer.queues.len() {
            1 => room,
            _ => room / self.shards.len() as u64,
        };
        let mut picked = Vec::new();
        for (t, table) in tables.iter().enumerate() {
            let row_bytes = table.file_bytes();
            for (s, cell) in self.shards.iter().enumerate() {
                let cursor = &mut cursors[t * self.shards.len() + s];
                let mut share = room.min(share_max);
                loop {
                    let want = usize::try_from(share / row_bytes)
                        .unwrap_or(usize::MAX)
                        .max(1);
                    let mut guard = cell.lock();
                    let cut = cut.unwrap_or(guard.epoch_max());
                    let cache = &mut guard.tables[t].cache;
                    let mut victims = Vec::new();
                    let more = cache.take_frozen(cursor, want, cut, &mut victims);
                    drop(guard);
                    room = room.saturating_sub(victims.len() as u64 * row_bytes);
                    share = share.saturating_sub(victims.len() as u64 * row_bytes);
                    let found = victims.len();
                    if found > 0 {
                        picked.push(Picked {
                            table: t,
                            shard: s,
                            victims,
                        });
                    }
                    if room < row_bytes {
                        return Some(picked);
                    }
                    // Copies are listed again until they are written: one look is enough.
                    if !more || share < row_bytes || (found > 0 && found < want) {
                        break;
                    }
                }
            }
        }
        (!picked.is_empty()).then_some(picked)
    }

    /// Writes victims to files and repoints the index; returns rows written.
    ///
    /// A file per data directory, or where there is more than a file's worth as many as there are
    /// queues, written at the same time.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`; the rows are dirty again.
    pub fn write_files(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        mut picked: Vec<Picked>,
    ) -> Result<u64> {
        self.ssd.check_writable()?;
        // Parts of one table in one shard become one, by hash: the order of the file.
        picked.sort_by_key(|p| (p.table, p.shard));
        picked.dedup_by(|next, part| {
            let same = (next.table, next.shard) == (part.table, part.shard);
            if same {
                part.victims.append(&mut next.victims);
            }
            same
        });
        for part in &mut picked {
            part.victims.sort_unstable_by_key(|v| v.hash);
        }
        let directories = self.ssd.directories.len();
        let queues = writer.queues.len();
        let bytes = self.bytes_of(&picked);
        // Each file is checked against what is installed: both together must fit, too.
        let fits = || {
            let all = bytes + 16384 * queues as u64;
            let check = |d| self.ssd.check_space(d, all, self.file_bytes).is_ok();
            (0..directories).all(check)
        };
        let ways = if queues > 1 && bytes > self.file_bytes && fits() {
            queues
        } else {
            1
        };
        let pieces = directories * ways;
        let outcomes: Vec<Result<u64>> = std::thread::scope(|scope| {
            let write = |queue: &mut dyn Queue, first: usize| -> Result<u64> {
                let mut total = 0;
                for piece in (first..pieces).step_by(queues.min(pieces)) {
                    let own = cut_piece(&picked, piece, pieces);
                    if !own.is_empty() {
                        total += self.write_file(queue, piece / ways, &own)?;
                    }
                }
                Ok(total)
            };
            let mut queues = writer.queues.iter_mut().take(pieces);
            let own = queues.next();
            let (mut others, mut left) = (Vec::new(), vec![0]);
            for (i, queue) in queues.enumerate() {
                let thread = std::thread::Builder::new().name(String::from("hps-write"));
                match thread.spawn_scoped(scope, move || write(&mut **queue, i + 1)) {
                    Ok(thread) => others.push(thread),
                    // No thread to be had: this one writes those files, too.
                    Err(_) => left.push(i + 1),
                }
            }
            let mut outcomes = Vec::new();
            if let Some(queue) = own {
                outcomes.extend(left.into_iter().map(|first| write(&mut **queue, first)));
            }
            outcomes.extend(others.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }));
            outcomes
        });
        let mut total = 0;
        for outcome in outcomes {
            total += outcome?;
        }
        Ok(total)
    }

    /// About the bytes of a file of these rows.
    fn bytes_of(&self, picked: &[Picked]) -> u64 {
        let tables = self.all_tables();
        let bytes = |p: &Picked| p.victims.len() as u64 * tables[p.table].file_bytes();
        picked.iter().map(bytes).sum()
    }

    fn write_file(
        &self,
        queue: &mut dyn Queue,
        directory: usize,
        picked: &[Picked],
    ) -> Result<u64> {
        let expected = self.bytes_of(picked);
        let rows = picked.iter().map(|p| p.victims.len()).sum();
        let mut written = Vec::with_capacity(rows);
        let result = self.fill_file(queue, directory, picked, expected + 16384, &mut written);
        let rows = written.iter().filter(|w| w.entry.is_some()).count() as u64;
        match result {
            Ok(Some(new)) => self.commit_file(new, &written)?,
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
            self.ssd
                .create_file(queue, directory, expected_bytes, self.file_bytes)?;
        let path = self.ssd.directories[directory].clone();
        let tables = self.all_tables();
        for group in picked.chunk_by(|a, b| a.table == b.table) {
            let width = tables[group[0].table].descriptor.row_f32s();
            let mut tombstones = Vec::new();
            for part in group {
                for victims in part.victims.chunks(COPY_ROWS) {
                    let staged = self.copy_out(part, victims, width);
                    append(&mut file, part, staged, &mut tombstones, written);
                }
            }
            for (shard, hash, epoch, victim) in tombstones {
                let table = group[0].table;
                let entry = u32::try_from(file.entries()).ok();
                let id = u32::try_from(table).unwrap_or(u32::MAX);
                file.tombstone(id, unmix64(hash), epoch);
                written.push(Written::new(table, shard, victim, entry, true));
            }
        }
        if file.entries() == 0 {
            return Ok(None);
        }
        let bytes = file.bytes();
        let finished = file.finish().map_err(|e| match e {
            Error::Io { source, .. } => self.ssd.full(&path, bytes, source),
            other => other,
        })?;
        let directory = u32::try_from(directory).unwrap_or(u32::MAX);
        Ok(Some(NewFile {
            finished,
            number,
            directory,
        }))
    }

    /// Copies a chunk of victims out of their shard.
    fn copy_out(&self, part: &Picked, victims: &[Victim], width: usize) -> Staged {
        let mut staged = Staged::default();
        let mut guard = self.shards[part.shard].lock();
        let epoch_max = guard.epoch_max();
        let entry = &mut guard.tables[part.table];
        staged.rows.reserve(victims.len() * width);
        for (i, victim) in victims.iter().enumerate() {
            if let Some(ahead) = victims.get(i + AHEAD_ROWS) {
                entry.cache.announce_victim(ahead, true);
            }
            let start = staged.rows.len();
            staged.rows.resize(start + width, 0.0);
            let row = &mut staged.rows[start..];
            let Some(taken) = entry.cache.copy_out(victim, epoch_max, row) else {
                staged.rows.truncate(start);
                continue;
            };
            if !taken.tombstone {
                staged.entries.push((taken.hash, taken.epoch, *victim));
                continue;
            }
            staged.rows.truncate(start);
            // Without a copy on SSD there is nothing that a tombstone would have to hide.
            match entry.index.get(taken.hash) {
                Some(_) => staged.tombstones.push((taken.hash, taken.epoch, *victim)),
                None => staged.pointless.push(*victim),
            }
        }
        staged
    }

    /// Makes the file current and repoints its keys.
    fn commit_file(&self, new: NewFile, written: &[Written]) -> Result<()> {
        let _commit = self.commit.read().unwrap_or_else(PoisonError::into_inner);
        Counters::add(&self.counters.written_bytes, new.finished.bytes);
        let file = match self.ssd.install(new, None) {
            Ok(file) => file,
            Err(e) => {
                self.take_back(written);
                return Err(e);
            }
        };
        self.settle(written, Some(file.slot));
        Ok(())
    }

    fn settle(&self, written: &[Written], slot: Option<u32>) {
        for chunk in written.chunk_by(|a, b| a.shard == b.shard) {
            for some in chunk.chunks(1024) {
                let mut guard = self.shards[usize::from(some[0].shard)].lock();
                let files = self
                    .ssd
                    .slots
                    .read()
                    .unwrap_or_else(PoisonError::into_inner);
                for (i, w) in some.iter().enumerate() {
                    if let Some(ahead) = some.get(i + AHEAD_ROWS) {
                        let entry = &guard.tables[usize::from(ahead.table)];
                        entry.cache.announce_victim(&ahead.victim, false);
                        entry.index.announce(ahead.victim.hash);
                    }
                    let entry = &mut guard.tables[usize::from(w.table)];
                    if let (Some(slot), Some(number)) = (slot, w.entry) {
                        let to = Location::new(slot, w.tombstone, number);
                        entry.index.repoint(&files, w.victim.hash, to);
                    }
                    let _kept = entry.cache.written(&w.victim, true);
                }
            }
            self.shards[usize::from(chunk[0].shard)].notify();
        }
    }

    fn take_back(&self, written: &[Written]) {
        for w in written {
            let mut guard = self.shards[usize::from(w.shard)].lock();
            if !guard.tables[usize::from(w.table)]
                .cache
                .written(&w.victim, false)
            {
                guard.lost = true;
            }
        }
        for cell in &self.shards {
            cell.notify();
        }
    }
}

/// The victims of one range of the hash among `pieces` equal ones.
fn cut_piece(picked: &[Picked], piece: usize, pieces: usize) -> Vec<Picked> {
    let cut = |part: &Picked| {
        let before = |v: &Victim| range_of(v.hash, pieces) < piece;
        let within = |v: &Victim| range_of(v.hash, pieces) <= piece;
        let start = part.victims.partition_point(before);
        let end = part.victims.partition_point(within);
        Picked {
            table: part.table,
            shard: part.shard,
            victims: part.victims[start..end].to_vec(),
        }
    };
    picked
        .iter()
        .map(cut)
        .filter(|part| !part.victims.is_empty())
        .collect()
}

fn append(
    file: &mut FileWriter<'_>,
    part: &Picked,
    staged: Staged,
    tombstones: &mut Vec<(usize, u64, u32, Victim)>,
    written: &mut Vec<Written>,
) {
    let (table, shard) = (part.table, part.shard);
    let width = staged.rows.len() / staged.entries.len().max(1);
    let id = u32::try_from(table).unwrap_or(u32::MAX);
    for ((hash, epoch, victim), row) in staged
        .entries
        .into_iter()
        .zip(staged.rows.chunks_exact(width.max(1)))
    {
        let entry = u32::try_from(file.entries()).ok();
        file.row(id, unmix64(hash), epoch, row);
        written.push(Written::new(table, shard, victim, entry, false));
    }
    tombstones.extend(
        staged
            .tombstones
            .into_iter()
            .map(|(h, e, v)| (shard, h, e, v)),
    );
    for victim in staged.pointless {
        written.push(Written::new(table, shard, victim, None, true));
    }
}

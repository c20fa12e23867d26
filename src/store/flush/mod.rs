//! How do dirty rows reach parameter files?
//!
//! One writer at a time takes victims, copies them out under their shard's lock, writes one file
//! per data directory and repoints the index. Beside it long puts write files of rows that are not in memory.
//!
//! Invariants:
//! - Until the repoint a row being written stays in memory: a reader never sees an older copy.
//! - While a checkpoint's cut is not captured, only rows changed before the cut are written.
//! - A write that fails loses nothing: the rows are dirty again, the file is removed.
//! - Whoever waits for room is woken by each part of a file that is in its place. Whoever waits for the writer's role
//!   or room is woken whenever that is let go, which nobody does with a shard locked; who found nothing to write is not.

mod drain;
mod pick;
mod queues;
mod write;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::compact::{Compactor, PICK_FILES};
use super::core::{Core, Part, Signal, Stretch, Table, add, get};
use crate::error::{Error, Result};
use crate::in_use::{HeldBytes, InUse, OneOngoing, Ongoing};
use crate::ssd::poison::Watched;
use crate::stats::{Stats, Wait};
use crate::sync::atomic::{AtomicU64, AtomicUsize};
use crate::sync::{Mutex, MutexGuard, thread};
use crate::units::to_usize;
use pick::Picked;
use queues::{Queues, Taken};

/// How long the thread sleeps without being called.
const PAUSE: Duration = Duration::from_millis(200);
/// How long it stays away after an error, so that it does not spin.
const AFTER_ERROR: Duration = Duration::from_millis(500);

/// Buffers of the writer's queue where one file is written at a time, and the most bytes of one.
const WRITE_DEPTH: usize = 4;
const WRITE_BYTES_MAX: usize = 768 << 10;
/// Below, buffers for more files would take too many rows their slots.
const SMALL_CACHE_BYTES: u64 = 64 << 20;
/// Files that a checkpoint writes at the same time, and the buffers of each: together a huge page
/// (decision 0074). Measured (2 cores, ext4, where the requests that make a file longer wait for each
/// other): 2 files of 4 buffers 1.82 M rows/s, 4 of 2 2.11 M (512 B a row, median of 3). With twice
/// their bytes a store has 15 000 rows of 512 B fewer.
const WRITERS: usize = 4;
const WRITER_DEPTH: usize = 4;
const WRITER_BYTES_MAX: usize = 512 << 10;

/// Picks that are written without a pause while a call takes room as fast as it is made: then compactions
/// and whoever else wants the writer's role have their turn.
const FILL_PICKS: usize = 16;

/// The writer's role, held: nobody else writes rows that are in memory.
#[derive(Debug)]
pub struct WriterGuard<'a> {
    _role: Watched<'a, MutexGuard<'a, ()>>,
    /// Dropped after the role is let go.
    _teller: FreeTeller<'a>,
}

/// Tells those who wait for room that the writer's role was let go.
#[derive(Debug)]
struct FreeTeller<'a>(&'a Flusher);

impl Drop for FreeTeller<'_> {
    fn drop(&mut self) {
        self.0.tell_free();
    }
}

/// Writes dirty rows to parameter files.
#[derive(Debug)]
pub struct Flusher {
    core: Arc<Core>,
    compactor: Arc<Compactor>,
    /// The writer's role.
    writer: Mutex<()>,
    /// One for each file that is written at the same time.
    queues: Queues,
    /// Raised when a cache ran low: the writer thread looks.
    low: Signal,
    /// Threads that wait for room.
    waiting: AtomicUsize,
    /// How often the writer's role was let go.
    let_go: AtomicU64,
    /// Threads that wait for the role.
    queued: AtomicUsize,
    /// Calls that bring in rows as fast as there is room for them.
    fills: Ongoing,
    /// Memory of the writer's buffers.
    buffer_bytes: u64,
    /// Arrays of the files that are being written.
    in_use: InUse,
    flushes: AtomicU64,
    written_bytes: AtomicU64,
    /// Files of long puts, and their bytes.
    put_files: AtomicU64,
    put_bytes: AtomicU64,
}

impl Part for Flusher {
    fn wake(&self) {
        self.low.notify();
    }

    fn count(&self, stats: &mut Stats) {
        stats.flushes = get(&self.flushes) + get(&self.put_files);
        stats.written_bytes += get(&self.written_bytes) + get(&self.put_bytes);
        stats.write_buffer_bytes = self.buffer_bytes;
        stats.buffer_bytes += self.buffer_bytes;
        stats.flush_bytes = self.in_use.bytes();
    }
}

impl Flusher {
    /// With submission queues of its own.
    ///
    /// # Errors
    /// `Io` when one can't be made.
    pub fn new(core: &Arc<Core>, compactor: &Arc<Compactor>) -> Result<Flusher> {
        let (ssd, options) = (&core.ssd, &core.options);
        // More files than one keep the device busy while the first is put in its place.
        let small = options.cache_bytes < SMALL_CACHE_BYTES;
        let (writers, depth, most) = match options.inline || small {
            true => (1, WRITE_DEPTH, WRITE_BYTES_MAX),
            false => (WRITERS, WRITER_DEPTH, WRITER_BYTES_MAX),
        };
        let cache = to_usize(options.cache_bytes);
        let bytes = (cache / 64).clamp(16 << 10, most).next_multiple_of(4096);
        let queue = |_| {
            let queue = ssd.io.engine.queue(depth, bytes);
            queue.map_err(|e| Error::io("make a submission queue for", ssd.root.path(), e))
        };
        let queues = (0..writers).map(queue).collect::<Result<Vec<_>>>()?;
        Ok(Flusher {
            core: Arc::clone(core),
            compactor: Arc::clone(compactor),
            writer: Mutex::new(()),
            queues: Queues::new(queues),
            low: Signal::default(),
            waiting: AtomicUsize::new(0),
            let_go: AtomicU64::new(0),
            queued: AtomicUsize::new(0),
            fills: Ongoing::default(),
            buffer_bytes: (writers * depth * bytes) as u64,
            in_use: InUse::default(),
            flushes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            put_files: AtomicU64::new(0),
            put_bytes: AtomicU64::new(0),
        })
    }

    /// Memory of its buffers.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes
    }

    /// Locks the writer's role.
    pub fn lock_writer(&self) -> WriterGuard<'_> {
        self.queued.fetch_add(1, Ordering::Relaxed);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.queued.fetch_sub(1, Ordering::Relaxed);
        self.guard(writer)
    }

    /// Takes the writer's role if it is free.
    fn try_lock_writer(&self) -> Option<WriterGuard<'_>> {
        let writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.guard(writer))
    }

    fn guard<'a>(&'a self, writer: MutexGuard<'a, ()>) -> WriterGuard<'a> {
        WriterGuard {
            _role: self.core.ssd.poison.watch(writer),
            _teller: FreeTeller(self),
        }
    }

    /// The writer's role was let go: tells those who wait for room.
    fn tell_free(&self) {
        self.let_go.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            for cell in &self.core.shards {
                // Whoever has seen the role taken waits by now.
                drop(cell.lock());
                cell.notify_of_others();
            }
        }
    }

    /// The writer's role, unless there is room before it is to be had: each part of a file makes some, and
    /// nobody waits for the others.
    fn writer_or_room(&self, s: usize, table: usize) -> Option<WriterGuard<'_>> {
        let before = self.let_go.load(Ordering::SeqCst);
        let cell = &self.core.shards[s];
        let mut shard = cell.lock();
        loop {
            // Rows leave for one that is wanted: it may take more than one of them.
            if shard.reclaim(table, 1) > 0 {
                return None;
            }
            if let Some(writer) = self.try_lock_writer() {
                return Some(writer);
            }
            if self.let_go.load(Ordering::SeqCst) != before {
                break;
            }
            cell.wait(&mut shard);
        }
        drop(shard);
        // That writer made none here, and another has the role: whoever is in the queue for it ends a fill's flush
        // after the pick at hand.
        let writer = self.lock_writer();
        let has_room = cell.lock().reclaim(table, 1) > 0;
        (!has_room).then_some(writer)
    }

    /// A cache may have run low: the writer thread looks.
    pub fn look(&self) {
        self.low.notify();
    }

    /// Somebody brings in rows as fast as there is room for them, until what this gives is dropped: room is made
    /// ahead of him.
    pub fn begin_fill(&self) -> OneOngoing<'_> {
        self.fills.begin()
    }

    /// Files that long puts may be at work on at the same time; of each data directory one is written.
    pub fn put_writers(&self) -> usize {
        self.queues.for_puts()
    }

    /// A submission queue for a file of a long put of this table.
    pub fn queue_for_put(&self, table: &Table) -> Taken<'_> {
        let _flush = (!self.queues.has_for_put()).then(|| table.waits(Wait::Flush));
        self.queues.take_for_put()
    }

    /// Counts the arrays of a file that is being written.
    pub fn hold_bytes(&self) -> HeldBytes<'_> {
        self.in_use.begin()
    }

    /// Waits while the files take more than their bound, and compaction can help.
    pub fn wait_for_space<'t>(&self, table: &'t Table, stretch: &mut Stretch<'t>) {
        while self.compactor.is_over_space() {
            table.waits_on(stretch, Wait::Compaction, Instant::now());
            self.compactor.wait_a_little();
        }
    }

    /// A file of a long put is in its place.
    pub fn file_was_put(&self, table: &Table, bytes: u64, rows: u64) {
        add(&self.put_files, 1);
        add(&self.put_bytes, bytes);
        table.note_flushed(rows);
        self.after_flush(rows);
    }

    /// Whether somebody waits for room.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// What its thread does until the store is closed.
    pub fn serve(&self) {
        // That writes are refused is said once: it stays so until the store is opened again.
        let mut refusal_said = false;
        loop {
            // Before the question: a close that notifies in between is seen.
            let seen = self.low.count();
            if self.core.is_closed() {
                return;
            }
            match self.flush_low() {
                Ok(0) => self.low.wait(seen, PAUSE),
                Ok(_) => {}
                Err(error) => {
                    let refused = matches!(error, Error::Poisoned { .. });
                    if !(refused && refusal_said) {
                        tracing::warn!(%error, "a flush failed; the rows stay in memory");
                    }
                    refusal_said |= refused;
                    self.low.wait(self.low.count(), AFTER_ERROR);
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// Sees to it that one more slot of a table in a shard can be had, or waits a moment for one.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned` when dirty rows can't be written.
    pub fn make_room<'t>(
        &self,
        s: usize,
        table: &'t Table,
        stretch: &mut Stretch<'t>,
    ) -> Result<()> {
        self.core.check_open()?;
        let id = table.id.0 as usize;
        self.wait_for_space(table, stretch);
        let since = Instant::now();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let writer = self.writer_or_room(s, id);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let Some(writer) = writer else {
            // Somebody else's flush has made it; or the end of a cut, which it waited for anyway.
            if !table.is_waited_for(stretch, Wait::Room) {
                table.waits_on(stretch, Wait::Flush, since);
            }
            return Ok(());
        };
        self.core.ssd.check_writable()?;
        // What may not be written now may not until something in this shard is another: that the role is let go
        // changes nothing, and all who find nothing to write would wake each other by it.
        let cell = &self.core.shards[s];
        let seen = cell.changes();
        let mut picked = self.pick_cold(self.queues.count());
        if picked.is_empty() {
            picked = self.pick_anything(s);
        }
        if !picked.is_empty() {
            table.waits_on(stretch, Wait::Flush, since);
        }
        let written = self.write_files(&writer, picked)?;
        drop(writer);
        if written > 0 {
            stretch.end();
            self.after_flush(written);
            return Ok(());
        }
        table.waits_on(stretch, Wait::Room, since);
        // Rows changed after a running checkpoint's cut wait for its capture.
        let mut shard = cell.lock();
        if shard.reclaim(id, 1) == 0 {
            cell.wait_for_change(&mut shard, seen);
        }
        Ok(())
    }

    /// Writes out cold rows of every cache that runs low; returns rows written.
    ///
    /// # Errors
    /// As [`Flusher::make_room`].
    pub fn flush_low(&self) -> Result<u64> {
        if !self.is_low() {
            return Ok(0);
        }
        self.compactor.wait_for_space();
        let began_filled = self.fills.is();
        let writer = self.lock_writer();
        self.core.ssd.check_writable()?;
        let queues = self.queues.count();
        let (mut picks, mut written_before) = (0, 0);
        let mut next = || {
            // While a call takes room as fast as it is made, a writer that is done begins with the next file and
            // does not wait for the other; not if it has written nothing: the rows it was given are the other's.
            let written = get(&self.written_bytes);
            let wrote = picks < 2 || written > written_before;
            written_before = written;
            if picks > 0 && self.fills.is() {
                // Before compaction is asked whether there are too many files.
                self.compactor.files_were_added();
            }
            let more = picks == 0 || wrote && self.goes_on(began_filled, picks);
            picks += 1;
            let picked = more.then(|| self.pick_cold(queues));
            picked.filter(|picked| !picked.is_empty())
        };
        let threads = if began_filled { PICK_FILES } else { 1 };
        let written = self.write_picks(&writer, threads, &mut next)?;
        drop(writer);
        self.after_flush(written);
        Ok(written)
    }

    /// Whether a fill's flush goes on after so many picks. One that began before the fill did ends: the next one has
    /// more threads.
    fn goes_on(&self, began_filled: bool, picks: usize) -> bool {
        picks < FILL_PICKS
            && began_filled
            && self.fills.is()
            && self.queued.load(Ordering::Relaxed) == 0
            && self.is_low()
            && !self.compactor.is_over_space()
    }

    /// Writes out every dirty row that may be written, pinned or not.
    ///
    /// # Errors
    /// As [`Flusher::make_room`].
    pub fn flush_all(&self) -> Result<u64> {
        let hold = |held| {
            for cell in &self.core.shards {
                cell.lock().cache.hold_numbers_once_more(held);
            }
        };
        hold(true);
        let written = self.flush_picked(|| self.pick_frozen(&mut Vec::new(), None));
        hold(false);
        written
    }

    /// Writes what is picked, with the writer's role, until nothing is.
    fn flush_picked(&self, mut pick: impl FnMut() -> Option<Vec<Picked>>) -> Result<u64> {
        let mut total = 0;
        loop {
            self.compactor.wait_for_space();
            let writer = self.lock_writer();
            self.core.ssd.check_writable()?;
            let Some(picked) = pick() else {
                return Ok(total);
            };
            let written = self.write_files(&writer, picked)?;
            drop(writer);
            self.after_flush(written);
            total += written;
        }
    }

    fn after_flush(&self, written: u64) {
        if written > 0 {
            self.compactor.rows_were_flushed();
        }
    }
}

#[cfg(test)]
mod tests;

//! Who does the work of a batch?
//!
//! A pool is a fixed number of threads, the caller one of them, and has as many submission queues. Shards are taken one by one
//! by those that have a processor (`team`); where rows are read, a thread takes a share of them: s, s + threads, ... Share s is
//! read with queue s, or with another where a second batch uses it.
//!
//! Invariants (they exclude deadlock):
//! - Work may lock shards; so no caller waits for it while it has one locked.
//! - No work waits for the work of another batch.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use super::team::Team;
use crate::error::{Error, Result};
use crate::io::{Io, Queue};
use crate::ssd::poison::Poison;
use crate::ssd::reader::RowBatch;
use crate::sync::Mutex;

/// Memory of the rows that a thread keeps, at most: those of long rows are given back after each read.
const KEPT_BYTES_MAX: u64 = 1 << 20;

/// Batches with fewer keys are served by the calling thread: waking others costs more. Batches of schedules are small.
const INLINE_KEYS: usize = if cfg!(hps_shuttle) { 2 } else { 256 };

/// The shards that are served together.
pub type Share = std::iter::StepBy<std::ops::Range<usize>>;

/// What a thread reads rows with.
#[derive(Debug)]
pub struct ReadLane {
    /// Its submission queue.
    pub queue: Box<dyn Queue>,
    /// The rows of one step after the other: an array for each read would be asked for and given back two thousand
    /// times a second.
    pub rows: RowBatch,
}

/// Threads with their queues.
#[derive(Debug)]
pub struct WorkerPool {
    /// All but the caller's.
    team: Team,
    lanes: Vec<Mutex<ReadLane>>,
    bytes: u64,
    /// Memory of the rows of all lanes.
    row_bytes: AtomicU64,
    /// Where a thread that panics says so.
    poison: Arc<Poison>,
    /// Batches that found all queues in use.
    turns: AtomicUsize,
}

impl WorkerPool {
    /// Makes a pool of `threads` threads, the caller's included, with queues of `depth` buffers
    /// of `buffer_bytes` each.
    ///
    /// # Errors
    /// `Io` when a queue or a thread can't be made.
    pub fn new(
        (io, path): (&Io, &Path),
        name: &'static str,
        threads: usize,
        depth: usize,
        buffer_bytes: usize,
        poison: &Arc<Poison>,
    ) -> Result<WorkerPool> {
        let mut lanes = Vec::new();
        for _ in 0..threads {
            let queue = io
                .engine
                .queue(depth, buffer_bytes)
                .map_err(|e| Error::io("make a submission queue for", path, e))?;
            let rows = RowBatch::default();
            lanes.push(Mutex::new(ReadLane { queue, rows }));
        }
        let team = Team::new(&format!("hps-{name}"), threads - 1);
        let team = team.map_err(|e| Error::thread(path, e))?;
        let bytes = (threads * depth * buffer_bytes) as u64;
        Ok(WorkerPool {
            team,
            lanes,
            bytes,
            row_bytes: AtomicU64::new(0),
            poison: Arc::clone(poison),
            turns: AtomicUsize::new(0),
        })
    }

    /// Threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.lanes.len()
    }

    /// Threads that serve a batch of so many keys, the caller's included.
    #[must_use]
    pub fn helpers(&self, keys: usize) -> usize {
        match keys >= INLINE_KEYS {
            true => self.threads(),
            false => 1,
        }
    }

    /// Memory of the queues' buffers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Memory of the rows that its threads read.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes.load(Ordering::Relaxed)
    }

    /// Lets whoever serves a share read with its queue and array, or, where another batch reads with these, with those of another
    /// share that are free; where none are, it waits for each in turn.
    pub fn read<T>(&self, share: usize, read: impl FnOnce(&mut ReadLane) -> T) -> T {
        let (before, from) = self.lanes.split_at(share);
        let free = from
            .iter()
            .chain(before)
            .find_map(|lane| lane.try_lock().ok());
        let mut lane = free.unwrap_or_else(|| {
            // Small batches are all one share: they do not all wait for one queue.
            let turn = self.turns.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
            let next = self.lanes[turn].lock();
            next.unwrap_or_else(PoisonError::into_inner)
        });
        let before = lane.rows.bytes();
        let result = read(&mut lane);
        if lane.rows.bytes() > KEPT_BYTES_MAX {
            lane.rows = RowBatch::default();
        }
        let after = lane.rows.bytes();
        if after != before {
            // Two's complement: less is added as well.
            self.row_bytes
                .fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        }
        result
    }

    /// Runs `work` once per shard, in parallel for a large batch; results by shard.
    pub fn shards<T: Send>(
        &self,
        shards: usize,
        keys: usize,
        work: impl Fn(usize) -> T + Sync,
    ) -> Vec<T> {
        let work = |shard: usize| {
            let _alarm = self.poison.alarm();
            work(shard)
        };
        if self.helpers(keys).min(shards) == 1 {
            return (0..shards).map(work).collect();
        }
        let done: Vec<Mutex<Option<T>>> = (0..shards).map(|_| Mutex::default()).collect();
        self.team.run(shards, &|shard| {
            let result = work(shard);
            *done[shard].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        });
        let done = done.into_iter();
        done.filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    /// Runs `work` once for all shards, or, for a large batch, in parallel for as many shares of them as there are threads;
    /// results by share.
    ///
    /// `work` gets (shards, share). A thread may do several shares.
    pub fn shares<T: Send>(
        &self,
        shards: usize,
        keys: usize,
        work: impl Fn(Share, usize) -> T + Sync,
    ) -> Vec<T> {
        let shares = self.helpers(keys).min(shards);
        self.shards(shares, keys, |share| {
            work((share..shards).step_by(shares), share)
        })
    }
}

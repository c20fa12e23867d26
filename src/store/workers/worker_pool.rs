//! Who does the work of a batch?
//!
//! A pool is a fixed number of threads, and has as many submission queues: thread t reads with queue t, or with another
//! where a second batch uses it. Thread t serves shards t, t + threads, ...; the caller is thread 0, and waits for the others.
//!
//! Invariants (they exclude deadlock):
//! - Work may lock shards; so no caller waits for it while it has one locked.
//! - No work waits for the work of another batch.

use std::error::Error as _;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::io::{Io, Queue};
use crate::ssd::poison::Poison;
use crate::ssd::reader::RowBatch;
use crate::sync::Mutex;

/// Memory of the rows that a thread keeps, at most: those of long rows are given back after each read.
const KEPT_BYTES_MAX: u64 = 1 << 20;

/// Batches with fewer keys are served by the calling thread: waking others costs more.
const INLINE_KEYS: usize = 256;

/// Whether the caller is itself a worker of some pool: while it waited for another pool it would
/// take up other work of its own, which may want the locks that the caller holds.
fn in_a_pool() -> bool {
    rayon::current_thread_index().is_some()
}

/// How long a thread looks again before it sleeps: waking it takes as long.
const LINGER: Duration = Duration::from_micros(50);

/// Looks again and again, for a while, whether something has happened.
fn linger(happened: impl Fn() -> bool) {
    let since = Instant::now();
    while !happened() && since.elapsed() < LINGER {
        for _ in 0..64 {
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

/// The shards of a thread.
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
    pool: Option<rayon::ThreadPool>,
    lanes: Vec<Mutex<ReadLane>>,
    bytes: u64,
    /// Memory of the rows of all lanes.
    row_bytes: AtomicU64,
    /// Where a thread that panics says so.
    poison: Arc<Poison>,
    /// Batches that found all queues in use.
    turns: AtomicUsize,
    /// Batches that were served by several threads.
    calls: Arc<AtomicU64>,
}

/// What the system said to the library that starts a pool's threads.
fn no_pool(path: &Path, error: &rayon::ThreadPoolBuildError) -> Error {
    let system = error.source().and_then(|e| e.downcast_ref::<io::Error>());
    let code = system.and_then(io::Error::raw_os_error);
    let source = match code {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error.to_string()),
    };
    Error::thread(path, source)
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
        let pool = if threads > 1 {
            let built = rayon::ThreadPoolBuilder::new()
                .num_threads(threads - 1)
                .thread_name(move |i| format!("hps-{name}-{}", i + 1))
                .build();
            Some(built.map_err(|e| no_pool(path, &e))?)
        } else {
            None
        };
        let bytes = (threads * depth * buffer_bytes) as u64;
        Ok(WorkerPool {
            pool,
            lanes,
            bytes,
            row_bytes: AtomicU64::new(0),
            poison: Arc::clone(poison),
            turns: AtomicUsize::new(0),
            calls: Arc::default(),
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
        match keys >= INLINE_KEYS && !in_a_pool() {
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

    /// Lets a thread read with its own queue and array, or, where another batch reads with these, with another thread's that
    /// are free; where none are, it waits for each in turn.
    pub fn read<T>(&self, thread: usize, read: impl FnOnce(&mut ReadLane) -> T) -> T {
        let (before, from) = self.lanes.split_at(thread);
        let free = from
            .iter()
            .chain(before)
            .find_map(|lane| lane.try_lock().ok());
        let mut lane = free.unwrap_or_else(|| {
            // Small batches are all served by thread 0: they do not all wait for one queue.
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
    ///
    /// `work` gets (shard, thread).
    pub fn shards<T: Send>(
        &self,
        shards: usize,
        keys: usize,
        work: impl Fn(usize, usize) -> T + Sync,
    ) -> Vec<T> {
        let serve = |own: Share, thread| -> Vec<T> { own.map(|s| work(s, thread)).collect() };
        let by_thread = self.shares(shards, keys, serve);
        let threads = by_thread.len();
        let mut by_thread: Vec<_> = by_thread.into_iter().map(Vec::into_iter).collect();
        (0..shards)
            .filter_map(|s| by_thread[s % threads].next())
            .collect()
    }

    /// Runs `work` once for all shards, or, for a large batch, in parallel once for each thread's; results by thread.
    ///
    /// `work` gets (shards, thread).
    pub fn shares<T: Send>(
        &self,
        shards: usize,
        keys: usize,
        work: impl Fn(Share, usize) -> T + Sync,
    ) -> Vec<T> {
        let threads = self.helpers(keys).min(shards);
        let serve = |thread: usize, threads: usize| {
            let _alarm = self.poison.alarm();
            work((thread..shards).step_by(threads), thread)
        };
        let pool = match &self.pool {
            Some(pool) if threads > 1 => pool,
            _ => return vec![serve(0, 1)],
        };
        let mut done: Vec<Option<T>> = (0..threads).map(|_| None).collect();
        let (own, others) = done.split_at_mut(1);
        let left = AtomicUsize::new(others.len());
        let call = self.calls.fetch_add(1, Ordering::AcqRel) + 1;
        pool.in_place_scope(|scope| {
            for (i, done) in others.iter_mut().enumerate() {
                let (serve, left) = (&serve, &left);
                let calls = &self.calls;
                scope.spawn(move |_| {
                    *done = Some(serve(i + 1, threads));
                    let calls = Arc::clone(calls);
                    rayon::spawn(move || linger(|| calls.load(Ordering::Acquire) != call));
                    // Last: the caller sleeps where there is more to do when it has seen this.
                    left.fetch_sub(1, Ordering::AcqRel);
                });
            }
            own[0] = Some(serve(0, threads));
            linger(|| left.load(Ordering::Acquire) == 0);
        });
        done.into_iter().flatten().collect()
    }
}

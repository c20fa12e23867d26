//! Who does the work of a batch?
//!
//! A lane is a fixed set of threads, each with a submission queue of its own. Thread t serves
//! shards t, t + threads, ...; the caller waits for all.
//!
//! Invariants (they exclude deadlock):
//! - Work per shard may lock shards; so no caller waits for it while it has one locked.
//! - Work on pieces of an output locks nothing and has threads of its own; so a caller may wait
//!   for it with shards locked.
//! - No work waits for the work of another batch.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::io::{Disk, Queue};

/// Batches with fewer keys are served by the calling thread: waking others costs more.
const INLINE_KEYS: usize = 256;

/// Whether the caller is itself a worker of some pool: while it waited for another pool it would
/// take up other work of its own, which may want the locks that the caller holds.
fn in_a_pool() -> bool {
    rayon::current_thread_index().is_some()
}

/// Threads with their queues.
#[derive(Debug)]
pub struct Lane {
    pool: Option<rayon::ThreadPool>,
    gather: Option<rayon::ThreadPool>,
    queues: Vec<Mutex<Box<dyn Queue>>>,
    bytes: u64,
}

impl Lane {
    /// Starts `threads` threads with queues of `depth` buffers of `buffer_bytes` each, and as many
    /// for gathers if it serves any.
    ///
    /// # Errors
    /// `Io` when a queue or a thread can't be made.
    pub fn new(
        disk: &dyn Disk,
        name: &'static str,
        gathers: bool,
        threads: usize,
        depth: usize,
        buffer_bytes: usize,
    ) -> Result<Lane> {
        let path = std::path::Path::new("(queue)");
        let mut queues = Vec::new();
        for _ in 0..threads {
            let queue = disk
                .queue(depth, buffer_bytes)
                .map_err(|e| Error::io("make a submission queue", path, e))?;
            queues.push(Mutex::new(queue));
        }
        let start = |role: &'static str| {
            if threads == 1 {
                return Ok(None);
            }
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(move |i| format!("hps-{name}-{role}-{i}"))
                .build()
                .map(Some)
                .map_err(|e| Error::io("start threads", path, std::io::Error::other(e)))
        };
        let bytes = (threads * depth * buffer_bytes) as u64;
        Ok(Lane {
            pool: start("shard")?,
            gather: if gathers { start("gather")? } else { None },
            queues,
            bytes,
        })
    }

    /// Threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.queues.len()
    }

    /// Memory of the queues' buffers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The queue of a thread.
    pub fn queue(&self, thread: usize) -> MutexGuard<'_, Box<dyn Queue>> {
        self.queues[thread]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        let threads = self.threads();
        let serve = |thread: usize| -> Vec<(usize, T)> {
            (thread..shards)
                .step_by(threads)
                .map(|s| (s, work(s, thread)))
                .collect()
        };
        let mut all: Vec<(usize, T)> = match &self.pool {
            Some(pool) if keys >= INLINE_KEYS && !in_a_pool() => pool
                .broadcast(|c| serve(c.index()))
                .into_iter()
                .flatten()
                .collect(),
            _ => (0..threads).flat_map(serve).collect(),
        };
        all.sort_by_key(|(s, _)| *s);
        all.into_iter().map(|(_, t)| t).collect()
    }

    /// Runs `work` on disjoint pieces of `out`, `chunk` elements each (the last may be shorter).
    /// `work` gets (index of the piece, piece).
    pub fn chunks<T: Send>(
        &self,
        out: &mut [T],
        chunk: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        use rayon::prelude::*;
        match &self.gather {
            Some(pool) if out.len() > chunk && !in_a_pool() => {
                pool.install(|| {
                    out.par_chunks_mut(chunk)
                        .enumerate()
                        .for_each(|(i, c)| work(i, c));
                });
            }
            _ => out
                .chunks_mut(chunk)
                .enumerate()
                .for_each(|(i, c)| work(i, c)),
        }
    }
}

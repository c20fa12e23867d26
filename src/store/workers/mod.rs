//! Who does the work of batches?
//!
//! Callers have one pool of worker threads, prefetches two; all share the arrays that batches need.

mod team;
mod vec_pool;
mod worker_pool;

use std::path::Path;
use std::sync::{Arc, PoisonError};

pub use vec_pool::{BatchArrays, VecPool, split_out};
pub use worker_pool::{ReadLane, Share, WorkerPool};

use super::core::{Part, Table};
use crate::error::{Error, Result};
use crate::format::param_file::record_stride;
use crate::options::RuntimeOptions;
use crate::row::all_finite;
use crate::ssd::Ssd;
use crate::stats::Stats;
use crate::sync::RwLock;
use crate::units::to_usize;

/// Prefetches that are read at the same time: while the last rows of one arrive, the next keeps
/// the device busy.
pub const PREFETCH_POOLS: usize = 2;

/// Bytes of a read buffer, unless a row needs more. A batch's rows are seldom closer to each other, and what buffers
/// take rows do not have.
const READ_BYTES_MAX: usize = 16 << 10;

/// The worker threads of a store.
#[derive(Debug)]
pub struct WorkerPools {
    /// Serves callers.
    pub foreground: Arc<WorkerPool>,
    /// Serve prefetches.
    pub prefetch: [Arc<WorkerPool>; PREFETCH_POOLS],
    shape: QueueShape,
}

/// The buffers of each queue, and the bytes of each buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueShape {
    depth: usize,
    buffer_bytes: usize,
}

impl QueueShape {
    /// Buffers hold the longest record of the tables.
    fn of(options: &RuntimeOptions, tables: &[Arc<Table>]) -> QueueShape {
        let longest = tables
            .iter()
            .filter(|t| !t.is_dropped())
            .map(|t| record_stride(t.descriptor.row_bytes()))
            .max();
        // A store begins with what small rows need: the first table seldom changes the pools.
        let needed = longest.unwrap_or(0).max(512) + 2 * 4096;
        let cache = to_usize(options.cache_bytes);
        // All read buffers together take about a sixteenth of the cache.
        let queues = QueueShape::queues(options);
        let share = cache / (16 * queues * options.io_depth);
        let bytes = share
            .clamp(4096, READ_BYTES_MAX)
            .max(needed)
            .next_multiple_of(4096);
        // Never more than a quarter: rather fewer requests in flight.
        let mut depth = options.io_depth;
        while depth > 4 && queues * depth * bytes > cache / 4 {
            depth /= 2;
        }
        QueueShape {
            depth,
            buffer_bytes: bytes,
        }
    }

    /// Queues of a store, over all pools.
    const fn queues(options: &RuntimeOptions) -> usize {
        (1 + PREFETCH_POOLS) * options.threads
    }

    /// Memory of the buffers of all queues.
    fn bytes(self, options: &RuntimeOptions) -> u64 {
        (QueueShape::queues(options) * self.depth * self.buffer_bytes) as u64
    }
}

impl WorkerPools {
    fn new(ssd: &Ssd, options: &RuntimeOptions, shape: QueueShape) -> Result<WorkerPools> {
        let io = (&ssd.io, ssd.root.path());
        let pool = |name| {
            let (depth, bytes) = (shape.depth, shape.buffer_bytes);
            WorkerPool::new(io, name, options.threads, depth, bytes, &ssd.poison).map(Arc::new)
        };
        Ok(WorkerPools {
            foreground: pool("pull")?,
            prefetch: [pool("prefetch-a")?, pool("prefetch-b")?],
            shape,
        })
    }

    fn bytes(&self) -> u64 {
        let prefetch: u64 = self.prefetch.iter().map(|pool| pool.bytes()).sum();
        self.foreground.bytes() + prefetch
    }

    fn row_bytes(&self) -> u64 {
        let prefetch: u64 = self.prefetch.iter().map(|pool| pool.row_bytes()).sum();
        self.foreground.row_bytes() + prefetch
    }
}

/// Worker threads, and arrays for what they do.
#[derive(Debug)]
pub struct Workers {
    pools: RwLock<Arc<WorkerPools>>,
    /// Arrays of batches that were served.
    pub arrays: BatchArrays,
}

impl Workers {
    /// With queues whose buffers hold the longest record of the tables.
    ///
    /// # Errors
    /// `Io` when queues or threads can't be made.
    pub fn new(ssd: &Ssd, options: &RuntimeOptions, tables: &[Arc<Table>]) -> Result<Workers> {
        let pools = WorkerPools::new(ssd, options, QueueShape::of(options, tables))?;
        Ok(Workers {
            pools: RwLock::new(Arc::new(pools)),
            arrays: BatchArrays::default(),
        })
    }

    /// Makes new pools where the buffers are too small for these tables.
    ///
    /// # Errors
    /// As [`Workers::new`]; nothing changed.
    pub fn fit(&self, ssd: &Ssd, options: &RuntimeOptions, tables: &[Arc<Table>]) -> Result<()> {
        let shape = QueueShape::of(options, tables);
        if shape != self.pools().shape {
            let pools = Arc::new(WorkerPools::new(ssd, options, shape)?);
            *self.pools.write().unwrap_or_else(PoisonError::into_inner) = pools;
        }
        Ok(())
    }

    /// All pools.
    pub fn pools(&self) -> Arc<WorkerPools> {
        Arc::clone(&self.pools.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The pool of callers.
    pub fn foreground(&self) -> Arc<WorkerPool> {
        Arc::clone(&self.pools().foreground)
    }

    /// Whether all values of all parts are finite; each thread of callers looks at a piece of each part.
    pub fn are_finite(&self, parts: &[&[f32]], keys: usize) -> bool {
        if parts.is_empty() {
            return true;
        }
        let pool = self.foreground();
        let pieces = pool.threads();
        let finite = pool.shards(pieces, keys, |i| {
            parts.iter().all(|values| {
                let piece = values.len().div_ceil(pieces);
                let rest = values.get(i * piece..).unwrap_or_default();
                all_finite(&rest[..piece.min(rest.len())])
            })
        });
        finite.into_iter().all(|ok| ok)
    }

    /// Memory of all queues' buffers.
    pub fn bytes(&self) -> u64 {
        self.pools().bytes()
    }

    /// What [`Workers::bytes`] is in a store with these options and tables.
    pub fn bytes_for(options: &RuntimeOptions, tables: &[Arc<Table>]) -> u64 {
        QueueShape::of(options, tables).bytes(options)
    }
}

impl Part for Workers {
    fn wake(&self) {}

    fn count(&self, stats: &mut Stats) {
        stats.read_buffer_bytes = self.bytes();
        stats.buffer_bytes += stats.read_buffer_bytes;
        stats.array_bytes = self.arrays.bytes() + self.pools().row_bytes();
    }
}

/// Threads of a store with these options and so many data directories (0: the one that it has
/// unless told), the callers' own not counted.
fn threads_of(options: &RuntimeOptions, directories: usize) -> usize {
    let pools = (1 + PREFETCH_POOLS) * (options.threads - 1);
    // Passes, the writer, a checkpoint and a warm restart.
    let others = PREFETCH_POOLS + 3 + directories.max(1) + usize::from(options.warm);
    pools + if options.inline { 0 } else { others }
}

/// Starts as many threads as a store with these options and data directories has, and lets them end: what has to be
/// undone when threads can't be had is not begun.
///
/// # Errors
/// `Io` when the system refuses one.
pub fn rehearse(directory: &Path, options: &RuntimeOptions, directories: usize) -> Result<()> {
    let threads = threads_of(options, directories);
    let all_are_there = std::sync::Mutex::new(());
    std::thread::scope(|scope| {
        let until = all_are_there.lock();
        for _ in 0..threads {
            let thread = std::thread::Builder::new().name(String::from("hps-trial"));
            let started = thread.spawn_scoped(scope, || drop(all_are_there.lock()));
            started.map_err(|e| Error::thread(directory, e))?;
        }
        drop(until);
        Ok(())
    })
}

#[cfg(test)]
mod tests;

//! What is a cache made from, and does a row fit?

use super::Cache;
use crate::error::{ArgumentError, Error, Result};
use crate::mem::table::TableConfig;
use crate::units::{saturate, to_usize};

/// Share of the memory in a flush step where it is not given.
const FLUSH_STEP_SHARE: u64 = 16;

/// What a [`Cache`] is made from.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// All memory of the cache: rows, states, hash table and queues.
    pub bytes: u64,
    /// What is taken per flush. At most half of the memory. The low-water mark, see
    /// [`Cache::below_low_water`], is a share of it.
    pub flush_step: FlushStep,
    /// The least and the greatest hash of the shard.
    pub range: (u64, u64),
}

/// What is taken per flush: rows, and memory of rows, whichever is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushStep {
    /// Rows.
    pub rows: usize,
    /// Memory that they take, with what is kept beside them.
    pub bytes: u64,
}

impl Default for FlushStep {
    /// A sixteenth of the memory.
    fn default() -> FlushStep {
        FlushStep {
            rows: usize::MAX,
            bytes: u64::MAX,
        }
    }
}

impl FlushStep {
    /// What each of so many shards gives to a flush: all together a file. With half a file 0.3 % fewer rows are missing at
    /// zipf 0.99 and 1 GiB, but there are more files than allowed, and merging them makes 1.7 bytes written of one.
    #[must_use]
    pub fn of_files(file_bytes: u64, shards: u64) -> FlushStep {
        FlushStep {
            bytes: (file_bytes / shards).max(1),
            ..FlushStep::default()
        }
    }

    /// So many of them at once.
    #[must_use]
    pub fn times(self, steps: usize) -> FlushStep {
        FlushStep {
            rows: self.rows.saturating_mul(steps),
            bytes: self.bytes.saturating_mul(steps as u64),
        }
    }

    /// What it is in a cache of so many bytes.
    pub(super) fn within(self, bytes: u64) -> FlushStep {
        let share = match self == FlushStep::default() {
            true => bytes / FLUSH_STEP_SHARE,
            false => bytes / 2,
        };
        FlushStep {
            rows: self.rows.max(1),
            bytes: self.bytes.min(share).max(1),
        }
    }
}

/// What can't be had is said of the option.
pub(super) fn no_memory(bytes: u64) -> Error {
    Error::InvalidArgument(ArgumentError::Option {
        name: "cache_bytes",
        value: format!("{bytes} bytes in one shard"),
        why: String::from("the system does not give so much memory"),
    })
}

/// Fails where a cache of so many bytes has no room for a row of each of these sizes at once.
///
/// # Errors
/// `InvalidArgument` naming the bytes needed.
pub fn check_rows_fit(bytes: u64, row_f32s: &[usize]) -> Result<()> {
    let mut sizes = row_f32s.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let mut needed = bytes_needed(bytes, &sizes)?;
    let Some(largest) = sizes.last().filter(|_| needed > bytes) else {
        return Ok(());
    };
    // More memory has more beside it.
    while let more @ 1.. = bytes_needed(needed, &sizes)?.saturating_sub(needed) {
        needed += more;
    }
    let why = match sizes.len() {
        1 => format!("one row of {largest} f32s needs {needed} bytes"),
        n => format!("one row of each of {n} sizes, up to {largest} f32s, needs {needed} bytes"),
    };
    Err(Error::InvalidArgument(ArgumentError::Option {
        name: "cache_bytes",
        value: format!("{bytes} bytes in one shard"),
        why,
    }))
}

/// What a row of each of these sizes takes of so many bytes.
fn bytes_needed(bytes: u64, sizes: &[usize]) -> Result<u64> {
    let mut cache = Cache::new(&CacheConfig {
        bytes,
        flush_step: FlushStep::default(),
        range: (0, u64::MAX),
    })?;
    for row_f32s in sizes {
        cache.add_table(&TableConfig::of_rows(*row_f32s))?;
    }
    Ok(cache.cost_of(&vec![1; sizes.len()]))
}

impl Cache {
    /// Asks for the addresses of all that is kept beside rows, for as many as fit.
    pub(super) fn reserve_memory(&mut self) -> Result<()> {
        let rows = self.rows_max();
        let step = self.step_rows(rows);
        let (numbers, queues) = self.policies.queued(rows, step);
        let asked = self
            .rows
            .states
            .reserve(rows)
            .and_then(|()| self.words.reserve(rows))
            .and_then(|()| self.rows.pool.reserve(numbers, queues));
        asked.map_err(|_| no_memory(self.arena.bytes_max()))
    }

    /// Rows that fit, if all are of the smallest table's size.
    pub(super) fn rows_max(&self) -> usize {
        let tables = self.rows.tables.iter().filter(|t| !t.is_dropped);
        tables
            .map(|t| self.arena.capacity(t.class))
            .max()
            .unwrap_or(0)
    }

    /// Rows that would fit, if all were of the smallest table's size and nothing but what comes with each row
    /// had to be kept beside them.
    pub(super) fn rows_uncharged(&self) -> usize {
        let tables = self.rows.tables.iter().filter(|t| !t.is_dropped);
        let rows = tables.map(|t| {
            let spans = self.arena.bytes_max() / self.arena.cost(t.class);
            to_usize(spans) * self.arena.rows_per_span(t.class)
        });
        rows.max().unwrap_or(0)
    }

    /// Rows of a flush, at most, where so many fit.
    pub(super) fn step_rows(&self, rows: usize) -> usize {
        let step = self.flush_step();
        let bytes = self.arena.bytes_max().max(1);
        let share = u128::from(step.bytes) * rows as u128 / u128::from(bytes);
        step.rows.min(to_usize(saturate(share))).min(rows)
    }
}

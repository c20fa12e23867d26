//! How many slots fit into the memory of a cache?

use super::super::policy::AnyPolicy;
use super::super::queues::Pool;
use super::super::row_state::States;
use super::super::slab::Slab;
use super::super::words::Words;
use super::{NAMED_ROWS, TableCache};
use crate::error::{ArgumentError, Error, Result};
use crate::options::PolicyKind;
use crate::units::{Slot, to_usize};

/// Slots are numbered by u32 with a few numbers reserved.
const CAPACITY_MAX: usize = 1 << 31;

/// Share of the rows in a flush step where it is not given.
const FLUSH_STEP_SHARE: usize = 16;

/// What a [`TableCache`] is made from.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// f32-sized words of a row: 1 or more.
    pub row_f32s: usize,
    /// All memory of the cache: slab, states, hash table and queues.
    pub bytes: u64,
    /// Which rows leave first.
    pub policy: PolicyKind,
    /// Rows taken per flush; 0: a sixteenth of the rows. At most half of them. The low-water mark,
    /// see [`TableCache::below_low_water`], is a share of it.
    pub flush_step_rows: usize,
    /// The least and the greatest hash of the shard.
    pub range: (u64, u64),
}

/// Rows of a flush where so many rows fit: 0 of them ask for the default. One at least, none where none fits.
pub(super) fn step_of(flush_step_rows: usize, rows: usize) -> usize {
    let step = match flush_step_rows {
        0 => rows / FLUSH_STEP_SHARE,
        asked => asked.min(rows / 2),
    };
    step.max(1).min(rows)
}

/// Memory of a cache of so many rows.
pub(super) fn bytes_for(rows: usize, config: &CacheConfig) -> u64 {
    let (row_f32s, policy) = (config.row_f32s, config.policy);
    let step = step_of(config.flush_step_rows, rows);
    let (numbers, queues) = AnyPolicy::queued(policy, rows, step);
    let bytes = Slab::f32s_for(rows, row_f32s) * size_of::<f32>()
        + States::bytes_for(rows)
        + Words::bytes_for(rows)
        + Pool::bytes_for(numbers, queues)
        + AnyPolicy::bytes_for(policy, rows)
        + NAMED_ROWS * size_of::<Slot>()
        + size_of::<TableCache>();
    bytes as u64
}

/// Asks for memory and gives it back: a vector that can't be had aborts the process.
fn check_memory(bytes: u64) -> Result<()> {
    let mut asked = Vec::<u8>::new();
    let size = to_usize(bytes);
    let had = asked.try_reserve_exact(size).is_ok();
    // Else the compiler may leave both out.
    std::hint::black_box(&asked);
    if had {
        return Ok(());
    }
    Err(Error::InvalidArgument(ArgumentError::Option {
        name: "cache_bytes",
        value: format!("{bytes} bytes for one table in one shard"),
        why: String::from("the system does not give so much memory"),
    }))
}

impl CacheConfig {
    fn bytes_for(&self, rows: usize) -> u64 {
        bytes_for(rows, self)
    }

    /// Fails where the system does not give the memory for so many slots.
    pub(super) fn check_memory(&self, slots: usize) -> Result<()> {
        check_memory(self.bytes_for(slots))
    }

    /// Slots that fit into `bytes`: 1 or more.
    ///
    /// # Errors
    /// `InvalidArgument` naming the bytes needed if not even one row fits.
    pub fn slots(&self) -> Result<usize> {
        let (mut fits, mut fails) = (0, CAPACITY_MAX);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.bytes_for(middle) <= self.bytes {
                fits = middle;
            } else {
                fails = middle;
            }
        }
        if fits > 0 {
            return Ok(fits);
        }
        let (row_f32s, needed) = (self.row_f32s, self.bytes_for(1));
        Err(Error::InvalidArgument(ArgumentError::Option {
            name: "cache_bytes",
            value: format!("{} bytes for one table in one shard", self.bytes),
            why: format!("one row of {row_f32s} f32s needs {needed} bytes"),
        }))
    }
}

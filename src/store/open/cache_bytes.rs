//! How does the cache of an open store get larger or smaller?

use std::time::{Duration, Instant};

use super::super::Parts;
use super::super::core::Shard;
use crate::error::{ArgumentError, Error, Result};
use crate::mem::Shrunk;
use crate::sync::thread;

/// How long a round waits in which nothing could leave memory.
const PAUSE: Duration = Duration::from_millis(10);
/// So long rows are waited for that a checkpoint or another thread's flush holds.
const PATIENCE: Duration = Duration::from_secs(10);

impl Parts {
    /// Gives the cache more memory or less; rows leave, dirty ones are written first.
    ///
    /// # Errors
    /// `InvalidArgument`: less than rows of all tables need, in pieces as large as the cache at open asked for, or more
    /// than the system gives;
    /// `OverBudget` where leases hold more: the cache is as before. `NoSpace`, `Io`, `Poisoned` where
    /// dirty rows could not be written: the cache is too large until they are.
    pub fn set_cache_bytes(&self, bytes: u64) -> Result<()> {
        self.core.check_process()?;
        self.core.check_open()?;
        if bytes < 1 << 20 {
            let value = bytes.to_string();
            let why = String::from("at least 1 MiB");
            let name = "cache_bytes";
            return Err(ArgumentError::Option { name, value, why }.into());
        }
        let buffers = self.workers.bytes() + self.flusher.buffer_bytes();
        {
            // Nobody is promised room meanwhile.
            let _admission = self.puller.admission_alone();
            let of_shard = self.core.shard_bytes_of(bytes, buffers);
            self.core
                .check_caches_of(&self.core.all_tables(), of_shard)?;
            for cell in &self.core.shards {
                let shard = cell.lock();
                self.check_spans(&shard, bytes, of_shard)?;
                self.check_room(&shard, bytes, of_shard)?;
            }
            self.core.set_cache_bytes(bytes, of_shard)?;
        }
        // A pass that had no room may have it now.
        self.leases.look_again();
        self.shrink_caches()
    }

    /// Fails where leases and rows that stay need more of a shard than it has in a cache of so many bytes.
    ///
    /// # Errors
    /// `OverBudget`.
    pub(super) fn check_room(&self, shard: &Shard, bytes: u64, of_shard: u64) -> Result<()> {
        match shard.least_bytes() {
            needed if needed > of_shard => Err(self.held(shard, bytes, needed, of_shard)),
            _ => Ok(()),
        }
    }

    /// Fails where a cache of so many bytes has no room for one span of each row size: spans are as large as they were
    /// made for the cache as it was.
    ///
    /// # Errors
    /// `InvalidArgument` naming the bytes needed.
    fn check_spans(&self, shard: &Shard, bytes: u64, of_shard: u64) -> Result<()> {
        let tables = self.core.all_tables();
        let one_each: Vec<usize> = tables
            .iter()
            .map(|t| usize::from(!t.is_dropped()))
            .collect();
        let needed = shard.cache.cost_of(&one_each) - shard.cache.cost_of(&[]);
        if needed <= of_shard {
            return Ok(());
        }
        let all = needed.saturating_mul(self.core.shards.len() as u64);
        let (name, value) = ("cache_bytes", bytes.to_string());
        let why = format!(
            "while the store is open its cache needs {all} bytes for rows of each size and what I/O buffers take; \
             open it anew with this size"
        );
        Err(ArgumentError::Option { name, value, why }.into())
    }

    /// Leases hold more than a cache of so many bytes has.
    fn held(&self, shard: &Shard, bytes: u64, needed: u64, of_shard: u64) -> Error {
        let tables = self.core.all_tables();
        let most = (0..tables.len()).max_by_key(|t| {
            let rows = shard.busy_slots(*t) as u64;
            rows * shard.cache.row_cost(*t)
        });
        let table = most.unwrap_or(0);
        let shards = self.core.shards.len() as u64;
        let scaled = u128::from(bytes) * u128::from(needed) / u128::from(of_shard.max(1));
        Error::OverBudget {
            table: tables[table].descriptor.name.clone(),
            pinned_rows: shard.busy_slots(table) as u64 * shards,
            asked_rows: 0,
            capacity_rows: of_shard / shard.cache.row_cost(table) * shards,
            needed_bytes: crate::units::saturate(scaled + scaled / 16),
            leases: self.puller.oldest_leases(),
        }
    }

    /// Lets rows leave until no cache has more than its memory, or what it has too much is held by leases.
    fn shrink_caches(&self) -> Result<()> {
        let since = Instant::now();
        loop {
            let mut writable = false;
            for cell in &self.core.shards {
                let mut shard = cell.lock();
                while matches!(shard.shrink(), Shrunk::More) {
                    cell.pass(&mut shard);
                }
                writable |= matches!(shard.shrink(), Shrunk::Held) && shard.cache.can_write();
            }
            if !writable || since.elapsed() > PATIENCE {
                return Ok(());
            }
            if self.core.read_only || self.flusher.flush_low()? == 0 {
                thread::sleep(PAUSE);
            }
        }
    }
}

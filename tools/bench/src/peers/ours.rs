//! hps through its public interface, with its default options but for memory and threads.
//!
//! - Memory: the rows' cache gets what is left after 13 bytes of index a row and the constant that
//!   the memory contract allows beside both (64 MiB, less where the budget is small).
//! - Batches told ahead are fetched by tickets, in order.
//! - A load pins rows and replaces them whole; a push gives gradients to the lease of the pull.

use std::collections::VecDeque;

use anyhow::{Context, Result, ensure};
use hps::{CreateOptions, Lease, PutRows, RuntimeOptions, Store, TableId, Ticket, Update};

use super::{DIM, Engine, LEARNING_RATE, Place, Pulled, THREADS, descriptor};
use crate::fixture::index_bytes;

/// An open store.
pub struct Ours {
    store: Store,
    table: TableId,
    lease: Option<Lease>,
    pulled: Pulled,
    tickets: VecDeque<(Vec<u64>, Ticket)>,
}

/// What the rows' cache gets of the memory.
fn cache_bytes(place: &Place) -> u64 {
    let constant = (64 << 20).min(place.memory_bytes / 8);
    let beside = index_bytes(place.rows) + constant;
    let rest = place.memory_bytes.saturating_sub(beside).max(1 << 20);
    place.hps_cache_bytes.unwrap_or(rest)
}

impl Ours {
    /// Opens the store, made where there is none.
    ///
    /// # Errors
    /// What the store says.
    pub fn open(place: &Place) -> Result<Ours> {
        let options = RuntimeOptions::new()
            .cache_bytes(cache_bytes(place))
            .threads(THREADS);
        let empty = std::fs::read_dir(&place.dir)?.next().is_none();
        let store = if empty {
            Store::create(&place.dir, CreateOptions::new(), options)
        } else {
            Store::open(&place.dir, options)
        };
        let store = store.context("open hps")?;
        let table = store.create_table(&descriptor())?;
        Ok(Ours {
            store,
            table,
            lease: None,
            pulled: Pulled::default(),
            tickets: VecDeque::new(),
        })
    }
}

impl Engine for Ours {
    fn load(&mut self, keys: &[u64], rows: &[f32]) -> Result<()> {
        self.lease = None;
        self.store.put(self.table, keys, PutRows::whole(rows))?;
        Ok(())
    }

    fn pull(&mut self, keys: &[u64], out: &mut [f32]) -> Result<()> {
        self.lease = None;
        let ticket = self.tickets.pop_front_if(|(told, _)| *told == keys);
        self.lease = Some(match ticket {
            Some((_, ticket)) => {
                let lease = ticket.wait()?;
                lease.read(out)?;
                lease
            }
            None => self.store.pull(self.table, keys, out)?,
        });
        self.pulled.set(keys);
        Ok(())
    }

    fn ahead(&mut self, keys: &[u64]) -> Result<()> {
        let ticket = self.store.prefetch(self.table, keys)?;
        self.tickets.push_back((keys.to_vec(), ticket));
        Ok(())
    }

    fn push(&mut self, keys: &[u64], gradients: &[f32]) -> Result<()> {
        self.pulled.check(keys)?;
        ensure!(gradients.len() == keys.len() * DIM, "one gradient a key");
        let lease = self.lease.take().context("a push without a pull")?;
        let update = Update::gradients(gradients, LEARNING_RATE);
        self.store.push(&lease, update)?;
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        let step = self.store.last_checkpoint().map_or(1, |last| last.step + 1);
        self.store.checkpoint(step, &[])?;
        Ok(())
    }

    fn describe(&self) -> String {
        let stats = self.store.stats();
        let misses = stats.unique_asked - stats.unique_hits;
        format!(
            "{}, cache {} MiB, index {:.1} B a key, hit rate {:.3}, {:.2} reads a miss, \
             {} compactions, written {} MiB",
            stats.io_engine,
            stats.cache_bytes >> 20,
            stats.index_bytes as f64 / stats.index_keys.max(1) as f64,
            stats.hit_rate(),
            stats.reads as f64 / misses.max(1) as f64,
            stats.compactions,
            stats.written_bytes >> 20,
        )
    }
}

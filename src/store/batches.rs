//! The calls for rows: which go in and out, a batch of one table at a time?

use super::{Lease, PushReport, Store, Ticket, Update};
use crate::batch::check_keys;
use crate::error::Result;
use crate::units::TableId;

impl Store {
    /// Makes rows resident, pins them and copies their weights.
    ///
    /// # Shapes
    /// keys: `[n]`, any u64, duplicates allowed; out: `[n, dim]`, in the same order
    ///
    /// # Cost
    /// A device read per distinct cold row, neighbours together; a copy per key.
    ///
    /// # Durability
    /// None: nothing changes.
    ///
    /// # Errors
    /// `OverBudget` when the batch can't be in memory beside the outstanding leases (nobody
    /// waits for these), `InvalidArgument`, `Io`, `Corrupt`, `NoSpace` or `Poisoned` (room needed a flush).
    /// What is in `out` then is undefined.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-pull-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let keys = [7, 42, 7];
    /// let mut weights = [0.0; 3 * 4];
    /// let lease = store.pull(items, &keys, &mut weights)?; // the rows stay in memory
    /// assert_eq!(weights[..4], weights[8..]); // equal keys, equal rows
    /// store.push(&lease, Update::gradients(&[0.1; 3 * 4], 0.05))?;
    /// drop(lease); // they may leave
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn pull(&self, table: TableId, keys: &[u64], out: &mut [f32]) -> Result<Lease> {
        let table = self.parts.core.table(table)?;
        self.call(|parts| parts.puller.pull(&table, keys, out))
    }

    /// Starts making rows resident. Values are gathered when the lease is read, so a prefetch
    /// changes when rows are read from SSD, never what a batch sees.
    ///
    /// # Shapes
    /// keys: `[n]`, any u64, duplicates allowed
    ///
    /// # Cost
    /// A copy of the keys here; the reads of [`Store::pull`] in a thread of the store.
    ///
    /// # Durability
    /// None: nothing changes.
    ///
    /// # Errors
    /// `InvalidArgument`; everything else comes from [`Ticket::wait`].
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-prefetch-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let ticket = store.prefetch(items, &[7, 42])?; // while the batch before this one trains
    /// // ...
    /// let lease = ticket.wait()?;
    /// let mut weights = [0.0; 2 * 4];
    /// lease.read(&mut weights)?;
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn prefetch(&self, table: TableId, keys: &[u64]) -> Result<Ticket> {
        let table = self.parts.core.table(table)?;
        self.call(|parts| parts.puller.prefetch(&table, keys))
    }

    /// Changes the rows of a lease.
    ///
    /// # Shapes
    /// The lease's keys: `[n]`; values as [`Update`] says, `[n, dim]` or `[n, row_f32s]`
    ///
    /// # Cost
    /// No I/O; a pass over the values and the rows.
    ///
    /// # Durability
    /// With the next checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument` (a lease of another store, lengths, lr, values that are not finite when
    /// the options reject them), `ReadOnly`, `Poisoned`; nothing changed, unless the store is
    /// poisoned meanwhile: then some rows may be, in memory, and no checkpoint will have them.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-push-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// let lease = store.pull(items, &[7, 42], &mut [0.0; 2 * 4])?;
    /// let report = store.push(&lease, Update::weights(&[0.5; 2 * 4]))?;
    /// assert_eq!(report.rows, 2);
    /// let mut weights = [0.0; 2 * 4];
    /// lease.read(&mut weights)?;
    /// assert_eq!(weights, [0.5; 2 * 4]);
    /// # drop(lease);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn push(&self, lease: &Lease, update: Update<'_>) -> Result<PushReport> {
        self.call(|parts| parts.pusher.push(lease, update))
    }

    /// Which keys were pushed and not removed since.
    ///
    /// # Shapes
    /// keys: `[n]`; the answer: `[n]`, in the same order
    ///
    /// # Cost
    /// No I/O: a look-up in memory per key.
    ///
    /// # Errors
    /// `InvalidArgument` for a table of another store, one that is dropped, also meanwhile, and for 2^32
    /// keys or more.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-contains-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// assert_eq!(store.contains(items, &[7, 9])?, [true, false]);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn contains(&self, table: TableId, keys: &[u64]) -> Result<Vec<bool>> {
        check_keys(keys.len())?;
        let table = self.parts.core.table(table)?;
        self.call(|parts| parts.puller.contains(&table, keys))
    }

    /// Forgets keys: they have the initialiser's row again. Returns how many were known.
    ///
    /// # Shapes
    /// keys: `[n]`, any u64, duplicates allowed
    ///
    /// # Cost
    /// A slot in memory per key that is known, and a tombstone at the next flush; no row is read.
    ///
    /// # Durability
    /// With the next checkpoint.
    ///
    /// # Errors
    /// `OverBudget`, `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-remove-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// assert_eq!(store.remove(items, &[7, 9])?, 1); // 9 was never pushed
    /// assert_eq!(store.contains(items, &[7, 8])?, [false, true]);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn remove(&self, table: TableId, keys: &[u64]) -> Result<u64> {
        let table = self.parts.core.table(table)?;
        self.call(|parts| parts.puller.remove(&table, keys))
    }
}

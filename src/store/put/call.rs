//! The call of the front door.

use super::super::Store;
use super::{PutReport, PutRows};
use crate::error::Result;
use crate::units::TableId;

impl Store {
    /// Writes rows, whatever they held before: nothing is read. Rows that are leased change as by
    /// [`Store::push`]. For imports, and for anything that computes whole rows outside.
    ///
    /// # Shapes
    /// keys: `[n]`, any u64, any number of them; of a key that is there twice the last row counts.
    /// rows: `[n, row_f32s]` or `[n, dim]`, see [`PutRows`]
    ///
    /// # Cost
    /// No device read; a pass over the values, then a copy a row (of a long put beside each other: where a value is not
    /// finite, the first of its files is begun in vain). Long calls are the fastest: with a quarter of a file's
    /// rows or more for each data directory (8 MiB by default: see
    /// [`RuntimeOptions::file_bytes`](crate::RuntimeOptions::file_bytes)) new rows go straight to files, and take no room
    /// from others. What is in memory is changed there. Shorter calls, those of which most keys have rows on SSD, and
    /// those beside a checkpoint that is being written go through the cache, however many rows it holds: they wait while
    /// older ones are written. A checkpoint's cut waits for the call, and pushes for that cut; so beside training, put a
    /// batch at a time.
    ///
    /// # Durability
    /// With the next checkpoint, all of the call; visible once this returns.
    ///
    /// # Errors
    /// `InvalidArgument` (lengths, values that are not finite when the options reject them, a table of
    /// another store), `OverBudget` when leases leave no slot that the rows could go through, `ReadOnly`:
    /// nothing changed. `Io`, `NoSpace` or `Poisoned` when these or older rows could not be written: some of the
    /// rows are put, none in part, and putting all of them again is right.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, PutRows, RuntimeOptions, Store, TableDescriptor};
    /// # let directory = std::env::temp_dir().join(format!("hps-put-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let table = store.create_table(&TableDescriptor::new("clicks", 2))?;
    /// let weights = [0.5, 1.0, 1.5, 2.0]; // of two keys
    /// let report = store.put(table, &[7, 42], PutRows::weights(&weights))?;
    /// assert_eq!(report.rows, 2);
    /// store.checkpoint(1, b"loaded")?;
    ///
    /// let mut found = [0.0; 2];
    /// store.pull(table, &[42], &mut found)?;
    /// assert_eq!(found, [1.5, 2.0]);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn put(&self, table: TableId, keys: &[u64], rows: PutRows<'_>) -> Result<PutReport> {
        let table = self.parts.core.table(table)?;
        self.call(|parts| parts.putter.put(&table, keys, rows))
    }
}

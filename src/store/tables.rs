//! The calls for tables: how does a store get one or lose it, and which does it, or did a checkpoint, have?

use super::Store;
use super::open::Wanted;
use crate::error::Result;
use crate::options::{TableDescriptor, TableOptions};
use crate::units::{CheckpointId, TableId};

impl Store {
    /// Adds a table, with what [`RuntimeOptions::tables`](field@crate::RuntimeOptions::tables) says for
    /// its name; a table of the same name and descriptor is found instead.
    ///
    /// # Cost
    /// No row leaves memory and none is written; leases may be out. Waits for a running checkpoint.
    ///
    /// # Durability
    /// With the next checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument`: a bad or changed descriptor, a cache too small; `OverBudget` where leases, or rows
    /// of `PinAll` tables, hold what the table or its read buffers need;
    /// `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-create-table-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let items = store.create_table(&TableDescriptor::new("items", 16).optimizer(Optimizer::Adam))?;
    /// let users = store.create_table(&TableDescriptor::new("users", 8))?;
    /// assert_eq!(store.table("items")?, items);
    /// let names: Vec<String> = store.tables().into_iter().map(|(_, table)| table.name).collect();
    /// assert_eq!(names, ["items", "users"]);
    /// # assert_ne!(items, users);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn create_table(&self, descriptor: &TableDescriptor) -> Result<TableId> {
        self.call(|parts| {
            parts.create_table(&Wanted {
                descriptor,
                options: None,
            })
        })
    }

    /// [`Store::create_table`] with options in the place of what
    /// [`RuntimeOptions::tables`](field@crate::RuntimeOptions::tables) says for its name. One that is there
    /// has them from now on too.
    ///
    /// # Cost
    /// As [`Store::create_table`]; with another policy, a look at each row in memory. Where the rows of a table
    /// that is to have `PinAll` leave others less than an eighth of the cache, some of them leave first,
    /// changed ones once they are written.
    ///
    /// # Durability
    /// The table's with the next checkpoint. Options are not stored: they hold until the store is
    /// closed, also after a rollback.
    ///
    /// # Errors
    /// As [`Store::create_table`]; `InvalidArgument` naming the option that is out of range;
    /// `LeasesOutstanding` where the policy is to be `PinAll` from now on and rows of any table are held;
    /// `ReadOnly` where a reader would have to change them.
    ///
    /// ```
    /// # use hps::*;
    /// # fn main() -> hps::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("hps-table-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let adam = |name| TableDescriptor::new(name, 8).optimizer(Optimizer::Adam);
    /// store.create_table(&adam("items"))?; // the defaults of all tables
    /// let calm = TableOptions::new().hyper(HyperParameters::new().beta1(0.5));
    /// store.create_table_with(&adam("users"), calm.policy(PolicyKind::PinAll))?;
    /// assert_eq!(store.stats().tables[1].policy, PolicyKind::PinAll);
    /// # store.close_discarding();
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_table_with(
        &self,
        descriptor: &TableDescriptor,
        options: TableOptions,
    ) -> Result<TableId> {
        let options = Some(options);
        self.call(|parts| {
            parts.create_table(&Wanted {
                descriptor,
                options,
            })
        })
    }

    /// Finds a table by name.
    ///
    /// # Cost
    /// No I/O.
    ///
    /// # Errors
    /// `InvalidArgument` naming the tables there are; `Forked`.
    pub fn table(&self, name: &str) -> Result<TableId> {
        Ok(self.parts.core.table_named(name)?.id)
    }

    /// All tables, by id; without those that were dropped.
    ///
    /// # Cost
    /// No I/O.
    #[must_use]
    pub fn tables(&self) -> Vec<(TableId, TableDescriptor)> {
        if self.parts.core.check_process().is_err() {
            return Vec::new();
        }
        let tables = self.parts.core.tables_there();
        tables.map(|t| (t.id, t.descriptor.clone())).collect()
    }

    /// Drops a table: its rows are gone, its memory is shared among the others.
    ///
    /// Afterwards each call with its id is an error that names it, also a second drop; what a reader or an
    /// older checkpoint has stays: [`Store::rows`], [`Store::export`] and [`Store::rollback`] to a
    /// checkpoint before the drop find the table. Its number is never given again and counts among the
    /// [`TABLES_MAX`](crate::TABLES_MAX) tables of a store; its name is free for
    /// [`Store::create_table`], which makes a table of another number without rows. The last table may be
    /// dropped.
    ///
    /// # Cost
    /// Its rows leave memory; those of other tables stay, and leases of them may be out. Waits for a
    /// running checkpoint. The index forgets its keys: a look at each. No row is read or
    /// written: its rows in files are stale from now on, and compaction leaves them behind once it takes
    /// the file; a file goes when no retained checkpoint needs it.
    ///
    /// # Durability
    /// With the next checkpoint; a crash before that gives the table back, with its rows as of the last
    /// one. A checkpoint has the drop wholly or not at all.
    ///
    /// # Errors
    /// `InvalidArgument`: no such table, one that was dropped, leases or tickets of it outstanding;
    /// `Poisoned`, `ReadOnly`. The table is there as before then.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor};
    /// # let directory = std::env::temp_dir().join(format!("hps-drop-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let tried = store.create_table(&TableDescriptor::new("tried", 8))?;
    /// store.checkpoint(1, &[])?;
    /// store.drop_table(tried)?;
    /// let error = store.contains(tried, &[1]).unwrap_err();
    /// assert!(error.to_string().contains("\"tried\" (number 0) was dropped"));
    /// let again = store.create_table(&TableDescriptor::new("tried", 16))?;
    /// assert_ne!(again, tried);
    /// store.checkpoint(2, &[])?; // durable
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn drop_table(&self, table: TableId) -> Result<()> {
        self.call(|parts| parts.drop_table(table))
    }

    /// Changes the memory of the cache, [`RuntimeOptions::cache_bytes`](field@crate::RuntimeOptions::cache_bytes),
    /// until the store is closed. I/O buffers keep the size that they got at open.
    ///
    /// # Cost
    /// More: none. Less: cold rows leave, dirty ones are written first; other calls go on meanwhile.
    ///
    /// # Durability
    /// None: the next open has the option that it is given.
    ///
    /// # Errors
    /// `InvalidArgument`: less than 1 MiB or than a piece of memory for rows of each size needs (about a 512th of the
    /// cache as it was opened, more for long rows), more than the system gives;
    /// `OverBudget` where outstanding leases hold more, or rows of `PinAll` tables more than seven eighths
    /// beside tables whose rows leave. The cache is as before then. `NoSpace`, `Io`,
    /// `Poisoned` where dirty rows could not be written: they stay, and leave once they can be.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store};
    /// # let directory = std::env::temp_dir().join(format!("hps-cache-{}", std::process::id()));
    /// let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// store.set_cache_bytes(64 << 20)?; // the trainer's other half needs less now
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn set_cache_bytes(&self, bytes: u64) -> Result<()> {
        self.call(|parts| parts.set_cache_bytes(bytes))
    }

    /// Gives a table another name; to the name that it has, nothing happens.
    ///
    /// Its number, rows, options and counters stay. What
    /// [`RuntimeOptions::tables`](field@crate::RuntimeOptions::tables) says for the old name is said for the
    /// new one until the store is closed; the next open has to say it so. What it says for the new name
    /// already is not given to this table before the next open: it waits for one that is created under that
    /// name, once it is free again, and is forgotten by a rollback to a checkpoint with the new name. Leases and tickets may be out: their errors name the table as it was.
    /// Metrics go on under the new name from 0.
    ///
    /// # Cost
    /// No I/O; waits until no push, put or remove is under way.
    ///
    /// # Durability
    /// With the next checkpoint; older checkpoints keep the old name. A checkpoint has one name or the
    /// other.
    ///
    /// # Errors
    /// `InvalidArgument`: no such table, one that was dropped, a name that another table has, is empty
    /// or longer than 255 bytes; `Poisoned`, `ReadOnly`. The table has its name as before then.
    ///
    /// # Examples
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor};
    /// # let directory = std::env::temp_dir().join(format!("hps-rename-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// let items = store.create_table(&TableDescriptor::new("items", 8))?;
    /// let before = store.checkpoint(1, &[])?.id;
    /// store.rename_table(items, "articles")?;
    /// assert_eq!(store.table("articles")?, items);
    /// store.checkpoint(2, &[])?; // durable
    /// assert_eq!(store.tables_at(before)?[0].1.name, "items");
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn rename_table(&self, table: TableId, new_name: &str) -> Result<()> {
        self.call(|parts| parts.rename_table(table, new_name))
    }

    /// The tables of a retained checkpoint, by id and under the names of that time: also those that were
    /// dropped or renamed since. Tables that are younger than the checkpoint are there too, without
    /// rows, as they are after a rollback to it; unless their name is taken there.
    ///
    /// # Cost
    /// No I/O.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Forked`.
    pub fn tables_at(&self, checkpoint: CheckpointId) -> Result<Vec<(TableId, TableDescriptor)>> {
        let core = &self.parts.core;
        core.check_process()?;
        let tables = (0..).zip(core.ssd.tables_at(checkpoint)?);
        let there = tables.filter(|(_, table)| !table.is_dropped);
        Ok(there
            .map(|(id, table)| (TableId(id), table.descriptor))
            .collect())
    }
}

//! The calls for tables: how does a store get one, and which does it have?

use super::Store;
use super::open::Wanted;
use crate::error::{ArgumentError, Result};
use crate::options::{TableDescriptor, TableOptions};
use crate::units::TableId;

impl Store {
    /// Adds a table, with what [`RuntimeOptions::tables`](field@crate::RuntimeOptions::tables) says for
    /// its name; a table of the same name and descriptor is found instead.
    ///
    /// # Cost
    /// All rows leave memory, the dirty ones to SSD. Nothing where the table is there.
    ///
    /// # Durability
    /// With the next checkpoint.
    ///
    /// # Errors
    /// `InvalidArgument`: a bad or changed descriptor, leases outstanding, a cache too small;
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
    /// All rows leave memory, the dirty ones to SSD. Nothing where the table is there and has these
    /// options.
    ///
    /// # Durability
    /// The table's with the next checkpoint. Options are not stored: they hold until the store is
    /// closed, also after a rollback.
    ///
    /// # Errors
    /// As [`Store::create_table`]; `InvalidArgument` naming the option that is out of range;
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
        self.parts.core.check_process()?;
        let tables = self.parts.core.all_tables();
        let found = tables
            .iter()
            .find(|t| t.descriptor.name == name)
            .map(|t| t.id);
        found.ok_or_else(|| {
            let known = tables.iter().map(|t| t.descriptor.name.clone()).collect();
            ArgumentError::UnknownTable {
                name: name.to_owned(),
                known,
            }
            .into()
        })
    }

    /// All tables, by id.
    ///
    /// # Cost
    /// No I/O.
    #[must_use]
    pub fn tables(&self) -> Vec<(TableId, TableDescriptor)> {
        if self.parts.core.check_process().is_err() {
            return Vec::new();
        }
        self.parts
            .core
            .all_tables()
            .iter()
            .map(|t| (t.id, t.descriptor.clone()))
            .collect()
    }
}

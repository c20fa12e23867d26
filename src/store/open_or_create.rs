//! How does a program get a store with its tables, whether it is the first run or not?

use std::path::Path;
use std::sync::Arc;

use super::Store;
use super::open::{self, Wanted};
use crate::error::{ArgumentError, Error, Result};
use crate::io::Io;
use crate::options::{CreateOptions, RuntimeOptions, TableDescriptor};
use crate::ssd::create::Unfinished;
use crate::units::TableId;

impl Store {
    /// Opens the store in `directory`, or creates it; creates the tables that are missing, and checks
    /// the descriptors of those that are there. Gives the store, and the ids of `tables` in their
    /// order. A table that is there and not in `tables` stays. `create` counts only where the store is
    /// created: one that is there keeps what it was made with.
    ///
    /// # Cost
    /// As [`Store::open`]; where tables are missing, all of them are created at once.
    ///
    /// # Durability
    /// An empty store survives a crash once this returns; tables do from the first checkpoint on. After a
    /// crash meanwhile the same call opens the store, or begins its creation again: a directory that
    /// holds a LOCK, no STORE, and nothing but what a create leaves has no rows to lose.
    ///
    /// # Errors
    /// `InvalidArgument`: a descriptor that is bad or not the stored one, a name in
    /// [`RuntimeOptions::tables`](field@RuntimeOptions::tables) that no table has, a directory that holds
    /// something else (no table is created then). Else as [`Store::open`] and [`Store::create`].
    ///
    /// ```
    /// # use hps::*;
    /// # fn main() -> hps::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("hps-or-{}", std::process::id()));
    /// let options = RuntimeOptions::new()
    ///     .cache_bytes(16 << 20)
    ///     .table("users", TableOptions::new().policy(PolicyKind::PinAll));
    /// let tables = [TableDescriptor::new("items", 16), TableDescriptor::new("users", 8)];
    /// for run in 1..=2 {
    ///     let create = CreateOptions::new();
    ///     let (store, ids) =
    ///         Store::open_or_create(&directory, create, options.clone(), &tables)?;
    ///     drop(store.pull(ids[1], &[7], &mut [0.0; 8])?);
    ///     store.checkpoint(run, &[])?;
    ///     store.close()?;
    /// }
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_or_create(
        directory: &Path,
        create: CreateOptions,
        options: RuntimeOptions,
        tables: &[TableDescriptor],
    ) -> Result<(Store, Vec<TableId>)> {
        let io = open::choose_io(options.io);
        Store::open_or_create_with(&io, directory, create, options, tables)
    }

    /// [`Store::open_or_create`] on a disk of the caller's.
    ///
    /// # Errors
    /// As [`Store::open_or_create`].
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn open_or_create_on(
        io: impl Into<Io>,
        directory: &Path,
        create: CreateOptions,
        options: RuntimeOptions,
        tables: &[TableDescriptor],
    ) -> Result<(Store, Vec<TableId>)> {
        Store::open_or_create_with(&io.into(), directory, create, options, tables)
    }

    fn open_or_create_with(
        io: &Io,
        directory: &Path,
        create: CreateOptions,
        options: RuntimeOptions,
        tables: &[TableDescriptor],
    ) -> Result<(Store, Vec<TableId>)> {
        tables.iter().try_for_each(TableDescriptor::validate)?;
        let open = || Store::open_with(io, directory, options.clone());
        let store = match open() {
            Err(Error::InvalidArgument(ArgumentError::NotAStore { .. })) => {
                // Nothing is made for options that can't be right.
                check_names(&options, tables.iter().map(|t| &*t.name))?;
                let again = Unfinished::BegunAgain;
                match Store::create_with(io, directory, create, options.clone(), again) {
                    // Another process was quicker.
                    Err(Error::InvalidArgument(ArgumentError::AlreadyAStore { .. })) => open()?,
                    created => created?,
                }
            }
            opened => opened?,
        };
        let there: Vec<Arc<_>> = store.parts.core.tables_there().collect();
        let there = there.iter().map(|t| &*t.descriptor.name);
        check_names(&options, there.chain(tables.iter().map(|t| &*t.name)))?;
        let wanted = |descriptor| Wanted {
            descriptor,
            options: None,
        };
        let wanted: Vec<Wanted<'_>> = tables.iter().map(wanted).collect();
        let ids = store.call(|parts| parts.create_tables(&wanted))?;
        Ok((store, ids))
    }
}

/// Fails if there are options for a table that is not among these.
fn check_names<'a>(options: &RuntimeOptions, tables: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut known: Vec<String> = tables.map(str::to_owned).collect();
    known.sort_unstable();
    known.dedup();
    match options.tables.keys().find(|name| !known.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let name = name.clone();
            Err(ArgumentError::UnknownTable { name, known }.into())
        }
    }
}

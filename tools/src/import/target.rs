//! Which store and table are rows imported into, and are they made?
//!
//! - A store is made once the folder has been looked at, so that a bad folder makes none.

use anyhow::Result;
use hps::{
    ArgumentError, CreateOptions, Error, Optimizer, RowMetadata, RuntimeOptions, Store,
    TableDescriptor, TableId,
};

use super::Args;
use super::found::Found;
use crate::cli::{Usage, refuse_strange_owner, with_holder};
use crate::models::Rule;

/// More checkpoints than a store can retain: an import drops none.
const RETAIN_ALL: usize = 1000;

/// The store as it is, and the table.
#[derive(Debug)]
pub struct Target {
    store: Option<Store>,
    table: Option<(TableId, TableDescriptor)>,
}

fn options(args: &Args) -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(args.cache)
        .retain_checkpoints(RETAIN_ALL)
}

/// A table that is there.
///
/// # Errors
/// When it is not.
pub fn descriptor_of(store: &Store, table: TableId) -> Result<TableDescriptor> {
    let found = store.tables().into_iter().find(|(id, _)| *id == table);
    let found = found.ok_or_else(|| anyhow::anyhow!("table {table} is gone"))?;
    Ok(found.1)
}

impl Target {
    /// Opens the store, if there is one.
    ///
    /// # Errors
    /// `Usage` where store or table are missing and are not to be made; what the open says.
    pub fn find(args: &Args) -> Result<Target> {
        if args.store.is_dir() {
            refuse_strange_owner(&args.store, args.force)?;
        }
        let store = match Store::open(&args.store, options(args)) {
            Ok(store) => Some(store),
            Err(Error::InvalidArgument(ArgumentError::NotAStore { .. })) if args.create => None,
            Err(error) => return Err(with_holder(error)),
        };
        let tables = store.as_ref().map(Store::tables).unwrap_or_default();
        let known: Vec<String> = tables.iter().map(|(_, t)| t.name.clone()).collect();
        let table = tables
            .into_iter()
            .find(|(_, table)| table.name == args.table());
        if table.is_none() && !args.create {
            let name = args.table();
            return Err(Usage(format!(
                "{}: no table {name:?}; there are: {known:?}; --create makes it",
                args.store.display()
            ))
            .into());
        }
        Ok(Target { store, table })
    }

    /// A store and a table that are not there yet.
    #[must_use]
    pub fn none() -> Target {
        Target {
            store: None,
            table: None,
        }
    }

    /// The dim that rows must have, if anybody says.
    #[must_use]
    pub fn dim(&self, args: &Args) -> Option<usize> {
        let own = self.table.as_ref().map(|(_, table)| table.dim);
        own.or(args.dim.map(usize::from))
    }

    /// The optimizer that the table has, or that was asked for.
    #[must_use]
    pub fn known_optimizer(&self, args: &Args) -> Option<Optimizer> {
        let own = self.table.as_ref().map(|(_, table)| table.optimizer);
        own.or(args.optimizer.map(Rule::optimizer))
    }

    /// The optimizer of the table, or of the one that is to be made.
    ///
    /// # Errors
    /// `Usage` where the folder does not say it, nor the command line.
    pub fn optimizer(&self, args: &Args, found: &Found) -> Result<Optimizer> {
        let known = self.known_optimizer(args).or_else(|| found.optimizer());
        known.ok_or_else(|| {
            let folder = found.folder.display();
            let state = found.state();
            let why = match state.is_empty() {
                true => {
                    String::from("there is no state that would tell the optimizer of the new table")
                }
                false => format!("{state:?} may be of several optimizers"),
            };
            Usage(format!("{folder}: {why}; name it by --optimizer")).into()
        })
    }

    /// The table as it is asked for; a new one has this dim, metadata and optimizer.
    ///
    /// # Errors
    /// `Usage` where the dim is not known.
    pub fn descriptor(
        &self,
        args: &Args,
        dim: usize,
        metadata: RowMetadata,
        optimizer: Optimizer,
    ) -> Result<TableDescriptor> {
        let mut wanted = match &self.table {
            Some((_, table)) => table.clone(),
            None if dim == 0 => {
                let folder = args.folder.display();
                let why = "an empty model does not tell the dim of the new table; name it by --dim";
                return Err(Usage(format!("{folder}: {why}")).into());
            }
            None => {
                let table = TableDescriptor::new(args.table(), dim).optimizer(optimizer);
                table.metadata(metadata)
            }
        };
        // Of a table that is there, what is asked for must be what it has: the store says so.
        if let Some(asked) = args.optimizer {
            wanted = wanted.optimizer(asked.optimizer());
        }
        if let Some(dim) = args.dim {
            wanted = wanted.dim(usize::from(dim));
        }
        if let Some(initialiser) = args.initialiser {
            wanted = wanted.initialiser(initialiser);
        }
        if let Some(seed) = args.seed {
            wanted = wanted.seed(seed);
        }
        if let Some(accumulator) = args.accumulator {
            wanted = wanted.accumulator(accumulator);
        }
        wanted.validate()?;
        Ok(wanted)
    }

    /// The store and the table, which are made where they are missing.
    ///
    /// # Errors
    /// What the store says.
    pub fn open(self, args: &Args, wanted: &TableDescriptor) -> Result<(Store, TableId)> {
        let store = match self.store {
            Some(store) => store,
            None => {
                let create = CreateOptions::new();
                Store::open_or_create(&args.store, create, options(args), &[])?.0
            }
        };
        let table = match store.create_table(wanted) {
            Ok(table) => table,
            Err(error) => {
                store.close_discarding();
                return Err(error.into());
            }
        };
        Ok((store, table))
    }
}

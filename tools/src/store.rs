//! How is a store opened that is only read, and how many keys does a table of it have?
//!
//! - A trainer may have it open; nothing is written to it.
//! - A store without a checkpoint has no rows to read: that is told apart from every other error.

use std::path::Path;

use anyhow::{Context, Result};
use hps::{ArgumentError, CheckpointId, CheckpointInfo, Error, RuntimeOptions, Store, TableId};

/// Opens a store at a checkpoint, the last one if none is named; `None`: it has no checkpoint yet.
///
/// # Errors
/// What the store says.
pub fn open_read_only(
    directory: &Path,
    checkpoint: Option<CheckpointId>,
    options: RuntimeOptions,
) -> Result<Option<Store>, Error> {
    match Store::open_read_only(directory, checkpoint, options) {
        Ok(store) => Ok(Some(store)),
        Err(Error::InvalidArgument(ArgumentError::UnknownCheckpoint { retained, .. }))
            if retained.is_empty() =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Opens a store for its rows, and says at which checkpoint. They are read past the cache, which is as
/// small as can be.
///
/// # Errors
/// What the store says; that it has no checkpoint yet, and therefore no `rows`, as in "rows to export".
pub fn open_for_rows(
    directory: &Path,
    checkpoint: Option<CheckpointId>,
    rows: &str,
) -> Result<(Store, CheckpointInfo)> {
    let options = RuntimeOptions::new().cache_bytes(1 << 20).threads(1);
    let store = open_read_only(directory, checkpoint, options)?;
    let found = store.and_then(|store| {
        let info = match checkpoint {
            Some(id) => store.checkpoints().into_iter().find(|c| c.id == id),
            None => store.last_checkpoint(),
        };
        Some((store, info?))
    });
    found.with_context(|| {
        let directory = directory.display();
        format!("{directory}: no checkpoint yet: there are no {rows}")
    })
}

/// Keys in the index of a table.
#[must_use]
pub fn index_keys(store: &Store, table: TableId) -> u64 {
    let stats = store.stats();
    let table = stats.tables.iter().find(|stats| stats.id == table);
    table.map_or(0, |table| table.index_keys)
}

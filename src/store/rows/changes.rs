//! What has changed between two checkpoints, and how far have readers come that follow the store?

use std::ops::RangeInclusive;

use super::{Row, Scope, Walk, row_f32s, tables_of};
use crate::error::{ArgumentError, Result};
use crate::format::edit::NAME_BYTES_MAX;
use crate::store::Store;
use crate::store::core::Core;
use crate::units::{CheckpointId, TableId};

/// A key that changed.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change<'a> {
    /// Its row, as it is at the end.
    Row(Row<'a>),
    /// It has no row at the end. It need not have had one at the beginning.
    Removed {
        /// Its table.
        table: TableId,
        /// The key.
        key: u64,
        /// The checkpoint interval in which it was removed.
        interval: u32,
    },
}

/// Walks what changed between two checkpoints in the order of (table, mix64(key)).
pub struct Incremental(Walk);

/// Opens a walk over what changed between two checkpoints.
pub fn walk_changes(
    core: &Core,
    (since, until): (CheckpointId, CheckpointId),
    tables: Vec<(TableId, usize)>,
    hashes: RangeInclusive<u64>,
) -> Result<Walk> {
    let first_interval = core.ssd.first_interval_after(since)?;
    if since > until {
        let what = format!("changes since checkpoint {since} are not before checkpoint {until}");
        return Err(ArgumentError::Other { what }.into());
    }
    let scope = Scope {
        checkpoint: until,
        tables,
        hashes,
        first_interval,
        with_removed: since > CheckpointId::NONE,
    };
    let walk = Walk::new(&core.ssd, core.process, scope)?;
    // As long as somebody may ask for them, no compaction leaves the tombstones out: up to now.
    core.ssd.first_interval_after(since)?;
    Ok(walk)
}

impl Incremental {
    /// The next key that changed; `None` after the last.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Forked`. After an error the iterator is at its end.
    pub fn next_change(&mut self) -> Result<Option<Change<'_>>> {
        let Some(found) = self.0.next()? else {
            return Ok(None);
        };
        let (table, key, interval) = (found.table, found.key, found.interval);
        Ok(Some(match found.is_removed {
            true => Change::Removed {
                table,
                key,
                interval,
            },
            false => Change::Row(Row {
                table,
                key,
                interval,
                values: &self.0.row,
            }),
        }))
    }
}

/// How far a reader that follows the store has come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CursorInfo {
    /// The reader's name.
    pub name: String,
    /// It has everything up to this checkpoint, which need not be retained any more.
    pub checkpoint: CheckpointId,
}

impl Store {
    /// Walks what changed between two checkpoints: the rows of `until` that are not those of `since`, and the
    /// keys that were removed. `since` is a retained checkpoint or that of a cursor
    /// ([`Store::set_cursor`]), or [`CheckpointId::NONE`]: before everything, which gives all rows
    /// and no removed keys. `until` is a retained checkpoint.
    ///
    /// Tables that came, went or got another name in between are told by [`Store::tables_at`]; of a table that `until` does not
    /// have nothing is told here. A row that was changed back to what it was, and one that was written again by
    /// a call, are among the changes.
    ///
    /// # Cost
    /// The key blocks of files that have an entry younger than `since` (12 B a key), and the rows that come out: in blocks of
    /// 4 KiB, neighbours with less than a block between them together; 16 MiB of windows.
    ///
    /// # Errors
    /// `InvalidArgument` (`HistoryGone`: nobody asked to keep what changed since then; an unknown checkpoint; the
    /// wrong order), `Corrupt`, `Io`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-changes-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 1))?;
    /// let set = |keys: &[u64]| {
    ///     let lease = store.pull(items, keys, &mut vec![0.0; keys.len()])?;
    ///     store.push(&lease, Update::weights(&vec![0.5; keys.len()]))
    /// };
    /// set(&[1, 2, 3])?;
    /// let first = store.checkpoint(1, &[])?.id;
    /// store.set_cursor("serving", first)?; // it has a copy of this
    /// set(&[3, 4])?;
    /// store.remove(items, &[1])?;
    /// let second = store.checkpoint(2, &[])?.id;
    /// let (mut rows, mut removed) = (Vec::new(), Vec::new());
    /// let mut changes = store.incremental(first, second)?;
    /// while let Some(change) = changes.next_change()? {
    ///     match change {
    ///         Change::Row(row) => rows.push(row.key),
    ///         Change::Removed { key, .. } => removed.push(key),
    ///         _ => {}
    ///     }
    /// }
    /// rows.sort_unstable();
    /// assert_eq!((rows, removed), (vec![3, 4], vec![1]));
    /// store.set_cursor("serving", second)?;
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn incremental(&self, since: CheckpointId, until: CheckpointId) -> Result<Incremental> {
        self.call(|parts| {
            let tables = tables_of(&parts.core, until)?;
            walk_changes(&parts.core, (since, until), tables, 0..=u64::MAX).map(Incremental)
        })
    }

    /// As [`Store::incremental`], of one table and the keys in a range of [`mix64`](crate::mix64): several
    /// threads, or nodes, have one such walk for each [`part_range`](crate::part_range).
    ///
    /// # Cost
    /// As [`Store::incremental`], for the part that is in the range, and some blocks of 4 KiB to find its ends.
    ///
    /// # Errors
    /// As [`Store::incremental`]; an unknown table.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-changes-of-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 1))?;
    /// # let lease = store.pull(items, &[1, 2, 3], &mut [0.0; 3])?;
    /// # store.push(&lease, Update::weights(&[0.5; 3]))?;
    /// # drop(lease);
    /// let checkpoint = store.checkpoint(1, &[])?.id;
    /// let mut count = 0;
    /// for part in 0..4 {
    ///     let range = part_range(part, 4);
    ///     let mut changes = store.incremental_of(CheckpointId::NONE, checkpoint, items, range)?;
    ///     while changes.next_change()?.is_some() {
    ///         count += 1;
    ///     }
    /// }
    /// assert_eq!(count, 3);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn incremental_of(
        &self,
        since: CheckpointId,
        until: CheckpointId,
        table: TableId,
        hashes: RangeInclusive<u64>,
    ) -> Result<Incremental> {
        self.call(|parts| {
            let row_f32s = row_f32s(&parts.core, until, table)?;
            let tables = vec![(table, row_f32s)];
            walk_changes(&parts.core, (since, until), tables, hashes).map(Incremental)
        })
    }

    /// Says that a reader of this name has everything up to a retained checkpoint: what changes from there on
    /// can be told by [`Store::incremental`] also when the checkpoint is dropped. A reader that comes again
    /// moves its cursor. Waits for a running checkpoint.
    ///
    /// A cursor keeps the notes of removed keys (12 B on disk and an index entry each) until it moves on: take it back with
    /// [`Store::remove_cursor`] when the reader is gone. It keeps no file. A rollback drops cursors beyond its
    /// checkpoint, a repair that lost rows drops all.
    ///
    /// # Cost
    /// A new manifest, and a few syncs; nothing if the cursor is there already.
    ///
    /// # Durability
    /// It survives a crash once this returns.
    ///
    /// # Errors
    /// `InvalidArgument` (a checkpoint that is not retained; a name that is empty or longer than 255 bytes), `NoSpace`,
    /// `Io`, `Poisoned`, `ReadOnly`.
    pub fn set_cursor(&self, name: &str, checkpoint: CheckpointId) -> Result<()> {
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
            let what = format!(
                "a cursor's name has 1 to {NAME_BYTES_MAX} bytes, this one {}",
                name.len()
            );
            return Err(ArgumentError::Other { what }.into());
        }
        self.move_cursor(name, Some(checkpoint))
    }

    /// Takes the cursor of a reader back, if it has one: what it has not seen need not be kept.
    ///
    /// # Cost
    /// As [`Store::set_cursor`].
    ///
    /// # Durability
    /// As [`Store::set_cursor`].
    ///
    /// # Errors
    /// `NoSpace`, `Io`, `Poisoned`, `ReadOnly`.
    pub fn remove_cursor(&self, name: &str) -> Result<()> {
        self.move_cursor(name, None)
    }

    fn move_cursor(&self, name: &str, checkpoint: Option<CheckpointId>) -> Result<()> {
        let core = &self.parts.core;
        core.check_writer()?;
        core.guarded(|| self.parts.checkpointer.set_cursor(name, checkpoint))
    }

    /// The readers that follow the store, by name.
    ///
    /// # Cost
    /// No I/O.
    #[must_use]
    pub fn cursors(&self) -> Vec<CursorInfo> {
        let core = &self.parts.core;
        if core.check_process().is_err() {
            return Vec::new();
        }
        let versions = core.ssd.versions();
        let info = |(name, at): (&String, &crate::ssd::version::Cursor)| CursorInfo {
            name: name.clone(),
            checkpoint: at.checkpoint,
        };
        versions.cursors.iter().map(info).collect()
    }
}

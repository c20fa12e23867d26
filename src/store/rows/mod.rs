//! What does a checkpoint hold, row by row?

mod changes;
pub mod walk;

use std::ops::RangeInclusive;

pub use self::changes::{Change, CursorInfo, Incremental, walk_changes};
use self::walk::{Scope, Walk};
use super::Store;
use super::core::Core;
use crate::error::Result;
use crate::units::{CheckpointId, TableId};

/// One row of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Row<'a> {
    /// Its table.
    pub table: TableId,
    /// Its key.
    pub key: u64,
    /// The checkpoint interval in which it last changed.
    pub interval: u32,
    /// Weights, state, metadata (u32 bit patterns): `[row_f32s]`.
    pub values: &'a [f32],
}

/// Walks the rows of a checkpoint in the order of (table, mix64(key)).
pub struct RowIter(Walk);

impl RowIter {
    /// Opens a retained checkpoint for iteration. What it needs stays readable while the iterator
    /// lives, also when the checkpoint is dropped.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Io`, `Corrupt`.
    pub(super) fn open(
        core: &Core,
        checkpoint: CheckpointId,
        tables: Vec<(TableId, usize)>,
        hashes: RangeInclusive<u64>,
    ) -> Result<RowIter> {
        let scope = Scope {
            checkpoint,
            tables,
            hashes,
            first_interval: 0,
            with_removed: false,
        };
        Walk::new(&core.ssd, core.process, scope).map(RowIter)
    }

    /// The next row; `None` after the last.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Forked`. After an error the iterator is at its end.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>> {
        let found = self.0.next()?;
        Ok(found.map(|found| Row {
            table: found.table,
            key: found.key,
            interval: found.interval,
            values: &self.0.row,
        }))
    }
}

/// The tables that a checkpoint has, and the f32s of their rows.
pub(super) fn tables_of(core: &Core, checkpoint: CheckpointId) -> Result<Vec<(TableId, usize)>> {
    let all = (0..).zip(core.ssd.tables_at(checkpoint)?);
    let there = all.filter(|(_, table)| !table.is_dropped);
    let tables = there.map(|(id, table)| (TableId(id), table.descriptor.row_f32s()));
    Ok(tables.collect())
}

/// The f32s of the rows of one table, which may have been dropped since.
fn row_f32s(core: &Core, checkpoint: CheckpointId, table: TableId) -> Result<usize> {
    let states = core.ssd.tables_at(checkpoint)?;
    let then = states.get(table.0 as usize).filter(|then| !then.is_dropped);
    Ok(match then {
        Some(then) => then.descriptor.row_f32s(),
        None => core.table(table)?.descriptor.row_f32s(),
    })
}

impl Store {
    /// Walks the rows of a retained checkpoint, of all tables that it has ([`Store::tables_at`]).
    ///
    /// # Cost
    /// Every key block and every row of the checkpoint's files is read once; 16 MiB of windows.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Corrupt`, `Io`.
    ///
    /// # Examples
    /// ```
    /// # use hps::*;
    /// # let directory = std::env::temp_dir().join(format!("hps-rows-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let items = store.create_table(&TableDescriptor::new("items", 4))?;
    /// # let lease = store.pull(items, &[7, 8], &mut [0.0; 8])?;
    /// # store.push(&lease, Update::weights(&[0.5; 8]))?;
    /// # drop(lease);
    /// let checkpoint = store.checkpoint(1, &[])?.id;
    /// let mut rows = store.rows(checkpoint)?;
    /// while let Some(row) = rows.next_row()? {
    ///     println!("{} {}: {:?}", row.table, row.key, row.values);
    /// }
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # hps::Result::Ok(())
    /// ```
    pub fn rows(&self, checkpoint: CheckpointId) -> Result<RowIter> {
        self.call(|parts| {
            let tables = tables_of(&parts.core, checkpoint)?;
            RowIter::open(&parts.core, checkpoint, tables, 0..=u64::MAX)
        })
    }

    /// Walks the rows of one table, which may have been dropped since, whose keys are in a range of [`mix64`](crate::mix64), of a retained
    /// checkpoint: an export by several threads, or nodes, has one such walk for each
    /// [`part_range`](crate::part_range).
    ///
    /// # Cost
    /// Files of the checkpoint that may have keys in the range are opened, their footers read where it is
    /// not the current version. Of each the part that is in the range is read, up to a window (16 MiB
    /// for all of them, 1 MiB at most) more, and some blocks of 4 KiB to find its ends.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint or table, `Corrupt`, `Io`.
    ///
    /// ```
    /// # use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, Update, part_range};
    /// # fn main() -> hps::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("hps-rows-of-{}", std::process::id()));
    /// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
    /// # let store = Store::create(&directory, CreateOptions::new(), options)?;
    /// # let table = store.create_table(&TableDescriptor::new("clicks", 1))?;
    /// # let lease = store.pull(table, &[1, 2, 3, 4, 5], &mut [0.0; 5])?;
    /// # store.push(&lease, Update::weights(&[0.5; 5]))?;
    /// # drop(lease);
    /// let checkpoint = store.checkpoint(1, &[])?.id;
    /// let counts = std::thread::scope(|scope| {
    ///     let count = |part| {
    ///         let mut rows = store.rows_of(checkpoint, table, part_range(part, 4))?;
    ///         let mut count = 0;
    ///         while rows.next_row()?.is_some() {
    ///             count += 1;
    ///         }
    ///         Ok::<u64, hps::Error>(count)
    ///     };
    ///     let threads: Vec<_> = (0..4).map(|part| scope.spawn(move || count(part))).collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).sum::<hps::Result<u64>>()
    /// })?;
    /// assert_eq!(counts, 5);
    /// # store.close()?;
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn rows_of(
        &self,
        checkpoint: CheckpointId,
        table: TableId,
        hashes: RangeInclusive<u64>,
    ) -> Result<RowIter> {
        self.call(|parts| {
            let row_f32s = row_f32s(&parts.core, checkpoint, table)?;
            RowIter::open(&parts.core, checkpoint, vec![(table, row_f32s)], hashes)
        })
    }
}

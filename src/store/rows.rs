//! What does a checkpoint hold, row by row?

use std::sync::Arc;

use super::core::{Core, Table};
use crate::error::{Error, Result};
use crate::fork::Process;
use crate::format::footer::RunKind;
use crate::ssd::data_file::DataFile;
use crate::ssd::scan::Merge;
use crate::units::{CheckpointId, TableId};

/// Memory of all windows together.
const WINDOWS_BYTES: u64 = 16 << 20;

/// One row of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
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
pub struct RowIter {
    files: Arc<Vec<Arc<DataFile>>>,
    tables: Vec<Arc<Table>>,
    table: usize,
    merge: Option<Merge>,
    row: Vec<f32>,
    process: Process,
}

impl RowIter {
    /// Opens a retained checkpoint for iteration. What it needs stays readable while the iterator
    /// lives, also when the checkpoint is dropped.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Io`, `Corrupt`.
    pub(super) fn open(core: &Core, checkpoint: CheckpointId) -> Result<RowIter> {
        let files = Arc::new(core.ssd.version_files(checkpoint)?);
        core.ssd.iterates(&files);
        Ok(RowIter {
            files,
            tables: core.all_tables(),
            table: 0,
            merge: None,
            row: Vec::new(),
            process: core.process,
        })
    }

    /// The next row; `None` after the last.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Forked`. After an error the iterator is at its end.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>> {
        if !self.process.is_this() {
            return Err(Error::Forked);
        }
        match self.step() {
            Ok(Some((key, interval))) => {
                let table = self.tables[self.table].id;
                Ok(Some(Row {
                    table,
                    key,
                    interval,
                    values: &self.row,
                }))
            }
            Ok(None) => Ok(None),
            Err(e) => {
                self.table = self.tables.len();
                self.merge = None;
                Err(e)
            }
        }
    }

    fn step(&mut self) -> Result<Option<(u64, u32)>> {
        while let Some(table) = self.tables.get(self.table) {
            if self.merge.is_none() {
                let runs = self.files.len().max(1) as u64;
                let window = (WINDOWS_BYTES / runs).clamp(16 << 10, 1 << 20);
                self.merge = Some(Merge::new(&self.files, table.id.0, window)?);
                self.row.resize(table.descriptor.row_f32s(), 0.0);
            }
            let Some(merge) = &mut self.merge else { break };
            while let Some(index) = merge.newest()? {
                let cursor = merge.cursor(index);
                let Some(entry) = cursor.entry() else { break };
                let live = cursor.run.kind == RunKind::Rows;
                if live {
                    cursor.read_row(&mut self.row)?;
                }
                merge.step()?;
                if live {
                    return Ok(Some((entry.key, entry.interval)));
                }
            }
            self.merge = None;
            self.table += 1;
        }
        Ok(None)
    }
}

impl Drop for RowIter {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The windows are not there, the files are the parent's.
            std::mem::forget((self.merge.take(), std::mem::take(&mut self.files)));
        }
    }
}

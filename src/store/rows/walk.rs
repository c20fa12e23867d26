//! How are the entries of a checkpoint walked, table by table?

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fork::Process;
use crate::format::footer::{Run, RunKind};
use crate::io::Engine;
use crate::ssd::Ssd;
use crate::ssd::data_file::DataFile;
use crate::ssd::scan::{Merge, Newest};
use crate::units::{CheckpointId, TableId};

/// Memory of all windows together.
const WINDOWS_BYTES: u64 = 16 << 20;

/// What is walked.
pub struct Scope {
    pub checkpoint: CheckpointId,
    /// Tables and the f32s of their rows.
    pub tables: Vec<(TableId, usize)>,
    /// Of mix64.
    pub hashes: RangeInclusive<u64>,
    /// Entries of earlier intervals are left out.
    pub first_interval: u32,
    /// Whether removed keys come out too.
    pub with_removed: bool,
}

/// Walks the newest copies of keys in the order of (table, mix64(key)).
pub struct Walk {
    files: Arc<Vec<Arc<DataFile>>>,
    engine: Arc<dyn Engine>,
    scope: Scope,
    /// The place of the current table in the scope.
    at: usize,
    merge: Option<Merge>,
    /// The row of the key found last, unless it was removed.
    pub row: Vec<f32>,
    process: Process,
}

impl Walk {
    /// Opens the files that are needed; they stay readable while it lives, also when the checkpoint is
    /// dropped.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown checkpoint, `Io`, `Corrupt`.
    pub fn new(ssd: &Ssd, process: Process, scope: Scope) -> Result<Walk> {
        let files = ssd.version_files(scope.checkpoint, &scope.hashes, scope.first_interval)?;
        let files = Arc::new(files);
        ssd.iterates(&files);
        Ok(Walk {
            files,
            engine: Arc::clone(&ssd.io.engine),
            scope,
            at: 0,
            merge: None,
            row: Vec::new(),
            process,
        })
    }

    /// The next; `None` after the last, and after an error.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Forked`.
    pub fn next(&mut self) -> Result<Option<Newest>> {
        if !self.process.is_this() {
            return Err(Error::Forked);
        }
        let found = self.step();
        if found.is_err() {
            self.at = self.scope.tables.len();
            self.merge = None;
        }
        found
    }

    fn step(&mut self) -> Result<Option<Newest>> {
        while let Some(&(table, row_f32s)) = self.scope.tables.get(self.at) {
            if self.merge.is_none() {
                let runs = self.files.iter().flat_map(|file| &file.runs);
                let rows = |run: &&Run| run.table == table.0 && run.kind == RunKind::Rows;
                let runs = runs.filter(rows).count().max(1) as u64;
                // Two for each run where they are read ahead.
                let each = if self.scope.first_interval == 0 { 2 } else { 1 };
                let window = (WINDOWS_BYTES / runs / each).clamp(16 << 10, 1 << 20);
                let (hashes, first) = (&self.scope.hashes, self.scope.first_interval);
                let mut merge = Merge::within(&self.files, table.0, hashes, first, window)?;
                merge.read_ahead(&*self.engine, &self.files);
                self.merge = Some(merge);
                self.row.resize(row_f32s, 0.0);
            }
            let Some(merge) = &mut self.merge else { break };
            while let Some(index) = merge.newest()? {
                let cursor = merge.cursor(index);
                let Some(entry) = cursor.entry() else { break };
                let is_removed = cursor.run.kind == RunKind::Tombstones;
                if !is_removed {
                    merge.read_row(index, &mut self.row)?;
                }
                merge.step()?;
                if !is_removed || self.scope.with_removed {
                    return Ok(Some(Newest {
                        table,
                        key: entry.key,
                        interval: entry.interval,
                        is_removed,
                    }));
                }
            }
            self.merge = None;
            self.at += 1;
        }
        Ok(None)
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The windows are not there, the files are the parent's.
            std::mem::forget((self.merge.take(), std::mem::take(&mut self.files)));
        }
    }
}

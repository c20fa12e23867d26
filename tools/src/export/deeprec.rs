//! How does a table leave as an EmbeddingVariable of DeepRec?
//!
//! - Its columns are files with a fixed stride, of which an index says what they are.

use std::path::{Path, PathBuf};

use anyhow::Result;
use hps::TableDescriptor;

use super::Args;
use super::arrays::Columns;
use super::files::Files;
use super::walk::{Tour, Written};
use crate::models::crew::Crew;
use crate::models::{FileOf, deeprec};

/// The files of a checkpoint that is written.
pub struct Checkpoint {
    columns: Columns,
    folder: PathBuf,
    variable: String,
    table: TableDescriptor,
}

impl Checkpoint {
    /// Makes it of files that were made.
    #[must_use]
    pub fn new(
        args: &Args,
        table: &TableDescriptor,
        folder: &Path,
        columns: Columns,
    ) -> Checkpoint {
        let variable = args.variable.as_deref().unwrap_or(args.table());
        Checkpoint {
            columns: columns.with_sums(),
            folder: folder.to_path_buf(),
            variable: variable.to_owned(),
            table: table.clone(),
        }
    }
}

impl Files for Checkpoint {
    fn row_bytes(&self) -> usize {
        self.columns.row_bytes()
    }

    fn left_out(&self) -> &[String] {
        self.columns.left_out()
    }

    fn write(&self, tour: &Tour<'_>, crew: &Crew<'_>) -> Result<()> {
        self.columns.write(tour, crew)
    }

    fn written_bytes(&self) -> u64 {
        self.columns.written_bytes()
    }

    fn sync(&self) -> Result<()> {
        self.columns.sync()
    }

    fn finish(
        self: Box<Self>,
        written: &Written,
        removed: Option<&[u64]>,
    ) -> Result<Vec<(String, u64)>> {
        let rows = written.rows;
        deeprec::check_rows(rows)?;
        let (variable, table) = (self.variable, self.table);
        let files: Vec<FileOf> = self.columns.files().cloned().collect();
        let sums = self.columns.sums();
        let mut all = Box::new(self.columns).finish(written, removed)?;
        all.extend(deeprec::finish(
            &self.folder,
            &variable,
            &table,
            &files,
            &sums,
            rows,
        )?);
        Ok(all)
    }
}

//! How are Parquet files read, a row group at a time?
//!
//! - Whatever the file is, the answer is rows or an error that names it; a panic of the library is an error, too.
//! - In memory are, beside a chunk, a page and a dictionary of each column, and the values of a batch of rows.

mod columns;
mod group;
mod rows;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::parquet::file::metadata::ParquetMetaData;
use anyhow::Result;
use hps::Error;

pub use rows::Rows;

use crate::cli::Usage;
use crate::parquet_file::{check_ends, check_group, footer};
use columns::{Column, Wanted};
use group::Group;

/// An open Parquet file.
pub struct RowGroups {
    path: PathBuf,
    file: Arc<File>,
    metadata: ParquetMetaData,
    columns: Arc<[Column]>,
    /// Bytes of the file, and those that were counted as done.
    bytes: u64,
    counted: u64,
    /// The number of the next row group.
    next: usize,
    group: Option<Group>,
    /// A row that did not fit into the last chunk.
    left: Vec<u8>,
}

impl RowGroups {
    /// Opens a file, and finds its columns: those asked for, or those that the metadata beside it names.
    ///
    /// # Errors
    /// `Usage`, `Corrupt`, `Io`, naming the file.
    pub fn open(path: &Path, asked: &[String]) -> Result<RowGroups> {
        if path.as_os_str() == "-" {
            let why = "--from parquet: a file is read from its end, which standard input does not have; give a path";
            return Err(Usage(why.to_owned()).into());
        }
        let wanted = Wanted::of(path, asked)?;
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        let bytes = check_ends(path, &file)?;
        let metadata = footer(path, &file, bytes)?;
        let found = metadata.file_metadata();
        let columns = wanted.find(path, found.schema_descr())?;
        let rows = u64::try_from(found.num_rows()).unwrap_or(0);
        if let Some(promised) = wanted.rows.filter(|promised| *promised != rows) {
            let what = format!("found {rows} rows, _metadata.json has {promised}");
            return Err(Error::corrupt(path, 0, what).into());
        }
        check_groups(path, bytes, &metadata, &columns)?;
        Ok(RowGroups {
            path: path.to_path_buf(),
            file: Arc::new(file),
            metadata,
            columns: columns.into(),
            bytes,
            counted: 0,
            next: 0,
            group: None,
            left: Vec::new(),
        })
    }

    /// How many fields there are.
    #[must_use]
    pub fn fields(&self) -> usize {
        self.columns.len()
    }

    /// Fills a chunk with rows of one row group, and says where they are; `None` at the end. Bytes that were
    /// read are added to `done`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, naming the file.
    pub fn next(
        &mut self,
        bytes: &mut Vec<u8>,
        chunk_bytes: usize,
        done: &AtomicU64,
    ) -> Result<Option<Rows>> {
        bytes.clear();
        loop {
            let Some(group) = &mut self.group else {
                if self.next == self.metadata.num_row_groups() {
                    done.fetch_add(self.bytes.saturating_sub(self.counted), Ordering::Relaxed);
                    self.counted = self.bytes;
                    return Ok(None);
                }
                let file = (&self.file, &self.metadata);
                let group = Group::open(&self.path, file, &self.columns, self.next, chunk_bytes)?;
                self.group = Some(group);
                self.next += 1;
                continue;
            };
            let first = group.given - u64::from(!self.left.is_empty());
            let rows = Rows {
                columns: Arc::clone(&self.columns),
                offsets: Arc::clone(&group.offsets),
                group: group.number,
                first,
            };
            bytes.append(&mut self.left);
            group.fill(&self.path, &rows, bytes, &mut self.left, chunk_bytes)?;
            if group.given == group.rows && self.left.is_empty() {
                done.fetch_add(group.bytes, Ordering::Relaxed);
                self.counted += group.bytes;
                self.group = None;
            }
            if !bytes.is_empty() {
                return Ok(Some(rows));
            }
        }
    }
}

/// Checks what the footer says of each row group.
fn check_groups(
    path: &Path,
    bytes: u64,
    metadata: &ParquetMetaData,
    columns: &[Column],
) -> Result<()> {
    for number in 0..metadata.num_row_groups() {
        let names = columns.iter().map(|column| (column.leaf, &*column.name));
        check_group(path, bytes, metadata, number, names)?;
    }
    Ok(())
}

//! How are Parquet files read, a row group at a time?
//!
//! - Whatever the file is, the answer is rows or an error that names it; a panic of the library is an error, too.
//! - In memory are, beside a chunk, a page and a dictionary of each column, and the values of a batch of rows.

mod columns;
mod group;
mod guard;
mod rows;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::parquet::file::metadata::ParquetMetaData;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use anyhow::Result;
use hps::Error;

pub use rows::Rows;

use crate::cli::Usage;
use columns::{Column, Wanted};
use group::Group;
use guard::{guarded, told};

const MAGIC: &[u8; 4] = b"PAR1";
/// Magic, length of the footer, magic.
const BYTES_MIN: u64 = 12;

/// An open Parquet file.
pub struct RowGroups {
    path: PathBuf,
    reader: SerializedFileReader<File>,
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
        let reader = guarded(|| SerializedFileReader::new(file))
            .map_err(|fault| told(path, bytes.saturating_sub(8), "footer", fault))?;
        let found = reader.metadata().file_metadata();
        let columns = wanted.find(path, found.schema_descr())?;
        let rows = u64::try_from(found.num_rows()).unwrap_or(0);
        if let Some(promised) = wanted.rows.filter(|promised| *promised != rows) {
            let what = format!("found {rows} rows, _metadata.json has {promised}");
            return Err(Error::corrupt(path, 0, what).into());
        }
        check_groups(path, bytes, reader.metadata(), &columns)?;
        Ok(RowGroups {
            path: path.to_path_buf(),
            reader,
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
                if self.next == self.reader.num_row_groups() {
                    done.fetch_add(self.bytes.saturating_sub(self.counted), Ordering::Relaxed);
                    self.counted = self.bytes;
                    return Ok(None);
                }
                let group = Group::open(&self.path, &self.reader, &self.columns, self.next)?;
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

/// Checks how a file begins and ends; its length.
fn check_ends(path: &Path, file: &File) -> Result<u64> {
    let failed = |e| Error::io("read", path, e);
    let bytes = file.metadata().map_err(failed)?.len();
    let mut found = [0; 4];
    let mut at = |offset: u64| {
        let read = file.read_exact_at(&mut found, offset);
        read.map_err(failed)
            .map(|()| (found == *MAGIC).then_some(()).ok_or(found))
    };
    if bytes < BYTES_MIN {
        let what = format!("found {bytes} bytes, a Parquet file has more");
        return Err(Error::corrupt(path, 0, what).into());
    }
    if let Err(found) = at(0)? {
        let found = found.escape_ascii();
        let what = format!("found {found}, expected PAR1, with which a Parquet file begins");
        return Err(Error::corrupt(path, 0, what).into());
    }
    if let Err(found) = at(bytes - 4)? {
        let what = match &found {
            b"PARE" => String::from("found PARE: the file is encrypted, which can't be read here"),
            other => format!(
                "found {}, expected PAR1, with which a Parquet file ends: it is cut off",
                other.escape_ascii()
            ),
        };
        return Err(Error::corrupt(path, bytes - 4, what).into());
    }
    Ok(bytes)
}

/// Checks what the footer says of each row group.
fn check_groups(
    path: &Path,
    bytes: u64,
    metadata: &ParquetMetaData,
    columns: &[Column],
) -> Result<()> {
    for (number, group) in metadata.row_groups().iter().enumerate() {
        if group.num_rows() < 0 {
            let what = format!("row group {number}: found {} rows", group.num_rows());
            return Err(Error::corrupt(path, 0, what).into());
        }
        for column in columns {
            let range = guarded(|| Ok(group.column(column.leaf).byte_range()));
            let end = range
                .ok()
                .and_then(|(offset, length)| offset.checked_add(length));
            if end.is_none_or(|end| end > bytes) {
                let what = format!(
                    "row group {number}, column {}: found a place behind the end of the file, of {bytes} bytes",
                    column.name
                );
                return Err(Error::corrupt(path, 0, what).into());
            }
        }
    }
    Ok(())
}

//! What are the values of one file, record by record? For fuzz targets and tests, which have the file
//! in memory.

use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;

#[cfg(feature = "parquet")]
use super::layout::Place;
use super::layout::{Fault, Format, Sink};
#[cfg(feature = "parquet")]
use super::parquet::RowGroups;
use super::source::Source;

/// Fields and values of a record.
pub type Record = Vec<(usize, u64)>;

/// Keeps everything that it is given.
#[derive(Default)]
struct Kept {
    records: Vec<Record>,
    record: Record,
}

impl Sink for Kept {
    fn put(&mut self, field: usize, value: u64) -> Result<(), Fault> {
        self.record.push((field, value));
        Ok(())
    }

    fn end_row(&mut self, _: Range<usize>) -> Result<(), Fault> {
        self.records.push(std::mem::take(&mut self.record));
        Ok(())
    }
}

/// Reads a file as `hps-keyset extract` does, `chunk_bytes` at a time. Keeps all of its records.
///
/// # Errors
/// What is wrong with the file, which is called `name`; what the reader says.
pub fn values(
    name: &str,
    reader: impl Read + Send + 'static,
    format: Format,
    chunk_bytes: usize,
) -> Result<Vec<Record>> {
    let sizes = (chunk_bytes, &Arc::default());
    let mut source = Source::of_reader(Path::new(name), Box::new(reader), format, sizes);
    let (mut kept, mut bytes) = (Kept::default(), Vec::new());
    while let Some(chunk) = source.next(&mut bytes)? {
        chunk.layout.parse(&bytes, &chunk.place(), &mut kept)?;
    }
    source.end()?;
    Ok(kept.records)
}

/// As [`values`], of columns of a Parquet file, which is read from where it is.
///
/// # Errors
/// What is wrong with the file.
#[cfg(feature = "parquet")]
pub fn parquet_values(path: &Path, columns: &[String], chunk_bytes: usize) -> Result<Vec<Record>> {
    let mut groups = RowGroups::open(path, columns)?;
    let (mut kept, mut bytes, done) = (Kept::default(), Vec::new(), Arc::default());
    while let Some(rows) = groups.next(&mut bytes, chunk_bytes, &done)? {
        rows.parse(&bytes, &Place { path, offset: 0 }, &mut kept)?;
    }
    Ok(kept.records)
}

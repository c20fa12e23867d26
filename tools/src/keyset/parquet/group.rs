//! How do the columns of a row group become rows?
//!
//! - All columns are decoded by batches of the same rows; then the values of each row are put together.
//! - A value that is missing, and a list that is, give nothing.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ::parquet::column::reader::get_column_reader;
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ParquetMetaData;
use anyhow::Result;
use hps::Error;

use super::super::layout::Place;
use super::columns::{Column, Kind};
use super::rows::Rows;
use crate::parquet_file::guard::{guarded, told};
use crate::parquet_file::lists::{BLOCK_ROWS, Pages};
use crate::parquet_file::pages::FilePages;
use crate::parquet_file::records::{Records, Typed};

/// Values of a list, at most, unless a chunk has room for more.
const LIST_MAX: u64 = 1 << 20;

/// A row group that is read.
pub struct Group {
    pub number: usize,
    pub rows: u64,
    /// Rows that were decoded, and those of them that are in chunks, or left.
    decoded: u64,
    pub given: u64,
    values: Vec<Values>,
    pub offsets: Arc<[u64]>,
    /// Compressed bytes of its columns.
    pub bytes: u64,
}

/// A column of a row group, and what of it is decoded.
struct Values {
    records: Records,
    kind: Kind,
    /// The next level, and the next value.
    at: usize,
    at_value: usize,
}

/// Why there is no row.
enum Missing {
    /// A negative value of 32 bits.
    Negative(i32),
    /// Levels and values do not fit together.
    Torn,
}

impl Group {
    /// Opens the columns of a row group, for chunks of so many bytes.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn open(
        path: &Path,
        (file, metadata): (&Arc<File>, &ParquetMetaData),
        columns: &[Column],
        number: usize,
        chunk_bytes: usize,
    ) -> Result<Group> {
        let metadata = metadata.row_group(number);
        let mut group = Group {
            number,
            rows: u64::try_from(metadata.num_rows()).unwrap_or(0),
            decoded: 0,
            given: 0,
            values: Vec::new(),
            offsets: Arc::new([]),
            bytes: 0,
        };
        let mut offsets = Vec::new();
        for column in columns {
            let chunk = metadata.column(column.leaf);
            let (offset, bytes) = chunk.byte_range();
            offsets.push(offset);
            group.bytes += bytes;
            let reader = guarded(|| {
                let descr = chunk.column_descr_ptr();
                let values = u64::try_from(chunk.num_values()).unwrap_or(0);
                let most = LIST_MAX.max(chunk_bytes as u64 / 8);
                let most = (descr.max_rep_level() > 0).then_some(most);
                let pages = Pages::new(FilePages::new(Arc::clone(file), chunk)?, values, most);
                Ok(get_column_reader(descr, Box::new(pages)))
            });
            let what = format!("row group {number}, column {}", column.name);
            let reader = reader.map_err(|fault| told(path, offset, &what, fault))?;
            let records = Records::new(reader, chunk.column_descr());
            let records = records.ok_or_else(|| {
                let what = format!("{what}: found another type than the schema has");
                Error::corrupt(path, offset, what)
            })?;
            group.values.push(Values {
                records,
                kind: column.kind,
                at: 0,
                at_value: 0,
            });
        }
        group.offsets = offsets.into();
        Ok(group)
    }

    /// Appends rows until the chunk is full; a row that it has no room for is left.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn fill(
        &mut self,
        path: &Path,
        rows: &Rows,
        bytes: &mut Vec<u8>,
        left: &mut Vec<u8>,
        chunk_bytes: usize,
    ) -> Result<()> {
        let place = Place { path, offset: 0 };
        while self.given < self.rows {
            if self.given == self.decoded {
                self.decode(path, rows, chunk_bytes)?;
            }
            let start = bytes.len();
            for (field, values) in self.values.iter_mut().enumerate() {
                values.give(bytes).map_err(|missing| {
                    let what = match missing {
                        Missing::Negative(value) => format!(
                            "found {value} in a column of signed 32 bits: a negative value could be one key or \
                             another; write the column as uint32 or int64"
                        ),
                        Missing::Torn => String::from("found levels and values that contradict"),
                    };
                    rows.bad(&place, self.given, field, &what)
                })?;
            }
            self.given += 1;
            let row_bytes = bytes.len() - start;
            if row_bytes > chunk_bytes {
                let what = format!(
                    "found a row of {row_bytes} bytes, more than the buffer of {chunk_bytes}: a larger --memory \
                     has a larger one"
                );
                return Err(rows.bad(&place, self.given - 1, 0, &what));
            }
            if bytes.len() > chunk_bytes {
                left.extend_from_slice(&bytes[start..]);
                bytes.truncate(start);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Decodes the next rows of all columns.
    fn decode(&mut self, path: &Path, rows: &Rows, chunk_bytes: usize) -> Result<()> {
        let fits = (chunk_bytes / 16 / self.values.len()).clamp(1, BLOCK_ROWS);
        let wanted = (self.rows - self.decoded).min(fits as u64);
        let count = usize::try_from(wanted).unwrap_or(fits);
        for (field, values) in self.values.iter_mut().enumerate() {
            let group = self.number;
            let (name, offset) = (&rows.columns[field].name, rows.offsets[field]);
            let what = format!(
                "row group {group}, column {name}, rows from {}",
                self.decoded
            );
            let found = guarded(|| values.decode(count));
            let found = found.map_err(|fault| told(path, offset, &what, fault))?;
            if found != count {
                let (found, promised) = (self.decoded + found as u64, self.rows);
                let what = format!(
                    "row group {group}, column {name}: found {found} rows, the footer has {promised}"
                );
                return Err(Error::corrupt(path, offset, what).into());
            }
        }
        self.decoded += wanted;
        Ok(())
    }
}

impl Values {
    /// Decodes so many rows; how many there were.
    fn decode(&mut self, rows: usize) -> Result<usize, ParquetError> {
        (self.at, self.at_value) = (0, 0);
        self.records.decode(rows)
    }

    /// Appends the values of the next row, with their number before them.
    fn give(&mut self, bytes: &mut Vec<u8>) -> Result<(), Missing> {
        let start = bytes.len();
        bytes.extend([0; 4]);
        let mut count = 0u32;
        loop {
            let level = match self.records.level {
                0 => Some(&0),
                _ => self.records.levels.get(self.at),
            };
            if *level.ok_or(Missing::Torn)? == self.records.level {
                bytes.extend(self.value()?.to_le_bytes());
                count += 1;
            }
            self.at += 1;
            let repeats = self.records.repeats.get(self.at);
            let goes_on = self.records.is_list && repeats.is_some_and(|r| *r > 0);
            if !goes_on {
                break;
            }
        }
        bytes[start..start + 4].copy_from_slice(&count.to_le_bytes());
        Ok(())
    }

    fn value(&mut self) -> Result<u64, Missing> {
        let at = self.at_value;
        self.at_value += 1;
        match &self.records.values {
            Typed::I32(_, values) => match *values.get(at).ok_or(Missing::Torn)? {
                value @ ..0 if self.kind == Kind::I32 => Err(Missing::Negative(value)),
                value => Ok(value.cast_unsigned().into()),
            },
            Typed::I64(_, values) => Ok(values.get(at).ok_or(Missing::Torn)?.cast_unsigned()),
            Typed::F32(..) => Err(Missing::Torn),
        }
    }
}

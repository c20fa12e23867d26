//! How is a column of a row group read, and does each row have in it what it should?

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use ::parquet::column::reader::get_column_reader;
use anyhow::Result;
use hps::Error;

use super::FileOf;
use super::schema::Named;
use crate::parquet_file::guard::{Broken, guarded, told};
use crate::parquet_file::lists::Pages;
use crate::parquet_file::pages::FilePages;
use crate::parquet_file::records::{Records, Typed};

/// A column of a row group.
pub struct Column {
    path: PathBuf,
    /// Where it begins in the file.
    offset: u64,
    group: usize,
    named: Named,
    rows: u64,
    /// Rows that were decoded.
    decoded: u64,
    records: Records,
}

impl Column {
    /// Opens column `index` of the folder in a row group; `dim`: values of each list.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn open(
        of: &FileOf,
        file: &Arc<File>,
        group: usize,
        index: usize,
        named: Named,
        dim: usize,
    ) -> Result<Column> {
        let metadata = of.metadata.row_group(group);
        let chunk = metadata.column(of.leaves[index]);
        let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
        let values = u64::try_from(chunk.num_values()).unwrap_or(0);
        let (offset, _) = chunk.byte_range();
        let what = format!("row group {group}, column {}", named.name);
        let records = guarded(|| {
            let pages = FilePages::new(Arc::clone(file), chunk)?;
            // A list that is a little too long is read, for its length to be told.
            let most = named.is_list.then_some(2 * dim as u64 + 16);
            let pages = Pages::new(pages, values, most);
            let reader = get_column_reader(chunk.column_descr_ptr(), Box::new(pages));
            Ok(Records::new(reader, chunk.column_descr()))
        });
        let records = records.map_err(|fault| told(&of.path, offset, &what, fault))?;
        let records = records.ok_or_else(|| {
            let what = format!("{what}: found another type than the schema has");
            Error::corrupt(&of.path, offset, what)
        })?;
        Ok(Column {
            path: of.path.clone(),
            offset,
            group,
            named,
            rows,
            decoded: 0,
            records,
        })
    }

    /// Decodes the next rows, each of which has `width` values in a list, or one value.
    ///
    /// # Errors
    /// `Corrupt` naming the row; `Io`.
    pub fn next(&mut self, rows: usize, width: usize) -> Result<()> {
        self.decode(rows)?;
        self.check(rows, if self.named.is_list { width } else { 1 })?;
        self.decoded += rows as u64;
        Ok(())
    }

    /// Checks that nothing is behind the last row.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn end(&mut self) -> Result<()> {
        let more = guarded(|| self.records.decode(1));
        match more.map_err(|fault| self.failed(fault))? {
            0 => Ok(()),
            _ => {
                let rows = self.rows;
                let what = format!("found more rows than the {rows} that the footer has");
                Err(self.corrupt(&what))
            }
        }
    }

    /// The values decoded last, where they are f32s.
    #[must_use]
    pub fn floats(&self) -> &[f32] {
        match &self.records.values {
            Typed::F32(_, values) => values,
            _ => &[],
        }
    }

    /// The values decoded last, where they are integers of 32 bits.
    #[must_use]
    pub fn integers(&self) -> &[i32] {
        match &self.records.values {
            Typed::I32(_, values) => values,
            _ => &[],
        }
    }

    /// The values decoded last, where they are integers of 64 bits.
    #[must_use]
    pub fn keys(&self) -> &[i64] {
        match &self.records.values {
            Typed::I64(_, values) => values,
            _ => &[],
        }
    }

    fn values_len(&self) -> usize {
        match &self.records.values {
            Typed::I32(_, values) => values.len(),
            Typed::I64(_, values) => values.len(),
            Typed::F32(_, values) => values.len(),
        }
    }

    fn decode(&mut self, rows: usize) -> Result<()> {
        let found = guarded(|| self.records.decode(rows));
        let found = found.map_err(|fault| self.failed(fault))?;
        if found != rows {
            let (found, promised) = (self.decoded + found as u64, self.rows);
            return Err(self.corrupt(&format!("found {found} rows, the footer has {promised}")));
        }
        Ok(())
    }

    /// Checks that so many rows were decoded of so many values each: where one is missing, there are fewer.
    fn check(&self, rows: usize, width: usize) -> Result<()> {
        let records = &self.records;
        let count = rows * width;
        let goes_on = |list: &[i16]| list.iter().fold(true, |all, repeat| all & (*repeat == 1));
        let begins = |list: &[i16]| list[0] == 0 && goes_on(&list[1..]);
        let has_lists = !records.is_list
            || (records.repeats.len() == count && records.repeats.chunks_exact(width).all(begins));
        match has_lists && self.values_len() == count {
            true => Ok(()),
            false => Err(self.bad_row(width)),
        }
    }

    /// Names the first row that is not as it should be.
    #[cold]
    fn bad_row(&self, width: usize) -> anyhow::Error {
        let records = &self.records;
        let expected = match records.is_list {
            true => format!("expected a list of {width} numbers"),
            false => String::from("expected a number"),
        };
        let is_missing = |level: &i16| *level < records.level;
        let (mut row, mut at) = (self.decoded, 0);
        while at < records.levels.len() {
            let more = records.repeats.iter().skip(at + 1);
            let length = 1 + more.take_while(|repeat| **repeat > 0).count();
            let levels = records.levels.get(at..at + length).unwrap_or_default();
            let found = match (levels, records.is_list) {
                ([level], true) if is_missing(level) => {
                    Some(String::from("a null, or an empty list"))
                }
                (levels, _) if levels.iter().any(is_missing) => Some(String::from("a null")),
                (levels, true) if levels.len() != width => {
                    Some(format!("a list of {} numbers", levels.len()))
                }
                _ => None,
            };
            if let Some(found) = found {
                let what = format!("found {found}, {expected}");
                return self.corrupt_row(row, &what);
            }
            row += 1;
            at += length;
        }
        self.corrupt("found levels and values that contradict")
    }

    fn corrupt_row(&self, row: u64, what: &str) -> anyhow::Error {
        let (group, name) = (self.group, self.named.name);
        let what = format!("row group {group}, row {row}, column {name}: {what}");
        Error::corrupt(&self.path, self.offset, what).into()
    }

    fn corrupt(&self, what: &str) -> anyhow::Error {
        let what = format!("{}: {what}", self.place());
        Error::corrupt(&self.path, self.offset, what).into()
    }

    fn place(&self) -> String {
        format!("row group {}, column {}", self.group, self.named.name)
    }

    fn failed(&self, fault: Broken) -> anyhow::Error {
        let what = format!("{}, rows from {}", self.place(), self.decoded);
        told(&self.path, self.offset, &what, fault)
    }
}

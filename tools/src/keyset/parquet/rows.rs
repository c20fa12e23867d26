//! How do rows of Parquet stand in a chunk, between those who decode and those who make keys?
//!
//! - For each column of a row the number of its values, u32, then these, u64, all little-endian.
//! - A chunk has rows of one row group, so that a value that is refused is named with group and row.

use std::sync::Arc;

use anyhow::Result;

use super::super::layout::{Fault, Place, Sink};
use super::columns::Column;

/// The rows of a chunk.
#[derive(Debug)]
pub struct Rows {
    /// The columns, in the order of the fields.
    pub columns: Arc<[Column]>,
    /// Where the columns begin in the file.
    pub offsets: Arc<[u64]>,
    /// The row group.
    pub group: usize,
    /// The first row, counted from the first of the row group.
    pub first: u64,
}

impl Rows {
    /// What is wrong with a column of a row.
    #[cold]
    pub fn bad(&self, place: &Place<'_>, row: u64, field: usize, what: &str) -> anyhow::Error {
        let name = self.columns.get(field).map_or("", |column| &column.name);
        let offset = self.offsets.get(field).copied().unwrap_or(0);
        let place = Place { offset, ..*place };
        let group = self.group;
        place.bad(
            0,
            format!("row group {group}, row {row}, column {name}: {what}"),
        )
    }

    /// As [`super::super::layout::Layout::parse`].
    ///
    /// # Errors
    /// What the sink says, with row group, row and column.
    pub fn parse(&self, bytes: &[u8], place: &Place<'_>, sink: &mut impl Sink) -> Result<()> {
        let (mut at, mut row) = (0, self.first);
        let told = |fault, row, field| match fault {
            Fault::Refused(refused) => self.bad(place, row, field, &refused.to_string()),
            Fault::Other(error) => error,
        };
        while at < bytes.len() {
            let start = at;
            for field in 0..self.columns.len() {
                let count = bytes.get(at..).and_then(<[u8]>::first_chunk);
                let count = count.map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
                at += 4;
                let values = bytes.get(at..).and_then(|b| b.get(..count * 8));
                let (values, _) = values.unwrap_or_default().as_chunks::<8>();
                for value in values {
                    sink.put(field, u64::from_le_bytes(*value))
                        .map_err(|fault| told(fault, row, field))?;
                }
                at += count * 8;
            }
            sink.end_row(start..at.min(bytes.len()))
                .map_err(|fault| told(fault, row, 0))?;
            row += 1;
        }
        Ok(())
    }
}

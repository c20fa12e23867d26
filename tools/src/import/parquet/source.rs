//! How do rows come out of a folder of Parquet files?
//!
//! - Each thread takes the next row group, and decodes all of its columns by batches of the same rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use hps::TableDescriptor;

use super::column::Column;
use super::shape::open;
use super::{Found, GroupAt};
use crate::cli::Interrupt;
use crate::import::plan::{check_whole, column_of};
use crate::import::put::{BUFFERS_BYTES, ROWS_MAX};
use crate::import::source::{Chunk, Place, Reader, Source, is_finite};

/// Keys that are read at a time, where keys alone are.
const CHUNK_KEYS: u64 = 64 << 10;
/// The columns of keys and of weights.
const KEY: usize = 0;
const WEIGHTS: usize = 1;

/// What a column gives to a row.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Its number among the columns of the folder.
    index: usize,
    begin: usize,
    width: usize,
    is_integer: bool,
}

/// The rows of a folder.
pub struct Rows<'a> {
    found: &'a Found,
    parts: Vec<Part>,
    dim: usize,
    row_f32s: usize,
    is_whole: bool,
    chunk_rows: usize,
    next: AtomicUsize,
}

impl<'a> Rows<'a> {
    /// The rows of a folder that has been checked, as those of `table`, for so many threads.
    ///
    /// # Errors
    /// `Usage` where the table lacks what the folder has.
    pub fn new(found: &'a Found, table: &TableDescriptor, threads: usize) -> Result<Rows<'a>> {
        let mut parts = vec![Part {
            index: WEIGHTS,
            begin: 0,
            width: table.dim,
            is_integer: false,
        }];
        let is_whole = !found.others().is_empty();
        if is_whole {
            check_whole(found, table)?;
        }
        for (index, named) in found.columns.iter().enumerate().skip(WEIGHTS + 1) {
            let place = format!("{}: column {}", found.path.display(), named.name);
            let column = column_of(table, named.name, &place)?;
            parts.push(Part {
                index,
                begin: column.begin,
                width: column.width,
                is_integer: column.is_integer,
            });
        }
        let row_f32s = if is_whole {
            table.row_f32s()
        } else {
            table.dim
        };
        // As values with their levels, and as rows.
        let row_bytes = 16 + row_f32s * (8 + 4);
        Ok(Rows {
            found,
            parts,
            dim: table.dim,
            row_f32s,
            is_whole,
            chunk_rows: (BUFFERS_BYTES / threads / row_bytes).clamp(16, ROWS_MAX),
            next: AtomicUsize::new(0),
        })
    }

    /// Bytes of a row, before they are compressed.
    fn row_bytes(&self) -> u64 {
        let words: usize = self.parts.iter().map(|part| part.width).sum();
        8 + 4 * words as u64
    }

    /// The row group of a row.
    fn group_of(&self, row: u64) -> Option<&GroupAt> {
        let behind = self
            .found
            .groups
            .partition_point(|group| group.first <= row);
        self.found.groups.get(behind.checked_sub(1)?)
    }
}

impl Source for Rows<'_> {
    fn rows(&self) -> Option<u64> {
        Some(self.found.rows)
    }

    fn bytes(&self) -> u64 {
        self.found.rows.saturating_mul(self.row_bytes())
    }

    fn row_f32s(&self) -> usize {
        self.row_f32s
    }

    fn numbers(&self) -> usize {
        let integers = self.parts.iter().filter(|part| part.is_integer);
        let first = integers.map(|part| part.begin).min();
        first.unwrap_or(self.row_f32s)
    }

    fn is_whole(&self) -> bool {
        self.is_whole
    }

    fn reader(&self) -> Box<dyn Reader + '_> {
        Box::new(GroupReader {
            rows: self,
            group: None,
        })
    }

    fn keys(&self, interrupt: &Interrupt, see: &mut dyn FnMut(u64, u64)) -> Result<()> {
        for group in &self.found.groups {
            let mut keys = open(self.found, group, KEY, 1)?;
            let (mut first, end) = (group.first, group.first + group.rows);
            while first < end {
                interrupt.check()?;
                let count = (end - first).min(CHUNK_KEYS);
                keys.next(usize::try_from(count).unwrap_or(1), 1)?;
                let read = (first..).zip(keys.keys());
                read.for_each(|(row, key)| see(row, key.cast_unsigned()));
                first += count;
            }
        }
        Ok(())
    }

    fn place(&self, row: u64, word: Option<usize>) -> Place {
        let Some(group) = self.group_of(row) else {
            return Place {
                path: self.found.path.clone(),
                offset: 0,
                name: format!("row {row}"),
            };
        };
        let of = |part: &&Part| {
            word.is_some_and(|word| (part.begin..part.begin + part.width).contains(&word))
        };
        let part = self.parts.iter().find(of);
        let index = part.map_or(KEY, |part| part.index);
        let (file, named) = (&self.found.files[group.file], self.found.columns[index]);
        let at = match (part, word) {
            (Some(part), Some(word)) if named.is_list => {
                format!(", column {}[{}]", named.name, word - part.begin)
            }
            (Some(_), _) => format!(", column {}", named.name),
            (None, _) => String::new(),
        };
        let chunk = file
            .metadata
            .row_group(group.number)
            .column(file.leaves[index]);
        Place {
            path: file.path.clone(),
            offset: chunk.byte_range().0,
            name: format!("row group {}, row {}{at}", group.number, row - group.first),
        }
    }
}

/// Reads row groups, one after another.
struct GroupReader<'a> {
    rows: &'a Rows<'a>,
    group: Option<Open<'a>>,
}

/// A row group that is read.
struct Open<'a> {
    at: &'a GroupAt,
    keys: Column,
    columns: Vec<Column>,
    /// Rows that were given.
    given: u64,
}

impl Reader for GroupReader<'_> {
    fn next(&mut self, chunk: &mut Chunk) -> Result<bool> {
        let mut group = match self.group.take() {
            Some(group) => group,
            None => match self.rows.open_next()? {
                Some(group) => group,
                None => return Ok(false),
            },
        };
        group.read(self.rows, chunk)?;
        if group.given < group.at.rows {
            self.group = Some(group);
        } else {
            group.keys.end()?;
            group.columns.iter_mut().try_for_each(Column::end)?;
        }
        Ok(true)
    }
}

impl Rows<'_> {
    fn open_next(&self) -> Result<Option<Open<'_>>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(at) = self.found.groups.get(turn) else {
            return Ok(None);
        };
        let of = &self.found.files[at.file];
        let file = Arc::new(of.open()?);
        let open = |index| {
            let named = self.found.columns[index];
            Column::open(of, &file, at.number, index, named, self.dim)
        };
        let columns = self.parts.iter().map(|part| open(part.index));
        Ok(Some(Open {
            at,
            columns: columns.collect::<Result<_>>()?,
            keys: open(KEY)?,
            given: 0,
        }))
    }
}

impl Open<'_> {
    /// Reads some rows.
    fn read(&mut self, rows: &Rows<'_>, chunk: &mut Chunk) -> Result<()> {
        let left = usize::try_from(self.at.rows - self.given).unwrap_or(usize::MAX);
        let count = left.min(rows.chunk_rows);
        chunk.first = self.at.first + self.given;
        self.keys.next(count, 1)?;
        chunk.keys.clear();
        let keys = self.keys.keys().iter();
        chunk.keys.extend(keys.map(|key| key.cast_unsigned()));
        // What no column has stays 0: metadata that the table has and the folder lacks.
        chunk.rows.resize(count * rows.row_f32s, 0.0);
        chunk.is_finite = true;
        for (part, column) in rows.parts.iter().zip(&mut self.columns) {
            column.next(count, part.width)?;
            let places = chunk.rows.chunks_exact_mut(rows.row_f32s);
            let places = places.map(|row| &mut row[part.begin..part.begin + part.width]);
            if part.is_integer {
                for (place, value) in places.zip(column.integers()) {
                    place.fill(f32::from_bits(value.cast_unsigned()));
                }
                continue;
            }
            let values = column.floats();
            chunk.is_finite &= is_finite(values);
            for (place, values) in places.zip(values.chunks_exact(part.width)) {
                place.copy_from_slice(values);
            }
        }
        self.given += count as u64;
        chunk.bytes = count as u64 * rows.row_bytes();
        Ok(())
    }
}

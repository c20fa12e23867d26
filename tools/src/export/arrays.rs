//! How do rows get into files with a fixed stride each?
//!
//! - Each thread keeps what it reads in a buffer for each file. A full buffer claims the next rows of all files at
//!   once: no holes, and no thread waits for another.
//! - Row i of every file is of the same key.
//! - Of DeepRec's files an index says what they are; it is written last.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use hps::{Error, Row, TableDescriptor};

use super::files::Files;
use super::walk::Tour;
use crate::cli::Interrupt;
use crate::durable::write_new;
use crate::models::crew::Crew;
use crate::models::sums::Sums;
use crate::models::{Change, Content, FileOf, Format, deeprec};

/// Bytes of a thread's buffers together: few enough to stay near the processor.
const BUFFER_BYTES: usize = 512 << 10;

/// The files of a model that is written.
#[derive(Debug)]
pub struct Columns {
    folder: PathBuf,
    format: Format,
    files: Vec<(FileOf, File, PathBuf)>,
    left_out: Vec<String>,
    row_bytes: usize,
    next_row: AtomicU64,
    /// What the index of a checkpoint of DeepRec says of them; other formats have none.
    index: Option<Index>,
}

/// What an index is made of.
#[derive(Debug)]
struct Index {
    variable: String,
    table: TableDescriptor,
    /// Checksums of what was written.
    sums: Sums,
}

impl Columns {
    /// Makes the files.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(
        folder: &Path,
        format: Format,
        files: Vec<FileOf>,
        left_out: Vec<String>,
    ) -> Result<Columns> {
        let row_bytes = files.iter().map(|file| file.content.row_bytes()).sum();
        let made = files.into_iter().map(|file| {
            let path = folder.join(&file.name);
            let made = File::create_new(&path).map_err(|e| Error::io("make", &path, e))?;
            Ok((file, made, path))
        });
        Ok(Columns {
            folder: folder.to_path_buf(),
            format,
            files: made.collect::<Result<_, Error>>()?,
            left_out,
            row_bytes,
            next_row: AtomicU64::new(0),
            index: None,
        })
    }

    /// The same, with the index of DeepRec: of a variable that has the rows of a table.
    #[must_use]
    pub fn with_index(self, variable: &str, table: &TableDescriptor) -> Columns {
        Columns {
            index: Some(Index {
                variable: variable.to_owned(),
                table: table.clone(),
                sums: Sums::default(),
            }),
            ..self
        }
    }
}

impl Files for Columns {
    fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn write(&self, tour: &Tour<'_>, crew: &Crew<'_>) -> Result<()> {
        let mut buffers = Buffers::new(self);
        tour.each(crew, |row| {
            buffers.add(row);
            match buffers.rows == buffers.rows_max {
                true => buffers.write(),
                false => Ok(()),
            }
        })?;
        buffers.write()
    }

    fn written_bytes(&self) -> u64 {
        self.next_row.load(Ordering::Relaxed) * self.row_bytes as u64
    }

    fn sync(&self, _: &Interrupt) -> Result<()> {
        for (_, handle, path) in &self.files {
            let done = handle.sync_data();
            done.map_err(|e| Error::io("sync", path, e))?;
        }
        Ok(())
    }

    fn finish(
        self: Box<Self>,
        removed: Option<&[u64]>,
        _: &Interrupt,
    ) -> Result<Vec<(String, u64)>> {
        let rows = self.next_row.into_inner();
        if self.index.is_some() {
            deeprec::check_rows(rows)?;
        }
        let (mut files, mut columns) = (Vec::new(), Vec::new());
        for (file, handle, path) in self.files {
            let head = file.head(rows);
            let done = handle
                .write_all_at(&head, 0)
                .and_then(|()| handle.sync_all());
            done.map_err(|e| Error::io("write", &path, e))?;
            let bytes = head.len() as u64 + rows * file.content.row_bytes() as u64;
            files.push((file.name.clone(), bytes));
            columns.push(file);
        }
        if let Some(keys) = removed {
            let file = FileOf::new(self.format, "removed", Content::Key);
            let mut bytes = file.head(keys.len() as u64);
            bytes.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
            write_new(&self.folder, &file.name, &bytes)?;
            files.push((file.name, bytes.len() as u64));
        }
        if let Some(index) = self.index {
            let row_bytes: Vec<usize> = columns.iter().map(|f| f.content.row_bytes()).collect();
            let sums = index.sums.whole(&row_bytes);
            let (folder, variable, table) = (&self.folder, &index.variable, &index.table);
            let made = deeprec::finish(folder, variable, table, &columns, &sums, rows)?;
            files.extend(made);
        }
        Ok(files)
    }
}

/// What a thread has read, and not yet written.
struct Buffers<'a> {
    columns: &'a Columns,
    /// One for each file.
    bytes: Vec<Vec<u8>>,
    rows: usize,
    rows_max: usize,
}

impl<'a> Buffers<'a> {
    fn new(columns: &'a Columns) -> Buffers<'a> {
        let rows_max = (BUFFER_BYTES / columns.row_bytes).max(1);
        let of = |file: &FileOf| Vec::with_capacity(rows_max * file.content.row_bytes());
        Buffers {
            columns,
            bytes: columns.files.iter().map(|(file, ..)| of(file)).collect(),
            rows: 0,
            rows_max,
        }
    }

    fn add(&mut self, row: &Row<'_>) {
        for (bytes, (file, ..)) in self.bytes.iter_mut().zip(&self.columns.files) {
            match file.content {
                Content::Key => bytes.extend_from_slice(&row.key.to_le_bytes()),
                Content::Slot(slot) => {
                    let slot = slot.unwrap_or(row.key >> 32);
                    bytes.extend_from_slice(&slot.to_le_bytes());
                }
                Content::Words {
                    begin,
                    width,
                    change,
                    ..
                } => append(bytes, &row.values[begin..begin + width], change),
            }
        }
        self.rows += 1;
    }

    /// Writes what is there, behind all that was claimed before.
    fn write(&mut self) -> Result<()> {
        let rows = self.rows as u64;
        let first = self.columns.next_row.fetch_add(rows, Ordering::Relaxed);
        if let Some(index) = &self.columns.index {
            let own = self.bytes.iter().map(|bytes| crc32c::crc32c(bytes));
            index.sums.add(first, rows, own.collect());
        }
        for (bytes, (file, handle, path)) in self.bytes.iter_mut().zip(&self.columns.files) {
            let offset = file.head_bytes as u64 + first * file.content.row_bytes() as u64;
            let done = handle.write_all_at(bytes, offset);
            done.map_err(|e| Error::io("write", path, e))?;
            bytes.clear();
        }
        self.rows = 0;
        Ok(())
    }
}

/// Appends words as bytes.
fn append(bytes: &mut Vec<u8>, values: &[f32], change: Change) {
    let start = bytes.len();
    bytes.resize(start + values.len() * change.word_bytes(), 0);
    if change == Change::Long {
        let (places, _) = bytes[start..].as_chunks_mut::<8>();
        for (place, value) in places.iter_mut().zip(values) {
            *place = i64::from(value.to_bits()).to_le_bytes();
        }
        return;
    }
    let (places, _) = bytes[start..].as_chunks_mut::<4>();
    match change {
        Change::None | Change::Long => {
            for (place, value) in places.iter_mut().zip(values) {
                *place = value.to_le_bytes();
            }
        }
        Change::Times(factor) => {
            for (place, value) in places.iter_mut().zip(values) {
                *place = (value * factor).to_le_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_moved_as_bits_or_scaled() {
        let values = [f32::from_bits(0x7fc0_1234), -0.0, 3.0];
        let mut bytes = vec![9];
        append(&mut bytes, &values, Change::None);
        assert_eq!(bytes[1..5], 0x7fc0_1234u32.to_le_bytes());
        assert_eq!(bytes[5..9], 0x8000_0000u32.to_le_bytes());
        append(&mut bytes, &values[2..], Change::Times(-0.1));
        assert_eq!(bytes[13..], (3.0f32 * -0.1).to_le_bytes());
        append(&mut bytes, &[f32::from_bits(u32::MAX)], Change::Long);
        assert_eq!(bytes[17..], i64::from(u32::MAX).to_le_bytes());
    }
}

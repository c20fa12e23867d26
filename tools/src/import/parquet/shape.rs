//! How many rows has a folder of Parquet files, and of which dim: do all footers say the same?
//!
//! - The footer of the first row group tells the dim, as values by rows, before anything is read: a list of a hostile file
//!   may claim any length. How many values each row group must have follows from it. Row groups that have another number
//!   are read, to name the row.

use std::sync::Arc;

use ::parquet::basic::Compression;
use anyhow::Result;
use hps::{Error, Optimizer};

use super::column::Column;
use super::{Found, GroupAt};
use crate::cli::Usage;
use crate::import::shape::{Shape, check_dim};
use crate::models::columns::is_metadata;
use crate::models::parquet;
use crate::parquet_file::check_group;

/// Rows that are read at a time.
const ROWS: u64 = 1024;
/// The columns of keys and of weights.
const KEY: usize = 0;
const WEIGHTS: usize = 1;

/// Compares the files with each other, with the dim that the table has or shall have, and with its optimizer.
///
/// # Errors
/// `Corrupt` naming the file; `Usage` where all of the folder is of another dim, or can't be read here.
pub fn shape(found: &Found, wanted: Option<usize>, optimizer: Optimizer) -> Result<Shape> {
    check_state(found, optimizer)?;
    for file in &found.files {
        for number in 0..file.metadata.num_row_groups() {
            let names = found.columns.iter().map(|column| column.name);
            let columns = file.leaves.iter().copied().zip(names);
            check_group(&file.path, file.bytes, &file.metadata, number, columns)?;
        }
    }
    for group in &found.groups {
        check_codecs(found, group)?;
    }
    let Some(first) = found.groups.first() else {
        return Ok(Shape {
            rows: 0,
            dim: wanted.or(found.dim).unwrap_or(0),
            left: Vec::new(),
        });
    };
    check_counts(found, first, KEY, 1)?;
    let dim = dim_of(found, first)?;
    let path = &found.files[first.file].path;
    check_dim(path, dim)?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != dim) {
        let path = path.display();
        let why = format!("{path}: rows of {dim} weights, expected {wanted}");
        return Err(Usage(why).into());
    }
    for group in &found.groups {
        for index in 0..found.columns.len() {
            check_counts(found, group, index, dim)?;
        }
    }
    Ok(Shape {
        rows: found.rows,
        dim,
        left: Vec::new(),
    })
}

/// Values of a list, by the footer; the nearest whole number, where some lists are too short or too long.
fn dim_of(found: &Found, group: &GroupAt) -> Result<usize> {
    let file = &found.files[group.file];
    let row_group = file.metadata.row_group(group.number);
    let chunk = row_group.column(file.leaves[WEIGHTS]);
    let values = u64::try_from(chunk.num_values()).map_err(|_| {
        let (number, found) = (group.number, chunk.num_values());
        let what = format!("row group {number}, column weights: found {found} values");
        Error::corrupt(&file.path, chunk.byte_range().0, what)
    })?;
    let dim = values.saturating_add(group.rows / 2) / group.rows;
    Ok(usize::try_from(dim).unwrap_or(usize::MAX))
}

/// Opens a column of a row group, whose lists should have `dim` values.
pub fn open(found: &Found, group: &GroupAt, index: usize, dim: usize) -> Result<Column> {
    let file = &found.files[group.file];
    let opened = Arc::new(file.open()?);
    Column::open(
        file,
        &opened,
        group.number,
        index,
        found.columns[index],
        dim,
    )
}

/// Checks that state has lists where the optimizer has a number for each weight.
fn check_state(found: &Found, optimizer: Optimizer) -> Result<()> {
    for column in found.others().iter().filter(|c| !is_metadata(c.name)) {
        let is_list = parquet::is_list(optimizer, column.name);
        if column.is_list != is_list {
            let (name, path) = (column.name, found.path.display());
            let of = |is_list| if is_list { "lists" } else { "numbers" };
            let (there, wanted) = (of(column.is_list), of(is_list));
            return Err(Usage(format!(
                "{path}: column {name} has {there}, {optimizer:?} has {wanted}: import into a table of another optimizer, \
                 or --weights-only"
            ))
            .into());
        }
    }
    Ok(())
}

/// Refuses what this build can't decompress.
fn check_codecs(found: &Found, group: &GroupAt) -> Result<()> {
    let file = &found.files[group.file];
    for (leaf, column) in file.leaves.iter().zip(&found.columns) {
        let codec = file
            .metadata
            .row_group(group.number)
            .column(*leaf)
            .compression();
        match codec {
            Compression::UNCOMPRESSED
            | Compression::SNAPPY
            | Compression::GZIP(_)
            | Compression::ZSTD(_) => {}
            other => {
                let (path, group, name) = (file.path.display(), group.number, column.name);
                return Err(Usage(format!(
                    "{path}: row group {group}, column {name}: is compressed by {other}, which can't be read here; write \
                     it with snappy, gzip, zstd, or none"
                ))
                .into());
            }
        }
    }
    Ok(())
}

/// Compares the number of values of a column with that of the rows.
fn check_counts(found: &Found, group: &GroupAt, index: usize, dim: usize) -> Result<()> {
    let (file, column) = (&found.files[group.file], found.columns[index]);
    let width = if column.is_list { dim } else { 1 };
    let row_group = file.metadata.row_group(group.number);
    let chunk = row_group.column(file.leaves[index]);
    let expected = group.rows.checked_mul(width as u64);
    let values = u64::try_from(chunk.num_values()).ok();
    if values.is_some() && values == expected {
        return Ok(());
    }
    let mut read = open(found, group, index, dim)?;
    let mut left = group.rows;
    while left > 0 {
        let rows = left.min(ROWS);
        read.next(usize::try_from(rows).unwrap_or(1), width)?;
        left -= rows;
    }
    let what = format!(
        "row group {}, column {}: the footer has {} values, expected {} rows of {width}",
        group.number,
        column.name,
        chunk.num_values(),
        group.rows
    );
    Err(Error::corrupt(&file.path, chunk.byte_range().0, what).into())
}

//! How many rows has a folder, and of which dim: do all of its files say the same?
//!
//! - Without `--repair` every byte of every file has its place. With it, the rows that all files have whole are taken,
//!   and what is left of each file is told.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use hps::{DIM_MAX, Error};

use super::found::{FileFound, Found};
use crate::cli::Usage;

/// What the files of a folder hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Whole rows that all files have.
    pub rows: u64,
    /// Weights of a row; 0 where there is no row, and nobody says.
    pub dim: usize,
    /// Bytes behind them that are left out, by file.
    pub left: Vec<(PathBuf, u64)>,
}

/// Compares the files with each other and with the dim that the table has, or shall have; `widths`: the f32s of a row
/// in each of `found.others`, given the dim.
///
/// # Errors
/// `Corrupt` naming the file; `Usage` where all of the folder is of another dim.
pub fn shape(
    found: &Found,
    wanted: Option<usize>,
    repair: bool,
    widths: impl Fn(&str, usize) -> usize,
) -> Result<Shape> {
    let files = || {
        let others = found.others.iter().map(|(_, file)| file);
        let first = [&found.keys, &found.weights].into_iter();
        first.chain(&found.slots).chain(others)
    };
    if files().all(|file| file.bytes == 0) && files().all(|f| f.told.is_none_or(|t| t.0 == 0)) {
        let told = found
            .weights
            .told
            .map(|told| usize::try_from(told.1).unwrap_or(usize::MAX));
        return Ok(Shape {
            rows: 0,
            dim: wanted.or(told).unwrap_or(0),
            left: Vec::new(),
        });
    }
    if let Some(empty) = files().find(|file| file.bytes == 0) {
        let what = "the file is empty, others of the folder are not: it is broken; write it again";
        return Err(Error::corrupt(&empty.path, empty.head_bytes, what).into());
    }
    let dim = dim(found, wanted, repair)?;
    check_dim(&found.weights.path, dim)?;
    let others = found.others.iter();
    let others = others.map(|(name, file)| (file, 4 * widths(name, dim) as u64));
    let mut all = vec![(&found.keys, 8), (&found.weights, 4 * dim as u64)];
    all.extend(found.slots.iter().map(|file| (file, 8)));
    all.extend(others);
    for (file, row_bytes) in &all {
        check_head(file, *row_bytes, found.keys.told.map(|told| told.0), repair)?;
    }
    let whole = |(file, bytes): &(&FileFound, u64)| {
        let told = file.told.map_or(u64::MAX, |told| told.0);
        told.min(file.bytes / bytes)
    };
    let rows = all.iter().map(whole).min().unwrap_or(0);
    let torn = all.iter().find(|(file, bytes)| file.bytes != rows * bytes);
    match torn {
        None => {}
        Some(_) if repair => {}
        Some(_) => return Err(torn_error(&all, found)),
    }
    if rows == 0 {
        bail!(
            "{}: no row that all files have whole",
            found.folder.display()
        );
    }
    let left = all
        .iter()
        .map(|(file, bytes)| (file, file.bytes - rows * bytes));
    let left = left.filter(|(_, bytes)| *bytes > 0);
    Ok(Shape {
        rows,
        dim,
        left: left
            .map(|(file, bytes)| (file.path.clone(), bytes))
            .collect(),
    })
}

/// Checks that a table can have this dim.
///
/// # Errors
/// `Usage`.
pub fn check_dim(path: &Path, dim: usize) -> Result<()> {
    if (1..=DIM_MAX).contains(&dim) {
        return Ok(());
    }
    let path = path.display();
    Err(Usage(format!(
        "{path}: rows of {dim} weights; 1 to {DIM_MAX} can be"
    ))
    .into())
}

fn path(file: &FileFound) -> String {
    file.path.display().to_string()
}

/// Weights of a row, from the header or the lengths; that of the table, where the folder is torn.
fn dim(found: &Found, wanted: Option<usize>, repair: bool) -> Result<usize> {
    let (keys, weights) = (&found.keys, &found.weights);
    let bytes_of_one = 4 * (keys.bytes / 8);
    let own = match weights.told {
        Some((_, width)) => Some(width),
        None if keys.bytes.is_multiple_of(8) && weights.bytes.is_multiple_of(bytes_of_one) => {
            Some(weights.bytes / bytes_of_one)
        }
        None => None,
    };
    let own = own.map(|own| usize::try_from(own).unwrap_or(usize::MAX));
    let is_torn = |wanted: usize| {
        // More vectors than keys, but not twice as many: then the dim is more likely to be another.
        let vectors = weights.bytes / (4 * wanted as u64);
        repair && weights.told.is_none() && (1..2 * (keys.bytes / 8)).contains(&vectors)
    };
    match (own, wanted) {
        (Some(own), Some(wanted)) if own != wanted && !is_torn(wanted) => {
            let count = keys.bytes / 8;
            let whole = count.saturating_mul(4 * wanted as u64).min(weights.bytes);
            let found = match weights.told {
                Some(_) => String::new(),
                None => format!(
                    " ({} bytes for {count} keys; if a crash of the writer left more vectors than keys, cut it to \
                     {whole} bytes)",
                    weights.bytes
                ),
            };
            Err(Usage(format!(
                "{}: rows of {own} weights{found}, expected {wanted}",
                path(weights)
            ))
            .into())
        }
        (Some(_), Some(wanted)) => Ok(wanted),
        (Some(own), None) => Ok(own),
        (None, Some(wanted)) => Ok(wanted),
        (None, None) if repair => Err(Usage(format!(
            "{}: {} bytes for {} bytes of keys do not tell the dim; name it by --dim",
            path(weights),
            weights.bytes,
            keys.bytes
        ))
        .into()),
        (None, None) => {
            let what = format!(
                "found {} bytes, which are no whole number of f32s for each of the {} keys (key has {} \
                 bytes): --repair --dim D takes the rows that are whole",
                weights.bytes,
                keys.bytes / 8,
                keys.bytes
            );
            Err(Error::corrupt(&weights.path, weights.bytes, what).into())
        }
    }
}

/// Compares a header with the length of its file, and with the number of keys.
fn check_head(file: &FileFound, row_bytes: u64, keys: Option<u64>, repair: bool) -> Result<()> {
    let Some((rows, width)) = file.told else {
        return Ok(());
    };
    let is_key = row_bytes == 8 && width == 1 && keys == Some(rows);
    if !is_key && width.checked_mul(4) != Some(row_bytes) {
        let expected = row_bytes / 4;
        let what = format!("found rows of {width} elements, expected {expected}");
        return Err(Error::corrupt(&file.path, 0, what).into());
    }
    let bytes = rows.checked_mul(row_bytes);
    if bytes != Some(file.bytes) && !repair {
        let what = format!(
            "the header says {rows} rows of {row_bytes} bytes, found {} bytes behind it; --repair takes the rows \
             that are whole",
            file.bytes
        );
        return Err(Error::corrupt(&file.path, file.head_bytes, what).into());
    }
    Ok(())
}

/// Names the file that does not fit the keys, or the keys.
fn torn_error(all: &[(&FileFound, u64)], found: &Found) -> anyhow::Error {
    let keys = found.keys.bytes / 8;
    let cut = all
        .iter()
        .find(|(file, bytes)| !file.bytes.is_multiple_of(*bytes));
    let other = all.iter().find(|(file, bytes)| file.bytes / bytes != keys);
    let Some((file, row_bytes)) = cut.or(other) else {
        return anyhow::anyhow!("{}: files of unequal count", found.folder.display());
    };
    let rows = file.bytes / row_bytes;
    let tail = match file.bytes % row_bytes {
        0 => String::new(),
        bytes => format!(" and {bytes} bytes of another"),
    };
    let what = format!(
        "found {rows} rows of {row_bytes} bytes{tail}, expected {keys}, as many as there are keys; --repair takes \
         the rows that all files have whole"
    );
    let offset = file.head_bytes + rows.min(keys) * row_bytes;
    Error::corrupt(&file.path, offset, what).into()
}

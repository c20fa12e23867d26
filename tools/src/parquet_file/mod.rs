//! What of a Parquet file is checked before it is read, and how are its columns read?
//!
//! - `footer` and `pages` read what the library would, and check it first: `thrift` walks it by the `shapes` that it
//!   should have, `header` is what stands before a page. `lists`: how long lists are.
//! - `guard`: errors and panics of the library; `schema`: which columns there are; `records`: what is in them.
//! - Nothing that a footer says is believed: places are compared with the length of the file.

mod footer;
pub(crate) mod guard;
mod header;
pub(crate) mod lists;
pub(crate) mod pages;
pub(crate) mod records;
pub(crate) mod schema;
mod shapes;
mod thrift;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ::parquet::file::metadata::ParquetMetaData;
use anyhow::Result;
use hps::Error;

pub use footer::footer;
use guard::guarded;

const MAGIC: &[u8; 4] = b"PAR1";
/// Magic, length of the footer, magic.
const BYTES_MIN: u64 = 12;

/// Checks how a file begins and ends; its length.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn check_ends(path: &Path, file: &File) -> Result<u64> {
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

/// Checks what the footer says of a row group and some of its columns, each a leaf with its name.
///
/// # Errors
/// `Corrupt`.
pub fn check_group<'a>(
    path: &Path,
    bytes: u64,
    metadata: &ParquetMetaData,
    number: usize,
    columns: impl Iterator<Item = (usize, &'a str)>,
) -> Result<()> {
    let group = metadata.row_group(number);
    if group.num_rows() < 0 {
        let what = format!("row group {number}: found {} rows", group.num_rows());
        return Err(Error::corrupt(path, 0, what).into());
    }
    for (leaf, name) in columns {
        let range = guarded(|| Ok(group.column(leaf).byte_range()));
        let end = range
            .ok()
            .and_then(|(offset, length)| offset.checked_add(length));
        if end.is_none_or(|end| end > bytes) {
            let what = format!(
                "row group {number}, column {name}: found a place behind the end of the file, of {bytes} bytes"
            );
            return Err(Error::corrupt(path, 0, what).into());
        }
    }
    Ok(())
}

//! Is the footer of a Parquet file such that the library can take it?
//!
//! - Its bytes are walked first: [`super::thrift`]. Then the schema: the library allocates by the number of children
//!   that an element claims, calls itself for each group in a group, and gives each column a path of its own.
//! - What is in it is as large in memory as it is in the file, times a few tens.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use anyhow::Result;
use hps::Error;

use super::guard::{guarded, told};
use super::shapes::{ELEMENT, ELEMENT_CHILDREN, ELEMENT_NAME, FILE};
use super::thrift::{Seen, walk};

/// Length of the footer, and the magic behind it.
const TAIL_BYTES: u64 = 8;
/// A footer that is longer is not read: it would have a million columns of row groups.
pub const FOOTER_BYTES_MAX: u64 = 128 << 20;
/// Groups in each other.
pub const GROUPS_MAX: usize = 64;
/// The names of all columns, each with those of its groups.
pub const PATHS_BYTES_MAX: u64 = 64 << 20;

/// Reads the footer of a file of so many bytes.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn footer(path: &Path, file: &File, bytes: u64) -> Result<ParquetMetaData> {
    let failed = |e| Error::io("read", path, e);
    let tail = bytes.saturating_sub(TAIL_BYTES);
    let mut length = [0; 4];
    file.read_exact_at(&mut length, tail).map_err(failed)?;
    let length = u64::from(u32::from_le_bytes(length));
    let start = tail.checked_sub(length).filter(|start| *start >= 4);
    let start = start.ok_or_else(|| {
        let what = format!("footer: found a length of {length} bytes, the file has {bytes}");
        Error::corrupt(path, tail, what)
    })?;
    if length > FOOTER_BYTES_MAX {
        let what = format!("footer: found {length} bytes, at most {FOOTER_BYTES_MAX} are read");
        return Err(Error::corrupt(path, tail, what).into());
    }
    let mut footer = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut footer, start).map_err(failed)?;
    if let Err((at, what)) = check(&footer) {
        let what = format!("footer: {what}");
        return Err(Error::corrupt(path, start + at as u64, what).into());
    }
    let read = guarded(|| ParquetMetaDataReader::decode_metadata(&footer));
    read.map_err(|fault| told(path, tail, "footer", fault))
}

/// An element of the schema.
#[derive(Clone, Copy, Debug, Default)]
struct Element {
    children: i64,
    name_bytes: u64,
}

/// Walks a footer, and its schema; what is wrong with it, and where.
fn check(footer: &[u8]) -> Result<(), (usize, String)> {
    let (mut elements, mut next) = (Vec::new(), Element::default());
    let of = ELEMENT.name;
    walk(footer, &FILE, &mut |seen| match seen {
        Seen::Value(name, ELEMENT_CHILDREN, value) if name == of => next.children = value,
        Seen::Value(name, ELEMENT_NAME, value) if name == of => {
            next.name_bytes = value.unsigned_abs()
        }
        Seen::End(name) if name == of => elements.push(std::mem::take(&mut next)),
        _ => {}
    })
    .map_err(|fault| (fault.offset, fault.what))?;
    check_schema(&elements).map_err(|what| (0, what))
}

/// Checks that the elements are a tree: each group has as many as it claims, and nothing is in it too deep.
fn check_schema(elements: &[Element]) -> Result<(), String> {
    // Of each group that has not ended, elements that are missing, and bytes of the names down to it.
    let mut groups: Vec<(u64, u64)> = Vec::new();
    let mut paths = 0;
    for (index, element) in elements.iter().enumerate() {
        let left = (elements.len() - index - 1) as u64;
        let above = groups.last().map_or(0, |group| group.1);
        if let Some(group) = groups.last_mut() {
            group.0 -= 1;
        }
        let path = above + element.name_bytes;
        let children = u64::try_from(element.children).ok();
        match children.filter(|children| *children <= left) {
            None => {
                let children = element.children;
                return Err(format!(
                    "schema: element {index} claims {children} children, {left} elements are behind it"
                ));
            }
            Some(0) => {
                paths += path;
                if paths > PATHS_BYTES_MAX {
                    return Err(format!(
                        "schema: found columns with names of more than {PATHS_BYTES_MAX} bytes"
                    ));
                }
            }
            // The root's name is in no path.
            Some(children) => groups.push((children, if index == 0 { 0 } else { path })),
        }
        if groups.len() > GROUPS_MAX {
            return Err(format!(
                "schema: found more than {GROUPS_MAX} groups in each other"
            ));
        }
        while groups.last().is_some_and(|group| group.0 == 0) {
            groups.pop();
        }
    }
    match groups.is_empty() {
        true => Ok(()),
        false => Err(String::from("schema: it ends before its groups do")),
    }
}

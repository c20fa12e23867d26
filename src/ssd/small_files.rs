//! How are small files read and written whole?

use std::io::ErrorKind;
use std::path::Path;

use super::missing;
use super::pieces::{aligned, read_exact};
use super::space::refused;
use crate::error::{Error, Result};
use crate::io::{Directory, DiskFile, OpenMode};
use crate::units::to_usize;

/// Reads a small metadata file whole.
pub(crate) fn read_whole(place: &dyn Directory, name: &str, bytes_max: u64) -> Result<Vec<u8>> {
    let path = &*place.path().join(name);
    let file = place
        .open(name, OpenMode::Read)
        .map_err(|e| missing(path, e))?;
    let bytes = file.bytes().map_err(|e| Error::io("measure", path, e))?;
    if bytes > bytes_max {
        let what = format!("{bytes} bytes long, at most {bytes_max} are possible");
        return Err(Error::corrupt(path, bytes_max, what));
    }
    read_bytes(&*file, path, bytes)
}

/// Reads the first bytes of a file that may be longer.
pub(crate) fn read_start(place: &dyn Directory, name: &str, bytes: u64) -> Result<Vec<u8>> {
    let path = &*place.path().join(name);
    let file = place
        .open(name, OpenMode::Read)
        .map_err(|e| missing(path, e))?;
    let found = file.bytes().map_err(|e| Error::io("measure", path, e))?;
    if found < bytes {
        let what = format!("{found} bytes long, CURRENT commits {bytes}");
        return Err(Error::corrupt(path, found, what));
    }
    read_bytes(&*file, path, bytes)
}

fn read_bytes(file: &dyn DiskFile, path: &Path, bytes: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let size = to_usize(bytes);
    content
        .try_reserve_exact(size)
        .map_err(|_| Error::io("allocate memory for", path, ErrorKind::OutOfMemory.into()))?;
    content.resize(size, 0);
    read_exact(file, path, &mut content, 0)?;
    Ok(content)
}

/// Creates a file of small content and syncs it.
///
/// # Errors
/// `NoSpace`, `Io`.
pub(crate) fn write_whole(place: &dyn Directory, name: &str, content: &[u8]) -> Result<()> {
    let bytes = content.len() as u64;
    let failed = |operation, e| refused(operation, place, &place.path().join(name), bytes, e);
    let file = place
        .open(name, OpenMode::Create)
        .map_err(|e| failed("create", e))?;
    file.write_at(content, 0).map_err(|e| failed("write", e))?;
    file.sync().map_err(|e| failed("sync", e))
}

/// Writes the file that makes those before it count: durable under another name first, then renamed, which is
/// durable too.
///
/// # Errors
/// `NoSpace`, `Io`.
pub(crate) fn write_last(
    place: &dyn Directory,
    temporary: &str,
    name: &str,
    content: &[u8],
) -> Result<()> {
    write_whole(place, temporary, content)?;
    let path = place.path().join(temporary);
    place
        .rename(temporary.as_ref(), name.as_ref())
        .map_err(|e| refused("rename", place, &path, 0, e))?;
    sync(place)
}

/// Removes a name, if there is one.
///
/// # Errors
/// `NoSpace`, `Io`.
pub(crate) fn remove_if_there(place: &dyn Directory, name: &str) -> Result<()> {
    match place.remove(name) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(refused("remove", place, &place.path().join(name), 0, e))
        }
        _ => Ok(()),
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync(place: &dyn Directory) -> Result<()> {
    let synced = place.sync();
    synced.map_err(|e| refused("sync the directory", place, place.path(), 0, e))
}

/// Bytes past a recorded length must be zero.
pub(crate) fn check_tail(file: &dyn DiskFile, path: &Path, from: u64, to: u64) -> Result<()> {
    let mut offset = from / 4096 * 4096;
    if from == to {
        return Ok(());
    }
    let mut block = aligned(path, 1 << 16)?;
    while offset < to {
        let got = file
            .read_at(&mut block, offset)
            .map_err(|e| Error::io("read", path, e))?;
        if got == 0 {
            break;
        }
        let skip = usize::try_from(from.saturating_sub(offset))
            .unwrap_or(0)
            .min(got);
        if let Some(at) = block[skip..got].iter().position(|b| *b != 0) {
            let offset = offset + (skip + at) as u64;
            return Err(Error::corrupt(
                path,
                offset,
                "bytes past the recorded length",
            ));
        }
        offset += got as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! How is a piece of a file read, all of it or not at all?

use std::path::Path;

use crate::error::{Error, Result};
use crate::io::{AlignedBuffer, DiskFile};
use crate::units::to_usize;

/// Reads exactly `bytes.len()` bytes; a file that ends earlier is damaged.
pub(crate) fn read_exact(
    file: &dyn DiskFile,
    path: &Path,
    bytes: &mut [u8],
    offset: u64,
) -> Result<()> {
    let got = file
        .read_at(bytes, offset)
        .map_err(|e| Error::io("read", path, e))?;
    check_length(path, got, bytes.len(), offset)
}

/// Refuses a read at an offset that brought fewer bytes than it asked for.
pub(crate) fn check_length(path: &Path, got: usize, bytes: usize, offset: u64) -> Result<()> {
    if got < bytes {
        let what = format!("the file ends {} bytes early", bytes - got);
        return Err(Error::corrupt(path, offset + got as u64, what));
    }
    Ok(())
}

/// An aligned buffer for reading a file.
pub(crate) fn aligned(path: &Path, bytes: u64) -> Result<AlignedBuffer> {
    let bytes = to_usize(bytes);
    AlignedBuffer::try_new(bytes).map_err(|e| Error::io("allocate a buffer for", path, e))
}

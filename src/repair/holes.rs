//! How is a file read whose device can't give all of it?
//!
//! - Bytes that can't be read count as zeros, which never verify.
//! - Only what says that the device or the file system has lost bytes counts so (`is_unreadable`):
//!   lack of memory or descriptors is an error, or rows would be given up that are there.

use std::io;

use crate::io::{DiskFile, is_unreadable};

/// Fills `bytes` from `offset` on, with zeros behind the end of the file and where a piece of
/// `piece_bytes` can't be read.
///
/// # Errors
/// What the system says of anything else.
pub(super) fn read_around(
    file: &dyn DiskFile,
    bytes: &mut [u8],
    offset: u64,
    piece_bytes: usize,
) -> io::Result<()> {
    match file.read_at(bytes, offset) {
        Ok(got) => {
            bytes[got..].fill(0);
            return Ok(());
        }
        Err(error) if is_unreadable(&error) => {}
        Err(error) => return Err(error),
    }
    let pieces = bytes.chunks_mut(piece_bytes);
    for (piece, at) in pieces.zip((offset..).step_by(piece_bytes)) {
        let got = match file.read_at(piece, at) {
            Ok(got) => got,
            Err(error) if is_unreadable(&error) => 0,
            Err(error) => return Err(error),
        };
        piece[got..].fill(0);
    }
    Ok(())
}

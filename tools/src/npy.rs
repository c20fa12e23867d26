//! Where in a NumPy file (.npy, versions 1 to 3) does the header stand, and what are its entries?
//!
//! - Magic, version, length of the header, then a Python dictionary: `descr`, `fortran_order`, `shape`.
//! - Nothing is trusted: what is asked for may be missing, and lengths may go beyond the file.

use std::ops::Range;

/// What a file begins with.
pub const MAGIC: &[u8] = b"\x93NUMPY";

/// Why there is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The magic is not there.
    Magic,
    /// A version that is not known.
    Version(u8),
    /// The file ends before the length of the header does.
    CutOff,
}

/// Where the dictionary stands in a file that begins with these bytes (12 are enough).
///
/// # Errors
/// Why that can't be told.
pub fn span(start: &[u8]) -> Result<Range<usize>, Unread> {
    let rest = start.strip_prefix(MAGIC).ok_or(Unread::Magic)?;
    let (from, length) = match *rest {
        [1, _, a, b, ..] => (10, u32::from(u16::from_le_bytes([a, b]))),
        [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d])),
        [1..=3, ..] | [] => return Err(Unread::CutOff),
        [version, ..] => return Err(Unread::Version(version)),
    };
    Ok(from..from + length as usize)
}

/// The dictionary's text from the value of a name on.
#[must_use]
pub fn entry<'a>(dictionary: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = dictionary.split_once(&format!("'{name}':"))?;
    Some(rest.trim_start())
}

/// The inside of the tuple with which a text begins.
#[must_use]
pub fn tuple(text: &str) -> Option<&str> {
    Some(text.strip_prefix('(')?.split_once(')')?.0)
}

/// The lengths of axes that stand in a tuple.
#[must_use]
pub fn axes(tuple: &str) -> Option<Vec<u64>> {
    let axes = tuple.split(',').map(str::trim);
    let axes = axes.filter(|axis| !axis.is_empty());
    axes.map(|axis| axis.parse().ok()).collect()
}

//! What stands at the head of a `.npy` file?
//!
//! - What `crate::npy` finds, no longer than headers of plain arrays are.
//! - What we write has 128 bytes at its head, whatever the shape, so that it can be written last.

use std::ops::Range;

use crate::npy::{self, MAGIC, Unread};

/// Bytes before the first value of a file that we write.
pub const HEAD_BYTES: usize = 128;
/// No header that NumPy writes for an array without fields comes near it.
const HEAD_BYTES_MAX: usize = 1 << 16;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The type of the elements, as `<f4`.
    pub descr: String,
    /// Lengths of the axes.
    pub shape: Vec<u64>,
    /// Where the values begin.
    pub bytes: u64,
}

/// The header of an array, padded with spaces.
///
/// # Panics
/// Never: type and two lengths of 20 digits fit.
#[must_use]
pub fn write(descr: &str, shape: &[u64]) -> Vec<u8> {
    let axes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    let axes = axes.join(", ");
    let text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}{comma}), }}");
    let mut head = MAGIC.to_vec();
    head.extend([1, 0, 118, 0]);
    head.extend(text.bytes());
    assert!(head.len() < HEAD_BYTES, "a header of two axes fits");
    head.resize(HEAD_BYTES - 1, b' ');
    head.push(b'\n');
    head
}

/// How many bytes the header has that begins with these (12 are enough).
///
/// # Errors
/// What is wrong with them.
pub fn length(start: &[u8]) -> Result<usize, String> {
    Ok(span(start)?.end)
}

/// Where its dictionary stands.
fn span(start: &[u8]) -> Result<Range<usize>, String> {
    let span = npy::span(start).map_err(|unread| match unread {
        Unread::Magic | Unread::CutOff => String::from("the magic of a .npy file is not there"),
        Unread::Version(version) => {
            format!("version {version} of the .npy format: 1, 2 and 3 are known")
        }
    })?;
    match span.len() {
        0..=HEAD_BYTES_MAX => Ok(span),
        length => Err(format!(
            "a header of {length} bytes: no plain array has that"
        )),
    }
}

/// Reads a header, which is there to its end.
///
/// # Errors
/// What is wrong with it.
pub fn read(head: &[u8]) -> Result<Head, String> {
    let span = span(head)?;
    let text = head.get(span.clone()).ok_or("the header is cut off")?;
    let text = str::from_utf8(text).map_err(|_| "the header is no text")?;
    let entry =
        |name: &str| npy::entry(text, name).ok_or_else(|| format!("the header has no {name}"));
    let descr = entry("descr")?
        .strip_prefix('\'')
        .and_then(|rest| rest.split_once('\''));
    let (descr, _) = descr.ok_or("the elements have several fields")?;
    if !entry("fortran_order")?.starts_with("False") {
        return Err(String::from(
            "fortran_order: rows must stand one after another",
        ));
    }
    let shape = npy::tuple(entry("shape")?).ok_or("the shape is no tuple")?;
    Ok(Head {
        descr: descr.to_owned(),
        shape: npy::axes(shape).ok_or_else(|| format!("shape ({shape})"))?,
        bytes: span.end as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for shape in [&[7][..], &[u64::MAX, 8192], &[0, 3]] {
            let head = write("<f4", shape);
            assert_eq!(head.len(), HEAD_BYTES);
            let found = read(&head).unwrap();
            assert_eq!(found.shape, shape);
            assert_eq!((found.descr.as_str(), found.bytes), ("<f4", 128));
        }
    }

    #[test]
    fn headers_of_other_writers_are_read() {
        let text = b"{\"no\": 1, 'shape':(3,2),'fortran_order':False, 'descr':'<u8'}\n";
        let mut head = b"\x93NUMPY\x02\x00".to_vec();
        head.extend([u8::try_from(text.len()).unwrap(), 0, 0, 0]);
        head.extend(text);
        let found = read(&head).unwrap();
        assert_eq!((found.descr.as_str(), found.shape), ("<u8", vec![3, 2]));
    }

    #[test]
    fn bad_headers_are_told_apart() {
        let good = write("<f4", &[3, 2]);
        let change = |from: &str, to: &str| {
            let text = String::from_utf8_lossy(&good[10..]).replace(from, to);
            let mut head = good[..10].to_vec();
            head.extend(text.bytes());
            head.resize(HEAD_BYTES, b' ');
            read(&head).unwrap_err()
        };
        assert!(change("False", "True").contains("fortran_order"));
        assert!(change("'<f4'", "[('a', '<f4')]").contains("several fields"));
        assert!(change("(3, 2)", "(3, -2)").contains("shape"));
        assert!(change("'shape'", "'shade'").contains("no shape"));
        assert!(read(&good[..100]).unwrap_err().contains("cut off"));
        assert!(read(b"PK\x03\x04").unwrap_err().contains("magic"));
        let mut later = good.clone();
        later[6] = 9;
        assert!(read(&later).unwrap_err().contains("version 9"));
        // Every cut and every byte changed: an answer, no panic.
        for length in 0..good.len() {
            let _any = read(&good[..length]);
            let mut other = good.clone();
            other[length] ^= 0x55;
            let _any = read(&other);
        }
    }
}

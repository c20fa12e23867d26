//! How is the header of a NumPy file (.npy, versions 1 to 3) read?

use anyhow::Result;

use super::fixed::{Element, Fixed};
use super::layout::Place;
use crate::npy::{self, MAGIC, Unread};

/// The rows of an array of one or two dimensions, and the length of the header.
///
/// # Errors
/// What is not as it must be: type, order, dimensions.
pub fn read_header(bytes: &[u8], place: &Place<'_>) -> Result<(Fixed, usize)> {
    let short = || {
        place.bad(
            0,
            "the header of an .npy file is cut off, or longer than the buffer",
        )
    };
    let span = npy::span(bytes).map_err(|unread| match unread {
        Unread::Magic => place.bad(0, "found no \\x93NUMPY, with which an .npy file begins"),
        Unread::Version(other) => {
            let what = format!("found version {other} of .npy, expected 1, 2 or 3");
            place.bad(MAGIC.len(), what)
        }
        Unread::CutOff => short(),
    })?;
    let (start, end) = (span.start, span.end);
    let text = bytes.get(span).ok_or_else(short)?;
    let text = String::from_utf8_lossy(text);
    let bad = |what: String| place.bad(start, what);
    let element = match value(&text, "descr").unwrap_or_default() {
        "'<i8'" | "'<u8'" => Element::U64,
        "'<u4'" => Element::U32,
        "'<i4'" => Element::I32,
        other => {
            return Err(bad(format!(
                "found values of type {other}, expected int64, uint64, int32 or uint32, \
                 little-endian: convert with .astype('<i8')"
            )));
        }
    };
    let shape = value(&text, "shape").unwrap_or_default();
    let (rows, columns) = match npy::axes(shape).as_deref() {
        Some([rows]) => (*rows, 1),
        Some([rows, columns]) => (*rows, *columns),
        _ => {
            return Err(bad(format!(
                "found shape ({shape}), expected one or two dimensions"
            )));
        }
    };
    if value(&text, "fortran_order") != Some("False") && columns != 1 {
        return Err(bad(String::from(
            "found an array in Fortran's order, expected rows: save numpy.ascontiguousarray of it",
        )));
    }
    let promised = rows
        .checked_mul(columns)
        .and_then(|values| values.checked_mul(element.bytes() as u64));
    match (promised, usize::try_from(columns)) {
        (Some(promised), Ok(columns)) if (1..=1 << 16).contains(&columns) => {
            Ok((Fixed::array(element, columns, promised), end))
        }
        _ => Err(bad(format!(
            "found shape ({shape}), expected 1 to 65 536 columns"
        ))),
    }
}

/// The text of a value in the dictionary that the header is; of a tuple without its parentheses.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = npy::entry(text, name)?;
    match rest.starts_with('(') {
        true => npy::tuple(rest),
        false => Some(rest.split([',', '}']).next()?.trim()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(header: &str) -> Result<(usize, usize), String> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend([0; 64]);
        let path = Path::new("a.npy");
        let read = read_header(&bytes, &Place { path, offset: 0 });
        read.map(|(fixed, end)| (fixed.fields(), end))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn headers_are_read_and_what_is_wrong_is_named() {
        let of = |descr: &str, fortran: &str, shape: &str| {
            read(&format!(
                "{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
            ))
        };
        assert_eq!(of("'<i8'", "False", "(3,)").map(|r| r.0), Ok(1));
        assert_eq!(of("'<u4'", "False", "(3, 26)").map(|r| r.0), Ok(26));
        assert_eq!(of("'<i8'", "True", "(3,)").map(|r| r.0), Ok(1));
        for (descr, fortran, shape, told) in [
            ("'<f4'", "False", "(3,)", "type '<f4'"),
            ("'>i8'", "False", "(3,)", "little-endian"),
            ("'<i8'", "True", "(3, 2)", "ascontiguousarray"),
            ("'<i8'", "False", "()", "shape ()"),
            ("'<i8'", "False", "(1, 2, 3)", "shape (1, 2, 3)"),
            ("'<i8'", "False", "(3, 0)", "1 to 65 536 columns"),
            ("'<i8'", "False", "(99999999999999999999,)", "shape"),
            ("'<i8'", "False", "(9999999999999999999, 9)", "columns"),
            ("[('a', '<i8')]", "False", "(3,)", "type"),
        ] {
            let error = of(descr, fortran, shape).unwrap_err();
            assert!(error.contains(told), "{descr} {fortran} {shape}: {error}");
        }
        assert!(read("").unwrap_err().contains("type"));
    }
}

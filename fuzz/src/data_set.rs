//! What does `hps-keyset` promise of the files that it reads?
//!
//! - What it takes is what the plain reader takes, and its values are the same.
//! - How much of a file is in memory at a time changes nothing, where the longest record fits.

use std::io::Cursor;

use hps_tools::keyset::{Format, Record, values};

use crate::records::Plain;

/// More than any input has.
const WHOLE: usize = 1 << 16;

/// The name of the file.
pub const NAME: &str = "the file";

/// Reads a file, so many bytes at a time; the records, or the error, which must name file and byte.
#[must_use]
pub fn read(file: &[u8], format: Format, chunk_bytes: usize) -> Option<Vec<Record>> {
    match values(NAME, Cursor::new(file.to_vec()), format, chunk_bytes) {
        Ok(records) => Some(records),
        Err(error) => {
            let told = error.to_string();
            let place = format!("{NAME}: corrupt at byte ");
            let Some((at, what)) = told.strip_prefix(&place).and_then(|t| t.split_once(": "))
            else {
                panic!("no place in {told:?}");
            };
            let at: usize = at.parse().expect("a byte");
            assert!(at <= file.len(), "byte {at} of {}: {what}", file.len());
            assert!(!what.is_empty());
            None
        }
    }
}

/// Compares both readers: the file as a whole, and in chunks.
pub fn compare(file: &[u8], format: Format, chunk_bytes: usize, plain: Option<&Plain>) {
    let found = read(file, format, WHOLE);
    let expected = plain.map(|plain| &plain.records);
    assert_eq!(found.as_ref(), expected, "as a whole");
    compare_chunks(file, format, chunk_bytes, plain);
}

/// Compares a file in chunks with all of it.
pub fn compare_chunks(file: &[u8], format: Format, chunk_bytes: usize, plain: Option<&Plain>) {
    let found = read(file, format, chunk_bytes);
    match (found, plain) {
        (Some(found), Some(plain)) => assert_eq!(found, plain.records, "in chunks"),
        (Some(_), None) => panic!("taken in chunks of {chunk_bytes} bytes, but not as a whole"),
        // A line without an end is known to be the last one only at the end of the file.
        (None, Some(plain)) => assert!(
            plain.longest >= chunk_bytes,
            "refused in chunks of {chunk_bytes} bytes, the longest record has {}",
            plain.longest
        ),
        (None, None) => {}
    }
}

//! How is Criteo's text read? Label (not in test files), 13 integers, 26 categorical values in hex;
//! a tab between, nothing where a value is missing.
//!
//! - The first line says whether there is a label; each line of the file must agree with it.
//! - Eight digits are the rule and are read together; one to seven are read one by one.

use anyhow::Result;

use super::layout::{Place, Sink};

/// Categorical values of a line.
pub const FIELDS: usize = 26;

/// Columns of the first line.
///
/// # Errors
/// When there are neither 40 nor 39.
pub fn columns(bytes: &[u8], is_all: bool, place: &Place<'_>) -> Result<usize> {
    let end = bytes.iter().position(|b| *b == b'\n');
    let line = match end {
        Some(end) => &bytes[..end],
        None if is_all => bytes,
        None => return Err(too_long(bytes.len(), place)),
    };
    let columns = line.iter().filter(|b| **b == b'\t').count() + 1;
    match columns {
        40 | 39 => Ok(columns),
        _ if line.is_empty() && is_all => Ok(40),
        1 if line.iter().all(u8::is_ascii_digit) => Err(place.bad(
            0,
            "the first line is a number, as in a file list: give --file-list if this is one",
        )),
        _ => Err(place.bad(
            0,
            format!(
                "the first line has {columns} columns, expected 40 between tabs, or 39 without label"
            ),
        )),
    }
}

/// A line that no buffer holds.
pub fn too_long(bytes: usize, place: &Place<'_>) -> anyhow::Error {
    place.bad(
        0,
        format!("no line ends within {bytes} bytes: is this Criteo's text?"),
    )
}

/// Gives the values of whole lines to a sink.
///
/// # Errors
/// What is wrong with a line, or what the sink says.
pub fn parse(bytes: &[u8], columns: usize, place: &Place<'_>, sink: &mut impl Sink) -> Result<()> {
    let front = columns - FIELDS;
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at = skip_front(bytes, at, front, place)?;
        for field in 0..FIELDS {
            let rest = &bytes[at..];
            let (value, length) = match rest.first_chunk::<9>() {
                Some([digits @ .., b'\t' | b'\n']) if let Some(value) = hex8(*digits) => {
                    (Some(value), 8)
                }
                _ => few_digits(rest),
            };
            at += length;
            let expected = if field + 1 == FIELDS { b'\n' } else { b'\t' };
            match bytes.get(at) {
                Some(found) if *found == expected => {}
                None if field + 1 == FIELDS => {}
                found => {
                    return Err(wrong(
                        found.copied(),
                        at,
                        start,
                        columns - FIELDS + field,
                        columns,
                        place,
                    ));
                }
            }
            if let Some(value) = value {
                sink.put(field, value.into())
                    .map_err(|fault| place.fault(at - length, fault))?;
            }
            at += 1;
        }
        at = at.min(bytes.len());
        sink.end_row(start..at)
            .map_err(|fault| place.fault(start, fault))?;
    }
    Ok(())
}

/// Where the categorical values of a line begin.
fn skip_front(bytes: &[u8], start: usize, columns: usize, place: &Place<'_>) -> Result<usize> {
    let (mut at, mut left) = (start, columns);
    while left > 0 {
        match bytes.get(at) {
            Some(b'\t') => left -= 1,
            Some(b'0'..=b'9' | b'-') => {}
            found => {
                let all = columns + FIELDS;
                return Err(wrong(found.copied(), at, start, columns - left, all, place));
            }
        }
        at += 1;
    }
    Ok(at)
}

/// What was found in a column, and what was expected.
#[cold]
fn wrong(
    found: Option<u8>,
    at: usize,
    line: usize,
    column: usize,
    columns: usize,
    place: &Place<'_>,
) -> anyhow::Error {
    let found = match found {
        None => String::from("the end of the file"),
        Some(b'\n') => String::from("the end of the line"),
        Some(b'\t') => String::from("another column"),
        Some(b'\r') => String::from("a carriage return (make the file's line ends Unix ones)"),
        Some(byte) if byte.is_ascii_graphic() => format!("'{}'", char::from(byte)),
        Some(byte) => format!("byte {byte:#04x}"),
    };
    let expected = match column {
        _ if column + FIELDS < columns => "digits of an integer, or nothing",
        _ if column + 1 == columns => "1 to 8 hex digits or nothing, and the end of the line",
        _ => "1 to 8 hex digits or nothing, and a tab",
    };
    place.bad(
        at,
        format!(
            "column {} of {columns} of the line that begins at byte {}: found {found}, expected \
             {expected}",
            column + 1,
            place.offset + line as u64
        ),
    )
}

/// A value of at most eight digits, and how many there are; `None` if there are none.
fn few_digits(bytes: &[u8]) -> (Option<u32>, usize) {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let digits = bytes.iter().take(8).map_while(digit);
    let (value, count) = digits.fold((0, 0), |(value, count), digit| {
        ((value << 4) | digit, count + 1)
    });
    ((count > 0).then_some(value), count)
}

/// The value of eight hex digits in any case, all at once; `None` if they are not.
fn hex8(digits: [u8; 8]) -> Option<u32> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let text = u64::from_le_bytes(digits);
    let lower = text | (0x20 * ONES);
    // The high bit of each byte that is at least `least`, for bytes below 128.
    let least = |bytes: u64, least: u8| (bytes | HIGH) - u64::from(least) * ONES;
    let digit = least(text & !HIGH, b'0') & !least(text & !HIGH, b'9' + 1);
    let letter = least(lower & !HIGH, b'a') & !least(lower & !HIGH, b'f' + 1);
    if text & HIGH != 0 || (digit | letter) & HIGH != HIGH {
        return None;
    }
    let nibbles = (text & (0x0f * ONES)) + 9 * ((text >> 6) & ONES);
    let bytes = ((nibbles << 4) | (nibbles >> 8)) & 0x00ff_00ff_00ff_00ff;
    let words = ((bytes << 8) | (bytes >> 16)) & 0x0000_ffff_0000_ffff;
    Some((((words << 16) | (words >> 32)) & 0xffff_ffff) as u32)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::path::Path;

    use super::super::layout::Fault;
    use super::*;

    #[derive(Default)]
    struct Seen(Vec<(usize, u64)>, Vec<Range<usize>>);

    impl Sink for Seen {
        fn put(&mut self, field: usize, value: u64) -> Result<(), Fault> {
            self.0.push((field, value));
            Ok(())
        }

        fn end_row(&mut self, row: Range<usize>) -> Result<(), Fault> {
            self.1.push(row);
            Ok(())
        }
    }

    fn place() -> Place<'static> {
        Place {
            path: Path::new("a"),
            offset: 1000,
        }
    }

    fn line(front: &str, values: &[&str]) -> String {
        let mut values: Vec<&str> = values.to_vec();
        values.resize(FIELDS, "");
        format!("{front}{}", values.join("\t"))
    }

    #[test]
    fn eight_digits_at_once_are_read_as_one_by_one() {
        let text = b"0123456789abcdefABCDEF/:@G`g xyz\t\n\x00\x7f\x80\xb0\xe1\xff";
        for (i, byte) in text.iter().enumerate() {
            for place in 0..8 {
                let mut digits = *b"09afAF5c";
                digits[place] = *byte;
                digits[(place + 3) % 8] = text[(i * 7) % text.len()];
                let plain = std::str::from_utf8(&digits).ok();
                let plain = plain.filter(|text| !text.contains('+'));
                let plain = plain.and_then(|text| u32::from_str_radix(text, 16).ok());
                assert_eq!(hex8(digits), plain, "{digits:?}");
            }
        }
    }

    #[test]
    fn missing_values_short_ones_and_a_missing_last_end_are_read() {
        let front = "0\t1\t-2\t\t\t\t\t\t\t\t\t\t\t7\t";
        let one = line(front, &["0000000a", "", "F", "ffffFFFF"]);
        let two = line(front, &["", "abc"]);
        let text = format!("{one}\n{two}");
        assert_eq!(columns(text.as_bytes(), true, &place()).unwrap(), 40);
        let mut seen = Seen::default();
        parse(text.as_bytes(), 40, &place(), &mut seen).unwrap();
        assert_eq!(seen.0, [(0, 10), (2, 15), (3, 0xffff_ffff), (1, 0xabc)]);
        assert_eq!(seen.1, [0..one.len() + 1, one.len() + 1..text.len()]);
        let test = line(&front[2..], &["1", "2"]);
        assert_eq!(columns(test.as_bytes(), true, &place()).unwrap(), 39);
        let mut seen = Seen::default();
        parse(test.as_bytes(), 39, &place(), &mut seen).unwrap();
        assert_eq!(seen.0, [(0, 1), (1, 2)]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_byte() {
        let front = "0\t1\t\t\t\t\t\t\t\t\t\t\t\t\t";
        let good = line(front, &["0000000a"]);
        for (bad, told) in [
            (line(front, &["0000000g"]), "byte 1073: column 15 of 40"),
            (
                line(front, &["123456789"]),
                "found '9', expected 1 to 8 hex digits",
            ),
            (line(&front[2..], &["1"]), "column 39 of 40"),
            (
                line("0\tx\t\t\t\t\t\t\t\t\t\t\t\t\t", &[]),
                "found 'x', expected digits of",
            ),
            (line(&format!("{front}\t"), &[]), "found another column"),
            (line(front, &["1\r"]), "carriage return"),
            (String::from("\n"), "column 1 of 40"),
            (String::from("0\t1"), "the end of the file"),
        ] {
            let text = format!("{good}\n{bad}");
            let error = parse(text.as_bytes(), 40, &place(), &mut Seen::default()).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(told), "{bad:?}: {error}");
            assert!(error.starts_with("a: corrupt at byte 1"), "{error}");
        }
        for (text, told) in [("4\na.tsv\n", "--file-list"), ("a\tb\n", "2 columns")] {
            let error = columns(text.as_bytes(), true, &place()).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}

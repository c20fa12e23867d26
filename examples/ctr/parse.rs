//! What does one line of Criteo-layout text say?
//!
//! - A line gives one example whole, or none of it and a reason.
//! - The number of columns is looked at first when anything is wrong: it explains the rest.

use crate::data::{Batch, INTEGERS, SLOTS};
use crate::model::narrow;

const COLUMNS: usize = 1 + INTEGERS + SLOTS;
/// Brings the logarithm of a count to about the size of a weight.
const LOG_SCALE: f64 = 0.2;

/// Appends one line to a batch, or nothing and says why.
pub(crate) fn parse(line: &[u8], batch: &mut Batch) -> std::result::Result<(), String> {
    let (keys, dense) = (batch.keys.len(), batch.dense.len());
    let result = parse_columns(line, batch);
    match result {
        Ok(label) => {
            batch.labels.push(label);
            batch
                .counts
                .push(u8::try_from(batch.keys.len() - keys).unwrap_or(u8::MAX));
            Ok(())
        }
        Err(reason) => {
            batch.keys.truncate(keys);
            batch.dense.truncate(dense);
            Err(reason)
        }
    }
}

fn parse_columns(line: &[u8], batch: &mut Batch) -> std::result::Result<f32, String> {
    let mut label = 0.0;
    let mut slot = 0u64;
    for (column, text) in line.split(|x| *x == b'\t').enumerate() {
        if column == 0 {
            label = match text {
                b"0" => 0.0,
                b"1" => 1.0,
                _ => return Err(columns(line).unwrap_or_else(|| bad("label", text, "0 or 1"))),
            };
        } else if column <= INTEGERS {
            let Some(pair) = dense(text) else {
                let what = format!("integer column {column}");
                return Err(columns(line).unwrap_or_else(|| bad(&what, text, "a decimal integer")));
            };
            batch.dense.extend_from_slice(&pair);
        } else if column < COLUMNS {
            slot += 1;
            if text.is_empty() {
                continue;
            }
            let Some(value) = hexadecimal(text) else {
                let what = format!("categorical column {slot}");
                let wanted = "1 to 8 hexadecimal digits";
                return Err(columns(line).unwrap_or_else(|| bad(&what, text, wanted)));
            };
            batch.keys.push(slot << 32 | u64::from(value));
        } else {
            break;
        }
    }
    columns(line).map_or(Ok(label), Err)
}

/// What is wrong with the number of columns, if anything.
fn columns(line: &[u8]) -> Option<String> {
    let found = 1 + line.iter().filter(|x| **x == b'\t').count();
    match found {
        COLUMNS => None,
        39 => Some(
            "39 columns instead of 40: looks like the Kaggle test file, which has no label".into(),
        ),
        _ => Some(format!("{found} columns instead of 40 (tab-separated)")),
    }
}

fn bad(what: &str, text: &[u8], wanted: &str) -> String {
    let text = String::from_utf8_lossy(text.get(..24).unwrap_or(text));
    format!("{what} is {text:?}, not {wanted}")
}

/// Logarithm and missing mark of an integer.
fn dense(text: &[u8]) -> Option<[f32; 2]> {
    if text.is_empty() {
        return Some([0.0, 1.0]);
    }
    let value: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some([narrow(log_of(value)), 0.0])
}

/// The signed logarithm that stands for an integer.
pub(crate) fn log_of(value: i64) -> f64 {
    let log = (value.unsigned_abs() as f64).ln_1p() * LOG_SCALE;
    if value < 0 { -log } else { log }
}

fn hexadecimal(text: &[u8]) -> Option<u32> {
    if text.len() > 8 {
        return None;
    }
    let mut value = 0u32;
    for x in text {
        value = value << 4 | char::from(*x).to_digit(16)?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(line: &str) -> String {
        parse(line.as_bytes(), &mut Batch::default()).unwrap_err()
    }

    #[test]
    fn a_line_gives_its_keys_with_slots_and_its_integers() {
        let mut batch = Batch::default();
        let line = format!("1\t-3\t\t7{}\tff\t\t0A{}", "\t".repeat(10), "\t".repeat(23));
        parse(line.as_bytes(), &mut batch).unwrap();
        assert_eq!(batch.labels, [1.0]);
        assert_eq!(batch.keys, [1 << 32 | 0xff, 3 << 32 | 0x0a]);
        assert_eq!(batch.counts, [2]);
        assert_eq!(
            batch.dense[..4],
            [narrow(-(4f64.ln()) * LOG_SCALE), 0.0, 0.0, 1.0]
        );
    }

    #[test]
    fn a_malformed_line_says_why_and_leaves_nothing() {
        let tabs = "\t".repeat(38);
        assert!(reason(&format!("0{tabs}")).contains("39 columns instead of 40"));
        assert!(reason(&format!("2{tabs}\t")).contains("label is \"2\""));
        assert!(reason(&format!("0\t1.5{tabs}")).contains("integer column 1"));
        assert!(reason(&format!("0{tabs}\t123456789")).contains("categorical column 26"));
        let mut batch = Batch::default();
        assert!(parse(format!("0{tabs}\tx").as_bytes(), &mut batch).is_err());
        assert!(batch.dense.is_empty() && batch.keys.is_empty() && batch.counts.is_empty());
    }
}

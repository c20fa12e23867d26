//! Does a key stand twice in a folder?
//!
//! - Keys are sorted, as many ranges of mix64 one after another as it takes to stay within the memory
//!   allowed; the file of keys is read once for each.

use anyhow::Result;
use hps::{Error, mix64, part_range};

use super::found::FileFound;
use super::put::read_keys;
use crate::cli::Interrupt;

/// Keys that are read at a time.
const CHUNK_KEYS: usize = 64 << 10;

/// Fails if a key stands twice among the first rows of these files, naming both places. Keeps at most about
/// `memory` bytes of keys.
///
/// # Errors
/// `Corrupt`, `Io`; `Cancelled`.
pub fn refuse(files: &[(&FileFound, u64)], memory: u64, interrupt: &Interrupt) -> Result<()> {
    let rows: u64 = files.iter().map(|(_, rows)| rows).sum();
    let twice = find(rows, memory, |see| {
        each(files, interrupt, |_, _, key| see(key))
    })?;
    match twice {
        Some(twice) => Err(told(files, twice, interrupt)?),
        None => Ok(()),
    }
}

/// A key that stands twice among about so many, all of which `each` shows.
///
/// # Errors
/// Those of `each`.
pub fn find(
    count: u64,
    memory: u64,
    each: impl Fn(&mut dyn FnMut(u64)) -> Result<()>,
) -> Result<Option<u64>> {
    // Ranges are not of the same length: an eighth for that.
    let ranges = (count * 9)
        .div_ceil(memory.max(8 * CHUNK_KEYS as u64))
        .max(1);
    let ranges = usize::try_from(ranges).unwrap_or(usize::MAX);
    let mut found: Vec<u64> = Vec::new();
    for range in 0..ranges {
        let range = part_range(range, ranges);
        found.clear();
        each(&mut |key| {
            if range.contains(&mix64(key)) {
                found.push(key);
            }
        })?;
        found.sort_unstable();
        if let Some(pair) = found.windows(2).find(|pair| pair[0] == pair[1]) {
            return Ok(Some(pair[0]));
        }
    }
    Ok(None)
}

/// The error that names the first two places of a key.
fn told(files: &[(&FileFound, u64)], twice: u64, interrupt: &Interrupt) -> Result<anyhow::Error> {
    let mut places = Vec::new();
    each(files, interrupt, |keys, row, key| {
        if key == twice && places.len() < 2 {
            places.push((keys, row));
        }
    })?;
    let [(first, row), (keys, second)] = *places.as_slice() else {
        let path = files
            .first()
            .map(|(keys, _)| keys.path.display().to_string());
        let path = path.unwrap_or_default();
        return Ok(anyhow::anyhow!("{path}: changed while it was read"));
    };
    let of = match (&first.tensor, std::ptr::eq(first, keys)) {
        (Some(tensor), false) => format!(" of {}", tensor.name),
        _ => String::new(),
    };
    let what = format!(
        "key {twice:#x} of row {second} stands in row {row}{of} as well, expected each key once: which of the two rows \
         is right can't be known; take one of them out"
    );
    Ok(Error::corrupt(&keys.path, keys.head_bytes + 8 * second, what).into())
}

fn each<'a>(
    files: &[(&'a FileFound, u64)],
    interrupt: &Interrupt,
    mut see: impl FnMut(&'a FileFound, u64, u64),
) -> Result<()> {
    let (mut bytes, mut chunk) = (Vec::new(), Vec::new());
    for (keys, rows) in files {
        let mut first = 0;
        while first < *rows {
            interrupt.check()?;
            let left = usize::try_from(rows - first).unwrap_or(usize::MAX);
            read_keys(keys, first, left.min(CHUNK_KEYS), &mut bytes, &mut chunk)?;
            (first..)
                .zip(&chunk)
                .for_each(|(row, key)| see(keys, row, *key));
            first += chunk.len() as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_key_that_stands_twice_is_found_in_any_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let mut keys: Vec<u64> = (0..300_000u64).map(|i| i.wrapping_mul(i)).collect();
        let interrupt = Interrupt::listen().unwrap();
        for (rows, twice) in [
            (300_000, None),
            (300_000, Some(0)),
            (200_000, Some(250_000)),
        ] {
            if let Some(twice) = twice {
                keys[123_456] = keys[twice];
            }
            let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
            std::fs::write(&path, &bytes).unwrap();
            let file = FileFound {
                path: path.clone(),
                file: Arc::new(File::open(&path).unwrap()),
                head_bytes: 0,
                bytes: bytes.len() as u64,
                told: None,
                tensor: None,
            };
            for memory in [1 << 20, 1 << 30] {
                let result = refuse(&[(&file, rows)], memory, &interrupt);
                match twice {
                    Some(0) => {
                        let error = result.unwrap_err().to_string();
                        let place = "corrupt at byte 987648: key 0x0 of row 123456 stands in row 0";
                        assert!(error.contains(place), "{error}");
                    }
                    _ => assert!(result.is_ok(), "{result:?}"),
                }
            }
        }
    }
}

//! Does a key stand twice in a folder?
//!
//! - Keys are sorted, as many ranges of mix64 one after another as it takes to stay within the memory
//!   allowed; the file of keys is read once for each.

use anyhow::Result;
use hps::{mix64, part_range};

use super::source::Source;
use crate::cli::Interrupt;

/// The least memory for keys.
const MEMORY_MIN: u64 = 512 << 10;

/// Fails if a key stands twice in a folder, naming both places. Keeps at most about
/// `memory` bytes of keys.
///
/// # Errors
/// `Corrupt`, `Io`; `Cancelled`.
pub fn refuse(source: &dyn Source, memory: u64, interrupt: &Interrupt) -> Result<()> {
    let memory = memory.max(MEMORY_MIN);
    let most = usize::try_from(memory / 8).unwrap_or(usize::MAX);
    let mut ranges = ranges_of(source.rows().unwrap_or(0), memory);
    let mut found: Vec<u64> = Vec::new();
    let mut range = 0;
    while range < ranges {
        let part = part_range(range, ranges);
        found.clear();
        let mut count: u64 = 0;
        source.keys(interrupt, &mut |_, key| {
            if part.contains(&mix64(key)) {
                count += 1;
                if found.len() < most {
                    found.push(key);
                }
            }
        })?;
        found.sort_unstable();
        if let Some(pair) = found.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(told(source, pair[0], interrupt)?);
        }
        if count > found.len() as u64 {
            // More than was known, none of them twice so far: this range once more, by shorter ones.
            let finer = ranges_of(count, memory).max(2);
            (range, ranges) = (range * finer, ranges * finer);
            continue;
        }
        range += 1;
    }
    Ok(())
}

/// Ranges of which each has keys for so much memory. They are not of the same length: an eighth for that.
fn ranges_of(keys: u64, memory: u64) -> usize {
    let ranges = keys.saturating_mul(9).div_ceil(memory).max(1);
    usize::try_from(ranges).unwrap_or(usize::MAX)
}

/// The error that names the first two places of a key.
fn told(source: &dyn Source, twice: u64, interrupt: &Interrupt) -> Result<anyhow::Error> {
    let mut rows = Vec::new();
    source.keys(interrupt, &mut |row, key| {
        if key == twice && rows.len() < 2 {
            rows.push(row);
        }
    })?;
    let [first, second] = *rows.as_slice() else {
        let path = source.place(0, None).path;
        return Ok(anyhow::anyhow!(
            "{}: changed while it was read",
            path.display()
        ));
    };
    let (first, second) = (source.place(first, None), source.place(second, None));
    let of = match first.path == second.path {
        true => String::new(),
        false => format!(" of {}", first.path.display()),
    };
    let what = format!(
        "key {twice:#x} of {} stands in {}{of} as well, expected each key once: which of the two rows is right can't \
         be known; take one of them out",
        second.name, first.name
    );
    Ok(second.corrupt(what))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;
    use crate::import::fixed::Fixed;
    use crate::import::found::FileFound;
    use crate::import::plan::Plan;
    use crate::import::source::{Place, Reader};

    /// The same rows, of which nobody says how many there are.
    struct Unknown<'a>(&'a Fixed<'a>);

    impl Source for Unknown<'_> {
        fn rows(&self) -> Option<u64> {
            None
        }

        fn bytes(&self) -> u64 {
            self.0.bytes()
        }

        fn row_f32s(&self) -> usize {
            self.0.row_f32s()
        }

        fn numbers(&self) -> usize {
            self.0.numbers()
        }

        fn is_whole(&self) -> bool {
            self.0.is_whole()
        }

        fn reader(&self) -> Box<dyn Reader + '_> {
            self.0.reader()
        }

        fn keys(&self, interrupt: &Interrupt, see: &mut dyn FnMut(u64, u64)) -> Result<()> {
            self.0.keys(interrupt, see)
        }

        fn place(&self, row: u64, word: Option<usize>) -> Place {
            self.0.place(row, word)
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_found_in_any_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let mut keys: Vec<u64> = (0..300_000u64).map(|i| i.wrapping_mul(i)).collect();
        let interrupt = Interrupt::listen().unwrap();
        // The places of a key that stands twice are further apart than a megabyte of keys; or behind the rows.
        for (rows, twice) in [
            (300_000, None),
            (300_000, Some(0)),
            (200_000, Some(250_000)),
        ] {
            if let Some(twice) = twice {
                keys[223_456] = keys[twice];
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
            let plan = Plan {
                keys: &file,
                parts: Vec::new(),
                fill: Vec::new(),
                twins: &[],
                lost: Vec::new(),
                row_f32s: 0,
                is_whole: false,
                has_state: false,
            };
            let known = Fixed::new(plan, rows, 1);
            let unknown = Unknown(&known);
            for (source, memory) in [
                (&known as &dyn Source, 1 << 20),
                (&known, 1 << 30),
                (&unknown, 1 << 20),
                (&unknown, 1 << 30),
            ] {
                let result = refuse(source, memory, &interrupt);
                match twice {
                    Some(0) => {
                        let error = result.unwrap_err().to_string();
                        let place =
                            "corrupt at byte 1787648: key 0x0 of row 223456 stands in row 0";
                        assert!(error.contains(place), "{error}");
                    }
                    _ => assert!(result.is_ok(), "{result:?}"),
                }
            }
        }
    }
}

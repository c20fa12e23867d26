//! How are folders of models made of a fuzzer's bytes, and what is in them?
//!
//! - Each file is missing, whole, longer, cut, or any bytes; its rows are made of a seed.
//! - What is expected of a folder is decoded here once more, a word at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::Parser;
use hps_tools::import::Args;
use tempfile::TempDir;

use crate::Input;

/// A file of a model: its name, the bytes of a row (0: those of a weight vector), its header.
pub type Kind = (&'static str, usize, &'static str);

/// A folder that is not written yet.
#[derive(Debug)]
pub struct Folder {
    /// Rows and weights of each, of files that are whole.
    pub rows: usize,
    /// See above.
    pub dim: usize,
    /// Files.
    pub files: BTreeMap<&'static str, Vec<u8>>,
}

impl Folder {
    /// Of rows, weights of each, then of each file how it is, and a seed or its bytes. `head`: the header
    /// of a file with so many rows and weights.
    #[must_use]
    pub fn new(
        input: &mut Input<'_>,
        kinds: &[Kind],
        head: impl Fn(&Kind, u64, u64) -> Vec<u8>,
    ) -> Folder {
        let (rows, dim) = (input.below(40), 1 + input.below(5));
        let mut files = BTreeMap::new();
        for kind in kinds {
            let (name, row_bytes, _) = *kind;
            let row_bytes = if row_bytes == 0 { 4 * dim } else { row_bytes };
            let how = input.below(8);
            if how == 0 {
                continue;
            }
            let mut file = head(kind, rows as u64, (row_bytes / 4) as u64);
            let seed = input.number(1);
            match row_bytes {
                8 if name.starts_with("key") => file.extend(keys(rows, seed)),
                _ => file.extend(words(rows * row_bytes / 4, seed)),
            }
            match how {
                1..=4 => {}
                5 => file.extend(input.take(seed as usize % 64)),
                6 => file.truncate(file.len().saturating_sub(seed as usize)),
                _ => {
                    // Words somewhere in the file, header included.
                    let at = input.number(2) as usize % (file.len() + 1);
                    let bytes = input.take(seed as usize % 32);
                    let end = file.len().min(at + bytes.len());
                    file.splice(at..end, bytes.iter().copied());
                }
            }
            files.insert(name, file);
        }
        Folder { rows, dim, files }
    }

    /// Writes all files below a new folder in memory, which goes when it is dropped.
    ///
    /// # Panics
    /// When there is no room.
    #[must_use]
    pub fn write(&self) -> TempDir {
        let folder = memory();
        for (name, bytes) in &self.files {
            fs::write(folder.path().join(name), bytes).expect("a file");
        }
        folder
    }
}

/// A new folder in memory, which goes when it is dropped.
///
/// # Panics
/// When there is no room.
#[must_use]
pub fn memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    made.expect("a folder")
}

/// Keys that rise; of an odd seed the last one is the first again.
fn keys(rows: usize, seed: u64) -> Vec<u8> {
    let mut keys: Vec<u64> = (0..rows as u64)
        .map(|row| row * 257 + (seed << 40))
        .collect();
    if seed % 16 == 1 && rows > 1 {
        keys[rows - 1] = keys[0];
    }
    keys.iter().flat_map(|key| key.to_le_bytes()).collect()
}

/// Numbers; of some seeds one is not finite.
fn words(count: usize, seed: u64) -> Vec<u8> {
    let mut numbers: Vec<f32> = (0..count)
        .map(|at| at as f32 + seed as f32 / 256.0)
        .collect();
    if seed % 16 == 1 && count > 0 {
        numbers[seed as usize % count] = f32::NAN;
    }
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// Arguments of an import from a folder into a new table.
///
/// # Panics
/// When they are not taken.
#[must_use]
pub fn args(folder: &Path, more: &[String]) -> Args {
    let mut all: Vec<String> = ["hps-import", "--create", "--table", "t"]
        .map(String::from)
        .into();
    all.extend(more.iter().cloned());
    all.push(String::from("/nowhere"));
    all.push(folder.to_string_lossy().into_owned());
    Args::try_parse_from(all).expect("arguments")
}

/// The word at a place, as a number.
#[must_use]
pub fn word(bytes: &[u8], at: usize) -> f32 {
    f32::from_bits(crate::u32_at(bytes, 4 * at))
}

/// Compares rows to the bit.
///
/// # Panics
/// When they differ.
pub fn same(found: &BTreeMap<u64, Vec<f32>>, expected: &BTreeMap<u64, Vec<f32>>) {
    let bits = |rows: &BTreeMap<u64, Vec<f32>>| -> BTreeMap<u64, Vec<u32>> {
        let rows = rows.iter();
        rows.map(|(key, row)| (*key, row.iter().map(|v| v.to_bits()).collect()))
            .collect()
    };
    assert_eq!(bits(found), bits(expected));
}

//! Which tensors has an EmbeddingVariable of DeepRec, and how are they laid out in a checkpoint?
//!
//! - `NAME-keys` int64 `[N]`, `NAME-values` f32 `[N, D]`; `NAME-freqs` and `NAME-versions` int64 `[N]`, or `[0]`
//!   where they are not kept. Optimizer slots are variables below it: `NAME/Adagrad-keys` and so on, with the same
//!   keys in the same order.
//! - `NAME-partition_offset` is not written. With it a restore takes rows by `key % 1000`, which then must be their
//!   order; without it, it reads all rows and takes those of its partition, in whatever order they are.
//! - Rows of a tier on SSD are not in these tensors but in files of their own, `PREFIX-NAME-emb_files`, of which
//!   `PREFIX-NAME-ssd_record.index` is the index.
//! - What we write has a data file for each column, and one index that names it, a slot's keys included.
//!
//! Source: DeepRec, docs/docs_en/Embedding-Variable-Export-Format.md,
//! core/framework/embedding/embedding_var_restore.h (`RestoreSSD`), embedding_var_restore.cc (`IsOldCheckpoint`,
//! `RestoreInternal`) and embedding_var_ckpt_data.cc, python/training/slot_creator.py.

pub mod bundle;
pub mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use hps::{Error, Optimizer, TableDescriptor};

use super::columns::{Column, columns};
use super::{Content, FileOf};
use crate::durable::write_new;
use bundle::{Entry, FLOAT, Header, INT64};

/// Keys.
pub const KEYS: &str = "keys";
/// Weights.
pub const VALUES: &str = "values";
/// The metadata `count`.
pub const FREQS: &str = "freqs";
/// The metadata `last_step`.
pub const VERSIONS: &str = "versions";
/// Of what an export writes, the part of all names before the dot.
pub const PREFIX: &str = "model.ckpt";
/// DeepRec counts the keys of a variable with an int32.
pub const ROWS_MAX: u64 = i32::MAX as u64;
/// Where a variable has a tier on SSD, a checkpoint has files of these names for it; slashes in its name become `_`.
pub const SSD_ENDS: [&str; 2] = ["-ssd_record.index", "-emb_files"];

/// A slot, which is a variable of its own below the one that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its name.
    pub name: &'static str,
    /// The column of ours.
    pub column: &'static str,
}

const fn slot(name: &'static str, column: &'static str) -> Slot {
    Slot { name, column }
}

/// The slots of each optimizer whose state is ours to the bit.
pub const STATE: &[(Optimizer, &[Slot])] = &[
    (Optimizer::Adagrad, &[slot("Adagrad", "a")]),
    (Optimizer::Adam, &[slot("Adam", "m"), slot("Adam_1", "v")]),
    (Optimizer::Ftrl, &[slot("Ftrl", "n"), slot("Ftrl_1", "z")]),
];

/// The slots of an optimizer; of one without state, or that is not in [`STATE`], none.
#[must_use]
pub fn slots(optimizer: Optimizer) -> &'static [Slot] {
    let found = STATE.iter().find(|(of, _)| *of == optimizer);
    found.map_or(&[], |(_, slots)| slots)
}

/// Where a column stands: the name of a slot, `freqs` or `versions`.
#[must_use]
pub fn tensor_of(optimizer: Optimizer, column: &Column) -> Option<&'static str> {
    match column.name {
        "count" => Some(FREQS),
        "last_step" => Some(VERSIONS),
        _ if column.is_integer => None,
        name => {
            let slot = slots(optimizer).iter().find(|slot| slot.column == name);
            slot.map(|slot| slot.name)
        }
    }
}

/// Refuses what DeepRec can't count.
///
/// # Errors
/// `Usage`.
pub fn check_rows(rows: u64) -> Result<()> {
    match rows {
        0..=ROWS_MAX => Ok(()),
        _ => Err(super::Usage(format!(
            "{rows} rows; DeepRec counts those of a variable up to {ROWS_MAX}"
        ))
        .into()),
    }
}

/// Gives files their names in the folder.
pub fn name_shards(files: &mut [FileOf]) {
    let count = files.len();
    for (number, file) in files.iter_mut().enumerate() {
        file.name = data_name(PREFIX, number as u64, count as u64);
    }
}

/// The name of a data file.
#[must_use]
pub fn data_name(prefix: &str, shard: u64, shards: u64) -> String {
    format!("{prefix}.data-{shard:05}-of-{shards:05}")
}

/// Writes the index of what an export has written, and the file that names the checkpoint of a folder; `sums` has the
/// CRC-32C of each file. The two files, with their bytes.
///
/// # Errors
/// `Io`, `NoSpace`.
pub fn finish(
    folder: &Path,
    variable: &str,
    table: &TableDescriptor,
    files: &[FileOf],
    sums: &[u32],
    rows: u64,
) -> Result<Vec<(String, u64)>> {
    let entries = entries(variable, table, files, sums, rows);
    let header = Header {
        shards: files.len() as u64,
    };
    let mut all = vec![(Vec::new(), header.write())];
    // In the order of their bytes.
    all.extend(
        entries
            .iter()
            .map(|(name, e)| (name.clone().into_bytes(), e.write())),
    );
    let index = (format!("{PREFIX}.index"), table::write(&all));
    let state =
        format!("model_checkpoint_path: \"{PREFIX}\"\nall_model_checkpoint_paths: \"{PREFIX}\"\n");
    let mut written = Vec::new();
    for (name, bytes) in [index, (String::from("checkpoint"), state.into_bytes())] {
        write_new(folder, &name, &bytes)?;
        written.push((name, bytes.len() as u64));
    }
    Ok(written)
}

/// All tensors of a variable.
fn entries(
    variable: &str,
    table: &TableDescriptor,
    files: &[FileOf],
    sums: &[u32],
    rows: u64,
) -> BTreeMap<String, Entry> {
    let columns = columns(table);
    let mut entries = BTreeMap::new();
    let empty = Entry {
        dtype: INT64,
        shape: vec![0],
        shard: 0,
        offset: 0,
        size: 0,
        crc: 0,
    };
    let mut keys = empty.clone();
    for name in [FREQS, VERSIONS] {
        entries.insert(format!("{variable}-{name}"), empty.clone());
    }
    for (shard, (file, crc)) in files.iter().zip(sums).enumerate() {
        let mut entry = Entry {
            dtype: INT64,
            shape: vec![rows],
            shard: shard as u64,
            offset: 0,
            size: rows * file.content.row_bytes() as u64,
            crc: *crc,
        };
        let Content::Words { begin, width, .. } = file.content else {
            keys = entry.clone();
            entries.insert(format!("{variable}-{KEYS}"), entry);
            continue;
        };
        let column = columns.iter().find(|column| column.begin == begin);
        let tensor = column.and_then(|column| tensor_of(table.optimizer, column));
        if let Some(name @ (FREQS | VERSIONS)) = tensor {
            entries.insert(format!("{variable}-{name}"), entry);
            continue;
        }
        (entry.dtype, entry.shape) = (FLOAT, vec![rows, width as u64]);
        let Some(slot) = tensor else {
            entries.insert(format!("{variable}-{VALUES}"), entry);
            continue;
        };
        // A slot has the keys of its variable: the same bytes, named twice.
        entries.insert(format!("{variable}/{slot}-{KEYS}"), keys.clone());
        entries.insert(format!("{variable}/{slot}-{VALUES}"), entry);
        for name in [FREQS, VERSIONS] {
            entries.insert(format!("{variable}/{slot}-{name}"), empty.clone());
        }
    }
    entries
}

/// A tensor's place below a variable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The partition; `None` where the variable has none.
    pub part: Option<u32>,
    /// The slot; empty for the variable itself.
    pub slot: String,
    /// What it holds: `keys`, `values` and so on.
    pub what: String,
}

impl Place {
    /// The place of a tensor, if it is one of this variable.
    #[must_use]
    pub fn of(variable: &str, tensor: &str) -> Option<Place> {
        let mut rest = tensor.strip_prefix(variable)?;
        let mut part = None;
        if let Some(found) = rest.strip_prefix("/part_") {
            let digits = found.len() - found.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, behind) = found.split_at(digits);
            // What begins otherwise is the name of a slot.
            if digits > 0 && behind.starts_with(['/', '-']) {
                // No variable has so many; a greater number must not vanish.
                part = Some(number.parse().unwrap_or(u32::MAX));
                rest = behind;
            }
        }
        let (slot, what) = rest.rsplit_once('-')?;
        let slot = match slot.strip_prefix('/') {
            Some(slot) => slot.to_owned(),
            None if slot.is_empty() => String::new(),
            None => return None,
        };
        Some(Place {
            part,
            slot,
            what: what.to_owned(),
        })
    }

    /// The name of the variable or slot that it is of.
    #[must_use]
    pub fn owner(&self, variable: &str) -> String {
        let mut name = variable.to_owned();
        if let Some(part) = self.part {
            name = format!("{name}/part_{part}");
        }
        match self.slot.as_str() {
            "" => name,
            slot => format!("{name}/{slot}"),
        }
    }
}

/// The prefix of the names of a checkpoint: a path that has an index, or a folder that has one checkpoint.
///
/// # Errors
/// `Usage` where there is none, or several; `Io`.
pub fn prefix_of(path: &Path) -> Result<PathBuf> {
    let with = |path: &Path, end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    if with(path, ".index").is_file() {
        return Ok(path.to_path_buf());
    }
    let shown = path.display();
    let usage = |why: String| Err(super::Usage(format!("{shown}: {why}")).into());
    if !path.is_dir() {
        return usage(format!(
            "no checkpoint: there is no file {}, and no folder of that name",
            with(path, ".index").display()
        ));
    }
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| Error::io("list", path, e))? {
        let entry = entry.map_err(|e| Error::io("list", path, e))?.path();
        let is_of_ssd = entry.to_string_lossy().ends_with(SSD_ENDS[0]);
        if entry.extension().is_some_and(|end| end == "index") && !is_of_ssd {
            found.push(entry.with_extension(""));
        }
    }
    found.sort();
    match found.as_slice() {
        [] => usage(String::from(
            "no checkpoint of DeepRec: it has no file *.index",
        )),
        [prefix] => Ok(prefix.clone()),
        several => usage(format!(
            "{} checkpoints; name one by its prefix, as {}",
            several.len(),
            several[several.len() - 1].display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_told_apart_by_their_names() {
        let place = |part, slot: &str, what: &str| {
            Some(Place {
                part,
                slot: slot.to_owned(),
                what: what.to_owned(),
            })
        };
        assert_eq!(Place::of("a/b", "a/b-keys"), place(None, "", "keys"));
        assert_eq!(
            Place::of("a/b", "a/b/Adam_1-values"),
            place(None, "Adam_1", "values")
        );
        let found = Place::of("a", "a/part_12/Adagrad-keys");
        assert_eq!(found, place(Some(12), "Adagrad", "keys"));
        assert_eq!(found.unwrap().owner("a"), "a/part_12/Adagrad");
        for other in ["ab-keys", "a_1-keys", "a", "b-keys"] {
            assert_eq!(Place::of("a", other), None, "{other}");
        }
        let far = Place::of("a", "a/part_99999999999-keys");
        assert_eq!(far, place(Some(u32::MAX), "", "keys"));
        for slot in ["part_", "part_1x"] {
            let found = Place::of("a", &format!("a/{slot}-keys"));
            assert_eq!(found, place(None, slot, "keys"));
        }
    }

    #[test]
    fn more_rows_than_an_int32_counts_are_refused() {
        check_rows(ROWS_MAX).unwrap();
        let said = check_rows(ROWS_MAX + 1).unwrap_err().to_string();
        assert!(said.contains("2147483648 rows"), "{said}");
    }

    #[test]
    fn a_folder_of_one_checkpoint_stands_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let say = |path: &Path| prefix_of(path).unwrap_err().to_string();
        assert!(say(root).contains("no file *.index"));
        std::fs::write(root.join("m.ckpt-7.index"), b"").unwrap();
        // Of a variable with a tier on SSD: no checkpoint of its own.
        std::fs::write(root.join("m.ckpt-7-a-ssd_record.index"), b"").unwrap();
        assert_eq!(prefix_of(root).unwrap(), root.join("m.ckpt-7"));
        assert_eq!(
            prefix_of(&root.join("m.ckpt-7")).unwrap(),
            root.join("m.ckpt-7")
        );
        std::fs::write(root.join("m.ckpt-9.index"), b"").unwrap();
        assert!(
            say(root).contains("2 checkpoints; name one"),
            "{}",
            say(root)
        );
        assert!(say(&root.join("other")).contains("no checkpoint"));
    }
}

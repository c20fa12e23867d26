//! Stores and folders of models for the tests of `hps-export` and `hps-import`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hps::{
    CreateOptions, Optimizer, PutRows, RuntimeOptions, Store, TableDescriptor, TableId, mix64,
};
use serde_json::Value;

pub const EXPORT: &str = env!("CARGO_BIN_EXE_hps-export");
pub const IMPORT: &str = env!("CARGO_BIN_EXE_hps-import");
pub const TABLE: &str = "clicks";

/// The name of an optimizer on the command line.
pub fn rule_name(optimizer: Optimizer) -> String {
    let name = format!("{optimizer:?}").to_lowercase();
    name.replace("rowwise", "rowwise-")
}

/// A file or folder of `tests/data`.
pub fn data(name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    data.join(name)
}

pub fn options() -> RuntimeOptions {
    RuntimeOptions::new().cache_bytes(4 << 20)
}

pub fn table(optimizer: Optimizer, dim: usize) -> TableDescriptor {
    TableDescriptor::new(TABLE, dim).optimizer(optimizer)
}

/// Runs a tool on a store and a folder; flags in one text.
pub fn run(program: &str, flags: &str, store: &Path, folder: &Path) -> Output {
    let mut command = Command::new(program);
    command
        .args(flags.split_whitespace())
        .args(["--table", TABLE]);
    command.arg(store).arg(folder).output().unwrap()
}

/// Runs a tool that must end with a code: what it said on stdout and stderr.
pub fn says(program: &str, flags: &str, store: &Path, folder: &Path, code: i32) -> String {
    let output = run(program, flags, store, folder);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(output.status.code(), Some(code), "{flags}: {text}");
    text
}

/// The same with `--json`.
pub fn json(program: &str, flags: &str, store: &Path, folder: &Path, code: i32) -> Value {
    let flags = format!("{flags} --json");
    let output = run(program, &flags, store, folder);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{flags}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs an import that must end with a code, say all of these parts, and leave the store as it was: with one
/// checkpoint.
pub fn refused(flags: &str, store: &Path, folder: &Path, code: i32, parts: &[&str]) {
    let before = digest(store);
    let said = says(IMPORT, flags, store, folder, code);
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(digest(store), before);
    let store = Store::open_read_only(store, None, options()).unwrap();
    assert_eq!(store.checkpoints().len(), 1, "no checkpoint is made");
}

/// A number from 0 to 1 that follows from another.
fn unit(number: u64) -> f32 {
    let bits = u16::try_from(mix64(number) >> 48).unwrap();
    f32::from(bits) / 65536.0
}

/// Keys of a sample: the least and the greatest, and all sorts between.
pub fn keys(count: u64) -> Vec<u64> {
    let some = |i: u64| match i {
        0 => u64::MAX,
        1 => 0,
        _ if i.is_multiple_of(3) => i,
        _ => mix64(i),
    };
    (0..count).map(some).collect()
}

/// Rows of a table, by key: every value another, with a step count of 7 where there is one.
pub fn rows(descriptor: &TableDescriptor, keys: &[u64]) -> Vec<f32> {
    let width = descriptor.row_f32s();
    let mut rows = Vec::new();
    for key in keys {
        let value = |i: usize| unit(key.wrapping_mul(31).wrapping_add(i as u64)) - 0.5;
        rows.extend((0..width).map(value));
        let state = descriptor.optimizer.state_f32s(descriptor.dim);
        let first = rows.len() - width;
        if descriptor.optimizer == Optimizer::Adam {
            rows[first + descriptor.dim + state - 1] = 7.0;
        }
        let metadata = first + descriptor.dim + state;
        for (i, word) in rows[metadata..].iter_mut().enumerate() {
            // Of which many are NaNs.
            *word = f32::from_bits(0xffff_fff0 + u32::try_from(i).unwrap());
        }
    }
    rows
}

/// A store of one table, with rows of these keys and a checkpoint of step 5.
pub fn sample(directory: &Path, descriptor: &TableDescriptor, keys: &[u64]) {
    let store = Store::create(directory, CreateOptions::new(), options()).unwrap();
    let id = store.create_table(descriptor).unwrap();
    let values = rows(descriptor, keys);
    store
        .put(id, keys, PutRows::whole(&values).verbatim())
        .unwrap();
    store.checkpoint(5, b"of the trainer").unwrap();
    store.close().unwrap();
}

/// What `hps-fsck --digest` says of the last checkpoint.
pub fn digest(store: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hps-fsck"));
    let output = command
        .args(["--digest", "--json"])
        .arg(store)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["digest"].as_str().unwrap().to_owned()
}

/// All rows of the last checkpoint, by key.
pub fn all_rows(directory: &Path) -> Vec<(u64, Vec<f32>)> {
    let store = Store::open_read_only(directory, None, options()).unwrap();
    let id = store.last_checkpoint().unwrap().id;
    let mut iter = store.rows_of(id, TableId(0), 0..=u64::MAX).unwrap();
    let mut found = Vec::new();
    while let Some(row) = iter.next_row().unwrap() {
        found.push((row.key, row.values.to_vec()));
    }
    found.sort_by_key(|(key, _)| *key);
    found
}

pub fn u64s(path: &Path) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty());
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

pub fn f32s(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

pub fn write_u64s(path: &Path, values: &[u64]) {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    fs::write(path, bytes).unwrap();
}

pub fn write_f32s(path: &Path, values: &[f32]) {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    fs::write(path, bytes).unwrap();
}

/// Cuts a file, or makes it longer.
pub fn resize(path: &Path, by: i64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let bytes = file.metadata().unwrap().len();
    file.set_len(bytes.checked_add_signed(by).unwrap()).unwrap();
}

//! Stores for the tests of the tools, and ways to look at them and to damage them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hps::{CreateOptions, RuntimeOptions, Store, TableDescriptor, TableId, Update};
use serde_json::Value;

pub const DIM: usize = 8;

pub fn fsck(args: &[&str], directory: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hps-fsck"))
        .args(args)
        .arg(directory)
        .output()
        .unwrap()
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn set(store: &Store, table: TableId, keys: &[u64], value: f32) {
    let mut out = vec![0.0; keys.len() * DIM];
    let lease = store.pull(table, keys, &mut out).unwrap();
    out.fill(value);
    store.push(&lease, Update::weights(&out)).unwrap();
}

/// A store of 7000 rows: enough for an index snapshot. Keys from 6000 on have other values.
pub fn sample(directory: &Path, last: f32) {
    let options = RuntimeOptions::new().cache_bytes(1 << 20);
    let store = Store::create(directory, CreateOptions::new(), options).unwrap();
    let table = store
        .create_table(&TableDescriptor::new("ads", DIM))
        .unwrap();
    let keys: Vec<u64> = (0..7000).collect();
    for batch in keys.chunks(1000) {
        set(&store, table, batch, 1.0);
    }
    store.checkpoint(1, b"first").unwrap();
    set(&store, table, &keys[6000..], last);
    store.checkpoint(2, b"second").unwrap();
    store.close().unwrap();
}

/// Every file below a directory.
pub fn content(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.append(&mut content(&path)),
            false => drop(files.insert(path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    files
}

pub fn of_kind(directory: &Path, suffix: &str) -> PathBuf {
    let named = |p: &PathBuf| p.to_string_lossy().ends_with(suffix);
    content(directory).into_keys().find(named).unwrap()
}

pub fn change_byte(path: &Path, offset: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[offset] ^= 0x20;
    std::fs::write(path, bytes).unwrap();
}

//! A store whose files are easy to count, and looks at it.

#![expect(clippy::unwrap_used, reason = "used by tests")]

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use hps::inspect::{Report, Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;

use super::small::{set, sgd};

/// Where the store is.
pub const ROOT: &str = "/store";
/// Weights of a row, which are all that it has.
pub const DIM: usize = 500;
/// Bytes from one row to the next in a parameter file, whose rows start at byte 4096.
pub const STRIDE: u64 = 2016;

pub const QUICK: Scope = Scope::new();
pub const FULL: Scope = QUICK.full(true);

pub fn look_on(io: &Io, scope: Scope) -> Result<Report> {
    inspect_on(io, Path::new(ROOT), scope, &mut |_, _| {
        ControlFlow::Continue(())
    })
}

pub fn look(disk: &SimDisk, scope: Scope) -> Result<Report> {
    look_on(&Io::of(disk.clone()), scope)
}

/// What was found: severity, file and byte.
pub fn found(disk: &SimDisk, scope: Scope) -> Vec<(Severity, PathBuf, Option<u64>)> {
    let findings = look(disk, scope).unwrap().findings.into_iter();
    findings.map(|f| (f.severity, f.path, f.offset)).collect()
}

/// Files whose names end so.
pub fn named(disk: &SimDisk, end: &str) -> Vec<PathBuf> {
    let mut paths = disk.paths();
    paths.retain(|p| p.extension().is_some_and(|e| e == end));
    paths
}

/// The one file whose name ends so.
pub fn only(disk: &SimDisk, end: &str) -> PathBuf {
    let mut paths = named(disk, end);
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths.remove(0)
}

/// Without an index snapshot.
pub fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(32 << 20)
        .retain_checkpoints(2)
        .inline(true)
}

/// With a new index snapshot at every checkpoint.
pub fn with_snapshots() -> RuntimeOptions {
    options().thresholds(Thresholds {
        snapshot_young_bytes: 0,
        snapshot_young_part: u64::MAX,
        ..Thresholds::default()
    })
}

/// Opens the store, or creates it with its table.
pub fn open(disk: &SimDisk, options: RuntimeOptions) -> Store {
    let (io, root) = (Io::of(disk.clone()), Path::new(ROOT));
    if !disk.paths().is_empty() {
        return Store::open_on(io, root, options).unwrap();
    }
    let store = Store::create_on(io, root, CreateOptions::new(), options).unwrap();
    store.create_table(&sgd("t", DIM)).unwrap();
    store
}

/// Each batch of keys gets a file and a checkpoint, with a meta of so many bytes.
pub fn write(disk: &SimDisk, options: RuntimeOptions, batches: &[(Range<u64>, usize)]) {
    let store = open(disk, options);
    let table = store.table("t").unwrap();
    for (keys, meta) in batches {
        let keys: Vec<u64> = keys.clone().collect();
        set(&store, table, &keys, 1.0, DIM);
        let step = store.last_checkpoint().map_or(0, |c| c.step) + 1;
        store.checkpoint(step, &vec![7; *meta]).unwrap();
    }
    store.close().unwrap();
}

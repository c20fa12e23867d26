//! What does a store do with a table whose weights are of a type that this build can't compute with?
//!
//! - Opening it is refused, and says which table; what never looks into rows goes on.
//! - The table is one of f32 with rows as long, to which the manifest then gives another type, under
//!   right checksums. Its rows are any bits at all.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/manifests.rs"]
mod manifests;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hps::format::manifest::Edit;
use hps::inspect::{Report, Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::repair::{RepairOptions, RepairOutcome, Repaired, repair_on};
use hps::*;
use manifests::forge;

const ROOT: &str = "/store";
const KEYS: u64 = 600;

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(8 << 20)
        .inline(true)
        .threads(1)
}

/// Nine weights of 2 bytes, and two of zeros; an accumulator.
fn narrow(dtype: Dtype) -> TableDescriptor {
    let table = TableDescriptor::new("narrow", 9).optimizer(Optimizer::RowwiseAdagrad);
    table.dtype(dtype)
}

/// Rows of six words, of any bits.
fn wide() -> TableDescriptor {
    TableDescriptor::new("narrow", 6).optimizer(Optimizer::Sgd)
}

fn bits(key: u64) -> Vec<u32> {
    let word = |i: u64| u32::try_from(mix64(key << 8 | i) >> 32).unwrap();
    (0..6).map(word).collect()
}

/// A table of f32 beside it, two checkpoints, removed keys.
fn store() -> SimDisk {
    let disk = SimDisk::new(1);
    let create = CreateOptions::new().data_directories(vec!["a".into(), "b".into()]);
    let io = Io::of(disk.clone());
    let store = Store::create_on(io, Path::new(ROOT), create, options()).unwrap();
    let plain = TableDescriptor::new("plain", 4).optimizer(Optimizer::Sgd);
    let tables = [plain, wide()].map(|table| store.create_table(&table).unwrap());
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut out = vec![0.0; keys.len() * 4];
    let lease = store.pull(tables[0], &keys, &mut out).unwrap();
    out.fill(1.5);
    store.push(&lease, Update::weights(&out)).unwrap();
    drop(lease);
    let rows: Vec<f32> = keys
        .iter()
        .flat_map(|key| bits(*key))
        .map(f32::from_bits)
        .collect();
    let mut out = vec![0.0; rows.len()];
    let lease = store.pull(tables[1], &keys, &mut out).unwrap();
    store
        .push(&lease, Update::weights(&rows).verbatim())
        .unwrap();
    drop(lease);
    store.checkpoint(1, b"first").unwrap();
    store.remove(tables[1], &keys[..10]).unwrap();
    store.checkpoint(2, b"second").unwrap();
    store.close().unwrap();
    disk
}

/// Gives the second table another descriptor.
fn describe(disk: &SimDisk, as_what: &TableDescriptor) {
    forge(disk, |edits| {
        for edit in edits {
            if let Edit::Table { id: 1, descriptor } = edit {
                *descriptor = as_what.clone();
            }
        }
    });
}

fn refused(disk: &SimDisk, dtype: Dtype) {
    let io = || Io::of(disk.clone());
    let before: Vec<_> = disk
        .paths()
        .iter()
        .map(|p| disk.read_file(p).ok())
        .collect();
    let write = Store::open_on(io(), Path::new(ROOT), options()).unwrap_err();
    let read = Store::open_read_only_on(io(), Path::new(ROOT), None, options()).unwrap_err();
    for error in [write, read] {
        let Error::UnsupportedTable {
            table,
            dtype: found,
        } = &error
        else {
            unreachable!("{error}");
        };
        assert_eq!((table.as_str(), *found), ("narrow", dtype.name()));
        assert!(error.to_string().contains("table narrow"), "{error}");
    }
    let after: Vec<_> = disk
        .paths()
        .iter()
        .map(|p| disk.read_file(p).ok())
        .collect();
    assert!(after == before, "nothing is written");
}

fn look(disk: &SimDisk, root: &Path) -> Report {
    let mut go_on = |_, _| ControlFlow::Continue(());
    inspect_on(
        &Io::of(disk.clone()),
        root,
        Scope::new().full(true),
        &mut go_on,
    )
    .unwrap()
}

fn repair(disk: &SimDisk) -> Box<Repaired> {
    let mut go_on = |_, _| ControlFlow::Continue(());
    let (mut told, io) = (|_: &str, _| Ok(()), Io::of(disk.clone()));
    let built = repair_on(
        &io,
        Path::new(ROOT),
        RepairOptions::new(),
        &mut told,
        &mut go_on,
    );
    match built.unwrap() {
        RepairOutcome::Built(_, repaired) => repaired,
        RepairOutcome::Whole(_) => unreachable!("it is damaged"),
    }
}

/// The rows of the second table at the last checkpoint, seen as f32 again.
fn rows(disk: &SimDisk) -> Vec<(u64, Vec<u32>)> {
    describe(disk, &wide());
    let store = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options()).unwrap();
    let last = store.last_checkpoint().unwrap().id;
    let mut rows = store.rows(last).unwrap();
    let mut found = Vec::new();
    while let Some(row) = rows.next_row().unwrap() {
        if row.table == TableId(1) {
            found.push((row.key, row.values.iter().map(|v| v.to_bits()).collect()));
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn a_row_has_whole_words_of_narrow_weights_and_then_its_state() {
    let words = |dim, dtype| TableDescriptor::new("t", dim).dtype(dtype).row_f32s();
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let sgd = |dim| {
            let table = TableDescriptor::new("t", dim).optimizer(Optimizer::Sgd);
            table.dtype(dtype).row_f32s()
        };
        assert_eq!([1, 2, 3, 4, 8192].map(sgd), [1, 1, 2, 2, 4096]);
        // AdaGrad's state is of f32.
        assert_eq!(words(9, dtype), 5 + 9);
        assert_eq!(narrow(dtype).row_bytes(), wide().row_bytes());
        assert_eq!(dtype.bytes(), 2);
    }
    assert_eq!(words(9, Dtype::F32), 9 + 9);
}

#[test]
fn a_store_with_a_type_that_this_build_can_not_compute_with_is_not_opened() {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let disk = store();
        describe(&disk, &narrow(dtype));
        refused(&disk, dtype);
        describe(&disk, &wide());
        let store = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options()).unwrap();
        let other = TableDescriptor::new("another", 4).dtype(dtype);
        let error = store.create_table(&other).unwrap_err();
        assert!(
            matches!(&error, Error::UnsupportedTable { table, .. } if table == "another"),
            "{error}"
        );
        assert_eq!(store.tables().len(), 2);
        store.close().unwrap();
    }
}

#[test]
fn its_rows_are_inspected_and_repaired_without_a_look_inside() {
    let root = Path::new(ROOT);
    let expected: Vec<(u64, Vec<u32>)> = (10..KEYS).map(|key| (key, bits(key))).collect();
    assert_eq!(rows(&store()), expected);
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let disk = store();
        describe(&disk, &narrow(dtype));
        let report = look(&disk, root);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let table = &report.tables[1];
        assert_eq!((table.descriptor.dtype, table.rows), (dtype, KEYS - 10));
        assert_eq!((table.weights.values, table.state.values), (0, 0));
        assert_eq!(report.tables[0].weights.values, KEYS * 4);
        // One record is lost, and the file is written anew.
        let file = report.files.last().unwrap().path.clone();
        let files: Vec<PathBuf> = report.files.iter().map(|f| f.path.clone()).collect();
        let largest = files
            .iter()
            .max_by_key(|path| disk.read_file(path).unwrap().len());
        disk.corrupt(largest.unwrap_or(&file), 4096 + 20, 1)
            .unwrap();
        assert_eq!(look(&disk, root).worst(), Some(Severity::Damage));
        let repaired = repair(&disk);
        assert_eq!((repaired.files_rewritten, repaired.lost.sum()), (1, 1));
        assert!(look(&disk, &repaired.path).findings.is_empty());
        repaired.swap_on(&Io::of(disk.clone()), root).unwrap();
        drop(repaired);
        let aside = disk
            .paths()
            .into_iter()
            .filter(|p| p.starts_with("/store.damaged"));
        aside.for_each(|path| disk.remove(&path).unwrap());
        refused(&disk, dtype);
        let found = rows(&disk);
        assert!(found.iter().all(|row| expected.contains(row)));
        assert!(found.len() + 1 >= expected.len(), "{}", found.len());
    }
}

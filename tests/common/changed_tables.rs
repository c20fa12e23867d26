//! A store whose tables are dropped and renamed, and what is to be seen of it then.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "used by tests"
)]

use std::ops::ControlFlow;
use std::path::Path;

use crate::small::{self, fill, invalid, sgd, values};
use hps::inspect::{Report, Scope, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;

pub const ROOT: &str = "/store";
pub const DIM: usize = 16;

/// Four checkpoints are retained; everything is done by the caller's thread.
pub fn options() -> RuntimeOptions {
    small::options().inline(true).retain_checkpoints(4)
}

pub fn create(options: RuntimeOptions) -> (SimDisk, Store) {
    let disk = SimDisk::new(1);
    let store = Store::create_on(
        Io::of(disk.clone()),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    (disk, store)
}

pub fn open(disk: &SimDisk) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options()).unwrap()
}

pub fn reader(disk: &SimDisk, root: &str, id: CheckpointId) -> Store {
    let io = Io::of(disk.clone());
    Store::open_read_only_on(io, Path::new(root), Some(id), options()).unwrap()
}

pub fn names(store: &Store) -> Vec<(u32, String)> {
    let tables = store.tables().into_iter();
    tables.map(|(id, table)| (id.0, table.name)).collect()
}

pub fn named(tables: &[(u32, &str)]) -> Vec<(u32, String)> {
    tables
        .iter()
        .map(|(id, name)| (*id, (*name).to_owned()))
        .collect()
}

/// Rows of a checkpoint, by table.
pub fn counts(store: &Store, id: CheckpointId) -> [u64; 4] {
    let (mut rows, mut counts) = (store.rows(id).unwrap(), [0; 4]);
    while let Some(row) = rows.next_row().unwrap() {
        counts[row.table.0 as usize] += 1;
    }
    counts
}

pub fn look(disk: &SimDisk, root: &Path, checkpoint: Option<CheckpointId>) -> Report {
    let scope = Scope::new().full(true).checkpoint(checkpoint);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    inspect_on(&Io::of(disk.clone()), root, scope, go_on).unwrap()
}

pub fn reported(report: &Report) -> Vec<(u32, &str, u64)> {
    let tables = report.tables.iter();
    let tables = tables.map(|t| (t.id.0, &*t.descriptor.name, t.rows));
    tables.collect()
}

/// "a" of 100 rows, "b" of 50, "c" of 30: 1 in checkpoint 1.
pub fn begin() -> (SimDisk, Store, [TableId; 3]) {
    let (disk, store) = create(options());
    let tables = ["a", "b", "c"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    for (table, keys) in tables.into_iter().zip([100, 50, 30]) {
        fill(&store, table, keys, 25, 1.0, DIM);
    }
    assert_eq!(store.checkpoint(1, &[]).unwrap().id.0, 1);
    (disk, store, tables)
}

/// After it checkpoint 2, without "b" and with "c" as "z"; "b" is a new table there, of 20 rows of 2.
pub fn change(store: &Store, [_, b, c]: [TableId; 3]) -> TableId {
    store.drop_table(b).unwrap();
    store.rename_table(c, "z").unwrap();
    let again = store.create_table(&sgd("b", 2 * DIM)).unwrap();
    fill(store, again, 20, 20, 2.0, 2 * DIM);
    assert_eq!(store.checkpoint(2, &[]).unwrap().id.0, 2);
    again
}

/// What the change leaves.
pub fn check_changed(store: &Store) {
    assert_eq!(names(store), named(&[(0, "a"), (2, "z"), (3, "b")]));
    let error = invalid(store.contains(TableId(1), &[1]).unwrap_err());
    assert_eq!(error.to_string(), "table \"b\" (number 1) was dropped");
    assert_eq!(store.stats().index_keys, 100 + 30 + 20);
    assert_eq!(values(store, TableId(3), &[mix64(3), 7], 2 * DIM), {
        [[2.0; 2 * DIM], [0.0; 2 * DIM]].concat()
    });
    assert_eq!(values(store, TableId(2), &[mix64(29)], DIM), [1.0; DIM]);
}

//! What does a repair make of a directory that someone else has changed?
//!
//! The input is flags and changes: [`hps_fuzz::hostile`].
//!
//! Promise: an error is fine; a panic, a hang and an allocation by a claimed size are not. What is
//! built opens and is whole. Without forged checksums every row of it is, to the bit, that of the
//! checkpoint that the repair names; a key that the repair tells as lost is gone, or has one of its
//! older rows; no more rows differ beside these than it says it can't name. (Where a forged manifest has a
//! table of a type that this build does not compute with, the repaired store is inspected and not opened.)

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::LazyLock;

use hps::inspect::{Scope, inspect_on};
use hps::io::Io;
use hps::repair::{self, Fate, LostRow, RepairOutcome, Repaired};
use hps::{CheckpointId, Error, Store};
use hps_fuzz::hostile::Changed;
use hps_fuzz::tiny::{ROOT, Rows, Tiny, options};
use libfuzzer_sys::fuzz_target;

/// The store, and the rows of each checkpoint that ever was.
static TINY: LazyLock<(Tiny, BTreeMap<CheckpointId, Rows>)> = LazyLock::new(|| {
    let mut history = BTreeMap::new();
    let tiny = Tiny::with(&mut |id, rows| drop(history.insert(id, rows.clone())));
    (tiny.expect("a valid store"), history)
});

/// Everything that a store holds at a checkpoint.
fn rows_of(store: &Store, checkpoint: CheckpointId) -> Rows {
    let mut found = Rows::new();
    let mut rows = store.rows(checkpoint).expect("its rows are there");
    while let Some(row) = rows.next_row().expect("and can be read") {
        let bits = row.values.iter().map(|value| value.to_bits()).collect();
        let twice = found.insert((row.table.0, row.key), bits);
        assert!(twice.is_none(), "row {:#x} twice", row.key);
    }
    found
}

/// Compares with what the checkpoint held.
fn compare(repaired: &Repaired, lost: &[LostRow], found: &Rows) {
    let history = &TINY.1;
    let truth = history.get(&repaired.checkpoint);
    let truth = truth.unwrap_or_else(|| panic!("checkpoint {} is new", repaired.checkpoint));
    let keys: BTreeSet<&(u32, u64)> = truth.keys().chain(found.keys()).collect();
    let mut unexplained = 0;
    for at in keys {
        let (right, left) = (truth.get(at), found.get(at));
        let was_once = |row: &Vec<u32>| history.values().any(|h| h.get(at) == Some(row));
        assert!(left.is_none_or(was_once), "{at:?} never was {left:?}");
        let mut told = lost.iter().filter(|lost| (lost.table, lost.key) == *at);
        match told.next() {
            Some(lost) if lost.now == Fate::Gone => assert_eq!(left, None, "{lost:?}"),
            Some(lost) => assert!(left.is_some(), "{lost:?}"),
            None => unexplained += u64::from(right != left),
        }
    }
    assert!(
        unexplained <= repaired.nameless,
        "{unexplained} rows differ, {} were told",
        repaired.nameless
    );
}

fuzz_target!(|bytes: &[u8]| {
    let changed = Changed::new(bytes, &TINY.0.files);
    let disk = Io::of(Tiny::disk(&changed.files));
    let choice = repair::RepairOptions::new().without_meta(changed.flag(1));
    let root = Path::new(ROOT);
    let mut lost = Vec::new();
    let mut told = |_: &str, row| {
        lost.push(row);
        Ok(())
    };
    let mut on = |_, _| ControlFlow::Continue(());
    let outcome = repair::repair_on(&disk, root, choice, &mut told, &mut on);
    let Ok(RepairOutcome::Built(_, repaired)) = outcome else {
        return;
    };
    let store = match Store::open_on(disk.clone(), &repaired.path, options()) {
        Err(Error::UnsupportedTable { .. }) if changed.is_forged() => {
            let scope = Scope::new().full(true);
            let report = inspect_on(&disk, &repaired.path, scope, &mut on);
            let report = report.expect("a repaired store is looked at");
            assert!(report.findings.is_empty(), "{:?}", report.findings);
            return;
        }
        opened => opened.expect("a repaired store opens"),
    };
    let last = store.checkpoints().last().map(|info| info.id);
    assert_eq!(last, Some(repaired.checkpoint), "the last checkpoint");
    for checkpoint in store.checkpoints() {
        let found = rows_of(&store, checkpoint.id);
        if checkpoint.id == repaired.checkpoint && !changed.is_forged() {
            compare(&repaired, &lost, &found);
        }
    }
});

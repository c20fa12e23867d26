//! What does a store say of a directory that someone else has changed?
//!
//! The input is flags and changes: [`hps_fuzz::hostile`].
//!
//! Promise: an error is fine; a panic, a hang and an allocation by a claimed size are not. Without
//! forged checksums every row, meta and checkpoint that is shown is the original, to the bit, none
//! is missing where no error was told, and what is pushed and checkpointed afterwards is there.

#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use hps::io::sim::SimDisk;
use hps::{CheckpointId, Store, TableId};
use hps_fuzz::forge::Files;
use hps_fuzz::hostile::Changed;
use hps_fuzz::tiny::{self, KEYS, ROOT, Rows, Tiny, descriptors, initial_row, key, options};
use libfuzzer_sys::fuzz_target;

static TINY: LazyLock<Tiny> = LazyLock::new(|| Tiny::new().expect("a valid store"));

/// Reads the last checkpoint of a store, or `older` ones too, and pulls every key; compares all
/// with what it must hold, if that is known.
fn examine(store: &Store, expected: Option<&Tiny>, older: bool) {
    let skipped = if older {
        0
    } else {
        store.checkpoints().len().saturating_sub(1)
    };
    for info in store.checkpoints().into_iter().skip(skipped) {
        let known = expected.map(|tiny| &tiny.checkpoints[&info.id]);
        if let (Ok(meta), Some((_, bytes))) = (store.checkpoint_meta(info.id), known) {
            assert_eq!(&meta, bytes, "meta of checkpoint {}", info.id);
        }
        compare_rows(store, info.id, known.map(|(rows, _)| rows));
    }
    if let Some(tiny) = expected {
        let ids: Vec<CheckpointId> = store.checkpoints().iter().map(|info| info.id).collect();
        assert!(
            ids.iter().eq(tiny.checkpoints.keys()),
            "checkpoints {ids:?}"
        );
        let names: Vec<_> = store.tables().into_iter().map(|(_, table)| table).collect();
        assert_eq!(names, descriptors(), "tables");
    }
    let last = expected.and_then(|tiny| tiny.checkpoints.values().last());
    for (table, descriptor) in store.tables().into_iter().take(4) {
        for key in (0..KEYS).map(key) {
            let mut out = vec![0.0; descriptor.dim];
            let Ok(lease) = store.pull(table, &[key], &mut out) else {
                continue;
            };
            let mut row = vec![0.0; descriptor.row_f32s()];
            if lease.read_rows(&mut row).is_err() {
                continue;
            }
            let Some((rows, _)) = last else { continue };
            let row: Vec<u32> = row.iter().map(|value| value.to_bits()).collect();
            let known = rows.get(&(table.0, key)).cloned();
            assert_eq!(
                store.contains(table, &[key]).ok(),
                Some(vec![known.is_some()])
            );
            assert_eq!(
                row,
                known.unwrap_or_else(|| initial_row(table.0)),
                "pulled {key:#x}"
            );
        }
    }
}

fn compare_rows(store: &Store, checkpoint: CheckpointId, expected: Option<&Rows>) {
    let Ok(mut rows) = store.rows(checkpoint) else {
        return;
    };
    let mut count = 0;
    loop {
        let row = match rows.next_row() {
            Err(_) => return,
            Ok(None) => break,
            Ok(Some(row)) => row,
        };
        count += 1;
        if let Some(expected) = expected {
            let found: Vec<u32> = row.values.iter().map(|value| value.to_bits()).collect();
            assert_eq!(
                expected.get(&(row.table.0, row.key)),
                Some(&found),
                "row {:#x}",
                row.key
            );
        }
    }
    assert!(
        expected.is_none_or(|rows| rows.len() == count),
        "rows are missing"
    );
}

/// Changes a row, makes a checkpoint and opens again.
fn go_on(store: Store, disk: &SimDisk, forged: bool) {
    let mut rows = Rows::new();
    let pushed = tiny::push(&store, &mut rows, 0, &[key(20)], 99);
    let saved = pushed.and_then(|()| store.checkpoint(1 << 40, b"went on"));
    drop(store);
    let again = Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options());
    if forged || saved.is_err() {
        return;
    }
    let again = again.expect("a checkpoint that was acknowledged opens");
    let mut out = [0.0; 3];
    drop(
        again
            .pull(TableId(0), &[key(20)], &mut out)
            .expect("the row is there"),
    );
    assert_eq!(out, [99.0, 100.0, 101.0]);
}

/// Opens at the last checkpoint for reading.
fn read_only(files: &Files, expected: Option<&Tiny>, older: bool) {
    let disk = Arc::new(Tiny::disk(files));
    if let Ok(store) = Store::open_read_only_on(disk, Path::new(ROOT), None, options()) {
        examine(&store, expected, older);
    }
}

fuzz_target!(|bytes: &[u8]| {
    let changed = Changed::new(bytes, &TINY.files);
    let forged = changed.is_forged();
    let (going_on, reading, older) = (changed.flag(1), changed.flag(2), changed.flag(3));
    let expected = (!forged).then_some(&*TINY);
    let disk = Tiny::disk(&changed.files);
    match Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options()) {
        Ok(store) => {
            examine(&store, expected, older);
            if going_on {
                go_on(store, &disk, forged);
            }
            if reading {
                read_only(&changed.files, expected, older);
            }
        }
        Err(_) => read_only(&changed.files, expected, older),
    }
});

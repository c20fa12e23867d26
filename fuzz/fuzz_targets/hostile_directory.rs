//! What does a store say of a directory that someone else has changed?
//!
//! The input is two bytes of flags and a list of changes to the files of a tiny store
//! ([`hps_fuzz::tiny`]): bytes, lengths, files gone, copied over each other or new. A flag puts
//! right checksums over everything after that ([`hps_fuzz::forge`]), up to `CURRENT`.
//!
//! Promise: an error is fine; a panic, a hang and an allocation by a claimed size are not. Without
//! forged checksums every row, meta and checkpoint that is shown is the original, to the bit, none
//! is missing where no error was told, and what is pushed and checkpointed afterwards is there. With
//! another flag the directory is inspected and repaired instead: what is built opens and is whole.

#![no_main]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use hps::format::{FileKind, file_name};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::{Store, TableId, repair};
use hps_fuzz::Input;
use hps_fuzz::forge::{self, Files};
use hps_fuzz::tiny::{self, KEYS, ROOT, Rows, Tiny, descriptors, initial_row, key, options};
use libfuzzer_sys::fuzz_target;

/// Most changes of an input, and most bytes of a file.
const CHANGES_MAX: usize = 12;
const FILE_BYTES_MAX: usize = 1 << 16;

static TINY: LazyLock<Tiny> = LazyLock::new(|| Tiny::new().expect("a valid store"));

/// Makes one change.
fn change(files: &mut Files, input: &mut Input<'_>) {
    let kind = input.below(9);
    let paths: Vec<PathBuf> = files.keys().cloned().collect();
    if paths.is_empty() {
        return;
    }
    let path = &paths[input.below(paths.len())];
    let at = input.number(2) as usize;
    let bytes = files.get_mut(path).expect("a file of the list");
    match kind {
        0 => {
            let mask = input.number(1) as u8;
            bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= mask);
        }
        1 | 2 => {
            let count = if kind == 1 { 8 } else { 1 + input.below(32) };
            let new = input.take(count);
            let places = bytes.iter_mut().skip(at);
            places.zip(new).for_each(|(place, new)| *place = *new);
        }
        3 => bytes.truncate(at),
        4 => {
            let value = input.number(1) as u8;
            bytes.resize((bytes.len() + at).min(FILE_BYTES_MAX), value);
        }
        5 => drop(files.remove(path)),
        6 => {
            let copy = bytes.clone();
            files.insert(paths[input.below(paths.len())].clone(), copy);
        }
        7 => {
            let (from, count) = (input.number(2) as usize, input.number(2) as usize);
            let count = count.min(bytes.len().saturating_sub(from.max(at)));
            if count > 0 {
                bytes.copy_within(from..from + count, at);
            }
        }
        _ => {
            let copy = bytes.clone();
            let kind = FileKind::ALL[input.below(FileKind::ALL.len())];
            let name = file_name(kind, input.number(1));
            let beside = path.parent().unwrap_or(Path::new(ROOT)).join(name);
            files.insert(beside, copy);
        }
    }
}

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
        let ids: Vec<u64> = store.checkpoints().iter().map(|info| info.id).collect();
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

fn compare_rows(store: &Store, checkpoint: u64, expected: Option<&Rows>) {
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

/// Inspects and repairs; what was built is whole.
fn mend(files: &Files) {
    let disk = Io::of(Tiny::disk(files));
    let choice = repair::Options {
        without_meta: true,
        ..repair::Options::default()
    };
    let outcome = repair::repair(&disk, Path::new(ROOT), choice, &mut |_, _| {
        ControlFlow::Continue(())
    });
    if let Ok(repair::Outcome::Built(_, repaired)) = outcome {
        let path = repaired.path.clone();
        drop(repaired);
        let store = Store::open_on(disk, &path, options()).expect("a repaired store opens");
        for checkpoint in store.checkpoints() {
            let mut rows = store.rows(checkpoint.id).expect("its rows are there");
            while rows.next_row().expect("and can be read").is_some() {}
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let flags = input.number(2);
    let flag = |bit: u64| flags & (1 << bit) != 0;
    let (forged, going_on, reading, older) = (flag(0), flag(1), flag(2), flag(3));
    let mut files = TINY.files.clone();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        change(&mut files, &mut input);
    }
    if forged {
        forge::store(&mut files, Path::new(ROOT));
    }
    let expected = (!forged).then_some(&*TINY);
    if flag(4) {
        return mend(&files);
    }
    let disk = Tiny::disk(&files);
    match Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options()) {
        Ok(store) => {
            examine(&store, expected, older);
            if going_on {
                go_on(store, &disk, forged);
            }
            if reading {
                read_only(&files, expected, older);
            }
        }
        Err(_) => read_only(&files, expected, older),
    }
});

//! What does a manifest commit whose last checkpoint does not end what it says of tables?
//!
//! - Such edits are of the checkpoint that comes next, so no store writes them without it. Here they
//!   stand behind the last one, under right checksums up to CURRENT.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/looks.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod looks;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hps::format::manifest::Edit;
use hps::inspect::Severity;
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::repair::{RepairOptions, RepairOutcome, repair_on};
use hps::*;
use looks::{DIM, FULL, QUICK, ROOT, found, look, open, options, write};
use manifests::{committed, files, forge};

const NEXT: CheckpointId = CheckpointId(3);

/// A table of two checkpoints.
fn store() -> SimDisk {
    let disk = SimDisk::new(1);
    write(&disk, options(), &[(0..40, 5), (20..60, 5)]);
    disk
}

/// Each edit that is of the checkpoint whose edit comes next, alone and after another.
fn of_next_checkpoint() -> Vec<Vec<Edit>> {
    let descriptor = small::sgd("new", DIM);
    let add = Edit::Table { id: 1, descriptor };
    let drop = Edit::DropTable {
        table: 0,
        dropped: NEXT,
    };
    let rename = |renamed| Edit::RenameTable {
        table: 0,
        renamed,
        name: String::from("other"),
    };
    let hyper = Edit::HyperParameters {
        table: 0,
        hyper: HyperParameters::default(),
    };
    vec![
        vec![add.clone()],
        vec![drop.clone()],
        vec![rename(NEXT)],
        // No checkpoint has a number so great.
        vec![rename(CheckpointId(1 << 40))],
        vec![hyper],
        vec![add, drop],
    ]
}

/// Appends edits to what CURRENT commits; the manifest, and where they begin.
fn append(disk: &SimDisk, edits: &[Edit]) -> (PathBuf, u64) {
    let end = committed(disk).1.manifest_bytes;
    forge(disk, |all| all.extend_from_slice(edits));
    let [manifest, ..] = files(disk);
    (manifest, end)
}

/// A writer and a reader refuse the store, and say where it is wrong.
fn check_refused(disk: &SimDisk, (manifest, end): &(PathBuf, u64)) {
    let (io, root) = (|| Io::of(disk.clone()), Path::new(ROOT));
    let before = disk.read_file(manifest).unwrap();
    let opened = [
        Store::open_on(io(), root, options()),
        Store::open_read_only_on(io(), root, None, options()),
    ];
    for result in opened {
        let error = result.map(drop).unwrap_err();
        let Error::Corrupt { path, offset, what } = &error else {
            unreachable!("{error}");
        };
        assert_eq!((path, *offset), (manifest, *end), "{error}");
        assert!(what.contains("that no checkpoint has"), "{error}");
    }
    assert!(disk.read_file(manifest).unwrap() == before);
    for scope in [QUICK, FULL] {
        let damage = (Severity::Damage, manifest.clone(), Some(*end));
        assert_eq!(found(disk, scope), [damage]);
    }
}

/// Such a store opened. Its next checkpoint was written from tables that no checkpoint had, and
/// nothing could read that: a new table was missing in it, a change came before its checkpoint.
#[test]
fn changes_of_tables_behind_the_last_checkpoint_are_damage_where_they_begin() {
    for edits in of_next_checkpoint() {
        let disk = store();
        let at = append(&disk, &edits);
        check_refused(&disk, &at);
    }
}

#[test]
fn changes_of_tables_without_any_checkpoint_are_damage_where_they_begin() {
    let disk = SimDisk::new(1);
    let (io, root) = (Io::of(disk.clone()), Path::new(ROOT));
    let store = Store::create_on(io, root, CreateOptions::new(), options()).unwrap();
    store.close().unwrap();
    let at = append(
        &disk,
        &[Edit::Table {
            id: 0,
            descriptor: small::sgd("t", DIM),
        }],
    );
    check_refused(&disk, &at);
}

#[test]
fn a_repair_leaves_out_what_no_checkpoint_has() {
    for edits in of_next_checkpoint() {
        let disk = store();
        append(&disk, &edits);
        let (io, root) = (Io::of(disk.clone()), Path::new(ROOT));
        let mut go_on = |_, _| ControlFlow::Continue(());
        let (mut told, options) = (|_: &str, _| Ok(()), RepairOptions::new());
        let outcome = repair_on(&io, root, options, &mut told, &mut go_on).unwrap();
        let RepairOutcome::Built(_, repaired) = outcome else {
            unreachable!("it is damaged");
        };
        assert!(repaired.lost_nothing(), "{repaired:?}");
        repaired.swap_on(&io, root).unwrap();
        // Its next checkpoints open, too.
        for keys in [50..70, 60..80] {
            write(&disk, looks::options(), &[(keys, 5)]);
        }
        let store = open(&disk, looks::options());
        let names: Vec<String> = store.tables().into_iter().map(|(_, t)| t.name).collect();
        assert_eq!(
            (names, store.stats().index_keys),
            (vec![String::from("t")], 80)
        );
        store.close().unwrap();
        assert_eq!(look(&disk, FULL).unwrap().worst(), None);
    }
}

/// They are of no checkpoint: a snapshot comes into force after the checkpoint that it is of.
#[test]
fn a_cursor_and_an_index_snapshot_behind_the_last_checkpoint_count() {
    let disk = SimDisk::new(1);
    let options = looks::with_snapshots();
    write(&disk, options.clone(), &[(0..40, 5), (20..60, 5)]);
    let cursor = Edit::Cursor {
        name: String::from("reader"),
        checkpoint: CheckpointId(2),
        interval: 0,
    };
    append(&disk, &[cursor]);
    let mut edits = Vec::new();
    forge(&disk, |all| edits = all.clone());
    let last = edits
        .iter()
        .rposition(|e| e.checkpoint().is_some())
        .unwrap();
    assert!(matches!(
        edits[last + 1..],
        [Edit::Snapshot { .. }, Edit::Cursor { .. }]
    ));
    write(&disk, options.clone(), &[(50..70, 5)]);
    let report = look(&disk, FULL).unwrap();
    assert_eq!((report.worst(), report.cursors.len()), (None, 1));
    open(&disk, options).close().unwrap();
}

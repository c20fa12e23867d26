//! Are the numbers, places and words of a report right, and is nothing looked at that was not asked
//! for?

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/looks.rs"]
mod looks;
#[path = "common/sample.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod sample;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::descriptor;
use hooked::{Hook, HookedDisk};
use hps::format::meta::META_HEADER_BYTES;
use hps::inspect::{Report, Severity};
use hps::io::sim::SimDisk;
use hps::io::{Disk, Io};
use hps::*;
use looks::{
    DIM, FULL, QUICK, ROOT, STRIDE, found, look, look_on, named, only, open, options,
    with_snapshots, write,
};
use nix::errno::Errno;
use sample::sample;

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

/// Files and bytes of a checkpoint whose live entries were counted.
fn counted(report: &Report) -> (u64, u64) {
    let files = report.files.iter().filter(|f| f.live.is_some());
    let bytes = files.clone().map(|f| f.bytes).sum();
    (files.count() as u64, bytes)
}

/// Keys 0 to 19 are 1 at checkpoint 1; then 10 to 29 are 2, and keys 1 and 2 removed. The number i of
/// a row is the row's own plus i.
#[test]
fn the_numbers_of_a_report_are_those_of_the_checkpoint_that_is_looked_at() {
    let (disk, _run) = sample(1);
    let wide = descriptor(0).row_f32s();
    let dim = descriptor(0).dim;
    let mut entries = BTreeMap::new();
    for (id, rows, tombstones, value, live) in [(1, 20, 0, 1.0, 20), (2, 28, 2, 2.0, 30)] {
        let checkpoint = Some(CheckpointId(id));
        let report = look(&disk, FULL.checkpoint(checkpoint)).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(report.checkpoint, checkpoint);
        let table = &report.tables[0];
        assert_eq!((table.rows, table.tombstones), (rows, tombstones));
        for (stats, numbers) in [(&table.weights, 0..dim), (&table.state, dim..wide)] {
            assert_eq!(stats.values, rows * numbers.len() as u64);
            assert_eq!((stats.nan, stats.infinite, stats.absurd), (0, 0, 0));
            assert_eq!(stats.largest, value + (numbers.end - 1) as f32);
            // A norm from 2^11 to 2^12 of weights, and from 2^12 to 2^13 of state.
            let class = if numbers.start == 0 { 35 } else { 36 };
            assert_eq!(stats.norms[class], rows, "{:?}", stats.norms);
            assert_eq!(stats.norms.iter().sum::<u64>(), rows);
        }
        let others = report.tables[1..].iter();
        assert!(others.clone().count() == 2 && others.clone().all(|t| t.rows == 0));
        assert!(others.map(|t| t.weights.values).all(|values| values == 0));
        assert_eq!(
            report.files.iter().filter_map(|f| f.live).sum::<u64>(),
            live
        );
        let counted = counted(&report);
        let listed = report
            .checkpoints
            .iter()
            .find(|c| Some(c.id) == checkpoint)
            .unwrap();
        assert_eq!((listed.files, listed.bytes), counted);
        assert_eq!(listed.step, id);
        assert_eq!(listed.unix_seconds, disk.unix_seconds());
        assert_eq!(listed.meta_bytes, (META_HEADER_BYTES + 100) as u64);
        let of_it = report.files.iter().filter(|f| f.live.is_some());
        entries.insert(id, of_it.map(|f| f.entries).sum::<u64>());
        // Everything but the headers and the footers, a block each.
        let all: u64 = report.files.iter().map(|f| f.bytes - 2 * 4096).sum();
        assert_eq!(report.bytes_read, all);
        for file in &report.files {
            assert_eq!(file.bytes, disk.read_file(&file.path).unwrap().len() as u64);
        }
    }
    assert_eq!(entries, BTreeMap::from([(1, 20), (2, 20 + 20 + 2)]));
}

#[test]
fn a_quick_look_lists_everything_and_counts_nothing() {
    let (disk, _run) = sample(1);
    let (quick, full) = [QUICK, FULL]
        .map(|scope| look(&disk, scope).unwrap())
        .into();
    let (quick, full): (Report, Report) = (quick, full);
    assert_eq!(
        format!("{:?}", quick.checkpoints),
        format!("{:?}", full.checkpoints)
    );
    assert_eq!(
        (quick.checkpoint, quick.store),
        (full.checkpoint, full.store)
    );
    let listed = |report: &Report| -> Vec<_> {
        let files = report.files.iter();
        files
            .map(|f| (f.number, f.path.clone(), f.bytes, f.entries))
            .collect()
    };
    assert_eq!(listed(&quick), listed(&full));
    assert!(quick.files.iter().all(|f| f.live.is_none()));
    assert!(quick.tables.is_empty() && quick.bytes_read == 0);
}

/// CURRENT and its manifest are read before and after what they name is held.
#[test]
fn a_store_that_nobody_changes_is_looked_at_once() {
    let disk = SimDisk::new(1);
    write(&disk, with_snapshots(), &[(0..20, 5), (10..30, 5)]);
    for scope in [QUICK, FULL] {
        let opened = Arc::new(Mutex::new(BTreeMap::new()));
        let counts = Arc::clone(&opened);
        let on_read: Hook = Arc::new(move |call, path: &Path| {
            if call == "open" {
                *counts
                    .lock()
                    .unwrap()
                    .entry(path.to_path_buf())
                    .or_insert(0) += 1;
            }
            None
        });
        let io = Io::of(HookedDisk {
            reads: Some(on_read),
            ..HookedDisk::new(disk.clone(), Arc::new(|_, _| None))
        });
        look_on(&io, scope).unwrap();
        let opened = opened.lock().unwrap().clone();
        let kept = disk.paths().into_iter().filter(|p| !p.ends_with("LOCK"));
        let expected: BTreeMap<PathBuf, i32> = kept
            .map(|path| {
                let twice =
                    path.ends_with("CURRENT") || path.extension() == Some("manifest".as_ref());
                (path, if twice { 2 } else { 1 })
            })
            .collect();
        assert_eq!(opened, expected);
    }
}

/// A store of three checkpoints of which the last two are retained, each with files of its own:
/// of the last, and of the one before.
fn with_files_of_older() -> (SimDisk, [PathBuf; 2]) {
    let disk = SimDisk::new(1);
    write(&disk, with_snapshots(), &[(0..50, 5), (0..50, 5)]);
    let store = open(&disk, with_snapshots());
    store.compact_fully().unwrap();
    store.checkpoint(3, b"").unwrap();
    store.close().unwrap();
    let only_in = |id: u64, other: u64| -> PathBuf {
        let files = |id| {
            let checkpoint = Some(CheckpointId(id));
            let files = look(&disk, FULL.checkpoint(checkpoint)).unwrap().files;
            let of_it = files.into_iter().filter(|f| f.live.is_some());
            of_it.map(|f| f.path).collect::<Vec<_>>()
        };
        let (these, others) = (files(id), files(other));
        let mut own = these.into_iter().filter(|path| !others.contains(path));
        own.next()
            .unwrap_or_else(|| panic!("no file of {id} alone"))
    };
    let files = [named(&disk, "rows").pop().unwrap(), only_in(2, 3)];
    (disk, files)
}

/// A file that only an older retained checkpoint needs is looked at, too.
#[test]
fn damage_to_what_only_an_older_checkpoint_needs_is_found() {
    let (disk, [_, old]) = with_files_of_older();
    disk.corrupt(&old, 4096 + 50, 1).unwrap();
    let damage = vec![(Severity::Damage, old.clone(), Some(4096))];
    assert_eq!(found(&disk, FULL), damage);
    assert_eq!(found(&disk, QUICK), []);
    disk.remove(&old).unwrap();
    let missing = vec![(Severity::Damage, old, Some(0))];
    assert_eq!(found(&disk, FULL), missing);
    assert_eq!(found(&disk, QUICK), missing);
}

/// `hps-compact` asks for it before and after it writes: what it does not touch is not its business.
#[test]
fn a_look_at_rows_only_sees_the_parameter_files_of_one_checkpoint_and_nothing_else() {
    let (disk, [new, old]) = with_files_of_older();
    let only = |id| FULL.checkpoint(Some(CheckpointId(id))).rows_only(true);
    for end in ["meta", "copy", "snapshot"] {
        for path in named(&disk, end) {
            disk.corrupt(&path, 70, 1).unwrap();
        }
    }
    disk.write_file(&Path::new(ROOT).join("000000999999.rows"), b"x")
        .unwrap();
    for id in [2, 3] {
        let report = look(&disk, only(id)).unwrap();
        assert!(report.findings.is_empty(), "{id}: {:?}", report.findings);
        assert!(report.tables.is_empty() && !report.files.is_empty());
        assert!(report.files.iter().all(|f| f.live.is_none()));
        assert_eq!(report.files.iter().any(|f| f.path == old), id == 2);
        let bytes: u64 = report.files.iter().map(|f| f.bytes - 2 * 4096).sum();
        assert_eq!(report.bytes_read, bytes);
    }
    for (damaged, at) in [(&old, 2), (&new, 3)] {
        disk.corrupt(damaged, 4096 + STRIDE + 50, 1).unwrap();
        let damage = vec![(Severity::Damage, damaged.clone(), Some(4096 + STRIDE))];
        assert_eq!(found(&disk, only(at)), damage);
        assert_eq!(found(&disk, only(at).full(false)), []);
        disk.corrupt(damaged, 4096 + STRIDE + 50, 1).unwrap();
    }
}

/// Each with its path, by path; other names are not the store's business.
#[test]
fn what_nothing_needs_is_left_over_but_not_beside_a_writer() {
    let (disk, run) = sample(1);
    let at = |name: &str| Path::new(ROOT).join(name);
    let mut expected: Vec<PathBuf> = [
        "000000999999.snapshot",
        "000000999999.manifest",
        "000000999999.meta",
        "CURRENT.tmp",
        "STORE.tmp",
        "a/000000999999.rows",
    ]
    .map(at)
    .to_vec();
    for path in &expected {
        disk.write_file(path, b"left over").unwrap();
    }
    for foreign in [
        "a/CURRENT.tmp",
        "b/STORE.tmp",
        "notes.txt",
        "a/notes.txt",
        "b/1.rows",
    ] {
        disk.write_file(&at(foreign), b"foreign").unwrap();
    }
    expected.sort();
    for scope in [QUICK, FULL] {
        let report = look(&disk, scope).unwrap();
        assert_eq!(report.worst(), Some(Severity::Leftover));
        for finding in &report.findings {
            assert_eq!(finding.what, "9 bytes that no retained checkpoint needs");
        }
        let paths: Vec<PathBuf> = report.findings.into_iter().map(|f| f.path).collect();
        assert_eq!(paths, expected);
        assert_eq!(found(&disk, scope.rows_only(true)), []);
    }
    let reader = Store::open_read_only_on(Io::of(disk.clone()), Path::new(ROOT), None, run.options);
    let reader = reader.unwrap();
    assert_eq!(
        found(&disk, QUICK).len(),
        expected.len(),
        "a reader changes nothing"
    );
    drop(reader);
    let store = open(&disk, options());
    // Now they are a writer's, or nobody's.
    for path in &expected {
        disk.write_file(path, b"left over").unwrap();
    }
    for scope in [QUICK, FULL] {
        assert_eq!(found(&disk, scope), []);
    }
    drop(store);
}

/// Index snapshots give their room back, and CURRENT learns of it only at the next checkpoint.
#[test]
fn an_index_snapshot_that_is_gone_is_told_as_no_damage_and_beside_a_writer_not_at_all() {
    let disk = SimDisk::new(1);
    write(&disk, with_snapshots(), &[(0..20, 5)]);
    let snapshot = only(&disk, "snapshot");
    let whole = disk.read_file(&snapshot).unwrap();
    disk.remove(&snapshot).unwrap();
    for scope in [QUICK, FULL] {
        let gone = vec![(Severity::Leftover, snapshot.clone(), None)];
        assert_eq!(found(&disk, scope), gone);
        assert_eq!(found(&disk, scope.rows_only(true)), []);
        assert_eq!(look(&disk, scope).unwrap().findings[0].what, GONE);
    }
    let store = open(&disk, with_snapshots());
    for scope in [QUICK, FULL] {
        let report = look(&disk, scope).unwrap();
        assert!(report.findings.is_empty() && report.open_elsewhere);
    }
    drop(store);
    // Of another length it is damaged.
    disk.write_file(&snapshot, &whole[..4096]).unwrap();
    for scope in [QUICK, FULL] {
        let cut = vec![(Severity::Cache, snapshot.clone(), Some(4096))];
        assert_eq!(found(&disk, scope), cut);
    }
}

const GONE: &str = "this part of the index snapshot is not there: it gave its room to rows, or was removed; nothing \
                    is lost, the next open reads key blocks instead";

#[test]
fn an_index_snapshot_of_another_checkpoint_is_no_damage() {
    let disk = SimDisk::new(1);
    write(&disk, with_snapshots(), &[(0..40, 5), (20..60, 5)]);
    // It is of checkpoint 2, and says of keys 20 to 39 that they are in a file of that.
    let checkpoint = Some(CheckpointId(1));
    let report = look(&disk, FULL.checkpoint(checkpoint)).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.tables[0].rows, 40);
    // From here on the index snapshot is older than what is looked at: files that it does not cover, keys
    // that are gone, and files that it covers and that are gone.
    let snapshot = only(&disk, "snapshot");
    write(&disk, options(), &[(50..100, 5), (55..60, 5)]);
    let store = open(&disk, options());
    let table = store.table("t").unwrap();
    store
        .remove(table, &(30..45).collect::<Vec<u64>>())
        .unwrap();
    store.checkpoint(5, b"").unwrap();
    assert_eq!(found(&disk, FULL), []);
    for step in 6..8 {
        store.compact_fully().unwrap();
        store.checkpoint(step, b"").unwrap();
        assert_eq!(found(&disk, FULL), []);
    }
    store.close().unwrap();
    assert_eq!(look(&disk, FULL).unwrap().tables[0].rows, 85);
    assert_eq!(only(&disk, "snapshot"), snapshot);
}

/// Of a file whose keys are damaged nothing is known that the index snapshot could contradict.
#[test]
fn damaged_keys_are_one_finding_and_the_index_snapshot_is_not_blamed() {
    let disk = SimDisk::new(1);
    write(&disk, with_snapshots(), &[(0..40, 5), (20..60, 5)]);
    for path in named(&disk, "rows") {
        let keys = (4096 + 40 * STRIDE).next_multiple_of(4096);
        disk.corrupt(&path, keys + 50, 1).unwrap();
        assert_eq!(
            found(&disk, FULL),
            [(Severity::Damage, path.clone(), Some(keys))]
        );
        disk.corrupt(&path, keys + 50, 1).unwrap();
    }
}

#[test]
fn a_directory_without_an_identity_was_a_store_only_if_it_has_a_manifest() {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new(ROOT)).unwrap();
    disk.write_file(&Path::new(ROOT).join("000000000001.rows"), b"x")
        .unwrap();
    assert!(matches!(look(&disk, FULL), Err(Error::InvalidArgument(_))));
    let (disk, _run) = sample(1);
    let path = Path::new(ROOT).join("STORE");
    disk.corrupt(&path, 60, 1).unwrap();
    let report = look(&disk, FULL).unwrap();
    let [damaged] = &report.findings[..] else {
        panic!("{:?}", report.findings);
    };
    assert!(damaged.path == path && damaged.offset == Some(0) && report.store.is_none());
    assert!(!damaged.what.starts_with("missing"), "{}", damaged.what);
    disk.remove(&path).unwrap();
    let report = look(&disk, FULL).unwrap();
    let [missing] = &report.findings[..] else {
        panic!("{:?}", report.findings);
    };
    assert_eq!((missing.severity, missing.offset), (Severity::Damage, None));
    assert_eq!(
        missing.what,
        "missing: no file of the store can be verified"
    );
}

/// Only a repair reads it: an inspection goes on without. That it may not be read says nothing of it.
#[test]
fn a_copy_of_the_manifest_that_the_device_can_not_give_ends_nothing() {
    let (disk, _run) = sample(1);
    let copy = only(&disk, "copy");
    let answers = |errno: Errno| {
        let copy = copy.clone();
        let on_read: Hook = Arc::new(move |_, path: &Path| {
            (path == copy).then(|| Err(io::Error::from_raw_os_error(errno as i32)))
        });
        let io = Io::of(HookedDisk {
            reads: Some(on_read),
            ..HookedDisk::new(disk.clone(), Arc::new(|_, _| None))
        });
        look_on(&io, FULL)
    };
    let report = answers(Errno::EIO).unwrap();
    let [finding] = &report.findings[..] else {
        panic!("{:?}", report.findings);
    };
    assert_eq!((finding.severity, finding.offset), (Severity::Cache, None));
    assert!(finding.path == copy && finding.what.starts_with("the device can't read it"));
    assert_eq!(report.tables[0].rows, 28, "the rest was looked at");
    for errno in [Errno::EACCES, Errno::ENOMEM] {
        let error = answers(errno).unwrap_err();
        assert!(
            matches!(&error, Error::Io { path, .. } if *path == copy),
            "{error}"
        );
    }
}

/// A repair saves what is around it; for anybody else it is an error.
#[test]
fn the_block_that_the_device_can_not_give_is_named() {
    let disk = SimDisk::new(1);
    write(&disk, options(), &[(0..700, 5)]);
    let path = only(&disk, "rows");
    let whole = disk.read_file(&path).unwrap();
    let keys = (4096 + 700 * STRIDE).next_multiple_of(4096);
    let footer = keys + 3 * 4096;
    assert_eq!(whole.len() as u64, footer + 4096);
    let block = |at: u64| at / 4096 * 4096;
    let of_repair = FULL.unreadable_is_damage(true);
    // Pieces of rows are of 1 MiB.
    for at in [
        0,
        3000,
        4096,
        9000,
        1 << 20,
        1_100_000,
        keys - 1,
        keys + 5000,
        footer,
    ] {
        disk.lose_sector(&path, at).unwrap();
        let lost = vec![(Severity::Damage, path.clone(), Some(block(at)))];
        assert_eq!(found(&disk, of_repair), lost, "byte {at}");
        let error = look(&disk, FULL).unwrap_err();
        assert!(matches!(&error, Error::Io { path: named, .. } if *named == path));
        let quick = of_repair.full(false);
        let ends = at < 4096 || at >= footer;
        assert_eq!(found(&disk, quick).len(), usize::from(ends), "byte {at}");
        disk.write_file(&path, &whole).unwrap();
    }
    // The first of several, and none for a file that is damaged where it can be read.
    disk.lose_sector(&path, footer).unwrap();
    disk.corrupt(&path, 3, 1).unwrap();
    assert_eq!(
        found(&disk, of_repair),
        [(Severity::Damage, path.clone(), Some(0))]
    );
    disk.write_file(&path, &whole).unwrap();
    let meta = only(&disk, "meta");
    disk.lose_sector(&meta, 0).unwrap();
    assert_eq!(found(&disk, of_repair), [(Severity::Damage, meta, None)]);
}

/// That it can't be read is not that it is gone.
#[test]
fn an_index_snapshot_that_the_device_can_not_give_is_told_to_a_repair_and_an_error_else() {
    for at in [0, 4096, 8192] {
        let disk = SimDisk::new(1);
        write(&disk, with_snapshots(), &[(0..20, 5)]);
        let snapshot = only(&disk, "snapshot");
        disk.lose_sector(&snapshot, at).unwrap();
        let error = look(&disk, FULL).unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if *path == snapshot));
        let of_repair = FULL.unreadable_is_damage(true);
        assert_eq!(found(&disk, of_repair), [(Severity::Cache, snapshot, None)]);
    }
}

/// A quick look reads metas of up to 1 MiB.
#[test]
fn a_meta_of_exactly_one_mebibyte_is_read_by_a_quick_look() {
    for (longer, read) in [(0, true), (1, false)] {
        let disk = SimDisk::new(1);
        write(
            &disk,
            options(),
            &[(0..5, (1 << 20) - META_HEADER_BYTES + longer)],
        );
        let meta = only(&disk, "meta");
        assert_eq!(found(&disk, QUICK), []);
        disk.corrupt(&meta, 5000, 1).unwrap();
        assert_eq!(found(&disk, QUICK).len(), usize::from(read));
        assert_eq!(found(&disk, FULL).len(), 1);
    }
}

#[test]
fn sixteen_damaged_rows_of_a_file_are_named_and_the_others_counted() {
    for damaged in [1, 15, 16, 17, 20] {
        let disk = SimDisk::new(1);
        write(&disk, options(), &[(0..30, 5)]);
        let path = only(&disk, "rows");
        for row in 0..damaged {
            disk.corrupt(&path, 4096 + row * STRIDE + 100, 1).unwrap();
        }
        let mut expected: Vec<Option<u64>> = Vec::new();
        if damaged > 16 {
            expected.push(Some(0));
        }
        expected.extend((0..damaged.min(16)).map(|row| Some(4096 + row * STRIDE)));
        let report = look(&disk, FULL).unwrap();
        let found: Vec<Option<u64>> = report.findings.iter().map(|f| f.offset).collect();
        assert_eq!(found, expected);
        if damaged > 16 {
            let others = format!("{} more places are damaged", damaged - 16);
            assert_eq!(report.findings[0].what, others);
        }
        assert!(report.findings.iter().all(|f| f.path == path));
        // What is damaged is not among the values.
        let values = (30 - damaged) * DIM as u64;
        assert_eq!(report.tables[0].weights.values, values);
    }
}

#[test]
fn a_byte_between_rows_and_keys_is_damage_where_it_is() {
    let disk = SimDisk::new(1);
    write(&disk, options(), &[(0..3, 5)]);
    let path = only(&disk, "rows");
    let (rows_end, keys) = (4096 + 3 * STRIDE, 3 * 4096);
    for at in [rows_end, rows_end + 100, keys - 1] {
        disk.corrupt(&path, at, 1).unwrap();
        assert_eq!(
            found(&disk, FULL),
            [(Severity::Damage, path.clone(), Some(at))]
        );
        let what = &look(&disk, FULL).unwrap().findings[0].what;
        assert_eq!(what, "padding that is not zero");
        disk.corrupt(&path, at, 1).unwrap();
    }
}

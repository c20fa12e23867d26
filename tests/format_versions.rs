//! Does a store of version 1 become one of version 2 without anything lost, and does one of version
//! 2 keep what only that can say?
//!
//! - The stores of version 1 are the golden ones, in a simulated disk.
//! - Hyperparameters by table and cursors are put into a manifest under right checksums, and have to
//!   come through everything that writes a manifest.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "../fuzz/src/forge.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forge;
#[path = "common/forging.rs"]
mod forging;
#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/spans.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod spans;
#[path = "../fuzz/src/tiny.rs"]
#[expect(dead_code, clippy::expect_used, reason = "other tests use the rest")]
mod tiny;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use forging::{STORE, fix, identity, put_u64, reseal, u32_at, u64_at};
use hps::format::current::Current;
use hps::format::identity::StoreIdentity;
use hps::format::manifest::{Edit, ManifestReader};
use hps::format::{FileIdentity, FileKind, Version, file_name};
use hps::inspect::{Report, Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::repair::{RepairOptions, RepairOutcome, repair_on};
use hps::ssd::edits::Replay;
use hps::*;
use spans::Spans;
use tiny::{ROOT, Rows, Tiny, key, options};

/// The stores of version 1.
const OLD: [&str; 2] = ["golden-store-v1", "golden-store-v1-directories"];

/// Rows and meta of each retained checkpoint.
type Content = BTreeMap<CheckpointId, (Rows, Vec<u8>)>;

/// A golden store, in memory.
fn golden(name: &str) -> SimDisk {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new(ROOT)).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    plant(&disk, &source.join(name), Path::new(ROOT));
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

fn plant(disk: &SimDisk, source: &Path, target: &Path) {
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let to = target.join(path.file_name().unwrap());
        if path.is_dir() {
            disk.create_dir(&to).unwrap();
            plant(disk, &path, &to);
        } else if !path.ends_with("rows.txt") {
            disk.write_file(&to, &fs::read(path).unwrap()).unwrap();
        }
    }
    disk.sync_dir(target).unwrap();
}

fn open(disk: &SimDisk) -> Result<Store> {
    Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options())
}

fn content(store: &Store) -> Result<Content> {
    let mut found = Content::new();
    for info in store.checkpoints() {
        let mut rows = Rows::new();
        let mut iter = store.rows(info.id)?;
        while let Some(row) = iter.next_row()? {
            let bits = row.values.iter().map(|v| v.to_bits()).collect();
            rows.insert((row.table.0, row.key), bits);
        }
        found.insert(info.id, (rows, store.checkpoint_meta(info.id)?));
    }
    Ok(found)
}

/// What CURRENT of the store at `root` says, and what its manifest adds up to; its edits, too.
fn committed(disk: &SimDisk, root: &Path) -> (Current, Replay, Vec<Edit>) {
    let read = |name: &str| disk.read_file(&root.join(name)).unwrap();
    let store = StoreIdentity::decode(&read("STORE")).unwrap().uuid;
    let current = Current::decode(&read("CURRENT"), &store).unwrap();
    let id = FileIdentity::new(store, current.manifest_number);
    let bytes = read(&file_name(FileKind::Manifest, current.manifest_number));
    let bytes = &bytes[..usize::try_from(current.manifest_bytes).unwrap()];
    let reader = ManifestReader::new(bytes, &id).unwrap();
    assert_eq!(reader.version(), Some(current.version));
    let edits: Vec<Edit> = reader.map(|edit| edit.unwrap()).collect();
    let mut replay = Replay::default();
    let all = edits.iter().cloned();
    all.for_each(|edit| replay.apply(edit).unwrap());
    (current, replay, edits)
}

fn version(disk: &SimDisk) -> Version {
    committed(disk, Path::new(ROOT)).0.version
}

fn look(disk: &SimDisk, root: &Path) -> Report {
    let scope = Scope::new().full(true);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let io = Io::of(disk.clone());
    inspect_on(&io, root, scope, go_on).unwrap()
}

fn worst(disk: &SimDisk, root: &Path) -> Option<Severity> {
    look(disk, root).worst()
}

/// Pushes to both tables.
fn push(store: &Store, value: u8) {
    for table in 0..2 {
        let keys: Vec<u64> = (4..9).map(key).collect();
        tiny::push(store, &mut Rows::new(), table, &keys, value).unwrap();
    }
}

/// The first checkpoint of a store: what it held before and after.
fn first_checkpoint(disk: &SimDisk) -> Result<[Content; 2]> {
    let store = open(disk)?;
    let before = content(&store)?;
    for table in 0..2 {
        let keys: Vec<u64> = (4..9).map(key).collect();
        tiny::push(&store, &mut Rows::new(), table, &keys, 90)?;
    }
    store.flush()?;
    store.checkpoint(5000, b"the first of version 2")?;
    let after = content(&store)?;
    store.close()?;
    Ok([before, after])
}

#[test]
fn a_crash_at_every_call_of_the_first_checkpoint_of_an_old_store_loses_nothing() {
    for name in OLD {
        let disk = golden(name);
        assert_eq!(version(&disk), Version::V1);
        let [before, after] = first_checkpoint(&disk).unwrap();
        assert!(version(&disk) == Version::V2 && before != after);
        let calls = disk.changing_calls();
        let mut seen = BTreeSet::new();
        for call in &calls {
            let disk = golden(name);
            disk.stop_at(*call);
            assert!(first_checkpoint(&disk).is_err(), "call {call}");
            let mut remains = vec![disk.killed(1)];
            let modes = [CrashMode::KeepNone, CrashMode::KeepAll];
            remains.extend(modes.map(|mode| disk.crash(0, mode)));
            remains.extend((1..5).map(|seed| disk.crash(seed, CrashMode::Random)));
            for left in remains {
                let what = format!("{name}, call {call} of {calls:?}");
                let version_left = version(&left);
                seen.insert(version_left);
                assert!(
                    worst(&left, Path::new(ROOT)) < Some(Severity::Damage),
                    "{what}"
                );
                let store = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
                let found = content(&store).unwrap();
                let expected = match version_left {
                    Version::V1 => &before,
                    Version::V2 => &after,
                };
                assert!(found == *expected, "{what}: {version_left:?}");
                store.close().unwrap();
                // An open writes CURRENT, and the store stays what it was.
                assert_eq!(version(&left), version_left, "{what}");
                if version_left == Version::V1 {
                    let [_, again] = first_checkpoint(&left).unwrap();
                    assert_eq!(again.last_key_value(), after.last_key_value(), "{what}");
                    assert_eq!(version(&left), Version::V2);
                }
            }
        }
        assert!(calls.len() > 20 && seen.len() == 2, "{name}: {calls:?}");
    }
}

#[test]
fn an_old_store_stays_one_until_a_manifest_is_written() {
    for name in OLD {
        let disk = golden(name);
        let (current, replay, _) = committed(&disk, Path::new(ROOT));
        let store = open(&disk).unwrap();
        push(&store, 90);
        store.flush().unwrap();
        store.close_discarding();
        let (now, same, _) = committed(&disk, Path::new(ROOT));
        assert_eq!(now.version, Version::V1);
        assert_eq!(now.manifest_number, current.manifest_number);
        assert!(now.file_number_limit > current.file_number_limit);
        assert_eq!(same.checkpoints, replay.checkpoints);
        assert_eq!(look(&disk, Path::new(ROOT)).format_version, Some(1));
    }
}

#[test]
fn everything_that_writes_a_manifest_makes_an_old_store_a_new_one() {
    let root = Path::new(ROOT);
    type Change = fn(Store, CheckpointId);
    let changes: [(&str, Change); 3] = [
        ("drop", |store, first| {
            store.drop_checkpoints(&[first]).unwrap();
            store.close().unwrap();
        }),
        ("rollback", |store, first| {
            store.rollback(first).unwrap().close().unwrap();
        }),
        ("compact", |store, _| {
            let limits = CompactLimits::new().stale_share(0.01);
            let go_on = |_| ControlFlow::Continue(());
            store.compact(&limits, go_on).unwrap();
            store.close().unwrap();
        }),
    ];
    for name in OLD {
        for (what, change) in changes {
            let disk = golden(name);
            let (_, old, _) = committed(&disk, root);
            let before = content(&open(&disk).unwrap()).unwrap();
            change(open(&disk).unwrap(), old.checkpoints[0].id);
            let (current, replay, _) = committed(&disk, root);
            assert_eq!(current.version, Version::V2, "{name}, {what}");
            // A rollback makes its index snapshot anew.
            if what == "drop" {
                assert!(!replay.snapshot.is_empty(), "{name}: {old:?}");
                assert_eq!(replay.snapshot, old.snapshot, "{name}");
            }
            for checkpoint in &replay.checkpoints {
                let id = checkpoint.id;
                assert_eq!(*replay.hyper.at(id), *old.hyper.at(id), "{name}, {what}");
                assert_eq!(replay.hyper.at(id).len(), 2);
            }
            let now = content(&open(&disk).unwrap()).unwrap();
            assert!(!now.is_empty());
            let same = now.iter().all(|(id, rows)| before[id] == *rows);
            assert!(same, "{name}, {what}");
            assert_eq!(worst(&disk, root), None, "{name}, {what}");
        }
        let disk = golden(name);
        let store = open(&disk).unwrap();
        let last = store.last_checkpoint().unwrap().id;
        let target = Path::new("/export");
        store.export(last, target, &[]).unwrap();
        store.close().unwrap();
        assert_eq!(version(&disk), Version::V1, "{name}");
        let (current, replay, _) = committed(&disk, target);
        assert_eq!(
            (current.version, replay.checkpoints.len()),
            (Version::V2, 1)
        );
        assert_eq!(worst(&disk, target), None, "{name}");
    }
}

/// A build that knows version 2 says what to do about a store of version 3, as one that knows
/// version 1 does about a store of version 2.
#[test]
fn a_store_of_a_version_that_is_not_known_yet_is_refused_with_the_way_out() {
    let disk = Tiny::disk(&Tiny::new().unwrap().files);
    let path = Path::new(ROOT).join("CURRENT");
    let mut bytes = disk.read_file(&path).unwrap();
    bytes[16..20].copy_from_slice(&3u32.to_le_bytes());
    reseal("CURRENT", &mut bytes, STORE);
    disk.write_file(&path, &bytes).unwrap();
    let error = open(&disk).map(drop).unwrap_err();
    assert!(matches!(error, Error::Unsupported { found: 3, .. }));
    let said = error.to_string();
    let way_out = "format version 3, this build reads up to 2; upgrade hps";
    assert!(said.ends_with(way_out), "{said}");
}

/// A store with other hyperparameters of its second table at its second checkpoint.
fn of_two_hypers() -> (SimDisk, HyperParameters) {
    let disk = Tiny::disk(&Tiny::new().unwrap().files);
    let slow = HyperParameters::new().momentum(0.5);
    manifests::forge(&disk, |edits| {
        let last = edits.iter().rposition(|e| e.checkpoint().is_some());
        let edit = Edit::HyperParameters {
            table: 1,
            hyper: slow,
        };
        edits.insert(last.unwrap(), edit);
    });
    (disk, slow)
}

#[test]
fn hyperparameters_are_kept_by_table_and_written_where_they_change() {
    let (disk, slow) = of_two_hypers();
    let usual = Some(HyperParameters::default());
    let spans = Spans::default();
    let store = tracing::subscriber::with_default(spans.clone(), || open(&disk).unwrap());
    let said: Vec<_> = spans
        .seen()
        .into_iter()
        .filter(|s| s.name.contains("hyperparameters differ"))
        .collect();
    assert_eq!(said.len(), 1, "of one table: {said:?}");
    let (values, now) = (&said[0].values, "momentum: 0.9");
    assert!(values["table"].contains("wide"), "{values:?}");
    assert!(values["then"].contains("momentum: 0.5") && values["now"].contains(now));
    // How many edits of hyperparameters the manifest has after each checkpoint: the first one starts
    // it with both of the old checkpoint and the one that is another now.
    for (step, written) in [(5000, 3), (5001, 3)] {
        push(&store, 90);
        store.checkpoint(step, b"").unwrap();
        let (_, replay, edits) = committed(&disk, Path::new(ROOT));
        let hypers = edits.iter();
        let hypers = hypers.filter(|e| matches!(e, Edit::HyperParameters { .. }));
        assert_eq!(hypers.count(), written, "{edits:?}");
        let of: Vec<_> = replay.checkpoints.iter().map(|c| c.id).collect();
        let found: Vec<_> = of.iter().map(|id| replay.hyper.at(*id).to_vec()).collect();
        let first = if step == 5000 { Some(slow) } else { usual };
        assert_eq!(found, [vec![usual, first], vec![usual, usual]]);
    }
    store.close().unwrap();
    let spans = Spans::default();
    let store = tracing::subscriber::with_default(spans.clone(), || open(&disk).unwrap());
    assert!(
        spans
            .seen()
            .iter()
            .all(|s| !s.name.contains("hyperparameters"))
    );
    store.close().unwrap();
}

/// Cursors of readers: of the first retained checkpoint, of the second, and one that is gone.
fn with_cursors() -> (SimDisk, [CheckpointId; 2]) {
    let disk = Tiny::disk(&Tiny::new().unwrap().files);
    let (_, replay, _) = committed(&disk, Path::new(ROOT));
    let ids = [replay.checkpoints[0].id, replay.checkpoints[1].id];
    manifests::forge(&disk, |edits| {
        let cursor = |name: &str, checkpoint| Edit::Cursor {
            name: String::from(name),
            checkpoint,
            interval: 0,
        };
        let of = [("behind", ids[0]), ("beside", ids[1]), ("gone", ids[1])];
        edits.extend(of.map(|(name, id)| cursor(name, id)));
        edits.push(cursor("gone", CheckpointId(0)));
    });
    (disk, ids)
}

fn cursors(disk: &SimDisk, root: &Path) -> Vec<(String, CheckpointId)> {
    let cursors = committed(disk, root).1.cursors.into_iter();
    cursors.map(|(name, at)| (name, at.checkpoint)).collect()
}

#[test]
fn cursors_come_through_everything_that_writes_a_manifest() {
    let root = Path::new(ROOT);
    let both = |ids: [CheckpointId; 2]| {
        let of = [("behind", ids[0]), ("beside", ids[1])];
        of.map(|(name, id)| (String::from(name), id)).to_vec()
    };
    let (disk, ids) = with_cursors();
    let report = look(&disk, root);
    let told = report.cursors.iter();
    let told: Vec<_> = told.map(|c| (c.name.clone(), c.checkpoint)).collect();
    assert_eq!((report.format_version, told), (Some(2), both(ids)));
    let store = open(&disk).unwrap();
    for step in 5000..5003 {
        push(&store, 90);
        store.checkpoint(step, b"").unwrap();
        assert_eq!(cursors(&disk, root), both(ids), "checkpoint of step {step}");
    }
    store
        .drop_checkpoints(&[store.checkpoints()[0].id])
        .unwrap();
    assert_eq!(cursors(&disk, root), both(ids), "checkpoints dropped");
    let target = Path::new("/export");
    store
        .export(store.last_checkpoint().unwrap().id, target, &[])
        .unwrap();
    assert_eq!(cursors(&disk, target), both(ids), "exported");
    store.close().unwrap();
    // What a reader has of checkpoints that are undone is of another history.
    let (disk, ids) = with_cursors();
    open(&disk)
        .unwrap()
        .rollback(ids[0])
        .unwrap()
        .close()
        .unwrap();
    assert_eq!(cursors(&disk, root), both(ids)[..1], "rolled back");
    let (disk, ids) = with_cursors();
    disk.remove(&root.join("STORE")).unwrap();
    let options = RepairOptions::default();
    let io = Io::of(disk.clone());
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let built = repair_on(&io, root, options, &mut |_, _| Ok(()), go_on).unwrap();
    let RepairOutcome::Built(_, repaired) = built else {
        panic!("nothing was built");
    };
    assert_eq!(cursors(&disk, &repaired.path), both(ids), "repaired");
}

#[test]
fn cursors_and_hyperparameters_that_can_not_be_are_refused() {
    let refused = |edits_of: &dyn Fn() -> Edit| {
        let disk = Tiny::disk(&Tiny::new().unwrap().files);
        manifests::forge(&disk, |edits| edits.insert(edits.len() - 1, edits_of()));
        let error = open(&disk).map(drop).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        error.to_string()
    };
    let cursor = |checkpoint| Edit::Cursor {
        name: String::from("reader"),
        checkpoint,
        interval: 0,
    };
    let error = refused(&|| cursor(CheckpointId(99)));
    assert!(error.contains("beyond reason"), "{error}");
    let error = refused(&|| cursor(CheckpointId(0)));
    assert!(error.contains("goes and is not known"), "{error}");
    let hyper = |table, momentum| Edit::HyperParameters {
        table,
        hyper: HyperParameters::new().momentum(momentum),
    };
    let error = refused(&|| hyper(2, 0.5));
    assert!(error.contains("which is not known"), "{error}");
    let error = refused(&|| hyper(1, 1.5));
    assert!(error.contains("hyperparameters that can't be"), "{error}");
}

//! Which findings still count once a writer has gone on?

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::io::Disk;
use crate::io::sim::SimDisk;
use crate::options::Thresholds;
use crate::{
    CreateOptions, Error, Optimizer, RuntimeOptions, Store, TableDescriptor, TableId, Update,
};

const ROOT: &str = "/store";

#[test]
fn a_hundred_changes_are_followed_and_no_more() {
    let mut changes = Changes::new();
    let followed = (0..1000).take_while(|_| changes.follow()).count();
    assert_eq!(followed + 1, Changes::MAX, "the last of them ends it");
    assert!(!changes.follow() && !changes.follow());
}

/// A store that makes an index snapshot and a manifest afresh at every checkpoint, and its one table.
fn store(disk: &SimDisk) -> (Store, TableId) {
    let options = RuntimeOptions {
        cache_bytes: 1 << 20,
        inline: true,
        threads: 1,
        retain_checkpoints: 2,
        thresholds: Thresholds {
            snapshot_young_bytes: 0,
            snapshot_young_part: u64::MAX,
            manifest_roll_bytes: 0,
            ..Thresholds::default()
        },
        ..RuntimeOptions::default()
    };
    let store = Store::create_on(
        Arc::new(disk.clone()),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    let table = TableDescriptor {
        optimizer: Optimizer::Sgd,
        ..TableDescriptor::new("t", 4)
    };
    let table = store.create_table(&table).unwrap();
    (store, table)
}

/// Writes all of a few keys anew, and checkpoints.
fn checkpoint(store: &Store, table: TableId, step: u64) {
    let keys: Vec<u64> = (0..20).collect();
    let mut out = vec![0.0; 4 * keys.len()];
    let lease = store.pull(table, &keys, &mut out).unwrap();
    store.push(&lease, Update::weights(&out)).unwrap();
    drop(lease);
    store.checkpoint(step, b"").unwrap();
}

fn reading(disk: &SimDisk) -> (Arc<dyn Directory>, [u8; 16], Reading) {
    let root = disk.open_dir(Path::new(ROOT)).unwrap();
    let (uuid, _) = crate::ssd::directories::read_store(&*root).unwrap();
    let reading = Reading::take((&*root, &uuid), &mut Changes::new());
    let reading = reading.unwrap().unwrap();
    (root, uuid, reading)
}

fn finding(severity: Severity, path: &Path) -> Finding {
    Finding {
        severity,
        path: path.to_path_buf(),
        offset: None,
        what: String::new(),
    }
}

/// What fails beside a CURRENT that stays is damage, and is read no second time.
#[test]
fn a_damaged_current_or_manifest_is_no_change() {
    let disk = SimDisk::new(1);
    let (store, table) = store(&disk);
    checkpoint(&store, table, 1);
    let (root, uuid, reading) = reading(&disk);
    let manifest = file_name(FileKind::Manifest, reading.current.manifest_number);
    for name in ["CURRENT", &manifest] {
        let path = Path::new(ROOT).join(name);
        disk.corrupt(&path, 70, 1).unwrap();
        let mut changes = Changes::new();
        let taken = Reading::take((&*root, &uuid), &mut changes);
        assert!(matches!(taken, Err(Error::Corrupt { path: p, .. }) if p == path));
        assert_eq!(changes.0, Changes::MAX);
        disk.corrupt(&path, 70, 1).unwrap();
    }
}

/// Files of the store's numbered kinds.
fn numbered(disk: &SimDisk) -> Vec<PathBuf> {
    let mut paths = disk.paths();
    paths.retain(|path| path.extension().is_some());
    paths
}

#[test]
fn what_current_names_counts_and_no_other_file_of_a_kind_does() {
    let disk = SimDisk::new(1);
    let (store, table) = store(&disk);
    (1..=3).for_each(|step| checkpoint(&store, table, step));
    let (_, _, reading) = reading(&disk);
    let names = |path: &Path| reading.names(&finding(Severity::Damage, path));
    let paths = numbered(&disk);
    let mut kinds: Vec<_> = paths.iter().filter_map(|p| p.extension()).collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, ["copy", "manifest", "meta", "rows", "snapshot"]);
    for path in &paths {
        assert!(names(path), "{}", path.display());
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        let (_, number) = parse_file_name(name).unwrap();
        let kind = path.extension().and_then(|e| e.to_str()).unwrap();
        let other = path.with_file_name(format!("{:012}.{kind}", number.0 + 1000));
        assert!(!names(&other), "{}", other.display());
    }
    // What has no number never changes.
    for name in ["STORE", "CURRENT", "PART", ""] {
        assert!(names(&Path::new(ROOT).join(name)), "{name}");
    }
}

#[test]
fn beside_the_same_current_every_finding_counts() {
    let disk = SimDisk::new(1);
    let (store, table) = store(&disk);
    checkpoint(&store, table, 1);
    let (root, uuid, before) = reading(&disk);
    let gone = Path::new(ROOT).join("000000009999.rows");
    let all = [Severity::Leftover, Severity::Cache, Severity::Damage].map(|s| finding(s, &gone));
    let mut findings = all.to_vec();
    let retain = |findings: &mut Vec<Finding>| {
        let place: Place<'_> = (&*root, &uuid);
        retain_what_still_counts(findings, place, &before.current, &mut Changes::new())
    };
    assert!(!retain(&mut findings));
    assert_eq!(findings.len(), 3);
    // So they do where CURRENT can't be read: the next look says so.
    disk.corrupt(&Path::new(ROOT).join("CURRENT"), 70, 1)
        .unwrap();
    assert!(!retain(&mut findings));
    assert_eq!(findings.len(), 3);
}

#[test]
fn beside_a_new_current_findings_about_what_it_does_not_name_are_left_out() {
    let disk = SimDisk::new(1);
    let (store, table) = store(&disk);
    checkpoint(&store, table, 1);
    let (root, uuid, before) = reading(&disk);
    let old = numbered(&disk);
    for step in 2..=5 {
        checkpoint(&store, table, step);
        store.compact_fully().unwrap();
    }
    let retain = |findings: &mut Vec<Finding>| {
        let place: Place<'_> = (&*root, &uuid);
        retain_what_still_counts(findings, place, &before.current, &mut Changes::new())
    };
    let now = numbered(&disk);
    let old: Vec<PathBuf> = old.into_iter().filter(|p| !now.contains(p)).collect();
    for kind in ["copy", "snapshot", "manifest", "meta", "rows"] {
        let replaced = old.iter().any(|p| p.extension().is_some_and(|e| e == kind));
        assert!(replaced, "{kind}: {old:?}");
    }
    let identity = Path::new(ROOT).join("STORE");
    for severity in [Severity::Cache, Severity::Damage] {
        let of = |paths: &[PathBuf]| -> Vec<Finding> {
            paths.iter().map(|path| finding(severity, path)).collect()
        };
        let mut findings = of(&old);
        assert!(retain(&mut findings) && findings.is_empty());
        // Each of what is left is told, and nothing was left out.
        let mut findings = of(&now);
        findings.push(finding(severity, &identity));
        assert!(!retain(&mut findings));
        assert_eq!(findings.len(), now.len() + 1);
        let mut findings = [of(&now), of(&old)].concat();
        assert!(retain(&mut findings));
        let left: Vec<PathBuf> = findings.into_iter().map(|f| f.path).collect();
        assert_eq!(left, now);
    }
    // Leftovers are left out without a word: what was one may have become part of the store.
    let mut findings = vec![
        finding(Severity::Leftover, &now[0]),
        finding(Severity::Damage, &identity),
        finding(Severity::Leftover, &old[0]),
    ];
    assert!(!retain(&mut findings));
    assert_eq!(findings.len(), 1);
    assert!(!retain(&mut Vec::new()));
}

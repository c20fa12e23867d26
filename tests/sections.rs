//! What does a store do with sections of parameter files whose kinds nobody knows yet?
//!
//! - Each file gets two, between its key blocks and its footer, under right checksums up to CURRENT.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/manifests.rs"]
mod manifests;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hps::format::footer::{Footer, Section};
use hps::format::manifest::{Edit, FileMeta};
use hps::format::{BLOCK_BYTES, Digest, FileIdentity, data_file_name};
use hps::inspect::{Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::repair::{RepairOptions, RepairOutcome, Repaired, repair_on};
use hps::*;
use manifests::{committed, forge};
use small::{set, sgd, values};

const ROOT: &str = "/store";
const KEYS: u64 = 1200;

/// Two data directories, a snapshot of the index, a retained checkpoint before the last, removed keys;
/// each parameter file has sections.
fn store() -> SimDisk {
    let disk = SimDisk::new(1);
    let create = CreateOptions::new().data_directories(vec!["a".into(), "b".into()]);
    let io = Io::of(disk.clone());
    let store = Store::create_on(io, Path::new(ROOT), create, options()).unwrap();
    let table = store.create_table(&sgd("t", 4)).unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    for (step, from, value) in [(1, 100, 1.0), (2, 200, 2.0)] {
        set(&store, table, &keys[from..], value, 4);
        assert_eq!(store.remove(table, &keys[200..210]).unwrap(), 10);
        store.checkpoint(step, &[]).unwrap();
    }
    store.close().unwrap();
    let files = add_sections(&disk);
    assert!(files.len() >= 4, "{files:?}");
    disk
}

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(8 << 20)
        .retain_checkpoints(2)
        .inline(true)
        .threads(1)
        .thresholds(Thresholds {
            snapshot_young_bytes: 0,
            snapshot_young_part: u64::MAX,
            ..Thresholds::default()
        })
}

/// A block and a bit, and one byte; kinds that nobody knows.
fn contents(number: u64) -> [(u32, Vec<u8>); 2] {
    let long = (0..5000).map(|i| mix64(number ^ i).to_le_bytes()[0]);
    [(3, long.collect()), (700, vec![9])]
}

/// Puts sections into each parameter file; gives what the manifest then says of them.
fn add_sections(disk: &SimDisk) -> Vec<FileMeta> {
    let (store, _) = committed(disk);
    let mut files = Vec::new();
    forge(disk, |edits| {
        for edit in edits {
            let Edit::AddFile(meta) = edit else { continue };
            let (path, id) = (path_of(disk, meta), FileIdentity::new(store, meta.number));
            let bytes = disk.read_file(&path).unwrap();
            let (body, tail) = bytes.split_at(usize::try_from(meta.footer_offset).unwrap());
            let (mut footer, _) = Footer::decode(tail, &id, meta.footer_offset).unwrap();
            let mut out = body.to_vec();
            for (kind, content) in contents(meta.number.0) {
                let (mut digest, offset) = (Digest::new(), out.len() as u64);
                digest.update(&content);
                footer.sections.push(Section {
                    kind,
                    offset,
                    bytes: content.len() as u64,
                    checksum: Section::checksum(digest.digest64(), &id, offset),
                });
                out.extend(content);
                out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
            }
            meta.footer_offset = out.len() as u64;
            let (tail, checksum) = footer.encode(&id, meta.footer_offset);
            out.extend(tail);
            (meta.bytes, meta.footer_checksum) = (out.len() as u64, checksum);
            disk.write_file(&path, &out).unwrap();
            files.push(*meta);
        }
    });
    files
}

fn path_of(disk: &SimDisk, meta: &FileMeta) -> PathBuf {
    let name = data_file_name(meta.number);
    let mut paths = disk.paths().into_iter();
    paths.find(|path| path.ends_with(&name)).unwrap()
}

fn open(disk: &SimDisk, root: &Path) -> Store {
    Store::open_on(Io::of(disk.clone()), root, options()).unwrap()
}

/// Rows of each retained checkpoint, which the last one's pulls show as well.
fn rows(store: &Store) -> BTreeMap<(u64, u64), Vec<f32>> {
    let mut found = BTreeMap::new();
    for info in store.checkpoints() {
        let mut rows = store.rows(info.id).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            found.insert((info.id.0, row.key), row.values.to_vec());
        }
    }
    let last = store.last_checkpoint().unwrap().id.0;
    let keys: Vec<u64> = (0..KEYS).collect();
    let pulled = values(store, store.table("t").unwrap(), &keys, 4);
    for (key, row) in keys.iter().zip(pulled.chunks(4)) {
        let zero = vec![0.0; 4];
        assert_eq!(row, found.get(&(last, *key)).unwrap_or(&zero));
    }
    found
}

fn findings(
    disk: &SimDisk,
    root: &Path,
    full: bool,
) -> Vec<(Severity, PathBuf, Option<u64>, String)> {
    let mut go_on = |_, _| ControlFlow::Continue(());
    let scope = Scope::new().full(full);
    let report = inspect_on(&Io::of(disk.clone()), root, scope, &mut go_on).unwrap();
    let findings = report.findings.into_iter();
    findings
        .map(|f| (f.severity, f.path, f.offset, f.what))
        .collect()
}

fn repair(disk: &SimDisk) -> Box<Repaired> {
    let (io, root) = (Io::of(disk.clone()), Path::new(ROOT));
    let mut go_on = |_, _| ControlFlow::Continue(());
    let mut told = |_: &str, _| Ok(());
    match repair_on(&io, root, RepairOptions::new(), &mut told, &mut go_on).unwrap() {
        RepairOutcome::Built(_, repaired) => repaired,
        RepairOutcome::Whole(_) => unreachable!("it is damaged"),
    }
}

/// Sections of all parameter files under a directory.
fn sections(disk: &SimDisk, root: &Path) -> usize {
    let (store, _) = committed(disk);
    let mut count = 0;
    for path in disk.paths().iter().filter(|p| p.starts_with(root)) {
        if path.extension().is_none_or(|e| e != "rows") {
            continue;
        }
        let number = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let bytes = disk.read_file(path).unwrap();
        let id = FileIdentity::new(store, FileNumber(number));
        let at = bytes.len() - BLOCK_BYTES;
        let (footer, _) = Footer::decode(&bytes[at..], &id, at as u64).unwrap();
        count += footer.sections.len();
    }
    count
}

#[test]
fn sections_that_nobody_knows_are_stepped_over_by_everything_that_reads() {
    let disk = store();
    let (root, plain) = (Path::new(ROOT), store_without());
    let expected = rows(&open(&plain, root));
    assert!(expected.len() > 2000);
    assert_eq!(findings(&disk, root, true), []);
    let all = sections(&disk, root);
    assert!(all >= 8 && all.is_multiple_of(2));
    let opened = open(&disk, root);
    assert_eq!(rows(&opened), expected);
    let reader = Store::open_read_only_on(Io::of(disk.clone()), root, None, options()).unwrap();
    assert_eq!(rows(&reader).last_key_value(), expected.last_key_value());
    drop(reader);
    // An export has the same files.
    let last = opened.last_checkpoint().unwrap().id;
    opened.export(last, Path::new("/export"), &[]).unwrap();
    opened.close().unwrap();
    assert_eq!(findings(&disk, Path::new("/export"), true), []);
    assert!(sections(&disk, Path::new("/export")) >= 4);
    let exported = rows(&open(&disk, Path::new("/export")));
    assert!(
        exported
            .iter()
            .all(|(at, row)| expected.get(at) == Some(row))
    );
    // So has a repaired store.
    let mut copies = disk.paths().into_iter();
    let copy = copies.find(|p| p.starts_with(root) && p.extension().is_some_and(|e| e == "copy"));
    disk.corrupt(&copy.unwrap(), 70, 1).unwrap();
    let repaired = repair(&disk);
    assert!(repaired.lost_nothing() && repaired.files_rewritten == 0);
    assert_eq!(sections(&disk, &repaired.path), all);
    assert_eq!(rows(&open(&disk, &repaired.path)), expected);
}

/// The same without sections.
fn store_without() -> SimDisk {
    let disk = store();
    let (store, _) = committed(&disk);
    forge(&disk, |edits| {
        for edit in edits {
            let Edit::AddFile(meta) = edit else { continue };
            let (path, id) = (path_of(&disk, meta), FileIdentity::new(store, meta.number));
            let bytes = disk.read_file(&path).unwrap();
            let (_, tail) = bytes.split_at(usize::try_from(meta.footer_offset).unwrap());
            let (mut footer, _) = Footer::decode(tail, &id, meta.footer_offset).unwrap();
            footer.sections.clear();
            meta.footer_offset = footer.keys_end();
            let mut out = bytes[..usize::try_from(meta.footer_offset).unwrap()].to_vec();
            let (tail, checksum) = footer.encode(&id, meta.footer_offset);
            out.extend(tail);
            (meta.bytes, meta.footer_checksum) = (out.len() as u64, checksum);
            disk.write_file(&path, &out).unwrap();
        }
    });
    disk
}

#[test]
fn a_compaction_moves_the_rows_and_leaves_sections_out() {
    let (disk, root) = (store(), Path::new(ROOT));
    let all = sections(&disk, root);
    let store = open(&disk, root);
    let before = rows(&store);
    let limits = CompactLimits::new().stale_share(0.0);
    store
        .compact(&limits, |_| ControlFlow::Continue(()))
        .unwrap();
    let last = store.last_checkpoint().unwrap().id;
    let first = store.checkpoints()[0].id;
    store.drop_checkpoints(&[first]).unwrap();
    let after = rows(&store);
    store.close().unwrap();
    let kept = before.into_iter().filter(|(at, _)| at.0 == last.0);
    assert_eq!(after, kept.collect());
    assert_eq!(findings(&disk, root, true), []);
    let left = sections(&disk, root);
    assert!(
        left < all,
        "{left} of {all} are left, in files that were not written anew"
    );
}

#[test]
fn a_broken_section_is_found_alone_and_costs_no_row() {
    let root = Path::new(ROOT);
    let expected = rows(&open(&store(), root));
    // A byte of the first section, of the zeros after it, the only byte of the second.
    for (place, kind) in [(4321, 3), (5000, 3), (8192, 700)] {
        let disk = store();
        let mut files = Vec::new();
        forge(&disk, |edits| {
            files.extend(edits.iter().filter_map(|edit| match edit {
                Edit::AddFile(meta) => Some(*meta),
                _ => None,
            }));
        });
        let meta = files.last().unwrap();
        let start = meta.footer_offset - 3 * BLOCK_BYTES as u64;
        let path = path_of(&disk, meta);
        disk.corrupt(&path, start + place, 1).unwrap();
        let offset = if kind == 3 { start } else { start + 8192 };
        let what = format!("section of kind {kind}: checksum does not match");
        let damage = (Severity::Damage, path, Some(offset), what);
        assert_eq!(findings(&disk, root, true), [damage]);
        assert_eq!(findings(&disk, root, false), [], "a quick look reads none");
        assert_eq!(rows(&open(&disk, root)), expected);
        let repaired = repair(&disk);
        assert!(repaired.lost_nothing() && repaired.files_rewritten == 1);
        assert_eq!(findings(&disk, &repaired.path, true), []);
        assert_eq!(rows(&open(&disk, &repaired.path)), expected);
    }
}

/// The key blocks don't end at the footer: with that lost, they were looked for in the sections.
#[test]
fn rows_of_a_file_whose_footer_is_lost_are_saved_beside_sections() {
    let (disk, root) = (store(), Path::new(ROOT));
    let expected = rows(&open(&disk, root));
    let mut last = None;
    forge(&disk, |edits| {
        for edit in edits {
            if let Edit::AddFile(meta) = edit {
                last = Some(*meta);
            }
        }
    });
    let meta = last.unwrap();
    disk.corrupt(&path_of(&disk, &meta), meta.footer_offset + 30, 1)
        .unwrap();
    let repaired = repair(&disk);
    assert_eq!((repaired.files_rewritten, repaired.nameless), (1, 0));
    assert_eq!(repaired.lost.sum(), 0);
    let found = rows(&open(&disk, &repaired.path));
    assert_eq!(found.last_key_value(), expected.last_key_value());
    assert!(found.iter().all(|(at, row)| expected.get(at) == Some(row)));
}

//! Does an inspection find what contradicts itself under right checksums?
//!
//! A store of two files of 40 rows each, keys 20 to 39 in both: what is forged was written by a
//! faulty program, not by a faulty device.

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
#[path = "common/spans.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod spans;

use std::path::{Path, PathBuf};

use hps::format::FileIdentity;
use hps::format::index_snapshot::{
    ENTRIES_PER_BLOCK, SnapshotEntry, decode_covered_block, decode_entry_block,
    decode_snapshot_header, encode_covered_block, encode_entry_block, encode_part_header,
    encode_snapshot_footer,
};
use hps::format::manifest::{Edit, FileMeta};
use hps::format::param_file::encode_record_bytes;
use hps::inspect::{Scope, Severity};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use looks::{
    DIM, FULL, QUICK, ROOT, STRIDE, look, named, only, open, options, with_snapshots, write,
};
use manifests::{committed, forge};
use spans::{Seen, Spans};

fn store(options: RuntimeOptions) -> SimDisk {
    let disk = SimDisk::new(1);
    write(&disk, options, &[(0..40, 5), (20..60, 5)]);
    disk
}

/// Severity, file, byte and words of each finding.
fn found(disk: &SimDisk, scope: Scope) -> Vec<(Severity, PathBuf, Option<u64>, String)> {
    let findings = look(disk, scope).unwrap().findings.into_iter();
    findings
        .map(|f| (f.severity, f.path, f.offset, f.what))
        .collect()
}

/// Replaces record `index` of a parameter file: its key and its first weight.
fn forge_record(disk: &SimDisk, path: &Path, index: u64, key: Option<u64>, weight: f32) -> u64 {
    let (uuid, _) = committed(disk);
    let number = path.file_stem().unwrap().to_str().unwrap();
    let identity = FileIdentity::new(uuid, FileNumber(number.parse().unwrap()));
    let offset = 4096 + index * STRIDE;
    let at = usize::try_from(offset).unwrap();
    let mut bytes = disk.read_file(path).unwrap();
    let record = &mut bytes[at..at + usize::try_from(STRIDE).unwrap()];
    let old = u64::from_le_bytes(record[8..16].try_into().unwrap());
    let mut row = record[16..16 + 4 * DIM].to_vec();
    row[..4].copy_from_slice(&weight.to_le_bytes());
    encode_record_bytes(record, key.unwrap_or(old), &row, &identity, offset);
    disk.write_file(path, &bytes).unwrap();
    old
}

#[test]
fn a_row_of_another_key_than_the_key_block_says_is_damage() {
    let disk = store(options());
    let path = &named(&disk, "rows")[0];
    let old = forge_record(&disk, path, 7, Some(0xabcd), 1.0);
    let what = format!("a record of key 0xabcd, not of key {old:#x}");
    let damage = (
        Severity::Damage,
        path.clone(),
        Some(4096 + 7 * STRIDE),
        what,
    );
    assert_eq!(found(&disk, FULL), [damage]);
    assert_eq!(found(&disk, QUICK), []);
}

/// As where a device gives back what was there before: each row is sound, and not the one written.
#[test]
fn a_row_that_the_footer_does_not_know_is_damage_to_the_file() {
    let disk = store(options());
    let path = &named(&disk, "rows")[0];
    forge_record(&disk, path, 7, None, 5.0);
    let what = String::from("the records are not those of the footer");
    let damage = (Severity::Damage, path.clone(), Some(4096), what);
    assert_eq!(found(&disk, FULL), [damage]);
}

/// Changes what the manifest says of the first file; where its footer is.
fn forge_file(disk: &SimDisk, change: impl FnOnce(&mut FileMeta)) -> u64 {
    let mut footer_offset = 0;
    forge(disk, |edits| {
        let mut files = edits.iter_mut().filter_map(|edit| match edit {
            Edit::AddFile(meta) => Some(meta),
            _ => None,
        });
        let first = files.next().unwrap();
        footer_offset = first.footer_offset;
        change(first);
    });
    footer_offset
}

#[test]
fn keys_and_intervals_outside_of_what_the_manifest_promises_are_damage() {
    let changes: [fn(&mut FileMeta); 4] = [
        |meta| meta.hash_min += 1,
        |meta| meta.hash_max += 1,
        |meta| meta.interval_min = 0,
        |meta| meta.interval_max += 1,
    ];
    for change in changes {
        let disk = store(options());
        let path = named(&disk, "rows").remove(0);
        let footer = forge_file(&disk, change);
        let what = String::from("hashes or intervals are not in the manifest's range");
        let damage = [(Severity::Damage, path, Some(footer), what)];
        assert_eq!(found(&disk, QUICK), damage);
        assert_eq!(found(&disk, FULL), damage);
    }
}

/// Changes the tables that the manifest knows.
fn forge_tables(disk: &SimDisk, change: impl Fn(&mut TableDescriptor) -> bool) {
    forge(disk, |edits| {
        edits.retain_mut(|edit| match edit {
            Edit::Table { descriptor, .. } => change(descriptor),
            // Of a table that goes they would be refused, and others are not looked at.
            Edit::HyperParameters { .. } => false,
            _ => true,
        });
    });
}

#[test]
fn rows_of_another_size_than_their_table_are_damage() {
    // The last file has tombstones of a table, and no rows of it.
    let with_tombstones = || {
        let disk = store(options());
        let store = open(&disk, options());
        let other = store.create_table(&small::sgd("other", 4)).unwrap();
        small::set(&store, other, &[1, 2, 3], 1.0, 4);
        store.checkpoint(3, b"").unwrap();
        store.remove(other, &[1, 2]).unwrap();
        store.checkpoint(4, b"").unwrap();
        store.close().unwrap();
        assert_eq!(found(&disk, FULL), []);
        disk
    };
    let all = named(&with_tombstones(), "rows");
    let [first, second, others @ ..] = &all[..] else {
        panic!("{all:?}");
    };
    let cases: [(&str, bool, u32, &[&PathBuf]); 3] = [
        ("t", true, 0, &[first, second]),
        ("other", true, 1, &[&others[0]]),
        ("other", false, 1, &[&others[0], &others[1]]),
    ];
    for (name, kept, table, files) in cases {
        let disk = with_tombstones();
        forge_tables(&disk, |descriptor| {
            let this = descriptor.name == name;
            descriptor.dim += if this { 8 } else { 0 };
            kept || !this
        });
        let what = format!("a run of table {table} with rows of another size");
        for scope in [QUICK, FULL] {
            let findings = found(&disk, scope);
            let paths: Vec<&PathBuf> = findings.iter().map(|(_, path, ..)| path).collect();
            assert_eq!(paths, files, "{name}");
            for (severity, path, offset, said) in &findings {
                assert_eq!((*severity, said), (Severity::Damage, &what));
                let footer = disk.read_file(path).unwrap().len() as u64 - 4096;
                assert_eq!(*offset, Some(footer));
            }
        }
    }
}

/// What an index snapshot says.
struct Snapshot {
    checkpoint: CheckpointId,
    directory: u32,
    covered: Vec<FileNumber>,
    entries: Vec<SnapshotEntry>,
}

/// Changes what the index snapshot says, under right checksums up to CURRENT; where it is.
fn forge_snapshot(disk: &SimDisk, change: impl FnOnce(&mut Snapshot)) -> PathBuf {
    let path = only(disk, "snapshot");
    let number = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let number = FileNumber(number);
    let identity = FileIdentity::new(committed(disk).0, number);
    let bytes = disk.read_file(&path).unwrap();
    let mut blocks = bytes.chunks_exact(4096);
    let header = blocks.next().unwrap();
    let (checkpoint, mut tally) = decode_snapshot_header(header, &identity).unwrap();
    let (mut covered, mut entries) = (Vec::new(), Vec::new());
    let block = blocks.next().unwrap();
    decode_covered_block(block, &identity, &mut tally, &mut covered).unwrap();
    let block = blocks.next().unwrap();
    let table = decode_entry_block(block, &identity, &mut tally, &mut entries).unwrap();
    assert!(
        blocks.count() == 1 && tally.covered_left() == 0,
        "one block of each"
    );
    let mut snapshot = Snapshot {
        checkpoint,
        directory: tally.directory().unwrap(),
        covered,
        entries,
    };
    change(&mut snapshot);
    assert!(snapshot.entries.len() < ENTRIES_PER_BLOCK);
    let count = u32::try_from(snapshot.covered.len()).unwrap();
    let (checkpoint, directory) = (snapshot.checkpoint, snapshot.directory);
    let (header, mut tally) = encode_part_header(&identity, checkpoint, directory, count);
    let mut out = header.to_vec();
    let mut block = [0; 4096];
    encode_covered_block(&mut block, &snapshot.covered, &identity, &mut tally);
    out.extend(block);
    snapshot.entries.sort_by_key(|entry| mix64(entry.key));
    encode_entry_block(&mut block, table, &snapshot.entries, &identity, &mut tally);
    out.extend(block);
    let (footer, checksum) = encode_snapshot_footer(&identity, &tally);
    out.extend(footer);
    disk.write_file(&path, &out).unwrap();
    let bytes = out.len() as u64;
    forge(disk, |edits| {
        edits.retain(|edit| !matches!(edit, Edit::Snapshot { .. }));
        edits.push(Edit::Snapshot {
            directory: 0,
            number,
            bytes,
            checksum,
        });
    });
    path
}

/// The last look found this about the index snapshot, and nothing else; a quick one finds nothing.
fn check_snapshot(disk: &SimDisk, path: PathBuf, what: String) {
    assert_eq!(found(disk, FULL), [(Severity::Cache, path, Some(0), what)]);
    assert_eq!(found(disk, QUICK), []);
    assert_eq!(look(disk, FULL).unwrap().tables[0].rows, 60);
}

#[test]
fn an_index_snapshot_that_puts_a_key_elsewhere_than_its_newest_copy_is_damaged() {
    let changes: [fn(&mut SnapshotEntry, &[FileNumber]); 3] = [
        |entry, _| entry.entry += 1,
        |entry, _| entry.tombstone = true,
        |entry, _| entry.ordinal ^= 1,
    ];
    for change in changes {
        for place in [0, 30, 59] {
            let disk = store(with_snapshots());
            let mut key = 0;
            let path = forge_snapshot(&disk, |snapshot| {
                let entry = &mut snapshot.entries[place];
                key = entry.key;
                change(entry, &snapshot.covered);
            });
            check_snapshot(
                &disk,
                path,
                format!("key {key:#x} is not where its newest copy is"),
            );
        }
    }
}

#[test]
fn an_index_snapshot_without_a_key_of_its_files_is_damaged() {
    for place in [0, 30, 59] {
        let disk = store(with_snapshots());
        let mut key = 0;
        let path = forge_snapshot(&disk, |snapshot| key = snapshot.entries.remove(place).key);
        check_snapshot(
            &disk,
            path,
            format!("key {key:#x} is not where its newest copy is"),
        );
    }
}

#[test]
fn an_index_snapshot_with_a_key_that_its_files_do_not_have_is_damaged() {
    // Before all others but key 0, among them, and after them, in the order of mix64.
    for key in [1, u64::MAX / 2, u64::MAX].map(unmix64) {
        let disk = store(with_snapshots());
        let path = forge_snapshot(&disk, |snapshot| {
            snapshot.entries.push(SnapshotEntry {
                key,
                ordinal: 1,
                tombstone: false,
                entry: 3,
                class: 0,
            });
        });
        check_snapshot(
            &disk,
            path,
            format!("key {key:#x} is in no file of the version"),
        );
    }
}

/// It is ignored by whoever opens an earlier version: only its own blocks are verified.
#[test]
fn an_index_snapshot_of_a_later_checkpoint_than_the_one_looked_at_is_not_compared() {
    let wrong = |snapshot: &mut Snapshot| {
        snapshot.entries[30].entry += 1;
        snapshot.entries.remove(40);
    };
    let disk = store(with_snapshots());
    let path = forge_snapshot(&disk, wrong);
    for (checkpoint, findings) in [(Some(1), 0), (Some(2), 1), (None, 1)] {
        let checkpoint = checkpoint.map(CheckpointId);
        let scope = FULL.checkpoint(checkpoint);
        assert_eq!(found(&disk, scope).len(), findings, "{checkpoint:?}");
    }
    // Verified it is all the same.
    disk.corrupt(&path, 2 * 4096 + 100, 1).unwrap();
    let checkpoint = Some(CheckpointId(1));
    let damage = found(&disk, FULL.checkpoint(checkpoint));
    assert!(damage.len() == 1 && damage[0].1 == path, "{damage:?}");
    let disk = store(with_snapshots());
    forge_snapshot(&disk, |snapshot| {
        wrong(snapshot);
        snapshot.checkpoint = CheckpointId(3);
    });
    assert_eq!(found(&disk, FULL), []);
}

/// An open gave each file the number of keys that point to it, and met more than it has entries: it
/// panicked, in release builds too, and so did every later one. The part is as good as a damaged one.
#[test]
fn an_open_gives_up_an_index_snapshot_with_more_keys_than_its_files_have_entries() {
    // All entries of the second file are live, and 20 of the 40 of the first.
    let cases: [(u32, u64, bool); 4] =
        [(1, 1, true), (1, 900, true), (0, 20, false), (0, 21, true)];
    for (ordinal, more, is_given_up) in cases {
        let disk = store(with_snapshots());
        let path = forge_snapshot(&disk, |snapshot| {
            // Keys that no file has, at entries of others; fewer where the block is full.
            let most = (ENTRIES_PER_BLOCK - 1 - snapshot.entries.len()) as u64;
            let entries = (0..40).cycle().zip(1000..1000 + more.min(most));
            snapshot
                .entries
                .extend(entries.map(|(entry, key)| SnapshotEntry {
                    key,
                    ordinal,
                    tombstone: false,
                    entry,
                    class: 0,
                }));
        });
        for read_only in [true, false] {
            let told = Spans::default();
            let store = tracing::subscriber::with_default(told.clone(), || {
                let (io, root) = (Io::of(disk.clone()), Path::new(ROOT));
                match read_only {
                    true => Store::open_read_only_on(io, root, None, with_snapshots()),
                    false => Store::open_on(io, root, with_snapshots()),
                }
            });
            let store = store.unwrap();
            let events = told.seen().into_iter().filter(|seen| seen.is_event);
            let given_up: Vec<Seen> = events
                .filter(|e| {
                    e.name
                        .starts_with("a part of the index snapshot is of no use")
                })
                .collect();
            assert_eq!(given_up.len(), usize::from(is_given_up), "{given_up:?}");
            if !is_given_up {
                continue;
            }
            let error = &given_up[0].values["error"];
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(
                error.contains(name) && error.contains("has 40 entries"),
                "{error}"
            );
            assert_eq!(store.stats().index_keys, 60);
            let keys: Vec<u64> = (0..60).collect();
            let rows = small::values(&store, store.table("t").unwrap(), &keys, DIM);
            assert!(rows.iter().all(|x| *x == 1.0));
        }
        // The next one is made from key blocks, and not from what was given up.
        if is_given_up {
            write(&disk, with_snapshots(), &[(50..70, 5)]);
            assert_eq!(found(&disk, FULL), []);
        }
    }
}

/// A file that an index snapshot does not list was written after it.
#[test]
fn keys_of_files_that_an_index_snapshot_does_not_list_are_not_compared() {
    let disk = store(with_snapshots());
    forge_snapshot(&disk, |snapshot| {
        snapshot.covered.pop();
        snapshot.entries.retain(|entry| entry.ordinal == 0);
    });
    assert_eq!(found(&disk, FULL), []);
    // A file that has left the version says nothing of where its keys are.
    let disk = store(with_snapshots());
    forge_snapshot(&disk, |snapshot| {
        snapshot.covered.last_mut().unwrap().0 += 900;
        for entry in &mut snapshot.entries {
            entry.entry += entry.ordinal;
        }
        snapshot.entries.push(SnapshotEntry {
            key: 777,
            ordinal: 1,
            tombstone: false,
            entry: 3,
            class: 0,
        });
    });
    assert_eq!(found(&disk, FULL), []);
}

/// How often a row was used is nothing that a place could contradict.
#[test]
fn classes_of_entries_are_no_part_of_where_they_are() {
    let disk = store(with_snapshots());
    forge_snapshot(&disk, |snapshot| {
        for (entry, i) in snapshot.entries.iter_mut().zip(0..) {
            entry.class = i % 16;
        }
    });
    assert_eq!(found(&disk, FULL), []);
}

#[test]
fn a_part_of_another_data_directory_is_damaged() {
    let disk = store(with_snapshots());
    let path = forge_snapshot(&disk, |snapshot| snapshot.directory = 1);
    let what = String::from("it is of another data directory");
    for scope in [QUICK, FULL] {
        let damage = (Severity::Cache, path.clone(), Some(0), what.clone());
        assert_eq!(found(&disk, scope), [damage]);
    }
}

#[test]
fn a_manifest_with_a_part_of_a_directory_or_a_number_that_can_not_be_is_damaged() {
    for (directory, number) in [(1, 5), (0, u64::MAX / 8)] {
        let disk = store(with_snapshots());
        forge(&disk, |edits| {
            edits.push(Edit::Snapshot {
                directory,
                number: FileNumber(number),
                bytes: 12_288,
                checksum: 0,
            });
        });
        let findings = found(&disk, QUICK);
        let worst = findings.iter().map(|f| f.0).max();
        assert_eq!(worst, Some(Severity::Damage), "{findings:?}");
        let opened = Store::open_on(Io::of(disk), Path::new("/store"), options());
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "{opened:?}");
    }
}

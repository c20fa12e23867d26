//! What does a store do when a number on disk is any number, under a right checksum?
//!
//! - The numbers are those of docs/FORMAT.md: each field of each structure, where it is in a small
//!   store that has them all. A structure that is not found there fails the test.
//! - Each gets the values where arithmetic goes wrong; then all checksums and digests are made
//!   right, up to CURRENT. Open, read, write and inspect must end with an error or a result: no
//!   panic, no hang.
//! - It is done in a process that may not have more than 64 MiB and twice the files' length beyond
//!   what it needs for the whole store: an allocation by a claimed size would end it.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/child.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod child;
#[path = "common/document.rs"]
mod document;
#[path = "../fuzz/src/forge.rs"]
mod forge;
#[path = "common/forging.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forging;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "../fuzz/src/tiny.rs"]
#[expect(dead_code, clippy::expect_used, reason = "other tests use the rest")]
mod tiny;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use child::{Child, role_of_this_process, say};
use forge::Files;
use forging::{STORE, fix, identity, put_u64, u32_at, u64_at};
use hps::format::current::Current;
use hps::format::manifest::{Edit, ManifestReader, encode_manifest};
use hps::inspect::{Scope, inspect_on};
use hps::io::Io;
use hps::*;
use nix::sys::resource::{Resource, setrlimit};
use small::{set, sgd, values};
use tiny::{KEYS, ROOT, Rows, Tiny, key, options};

const MIB: u64 = 1 << 20;
/// Processes that share the cases.
const SHARDS: usize = 2;
/// Structures that no store of the newest version has, or none yet; deltas have a test in tests/delta_histories.rs.
const NOT_THERE: [&str; 6] = [
    "CheckpointEditV1",
    "DeltaBlock",
    "FooterHeadV1",
    "ImageEdit",
    "ImageHeader",
    "SectionEntry",
];
/// Readers wait for a writer to finish what looks damaged, some for 2 s: they try only so often.
const READER_EVERY: usize = 40;

/// The store, with an edit of every kind in its manifest: a file is removed and dropped again.
fn all_edits(tiny: &Tiny) -> Files {
    let mut files = tiny.files.clone();
    let current_path = Path::new(ROOT).join("CURRENT");
    let current = Current::decode(&files[&current_path], &STORE).unwrap();
    let id = identity(current.manifest_number.0);
    let path = Path::new(ROOT).join(format!("{:012}.manifest", current.manifest_number));
    let committed = usize::try_from(current.manifest_bytes).unwrap();
    let reader = ManifestReader::new(&files[&path][..committed], &id).unwrap();
    let mut edits: Vec<Edit> = reader.map(|edit| edit.unwrap()).collect();
    let place = edits.len() - 1;
    let removed = Edit::RemoveFile {
        number: FileNumber(2),
        removed: CheckpointId(3),
    };
    edits.insert(place, removed);
    let cursor = Edit::Cursor {
        name: String::from("a reader"),
        checkpoint: CheckpointId(1),
        interval: 0,
    };
    edits.insert(place, cursor);
    // A table that a checkpoint never had, and a new name for one that it has.
    let descriptor = TableDescriptor::new("brief", 2);
    let tables = [
        Edit::Table { id: 2, descriptor },
        Edit::DropTable {
            table: 2,
            dropped: current.checkpoint_id,
        },
        Edit::RenameTable {
            table: 1,
            renamed: current.checkpoint_id,
            name: String::from("wider"),
        },
    ];
    edits.splice(place..place, tables);
    edits.push(Edit::DropFile {
        number: FileNumber(2),
    });
    let (out, digest) = encode_manifest(current.version, &edits, &id);
    let current = Current {
        manifest_bytes: out.len() as u64,
        manifest_digest: digest,
        ..current
    };
    files.insert(path, out);
    files.insert(current_path, current.encode(&STORE).to_vec());
    files
}

/// Where a structure is.
type Place = (PathBuf, usize);

/// Where the structures of a store are, by name.
fn places(files: &Files) -> BTreeMap<&'static str, Vec<Place>> {
    let mut found: BTreeMap<&str, Vec<Place>> = BTreeMap::new();
    for (path, bytes) in files {
        let mut add = |name, at| found.entry(name).or_default().push((path.clone(), at));
        let name = path.file_name().unwrap().to_str().unwrap();
        if name != "LOCK" {
            add("Prefix", 0);
        }
        match name.rsplit('.').next().unwrap() {
            "STORE" => add("StoreHead", 0),
            "PART" => add("PartHead", 0),
            "CURRENT" => add("CurrentBlock", 0),
            "meta" => add("MetaHeader", 0),
            "manifest" => {
                add("FileHeader", 0);
                let mut at = 64;
                while at < bytes.len() {
                    let edits = [
                        "TimelineEdit",
                        "TableEdit",
                        "FileEdit",
                        "RemoveEdit",
                        "NumberEdit",
                        "ImageEdit",
                        "CheckpointEditV1",
                        "NumberEdit",
                        "CheckpointEdit",
                        "HyperEdit",
                        "DropTableEdit",
                        "RenameTableEdit",
                        "CursorEdit",
                        "SnapshotEdit",
                    ];
                    add("EditHead", at);
                    add(edits[u32_at(bytes, at + 12) as usize - 1], at + 16);
                    at += (16 + u32_at(bytes, at + 8) as usize).next_multiple_of(8);
                }
            }
            "snapshot" => {
                add("SnapshotHeader", 0);
                add("CoveredBlock", 4096);
                for at in (8192..bytes.len() - 4096).step_by(4096) {
                    add("EntryBlock", at);
                    let last = u32_at(bytes, at + 8) as usize - 1;
                    add("EntryPlace", at + 16);
                    add("EntryPlace", at + 16 + 16 * last);
                }
                add("SnapshotFooterBlock", bytes.len() - 4096);
            }
            "rows" => {
                add("FileHeader", 0);
                let footer = bytes.len() - 4096;
                add("FooterHead", footer);
                let runs = u32_at(bytes, footer + 20) as usize;
                for run in 0..runs {
                    add("RunEntry", footer + 88 + 40 * run);
                }
                for section in 0..u32_at(bytes, footer + 80) as usize {
                    add("SectionEntry", footer + 88 + 40 * runs + 32 * section);
                }
                let keys = usize::try_from(u64_at(bytes, footer + 48)).unwrap();
                (keys..footer)
                    .step_by(4096)
                    .for_each(|at| add("KeyBlock", at));
                add("RecordHead", 4096);
            }
            _ => {}
        }
    }
    found
}

/// Values of a number of this width where arithmetic goes wrong.
fn wild_values(old: u64, width: usize) -> BTreeSet<u64> {
    let max = if width == 4 {
        u64::from(u32::MAX)
    } else {
        u64::MAX
    };
    let mut all = vec![
        0,
        1,
        max - 1,
        max,
        1 << 31,
        (1 << 31) - 1,
        1 << 32,
        (1 << 32) - 1,
    ];
    all.extend([1 << 63, (1 << 63) - 1, 1 << 40, 1 << 56]);
    for step in [1, 7, 8, 4096] {
        all.extend([old.wrapping_add(step), old.wrapping_sub(step)]);
    }
    all.into_iter()
        .map(|v| v & max)
        .filter(|v| *v != old)
        .collect()
}

/// One number changed.
struct Case {
    what: String,
    path: PathBuf,
    at: usize,
    width: usize,
    value: u64,
}

fn number_at(bytes: &[u8], at: usize, width: usize) -> u64 {
    match width {
        4 => u64::from(u32_at(bytes, at)),
        _ => u64_at(bytes, at),
    }
}

fn cases(files: &Files) -> Vec<Case> {
    let mut structures = document::structures();
    structures.retain(|s| !NOT_THERE.contains(&s.name.as_str()));
    let places = places(files);
    let names: BTreeSet<&str> = structures.iter().map(|s| s.name.as_str()).collect();
    let found: BTreeSet<&str> = places.keys().copied().collect();
    assert_eq!(
        names, found,
        "every structure of the document is in the store"
    );
    let mut out = Vec::new();
    for structure in &structures {
        let all = &places[structure.name.as_str()];
        // Prefixes of each kind of file; of the rest the first and the last.
        let some: Vec<&Place> = match structure.name.as_str() {
            "Prefix" => {
                let kind = |place: &&Place| place.0.extension().map(|e| e.to_owned());
                let named = all.iter().filter(|place| kind(place).is_none());
                let numbered = all.iter().filter(|place| kind(place).is_some());
                let one_each: BTreeMap<_, _> = numbered.map(|p| (kind(&p), p)).collect();
                named.chain(one_each.into_values()).collect()
            }
            _ => BTreeSet::from([&all[0], &all[all.len() - 1]])
                .into_iter()
                .collect(),
        };
        for (path, start) in some {
            for (field, offset, width) in document::numbers(structure, &structures) {
                let at = start + offset;
                for value in wild_values(number_at(&files[path], at, width), width) {
                    let name = path.file_name().unwrap().to_str().unwrap();
                    out.push(Case {
                        what: format!(
                            "{}.{field} = {value:#x} at {start} of {name}",
                            structure.name
                        ),
                        path: path.clone(),
                        at,
                        width,
                        value,
                    });
                }
            }
        }
    }
    out
}

/// Opens, reads, writes and inspects; whether a writer could open.
fn use_all(files: &Files, reader_too: bool) -> bool {
    let root = Path::new(ROOT);
    let mut opened = false;
    if let Ok(store) = Store::open_on(Arc::new(Tiny::disk(files)), root, options()) {
        opened = true;
        read(&store);
        drop(tiny::push(&store, &mut Rows::new(), 0, &[key(20)], 99));
        drop(store.compact_fully());
        drop(store.checkpoint(1 << 40, b"went on"));
    }
    if reader_too {
        let disk = Arc::new(Tiny::disk(files));
        if let Ok(store) = Store::open_read_only_on(disk, root, None, options()) {
            read(&store);
        }
    }
    for full in [false, true] {
        let disk = Io::of(Tiny::disk(files));
        let scope = Scope::new().full(full);
        let go_on = &mut |_, _| ControlFlow::Continue(());
        drop(inspect_on(&disk, root, scope, go_on));
    }
    opened
}

fn read(store: &Store) {
    for info in store.checkpoints() {
        drop(store.checkpoint_meta(info.id));
        if let Ok(mut rows) = store.rows(info.id) {
            while let Ok(Some(_)) = rows.next_row() {}
        }
    }
    for (table, descriptor) in store.tables().into_iter().take(4) {
        let keys: Vec<u64> = (0..KEYS).map(key).collect();
        drop(store.contains(table, &keys));
        drop(store.pull(table, &keys, &mut vec![0.0; keys.len() * descriptor.dim]));
    }
}

/// Address space of this process, in bytes.
fn address_space() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm
        .split(' ')
        .next()
        .and_then(|n| n.parse::<u64>().ok())
        .unwrap()
        * 4096
}

/// A share of the cases, each announced before it is done.
#[test]
fn role() {
    let Some((shard, _)) = role_of_this_process() else {
        return;
    };
    let shard: usize = shard.parse().unwrap();
    let tiny = Tiny::new().unwrap();
    let files = all_edits(&tiny);
    assert!(
        use_all(&tiny.files, true) && use_all(&files, true),
        "they open unchanged"
    );
    let length: u64 = files.values().map(|bytes| bytes.len() as u64).sum();
    let limit = address_space() + 64 * MIB + 2 * length;
    setrlimit(Resource::RLIMIT_AS, limit, limit).unwrap();
    let (mut opened, mut panics) = (0, 0);
    let all = cases(&files);
    // What needs no edit that a real manifest rarely has is done to the store that opens.
    let rare = |what: &str| what.starts_with("RemoveEdit") || what.starts_with("NumberEdit");
    for (i, case) in all.iter().enumerate().skip(shard).step_by(SHARDS) {
        let manifest = case.path.extension().is_some_and(|e| e == "manifest");
        let base = if manifest || rare(&case.what) {
            &files
        } else {
            &tiny.files
        };
        let mut changed = base.clone();
        let bytes = changed.get_mut(&case.path).unwrap();
        let value = &case.value.to_le_bytes()[..case.width];
        bytes[case.at..case.at + case.width].copy_from_slice(value);
        forge::store(&mut changed, Path::new(ROOT));
        if changed == *base {
            // A checksum: it was made right again.
            continue;
        }
        let reader_too = i.is_multiple_of(READER_EVERY);
        say(&format!("case {}", case.what));
        match catch_unwind(AssertUnwindSafe(|| use_all(&changed, reader_too))) {
            Ok(open) => opened += usize::from(open),
            Err(_) => {
                say(&format!("panic {}", case.what));
                panics += 1;
            }
        }
    }
    say(&format!("done {opened} opened {panics} panics"));
}

#[test]
fn any_number_in_any_field_is_an_error_or_a_result() {
    let here = Path::new(".");
    let shards: Vec<Child> = (0..SHARDS)
        .map(|n| Child::start(&n.to_string(), here))
        .collect();
    let (mut count, mut opened, mut bad) = (0, 0, Vec::new());
    for mut shard in shards {
        let mut last = String::from("nothing");
        while let Some(line) = shard.listen() {
            match line.split_once(' ').unwrap() {
                ("panic", what) => bad.push(what.to_owned()),
                ("done", counts) => {
                    opened += counts.split(' ').next().unwrap().parse::<usize>().unwrap();
                }
                _ => count += 1,
            }
            last = line;
        }
        let status = shard.end();
        assert!(last.starts_with("done"), "it ended ({status}) in {last}");
        assert!(status.success());
    }
    println!("{count} numbers, {opened} stores opened");
    assert!(bad.is_empty(), "{} panics: {bad:#?}", bad.len());
    assert!(
        count > 2000 && opened > 100,
        "{count} numbers, {opened} stores opened"
    );
}

/// The child's limit is one: what asks for more gets nothing.
#[test]
fn a_field_of_every_kind_has_values_where_arithmetic_goes_wrong() {
    let tiny = Tiny::new().unwrap();
    let all = cases(&all_edits(&tiny));
    for field in [
        "FooterHead.entries",
        "RunEntry.stride",
        "FileEdit.bytes",
        "TableEdit.dim",
    ] {
        for value in ["0x0", "0xffffffff", "0x80000000"] {
            let start = format!("{field}+0 = {value} ");
            assert!(all.iter().any(|c| c.what.starts_with(&start)), "{start}");
        }
    }
    let intervals = |c: &&Case| c.what.starts_with("KeyBlock.intervals") && c.width == 4;
    assert!(all.iter().filter(intervals).count() > 10);
}

#[test]
fn the_first_and_the_last_key_are_keys_like_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::create(directory.path(), CreateOptions::new(), small::options()).unwrap();
    let table = store.create_table(&sgd("t", 4)).unwrap();
    let last = unmix64(u64::MAX);
    let ends = [0, u64::MAX, 1, u64::MAX - 1, 1 << 63, last];
    let check = |store: &Store, gone: &[u64]| {
        for (value, key) in (1u8..).map(f32::from).zip(ends) {
            let there = !gone.contains(&key);
            assert_eq!(store.contains(table, &[key]).unwrap(), [there], "{key:#x}");
            let expected = if there { value } else { 0.0 };
            assert_eq!(values(store, table, &[key], 4), [expected; 4], "{key:#x}");
        }
    };
    for (value, key) in (1u8..).map(f32::from).zip(ends) {
        set(&store, table, &[key], value, 4);
    }
    check(&store, &[]);
    let info = store.checkpoint(1, &[]).unwrap();
    let mut rows = store.rows(info.id).unwrap();
    let mut found = BTreeSet::new();
    while let Some(row) = rows.next_row().unwrap() {
        found.insert(row.key);
    }
    drop(rows);
    assert_eq!(found, BTreeSet::from(ends));
    store.close().unwrap();
    let store = Store::open(directory.path(), small::options()).unwrap();
    check(&store, &[]);
    let gone = [0, u64::MAX];
    assert_eq!(store.remove(table, &gone).unwrap(), 2);
    check(&store, &gone);
    store.checkpoint(2, &[]).unwrap();
    store.compact_fully().unwrap();
    store.checkpoint(3, &[]).unwrap();
    store.close().unwrap();
    let store = Store::open(directory.path(), small::options()).unwrap();
    check(&store, &gone);
    store.close().unwrap();
}

//! Does this build read and go on with the stores of every format version?
//!
//! - `tests/data/golden-store-v<version>` is a whole store of that version, and `rows.txt` in it
//!   says what it holds. They stay for good; a new version of the format adds one:
//!   `cargo test --test golden -- --ignored` writes it, and never over one that is there.
//! - Damaged copies give the error that names the damage, a later version gives `Unsupported`.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "../fuzz/src/forge.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forge;
#[path = "common/forging.rs"]
mod forging;
#[path = "../fuzz/src/tiny.rs"]
#[expect(dead_code, clippy::expect_used, reason = "other tests use the rest")]
mod tiny;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use forging::{STORE, fix, identity, put_u64, reseal, u32_at, u64_at};
use hps::format::{FORMAT_VERSION, digest128};
use hps::inspect::{Scope, Severity, inspect};
use hps::io::Io;
use hps::*;
use tiny::{ROOT, Tiny, options};

/// What a checkpoint holds: rows by (table, key) as bits, and its meta.
type Content = (BTreeMap<(u32, u64), Vec<u32>>, Vec<u8>);

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn golden(version: u32) -> PathBuf {
    data().join(format!("golden-store-v{version}"))
}

fn hex<T: std::fmt::LowerHex>(values: &[T]) -> String {
    let mut out = String::new();
    values.iter().for_each(|v| write!(out, " {v:x}").unwrap());
    out
}

/// The text of a store's content; its digest is the last line.
fn text(checkpoints: &BTreeMap<u64, Content>) -> String {
    let mut out = String::new();
    for (id, (rows, meta)) in checkpoints {
        writeln!(out, "checkpoint {id} meta{}", hex(meta)).unwrap();
        for ((table, key), row) in rows {
            writeln!(out, "row {table} {key:x}{}", hex(row)).unwrap();
        }
    }
    let digest = digest128(out.as_bytes());
    writeln!(out, "digest {digest:032x}").unwrap();
    out
}

/// Reads all retained checkpoints.
fn content(store: &Store) -> Result<BTreeMap<u64, Content>> {
    let mut found = BTreeMap::new();
    for info in store.checkpoints() {
        let mut rows = BTreeMap::new();
        let mut iter = store.rows(info.id)?;
        while let Some(row) = iter.next_row()? {
            let bits = row.values.iter().map(|v| v.to_bits()).collect();
            assert!(rows.insert((row.table.0, row.key), bits).is_none());
        }
        found.insert(info.id, (rows, store.checkpoint_meta(info.id)?));
    }
    Ok(found)
}

/// A copy of a golden store that may be written.
fn copy(version: u32) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for part in ["", "part-0"] {
        let target = directory.path().join(part);
        if !part.is_empty() {
            fs::create_dir(&target).unwrap();
        }
        for entry in fs::read_dir(golden(version).join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && !path.ends_with("rows.txt") {
                let bytes = fs::read(&path).unwrap();
                fs::write(target.join(path.file_name().unwrap()), bytes).unwrap();
            }
        }
    }
    directory
}

fn expected(version: u32) -> String {
    fs::read_to_string(golden(version).join("rows.txt")).unwrap()
}

fn look(directory: &Path) -> Result<Option<Severity>> {
    let disk = Io::pread();
    let scope = Scope {
        full: true,
        ..Scope::default()
    };
    let go_on = &mut |_, _| ControlFlow::Continue(());
    Ok(inspect(&disk, directory, scope, go_on)?.worst())
}

#[test]
fn a_golden_store_of_each_version_is_read_to_the_bit() {
    for version in 1..=FORMAT_VERSION {
        let directory = copy(version);
        assert_eq!(look(directory.path()).unwrap(), None, "version {version}");
        for read_only in [true, false] {
            let store = match read_only {
                true => Store::open_read_only(directory.path(), None, options()),
                false => Store::open(directory.path(), options()),
            };
            let store = store.unwrap();
            assert_eq!(text(&content(&store).unwrap()), expected(version));
            assert!(!store.tables().is_empty());
            store.close().unwrap();
        }
    }
}

#[test]
fn a_golden_store_of_each_version_is_written_compacted_and_opened_again() {
    for version in 1..=FORMAT_VERSION {
        let directory = copy(version);
        let store = Store::open(directory.path(), options()).unwrap();
        let mut last = content(&store).unwrap().pop_last().unwrap().1.0;
        for round in 0..3u8 {
            let keys = [u64::from(round), 1 << 40, u64::MAX - 7];
            tiny::push(&store, &mut last, 0, &keys, 100 + round).unwrap();
            tiny::push(&store, &mut last, 1, &keys[1..], 110 + round).unwrap();
            let known = last.keys().find(|(table, _)| *table == 1).copied().unwrap();
            assert_eq!(store.remove(TableId(1), &[known.1]).unwrap(), 1);
            last.remove(&known);
            store.flush().unwrap();
            store.compact().unwrap();
            store.checkpoint(1000 + u64::from(round), &[round]).unwrap();
        }
        store.close().unwrap();
        assert_eq!(look(directory.path()).unwrap(), None, "version {version}");
        let store = Store::open(directory.path(), options()).unwrap();
        let (_, (rows, meta)) = content(&store).unwrap().pop_last().unwrap();
        assert_eq!((rows, meta), (last, vec![2]), "version {version}");
        store.close().unwrap();
    }
}

/// Files of a store, one of each kind, with their paths from its directory.
fn one_of_each(directory: &Path) -> Vec<PathBuf> {
    let mut by_kind = BTreeMap::new();
    for part in ["", "part-0"] {
        for entry in fs::read_dir(directory.join(part)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let kind = name.rsplit('.').next().unwrap().to_owned();
            if path.is_file() && kind != "LOCK" {
                // The last of its kind: that of the last checkpoint.
                let before = by_kind.entry(kind).or_insert_with(|| path.clone());
                *before = path.max(before.clone());
            }
        }
    }
    let kinds: Vec<&str> = by_kind.keys().map(String::as_str).collect();
    assert_eq!(
        kinds,
        [
            "CURRENT", "PART", "STORE", "image", "manifest", "meta", "rows"
        ]
    );
    by_kind.into_values().collect()
}

/// Opens a store and reads all of it: `None` when everything is as expected.
fn first_error(directory: &Path, version: u32) -> Option<Error> {
    let store = match Store::open(directory, options()) {
        Ok(store) => store,
        Err(error) => return Some(error),
    };
    match content(&store) {
        Ok(found) => {
            assert_eq!(text(&found), expected(version), "other rows");
            None
        }
        Err(error) => Some(error),
    }
}

type Damage = fn(&mut Vec<u8>);

#[test]
fn damage_to_a_copy_is_named() {
    let damages: [(&str, Damage); 4] = [
        ("cut in half", |bytes| bytes.truncate(bytes.len() / 2)),
        ("cut by a byte", |bytes| bytes.truncate(bytes.len() - 1)),
        ("a bit", |bytes| bytes[50] ^= 4),
        ("zeros", |bytes| bytes.fill(0)),
    ];
    for version in 1..=FORMAT_VERSION {
        let whole = copy(version);
        for path in one_of_each(whole.path()) {
            for (what, damage) in damages {
                let directory = copy(version);
                let path = directory
                    .path()
                    .join(path.strip_prefix(whole.path()).unwrap());
                let mut bytes = fs::read(&path).unwrap();
                damage(&mut bytes);
                fs::write(&path, bytes).unwrap();
                let image = path.extension().is_some_and(|e| e == "image");
                let severity = if image {
                    Severity::Cache
                } else {
                    Severity::Damage
                };
                let found = look(directory.path()).unwrap();
                assert_eq!(found, Some(severity), "{what} of {}", path.display());
                match first_error(directory.path(), version) {
                    None => assert!(image, "{what} of {}: not found", path.display()),
                    Some(Error::Corrupt { path: named, .. }) => assert_eq!(named, path, "{what}"),
                    Some(other) => panic!("{what} of {}: {other}", path.display()),
                }
            }
        }
    }
}

#[test]
fn a_later_version_of_each_file_is_refused_by_its_number() {
    let whole = copy(FORMAT_VERSION);
    for path in one_of_each(whole.path()) {
        for later in [FORMAT_VERSION + 1, 1000, u32::MAX] {
            let directory = copy(FORMAT_VERSION);
            let path = directory
                .path()
                .join(path.strip_prefix(whole.path()).unwrap());
            let mut bytes = fs::read(&path).unwrap();
            bytes[16..20].copy_from_slice(&later.to_le_bytes());
            reseal(
                path.file_name().unwrap().to_str().unwrap(),
                &mut bytes,
                STORE,
            );
            fs::write(&path, bytes).unwrap();
            match first_error(directory.path(), FORMAT_VERSION) {
                // A cache is left where it is and not used.
                None => assert!(path.extension().is_some_and(|e| e == "image")),
                Some(Error::Unsupported {
                    path: named,
                    found,
                    supported,
                }) => {
                    assert_eq!((named, found, supported), (path, later, FORMAT_VERSION));
                }
                Some(other) => panic!("{}: {other}", path.display()),
            }
        }
    }
}

#[test]
#[ignore = "writes the golden store of this format version, once"]
fn write_the_golden_store() {
    let target = golden(FORMAT_VERSION);
    assert!(!target.exists(), "{} is there, and stays", target.display());
    let tiny = Tiny::new().unwrap();
    for (path, bytes) in &tiny.files {
        let path = target.join(path.strip_prefix(ROOT).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    fs::write(target.join("rows.txt"), text(&tiny.checkpoints)).unwrap();
}

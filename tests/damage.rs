//! What does damage on a disk cost, and what is said about it?
//!
//! - A changed byte, a cut, a zeroed or a missing file is `Corrupt` and named, never a value.
//! - A damaged record or meta file costs what it holds and nothing else.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/sample.rs"]
#[expect(
    dead_code,
    reason = "damage is planted in a store without an index snapshot"
)]
mod sample;
#[path = "common/skip.rs"]
mod skip;

use skip::skipped;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use common::{KEYS, Op, ROOT, Run, descriptor, key, same};
use hps::io::sim::SimDisk;
use hps::*;
use sample::sample;

/// Weights of a narrow row: few, since each byte is flipped.
const NARROW_DIM: usize = 64;

fn open(disk: &SimDisk, run: &Run) -> Result<Store> {
    Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), run.options.clone())
}

/// Checks that an error is `Corrupt` and names a file.
fn names(error: &Error, path: &Path, what: &str) {
    match error {
        Error::Corrupt { path: found, .. } => assert_eq!(found, path, "{what}: {error}"),
        other => panic!("{what} of {}: {other}", path.display()),
    }
}

#[test]
fn damage_to_what_opening_reads_is_corrupt_and_names_the_file() {
    let (intact, _) = sample(1);
    let mut kinds = BTreeSet::new();
    for path in intact.paths() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = intact.read_file(&path).unwrap();
        let rows = name.ends_with(".rows");
        if name == "LOCK" || name.ends_with(".meta") || name.ends_with(".copy") {
            continue;
        }
        kinds.insert(name.rsplit('.').next().unwrap().to_owned());
        // Header, key block and footer of row files are read when a store is opened.
        let footer = (bytes.len() as u64).max(8192) - 4096;
        let offsets = match rows {
            true => vec![0, 9, 4095, footer - 4096 + 17, footer, footer + 40],
            false => vec![0, 9, 33, bytes.len() as u64 - 1],
        };
        for offset in offsets {
            let (disk, run) = sample(1);
            disk.corrupt(&path, offset, 0x10).unwrap();
            match open(&disk, &run) {
                Ok(_) => panic!("{name} opens with byte {offset} changed"),
                Err(e) => names(&e, &path, &format!("byte {offset}")),
            }
        }
        let (disk, run) = sample(1);
        disk.write_file(&path, &bytes[..bytes.len() / 2]).unwrap();
        names(&open(&disk, &run).unwrap_err(), &path, "half");
        let (disk, run) = sample(1);
        disk.write_file(&path, &vec![0; bytes.len()]).unwrap();
        names(&open(&disk, &run).unwrap_err(), &path, "zeros");
        let (disk, run) = sample(1);
        disk.remove(&path).unwrap();
        match open(&disk, &run).unwrap_err() {
            Error::InvalidArgument(ArgumentError::NotAStore { .. }) if name == "STORE" => {}
            e => names(&e, &path, "absence"),
        }
    }
    let expected = ["CURRENT", "PART", "STORE", "manifest", "rows"];
    assert!(kinds.iter().map(String::as_str).eq(expected), "{kinds:?}");
}

#[test]
fn a_damaged_meta_file_costs_its_bytes_and_nothing_else() {
    let (intact, _) = sample(1);
    let metas = intact
        .paths()
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "meta"));
    let path = metas.max().unwrap();
    for offset in [0, 20, 120] {
        let (disk, run) = sample(1);
        disk.corrupt(&path, offset, 1).unwrap();
        let store = open(&disk, &run).unwrap();
        let infos = store.checkpoints();
        names(
            &store.checkpoint_meta(infos[1].id).unwrap_err(),
            &path,
            "a byte",
        );
        assert_eq!(store.checkpoint_meta(infos[0].id).unwrap(), [1; 100]);
        store.close().unwrap();
    }
}

#[test]
fn a_damaged_record_costs_its_row_and_no_other() {
    let (intact, _) = sample(1);
    let files = intact
        .paths()
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "rows"));
    let path = files.max().unwrap();
    let stride = 16 + descriptor(0).row_bytes() as u64;
    for offset in [0, 8, 16, stride - 1, stride + 40] {
        let (disk, mut run) = sample(1);
        disk.corrupt(&path, 4096 + offset, 0x80).unwrap();
        run.open().unwrap();
        let (store, dim) = (run.store(), descriptor(0).dim);
        let mut out = vec![0.0; dim];
        let mut lost = Vec::new();
        for round in 0..2 {
            lost.clear();
            for key in (0..KEYS[0]).map(key) {
                match store.pull(TableId(0), &[key], &mut out) {
                    Ok(_) => assert!(same(&out, &run.model.row(0, key)[..dim])),
                    Err(e) => {
                        names(&e, &path, &format!("round {round}, byte {offset}"));
                        lost.push(key);
                    }
                }
            }
            assert_eq!(lost.len(), 1, "byte {offset}: rows lost");
        }
        // A batch with the row fails whole, names the file and pins nothing.
        let batch = [lost[0], key(0), key(12)];
        let error = store
            .pull(TableId(0), &batch, &mut vec![0.0; 3 * dim])
            .unwrap_err();
        names(&error, &path, "a batch");
        assert_eq!(store.stats().pinned_rows, 0);
        // The row can be written anew only as a whole store can be: by removing it first.
        assert_eq!(store.remove(TableId(0), &lost).unwrap(), 1);
        run.model.rows.remove(&(0, lost[0]));
        run.step(&Op::Rows(0, lost, 4.0)).unwrap();
        run.step(&Op::Checkpoint(3, vec![])).unwrap();
        let retained = run.store().checkpoints();
        let mut iter = run.store().rows(retained[1].id).unwrap();
        let mut count = 0;
        while iter.next_row().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, run.model.rows.len(), "rows of the last checkpoint");
    }
}

#[test]
fn a_directory_that_can_not_be_written_is_an_io_error_that_names_it() {
    use std::os::unix::fs::PermissionsExt;
    let temporary = tempfile::tempdir().unwrap();
    let options = RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .io(IoEngine::Pread)
        .threads(1);
    // A name below a file can't be made by anyone, root included.
    let file = temporary.path().join("file");
    std::fs::File::create(&file).unwrap();
    match Store::create(&file.join("store"), CreateOptions::new(), options.clone()) {
        Err(Error::Io { path, .. }) => assert!(path.starts_with(&file)),
        Err(Error::InvalidArgument(ArgumentError::NotAStore { path, .. })) => {
            assert!(path.starts_with(&file));
        }
        other => panic!("{other:?}"),
    }
    let directory = temporary.path().join("read-only");
    std::fs::create_dir(&directory).unwrap();
    let mode = |mode| std::fs::set_permissions(&directory, PermissionsExt::from_mode(mode));
    mode(0o500).unwrap();
    let result = Store::create(&directory.join("store"), CreateOptions::new(), options);
    mode(0o700).unwrap();
    match result {
        Err(Error::Io { path, source, .. }) => {
            assert!(path.starts_with(&directory));
            assert_eq!(source.kind(), ErrorKind::PermissionDenied);
        }
        Ok(_) if is_root() => {
            skipped("root may write to a read-only directory");
        }
        other => panic!("{other:?}"),
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

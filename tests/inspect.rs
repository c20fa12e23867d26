//! Does an inspection find every damage, and nothing in a store that is whole?
//!
//! The same bytes are changed under a writer, whose opening removes orphans: it removes nothing
//! that a checkpoint needs once the byte is right again.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/looks.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod looks;
#[path = "common/sample.rs"]
mod sample;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Op, ROOT};
use hps::inspect::{Report, Scope, Severity, inspect_on};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use looks::{FULL, QUICK, found, only, options, write};
use sample::{Bits, grow, read_rows, rows, sample};

/// Weights of a narrow row: few, since each byte is flipped.
const NARROW_DIM: usize = 64;

fn look(disk: &SimDisk, full: bool) -> Result<Report> {
    let disk = Io::of(disk.clone());
    let scope = Scope::new().full(full);
    inspect_on(&disk, Path::new(ROOT), scope, &mut |_, _| {
        ControlFlow::Continue(())
    })
}

#[test]
fn a_whole_store_has_no_findings_and_its_rows_are_counted() {
    let (disk, _run) = sample(1);
    let before: Vec<_> = disk
        .paths()
        .iter()
        .map(|p| disk.read_file(p).unwrap())
        .collect();
    for full in [false, true] {
        let report = look(&disk, full).unwrap();
        assert_eq!(report.findings.len(), 0, "{:?}", report.findings);
        assert_eq!(report.checkpoints.len(), 2);
        assert!(!report.open_elsewhere && report.store.is_some());
    }
    let report = look(&disk, true).unwrap();
    let table = &report.tables[0];
    assert_eq!((table.rows, table.tombstones), (28, 2));
    let weights = 28 * table.descriptor.dim as u64;
    assert_eq!((table.weights.values, table.weights.nan), (weights, 0));
    assert_eq!(table.weights.norms.iter().sum::<u64>(), 28);
    // Value i of a row is the row's own plus i.
    assert_eq!(table.weights.largest, 2.0 + 63.0);
    let live: u64 = report.files.iter().filter_map(|f| f.live).sum();
    let entries: u64 = report.files.iter().map(|f| f.entries).sum();
    assert!(live == 30 && entries > live, "{live} of {entries}");
    let after: Vec<_> = disk
        .paths()
        .iter()
        .map(|p| disk.read_file(p).unwrap())
        .collect();
    assert_eq!(before, after, "nothing is written");
}

#[test]
fn values_that_no_training_wants_are_counted() {
    let (disk, mut run) = sample(1);
    run.options.non_finite = NonFinite::Apply;
    run.open().unwrap();
    let wild = [f32::NAN, f32::INFINITY, -3e9];
    for (i, value) in (0..).zip(wild) {
        run.step(&rows(i..i + 1, value)).unwrap();
    }
    run.step(&Op::Checkpoint(3, Vec::new())).unwrap();
    run.store = None;
    let weights = &look(&disk, true).unwrap().tables[0].weights.clone();
    let dim = weights.values / 30;
    assert_eq!(
        (weights.nan, weights.infinite, weights.absurd),
        (dim, dim, dim)
    );
    assert_eq!(weights.largest, 3e9);
}

/// What a byte is changed by: a bit and to 0x00 and 0xff with `HPS_FLIPS=all`, each of its bits with
/// `HPS_FLIPS=bits`; or one of the former.
fn masks(offset: usize, byte: u8) -> Vec<u8> {
    let few = [1 << (offset % 8), byte, !byte];
    let mut masks = match std::env::var("HPS_FLIPS").as_deref() {
        Ok("bits") => (0..8).map(|bit| 1 << bit).collect(),
        Ok("all") => few.to_vec(),
        Ok(other) => panic!("HPS_FLIPS={other}: all or bits"),
        Err(_) => vec![few[offset % 3]],
    };
    // To what it is already.
    masks.retain(|mask| *mask != 0);
    masks.dedup();
    masks
}

/// One way to change a byte, another one for each: a bit, to 0x00 or to 0xff.
fn one_mask(offset: usize, byte: u8) -> Option<u8> {
    let mask = [1 << (offset % 8), byte, !byte][offset % 3];
    (mask != 0).then_some(mask)
}

fn is_cache(extension: &OsStr) -> bool {
    extension == "snapshot" || extension == "copy"
}

/// Every byte of every file and of an index snapshot with `HPS_FLIPS`, or each 97th.
#[test]
fn a_changed_byte_anywhere_is_damage_to_its_file_and_never_a_wrong_row() {
    const THREADS: usize = 2;
    let step = std::env::var("HPS_FLIPS").map_or(97, |_| 1);
    let changed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let changed = &changed;
            scope.spawn(move || {
                let (disk, mut run) = sample(1);
                for path in disk.paths() {
                    let done = change_bytes(&disk, &path, thread * step, THREADS * step);
                    changed.fetch_add(done, Ordering::Relaxed);
                }
                grow(&mut run);
                let paths = disk.paths().into_iter();
                let mut snapshots =
                    paths.filter(|p| p.extension().is_some_and(|e| e == "snapshot"));
                let snapshot = snapshots.next().unwrap();
                let done = change_bytes(&disk, &snapshot, thread * step, THREADS * step);
                changed.fetch_add(done, Ordering::Relaxed);
                assert_eq!(look(&disk, true).unwrap().findings.len(), 0);
            });
        }
    });
    let changed = changed.into_inner();
    println!("{changed} bytes changed");
    assert!(changed * step > 70_000, "{changed} bytes");
}

/// Changes some bytes of a file one at a time: each must be found, and no row be read wrong. Gives the
/// number of changes.
fn change_bytes(disk: &SimDisk, path: &Path, first: usize, step: usize) -> usize {
    let bytes = disk.read_file(path).unwrap();
    let severity = match path.extension().is_some_and(is_cache) {
        true => Severity::Cache,
        false => Severity::Damage,
    };
    let read = || read_rows(Arc::new(disk.clone()), Path::new(ROOT), None);
    let (truth, error) = read();
    assert!(error.is_none(), "a whole store is not read: {error:?}");
    let mut changed = 0;
    for offset in (first..bytes.len()).step_by(step) {
        for mask in masks(offset, bytes[offset]) {
            let what = || format!("byte {offset} of {}, mask {mask:#x}", path.display());
            disk.corrupt(path, offset as u64, mask).unwrap();
            let report = look(disk, true);
            let (rows, error) = read();
            disk.corrupt(path, offset as u64, mask).unwrap();
            changed += 1;
            let newer = matches!(report, Err(Error::Unsupported { .. }));
            let found = newer || {
                let findings = report.unwrap().findings;
                findings
                    .iter()
                    .any(|f| f.path == path && f.severity == severity)
            };
            assert!(found, "{} is not found", what());
            match error {
                None => assert!(rows == truth, "{} changes rows", what()),
                Some(Error::Corrupt { .. } | Error::Unsupported { .. }) => {
                    assert!(truth.starts_with(&rows), "{} changes rows", what());
                }
                Some(other) => panic!("{}: {other}", what()),
            }
        }
    }
    changed
}

/// What a store shows: of each checkpoint its id, meta and rows, as far as they can be read.
type Shown = Vec<(CheckpointId, Option<Vec<u8>>, Vec<Bits>)>;

/// Everything that an open store shows, and the errors on the way.
fn shown(store: &Store) -> (Shown, Vec<Error>) {
    let (mut all, mut errors) = (Shown::new(), Vec::new());
    for info in store.checkpoints() {
        let meta = store.checkpoint_meta(info.id);
        let mut rows = Vec::new();
        let mut read = || -> Result<()> {
            let mut iter = store.rows(info.id)?;
            while let Some(row) = iter.next_row()? {
                let bits = row.values.iter().map(|v| v.to_bits()).collect();
                rows.push((row.table, row.key, bits));
            }
            Ok(())
        };
        errors.extend(read().err());
        let meta = meta.map_err(|e| errors.push(e)).ok();
        all.push((info.id, meta, rows));
    }
    (all, errors)
}

/// A closed store with what a crash may leave beside it, and what it shows.
struct Whole {
    disk: SimDisk,
    options: RuntimeOptions,
    truth: Shown,
    /// Files that no checkpoint needs, or that an opening may write anew.
    spare: Vec<PathBuf>,
}

impl Whole {
    fn new(disk: SimDisk, options: RuntimeOptions) -> Whole {
        let store = Store::open_on(Io::of(disk.killed(1)), Path::new(ROOT), options.clone());
        let (truth, errors) = shown(&store.unwrap());
        assert!(errors.is_empty() && truth.len() == 2, "{errors:?}");
        let kept = |p: &PathBuf| p.ends_with("CURRENT") || p.extension().is_some_and(is_cache);
        let mut spare: Vec<PathBuf> = disk.paths().into_iter().filter(kept).collect();
        for orphan in ["a/000000000001.rows", "000000000001.meta", "CURRENT.tmp"] {
            let orphan = Path::new(ROOT).join(orphan);
            disk.write_file(&orphan, b"left over").unwrap();
            spare.push(orphan);
        }
        Whole {
            disk,
            options,
            truth,
            spare,
        }
    }

    fn open(&self, disk: &SimDisk) -> Result<Store> {
        Store::open_on(Io::of(disk.clone()), Path::new(ROOT), self.options.clone())
    }

    /// Changes a byte and opens for writing: the checkpoints with their rows, or an error that names
    /// the file. Then the byte is right again, and everything is there. Whether it was refused.
    fn change(&self, path: &Path, offset: usize, mask: u8) -> bool {
        let what = || format!("byte {offset} of {}, mask {mask:#x}", path.display());
        let disk = self.disk.killed(1);
        disk.corrupt(path, offset as u64, mask).unwrap();
        let before: Vec<_> = disk.paths().into_iter().collect();
        let before: Vec<_> = before.iter().map(|p| (p, disk.read_file(p).ok())).collect();
        let opened = self.open(&disk);
        let refused = opened.is_err();
        match opened {
            Ok(store) => self.is_right(&store, path, &what()),
            Err(error) => self.names(&error, path, &what()),
        }
        for (file, bytes) in before {
            let spare = self.spare.contains(file);
            assert!(
                spare || disk.read_file(file).ok() == bytes,
                "{}: {} is changed",
                what(),
                file.display()
            );
        }
        let damaged = self.disk.read_file(path).unwrap()[offset] ^ mask;
        if disk
            .read_file(path)
            .is_ok_and(|bytes| bytes.get(offset) == Some(&damaged))
        {
            disk.corrupt(path, offset as u64, mask).unwrap();
        }
        let store = self
            .open(&disk)
            .unwrap_or_else(|e| panic!("{}, put right: {e}", what()));
        let (all, errors) = shown(&store);
        assert!(
            errors.is_empty() && all == self.truth,
            "{}, put right: {errors:?}",
            what()
        );
        refused
    }

    /// An opened store shows its checkpoints; what is missing of them was told as damage to the file.
    fn is_right(&self, store: &Store, path: &Path, what: &str) {
        let (all, errors) = shown(store);
        errors
            .iter()
            .for_each(|error| self.names(error, path, what));
        assert_eq!(all.len(), self.truth.len(), "{what}: checkpoints");
        for ((id, meta, rows), (true_id, true_meta, true_rows)) in all.iter().zip(&self.truth) {
            assert_eq!(id, true_id, "{what}");
            assert!(meta.is_none() || meta == true_meta, "{what} changes a meta");
            assert!(true_rows.starts_with(rows), "{what} changes rows");
        }
        assert!(
            !errors.is_empty() || all == self.truth,
            "{what}: less, and no error"
        );
    }

    fn names(&self, error: &Error, file: &Path, what: &str) {
        match error {
            Error::Corrupt { path, .. } | Error::Unsupported { path, .. } => {
                assert_eq!(path, file, "{what}: {error}");
                let text = error.to_string();
                assert!(text.contains(file.to_str().unwrap()), "{what}: {text}");
            }
            other => panic!("{what}: {other}"),
        }
    }
}

/// Every byte of every file and of an index snapshot with `HPS_FLIPS=bits`, each 7th with
/// `HPS_FLIPS=all`, or each 97th, changed in one way.
///
/// Opening for writing removes what no checkpoint names. Did it do so on the word of something that
/// is damaged, a byte would cost a checkpoint.
#[test]
fn a_changed_byte_anywhere_lets_no_writer_remove_what_is_needed() {
    const THREADS: usize = 2;
    let step = match std::env::var("HPS_FLIPS").as_deref() {
        Ok("bits") => 1,
        Ok(_) => 7,
        Err(_) => 97,
    };
    let tried = AtomicUsize::new(0);
    let refused = AtomicUsize::new(0);
    let all = |whole: &Whole, path: &Path, thread: usize| {
        let bytes = whole.disk.read_file(path).unwrap();
        for offset in (thread * step..bytes.len()).step_by(THREADS * step) {
            let Some(mask) = one_mask(offset, bytes[offset]) else {
                continue;
            };
            let no = whole.change(path, offset, mask);
            tried.fetch_add(1, Ordering::Relaxed);
            refused.fetch_add(usize::from(no), Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let all = &all;
            scope.spawn(move || {
                let (disk, mut run) = sample(1);
                let paths = disk.paths();
                let whole = Whole::new(disk.killed(1), run.options.clone());
                paths.iter().for_each(|path| all(&whole, path, thread));
                grow(&mut run);
                let whole = Whole::new(disk, run.options.clone());
                let mut snapshots = whole.spare.iter();
                let snapshot = snapshots.find(|p| p.extension().is_some_and(|e| e == "snapshot"));
                all(&whole, snapshot.unwrap(), thread);
            });
        }
    });
    let (tried, refused) = (tried.into_inner(), refused.into_inner());
    println!("{tried} bytes changed under a writer, {refused} refused");
    assert!(tried * step > 70_000 && refused > 100, "{tried}, {refused}");
}

#[test]
fn missing_cut_longer_and_foreign_files_are_named() {
    let (disk, _run) = sample(1);
    for path in disk.paths() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let whole = disk.read_file(&path).unwrap();
        if name == "LOCK" {
            continue;
        }
        let copy = name.ends_with(".copy");
        let severity = if copy {
            Severity::Cache
        } else {
            Severity::Damage
        };
        let damaged = |what: &str| {
            for full in [false, true] {
                let report = look(&disk, full).unwrap();
                let worst = report.findings.first();
                let found = worst.is_some_and(|f| f.severity == severity && f.path == path);
                assert!(found, "{what} {name}: {:?}", report.findings);
            }
        };
        disk.remove(&path).unwrap();
        if copy {
            // As in stores made before there was one.
            assert_eq!(look(&disk, true).unwrap().findings.len(), 0);
        } else {
            damaged("no");
        }
        disk.write_file(&path, &whole[..whole.len() / 2]).unwrap();
        damaged("half of");
        disk.write_file(&path, &vec![0; whole.len()]).unwrap();
        damaged("zeros for");
        if name != "CURRENT" && !name.ends_with(".manifest") && !copy {
            let mut longer = whole.clone();
            longer.extend([1; 4096]);
            disk.write_file(&path, &longer).unwrap();
            damaged("junk after");
        }
        disk.write_file(&path, &whole).unwrap();
    }
    let foreign = Path::new(ROOT).join("notes.txt");
    disk.write_file(&foreign, b"not the store's").unwrap();
    let stray = Path::new(ROOT).join("a/000000000001.rows");
    disk.write_file(&stray, b"left over").unwrap();
    let report = look(&disk, false).unwrap();
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.worst(), Some(Severity::Leftover));
}

#[test]
fn a_store_that_is_open_is_inspected_as_of_its_checkpoints() {
    let (disk, mut run) = sample(1);
    run.open().unwrap();
    run.step(&rows(0..25, 7.0)).unwrap();
    run.store().flush().unwrap();
    let report = look(&disk, true).unwrap();
    assert!(report.open_elsewhere);
    assert_eq!(report.findings.len(), 0, "{:?}", report.findings);
    assert_eq!(report.tables[0].weights.largest, 2.0 + 63.0);
}

#[test]
fn what_is_no_store_or_no_checkpoint_is_an_error() {
    let disk = SimDisk::new(1);
    assert!(matches!(look(&disk, true), Err(Error::InvalidArgument(_))));
    let (disk, _run) = sample(1);
    let disk = Io::of(disk);
    let scope = Scope::new().full(true).checkpoint(Some(CheckpointId(99)));
    let error = inspect_on(&disk, Path::new(ROOT), scope, &mut |_, _| {
        ControlFlow::Continue(())
    })
    .unwrap_err();
    assert!(error.to_string().contains("99"), "{error}");
}

/// Files are read in pieces of 1 MiB.
#[test]
fn damage_far_inside_a_file_is_found_where_it_is() {
    let disk = SimDisk::new(1);
    write(&disk, options(), &[(0..1400, 0)]);
    let path = &only(&disk, "rows");
    let whole = disk.read_file(path).unwrap();
    assert!(whole.len() > 5 << 19, "{} bytes", whole.len());
    for at in [100u64, 3 << 19, 5 << 19] {
        disk.corrupt(path, at, 1).unwrap();
        let findings = found(&disk, FULL);
        assert_eq!(findings.len(), 1, "byte {at}: {findings:?}");
        let (severity, named, offset) = &findings[0];
        assert!(
            *severity == Severity::Damage && named == path,
            "{findings:?}"
        );
        // The record or block that the byte is in.
        assert!(
            offset.is_some_and(|o| o <= at && at - o < 4096 + 8),
            "byte {at}: {offset:?}"
        );
        disk.write_file(path, &whole).unwrap();
    }
    assert!(found(&disk, FULL).is_empty());
}

/// A quick look reads no meta of more than 1 MiB, but sees that it is there as a whole.
#[test]
fn a_quick_look_sees_that_a_long_meta_ends_early() {
    let disk = SimDisk::new(1);
    write(&disk, options(), &[(0..5, 3 << 20)]);
    let path = &only(&disk, "meta");
    assert!(found(&disk, QUICK).is_empty());
    let whole = disk.read_file(path).unwrap();
    disk.write_file(path, &whole[..whole.len() - 1]).unwrap();
    for scope in [QUICK, FULL] {
        let findings = found(&disk, scope);
        assert!(
            findings.iter().any(|(_, named, _)| named == path),
            "{scope:?}: {findings:?}"
        );
    }
    disk.write_file(path, &whole).unwrap();
    disk.corrupt(path, 2 << 20, 1).unwrap();
    assert!(found(&disk, QUICK).is_empty(), "it is not read");
    assert_eq!(found(&disk, FULL).len(), 1);
}

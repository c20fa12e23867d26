//! Does an inspection find every damage, and nothing in a store that is whole?

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "common/sample.rs"]
mod sample;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Op, ROOT};
use hps::inspect::{Report, Scope, Severity, inspect};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use sample::{grow, read_rows, rows, sample};

fn look(disk: &SimDisk, full: bool) -> Result<Report> {
    let disk = Io::of(disk.clone());
    let scope = Scope {
        full,
        ..Scope::default()
    };
    inspect(&disk, Path::new(ROOT), scope, &mut |_, _| {
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

/// Every byte of every file and of an index image with `HPS_FLIPS`, or each 97th.
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
                let mut images = paths.filter(|p| p.extension().is_some_and(|e| e == "image"));
                let image = images.next_back().unwrap();
                let done = change_bytes(&disk, &image, thread * step, THREADS * step);
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
    let cache = |e: &std::ffi::OsStr| e == "image" || e == "copy";
    let severity = match path.extension().is_some_and(cache) {
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
    let scope = Scope {
        full: true,
        checkpoint: Some(99),
        ..Scope::default()
    };
    let error = inspect(&disk, Path::new(ROOT), scope, &mut |_, _| {
        ControlFlow::Continue(())
    })
    .unwrap_err();
    assert!(error.to_string().contains("99"), "{error}");
}

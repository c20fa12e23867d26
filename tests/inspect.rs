//! Does an inspection find every damage, and nothing in a store that is whole?

#![expect(
    clippy::unwrap_used,
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

use common::{Op, ROOT};
use hps::inspect::{Report, Scope, Severity, inspect};
use hps::io::Disk;
use hps::io::sim::SimDisk;
use hps::*;
use sample::{grow, rows, sample};

fn look(disk: &SimDisk, full: bool) -> Result<Report> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
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

/// Every byte of every file and of an index image, or each 97th unless `HPS_FLIPS=all`.
#[test]
fn a_changed_byte_anywhere_is_damage_to_its_file() {
    let step = match std::env::var("HPS_FLIPS").as_deref() {
        Ok("all") => 1,
        _ => 97,
    };
    let (disk, mut run) = sample(1);
    let mut looked = 0;
    for path in disk.paths() {
        looked += change_bytes(&disk, &path, step, Severity::Damage);
    }
    grow(&mut run);
    let paths = disk.paths().into_iter();
    let mut images = paths.filter(|p| p.extension().is_some_and(|e| e == "image"));
    let image = images.next_back().unwrap();
    // An inspection of the grown store takes longer.
    let step = if step == 1 { 1 } else { 5 * step };
    looked += change_bytes(&disk, &image, step, Severity::Cache);
    println!("{looked} bytes changed");
    assert!(looked > 500, "{looked} bytes");
    assert_eq!(look(&disk, true).unwrap().findings.len(), 0);
}

/// Changes bytes of a file one at a time; each must be found. Gives their number.
fn change_bytes(disk: &SimDisk, path: &Path, step: usize, severity: Severity) -> u64 {
    let bytes = disk.read_file(path).unwrap().len() as u64;
    let mut looked = 0;
    for offset in (0..bytes).step_by(step) {
        let mask = 1 << (offset % 8);
        disk.corrupt(path, offset, mask).unwrap();
        let report = look(disk, true);
        disk.corrupt(path, offset, mask).unwrap();
        looked += 1;
        let newer = matches!(report, Err(Error::Unsupported { .. }));
        let found = newer || {
            let findings = report.unwrap().findings;
            findings
                .iter()
                .any(|f| f.path == path && f.severity == severity)
        };
        assert!(found, "byte {offset} of {}", path.display());
    }
    looked
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
        let damaged = |what: &str| {
            for full in [false, true] {
                let report = look(&disk, full).unwrap();
                let worst = report.findings.first();
                let found = worst.is_some_and(|f| f.severity == Severity::Damage && f.path == path);
                assert!(found, "{what} {name}: {:?}", report.findings);
            }
        };
        disk.remove(&path).unwrap();
        damaged("no");
        disk.write_file(&path, &whole[..whole.len() / 2]).unwrap();
        damaged("half of");
        disk.write_file(&path, &vec![0; whole.len()]).unwrap();
        damaged("zeros for");
        if name != "CURRENT" && !name.ends_with(".manifest") {
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
    let disk: Arc<dyn Disk> = Arc::new(disk);
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

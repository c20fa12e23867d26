//! What happens when a disk is full?
//!
//! - It has its own error, by which nothing is lost, and is no harm once there is room.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::plans::plan;
use common::verify::verify;
use common::{KEYS, Op, Run, descriptor, key, same};
use hps::io::sim::SimDisk;
use hps::repair::{RepairOptions, repair_on};
use hps::*;

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

fn rows(keys: std::ops::Range<u64>, value: f32) -> Op {
    Op::Rows(0, keys.map(key).collect(), value)
}

#[test]
fn a_full_disk_refuses_writes_and_takes_them_once_there_is_room() {
    refuses_and_goes_on(SimDisk::set_capacity);
}

#[test]
fn a_quota_that_is_used_up_is_a_full_disk() {
    refuses_and_goes_on(SimDisk::set_quota);
}

fn refuses_and_goes_on(limit: fn(&SimDisk, u64)) {
    // Room is measured before a file is made; a disk that fills up meanwhile says so at a write.
    let plan = plan(3);
    let mut refused = 0;
    for room in (0..160 << 10).step_by(4 << 10) {
        let disk = SimDisk::new(1);
        let mut run = Run::of(Arc::new(disk.clone()), &plan);
        run.create().unwrap();
        run.step(&rows(0..20, 1.0)).unwrap();
        run.step(&Op::Checkpoint(1, vec![])).unwrap();
        let paths = disk.paths();
        let bytes = paths
            .iter()
            .map(|p| disk.read_file(p).unwrap().len() as u64);
        limit(&disk, bytes.sum::<u64>() + room);
        for op in [
            rows(10..44, 2.0),
            Op::Flush,
            Op::Checkpoint(2, vec![3; 5000]),
        ] {
            let Err(error) = run.step(&op) else { continue };
            assert!(
                matches!(error, Error::NoSpace { .. }),
                "{room} bytes, {op}: {error}"
            );
            refused += 1;
            run.model.doubt = None;
            reads_or_no_space(&run);
            disk.set_capacity(1 << 40);
            run.step(&op)
                .unwrap_or_else(|e| panic!("{room} bytes, {op}, again: {e}"));
            break;
        }
        disk.set_capacity(1 << 40);
        run.step(&Op::Checkpoint(9, vec![])).unwrap();
        run.store = None;
        verify(&disk, &run.model, &run.options, true).unwrap();
    }
    assert!(refused > 10, "only {refused} of 40 disks were full");
}

/// Every row can be read, unless room in memory needs room on the disk.
fn reads_or_no_space(run: &Run) {
    let mut out = vec![0.0; descriptor(0).dim];
    let mut read = 0;
    for key in (0..KEYS[0]).map(key) {
        match run.store().pull(TableId(0), &[key], &mut out) {
            Ok(_) => {
                assert!(same(&out, &run.model.row(0, key)[..out.len()]));
                read += 1;
            }
            Err(Error::NoSpace { .. }) => {}
            Err(e) => panic!("{key:#x}: {e}"),
        }
    }
    assert!(read > 0, "no row can be read");
}

/// A store for which there was no room, or no quota, said `Io`: nobody made room and tried again.
#[test]
fn a_store_that_finds_no_room_to_be_created_says_which_directory_is_full() {
    let options = plan(3).options;
    let create = CreateOptions::new().data_directories(vec!["a".into(), "b".into()]);
    let root = Path::new("/above/store");
    for limit in [SimDisk::set_capacity, SimDisk::set_quota] {
        let (mut refused, mut room) = (BTreeSet::new(), 0);
        loop {
            let disk = SimDisk::new(room);
            disk.create_dir(Path::new("/above")).unwrap();
            limit(&disk, room);
            let made = Store::create_on(Arc::new(disk), root, create.clone(), options.clone());
            let Err(error) = made else {
                break;
            };
            let Error::NoSpace { path, .. } = &error else {
                panic!("{room} bytes: {error}");
            };
            assert!(path.starts_with("/above"), "{error}");
            refused.insert(path.strip_prefix("/above").unwrap().to_owned());
            room += 16;
        }
        let expected = ["", "store", "store/a", "store/b"];
        assert!(
            refused.iter().eq(expected.iter().map(Path::new)),
            "{refused:?}"
        );
    }
}

/// As above, of an export and of a repair.
#[test]
fn an_export_and_a_repair_that_find_no_room_say_which_directory_is_full() {
    let plan = plan(3);
    let mut refused = [0; 2];
    for room in (0..64 << 10).step_by(512) {
        let disk = SimDisk::new(room);
        let mut run = Run::of(Arc::new(disk.clone()), &plan);
        run.create().unwrap();
        run.step(&rows(0..20, 1.0)).unwrap();
        run.step(&Op::Checkpoint(1, vec![])).unwrap();
        let used = disk.paths().into_iter();
        let used: u64 = used.map(|p| disk.read_file(&p).unwrap().len() as u64).sum();
        disk.set_capacity(used + room);
        let export = run
            .store()
            .export(CheckpointId(1), Path::new("/export"), &[]);
        run.store = None;
        // A row that is lost: its file is written anew.
        let is_rows = |p: &PathBuf| p.extension().is_some_and(|e| e == "rows");
        let file = disk.paths().into_iter().find(is_rows).unwrap();
        disk.corrupt(&file, 4100, 1).unwrap();
        let io = hps::io::Io::of(disk.clone());
        let repair = repair_on(
            &io,
            &run.model.root,
            RepairOptions::default(),
            &mut |_, _| Ok(()),
            &mut |_, _| ControlFlow::Continue(()),
        );
        for (i, error) in [export.err(), repair.err()].into_iter().enumerate() {
            let Some(error) = error else { continue };
            let place = match &error {
                Error::NoSpace { path, .. } => path,
                other => panic!("{room} bytes, {}: {other}", ["export", "repair"][i]),
            };
            assert!(place.extension().is_none_or(|e| e != "rows"), "{error}");
            refused[i] += 1;
        }
    }
    assert!(refused.iter().all(|n| *n > 2), "{refused:?}");
}

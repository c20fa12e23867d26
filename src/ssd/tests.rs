//! What may be unlinked beside a commit that fails?

use std::path::Path;
use std::time::Duration;

use super::recover::{OpenRequest, open};
use super::*;
use crate::io::sim::SimDisk;
use crate::options::Thresholds;
use crate::ssd::create::{Unfinished, create};
use crate::units::CheckpointId;

mod garbage;
mod history;
pub(crate) mod rows;
pub(super) mod tier;

const ROOT: &str = "/store";

/// An open tier without rows, and a file that only the captured version needs.
fn tier_with_captured_file() -> (SimDisk, Ssd, PathBuf) {
    let disk = SimDisk::new(1);
    let root = Path::new(ROOT);
    create(&disk, root, &[], ([1; 16], [2; 16]), Unfinished::Refused).unwrap();
    let request = OpenRequest {
        moved: &[],
        read_only: false,
        checkpoint: None,
        disk_bytes_max: 0,
        thresholds: Thresholds::default(),
        open_files_max: 1000,
        threads: 1,
    };
    let ssd = open(&Io::of(disk.clone()), root, &request).unwrap().ssd;
    let captured = ssd.capture().id;
    let meta = FileMeta {
        number: ssd.take_number().unwrap(),
        directory: 0,
        rank: 1,
        bytes: 4096,
        footer_offset: 0,
        footer_checksum: 0,
        rows: 1,
        tombstones: 0,
        hash_min: 0,
        hash_max: 0,
        interval_min: 1,
        interval_max: 1,
        added: captured,
        removed: captured.next(),
    };
    ssd.versions().insert_closed(meta, None);
    let path = ssd.data_path(&meta);
    disk.open(&path, OpenMode::Create).unwrap();
    (disk, ssd, path)
}

/// A compaction saw that writes were allowed and waited for the versions; the commit beside it
/// failed to sync, refused writes and gave its captured version up; then the compaction had its
/// turn and unlinked what CURRENT may have named.
#[test]
fn what_a_commit_of_unknown_outcome_captured_is_not_unlinked_by_who_came_too_early() {
    let (disk, ssd, path) = tier_with_captured_file();
    std::thread::scope(|scope| {
        let mut versions = ssd.versions();
        let compaction = scope.spawn(|| ssd.collect_garbage());
        // It is at the lock by now, or comes later and sees that writes are refused.
        std::thread::sleep(Duration::from_millis(100));
        ssd.poison(String::from("a sync failed"));
        versions.captured = None;
        drop(versions);
        compaction.join().unwrap();
    });
    assert!(disk.read_file(&path).is_ok(), "CURRENT may name it");
}

#[test]
fn a_version_is_given_up_only_while_its_outcome_is_known() {
    let (disk, ssd, path) = tier_with_captured_file();
    ssd.poison(String::from("a sync failed"));
    ssd.abandon();
    assert!(ssd.versions().captured.is_some() && disk.read_file(&path).is_ok());
    let (disk, ssd, path) = tier_with_captured_file();
    ssd.abandon();
    assert!(ssd.versions().captured.is_none() && disk.read_file(&path).is_err());
}

/// Sizes of files that no checkpoint to be opened needs are believed unseen. 256 forged ones of
/// nearly 2^56 bytes ran over when the bytes on disk were summed.
#[test]
fn sizes_that_run_over_together_are_refused() {
    let file = |number: u64| FileMeta {
        number: FileNumber(number),
        directory: 0,
        rank: number,
        bytes: (1 << 56) - 4096,
        footer_offset: 4096,
        footer_checksum: 0,
        rows: 1,
        tombstones: 0,
        hash_min: 0,
        hash_max: 0,
        interval_min: 1,
        interval_max: 1,
        added: CheckpointId(1),
        removed: CheckpointId(2),
    };
    let (_disk, ssd, _path) = tier_with_captured_file();
    let mut current = ssd.manifest().current;
    current.checkpoint_id = CheckpointId(2);
    current.file_number_limit = FileNumber(1000);
    let check = |files: u64| {
        let replay = super::edits::Replay {
            files: (1..=files).map(|n| (FileNumber(n), file(n))).collect(),
            ..super::edits::Replay::default()
        };
        let checked = super::manifest_reader::check_sanity(Path::new(ROOT), &current, &replay, 1);
        checked.map(|()| {
            let mut versions = Versions::default();
            replay
                .files
                .values()
                .for_each(|meta| versions.insert_closed(*meta, None));
            versions.usage().pinned_bytes
        })
    };
    assert!(check(8).unwrap() > 1 << 58);
    for files in [65, 256, 300] {
        let error = check(files).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}

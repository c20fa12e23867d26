//! A tier on the simulated disk, without a store above it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::io::sim::SimDisk;
use crate::io::{Engine, Io, OpenMode};
use crate::options::Thresholds;
use crate::ssd::commit::CheckpointRequest;
use crate::ssd::create::{Unfinished, create};
use crate::ssd::data_file::DataFile;
use crate::ssd::recover::{OpenRequest, open};
use crate::ssd::{NewFile, Ssd};
use crate::units::{CheckpointId, unmix64};

pub const ROOT: &str = "/store";

/// How a tier is opened where a test says nothing else.
pub fn request(moved: &[PathBuf]) -> OpenRequest<'_> {
    OpenRequest {
        moved,
        read_only: false,
        checkpoint: None,
        disk_bytes_max: 0,
        thresholds: Thresholds::default(),
        open_files_max: 1000,
        threads: 1,
    }
}

/// A new store with so many data directories.
pub fn made(directories: usize) -> (SimDisk, Ssd) {
    let disk = SimDisk::new(1);
    let names: Vec<PathBuf> = (0..directories).map(|i| format!("d{i}").into()).collect();
    create(
        &disk,
        Path::new(ROOT),
        &names,
        ([1; 16], [2; 16]),
        Unfinished::Refused,
    )
    .unwrap();
    let ssd = reopened(&disk);
    (disk, ssd)
}

pub fn reopened(disk: &SimDisk) -> Ssd {
    opened(disk, |_| ()).unwrap()
}

pub fn opened(disk: &SimDisk, change: impl Fn(&mut OpenRequest<'_>)) -> crate::error::Result<Ssd> {
    let mut request = request(&[]);
    change(&mut request);
    let io = Io::of(disk.clone());
    open(&io, Path::new(ROOT), &request).map(|recovered| recovered.ssd)
}

/// Writes a file of rows of one f32 of table 0, and makes it current; nothing of it is live.
pub fn flush(ssd: &Ssd, directory: u32, hashes: std::ops::Range<u64>) -> Arc<DataFile> {
    let mut queue = SimDisk::new(5).queue(2, 1 << 16).unwrap();
    let (number, mut writer) = ssd
        .create_file(&mut *queue, directory as usize, 1 << 16, 0)
        .unwrap();
    hashes.for_each(|hash| writer.row(0, unmix64(hash), 1, &[hash as f32]));
    let finished = writer.finish().unwrap();
    let new = NewFile {
        finished,
        number,
        directory,
    };
    ssd.install(new, None).unwrap()
}

/// Makes a checkpoint of what is current, with which so many are retained in all, and unlinks what nothing needs.
pub fn checkpoint(ssd: &Ssd, step: u64, retain: usize) -> CheckpointId {
    let id = commit(ssd, step, retain);
    ssd.collect_garbage();
    id
}

/// Makes a checkpoint, and unlinks nothing.
pub fn commit(ssd: &Ssd, step: u64, retain: usize) -> CheckpointId {
    let captured = ssd.capture();
    let request = CheckpointRequest {
        step,
        interval: 1,
        hyper: &[],
        tables: &[],
        meta: b"meta",
        retain,
    };
    ssd.commit(&captured, &request).unwrap().id
}

/// Makes an empty file of this name.
pub fn touch(disk: &SimDisk, name: &str) {
    disk.open(&Path::new(ROOT).join(name), OpenMode::Create)
        .unwrap();
}

/// Names in a directory of the store, in order.
pub fn names(disk: &SimDisk, directory: &str) -> Vec<String> {
    let mut names: Vec<String> = disk
        .list(&Path::new(ROOT).join(directory))
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    names.sort();
    names
}

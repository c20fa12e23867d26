//! How many bytes a second does the device take in files like those of a store, synced?
//!
//! - As many files of the same length as the work makes; all are synced, together, inside the time.
//! - Of 4 GiB and more, 4 GiB are written.
//! - One file at a time and several are tried: a limit is the best of them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use hps::io::{DiskFile, Io, OpenMode, Queue};

use super::device::{SEQUENTIAL_BYTES, drain, fill_buffers, next_buffer, reach, stamp};

/// Requests in flight for each file that is being written.
const DEPTH: usize = 4;

/// Files that are written at the same time, to try.
const WAYS: [usize; 2] = [1, 4];

/// Fewer bytes measure how long a sync takes,
const BYTES_MIN: u64 = 4 << 20;
/// and more take room on the disk without telling more.
const BYTES_MAX: u64 = 4 << 30;

/// What is written.
#[derive(Clone, Copy, Debug)]
pub struct Files {
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes of each but the last.
    pub file_bytes: u64,
}

/// Bytes a second, and how they were reached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SyncedFiles {
    /// Files that were written at the same time.
    pub ways: usize,
    /// Bytes a second, syncs included.
    pub per_second: f64,
}

/// Writes the files below a directory, 1 MiB a request, one at a time and several; they are gone afterwards.
///
/// # Errors
/// What the system says.
pub fn synced_files(io: &Io, place: &Path, files: Files) -> Result<SyncedFiles> {
    let mut best = SyncedFiles::default();
    for ways in WAYS {
        let made = tempfile::tempdir_in(place)
            .with_context(|| format!("make a directory below {}", place.display()))?;
        let per_second = write_files(io, made.path(), files, ways)?;
        if per_second > best.per_second {
            best = SyncedFiles { ways, per_second };
        }
    }
    Ok(best)
}

/// One of the files that are being written.
struct Lane {
    queue: Box<dyn Queue>,
    /// The file, and requests of it that are still to come.
    file: Option<(Arc<dyn DiskFile>, u64)>,
    offset: u64,
}

fn write_files(io: &Io, place: &Path, files: Files, ways: usize) -> Result<f64> {
    let request = SEQUENTIAL_BYTES as u64;
    let mut left = files.bytes.clamp(BYTES_MIN, BYTES_MAX).div_ceil(request);
    let each = (files.file_bytes / request).max(1);
    let requests = left;
    let mut lanes = Vec::new();
    for lane in 0..ways {
        let mut queue = io.engine.queue(DEPTH, SEQUENTIAL_BYTES)?;
        fill_buffers(&mut *queue, (lane * DEPTH) as u64);
        lanes.push(Lane {
            queue,
            file: None,
            offset: 0,
        });
    }
    let mut written = Vec::new();
    let mut tag = 0;
    let since = Instant::now();
    while left > 0 || lanes.iter().any(|lane| lane.file.is_some()) {
        for lane in &mut lanes {
            let Some((file, more)) = &mut lane.file else {
                if left > 0 {
                    let path = place.join(format!("{}.probe", written.len()));
                    let file = reach(io, &path, OpenMode::CreateDirect)
                        .with_context(|| format!("make {}", path.display()))?;
                    written.push(Arc::clone(&file));
                    lane.file = Some((file, each.min(left)));
                    lane.offset = 0;
                    left -= each.min(left);
                }
                continue;
            };
            let mut buffer = next_buffer(&mut *lane.queue)?;
            stamp(&mut buffer, tag);
            tag += 1;
            lane.queue
                .write(file, lane.offset, SEQUENTIAL_BYTES, buffer, tag);
            lane.queue.submit();
            lane.offset += request;
            *more -= 1;
            if *more == 0 {
                lane.file = None;
            }
        }
    }
    for lane in &mut lanes {
        drain(&mut *lane.queue)?;
    }
    for file in &written {
        file.sync().context("sync the probe")?;
    }
    Ok((requests * request) as f64 / since.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::device::disk;

    #[test]
    fn as_many_files_of_that_length_are_written_and_nothing_of_them_stays() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files {
            bytes: 7 << 20,
            file_bytes: 2 << 20,
        };
        for ways in [1, 2, 4, 8] {
            let made = dir.path().join(ways.to_string());
            std::fs::create_dir(&made).unwrap();
            assert!(write_files(&disk(), &made, files, ways).unwrap() > 0.0);
            let mut bytes: Vec<u64> = std::fs::read_dir(&made)
                .unwrap()
                .map(|file| file.unwrap().metadata().unwrap().len())
                .collect();
            bytes.sort_unstable();
            assert_eq!(bytes, [1 << 20, 2 << 20, 2 << 20, 2 << 20], "{ways}");
            std::fs::remove_dir_all(&made).unwrap();
        }
        let found = synced_files(&disk(), dir.path(), files).unwrap();
        assert!(found.per_second > 0.0 && WAYS.contains(&found.ways));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

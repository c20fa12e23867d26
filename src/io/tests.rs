//! Does every engine keep the same contract?
//!
//! Each test of `contract` runs over io_uring, pread, pread where O_DIRECT is not to be had, and
//! the simulated disk.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::transfer::{RETRIES_MAX, faults};
use super::{AlignedBuffer, Directory, DiskFile, Io, LockKind, OpenMode, Queue};

mod contract;
#[cfg(feature = "sim")]
mod crash;
mod system;
#[cfg(feature = "sim")]
mod unkind;

/// A disk and an empty directory on it.
struct Place {
    io: Io,
    directory: Arc<dyn Directory>,
    /// The directory's owner, where it is a real one.
    real: Option<tempfile::TempDir>,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn create(&self, name: &str, mode: OpenMode) -> Arc<dyn DiskFile> {
        self.directory.open(name, mode).unwrap()
    }

    /// Creates a small file without O_DIRECT.
    fn plant(&self, name: &str, bytes: &[u8]) {
        self.create(name, OpenMode::Create)
            .write_at(bytes, 0)
            .unwrap();
    }

    fn content(&self, name: &str) -> Vec<u8> {
        let file = self.directory.open(name, OpenMode::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(file.bytes().unwrap()).unwrap()];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        bytes
    }

    fn names(&self) -> Vec<String> {
        let entries = self.directory.list().unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }

    fn on(io: Io, parent: &Path) -> Place {
        let real = tempfile::Builder::new()
            .prefix("hps-io-")
            .tempdir_in(parent)
            .unwrap();
        Place {
            directory: io.disk.open_dir(real.path()).unwrap(),
            io,
            real: Some(real),
        }
    }
}

/// Every engine that this machine has; says which are left out, and why.
fn places() -> Vec<Place> {
    let temporary = std::env::temp_dir();
    let mut places = vec![Place::on(Io::pread(), &temporary)];
    match Io::uring() {
        Ok(io) => {
            places.push(Place::on(io.clone(), &temporary));
            if Path::new("/dev/shm").is_dir() {
                places.push(Place::on(io, Path::new("/dev/shm")));
            }
        }
        Err(error) => println!("skipped uring: {error}"),
    }
    if Path::new("/dev/shm").is_dir() {
        places.push(Place::on(Io::pread(), Path::new("/dev/shm")));
    } else {
        println!("skipped the fallback through the page cache: no /dev/shm");
    }
    #[cfg(feature = "sim")]
    {
        let disk = super::sim::SimDisk::new(7);
        disk.create_dir(Path::new("/place")).unwrap();
        let io = Io::of(disk);
        places.push(Place {
            directory: io.disk.open_dir(Path::new("/place")).unwrap(),
            io,
            real: None,
        });
    }
    places
}

/// Bytes that differ from place to place and by seed.
fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes)
        .map(|i| u8::try_from((i + i / 512) % 251).unwrap() ^ seed)
        .collect()
}

fn filled(queue: &mut dyn Queue, bytes: &[u8]) -> AlignedBuffer {
    let mut buffer = queue.buffer().unwrap();
    buffer[..bytes.len()].copy_from_slice(bytes);
    buffer
}

/// Writes bytes with one request and waits for it.
fn put(queue: &mut dyn Queue, file: &Arc<dyn DiskFile>, offset: u64, bytes: &[u8]) {
    let buffer = filled(queue, bytes);
    queue.write(file, offset, bytes.len(), buffer, 0);
    let completion = queue.wait().unwrap();
    assert_eq!(completion.result.unwrap(), bytes.len());
    queue.recycle(completion.buffer);
}

/// Reads bytes with one request and waits for it.
fn get(queue: &mut dyn Queue, file: &Arc<dyn DiskFile>, offset: u64, bytes: usize) -> Vec<u8> {
    let buffer = queue.buffer().unwrap();
    queue.read(file, offset, bytes, buffer, 0);
    let completion = queue.wait().unwrap();
    let read = completion.result.unwrap();
    let found = completion.buffer[..read].to_vec();
    queue.recycle(completion.buffer);
    found
}

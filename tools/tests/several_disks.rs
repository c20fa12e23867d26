//! What happens when data directories are on file systems of their own, and one of them is full,
//! read-only or not mounted?
//!
//! An ext4 image of 64 MiB, a tmpfs and the file system of the tests, which needs root and loop
//! devices; where they are missing, the tests say SKIPPED.
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[expect(dead_code, reason = "other tests use the rest")]
mod disks;
#[path = "disks/file_system.rs"]
#[expect(dead_code, reason = "tests of power cuts use the rest")]
mod file_system;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use disks::{Random, Trainer, options, own_mounts, skipped};
use file_system::{Kind, Mounted, run};
use hps::*;
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 64 << 20;

/// Three file systems with a directory each; a store's root beside them.
struct Disks {
    ext4: Option<Mounted>,
    tmpfs: PathBuf,
    directory: TempDir,
}

impl Disks {
    /// Why there are none, as text.
    fn new() -> std::result::Result<Disks, String> {
        let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
        let place = |name: &str| directory.path().join(name);
        for name in ["ext4", "tmpfs", "plain"] {
            fs::create_dir(place(name)).map_err(|e| e.to_string())?;
        }
        let image = File::create(place("image")).map_err(|e| e.to_string())?;
        image.set_len(IMAGE_BYTES).map_err(|e| e.to_string())?;
        file_system::make(Kind::Ext4, &place("image"), &["-m", "0", "-b", "4096"])?;
        let ext4 = Mounted::new(Kind::Ext4, &place("image"), &place("ext4"), "defaults")?;
        let tmpfs = place("tmpfs");
        let args = ["-t", "tmpfs", "-o", "size=64m", "hps-tmpfs"].map(OsStr::new);
        run("mount", &[&args[..], &[tmpfs.as_os_str()]].concat())?;
        Ok(Disks {
            ext4: Some(ext4),
            tmpfs,
            directory,
        })
    }

    fn place(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn unmount(&mut self) {
        self.ext4.take().unwrap().unmount().unwrap();
    }

    fn mount(&mut self, options: &str) {
        let (image, place) = (self.place("image"), self.place("ext4"));
        self.ext4 = Some(Mounted::new(Kind::Ext4, &image, &place, options).unwrap());
    }

    /// A store with a checkpoint, whose first data directory is on the ext4.
    fn store(&self) -> Trainer {
        let parts = ["ext4", "tmpfs", "plain"].map(|name| self.place(name).join("part"));
        let mut trainer =
            Trainer::create_in(&self.place("store"), parts.into(), options()).unwrap();
        train(&mut trainer, 1).unwrap();
        trainer.checkpoint(b"first").unwrap();
        trainer
    }

    /// Every file of the store, with its bytes.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let names = ["store", "ext4/part", "tmpfs/part", "plain/part"];
        let entries = names.iter().map(|name| fs::read_dir(self.place(name)));
        let entries = entries.filter_map(std::result::Result::ok).flatten();
        let paths = entries.map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths
            .filter(|path| path.is_file())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect();
        files.sort();
        files
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        drop(run("umount", &["--lazy".as_ref(), self.tmpfs.as_os_str()]));
    }
}

/// The file systems, in a mount namespace of this test alone; `None` where that was done, or they
/// can't be had.
fn disks(test: &str) -> Option<Disks> {
    if !own_mounts(test) {
        return None;
    }
    match Disks::new() {
        Ok(disks) => Some(disks),
        Err(why) => {
            skipped(test, &why);
            None
        }
    }
}

/// Some batches: more rows than the cache has room for.
fn train(trainer: &mut Trainer, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    (0..12).try_for_each(|_| trainer.set_random(&mut random, 20_000, 400))
}

/// Bytes that `df` calls available.
fn free_bytes(place: &Path) -> u64 {
    let args = ["--output=avail", "-B1", place.to_str().unwrap()];
    let output = Command::new("df").args(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().nth(1).unwrap().trim().parse().unwrap()
}

/// The closed store is whole, and opens with the rows of its last checkpoint.
fn goes_on(trainer: &mut Trainer) {
    trainer.reopen();
    train(trainer, 5).unwrap();
    trainer.checkpoint(b"after").unwrap();
    trainer.store.take().unwrap().close().unwrap();
    trainer.inspection_is_clean();
    trainer.reopen();
}

#[test]
fn one_full_disk_of_several_is_named_and_nothing_is_lost() {
    let test = "one_full_disk_of_several_is_named_and_nothing_is_lost";
    let Some(disks) = disks(test) else { return };
    let mut trainer = disks.store();
    let filler = disks.place("ext4").join("filler");
    let bytes = free_bytes(&disks.place("ext4")) - (1 << 20);
    let args = ["-l", &bytes.to_string(), filler.to_str().unwrap()];
    run("fallocate", &args).unwrap();
    let mut told = None;
    for round in 2..200 {
        let done = train(&mut trainer, round).and_then(|()| trainer.checkpoint(b"filling"));
        if let Err(error) = done {
            told = Some(error);
            break;
        }
    }
    match told {
        Some(Error::NoSpace { path, .. }) => assert_eq!(path, disks.place("ext4").join("part")),
        other => panic!("the full disk was not told: {other:?}"),
    }
    assert!(trainer.rows_are_readable() > 0);
    trainer.last_checkpoint_is_whole();
    // The others have room: a reader opens beside it, and so does a writer after a crash.
    let options = trainer.options.clone();
    let reader = Store::open_read_only(&trainer.path, None, options).unwrap();
    assert_eq!(reader.last_checkpoint().unwrap().step, trainer.step);
    drop(reader);
    trainer.reopen();
    fs::remove_file(filler).unwrap();
    goes_on(&mut trainer);
}

#[test]
fn one_read_only_disk_of_several_is_named_and_nothing_is_lost() {
    let test = "one_read_only_disk_of_several_is_named_and_nothing_is_lost";
    let Some(mut disks) = disks(test) else { return };
    let mut trainer = disks.store();
    trainer.store.take().unwrap().close().unwrap();
    disks.unmount();
    disks.mount("ro");
    let read_only = |error: Error| match error {
        Error::Io { path, source, .. } => {
            assert_eq!(source.kind(), ErrorKind::ReadOnlyFilesystem);
            assert!(path.starts_with(disks.place("ext4")), "{}", path.display());
        }
        other => panic!("not told as a read-only file system: {other:?}"),
    };
    // A reader has nothing to write.
    let options = trainer.options.clone();
    let reader = Store::open_read_only(&trainer.path, None, options.clone()).unwrap();
    trainer.store = Some(reader);
    trainer.last_checkpoint_is_whole();
    assert!(trainer.rows_are_readable() > 0);
    trainer.store = None;
    trainer.inspection_is_clean();
    match Store::open(&trainer.path, options) {
        Err(error) => read_only(error),
        Ok(store) => {
            trainer.store = Some(store);
            trainer.last_checkpoint_is_whole();
            let done = (2..50).try_for_each(|round| train(&mut trainer, round));
            read_only(done.and_then(|()| trainer.checkpoint(b"no")).unwrap_err());
            assert!(trainer.rows_are_readable() > 0);
            trainer.last_checkpoint_is_whole();
            trainer.store = None;
        }
    }
    disks.unmount();
    disks.mount("defaults");
    goes_on(&mut trainer);
}

#[test]
fn one_unmounted_disk_of_several_is_named_and_nothing_is_changed() {
    let test = "one_unmounted_disk_of_several_is_named_and_nothing_is_changed";
    let Some(mut disks) = disks(test) else { return };
    let mut trainer = disks.store();
    trainer.store.take().unwrap().close().unwrap();
    let whole = disks.files();
    disks.unmount();
    let before = disks.files();
    assert!(before.len() < whole.len());
    for read_only in [true, false] {
        let options = trainer.options.clone();
        let opened = match read_only {
            true => Store::open_read_only(&trainer.path, None, options),
            false => Store::open(&trainer.path, options),
        };
        match opened.map(drop) {
            Err(Error::MissingDirectory { index, path, .. }) => {
                assert_eq!((index, path), (0, disks.place("ext4").join("part")));
            }
            other => panic!("read-only {read_only}: {other:?}"),
        }
    }
    assert!(disks.files() == before, "files were changed");
    disks.mount("defaults");
    assert!(disks.files() == whole);
    goes_on(&mut trainer);
}

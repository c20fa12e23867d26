//! What happens on a real file system that is full? (ENOSPC, a limit of file sizes, `disk_bytes_max`)
//!
//! An ext4 image of 64 MiB is mounted, which needs root and loop devices; where they are missing, the
//! first test says SKIPPED. `HPS_FILL_LEVELS` sets how many times it is filled, to a random
//! level each time (1); `HPS_SEED` repeats the levels.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

mod disks;
#[path = "disks/file_system.rs"]
#[expect(dead_code, reason = "tests of power cuts use the rest")]
mod file_system;
#[path = "../../tests/common/seed.rs"]
mod seed;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use disks::{DIM, Random, Trainer, environment, options, own_mounts, say, skipped};
use file_system::{Kind, Mounted, run};
use hps::*;
use tempfile::TempDir;

const IMAGE_BYTES: u64 = 64 << 20;

/// A mounted ext4 file system.
struct Mount {
    mounted: Mounted,
    _directory: TempDir,
}

impl Mount {
    /// Why there is none, as text: not root, no loop device, no mkfs.ext4.
    fn new() -> std::result::Result<Mount, String> {
        let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (image, place) = (
            directory.path().join("image"),
            directory.path().join("mount"),
        );
        let file = File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(IMAGE_BYTES).map_err(|e| e.to_string())?;
        fs::create_dir(&place).map_err(|e| e.to_string())?;
        file_system::make(Kind::Ext4, &image, &["-m", "0", "-b", "4096"])?;
        Ok(Mount {
            mounted: Mounted::new(Kind::Ext4, &image, &place, "defaults")?,
            _directory: directory,
        })
    }

    fn place(&self) -> &Path {
        self.mounted.place()
    }

    fn free_bytes(&self) -> u64 {
        let space = nix_free(self.place());
        space.unwrap_or_else(|| panic!("no room known in {}", self.place().display()))
    }

    /// A file that leaves so many bytes free.
    fn fill_up_to(&self, name: &str, free: u64) -> PathBuf {
        let path = self.place().join(name);
        let bytes = self.free_bytes().saturating_sub(free);
        let file = File::create(&path).unwrap();
        let length = bytes.to_string();
        let done = run("fallocate", &["-l", &length, path.to_str().unwrap()]);
        // Metadata of the filler needs some of it.
        if bytes > 0 && done.is_err() {
            file.set_len(0).unwrap();
            let less = bytes.saturating_sub(64 << 10).max(1).to_string();
            run("fallocate", &["-l", &less, path.to_str().unwrap()]).unwrap();
        }
        path
    }
}

/// Bytes that `df` calls available.
fn nix_free(place: &Path) -> Option<u64> {
    let output = Command::new("df")
        .args(["--output=avail", "-B1", place.to_str()?])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().nth(1)?.trim().parse().ok()
}

fn is_no_space(error: &Error) {
    assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
}

/// Trains until there is no room; whether a checkpoint was refused.
fn fill(trainer: &mut Trainer, random: &mut Random) -> bool {
    for batch in 1..100_000u64 {
        let done = if batch.is_multiple_of(8) {
            trainer.checkpoint(&[7; 5000])
        } else {
            trainer.set_random(random, 60_000, 300)
        };
        if let Err(error) = done {
            is_no_space(&error);
            return batch.is_multiple_of(8);
        }
    }
    panic!("the disk did not get full");
}

/// One store, on a file system that gets full, and has room again.
fn fill_once(mount: &Mount, random: &mut Random) -> bool {
    let path = mount.place().join("store");
    let mut trainer = Trainer::create(&path, options()).unwrap();
    // What is freed later is 10 % of the file system; the rest of the ballast varies.
    let filler = mount.fill_up_to("filler", mount.free_bytes() - IMAGE_BYTES / 10);
    let ballast = mount.fill_up_to("ballast", (6 << 20) + random.below(30 << 20));
    let refused = fill(&mut trainer, random);
    assert!(trainer.rows_are_readable() > 0, "no row can be read");
    trainer.last_checkpoint_is_whole();

    // No room at all, or for some of what a checkpoint writes.
    let rest = mount.fill_up_to("rest", random.below(64 << 10));
    match trainer.checkpoint(&[8; 5000]) {
        Ok(()) => {}
        Err(error) => is_no_space(&error),
    }
    trainer.last_checkpoint_is_whole();
    if random.below(3) == 0 {
        // As after a crash: on the full disk the last checkpoint can be read.
        trainer.store = None;
        let reader = Store::open_read_only(&path, None, trainer.options.clone()).unwrap();
        trainer.store = Some(reader);
        trainer.last_checkpoint_is_whole();
        trainer.store = None;
        trainer.inspection_is_clean();
        fs::remove_file(&rest).unwrap();
        fs::remove_file(&filler).unwrap();
        trainer.reopen();
    } else {
        fs::remove_file(&rest).unwrap();
        fs::remove_file(&filler).unwrap();
    }
    trainer.checkpoint(&[9; 5000]).unwrap();
    trainer.last_checkpoint_is_whole();
    trainer.set_random(random, 60_000, 300).unwrap();
    trainer.checkpoint(&[]).unwrap();
    trainer.store.take().unwrap().close().unwrap();
    trainer.inspection_is_clean();
    trainer.reopen();
    trainer.store.take().unwrap().close().unwrap();
    fs::remove_file(&ballast).unwrap();
    fs::remove_dir_all(&path).unwrap();
    refused
}

#[test]
fn a_full_file_system_refuses_writes_and_takes_them_once_there_is_room() {
    if !own_mounts("a_full_file_system_refuses_writes_and_takes_them_once_there_is_room") {
        return;
    }
    let mount = match Mount::new() {
        Ok(mount) => mount,
        Err(why) => return skipped("full_disk", &why),
    };
    let levels = environment("HPS_FILL_LEVELS", 1);
    let seed = seed::fresh("full_disk");
    let mut refused = 0;
    for level in 0..levels {
        say(&format!("full_disk: level {level} of seed {seed}"));
        refused += u64::from(fill_once(&mount, &mut Random(seed + level)));
    }
    say(&format!(
        "full_disk: {levels} fill levels, {refused} met by a checkpoint; seed {seed}"
    ));
}

/// Rows of so many bytes do not fit below the limit of the next tests.
const LIMIT_BYTES: u64 = 2 << 20;
const SIGXFSZ: i32 = 25;
const ROWS: u64 = LIMIT_BYTES * 3 / (DIM as u64 * 8);

/// What the next tests run in a process of its own, whose files can't grow beyond a limit.
#[test]
fn child_whose_files_are_limited() {
    let Some(path) = std::env::var_os("HPS_LIMITED_STORE") else {
        return;
    };
    let large = options().cache_bytes(16 << 20).file_bytes(32 << 20).io(
        match std::env::var_os("HPS_LIMITED_PREAD") {
            Some(_) => IoEngine::Pread,
            None => IoEngine::Uring,
        },
    );
    let path = Path::new(&path);
    let mut trainer = Trainer::create(path, large).unwrap();
    trainer.set(&[1, 2, 3], 5.0).unwrap();
    trainer.checkpoint(b"first").unwrap();
    let keys: Vec<u64> = (0..ROWS).collect();
    for batch in keys.chunks(500) {
        trainer.set(batch, 6.0).unwrap();
    }
    let error = trainer.checkpoint(b"too large").unwrap_err();
    match &error {
        Error::Io {
            path: named,
            source,
            ..
        } => {
            assert_eq!(source.kind(), ErrorKind::FileTooLarge, "{error}");
            assert!(named.starts_with(path), "{error}");
        }
        Error::NoSpace { .. } => {}
        other => panic!("{other}"),
    }
    trainer.last_checkpoint_is_whole();
    assert!(trainer.rows_are_readable() > 0);
    drop(trainer.store.take());
    say(&format!("limited: {error}"));
}

/// Runs it below the limit, with plain calls or a ring, with SIGXFSZ ignored or not.
fn limited(path: &Path, plain: bool, ignored: bool) -> Output {
    // Blocks of 512 bytes.
    let blocks = LIMIT_BYTES / 512;
    let trap = if ignored { "trap '' XFSZ; " } else { "" };
    let script = format!("{trap}ulimit -c 0; ulimit -f {blocks} && exec \"$0\" \"$@\"");
    let name = "child_whose_files_are_limited";
    let mut command = Command::new("sh");
    command
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("HPS_LIMITED_STORE", path);
    if plain {
        command.env("HPS_LIMITED_PREAD", "1");
    }
    command.output().unwrap()
}

/// The store as the child left it, which is at its only checkpoint.
fn goes_on_after(path: &Path) {
    let mut trainer = Trainer {
        path: path.to_path_buf(),
        options: options(),
        store: None,
        rows: Default::default(),
        durable: [1, 2, 3].map(|key| (key, 5.0)).into(),
        step: 1,
    };
    trainer.inspection_is_clean();
    trainer.reopen();
    trainer.set(&[3, 4], 7.0).unwrap();
    trainer.checkpoint(&[]).unwrap();
    trainer.store.take().unwrap().close().unwrap();
    trainer.inspection_is_clean();
}

#[test]
fn a_file_that_may_not_grow_is_an_error_and_no_harm() {
    for plain in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let output = limited(&path, plain, true);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("limited: "), "{said}");
        goes_on_after(&path);
    }
}

/// Whoever does not ignore SIGXFSZ is killed by it, in the middle of a checkpoint. (A ring's write
/// comes back with the error, without the signal.)
#[test]
fn a_process_killed_by_the_limit_leaves_its_last_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let output = limited(&path, true, false);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(SIGXFSZ), "{said}");
    goes_on_after(&path);
}

fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().map(|e| e.unwrap());
    let bytes = entries.map(|entry| {
        let found = entry.metadata().unwrap();
        if found.is_dir() {
            bytes_below(&entry.path())
        } else {
            found.len()
        }
    });
    bytes.sum()
}

#[test]
fn a_store_keeps_its_own_limit_and_goes_on_when_it_is_raised() {
    let directory = tempfile::tempdir().unwrap();
    let limit = 16 << 20;
    let narrow = options().disk_bytes_max(limit);
    let path = directory.path().join("store");
    let mut trainer = Trainer::create(&path, narrow).unwrap();
    let mut random = Random(environment("HPS_SEED", 5));
    fill(&mut trainer, &mut random);
    assert!(trainer.rows_are_readable() > 0, "no row can be read");
    trainer.last_checkpoint_is_whole();
    // Manifest, meta files and index snapshot come on top of the parameter files.
    let rows = bytes_below(&path.join("part-0"));
    assert!(rows <= limit, "{rows} bytes of rows");
    trainer.options.disk_bytes_max = limit * 4;
    trainer.reopen();
    for _ in 0..8 {
        trainer.set_random(&mut random, 60_000, 300).unwrap();
    }
    trainer.checkpoint(&[]).unwrap();
    trainer.store.take().unwrap().close().unwrap();
    trainer.inspection_is_clean();
}

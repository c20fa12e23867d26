//! What happens when the disk itself says no, below io_uring and O_DIRECT?
//!
//! A file system in memory is mounted by FUSE, which needs /dev/fuse and the right to mount; where
//! they are missing, the test says SKIPPED. The n-th read, write or sync after the first checkpoint
//! fails, for n = 0, 1, ... until none fails: a failed sync poisons the store for writing, reads go
//! on, a failed read or write names its file and may be tried again; whatever failed, the last
//! checkpoint opens. A file whose sync failed has lost what was not synced: an engine that repeats
//! the sync, or goes on without it, makes a checkpoint that is not there. And one sector of a
//! parameter file is lost: the tools name it.
//!
//! `HPS_FUSE_CALLS` bounds n (6; all the syncs fail once with EIO); `HPS_SEED`
//! changes the rows.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

mod disks;
#[path = "disks/faulty.rs"]
mod faulty;
#[path = "disks/fuse.rs"]
mod fuse;
#[path = "../../tests/common/seed.rs"]
mod seed;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use disks::{Random, Trainer, environment, options, own_mounts, say, skipped};
use faulty::{Faults, FaultyFs, Kind};
use fuser::{BackgroundSession, Config, MountOption};
use hps::*;
use serde_json::{Value, json};
use tempfile::TempDir;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// One for all runs.
static SEED: LazyLock<u64> = LazyLock::new(|| seed::fresh("fuse_faults"));

/// A mounted file system that can be told to fail.
struct Mount {
    server: Option<BackgroundSession>,
    faults: Faults,
    directory: TempDir,
}

impl Mount {
    fn new() -> std::result::Result<Mount, String> {
        let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
        let faults = Faults::default();
        let fs = FaultyFs::new(faults.clone());
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("hps-faulty".to_owned())];
        let server = fuser::spawn_mount(fs, directory.path(), &config);
        let server = server.map_err(|e| format!("no FUSE mount: {e}"))?;
        Ok(Mount {
            server: Some(server),
            faults,
            directory,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.umount_and_join().unwrap();
        }
    }
}

/// How a run with a fault ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    NotHit,
    Absorbed,
    Repeated,
    Poisoned,
}

/// One thing that the trainer does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Set(u64),
    Flush,
    Compact,
    Checkpoint,
}

/// More syncs than the workload has.
const ALL_SYNCS: u64 = 200;

const STEPS: [Step; 12] = [
    Step::Set(1),
    Step::Set(2),
    Step::Checkpoint,
    Step::Set(3),
    Step::Flush,
    Step::Set(4),
    Step::Set(5),
    Step::Compact,
    Step::Checkpoint,
    Step::Set(6),
    Step::Checkpoint,
    Step::Set(7),
];

fn take(trainer: &mut Trainer, step: Step) -> Result<()> {
    match step {
        Step::Set(seed) => {
            let given = *SEED << 8;
            trainer.set_random(&mut Random(seed + given), 4000, 400)
        }
        Step::Flush => trainer.store().flush().map(drop),
        Step::Compact => trainer.store().compact_fully().map(drop),
        Step::Checkpoint => trainer.checkpoint(&[3; 6000]),
    }
}

/// The error is the one of this fault, and names a file below the store; whether it is a sync's.
fn is_of(error: &Error, kind: Kind, errno: i32, store: &Path) -> bool {
    match error {
        Error::Poisoned { .. } if kind == Kind::Sync => true,
        Error::Io {
            operation,
            path,
            source,
        } => {
            assert_eq!(source.raw_os_error(), Some(errno), "{error}");
            // A sync may be one of a directory.
            let file = kind == Kind::Sync || path.extension().is_some();
            assert!(path.starts_with(store) && file, "{error}");
            let verb = match kind {
                Kind::Read => "read",
                Kind::Write => "write",
                Kind::Sync => "sync",
            };
            assert!(operation.starts_with(verb), "{error}");
            kind == Kind::Sync
        }
        Error::NoSpace { path, .. } if errno == ENOSPC => {
            assert!(path.starts_with(store), "{error}");
            assert_eq!(kind, Kind::Write, "{error}");
            false
        }
        other => panic!("an unexpected error: {other:?}"),
    }
}

fn writes_are_refused(store: &Store) {
    let refused = |result: Result<()>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Poisoned { .. }), "{error}");
    };
    refused(store.checkpoint(1 << 40, &[]).map(drop));
    refused(store.remove(TableId(0), &[1]).map(drop));
    refused(store.flush().map(drop));
    refused(store.compact_fully().map(drop));
}

/// A checkpoint whose sync failed may be there or not; what is on disk says which.
fn may_have_made_it(trainer: &mut Trainer) {
    let options = trainer.options.clone();
    let reader = Store::open_read_only(&trainer.path, None, options).unwrap();
    let step = reader.last_checkpoint().map_or(0, |last| last.step);
    if step == trainer.step + 1 {
        (trainer.step, trainer.durable) = (step, trainer.rows.clone());
    }
}

/// The workload, with one fault in it.
fn run(mount: &Mount, kind: Kind, call: u64, errno: i32, sticky: bool) -> End {
    let path = mount.path(&format!("{kind:?}-{call}-{errno}-{sticky}"));
    let inline = options().inline(call.is_multiple_of(2));
    let mut trainer = Trainer::create(&path, inline).unwrap();
    for seed in 10..20 {
        let mut random = Random(seed);
        trainer.set_random(&mut random, 4000, 400).unwrap();
    }
    trainer.checkpoint(b"first").unwrap();
    let stats = trainer.store().stats();
    assert!(stats.direct_io, "no O_DIRECT: {}", stats.io_engine);

    mount.faults.arm(kind, call, errno, sticky);
    let mut end = End::Absorbed;
    for step in STEPS {
        let Err(error) = take(&mut trainer, step) else {
            continue;
        };
        if sticky {
            let again = take(&mut trainer, step);
            assert!(again.is_err(), "{step:?} worked on a broken disk");
        }
        mount.faults.disarm();
        let poisoned = is_of(&error, kind, errno, &path);
        let readable = trainer.rows_are_readable_but_of(&mount.faults.dropped());
        assert!(readable > 0, "no row can be read");
        trainer.last_checkpoint_is_whole();
        if poisoned {
            writes_are_refused(trainer.store());
            let unknown = matches!(step, Step::Checkpoint);
            trainer.store = None;
            if unknown {
                may_have_made_it(&mut trainer);
            }
            trainer.reopen();
            end = End::Poisoned;
            break;
        }
        take(&mut trainer, step).unwrap_or_else(|e| panic!("{step:?}, after {error}: {e}"));
        end = End::Repeated;
    }
    let failed = mount.faults.disarm();
    let poisoned = matches!(trainer.store().flush(), Err(Error::Poisoned { .. }));
    if poisoned {
        // The sync of an index snapshot, after the checkpoint was acknowledged.
        assert!(kind == Kind::Sync && failed > 0, "poisoned by nothing");
        end = End::Poisoned;
    } else {
        trainer.checkpoint(b"last").unwrap();
    }
    trainer.reopen();
    trainer.set_random(&mut Random(9), 4000, 400).unwrap();
    trainer.checkpoint(b"on").unwrap();
    trainer.store.take().unwrap().close().unwrap();
    trainer.inspection_is_clean();
    std::fs::remove_dir_all(&path).unwrap();
    if failed == 0 { End::NotHit } else { end }
}

#[test]
fn whatever_call_of_the_disk_fails_the_error_is_clean_and_the_last_checkpoint_opens() {
    if !own_mounts(
        "whatever_call_of_the_disk_fails_the_error_is_clean_and_the_last_checkpoint_opens",
    ) {
        return;
    }
    let mount = match Mount::new() {
        Ok(mount) => mount,
        Err(why) => return skipped("fuse_faults", &why),
    };
    let bound = environment("HPS_FUSE_CALLS", 6);
    let mut all = 0;
    for (kind, errno) in [
        (Kind::Sync, EIO),
        (Kind::Sync, ENOSPC),
        (Kind::Read, EIO),
        (Kind::Write, EIO),
        (Kind::Write, ENOSPC),
    ] {
        for sticky in [false, true] {
            let every = kind == Kind::Sync && errno == EIO && !sticky;
            let most = if every { ALL_SYNCS } else { bound };
            let (mut ends, mut dropped) = ([0; 4], 0);
            for call in 0..most {
                say(&format!(
                    "{kind:?} {call} fails with {errno}, sticky {sticky}"
                ));
                let end = run(&mount, kind, call, errno, sticky);
                let last = end == End::NotHit;
                ends[end as usize] += 1;
                dropped += mount.faults.dropped().len();
                if last {
                    break;
                }
            }
            let [_, absorbed, repeated, poisoned] = ends;
            let failed = absorbed + repeated + poisoned;
            all += failed;
            say(&format!(
                "{kind:?}, errno {errno}, sticky {sticky}: {failed} failed calls: {absorbed} \
                 absorbed, {repeated} repeated, {poisoned} poisoned; {dropped} files lost bytes"
            ));
            assert_eq!(
                dropped > 0,
                kind == Kind::Sync,
                "only failed syncs lose bytes"
            );
            let expected = if kind == Kind::Sync {
                poisoned
            } else {
                repeated
            };
            assert!(expected > 0, "no call failed as it was meant to");
        }
    }
    say(&format!("fuse_faults: {all} failed calls"));
}

/// A tool's exit code and the object that it prints.
fn tool(path: &str, args: &[&str], directory: &Path) -> (i32, Value) {
    let output = run_tool(path, &[args, &["--json"]].concat(), directory);
    let object = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code().unwrap(), object)
}

fn run_tool(path: &str, args: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(path);
    command.args(args).arg(directory).output().unwrap()
}

const FSCK: &str = env!("CARGO_BIN_EXE_hps-fsck");
const COMPACT: &str = env!("CARGO_BIN_EXE_hps-compact");

/// A plan, with every file read; and one in which no file is.
fn plans(directory: &Path) -> ((i32, Value), (i32, Value)) {
    let unread = tool(COMPACT, &["plan"], directory);
    (tool(COMPACT, &["plan", "--check"], directory), unread)
}

/// `hps-fsck` ended with `read PATH: Input/output error` at the first sector that the device could
/// not read: neither where it is, nor what of the rest is whole. `hps-compact plan` says nothing of
/// a file that it does not read, and had no way to be told to.
#[test]
fn a_sector_that_the_device_lost_is_named_with_its_place_and_as_the_devices_fault() {
    if !own_mounts("a_sector_that_the_device_lost_is_named_with_its_place_and_as_the_devices_fault")
    {
        return;
    }
    let mount = match Mount::new() {
        Ok(mount) => mount,
        Err(why) => return skipped("fuse_faults", &why),
    };
    let path = mount.path("store");
    let mut trainer = Trainer::create(&path, options()).unwrap();
    for seed in 10..20 {
        trainer.set_random(&mut Random(seed), 4000, 400).unwrap();
        trainer.store().flush().unwrap();
    }
    trainer.checkpoint(b"first").unwrap();
    let mut files = trainer.store().files();
    files.retain(|f| f.current);
    trainer.store.take().unwrap().close().unwrap();
    let file = files.iter().max_by_key(|f| f.bytes).unwrap();
    assert!(files.len() > 2 && file.bytes > 64 << 10, "{files:?}");
    let inode = file.path.metadata().unwrap().ino();

    let ((code, plan), (unread, _)) = plans(&path);
    assert_eq!((code, unread), (0, 0));
    assert_eq!(
        (&plan["checked"], &plan["damaged"]),
        (&json!(true), &json!([]))
    );
    assert!(plan["bytes_read"].as_u64().unwrap() > file.bytes);

    // A row, the header, the footer: the store opens without them, or not.
    for (sector, opens) in [(20_480 + 512, true), (100, false), (file.bytes - 1, false)] {
        mount.faults.lose(inode, sector);
        let block = sector / 4096 * 4096;
        let is_it = |finding: &Value| {
            assert_eq!(finding["path"], file.path.to_str().unwrap(), "{finding}");
            assert_eq!(finding["offset"], block, "{finding}");
            let what = finding["what"].as_str().unwrap();
            assert!(
                what.contains("the device can't read it: Input/output error"),
                "{what}"
            );
            assert!(!what.contains("corrupt"), "{what}");
        };
        let (code, report) = tool(FSCK, &[], &path);
        assert_eq!((code, &report["damage"]), (4, &json!(1)), "{report}");
        is_it(&report["findings"][0]);
        assert_eq!(report["files"].as_array().unwrap().len(), files.len());
        let text = run_tool(FSCK, &[], &path).stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        let place = format!(
            "damage: {} at byte {block}: the device",
            file.path.display()
        );
        assert!(text.contains(&place), "{text}");

        let ((code, plan), (unread, old)) = plans(&path);
        assert_eq!(code, 4, "{plan}");
        assert_eq!(plan["damaged"].as_array().unwrap().len(), 1, "{plan}");
        is_it(&plan["damaged"][0]);
        assert_eq!(
            (unread, plan["refused"].is_null()),
            (if opens { 0 } else { 8 }, opens)
        );
        if opens {
            assert_eq!(plan["files"].as_array().unwrap().len(), files.len());
            assert_eq!(old["damaged"], json!([]), "it was not read");
        }
    }
    mount.faults.disarm();

    // What was written there and is not what it was is the file's damage, and not the device's.
    let bytes = std::fs::OpenOptions::new().write(true).open(&file.path);
    bytes.unwrap().write_all_at(&[0xa5; 64], 20_480).unwrap();
    let ((code, plan), (unread, _)) = plans(&path);
    assert_eq!((code, unread), (4, 0));
    let what = plan["damaged"][0]["what"].as_str().unwrap();
    assert!(
        what.contains("checksum") && !what.contains("device"),
        "{what}"
    );
    let text = run_tool(COMPACT, &["plan", "--check"], &path).stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("damage in 1; a run that meets it"), "{text}");
}

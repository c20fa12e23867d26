//! Does a reader get a checkpoint while a writer replaces what it reads, and does it say at once what
//! is damaged?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/small.rs"]
#[expect(dead_code, reason = "tests of opening use the rest")]
mod small;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hps::io::sim::SimDisk;
use hps::io::{DirectoryEntry, Disk, DiskFile, LockGuard, LockKind, OpenMode, Queue, Space};
use hps::*;
use small::{options, set, sgd, values};

const ROOT: &str = "/store";
/// Calls that a reader makes, and their paths.
type Calls = Arc<Mutex<Vec<(&'static str, PathBuf)>>>;

/// What happens before a call.
type Before = Arc<dyn Fn(&'static str, &Path) + Send + Sync>;

/// A reader's disk: something else happens before some of its calls.
#[derive(Clone)]
struct Meanwhile {
    disk: SimDisk,
    calls: Calls,
    before: Before,
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Meanwhile {
    fn tell(&self, call: &'static str, path: &Path) {
        self.calls.lock().unwrap().push((call, path.to_path_buf()));
        (self.before)(call, path);
    }
}

impl Disk for Meanwhile {
    fn name(&self) -> &'static str {
        "meanwhile"
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        self.tell("open", path);
        self.disk.open(path, mode)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirectoryEntry>> {
        self.disk.list(path)
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        self.disk.rename(source, target)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn hard_link(&self, source: &Path, target: &Path) -> io::Result<()> {
        self.disk.hard_link(source, target)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }

    fn lock(&self, path: &Path, kind: LockKind, create: bool) -> io::Result<Box<dyn LockGuard>> {
        self.tell("lock", path);
        self.disk.lock(path, kind, create)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.disk.space(path)
    }

    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>> {
        self.disk.queue(depth, buffer_bytes)
    }
}

/// A store with one checkpoint, and a writer that has not made another yet: its next one starts a new
/// manifest and forgets the one before.
fn writer(disk: &SimDisk) -> (Store, TableId) {
    let one = RuntimeOptions {
        retain_checkpoints: 1,
        inline: true,
        ..options()
    };
    let shared = || Arc::new(disk.clone()) as Arc<dyn Disk>;
    let store = Store::create_on(shared(), Path::new(ROOT), one.clone()).unwrap();
    let table = store.create_table(&sgd("t", 4)).unwrap();
    set(&store, table, &[1], 1.0, 4);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    (
        Store::open_on(shared(), Path::new(ROOT), one).unwrap(),
        table,
    )
}

fn read(disk: &Meanwhile) -> Result<Store> {
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let inline = RuntimeOptions {
        inline: true,
        ..options()
    };
    Store::open_read_only_on(shared, Path::new(ROOT), None, inline)
}

fn ends(path: &Path, end: &str) -> bool {
    path.to_str().unwrap().ends_with(end)
}

#[test]
fn a_reader_goes_on_with_what_a_writer_put_in_the_place_of_what_it_read() {
    for (call, end) in [("open", ".manifest"), ("lock", ".meta")] {
        let disk = SimDisk::new(1);
        let (store, table) = writer(&disk);
        let made = Mutex::new(Some(store));
        let (kept, writing) = (Arc::new(Mutex::new(None)), disk.clone());
        let reader = Meanwhile {
            disk: disk.clone(),
            calls: Calls::default(),
            before: {
                let kept = Arc::clone(&kept);
                Arc::new(move |asked, path| {
                    if asked != call || !ends(path, end) {
                        return;
                    }
                    if let Some(store) = made.lock().unwrap().take() {
                        set(&store, table, &[1, 2], 2.0, 4);
                        store.checkpoint(2, &[]).unwrap();
                        assert!(writing.read_file(path).is_err(), "it is still there");
                        *kept.lock().unwrap() = Some(store);
                    }
                })
            },
        };
        let opened = read(&reader).unwrap_or_else(|e| panic!("{call} of {end}: {e}"));
        assert_eq!(opened.last_checkpoint().unwrap().step, 2, "{call} of {end}");
        assert_eq!(values(&opened, table, &[2], 4), [2.0; 4]);
        opened.close().unwrap();
        let store = kept.lock().unwrap().take();
        store.expect("nothing happened meanwhile").close().unwrap();
    }
}

/// A reader tried a damaged manifest eight times, and a missing meta file for two seconds.
#[test]
fn a_reader_does_not_wait_for_what_is_damaged() {
    for end in [".manifest", ".meta", "CURRENT"] {
        for gone in [false, true] {
            let disk = SimDisk::new(1);
            let (store, _) = writer(&disk);
            store.close().unwrap();
            let path = disk.paths().into_iter().find(|p| ends(p, end)).unwrap();
            if gone {
                disk.remove(&path).unwrap();
            } else if end != ".meta" {
                disk.corrupt(&path, 70, 1).unwrap();
            } else {
                // It is read when it is asked for.
                continue;
            }
            let reader = Meanwhile {
                disk,
                calls: Calls::default(),
                before: Arc::new(|_, _| ()),
            };
            let error = read(&reader).unwrap_err();
            assert!(
                matches!(&error, Error::Corrupt { path: at, .. } if *at == path),
                "{error}"
            );
            let calls = reader.calls.lock().unwrap();
            let manifests = calls.iter().filter(|(_, path)| ends(path, ".manifest"));
            assert!(manifests.count() <= 2, "{end}, {gone}: {calls:?}");
        }
    }
}

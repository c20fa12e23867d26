//! Does a reader get a checkpoint while a writer replaces what it reads, and does it say at once what
//! is damaged?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "tests of opening use the rest")]
mod small;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hooked::{Hook, HookedDisk};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use small::{options, set, sgd, values};

const ROOT: &str = "/store";
/// A store with one checkpoint, and a writer that has not made another yet: its next one starts a new
/// manifest and forgets the one before.
fn writer(disk: &SimDisk) -> (Store, TableId) {
    let one = options().retain_checkpoints(1).inline(true);
    let shared = || Io::of(disk.clone());
    let store =
        Store::create_on(shared(), Path::new(ROOT), CreateOptions::new(), one.clone()).unwrap();
    let table = store.create_table(&sgd("t", 4)).unwrap();
    set(&store, table, &[1], 1.0, 4);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    (
        Store::open_on(shared(), Path::new(ROOT), one).unwrap(),
        table,
    )
}

/// Opens for reading; `before` is called before a file is opened or locked.
fn read(disk: &SimDisk, before: Hook) -> Result<Store> {
    let shared = Io::of(HookedDisk {
        reads: Some(Arc::clone(&before)),
        ..HookedDisk::new(disk.clone(), before)
    });
    let inline = options().inline(true);
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
        let meanwhile: Hook = {
            let kept = Arc::clone(&kept);
            Arc::new(move |asked, path| {
                if asked == call
                    && ends(path, end)
                    && let Some(store) = made.lock().unwrap().take()
                {
                    set(&store, table, &[1, 2], 2.0, 4);
                    store.checkpoint(2, &[]).unwrap();
                    assert!(writing.read_file(path).is_err(), "it is still there");
                    *kept.lock().unwrap() = Some(store);
                }
                None
            })
        };
        let opened = read(&disk, meanwhile).unwrap_or_else(|e| panic!("{call} of {end}: {e}"));
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
            let manifests = Arc::new(AtomicUsize::new(0));
            let counting: Hook = {
                let manifests = Arc::clone(&manifests);
                Arc::new(move |_, path| {
                    manifests.fetch_add(usize::from(ends(path, ".manifest")), Ordering::Relaxed);
                    None
                })
            };
            let error = read(&disk, counting).unwrap_err();
            assert!(
                matches!(&error, Error::Corrupt { path: at, .. } if *at == path),
                "{error}"
            );
            let manifests = manifests.load(Ordering::Relaxed);
            assert!(manifests <= 2, "{end}, {gone}: {manifests} times");
        }
    }
}

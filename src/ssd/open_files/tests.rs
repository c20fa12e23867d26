//! Files that are closed and opened again, on the simulated disk.

use std::path::Path;

use super::*;
use crate::io::sim::{CrashMode, Fault, SimDisk};
use crate::io::{AlignedBuffer, Disk};

/// A disk with a directory, and as many open files as are asked for, at most `max` of them open.
struct Place {
    disk: SimDisk,
    place: Arc<dyn Directory>,
    files: Arc<OpenFiles>,
    poison: Arc<Poison>,
}

impl Place {
    fn new(max: usize) -> Place {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/part")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        let poison = Arc::default();
        Place {
            place: disk.open_dir(Path::new("/part")).unwrap(),
            files: OpenFiles::new(max, &poison),
            disk,
            poison,
        }
    }

    fn make(&self, number: u64) -> Arc<Handle> {
        let name = data_file_name(FileNumber(number));
        self.files.make_room();
        let file = self.place.open(&name, OpenMode::CreateDirect).unwrap();
        file.write_at(&content(number), 0).unwrap();
        self.files
            .adopt(&self.place, FileNumber(number), file, false)
    }
}

fn content(number: u64) -> AlignedBuffer {
    let mut bytes = AlignedBuffer::try_new(4096).unwrap();
    bytes.fill(u8::try_from(number).unwrap());
    bytes
}

fn is_whole(handle: &Handle, number: u64) {
    let mut found = AlignedBuffer::try_new(4096).unwrap();
    assert_eq!(handle.read_at(&mut found, 0).unwrap(), 4096);
    assert!(found[..] == content(number)[..]);
}

#[test]
fn the_coldest_files_are_closed_and_opened_again_when_they_are_read() {
    let place = Place::new(8);
    let handles: Vec<_> = (0..40).map(|n| place.make(n)).collect();
    assert!(place.files.open() <= 8);
    let hot = &handles[3];
    for round in 0..3 {
        for (n, handle) in (0..).zip(&handles) {
            is_whole(handle, n);
            is_whole(hot, 3);
            assert!(place.files.open() <= 8, "round {round}");
        }
    }
    let opened = place.disk.calls_by_kind()["open"];
    assert!(opened <= 3 * 40 + 12, "a hot file stays open: {opened}");
    drop(handles);
    assert_eq!(place.files.open(), 0);
    assert!(place.files.lock().by_number.is_empty());
}

#[test]
fn a_file_is_durable_before_it_is_closed() {
    let place = Place::new(4);
    let handles: Vec<_> = (0..20).map(|n| place.make(n)).collect();
    place.disk.sync_dir(Path::new("/part")).unwrap();
    let left = place.disk.crash(1, CrashMode::KeepNone);
    let closed = handles.iter().filter(|h| h.lock().is_none()).count();
    assert_eq!(closed, 16);
    for (n, handle) in (0..).zip(&handles) {
        let path = Path::new("/part").join(data_file_name(FileNumber(n)));
        let bytes = left.read_file(&path).unwrap();
        assert_eq!(bytes == content(n)[..], handle.is_synced(), "file {n}");
    }
    assert_eq!(place.disk.calls_by_kind()["sync"], 16);
    for handle in &handles {
        handle.make_durable().unwrap();
    }
    assert_eq!(
        place.disk.calls_by_kind()["sync"],
        20,
        "none is synced twice"
    );
}

#[test]
fn a_sync_that_fails_when_a_file_is_closed_refuses_writes_and_is_not_repeated() {
    let place = Place::new(2);
    let handles: Vec<_> = (0..2).map(|n| place.make(n)).collect();
    place
        .disk
        .fail_at(place.disk.calls(), Fault::Error(5), false);
    place.files.make_room();
    assert!(place.poison.check().is_err());
    let failed = handles.iter().filter(|h| h.make_durable().is_err());
    assert_eq!(failed.count(), 1);
    assert_eq!(place.disk.calls_by_kind()["sync"], 2);
}

#[test]
fn a_file_that_loses_its_name_stays_open_for_whoever_has_it() {
    let place = Place::new(2);
    let handles: Vec<_> = (0..6).map(|n| place.make(n)).collect();
    assert!(handles[0].lock().is_none());
    for n in 0..2 {
        place.files.keep(FileNumber(n)).unwrap();
        place.place.remove(&data_file_name(FileNumber(n))).unwrap();
    }
    for _ in 0..3 {
        for (n, handle) in (0..).zip(&handles) {
            is_whole(handle, n);
        }
    }
}

/// Every file ever made left an entry behind, and its memory, until as many were open as may be: a
/// store that flushes and compacts for weeks below the bound grew without one.
#[test]
fn files_that_come_and_go_leave_nothing_behind() {
    let place = Place::new(1000);
    let kept: Vec<_> = (0..10).map(|n| place.make(n)).collect();
    for _ in 0..50 {
        let young: Vec<_> = (10..110).map(|n| place.make(n)).collect();
        drop(young);
        for n in 10..110 {
            place.place.remove(&data_file_name(FileNumber(n))).unwrap();
        }
    }
    let handles = place.files.lock();
    let (entries, numbers) = (handles.clock.len(), handles.by_number.len());
    assert!(entries < 300, "{entries} entries for {numbers} files");
    let live = handles.clock.iter().filter(|h| h.strong_count() > 0);
    assert_eq!((numbers, live.count()), (kept.len(), kept.len()));
}

/// After a failed sync other files were synced before they were closed, and the one that failed was
/// tried, and logged, at each read of a closed file: it stayed open, whatever the bound.
#[test]
fn once_a_sync_has_failed_none_is_made_any_more_and_the_bound_holds() {
    let place = Place::new(4);
    let mut handles: Vec<_> = (0..4).map(|n| place.make(n)).collect();
    let next = place.disk.calls();
    place.disk.fail_at(next, Fault::Error(5), false);
    place.files.make_room();
    assert!(place.poison.check().is_err());
    handles.extend((4..12).map(|n| place.make(n)));
    for (n, handle) in (0..).zip(&handles) {
        is_whole(handle, n);
        assert!(place.files.open() <= 4, "{} open", place.files.open());
    }
    assert_eq!(place.disk.calls_by_kind()["sync"], 1);
}

#[test]
fn durable_files_are_closed_first_until_most_that_may_be_open_are_not() {
    for (unsynced, closed, syncs) in [(5, 5, 0), (6, 0, 1)] {
        let place = Place::new(10);
        let handles: Vec<_> = (0..10)
            .map(|n| {
                let handle = place.make(n);
                if n >= unsynced {
                    handle.make_durable().unwrap();
                }
                handle
            })
            .collect();
        let before = place.disk.calls_by_kind().get("sync").copied();
        place.files.make_room();
        let after = place.disk.calls_by_kind().get("sync").copied();
        assert_eq!(after.unwrap() - before.unwrap_or(0), syncs);
        let open: Vec<bool> = handles.iter().map(|h| h.lock().is_some()).collect();
        let expected: Vec<bool> = (0..10).map(|n| n != closed).collect();
        assert_eq!((open, place.files.open()), (expected, 9));
        assert_eq!(place.files.max(), 10);
        place.files.make_room();
        assert_eq!(place.files.open(), 9, "there is room");
    }
}

#[test]
fn a_call_is_made_again_once_descriptors_were_given_back() {
    let place = Place::new(100);
    let calls = AtomicUsize::new(0);
    let fails = |errno: i32, times: usize| {
        calls.store(0, Ordering::Relaxed);
        place
            .files
            .with_descriptor(|| match calls.fetch_add(1, Ordering::Relaxed) < times {
                true => Err(io::Error::from_raw_os_error(errno)),
                false => Ok(7),
            })
    };
    let emfile = 24;
    assert_eq!(fails(emfile, 0).unwrap(), 7);
    assert!(fails(emfile, 1).is_err(), "none is open");
    assert!(!place.files.give_back());
    let handles: Vec<_> = (0..20).map(|n| place.make(n)).collect();
    assert_eq!(fails(emfile, 1).unwrap(), 7);
    assert_eq!((place.files.open(), calls.load(Ordering::Relaxed)), (4, 2));
    assert!(fails(5, 1).is_err(), "another error");
    assert_eq!((place.files.open(), calls.load(Ordering::Relaxed)), (4, 1));
    assert!(fails(emfile, 2).is_err(), "only once more");
    assert_eq!((place.files.open(), place.files.reopened()), (0, 0));
    is_whole(&handles[3], 3);
    is_whole(&handles[3], 3);
    assert_eq!((place.files.open(), place.files.reopened()), (1, 1));
    let all = OpenFiles::new(usize::MAX, &place.poison);
    assert_eq!(all.max(), 0);
    let file = handles[3].get().unwrap();
    let _handle = all.adopt(&place.place, FileNumber(3), file, true);
    assert_eq!((all.max(), all.open()), (1, 1));
}

#[test]
fn a_handle_is_the_file_it_stands_for_but_for_writes() {
    let place = Place::new(100);
    let handle = place.make(3);
    assert!(!handle.is_synced() && handle.is_direct());
    assert_eq!((handle.bytes().unwrap(), handle.align_bytes()), (4096, 512));
    assert!(handle.write_at(&content(3), 0).is_err() && handle.raw_fd().is_none());
    handle.sync().unwrap();
    assert!(handle.is_synced());
    let plain = place
        .place
        .open(&data_file_name(FileNumber(3)), OpenMode::Read)
        .unwrap();
    let fixed = Handle::fixed(plain, false);
    assert!(!fixed.is_direct() && !fixed.is_synced() && fixed.is_kept());
    assert_eq!((fixed.align_bytes(), fixed.bytes().unwrap()), (1, 4096));
    let unsynced = || place.files.unsynced.load(Ordering::Relaxed);
    assert_eq!(unsynced(), 0);
    let other = place.make(4);
    assert_eq!((unsynced(), other.is_kept()), (1, false));
    place.files.keep(FileNumber(4)).unwrap();
    assert!(other.is_kept());
    drop(other);
    assert_eq!((unsynced(), place.files.open()), (0, 1));
    drop(handle);
    assert_eq!((unsynced(), place.files.open()), (0, 0));
}

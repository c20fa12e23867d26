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
        let name = data_file_name(number);
        self.files.make_room();
        let file = self.place.open(&name, OpenMode::CreateDirect).unwrap();
        file.write_at(&content(number), 0).unwrap();
        self.files.adopt(&self.place, number, file, false)
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
        let path = Path::new("/part").join(data_file_name(n));
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
        place.files.keep(n).unwrap();
        place.place.remove(&data_file_name(n)).unwrap();
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
            place.place.remove(&data_file_name(n)).unwrap();
        }
    }
    let handles = place.files.lock();
    let (entries, numbers) = (handles.clock.len(), handles.by_number.len());
    assert!(entries < 300, "{entries} entries for {numbers} files");
    assert_eq!(numbers, kept.len());
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

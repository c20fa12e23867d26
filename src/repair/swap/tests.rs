//! Two directories change places, on the simulated disk.

use std::sync::Arc;

use super::*;
use crate::io::Disk;
use crate::io::sim::{Fault, SimDisk};

const EIO: i32 = 5;

/// A damaged store and, marked, a repaired one.
fn both() -> (SimDisk, Arc<dyn Directory>) {
    let disk = SimDisk::new(1);
    for (name, file) in [
        ("/store", "/store/old"),
        ("/store.repair", "/store.repair/new"),
    ] {
        disk.create_dir(Path::new(name)).unwrap();
        disk.write_file(Path::new(file), b"content").unwrap();
    }
    disk.write_file(Path::new("/store.repair/REPAIR"), &[])
        .unwrap();
    let parent = disk.open_dir(Path::new("/")).unwrap();
    (disk, parent)
}

fn files(disk: &SimDisk) -> Vec<String> {
    let paths = disk.paths().into_iter();
    paths.map(|p| p.to_str().unwrap().to_owned()).collect()
}

fn change_places(parent: &dyn Directory) -> Result<OsString> {
    swap(parent, OsStr::new("store"), OsStr::new("store.repair"))
}

#[test]
fn two_stores_change_places_and_the_repaired_one_loses_its_mark() {
    let (disk, parent) = both();
    assert_eq!(change_places(&*parent).unwrap(), "store.damaged");
    assert_eq!(files(&disk), ["/store/new", "/store.damaged/old"]);
    // And no more is to be done.
    let done = finish(&*parent, OsStr::new("store"), OsStr::new("store.repair"));
    assert_eq!(done.unwrap(), None);
    assert_eq!(files(&disk), ["/store/new", "/store.damaged/old"]);
}

/// EINVAL, ENOSYS and EOPNOTSUPP come of file systems that can't exchange names.
#[test]
fn where_names_can_not_be_exchanged_they_are_renamed_one_after_the_other() {
    for errno in [22, 38, 95] {
        let (disk, parent) = both();
        disk.fail_at(disk.calls(), Fault::Error(errno), false);
        assert_eq!(change_places(&*parent).unwrap(), "store.damaged", "{errno}");
        assert_eq!(
            files(&disk),
            ["/store/new", "/store.damaged/old"],
            "{errno}"
        );
    }
}

#[test]
fn a_store_that_can_not_take_the_others_name_leaves_both_where_they_were() {
    let before = files(&both().0);
    let (disk, parent) = both();
    disk.fail_at(disk.calls(), Fault::Error(EIO), false);
    let error = change_places(&*parent).unwrap_err().to_string();
    assert!(
        error.contains("exchange with the repaired store"),
        "{error}"
    );
    assert_eq!(files(&disk), before);
    // Not exchanged; a free name is looked for; the first rename; the second, which fails.
    let (disk, parent) = both();
    disk.fail_at(disk.calls(), Fault::Error(22), false);
    disk.fail_at(disk.calls() + 3, Fault::Error(EIO), false);
    let error = change_places(&*parent).unwrap_err().to_string();
    assert!(error.contains("rename /store.repair"), "{error}");
    assert_eq!(files(&disk), before);
}

/// What a crash cut short behind the exchange.
#[test]
fn a_swap_that_was_cut_off_is_ended() {
    let (disk, parent) = both();
    let finish = || finish(&*parent, OsStr::new("store"), OsStr::new("store.repair"));
    assert_eq!(finish().unwrap(), None, "not begun");
    assert_eq!(files(&disk), files(&both().0));
    parent
        .exchange(OsStr::new("store"), OsStr::new("store.repair"))
        .unwrap();
    assert_eq!(finish().unwrap(), Some(OsString::from("store.damaged")));
    assert_eq!(files(&disk), ["/store/new", "/store.damaged/old"]);
    // Cut off behind the second name, too: only the mark is there.
    disk.write_file(Path::new("/store/REPAIR"), &[]).unwrap();
    assert_eq!(finish().unwrap(), None);
    assert_eq!(files(&disk), ["/store/new", "/store.damaged/old"]);
    // Another repair that was cut off stands beside: it is not this store's damaged one.
    disk.write_file(Path::new("/store/REPAIR"), &[]).unwrap();
    disk.create_dir(Path::new("/store.repair")).unwrap();
    disk.write_file(Path::new("/store.repair/REPAIR"), &[])
        .unwrap();
    assert_eq!(finish().unwrap(), None);
    assert!(files(&disk).contains(&String::from("/store.repair/REPAIR")));
}

#[test]
fn whatever_has_the_name_for_the_damaged_store_keeps_it() {
    let (disk, parent) = both();
    disk.create_dir(Path::new("/store.damaged")).unwrap();
    disk.write_file(Path::new("/store.damaged-2"), b"notes")
        .unwrap();
    let free = || free_name(&*parent, OsStr::new("store"));
    assert_eq!(free().unwrap(), "store.damaged-3");
    disk.create_dir(Path::new("/store.damaged-3")).unwrap();
    assert_eq!(free().unwrap(), "store.damaged-4");
    // A name of which nothing is known is not taken.
    for call in 0..4 {
        disk.fail_at(disk.calls() + call, Fault::Error(EIO), false);
        let error = free().unwrap_err().to_string();
        assert!(error.contains("find a free name beside"), "{error}");
    }
}

//! Where repaired stores are begun and cleared, on the simulated disk.

use super::*;
use crate::io::Disk;
use crate::io::sim::{Fault, SimDisk};

fn disk(directories: &[&str], files: &[&str]) -> SimDisk {
    let disk = SimDisk::new(1);
    for name in directories {
        disk.create_dir(Path::new(name)).unwrap();
    }
    for name in files {
        disk.write_file(Path::new(name), b"content").unwrap();
    }
    disk
}

fn at(disk: &SimDisk, path: &str) -> Arc<dyn Directory> {
    disk.open_dir(Path::new(path)).unwrap()
}

fn files(disk: &SimDisk) -> Vec<String> {
    let paths = disk.paths().into_iter();
    paths.map(|p| p.to_str().unwrap().to_owned()).collect()
}

#[test]
fn only_what_is_not_there_counts_as_absent() {
    let disk = disk(&["/a"], &["/b"]);
    let root = at(&disk, "/");
    let open = |name: &str| open_if_there(&*root, Path::new(name));
    assert!(open("a").unwrap().is_some());
    assert!(open("b").unwrap().is_none());
    assert!(open("c").unwrap().is_none());
    disk.fail_at(disk.calls(), Fault::Error(5), false);
    assert!(matches!(open("a"), Err(Error::Io { .. })));
}

/// Directories above those inside the store are made with them.
#[test]
fn data_directories_stand_where_the_damaged_ones_do_and_elsewhere_beside_them() {
    let disk = disk(
        &["/store", "/store/x", "/store/x/y", "/big"],
        &["/big/PART"],
    );
    let (root, parent) = (at(&disk, "/store"), at(&disk, "/"));
    let names = ["x/y", "/big", "/gone"].map(PathBuf::from);
    let mut parts = parts(&*root, Path::new("/store.repair"), &names, &[2]).unwrap();
    let found: Vec<_> = parts
        .iter()
        .map(|p| (p.name.as_str(), p.inside, p.given_up, p.source.is_some()))
        .collect();
    let right = [
        ("x/y", true, false, true),
        ("/big/repaired-1", false, false, true),
        ("part-2", true, true, false),
    ];
    assert_eq!(found, right);
    let new: Vec<_> = parts.iter().map(|p| p.new.clone()).collect();
    let right = [
        "/store.repair/x/y",
        "/big/repaired-1",
        "/store.repair/part-2",
    ];
    assert_eq!(new, right.map(PathBuf::from));
    assert!(parts[0].place().is_err(), "it is not made yet");
    let place = begin(&*parent, OsStr::new("store.repair"), &mut parts).unwrap();
    assert!(is_marked(&*place).unwrap() && !is_marked(&*root).unwrap());
    let mark = disk.read_file(Path::new("/store.repair/REPAIR")).unwrap();
    assert_eq!(String::from_utf8(mark).unwrap(), "/big/repaired-1\npart-2");
    for (part, path) in parts.iter().zip(&new) {
        let made = part.place().unwrap();
        assert_eq!(made.path().file_name(), path.file_name());
        assert!(disk.open_dir(path).is_ok(), "{path:?}");
    }
}

#[test]
fn a_name_is_taken_by_what_is_in_it_and_by_another_part() {
    let disk = disk(
        &[
            "/store",
            "/big",
            "/big/repaired-1",
            "/big/repaired-2",
            "/big/repaired-3",
        ],
        &["/big/repaired-1/PART", "/big/repaired-3/PART"],
    );
    let root = at(&disk, "/store");
    let names = ["/big", "/big/repaired-1", "/big/repaired-3"].map(PathBuf::from);
    let parts = parts(&*root, Path::new("/store.repair"), &names, &[]).unwrap();
    let names: Vec<_> = parts.iter().map(|p| p.name.as_str()).collect();
    // An empty one is free.
    assert_eq!(
        names,
        ["/big/repaired-2", "/big/repaired-4", "/big/repaired-5"]
    );
}

#[test]
fn a_new_name_inside_the_store_is_none_that_it_has() {
    let names = ["part-1", "/gone", "part-1-new"].map(PathBuf::from);
    assert_eq!(name_inside(1, &names).unwrap(), "part-1-new-new");
    assert_eq!(name_inside(0, &names).unwrap(), "part-0");
}

#[test]
fn what_an_unfinished_repair_made_is_cleared_and_nothing_else() {
    let disk = disk(
        &[
            "/big",
            "/big/repaired-1",
            "/store.repair",
            "/store.repair/a",
        ],
        &[
            "/big/000000000001.rows",
            "/big/repaired-1/000000000002.rows",
            "/store.repair/a/000000000003.rows",
        ],
    );
    let parent = at(&disk, "/");
    let parts = ["a", "/big"].map(PathBuf::from);
    let clear = || clear(&*parent, OsStr::new("store.repair"), &parts);
    // Empty but for directories: there is nothing to clear.
    clear().unwrap();
    assert_eq!(files(&disk).len(), 3);
    for name in ["STORE", "CURRENT", "000000000009.manifest", "LOCK"] {
        let path = Path::new("/store.repair").join(name);
        disk.write_file(&path, b"content").unwrap();
    }
    let before = files(&disk);
    let error = clear().unwrap_err().to_string();
    assert!(
        error.contains("is no unfinished repair") && error.contains("move it away"),
        "{error}"
    );
    assert_eq!(files(&disk), before);
    disk.write_file(Path::new("/store.repair/REPAIR"), b"\n/big/repaired-1\n")
        .unwrap();
    disk.write_file(Path::new("/store.repair/notes"), b"mine")
        .unwrap();
    let error = clear().unwrap_err().to_string();
    assert!(
        error.contains("\"notes\"") && error.contains("move it away"),
        "{error}"
    );
    let kept = ["notes", "STORE", "REPAIR"].map(|n| format!("/store.repair/{n}"));
    assert!(kept.iter().all(|name| files(&disk).contains(name)));
    disk.remove(Path::new("/store.repair/notes")).unwrap();
    clear().unwrap();
    assert_eq!(files(&disk), ["/big/000000000001.rows"]);
}

/// What is cut short is no store: the first name to go is STORE.
#[test]
fn a_store_is_cleared_from_its_store_file_on() {
    let disk = disk(
        &["/place"],
        &["/place/CURRENT", "/place/LOCK", "/place/STORE"],
    );
    let place = at(&disk, "/place");
    // Its names are listed, one file is removed, the second is not.
    disk.fail_at(disk.calls() + 2, Fault::Error(5), false);
    assert!(clear_files(&*place).is_err());
    assert_eq!(files(&disk), ["/place/CURRENT", "/place/LOCK"]);
}

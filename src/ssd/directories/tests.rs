//! What is said of a directory that is missing, another one, or none.

use super::*;
use crate::format::FileKind;
use crate::format::identity::encode_part;
use crate::io::sim::{Fault, SimDisk};
use crate::units::FileNumber;

const STORE: [u8; 16] = [7; 16];
const EACCES: i32 = 13;
const EIO: i32 = 5;

fn disk() -> SimDisk {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/store")).unwrap();
    disk
}

fn root(disk: &SimDisk) -> Arc<dyn Directory> {
    open_root(disk, Path::new("/store")).unwrap()
}

fn write(disk: &SimDisk, name: &str, content: &[u8]) {
    disk.write_file(&Path::new("/store").join(name), content)
        .unwrap();
}

#[test]
fn a_path_that_is_no_directory_is_no_store() {
    let disk = disk();
    write(&disk, "file", b"");
    let why = |path: &str| open_root(&disk, Path::new(path)).unwrap_err().to_string();
    assert!(why("/none").contains("not a store: no such directory"));
    assert!(why("/store/file").contains("not a store: not a directory"));
    disk.fail_at(disk.calls(), Fault::Error(EIO), false);
    let error = why("/store");
    assert!(
        error.contains("os error 5") && error.contains("open"),
        "{error}"
    );
}

#[test]
fn a_directory_without_store_says_what_it_is_instead() {
    let disk = disk();
    let why = || read_store(&*root(&disk)).unwrap_err().to_string();
    assert!(why().contains("there is no file STORE in it"));
    write(&disk, PART_NAME, b"");
    assert!(why().contains("it is a data directory of a store"));
    write(&disk, LOCK_NAME, b"");
    assert!(why().contains("creation did not finish"));
    let directories = vec![String::from("a"), String::from("/b")];
    let right = StoreIdentity {
        uuid: STORE,
        directories,
    };
    write(&disk, STORE_NAME, &right.encode().unwrap());
    let expected = (STORE, vec![PathBuf::from("a"), PathBuf::from("/b")]);
    assert_eq!(read_store(&*root(&disk)).unwrap(), expected);
}

#[test]
fn a_data_directory_is_the_one_with_its_index_or_missing_or_damaged() {
    let disk = disk();
    let root = root(&disk);
    let part = |name: &str, index: u32| {
        disk.create_dir(&Path::new("/store").join(name)).unwrap();
        write(
            &disk,
            &format!("{name}/{PART_NAME}"),
            &encode_part(&STORE, index),
        );
    };
    part("a", 0);
    part("b", 1);
    let names = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
    let open = |moved: &[&str]| {
        open_parts(&*root, &STORE, &names(&["a", "b"]), &names(moved)).map(|parts| {
            let path = |part: &Arc<dyn Directory>| part.path().to_path_buf();
            parts.iter().map(path).collect::<Vec<_>>()
        })
    };
    let paths = ["/store/a", "/store/b"].map(PathBuf::from);
    assert_eq!(open(&[]).unwrap(), paths);
    assert_eq!(open(&["a", "/store/b"]).unwrap(), paths);
    let error = open(&["a"]).unwrap_err().to_string();
    assert!(
        error.contains("moved_directories: 1 given, 2 needed"),
        "{error}"
    );
    let error = open(&["b", "a"]).unwrap_err().to_string();
    assert!(
        error.contains("data directory 1 stands in the place of 0"),
        "{error}"
    );
    let missing = |name: &str| {
        let error = match open(&["a", name]).unwrap_err() {
            Error::MissingDirectory { index, empty, .. } => return Some((index, empty)),
            error => error,
        };
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        None
    };
    assert_eq!(missing("none"), Some((1, false)));
    disk.create_dir(Path::new("/store/bare")).unwrap();
    assert_eq!(missing("bare"), Some((1, true)));
    write(&disk, "bare/lost+found", b"");
    assert_eq!(
        missing("bare"),
        Some((1, true)),
        "nothing of a store is in it"
    );
    write(&disk, "bare/000000000007.rows", b"");
    assert_eq!(missing("bare"), None, "its PART is gone, its files are not");
    disk.create_dir(Path::new("/store/junk")).unwrap();
    write(&disk, &format!("junk/{PART_NAME}"), b"junk");
    assert_eq!(missing("junk"), None, "a PART that is damaged");
    let meta = format::file_name(FileKind::Meta, FileNumber(7));
    disk.create_dir(Path::new("/store/metas")).unwrap();
    write(&disk, &format!("metas/{meta}"), b"");
    assert_eq!(missing("metas"), None);
    write(&disk, "file", b"");
    let error = open(&["a", "file"]).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    disk.fail_at(disk.calls() + 2, Fault::Error(EIO), false);
    assert!(matches!(open(&[]).unwrap_err(), Error::Io { .. }));
}

#[test]
fn a_directory_is_made_where_there_is_none_and_used_where_there_is_one() {
    let disk = disk();
    let syncs = || disk.calls_by_kind().get("sync_dir").copied().unwrap_or(0);
    let before = syncs();
    let made = make_dir(&disk, Path::new("/store/new")).unwrap();
    assert_eq!(
        (made.path(), syncs() - before),
        (Path::new("/store/new"), 1)
    );
    make_dir(&disk, Path::new("/store/new")).unwrap();
    assert_eq!(syncs() - before, 2, "its name may not be durable yet");
    make_dir_in(&*made, Path::new("part")).unwrap();
    assert!(disk.open_dir(Path::new("/store/new/part")).is_ok());
    assert_eq!(
        make_dir(&disk, Path::new("/")).unwrap().path(),
        Path::new("/")
    );
    let failed = |path: &str, call: u64, errno| {
        disk.clear_faults();
        disk.fail_at(disk.calls() + call, Fault::Error(errno), false);
        make_dir(&disk, Path::new(path))
    };
    // Calls: the directory, the one above, the making, the directory again.
    assert!(failed("/store/new", 1, EACCES).is_ok(), "it is there");
    for (path, call, errno) in [
        ("/store/new", 1, EIO),
        ("/store/new", 0, EIO),
        ("/store/none", 1, EACCES),
        ("/store/none", 2, EACCES),
        ("/store/none", 3, EIO),
    ] {
        let error = failed(path, call, errno).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{path} {call}: {error}");
        disk.clear_faults();
        drop(disk.remove(Path::new("/store/none")));
    }
    let missing = make_dir(&disk, Path::new("/none/new")).unwrap_err();
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
    // Somebody else has made it meanwhile.
    disk.clear_faults();
    disk.fail_at(disk.calls(), Fault::Error(2), false);
    assert!(make_dir(&disk, Path::new("/store/new")).is_ok());
}

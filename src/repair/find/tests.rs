//! Which store it is and which version is its last, on the simulated disk.

use std::sync::Arc;

use super::*;
use crate::format::Version as FormatVersion;
use crate::format::identity::{StoreIdentity, encode_part};
use crate::format::manifest::{CheckpointMeta, Edit, encode_edit, encode_manifest_header};
use crate::io::Disk;
use crate::io::sim::{Fault, SimDisk};

const STORE: [u8; 16] = [7; 16];
const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EMFILE: i32 = 24;

/// A disk with a directory.
struct Place {
    disk: SimDisk,
    root: Arc<dyn Directory>,
}

impl Place {
    fn new() -> Place {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/store")).unwrap();
        let root = disk.open_dir(Path::new("/store")).unwrap();
        Place { disk, root }
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = Path::new("/store").join(name);
        self.disk.write_file(&path, content).unwrap();
    }

    /// A data directory.
    fn part(&self, name: &str, store: [u8; 16], index: u32) {
        let path = Path::new("/store").join(name);
        self.disk.create_dir(&path).unwrap();
        let path = path.join(PART_NAME);
        self.disk
            .write_file(&path, &encode_part(&store, index))
            .unwrap();
    }

    /// A manifest of checkpoints without files; how long it is before the last of them.
    fn manifest(&self, number: u64, ids: &[u64]) -> usize {
        let (content, before) = manifest_of(number, ids);
        let [name, copy] = manifest_names(FileNumber(number));
        self.write(&name, &content);
        self.write(&copy, &content);
        before
    }

    /// A CURRENT that commits another manifest, which is not there.
    fn current(&self, checkpoint: u64) {
        let current = Current {
            version: FormatVersion::NEWEST,
            timeline: [1; 16],
            manifest_number: FileNumber(99),
            manifest_bytes: 4096,
            manifest_digest: 1,
            checkpoint_id: CheckpointId(checkpoint),
            step: checkpoint,
            file_number_limit: FileNumber(100),
            next_checkpoint_id: CheckpointId(checkpoint + 1),
        };
        self.write("CURRENT", &current.encode(&STORE));
    }

    fn versions(&self) -> Result<Version> {
        versions(&*self.root, &STORE)
    }

    /// The last checkpoint that is found, and whether later ones may be lost.
    fn found(&self) -> (u64, bool) {
        let found = self.versions().unwrap();
        assert!(!found.proven);
        (
            found.replay.checkpoints.last().unwrap().id.0,
            found.lost.is_some(),
        )
    }
}

fn manifest_of(number: u64, ids: &[u64]) -> (Vec<u8>, usize) {
    let identity = FileIdentity::new(STORE, FileNumber(number));
    let (header, mut digest) = encode_manifest_header(FormatVersion::NEWEST, &identity);
    let mut content = header.to_vec();
    let timeline = Edit::Timeline {
        uuid: [1; 16],
        parent_checkpoint: CheckpointId::NONE,
    };
    let checkpoint = |id: &u64| {
        Edit::Checkpoint(CheckpointMeta {
            id: CheckpointId(*id),
            step: *id,
            interval: 1,
            next_rank: 1,
            meta_number: FileNumber(1),
            meta_bytes: 4096,
            meta_checksum: 1,
            unix_seconds: 1,
        })
    };
    let mut before = 0;
    for edit in [timeline].into_iter().chain(ids.iter().map(checkpoint)) {
        before = content.len();
        let (version, offset) = (FormatVersion::NEWEST, before as u64);
        encode_edit(version, &edit, &identity, offset, &mut content, &mut digest);
    }
    (content, before)
}

/// What `identity` says of a store whose STORE is damaged or gone.
fn why(place: &Place) -> String {
    identity(&*place.root).unwrap_err().to_string()
}

#[test]
fn a_store_says_which_it_is_by_its_data_directories_where_store_is_damaged() {
    let place = Place::new();
    place.write("STORE", b"junk");
    assert!(why(&place).contains("restore STORE from a backup"));
    place.part("b", STORE, 1);
    assert!(
        why(&place).contains("restore STORE from a backup"),
        "0 is missing"
    );
    place.part("a", STORE, 0);
    let names = ["a", "b"].map(PathBuf::from);
    assert_eq!(identity(&*place.root).unwrap(), (STORE, names.to_vec()));
    place.part("d", STORE, 3);
    assert!(
        why(&place).contains("restore STORE from a backup"),
        "2 is missing"
    );
    place.part("c", STORE, 1);
    let both = why(&place);
    assert!(
        both.contains("b and c both say that they are data directory 1"),
        "{both}"
    );
    // What verifies is believed first.
    let directories = vec![String::from("x")];
    let right = StoreIdentity {
        uuid: [8; 16],
        directories,
    };
    place.write("STORE", &right.encode().unwrap());
    assert_eq!(identity(&*place.root).unwrap().0, [8; 16]);
}

#[test]
fn data_directories_of_two_stores_do_not_say_which_one_it_is() {
    let place = Place::new();
    place.write(&file_name(FileKind::Manifest, FileNumber(1)), b"junk");
    place.part("a", STORE, 0);
    assert_eq!(identity(&*place.root).unwrap().0, STORE, "STORE is gone");
    place.part("b", [9; 16], 0);
    assert!(why(&place).contains("restore STORE from a backup"));
}

#[test]
fn a_directory_of_something_else_is_no_damaged_store() {
    let place = Place::new();
    for name in ["", "notes"] {
        if !name.is_empty() {
            place.write(name, b"mine");
        }
        let error = identity(&*place.root).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    place.write(&file_name(FileKind::Manifest, FileNumber(1)), b"junk");
    assert!(matches!(identity(&*place.root), Err(Error::Corrupt { .. })));
}

#[test]
fn the_manifest_with_the_last_checkpoint_is_the_one() {
    let place = Place::new();
    assert!(place.versions().is_err(), "there is none");
    place.manifest(1, &[3, 4]);
    assert_eq!(place.found(), (4, false));
    place.manifest(2, &[4, 5]);
    assert_eq!(place.found(), (5, false));
    // One that was just begun.
    place.manifest(3, &[3]);
    assert_eq!(place.found(), (5, false));
    // What there is no checkpoint in says nothing.
    place.manifest(4, &[]);
    assert_eq!(place.found(), (5, false));
    assert_eq!(place.versions().unwrap().replay.checkpoints.len(), 2);
}

/// A CURRENT of another time, whose manifest is gone.
#[test]
fn checkpoints_are_lost_where_current_knows_a_later_one() {
    let place = Place::new();
    place.manifest(1, &[3, 5]);
    for (current, lost) in [(4, false), (5, false), (6, true)] {
        place.current(current);
        assert_eq!(place.found(), (5, lost), "{current}");
    }
}

#[test]
fn what_is_behind_a_damaged_edit_may_be_lost() {
    let place = Place::new();
    let last = place.manifest(1, &[3, 5]);
    let [name, copy] = manifest_names(FileNumber(1)).map(|name| Path::new("/store").join(name));
    for path in [&name, &copy] {
        let bytes = place.disk.read_file(path).unwrap().len();
        place.disk.corrupt(path, last as u64 + 20, 1).unwrap();
        assert!(bytes > last + 20);
        let damaged = *path == copy;
        assert_eq!(place.found(), (if damaged { 3 } else { 5 }, damaged));
    }
    // Another manifest that says the same and is whole loses nothing.
    place.manifest(2, &[3]);
    assert_eq!(place.found(), (3, false));
    let place = Place::new();
    place.manifest(1, &[3]);
    let last = place.manifest(2, &[3, 5]);
    for path in [&name, &copy].map(|path| {
        path.with_file_name(
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .replace('1', "2"),
        )
    }) {
        place.disk.corrupt(&path, last as u64 + 20, 1).unwrap();
    }
    assert_eq!(place.found(), (3, false));
}

/// A whole edit that can't be: nothing behind it is believed.
#[test]
fn an_edit_that_does_not_fit_ends_what_is_believed() {
    let place = Place::new();
    place.manifest(1, &[3, 5, 5, 6]);
    assert_eq!(place.found(), (5, true));
}

/// Lack of descriptors or memory says nothing of a store.
#[test]
fn a_version_is_not_guessed_where_files_can_not_be_read_for_another_cause() {
    let place = Place::new();
    place.manifest(1, &[3]);
    place.manifest(2, &[4]);
    for current in [false, true] {
        if current {
            place.current(4);
        }
        let before = place.disk.calls();
        assert_eq!(place.found(), (4, false));
        for call in 0..place.disk.calls() - before {
            let call = place.disk.calls() + call;
            for errno in [EMFILE, ENOMEM] {
                place.disk.fail_at(call, Fault::Error(errno), true);
                let found = place.versions();
                assert!(
                    matches!(found, Err(Error::Io { .. })),
                    "{current}, {call}: {errno}"
                );
                place.disk.clear_faults();
            }
        }
    }
}

#[test]
fn of_a_file_only_what_the_device_has_lost_is_zeros() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..(1 << 20) + 5000)
        .map(|i: u32| (i % 251) as u8 + 1)
        .collect();
    place.write("1.manifest", &bytes);
    let read = |bytes_max| read_pieces(&*place.root, "1.manifest", bytes_max);
    assert!(read(u64::MAX).unwrap() == bytes);
    assert!(read(1000).unwrap() == bytes[..1000]);
    assert!(
        read_pieces(&*place.root, "2.manifest", 9)
            .unwrap()
            .is_empty(),
        "gone"
    );
    place
        .disk
        .create_dir(Path::new("/store/3.manifest"))
        .unwrap();
    assert!(
        read_pieces(&*place.root, "3.manifest", 9)
            .unwrap()
            .is_empty(),
        "a directory"
    );
    // Opened, measured, read in two pieces.
    for (call, left) in [(0, 0), (1, 0), (2, bytes.len()), (3, bytes.len())] {
        place
            .disk
            .fail_at(place.disk.calls() + call, Fault::Error(EIO), false);
        let found = read(u64::MAX).unwrap();
        assert!(found == bytes[..left], "{call}: {}", found.len());
        place
            .disk
            .fail_at(place.disk.calls() + call, Fault::Error(ENOMEM), false);
        assert!(read(u64::MAX).is_err(), "{call}");
    }
    place
        .disk
        .lose_sector(Path::new("/store/1.manifest"), 1024)
        .unwrap();
    let mut right = bytes;
    right[1024..1536].fill(0);
    assert!(read(u64::MAX).unwrap() == right);
}

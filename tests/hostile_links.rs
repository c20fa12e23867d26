//! What happens when a name in a store is not the file that it should be?
//!
//! - Each file and directory is replaced by links, a FIFO, a device, a directory; the names of
//!   files to come are taken; STORE names directories that are none of the store's.
//! - An open, an open for reading, an inspection and a checkpoint after the open each end soon,
//!   with an error or with the rows that were written.
//! - Nothing outside of the store's directory changes, neither bytes nor times.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "../fuzz/src/forge.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forge;
#[path = "common/forging.rs"]
mod forging;
#[path = "common/oracle.rs"]
mod oracle;
#[path = "common/real.rs"]
mod real;
#[path = "common/skip.rs"]
mod skip;
#[path = "../fuzz/src/tiny.rs"]
#[expect(dead_code, clippy::expect_used, reason = "other tests use the rest")]
mod tiny;

use skip::skipped;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use forging::{STORE, fix, identity, put_u64, u32_at, u64_at};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use real::{Sample, is_root, within};

/// What stands where a file should be.
const STRANGERS: [&str; 11] = [
    "link to itself, moved aside",
    "link to a copy outside",
    "link to nothing",
    "link to nothing outside",
    "link to itself",
    "link to a device",
    "device",
    "FIFO",
    "socket",
    "directory",
    "hard link to a copy outside",
];

/// Puts a stranger at `path`; `false` where that can't be done here.
fn plant(path: &Path, stranger: &str, outside: &Path) -> bool {
    let copy = outside.join("copy");
    let aside = path.with_extension("aside");
    let is_dir = path.is_dir();
    let there = path.exists();
    if stranger.ends_with("copy outside") {
        match (there, is_dir) {
            (true, true) => real::copy_dir(path, &copy),
            (true, false) => drop(fs::copy(path, &copy).unwrap()),
            (false, _) => fs::write(&copy, b"not the store's").unwrap(),
        }
    }
    if there && stranger != "link to itself, moved aside" {
        match is_dir {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }
    match stranger {
        "link to itself, moved aside" if there => {
            fs::rename(path, &aside).unwrap();
            symlink(aside.file_name().unwrap(), path).unwrap();
        }
        "link to itself, moved aside" => return false,
        "link to a copy outside" => symlink(&copy, path).unwrap(),
        "link to nothing" => symlink("nothing-there", path).unwrap(),
        "link to nothing outside" => symlink(outside.join("nothing"), path).unwrap(),
        "link to itself" => symlink(path, path).unwrap(),
        "link to a device" => symlink("/dev/zero", path).unwrap(),
        "device" => {
            let zero = makedev(1, 5);
            return is_root()
                && mknod(path, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, zero).is_ok();
        }
        "FIFO" => mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap(),
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        "directory" => fs::create_dir(path).unwrap(),
        "hard link to a copy outside" if is_dir => return false,
        "hard link to a copy outside" => fs::hard_link(&copy, path).unwrap(),
        other => panic!("no stranger {other}"),
    }
    true
}

/// Everything below a directory: kind, mode, time of change and content of each name.
fn snapshot(directory: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![directory.to_path_buf()];
    while let Some(path) = todo.pop() {
        let info = fs::symlink_metadata(&path).unwrap();
        let content = match info.file_type() {
            kind if kind.is_file() => fs::read(&path).unwrap(),
            kind if kind.is_dir() => {
                todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
                Vec::new()
            }
            _ => Vec::new(),
        };
        found.insert(
            path,
            (info.mode(), info.mtime(), info.mtime_nsec(), content),
        );
    }
    found
}

/// A store with something done to it, beside a directory that is not the store's.
struct Case {
    directory: tempfile::TempDir,
    sample: Sample,
}

impl Case {
    fn new(sample: &Sample) -> Case {
        let directory = tempfile::tempdir().unwrap();
        let case = Case {
            directory,
            sample: sample.clone(),
        };
        fs::create_dir(case.outside()).unwrap();
        fs::write(case.outside().join("canary"), b"alive").unwrap();
        case.sample.write(&case.store());
        case
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    /// What an inspection, a reader, a writer and one that goes on say; each within seconds.
    fn ask(&self, what: &str, go_on: bool) -> [String; 4] {
        let before = snapshot(&self.outside());
        let ask = |how: &str, action: fn(&Sample, &Path) -> String| {
            let (sample, store) = (self.sample.clone(), self.store());
            let said = within(&format!("{how} with {what}"), move || {
                action(&sample, &store)
            });
            assert!(
                snapshot(&self.outside()) == before,
                "{how} with {what} wrote outside"
            );
            said
        };
        [
            ask("an inspection", real::look),
            ask("a reader", |sample, store| sample.open(store, true)),
            ask("a writer", |sample, store| sample.open(store, false)),
            match go_on {
                true => ask("a checkpoint", Sample::go_on),
                false => String::new(),
            },
        ]
    }
}

/// What must be said where a file of this name is no longer a file of the store's directory.
fn is_right(name: &str, said: &[String; 4]) -> bool {
    let [looked, reader, writer, _] = said;
    let is = |said: &String, expected: &[&str]| expected.iter().any(|e| said.starts_with(e));
    let refused = ["Io", "Corrupt", "NotAStore"];
    // Something was found, or the inspection could not read it.
    let seen = is(looked, &["damage", "cache", "Io"]);
    match name.rsplit(['.', '/']).next().unwrap() {
        "LOCK" => is(writer, &["Io"]) && reader == "opens" && is(looked, &["clean", "Io"]),
        "snapshot" | "copy" => seen && writer == "opens" && reader == "opens",
        "meta" => {
            let meta = |said: &String| said.starts_with("opens (meta: ") || is(said, &refused);
            seen && meta(writer) && meta(reader)
        }
        _ => seen && is(writer, &refused) && is(reader, &refused),
    }
}

#[test]
fn a_stranger_in_the_place_of_a_file_is_refused_at_once_and_never_followed() {
    let sample = Sample::new();
    let mut ends: BTreeMap<(String, [String; 4]), BTreeSet<&str>> = BTreeMap::new();
    let mut count = 0;
    for name in sample.names() {
        for stranger in STRANGERS {
            let case = Case::new(&sample);
            if !plant(&case.store().join(&name), stranger, &case.outside()) {
                skipped(&format!("{stranger} for {name}: it can't be made here"));
                continue;
            }
            count += 1;
            let said = case.ask(&format!("{stranger} for {name}"), true);
            if stranger == "hard link to a copy outside" {
                // The same bytes: a store that was exported has such files.
                let expected = ["clean", "opens", "opens", "went on"];
                assert_eq!(said, expected, "{stranger} for {name}");
            } else {
                assert!(is_right(&name, &said), "{stranger} for {name}: {said:?}");
            }
            let said = said.map(|said| said.split(':').next().unwrap_or("").to_owned());
            ends.entry((name.clone(), said))
                .or_default()
                .insert(stranger);
        }
    }
    for ((name, said), strangers) in ends {
        println!("{name}: {said:?}: {strangers:?}");
    }
    assert!(count >= 100, "{count} strangers");
}

#[test]
fn a_name_that_a_writer_will_need_is_not_written_through() {
    let sample = Sample::new();
    let next = sample.next_number();
    let mut names = vec![String::from("CURRENT.tmp"), String::from("STORE.tmp")];
    for number in next..next + 2 {
        names.push(format!("{number:012}.manifest"));
        names.push(format!("{number:012}.copy"));
        names.push(format!("{number:012}.meta"));
        names.push(format!("part-0/{number:012}.rows"));
    }
    for name in &names {
        for stranger in STRANGERS {
            let case = Case::new(&sample);
            if !plant(&case.store().join(name), stranger, &case.outside()) {
                continue;
            }
            let what = format!("{stranger} as {name}");
            let said = case.ask(&what, true);
            // A temporary file of our own is removed; what else is in the way is an error.
            let went_on = ["went on", "Io"].iter().any(|e| said[3].starts_with(e));
            assert!(went_on, "{what}: {said:?}");
            assert_eq!(said[1], "opens", "{what}");
            // Otherwise the checkpoint before is still there, for a reader too.
            if said[3] != "went on" {
                assert_eq!(sample.open(&case.store(), true), "opens", "{what}");
            }
        }
    }
}

#[test]
fn a_directory_that_is_a_link_leads_to_the_right_store_or_nowhere() {
    let sample = Sample::new();
    for stranger in STRANGERS {
        for (name, is_root_of_store) in [("part-0", false), ("", true)] {
            let case = Case::new(&sample);
            let place = if is_root_of_store {
                case.store()
            } else {
                case.store().join(name)
            };
            // A copy of the whole store is the store, and a writer may write to it.
            let elsewhere = case.directory.path().join("elsewhere");
            fs::create_dir(&elsewhere).unwrap();
            let target = match is_root_of_store {
                true => elsewhere,
                false => case.outside(),
            };
            if !plant(&place, stranger, &target) {
                continue;
            }
            // Where a link leads to the same files, the caller has said that the store is there.
            let same = ["link to itself, moved aside", "link to a copy outside"];
            let said = case.ask(&format!("{stranger} for directory {name:?}"), false);
            println!("{stranger} for {name:?}: {:?}", &said[..3]);
            for said in &said[1..3] {
                let refused = ["Io", "Corrupt", "NotAStore", "MissingDirectory"]
                    .iter()
                    .any(|e| said.starts_with(e));
                assert!(if same.contains(&stranger) {
                    said == "opens"
                } else {
                    refused
                });
            }
        }
    }
}

/// STORE with these paths of data directories, any bytes, under a right checksum.
fn store_file(sample: &Sample, paths: &[&[u8]]) -> Option<Vec<u8>> {
    let mut bytes = sample.file("STORE")[..56].to_vec();
    bytes[48..52].copy_from_slice(&u32::try_from(paths.len()).unwrap().to_le_bytes());
    for path in paths {
        bytes.extend(u32::try_from(path.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(path);
    }
    if bytes.len() > 4096 {
        return None;
    }
    bytes.resize(4096, 0);
    forging::reseal("STORE", &mut bytes, STORE);
    Some(bytes)
}

#[test]
fn a_path_in_store_that_leads_elsewhere_is_refused_and_nothing_is_made_there() {
    let sample = Sample::new();
    let long = vec![b'x'; 4036];
    let deep = b"../".repeat(1345);
    let slashes = b"/".repeat(4036);
    let mut paths: Vec<Vec<u8>> = [
        &b".."[..],
        b"../outside",
        b"part-0/../../outside",
        b"/",
        b"/dev/zero",
        b"/proc/self/fd",
        b"nothing/at/all",
        b"part-0\0/x",
        b"\0",
        b"",
        b"\xff\xfe",
        b"part-0\xc3",
        b"CURRENT",
        b"part-0/PART",
        b"part-0\n",
        &long,
        &deep,
        &slashes,
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    let case = Case::new(&sample);
    paths.push(case.outside().to_str().unwrap().as_bytes().to_vec());
    for path in paths {
        let case = Case::new(&sample);
        let shown = String::from_utf8_lossy(&path[..path.len().min(40)]).into_owned();
        fs::write(
            case.store().join("STORE"),
            store_file(&sample, &[&path]).unwrap(),
        )
        .unwrap();
        let said = case.ask(&format!("data directory {shown:?}"), true);
        println!("{shown:?}: {said:?}");
        assert!(
            said[0].starts_with("damage") || said[0].starts_with("Io"),
            "{shown:?}: {said:?}"
        );
        for said in &said[1..] {
            let refused = ["Corrupt", "Io", "MissingDirectory"]
                .iter()
                .any(|e| said.starts_with(e));
            assert!(refused, "{shown:?}: {said}");
        }
    }
    // Twice the same directory: its PART is of one place only.
    let case = Case::new(&sample);
    let twice = store_file(&sample, &[b"part-0", b"part-0"]).unwrap();
    fs::write(case.store().join("STORE"), twice).unwrap();
    let said = case.ask("a directory twice", true);
    assert!(
        said[1..].iter().all(|said| said.starts_with("Corrupt")),
        "{said:?}"
    );
}

/// After `rm -r part-0` the inspection ended with `Io: list ...` (exit code 8), where it knew of
/// the missing PART and of every missing file: damage is 4.
#[test]
fn a_lost_data_directory_is_damage_and_no_failure_of_the_inspection() {
    let sample = Sample::new();
    let case = Case::new(&sample);
    fs::remove_dir_all(case.store().join("part-0")).unwrap();
    assert_eq!(real::look(&sample, &case.store()), "damage");
}

/// A link, a FIFO or a directory in the place of one file ended the whole inspection with `Io`
/// (exit code 8), and nothing was said of all other files; with the index snapshot, a cache, too.
#[test]
fn a_stranger_in_the_place_of_a_file_is_a_finding() {
    let sample = Sample::new();
    for name in sample.names().into_iter().filter(|name| name != "LOCK") {
        for stranger in ["link to nothing", "FIFO", "socket", "directory"] {
            let case = Case::new(&sample);
            assert!(plant(&case.store().join(&name), stranger, &case.outside()));
            let looked = real::look(&sample, &case.store());
            let spare = name.ends_with(".snapshot") || name.ends_with(".copy");
            let expected = if spare { "cache" } else { "damage" };
            assert_eq!(looked, expected, "{stranger} for {name}");
        }
    }
}

#[test]
fn a_watchdog_and_a_snapshot_find_what_they_are_for() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let path = fifo.clone();
    let hung = std::panic::catch_unwind(|| {
        real::within_seconds(1, "a FIFO", move || fs::read(&path).map_err(|e| e.kind()))
    });
    assert!(hung.is_err());
    // Its other end lets the reader go.
    drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, b"one").unwrap();
    let before = snapshot(directory.path());
    assert!(snapshot(directory.path()) == before);
    fs::write(&path, b"two").unwrap();
    assert!(snapshot(directory.path()) != before);
}

//! Who gets WRITER, and from whom may it be taken?

use std::path::Path;

use super::*;
use crate::io::sim::{Fault, SimDisk};
use crate::io::{Disk, OsDisk};

fn place() -> (SimDisk, Arc<dyn Directory>) {
    let disk = SimDisk::new(1);
    disk.create_dir(Path::new("/store")).unwrap();
    let place = disk.open_dir(Path::new("/store")).unwrap();
    (disk, place)
}

fn write(place: &dyn Directory, text: &str) {
    remove_if_there(place, WRITER_NAME).unwrap();
    write_whole(place, WRITER_NAME, text.as_bytes()).unwrap();
}

fn is_locked(place: &Arc<dyn Directory>) -> bool {
    match WriterFile::take(place) {
        Ok(_) => false,
        Err(Error::Locked { path, holder }) => {
            assert_eq!(holder, Holder::Elsewhere);
            assert!(path.ends_with(WRITER_NAME), "{}", path.display());
            true
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn one_has_the_file_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (_disk, simulated) = place();
    for place in [OsDisk.open_dir(directory.path()).unwrap(), simulated] {
        let file = WriterFile::take(&place).unwrap();
        assert_eq!(list(&*place).unwrap(), [WRITER_NAME]);
        assert!(file.is_held().unwrap());
        assert!(is_locked(&place) && is_locked(&place));
        assert_eq!(list(&*place).unwrap(), [WRITER_NAME]);
        drop(file);
        assert!(list(&*place).unwrap().is_empty());
        assert!(!is_locked(&place));
    }
}

#[test]
fn the_file_of_a_process_that_ended_is_taken_over_and_no_other() {
    let (_disk, place) = place();
    let this = ProcessIdentity::this();
    let of = |process: &ProcessIdentity| text_of(process, "of no file");
    // Another process has the number by now; this process has closed that store.
    let reused = ProcessIdentity {
        started: this.started + 1,
        ..this.clone()
    };
    for ended in [of(&reused), of(&this)] {
        write(&*place, &ended);
        assert!(!is_locked(&place), "{ended}");
        assert!(list(&*place).unwrap().is_empty());
    }
    let machine = ProcessIdentity {
        boot: String::from("another"),
        ..reused.clone()
    };
    let namespace = ProcessIdentity {
        namespace: String::from("pid:[1]"),
        ..reused.clone()
    };
    let first = ProcessIdentity {
        pid: 1,
        started: 0,
        ..this
    };
    let cut = of(&reused);
    let cut = &cut[..cut.find("started").unwrap()];
    let texts = [of(&machine), of(&namespace), of(&first)];
    for text in texts
        .iter()
        .map(String::as_str)
        .chain([cut, "", "\0\u{ff}"])
    {
        write(&*place, text);
        assert!(is_locked(&place), "{text}");
        assert_eq!(list(&*place).unwrap(), [WRITER_NAME]);
    }
}

#[test]
fn a_file_that_was_removed_or_replaced_is_held_no_more_and_left_alone() {
    let (_disk, place) = place();
    let file = WriterFile::take(&place).unwrap();
    place.remove(WRITER_NAME).unwrap();
    assert!(!file.is_held().unwrap());
    let other = WriterFile::take(&place).unwrap();
    assert!(!file.is_held().unwrap() && other.is_held().unwrap());
    drop(file);
    assert!(other.is_held().unwrap());
    // Names of those that ended while they tried.
    write_whole(&*place, "WRITER.12-3", b"").unwrap();
    drop(other);
    drop(WriterFile::take(&place).unwrap());
    assert!(list(&*place).unwrap().is_empty());
}

#[test]
fn one_that_is_late_takes_the_place_of_one_that_took_over_and_that_one_sees_it() {
    let (_disk, place) = place();
    let first = WriterFile::take(&place).unwrap();
    let late = WriterFile {
        root: Arc::clone(&place),
        text: String::from("late"),
        nonce: String::from("late"),
        process: std::process::id(),
    };
    write_whole(&*place, "WRITER.late", late.text.as_bytes()).unwrap();
    late.take_over("WRITER.late").unwrap();
    assert!(late.is_held().unwrap() && !first.is_held().unwrap());
    drop(first);
    assert!(
        late.is_held().unwrap(),
        "it is not the first one's to remove"
    );
    drop(late);
    assert!(list(&*place).unwrap().is_empty());
}

#[test]
fn whatever_fails_nothing_stays_that_locks_the_next_one_out() {
    let calls = {
        let (disk, place) = place();
        let begin = disk.calls();
        drop(WriterFile::take(&place).unwrap());
        disk.calls() - begin
    };
    for ended in [false, true] {
        for call in 0..calls + 4 {
            for errno in [5, 28, 95] {
                let (disk, place) = place();
                if ended {
                    write(&*place, &text_of(&ProcessIdentity::this(), "of no file"));
                }
                disk.fail_at(disk.calls() + call, Fault::Error(errno), false);
                let taken = WriterFile::take(&place);
                disk.clear_faults();
                if let Ok(file) = &taken {
                    assert!(file.is_held().unwrap(), "call {call}, errno {errno}");
                }
                drop(taken);
                assert!(
                    !is_locked(&place),
                    "call {call}, errno {errno}, ended {ended}"
                );
            }
        }
    }
}

#[test]
fn of_many_that_try_at_once_one_gets_it() {
    let directory = tempfile::tempdir().unwrap();
    let place = OsDisk.open_dir(directory.path()).unwrap();
    let this = ProcessIdentity::this();
    for round in 0..50 {
        // Left by a process that ended, every other time.
        if round % 2 == 0 {
            write(&*place, &text_of(&this, "of no file"));
        }
        let taken: Vec<WriterFile> = std::thread::scope(|scope| {
            let each = || WriterFile::take(&place).ok();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(each)).collect();
            let ended = threads.into_iter().map(|thread| thread.join().unwrap());
            ended.flatten().collect()
        });
        // Two that took it over from the same process: the one whose file was moved is told before it writes.
        let held = taken.iter().filter(|file| file.is_held().unwrap());
        assert_eq!(held.count(), taken.len().min(1), "{taken:?}");
        assert!(round % 2 == 0 || taken.len() == 1, "{taken:?}");
        drop(taken);
        assert!(list(&*place).unwrap().is_empty());
    }
}

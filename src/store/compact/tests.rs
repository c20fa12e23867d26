//! When flushes are held back, which files are candidates, and what sets one aside.

use std::io;

use super::*;
use crate::io::Io;
use crate::store::open;
use crate::store::parts::Parts;
use crate::store::tests::{ROOT, made, made_with, options, set, sgd};
use crate::{CreateOptions, RuntimeOptions, Store, TableId};

/// The parts of a store whose threads were never started: nothing happens by itself.
fn still(options: RuntimeOptions) -> (Parts, Store) {
    let (_, store) = made(options.clone());
    let table = store.create_table(&sgd("rows", 4)).unwrap();
    assert_eq!(table, TableId(0));
    store.checkpoint(1, &[]).unwrap();
    let disk: Io = store.parts.core.ssd.io.clone();
    store.close().unwrap();
    let place = open::Place::Path(Path::new(ROOT));
    let options = RuntimeOptions {
        inline: false,
        ..options
    };
    let parts = open::open(&disk, place, options.clone(), false, None).unwrap();
    let handle = Store {
        parts: parts.clone(),
        threads: open::Threads::default(),
    };
    (parts, handle)
}

fn flush_one(parts: &Parts, store: &Store, key: u64) {
    set(store, TableId(0), &[key], 1.0);
    assert_eq!(parts.flusher.flush_all().unwrap(), 1);
}

#[test]
fn flushes_are_held_back_by_too_many_files_while_compaction_can_help() {
    let (parts, store) = still(options());
    let compactor = &parts.compactor;
    // Sixty, and twice as many as live rows fill.
    let is_over = || {
        let stats = store.stats();
        stats.files > 60 + 2 * stats.live_bytes / parts.core.file_bytes
    };
    let mut over = false;
    for key in 0..100 {
        std::thread::scope(|scope| {
            let flushing = scope.spawn(|| flush_one(&parts, &store, key));
            while !flushing.is_finished() {
                // It waits now. A look that finds nothing to do lets it go.
                if compactor.is_over_space() {
                    over = true;
                    compactor.turns.take(0).idle();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(over, is_over(), "{key}");
        if over {
            break;
        }
    }
    assert!((61..70).contains(&store.stats().files));
    assert!(
        !compactor.is_over_space(),
        "nothing is to be done, it was said"
    );
    compactor.turns.look_again();
    assert!(compactor.is_over_space());
    let error = Error::io("write", Path::new("/x"), io::Error::from_raw_os_error(5));
    compactor.turns.take(0).failed(&error);
    assert!(!compactor.is_over_space(), "it is left alone for a while");
    assert_eq!(compactor.records()[0].0.failed, 1);
    assert!(compactor.records()[0].1);
    assert_eq!(store.stats().directories_paused, 1);
    compactor.turns.take(0).done();
    compactor.turns.look_again();
    assert!(compactor.is_over_space());
    assert_eq!(store.stats().directories_paused, 0);
    // A turn makes fewer files of them.
    let turn = compactor.turns.next().unwrap();
    assert!(compactor.compact_turn(&turn));
    drop(turn);
    assert!(!compactor.is_over_space());
    assert!(store.stats().files < 60);
    let turn = compactor.turns.next().unwrap();
    assert!(!compactor.compact_turn(&turn), "nothing is due");
    drop(turn);
    assert!(compactor.turns.next().is_none(), "and nobody asks again");
    store.close_discarding();
    assert!(!compactor.is_over_space());
}

#[test]
fn flushes_are_held_back_by_a_limit_of_the_disk_while_compaction_can_help() {
    let (parts, store) = still(options().file_bytes(1 << 20).disk_bytes_max(4 << 20));
    let compactor = &parts.compactor;
    let keys: Vec<u64> = (0..1000).collect();
    let (mut flushes, mut over) = (0, false);
    while !over {
        set(&store, TableId(0), &keys, flushes as f32);
        std::thread::scope(|scope| {
            let flushing = scope.spawn(|| parts.flusher.flush_all().unwrap());
            while !flushing.is_finished() {
                // It waits now, with room left for two files and a compaction, but no more.
                if compactor.is_over_space() {
                    over = true;
                    assert!(store.stats().disk_bytes > 1 << 20);
                    let turn = compactor.turns.next().unwrap();
                    assert!(compactor.compact_turn(&turn));
                    assert!(!compactor.is_over_space(), "the compaction made room");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        flushes += 1;
        assert!(flushes < 50, "too many files would hold flushes back, too");
    }
    // All is live, so nothing is due: a flush may try, and is told how much there is.
    for first in (1000..).step_by(10_000) {
        for first in (first..first + 10_000).step_by(1000) {
            let keys: Vec<u64> = (first..first + 1000).collect();
            set(&store, TableId(0), &keys, 1.0);
        }
        assert!(!compactor.is_over_space());
        if let Err(error) = parts.flusher.flush_all() {
            assert!(matches!(error, Error::NoSpace { .. }), "{error}");
            break;
        }
    }
    store.close_discarding();
}

#[test]
fn a_directory_has_one_thread_and_a_store_four_at_most_unless_told() {
    let threads = |directories: usize, compaction_threads| {
        let data_directories = (0..directories).map(|d| format!("/data-{d}").into());
        let create = CreateOptions::new().data_directories(data_directories.collect());
        let options = options().compaction_threads(compaction_threads);
        let (_, store) = made_with(create, options);
        store.parts.compactor.threads()
    };
    assert_eq!([threads(1, 0), threads(3, 0), threads(6, 0)], [1, 3, 4]);
    assert_eq!([threads(1, 5), threads(6, 2), threads(6, 9)], [1, 2, 6]);
}

#[test]
fn an_error_sets_aside_the_input_that_can_not_be_read_and_nothing_else() {
    let path = Path::new("/store/a");
    let io = |code| Error::io("read", path, io::Error::from_raw_os_error(code));
    assert_eq!(unreadable(&Error::corrupt(path, 0, "damaged")), Some(path));
    assert_eq!(unreadable(&io(5)), Some(path), "EIO");
    assert_eq!(unreadable(&io(28)), None, "ENOSPC");
    assert_eq!(unreadable(&io(24)), None, "EMFILE");
    let (parts, store) = still(options());
    flush_one(&parts, &store, 1);
    flush_one(&parts, &store, 2);
    let files: Vec<_> = parts.core.ssd.versions().current().cloned().collect();
    let compactor = &parts.compactor;
    let numbers = || -> Vec<FileNumber> {
        let versions = parts.core.ssd.versions();
        let candidates = compactor.candidates(&versions, 0);
        candidates.iter().map(|c| c.number).collect()
    };
    assert_eq!(numbers(), [files[0].meta.number, files[1].meta.number]);
    assert!(!compactor.set_aside(&files, &Error::corrupt(path, 0, "of another file")));
    let full = Error::io("write", &files[1].path, io::Error::from_raw_os_error(28));
    assert!(!compactor.set_aside(&files, &full));
    assert_eq!(numbers().len(), 2);
    let damaged = Error::corrupt(&files[1].path, 7, "damaged");
    assert!(
        !compactor.set_aside(&files[..1], &damaged),
        "no input of this one"
    );
    assert!(compactor.set_aside(&files, &damaged));
    assert_eq!(numbers(), [files[0].meta.number]);
    let told = store.files();
    assert_eq!(told[0].set_aside, None);
    assert!(
        told[1]
            .set_aside
            .as_ref()
            .is_some_and(|why| why.contains("damaged"))
    );
    assert_eq!(
        (
            store.stats().files_set_aside,
            store.directories()[0].files_set_aside
        ),
        (1, 1)
    );
    let candidates = compactor.candidates(&parts.core.ssd.versions(), 0);
    assert_eq!(candidates[0].bytes, files[0].meta.bytes);
    assert_eq!(candidates[0].live_bytes, files[0].live_bytes());
    store.close_discarding();
}

//! Who writes a store on a disk that other machines have mounted as well, and see no locks of?
#![expect(
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::path::Path;

use hps::io::Io;
use hps::io::sim::{CrashMode, SimDisk};
use hps::*;
use small::{options, set, sgd, values};

const DIM: usize = 4;
const ROOT: &str = "/store";
const WRITER: &str = "/store/WRITER";

fn shared(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.share();
    disk
}

fn create(disk: &SimDisk) -> Result<Store> {
    let io = Io::of(disk.clone());
    Store::create_on(io, Path::new(ROOT), CreateOptions::new(), options())
}

fn open(disk: &SimDisk) -> Result<Store> {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options())
}

/// Whose row 7 is 1 and 2 at checkpoints 1 and 2.
fn train(store: &Store) -> Result<TableId> {
    let table = store.create_table(&sgd("t", DIM))?;
    for step in 1..=2u8 {
        let mut row = [0.0; DIM];
        let lease = store.pull(table, &[7], &mut row)?;
        store.push(&lease, Update::weights(&[f32::from(step); DIM]))?;
        drop(lease);
        store.checkpoint(u64::from(step), &[])?;
    }
    Ok(table)
}

fn is_locked(opened: Result<Store>) -> bool {
    match opened {
        Err(Error::Locked { path, holder }) => {
            assert_eq!(
                (path.as_path(), holder),
                (Path::new(WRITER), Holder::Elsewhere)
            );
            true
        }
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

#[test]
fn a_second_writer_is_kept_out_and_a_reader_let_in() {
    let disk = shared(1);
    let store = create(&disk).unwrap();
    let table = train(&store).unwrap();
    assert!(is_locked(open(&disk)));
    assert!(
        is_locked(open(&disk)),
        "the first refusal must change nothing"
    );
    set(&store, table, &[7], 3.0, DIM);
    store.checkpoint(3, &[]).unwrap();
    let io = Io::of(disk.clone());
    let reader = Store::open_read_only_on(io, Path::new(ROOT), None, options()).unwrap();
    assert_eq!(reader.last_checkpoint().unwrap().step, 3);
    drop(reader);
    store.close().unwrap();
    assert!(disk.read_file(Path::new(WRITER)).is_err());
    let store = open(&disk).unwrap();
    assert_eq!(values(&store, TableId(0), &[7], DIM), [3.0; DIM]);
    store.close().unwrap();
    // Where all see the locks there is no such file.
    let disk = SimDisk::new(1);
    let store = create(&disk).unwrap();
    assert!(disk.read_file(Path::new(WRITER)).is_err());
    store.close().unwrap();
}

#[test]
fn a_writer_whose_file_was_removed_writes_no_more() {
    let disk = shared(2);
    let first = create(&disk).unwrap();
    let table = train(&first).unwrap();
    // By someone who took the process for dead.
    assert!(is_locked(open(&disk)));
    hps::io::Disk::open_dir(&disk, Path::new(ROOT))
        .unwrap()
        .remove("WRITER")
        .unwrap();
    let second = open(&disk).unwrap();
    set(&first, table, &[7], 9.0, DIM);
    let refused = first.checkpoint(3, &[]).unwrap_err();
    assert!(
        matches!(&refused, Error::Poisoned { cause } if cause.contains(WRITER)),
        "{refused}"
    );
    assert!(matches!(
        first.checkpoint(3, &[]),
        Err(Error::Poisoned { .. })
    ));
    set(&second, table, &[7], 4.0, DIM);
    second.checkpoint(3, &[]).unwrap();
    first.close_discarding();
    set(&second, table, &[7], 5.0, DIM);
    second.checkpoint(4, &[]).unwrap();
    second.close().unwrap();
    let store = open(&disk).unwrap();
    assert_eq!(values(&store, TableId(0), &[7], DIM), [5.0; DIM]);
    store.close().unwrap();
}

#[test]
fn a_crash_at_every_call_lets_the_next_writer_in() {
    let whole = shared(3);
    let store = create(&whole).unwrap();
    train(&store).unwrap();
    store.close().unwrap();
    let (mut opened, mut calls) = (0, 0);
    // Every third: an open after a writer that has ended waits a moment.
    for call in (0..whole.calls()).step_by(3) {
        let disk = shared(3);
        disk.stop_at(call);
        let mut acknowledged = 0;
        if let Ok(store) = create(&disk) {
            let _any = train(&store);
            acknowledged = store.last_checkpoint().map_or(0, |last| last.step);
            store.close_discarding();
        }
        calls += 1;
        for mode in [CrashMode::KeepAll, CrashMode::KeepNone, CrashMode::Random] {
            let after = disk.crash(call, mode);
            match open(&after) {
                Ok(store) => {
                    let step = store.last_checkpoint().map_or(0, |last| last.step);
                    assert!(
                        step == acknowledged || step == acknowledged + 1,
                        "call {call}"
                    );
                    store.close().unwrap();
                    opened += 1;
                }
                Err(Error::InvalidArgument(ArgumentError::NotAStore { .. })) => {
                    assert_eq!(acknowledged, 0, "call {call}");
                }
                Err(error) => panic!("call {call}: {error}"),
            }
        }
    }
    assert!(opened > calls, "{opened} stores of {calls} crashes");
}

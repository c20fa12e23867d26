//! Who gets a store that several processes want?
//!
//! - One writer: a second one is `Locked`, whoever comes first of many wins alone.
//! - A lock dies with its process, however that dies; the next opener has the last checkpoint.
//! - A reader's checkpoint stays whole while a writer in another process drops it, and is dropped
//!   when the reader is gone.
//!
//! Forked children of a process with an open store are in `tests/fork.rs`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/child.rs"]
mod child;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "common/until.rs"]
mod until;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use child::{Child, hear, role_of_this_process, say};
use hps::inspect::{Scope, inspect_on};
use hps::io::Io;
use hps::*;
use small::{options, sgd};
use until::until;

const DIM: usize = 32;
const KEYS: u64 = 3000;
const BATCH: usize = 500;
/// Processes that want the store at the same time.
const RACERS: usize = 100;
/// Owners that are killed one after the other.
const KILLS: u64 = 12;

fn keys() -> Vec<u64> {
    (0..KEYS).map(mix64).collect()
}

/// Every row gets a value that tells the step.
fn fill(store: &Store, step: u64) {
    let table = store.table("t").unwrap();
    small::fill(store, table, KEYS, BATCH, step as f32, DIM);
}

/// The step that every row of the store tells; a mixture fails.
fn step_of(store: &Store) -> u64 {
    let table = store.table("t").unwrap();
    let mut found = None;
    for keys in keys().chunks(BATCH) {
        let mut out = vec![0.0; keys.len() * DIM];
        drop(store.pull(table, keys, &mut out).unwrap());
        for value in out {
            assert_eq!(
                *found.get_or_insert(value),
                value,
                "rows of two checkpoints"
            );
        }
    }
    (1..10_000)
        .find(|step| found == Some(*step as f32))
        .unwrap()
}

/// A store at step 1, closed.
fn place() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::create(directory.path(), CreateOptions::new(), options()).unwrap();
    store.create_table(&sgd("t", DIM)).unwrap();
    fill(&store, 1);
    store.checkpoint(1, b"1").unwrap();
    store.close().unwrap();
    directory
}

fn told(result: &Result<Store>) -> &'static str {
    match result {
        Ok(_) => "open",
        Err(Error::Locked { .. }) => "locked",
        Err(_) => "another error",
    }
}

/// What a child process does.
#[test]
fn role() {
    let Some((role, place)) = role_of_this_process() else {
        return;
    };
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("open", _) => open(&place),
        ("train", step) => train(&place, step.parse().unwrap()),
        ("read", id) => read(&place, id.parse().unwrap()),
        ("inspect", _) => look(&place),
        (other, _) => panic!("no role {other}"),
    }
}

/// Opens when it is told to, says how that went and stays until it is told to go.
fn open(place: &Path) {
    say("ready");
    hear();
    let store = Store::open(place, options());
    say(told(&store));
    hear();
}

/// Goes from step to step until it is killed.
fn train(place: &Path, first: u64) {
    let store = Store::open(place, options()).unwrap();
    say(&format!("found {}", step_of(&store)));
    for step in first.. {
        fill(&store, step);
        store.checkpoint(step, step.to_string().as_bytes()).unwrap();
        say(&format!("saved {step}"));
    }
}

/// Reads a checkpoint whenever it is told to.
fn read(place: &Path, id: u64) {
    let store = Store::open_read_only(place, Some(CheckpointId(id)), options()).unwrap();
    say("open");
    while hear().is_some() {
        let meta = String::from_utf8(store.checkpoint_meta(CheckpointId(id)).unwrap()).unwrap();
        let mut rows = store.rows(CheckpointId(id)).unwrap();
        let mut count = 0;
        while let Some(row) = rows.next_row().unwrap() {
            assert_eq!(row.values[0].to_string(), meta, "key {:#x}", row.key);
            count += 1;
        }
        say(&format!(
            "{count} rows of step {meta}, pulled {}",
            step_of(&store)
        ));
    }
}

fn look(place: &Path) {
    let disk = Io::pread();
    let scope = Scope::new().full(true);
    let go_on = &mut |_, _| ControlFlow::Continue(());
    let report = inspect_on(&disk, place, scope, go_on).unwrap();
    let findings: Vec<&String> = report.findings.iter().map(|f| &f.what).collect();
    say(&format!("{} {findings:?}", report.open_elsewhere));
}

#[test]
fn a_second_writer_in_another_process_is_refused_and_readers_are_not() {
    let directory = place();
    let store = Store::open(directory.path(), options()).unwrap();
    let last = store.last_checkpoint().unwrap().id;
    let mut second = Child::start("open", directory.path());
    assert_eq!(second.listen().as_deref(), Some("ready"));
    let start = Instant::now();
    second.tell("now");
    assert_eq!(second.listen().as_deref(), Some("locked"));
    println!("refused in {:?}", start.elapsed());
    for _ in 0..2 {
        let mut reader = Child::start(&format!("read {last}"), directory.path());
        assert_eq!(reader.listen().as_deref(), Some("open"));
        reader.tell("read");
        assert_eq!(reader.listen().unwrap(), "3000 rows of step 1, pulled 1");
        assert!(reader.end().success());
    }
    let mut looker = Child::start("inspect", directory.path());
    assert_eq!(looker.listen().as_deref(), Some("true []"));
    store.close().unwrap();
    let mut looker = Child::start("inspect", directory.path());
    assert_eq!(looker.listen().as_deref(), Some("false []"));
    second.tell("go");
    assert!(second.end().success());
    Store::open(directory.path(), options()).unwrap();
}

#[test]
fn of_many_processes_that_want_a_store_at_once_one_gets_it() {
    let directory = place();
    let mut racers: Vec<Child> = (0..RACERS)
        .map(|_| Child::start("open", directory.path()))
        .collect();
    for racer in &mut racers {
        assert_eq!(racer.listen().as_deref(), Some("ready"));
    }
    for racer in &mut racers {
        racer.tell("now");
    }
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for racer in &mut racers {
        *ends.entry(racer.listen().unwrap()).or_default() += 1;
    }
    let expected = [("locked".to_owned(), RACERS - 1), ("open".to_owned(), 1)];
    assert_eq!(ends, BTreeMap::from(expected));
    for mut racer in racers {
        racer.tell("go");
        assert!(racer.end().success());
    }
    let store = Store::open(directory.path(), options()).unwrap();
    assert_eq!(step_of(&store), 1);
}

#[test]
fn the_store_of_a_killed_owner_opens_at_its_last_checkpoint() {
    let directory = place();
    let (mut saved, mut total) = (1, 0);
    for round in 0..KILLS {
        let mut owner = Child::start(&format!("train {}", saved + 1), directory.path());
        let found = owner.listen().unwrap();
        assert_eq!(found, format!("found {saved}"), "round {round}");
        for _ in 0..round % 4 {
            owner.listen().unwrap();
        }
        // Somewhere in a push, a flush or a checkpoint.
        std::thread::sleep(std::time::Duration::from_millis(mix64(round) % 40));
        let pid = owner.pid();
        let locked = Store::open(directory.path(), options());
        assert!(matches!(locked, Err(Error::Locked { .. })), "owner {pid}");
        let heard = owner.heard();
        let rest = owner.kill();
        let acknowledged = heard
            .iter()
            .chain(&rest)
            .filter_map(|s| s.strip_prefix("saved "));
        let acknowledged = acknowledged.filter_map(|step| step.parse::<u64>().ok());
        let heard_before = saved + round % 4;
        let last = acknowledged.max().unwrap_or(heard_before).max(heard_before);
        let store = Store::open(directory.path(), options()).unwrap();
        let step = step_of(&store);
        // The checkpoint that the kill interrupted may be there, whole.
        assert!(
            (last..=last + 1).contains(&step),
            "round {round}: {step}, not {last}"
        );
        let info = store.last_checkpoint().unwrap();
        assert_eq!(info.step, step);
        let meta = store.checkpoint_meta(info.id).unwrap();
        assert_eq!(meta, step.to_string().as_bytes());
        total += step - saved;
        saved = step;
        store.close().unwrap();
    }
    println!("{KILLS} owners killed, {total} checkpoints");
    assert!(total >= KILLS, "owners did something");
}

/// Names of files with this extension in the store and its data directory.
fn files(place: &Path, extension: &str) -> Vec<String> {
    let mut names = Vec::new();
    for directory in [place.to_path_buf(), place.join("part-0")] {
        for entry in std::fs::read_dir(directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            names.extend(name.ends_with(extension).then_some(name));
        }
    }
    names.sort();
    names
}

#[test]
fn a_checkpoint_that_another_process_reads_is_kept_until_it_is_gone() {
    let directory = place();
    let store = Store::open(directory.path(), options().retain_checkpoints(1)).unwrap();
    let first = store.last_checkpoint().unwrap().id;
    let role = format!("read {first}");
    let mut readers = [
        Child::start(&role, directory.path()),
        Child::start(&role, directory.path()),
    ];
    for reader in &mut readers {
        assert_eq!(reader.listen().as_deref(), Some("open"));
    }
    let before = files(directory.path(), ".meta");
    assert_eq!(before.len(), 1);
    // The first checkpoint's, which no later one needs.
    let rows = files(directory.path(), ".rows");
    assert!(!rows.is_empty());
    let left = || {
        let now = files(directory.path(), ".rows");
        rows.iter().filter(|name| now.contains(name)).count()
    };
    for step in 2..8 {
        fill(&store, step);
        store.compact_fully().unwrap();
        store.checkpoint(step, step.to_string().as_bytes()).unwrap();
        for reader in &mut readers {
            reader.tell("read");
            assert_eq!(reader.listen().unwrap(), "3000 rows of step 1, pulled 1");
        }
    }
    assert_eq!(files(directory.path(), ".meta").first(), before.first());
    assert_eq!(left(), rows.len(), "they are read");
    let [one, other] = readers;
    assert!(one.end().success());
    // The other's death frees it as well.
    other.kill();
    fill(&store, 8);
    store.checkpoint(8, b"8").unwrap();
    assert_ne!(files(directory.path(), ".meta").first(), before.first());
    // Files with rows go by themselves, after the checkpoint has ended.
    until("its files are gone", || left() == 0);
    assert_eq!(store.checkpoints().len(), 1);
    assert_eq!(step_of(&store), 8);
    store.close().unwrap();
}

//! What happens when memory runs out?
//!
//! - A process opens a store, reads it or makes a checkpoint, and may have only so much more memory
//!   than it had before; limits rise until all goes well. Each process ends with a clean error, or
//!   is aborted by Rust's allocation error handler; never by another signal, never with a panic or
//!   a hang, and never with another value. Which of the two is counted.
//! - The store is whole afterwards: at the checkpoint before or, where that was told, the new one.
//! - A cache of an asked size is an error when it can't be had; small allocations abort. Buffers of
//!   queues are mapped, not allocated: tests/small_limits.rs limits the address space.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/child.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod child;
#[path = "../fuzz/src/forge.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forge;
#[path = "common/forging.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forging;
#[path = "common/oracle.rs"]
mod oracle;
#[path = "common/real.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod real;
#[path = "../fuzz/src/tiny.rs"]
#[expect(dead_code, clippy::expect_used, reason = "other tests use the rest")]
mod tiny;

use std::alloc::System;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use cap::Cap;
use child::{Child, role_of_this_process, say};
use forging::{STORE, fix, identity, put_u64, u32_at, u64_at};
use hps::*;
use nix::sys::resource::{Resource, setrlimit};
use oracle::name_of;
use real::Sample;
use tiny::{KEYS, Tiny, key, options};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// Limits tried between nothing and enough.
const LIMITS: usize = 60;

/// Does something that may allocate only so many bytes more than are allocated now.
fn limited<T>(bytes: usize, action: impl FnOnce() -> T) -> T {
    ALLOCATOR.set_limit(ALLOCATOR.allocated() + bytes).unwrap();
    let result = action();
    ALLOCATOR.set_limit(usize::MAX).unwrap();
    result
}

/// What a child process does under a limit.
#[test]
fn role() {
    let Some((role, place)) = role_of_this_process() else {
        return;
    };
    setrlimit(Resource::RLIMIT_CORE, 0, 0).unwrap();
    let (role, bytes) = role.split_once(' ').unwrap();
    let bytes = bytes.parse().unwrap();
    let said = match role {
        "read" => limited_read(&place, bytes),
        "write" => limited_write(&place, bytes),
        "cache" => limited_cache(&place, bytes),
        other => panic!("no role {other}"),
    };
    match said {
        Ok(()) => say("done"),
        Err(error) => say(&format!("{}: {error}", name_of(&error))),
    }
}

/// Opens and reads everything; the test's own memory is there before.
fn limited_read(place: &Path, bytes: usize) -> Result<()> {
    let tiny = Tiny::new()?;
    let (rows, meta) = &tiny.checkpoints[&CheckpointId(3)];
    let keys: Vec<u64> = (0..KEYS).map(key).collect();
    let mut out = vec![0.0; keys.len() * 40];
    let options = options();
    limited(bytes, || {
        let store = Store::open_read_only(place, None, options)?;
        assert!(
            store.checkpoint_meta(CheckpointId(3))? == *meta,
            "another meta"
        );
        let mut iter = store.rows(CheckpointId(3))?;
        let mut count = 0;
        while let Some(row) = iter.next_row()? {
            let known = &rows[&(row.table.0, row.key)];
            let found = row.values.iter().map(|v| v.to_bits());
            assert!(found.eq(known.iter().copied()), "another row");
            count += 1;
        }
        assert!(count == rows.len(), "rows are missing");
        drop(store.pull(TableId(1), &keys, &mut out)?);
        for (key, row) in keys.iter().zip(out.chunks(40)) {
            let found = row.iter().map(|v| v.to_bits());
            match rows.get(&(1, *key)) {
                Some(known) => assert!(found.eq(known.iter().copied()), "another row"),
                None => assert!(row.iter().all(|v| *v == 0.0), "a row from nowhere"),
            }
        }
        Ok(())
    })
}

/// Opens, changes a row, compacts and makes a checkpoint.
fn limited_write(place: &Path, bytes: usize) -> Result<()> {
    let options = options();
    let mut out = [0.0; 3];
    limited(bytes, || {
        let store = Store::open(place, options)?;
        let lease = store.pull(TableId(0), &[key(20)], &mut out)?;
        store.push(&lease, Update::weights(&[7.0, 8.0, 9.0]))?;
        drop(lease);
        store.compact_fully()?;
        store.checkpoint(1 << 40, b"under a limit")?;
        store.close()
    })
}

/// Wants a cache larger than the memory that there is.
fn limited_cache(place: &Path, cache_bytes: usize) -> Result<()> {
    let options = options().cache_bytes(cache_bytes as u64);
    limited(64 << 20, || Store::open(place, options).map(drop))
}

/// How a process under a limit ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Done,
    Error(String),
    /// Rust's handler of allocation errors: so many bytes were asked.
    Aborted(String),
}

fn run(role: &str, store: &Path) -> End {
    let log = store.with_extension("log");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.stderr(File::create(&log).unwrap());
    let mut child = Child::from_command(command, role, store);
    let said = child.listen();
    let status = child.end();
    let log = fs::read_to_string(&log).unwrap();
    match (said, status.signal(), status.success()) {
        (Some(said), None, true) if said == "done" => End::Done,
        (Some(said), None, true) => End::Error(said),
        (None, Some(nix::libc::SIGABRT), _) => {
            let what = log
                .lines()
                .find(|line| line.starts_with("memory allocation of"));
            End::Aborted(
                what.unwrap_or_else(|| panic!("{role}: aborted: {log}"))
                    .to_owned(),
            )
        }
        (said, ..) => panic!("{role}: {said:?}, {status}: {log}"),
    }
}

/// Runs a role under rising limits; `check` looks at the store after each.
fn rising_limits(role: &str, check: impl Fn(&Sample, &Path, &End)) {
    let sample = Sample::new();
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    let run_on_a_copy = |bytes: usize| {
        if store.exists() {
            fs::remove_dir_all(&store).unwrap();
        }
        sample.write(&store);
        let end = run(&format!("{role} {bytes}"), &store);
        check(&sample, &store, &end);
        end
    };
    let mut enough = 1 << 16;
    while run_on_a_copy(enough) != End::Done {
        enough *= 2;
        assert!(enough < 1 << 30, "no memory is enough");
    }
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..LIMITS {
        let kind = match run_on_a_copy(enough / LIMITS * n) {
            End::Done => String::from("done"),
            End::Error(error) => format!("error {}", error.split(':').next().unwrap_or("")),
            End::Aborted(what) => format!("aborted: {what}"),
        };
        *ends.entry(kind).or_default() += 1;
    }
    println!("{role}, up to {enough} bytes: {ends:#?}");
    let errors = ends
        .keys()
        .filter(|end| end.starts_with("error Option"))
        .count();
    assert!(
        errors > 0,
        "a cache that can't be had is an error of its option: {ends:?}"
    );
}

#[test]
fn a_reader_without_memory_ends_with_an_error_or_an_abort_and_no_other_value() {
    rising_limits("read", |sample, store, _| {
        assert_eq!(sample.open(store, true), "opens");
        assert_eq!(real::look(sample, store), "clean");
    });
}

#[test]
fn a_writer_without_memory_leaves_one_checkpoint_or_the_other() {
    rising_limits("write", |sample, store, end| {
        let looked = real::look(sample, store);
        assert!(
            ["clean", "leftover"].contains(&&*looked),
            "{end:?}: {looked}"
        );
        let opened = Store::open_read_only(store, None, options()).unwrap();
        let last = opened.last_checkpoint().unwrap();
        if last.id == CheckpointId(3) {
            drop(opened);
            assert_ne!(*end, End::Done, "an acknowledged checkpoint is gone");
            assert_eq!(sample.open(store, true), "opens");
            return;
        }
        assert_eq!(opened.checkpoint_meta(last.id).unwrap(), b"under a limit");
        let mut out = [0.0; 3];
        drop(opened.pull(TableId(0), &[key(20)], &mut out).unwrap());
        assert_eq!(out, [7.0, 8.0, 9.0]);
    });
}

/// How opens with caches that can't be ended.
fn caches_larger_than_memory() -> Vec<End> {
    let sample = Sample::new();
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    sample.write(&store);
    let open = |cache_bytes: u64| {
        let end = run(&format!("cache {cache_bytes}"), &store);
        println!("cache_bytes {cache_bytes}: {end:?}");
        assert_eq!(sample.open(&store, true), "opens");
        end
    };
    let all = [128 << 20, 1 << 33, 1 << 40, 1 << 50, 1 << 63, u64::MAX];
    all.map(open).to_vec()
}

#[test]
fn a_cache_larger_than_memory_is_refused_and_harms_no_store() {
    for end in caches_larger_than_memory() {
        assert_ne!(end, End::Done);
    }
}

/// A trainer that asked for more `cache_bytes` than the machine has was aborted in `Store::open`:
/// `memory allocation of 68719477344 bytes failed`, without a word about the option.
#[test]
fn a_cache_larger_than_memory_is_an_error_and_no_abort() {
    for end in caches_larger_than_memory() {
        assert!(matches!(end, End::Error(_)), "{end:?}");
    }
}

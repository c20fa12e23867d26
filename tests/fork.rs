//! What does a forked child of a process with an open store get?
//!
//! Python's `os.fork` and the workers of a data loader make such children. In them every call is
//! `Forked`, dropping anything does nothing, and the lock is not theirs: the parent goes on as if
//! there were no child, and when it is killed another process has the store at once.
//!
//! The forks are done in child processes of this test (see `common/child.rs`), in the thread of a
//! test: the other threads of the harness are as far away as those of any program.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]
#![expect(unsafe_code, reason = "fork, waitpid and _exit are calls of libc")]

#[path = "common/child.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod child;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::cell::Cell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use child::{Child, role_of_this_process, say};
use hps::*;
use nix::libc;
use small::{options, set, sgd, values};

const DIM: usize = 32;
const KEYS: u64 = 3000;

fn keys() -> Vec<u64> {
    (0..KEYS).map(mix64).collect()
}

/// What a child process does.
#[test]
fn role() {
    let Some((role, place)) = role_of_this_process() else {
        return;
    };
    let (role, inline) = match role.strip_suffix(" inline") {
        Some(role) => (role.to_owned(), true),
        None => (role, false),
    };
    let options = options().inline(inline);
    match role.as_str() {
        "ask" => ask(&place, options),
        "drop" => drop_all(&place, options),
        "train" => train(&place, options),
        "outlive" => outlive(&place, options),
        "hold" => hold(&place, options),
        "open" => open(&place),
        "grow" => grow(&place),
        "again" => again(&place, options),
        other => panic!("no role {other}"),
    }
}

/// A store with a table, rows of step 1 and a checkpoint.
fn begin(place: &Path, options: RuntimeOptions) -> (Store, TableId) {
    let store = Store::create(&place.join("store"), CreateOptions::new(), options).unwrap();
    let table = store.create_table(&sgd("t", DIM)).unwrap();
    set(&store, table, &keys()[..1000], 1.0, DIM);
    store.checkpoint(1, b"1").unwrap();
    (store, table)
}

/// Forks; `work` is what the child does before it ends with 0, or with 1 when it panics.
fn fork(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: as for every program that forks with threads: what the child may do is what this
    // test is about.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        let failed = catch_unwind(AssertUnwindSafe(work)).is_err();
        // SAFETY: ends the process without a look at what its parent had at exit.
        unsafe { libc::_exit(i32::from(failed)) }
    }
    pid
}

/// How a child ended: its exit code, or 128 and its signal.
fn wait(pid: libc::pid_t) -> i32 {
    let since = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `status` is an integer to be filled in.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if ended == pid {
            return match libc::WIFEXITED(status) {
                true => libc::WEXITSTATUS(status),
                false => 128 + libc::WTERMSIG(status),
            };
        }
        if since.elapsed() > Duration::from_secs(20) {
            // SAFETY: a child of this process that has not been waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            panic!("a forked child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn forked<T>(result: Result<T>) {
    match result {
        Err(Error::Forked) => {}
        Err(other) => panic!("not Forked: {other}"),
        Ok(_) => panic!("not Forked: it was done"),
    }
}

/// Asks a store, and all that it has given, for everything, in a forked child.
fn ask(place: &Path, options: RuntimeOptions) {
    let (store, table) = begin(place, options);
    let keys = keys();
    let mut out = vec![0.0; 100 * DIM];
    let lease = store.pull(table, &keys[..100], &mut out).unwrap();
    let ticket = store.prefetch(table, &keys[100..200]).unwrap();
    let other = store.prefetch(table, &keys[200..300]).unwrap();
    let mut rows = store.rows(CheckpointId(1)).unwrap();
    assert!(rows.next_row().unwrap().is_some());
    let checkpoint = store.checkpoint_begin(2, b"2").unwrap();
    let export = place.join("export");
    let child = fork(move || {
        forked(store.pull(table, &keys[..100], &mut out));
        forked(store.prefetch(table, &keys[..100]));
        let part = PullPart::new(table, &keys[..100], &mut out);
        forked(store.pull_many(&mut [part]));
        forked(store.prefetch_many(&[PrefetchPart::new(table, &keys[..100])]));
        let part = PushPart::new(table, Update::weights(&out));
        forked(store.push_many(&lease, &[part]));
        forked(store.push(&lease, Update::weights(&out)));
        forked(store.put(table, &keys[..100], PutRows::weights(&out)));
        forked(store.contains(table, &keys[..100]));
        forked(store.remove(table, &keys[..100]));
        forked(store.flush());
        forked(store.set_compaction_rate(None));
        forked(store.compact_fully());
        forked(store.checkpoint(3, b"3"));
        forked(store.checkpoint_begin(3, b"3"));
        forked(store.checkpoint_meta(CheckpointId(1)));
        forked(store.rows(CheckpointId(1)));
        forked(store.rows_of(CheckpointId(1), TableId(0), 0..=1));
        forked(store.hold(CheckpointId(1)));
        forked(store.identity());
        forked(store.unique(&[1, 2]));
        forked(store.export(CheckpointId(1), &export, &[]));
        forked(store.create_table(&sgd("u", DIM)));
        forked(store.table("t"));
        let limits = CompactLimits::default();
        forked(store.compact(&limits, &mut |_| ControlFlow::Continue(())));
        forked(store.drop_checkpoints(&[CheckpointId(1)]));
        // What can't say so shows an empty store.
        assert_eq!(store.stats(), Stats::default());
        assert!(store.tables().is_empty() && store.checkpoints().is_empty());
        assert!(store.files().is_empty() && store.last_checkpoint().is_none());
        let plan = store.compaction_plan(&CompactLimits::default());
        assert!(plan.is_empty() && !store.has_changes());
        store.publish_metrics();
        forked(lease.read(&mut out));
        forked(lease.read_rows(&mut out));
        forked(lease.read_many(&mut [&mut out[..]]));
        forked(lease.read_rows_at(&[0], &mut out[..DIM]));
        forked(lease.parts().next().unwrap().read(&mut out));
        forked(rows.next_row().map(|_| ()));
        // To wait returns at once.
        assert!(ticket.is_ready() && checkpoint.is_done());
        forked(ticket.wait());
        let waited = other.wait_for(Duration::from_secs(3600));
        forked(waited);
        forked(checkpoint.wait_for(Duration::from_secs(3600)));
        forked(checkpoint.wait());
        forked(store.rollback(CheckpointId(1)));
    });
    assert_eq!(wait(child), 0);
    say("ok");
}

/// Drops a store and all that it has given in a forked child, and by closing it.
fn drop_all(place: &Path, options: RuntimeOptions) {
    let (store, table) = begin(place, options);
    let keys = keys();
    let mut out = vec![0.0; 100 * DIM];
    for how in ["drop", "close", "discard"] {
        let lease = store.pull(table, &keys[..100], &mut out).unwrap();
        let ticket = store.prefetch(table, &keys[100..200]).unwrap();
        let mut rows = store.rows(CheckpointId(1)).unwrap();
        assert!(rows.next_row().unwrap().is_some());
        let checkpoint = (how == "drop").then(|| store.checkpoint_begin(2, b"2").unwrap());
        // A copy of the handles, as the child has one.
        let handles = (&store, lease, ticket, rows, checkpoint);
        let child = fork(|| {
            let (store, lease, ticket, rows, checkpoint) = handles;
            drop((rows, ticket, lease, checkpoint));
            // SAFETY: in this process the parent's store is used no more.
            let store = unsafe { std::ptr::read(store) };
            match how {
                "drop" => drop(store),
                "close" => forked(store.close()),
                _ => store.close_discarding(),
            }
        });
        assert_eq!(wait(child), 0, "{how}");
    }
    // The parent has lost nothing.
    set(&store, table, &keys, 5.0, DIM);
    assert_eq!(values(&store, table, &keys[..1], DIM)[0], 5.0);
    store.checkpoint(3, b"3").unwrap();
    store.close().unwrap();
    say("ok");
}

/// Trains while children come and go that do all that they must not.
fn train(place: &Path, options: RuntimeOptions) {
    let (store, table) = begin(place, options);
    let keys = keys();
    for step in 2..12u16 {
        let ticket = store.prefetch(table, &keys[..500]).unwrap();
        let saved = store.checkpoint_begin(step.into(), b"").unwrap();
        let child = fork(|| {
            let mut out = vec![0.0; 100 * DIM];
            forked(store.pull(table, &keys[..100], &mut out));
            forked(store.checkpoint(99, b""));
            // SAFETY: in this process the parent's store is used no more.
            drop(unsafe { std::ptr::read(&raw const store) });
        });
        for keys in keys.chunks(500) {
            set(&store, table, keys, f32::from(step), DIM);
        }
        saved.wait().unwrap();
        drop(ticket.wait().unwrap());
        assert_eq!(wait(child), 0);
    }
    let read = |store: &Store| -> Vec<f32> {
        let read = |keys: &[u64]| values(store, table, keys, DIM);
        keys.chunks(500).flat_map(read).collect()
    };
    let expected = vec![11.0; keys.len() * DIM];
    assert!(read(&store) == expected, "the parent's rows");
    store.checkpoint(12, b"12").unwrap();
    store.close().unwrap();
    let store = Store::open(&place.join("store"), small::options()).unwrap();
    assert_eq!(store.last_checkpoint().unwrap().step, 12);
    assert!(read(&store) == expected, "its rows after a reopen");
    say("ok");
}

/// Is killed while a forked worker lives on.
fn outlive(place: &Path, options: RuntimeOptions) {
    let (store, _table) = begin(place, options);
    let reader = Store::open_read_only(
        &place.join("store"),
        Some(CheckpointId(1)),
        small::options(),
    )
    .unwrap();
    let worker = fork(|| {
        // The test must not wait for the end of what this process could say.
        // SAFETY: the worker says nothing more.
        unsafe { libc::close(1) };
        std::thread::sleep(Duration::from_secs(60));
    });
    say(&worker.to_string());
    loop {
        std::thread::sleep(Duration::from_secs(3600));
        assert!(!store.has_changes() && !reader.has_changes());
    }
}

/// Opens the store that its owner was killed with, and drops the checkpoint that a reader had.
fn open(place: &Path) {
    let store = match Store::open(&place.join("store"), options()) {
        Ok(store) => store,
        Err(error) => return say(&error.to_string()),
    };
    store.checkpoint(2, b"2").unwrap();
    let dropped = store.drop_checkpoints(&[CheckpointId(1)]).unwrap();
    say(&format!("open, dropped {}", dropped.dropped[0]));
}

/// Holds a checkpoint, on a real file system, while forked workers drop their copies of it and live on.
fn hold(place: &Path, options: RuntimeOptions) {
    let (store, _table) = begin(place, options);
    let first = CheckpointId(1);
    let held = Cell::new(Some(store.hold(first).unwrap()));
    // Each child has a copy of the cell.
    let child = fork(|| drop(held.take()));
    assert_eq!(wait(child), 0);
    let worker = fork(|| std::thread::sleep(Duration::from_secs(60)));
    for step in 2..5 {
        store.checkpoint(step, b"").unwrap();
    }
    let ids = || -> Vec<u64> { store.checkpoints().iter().map(|c| c.id.0).collect() };
    assert_eq!(ids(), [1, 3, 4], "the child did not let it go");
    assert_eq!(store.drop_checkpoints(&[first]).unwrap().held, [first]);
    let mut rows = store.rows(first).unwrap();
    assert_eq!(rows.next_row().unwrap().unwrap().values[0], 1.0);
    drop(rows);
    drop(held.take());
    store.checkpoint(5, b"").unwrap();
    assert_eq!(ids(), [4, 5], "the worker, which lives on, has no lock");
    // SAFETY: a child of this process that has not been waited for.
    unsafe { libc::kill(worker, libc::SIGKILL) };
    assert_eq!(wait(worker), 128 + libc::SIGKILL);
    store.close().unwrap();
    say("ok");
}

/// A child that has let go of its parent's store opens one of its own.
fn again(place: &Path, options: RuntimeOptions) {
    let (store, table) = begin(place, options.clone());
    let child = fork(|| {
        let own = Store::open_read_only(&place.join("store"), None, options.clone()).unwrap();
        assert_eq!(values(&own, table, &keys()[..1], DIM)[0], 1.0);
        forked(store.pull(table, &[1], &mut [0.0; DIM]));
        match Store::open(&place.join("store"), options) {
            Err(Error::Locked { .. }) => {}
            other => panic!("the parent has it: {other:?}"),
        }
        let grandchild = fork(|| forked(own.table("t")));
        assert_eq!(wait(grandchild), 0);
        drop(own);
    });
    assert_eq!(wait(child), 0);
    store.close().unwrap();
    say("ok");
}

/// Memory that this process has in use.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    kib << 10
}

/// Fills a cache and looks how much of it a child has.
fn grow(place: &Path) {
    const WIDE: usize = 1024;
    let options = options().cache_bytes(128 << 20).shards(2);
    let store = Store::create(&place.join("store"), CreateOptions::new(), options).unwrap();
    let table = store.create_table(&sgd("t", WIDE)).unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    for keys in keys.chunks(1000) {
        set(&store, table, keys, 1.0, WIDE);
    }
    let own = resident_bytes();
    assert!(own > 80 << 20, "{own} bytes: the cache is not filled");
    let child = fork(|| {
        let bytes = resident_bytes();
        assert!(bytes < own / 2, "{bytes} of {own} bytes are in the child");
        drop(store);
    });
    assert_eq!(wait(child), 0);
    say("ok");
}

/// Plays a role to its end, with threads and without.
fn play(role: &str) {
    for role in [role.to_owned(), format!("{role} inline")] {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Child::start(&role, directory.path());
        assert_eq!(child.listen().as_deref(), Some("ok"), "{role}");
        assert!(child.end().success(), "{role}");
    }
}

/// A forked child that pulled waited for ever for threads that it did not have, or took the
/// completions of its parent's reads.
#[test]
fn every_call_in_a_forked_child_says_that_it_is_forked() {
    play("ask");
}

/// Dropping a store in a forked child joined threads that were not there, and panicked: "threads
/// should not terminate unexpectedly". Dropping a lease unpinned, dropping a ticket locked.
#[test]
fn dropping_anything_in_a_forked_child_does_nothing() {
    play("drop");
}

/// Each worker of a data loader had the whole cache, and its parent copied every page it changed.
#[test]
fn a_forked_child_has_no_copy_of_the_cache() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Child::start("grow", directory.path());
    assert_eq!(child.listen().as_deref(), Some("ok"));
    assert!(child.end().success());
}

#[test]
fn the_parent_goes_on_as_if_there_were_no_children() {
    play("train");
}

#[test]
fn a_hold_is_the_parents_whatever_its_children_do() {
    play("hold");
}

#[test]
fn a_forked_child_may_open_a_store_of_its_own() {
    play("again");
}

/// A worker that outlived a killed trainer kept its copy of the lock's descriptor, and so the lock:
/// the next trainer was `Locked` until somebody found the worker.
#[test]
fn a_worker_that_outlives_a_killed_trainer_keeps_neither_lock_nor_checkpoint() {
    for role in ["outlive", "outlive inline"] {
        let directory = tempfile::tempdir().unwrap();
        let mut trainer = Child::start(role, directory.path());
        let worker: libc::pid_t = trainer.listen().unwrap().parse().unwrap();
        trainer.kill();
        // SAFETY: signal 0 asks whether the process is there.
        let alive = unsafe { libc::kill(worker, 0) };
        let mut other = Child::start("open", directory.path());
        let said = other.listen();
        // SAFETY: the worker of this test, which nobody else ends.
        unsafe { libc::kill(worker, libc::SIGKILL) };
        assert_eq!(alive, 0, "the worker is to outlive its parent");
        assert_eq!(said.as_deref(), Some("open, dropped 1"), "{role}");
        assert!(other.end().success());
    }
}

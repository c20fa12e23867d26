//! What does a store do where a process may have little?
//!
//! Containers give 64 KiB of locked memory, few processes, few descriptors, or forbid io_uring.
//! - Training, compaction, checkpoint and reopen give the same rows as without limits; or there is
//!   an error that names the limit, nothing is left half made, and the same call works once the
//!   limit is gone.
//! - What a lack of rings costs is said once: in the stats, and in the log.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/child.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod child;
#[path = "common/limits.rs"]
mod limits;
#[path = "common/skip.rs"]
mod skip;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;
#[path = "common/spans.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod spans;

use std::collections::BTreeMap;
use std::path::Path;

use child::{role_of_this_process, say};
use hps::*;
use limits::{Limits, Somebody, forbid, threads_more};
use nix::libc;
use small::{set, sgd};
use spans::Spans;

const DIM: usize = 64;
const KEYS: u64 = 30_000;
const STEPS: u64 = 6;
const RINGS: [libc::c_long; 3] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// What a child process does.
#[test]
fn role() {
    let Some((role, place)) = role_of_this_process() else {
        return;
    };
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("train", how) => train(&place, how),
        ("few-threads", how) => few_threads(&place, how),
        (other, _) => panic!("no role {other}"),
    }
}

fn options(how: &str) -> RuntimeOptions {
    let wide = how.contains("wide");
    RuntimeOptions::new()
        .cache_bytes(if wide { 6 << 20 } else { 3 << 20 })
        .file_bytes(4 << 20)
        .threads(if wide { 8 } else { 2 })
        .shards(if wide { 16 } else { 4 })
        .io(match how.contains("plain") {
            true => IoEngine::Pread,
            false => IoEngine::Uring,
        })
        .retain_checkpoints(1)
}

/// A step of training: every third key in turn, each row by what it was.
fn step(store: &Store, table: TableId, step: u64) {
    let keys: Vec<u64> = (step % 3..KEYS).step_by(3).map(mix64).collect();
    for keys in keys.chunks(1000) {
        let ahead = [PrefetchPart::new(table, keys); 2];
        let ahead = store.prefetch_many(&ahead).unwrap();
        let mut out = vec![0.0; keys.len() * DIM];
        let lease = store.pull(table, keys, &mut out).unwrap();
        out.iter_mut().for_each(|x| *x = *x * 0.5 + step as f32);
        store.push(&lease, Update::weights(&out)).unwrap();
        drop(ahead.wait().unwrap());
    }
}

/// A number that stands for all rows of the last checkpoint.
fn digest(store: &Store) -> u64 {
    let mut rows = store.rows(store.last_checkpoint().unwrap().id).unwrap();
    let mut digest = 0u64;
    while let Some(row) = rows.next_row().unwrap() {
        digest = mix64(digest ^ row.key);
        for value in row.values {
            digest = digest.wrapping_mul(31).wrapping_add(value.to_bits().into());
        }
    }
    mix64(digest)
}

/// Trains, compacts, checkpoints and reopens under limits, and says what came of it.
fn train(place: &Path, how: &str) {
    Limits::of(how).set();
    if how.contains("no-rings") {
        forbid(&RINGS, libc::EPERM);
    }
    let log = Spans::default();
    tracing::subscriber::set_global_default(log.clone()).unwrap();
    let place = place.join(how.replace(' ', "-"));
    let store = Store::create(&place, CreateOptions::new(), options(how)).unwrap();
    let table = store.create_table(&sgd("t", DIM)).unwrap();
    for number in 1..=STEPS {
        step(&store, table, number);
        store.checkpoint(number, b"").unwrap();
        if number == STEPS / 2 {
            if how.contains("rings-end") {
                forbid(&RINGS, libc::EPERM);
            }
            store.compact_fully().unwrap();
        }
    }
    let stats = store.stats();
    store.close().unwrap();
    let store = Store::open(&place, options(how)).unwrap();
    say(&format!("digest={:x}", digest(&store)));
    let found = store.stats();
    for (name, value) in [
        ("queues", stats.queues),
        ("plain", stats.plain_queues),
        ("lost", stats.rings_lost),
        ("buffers", stats.queue_buffers),
        ("registered", stats.registered_buffers),
        ("bytes", stats.buffer_bytes),
        ("reads", stats.reads),
        ("flushes", stats.flushes),
    ] {
        say(&format!("{name}={value}"));
    }
    say(&format!("engine={}", stats.io_engine));
    say(&format!("reopened={}", found.io_engine));
    let count = |what: &str| {
        let seen = log.seen();
        seen.iter().filter(|e| e.name.contains(what)).count()
    };
    say(&format!("said-plain={}", count("plain reads and writes")));
    say(&format!("said-lost={}", count("a ring failed")));
    store.close().unwrap();
}

/// What a child said, by name.
fn said(somebody: &Somebody, role: &str) -> BTreeMap<String, String> {
    let said = somebody.plays(role);
    let pair = |line: &String| {
        let (name, value) = line.split_once('=').expect("a name and a value");
        (name.to_owned(), value.to_owned())
    };
    said.iter().map(pair).collect()
}

fn number(said: &BTreeMap<String, String>, name: &str) -> u64 {
    said[name].parse().unwrap()
}

/// The digest by plain calls and without limits; the work under test must have been some.
fn expected(somebody: &Somebody) -> String {
    let plain = said(somebody, "train plain");
    assert!(number(&plain, "reads") > 0 && number(&plain, "flushes") > 0);
    assert_eq!(plain["engine"], "pread");
    assert_eq!(number(&plain, "plain"), 0, "it was asked for");
    plain["digest"].clone()
}

/// An unprivileged process with 64 or 512 KiB of locked memory, a container's usual limits, could
/// not open a store: "make a submission queue: Cannot allocate memory", after the directory was
/// made.
#[test]
fn little_locked_memory_costs_rings_but_neither_a_row_nor_an_error() {
    let Some(somebody) = Somebody::new() else {
        return;
    };
    let digest = expected(&somebody);
    for bytes in [0, 64 << 10, 512 << 10, 8 << 20] {
        for wide in ["", " wide"] {
            let role = format!("train memlock={bytes}{wide}");
            let said = said(&somebody, &role);
            assert_eq!(said["digest"], digest, "{role}: {said:?}");
            let (queues, plain) = (number(&said, "queues"), number(&said, "plain"));
            let engine = match plain {
                0 => "uring",
                _ if plain < queues => "uring+pread",
                _ => "pread",
            };
            assert_eq!(said["engine"], engine, "{role}");
            assert_eq!(number(&said, "lost"), 0, "{role}");
            // Once per opening.
            let openings = number(&said, "said-plain");
            let once = openings <= 2 && (openings > 0 || plain == 0);
            assert!(once, "{role}: {said:?}");
            let (buffers, registered) = (number(&said, "buffers"), number(&said, "registered"));
            let registered_bytes = number(&said, "bytes") / buffers.max(1) * registered;
            assert!(registered_bytes <= bytes.max(1), "{role}: {said:?}");
        }
    }
}

#[test]
fn a_process_that_may_not_use_rings_uses_plain_calls() {
    let Some(somebody) = Somebody::new() else {
        return;
    };
    let digest = expected(&somebody);
    for role in ["train no-rings", "train no-rings wide"] {
        let said = said(&somebody, role);
        assert_eq!(said["digest"], digest, "{role}: {said:?}");
        assert_eq!((&*said["engine"], &*said["reopened"]), ("pread", "pread"));
        assert_eq!(number(&said, "said-plain"), 2, "once per opening");
    }
}

/// `io_uring_enter` failed once: writers and lanes were broken until the store was opened again.
#[test]
fn a_store_whose_rings_fail_while_it_is_open_goes_on() {
    let Some(somebody) = Somebody::new() else {
        return;
    };
    let digest = expected(&somebody);
    for role in ["train rings-end", "train rings-end wide"] {
        let said = said(&somebody, role);
        assert_eq!(said["digest"], digest, "{role}: {said:?}");
        assert_eq!(said["reopened"], "pread");
        let fell_back = said["engine"].contains("pread");
        assert!(number(&said, "lost") > 0 && fell_back, "{role}: {said:?}");
        assert_eq!(number(&said, "said-lost"), 1);
        assert!(number(&said, "said-plain") <= 2);
    }
}

#[test]
fn few_descriptors_and_little_address_space_change_no_row() {
    let Some(somebody) = Somebody::new() else {
        return;
    };
    let digest = expected(&somebody);
    for limit in ["nofile=64", "as=2147483648", "memlock=65536 nofile=64"] {
        for wide in ["", " wide"] {
            let said = said(&somebody, &format!("train {limit}{wide}"));
            assert_eq!(said["digest"], digest, "{limit}{wide}");
        }
    }
}

/// Whether a store can't be opened for want of threads, and the message says so.
fn wants_threads(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::Io { .. }) && text.contains("ulimit -u") && text.contains("threads")
}

/// Creates and opens stores with ever more threads allowed.
fn few_threads(place: &Path, how: &str) {
    let place = place.join(format!("few-{how}"));
    std::fs::create_dir(&place).unwrap();
    let made = place.join("made");
    let store = Store::create(&made, CreateOptions::new(), options(how)).unwrap();
    let table = store.create_table(&sgd("t", DIM)).unwrap();
    set(&store, table, &[1, 2, 3], 1.0, DIM);
    store.checkpoint(1, b"").unwrap();
    store.close().unwrap();
    let (mut refused, mut more) = ((0, 0), 0);
    loop {
        let fresh = place.join(format!("fresh-{more}"));
        threads_more(Some(more));
        let created = Store::create(&fresh, CreateOptions::new(), options(how)).map(drop);
        let opened = Store::open(&made, options(how)).map(|store| {
            set(&store, table, &[1, 2, 3], 1.0, DIM);
            // Its thread may be the one that is not to be had.
            let saved = store.checkpoint(2 + more, b"");
            store.close_discarding();
            saved.map(drop)
        });
        threads_more(None);
        match &created {
            Ok(()) => {}
            Err(error) => {
                assert!(wants_threads(error), "create with {more} more: {error}");
                assert!(!fresh.exists(), "create with {more} more left something");
                refused.0 += 1;
            }
        }
        match &opened {
            Ok(Ok(())) if created.is_ok() => break,
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => {
                assert!(wants_threads(error), "open with {more} more: {error}");
                refused.1 += 1;
            }
        }
        // Once there are threads, all is as it should be.
        if created.is_err() {
            Store::create(&fresh, CreateOptions::new(), options(how))
                .unwrap()
                .close()
                .unwrap();
        }
        Store::open(&made, options(how)).unwrap().close().unwrap();
        more += 1;
        assert!(more < 100, "no end");
    }
    say(&format!("creates={}", refused.0));
    say(&format!("opens={}", refused.1));
}

/// With few processes allowed (`pids.max`, `ulimit -u`), a create left a store behind whose open
/// had failed, and an open that failed half way left threads and the lock.
#[test]
fn where_threads_are_not_to_be_had_nothing_is_left_half_made_or_locked() {
    let Some(somebody) = Somebody::new() else {
        return;
    };
    for role in ["few-threads", "few-threads wide"] {
        let said = said(&somebody, role);
        let refused = (number(&said, "creates"), number(&said, "opens"));
        assert!(refused.0 > 3 && refused.1 > 3, "{role}: {said:?}");
    }
}

//! What becomes of a store when its caller panics inside an export, a rollback, a walk of rows, a
//! put, or while checkpoints are dropped or files compacted?
//!
//! As in `tests/panics.rs`: writes are refused and the reason names the thread, whoever waits is
//! woken, and the store opens at a checkpoint that was acknowledged, with its rows.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use hooked::{Hook, HookedDisk};
use hps::io::sim::{SimDisk, plant};
use hps::*;
use small::{set, sgd};

const ROOT: &str = "/store";
const DIM: usize = 64;
const KEYS: u64 = 60;
/// The thread that makes the calls.
const CALLER: &str = "caller";
/// The last checkpoint before the panic, and one that somebody else makes beside it.
const LAST: u64 = 3;
const BESIDE: u64 = 100;

fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .shards(2)
        .threads(2)
        .io_depth(4)
        .retain_checkpoints(3)
}

/// What the caller does.
#[derive(Clone, Copy, Debug)]
enum During {
    Export,
    Rows,
    Drop,
    Compact,
    Put,
    LongPut,
    Rollback,
}

/// As a call: a place of the engine, by name.
const ENGINE: &str = "engine";

/// A disk that panics once at a call of the caller's, when it is armed; others have some time to
/// begin what they want to do beside it.
fn planted(disk: &SimDisk, call: &'static str, suffix: &'static str) -> (HookedDisk, Armed) {
    let armed = Armed::default();
    let hook: Hook = {
        let armed = armed.clone();
        Arc::new(move |kind, path: &Path| {
            let current = std::thread::current();
            let here = current.name().is_some_and(|name| name.starts_with(CALLER));
            let hit = here && kind == call && path.to_string_lossy().ends_with(suffix);
            if hit && armed.armed.swap(false, SeqCst) {
                armed.met.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(20));
                panic!("planted at {call}");
            }
            None
        })
    };
    let mut hooked = HookedDisk::new(disk.clone(), Arc::clone(&hook));
    hooked.reads = Some(hook);
    (hooked, armed)
}

#[derive(Clone, Default)]
struct Armed {
    armed: Arc<AtomicBool>,
    met: Arc<AtomicBool>,
}

type Rows = BTreeMap<u64, f32>;

/// A store with three checkpoints, and the rows of each: files of the first ones are no more in the
/// current version, and the last has stale rows.
fn grown(disk: HookedDisk) -> (Store, BTreeMap<u64, Rows>) {
    let create = CreateOptions::new().data_directories(vec!["a".into(), "b".into()]);
    let store = Store::create_on(Arc::new(disk), Path::new(ROOT), create, options()).unwrap();
    let table = store.create_table(&sgd("rows", DIM)).unwrap();
    let (mut rows, mut saved) = (Rows::new(), BTreeMap::new());
    for step in 1..=LAST {
        for part in 0..4 {
            let keys: Vec<u64> = (0..KEYS)
                .filter(|k| step == 1 || k % if step == 2 { 4 } else { 8 } == part)
                .collect();
            let value = (step * 10 + part) as f32;
            set(&store, table, &keys, value, DIM);
            rows.extend(keys.iter().map(|k| (*k, value)));
            store.flush().unwrap();
        }
        if step == 2 {
            // Nothing is left of the first checkpoint's files.
            store.compact_fully().unwrap();
        }
        store.checkpoint(step, &[]).unwrap();
        saved.insert(step, rows.clone());
    }
    saved.insert(BESIDE, rows);
    (store, saved)
}

fn walk(store: &Store, id: CheckpointId) -> Result<Rows> {
    let mut rows = Rows::new();
    let mut iter = store.rows(id)?;
    while let Some(row) = iter.next_row()? {
        assert!(row.values.iter().all(|v| *v == row.values[0]), "a torn row");
        rows.insert(row.key, row.values[0]);
    }
    Ok(rows)
}

/// The call that is to panic.
fn make(during: During, store: &Store) -> Result<()> {
    let ids: Vec<CheckpointId> = store.checkpoints().iter().map(|c| c.id).collect();
    match during {
        During::Export => store.export(ids[2], Path::new("/export"), &[]),
        During::Rows => walk(store, ids[0]).map(drop),
        During::Drop => store.drop_checkpoints(&ids[..2]).map(drop),
        During::Compact => {
            let limits = CompactLimits::new().stale_share(0.01);
            let go_on = &mut |_| ControlFlow::Continue(());
            store.compact(&limits, go_on).map(drop)
        }
        During::Put | During::LongPut => {
            let keys: Vec<u64> = (0..20 * store.stats().capacity_rows).collect();
            let rows = vec![-1.0; keys.len() * DIM];
            let table = store.table("rows")?;
            // A long put's rows go past the cache.
            let call = match during {
                During::LongPut => keys.len(),
                _ => 500,
            };
            for (keys, rows) in keys.chunks(call).zip(rows.chunks(call * DIM)) {
                store.put(table, keys, PutRows::weights(rows))?;
            }
            Ok(())
        }
        During::Rollback => unreachable!("it takes the store away"),
    }
}

fn check(during: During, call: &'static str, suffix: &'static str) {
    let what = format!("{during:?}, {call} {suffix}");
    let (done, ended) = channel();
    // A place of the engine is planted for a name: another test's caller met it at times.
    let caller = std::thread::Builder::new().name(format!("{CALLER} {what}"));
    let told = what.clone();
    let caller = caller.spawn(move || {
        check_here(during, call, suffix, &told);
        done.send(()).unwrap();
    });
    let patience = Duration::from_secs(120);
    if ended.recv_timeout(patience) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("{what}: somebody waits for ever");
    }
    assert!(caller.unwrap().join().is_ok(), "{what}");
}

fn check_here(during: During, call: &'static str, suffix: &'static str, what: &str) {
    let disk = SimDisk::new(3);
    let (hooked, Armed { armed, met }) = planted(&disk, call, suffix);
    let (store, saved) = grown(hooked);
    armed.store(true, SeqCst);
    if let During::Rollback = during {
        let target = store.checkpoints()[1].id;
        let end = catch_unwind(AssertUnwindSafe(|| store.rollback(target).map(drop)));
        assert!(end.is_err(), "{what}: {end:?}");
        return reopens(&disk, &saved, &[LAST, 2], what);
    }
    std::thread::scope(|scope| {
        // Somebody comes while the caller is inside.
        let beside = scope.spawn(|| {
            while !met.load(SeqCst) {
                std::thread::yield_now();
            }
            store.checkpoint(BESIDE, &[])
        });
        if call == ENGINE {
            // Whoever comes does so once it is over.
            let current = std::thread::current();
            plant::panic_at(suffix, current.name().unwrap_or_default());
        }
        let end = catch_unwind(AssertUnwindSafe(|| make(during, &store)));
        if call == ENGINE {
            met.store(!plant::is_armed(), SeqCst);
        }
        // Without the panic nobody would come.
        let was_met = met.swap(true, SeqCst);
        let beside = beside.join().unwrap();
        assert!(
            was_met && end.is_err(),
            "{what}: {end:?}, never met: {}",
            !was_met
        );
        assert!(
            matches!(beside, Ok(_) | Err(Error::Poisoned { .. })),
            "{what}: {beside:?}"
        );
    });
    match store.flush() {
        Err(Error::Poisoned { cause }) => {
            let place = if call == ENGINE { suffix } else { call };
            let told = ["thread caller", "planted at", place];
            assert!(told.iter().all(|t| cause.contains(t)), "{what}: {cause}");
        }
        other => panic!("{what}: {other:?}"),
    }
    assert!(store.has_changes(), "{what}: nobody knows");
    store.close_discarding();
    reopens(&disk, &saved, &[LAST, BESIDE], what);
}

/// The store opens at one of these checkpoints, whole.
fn reopens(disk: &SimDisk, saved: &BTreeMap<u64, Rows>, steps: &[u64], what: &str) {
    let store = Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options());
    let store = store.unwrap_or_else(|e| panic!("{what}: {e}"));
    let last = store.last_checkpoint().unwrap();
    assert!(steps.contains(&last.step), "{what}: {last:?}");
    assert!(
        walk(&store, last.id).unwrap() == saved[&last.step],
        "{what}"
    );
    let table = store.table("rows").unwrap();
    set(&store, table, &[1], 9.0, DIM);
    store.checkpoint(1000, &[]).unwrap();
    store.close().unwrap();
}

#[test]
fn a_panic_in_an_export_poisons_the_store() {
    for (call, suffix) in [
        ("mkdir", "part-0"),
        ("link", ".rows"),
        ("create", "PART"),
        ("sync", ".manifest"),
        ("sync", "CURRENT"),
        ("rename", "STORE.tmp"),
    ] {
        check(During::Export, call, suffix);
    }
}

#[test]
fn a_panic_where_a_checkpoint_is_opened_for_iteration_poisons_the_store() {
    check(During::Rows, "open", ".rows");
}

#[test]
fn a_panic_while_checkpoints_are_dropped_poisons_the_store() {
    for (call, suffix) in [
        ("create", ".manifest"),
        ("sync", ".copy"),
        ("create", "CURRENT.tmp"),
        ("rename", "CURRENT.tmp"),
        ("sync_dir", "store"),
        ("remove", ".rows"),
        ("remove", ".meta"),
    ] {
        check(During::Drop, call, suffix);
    }
}

#[test]
fn a_panic_while_files_are_compacted_poisons_the_store() {
    for (call, suffix) in [
        ("read", ".rows"),
        ("create", ".rows"),
        ("write", ".rows"),
        ("sync", ".rows"),
        ("sync", ".manifest"),
        ("rename", "CURRENT.tmp"),
        ("remove", ".manifest"),
    ] {
        check(During::Compact, call, suffix);
    }
}

/// The caller makes room for its rows, and puts them.
#[test]
fn a_panic_in_a_put_poisons_the_store() {
    for (call, suffix) in [
        (ENGINE, "put"),
        ("create", ".rows"),
        ("write", ".rows"),
        (ENGINE, "settle"),
    ] {
        check(During::Put, call, suffix);
    }
}

#[test]
fn a_panic_in_a_put_that_goes_past_the_cache_poisons_the_store() {
    for (call, suffix) in [
        ("create", ".rows"),
        ("write", ".rows"),
        (ENGINE, "put_straight"),
    ] {
        check(During::LongPut, call, suffix);
    }
}

#[test]
fn a_panic_in_a_rollback_leaves_one_checkpoint_or_the_other() {
    for (call, suffix) in [
        ("create", ".manifest"),
        ("sync", ".manifest"),
        ("create", "CURRENT.tmp"),
        ("rename", "CURRENT.tmp"),
        ("sync_dir", "store"),
    ] {
        check(During::Rollback, call, suffix);
    }
}

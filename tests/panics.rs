//! What becomes of a store when one of its threads panics, or the caller's inside a call?
//!
//! Panics are planted in calls of the disk and at places of the engine that no disk sees, on a
//! thread chosen by its name. Each time: writes are refused and the reason names the thread and
//! what it said, everybody who waits is woken, closing ends, and the store opens at its last
//! checkpoint, or at one that was being made, whole.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/rng.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod rng;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hooked::{Hook, HookedDisk};
use hps::io::sim::{SimDisk, plant};
use hps::*;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use rng::Rng;

const ROOT: &str = "/store";
const DIM: usize = 32;
const KEYS: u64 = 16_000;
/// The thread that makes the calls.
const CALLER: &str = "caller";
/// Rounds of the workload until a panic must have come.
const ROUNDS: u64 = 300;

/// Planted panics are for the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Where a panic is planted.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In a call of the disk, for a file whose name ends so.
    Disk(&'static str, &'static str),
    /// At a place of the engine.
    Engine(&'static str),
}

#[derive(Clone, Copy, Debug)]
struct Plant {
    place: Place,
    /// What the thread's name begins with.
    thread: &'static str,
    /// With 64 MiB of cache several files are written at the same time.
    many_writers: bool,
}

fn options(many_writers: bool) -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(if many_writers { 64 << 20 } else { 1 << 20 })
        .file_bytes(1 << 20)
        .shards(4)
        .threads(2)
        .io_depth(4)
        .space_bound(1.1)
        .retain_checkpoints(2)
}

fn create() -> CreateOptions {
    CreateOptions::new().data_directories(vec!["a".into(), "b".into()])
}

fn table() -> TableDescriptor {
    TableDescriptor::new("t", DIM)
        .optimizer(Optimizer::Sgd)
        .initialiser(Initialiser::Zero)
}

type Rows = BTreeMap<u64, f32>;

/// What was pushed, and what each checkpoint that was begun must hold.
#[derive(Default)]
struct Model {
    rows: Rows,
    begun: BTreeMap<u64, Rows>,
    durable: u64,
}

/// How a call ended.
#[derive(Debug, PartialEq)]
enum End {
    Done,
    Poisoned,
    Panicked,
}

/// Makes a call that may meet the panic.
fn call<T>(work: impl FnOnce() -> Result<T>) -> (End, Option<T>) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(out)) => (End::Done, Some(out)),
        Ok(Err(Error::Poisoned { .. })) => (End::Poisoned, None),
        Ok(Err(Error::OverBudget { .. })) => (End::Done, None),
        Ok(Err(other)) => panic!("{other}"),
        Err(_) => (End::Panicked, None),
    }
}

/// Pulls, pushes and removes until something is not done.
struct Trainer<'a> {
    store: &'a Store,
    table: TableId,
    rng: Rng,
    model: &'a mut Model,
    value: f32,
}

impl Trainer<'_> {
    fn keys(&mut self, n: usize) -> Vec<u64> {
        (0..n).map(|_| self.rng.next() % KEYS).collect()
    }

    fn push(&mut self, keys: &[u64]) -> End {
        let mut rows = vec![0.0; keys.len() * DIM];
        let part = PullPart::new(self.table, keys, &mut rows);
        let (end, lease) = call(|| self.store.pull_many(&mut [part]));
        let Some(lease) = lease else { return end };
        self.value += 1.0;
        rows.fill(self.value);
        let part = PushPart::new(self.table, Update::weights(&rows));
        let (end, _) = call(|| self.store.push_many(&lease, &[part]));
        if end == End::Done {
            self.model
                .rows
                .extend(keys.iter().map(|k| (*k, self.value)));
        }
        end
    }

    fn remove(&mut self) -> End {
        let keys = self.keys(20);
        let (end, _) = call(|| self.store.remove(self.table, &keys));
        if end == End::Done {
            self.model.rows.retain(|key, _| !keys.contains(key));
        }
        end
    }

    fn begin(&mut self, step: u64) -> (End, Option<CheckpointTicket>) {
        self.model.begun.insert(step, self.model.rows.clone());
        call(|| self.store.checkpoint_begin(step, &[]))
    }

    /// Changes every key, a few rows at a time: a cache runs low several batches before it is
    /// full, and the writer thread has as many pauses for its turn. Stops when `met`.
    fn run_low(&mut self, pause: Duration, met: impl Fn() -> bool) -> Vec<End> {
        let mut ends = Vec::new();
        for first in (0..KEYS).step_by(8) {
            if met() {
                break;
            }
            let keys: Vec<u64> = (first..first + 8).collect();
            ends.push(self.push(&keys));
            std::thread::sleep(pause);
        }
        ends
    }

    /// A round with tickets and a checkpoint under way; the ends of its calls.
    fn round(&mut self, step: u64) -> Vec<End> {
        let mut ends = Vec::new();
        let mut tickets = Vec::new();
        for n in [40, 600, 40, 600] {
            let keys = self.keys(n);
            let (now, later) = keys.split_at(n / 2);
            let parts = [now, later].map(|keys| PrefetchPart::new(self.table, keys));
            let (end, ticket) = call(|| self.store.prefetch_many(&parts));
            ends.push(end);
            tickets.extend(ticket);
        }
        let (end, checkpoint) = self.begin(step);
        ends.push(end);
        let waiters = std::thread::scope(|scope| {
            // Whoever waits is elsewhere: the caller's thread is where panics are planted.
            let waits = tickets.into_iter().enumerate().map(|(i, ticket)| {
                scope.spawn(move || match i % 2 {
                    0 => call(|| ticket.wait().map(drop)).0,
                    _ => call(|| ticket.wait_for(Duration::from_secs(120)).map(drop)).0,
                })
            });
            let waits: Vec<_> = waits.collect();
            for n in [20, 600] {
                let keys = self.keys(n);
                ends.push(self.push(&keys));
            }
            ends.push(self.remove());
            for _ in 0..20 {
                let keys = self.keys(20);
                ends.push(self.push(&keys));
            }
            if step.is_multiple_of(8) {
                ends.push(call(|| self.store.flush()).0);
                ends.push(call(|| self.store.compact_fully()).0);
            }
            waits
                .into_iter()
                .map(|w| w.join().unwrap())
                .collect::<Vec<_>>()
        });
        ends.extend(waiters);
        if let Some(checkpoint) = checkpoint {
            let (end, info) = call(|| checkpoint.wait());
            if info.is_some() {
                self.model.durable = step;
            }
            ends.push(end);
        }
        ends
    }
}

/// Runs `work` on a thread called "caller", for two minutes at most.
fn as_caller(what: String, work: impl FnOnce() + Send + 'static) {
    let (done, ended) = channel();
    let caller = std::thread::Builder::new().name(CALLER.to_owned());
    let caller = caller.spawn(move || {
        work();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(Duration::from_secs(120)) {
        Ok(()) => caller.unwrap().join().unwrap(),
        Err(RecvTimeoutError::Disconnected) => {
            let panic = caller.unwrap().join().unwrap_err();
            eprintln!("{what}");
            std::panic::resume_unwind(panic);
        }
        Err(RecvTimeoutError::Timeout) => panic!("{what}: somebody waits for ever"),
    }
}

/// A disk that panics once where `plant` says, after it was armed.
fn hooked(disk: &SimDisk, plant: Plant) -> (HookedDisk, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let hook: Hook = {
        let armed = Arc::clone(&armed);
        Arc::new(move |call, path| {
            let Place::Disk(wanted, suffix) = plant.place else {
                return None;
            };
            let name = path.to_string_lossy();
            let here = std::thread::current();
            let hit = call == wanted
                && name.ends_with(suffix)
                && here.name().unwrap_or("").starts_with(plant.thread);
            if hit && armed.swap(false, Ordering::Relaxed) {
                panic!("planted at {call}");
            }
            None
        })
    };
    let mut hooked = HookedDisk::new(disk.clone(), Arc::clone(&hook));
    hooked.reads = Some(hook);
    (hooked, armed)
}

/// Trains until the panic comes; then looks at what the store still does, and at what is on disk.
fn check(plant: Plant) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    as_caller(format!("{plant:?}"), move || check_here(plant));
}

fn check_here(plant: Plant) {
    plant::clear();
    let disk = SimDisk::new(7);
    let (hooked, armed) = hooked(&disk, plant);
    let options = options(plant.many_writers);
    let hooked = Arc::new(hooked);
    let store = Store::create_on(hooked, Path::new(ROOT), create(), options.clone()).unwrap();
    let table_id = store.create_table(&table()).unwrap();
    let mut model = Model::default();
    let mut trainer = Trainer {
        store: &store,
        table: table_id,
        rng: Rng(11),
        model: &mut model,
        value: 0.0,
    };
    for first in (0..KEYS).step_by(500) {
        let keys: Vec<u64> = (first..first + 500).collect();
        assert_eq!(trainer.push(&keys), End::Done);
    }
    let (_, ticket) = trainer.begin(1);
    ticket.unwrap().wait().unwrap();
    trainer.model.durable = 1;

    match plant.place {
        Place::Disk(..) => armed.store(true, Ordering::Relaxed),
        Place::Engine(point) => plant::panic_at(point, plant.thread),
    }
    let is_armed = || match plant.place {
        Place::Disk(..) => armed.load(Ordering::Relaxed),
        Place::Engine(_) => plant::is_armed(),
    };
    let mut ends = Vec::new();
    let mut step = 2;
    // A helper may come late to each call of a busy machine.
    let is_helper = ["hps-pull-1", "hps-prefetch-"].contains(&plant.thread);
    let until = Instant::now() + Duration::from_secs(60);
    while is_armed() && (step < ROUNDS || is_helper && Instant::now() < until) {
        if plant.place_is("_table") {
            let late = TableDescriptor::new("late", 2);
            ends.push(call(|| store.create_table(&late)).0);
            if let Ok(late) = store.table("late") {
                ends.push(call(|| store.rename_table(late, "later")).0);
                ends.push(call(|| store.drop_table(late)).0);
            }
        }
        ends = match plant.thread {
            // On a busy machine that thread needs longer to have its turn.
            "hps-writer" => trainer.run_low(Duration::from_millis(1 << (step - 2).min(6)), || {
                !is_armed()
            }),
            _ => trainer.round(step),
        };
        step += 1;
    }
    assert!(!is_armed(), "{plant:?} was never met in {step} rounds");
    // A thread that panicked on its own may be at it yet.
    let mut tries = 0;
    while trainer.push(&[1]) == End::Done {
        tries += 1;
        assert!(tries < 1000, "{plant:?}: pushes go on");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Who panicked is known before what it said.
    let says = || match store.flush() {
        Err(Error::Poisoned { cause }) => cause.contains(&plant.message()),
        _ => false,
    };
    while !says() {
        tries += 1;
        assert!(tries < 1000, "{plant:?}: nobody says why");
        std::thread::sleep(Duration::from_millis(5));
    }
    let ends = format!("{ends:?}");
    refuses_writes(&store, table_id, plant, &ends);
    // Reads end, one way or the other; what is resident is read.
    let mut rows = vec![0.0; DIM];
    for key in 0..50 {
        assert_ne!(
            call(|| store.pull(table_id, &[key], &mut rows)).0,
            End::Panicked
        );
    }
    store.close_discarding();
    check_disk(&disk, &options, &model, plant);
}

impl Plant {
    fn place_is(&self, point: &str) -> bool {
        matches!(self.place, Place::Engine(name) if name.ends_with(point))
    }

    fn message(&self) -> String {
        match self.place {
            Place::Disk(what, _) | Place::Engine(what) => format!("planted at {what}"),
        }
    }
}

/// Every change is refused, with a cause that names the thread and its message.
fn refuses_writes(store: &Store, table_id: TableId, plant: Plant, ends: &str) {
    let refused = |what: &str, result: Result<()>| match result {
        Err(Error::Poisoned { cause }) => {
            let names = cause.contains(&format!("thread {}", plant.thread));
            let says = cause.contains(&plant.message());
            assert!(names && says, "{plant:?}, {what}: {cause}");
        }
        other => panic!("{plant:?}, {what}: {other:?}; {ends}"),
    };
    refused("checkpoint", store.checkpoint(100_000, &[]).map(drop));
    refused("remove", store.remove(table_id, &[1]).map(drop));
    refused("flush", store.flush().map(drop));
    refused("compact", store.compact_fully().map(drop));
    let late = TableDescriptor::new("another", 3);
    refused("create_table", store.create_table(&late).map(drop));
    assert!(store.has_changes(), "{plant:?}: nobody knows");
}

/// The store opens at the last checkpoint that was told, or at one that was begun after it.
fn check_disk(disk: &SimDisk, options: &RuntimeOptions, model: &Model, plant: Plant) {
    let reopened = Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options.clone());
    let reopened = reopened.unwrap_or_else(|e| panic!("{plant:?}: {e}"));
    let last = reopened.last_checkpoint().unwrap();
    assert!(
        last.step >= model.durable,
        "{plant:?}: {} is lost",
        model.durable
    );
    let mut found = Rows::new();
    let mut iter = reopened.rows(last.id).unwrap();
    while let Some(row) = iter.next_row().unwrap() {
        assert!(
            row.values.iter().all(|v| *v == row.values[0]),
            "{plant:?}: a torn row"
        );
        found.insert(row.key, row.values[0]);
    }
    let expected = &model.begun[&last.step];
    let differ = expected.iter().find(|(k, v)| found.get(k) != Some(v));
    assert!(
        differ.is_none() && found.len() == expected.len(),
        "{plant:?}: step {}: {} rows of {}, first {differ:?}",
        last.step,
        found.len(),
        expected.len()
    );
    assert!(!reopened.has_changes());
    reopened.close().unwrap();
}

fn disk(call: &'static str, suffix: &'static str, thread: &'static str) -> Plant {
    Plant {
        place: Place::Disk(call, suffix),
        thread,
        many_writers: false,
    }
}

fn engine(point: &'static str, thread: &'static str) -> Plant {
    Plant {
        place: Place::Engine(point),
        thread,
        many_writers: false,
    }
}

/// The drain of a checkpoint panicked. Its frozen rows and their copies stayed; the next
/// checkpoint wrote the copies after the rows, with a greater rank, and committed old values.
#[test]
fn a_panic_in_the_checkpoint_thread_poisons_the_store() {
    for (call, suffix) in [
        ("create", ".rows"),
        ("write", ".rows"),
        ("sync", ".rows"),
        ("create", ".meta"),
        ("sync_dir", "a"),
        ("write", ".manifest"),
        ("sync", ".copy"),
        ("create", "CURRENT.tmp"),
        ("rename", "CURRENT.tmp"),
    ] {
        check(disk(call, suffix, "hps-checkpoint"));
    }
    check(engine("settle", "hps-checkpoint"));
}

#[test]
fn a_panic_while_an_index_snapshot_is_made_poisons_the_store() {
    check(disk("create", ".snapshot", "hps-checkpoint"));
    check(disk("write", ".snapshot", "hps-checkpoint"));
}

/// Rows that the writer had begun to write stayed so; the next flush that met one which had been
/// pushed since went round for ever, with the writer's role.
#[test]
fn a_panic_in_the_writer_thread_poisons_the_store() {
    check(disk("create", ".rows", "hps-writer"));
    check(disk("write", ".rows", "hps-writer"));
    check(engine("settle", "hps-writer"));
}

#[test]
fn a_panic_in_one_of_several_writers_poisons_the_store() {
    for call in ["create", "write"] {
        check(Plant {
            many_writers: true,
            ..disk(call, ".rows", "hps-write")
        });
    }
}

/// Flushes waited for ever for a compaction that nobody made any more.
#[test]
fn a_panic_in_the_compaction_thread_poisons_the_store() {
    for call in ["create", "write", "read"] {
        check(disk(call, ".rows", "hps-compact"));
    }
    check(engine("adopt", "hps-compact"));
}

/// A ticket that was being served when its thread died was waited for, for ever.
#[test]
fn a_panic_in_a_prefetch_thread_ends_every_ticket() {
    check(disk("read", ".rows", "hps-prefetch"));
    check(engine("admit", "hps-prefetch"));
    check(engine("place", "hps-prefetch"));
}

#[test]
fn a_panic_in_a_thread_of_a_lane_poisons_the_store() {
    check(disk("read", ".rows", "hps-pull-1"));
    check(engine("push", "hps-pull-1"));
    check(engine("admit", "hps-pull-1"));
    check(engine("place", "hps-prefetch-"));
}

/// Half a push was in memory, and the next checkpoint made it durable.
#[test]
fn a_panic_of_the_caller_inside_a_call_poisons_the_store() {
    check(disk("read", ".rows", CALLER));
    for point in ["admit", "place", "push", "remove", "unpin", "cut"] {
        check(engine(point, CALLER));
    }
    for point in ["create_table", "rename_table", "drop_table"] {
        check(engine(point, CALLER));
    }
}

/// Panics on the threads of a store at /publisher.
struct Panicking;

impl Panicking {
    fn meets(key: &Key) {
        let own = |label: &metrics::Label| label.value() == "/publisher";
        assert!(!key.labels().any(own), "the program's recorder");
    }
}

impl Recorder for Panicking {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Panicking::meets(key);
        Counter::noop()
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Panicking::meets(key);
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// A recorder that panics was called from a prefetch thread, which ended with it, unseen.
#[test]
fn a_recorder_that_panics_ends_publishing_and_nothing_else() {
    /// A recorder without fields looks like none.
    struct Wide(Panicking, [u8; 8]);
    impl Recorder for Wide {
        fn describe_counter(&self, n: KeyName, u: Option<Unit>, s: SharedString) {
            assert_eq!(self.1, [0; 8]);
            self.0.describe_counter(n, u, s);
        }
        fn describe_gauge(&self, n: KeyName, u: Option<Unit>, s: SharedString) {
            self.0.describe_gauge(n, u, s);
        }
        fn describe_histogram(&self, n: KeyName, u: Option<Unit>, s: SharedString) {
            self.0.describe_histogram(n, u, s);
        }
        fn register_counter(&self, key: &Key, m: &Metadata<'_>) -> Counter {
            self.0.register_counter(key, m)
        }
        fn register_gauge(&self, key: &Key, m: &Metadata<'_>) -> Gauge {
            self.0.register_gauge(key, m)
        }
        fn register_histogram(&self, key: &Key, m: &Metadata<'_>) -> Histogram {
            self.0.register_histogram(key, m)
        }
    }
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    metrics::set_global_recorder(Wide(Panicking, [0; 8])).unwrap_or_else(|_| panic!("another"));
    as_caller(String::from("publisher"), || {
        let disk = Arc::new(SimDisk::new(1));
        let path = Path::new("/publisher");
        let store = Store::create_on(disk, path, create(), options(false)).unwrap();
        let table = store.create_table(&table()).unwrap();
        while store.stats().publisher_panics == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        store.publish_metrics();
        let mut rows = vec![0.0; 300 * DIM];
        let keys: Vec<u64> = (0..300).collect();
        for step in 1..4 {
            let lease = store.prefetch(table, &keys).unwrap().wait().unwrap();
            lease.read(&mut rows).unwrap();
            store.push(&lease, Update::weights(&rows)).unwrap();
            drop(lease);
            store.checkpoint(step, &[]).unwrap();
        }
        assert_eq!(store.stats().publisher_panics, 1, "it is not called again");
        store.close().unwrap();
    });
}

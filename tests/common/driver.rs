//! Drives a store and its model through the same operations.

mod batches;
mod tables;

use super::model::{TableModel, key_of};
use super::rng::Rng;
use super::setup::{descriptors, random_options};
use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use batches::Parts;

/// What a step does; [`Step::seed`] says how exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nothing,
    Pull,
    Push,
    Remove,
    Contains,
    Prefetch,
    ServeTicket,
    DropTicket,
    BeginPass,
    EndPass,
    Hold,
    PushHeld,
    Put,
    DropLease,
    Flush,
    Compact,
    Checkpoint,
    Begin,
    Wait,
    Rollback,
    Reopen,
    ReadOnly,
    CreateTable,
    DropTable,
    RenameTable,
}

/// One operation.
pub type Step = super::steps::Step<Kind>;

/// What has to happen for a test to mean something, over all cases.
#[derive(Debug, Default)]
pub struct Totals {
    pub eviction_flushes: AtomicU64,
    pub own_compactions: AtomicU64,
    pub forced_compactions: AtomicU64,
    pub misses: AtomicU64,
    pub files_reopened: AtomicU64,
    pub rollbacks: AtomicU64,
    pub reopened_with_loss: AtomicU64,
    pub overlapped_checkpoints: AtomicU64,
    pub rows_compared: AtomicU64,
    /// Pushes to leases of several parts.
    pub pushes_of_several: AtomicU64,
    /// Puts, and those of them in which rows were flushed.
    pub puts: AtomicU64,
    /// Passes that were there and ended.
    pub passes: AtomicU64,
    /// Those of them whose rows were written.
    pub passes_put: AtomicU64,
    pub flushing_puts: AtomicU64,
    /// Puts of which all or some rows went past the cache.
    pub straight_puts: AtomicU64,
    /// Tables that came, went and changed their names, and drops that held rows kept off.
    pub tables_created: AtomicU64,
    pub tables_dropped: AtomicU64,
    pub tables_renamed: AtomicU64,
    pub drops_refused: AtomicU64,
}

impl Totals {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// The model as of a checkpoint.
#[derive(Clone)]
struct Cut {
    id: CheckpointId,
    step: u64,
    meta: Vec<u8>,
    tables: Vec<TableModel>,
}

struct Held {
    parts: Parts,
    lease: Lease,
}

/// A pass, its table and its keys.
struct Begun<T> {
    table: usize,
    keys: Vec<u64>,
    pass: T,
}

struct Waiting {
    parts: Parts,
    ticket: Ticket,
}

/// A store, its model, and everything that is held.
pub struct Driver<'t> {
    disk: Io,
    create: CreateOptions,
    store: Option<Store>,
    options: RuntimeOptions,
    background: bool,
    /// Nothing that leaves fewer stale rows behind: the store's own compactions have to come.
    calm: bool,
    tables: Vec<TableModel>,
    cuts: Vec<Cut>,
    pending: Option<(CheckpointTicket, Cut)>,
    last_id: CheckpointId,
    step: u64,
    changed: bool,
    leases: Vec<Held>,
    tickets: Vec<Waiting>,
    coming_passes: Vec<Begun<PassTicket>>,
    passes: Vec<Begun<Pass>>,
    /// A ticket was dropped that a thread may be serving still: it reads what it has begun.
    dropped_ticket: bool,
    asked_flushes: u64,
    forced: u64,
    totals: &'t Totals,
}

const ROOT: &str = "/store";

impl<'t> Driver<'t> {
    pub fn new(seed: u64, background: bool, totals: &'t Totals) -> Driver<'t> {
        let mut rng = Rng(seed);
        let disk = Io::of(SimDisk::new(rng.next()));
        let create = CreateOptions::new().data_directories(match rng.below(3) {
            0 => vec!["a".into(), "b".into()],
            _ => Vec::new(),
        });
        let options = random_options(&mut rng, background);
        let (io, root) = (disk.clone(), Path::new(ROOT));
        let store = Store::create_on(io, root, create.clone(), options.clone()).unwrap();
        let tables = descriptors(&mut rng);
        for table in &tables {
            store.create_table(&table.descriptor).unwrap();
        }
        // So that there is something to reopen: tables are durable with a checkpoint.
        let cut = Cut {
            id: store.checkpoint(1, b"first").unwrap().id,
            step: 1,
            meta: b"first".to_vec(),
            tables: tables.clone(),
        };
        Driver {
            disk,
            create,
            calm: rng.one_in(3),
            store: Some(store),
            options,
            background,
            tables,
            last_id: cut.id,
            cuts: vec![cut],
            pending: None,
            step: 1,
            changed: false,
            leases: Vec::new(),
            tickets: Vec::new(),
            coming_passes: Vec::new(),
            passes: Vec::new(),
            dropped_ticket: false,
            asked_flushes: 0,
            forced: 0,
            totals,
        }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn id(table: usize) -> TableId {
        TableId(table as u32)
    }

    fn held(&self) -> usize {
        let passes = self.coming_passes.len() + self.passes.len();
        self.leases.len() + self.tickets.len() + passes
    }

    pub fn run(&mut self, step: &Step) {
        let rng = &mut Rng(step.seed);
        let kind = match step.kind {
            Kind::Compact | Kind::Rollback | Kind::Reopen if self.calm => Kind::Push,
            other => other,
        };
        let table = self.live([0, rng.below(self.tables.len())][rng.below(2)]);
        // What is held beside it fits into any of the caches.
        let count = match kind {
            Kind::Hold | Kind::Prefetch | Kind::BeginPass => step.keys.min(24),
            // Tables that come take slots from the others.
            _ if self.has_brief() => step.keys.min(40),
            _ => step.keys,
        };
        let keys = self.tables[table].keys(rng, count);
        match kind {
            Kind::Nothing => {}
            Kind::Pull => {
                let parts = self.parts(rng, table, keys);
                drop(self.pull(&parts));
            }
            Kind::Push => {
                let parts = self.parts(rng, table, keys);
                let lease = self.pull(&parts);
                self.push(&parts, &lease, rng);
            }
            Kind::Remove => self.remove(table, &keys),
            Kind::Contains => self.contains(table, &keys),
            Kind::Prefetch if self.held() < 3 => {
                let parts = self.parts(rng, table, keys);
                let ticket = self.prefetch(&parts);
                self.tickets.push(Waiting { parts, ticket });
            }
            Kind::ServeTicket if !self.tickets.is_empty() => {
                let waiting = self.tickets.swap_remove(rng.below(self.tickets.len()));
                let lease = waiting.ticket.wait().unwrap();
                self.check_lease(&waiting.parts, &lease);
                self.push(&waiting.parts, &lease, rng);
                self.check_lease(&waiting.parts, &lease);
            }
            Kind::DropTicket if !self.tickets.is_empty() => {
                let i = rng.below(self.tickets.len());
                self.tickets.swap_remove(i);
                self.dropped_ticket = true;
            }
            Kind::BeginPass if self.held() < 3 => {
                let part = PassPart::new(Self::id(table), &keys);
                let pass = self.store().begin_pass(&[part]).unwrap();
                self.coming_passes.push(Begun { table, keys, pass });
            }
            Kind::EndPass => self.end_pass(rng),
            Kind::Hold if self.held() < 3 => {
                let parts = self.parts(rng, table, keys);
                let lease = self.pull(&parts);
                self.leases.push(Held { parts, lease });
            }
            Kind::PushHeld if !self.leases.is_empty() => {
                let held = self.leases.swap_remove(rng.below(self.leases.len()));
                self.check_lease(&held.parts, &held.lease);
                self.push(&held.parts, &held.lease, rng);
                self.check_lease(&held.parts, &held.lease);
                self.leases.push(held);
            }
            Kind::Put => self.put(table, keys, rng),
            Kind::DropLease if !self.leases.is_empty() => {
                let held = self.leases.swap_remove(rng.below(self.leases.len()));
                self.check_lease(&held.parts, &held.lease);
            }
            Kind::Flush => self.flush(),
            Kind::Compact => {
                let before = self.store().stats().compactions;
                self.store().compact_fully().unwrap();
                self.forced += self.store().stats().compactions - before;
            }
            Kind::Checkpoint => {
                self.begin(rng);
                self.wait();
                self.compare_checkpoints(rng);
            }
            Kind::Begin => {
                self.begin(rng);
                Totals::add(&self.totals.overlapped_checkpoints, 1);
            }
            Kind::Wait => {
                self.wait();
                self.compare_checkpoints(rng);
            }
            Kind::Rollback => {
                if rng.one_in(4) {
                    // A store that has written nothing since it was opened can be rolled back.
                    self.reopen(rng);
                }
                self.rollback(rng);
            }
            Kind::Reopen => self.reopen(rng),
            Kind::ReadOnly => self.read_only(rng, table, &keys),
            Kind::CreateTable => self.create_table(rng),
            Kind::DropTable => self.drop_table(rng),
            Kind::RenameTable => self.rename_table(rng),
            _ => {}
        }
    }

    fn let_go(&mut self) {
        self.leases.clear();
        self.tickets.clear();
        self.coming_passes.clear();
        self.passes.clear();
    }

    fn remove(&mut self, table: usize, keys: &[u64]) {
        let removed = self.store().remove(Self::id(table), keys).unwrap();
        let expected = self.tables[table].remove(keys);
        assert_eq!(removed, expected, "keys removed");
        self.changed |= expected > 0;
    }

    fn contains(&self, table: usize, keys: &[u64]) {
        let found = self.store().contains(Self::id(table), keys).unwrap();
        for (key, found) in keys.iter().zip(found) {
            let known = self.tables[table].rows.contains_key(key);
            assert_eq!(found, known, "contains {key:#x} of table {table}");
        }
    }

    fn flush(&mut self) {
        let before = self.store().stats().flushes;
        self.store().flush().unwrap();
        self.asked_flushes += self.store().stats().flushes - before;
        let stats = self.store().stats();
        let known: usize = self.tables.iter().map(|t| t.rows.len()).sum();
        // Rows changed after a running checkpoint's cut stay in memory until its capture.
        if self.pending.is_none() {
            assert!(stats.index_keys >= known as u64, "{known} keys, {stats:?}");
            assert_eq!(stats.dirty_rows, 0, "{stats:?}");
        }
    }

    fn begin(&mut self, rng: &mut Rng) {
        self.wait();
        self.step += 1 + rng.below(3) as u64;
        let bytes = [0, 1, 100, 5000][rng.below(4)];
        let meta: Vec<u8> = (0..bytes).map(|_| rng.next() as u8).collect();
        let ticket = self.store().checkpoint_begin(self.step, &meta).unwrap();
        let cut = Cut {
            id: CheckpointId(0),
            step: self.step,
            meta,
            tables: self.tables.clone(),
        };
        self.pending = Some((ticket, cut));
        self.changed = false;
    }

    fn wait(&mut self) {
        let Some((ticket, cut)) = self.pending.take() else {
            return;
        };
        let info = ticket.wait().unwrap();
        self.durable(info, cut);
    }

    /// A checkpoint became durable.
    fn durable(&mut self, info: CheckpointInfo, mut cut: Cut) {
        assert!(
            info.id > self.last_id,
            "checkpoint ids are never used again"
        );
        assert_eq!(info.step, cut.step);
        assert_eq!(info.meta_bytes, cut.meta.len() as u64);
        self.last_id = info.id;
        cut.id = info.id;
        self.cuts.push(cut);
        let surplus = self
            .cuts
            .len()
            .saturating_sub(self.options.retain_checkpoints);
        self.cuts.drain(..surplus);
        self.check_list();
    }

    fn check_list(&self) {
        let found = self.store().checkpoints();
        let found: Vec<(CheckpointId, u64)> = found.iter().map(|c| (c.id, c.step)).collect();
        let expected: Vec<(CheckpointId, u64)> = self.cuts.iter().map(|c| (c.id, c.step)).collect();
        assert_eq!(found, expected, "retained checkpoints (id, step)");
    }

    /// Compares all rows of one retained checkpoint, more often the last one.
    fn compare_checkpoints(&self, rng: &mut Rng) {
        if rng.one_in(2) {
            return;
        }
        let from = if rng.one_in(2) {
            0
        } else {
            self.cuts.len() - 1
        };
        let cut = &self.cuts[from + rng.below(self.cuts.len() - from)];
        assert_eq!(self.store().checkpoint_meta(cut.id).unwrap(), cut.meta);
        let mut rows = self.store().rows(cut.id).unwrap();
        let mut counts = vec![0; self.tables.len()];
        while let Some(row) = rows.next_row().unwrap() {
            let table = row.table.0 as usize;
            let model = &cut.tables[table];
            assert!(
                model.rows.contains_key(&row.key),
                "{:#x} is not there",
                row.key
            );
            model.compare(&[row.key], row.values, "a checkpoint's row");
            counts[table] += 1;
        }
        let expected: Vec<usize> = (0..self.tables.len())
            .map(|t| cut.tables.get(t).map_or(0, |t| t.rows.len()))
            .collect();
        assert_eq!(counts, expected, "rows of checkpoint {}", cut.id);
    }

    fn drop_held(&mut self, rng: &mut Rng) {
        if rng.one_in(2) {
            self.leases.clear();
        }
        self.tickets.clear();
        self.let_go();
    }

    fn count(&mut self) {
        let now = self.store().stats();
        let t = self.totals;
        let own = now.compactions - self.forced;
        Totals::add(&t.own_compactions, own);
        Totals::add(&t.forced_compactions, self.forced);
        Totals::add(&t.eviction_flushes, now.flushes - self.asked_flushes);
        Totals::add(&t.files_reopened, now.files_reopened);
        Totals::add(&t.misses, now.unique_asked - now.unique_hits);
        (self.forced, self.asked_flushes) = (0, 0);
    }

    fn rollback(&mut self, rng: &mut Rng) {
        self.drop_held(rng);
        self.wait();
        self.count();
        let i = rng.below(self.cuts.len());
        let id = self.cuts[i].id;
        let store = self.store.take().unwrap().rollback(id).unwrap();
        self.store = Some(store);
        self.cuts.truncate(i + 1);
        self.check_list();
        self.step = self.cuts[i].step;
        self.changed = false;
        self.tables = self.tables_back_to(&self.cuts[i].tables);
        self.cuts[i].tables = self.tables.clone();
        self.check_tables();
        Totals::add(&self.totals.rollbacks, 1);
        self.check_sample(rng);
    }

    /// A drop is a crash: what comes after the last checkpoint is gone.
    fn reopen(&mut self, rng: &mut Rng) {
        self.drop_held(rng);
        if rng.one_in(2) {
            self.wait();
        }
        self.count();
        let store = self.store.take().unwrap();
        assert_eq!(store.has_changes(), self.changed, "has_changes");
        let pending = self.pending.take();
        match rng.below(3) {
            0 if !self.changed => store.close().unwrap(),
            0 => assert!(matches!(store.close(), Err(Error::Uncheckpointed { .. }))),
            1 => store.close_discarding(),
            _ => drop(store),
        }
        let retained = self.options.retain_checkpoints;
        self.options = self.other_options(rng);
        let opened = Store::open_on(self.disk.clone(), Path::new(ROOT), self.options.clone());
        self.store = Some(opened.unwrap());
        if let Some((ticket, cut)) = pending {
            // The store waited for it.
            assert!(ticket.is_done());
            let next = std::mem::replace(&mut self.options.retain_checkpoints, retained);
            self.durable(ticket.wait().unwrap(), cut);
            self.options.retain_checkpoints = next;
        }
        self.check_list();
        let last = self.cuts.last().unwrap();
        assert_eq!(self.store().last_checkpoint().unwrap().id, last.id);
        Totals::add(&self.totals.reopened_with_loss, u64::from(self.changed));
        self.tables = last.tables.clone();
        self.step = last.step;
        self.changed = false;
        self.dropped_ticket = false;
        self.check_tables();
        self.check_sample(rng);
    }

    /// Options of another open; some say where all data directories are, though none has moved.
    fn other_options(&self, rng: &mut Rng) -> RuntimeOptions {
        let options = random_options(rng, self.background);
        match options.shards.is_multiple_of(2) {
            true => options.moved_directories(self.create.data_directories.clone()),
            false => options,
        }
    }

    fn check_sample(&mut self, rng: &mut Rng) {
        for table in self.there() {
            let universe = self.tables[table].universe;
            let all: Vec<u64> = (0..universe).map(key_of).collect();
            self.contains(table, &all);
            let some: Vec<u64> = (0..40).map(|_| all[rng.below(universe)]).collect();
            drop(self.pull(&vec![(table, some)]));
        }
    }

    fn read_only(&self, rng: &mut Rng, table: usize, keys: &[u64]) {
        let cut = &self.cuts[rng.below(self.cuts.len())];
        let is_there = cut.tables.get(table).is_some_and(|t| !t.is_dropped);
        if self.pending.is_some() || !is_there {
            return;
        }
        let options = self.other_options(rng);
        let disk = self.disk.clone();
        let reader = Store::open_read_only_on(disk, Path::new(ROOT), Some(cut.id), options);
        let reader = reader.unwrap();
        let model = &cut.tables[table];
        assert_eq!(
            reader.table(&model.descriptor.name).unwrap(),
            Self::id(table)
        );
        let mut out = vec![0.0; keys.len() * model.descriptor.dim];
        let lease = reader.pull(Self::id(table), keys, &mut out).unwrap();
        let mut rows = vec![0.0; keys.len() * model.descriptor.row_f32s()];
        lease.read_rows(&mut rows).unwrap();
        model.compare(keys, &rows, "a reader's lease");
        let known = reader.contains(Self::id(table), keys).unwrap();
        for (key, known) in keys.iter().zip(known) {
            assert_eq!(known, model.rows.contains_key(key), "a reader, {key:#x}");
        }
    }

    fn compare_all(&mut self) {
        for table in self.there() {
            let all: Vec<u64> = (0..self.tables[table].universe).map(key_of).collect();
            self.contains(table, &all);
            let known: Vec<u64> = self.tables[table].rows.keys().copied().collect();
            for keys in known.chunks(64) {
                drop(self.pull(&vec![(table, keys.to_vec())]));
            }
        }
    }

    /// Compares everything there is, before and after a last reopening, and closes the store.
    pub fn finish(&mut self) {
        self.let_go();
        let rng = &mut Rng(self.last_id.0);
        if rng.one_in(4) {
            self.compare_all();
        }
        self.begin(rng);
        self.reopen(rng);
        self.compare_all();
        self.count();
        let stats = self.store().stats();
        assert_eq!((stats.leases, stats.pinned_rows), (0, 0), "{stats:?}");
        self.store.take().unwrap().close_discarding();
    }
}

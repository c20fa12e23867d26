//! Seeded workloads on a store, with an oracle that knows what must be there after a crash.
//!
//! - [`Plan`](plans::Plan) is what a workload does, a pure function of its seed.
//! - [`Run`] does it and keeps a [`Model`]: rows now, and the rows of every checkpoint that was
//!   acknowledged, beside the one that may or may not have become durable.
//! - [`verify::verify`] opens a disk and compares everything with the model.
//!
//! Rows are up to 8 KiB and the cache is 1 MiB, most of it other tables', so that a few dozen rows
//! of the narrow table force an eviction flush.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it does not expect must fail"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use hps::io::Io;
use hps::*;

pub mod plans;
mod puts;
mod several;
pub mod tables;
pub mod verify;

use tables::{Changes, Tables, brief};

/// Where the store is.
pub const ROOT: &str = "/store";

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The tables, by number.
pub fn descriptor(table: usize) -> TableDescriptor {
    let (name, dim, optimizer, initialiser) = match table {
        0 => (
            "narrow",
            crate::NARROW_DIM,
            Optimizer::Adagrad,
            Initialiser::Constant { value: 0.5 },
        ),
        1 => ("wide", 2048, Optimizer::Sgd, Initialiser::Zero),
        2 => ("vast", 4096, Optimizer::Sgd, Initialiser::Zero),
        3 => (
            "late",
            64,
            Optimizer::Sgd,
            Initialiser::Constant { value: -1.0 },
        ),
        number => return brief(number),
    };
    TableDescriptor::new(name, dim)
        .optimizer(optimizer)
        .initialiser(initialiser)
        .accumulator(0.25)
}

/// Keys that workloads use, by table. The vast table only takes its share of the cache away.
pub const KEYS: [u64; 4] = [48, 6, 2, 24];

/// Tables made with the store; one more is made in the middle of some workloads.
const FIRST_TABLES: usize = 3;

/// The key behind a number: both ends, then spread, and not in order.
pub fn key(number: u64) -> u64 {
    match number {
        0 => 0,
        1 => u64::MAX,
        _ => number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x55,
    }
}

fn initial_row(table: usize) -> Vec<f32> {
    let descriptor = descriptor(table);
    let weight = match descriptor.initialiser {
        Initialiser::Constant { value } => value,
        _ => 0.0,
    };
    let mut row = vec![weight; descriptor.row_f32s()];
    if descriptor.optimizer != Optimizer::Adam {
        row[descriptor.dim..].fill(descriptor.accumulator);
    }
    row
}

/// One call, or a few that belong together.
#[derive(Clone, Debug)]
pub enum Op {
    /// Weights of some rows become `value` plus their position.
    Weights(usize, Vec<u64>, f32),
    /// Whole rows.
    Rows(usize, Vec<u64>, f32),
    /// Gradients with rate 0.5.
    Gradients(usize, Vec<u64>, f32),
    /// Rows, gradients and weights of parts, in one call: by table and keys.
    Several(Vec<(usize, Vec<u64>)>, f32),
    /// Rows or weights, nothing of which is read before; keys may repeat.
    Put(usize, Vec<u64>, f32),
    Remove(usize, Vec<u64>),
    Flush,
    Compact,
    /// Trainer's step and meta.
    Checkpoint(u64, Vec<u8>),
    CreateTable,
    /// One more that comes and goes, if there are not too many; drawn by this seed.
    CreateBrief(u64),
    /// Rows of all that come and go.
    BriefRows(f32),
    /// One that comes and goes, dropped.
    DropBrief(u64),
    /// One that comes and goes, under another name.
    RenameBrief(u64),
    /// Back by so many checkpoints.
    Rollback(usize),
    /// Dropped and opened again, with so many shards.
    Reopen(usize),
    /// The same, with other options all over, drawn by this seed.
    ReopenOther(u64),
    /// The last checkpoint, read by a reader.
    Read,
    /// The last checkpoint, exported.
    Export,
    /// The files of the last checkpoint compacted.
    Recommit,
    /// All checkpoints but the last forgotten.
    Forget,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Weights(table, keys, _) => write!(f, "{} weights of {table}", keys.len()),
            Op::Rows(table, keys, _) => write!(f, "{} rows of {table}", keys.len()),
            Op::Gradients(table, keys, _) => write!(f, "{} gradients of {table}", keys.len()),
            Op::Several(parts, _) => write!(f, "{} parts in one call", parts.len()),
            Op::Put(table, keys, _) => write!(f, "{} keys of {table} put", keys.len()),
            Op::Remove(table, keys) => write!(f, "{} keys of {table} removed", keys.len()),
            Op::Checkpoint(step, _) => write!(f, "checkpoint of step {step}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// Rows by (table, key), as bits.
pub type Rows = BTreeMap<(usize, u64), Vec<u32>>;

/// A checkpoint as it was asked for.
#[derive(Clone, Debug)]
pub struct Saved {
    pub step: u64,
    pub meta: Vec<u8>,
    pub rows: Arc<Rows>,
    pub tables: Tables,
}

/// A timeline of history: what a reopened store must show.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// All checkpoints of the timeline, oldest first; those before the last `kept` are forgotten.
    pub saved: Vec<Saved>,
    pub kept: usize,
    /// Tables that the manifest knows.
    pub tables: Tables,
}

/// A checkpoint that was exported, or is being.
#[derive(Clone, Debug)]
pub struct Export {
    pub root: PathBuf,
    pub saved: Saved,
    pub tables: Tables,
    /// Whether it was acknowledged.
    pub done: bool,
}

/// What the store must hold.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub rows: Rows,
    pub tables: Tables,
    /// Rows that a put may have written: it failed in the middle. Of a key that is there twice, all.
    pub half_put: BTreeMap<(usize, u64), Vec<Vec<u32>>>,
    /// Acknowledged.
    pub durable: History,
    /// What may be found instead, because the call that makes it failed or was cut off.
    pub doubt: Option<History>,
    pub exports: Vec<Export>,
    /// Whether `create` was acknowledged.
    pub created: bool,
    /// Where the store is.
    pub root: PathBuf,
    /// What it is made with.
    pub create: CreateOptions,
}

impl Model {
    pub fn row(&self, table: usize, key: u64) -> Vec<f32> {
        match self.rows.get(&(table, key)) {
            Some(bits) => bits.iter().map(|b| f32::from_bits(*b)).collect(),
            None => initial_row(table),
        }
    }

    fn set(&mut self, table: usize, key: u64, row: &[f32]) {
        let bits = row.iter().map(|v| v.to_bits()).collect();
        self.rows.insert((table, key), bits);
    }

    pub fn after_checkpoint(&self, step: u64, meta: &[u8], retain: usize) -> History {
        let mut history = self.durable.clone();
        let rows = Arc::new(self.rows.clone());
        history.saved.push(Saved {
            step,
            meta: meta.to_vec(),
            rows,
            tables: self.tables.clone(),
        });
        history.kept = (history.kept + 1).min(retain);
        history.tables = self.tables.clone();
        history
    }

    fn after_rollback(&self, back: usize) -> History {
        let mut history = self.durable.clone();
        history.saved.truncate(history.saved.len() - back);
        history.kept -= back;
        let cut = history.saved.last().map(|saved| &saved.tables);
        history.tables = self.tables.back_to(cut.unwrap_or(&Tables::default()));
        if let Some(last) = history.saved.last_mut() {
            // From now on it has the younger ones, too.
            last.tables = history.tables.clone();
        }
        history
    }

    /// The model of a store that was opened at a history.
    pub fn reopened(&mut self, history: History) {
        self.rows = history
            .saved
            .last()
            .map_or_else(Rows::new, |s| (*s.rows).clone());
        self.half_put.clear();
        self.tables = history.tables.clone();
        self.durable = history;
        self.doubt = None;
    }
}

/// A store at work beside its model.
pub struct Run {
    pub disk: Io,
    pub store: Option<Store>,
    pub model: Model,
    pub options: RuntimeOptions,
    /// What was done to tables, and names of those that were dropped.
    pub changes: Changes,
    gone: BTreeSet<String>,
}

impl Run {
    pub fn new(disk: impl Into<Io>, options: &RuntimeOptions) -> Run {
        let model = Model {
            root: PathBuf::from(ROOT),
            ..Model::default()
        };
        let store = None;
        Run {
            disk: disk.into(),
            store,
            model,
            options: options.clone(),
            changes: Changes::default(),
            gone: BTreeSet::new(),
        }
    }

    /// The store of a workload.
    pub fn of(disk: impl Into<Io>, plan: &plans::Plan) -> Run {
        let mut run = Run::new(disk, &plan.options);
        run.model.create = plan.create.clone();
        run
    }

    /// Creates the store and its first tables.
    pub fn create(&mut self) -> Result<()> {
        let disk = self.disk.clone();
        let store = Store::create_on(
            disk,
            &self.model.root,
            self.model.create.clone(),
            self.options.clone(),
        )?;
        self.model.created = true;
        self.store = Some(store);
        self.first_tables()
    }

    fn first_tables(&mut self) -> Result<()> {
        while self.model.tables.count() < FIRST_TABLES {
            self.create_table()?;
        }
        Ok(())
    }

    /// Opens the store at the acknowledged history.
    pub fn open(&mut self) -> Result<()> {
        let disk = self.disk.clone();
        self.store = Some(Store::open_on(
            disk,
            &self.model.root,
            self.options.clone(),
        )?);
        let durable = self.model.durable.clone();
        self.model.reopened(durable);
        self.first_tables()
    }

    pub fn store(&self) -> &Store {
        self.store.as_ref().expect("the store is open")
    }

    fn create_table(&mut self) -> Result<()> {
        let descriptor = descriptor(self.model.tables.count());
        self.store().create_table(&descriptor)?;
        self.model.tables.push(&descriptor.name);
        Ok(())
    }

    /// Does one operation. After an error the model says what may be the case.
    pub fn step(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Weights(table, keys, _)
            | Op::Rows(table, keys, _)
            | Op::Gradients(table, keys, _) => {
                let table = *table;
                if !self.model.tables.has(table) {
                    return Ok(());
                }
                for keys in keys.chunks(3) {
                    self.push(op, table, keys)?;
                }
                Ok(())
            }
            Op::Several(parts, value) => self.several(parts, *value),
            Op::Put(table, _, _) if !self.model.tables.has(*table) => Ok(()),
            Op::Put(table, keys, value) => self.put(*table, keys, *value),
            Op::Remove(table, _) if !self.model.tables.has(*table) => Ok(()),
            Op::Remove(table, keys) => self.remove(*table, keys),
            Op::Flush => self.store().flush().map(drop),
            Op::Compact => self.store().compact_fully().map(drop),
            Op::Checkpoint(step, meta) => self.checkpoint(*step, meta),
            Op::CreateTable if self.model.tables.count() == FIRST_TABLES => self.create_table(),
            Op::CreateTable => Ok(()),
            Op::CreateBrief(seed) => self.create_brief(*seed),
            Op::BriefRows(value) => self.brief_rows(*value),
            Op::DropBrief(seed) => self.drop_brief(*seed),
            Op::RenameBrief(seed) => self.rename_brief(*seed),
            Op::Rollback(back) => self.rollback(*back),
            Op::Reopen(shards) => {
                self.options.shards = *shards;
                self.store = None;
                self.open()
            }
            Op::ReopenOther(seed) => {
                let cache_bytes = self.options.cache_bytes;
                self.options = plans::some_options(&mut Random(*seed)).cache_bytes(cache_bytes);
                if seed.is_multiple_of(2) {
                    // An open may be told where all are, though none has moved.
                    let all = self.model.create.data_directories.clone();
                    self.options.moved_directories = all;
                }
                self.store = None;
                self.open()
            }
            Op::Read => self.read(),
            Op::Export => self.export(),
            Op::Recommit => self.recommit(),
            Op::Forget => self.forget(),
        }
    }

    fn push(&mut self, op: &Op, table: usize, keys: &[u64]) -> Result<()> {
        let (dim, width) = (descriptor(table).dim, descriptor(table).row_f32s());
        let id = TableId(u32::try_from(table).unwrap());
        let mut out = vec![0.0; keys.len() * dim];
        let lease = self.store().pull(id, keys, &mut out)?;
        let old: Vec<f32> = keys
            .iter()
            .flat_map(|k| self.model.row(table, *k))
            .collect();
        for (got, old) in out.chunks(dim).zip(old.chunks(width)) {
            assert!(
                same(got, &old[..dim]),
                "a pull gave other weights than the model"
            );
        }
        let (mut new, mut values) = (old, Vec::new());
        for row in new.chunks_mut(width) {
            match op {
                Op::Rows(_, _, value) => {
                    row.iter_mut()
                        .enumerate()
                        .for_each(|(i, v)| *v = value + i as f32);
                    values.extend_from_slice(row);
                }
                Op::Gradients(_, _, gradient) => {
                    values.extend(vec![*gradient; dim]);
                    descend(row, dim, *gradient);
                }
                Op::Weights(_, _, value) => {
                    row[..dim]
                        .iter_mut()
                        .enumerate()
                        .for_each(|(i, v)| *v = value - i as f32);
                    values.extend_from_slice(&row[..dim]);
                }
                _ => {}
            }
        }
        let update = match op {
            Op::Rows(..) => Update::rows(&values),
            Op::Gradients(..) => Update::gradients(&values, 0.5),
            _ => Update::weights(&values),
        };
        self.store().push(&lease, update)?;
        for (key, row) in keys.iter().zip(new.chunks(width)) {
            self.model.set(table, *key, row);
        }
        Ok(())
    }

    fn remove(&mut self, table: usize, keys: &[u64]) -> Result<()> {
        let id = TableId(u32::try_from(table).unwrap());
        for keys in keys.chunks(3) {
            let known = keys
                .iter()
                .filter(|k| self.model.rows.contains_key(&(table, **k)));
            let expected = known.count() as u64;
            let removed = self.store().remove(id, keys)?;
            assert_eq!(removed, expected, "keys removed");
            for key in keys {
                self.model.rows.remove(&(table, *key));
            }
        }
        Ok(())
    }

    fn checkpoint(&mut self, step: u64, meta: &[u8]) -> Result<()> {
        let after = self
            .model
            .after_checkpoint(step, meta, self.options.retain_checkpoints);
        let result = self.store().checkpoint(step, meta);
        self.acknowledge(result.map(drop), after)
    }

    fn rollback(&mut self, back: usize) -> Result<()> {
        let retained = self.store().checkpoints();
        let Some(target) = retained.len().checked_sub(1 + back).map(|i| retained[i].id) else {
            return Ok(());
        };
        let after = self.model.after_rollback(back);
        let store = self.store.take().expect("the store is open");
        let result = store.rollback(target).map(|store| self.store = Some(store));
        self.acknowledge(result, after)?;
        let durable = self.model.durable.clone();
        self.model.reopened(durable);
        Ok(())
    }

    /// Reads the last checkpoint as another process would.
    fn read(&mut self) -> Result<()> {
        let Some(last) = self.store().last_checkpoint() else {
            return Ok(());
        };
        let disk = self.disk.clone();
        let options = self.options.clone();
        let reader = Store::open_read_only_on(disk, &self.model.root, Some(last.id), options)?;
        let saved = self.model.durable.saved.last().expect("a checkpoint");
        verify::compare_rows(&reader, &last, saved)
    }

    fn export(&mut self) -> Result<()> {
        let Some(last) = self.store().last_checkpoint() else {
            return Ok(());
        };
        let root = PathBuf::from(format!("/export-{}", self.model.exports.len()));
        let saved = self.model.durable.saved.last().expect("a checkpoint");
        self.model.exports.push(Export {
            root: root.clone(),
            saved: saved.clone(),
            tables: self.model.tables.back_to(&saved.tables),
            done: false,
        });
        self.store().export(last.id, &root, &[])?;
        let export = self.model.exports.last_mut().expect("it was pushed");
        export.done = true;
        Ok(())
    }

    fn recommit(&mut self) -> Result<()> {
        if self.store().last_checkpoint().is_none() {
            return Ok(());
        }
        let limits = CompactLimits::new().stale_share(0.05);
        let go_on = &mut |_| ControlFlow::Continue(());
        let report = self.store().compact(&limits, go_on)?;
        // A file that can't be read is told and set aside; the compaction goes on with the others.
        report.damaged.into_iter().next().map_or(Ok(()), Err)
    }

    fn forget(&mut self) -> Result<()> {
        let mut old: Vec<CheckpointId> = self.store().checkpoints().iter().map(|c| c.id).collect();
        if old.pop().is_none() || old.is_empty() {
            return Ok(());
        }
        let after = History {
            kept: 1,
            ..self.model.durable.clone()
        };
        let result = self.store().drop_checkpoints(&old);
        self.acknowledge(result.map(drop), after)
    }

    fn acknowledge(&mut self, result: Result<()>, after: History) -> Result<()> {
        match &result {
            Ok(()) => (self.model.durable, self.model.doubt) = (after, None),
            Err(_) => self.model.doubt = Some(after),
        }
        result
    }
}

/// Bit for bit.
pub fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// One step with rate 0.5: of AdaGrad where there is state, of SGD elsewhere.
fn descend(row: &mut [f32], dim: usize, gradient: f32) {
    let (weights, state) = row.split_at_mut(dim);
    for (i, weight) in weights.iter_mut().enumerate() {
        if let Some(sum) = state.get_mut(i) {
            *sum += gradient * gradient;
            *weight -= 0.5 * gradient / (sum.sqrt() + 1e-8);
        } else {
            *weight -= 0.5 * gradient;
        }
    }
}

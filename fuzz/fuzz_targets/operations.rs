//! Does a store hold what a map holds, whatever is asked of it and wherever the power fails?
//!
//! The input is three bytes of options and a list of operations: push, gradients, remove, pull,
//! flush, compact, checkpoint, rollback, reopen, a crash, a disk that stops after some calls, or a table
//! that is made, dropped or renamed.
//!
//! Promise: every call does to the store what it does to the map; without a failing disk nothing
//! fails; after a crash the store is at the last checkpoint that was acknowledged, or at the one
//! that was being made, and as many checkpoints as it retains are there, or all that were made.

#![no_main]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hps::io::sim::{CrashMode, SimDisk};
use hps::{
    CreateOptions, Initialiser, Optimizer, PolicyKind, PutRows, Result, RuntimeOptions, Store,
    TableDescriptor, TableId, Thresholds, Update,
};
use hps_fuzz::Input;
use hps_fuzz::tiny::{ROOT, Rows};
use libfuzzer_sys::fuzz_target;

/// Most operations of an input.
const OPERATIONS_MAX: usize = 60;
/// Keys and weights of a row, by table. The last table only takes its share of the cache away.
const KEYS: [u64; 3] = [48, 6, 2];
const DIMS: [usize; 3] = [64, 2048, 4096];

/// Tables by number: the name of each that is there.
type Tables = Vec<Option<String>>;

/// Tables that stay, most tables in all, and names of those that come and go.
const FIRST_TABLES: usize = DIMS.len();
const TABLES_MAX: usize = 12;
const NAMES: [&str; 3] = ["x", "y", "z"];

/// What a table that comes and goes looks like.
fn brief(number: usize, name: &str) -> TableDescriptor {
    let optimizers = [Optimizer::Sgd, Optimizer::Adagrad, Optimizer::Adam];
    TableDescriptor::new(name, [3, 128, 17, 40][number % 4]).optimizer(optimizers[number % 3])
}

fn is_named(tables: &Tables, name: &str) -> bool {
    tables.iter().flatten().any(|other| other == name)
}

/// The tables after going back to a checkpoint that had those of `cut`.
fn back_to(now: &Tables, cut: &Tables) -> Tables {
    let younger = now.iter().skip(cut.len());
    let younger = younger.map(|name| name.clone().filter(|name| !is_named(cut, name)));
    cut.iter().cloned().chain(younger).collect()
}

/// A checkpoint, as it was asked for.
#[derive(Clone)]
struct Saved {
    step: u64,
    meta: Vec<u8>,
    rows: Arc<Rows>,
    tables: Tables,
}

/// Checkpoints that were made, oldest first, and how many of the last ones must be there.
#[derive(Clone, Default)]
struct History {
    saved: Vec<Saved>,
    kept: usize,
    tables: Tables,
}

/// A store beside its model.
struct Run {
    disk: SimDisk,
    store: Option<Store>,
    options: RuntimeOptions,
    rows: Rows,
    tables: Tables,
    step: u64,
    durable: History,
    /// What may be found instead, because the call that makes it failed.
    doubt: Option<History>,
    armed: bool,
}

/// The key behind a number: both ends of u64, then spread.
fn key(number: u64) -> u64 {
    match number {
        0 => 0,
        1 => u64::MAX,
        n => n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x55,
    }
}

impl Run {
    fn new(input: &mut Input<'_>) -> Result<Run> {
        let policies = [PolicyKind::Bilevel, PolicyKind::Lru, PolicyKind::Fifo];
        let (shards, step) = (1 + input.below(3), input.below(8));
        let options = RuntimeOptions::new()
            // The narrowest of the tables that come and go have places for a few rows in each shard.
            .cache_bytes(5 << 19)
            .shards(shards)
            .threads(1)
            .io_depth(2)
            .file_bytes(1 << 20)
            .flush_step_rows(4 + step)
            .retain_checkpoints(1 + input.below(3))
            .policy(policies[input.below(3)])
            .thresholds(Thresholds {
                // Told by the same byte: inputs of before there were these mean what they did.
                straight_rows: [0, 4][step % 2],
                ..Thresholds::default()
            })
            .inline(true);
        let disk = SimDisk::new(1);
        let store = Store::create_on(
            Arc::new(disk.clone()),
            Path::new(ROOT),
            CreateOptions::new(),
            options.clone(),
        )?;
        for (name, dim) in ["narrow", "wide", "vast"].into_iter().zip(DIMS) {
            store.create_table(
                &TableDescriptor::new(name, dim)
                    .optimizer(Optimizer::Sgd)
                    .initialiser(Initialiser::Constant { value: 0.5 }),
            )?;
        }
        let rows = Rows::new();
        let store = Some(store);
        let mut run = Run {
            disk,
            store,
            options,
            rows,
            tables: ["narrow", "wide", "vast"]
                .map(|name| Some(name.to_owned()))
                .to_vec(),
            step: 0,
            durable: History::default(),
            doubt: None,
            armed: false,
        };
        run.checkpoint(Vec::new())?;
        Ok(run)
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("the store is open")
    }

    fn row(&self, table: u32, key: u64) -> Vec<f32> {
        let known = self.rows.get(&(table, key));
        let dim = DIMS[table as usize];
        known.map_or(vec![0.5; dim], |row| {
            row.iter().map(|b| f32::from_bits(*b)).collect()
        })
    }

    /// Pulls, compares, and changes if there is a change.
    fn pull(&mut self, table: u32, keys: &[u64], change: Option<(bool, f32)>) -> Result<()> {
        let dim = DIMS[table as usize];
        let mut out = vec![0.0; keys.len() * dim];
        let lease = self.store().pull(TableId(table), keys, &mut out)?;
        let old: Vec<f32> = keys.iter().flat_map(|key| self.row(table, *key)).collect();
        assert!(
            out.iter()
                .map(|v| v.to_bits())
                .eq(old.iter().map(|v| v.to_bits())),
            "pulled"
        );
        let Some((gradients, value)) = change else {
            return Ok(());
        };
        let new: Vec<f32> = if gradients {
            self.store()
                .push(&lease, Update::gradients(&vec![value; old.len()], 0.5))?;
            old.iter().map(|weight| weight - 0.5 * value).collect()
        } else {
            let new: Vec<f32> = (0..old.len()).map(|i| value + i as f32).collect();
            self.store().push(&lease, Update::weights(&new))?;
            new
        };
        for (key, row) in keys.iter().zip(new.chunks(dim)) {
            self.rows
                .insert((table, *key), row.iter().map(|v| v.to_bits()).collect());
        }
        Ok(())
    }

    fn remove(&mut self, table: u32, keys: &[u64]) -> Result<()> {
        let removed = self.store().remove(TableId(table), keys)?;
        let known = keys
            .iter()
            .filter(|key| self.rows.remove(&(table, **key)).is_some());
        assert_eq!(removed, known.count() as u64, "keys removed");
        Ok(())
    }

    fn checkpoint(&mut self, meta: Vec<u8>) -> Result<()> {
        self.step += 1;
        let mut after = self.durable.clone();
        let rows = Arc::new(self.rows.clone());
        after.saved.push(Saved {
            step: self.step,
            meta: meta.clone(),
            rows,
            tables: self.tables.clone(),
        });
        after.tables.clone_from(&self.tables);
        after.kept = (after.kept + 1).min(self.options.retain_checkpoints);
        let result = self.store().checkpoint(self.step, &meta).map(drop);
        self.acknowledge(result, after)
    }

    fn rollback(&mut self, back: usize) -> Result<()> {
        let retained = self.store().checkpoints();
        let Some(target) = retained.len().checked_sub(1 + back).map(|i| retained[i].id) else {
            return Ok(());
        };
        let mut after = self.durable.clone();
        after.saved.truncate(after.saved.len() - back);
        after.kept = after.kept.saturating_sub(back);
        let last = after.saved.last();
        let rows = last.map_or_else(Rows::new, |saved| (*saved.rows).clone());
        let tables = last.map_or_else(Tables::new, |saved| saved.tables.clone());
        let tables = back_to(&self.tables, &tables);
        after.tables.clone_from(&tables);
        if let Some(last) = after.saved.last_mut() {
            // From now on it has the younger ones, too.
            last.tables.clone_from(&tables);
        }
        let store = self.store.take().expect("the store is open");
        let result = store.rollback(target).map(|store| self.store = Some(store));
        self.acknowledge(result, after)?;
        (self.rows, self.tables) = (rows, tables);
        Ok(())
    }

    fn acknowledge(&mut self, result: Result<()>, after: History) -> Result<()> {
        match &result {
            Ok(()) => (self.durable, self.doubt) = (after, None),
            Err(_) => self.doubt = Some(after),
        }
        result
    }

    /// Opens what is on the disk; it must be the last checkpoint, or the one in doubt.
    fn open(&mut self) {
        let disk = Arc::new(self.disk.clone());
        let opened = Store::open_on(disk, Path::new(ROOT), self.options.clone());
        let store = opened.expect("the store opens");
        let found: Vec<u64> = store.checkpoints().iter().map(|info| info.step).collect();
        let shown = store.tables().into_iter();
        let shown = shown.map(|(id, table)| (id.0 as usize, table.name));
        let shown: BTreeMap<usize, String> = shown.collect();
        let fits = |history: &History| {
            let all: Vec<u64> = history.saved.iter().map(|saved| saved.step).collect();
            found.len() >= history.kept && all.ends_with(&found) && shown == there(&history.tables)
        };
        let durable = std::mem::take(&mut self.durable);
        let told = |history: &History| {
            let steps: Vec<u64> = history.saved.iter().map(|saved| saved.step).collect();
            (steps, history.kept, there(&history.tables))
        };
        let known = (told(&durable), self.doubt.as_ref().map(told));
        let candidates = [Some(durable), self.doubt.take()];
        let history = candidates.into_iter().flatten().find(fits);
        self.durable = history.unwrap_or_else(|| {
            panic!("steps {found:?} and tables {shown:?}; acknowledged, in doubt: {known:?}")
        });
        self.durable.kept = found.len();
        let saved = &self.durable.saved;
        for (info, saved) in store
            .checkpoints()
            .iter()
            .zip(&saved[saved.len() - found.len()..])
        {
            assert_eq!(store.checkpoint_meta(info.id).expect("meta"), saved.meta);
            let mut iter = store.rows(info.id).expect("rows");
            let mut rows = BTreeMap::new();
            while let Some(row) = iter.next_row().expect("a row") {
                let bits: Vec<u32> = row.values.iter().map(|v| v.to_bits()).collect();
                rows.insert((row.table.0, row.key), bits);
            }
            assert!(rows == *saved.rows, "rows of step {}", saved.step);
        }
        self.rows = self
            .durable
            .saved
            .last()
            .map_or_else(Rows::new, |saved| (*saved.rows).clone());
        self.tables.clone_from(&self.durable.tables);
        self.store = Some(store);
    }

    /// Makes a table, or puts rows into the one that has the name.
    fn create_table(&mut self, name: &str, keys: &[u64], value: f32) -> Result<()> {
        let known = self.tables.iter().position(|t| t.as_deref() == Some(name));
        let number = known.unwrap_or(self.tables.len());
        if number >= TABLES_MAX {
            return Ok(());
        }
        let descriptor = brief(number, name);
        let id = self.store().create_table(&descriptor)?;
        assert_eq!(id.0 as usize, number, "no number is given twice");
        if known.is_none() {
            self.tables.push(Some(name.to_owned()));
        }
        let row = vec![value; descriptor.row_f32s()];
        let rows = row.repeat(keys.len());
        self.store().put(id, keys, PutRows::whole(&rows))?;
        let bits: Vec<u32> = row.iter().map(|v| v.to_bits()).collect();
        let all = keys.iter().map(|key| ((id.0, *key), bits.clone()));
        self.rows.extend(all);
        Ok(())
    }

    /// Drops a table that comes and goes, or gives it another name.
    fn change_table(&mut self, number: usize, name: Option<&str>) -> Result<()> {
        if self.tables.get(number).is_none_or(Option::is_none) {
            return Ok(());
        }
        let id = TableId(number as u32);
        let Some(name) = name else {
            self.store().drop_table(id)?;
            self.tables[number] = None;
            self.rows.retain(|(table, _), _| *table != id.0);
            return Ok(());
        };
        if is_named(&self.tables, name) {
            let own = self.tables[number].as_deref() == Some(name);
            let renamed = self.store().rename_table(id, name);
            assert!(own || renamed.is_err(), "two tables of one name");
            return Ok(());
        }
        self.store().rename_table(id, name)?;
        self.tables[number] = Some(name.to_owned());
        Ok(())
    }

    fn crash(&mut self, seed: u64, mode: usize) {
        let modes = [CrashMode::KeepNone, CrashMode::KeepAll, CrashMode::Random];
        self.disk = self.disk.crash(seed, modes[mode]);
        self.store = None;
        self.armed = false;
        self.open();
    }

    /// Does one operation.
    fn step(&mut self, input: &mut Input<'_>) -> Result<()> {
        let kind = input.below(20);
        let table = [0, 0, 0, 1, 2][input.below(5)];
        let (first, count) = (input.number(1), 1 + input.below(3) as u64);
        let keys: Vec<u64> = (first..first + count)
            .map(|n| key(n % KEYS[table as usize]))
            .collect();
        let mut keys = keys;
        keys.sort_unstable();
        keys.dedup();
        match kind {
            0..=3 => {
                let value = f32::from(input.below(256) as u8);
                self.pull(table, &keys, Some((false, value)))
            }
            4 => self.pull(table, &keys, Some((true, 0.25))),
            5 | 6 => self.remove(table, &keys),
            7 => self.pull(table, &keys, None),
            8 => self.store().flush().map(drop),
            9 => self.store().compact_fully().map(drop),
            10 | 11 => self.checkpoint(vec![first as u8; 3 * first as usize]),
            12 => self.rollback(input.below(3)),
            13 => {
                self.options.shards = 1 + input.below(3);
                if !self.armed {
                    self.store = None;
                    self.open();
                }
                Ok(())
            }
            14 => {
                self.crash(first, input.below(3));
                Ok(())
            }
            15 => self.create_table(NAMES[input.below(3)], &keys, f32::from(first as u8)),
            16 => self.change_table(FIRST_TABLES + input.below(9), None),
            17 => {
                let number = FIRST_TABLES + input.below(9);
                self.change_table(number, Some(NAMES[input.below(3)]))
            }
            18 => self.create_table(NAMES[input.below(3)], &keys, 0.5),
            _ => {
                self.disk.stop_at(self.disk.calls() + input.number(2) % 64);
                self.armed = true;
                Ok(())
            }
        }
    }
}

/// Those of the tables that are there.
fn there(tables: &Tables) -> BTreeMap<usize, String> {
    let all = tables.iter().cloned().enumerate();
    all.filter_map(|(number, name)| Some((number, name?)))
        .collect()
}

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let mut run = Run::new(&mut input).expect("a store is made");
    for number in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        if let Err(error) = run.step(&mut input) {
            assert!(
                run.armed,
                "operation {number} failed without a fault: {error}"
            );
            run.crash(number as u64, number % 3);
        }
    }
    run.crash(0, bytes.len() % 3);
});

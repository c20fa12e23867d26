//! The five operations, timed.

use anyhow::{Result, ensure};
use hps::hbm::{
    Buffer, Device, Gradients, HbmOptions, HbmTable, Index, Kind, Memory, Stream, Values, open,
};
use hps::{TableDescriptor, mix64};
use serde_json::{Value, json};

use super::args::{HbmArgs, Operation};
use super::limits::{Limits, fill, time};
use crate::figures::Spread;
use crate::keys::{Distribution, Draw, Scramble};

const TRAIN: Stream = Stream::Train;
/// Inputs that take turns.
const SETS: usize = 4;
/// Of the order of keys.
const SEED: u64 = 3;
/// Keys of the small get that is replayed from a graph.
const GRAPH_KEYS: usize = 100_000;

/// What became of one operation.
#[derive(Clone, Debug)]
pub struct Outcome {
    name: String,
    dim: usize,
    rows: usize,
    keys: usize,
    seconds: f64,
    /// Seconds that the limit takes for the same.
    limit: f64,
    what: &'static str,
}

impl Outcome {
    /// For people.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{:<26} dim {:>4} {:>9} of {:>10} rows {:>9.1} us {:>8.3} G/s  {:>5.2} of {}",
            self.name,
            self.dim,
            self.keys,
            self.rows,
            self.seconds * 1e6,
            self.keys as f64 / self.seconds / 1e9,
            self.limit / self.seconds,
            self.what
        )
    }

    /// For machines.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "workload": self.name,
            "dim": self.dim,
            "rows": self.rows,
            "keys": self.keys,
            "seconds": self.seconds,
            "rows_per_s": self.keys as f64 / self.seconds,
            "limit": self.what,
            "ratio": self.limit / self.seconds,
        })
    }
}

/// A filled table and the inputs of its calls.
struct Bench<'a> {
    table: Box<dyn HbmTable>,
    limits: &'a Limits,
    dim: usize,
    rows: usize,
    n: usize,
    calls: usize,
    /// Every key's number, shuffled.
    order: Vec<u32>,
    keys: Vec<Buffer>,
    numbers: Vec<Buffer>,
    failed: Buffer,
    floats: Buffer,
    packed: Buffer,
    positions: Buffer,
}

/// The key of a row.
pub fn key_of(number: u32) -> u64 {
    mix64(u64::from(number) + 1)
}

/// Inserts the keys of these rows, by calls of as many as the buffers have.
///
/// # Errors
/// What the device says; a key that was not inserted.
pub fn insert_all(
    table: &mut dyn HbmTable,
    index: Index,
    order: &[u32],
    (keys, numbers, failed): (Buffer, Buffer, Buffer),
) -> Result<()> {
    for chunk in order.chunks(keys.count()) {
        let chosen: Vec<u64> = chunk.iter().map(|number| key_of(*number)).collect();
        table.write(TRAIN, keys, 0, Values::Keys(&chosen))?;
        table.write(TRAIN, numbers, 0, Values::Words(chunk))?;
        table.insert(TRAIN, index, (keys, numbers, chunk.len()), failed)?;
    }
    let done = table.inserted(TRAIN, index)?;
    ensure!(
        done.keys == order.len() as u64 && done.failed == 0,
        "{} of {} keys were inserted, {} failed",
        done.keys,
        order.len(),
        done.failed
    );
    Ok(())
}

/// Runs operations at one width.
///
/// # Errors
/// What the device says.
pub fn run(
    device: Device,
    args: &HbmArgs,
    dim: usize,
    operations: &[Operation],
    limits: &Limits,
) -> Result<Vec<Outcome>> {
    let mut bench = Bench::new(device, args, dim, limits)?;
    bench.load()?;
    let mut outcomes = Vec::new();
    for operation in operations {
        match operation {
            Operation::Get => bench.get(&mut outcomes)?,
            Operation::Insert => outcomes.push(bench.insert()?),
            Operation::Accumulate => bench.accumulate(&mut outcomes)?,
            Operation::Place => outcomes.push(bench.place()?),
            Operation::Pack => outcomes.push(bench.pack()?),
            Operation::Check => {}
        }
    }
    Ok(outcomes)
}

impl<'a> Bench<'a> {
    fn new(device: Device, args: &HbmArgs, dim: usize, limits: &'a Limits) -> Result<Bench<'a>> {
        // AdaGrad: as much state as weights.
        let descriptor = TableDescriptor::new("bench", dim);
        let rows = (args.bytes() / (8 * dim)).max(64);
        let n = args.batch().min(rows / 2);
        let options = HbmOptions::new(rows).batch_keys_max(n);
        let mut table = open(device, &descriptor, &options)?;
        let mut take = |memory, kind, count| table.allocate(memory, kind, count);
        let mut sets = |kind| -> hps::Result<Vec<Buffer>> {
            (0..SETS).map(|_| take(Memory::Device, kind, n)).collect()
        };
        let (keys, numbers) = (sets(Kind::Keys)?, sets(Kind::Words)?);
        let pinned = n.min((1 << 30) / (8 * dim));
        Ok(Bench {
            failed: take(Memory::Device, Kind::Keys, n)?,
            floats: take(Memory::Device, Kind::Floats, n * dim)?,
            packed: take(Memory::Pinned, Kind::Floats, pinned * 2 * dim)?,
            positions: take(Memory::Device, Kind::Words, n)?,
            order: shuffled(rows)?,
            calls: args.calls(),
            keys,
            numbers,
            table,
            limits,
            dim,
            rows,
            n,
        })
    }

    fn width(&self) -> usize {
        2 * self.dim
    }

    /// Keys that fit into the pinned buffer.
    fn pinned(&self) -> usize {
        self.packed.count() / self.width()
    }

    fn outcome(&self, name: &str, keys: usize, seconds: f64) -> Outcome {
        Outcome {
            name: name.to_owned(),
            dim: self.dim,
            rows: self.rows,
            keys,
            seconds,
            limit: 0.0,
            what: "",
        }
    }

    /// All keys into the index, all rows filled; then the inputs: distinct keys, and their row numbers.
    fn load(&mut self) -> Result<()> {
        let table = self.table.as_mut();
        fill(table, self.packed)?;
        fill(table, self.floats)?;
        let pinned = self.packed.count() / (2 * self.dim);
        for first in (0..self.rows).step_by(pinned) {
            let count = pinned.min(self.rows - first);
            let numbers: Vec<u32> = (first..first + count)
                .map(u32::try_from)
                .collect::<std::result::Result<_, _>>()?;
            table.write(TRAIN, self.numbers[0], 0, Values::Words(&numbers))?;
            table.place(TRAIN, self.numbers[0], self.packed, count)?;
        }
        self.fill_index(Index::First)?;
        for set in 0..SETS {
            let chosen: Vec<u32> = (0..self.n)
                .map(|i| self.order[(set * self.n + i) % self.rows])
                .collect();
            let keys: Vec<u64> = chosen.iter().map(|number| key_of(*number)).collect();
            let table = self.table.as_mut();
            table.write(TRAIN, self.keys[set], 0, Values::Keys(&keys))?;
            table.write(TRAIN, self.numbers[set], 0, Values::Words(&chosen))?;
        }
        Ok(())
    }

    fn fill_index(&mut self, index: Index) -> Result<()> {
        self.table.clear(TRAIN, index)?;
        let buffers = (self.keys[0], self.numbers[0], self.failed);
        insert_all(self.table.as_mut(), index, &self.order, buffers)
    }

    fn get(&mut self, outcomes: &mut Vec<Outcome>) -> Result<()> {
        let (n, keys, floats) = (self.n, self.keys.clone(), self.floats);
        let each = 48.0 + 8.0 * self.dim as f64;
        let seconds = time(self.table.as_mut(), self.calls, |t, i| {
            t.get(TRAIN, Index::First, keys[i % SETS], n, floats)
        })?;
        let limit = n as f64 * each / self.limits.copy;
        let what = "its bytes copied";
        outcomes.push(Outcome {
            limit,
            what,
            ..self.outcome("hbm-get", n, seconds)
        });
        let few = GRAPH_KEYS.min(n);
        let graphs: Vec<_> = (0..SETS)
            .map(|set| {
                self.table
                    .record_get(TRAIN, Index::First, keys[set], few, floats)
            })
            .collect::<hps::Result<_>>()?;
        let seconds = time(self.table.as_mut(), self.calls, |t, i| {
            t.replay(TRAIN, graphs[i % SETS])
        })?;
        let limit = few as f64 * each / self.limits.copy;
        outcomes.push(Outcome {
            limit,
            what,
            ..self.outcome("hbm-get, graph", few, seconds)
        });
        Ok(())
    }

    fn insert(&mut self) -> Result<Outcome> {
        let (n, keys) = (self.n, self.keys.clone());
        let (numbers, failed) = (self.numbers.clone(), self.failed);
        // The other index, full but for the sets: they come at a load of 0.6.
        let all: Vec<u32> = self.order.clone();
        let first = (SETS * n).min(all.len());
        let mut seconds = Vec::new();
        for round in 0..self.calls.div_ceil(SETS) + 1 {
            self.table.clear(TRAIN, Index::Second)?;
            for chunk in all[first..].chunks(n) {
                let keys: Vec<u64> = chunk.iter().map(|number| key_of(*number)).collect();
                let table = self.table.as_mut();
                table.write(TRAIN, self.positions, 0, Values::Words(chunk))?;
                let spare = self.failed;
                // Keys travel in a buffer of their own: the sets are needed.
                table.write(TRAIN, spare, 0, Values::Keys(&keys))?;
                table.insert(
                    TRAIN,
                    Index::Second,
                    (spare, self.positions, chunk.len()),
                    keys_spare(&self.keys, round),
                )?;
            }
            for set in 0..SETS.min(first / n) {
                let table = self.table.as_mut();
                let from = table.mark(TRAIN)?;
                table.insert(TRAIN, Index::Second, (keys[set], numbers[set], n), failed)?;
                let to = table.mark(TRAIN)?;
                if round > 0 {
                    seconds.push(table.seconds(from, to)?);
                }
            }
        }
        let done = self.table.inserted(TRAIN, Index::Second)?;
        ensure!(
            done.keys == self.rows as u64,
            "{done:?} of {} keys",
            self.rows
        );
        let seconds = Spread::of(&seconds).median;
        Ok(Outcome {
            limit: n as f64 / self.limits.sector_writes,
            what: "random sector writes",
            ..self.outcome("hbm-insert", n, seconds)
        })
    }

    fn accumulate(&mut self, outcomes: &mut Vec<Outcome>) -> Result<()> {
        let n = self.n;
        let each = 64.0 + 20.0 * self.dim as f64;
        let limit = n as f64 * each / self.limits.copy;
        let mut hottest = 0;
        for zipf in [false, true] {
            if zipf {
                hottest = self.draw_zipf()?;
            }
            let (keys, values) = (self.keys.clone(), self.floats);
            let seconds = time(self.table.as_mut(), self.calls, |t, i| {
                t.accumulate(TRAIN, Index::First, gradients(keys[i % SETS], values, n))
            })?;
            let (name, what) = match zipf {
                false => ("hbm-accumulate", "its bytes copied"),
                true => ("hbm-accumulate, zipf 1.05", "as many distinct, copied"),
            };
            outcomes.push(Outcome {
                limit,
                what,
                ..self.outcome(name, n, seconds)
            });
        }
        // A gradient of the key that is named most often is not finite: what it costs to leave it out.
        let (keys, values) = (self.keys[0], self.floats);
        let nan = Values::Floats(&[f32::NAN]);
        self.table.write(TRAIN, values, hottest * self.dim, nan)?;
        let seconds = time(self.table.as_mut(), self.calls, |t, _| {
            t.accumulate(TRAIN, Index::First, gradients(keys, values, n))
        })?;
        outcomes.push(Outcome {
            limit,
            what: "as many distinct, copied",
            ..self.outcome("hbm-accumulate, one NaN", n, seconds)
        });
        self.load()
    }

    /// Where the first set names the key that it names most often.
    fn draw_zipf(&mut self) -> Result<usize> {
        let mut hottest = 0;
        let mut draw = Draw::new(
            self.rows as u64,
            Distribution::Zipf { theta: 1.05 },
            SEED,
            1,
        );
        for set in 0..SETS {
            let mut keys = Vec::with_capacity(self.n);
            for _ in 0..self.n {
                keys.push(key_of(u32::try_from(draw.key())?));
            }
            self.table
                .write(TRAIN, self.keys[set], 0, Values::Keys(&keys))?;
            if set == 0 {
                let mut sorted = keys.clone();
                sorted.sort_unstable();
                let runs = sorted.chunk_by(|a, b| a == b);
                let longest = runs.max_by_key(|run| run.len()).and_then(<[u64]>::first);
                hottest = keys
                    .iter()
                    .position(|key| Some(key) == longest)
                    .unwrap_or(0);
            }
        }
        Ok(hottest)
    }

    fn place(&mut self) -> Result<Outcome> {
        let (n, numbers, packed) = (self.pinned().min(self.n), self.numbers.clone(), self.packed);
        let seconds = time(self.table.as_mut(), self.calls, |t, i| {
            t.place(TRAIN, numbers[i % SETS], packed, n)
        })?;
        Ok(Outcome {
            limit: (n * self.width() * 4) as f64 / self.limits.to_device,
            what: "host to device",
            ..self.outcome("hbm-place", n, seconds)
        })
    }

    /// Every row of a set is dirty: an accumulate before each pack.
    fn pack(&mut self) -> Result<Outcome> {
        let n = self.pinned().min(self.n);
        let mut seconds = Vec::new();
        for i in 0..self.calls + 1 {
            let set = i % SETS;
            let table = self.table.as_mut();
            let gradients = gradients(self.keys[set], self.floats, n);
            table.accumulate(TRAIN, Index::First, gradients)?;
            let from = table.mark(TRAIN)?;
            table.pack(TRAIN, self.numbers[set], n, self.packed, self.positions)?;
            let to = table.mark(TRAIN)?;
            let taken = table.seconds(from, to)?;
            let found = table.packed(TRAIN)?;
            ensure!(found == n, "{found} of {n} dirty rows were packed");
            if i > 0 {
                seconds.push(taken);
            }
        }
        let seconds = Spread::of(&seconds).median;
        Ok(Outcome {
            limit: (n * self.width() * 4) as f64 / self.limits.to_host,
            what: "device to host",
            ..self.outcome("hbm-pack", n, seconds)
        })
    }
}

fn gradients(keys: Buffer, values: Buffer, count: usize) -> Gradients {
    Gradients {
        keys,
        values,
        count,
        shows: None,
        clicks: None,
        lr: 0.01,
        step: 1,
    }
}

/// A list for keys that fail, which none do while the index is filled.
fn keys_spare(keys: &[Buffer], round: usize) -> Buffer {
    keys[round % keys.len()]
}

/// The numbers of all rows, in no order.
///
/// # Errors
/// More than have numbers.
pub fn shuffled(rows: usize) -> Result<Vec<u32>> {
    let scramble = Scramble::new(rows as u64, SEED);
    let number = |rank| Ok(u32::try_from(scramble.key(rank))?);
    (0..rows as u64).map(number).collect()
}

//! Devices that share the keys among them, and what they must hold: maps of rows by number, indexes from
//! keys to numbers, and which rows are dirty.

use super::hbm_device::{BATCH, One, Totals, bits, place_of};
use super::hbm_pair::{Batch, TRAIN, options};
use super::model::key_of;
use super::rng::Rng;
use hps::hbm::{Device, Gradients, Index, Inserted, Stream, Values, ValuesMut, open};
use hps::{Error, Optimizer, RowMetadata, TableDescriptor};

/// Keys that there are.
const UNIVERSE: usize = 160;
const BUILDS: Stream = Stream::Transfer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nothing,
    Accumulate,
    Insert,
    InsertMany,
    Place,
    Pack,
    Get,
    GetRows,
    Swap,
    Split,
    AccumulateMissing,
    GetMissing,
    PlaceBeyond,
    FailingCalls,
    FailingDevice,
}

/// One operation.
pub type Step = super::steps::Step<Kind>;

pub struct World {
    device: Device,
    all: Vec<One>,
    rows_max: u32,
    current: Index,
    rng: Rng,
    totals: Totals,
}

fn mix64(mut x: u64) -> u64 {
    for _ in 0..2 {
        x ^= x >> 32;
        x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    x ^ (x >> 32)
}

fn owner(key: u64, parts: usize) -> usize {
    ((u128::from(mix64(key)) * parts as u128) >> 64) as usize
}

fn descriptor(rng: &mut Rng) -> TableDescriptor {
    let mut descriptor = TableDescriptor::new("t", [1, 3, 4, 8, 17][rng.below(5)]);
    descriptor.optimizer = Optimizer::ALL[rng.below(Optimizer::ALL.len())];
    let mut metadata = RowMetadata::default();
    (metadata.show, metadata.click) = (rng.one_in(2), rng.one_in(2));
    (metadata.count, metadata.last_step) = (rng.one_in(2), rng.one_in(2));
    descriptor.metadata = metadata;
    descriptor
}

impl World {
    pub fn new(device: Device, count: usize, seed: u64) -> World {
        let mut rng = Rng(seed);
        let descriptor = descriptor(&mut rng);
        let rows_max = 6 + rng.below(if count == 1 { 60 } else { 20 }) as u32;
        let one = |_| {
            let table = open(device, &descriptor, &options(rows_max as usize)).unwrap();
            One::new(table, &descriptor, rows_max).unwrap()
        };
        let all = (0..count).map(one);
        let mut world = World {
            device,
            all: all.collect(),
            rows_max,
            current: Index::First,
            rng,
            totals: Totals::default(),
        };
        let every: Vec<u32> = (0..rows_max).collect();
        for one in &mut world.all {
            one.place(&every, &mut world.rng);
        }
        world
    }

    pub fn finish(mut self, totals: &mut Totals) {
        let every: Vec<u32> = (0..self.rows_max).collect();
        for one in &mut self.all {
            one.compare(&mut self.totals);
            one.pack(&every, &mut self.totals);
            one.pack(&every, &mut self.totals);
        }
        totals.add(&self.totals);
    }

    pub fn run(&mut self, step: &Step) {
        self.rng = Rng(step.seed);
        match step.kind {
            Kind::Nothing => {}
            Kind::Accumulate => self.accumulate(step.keys),
            Kind::Insert => self.insert(step.keys / 4 + 1, 12),
            Kind::InsertMany => self.insert(UNIVERSE, 1000),
            Kind::Place => self.place(),
            Kind::Pack => self.pack(),
            Kind::Get => self.get(step.keys, false),
            Kind::GetRows => self.get(step.keys, true),
            Kind::Swap => self.swap(),
            Kind::Split => self.split_any(step.keys),
            Kind::AccumulateMissing => self.accumulate_missing(step.keys),
            Kind::GetMissing => self.get_missing(step.keys),
            Kind::PlaceBeyond => self.place_beyond(),
            Kind::FailingCalls => self.failing_calls(step.keys),
            Kind::FailingDevice => self.failing_device(step.keys),
        }
    }

    /// Splits keys on the first device; each device's part, and where each of them stood.
    fn split(&mut self, keys: &[u64]) -> (Vec<Vec<u64>>, Vec<u32>) {
        let (parts, n) = (self.all.len(), keys.len());
        let first = &mut self.all[0];
        let (from, out, at, ends) = (
            first.driven.keys,
            first.split_keys,
            first.driven.positions,
            first.ends,
        );
        let table = &mut first.driven.table;
        table.write(TRAIN, from, 0, Values::Keys(keys)).unwrap();
        table
            .split(TRAIN, (from, n, parts), (out, at, ends))
            .unwrap();
        let (mut sorted, mut positions, mut ended) = (vec![0; n], vec![0; n], vec![0; parts]);
        table
            .read(TRAIN, out, 0, ValuesMut::Keys(&mut sorted))
            .unwrap();
        table
            .read(TRAIN, at, 0, ValuesMut::Words(&mut positions))
            .unwrap();
        table
            .read(TRAIN, ends, 0, ValuesMut::Keys(&mut ended))
            .unwrap();
        let mut expected: Vec<u32> = (0..n as u32).collect();
        expected.sort_by_key(|at| owner(keys[*at as usize], parts));
        assert_eq!(positions, expected, "positions of a split in {parts}");
        let mut lists = Vec::new();
        let mut begin = 0;
        for (part, end) in ended.iter().enumerate() {
            let list = sorted[begin..*end as usize].to_vec();
            let owned = keys.iter().filter(|key| owner(**key, parts) == part);
            assert!(list.iter().eq(owned), "part {part} of {parts}");
            lists.push(list);
            begin = *end as usize;
        }
        assert_eq!(begin, n, "the end of the last part");
        (lists, positions)
    }

    /// Brings what the devices gave back into the caller's order, on the first one.
    fn merge(&mut self, positions: &[u32], values: &[f32], width: usize) -> Vec<f32> {
        let first = &mut self.all[0];
        let (at, from, to) = (first.driven.positions, first.driven.packed, first.merged);
        let table = &mut first.driven.table;
        table.write(TRAIN, at, 0, Values::Words(positions)).unwrap();
        table.write(TRAIN, from, 0, Values::Floats(values)).unwrap();
        table
            .merge(TRAIN, at, (from, to), (positions.len(), width))
            .unwrap();
        let mut out = vec![0.0; values.len()];
        table
            .read(TRAIN, to, 0, ValuesMut::Floats(&mut out))
            .unwrap();
        out
    }

    /// Keys that the current index of their device holds, with duplicates.
    fn held_keys(&mut self, n: usize) -> Vec<u64> {
        let place = place_of(self.current);
        let maps = self.all.iter().map(|one| &one.indexes[place]);
        let held: Vec<u64> = maps.flat_map(|map| map.keys().copied()).collect();
        if held.is_empty() {
            return Vec::new();
        }
        (0..n).map(|_| held[self.rng.below(held.len())]).collect()
    }

    /// A key that no index holds, if there is one.
    fn missing_key(&mut self) -> Option<u64> {
        let (count, place) = (self.all.len(), place_of(self.current));
        let begin = self.rng.below(UNIVERSE);
        let mut all = (0..UNIVERSE).map(|i| key_of((begin + i) % UNIVERSE));
        all.find(|key| !self.all[owner(*key, count)].indexes[place].contains_key(key))
    }

    fn some_rows(&mut self) -> Vec<u32> {
        let mut rows: Vec<u32> = (0..self.rows_max).collect();
        for i in (1..rows.len()).rev() {
            rows.swap(i, self.rng.below(i + 1));
        }
        rows.truncate(self.rng.below(rows.len() + 1));
        rows
    }

    /// One of `beyond` names a row that there is not.
    fn insert(&mut self, n: usize, beyond: usize) {
        let begin = self.rng.below(UNIVERSE);
        let keys: Vec<u64> = (0..n).map(|i| key_of((begin + i) % UNIVERSE)).collect();
        let (parts, _) = self.split(&keys);
        for (one, keys) in self.all.iter_mut().zip(parts) {
            let map = &one.indexes[place_of(self.current)];
            let mut given = Vec::new();
            for key in keys {
                let row = match map.get(&key) {
                    Some(there) if !self.rng.one_in(6) => *there,
                    _ if self.rng.one_in(beyond) => self.rows_max + self.rng.below(3) as u32,
                    _ => self.rng.below(self.rows_max as usize) as u32,
                };
                given.push((key, row));
                // The same entry once more is no new one; where none has to fail, which is the caller's
                // to know, it does not matter which of the two comes first.
                if n < 30
                    && self.rng.one_in(8)
                    && row < self.rows_max
                    && map.get(&key) == Some(&row)
                {
                    given.push((key, row));
                }
            }
            // Failed keys are told in one buffer, behind those before: clear the index in time.
            if one.inserted[place_of(self.current)].failed as usize + given.len() > BATCH {
                continue;
            }
            one.insert(TRAIN, self.current, &given, &mut self.totals);
        }
    }

    fn place(&mut self) {
        for i in 0..self.all.len() {
            let rows = self.some_rows();
            self.totals.placed += rows.len() as u64;
            self.all[i].place(&rows, &mut self.rng);
        }
    }

    fn pack(&mut self) {
        for i in 0..self.all.len() {
            let rows = self.some_rows();
            self.all[i].pack(&rows, &mut self.totals);
        }
    }

    fn get(&mut self, n: usize, whole: bool) {
        let keys = self.held_keys(n);
        let (parts, positions) = self.split(&keys);
        let mut values = Vec::new();
        for (one, keys) in self.all.iter_mut().zip(&parts) {
            values.extend(match whole {
                true => one.driven.get_rows(self.current, keys).unwrap(),
                false => one.driven.get(self.current, keys).unwrap(),
            });
        }
        let driven = &self.all[0].driven;
        let width = if whole { driven.row_f32s } else { driven.dim };
        let found = self.merge(&positions, &values, width);
        for (key, found) in keys.iter().zip(found.chunks_exact(width)) {
            let one = &self.all[owner(*key, self.all.len())];
            let row = one.indexes[place_of(self.current)][key];
            let expected = one.rows.row(u64::from(row));
            assert_eq!(bits(found), bits(&expected[..width]), "key {key:#x}");
        }
        self.totals.compared += keys.len() as u64;
    }

    /// The next index is built on the other stream, then read; the last one is cleared when it is built
    /// again.
    fn swap(&mut self) {
        let next = self.current.other();
        let (from, to) = (place_of(self.current), place_of(next));
        let keep = 1 + self.rng.below(4);
        for one in &mut self.all {
            one.driven.table.order(TRAIN, BUILDS).unwrap();
            one.driven.table.clear(BUILDS, next).unwrap();
            one.indexes[to].clear();
            one.inserted[to] = Inserted::default();
            // Some keys leave.
            let entries = one.indexes[from].iter().map(|(key, row)| (*key, *row));
            let entries: Vec<(u64, u32)> = entries.filter(|_| !self.rng.one_in(keep)).collect();
            one.insert(BUILDS, next, &entries, &mut self.totals);
            one.driven.table.order(BUILDS, TRAIN).unwrap();
            assert_eq!(one.indexes[to].len(), entries.len(), "entries that stay");
        }
        self.totals.swaps += 1;
        self.current = next;
    }

    /// Splits and merges keys that no device has to hold.
    fn split_any(&mut self, n: usize) {
        let keys: Vec<u64> = (0..n).map(|_| self.rng.next()).collect();
        let (parts, positions) = self.split(&keys);
        let numbers: Vec<f32> = parts
            .concat()
            .iter()
            .map(|key| (key >> 42) as f32)
            .collect();
        let merged = self.merge(&positions, &numbers, 1);
        let expected: Vec<f32> = keys.iter().map(|key| (key >> 42) as f32).collect();
        assert_eq!(merged, expected, "a merge undoes a split");
    }

    fn gradients(&mut self, keys: &[u64]) -> Batch {
        let dim = self.all[0].driven.dim;
        let mut value = || (self.rng.below(4001) as f32 - 2000.0) / 1536.0;
        let mut gradients: Vec<f32> = (0..keys.len() * dim).map(|_| value()).collect();
        if !gradients.is_empty() && self.rng.one_in(3) {
            let at = self.rng.below(gradients.len());
            gradients[at] = [f32::NAN, f32::NEG_INFINITY][self.rng.below(2)];
        }
        let mut counts = |below: usize| keys.iter().map(|_| self.rng.below(below) as u32).collect();
        Batch {
            gradients,
            shows: counts(5),
            clicks: counts(3),
            lr: 0.03,
            step: self.rng.next() as u32,
            keys: keys.to_vec(),
        }
    }

    fn accumulate(&mut self, n: usize) {
        let is_long = self.rng.one_in(10);
        let mut keys = self.held_keys(if is_long { BATCH } else { n });
        if is_long && let Some(often) = keys.first().copied() {
            keys.iter_mut().take(300).for_each(|key| *key = often);
            self.totals.long_runs += 1;
        }
        let (parts, _) = self.split(&keys);
        for (i, keys) in parts.iter().enumerate() {
            let batch = self.gradients(keys);
            let one = &mut self.all[i];
            one.give(self.current, &batch).unwrap();
            one.driven.table.wait(TRAIN).unwrap();
            one.apply(self.current, &batch, &mut self.totals);
        }
    }

    /// One device refuses its part, and does nothing until it is told to go on; the others apply theirs.
    fn accumulate_missing(&mut self, n: usize) {
        let Some(missing) = self.missing_key() else {
            return;
        };
        let mut keys = self.held_keys(n);
        keys.insert(self.rng.below(keys.len() + 1), missing);
        let (parts, _) = self.split(&keys);
        let refuses = owner(missing, self.all.len());
        for (i, keys) in parts.iter().enumerate() {
            let batch = self.gradients(keys);
            let one = &mut self.all[i];
            one.give(self.current, &batch).unwrap();
            if i != refuses {
                one.driven.table.wait(TRAIN).unwrap();
                one.apply(self.current, &batch, &mut self.totals);
            }
        }
        self.stays_refused(refuses, &[missing], "does not hold the key");
    }

    fn get_missing(&mut self, n: usize) {
        let Some(missing) = self.missing_key() else {
            return;
        };
        let mut keys = self.held_keys(n);
        keys.extend([missing; 2]);
        let (parts, _) = self.split(&keys);
        let refuses = owner(missing, self.all.len());
        let one = &mut self.all[refuses];
        let told = one.driven.get_rows(self.current, &parts[refuses]);
        assert!(told.is_err(), "{missing:#x} is not there");
        self.stays_refused(refuses, &[missing; 2], "does not hold the key");
    }

    fn place_beyond(&mut self) {
        let mut rows = self.some_rows();
        rows.push(self.rows_max);
        let device = self.rng.below(self.all.len());
        let one = &mut self.all[device];
        let values = vec![7.0; rows.len() * one.driven.row_f32s];
        one.driven.place(&rows, &values).unwrap();
        let beyond = [u64::from(self.rows_max)];
        self.stays_refused(device, &beyond, "beyond the arena");
    }

    /// Calls after a refused one change nothing, until the caller lets the stream go on.
    fn stays_refused(&mut self, device: usize, missing: &[u64], why: &str) {
        let count = self.all.len();
        let keys = self.held_keys(20);
        let keys: Vec<u64> = keys
            .into_iter()
            .filter(|key| owner(*key, count) == device)
            .collect();
        let batch = self.gradients(&keys);
        let rows = self.some_rows();
        let one = &mut self.all[device];
        one.expect_refused(TRAIN, missing, why);
        one.give(self.current, &batch).unwrap();
        let values = vec![9.0; rows.len() * one.driven.row_f32s];
        one.driven.place(&rows, &values).unwrap();
        assert!(one.driven.pack(&rows).is_err(), "a pack after a refusal");
        one.expect_refused(TRAIN, missing, why);
        one.driven.table.forget_refusal(TRAIN).unwrap();
        one.driven.table.wait(TRAIN).unwrap();
        one.compare(&mut self.totals);
        self.totals.refused += 1;
    }

    /// Calls with arguments that are refused at once change nothing.
    fn failing_calls(&mut self, n: usize) {
        let keys = self.held_keys(n);
        let device = self.rng.below(self.all.len());
        let one = &mut self.all[device];
        let driven = &mut one.driven;
        let (table, n) = (&mut driven.table, keys.len());
        let gradients = Gradients {
            keys: driven.keys,
            values: driven.floats,
            count: 4097,
            shows: None,
            clicks: None,
            lr: 0.1,
            step: 0,
        };
        let told = [
            table.accumulate(TRAIN, self.current, gradients),
            table.get(TRAIN, self.current, driven.rows, n, driven.floats),
            table.place(TRAIN, driven.rows, driven.packed, BATCH + 1),
            table.split(
                TRAIN,
                (driven.keys, n, 257),
                (driven.failed, driven.positions, one.ends),
            ),
        ];
        for told in told {
            assert!(matches!(told, Err(Error::InvalidArgument(_))), "{told:?}");
            self.totals.failed_calls += 1;
        }
        table.wait(TRAIN).unwrap();
        one.compare(&mut self.totals);
    }

    /// The same rows and index on a device of which a call fails, whichever it is: what is given again
    /// is done once.
    #[cfg(feature = "emu")]
    fn failing_device(&mut self, n: usize) {
        use hps::hbm::{Faults, open_with_faults};
        let Device::Emulated(seed) = self.device else {
            return;
        };
        let keys = self.held_keys(n);
        let chosen = self.rng.below(self.all.len());
        let count = self.all.len();
        let owned = keys.into_iter().filter(|key| owner(*key, count) == chosen);
        let batch = self.gradients(&owned.collect::<Vec<u64>>());
        let faults = Faults::default().fail_at(1 + self.rng.below(90) as u64);
        let like = &self.all[chosen];
        let descriptor = &like.rows.descriptor;
        let open = |faults| {
            let options = options(self.rows_max as usize);
            let table = open_with_faults((seed, faults), descriptor, &options)?;
            One::new(table, descriptor, self.rows_max)
        };
        let twin = open(faults).or_else(|told| {
            assert!(
                told.to_string().contains("a fault that was asked for"),
                "{told}"
            );
            self.totals.failed_calls += 1;
            open(Faults::default())
        });
        let mut twin = twin.unwrap();
        twin.copy_of(like, self.current, &mut self.totals);
        twin.again(&mut self.totals, |driven| {
            driven.accumulate(self.current, &batch)
        });
        twin.again(&mut self.totals, |driven| driven.table.wait(TRAIN));
        twin.apply(self.current, &batch, &mut Totals::default());
        let all: Vec<u32> = (0..self.rows_max).collect();
        twin.pack_again(&all, &mut self.totals);
        // Its one fault may come now.
        twin.again(&mut self.totals, |driven| {
            driven.pack(&all).map(|(rows, _)| assert!(rows.is_empty()))
        });
    }

    #[cfg(not(feature = "emu"))]
    fn failing_device(&mut self, _n: usize) {
        assert_eq!(self.device, Device::Cpu, "only the emulator has faults");
    }
}

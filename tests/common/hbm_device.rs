//! One device, driven, and the maps that say what it must hold.

use super::hbm_pair::{Batch, Driven, TRAIN};
use super::model::{Push, PushKind, TableModel};
use super::rng::Rng;
use hps::hbm::{Buffer, HbmTable, Index, Inserted, Kind as Of, Memory, Stream, Values, ValuesMut};
use hps::{Error, Result, TableDescriptor};
use std::collections::{BTreeMap, BTreeSet};

/// Positions of a call at most: enough for a run that blocks sum.
pub const BATCH: usize = 400;

/// What all cases have done.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub keys_inserted: u64,
    pub keys_failed: u64,
    pub full: u64,
    pub placed: u64,
    pub packed: u64,
    pub accumulated: u64,
    pub left_out: u64,
    pub long_runs: u64,
    pub swaps: u64,
    pub refused: u64,
    pub failed_calls: u64,
    pub compared: u64,
}

impl Totals {
    pub fn add(&mut self, other: &Totals) {
        self.keys_inserted += other.keys_inserted;
        self.keys_failed += other.keys_failed;
        self.full += other.full;
        self.placed += other.placed;
        self.packed += other.packed;
        self.accumulated += other.accumulated;
        self.left_out += other.left_out;
        self.long_runs += other.long_runs;
        self.swaps += other.swaps;
        self.refused += other.refused;
        self.failed_calls += other.failed_calls;
        self.compared += other.compared;
    }

    /// Everything has happened, if there were cases enough to say so.
    pub fn check(&self, cases: u64) {
        if cases < 8 {
            return;
        }
        let each = [
            self.keys_inserted / 20,
            self.keys_failed,
            self.full,
            self.placed / 20,
            self.packed / 10,
            self.accumulated / 50,
            self.left_out,
            self.long_runs,
            self.swaps,
            self.refused,
            self.compared / 100,
        ];
        assert!(each.iter().all(|n| *n >= cases / 8), "too little: {self:?}");
    }
}

/// One device and its maps.
pub struct One {
    pub driven: Driven,
    pub split_keys: Buffer,
    pub ends: Buffer,
    pub merged: Buffer,
    /// By row number.
    pub rows: TableModel,
    pub dirty: BTreeSet<u32>,
    pub indexes: [BTreeMap<u64, u32>; 2],
    pub inserted: [Inserted; 2],
}

pub fn place_of(index: Index) -> usize {
    usize::from(index == Index::Second)
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

impl One {
    pub fn new(
        table: Box<dyn HbmTable>,
        descriptor: &TableDescriptor,
        rows_max: u32,
    ) -> Result<One> {
        let mut driven = Driven::new(table, descriptor, BATCH)?;
        let table = &mut driven.table;
        let mut device = |kind, count| table.allocate(Memory::Device, kind, count);
        let (split_keys, ends) = (device(Of::Keys, BATCH)?, device(Of::Keys, 8)?);
        let merged = device(Of::Floats, BATCH * descriptor.row_f32s())?;
        Ok(One {
            split_keys,
            ends,
            merged,
            driven,
            rows: TableModel::new(descriptor.clone(), rows_max as usize),
            dirty: BTreeSet::new(),
            indexes: [BTreeMap::new(), BTreeMap::new()],
            inserted: [Inserted::default(); 2],
        })
    }

    /// Entries that an index has, but for the cell of the greatest key.
    pub fn capacity(&self) -> usize {
        (self.rows.universe * 5).div_ceil(6) * 2
    }

    pub fn insert(
        &mut self,
        stream: Stream,
        index: Index,
        given: &[(u64, u32)],
        totals: &mut Totals,
    ) {
        let (keys, rows): (Vec<u64>, Vec<u32>) = given.iter().copied().unzip();
        let (table, buffers) = (&mut self.driven.table, (self.driven.keys, self.driven.rows));
        table
            .write(stream, buffers.0, 0, Values::Keys(&keys))
            .unwrap();
        table
            .write(stream, buffers.1, 0, Values::Words(&rows))
            .unwrap();
        let entries = (buffers.0, buffers.1, given.len());
        let failed = self.driven.failed;
        table.insert(stream, index, entries, failed).unwrap();
        let done = table.inserted(stream, index).unwrap();
        let before = self.inserted[place_of(index)];
        self.inserted[place_of(index)] = done;
        let many = (done.failed - before.failed) as usize;
        let mut told = vec![0; many];
        let at = before.failed as usize;
        assert!(at + many <= BATCH, "more failed keys than the test reads");
        table
            .read(stream, failed, at, ValuesMut::Keys(&mut told))
            .unwrap();
        self.check_inserted(index, given, done.keys - before.keys, told, totals);
    }

    /// What has become of keys: the map has them now, but for those that were told to have failed.
    pub fn check_inserted(
        &mut self,
        index: Index,
        given: &[(u64, u32)],
        stored: u64,
        mut told: Vec<u64>,
        totals: &mut Totals,
    ) {
        let (most, capacity) = (self.rows.universe as u32, self.capacity());
        let map = &mut self.indexes[place_of(index)];
        let known = map.clone();
        let (mut must_fail, mut new) = (Vec::new(), BTreeMap::new());
        for (key, row) in given {
            match known.get(key) {
                _ if *row >= most => must_fail.push(*key),
                Some(there) if there != row => must_fail.push(*key),
                Some(_) => {}
                None => {
                    new.insert(*key, *row);
                }
            }
        }
        let free = capacity - known.keys().filter(|key| **key != u64::MAX).count();
        let wanted = new.keys().filter(|key| **key != u64::MAX).count();
        let over = wanted.saturating_sub(free);
        totals.full += u64::from(over > 0);
        for key in &must_fail {
            let at = told.iter().position(|told| told == key);
            told.swap_remove(at.unwrap_or_else(|| panic!("{key:#x} has not failed")));
        }
        assert_eq!(told.len(), over, "keys that found no place");
        for key in &told {
            assert!(new.remove(key).is_some(), "{key:#x} failed, and is not new");
            assert_ne!(*key, u64::MAX, "that key has a cell of its own");
        }
        assert_eq!(stored, new.len() as u64, "keys stored = keys inserted");
        totals.keys_inserted += stored;
        totals.keys_failed += (must_fail.len() + told.len()) as u64;
        map.extend(new);
    }

    /// Whole rows of random content.
    pub fn place(&mut self, rows: &[u32], rng: &mut Rng) {
        let width = self.driven.row_f32s;
        let push = loop {
            let push = self.rows.random_push(rng, rows.len());
            if push.kind == PushKind::Rows {
                break push;
            }
        };
        let mut values = push.values;
        assert_eq!(values.len(), rows.len() * width);
        values.iter_mut().for_each(|value| {
            // (What is computed from a NaN has bits of the machine's own.)
            if !value.is_finite() {
                *value = f32::from_bits(value.to_bits() & 0x007f_ffff);
            }
        });
        self.driven.place(rows, &values).unwrap();
        self.driven.table.wait(TRAIN).unwrap();
        let numbers: Vec<u64> = rows.iter().map(|row| u64::from(*row)).collect();
        self.rows.put(&numbers, &values, true);
        rows.iter().for_each(|row| {
            self.dirty.remove(row);
        });
    }

    pub fn pack(&mut self, rows: &[u32], totals: &mut Totals) {
        let (places, values) = self.driven.pack(rows).unwrap();
        totals.packed += places.len() as u64;
        self.check_packed(rows, &places, &values);
    }

    fn check_packed(&mut self, rows: &[u32], places: &[u32], values: &[f32]) {
        let dirty = |place: &u32| self.dirty.contains(&rows[*place as usize]);
        let expected: Vec<u32> = (0..rows.len() as u32).filter(dirty).collect();
        assert_eq!(places, expected, "dirty rows of {rows:?}");
        let row = |place: &u32| self.rows.row(u64::from(rows[*place as usize])).to_vec();
        let expected: Vec<f32> = expected.iter().flat_map(row).collect();
        assert_eq!(bits(values), bits(&expected), "packed rows");
        for row in rows {
            self.dirty.remove(row);
        }
    }

    /// Gives an accumulate, without a look at what comes of it.
    pub fn give(&mut self, index: Index, batch: &Batch) -> Result<()> {
        self.driven.accumulate(index, batch)
    }

    /// What an accumulate does to the maps.
    pub fn apply(&mut self, index: Index, batch: &Batch, totals: &mut Totals) {
        let map = &self.indexes[place_of(index)];
        let rows: Vec<u64> = batch.keys.iter().map(|key| u64::from(map[key])).collect();
        let push = Push {
            kind: PushKind::Gradients(batch.lr),
            values: batch.gradients.clone(),
            shows: batch.shows.clone(),
            clicks: batch.clicks.clone(),
            step: batch.step,
            positions: None,
            verbatim: false,
        };
        let report = self.rows.push(&rows, &push);
        totals.left_out += report.non_finite;
        totals.accumulated += rows.len() as u64 - report.non_finite;
        let dim = self.driven.dim;
        for (row, values) in rows.iter().zip(batch.gradients.chunks_exact(dim)) {
            if values.iter().all(|value| value.is_finite()) {
                self.dirty.insert(*row as u32);
            }
        }
    }

    pub fn expect_refused(&mut self, stream: Stream, missing: &[u64], why: &str) {
        let told = self.driven.table.wait(stream).unwrap_err();
        let Error::RefusedCall {
            why: told_why,
            key,
            positions,
            ..
        } = &told
        else {
            panic!("{told}");
        };
        assert!(told_why.contains(why), "{told}");
        assert!(missing.contains(key), "{told}: not one of {missing:?}");
        assert_eq!(*positions, missing.len() as u64, "{told}");
    }

    /// All rows, by number and by key.
    pub fn compare(&mut self, totals: &mut Totals) {
        for index in [Index::First, Index::Second] {
            let map = &self.indexes[place_of(index)];
            let keys: Vec<u64> = map.keys().copied().collect();
            let numbers: Vec<u64> = map.values().map(|row| u64::from(*row)).collect();
            let found = self.driven.get_rows(index, &keys).unwrap();
            self.rows.compare(&numbers, &found, "whole rows");
            totals.compared += keys.len() as u64;
        }
    }

    /// Does a call; if it meets the device's fault, once more.
    #[cfg(feature = "emu")]
    pub fn again<T>(&mut self, totals: &mut Totals, call: impl Fn(&mut Driven) -> Result<T>) -> T {
        call(&mut self.driven).unwrap_or_else(|told| {
            assert!(
                told.to_string().contains("a fault that was asked for"),
                "{told}"
            );
            totals.failed_calls += 1;
            call(&mut self.driven).unwrap()
        })
    }

    /// Brings the rows and an index of another device here.
    #[cfg(feature = "emu")]
    pub fn copy_of(&mut self, other: &One, index: Index, totals: &mut Totals) {
        let rows: Vec<u32> = (0..self.rows.universe as u32).collect();
        self.rows = other.rows.clone();
        let row = |row: &u32| self.rows.row(u64::from(*row)).to_vec();
        let values: Vec<f32> = rows.iter().flat_map(row).collect();
        self.again(totals, |driven| driven.place(&rows, &values));
        self.again(totals, |driven| driven.table.wait(TRAIN));
        let map = other.indexes[place_of(index)].clone();
        let (keys, numbers): (Vec<u64>, Vec<u32>) = map.iter().unzip();
        let (stored, failed) = self.again(totals, |driven| driven.insert(index, &keys, &numbers));
        assert_eq!((stored, failed), (keys.len() as u64, Vec::new()));
        self.indexes[place_of(index)] = map;
    }

    /// Packs, with each call of the table given again if it fails, and compares.
    #[cfg(feature = "emu")]
    pub fn pack_again(&mut self, rows: &[u32], totals: &mut Totals) {
        let (numbers, to, at) = (self.driven.rows, self.driven.packed, self.driven.positions);
        self.again(totals, |driven| {
            let table = &mut driven.table;
            table.write(TRAIN, numbers, 0, Values::Words(rows))?;
            table.pack(TRAIN, numbers, rows.len(), to, at)
        });
        let found = self.again(totals, |driven| driven.table.packed(TRAIN));
        let width = self.driven.row_f32s;
        let places = self.again(totals, |driven| {
            let mut places = vec![0; found];
            let all = ValuesMut::Words(&mut places);
            driven.table.read(TRAIN, at, 0, all).map(|()| places)
        });
        let values = self.again(totals, |driven| {
            let mut values = vec![0.0; found * width];
            let all = ValuesMut::Floats(&mut values);
            driven.table.read(TRAIN, to, 0, all).map(|()| values)
        });
        self.check_packed(rows, &places, &values);
    }
}

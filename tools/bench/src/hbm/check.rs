//! Does the device compute the bits of the table in plain Rust?
//!
//! All seven rules at several widths: rows placed, read back, batches with duplicates and with a key that
//! is named thousands of times, gradients that are not finite, dirty rows packed.

use anyhow::{Result, ensure};
use hps::hbm::{
    Buffer, Device, Gradients, HbmOptions, HbmTable, Index, Kind, Memory, Stream, Values,
    ValuesMut, open,
};
use hps::{NonFinite, Optimizer, RowMetadata, TableDescriptor, mix64};

use super::{Numbers, say};

const TRAIN: Stream = Stream::Train;
const DIMS: [usize; 9] = [1, 8, 16, 17, 32, 64, 100, 128, 260];

/// A table with its buffers.
struct Side {
    table: Box<dyn HbmTable>,
    keys: Buffer,
    rows: Buffer,
    failed: Buffer,
    floats: Buffer,
    packed: Buffer,
    positions: Buffer,
    counts: Buffer,
}

impl Side {
    fn new(
        device: Device,
        descriptor: &TableDescriptor,
        options: &HbmOptions,
        width: usize,
    ) -> Result<Side> {
        let (mut table, n) = (open(device, descriptor, options)?, options.batch_keys_max);
        let mut take = |memory, kind, count| table.allocate(memory, kind, count);
        Ok(Side {
            keys: take(Memory::Device, Kind::Keys, n)?,
            rows: take(Memory::Device, Kind::Words, n)?,
            failed: take(Memory::Device, Kind::Keys, n)?,
            floats: take(Memory::Device, Kind::Floats, n * descriptor.dim)?,
            packed: take(Memory::Pinned, Kind::Floats, n * width)?,
            positions: take(Memory::Device, Kind::Words, n)?,
            counts: take(Memory::Device, Kind::Words, n)?,
            table,
        })
    }

    fn rows_of(&mut self, keys: &[u64], width: usize) -> Result<Vec<f32>> {
        let table = self.table.as_mut();
        table.write(TRAIN, self.keys, 0, Values::Keys(keys))?;
        table.get_rows(TRAIN, Index::First, self.keys, keys.len(), self.packed)?;
        let mut values = vec![0.0; keys.len() * width];
        table.read(TRAIN, self.packed, 0, ValuesMut::Floats(&mut values))?;
        table.wait(TRAIN)?;
        Ok(values)
    }
}

/// Compares; says how much.
///
/// # Errors
/// The first difference.
pub fn run(device: Device, tiny: bool) -> Result<()> {
    let mut values = 0;
    for (seed, &rule) in Optimizer::ALL.iter().enumerate() {
        for dim in DIMS {
            let rows = if tiny { 100 } else { 20_000 };
            values += check(device, rule, dim, rows, seed)?;
        }
    }
    say(&format!(
        "hbm-check: {values} values equal to those of the table in plain Rust"
    ))
}

fn check(device: Device, rule: Optimizer, dim: usize, rows: usize, seed: usize) -> Result<usize> {
    let mut numbers = Numbers((seed * 1000 + dim) as u64);
    let mut descriptor = TableDescriptor::new("t", dim);
    let mut metadata = RowMetadata::default();
    (
        metadata.show,
        metadata.click,
        metadata.count,
        metadata.last_step,
    ) = (true, true, true, true);
    (descriptor.optimizer, descriptor.metadata) = (rule, metadata);
    let width = dim + rule.state_f32s(dim) + 4;
    let non_finite = [NonFinite::Skip, NonFinite::Apply][numbers.below(2)];
    let n = 2 * rows;
    let options = HbmOptions::new(rows)
        .batch_keys_max(n)
        .staging_bytes((rows * width).max(4 * width))
        .non_finite(non_finite);
    let mut sides = [
        Side::new(Device::Cpu, &descriptor, &options, width)?,
        Side::new(device, &descriptor, &options, width)?,
    ];
    let keys: Vec<u64> = (0..rows as u64).map(|i| mix64(i).wrapping_sub(1)).collect();
    let places: Vec<u32> = (0..u32::try_from(rows)?).rev().collect();
    let values: Vec<f32> = (0..rows * width).map(|_| numbers.float().abs()).collect();
    for side in &mut sides {
        let table = side.table.as_mut();
        table.write(TRAIN, side.keys, 0, Values::Keys(&keys))?;
        table.write(TRAIN, side.rows, 0, Values::Words(&places))?;
        table.write(TRAIN, side.packed, 0, Values::Floats(&values))?;
        let entries = (side.keys, side.rows, rows);
        table.insert(TRAIN, Index::First, entries, side.failed)?;
        table.place(TRAIN, side.rows, side.packed, rows)?;
        let done = table.inserted(TRAIN, Index::First)?;
        ensure!(done.keys == rows as u64 && done.failed == 0, "{done:?}");
    }
    let what = format!("{rule:?}, dim {dim}, {non_finite:?}");
    let mut compared = 0;
    for (step, count) in [(1u32, rows), (2, n), (3, 33), (4, n)] {
        give(&mut sides, &mut numbers, &keys, (count, dim, step))?;
        let [expected, found] = [0, 1].map(|side: usize| sides[side].rows_of(&keys, width));
        compared += same(&found?, &expected?, &format!("{what}, step {step}"))?;
    }
    let [expected, found] = [0, 1].map(|side: usize| pack(&mut sides[side], rows, width));
    let (expected, found) = (expected?, found?);
    ensure!(expected.0 == found.0, "{what}: other dirty rows");
    compared += same(&found.1, &expected.1, &format!("{what}, packed"))?;
    Ok(compared)
}

/// One batch for all: step 2 has duplicates, step 4 a key that most positions name.
fn give(
    sides: &mut [Side],
    numbers: &mut Numbers,
    keys: &[u64],
    (count, dim, step): (usize, usize, u32),
) -> Result<()> {
    let chosen: Vec<u64> = (0..count)
        .map(|i| match step {
            1 => keys[i],
            4 if numbers.below(4) > 0 => keys[7],
            _ => keys[numbers.below(keys.len())],
        })
        .collect();
    let mut gradients: Vec<f32> = (0..count * dim).map(|_| numbers.float()).collect();
    for _ in 0..count / 50 {
        gradients[numbers.below(count * dim)] = [f32::NAN, f32::NEG_INFINITY][numbers.below(2)];
    }
    let counts: Vec<u32> = (0..count).map(|_| (numbers.next() >> 44) as u32).collect();
    for side in sides {
        let table = side.table.as_mut();
        table.write(TRAIN, side.keys, 0, Values::Keys(&chosen))?;
        table.write(TRAIN, side.floats, 0, Values::Floats(&gradients))?;
        table.write(TRAIN, side.counts, 0, Values::Words(&counts))?;
        let gradients = Gradients {
            keys: side.keys,
            values: side.floats,
            count,
            shows: Some(side.counts),
            clicks: Some(side.counts),
            lr: 0.05,
            step,
        };
        table.accumulate(TRAIN, Index::First, gradients)?;
        table.wait(TRAIN)?;
    }
    Ok(())
}

fn pack(side: &mut Side, rows: usize, width: usize) -> Result<(Vec<u32>, Vec<f32>)> {
    let table = side.table.as_mut();
    let places: Vec<u32> = (0..u32::try_from(rows)?).collect();
    table.write(TRAIN, side.rows, 0, Values::Words(&places))?;
    table.pack(TRAIN, side.rows, rows, side.packed, side.positions)?;
    let found = table.packed(TRAIN)?;
    let (mut positions, mut values) = (vec![0; found], vec![0.0; found * width]);
    table.read(TRAIN, side.positions, 0, ValuesMut::Words(&mut positions))?;
    table.read(TRAIN, side.packed, 0, ValuesMut::Floats(&mut values))?;
    Ok((positions, values))
}

fn same(found: &[f32], expected: &[f32], what: &str) -> Result<usize> {
    ensure!(
        found.len() == expected.len(),
        "{what}: another number of values"
    );
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        let equal = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        ensure!(equal, "{what}: value {i} is {a:?}, expected {b:?}");
    }
    Ok(found.len())
}

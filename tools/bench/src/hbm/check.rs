//! Does the device compute the bits of the table in plain Rust?
//!
//! All seven rules at several widths: rows placed, read back by either index, batches with duplicates, with keys
//! that are named hundreds and thousands of times, gradients that are not finite under each option, calls that are
//! refused, dirty rows packed, keys split by owner and gradients merged.

use anyhow::{Result, ensure};
use hps::hbm::{
    Buffer, Device, Gradients, HbmOptions, HbmTable, Index, Kind, Memory, Stream, Values,
    ValuesMut, open,
};
use hps::{Error, NonFinite, Optimizer, RowMetadata, TableDescriptor, mix64};

use super::{Numbers, say};

const TRAIN: Stream = Stream::Train;
const DIMS: [usize; 9] = [1, 8, 16, 17, 32, 64, 100, 128, 260];
const OPTIONS: [NonFinite; 3] = [NonFinite::Skip, NonFinite::Apply, NonFinite::Reject];
const ALL_OPTIONS: [usize; 3] = [8, 100, 128];
/// Under a sanitizer: a width for each shape of the kernels, two of them a rule, and rows so few that a call just has
/// long runs.
const TINY: ([usize; 5], usize) = ([8, 17, 64, 260, 8], 300);
/// Under a sanitizer, too, with one rule: rows so many that a call has a giant run.
const TINY_GIANT: (usize, usize) = (8, 3000);

/// Devices that keys are split among.
const PARTS: usize = 3;

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
    merged: Buffer,
    ends: Buffer,
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
            merged: take(Memory::Device, Kind::Floats, n * descriptor.dim)?,
            ends: take(Memory::Device, Kind::Keys, PARTS)?,
            table,
        })
    }

    fn rows_of(&mut self, index: Index, keys: &[u64], width: usize) -> Result<Vec<f32>> {
        let table = self.table.as_mut();
        table.write(TRAIN, self.keys, 0, Values::Keys(keys))?;
        table.get_rows(TRAIN, index, self.keys, keys.len(), self.packed)?;
        let mut values = vec![0.0; keys.len() * width];
        table.read(TRAIN, self.packed, 0, ValuesMut::Floats(&mut values))?;
        table.wait(TRAIN)?;
        Ok(values)
    }

    /// Accumulates a batch; if it was refused, for which position, and how many were.
    fn give(&mut self, batch: &Batch) -> Result<Option<(u32, u64)>> {
        let table = self.table.as_mut();
        table.write(TRAIN, self.keys, 0, Values::Keys(&batch.keys))?;
        table.write(TRAIN, self.floats, 0, Values::Floats(&batch.gradients))?;
        table.write(TRAIN, self.counts, 0, Values::Words(&batch.counts))?;
        let gradients = Gradients {
            keys: self.keys,
            values: self.floats,
            count: batch.keys.len(),
            shows: Some(self.counts),
            clicks: Some(self.counts),
            lr: 0.05,
            step: batch.step,
        };
        table.accumulate(TRAIN, Index::First, gradients)?;
        match table.wait(TRAIN) {
            Err(Error::RefusedCall {
                position,
                positions,
                ..
            }) => {
                table.forget_refusal(TRAIN)?;
                Ok(Some((position, positions)))
            }
            other => Ok(other.map(|()| None)?),
        }
    }
}

/// Compares; says how much.
///
/// # Errors
/// The first difference.
pub fn run(device: Device, tiny: bool) -> Result<()> {
    let mut values = 0;
    for (number, &rule) in Optimizer::ALL.iter().enumerate() {
        let (dims, rows) = match tiny {
            true => (&TINY.0[number % 4..number % 4 + 2], TINY.1),
            false => (&DIMS[..], 20_000),
        };
        for &dim in dims {
            for (option, &non_finite) in OPTIONS.iter().enumerate() {
                // Each option where lanes look at gradients themselves, and one of them elsewhere.
                if (!tiny && ALL_OPTIONS.contains(&dim)) || option == (number + dim) % OPTIONS.len()
                {
                    values += check(device, (rule, dim, rows), non_finite)?;
                }
            }
        }
    }
    if tiny {
        let (dim, rows) = TINY_GIANT;
        values += check(device, (Optimizer::Adagrad, dim, rows), NonFinite::Skip)?;
    }
    say(&format!(
        "hbm-check: {values} values equal to those of the table in plain Rust"
    ))
}

fn check(
    device: Device,
    (rule, dim, rows): (Optimizer, usize, usize),
    non_finite: NonFinite,
) -> Result<usize> {
    let mut numbers = Numbers((rows + dim) as u64);
    let mut descriptor = TableDescriptor::new("t", dim);
    let mut metadata = RowMetadata::default();
    let shows = dim.count_ones() % 2 == 1;
    (metadata.show, metadata.click) = (shows, shows);
    (metadata.count, metadata.last_step) = (true, true);
    (descriptor.optimizer, descriptor.metadata) = (rule, metadata);
    let width = dim + rule.state_f32s(dim) + if shows { 4 } else { 2 };
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
    for (step, count) in [(1u32, rows), (2, n), (3, 33), (4, n), (5, n)] {
        let mut batch = Batch::draw(&mut numbers, &keys, (count, dim, step));
        let step = format!("{what}, step {step}");
        if non_finite == NonFinite::Reject {
            let [expected, found] = [0, 1].map(|side: usize| sides[side].give(&batch));
            // A device tells of any of the positions.
            let [expected, found] = [expected?, found?].map(|told| told.map(|(_, count)| count));
            ensure!(expected.is_some() && expected == found, "{step}: {found:?}");
            compared += compare(&mut sides, Index::First, &keys, width, &step)?;
            let bad = batch.gradients.iter_mut().filter(|x| !x.is_finite());
            bad.for_each(|value| *value = 0.5);
        }
        for side in &mut sides {
            let refused = side.give(&batch)?;
            ensure!(refused.is_none(), "{step}: refused at {refused:?}");
        }
        compared += compare(&mut sides, Index::First, &keys, width, &step)?;
    }
    let mut missing = Batch::draw(&mut numbers, &keys, (33, dim, 6));
    missing.gradients.fill(1.0);
    missing.keys[20] = mix64(rows as u64).wrapping_sub(1);
    for side in &mut sides {
        let refused = side.give(&missing)?;
        ensure!(
            refused == Some((20, 1)),
            "{what}: a missing key at 20 is refused at {refused:?}"
        );
    }
    compared += compare(
        &mut sides,
        Index::First,
        &keys,
        width,
        &format!("{what}, a missing key"),
    )?;
    let [expected, found] = [0, 1].map(|side: usize| split_and_merge(&mut sides[side], &keys, dim));
    let (expected, found) = (expected?, found?);
    ensure!(
        expected.0 == found.0 && expected.1 == found.1,
        "{what}: keys are split otherwise"
    );
    compared += 2 * keys.len() + same(&found.2, &expected.2, &format!("{what}, merged"))?;
    for side in &mut sides {
        let table = side.table.as_mut();
        let mut turned = places.clone();
        turned.rotate_left(rows / 3);
        table.clear(TRAIN, Index::Second)?;
        table.write(TRAIN, side.keys, 0, Values::Keys(&keys))?;
        table.write(TRAIN, side.rows, 0, Values::Words(&turned))?;
        table.insert(
            TRAIN,
            Index::Second,
            (side.keys, side.rows, rows),
            side.failed,
        )?;
    }
    compared += compare(
        &mut sides,
        Index::Second,
        &keys,
        width,
        &format!("{what}, second index"),
    )?;
    let [expected, found] = [0, 1].map(|side: usize| pack(&mut sides[side], rows, width));
    let (expected, found) = (expected?, found?);
    ensure!(expected.0 == found.0, "{what}: other dirty rows");
    let [expected_stats, found_stats] = [0, 1].map(|side: usize| sides[side].table.stats());
    let skipped = [expected_stats?.skipped, found_stats?.skipped];
    ensure!(skipped[0] == skipped[1], "{what}: left out: {skipped:?}");
    compared += same(&found.1, &expected.1, &format!("{what}, packed"))?;
    Ok(compared)
}

fn compare(
    sides: &mut [Side; 2],
    index: Index,
    keys: &[u64],
    width: usize,
    what: &str,
) -> Result<usize> {
    let [expected, found] = [0, 1].map(|side: usize| sides[side].rows_of(index, keys, width));
    same(&found?, &expected?, what)
}

struct Batch {
    keys: Vec<u64>,
    gradients: Vec<f32>,
    counts: Vec<u32>,
    step: u32,
}

impl Batch {
    /// Step 1 names each key once; step 4 one key most often, step 5 a few keys about 256 times each; the others have
    /// duplicates. A gradient of 50 has a value that is not finite.
    fn draw(numbers: &mut Numbers, keys: &[u64], (count, dim, step): (usize, usize, u32)) -> Batch {
        let few = (keys.len() / 128).max(1);
        let chosen = (0..count).map(|i| match step {
            1 => keys[i],
            4 if numbers.below(4) > 0 => keys[7],
            5 => keys[numbers.below(few)],
            _ => keys[numbers.below(keys.len())],
        });
        let keys = chosen.collect();
        let mut gradients: Vec<f32> = (0..count * dim).map(|_| numbers.float()).collect();
        for _ in 0..count.div_ceil(50) {
            gradients[numbers.below(count * dim)] = [f32::NAN, f32::NEG_INFINITY][numbers.below(2)];
        }
        Batch {
            keys,
            gradients,
            counts: (0..count).map(|_| (numbers.next() >> 44) as u32).collect(),
            step,
        }
    }
}

/// Keys by owner, where each owner's end, and gradients that lie as they do put into the caller's order.
fn split_and_merge(
    side: &mut Side,
    keys: &[u64],
    dim: usize,
) -> Result<(Vec<u64>, Vec<u64>, Vec<f32>)> {
    let (table, n) = (side.table.as_mut(), keys.len());
    let values: Vec<f32> = (0..n * dim).map(|i| i as f32).collect();
    table.write(TRAIN, side.keys, 0, Values::Keys(keys))?;
    table.write(TRAIN, side.floats, 0, Values::Floats(&values))?;
    let to = (side.failed, side.positions, side.ends);
    table.split(TRAIN, (side.keys, n, PARTS), to)?;
    table.merge(TRAIN, side.positions, (side.floats, side.merged), (n, dim))?;
    let (mut owned, mut ends) = (vec![0; n], vec![0; PARTS]);
    let mut merged = vec![0.0; n * dim];
    table.read(TRAIN, side.failed, 0, ValuesMut::Keys(&mut owned))?;
    table.read(TRAIN, side.ends, 0, ValuesMut::Keys(&mut ends))?;
    table.read(TRAIN, side.merged, 0, ValuesMut::Floats(&mut merged))?;
    table.wait(TRAIN)?;
    Ok((owned, ends, merged))
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

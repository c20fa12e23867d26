//! A device whose calls fail: each once, from one on, or for lack of memory. What failed is given again, and
//! the rows are then those of a device that never failed.
//!
//! Needs the feature `emu` (g++).

#![expect(
    clippy::unwrap_used,
    reason = "a test fails where something goes wrong"
)]

#[path = "common/hbm_inputs.rs"]
#[expect(dead_code, reason = "tests of other calls use the rest")]
mod hbm_inputs;
#[path = "common/hbm_pair.rs"]
#[expect(dead_code, reason = "tests of other calls use the rest")]
mod hbm_pair;
#[path = "common/rng.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod rng;

use hbm_inputs::floats;
use hbm_pair::{Batch, Driven, TRAIN, assert_same_bits, options, row_f32s};
use hps::hbm::{
    Device, Faults, HbmOptions, Index, Kind, Memory, Stream, Values, ValuesMut, footprint, open,
    open_with_faults,
};
use hps::{Error, NonFinite, Optimizer, Result, RowMetadata, TableDescriptor, mix64};
use rng::Rng;

const ROWS: usize = 24;
const SEED: u64 = 5;

fn descriptor() -> TableDescriptor {
    let metadata = RowMetadata::new().show(true).count(true);
    TableDescriptor::new("t", 6)
        .optimizer(Optimizer::Momentum)
        .metadata(metadata)
}

fn table_options() -> HbmOptions {
    // Rows go through staging memory in several parts.
    let row_bytes = 4 * row_f32s(&descriptor());
    options(ROWS)
        .batch_keys_max(512)
        .staging_bytes(10 * row_bytes)
}

/// What the calls answered.
#[derive(Default)]
struct Seen {
    rows: Vec<Vec<f32>>,
    places: Vec<Vec<u32>>,
    errors: Vec<Error>,
}

impl Seen {
    /// Calls until there is an answer: a fault comes once. With a device that is lost, once.
    fn again<T>(&mut self, mut call: impl FnMut() -> Result<T>) -> Option<T> {
        for _ in 0..2 {
            match call() {
                Ok(answer) => return Some(answer),
                Err(error) => self.errors.push(error),
            }
        }
        None
    }

    /// [`Seen::again`], for a call whose answer is rows.
    fn rows(&mut self, call: impl FnMut() -> Result<Vec<f32>>) {
        let rows = self.again(call);
        self.rows.extend(rows);
    }
}

fn batch(rng: &mut Rng, keys: Vec<u64>) -> Batch {
    Batch {
        gradients: floats(rng, keys.len() * 6),
        shows: vec![3; keys.len()],
        clicks: vec![1; keys.len()],
        lr: 0.1,
        step: 4,
        keys,
    }
}

/// Every kind of call; the same whatever fails.
fn script(driven: &mut Driven, seen: &mut Seen) {
    let mut rng = Rng(1);
    let keys: Vec<u64> = (0..ROWS as u64).map(|i| mix64(i).wrapping_sub(1)).collect();
    let numbers: Vec<u32> = (0..u32::try_from(ROWS).unwrap()).rev().collect();
    let width = driven.row_f32s;
    let values = floats(&mut rng, ROWS * width);
    seen.again(|| driven.insert(Index::First, &keys, &numbers));
    seen.again(|| driven.place(&numbers, &values));
    // A key that is named so often that thread blocks sum it, then a few.
    let mut many = vec![keys[3]; 260];
    many.extend((0..40).map(|_| keys[rng.below(ROWS)]));
    for named in [many, keys[..9].to_vec()] {
        let given = batch(&mut rng, named);
        seen.again(|| driven.accumulate(Index::First, &given));
        seen.again(|| give_pack(driven, &numbers));
        // The rows are clean now: only the answer is asked for again.
        if let Some((places, rows)) = seen.again(|| packed(driven)) {
            seen.places.push(places);
            seen.rows.push(rows);
        }
    }
    // The next index is built on the other stream.
    let other = Stream::Transfer;
    let (buffer, rows, failed) = (driven.keys, driven.rows, driven.failed);
    let table = driven.table.as_mut();
    seen.again(|| table.order(TRAIN, other));
    seen.again(|| table.clear(other, Index::Second));
    seen.again(|| table.write(other, buffer, 0, Values::Keys(&keys[..12])));
    seen.again(|| table.write(other, rows, 0, Values::Words(&numbers[..12])));
    seen.again(|| table.insert(other, Index::Second, (buffer, rows, 12), failed));
    seen.again(|| table.order(other, TRAIN));
    let given = batch(&mut rng, keys[..12].to_vec());
    seen.again(|| driven.accumulate(Index::Second, &given));
    seen.rows(|| driven.get(Index::Second, &keys[..12]));
    seen.rows(|| recorded(driven));
    seen.rows(|| driven.get_rows(Index::First, &keys));
    seen.again(|| driven.table.stats());
}

fn give_pack(driven: &mut Driven, numbers: &[u32]) -> Result<()> {
    let (rows, to, at) = (driven.rows, driven.packed, driven.positions);
    let table = driven.table.as_mut();
    table.write(TRAIN, rows, 0, Values::Words(numbers))?;
    table.pack(TRAIN, rows, numbers.len(), to, at)
}

fn packed(driven: &mut Driven) -> Result<(Vec<u32>, Vec<f32>)> {
    let (from, at) = (driven.packed, driven.positions);
    let table = driven.table.as_mut();
    let found = table.packed(TRAIN)?;
    let (mut places, mut rows) = (vec![0; found], vec![0.0; found * driven.row_f32s]);
    table.read(TRAIN, at, 0, ValuesMut::Words(&mut places))?;
    table.read(TRAIN, from, 0, ValuesMut::Floats(&mut rows))?;
    Ok((places, rows))
}

/// A get that is recorded and replayed: of the keys that lie in the buffer.
fn recorded(driven: &mut Driven) -> Result<Vec<f32>> {
    let (keys, out) = (driven.keys, driven.floats);
    let graph = driven
        .table
        .record_get(TRAIN, Index::Second, keys, 12, out)?;
    driven.table.replay(TRAIN, graph)?;
    let mut values = vec![0.0; 12 * driven.dim];
    let to = ValuesMut::Floats(&mut values);
    driven.table.read(TRAIN, out, 0, to)?;
    Ok(values)
}

/// The whole script on a device with faults.
fn run(faults: Faults) -> Seen {
    let mut seen = Seen::default();
    let opened = open_with_faults((SEED, faults), &descriptor(), &table_options());
    let driven = opened.and_then(|table| Driven::new(table, &descriptor(), 300));
    match driven {
        Ok(mut driven) => script(&mut driven, &mut seen),
        Err(error) => seen.errors.push(error),
    }
    seen
}

fn expected() -> Seen {
    let mut seen = Seen::default();
    let table = open(Device::Cpu, &descriptor(), &table_options()).unwrap();
    let mut driven = Driven::new(table, &descriptor(), 300).unwrap();
    script(&mut driven, &mut seen);
    assert!(seen.errors.is_empty());
    seen
}

fn assert_told(error: &Error, why: &str) {
    assert!(matches!(error, Error::Device { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("emulator") && text.contains(why), "{text}");
}

#[test]
fn every_call_of_the_device_fails_once_and_is_given_again() {
    let expected = expected();
    let mut met = 0;
    for call in 1.. {
        let seen = run(Faults::default().fail_at(call));
        let [error] = &seen.errors[..] else {
            assert!(seen.errors.is_empty(), "call {call}: {:?}", seen.errors);
            break;
        };
        assert_told(error, "a fault that was asked for");
        met += 1;
        if seen.rows.is_empty() {
            // It was not opened.
            continue;
        }
        assert_eq!(seen.places, expected.places, "call {call}: {error}");
        assert_eq!(seen.rows.len(), expected.rows.len(), "call {call}: {error}");
        for (found, expected) in seen.rows.iter().zip(&expected.rows) {
            assert_same_bits(found, expected, &format!("call {call}: {error}"));
        }
    }
    assert!(met > 100, "{met} calls");
}

#[test]
fn a_device_that_is_lost_says_so_ever_after() {
    let whole = run(Faults::default());
    assert!(whole.errors.is_empty());
    let mut lost = 0;
    for call in 1.. {
        let seen = run(Faults::default().lost_at(call));
        if seen.errors.is_empty() {
            break;
        }
        seen.errors
            .iter()
            .for_each(|error| assert_told(error, "the device was lost"));
        lost += 1;
        // What was read before is right.
        for (found, expected) in seen.rows.iter().zip(&whole.rows) {
            assert_same_bits(found, expected, &format!("lost at call {call}"));
        }
    }
    assert!(lost > 100, "{lost} calls");
}

#[test]
fn device_and_pinned_memory_are_refused_by_name() {
    let needed = footprint(&descriptor(), &table_options()).unwrap().total();
    let opened = |device: u64, pinned: u64| {
        let faults = Faults::default().memory(device, pinned);
        open_with_faults((SEED, faults), &descriptor(), &table_options())
    };
    // Less than is stated: nothing is taken.
    for device in [0, 1, needed - 1] {
        let Err(Error::DeviceMemory {
            what,
            asked_bytes,
            free_bytes,
            ..
        }) = opened(device, 0)
        else {
            unreachable!("{device} bytes");
        };
        assert_eq!(what, "rows and indexes");
        assert_eq!((asked_bytes, free_bytes), (needed, Some(device)));
    }
    // What is stated suffices; then the caller's buffers are refused, and the table goes on.
    let mut table = opened(needed, 100).unwrap();
    for (memory, kind, count) in [
        (Memory::Device, Kind::Keys, 1 << 20),
        (Memory::Pinned, Kind::Words, 26),
        (Memory::Pinned, Kind::Floats, usize::MAX),
    ] {
        let error = table.allocate(memory, kind, count).unwrap_err();
        assert!(matches!(error, Error::DeviceMemory { .. }), "{error}");
        let pinned = error.to_string().contains("pinned");
        assert_eq!(pinned, memory == Memory::Pinned, "{error}");
    }
    table.allocate(Memory::Pinned, Kind::Words, 25).unwrap();
    assert_eq!(table.stats().unwrap().buffer_bytes, 100);
    table.wait(TRAIN).unwrap();
}

/// What is taken is no more than what is stated.
#[test]
fn the_footprint_is_what_is_taken() {
    for (rows, dim, keys) in [(1, 1, 1), (300, 17, 700), (5000, 64, 4096)] {
        let descriptor = TableDescriptor::new("t", dim);
        let options = HbmOptions::new(rows)
            .batch_keys_max(keys)
            .staging_bytes(1 << 12)
            .non_finite(NonFinite::Skip);
        let stated = footprint(&descriptor, &options).unwrap();
        let faults = Faults::default().memory(stated.total(), 0);
        let table = open_with_faults((SEED, faults), &descriptor, &options).unwrap();
        let free = table.info().unwrap().free_bytes;
        assert!(
            free < 256 * 16,
            "{rows} rows: {free} of {stated:?} bytes were not taken"
        );
        let row_bytes = (4 * row_f32s(&descriptor) as u64).next_multiple_of(16) + 64;
        let fixed = stated.scratch + 3 * 16 * 8;
        assert!(
            stated.total() <= rows as u64 * row_bytes + fixed,
            "{stated:?}"
        );
    }
}

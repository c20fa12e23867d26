//! Keys split among the devices that own them, and rows merged again, against a twin of a few lines.
//!
//! On the table in plain Rust; with the feature `emu` also on the emulator of the kernels.

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

use hbm_inputs::devices;
use hbm_pair::{Batch, Driven, TRAIN, assert_same_bits, options, row_f32s};
use hps::hbm::{Buffer, Device, HbmTable, Index, Kind, Memory, Values, ValuesMut, open};
use hps::{Error, Optimizer, TableDescriptor, mix64, part_range};
use rng::Rng;

/// Where the calls run, under schedules of several seeds.
fn words(count: usize) -> u32 {
    u32::try_from(count).unwrap()
}

/// What a split must answer: keys, positions, ends.
fn twin(keys: &[u64], parts: usize) -> (Vec<u64>, Vec<u32>, Vec<u64>) {
    let (mut out, mut positions, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for part in 0..parts {
        let owned = part_range(part, parts);
        for (key, position) in keys.iter().zip(0..) {
            if owned.contains(&mix64(*key)) {
                out.push(*key);
                positions.push(position);
            }
        }
        ends.push(out.len() as u64);
    }
    (out, positions, ends)
}

/// A table with buffers for splits of up to `n` keys.
struct Splitter {
    table: Box<dyn HbmTable>,
    keys: Buffer,
    out: Buffer,
    positions: Buffer,
    ends: Buffer,
    from: Buffer,
    to: Buffer,
}

/// f32s of the widest row that is merged.
const WIDTH_MAX: usize = 37;
/// What lies in outputs before.
const UNTOUCHED: u64 = 0x5555_5555_5555_5555;

impl Splitter {
    fn new(device: Device, n: usize) -> Splitter {
        let descriptor = TableDescriptor::new("t", 4);
        let mut table = open(device, &descriptor, &options(8).batch_keys_max(n)).unwrap();
        let mut take = |kind, count| table.allocate(Memory::Device, kind, count).unwrap();
        Splitter {
            keys: take(Kind::Keys, n),
            out: take(Kind::Keys, n + 1),
            positions: take(Kind::Words, n + 1),
            ends: take(Kind::Keys, 257),
            from: take(Kind::Floats, n * WIDTH_MAX),
            to: take(Kind::Floats, n * WIDTH_MAX),
            table,
        }
    }

    /// The answer, and one value behind each part of it, which no split may touch.
    fn split(&mut self, keys: &[u64], parts: usize) -> (Vec<u64>, Vec<u32>, Vec<u64>) {
        let table = self.table.as_mut();
        let n = keys.len();
        let untouched = [UNTOUCHED];
        table
            .write(TRAIN, self.keys, 0, Values::Keys(keys))
            .unwrap();
        for (buffer, at) in [(self.out, n), (self.ends, parts)] {
            table
                .write(TRAIN, buffer, at, Values::Keys(&untouched))
                .unwrap();
        }
        let word = Values::Words(&[0x5555_5555]);
        table.write(TRAIN, self.positions, n, word).unwrap();
        let outputs = (self.out, self.positions, self.ends);
        table.split(TRAIN, (self.keys, n, parts), outputs).unwrap();
        let (mut out, mut ends) = (vec![0; n + 1], vec![0; parts + 1]);
        let mut positions = vec![0; n + 1];
        for (buffer, values) in [(self.out, &mut out), (self.ends, &mut ends)] {
            table
                .read(TRAIN, buffer, 0, ValuesMut::Keys(values))
                .unwrap();
        }
        let values = ValuesMut::Words(&mut positions);
        table.read(TRAIN, self.positions, 0, values).unwrap();
        table.wait(TRAIN).unwrap();
        (out, positions, ends)
    }

    /// Rows in the order of the last split become rows in the caller's order.
    fn merge(&mut self, rows: &[f32], width: usize) -> Vec<f32> {
        let table = self.table.as_mut();
        let count = rows.len() / width;
        table
            .write(TRAIN, self.from, 0, Values::Floats(rows))
            .unwrap();
        let size = (count, width);
        table
            .merge(TRAIN, self.positions, (self.from, self.to), size)
            .unwrap();
        let mut out = vec![0.0; rows.len()];
        table
            .read(TRAIN, self.to, 0, ValuesMut::Floats(&mut out))
            .unwrap();
        table.wait(TRAIN).unwrap();
        out
    }
}

fn check(splitter: &mut Splitter, keys: &[u64], parts: usize, width: usize, what: &str) {
    let (mut out, mut positions, mut ends) = splitter.split(keys, parts);
    let behind = (out.pop(), positions.pop(), ends.pop());
    let untouched = (Some(UNTOUCHED), Some(0x5555_5555), Some(UNTOUCHED));
    assert_eq!(behind, untouched, "{what}: behind the outputs");
    let expected = twin(keys, parts);
    assert!(
        (&out, &positions, &ends) == (&expected.0, &expected.1, &expected.2),
        "{what}"
    );
    // Row i of the caller is (i, i + 1, ...): back in its place after the merge.
    let row = |i: u32| (0..width).map(move |c| (i as usize + c) as f32);
    let split: Vec<f32> = positions.iter().flat_map(|i| row(*i)).collect();
    let merged = splitter.merge(&split, width);
    let expected: Vec<f32> = (0..words(keys.len())).flat_map(row).collect();
    assert_same_bits(&merged, &expected, what);
}

#[test]
fn keys_go_to_their_owners_in_the_callers_order_and_rows_come_back() {
    let n_max = 9000;
    for device in devices(0..3) {
        let mut splitter = Splitter::new(device, n_max);
        let mut rng = Rng(7);
        for parts in [1, 2, 3, 8] {
            for n in [0, 1, 31, 32, 33, 255, 257, 4095, 4096, 4097, n_max] {
                let width = [1, 4, 5, 32, WIDTH_MAX][rng.below(5)];
                let few = [2, 50, usize::MAX][rng.below(3)];
                let keys: Vec<u64> = (0..n).map(|_| mix64(rng.below(few) as u64)).collect();
                let what = format!("{device:?}, {n} of {few} keys, {parts} parts, width {width}");
                check(&mut splitter, &keys, parts, width, &what);
            }
        }
    }
}

#[test]
fn any_key_and_any_number_of_parts_up_to_256_are_split() {
    for device in devices(0..2) {
        let mut splitter = Splitter::new(device, 600);
        let bounds = (0..256).flat_map(|part| {
            let owned = part_range(part, 256);
            [*owned.start(), *owned.end()]
        });
        let bounds: Vec<u64> = bounds.map(hps::unmix64).collect();
        let extremes = [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, u64::MAX];
        for parts in [1, 2, 3, 7, 8, 255, 256] {
            let what = format!("{device:?}, {parts} parts");
            check(&mut splitter, &bounds, parts, 1, &what);
            check(&mut splitter, &extremes, parts, 1, &what);
            check(&mut splitter, &[u64::MAX; 600], parts, 1, &what);
        }
    }
}

#[test]
fn parts_and_lengths_out_of_range_are_refused_by_name() {
    for device in devices(0..1) {
        let mut splitter = Splitter::new(device, 64);
        let Splitter {
            keys,
            out,
            positions,
            ends,
            from,
            to,
            ..
        } = splitter;
        let table = splitter.table.as_mut();
        let mut refused = |keys, outputs, what: &str| {
            let error = table.split(TRAIN, keys, outputs).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
            assert!(error.to_string().contains(what), "{what}: {error}");
        };
        let outputs = (out, positions, ends);
        refused((keys, 64, 0), outputs, "parts");
        refused((keys, 64, 257), outputs, "parts");
        refused((keys, 65, 2), outputs, "batch_keys_max");
        refused((positions, 64, 2), outputs, "keys");
        refused((keys, 64, 2), (keys, positions, ends), "buffer of its own");
        refused((keys, 64, 2), (out, positions, out), "buffer of its own");
        refused((keys, 64, 2), (out, keys, ends), "positions");
        let error = table
            .merge(TRAIN, positions, (from, from), (64, 1))
            .unwrap_err();
        assert!(error.to_string().contains("buffer of its own"), "{error}");
        let error = table
            .merge(TRAIN, positions, (from, to), (64, usize::MAX))
            .unwrap_err();
        assert!(error.to_string().contains("from"), "{error}");
        table.wait(TRAIN).unwrap();
    }
}

#[test]
fn a_merge_after_a_refused_split_writes_nothing() {
    for device in devices(0..2) {
        let mut splitter = Splitter::new(device, 64);
        let Splitter {
            keys,
            out,
            positions,
            ends,
            from,
            to,
            ..
        } = splitter;
        let table = splitter.table.as_mut();
        let zeros = [0.0; 64];
        for buffer in [from, to] {
            table
                .write(TRAIN, buffer, 0, Values::Floats(&zeros))
                .unwrap();
        }
        table
            .write(TRAIN, positions, 0, Values::Words(&[u32::MAX; 64]))
            .unwrap();
        // Nothing was inserted: the get is refused, and the split behind it.
        table.get(TRAIN, Index::First, keys, 1, from).unwrap();
        table
            .split(TRAIN, (keys, 64, 2), (out, positions, ends))
            .unwrap();
        table.merge(TRAIN, positions, (from, to), (64, 1)).unwrap();
        let error = table.wait(TRAIN).unwrap_err();
        assert!(
            matches!(error, Error::RefusedCall { call: 1, .. }),
            "{error}"
        );
        table.forget_refusal(TRAIN).unwrap();
        // By itself it is refused for the position.
        table.merge(TRAIN, positions, (from, to), (64, 1)).unwrap();
        let error = table.wait(TRAIN).unwrap_err();
        let Error::RefusedCall {
            call,
            key,
            positions,
            ..
        } = error
        else {
            unreachable!("{error}");
        };
        assert_eq!((call, key, positions), (4, u64::from(u32::MAX), 64));
        table.forget_refusal(TRAIN).unwrap();
    }
}

/// The parts of a split's output, whose ends are given.
fn ranges_of(ends: &[u64]) -> Vec<std::ops::Range<usize>> {
    let mut start = 0;
    let ends = ends.iter().map(|end| usize::try_from(*end).unwrap());
    ends.map(|end| std::mem::replace(&mut start, end)..end)
        .collect()
}

/// A batch over several tables, each of which holds the keys of its part, is one over a single table.
#[test]
fn tables_of_several_devices_give_the_bits_of_one() {
    let dim = 8;
    let descriptor = TableDescriptor::new("t", dim).optimizer(Optimizer::Adagrad);
    let width = row_f32s(&descriptor);
    let keys: Vec<u64> = (0..300).map(|i| mix64(i).wrapping_sub(1)).collect();
    let values = |key: u64| (0..width).map(move |c| (mix64(key ^ c as u64) >> 40) as f32 / 1e7);
    let filled = |device, keys: &[u64]| {
        let table = open(device, &descriptor, &options(300)).unwrap();
        let mut driven = Driven::new(table, &descriptor, 1000).unwrap();
        let rows: Vec<u32> = (0..words(keys.len())).collect();
        driven.insert(Index::First, keys, &rows).unwrap();
        let all: Vec<f32> = keys.iter().flat_map(|key| values(*key)).collect();
        driven.place(&rows, &all).unwrap();
        driven
    };
    for (seed, device) in devices(0..2).into_iter().enumerate() {
        for parts in [1, 2, 3, 8] {
            let mut rng = Rng(seed as u64);
            let mut one = filled(Device::Cpu, &keys);
            let owned = twin(&keys, parts);
            let ranges = ranges_of(&owned.2);
            let mut tables: Vec<Driven> = ranges
                .into_iter()
                .map(|range| filled(device, &owned.0[range]))
                .collect();
            let mut splitter = Splitter::new(device, 1000);
            for step in 0..3 {
                let named: Vec<u64> = (0..700).map(|_| keys[rng.below(keys.len())]).collect();
                let gradient = |i: u32| {
                    (0..dim).map(move |c| {
                        (mix64(u64::from(i * 8 + step) + c as u64) >> 44) as f32 / 1e6
                    })
                };
                let whole = batch(&named, (0..700).flat_map(gradient).collect());
                one.accumulate(Index::First, &whole).unwrap();
                let expected = one.get(Index::First, &named).unwrap();
                let (mut out, mut positions, mut ends) = splitter.split(&named, parts);
                out.pop();
                positions.pop();
                ends.pop();
                let mut got = Vec::new();
                for (table, range) in tables.iter_mut().zip(ranges_of(&ends)) {
                    let own = &positions[range.clone()];
                    let gradients = own.iter().flat_map(|i| gradient(*i)).collect();
                    let part = batch(&out[range.clone()], gradients);
                    table.accumulate(Index::First, &part).unwrap();
                    got.extend(table.get(Index::First, &out[range]).unwrap());
                }
                let merged = splitter.merge(&got, dim);
                assert_same_bits(&merged, &expected, &format!("{device:?}, {parts} tables"));
            }
        }
    }
}

fn batch(keys: &[u64], gradients: Vec<f32>) -> Batch {
    Batch {
        gradients,
        shows: vec![0; keys.len()],
        clicks: vec![0; keys.len()],
        lr: 0.05,
        step: 1,
        keys: keys.to_vec(),
    }
}

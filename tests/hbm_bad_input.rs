//! What the calls of a table refuse, and what they bear: each device alike.
//!
//! On the table in plain Rust; with the feature `emu` also on the emulator of the kernels.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails where something goes wrong"
)]

#[path = "common/hbm_inputs.rs"]
mod hbm_inputs;
#[path = "common/hbm_pair.rs"]
mod hbm_pair;
#[path = "common/rng.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod rng;

use hbm_inputs::{devices, floats};
use hbm_pair::{Batch, Driven, TRAIN, assert_same_bits, options, row_f32s};
use hps::hbm::{
    Device, HbmOptions, Index, Kind, Memory, Stream, Values, ValuesMut, footprint, open,
};
use hps::{Error, NonFinite, Optimizer, RowMetadata, TableDescriptor, mix64};
use rng::Rng;

fn numbers(count: usize) -> Vec<u32> {
    (0..u32::try_from(count).unwrap()).collect()
}

fn batch(keys: &[u64], gradients: Vec<f32>) -> Batch {
    Batch {
        shows: vec![2; keys.len()],
        clicks: vec![1; keys.len()],
        lr: 0.05,
        step: 9,
        keys: keys.to_vec(),
        gradients,
    }
}

fn all_columns() -> RowMetadata {
    let some = RowMetadata::new().show(true).click(true);
    some.count(true).last_step(true)
}

/// A table with rows for these keys, whose values follow from the seed.
fn filled(
    device: Device,
    descriptor: &TableDescriptor,
    options: &HbmOptions,
    keys: &[u64],
    n: usize,
) -> Driven {
    let table = open(device, descriptor, options).unwrap();
    let mut driven = Driven::new(table, descriptor, n.max(keys.len())).unwrap();
    let rows = numbers(keys.len());
    driven.insert(Index::First, keys, &rows).unwrap();
    let count = keys.len() * row_f32s(descriptor);
    let mut values = floats(&mut Rng(3), count);
    values.iter_mut().for_each(|value| *value = value.abs());
    driven.place(&rows, &values).unwrap();
    driven.table.wait(TRAIN).unwrap();
    driven
}

fn keys_of(count: u64) -> Vec<u64> {
    (0..count).map(|i| mix64(i).wrapping_sub(1)).collect()
}

fn refused(driven: &mut Driven) -> (u64, u64, u64) {
    match driven.table.wait(TRAIN) {
        Err(Error::RefusedCall {
            call,
            key,
            positions,
            ..
        }) => (call, key, positions),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_narrowest_and_the_widest_row() {
    let keys = keys_of(5);
    for &rule in Optimizer::ALL {
        for dim in [1, 8192] {
            let descriptor = TableDescriptor::new("t", dim)
                .optimizer(rule)
                .metadata(all_columns());
            let width = row_f32s(&descriptor);
            let options = options(8).staging_bytes(4 * width);
            let mut rng = Rng(dim as u64);
            let named = [keys[3], keys[0], keys[3], keys[1], keys[3]];
            let given = batch(&named, floats(&mut rng, 5 * dim));
            let mut expected: Option<[Vec<f32>; 3]> = None;
            for device in devices(1..3) {
                let mut driven = filled(device, &descriptor, &options, &keys, 5);
                for _ in 0..2 {
                    driven.accumulate(Index::First, &given).unwrap();
                }
                let rows = driven.get_rows(Index::First, &keys).unwrap();
                let weights = driven.get(Index::First, &named).unwrap();
                let (places, packed) = driven.pack(&numbers(5)).unwrap();
                assert_eq!(places, [0, 1, 3], "{rule:?}, dim {dim}");
                let found = [rows, weights, packed];
                let expected = expected.get_or_insert_with(|| found.clone());
                for (found, expected) in found.iter().zip(expected) {
                    assert_same_bits(found, expected, &format!("{device:?}, {rule:?}, dim {dim}"));
                }
            }
        }
    }
    for (dim, device) in [0, 8193]
        .into_iter()
        .flat_map(|dim| devices(1..3).into_iter().map(move |device| (dim, device)))
    {
        let error = open(device, &TableDescriptor::new("t", dim), &options(8))
            .err()
            .unwrap();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        assert!(error.to_string().contains("dim"), "{error}");
    }
}

#[test]
fn a_batch_of_one_key_and_none() {
    let descriptor = TableDescriptor::new("t", 9).metadata(all_columns());
    let keys = keys_of(10);
    for n in [1, 2, 32, 255, 256, 257, 1000] {
        let given = batch(&vec![keys[4]; n], floats(&mut Rng(n as u64), n * 9));
        let mut expected: Option<Vec<f32>> = None;
        for device in devices(1..3) {
            let mut driven = filled(device, &descriptor, &options(10), &keys, n);
            driven.accumulate(Index::First, &given).unwrap();
            let rows = driven.get_rows(Index::First, &keys).unwrap();
            let expected = expected.get_or_insert_with(|| rows.clone());
            assert_same_bits(&rows, expected, &format!("{device:?}, {n} times one key"));
            assert_eq!(driven.pack(&numbers(10)).unwrap().0, [4], "{device:?}");
        }
    }
    for device in devices(1..3) {
        let mut driven = filled(device, &descriptor, &options(10), &keys, 10);
        let before = driven.get_rows(Index::First, &keys).unwrap();
        driven.insert(Index::Second, &[], &[]).unwrap();
        driven.place(&[], &[]).unwrap();
        driven
            .accumulate(Index::First, &batch(&[], Vec::new()))
            .unwrap();
        assert!(driven.get(Index::Second, &[]).unwrap().is_empty());
        assert!(driven.get_rows(Index::First, &[]).unwrap().is_empty());
        assert_eq!(driven.pack(&[]).unwrap(), (Vec::new(), Vec::new()));
        let (positions, from, to) = (driven.positions, driven.packed, driven.floats);
        driven
            .table
            .merge(TRAIN, positions, (from, to), (0, 9))
            .unwrap();
        driven.table.copy(TRAIN, from, to, 0).unwrap();
        let graph = driven
            .table
            .record_get(TRAIN, Index::First, driven.keys, 0, to)
            .unwrap();
        driven.table.replay(TRAIN, graph).unwrap();
        driven.table.wait(TRAIN).unwrap();
        let after = driven.get_rows(Index::First, &keys).unwrap();
        assert_same_bits(&after, &before, &format!("{device:?}, empty batches"));
    }
}

/// Skip leaves positions out, Apply sums them, Reject refuses the call and all later ones of the stream.
#[test]
fn gradients_that_are_not_finite_under_each_option() {
    let keys = keys_of(40);
    let mut rng = Rng(11);
    for (rule, dim) in [(Optimizer::Adagrad, 8), (Optimizer::RowwiseAdagrad, 70)] {
        let descriptor = TableDescriptor::new("t", dim)
            .optimizer(rule)
            .metadata(all_columns());
        // Key 7 has no position left, key 8 one of two, key 9 a run of 300 with some left out.
        let mut named = vec![keys[7], keys[8], keys[8]];
        named.extend([keys[9]; 300]);
        let mut given = batch(&named, floats(&mut rng, named.len() * dim));
        let bad = [0, 2, 3, 4, 130, 302];
        for (at, value) in bad
            .into_iter()
            .zip([f32::NAN, f32::INFINITY, f32::NEG_INFINITY].iter().cycle())
        {
            given.gradients[at * dim + at % dim] = *value;
        }
        for non_finite in [NonFinite::Skip, NonFinite::Apply, NonFinite::Reject] {
            let options = options(40).non_finite(non_finite);
            let mut expected: Option<Vec<f32>> = None;
            for device in devices(1..3) {
                let what = format!("{device:?}, {rule:?}, {non_finite:?}");
                let mut driven = filled(device, &descriptor, &options, &keys, 400);
                let before = driven.get_rows(Index::First, &keys).unwrap();
                driven.accumulate(Index::First, &given).unwrap();
                if non_finite == NonFinite::Reject {
                    check_rejected(&mut driven, &keys, &before, &named, &bad, &what);
                    continue;
                }
                let rows = driven.get_rows(Index::First, &keys).unwrap();
                let width = driven.row_f32s;
                let row = |rows: &[f32], key: usize| rows[key * width..][..width].to_vec();
                let skips = non_finite == NonFinite::Skip;
                assert_eq!(
                    row(&rows, 7) == row(&before, 7),
                    skips,
                    "{what}: none is left"
                );
                assert_ne!(row(&rows, 8), row(&before, 8), "{what}: one is left");
                assert_eq!(rows.iter().any(|x| x.is_nan()), !skips, "{what}");
                let skipped = driven.table.stats().unwrap().skipped;
                assert_eq!(skipped, if skips { 6 } else { 0 }, "{what}");
                let dirty = if skips { vec![8, 9] } else { vec![7, 8, 9] };
                assert_eq!(driven.pack(&numbers(40)).unwrap().0, dirty, "{what}");
                let expected = expected.get_or_insert_with(|| rows.clone());
                assert_same_bits(&rows, expected, &what);
            }
        }
    }
}

fn check_rejected(
    driven: &mut Driven,
    keys: &[u64],
    before: &[f32],
    named: &[u64],
    bad: &[usize],
    what: &str,
) {
    let (call, key, positions) = refused(driven);
    assert_eq!(positions, bad.len() as u64, "{what}");
    assert!(bad.iter().any(|at| named[*at] == key), "{what}: key {key}");
    // A call that nothing is wrong with changes nothing either.
    let fine = batch(&keys[..1], vec![1.0; driven.dim]);
    driven.accumulate(Index::First, &fine).unwrap();
    driven.place(&[0], &vec![5.0; driven.row_f32s]).unwrap();
    let again = refused(driven);
    assert_eq!(
        again,
        (call, key, positions),
        "{what}: the first refusal stands"
    );
    driven.table.forget_refusal(TRAIN).unwrap();
    let rows = driven.get_rows(Index::First, keys).unwrap();
    assert_same_bits(&rows, before, what);
    assert!(driven.pack(&numbers(40)).unwrap().0.is_empty(), "{what}");
    driven.accumulate(Index::First, &fine).unwrap();
    driven.table.wait(TRAIN).unwrap();
    assert_eq!(driven.pack(&numbers(40)).unwrap().0, [0], "{what}");
}

#[test]
fn keys_that_are_not_there_refuse_the_call_by_name() {
    let descriptor = TableDescriptor::new("t", 4);
    let keys = keys_of(30);
    for device in devices(1..3) {
        let mut driven = filled(device, &descriptor, &options(30), &keys[..29], 40);
        let before = driven.get_rows(Index::First, &keys[..29]).unwrap();
        let mut named = keys[..20].to_vec();
        named.push(keys[29]);
        let given = batch(&named, vec![1.0; 4 * named.len()]);
        driven.accumulate(Index::First, &given).unwrap();
        let (_, key, positions) = refused(&mut driven);
        assert_eq!((key, positions), (keys[29], 1), "{device:?}");
        driven.table.forget_refusal(TRAIN).unwrap();
        // A call that was recorded before one that is refused does nothing, either.
        let (from, out) = (driven.keys, driven.floats);
        let graph = driven
            .table
            .record_get(TRAIN, Index::First, from, 1, out)
            .unwrap();
        driven
            .table
            .write(TRAIN, out, 0, Values::Floats(&[9.0; 4]))
            .unwrap();
        driven
            .table
            .get(TRAIN, Index::Second, from, 1, driven.packed)
            .unwrap();
        driven
            .table
            .write(TRAIN, from, 0, Values::Keys(&keys[..1]))
            .unwrap();
        driven.table.replay(TRAIN, graph).unwrap();
        let mut found = [0.0; 4];
        driven
            .table
            .read(TRAIN, out, 0, ValuesMut::Floats(&mut found))
            .unwrap();
        assert_eq!(found, [9.0; 4], "{device:?}");
        driven.table.forget_refusal(TRAIN).unwrap();
        driven.table.replay(TRAIN, graph).unwrap();
        driven
            .table
            .read(TRAIN, out, 0, ValuesMut::Floats(&mut found))
            .unwrap();
        assert_same_bits(&found, &before[..4], &format!("{device:?}, replayed"));
        let error = driven.get(Index::Second, &[u64::MAX]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("18446744073709551615"), "{device:?}: {text}");
        driven.table.forget_refusal(TRAIN).unwrap();
        let after = driven.get_rows(Index::First, &keys[..29]).unwrap();
        assert_same_bits(&after, &before, &format!("{device:?}"));
    }
}

#[test]
fn more_keys_than_an_index_holds_and_rows_beyond_the_arena() {
    let descriptor = TableDescriptor::new("t", 4);
    for device in devices(1..3) {
        for rows_max in [1usize, 3, 50] {
            let keys = keys_of(40 + 4 * rows_max as u64);
            let mut driven = {
                let table = open(device, &descriptor, &options(rows_max)).unwrap();
                Driven::new(table, &descriptor, keys.len()).unwrap()
            };
            // Several keys share a row: there are more than the arena has.
            let rows: Vec<u32> = numbers(keys.len());
            let rows: Vec<u32> = rows
                .iter()
                .map(|row| row % u32::try_from(rows_max).unwrap())
                .collect();
            let (stored, failed) = driven.insert(Index::First, &keys, &rows).unwrap();
            let what = format!("{device:?}, {rows_max} rows");
            assert!(stored >= rows_max as u64, "{what}: {stored} keys");
            assert_eq!(stored + failed.len() as u64, keys.len() as u64, "{what}");
            for key in &keys {
                let found = driven.get(Index::First, &[*key]).is_ok();
                assert_eq!(
                    found,
                    failed.binary_search(key).is_err(),
                    "{what}, key {key}"
                );
                driven.table.forget_refusal(TRAIN).unwrap();
            }
            driven.table.clear(TRAIN, Index::First).unwrap();
            // The first row beyond the arena, and the number that stands for none.
            let beyond = [u32::try_from(rows_max).unwrap(), u32::MAX];
            let (stored, failed) = driven.insert(Index::First, &[5, 6], &beyond).unwrap();
            assert_eq!((stored, failed), (0, vec![5, 6]), "{what}");
            for number in beyond {
                driven
                    .place(&[0, number], &vec![1.0; 2 * driven.row_f32s])
                    .unwrap();
                let (_, row, positions) = refused(&mut driven);
                assert_eq!((row, positions), (u64::from(number), 1), "{what}: place");
                driven.table.forget_refusal(TRAIN).unwrap();
                let error = driven.pack(&[number, 0]).unwrap_err();
                assert!(
                    error.to_string().contains(&number.to_string()),
                    "{what}: {error}"
                );
                driven.table.forget_refusal(TRAIN).unwrap();
            }
        }
    }
}

/// A key that has another row already fails, and keeps the row that it has.
#[test]
fn a_key_keeps_its_first_row() {
    for device in devices(1..3) {
        let mut driven = filled(
            device,
            &TableDescriptor::new("t", 4),
            &options(9),
            &[u64::MAX, 0],
            9,
        );
        let before = driven.get_rows(Index::First, &[u64::MAX, 0]).unwrap();
        let (stored, failed) = driven
            .insert(Index::First, &[u64::MAX, 0, 0], &[5, 6, 1])
            .unwrap();
        assert_eq!((stored, failed), (2, vec![0, u64::MAX]), "{device:?}");
        let after = driven.get_rows(Index::First, &[u64::MAX, 0]).unwrap();
        assert_same_bits(&after, &before, &format!("{device:?}"));
    }
}

fn assert_invalid<T>(done: hps::Result<T>, named: &str) {
    let error = done.err().unwrap();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    assert!(error.to_string().contains(named), "{named}: {error}");
}

#[test]
fn buffers_and_counts_that_do_not_fit_are_refused_by_name() {
    let descriptor = TableDescriptor::new("t", 4).metadata(all_columns());
    for device in devices(1..3) {
        let mut driven = filled(
            device,
            &descriptor,
            &options(9).batch_keys_max(8),
            &[1, 2],
            9,
        );
        let Driven {
            keys,
            rows,
            failed,
            floats,
            packed,
            positions,
            ..
        } = driven;
        let table = driven.table.as_mut();
        let first = Index::First;
        assert_invalid(table.get(TRAIN, first, rows, 1, floats), "keys");
        assert_invalid(table.get(TRAIN, first, keys, 10, floats), "keys");
        assert_invalid(table.get(TRAIN, first, keys, 1, keys), "out");
        assert_invalid(table.get(TRAIN, first, keys, 1 << 32, floats), "2^32");
        assert_invalid(
            table.insert(TRAIN, first, (keys, rows, usize::MAX), failed),
            "2^32",
        );
        assert_invalid(
            table.insert(TRAIN, first, (keys, rows, 1), keys),
            "buffer of its own",
        );
        assert_invalid(table.place(TRAIN, rows, packed, 1 << 32), "2^32");
        assert_invalid(table.place(TRAIN, rows, keys, 1), "packed");
        assert_invalid(
            table.pack(TRAIN, rows, 9, packed, positions),
            "batch_keys_max",
        );
        assert_invalid(
            table.pack(TRAIN, rows, 8, packed, rows),
            "buffer of its own",
        );
        assert_invalid(table.copy(TRAIN, floats, floats, 1), "buffer of its own");
        assert_invalid(table.copy(TRAIN, floats, keys, 1), "to");
        assert_invalid(table.copy(TRAIN, floats, packed, usize::MAX), "from");
        assert_invalid(table.probe(TRAIN, keys, 1, true), "buffer");
        assert_invalid(
            table.write(TRAIN, keys, usize::MAX, Values::Keys(&[1])),
            "buffer",
        );
        assert_invalid(table.write(TRAIN, keys, 0, Values::Words(&[1])), "buffer");
        let mut gradients = hps::hbm::Gradients {
            keys,
            values: floats,
            count: 9,
            shows: Some(positions),
            clicks: None,
            lr: 0.1,
            step: 1,
        };
        assert_invalid(table.accumulate(TRAIN, first, gradients), "batch_keys_max");
        gradients.count = 8;
        gradients.shows = Some(keys);
        assert_invalid(table.accumulate(TRAIN, first, gradients), "shows");
        gradients.shows = None;
        gradients.lr = f32::NAN;
        assert_invalid(table.accumulate(TRAIN, first, gradients), "lr");
        // An index that another stream may be reading is not written.
        table.get(TRAIN, first, keys, 1, floats).unwrap();
        let other = Stream::Transfer;
        assert_invalid(table.clear(other, first), "order");
        table.order(TRAIN, other).unwrap();
        table.clear(other, first).unwrap();
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let descriptor = TableDescriptor::new("t", 4);
    let fine = HbmOptions::new(8);
    for (options, named) in [
        (HbmOptions::new(0), "rows_max"),
        (HbmOptions::new(u32::MAX as usize), "rows_max"),
        (HbmOptions::new(usize::MAX), "rows_max"),
        (fine.clone().batch_keys_max(0), "batch_keys_max"),
        (fine.clone().batch_keys_max((1 << 30) + 1), "batch_keys_max"),
        (fine.clone().staging_bytes(31), "staging_bytes"),
    ] {
        assert_invalid(footprint(&descriptor, &options), named);
        for device in devices(1..3) {
            assert_invalid(open(device, &descriptor, &options), named);
        }
    }
    // The greatest that may be asked for is stated, not taken.
    let most = HbmOptions::new(u32::MAX as usize - 1).batch_keys_max(1 << 30);
    let widest = TableDescriptor::new("t", 8192).optimizer(Optimizer::Adam);
    let stated = footprint(&widest, &most).unwrap();
    let row = 4 * row_f32s(&widest).next_multiple_of(4) as u64;
    assert_eq!(stated.arena, (u64::from(u32::MAX) - 1) * row);
}

/// What no machine has is refused with an error, by the table and by its buffers.
#[test]
fn memory_that_is_not_to_be_had() {
    let descriptor = TableDescriptor::new("t", 8192);
    let most = HbmOptions::new(u32::MAX as usize - 1);
    for device in devices(1..3) {
        let error = open(device, &descriptor, &most).err().unwrap();
        assert!(
            matches!(error, Error::DeviceMemory { .. }),
            "{device:?}: {error}"
        );
        let mut driven = filled(device, &TableDescriptor::new("t", 4), &options(9), &[1], 9);
        for memory in [Memory::Device, Memory::Pinned] {
            for kind in [Kind::Keys, Kind::Words, Kind::Floats] {
                for count in [usize::MAX, usize::MAX / 4, usize::MAX / 8, 1 << 58] {
                    let error = driven.table.allocate(memory, kind, count).unwrap_err();
                    let named = matches!(error, Error::DeviceMemory { .. });
                    assert!(named, "{device:?}, {count} of {kind:?}: {error}");
                }
            }
        }
        // The table goes on.
        driven.get(Index::First, &[1]).unwrap();
    }
}

//! What does `hps-import` make of any checkpoint of TensorFlow? The input is what there is (0 the bytes of an index,
//! 1 those of a block of it, 2 tensors: of each whether it is there, and what the index says of it), flags (1
//! weights alone), an optimizer, then these.
//!
//! Promise: rows or an error, never a panic. What is taken of tensors stands in the data file where the index says,
//! word by word. A checkpoint of which nothing was changed, and nothing is missing, is taken.

#![no_main]

use std::collections::BTreeMap;

use hps_fuzz::folder::{args, memory, same, word};
use hps_fuzz::{Input, u64_at};
use hps_tools::import::rows;
use hps_tools::models::deeprec::bundle::{Entry, Header};
use hps_tools::models::deeprec::table;
use libfuzzer_sys::fuzz_target;

/// Tensors that may be there; of each the type and whether it has a second axis.
const TENSORS: [(&str, u64, bool); 14] = [
    ("t-keys", 9, false),
    ("t-values", 1, true),
    ("t-freqs", 9, false),
    ("t-versions", 9, false),
    ("t-keys_filtered", 9, false),
    ("t/Adagrad-keys", 9, false),
    ("t/Adagrad-values", 1, true),
    ("t/Other-values", 1, true),
    ("t/part_0-keys", 9, false),
    ("t/part_0-values", 1, true),
    ("t/part_1-keys", 9, false),
    ("t/part_1-values", 1, true),
    ("t/part_1-freqs", 9, false),
    ("u-values", 1, true),
];
const OPTIMIZERS: [&str; 3] = ["sgd", "adagrad", "adam"];

/// An index of tensors, the data that they lie in, and whether all of them are as they should be.
fn made(input: &mut Input<'_>) -> (BTreeMap<String, Entry>, Vec<u8>, bool) {
    let (rows, dim) = (input.below(6) as u64, 1 + input.below(4) as u64);
    let mut data: Vec<u8> = Vec::new();
    let mut entries = BTreeMap::new();
    let mut is_good = true;
    for (name, dtype, is_wide) in TENSORS {
        let how = input.below(8);
        if how == 0 {
            continue;
        }
        is_good &= how < 4;
        let mut shape = if is_wide { vec![rows, dim] } else { vec![rows] };
        let element: u64 = if dtype == 9 { 8 } else { 4 };
        let seed = input.number(1);
        if how == 7 {
            shape = vec![seed];
        }
        let count = if how == 6 {
            0
        } else {
            rows * if is_wide { dim } else { 1 }
        };
        if how == 6 {
            shape = vec![0; shape.len()];
        }
        let offset = data.len();
        for index in 0..count {
            // Slots have the keys of their variable.
            let value = if name.contains("part_1") {
                100 + index
            } else {
                index
            };
            let bytes = (value + if how == 5 { seed } else { 0 }).to_le_bytes();
            match element {
                8 => data.extend(bytes),
                _ => data.extend((value as f32 + seed as f32).to_le_bytes()),
            }
        }
        let mut entry = Entry {
            dtype,
            shape,
            shard: 0,
            offset: offset as u64,
            size: count * element,
            crc: crc32c::crc32c(&data[offset..]),
        };
        if how == 4 {
            let number = input.number(3);
            match seed % 6 {
                0 => entry.dtype = number,
                1 => entry.offset = number,
                2 => entry.size = number,
                3 => entry.shard = number,
                4 => entry.crc ^= number as u32,
                _ => entry.shape.push(number),
            }
        }
        entries.insert(name.to_owned(), entry);
    }
    (entries, data, is_good)
}

/// Whether tensors that are as they should be are all that such a checkpoint needs.
fn is_whole(entries: &BTreeMap<String, Entry>, weights_only: bool, optimizer: &str) -> bool {
    let has = |name: &str| entries.contains_key(name);
    let any = |start: &str| entries.keys().any(|name| name.starts_with(start));
    let both = |owner: &str| ["keys", "values"].map(|what| has(&format!("{owner}-{what}")));
    if has("t-keys") {
        let has_state = match both("t/Adagrad") {
            [false, false] => true,
            [true, true] => weights_only || optimizer == "adagrad",
            _ => weights_only,
        };
        return has("t-values") && has_state && !any("t/part_");
    }
    let beside = ["t-values", "t-freqs", "t-versions"]
        .iter()
        .any(|name| has(name));
    // Counts of one partition alone are refused, if it has rows.
    let has_counts = has("t/part_1-freqs");
    let second = match both("t/part_1") {
        [false, false] => !has_counts,
        [true, true] => !has_counts || weights_only || entries["t/part_1-keys"].size == 0,
        _ => false,
    };
    both("t/part_0") == [true; 2] && second && !beside && !any("t/Adagrad")
}

/// An index whose only block this is, with right checksums.
fn around(block: &[u8]) -> Vec<u8> {
    let mut index: Vec<u8> = Vec::new();
    let mut put = |block: &[u8]| {
        let at = index.len();
        index.extend(block);
        index.push(0);
        let sum = table::mask(crc32c::crc32c(&index[at..]));
        index.extend(sum.to_le_bytes());
        let mut handle = Vec::new();
        table::put_varint(&mut handle, at as u64);
        table::put_varint(&mut handle, block.len() as u64);
        handle
    };
    let data = put(block);
    let length = u8::try_from(data.len()).expect("a short handle");
    let entry = [&[0, 1, length, b'z'], data.as_slice(), &[0; 8]].concat();
    let mut footer = [vec![0, 0], put(&entry)].concat();
    footer.resize(40, 0);
    footer.extend(0xdb47_7524_8b80_fb57_u64.to_le_bytes());
    index.extend(footer);
    index
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let what = input.below(3);
    let weights_only = input.number(1) & 1 != 0;
    let optimizer = OPTIMIZERS[input.below(3)];
    let (mut entries, mut data, mut is_good) = (BTreeMap::new(), vec![0; 64], false);
    let index = match what {
        0 => input.take_all().to_vec(),
        1 => around(input.take_all()),
        _ => {
            (entries, data, is_good) = made(&mut input);
            is_good &= is_whole(&entries, weights_only, optimizer);
            let header = (Vec::new(), Header { shards: 1 }.write());
            let named = entries
                .iter()
                .map(|(name, e)| (name.clone().into_bytes(), e.write()));
            let all: Vec<_> = [header].into_iter().chain(named).collect();
            table::write(&all)
        }
    };
    let folder = memory();
    let file =
        |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).expect("a file");
    file("m.index", &index);
    file("m.data-00000-of-00001", &data);
    let mut more = vec![
        String::from("--format=deeprec"),
        format!("--optimizer={optimizer}"),
    ];
    more.extend(weights_only.then(|| String::from("--weights-only")));
    more.extend((optimizer == "adam").then(|| String::from("--adam-step=1")));
    let found = match rows(&args(folder.path(), &more)) {
        Ok(found) => found,
        Err(error) => {
            assert!(!is_good, "refused: {error}");
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    if what < 2 {
        return;
    }
    let owners = match entries.contains_key("t-keys") {
        true => vec!["t"],
        false => vec!["t/part_0", "t/part_1"],
    };
    let dim = found.table.dim;
    let mut expected = BTreeMap::new();
    for owner in owners {
        let get = |end: &str| entries.get(&format!("{owner}{end}"));
        let Some((keys, values)) = get("-keys").zip(get("-values")) else {
            continue;
        };
        let slot = get("/Adagrad-values").filter(|_| !weights_only && optimizer == "adagrad");
        for row in 0..keys.shape[0] as usize {
            let words = |entry: &Entry| -> Vec<f32> {
                let first = entry.offset as usize / 4 + row * dim;
                (first..first + dim).map(|at| word(&data, at)).collect()
            };
            let key = u64_at(&data, keys.offset as usize + 8 * row);
            let state = slot.map(words).unwrap_or_default();
            expected.insert(key, [words(values), state].concat());
        }
    }
    let width = expected.values().next().map_or(0, Vec::len);
    // Counts behind them, and state that begins, are not compared.
    let found = found.rows.into_iter().map(|(key, mut row)| {
        row.truncate(width);
        (key, row)
    });
    same(&found.collect(), &expected);
});

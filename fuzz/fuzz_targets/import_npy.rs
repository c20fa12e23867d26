//! What does `hps-import` make of any folder of NumPy's arrays? The input is flags (1 weights alone, 2 with
//! a dim, 4 --repair), an optimizer, what to do with numbers that are not finite, then the folder
//! (`src/folder.rs`).
//!
//! Promise: rows or an error, never a panic. What is taken is what stands behind the headers, word by word;
//! without --repair there is nothing else.

#![no_main]

use std::collections::BTreeMap;

use hps_fuzz::folder::{Folder, args, same, word};
use hps_fuzz::{Input, records, u64_at};
use hps_tools::import::rows;
use hps_tools::models::columns::columns;
use hps_tools::models::npy;
use libfuzzer_sys::fuzz_target;

const FILES: &[(&str, usize, &str)] = &[
    ("keys.npy", 8, "<u8"),
    ("weights.npy", 0, "<f4"),
    ("a.npy", 0, "<f4"),
    ("m.npy", 0, "<f4"),
    ("v.npy", 0, "<f4"),
    ("t.npy", 4, "<f4"),
    ("z.npy", 0, "<f4"),
    ("n.npy", 0, "<f4"),
    ("show.npy", 4, "<u4"),
    ("click.npy", 4, "<u4"),
    ("count.npy", 4, "<u4"),
    ("last_step.npy", 4, "<u4"),
    ("other.npy", 4, "<f4"),
];
const OPTIMIZERS: [&str; 8] = [
    "",
    "sgd",
    "momentum",
    "nesterov",
    "adagrad",
    "rowwise-adagrad",
    "adam",
    "ftrl",
];
const NON_FINITE: [&str; 3] = ["reject", "skip", "apply"];

/// What stands behind the header of an array.
fn data(file: &[u8]) -> &[u8] {
    &file[records::npy_header(file).expect("a header")..]
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let flags = input.number(1);
    let (weights_only, repair) = (flags & 1 != 0, flags & 4 != 0);
    let (optimizer, non_finite) = (input.below(8), input.below(3));
    let folder = Folder::new(
        &mut input,
        FILES,
        |(_, row_bytes, descr), rows, width| match (*row_bytes, width) {
            (0, 2..) => npy::write(descr, &[rows, width]),
            _ => npy::write(descr, &[rows]),
        },
    );
    let mut more = vec![
        String::from("--format=npy"),
        format!("--non-finite={}", NON_FINITE[non_finite]),
    ];
    more.extend(weights_only.then(|| String::from("--weights-only")));
    more.extend((flags & 2 != 0).then(|| format!("--dim={}", folder.dim)));
    more.extend((optimizer > 0).then(|| format!("--optimizer={}", OPTIMIZERS[optimizer])));
    more.extend(repair.then(|| String::from("--repair")));
    let on_disk = folder.write();
    let found = match rows(&args(on_disk.path(), &more)) {
        Ok(found) => found,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let dim = found.table.dim;
    let mut parts = vec![("weights.npy", 0, dim)];
    if found.is_whole {
        for column in columns(&found.table) {
            let name = format!("{}.npy", column.name);
            let file = FILES.iter().find(|(file, ..)| *file == name);
            parts.push((file.expect("a file").0, column.begin, column.width));
        }
    }
    let keys = data(&folder.files["keys.npy"]);
    let sizes = parts
        .iter()
        .map(|(name, _, width)| (data(&folder.files[*name]), 4 * width));
    let sizes: Vec<_> = sizes.chain([(keys, 8)]).collect();
    let whole = sizes.iter().map(|(data, row_bytes)| data.len() / row_bytes);
    let count = whole.min().expect("files");
    // With --repair also those that the shortest header promises.
    let count = count.min(if repair { found.rows.len() } else { count });
    if !repair {
        let is_whole = |(data, row_bytes): &(&[u8], usize)| data.len() == count * row_bytes;
        assert!(sizes.iter().all(is_whole), "bytes that are no rows");
    }
    let width = parts.iter().map(|(_, _, width)| width).sum();
    let mut expected = BTreeMap::new();
    for at in 0..count {
        let mut row = vec![0.0; width];
        for (name, begin, width) in &parts {
            let data = data(&folder.files[*name]);
            let words = (0..*width).map(|column| word(data, at * width + column));
            row.splice(*begin..begin + width, words);
        }
        expected.insert(u64_at(keys, 8 * at), row);
    }
    if NON_FINITE[non_finite] == "skip" {
        let finite = |row: &[f32]| row.iter().all(|number| number.is_finite());
        let floats = |row: &[f32]| {
            let columns = columns(&found.table);
            let first = columns.iter().find(|column| column.is_integer);
            let end = first.map_or(row.len(), |column| column.begin.min(row.len()));
            finite(&row[..end])
        };
        if repair {
            // Which rows were left out is not known from their number.
            assert!(found.rows.values().all(|row| floats(row)));
            return;
        }
        expected.retain(|_, row| floats(row));
    }
    same(&found.rows, &expected);
});

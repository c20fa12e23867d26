//! What do `hps-import` and `hps-keyset` make of any Parquet file? The input is what there is (0 a file as it is, 1 a
//! footer behind a good body, 2 a good file and changes of it, 3 the pages of one of its columns), flags (1 weights
//! alone), a file of `src/parquets.rs`, a column, then these.
//!
//! Promise: rows or an error, never a panic, nor memory by a number in the file. What is taken is what the library's own
//! reader gives. A file of which nothing was changed is taken.

#![no_main]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use hps_fuzz::folder::{args, memory};
use hps_fuzz::{Input, parquets};
use hps_tools::import::rows;
use hps_tools::keyset::parquet_values;
use hps_tools::parquet_file::{check_ends, footer};
use libfuzzer_sys::fuzz_target;

/// A few bytes can be honestly as many rows as there are: more take longer than an input may.
const ROWS_MAX: i64 = 1 << 13;
const VALUES_MAX: i64 = 1 << 16;

/// Whether the footer claims a file of a size that is worth an input's time, or is wrong.
fn is_small(path: &Path) -> bool {
    let file = File::open(path).expect("a file");
    let Ok(bytes) = check_ends(path, &file) else {
        return true;
    };
    let Ok(metadata) = footer(path, &file, bytes) else {
        return true;
    };
    let groups = metadata.row_groups();
    let few = |claimed: i64, most: i64| claimed <= most;
    groups.len() <= 64
        && groups.iter().all(|group| {
            let mut columns = group.columns().iter();
            few(group.num_rows(), ROWS_MAX) && columns.all(|c| few(c.num_values(), VALUES_MAX))
        })
}

/// Compares what an import has taken with the library's own reading. Whether it was taken.
fn import(folder: &Path, path: &Path, weights_only: bool) -> bool {
    let mut more = vec![
        String::from("--format=parquet"),
        String::from("--threads=1"),
    ];
    if weights_only {
        more.extend(["--weights-only", "--optimizer=sgd"].map(String::from));
    }
    let found = match rows(&args(folder, &more)) {
        Ok(found) => found,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    if found.rows.is_empty() {
        return true;
    }
    let read = |column| parquets::read(path, column);
    let Some((weights, keys)) = read("weights").zip(read("key")) else {
        return true;
    };
    let weights = weights.chunks_exact(found.table.dim).map(<[u64]>::to_vec);
    let expected: BTreeMap<u64, Vec<u64>> = keys.into_iter().zip(weights).collect();
    let bits = |row: &[f32]| row.iter().map(|v| u64::from(v.to_bits())).collect();
    let of = |(key, row): (u64, Vec<f32>)| (key, bits(&row[..found.table.dim]));
    let found: BTreeMap<u64, Vec<u64>> = found.rows.into_iter().map(of).collect();
    assert_eq!(found, expected);
    true
}

/// As above, of `hps-keyset`.
fn keyset(path: &Path, columns: &[&str], chunk_bytes: usize) -> bool {
    let named: Vec<String> = columns.iter().map(|name| String::from(*name)).collect();
    let records = match parquet_values(path, &named, chunk_bytes) {
        Ok(records) => records,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    for (field, column) in columns.iter().enumerate() {
        let found = records.iter().flatten().filter(|(of, _)| *of == field);
        let found: Vec<u64> = found.map(|(_, value)| *value).collect();
        if let Some(expected) = parquets::read(path, column) {
            assert_eq!(found, expected, "{column}");
        }
    }
    true
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let (what, flags) = (input.below(4), input.number(1));
    let bases = parquets::bases();
    let number = input.below(bases.len());
    let (base, column) = (&bases[number], input.below(4));
    let file = match what {
        0 => input.take_all().to_vec(),
        1 => parquets::joined(&base[..parquets::footer_at(base)], input.take_all()),
        2 => parquets::changed(base, &mut input),
        _ => parquets::with_column(base, column, input.take_all()),
    };
    let is_good = file == *base;
    let folder = memory();
    let path = folder.path().join("a.parquet");
    std::fs::write(&path, &file).expect("a file");
    if !is_small(&path) {
        return;
    }
    let is_imported = import(folder.path(), &path, flags & 1 != 0);
    let is_key = keyset(&path, &["key"], 256);
    let is_set = keyset(&path, &["c", "a", "b"], 4096);
    if is_good {
        let is_model = number < parquets::STYLES;
        let expected = [is_model, is_model, !is_model];
        assert_eq!([is_imported, is_key, is_set], expected, "{number}");
    }
});

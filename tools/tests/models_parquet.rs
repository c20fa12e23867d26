//! Do models leave as Parquet that others read, and come in from what others write? Needs the feature `parquet`.
//!
//! `data/parquet_models.py` writes and reads with pyarrow.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;
#[path = "support/python.rs"]
mod python;
#[path = "../../tests/common/skip.rs"]
mod skip;

use std::fs;
use std::path::Path;
use std::process::Command;

use hps::{Optimizer, RowMetadata, Store, TableDescriptor};
use models::*;
use parquet::file::reader::{FileReader, SerializedFileReader};
use python::python_with;

const DIM: usize = 6;
const ROWS: u64 = 3000;

fn with_metadata(optimizer: Optimizer, dim: usize) -> TableDescriptor {
    let metadata = RowMetadata::new().show(true).last_step(true);
    table(optimizer, dim).metadata(metadata)
}

/// The optimizer of a new table is the one that footers name.
#[test]
fn rows_come_back_from_parquet_to_the_bit() {
    for (number, &optimizer) in Optimizer::ALL.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
        let dim = if number % 2 == 0 { DIM } else { 1 };
        sample(&store, &with_metadata(optimizer, dim), &keys(ROWS));
        let codec = ["none", "snappy", "zstd"][number % 3];
        let flags = format!("--format parquet --compression {codec}");
        let told = json(EXPORT, &flags, &store, &model, 0);
        assert_eq!(told["rows"], ROWS);
        assert_eq!(told["left_out"].as_array().unwrap().len(), 0);
        let told = json(IMPORT, "--format parquet --create", &new, &model, 0);
        assert_eq!((&told["rows"], &told["keys"]), (&ROWS.into(), &ROWS.into()));
        assert_eq!(told["optimizer"], format!("{optimizer:?}"));
        assert_eq!(digest(&store), digest(&new), "{optimizer:?}");
        // Its files one by one have all of the rows, each of them once.
        let one = dir.path().join("o");
        let mut rows = 0;
        for entry in fs::read_dir(&model).unwrap() {
            let flags = "--format parquet --create";
            let told = json(IMPORT, flags, &one, &entry.unwrap().path(), 0);
            rows += told["rows"].as_u64().unwrap();
            assert_eq!(told["keys"], rows, "no file has a key of another");
        }
        assert_eq!(rows, ROWS);
        assert_eq!(digest(&store), digest(&one), "{optimizer:?}");
    }
}

#[test]
fn row_groups_are_bounded_by_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
    let rows = 40_000;
    sample(&store, &table(Optimizer::Adagrad, 64), &keys(rows));
    json(EXPORT, "--format parquet --memory 72MiB", &store, &model, 0);
    let mut groups = 0;
    for entry in fs::read_dir(&model).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        for group in reader.metadata().row_groups() {
            assert!(group.total_byte_size() < 9 << 20, "{group:?}");
            groups += 1;
        }
    }
    assert!(groups >= 3, "{groups} row groups of 20 MB");
    json(IMPORT, "--format parquet --create", &new, &model, 0);
    assert_eq!(digest(&store), digest(&new));
}

#[test]
fn an_empty_model_is_legal_and_tells_its_dim() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
    sample(&store, &with_metadata(Optimizer::Adam, DIM), &[]);
    json(EXPORT, "--format parquet", &store, &model, 0);
    let told = json(IMPORT, "--format parquet --create", &new, &model, 0);
    assert_eq!((&told["rows"], &told["dim"]), (&0.into(), &DIM.into()));
    assert_eq!(digest(&store), digest(&new));
}

#[test]
fn weights_alone_leave_and_come_in() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, bare, new] = ["s", "m", "b", "n"].map(|name| dir.path().join(name));
    sample(&store, &with_metadata(Optimizer::Adam, DIM), &keys(200));
    let flags = "--format parquet --weights-only";
    let told = json(EXPORT, flags, &store, &bare, 0);
    assert_eq!(told["left_out"].as_array().unwrap().len(), 5);
    json(EXPORT, "--format parquet", &store, &model, 0);
    for (folder, flags) in [(&bare, "--format parquet"), (&model, flags)] {
        let _first = fs::remove_dir_all(&new);
        let flags = format!("{flags} --create --optimizer adagrad");
        let said = says(IMPORT, &flags, &new, folder, 0);
        assert!(said.contains("weights only"), "{said}");
        for ((_, now), (_, before)) in all_rows(&new).iter().zip(all_rows(&store)) {
            assert_eq!(now[..DIM], before[..DIM]);
            assert_eq!(now[DIM..], [0.0; DIM]);
        }
    }
}

#[test]
fn changes_leave_with_their_removed_keys_beside() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, npy, copy] = ["s", "m", "p", "c"].map(|name| dir.path().join(name));
    let descriptor = with_metadata(Optimizer::Adagrad, DIM);
    let all = keys(300);
    sample(&store, &descriptor, &all);
    let options = options().retain_checkpoints(2);
    let opened = Store::open(&store, options).unwrap();
    let id = opened.table(TABLE).unwrap();
    let changed = rows(&descriptor, &all[10..15]);
    let rows = hps::PutRows::whole(&changed).verbatim();
    opened.put(id, &all[200..205], rows).unwrap();
    opened.remove(id, &all[..7]).unwrap();
    opened.checkpoint(6, b"").unwrap();
    opened.close().unwrap();
    let told = json(EXPORT, "--format parquet --since 1", &store, &model, 0);
    assert_eq!((&told["rows"], &told["removed"]), (&5.into(), &7.into()));
    json(EXPORT, "--format npy --since 1", &store, &npy, 0);
    passes(&["compare"], &[&npy, &model]);
    sample(&copy, &descriptor, &all);
    let before = digest(&copy);
    let said = says(IMPORT, "--format parquet", &copy, &model, 16);
    assert!(said.contains("removed.parquet: has the keys"), "{said}");
    assert_eq!(digest(&copy), before);
    fs::remove_file(model.join("removed.parquet")).unwrap();
    let told = json(IMPORT, "--format parquet", &copy, &model, 0);
    assert_eq!((&told["rows"], &told["keys"]), (&5.into(), &300.into()));
}

/// Runs the script, if there is a Python for it.
fn passes(arguments: &[&str], paths: &[&Path]) -> Option<String> {
    let missing = "parquet_models.py: no python3 that has pyarrow: models of others are not read";
    let python = python_with("pyarrow, numpy", missing)?;
    let (first, rest) = arguments.split_first().unwrap();
    let mut command = Command::new(python);
    let script = data("parquet_models.py");
    command.arg(script).arg(first).args(paths).args(rest);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn pyarrow_reads_what_is_exported_to_the_bit() {
    for (number, &optimizer) in Optimizer::ALL.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let [store, model, npy] = ["s", "m", "p"].map(|name| dir.path().join(name));
        sample(&store, &with_metadata(optimizer, DIM), &keys(ROWS));
        let codec = ["none", "snappy", "zstd"][number % 3];
        let flags = format!("--format parquet --compression {codec}");
        json(EXPORT, &flags, &store, &model, 0);
        json(EXPORT, "--format npy", &store, &npy, 0);
        if passes(&["compare"], &[&npy, &model]).is_none() {
            return;
        }
    }
}

#[test]
fn what_pyarrow_writes_comes_in_to_the_bit() {
    let Some(ways) = passes(&["ways"], &[]) else {
        return;
    };
    let ways: usize = ways.trim().parse().unwrap();
    assert!(ways >= 6);
    for (number, &optimizer) in Optimizer::ALL
        .iter()
        .cycle()
        .take(ways.max(Optimizer::ALL.len()))
        .enumerate()
    {
        let dir = tempfile::tempdir().unwrap();
        let [store, npy, model, new] = ["s", "p", "m", "n"].map(|name| dir.path().join(name));
        sample(&store, &with_metadata(optimizer, DIM), &keys(ROWS));
        json(EXPORT, "--format npy", &store, &npy, 0);
        let way = (number % ways).to_string();
        passes(&["write", &way], &[&npy, &model]);
        let name = rule_name(optimizer);
        let flags = format!("--format parquet --create --optimizer {name} --threads 2");
        let told = json(IMPORT, &flags, &new, &model, 0);
        assert_eq!(told["rows"], ROWS);
        assert_eq!(digest(&store), digest(&new), "{optimizer:?}, way {way}");
        // Without what only our footers say, columns tell the optimizer, where one alone has them.
        let other = dir.path().join("o");
        let output = run(IMPORT, "--format parquet --create", &other, &model);
        let is_told =
            ![Optimizer::Sgd, Optimizer::Momentum, Optimizer::Nesterov].contains(&optimizer);
        assert_eq!(output.status.code(), Some(if is_told { 0 } else { 16 }));
        if is_told {
            assert_eq!(digest(&store), digest(&other), "{optimizer:?}, way {way}");
        }
        let lz4 = dir.path().join("l");
        passes(&["lz4"], &[&npy, &lz4]);
        let said = says(IMPORT, "--format parquet", &new, &lz4, 16);
        assert!(said.contains("is compressed by LZ4"), "{said}");
    }
}

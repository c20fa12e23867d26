//! Do models leave as Parquet that others read, come in from what others write, and is every bad file refused with its
//! place? Needs the feature `parquet`.
//!
//! `data/parquet_models.py` writes and reads with pyarrow; files for errors are written here.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;
#[path = "support/parquet.rs"]
mod parquet_files;
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
use parquet_files::*;
use python::python_with;

const DIM: usize = 6;
const ROWS: u64 = 3000;

const ALL: [Optimizer; 7] = [
    Optimizer::Sgd,
    Optimizer::Momentum,
    Optimizer::Nesterov,
    Optimizer::Adagrad,
    Optimizer::RowwiseAdagrad,
    Optimizer::Adam,
    Optimizer::Ftrl,
];

fn with_metadata(optimizer: Optimizer, dim: usize) -> TableDescriptor {
    let metadata = RowMetadata::new().show(true).last_step(true);
    table(optimizer, dim).metadata(metadata)
}

/// The optimizer of a new table is the one that footers name.
#[test]
fn rows_come_back_from_parquet_to_the_bit() {
    for (number, optimizer) in ALL.into_iter().enumerate() {
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
        // One of its files alone has some of the rows.
        let one = dir.path().join("o");
        let flags = "--format parquet --create";
        let told = json(IMPORT, flags, &one, &model.join("part-00000.parquet"), 0);
        assert!(told["rows"].as_u64().unwrap() <= ROWS);
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
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/parquet_models.py");
    let (first, rest) = arguments.split_first().unwrap();
    let mut command = Command::new(python);
    command.arg(script).arg(first).args(paths).args(rest);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn pyarrow_reads_what_is_exported_to_the_bit() {
    for (number, optimizer) in ALL.into_iter().enumerate() {
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
    for (number, optimizer) in ALL
        .into_iter()
        .cycle()
        .take(ways.max(ALL.len()))
        .enumerate()
    {
        let dir = tempfile::tempdir().unwrap();
        let [store, npy, model, new] = ["s", "p", "m", "n"].map(|name| dir.path().join(name));
        sample(&store, &with_metadata(optimizer, DIM), &keys(ROWS));
        json(EXPORT, "--format npy", &store, &npy, 0);
        let way = (number % ways).to_string();
        passes(&["write", &way], &[&npy, &model]);
        let name = format!("{optimizer:?}").to_lowercase();
        let name = name.replace("rowwise", "rowwise-");
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

/// The place of each byte in turn, and what the library may not survive: an answer, or an error that names the file.
#[test]
fn no_bytes_cause_a_panic() {
    use clap::Parser;
    let dir = tempfile::tempdir().unwrap();
    let [store, model] = ["s", "m"].map(|name| dir.path().join(name));
    let mut refused = 0;
    let path = model.join("part-00000.parquet");
    for (optimizer, codec) in [(Optimizer::Adam, "none"), (Optimizer::Adagrad, "zstd")] {
        let _first = (fs::remove_dir_all(&store), fs::remove_dir_all(&model));
        sample(&store, &with_metadata(optimizer, 2), &keys(5));
        let flags = format!("--format parquet --threads 1 --compression {codec}");
        json(EXPORT, &flags, &store, &model, 0);
        let words = [
            "import",
            "--format",
            "parquet",
            "--table",
            "t",
            "--create",
            "--threads",
            "1",
        ];
        let args = words
            .iter()
            .map(Path::new)
            .chain([Path::new("none"), &model]);
        let args = hps_tools::import::Args::parse_from(args);
        let whole = fs::read(&path).unwrap();
        let found = hps_tools::import::rows(&args).unwrap();
        assert_eq!(found.rows.len(), 5);
        let mut look = |bytes: &[u8]| {
            // A file that was cut and written again is synced by some file systems.
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
            if let Err(error) = hps_tools::import::rows(&args) {
                let told = format!("{error:#}");
                assert!(told.contains(&*model.to_string_lossy()), "{told}");
                refused += 1;
            }
        };
        for length in 0..whole.len() {
            look(&whole[..length]);
        }
        for at in 0..whole.len() {
            for bits in [1, 0x80] {
                let mut bytes = whole.clone();
                bytes[at] ^= bits;
                look(&bytes);
            }
        }
    }
    assert!(refused > 3000, "{refused}");
}

/// A folder with one file of this name, made of columns.
fn folder(dir: &Path, name: &str, columns: &[Written]) {
    fs::create_dir(dir.join(name)).unwrap();
    write(&dir.join(name).join("a.parquet"), columns);
}

#[test]
fn bad_files_are_named_with_their_place_and_nothing_is_put() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let store = dir.join("store");
    sample(&store, &table(Optimizer::Adagrad, 2), &keys(20));
    let (key, weights, a) = (keys_of(&[1, 2, 3]), lists("weights", 3), lists("a", 3));
    let case = |name: &str, columns: &[&Written]| {
        let columns: Vec<Written> = columns.iter().copied().cloned().collect();
        folder(dir, name, &columns);
    };
    case("good", &[&key, &weights, &a]);
    case("bare", &[&key, &weights]);
    case("no-weights", &[&key, &a]);
    case("foreign", &[&key, &weights, &a, &numbers("price", 3)]);
    case("flat-weights", &[&key, &numbers("weights", 3), &a]);
    case("flat-a", &[&key, &weights, &numbers("a", 3)]);
    case("key-list", &[&lists("key", 3), &weights]);
    case(
        "other-state",
        &[&key, &weights, &lists("z", 3), &lists("n", 3)],
    );
    case("half-state", &[&key, &weights, &lists("n", 3)]);
    case("doubles", &[&key, &weights.clone().of("double"), &a]);
    case("old-lists", &[&key, &weights.clone().old(), &a]);
    case("twice", &[&key, &key, &weights, &a]);
    case("null-key", &[&key.clone().without(1), &weights, &a]);
    case("null-list", &[&key, &weights.clone().without(2), &a]);
    case("null-first", &[&key, &weights.clone().without(0), &a]);
    case("null-element", &[&key, &weights.clone().hole(1), &a]);
    case("short", &[&key, &weights.clone().cut(2), &a]);
    case("short-first", &[&key, &weights.clone().cut(0), &a]);
    case("short-a", &[&key, &weights, &a.clone().cut(1)]);
    case("nan", &[&key, &weights, &a.clone().with(5, f32::NAN)]);
    case("same-key", &[&keys_of(&[1, 5, 1]), &weights, &a]);
    case("wide", &[&key, &weights.clone().wide(), &a.clone().wide()]);
    case("shows", &[&key, &weights, &a, &integers("show", 3)]);
    case("two", &[&key, &weights, &a]);
    write(
        &dir.join("two/b.parquet"),
        &[keys_of(&[7, 3, 8]), weights.clone(), a.clone()],
    );
    case("mixed", &[&key, &weights, &a]);
    write(
        &dir.join("mixed/b.parquet"),
        &[keys_of(&[7, 9, 8]), weights.clone()],
    );
    case("nested", &[&key, &weights, &a]);
    fs::create_dir(dir.join("nested/day=1")).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    fs::create_dir(dir.join("text")).unwrap();
    fs::write(dir.join("text/a.parquet"), "key,weights\n1,0.5").unwrap();
    fs::create_dir(dir.join("cut")).unwrap();
    let good = fs::read(dir.join("good/a.parquet")).unwrap();
    fs::write(dir.join("cut/a.parquet"), &good[..good.len() / 2]).unwrap();
    let place = "a.parquet: corrupt at byte";
    let cases: &[(&str, i32, &[&str])] = &[
        ("missing", 16, &["missing: is no folder, and no file"]),
        (
            "empty",
            16,
            &["empty: no model of this format: it has no file *.parquet"],
        ),
        ("nested", 16, &["nested/day=1: is a folder in the folder"]),
        ("text", 4, &[place, "found key,, expected PAR1"]),
        (
            "cut",
            4,
            &[
                place,
                "expected PAR1, with which a Parquet file ends: it is cut off",
            ],
        ),
        (
            "no-weights",
            16,
            &["found no column weights; there are: key, a"],
        ),
        (
            "foreign",
            16,
            &[
                "column price: no table has a column of that name",
                "--weights-only",
            ],
        ),
        (
            "flat-weights",
            4,
            &[
                place,
                "column weights: found FLOAT, expected lists of float32",
            ],
        ),
        (
            "flat-a",
            16,
            &["flat-a: column a has numbers, Adagrad has lists"],
        ),
        (
            "key-list",
            4,
            &[
                place,
                "column key: found a group (List)",
                "expected uint64 or int64",
            ],
        ),
        (
            "other-state",
            16,
            &["z is no state of Adagrad", "has [\"a\"]", "--weights-only"],
        ),
        ("doubles", 4, &["[DOUBLE]]", "expected lists of float32"]),
        (
            "old-lists",
            4,
            &["column weights: found a group (List) of [repeated FLOAT]"],
        ),
        (
            "twice",
            4,
            &["found two columns of the name key, expected one"],
        ),
        (
            "null-key",
            4,
            &[
                place,
                "row group 0, row 1, column key: found a null, expected a number",
            ],
        ),
        (
            "null-list",
            4,
            &[
                "row group 0, row 2, column weights: found a null, or an empty list",
                "list of 2",
            ],
        ),
        (
            "null-first",
            4,
            &["row group 0, row 0, column weights: found a null, or an empty list"],
        ),
        (
            "null-element",
            4,
            &["row group 0, row 1, column weights: found a null, expected a list of 2"],
        ),
        (
            "short",
            4,
            &[
                "row group 0, row 2, column weights: found a list of 1 numbers, expected a list of 2",
            ],
        ),
        (
            "short-first",
            16,
            &["a.parquet: rows of 1 weights, expected 2"],
        ),
        (
            "short-a",
            4,
            &["row group 0, row 1, column a: found a list of 1 numbers, expected a list of 2"],
        ),
        (
            "nan",
            4,
            &[
                place,
                "key 0x3 (row group 0, row 2, column a[1]): found NaN",
                "--non-finite",
            ],
        ),
        (
            "same-key",
            4,
            &["key 0x1 of row group 0, row 2 stands in row group 0, row 0 as well"],
        ),
        (
            "two",
            4,
            &[
                "b.parquet: corrupt",
                "key 0x3 of row group 0, row 1 stands in row group 0, row 2 of",
                "a.parquet as well",
            ],
        ),
        (
            "mixed",
            4,
            &[
                "b.parquet: corrupt",
                "column a: found none, expected lists as in",
                "a.parquet",
            ],
        ),
        ("wide", 16, &["a.parquet: rows of 3 weights, expected 2"]),
        (
            "shows",
            16,
            &["column show: table clicks has no such column"],
        ),
        (
            "good --repair",
            16,
            &["--repair is not of --format parquet"],
        ),
        (
            "good --lr 1",
            16,
            &["--lr and --adam-step are of --format hugectr: parquet has"],
        ),
    ];
    let before = digest(&store);
    for (line, code, told) in cases {
        let (name, flags) = line.split_once(' ').unwrap_or((line, ""));
        let flags = format!("--format parquet {flags}");
        let said = says(IMPORT, &flags, &store, &dir.join(name), *code);
        for told in *told {
            assert!(said.contains(told), "{line}: {told}: {said}");
        }
        assert_eq!(digest(&store), before, "{line}");
    }
    // In an empty table, a key that stands twice is found at the end.
    let new = dir.join("new");
    let said = says(
        IMPORT,
        "--format parquet --create",
        &new,
        &dir.join("two"),
        4,
    );
    assert!(said.contains("key 0x3 of"), "{said}");
    let said = says(
        IMPORT,
        "--format parquet --create",
        &dir.join("n"),
        &dir.join("half-state"),
        16,
    );
    assert!(said.contains("--optimizer"), "{said}");
    let flags = "--format parquet --create --optimizer ftrl";
    let said = says(IMPORT, flags, &dir.join("n"), &dir.join("half-state"), 4);
    assert!(said.contains("column z is not there, n is"), "{said}");
    assert!(
        !dir.join("n").exists(),
        "no store is made of what can't be imported"
    );
    // What is left out or taken is counted.
    let told = json(
        IMPORT,
        "--format parquet --non-finite skip",
        &store,
        &dir.join("nan"),
        0,
    );
    assert_eq!(
        (&told["rows"], &told["non_finite_rows"]),
        (&2.into(), &1.into())
    );
    let told = json(
        IMPORT,
        "--format parquet --non-finite apply",
        &store,
        &dir.join("nan"),
        0,
    );
    assert_eq!(told["rows"], 3);
    let told = json(IMPORT, "--format parquet", &store, &dir.join("good"), 0);
    assert_eq!(told["rows"], 3);
    json(
        IMPORT,
        "--format parquet --weights-only",
        &store,
        &dir.join("foreign"),
        0,
    );
}

#[test]
fn flags_of_other_formats_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["s", "o"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adagrad, DIM), &keys(20));
    for (flags, told) in [
        (
            "--format npy --compression zstd",
            "--compression is of --format parquet",
        ),
        (
            "--format parquet --lr 1",
            "are of --format hugectr: parquet keeps",
        ),
        ("--format parquet --localized", "are of --format hugectr"),
        ("--format parquet --after x", "--after is of --format delta"),
    ] {
        let said = says(EXPORT, flags, &store, &out, 16);
        assert!(said.contains(told), "{said}");
        assert!(!out.exists());
    }
}

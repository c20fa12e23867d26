//! Is every bad Parquet file of a model refused with its place, and is the store then as it was? Needs the feature
//! `parquet`.
#![cfg(feature = "parquet")]
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/import_args.rs"]
mod import_args;
#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;
#[path = "support/parquet.rs"]
mod parquet_files;

use std::fs;
use std::path::Path;

use hps::{Optimizer, RowMetadata};
use import_args::import_args;
use models::*;
use parquet_files::*;

/// The place of each byte in turn, and what the library may not survive: an answer, or an error that names the file.
#[test]
fn no_bytes_cause_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model] = ["s", "m"].map(|name| dir.path().join(name));
    let mut refused = 0;
    let path = model.join("part-00000.parquet");
    for (optimizer, codec) in [(Optimizer::Adam, "none"), (Optimizer::Adagrad, "zstd")] {
        let _first = (fs::remove_dir_all(&store), fs::remove_dir_all(&model));
        let metadata = RowMetadata::new().show(true);
        sample(&store, &table(optimizer, 2).metadata(metadata), &keys(5));
        let flags = format!("--format parquet --threads 1 --compression {codec}");
        json(EXPORT, &flags, &store, &model, 0);
        let args = import_args("--threads 1", &model);
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
    // As many values as there should be.
    let shifted = weights.clone().cut(1).longer(2);
    case("shifted", &[&key, &shifted, &a]);
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
    // What other readers pass over.
    for name in [
        "_SUCCESS",
        "_metadata.parquet",
        ".a.parquet.crc",
        ".b.parquet",
    ] {
        fs::write(dir.join("good").join(name), "no rows").unwrap();
    }
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
            "shifted",
            4,
            &[
                "row group 0, row 1, column weights: found a list of 1 numbers, expected a list of 2",
            ],
        ),
        (
            "short-first",
            4,
            &[
                "row group 0, row 0, column weights: found a list of 1 numbers, expected a list of 2",
            ],
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
            &["--lr is of --format hugectr, not of parquet"],
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

/// Rows that the footer hides are no rows to leave out, and those that it promises must be there.
#[test]
fn a_footer_that_tells_other_rows_than_there_are_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [store, good, bad] = ["s", "g", "b"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Sgd, 2), &keys(20));
    let before = digest(&store);
    write(&good, &[keys_of(&[1, 2, 3]), lists("weights", 3)]);
    let cases: [(i64, i64, &str); 4] = [
        (
            2,
            2,
            "row group 0, column key, rows from 0: Parquet error: found a page of 3 values, the footer has 2 more",
        ),
        (
            4,
            4,
            "row group 0, column key: found 3 rows, the footer has 4",
        ),
        (
            2,
            3,
            "row group 0, column key: the footer has 3 values, expected 2 rows of 1",
        ),
        (-1, 3, "row group 0: found -1 rows"),
    ];
    for (rows, values, told) in cases {
        with_footer(&good, &bad, rows, values);
        let said = says(IMPORT, "--format parquet --threads 1", &store, &bad, 4);
        assert!(said.contains(told), "{told}: {said}");
        assert_eq!(digest(&store), before, "{told}");
    }
    with_footer(&good, &bad, 3, 3);
    json(IMPORT, "--format parquet", &store, &bad, 0);
}

/// A list that claims many values has a few bytes: it is refused before they are decoded, whatever the footer says.
#[test]
fn a_list_without_end_is_refused_before_it_is_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let [store, one, many] = ["s", "o", "m"].map(|name| dir.path().join(name));
    let long = 3 << 20;
    write(&one, &[keys_of(&[1]), lists("weights", 1).filled(0, long)]);
    let said = says(
        IMPORT,
        "--format parquet --create --optimizer sgd",
        &store,
        &one,
        16,
    );
    assert!(
        said.contains("rows of 3145728 weights; 1 to 8192 can be"),
        "{said}"
    );
    // As many rows as make the footer's dim a good one.
    let keys: Vec<i64> = (0..2048).collect();
    let weights = lists("weights", keys.len()).filled(7, long);
    write(&many, &[keys_of(&keys), weights]);
    let said = says(
        IMPORT,
        "--format parquet --create --optimizer sgd",
        &store,
        &many,
        4,
    );
    assert!(
        said.contains("column weights, rows from 0: ") && said.contains("found a list of "),
        "{said}"
    );
    assert!(said.contains("far more than the others"), "{said}");
    assert!(!store.exists());
}

/// A copy that lacks a file would import as a smaller model.
#[test]
fn a_folder_that_lacks_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Sgd, 2), &keys(20));
    json(EXPORT, "--format parquet --threads 1", &store, &model, 0);
    let first = model.join("part-00000.parquet");
    let second = model.join("part-00001.parquet");
    fs::rename(&first, &second).unwrap();
    let flags = "--format parquet --create";
    let said = says(IMPORT, flags, &new, &model, 16);
    let told =
        "part-00000.parquet: is not there, part-00001.parquet is: the folder is no whole export";
    assert!(said.contains(told) && !new.exists(), "{said}");
    // One file was asked for; and what another writer names so is its own affair.
    json(IMPORT, flags, &new, &second, 0);
    fs::remove_file(&second).unwrap();
    let columns = [keys_of(&[1, 2, 3]), lists("weights", 3)];
    write(&second, &columns);
    json(IMPORT, "--format parquet", &new, &model, 0);
    fs::create_dir(model.join("_temporary")).unwrap();
    let said = says(IMPORT, "--format parquet", &new, &model, 16);
    assert!(
        said.contains("_temporary: is where Spark keeps files until all are written"),
        "{said}"
    );
}

/// Metadata that the table has and the folder lacks is 0, and that is said.
#[test]
fn metadata_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [store, other, model] = ["s", "o", "m"].map(|name| dir.path().join(name));
    let counts = RowMetadata::new().show(true).click(true);
    sample(
        &store,
        &table(Optimizer::Adagrad, 2).metadata(counts),
        &keys(20),
    );
    sample(
        &other,
        &table(Optimizer::Adagrad, 2).metadata(RowMetadata::new().show(true)),
        &keys(20),
    );
    json(EXPORT, "--format parquet", &other, &model, 0);
    let said = says(IMPORT, "--format parquet", &store, &model, 0);
    assert!(
        said.contains("not there: click, which the table has: 0 in all rows imported"),
        "{said}"
    );
    let told = json(IMPORT, "--format parquet", &store, &model, 0);
    assert_eq!(told["not_there"], serde_json::json!(["click"]));
    let told = json(IMPORT, "--format parquet", &other, &model, 0);
    assert_eq!(told["not_there"], serde_json::json!([]));
}

#[test]
fn flags_of_other_formats_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["s", "o"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adagrad, 2), &keys(20));
    for (flags, told) in [
        (
            "--format npy --compression zstd",
            "--compression is of --format parquet",
        ),
        (
            "--format parquet --lr 1",
            "--lr is of --format hugectr, not of parquet",
        ),
        ("--format parquet --localized", "is of --format hugectr"),
        ("--format parquet --after x", "--after is of --format delta"),
    ] {
        let said = says(EXPORT, flags, &store, &out, 16);
        assert!(said.contains(told), "{said}");
        assert!(!out.exists());
    }
}

//! Does the text of Paddle's parameter server come in and go out as Paddle has it, and is every bad line refused?
//!
//! `data/paddle` was written without a line of hps: `data/paddle.py`.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use hps::{Optimizer, RowMetadata, Store};
use hps_tools::models::paddle::whole;
use models::*;

/// Weights of a row: embed_w and three of embedx_w.
const DIM: usize = 4;
const FLAGS: &str = "--format paddle-text --accessor ctr-common --embedx-dim 3";

fn counts() -> RowMetadata {
    RowMetadata::new().show(true).click(true)
}

/// As `paddle.py` has it, before it is printed with six digits.
fn weight(key: u64, column: u64) -> f32 {
    f32::from(u16::try_from(key % 1009 * 7 + column).unwrap()) / 31.0 - 3.0
}

#[test]
fn a_table_of_paddle_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let flags =
        format!("{FLAGS} --embedx-rule adam --create --optimizer adagrad --accumulator 0.5");
    let said = says(IMPORT, &flags, &store, &data("paddle"), 0);
    for part in [
        "imported 81 rows",
        "weights only",
        "without an embedx part: ",
        "rounded",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let rows = all_rows(&store);
    assert_eq!((rows.len(), rows[80].0), (81, u64::MAX));
    let mut without = 0;
    for (key, row) in rows {
        let near = |column: usize| {
            let expected = weight(key, column as u64);
            (row[column] - expected).abs() <= 1e-5 * expected.abs().max(1e-3)
        };
        assert!(near(0), "{key}: {row:?}");
        let show = (key % 50) as f32 * 0.98;
        if (show - (key % 5) as f32) * 0.1 + (key % 5) as f32 >= 0.999 {
            assert!((1..DIM).all(near), "{key}: {row:?}");
        } else {
            assert_eq!(row[1..DIM], [0.0; 3], "{key}");
            without += 1;
        }
        assert_eq!(
            row[DIM..2 * DIM],
            [0.5; 4],
            "the state of a key never pushed"
        );
        let words: Vec<u32> = row[2 * DIM..].iter().map(|word| word.to_bits()).collect();
        assert_eq!(
            words,
            [
                whole(f64::from(show)).unwrap().0,
                u32::try_from(key % 5).unwrap()
            ],
            "{key}"
        );
    }
    let new = dir.path().join("n");
    let told = json(IMPORT, &flags, &new, &data("paddle"), 0);
    assert_eq!(told["without_embedx"], without);
    assert_eq!(digest(&store), digest(&new));
    // Wrong rules: the numbers do not fit.
    let flags = format!("{FLAGS} --create --optimizer sgd");
    let said = says(IMPORT, &flags, &dir.path().join("o"), &data("paddle"), 4);
    let part = "found 18 numbers behind the key, expected 7, or 11 with the embedx part";
    assert!(said.contains(part), "{said}");
}

#[test]
fn rows_come_back_to_the_bit() {
    for (rules, shards, threads) in [
        ("", 1, 1),
        ("--embed-rule naive --embedx-rule naive", 7, 2),
        ("--embed-rule adam --embedx-rule std-adagrad", 1000, 3),
        ("--embed-rule shared-adam --embedx-rule adam", 64, 2),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [store, out, new] = ["s", "o", "n"].map(|name| dir.path().join(name));
        sample(
            &store,
            &table(Optimizer::Sgd, DIM).metadata(counts()),
            &keys(20_000),
        );
        let more = format!("--shards {shards} --threads {threads}");
        let flags = format!("--format paddle-text --accessor ctr-common {rules} {more}");
        let told = json(EXPORT, &flags, &store, &out, 0);
        assert_eq!(
            (&told["rows"], told["files"].as_array().unwrap().len()),
            (&20_000.into(), shards)
        );
        let flags = format!("{FLAGS} {rules} --create --optimizer sgd");
        let told = json(IMPORT, &flags, &new, &out, 0);
        assert_eq!(
            (&told["rows"], &told["rounded"]),
            (&20_000.into(), &0.into())
        );
        assert_eq!(digest(&store), digest(&new), "{flags}");
    }
}

/// Paddle loads file i into shard i, whatever keys are in it.
#[test]
fn each_file_has_the_keys_of_its_shard() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out, again] = ["s", "o", "a"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adam, DIM), &keys(500));
    let flags =
        "--format paddle-text --accessor ctr-common --shards 7 --threads 1 --embedx-rule adam";
    let said = says(EXPORT, flags, &store, &out, 0);
    assert!(said.contains("left out: m, v, t"), "{said}");
    json(EXPORT, flags, &store, &again, 0);
    let mut lines = 0;
    for shard in 0..7 {
        let name = format!("part-000-{shard:05}");
        let text = fs::read_to_string(out.join(&name)).unwrap();
        assert_eq!(fs::read_to_string(again.join(&name)).unwrap(), text);
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(words[0].parse::<u64>().unwrap() % 7, shard);
            assert_eq!(words[1..6], ["-1", "0", "0", "0", "0"]);
            // embed_w with a g2sum; three of embedx_w with gsum, g2sum and the powers of both betas.
            let state = ["0", "0", "0", "0", "0", "0", "0.9", "0.999"];
            assert_eq!((words[7], &words[11..]), ("0", &state[..]));
            lines += 1;
        }
    }
    assert_eq!(lines, 500);
    let told = json(
        EXPORT,
        "--format paddle-text --accessor ctr-common",
        &store,
        &dir.path().join("d"),
        0,
    );
    assert_eq!(
        told["files"].as_array().unwrap().len(),
        1000,
        "shard_num of Paddle"
    );
    for flags in [
        "--format npy --shards 3",
        "--format paddle-text --accessor ctr-common --since 1",
        "--format paddle-text --accessor ctr-common --localized",
    ] {
        let said = says(EXPORT, flags, &store, &dir.path().join("x"), 16);
        assert!(said.contains("not of"), "{said}");
    }
}

/// Files are read in pieces of 4 MiB; each line is of one.
#[test]
fn files_of_several_pieces_are_read_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out, new] = ["s", "o", "n"].map(|name| dir.path().join(name));
    sample(
        &store,
        &table(Optimizer::Adagrad, 33).metadata(counts()),
        &keys(40_000),
    );
    json(
        EXPORT,
        "--format paddle-text --accessor ctr-common --shards 1",
        &store,
        &out,
        0,
    );
    let file = out.join("part-000-00000");
    assert!(file.metadata().unwrap().len() > 3 * (4 << 20));
    let flags = "--format paddle-text --accessor ctr-common --embedx-dim 32 --create --optimizer adagrad --threads 4";
    let told = json(IMPORT, flags, &new, &out, 0);
    assert_eq!(
        (&told["rows"], &told["keys"]),
        (&40_000.into(), &40_000.into())
    );
    for ((key, now), (other, before)) in all_rows(&new).iter().zip(all_rows(&store)) {
        assert_eq!((*key, &now[..33]), (other, &before[..33]));
    }
    // A fault in the last piece is named by its byte in the file.
    let mut text = fs::read_to_string(&file).unwrap();
    let at = text[..text.len() - 2000].rfind('\n').unwrap() + 1;
    text.replace_range(at..=at, "x");
    fs::write(&file, text).unwrap();
    let said = says(IMPORT, flags, &new, &out, 4);
    assert!(
        said.contains(&format!("part-000-00000: corrupt at byte {at}: found \"x")),
        "{said}"
    );
}

/// Rules of another table may give as many numbers: weights would be read a place further on.
#[test]
fn rules_of_another_table_are_refused_where_its_numbers_are_as_many() {
    let weights = |key: u64, count: u64| {
        let weight = |column| format!(" {}", weight(key, column) / 9.0);
        (0..count).map(weight).collect::<String>()
    };
    let lines = |line: &dyn Fn(u64) -> String| -> String {
        (1..200)
            .map(|key| format!("{key} 305 0 1.5 3 1{}\n", line(key)))
            .collect()
    };
    let embed_state = lines(&|key| format!("{} 0.25{}", weights(key, 1), weights(key + 7, 3)));
    let embedx_state = lines(&|key| format!("{} 0.25", weights(key, 4)));
    let none = lines(&|key| weights(key, 9));
    let shared = lines(&|key| {
        format!(
            "{} -0.1 0.2 0.9 0.99{} 0.5",
            weights(key, 1),
            weights(key + 7, 3)
        )
    });
    let (naive, adagrad, adam) = ("naive", "adagrad", "shared-adam");
    let base = "--format paddle-text --accessor ctr-common --create --optimizer sgd";
    for (text, right, wrong) in [
        (&embed_state, (adagrad, naive, 3), (naive, adagrad, 3)),
        (&embedx_state, (naive, adagrad, 3), (adagrad, naive, 3)),
        (&none, (naive, naive, 8), (adagrad, adagrad, 6)),
        (&shared, (adam, adagrad, 3), (adagrad, adam, 3)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [store, model] = ["s", "m"].map(|name| dir.path().join(name));
        fs::create_dir(&model).unwrap();
        fs::write(model.join("part-000-00000"), text).unwrap();
        let flags = |(embed, embedx, dim)| {
            format!("--embed-rule {embed}, --embedx-rule {embedx}, --embedx-dim {dim}")
        };
        let run = |rules| format!("{base} {}", flags(rules).replace(',', ""));
        let said = says(IMPORT, &run(wrong), &store, &model, 4);
        let why = format!(
            "the table has other rules or another dim than {}",
            flags(wrong)
        );
        assert!(
            said.contains("part-000-00000: corrupt at byte") && said.contains(&why),
            "{said}"
        );
        assert!(said.contains(" in the state of "), "{said}");
        let _made = fs::remove_dir_all(&store);
        let told = json(IMPORT, &run(right), &store, &model, 0);
        assert_eq!(told["rows"], 199);
    }
}

/// Metadata that no line has is 0, and that is said.
#[test]
fn metadata_that_paddle_does_not_have_is_named() {
    let bad = Bad::new(&[("part-000-00000", GOOD)]);
    let all = counts().count(true);
    let new = bad.dir.path().join("n");
    sample(&new, &table(Optimizer::Sgd, DIM).metadata(all), &keys(9));
    let said = says(IMPORT, FLAGS, &new, &bad.model, 0);
    assert!(
        said.contains("not there: count, which the table has: 0 in all rows imported"),
        "{said}"
    );
    let told = json(IMPORT, FLAGS, &bad.store, &bad.model, 0);
    assert_eq!(told["not_there"].as_array().unwrap().len(), 0);
}

/// A store that an import may not change, and a table of Paddle that can be changed.
struct Bad {
    dir: tempfile::TempDir,
    store: PathBuf,
    model: PathBuf,
}

const GOOD: &str = "1 -1 0 0 5 2 0.5 0 1 2 3 0\n2 -1 0 0 5 2 0.25 0\n";

impl Bad {
    fn new(files: &[(&str, &str)]) -> Bad {
        let dir = tempfile::tempdir().unwrap();
        let [store, model] = ["s", "m"].map(|name| dir.path().join(name));
        sample(
            &store,
            &table(Optimizer::Adagrad, DIM).metadata(counts()),
            &keys(9),
        );
        fs::create_dir(&model).unwrap();
        for (name, text) in files {
            fs::write(model.join(name), text).unwrap();
        }
        Bad { dir, store, model }
    }

    fn refused(&self, flags: &str, code: i32, parts: &[&str]) {
        refused(flags, &self.store, &self.model, code, parts);
    }
}

#[test]
fn bad_lines_are_named_with_their_byte() {
    let at = GOOD.len();
    let cases = [
        ("\n", 0, "an empty line, where Paddle stops to read"),
        (
            "-3 -1 0 0 5 2 0.5 0\n",
            0,
            "found \"-3\", expected a key of 0 to 18446744073709551615",
        ),
        (
            "18446744073709551616 -1 0 0 5 2 0.5 0\n",
            0,
            "expected a key",
        ),
        (
            "3 -1 0 0 5 2 0.5 zero\n",
            17,
            "found \"zero\", expected a number",
        ),
        (
            "3 -1 0 0 5 2\n",
            0,
            "found 5 numbers behind the key, expected 7, or 11 with the embedx part",
        ),
        ("3 -1 0 0 5 2 0.5 0 1 2 3\n", 0, "found 10 numbers"),
        (
            "3 -1 0 0 5 2 nan 0\n",
            13,
            "key 0x3 (the line of key 3 at byte 47): found NaN, expected a finite number; --non-finite",
        ),
        (
            "3 -1 0 0 5 2 0.5 0 1 -inf 3 0\n",
            21,
            "key 3 at byte 47): found -inf",
        ),
        (
            "3 -1 0 0 -5 2 0.5 0\n",
            0,
            "key 3: found -5 as its show, expected 0 to 4294967295",
        ),
        ("3 -1 0 0 5 5e9 0.5 0\n", 0, "as its click"),
        ("3 -1 0 0 5 2 0.5 0", 0, "the last line has no end"),
        ("\u{1}\u{0}\n", 0, "expected a key"),
    ];
    for (line, byte, part) in cases {
        let bad = Bad::new(&[
            ("part-000-00000", "7 -1 0 0 5 2 0.5 0\n"),
            ("part-000-00001", &format!("{GOOD}{line}")),
        ]);
        let place = format!("part-000-00001: corrupt at byte {}", at + byte);
        bad.refused(FLAGS, 4, &[&place, part]);
    }
    let long = format!("3 -1 0 0 5 2 0.{} 0\n", "5".repeat(1 << 20));
    for text in [
        long.clone(),
        format!("{}{long}", "1 -1 0 0 5 2 0.5 0\n".repeat(220_753)),
    ] {
        let bad = Bad::new(&[("part-000-00000", &text)]);
        bad.refused(FLAGS, 4, &["a line of more than 1048576 bytes"]);
    }
}

#[test]
fn a_key_that_stands_twice_is_refused_in_old_and_new_tables() {
    for (first, second, place) in [
        ("part-000-00000", "part-000-00001", "part-000-00000"),
        ("part-0", "part-1", "part-0"),
    ] {
        let bad = Bad::new(&[
            (first, GOOD),
            (second, "7 -1 0 0 5 2 0.5 0\n2 -1 0 0 5 2 0.25 0\n"),
        ]);
        let twice = format!(
            "key 0x2 of the line of key 2 at byte 19 stands in the line of key 2 at byte 27 of {}",
            bad.model.join(place).display()
        );
        let parts = [format!("{second}: corrupt at byte 19"), twice];
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        bad.refused(FLAGS, 4, &parts);
        let new = bad.dir.path().join("n");
        let said = says(
            IMPORT,
            &format!("{FLAGS} --create --optimizer sgd"),
            &new,
            &bad.model,
            4,
        );
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        let store = Store::open(&new, options()).unwrap();
        assert_eq!((store.checkpoints().len(), store.tables().len()), (0, 0));
    }
}

#[test]
fn files_of_gzip_must_be_whole() {
    let bad = Bad::new(&[]);
    let whole = fs::read(data("paddle").join("part-000-00001.gz")).unwrap();
    let name = bad.model.join("part-000-00001.gz");
    let flags = format!("{FLAGS} --embedx-rule adam");
    fs::write(&name, &whole[..whole.len() - 30]).unwrap();
    bad.refused(
        &flags,
        4,
        &[
            "part-000-00001.gz: corrupt at byte",
            "no whole file of gzip",
        ],
    );
    let mut other = whole.clone();
    let end = other.len() - 8;
    other[end] ^= 1;
    fs::write(&name, other).unwrap();
    bad.refused(&flags, 4, &["no whole file of gzip"]);
    fs::write(&name, GOOD).unwrap();
    bad.refused(&flags, 4, &["corrupt at byte 0", "no whole file of gzip"]);
    fs::write(&name, whole).unwrap();
    bad.refused(FLAGS, 4, &["once unpacked"]);
    json(IMPORT, &flags, &bad.store, &bad.model, 0);
}

#[test]
fn flags_and_folders_that_contradict_are_refused() {
    let bad = Bad::new(&[("part-000-00000", GOOD)]);
    bad.refused(
        "--format paddle-text --accessor sparse",
        16,
        &["--embedx-dim"],
    );
    bad.refused("--format paddle-text --embedx-dim 3", 16, &["--accessor"]);
    let double = "--format paddle-text --embedx-dim 3 --accessor ctr-double";
    bad.refused(double, 16, &["ctr-common, sparse"]);
    let eight = "--format paddle-text --accessor ctr-common --embedx-dim 8";
    bad.refused(
        eight,
        16,
        &["--embedx-dim 8: rows of 9 weights, with embed_w; expected 4"],
    );
    bad.refused(
        &format!("{FLAGS} --lr 0.5"),
        16,
        &["--lr is of --format hugectr, not of paddle-text"],
    );
    bad.refused(
        &format!("{FLAGS} --repair"),
        16,
        &["--repair is of --format hugectr and npy"],
    );
    bad.refused(
        "--format npy --embedx-dim 3",
        16,
        &["--embedx-dim is of --format paddle-text"],
    );
    let new = bad.dir.path().join("n");
    let said = says(IMPORT, &format!("{FLAGS} --create"), &new, &bad.model, 16);
    assert!(
        said.contains("name it by --optimizer") && !new.exists(),
        "{said}"
    );
    fs::write(bad.model.join("other"), "").unwrap();
    bad.refused(FLAGS, 16, &["other: is no file part-*"]);
    fs::remove_file(bad.model.join("other")).unwrap();
    fs::write(bad.model.join("_SUCCESS"), "").unwrap();
    json(IMPORT, FLAGS, &bad.store, &bad.model, 0);
    let empty = Bad::new(&[]);
    empty.refused(FLAGS, 16, &["it has no file part-*"]);
    let said = says(IMPORT, FLAGS, &empty.store, &empty.dir.path().join("x"), 16);
    assert!(said.contains("is no folder"), "{said}");
    // Empty files are an empty table.
    let empty = Bad::new(&[("part-000-00000", ""), ("part-000-00001", "")]);
    let told = json(IMPORT, FLAGS, &empty.store, &empty.model, 0);
    assert_eq!((&told["rows"], &told["keys"]), (&0.into(), &9.into()));
}

#[test]
fn rows_that_are_not_finite_are_skipped_or_taken() {
    let text = format!("{GOOD}3 -1 0 0 5 2 nan 0\n");
    let bad = Bad::new(&[("part-000-00000", &text)]);
    let keys = |store: &Path| -> BTreeMap<u64, Vec<f32>> { all_rows(store).into_iter().collect() };
    let [skip, apply] = ["k", "a"].map(|name| bad.dir.path().join(name));
    let flags = format!("{FLAGS} --create --optimizer sgd");
    let told = json(
        IMPORT,
        &format!("{flags} --non-finite skip"),
        &skip,
        &bad.model,
        0,
    );
    assert_eq!(
        (&told["rows"], &told["non_finite_rows"]),
        (&2.into(), &1.into())
    );
    assert!(!keys(&skip).contains_key(&3));
    json(
        IMPORT,
        &format!("{flags} --non-finite apply"),
        &apply,
        &bad.model,
        0,
    );
    assert!(keys(&apply)[&3][0].is_nan());
}

/// What the table has no place for, and what is left out because it was asked for.
#[test]
fn counts_go_where_the_table_has_them() {
    let bad = Bad::new(&[("part-000-00000", GOOD)]);
    let plain = bad.dir.path().join("p");
    sample(&plain, &table(Optimizer::Adagrad, DIM), &keys(3));
    let said = says(IMPORT, FLAGS, &plain, &bad.model, 0);
    assert!(
        said.contains("left out: click (2), for which the table has no column"),
        "{said}"
    );
    let new = bad.dir.path().join("n");
    let flags = format!("{FLAGS} --create --optimizer sgd --weights-only");
    json(IMPORT, &flags, &new, &bad.model, 0);
    assert_eq!(all_rows(&new)[0].1.len(), DIM);
    let out = bad.dir.path().join("out");
    let said = says(
        EXPORT,
        "--format paddle-text --accessor ctr-common --weights-only",
        &bad.store,
        &out,
        0,
    );
    assert!(said.contains("left out: a, show, click"), "{said}");
}

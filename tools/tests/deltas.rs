//! Do changes leave by `hps-export` and come in by `hps-import`, all of them and nothing else?
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;

use std::fs;
use std::path::Path;
use std::process::Command;

use hps::{Optimizer, PutRows, Store, TableId};
use models::*;
use serde_json::Value;

const DIM: usize = 4;
const CLICKS: TableId = TableId(0);

/// Runs a tool with exactly these arguments; what it said.
fn tool(program: &str, flags: &str, paths: &[&Path], code: i32) -> String {
    let mut command = Command::new(program);
    let output = command.args(flags.split_whitespace()).args(paths);
    let output = output.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(output.status.code(), Some(code), "{flags}: {text}");
    text
}

fn told(program: &str, flags: &str, paths: &[&Path]) -> Value {
    let text = tool(program, &format!("{flags} --json"), paths, 0);
    serde_json::from_str(&text).unwrap()
}

/// Rows of these keys change, others are removed; a checkpoint.
fn train(directory: &Path, step: u64, changed: &[u64], removed: &[u64]) -> u64 {
    let options = options().retain_checkpoints(3);
    let store = Store::open(directory, options).unwrap();
    let descriptor = table(Optimizer::Adam, DIM);
    let shifted: Vec<u64> = changed.iter().map(|key| key ^ step).collect();
    let values = rows(&descriptor, &shifted);
    store.put(CLICKS, changed, PutRows::whole(&values)).unwrap();
    store.remove(CLICKS, removed).unwrap();
    let id = store.checkpoint(step, b"dense").unwrap().id;
    store.close().unwrap();
    id.0
}

#[test]
fn a_copy_follows_by_deltas() {
    let dir = tempfile::tempdir().unwrap();
    let [store, copy] = ["store", "copy"].map(|name| dir.path().join(name));
    let delta = |n: u64| dir.path().join(format!("delta-{n}"));
    let all = keys(5000);
    sample(&store, &table(Optimizer::Adam, DIM), &all);
    let first = told(EXPORT, "--format delta", &[&store, &delta(0)]);
    assert_eq!(first["rows"], 5000);
    assert_eq!((&first["since"], &first["removed"]), (&0.into(), &0.into()));
    let made = told(IMPORT, "--format delta --create", &[&copy, &delta(0)]);
    assert_eq!((&made["is_new"], &made["step"]), (&true.into(), &5.into()));
    assert_eq!(digest(&copy), digest(&store));
    for n in 1..4 {
        let begin = usize::try_from(n).unwrap() * 100;
        train(
            &store,
            10 + n,
            &all[begin..begin + 50],
            &all[begin + 80..begin + 90],
        );
        let before = delta(n - 1);
        let flags = format!("--format delta --after {}", before.display());
        let made = told(EXPORT, &flags, &[&store, &delta(n)]);
        assert_eq!((&made["rows"], &made["removed"]), (&50.into(), &10.into()));
        assert_eq!(made["sequence"], n);
        if n == 2 {
            // One that does not follow is refused, and nothing is lost.
            let gap = tool(IMPORT, "--format delta", &[&copy, &delta(3)], 16);
            assert!(gap.contains("there is no such folder"), "{gap}");
        }
        let text = tool(IMPORT, "--format delta", &[&copy, &delta(n)], 0);
        assert!(text.contains("50 rows and 10 removed keys"), "{text}");
        assert_eq!(digest(&copy), digest(&store), "delta {n}");
        let again = tool(IMPORT, "--format delta", &[&copy, &delta(n)], 0);
        assert!(again.contains("applied before: nothing to do"), "{again}");
    }
    let older = tool(IMPORT, "--format delta", &[&copy, &delta(1)], 16);
    assert!(older.contains("an older one"), "{older}");
    fs::remove_file(delta(3).join("DELTA")).unwrap();
    let cut = tool(IMPORT, "--format delta", &[&copy, &delta(3)], 16);
    assert!(cut.contains("there is no file DELTA"), "{cut}");
    let taken = tool(EXPORT, "--format delta", &[&store, &delta(2)], 8);
    assert!(taken.contains("is there already"), "{taken}");
    let gone = dir.path().join("gone");
    let flags = format!("--format delta --after {}", delta(0).display());
    let text = tool(EXPORT, &flags, &[&store, &gone], 16);
    assert!(text.contains("is not kept"), "{text}");
    assert!(!gone.exists(), "nothing is left");
}

#[test]
fn an_export_of_changes_has_them_and_the_removed_keys() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let all = keys(3000);
    sample(&store, &table(Optimizer::Adam, DIM), &all);
    let (changed, removed) = (&all[500..700], &all[1000..1030]);
    train(&store, 7, changed, removed);
    let sorted = |mut keys: Vec<u64>| {
        keys.sort_unstable();
        keys
    };
    let wanted = all_rows(&store).into_iter();
    let wanted: Vec<_> = wanted.filter(|(key, _)| changed.contains(key)).collect();
    for format in ["hugectr", "npy"] {
        let out = dir.path().join(format);
        let flags = format!("--format {format} --since 1");
        let told = json(EXPORT, &flags, &store, &out, 0);
        assert_eq!((&told["rows"], &told["removed"]), (&200.into(), &30.into()));
        assert_eq!(told["since"], 1);
        let (gone, keys, weights, head) = match format {
            "npy" => ("removed.npy", "keys.npy", "weights.npy", 128),
            _ => ("removed", "key", "emb_vector", 0),
        };
        let words = |name: &str| {
            let bytes = fs::read(out.join(name)).unwrap();
            let (words, rest) = bytes[head..].as_chunks::<8>();
            assert!(rest.is_empty());
            let words = words.iter().map(|word| u64::from_le_bytes(*word));
            words.collect::<Vec<u64>>()
        };
        assert_eq!(sorted(words(gone)), sorted(removed.to_vec()));
        let found = words(keys);
        assert_eq!(sorted(found.clone()), sorted(changed.to_vec()));
        let bytes = fs::read(out.join(weights)).unwrap();
        let (numbers, _) = bytes[head..].as_chunks::<4>();
        let rows = numbers.chunks_exact(DIM);
        for (key, row) in found.iter().zip(rows) {
            let row: Vec<f32> = row.iter().map(|n| f32::from_le_bytes(*n)).collect();
            let place = wanted.iter().find(|(k, _)| k == key).unwrap();
            assert_eq!(row, place.1[..DIM], "{key:#x}");
        }
    }
    let out = dir.path().join("delta");
    let told = told(EXPORT, "--format delta --since 1", &[&store, &out]);
    assert_eq!((&told["rows"], &told["removed"]), (&200.into(), &30.into()));
    let out = dir.path().join("nowhere");
    let gone = says(EXPORT, "--format npy --since 9", &store, &out, 16);
    assert!(gone.contains("since checkpoint 9 is not kept"), "{gone}");
}

#[test]
fn flags_of_other_formats_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["store", "out"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adam, DIM), &keys(10));
    for (program, flags, named) in [
        (
            EXPORT,
            "--format delta --weights-only",
            "--weights-only is not of",
        ),
        (EXPORT, "--format delta --table clicks", "--table is not of"),
        (EXPORT, "--format delta --lr 0.5", "--lr is not of"),
        (
            EXPORT,
            "--format npy --table clicks --after x",
            "--after is of --format delta",
        ),
        (EXPORT, "--format npy", "--table"),
        (IMPORT, "--format delta --step 3", "--step is not of"),
        (IMPORT, "--format delta --repair", "--repair is not of"),
        (
            IMPORT,
            "--format delta --non-finite skip",
            "--non-finite is not of",
        ),
        (IMPORT, "--format hugectr", "--table"),
        (
            EXPORT,
            "--format delta --threads 2 --lr 0.5",
            "--lr is not of --format delta, which has all of a store",
        ),
        (
            EXPORT,
            "--format delta --lr 0.5 --shards 3",
            "--shards is not of",
        ),
        (
            EXPORT,
            "--format deeprec --table clicks --since 1",
            "--since is of --format hugectr, npy and parquet, not of deeprec",
        ),
        (
            IMPORT,
            "--format delta --threads 2 --repair --step 3",
            "--step is not of --format delta, which has all of a store",
        ),
    ] {
        let text = tool(program, flags, &[&store, &out], 16);
        assert!(text.contains(named), "{flags}: {text}");
    }
    let none = tool(IMPORT, "--format delta", &[&store, &out], 16);
    assert!(none.contains("there is no such folder"), "{none}");
    assert!(!out.exists());
}

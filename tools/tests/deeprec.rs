//! Do EmbeddingVariables of DeepRec come in and go out as TensorFlow has them?
//!
//! `data/deeprec` was written by TensorFlow: `data/deeprec.py`.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;

use hps::{Optimizer, RowMetadata};
use models::*;

const DIM: usize = 4;
const FLAGS: &str = "--format deeprec";

/// As `deeprec.py` has it.
fn value(key: u64, column: u64) -> f32 {
    (key % 4099 * 8 + column) as f32 / 64.0
}

fn numbers(key: u64, first: u64) -> Vec<f32> {
    (first..first + DIM as u64)
        .map(|column| value(key, column))
        .collect()
}

#[test]
fn a_checkpoint_of_tensorflow_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let [store, again, out] = ["s", "a", "o"].map(|name| dir.path().join(name));
    let flags = format!("{FLAGS} --create --variable user");
    let told = json(IMPORT, &flags, &store, &data("deeprec"), 0);
    assert_eq!(
        (&told["rows"], &told["optimizer"]),
        (&5.into(), &"Adagrad".into())
    );
    assert_eq!(told["not_taken"]["filtered keys"], 2);
    let found = all_rows(&store);
    let keys: Vec<u64> = found.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, [3, 5, 998, 1003, 1 << 40]);
    for (key, row) in found {
        assert_eq!(row[..DIM], numbers(key, 0), "weights of {key}");
        assert_eq!(
            row[DIM..2 * DIM],
            numbers(key, 100),
            "accumulators of {key}"
        );
        let counts = [key % 7 + 1, key % 31].map(|word| u32::try_from(word).unwrap());
        assert_eq!(
            row[2 * DIM..]
                .iter()
                .map(|word| word.to_bits())
                .collect::<Vec<_>>(),
            counts
        );
    }
    // Out again, and back, to the bit.
    json(EXPORT, &format!("{FLAGS} --variable a/b"), &store, &out, 0);
    json(
        IMPORT,
        &format!("{FLAGS} --create --variable a/b"),
        &again,
        &out,
        0,
    );
    assert_eq!(digest(&store), digest(&again));
}

#[test]
fn all_partitions_and_both_slots_of_adam_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let flags = format!("{FLAGS} --create --variable deep/item");
    let said = says(IMPORT, &flags, &store, &data("deeprec"), 16);
    assert!(said.contains("--adam-step") && !store.exists(), "{said}");
    let prefix = data("deeprec").join("model.ckpt-30");
    let told = json(
        IMPORT,
        &format!("{flags} --adam-step 30"),
        &store,
        &prefix,
        0,
    );
    assert_eq!((&told["rows"], &told["keys"]), (&20.into(), &20.into()));
    let found = all_rows(&store);
    assert_eq!(found.len(), 20);
    for (key, row) in found {
        let expected = [numbers(key, 0), numbers(key, 100), numbers(key, 200)].concat();
        assert_eq!(row[..3 * DIM], expected, "{key}");
        // The step count, and count; there is no last_step.
        assert_eq!((row[3 * DIM], row.len()), (30.0, 3 * DIM + 2));
        assert_eq!(u64::from(row[3 * DIM + 1].to_bits()), key % 7 + 1);
    }
}

#[test]
fn what_a_table_has_no_place_for_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [store, old] = ["s", "o"].map(|name| dir.path().join(name));
    let shop = format!("{FLAGS} --create --variable shop");
    let said = says(IMPORT, &shop, &store, &data("deeprec"), 16);
    assert!(said.contains("name it by --optimizer"), "{said}");
    let said = says(
        IMPORT,
        &format!("{shop} --optimizer adagrad"),
        &store,
        &data("deeprec"),
        0,
    );
    for part in [
        "weights only",
        "left out: slot AdagradDecay (2)",
        "slot AdagradDecay_1 (2)",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = says(
        IMPORT,
        &format!("{FLAGS} --create --variable item"),
        &store,
        &data("deeprec"),
        16,
    );
    let there =
        r#"no EmbeddingVariable "item": among those that are there: {"deep/item", "shop", "user"}"#;
    assert!(said.contains(there), "{said}");
    // A table of another optimizer, and one without metadata.
    sample(&old, &table(Optimizer::Ftrl, DIM), &keys(9));
    let user = format!("{FLAGS} --variable user");
    let said = says(IMPORT, &user, &old, &data("deeprec"), 16);
    assert!(said.contains("Adagrad is no state of Ftrl"), "{said}");
    json(
        IMPORT,
        &format!("{user} --weights-only"),
        &old,
        &data("deeprec"),
        0,
    );
    let old = dir.path().join("adagrad");
    sample(&old, &table(Optimizer::Adagrad, DIM), &keys(9));
    let said = says(IMPORT, &user, &old, &data("deeprec"), 0);
    for part in ["left out: count (5), for", "left out: last_step (5), for"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(all_rows(&old).len(), 9 + 4, "3 was there before");
}

/// Metadata alone: state is then that of a key never pushed.
#[test]
fn counts_come_without_slots() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out, new] = ["s", "o", "n"].map(|name| dir.path().join(name));
    let counts = RowMetadata::new().count(true).last_step(true);
    sample(
        &store,
        &table(Optimizer::Sgd, DIM).metadata(counts),
        &keys(50),
    );
    json(EXPORT, FLAGS, &store, &out, 0);
    let flags = format!("{FLAGS} --create --optimizer ftrl --accumulator 0.5");
    let said = says(IMPORT, &flags, &new, &out, 0);
    assert!(said.contains("weights only"), "{said}");
    for ((_, now), (_, before)) in all_rows(&new).iter().zip(all_rows(&store)) {
        assert_eq!(now[..DIM], before[..DIM]);
        assert_eq!(now[DIM..3 * DIM], [[0.0; DIM], [0.5; DIM]].concat());
        assert_eq!(now[3 * DIM..].len(), 2);
        for (now, before) in now[3 * DIM..].iter().zip(&before[DIM..]) {
            assert_eq!(now.to_bits(), before.to_bits());
        }
    }
}

#[test]
fn rows_come_back_to_the_bit() {
    let counts = RowMetadata::new().count(true).last_step(true);
    for (optimizer, flags) in [
        (Optimizer::Sgd, "--optimizer sgd"),
        (Optimizer::Adagrad, ""),
        (Optimizer::Adam, "--adam-step 7"),
        (Optimizer::Ftrl, ""),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [store, out, new] = ["s", "o", "n"].map(|name| dir.path().join(name));
        sample(&store, &table(optimizer, 6).metadata(counts), &keys(30_000));
        let told = json(EXPORT, FLAGS, &store, &out, 0);
        assert!(told["negative_keys"].as_u64().unwrap() > 1000, "{told}");
        json(IMPORT, &format!("{FLAGS} --create {flags}"), &new, &out, 0);
        assert_eq!(digest(&store), digest(&new), "{optimizer:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let [store, out] = ["s", "o"].map(|name| dir.path().join(name));
    let show = RowMetadata::new().show(true);
    sample(
        &store,
        &table(Optimizer::RowwiseAdagrad, 6).metadata(show),
        &keys(10),
    );
    let said = says(EXPORT, FLAGS, &store, &out, 0);
    assert!(said.contains("left out: a, show"), "{said}");
    assert!(said.contains("keys of 2^63 and more"), "{said}");
    says(
        EXPORT,
        &format!("{FLAGS} --since 1"),
        &store,
        &dir.path().join("p"),
        16,
    );
    says(
        EXPORT,
        "--format npy --variable v",
        &store,
        &dir.path().join("p"),
        16,
    );
}

/// Where a variable does not keep -freqs, they are empty: the metadata of a table that has it is 0, and that is said.
#[test]
fn metadata_that_a_variable_does_not_keep_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out, new] = ["s", "o", "n"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Sgd, DIM), &keys(20));
    json(EXPORT, FLAGS, &store, &out, 0);
    let counts = RowMetadata::new().count(true).last_step(true);
    sample(&new, &table(Optimizer::Sgd, DIM).metadata(counts), &keys(9));
    let told = json(IMPORT, FLAGS, &new, &out, 0);
    assert_eq!(told["not_there"], serde_json::json!(["count", "last_step"]));
}

#[test]
fn an_empty_variable_is_legal() {
    let dir = tempfile::tempdir().unwrap();
    let [store, out, new] = ["s", "o", "n"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adagrad, DIM), &[]);
    json(EXPORT, FLAGS, &store, &out, 0);
    json(IMPORT, &format!("{FLAGS} --create"), &new, &out, 0);
    assert_eq!(digest(&store), digest(&new));
}

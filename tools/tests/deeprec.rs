//! Do EmbeddingVariables of DeepRec come in and go out as TensorFlow has them, and is every bad checkpoint refused?
//!
//! `data/deeprec` was written by TensorFlow: `data/deeprec.py`.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use hps::{Optimizer, RowMetadata, Store};
use hps_tools::models::deeprec::bundle::Entry;
use hps_tools::models::deeprec::table;
use models::*;

const DIM: usize = 4;
const FLAGS: &str = "--format deeprec";

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/deeprec")
}

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
    let told = json(IMPORT, &flags, &store, &fixture(), 0);
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
    let said = says(IMPORT, &flags, &store, &fixture(), 16);
    assert!(said.contains("--adam-step") && !store.exists(), "{said}");
    let prefix = fixture().join("model.ckpt-30");
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
    let said = says(IMPORT, &shop, &store, &fixture(), 16);
    assert!(said.contains("name it by --optimizer"), "{said}");
    let said = says(
        IMPORT,
        &format!("{shop} --optimizer adagrad"),
        &store,
        &fixture(),
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
        &fixture(),
        16,
    );
    let there =
        r#"no EmbeddingVariable "item": among those that are there: {"deep/item", "shop", "user"}"#;
    assert!(said.contains(there), "{said}");
    // A table of another optimizer, and one without metadata.
    sample(&old, &table(Optimizer::Ftrl, DIM), &keys(9));
    let user = format!("{FLAGS} --variable user");
    let said = says(IMPORT, &user, &old, &fixture(), 16);
    assert!(said.contains("Adagrad is no state of Ftrl"), "{said}");
    json(
        IMPORT,
        &format!("{user} --weights-only"),
        &old,
        &fixture(),
        0,
    );
    let old = dir.path().join("adagrad");
    sample(&old, &table(Optimizer::Adagrad, DIM), &keys(9));
    let said = says(IMPORT, &user, &old, &fixture(), 0);
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

/// A store that an import may not change, and a checkpoint that can be changed.
struct Bad {
    dir: tempfile::TempDir,
    store: PathBuf,
    model: PathBuf,
}

impl Bad {
    fn new() -> Bad {
        let dir = tempfile::tempdir().unwrap();
        let [store, model] = ["s", "m"].map(|name| dir.path().join(name));
        sample(&store, &table(Optimizer::Adagrad, DIM), &keys(9));
        fs::create_dir(&model).unwrap();
        for entry in fs::read_dir(fixture()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
        }
        Bad { dir, store, model }
    }

    fn data(&self) -> PathBuf {
        self.model.join("model.ckpt-30.data-00000-of-00001")
    }

    fn index(&self) -> PathBuf {
        self.model.join("model.ckpt-30.index")
    }

    /// All tensors of the index.
    fn entries(&self) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        let bytes = fs::read(self.index()).unwrap();
        let read = table::each(&bytes, |key, value, _| {
            found.insert(String::from_utf8(key.to_vec()).unwrap(), value.to_vec());
            Ok(())
        });
        read.unwrap();
        found
    }

    /// Changes the index, whose checksums are then right.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) {
        let mut entries = self.entries();
        change(&mut entries);
        let all: Vec<_> = entries
            .into_iter()
            .map(|(key, value)| (key.into_bytes(), value))
            .collect();
        fs::write(self.index(), table::write(&all)).unwrap();
    }

    /// Changes what the index says of a tensor.
    fn edit(&self, name: &str, change: impl FnOnce(&mut Entry)) {
        self.change(|entries| {
            let mut entry = Entry::read(&entries[name]).unwrap();
            change(&mut entry);
            entries.insert(name.to_owned(), entry.write());
        });
    }

    fn refused(&self, flags: &str, code: i32, parts: &[&str]) {
        let before = digest(&self.store);
        let flags = format!("{FLAGS} {flags}");
        let said = says(IMPORT, &flags, &self.store, &self.model, code);
        for part in parts {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(digest(&self.store), before);
        let store = Store::open_read_only(&self.store, None, options()).unwrap();
        assert_eq!(store.checkpoints().len(), 1, "no checkpoint is made");
    }
}

const USER: &str = "--variable user";

#[test]
fn bytes_that_do_not_have_their_checksum_are_refused() {
    let bad = Bad::new();
    for name in ["user-keys", "user-values", "user/Adagrad-values"] {
        let bad = Bad::new();
        let entry = Entry::read(&bad.entries()[name]).unwrap();
        let mut bytes = fs::read(bad.data()).unwrap();
        bytes[usize::try_from(entry.offset).unwrap()] ^= 1;
        fs::write(bad.data(), bytes).unwrap();
        let place = format!("data-00000-of-00001: corrupt at byte {}", entry.offset);
        let twin = "user/Adagrad-keys: row 0 is of another key";
        let sum = format!("{name}: {} bytes of checksum", entry.size);
        let parts = [
            place.as_str(),
            if name == "user-keys" { twin } else { &sum },
        ];
        bad.refused(
            USER,
            4,
            if name == "user-keys" {
                &parts[1..]
            } else {
                &parts
            },
        );
        if name == "user-keys" {
            bad.refused("--variable user --weights-only", 4, &[&place, &sum]);
        }
    }
    let mut index = fs::read(bad.index()).unwrap();
    index[100] ^= 1;
    fs::write(bad.index(), index).unwrap();
    bad.refused(USER, 4, &[".index: corrupt at byte 0: a block of checksum"]);
}

#[test]
fn an_index_that_contradicts_its_data_is_refused() {
    let with = |name: &str, change: &dyn Fn(&mut Entry), code: i32, parts: &[&str]| {
        let bad = Bad::new();
        bad.edit(name, change);
        bad.refused(USER, code, parts);
    };
    let cut = "the file ends here; user-values has 80 bytes";
    with(
        "user-values",
        &|e| e.offset = 1 << 40,
        4,
        &["corrupt at byte 6148", cut],
    );
    with("user-values", &|e| e.offset = u64::MAX, 4, &[cut]);
    with(
        "user-values",
        &|e| e.shard = 1,
        4,
        &["user-values: in data file 1 of 1"],
    );
    with(
        "user-values",
        &|e| e.size = 81,
        4,
        &["a shape [5, 4] of 81 bytes"],
    );
    with(
        "user-values",
        &|e| e.shape = vec![u64::MAX, 4],
        4,
        &["a shape"],
    );
    with(
        "user-values",
        &|e| e.shape = vec![20],
        4,
        &["expected 2 axes"],
    );
    let four = |e: &mut Entry| (e.shape, e.size) = (vec![4, 4], 64);
    with(
        "user-values",
        &four,
        4,
        &["user-values: found 4 rows, expected 5"],
    );
    with(
        "user/Adagrad-values",
        &four,
        4,
        &["user/Adagrad-values: found 4 rows"],
    );
    let three = |e: &mut Entry| (e.shape, e.size) = (vec![3], 24);
    with(
        "user-freqs",
        &three,
        4,
        &["user-freqs: found 3 rows, expected 5"],
    );
    let wide = |e: &mut Entry| (e.shape, e.size) = (vec![5, 8], 160);
    with("user-values", &wide, 16, &["rows of 8 weights, expected 4"]);
    with(
        "user-values",
        &|e| e.dtype = 19,
        16,
        &["user-values is of type 19", "float32"],
    );
    with(
        "user-keys",
        &|e| e.dtype = 3,
        16,
        &["user-keys is of type 3", "int64"],
    );
    let missing = |name: &str, flags: &str, code: i32, part: &str| {
        let bad = Bad::new();
        bad.change(|entries| drop(entries.remove(name)));
        bad.refused(flags, code, &[part]);
    };
    missing("user-values", USER, 4, "user-values is not there");
    missing(
        "user/Adagrad-keys",
        USER,
        4,
        "user/Adagrad-keys is not there",
    );
    missing("", USER, 4, "no entry of the empty key");
    let item = "--variable deep/item --weights-only";
    missing(
        "deep/item/part_0-keys",
        item,
        4,
        "deep/item/part_0 is not there, later",
    );
    let uneven =
        "one partition has [\"Adam\", \"Adam_1\", \"count\"], another [\"Adam\", \"count\"]";
    missing(
        "deep/item/part_1/Adam_1-values",
        "--variable deep/item",
        4,
        uneven,
    );
    let bad = Bad::new();
    resize(&bad.data(), -6100);
    bad.refused(USER, 4, &["the file ends here", "cut off"]);
    fs::remove_file(bad.data()).unwrap();
    bad.refused(USER, 8, &["open", "data-00000-of-00001"]);
    fs::write(bad.index(), b"").unwrap();
    bad.refused(USER, 4, &["found 0 bytes"]);
    bad.refused(
        "--repair",
        16,
        &["--repair is of --format hugectr and npy, not of deeprec"],
    );
    bad.refused("--lr 0.5", 16, &["--lr is of --format hugectr"]);
    fs::remove_file(bad.index()).unwrap();
    bad.refused(USER, 16, &["it has no file *.index"]);
    let said = says(IMPORT, FLAGS, &bad.store, &bad.dir.path().join("x"), 16);
    assert!(said.contains("no checkpoint"), "{said}");
}

/// Slots whose rows come in another order would give each key the state of another.
#[test]
fn slots_of_other_keys_are_refused() {
    let bad = Bad::new();
    bad.change(|entries| {
        let keys = entries["user-versions"].clone();
        entries.insert(String::from("user/Adagrad-keys"), keys);
    });
    let other = "user/Adagrad-keys: row 1 is of another key than row 1 of the variable";
    bad.refused(USER, 4, &[other, "--weights-only"]);
}

#[test]
fn a_key_in_two_partitions_is_refused() {
    let bad = Bad::new();
    bad.change(|entries| {
        let keys = entries["deep/item/part_0-keys"].clone();
        entries.insert(String::from("deep/item/part_1-keys"), keys);
    });
    let flags = "--variable deep/item --weights-only";
    let twice = "key 0x0 of row 0 of deep/item/part_1-keys stands in row 0 of deep/item/part_0-keys as well";
    bad.refused(flags, 4, &[twice]);
    // Into an empty table, where it is found at the end.
    let new = bad.dir.path().join("n");
    let flags = format!("{FLAGS} {flags} --create --optimizer sgd");
    let said = says(IMPORT, &flags, &new, &bad.model, 4);
    assert!(said.contains(twice), "{said}");
    let store = Store::open(&new, options()).unwrap();
    assert_eq!(store.checkpoints().len(), 0);
}

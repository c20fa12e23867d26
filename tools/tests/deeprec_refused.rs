//! Is every bad checkpoint of DeepRec refused before a row of it is durable?
//!
//! `data/deeprec` was written by TensorFlow: `data/deeprec.py`.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hps::{Optimizer, Store};
use hps_tools::models::deeprec::bundle::Entry;
use hps_tools::models::deeprec::table;
use models::*;

const DIM: usize = 4;
const FLAGS: &str = "--format deeprec";

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
        for entry in fs::read_dir(data("deeprec")).unwrap() {
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
        let flags = format!("{FLAGS} {flags}");
        refused(&flags, &self.store, &self.model, code, parts);
    }
}

/// What the index says of each tensor, by its name.
type Entries = BTreeMap<String, Vec<u8>>;

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
    let bad = Bad::new();
    bad.change(|entries| entries.retain(|name, _| !name.starts_with("deep/item/part_1/Adam_1")));
    bad.refused("--variable deep/item", 4, &[uneven]);
    missing(
        "deep/item/part_1/Adam_1-values",
        "--variable deep/item",
        4,
        "deep/item/part_1/Adam_1-values is not there",
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

/// A variable with a tier on SSD has only the rows in memory in its tensors: they were imported as if they were all.
#[test]
fn rows_on_ssd_are_not_passed_over() {
    for (variable, file) in [
        ("user", "model.ckpt-30-user-ssd_record.index"),
        ("user", "model.ckpt-30-user-emb_files"),
        (
            "deep/item",
            "model.ckpt-30-deep_item_part_1-ssd_record.index",
        ),
    ] {
        let bad = Bad::new();
        fs::write(bad.model.join(file), b"").unwrap();
        let flags = format!("--variable {variable} --weights-only");
        bad.refused(&flags, 16, &[file, "are on SSD", "DRAM alone"]);
        // Other variables are whole.
        let other = format!("{FLAGS} --variable shop --weights-only");
        json(IMPORT, &other, &bad.store, &bad.model, 0);
    }
}

#[test]
fn no_tensor_vanishes() {
    let with = |change: &dyn Fn(&mut Entries), flags: &str, part: &str| {
        let bad = Bad::new();
        bad.change(change);
        bad.refused(flags, 4, &[".index: corrupt at byte", part]);
    };
    let item = "--variable deep/item --weights-only";
    let there = |name: &str, other: &str| format!("{name} is there, {other} is not");
    let own = |end: &str| format!("deep/item/part_1{end}");
    // The keys of the last partition are not there: it was left out as a whole.
    let lost = there(&own("-freqs"), &own("-keys"));
    with(
        &|all| drop(all.remove("deep/item/part_1-keys")),
        item,
        &lost,
    );
    let lost = there(&own("/Adam-freqs"), &own("-keys"));
    let only_slots = |all: &mut Entries| {
        all.retain(|name, _| !name.starts_with("deep/item/part_1-"));
    };
    with(&only_slots, item, &lost);
    // State of which the keys alone are there.
    with(
        &|all| drop(all.remove("user/Adagrad-values")),
        USER,
        "user/Adagrad-values is not there",
    );
    let copy = |from: &'static str, to: &'static str| {
        move |all: &mut Entries| {
            let entry = all[from].clone();
            all.insert(to.to_owned(), entry);
        }
    };
    // The same partition by two names.
    let twice = copy("deep/item/part_1-keys", "deep/item/part_01-keys");
    let said = "deep/item/part_1-keys: another tensor is of deep/item/part_1 as well";
    with(&twice, item, said);
    // Beside partitions.
    let from = "deep/item/part_1-values";
    for name in ["deep/item-values", "deep/item/Adam-values"] {
        with(&copy(from, name), item, &there(name, "deep/item-keys"));
    }
    // A number that is none of a partition.
    let far = copy("deep/item/part_1-keys", "deep/item/part_99999999999-keys");
    with(&far, item, "deep/item/part_2 is not there, later");
    // Another variable, whose name begins with that of this one.
    let bad = Bad::new();
    bad.change(copy(from, "deep/item/other-values"));
    let flags = format!("{FLAGS} --create --variable deep/item --adam-step 1");
    let new = bad.dir.path().join("n");
    let told = json(IMPORT, &flags, &new, &bad.model, 0);
    assert_eq!(told["not_taken"]["slot other"], 10, "{told}");
}

/// The keys of a slot are compared with those of its variable, and so is their checksum.
#[test]
fn a_checksum_of_the_keys_of_a_slot_that_is_not_theirs_is_refused() {
    let bad = Bad::new();
    bad.edit("user/Adagrad-keys", |entry| entry.crc ^= 1);
    bad.refused(USER, 4, &["user/Adagrad-keys: 40 bytes of checksum"]);
    let flags = format!("{FLAGS} {USER} --weights-only");
    json(IMPORT, &flags, &bad.store, &bad.model, 0);
}

#[test]
fn a_row_of_a_later_partition_that_is_not_finite_is_named() {
    let bad = Bad::new();
    let name = "deep/item/part_1-values";
    let entry = Entry::read(&bad.entries()[name]).unwrap();
    let row = 3;
    let place = usize::try_from(entry.offset).unwrap() + 4 * (row * DIM + 2);
    let mut bytes = fs::read(bad.data()).unwrap();
    bytes[place..place + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(bad.data(), &bytes).unwrap();
    let begin = usize::try_from(entry.offset).unwrap();
    let end = begin + usize::try_from(entry.size).unwrap();
    bad.edit(name, |entry| entry.crc = crc32c::crc32c(&bytes[begin..end]));
    // Its keys are the odd ones: 1, 3, 5, 7.
    let said = format!("key 0x7 (row 3 of {name}): found NaN, expected a finite number");
    let at = format!("data-00000-of-00001: corrupt at byte {place}");
    let item = "--variable deep/item --weights-only";
    bad.refused(item, 4, &[&said, &at]);
    let flags = format!("{FLAGS} {item} --non-finite skip");
    let told = json(IMPORT, &flags, &bad.store, &bad.model, 0);
    assert_eq!(
        (&told["rows"], &told["non_finite_rows"]),
        (&19.into(), &1.into())
    );
}

/// The slots of each partition were looked for among all tensors: minutes, with so many.
#[test]
fn many_partitions_are_looked_at_quickly() {
    let bad = Bad::new();
    bad.change(|all| {
        let empty = |name: &str, shape: &[u64]| {
            let mut entry = Entry::read(&all[name]).unwrap();
            (entry.shape, entry.size, entry.crc) = (shape.to_vec(), 0, 0);
            entry.write()
        };
        let keys = empty("deep/item/part_1-keys", &[0]);
        let values = empty("deep/item/part_1-values", &[0, 4]);
        for part in 2..40_000 {
            all.insert(format!("deep/item/part_{part}-keys"), keys.clone());
            all.insert(format!("deep/item/part_{part}-values"), values.clone());
        }
    });
    let begin = Instant::now();
    let new = bad.dir.path().join("n");
    let flags = format!("{FLAGS} --create --variable deep/item --adam-step 1");
    let told = json(IMPORT, &flags, &new, &bad.model, 0);
    assert_eq!(told["rows"], 20);
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(30), "{took:?}");
}

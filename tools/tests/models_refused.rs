//! Is every bad model refused with the file, the place and the way out, and is the store then as it was?
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hps::{Optimizer, Store};
use models::*;

const DIM: usize = 6;
const ROWS: u64 = 500;

/// A store, and a model of another with the same table and other rows.
struct Pair {
    dir: tempfile::TempDir,
    store: PathBuf,
    model: PathBuf,
}

fn pair(optimizer: Optimizer, format: &str) -> Pair {
    let dir = tempfile::tempdir().unwrap();
    let [store, other, model] = ["s", "o", "m"].map(|name| dir.path().join(name));
    let keys = keys(ROWS);
    sample(&store, &table(optimizer, DIM), &keys[..20]);
    sample(&other, &table(optimizer, DIM), &keys);
    json(
        EXPORT,
        &format!("--format {format} --threads 1"),
        &other,
        &model,
        0,
    );
    Pair { dir, store, model }
}

impl Pair {
    /// As [`refused`].
    fn refused(&self, flags: &str, code: i32, parts: &[&str]) {
        refused(flags, &self.store, &self.model, code, parts);
    }

    fn file(&self, name: &str) -> PathBuf {
        self.model.join(name)
    }

    /// Does something with a file of the model changed, and changes it back.
    fn with(&self, name: &str, change: impl FnOnce(&Path), test: impl FnOnce()) {
        let path = self.file(name);
        let whole = fs::read(&path).unwrap();
        change(&path);
        test();
        fs::write(&path, whole).unwrap();
    }
}

const HUGECTR: &str = "--format hugectr";
const NPY: &str = "--format npy";

#[test]
fn lengths_that_contradict_are_named_with_their_place() {
    let pair = pair(Optimizer::Adagrad, "hugectr");
    let cases: [(&str, i64, &[&str]); 7] = [
        (
            "emb_vector",
            24,
            &[
                "emb_vector: corrupt at byte 12000",
                "found 501 rows",
                "expected 500",
                "--repair",
            ],
        ),
        (
            "emb_vector",
            -2,
            &[
                "emb_vector: corrupt at byte 11976",
                "499 rows of 24 bytes and 22 bytes of another",
            ],
        ),
        (
            "AdaGrad.accm",
            -24,
            &[
                "AdaGrad.accm: corrupt at byte 11976",
                "found 499 rows",
                "expected 500",
            ],
        ),
        (
            "AdaGrad.accm",
            7,
            &[
                "AdaGrad.accm: corrupt at byte 12000",
                "and 7 bytes of another",
            ],
        ),
        (
            "key",
            -8,
            &["emb_vector: corrupt", "found 500 rows", "expected 499"],
        ),
        (
            "key",
            3,
            &[
                "key: corrupt at byte 4000",
                "500 rows of 8 bytes and 3 bytes of another",
            ],
        ),
        (
            "AdaGrad.accm",
            -12_000,
            &[
                "AdaGrad.accm: corrupt at byte 0",
                "the file is empty, others",
            ],
        ),
    ];
    for (name, by, parts) in cases {
        pair.with(
            name,
            |path| resize(path, by),
            || pair.refused(HUGECTR, 4, parts),
        );
    }
    // All are of another dim: that is no damage.
    for name in ["emb_vector", "AdaGrad.accm"] {
        resize(&pair.file(name), 12_000);
    }
    let parts = [
        "emb_vector: rows of 12 weights",
        "24000 bytes for 500 keys",
        "expected 6",
    ];
    pair.refused(HUGECTR, 16, &parts);
    pair.refused("--format hugectr --repair", 16, &parts);
}

#[test]
fn a_torn_model_is_repaired_where_that_is_asked_for() {
    let pair = pair(Optimizer::Adagrad, "hugectr");
    // Killed while it wrote: keys come last, and two of three files end within a row.
    resize(&pair.file("key"), -80 - 3);
    resize(&pair.file("AdaGrad.accm"), -48 - 5);
    pair.refused(HUGECTR, 4, &["corrupt", "--repair"]);
    let said = says(
        IMPORT,
        "--format hugectr --repair",
        &pair.store,
        &pair.model,
        1,
    );
    let left = [
        "imported 489 rows",
        "key: the last 5 bytes",
        "emb_vector: the last 264 bytes",
        "AdaGrad.accm: the last 211 bytes",
    ];
    for part in left {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (taken, _) = (u64s_of_prefix(&pair.file("key"), 489), ());
    let rows: BTreeMap<u64, Vec<f32>> = all_rows(&pair.store).into_iter().collect();
    let weights = f32s(&pair.file("emb_vector"));
    for (i, key) in taken.iter().enumerate() {
        assert_eq!(rows[key][..DIM], weights[i * DIM..(i + 1) * DIM]);
    }
    // Twenty were there before.
    assert!((489..=509).contains(&rows.len()));
    // A whole model needs no repair, and is none.
    let whole = self::pair(Optimizer::Ftrl, "hugectr");
    json(
        IMPORT,
        "--format hugectr --repair",
        &whole.store,
        &whole.model,
        0,
    );
    // More vectors than keys by a half, which looks like rows of 9 weights.
    let more = self::pair(Optimizer::Sgd, "hugectr");
    resize(&more.file("emb_vector"), 6000);
    more.refused(HUGECTR, 16, &["rows of 9 weights", "cut it to 12000 bytes"]);
    let told = json(
        IMPORT,
        "--format hugectr --repair",
        &more.store,
        &more.model,
        1,
    );
    assert_eq!(
        (&told["rows"], &told["left_out"][0]["bytes"]),
        (&500.into(), &6000.into())
    );
}

fn u64s_of_prefix(path: &Path, count: usize) -> Vec<u64> {
    let bytes = fs::read(path).unwrap();
    let (words, _) = bytes.as_chunks::<8>();
    words[..count]
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect()
}

#[test]
fn numbers_that_are_not_finite_are_named_by_key() {
    let pair = pair(Optimizer::Adagrad, "hugectr");
    let key = u64s(&pair.file("key"))[321];
    let place = format!("key {key:#x} (row 321): found NaN");
    for (name, bits) in [
        ("emb_vector", f32::NAN),
        ("AdaGrad.accm", f32::NEG_INFINITY),
    ] {
        let mut values = f32s(&pair.file(name));
        values[321 * DIM + 4] = bits;
        write_f32s(&pair.file(name), &values);
    }
    let parts = ["emb_vector: corrupt at byte 7720", &place, "--non-finite"];
    pair.refused(HUGECTR, 4, &parts);
    pair.refused("--format hugectr --create --threads 4", 4, &parts[..1]);
    let new = pair.dir.path().join("n");
    says(IMPORT, "--format hugectr --create", &new, &pair.model, 4);
    let store = Store::open(&new, options()).unwrap();
    assert_eq!((store.checkpoints().len(), store.tables().len()), (0, 0));
    store.close().unwrap();
    let flags = "--format hugectr --create --non-finite skip";
    let told = json(IMPORT, flags, &new, &pair.model, 0);
    assert_eq!(
        (&told["rows"], &told["non_finite_rows"]),
        (&499.into(), &1.into())
    );
    let flags = "--format hugectr --non-finite apply";
    let told = json(IMPORT, flags, &new, &pair.model, 0);
    assert_eq!((&told["rows"], &told["keys"]), (&500.into(), &500.into()));
    let rows = all_rows(&new);
    let row = &rows.iter().find(|row| row.0 == key).unwrap().1;
    assert!(row[4].is_nan() && row[DIM + 4] == f32::NEG_INFINITY);
    // And out again as it is.
    let out = pair.dir.path().join("out");
    let told = json(EXPORT, HUGECTR, &new, &out, 0);
    assert_eq!(told["non_finite_rows"], 1);
}

#[test]
fn a_key_that_stands_twice_is_refused_in_old_and_new_tables() {
    let pair = pair(Optimizer::Adagrad, "hugectr");
    let mut keys = u64s(&pair.file("key"));
    keys[400] = keys[7];
    write_u64s(&pair.file("key"), &keys);
    let place = format!("key {:#x} of row 400 stands in row 7 as well", keys[7]);
    let parts = ["key: corrupt at byte 3200", place.as_str()];
    pair.refused(HUGECTR, 4, &parts);
    let new = pair.dir.path().join("n");
    let said = says(IMPORT, "--format hugectr --create", &new, &pair.model, 4);
    assert!(said.contains(&place), "{said}");
    let store = Store::open(&new, options()).unwrap();
    assert_eq!((store.checkpoints().len(), store.tables().len()), (0, 0));
}

#[test]
fn state_of_another_optimizer_is_refused() {
    let pair = pair(Optimizer::Adam, "hugectr");
    let flags = "--format hugectr --adam-step 3";
    fs::copy(pair.file("Adam.m"), pair.file("AdaGrad.accm")).unwrap();
    pair.refused(
        flags,
        16,
        &["AdaGrad.accm is no state of Adam", "--weights-only"],
    );
    fs::remove_file(pair.file("AdaGrad.accm")).unwrap();
    fs::remove_file(pair.file("Adam.v")).unwrap();
    pair.refused(flags, 4, &["Adam.v: corrupt", "Adam.m is", "incomplete"]);
    pair.refused("--format hugectr --adam-step 16777217", 16, &["16777216"]);
    let momentum = self::pair(Optimizer::Sgd, "hugectr");
    fs::copy(momentum.file("emb_vector"), momentum.file("Nesterov.accm")).unwrap();
    momentum.refused(HUGECTR, 16, &["Nesterov.accm is no state of Sgd"]);
    let new = momentum.dir.path().join("n");
    let said = says(
        IMPORT,
        "--format hugectr --create",
        &new,
        &momentum.model,
        16,
    );
    assert!(
        said.contains("Nesterov.accm holds -lr times") && !new.exists(),
        "{said}"
    );
    json(
        IMPORT,
        "--format hugectr --weights-only",
        &momentum.store,
        &momentum.model,
        0,
    );
}

#[test]
fn what_is_no_model_is_refused_by_name() {
    let mut pair = pair(Optimizer::Adagrad, "hugectr");
    pair.refused("--format npy", 16, &["it has no file keys.npy"]);
    fs::rename(pair.file("key"), pair.file("keys")).unwrap();
    pair.refused(HUGECTR, 16, &["it has no file key"]);
    let root = pair.dir.path().to_path_buf();
    for (name, part) in [
        ("missing", "missing: is no folder"),
        ("wdl0_opt_sparse_20000.model", "without keys"),
        (
            "embedding_collection_0",
            "a dump of an embedding collection",
        ),
    ] {
        pair.model = root.join(name);
        pair.refused(HUGECTR, 16, &[part]);
    }
    for path in ["s3://models/wdl", "hdfs://node/wdl"] {
        pair.model = PathBuf::from(path);
        pair.refused(HUGECTR, 16, &[path, "planned"]);
        let said = says(IMPORT, HUGECTR, Path::new(path), &root, 16);
        assert!(said.contains("planned"), "{said}");
        let said = says(EXPORT, HUGECTR, &pair.store, Path::new(path), 16);
        assert!(said.contains("planned"), "{said}");
    }
    let whole = self::pair(Optimizer::Adagrad, "hugectr");
    let said = says(IMPORT, HUGECTR, &root.join("no-store"), &whole.model, 8);
    assert!(said.contains("not a store"), "{said}");
}

#[test]
fn arrays_that_contradict_are_named() {
    let pair = pair(Optimizer::RowwiseAdagrad, "npy");
    let head = |name: &str, from: &str, to: &str| {
        let (from, to) = (from.to_owned(), to.to_owned());
        let path = pair.file(name);
        move |_: &Path| {
            let mut bytes = fs::read(&path).unwrap();
            let text = String::from_utf8_lossy(&bytes[10..128]).replace(&from, &to);
            assert_ne!(text.as_bytes(), &bytes[10..128], "{from}");
            bytes.splice(10..128, text.into_bytes());
            fs::write(&path, bytes).unwrap();
        }
    };
    let cases: [(&str, &str, &str, &[&str]); 6] = [
        (
            "weights.npy",
            "<f4",
            "<f8",
            &[
                "weights.npy: corrupt at byte 0",
                "found elements of type <f8, expected <f4",
            ],
        ),
        ("keys.npy", "<u8", ">u8", &[">u8, expected <u8 or <i8"]),
        (
            "a.npy",
            "(500,)",
            "(500,2)",
            &["a.npy: corrupt at byte 0", "rows of 2 elements, expected 1"],
        ),
        (
            "a.npy",
            "(500,)",
            "(400,)",
            &["the header says 400 rows", "found 2000 bytes"],
        ),
        ("weights.npy", "False", "True", &["fortran_order"]),
        (
            "weights.npy",
            "(500, 6)",
            "(500,2,3)",
            &["an array of 3 axes"],
        ),
    ];
    for (name, from, to, parts) in cases {
        let change = head(name, from, to);
        pair.with(name, change, || pair.refused(NPY, 4, parts));
    }
    pair.with(
        "weights.npy",
        head("weights.npy", "(500, 6)", "(500, 5)"),
        || {
            pair.refused(NPY, 16, &["rows of 5 weights, expected 6"]);
        },
    );
    pair.with(
        "keys.npy",
        |path| resize(path, -9),
        || {
            pair.refused(
                NPY,
                4,
                &["keys.npy: corrupt at byte 128", "found 3991 bytes"],
            );
            let told = json(IMPORT, "--format npy --repair", &pair.store, &pair.model, 1);
            assert_eq!(told["rows"], 498);
        },
    );
    let pair = self::pair(Optimizer::RowwiseAdagrad, "npy");
    fs::copy(pair.file("a.npy"), pair.file("click.npy")).unwrap();
    pair.refused(
        NPY,
        4,
        &["click.npy: corrupt at byte 0", "<f4, expected <u4"],
    );
    fs::rename(pair.file("click.npy"), pair.file("other.npy")).unwrap();
    pair.refused(NPY, 16, &["other.npy: no table has a column of that name"]);
    json(
        IMPORT,
        "--format npy --weights-only",
        &pair.store,
        &pair.model,
        0,
    );
}

#[test]
fn an_export_leaves_nothing_where_it_fails() {
    let pair = pair(Optimizer::Adagrad, "hugectr");
    let said = says(EXPORT, HUGECTR, &pair.store, &pair.model, 8);
    assert!(said.contains("m: is there already"), "{said}");
    let out = pair.dir.path().join("out");
    let said = says(
        EXPORT,
        "--format hugectr --checkpoint 9",
        &pair.store,
        &out,
        16,
    );
    assert!(said.contains("no checkpoint 9"), "{said}");
    let mut command = Command::new(EXPORT);
    command
        .args(["--format", "npy", "--table", "cliks"])
        .arg(&pair.store)
        .arg(&out);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("no table \"cliks\" in checkpoint 1; there are: [\"clicks\"]"),
        "{said}"
    );
    let said = says(
        EXPORT,
        HUGECTR,
        &pair.store,
        &pair.dir.path().join("no/where"),
        8,
    );
    assert!(
        said.contains("make ") && said.contains("no/.where.partial"),
        "{said}"
    );
    // A row that is damaged: its file is named.
    let rows = fs::read_dir(pair.store.join("part-0")).unwrap();
    let rows = rows.map(|entry| entry.unwrap().path());
    let rows = rows.filter(|p| p.extension().is_some_and(|e| e == "rows"));
    for path in rows {
        let mut bytes = fs::read(&path).unwrap();
        bytes[4100] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let said = says(EXPORT, HUGECTR, &pair.store, &out, 4);
    assert!(said.contains(".rows: corrupt at byte"), "{said}");
    let names = fs::read_dir(pair.dir.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

/// A store of one table that is open elsewhere, for reading and for writing.
#[test]
fn a_store_that_is_open_is_exported_and_not_imported_into() {
    let pair = pair(Optimizer::Adagrad, "hugectr");
    let store = Store::open(&pair.store, options()).unwrap();
    let said = says(IMPORT, HUGECTR, &pair.store, &pair.model, 8);
    assert!(said.contains("Locked"), "{said}");
    let told = json(EXPORT, NPY, &pair.store, &pair.dir.path().join("out"), 0);
    assert_eq!(told["rows"], 20);
    store.close().unwrap();
}

#[cfg(not(feature = "parquet"))]
#[test]
fn without_its_feature_parquet_is_refused_by_name() {
    let pair = pair(Optimizer::Adagrad, "npy");
    let told = |tool| format!("this {tool} was built without Parquet; cargo build");
    let parquet = "--format parquet";
    pair.refused(parquet, 16, &[&told("hps-import"), "--features parquet"]);
    let out = pair.dir.path().join("out");
    let said = says(EXPORT, parquet, &pair.store, &out, 16);
    assert!(said.contains(&told("hps-export")), "{said}");
    assert!(!out.exists());
}

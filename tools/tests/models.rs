//! Do rows come back from a model's files as they went, and does the folder hold what it should?
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;

use std::fs;

use hps::{Optimizer, RowMetadata, Store};
use models::*;

const DIM: usize = 6;
const ROWS: u64 = 3000;

/// Optimizers of HugeCTR, with the flags of export and import by which the folder has all of a row.
const WHOLE: [(Optimizer, &str, &str); 6] = [
    (Optimizer::Sgd, "", "--optimizer sgd"),
    (Optimizer::Adagrad, "", ""),
    (Optimizer::Ftrl, "", ""),
    (Optimizer::Adam, "", "--adam-step 7"),
    // A power of two: multiplied and divided without rounding.
    (Optimizer::Momentum, "--lr 0.125", "--lr 0.125"),
    (Optimizer::Nesterov, "--lr 0.5", "--lr 0.5"),
];

#[test]
fn rows_come_back_from_hugectr_to_the_bit() {
    for (optimizer, out, back) in WHOLE {
        let dir = tempfile::tempdir().unwrap();
        let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
        let keys = keys(ROWS);
        sample(&store, &table(optimizer, DIM), &keys);
        let flags = format!("--format hugectr {out}");
        let told = json(EXPORT, &flags, &store, &model, 0);
        assert_eq!((&told["rows"], &told["step"]), (&ROWS.into(), &5.into()));
        assert_eq!(u64s(&model.join("key")).len() as u64, ROWS);
        let flags = format!("--format hugectr --create {back}");
        let told = json(IMPORT, &flags, &new, &model, 0);
        assert_eq!((&told["rows"], &told["keys"]), (&ROWS.into(), &ROWS.into()));
        assert_eq!((&told["dim"], &told["step"]), (&DIM.into(), &1.into()));
        assert_eq!(digest(&store), digest(&new), "{optimizer:?}");
    }
}

#[test]
fn rows_come_back_from_npy_to_the_bit() {
    let all = RowMetadata::new().show(true).last_step(true);
    for &optimizer in Optimizer::ALL {
        let dir = tempfile::tempdir().unwrap();
        let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
        sample(&store, &table(optimizer, DIM).metadata(all), &keys(ROWS));
        let told = json(EXPORT, "--format npy", &store, &model, 0);
        assert_eq!(told["left_out"].as_array().unwrap().len(), 0);
        let name = rule_name(optimizer);
        let flags = format!("--format npy --create --optimizer {name}");
        json(IMPORT, &flags, &new, &model, 0);
        assert_eq!(digest(&store), digest(&new), "{optimizer:?}");
    }
}

#[test]
fn the_optimizer_of_a_new_table_is_that_of_the_files() {
    for (optimizer, format, flags) in [
        (Optimizer::Ftrl, "npy", ""),
        (Optimizer::Adam, "npy", ""),
        (Optimizer::Adagrad, "npy", ""),
        (Optimizer::RowwiseAdagrad, "npy", ""),
        (Optimizer::Nesterov, "hugectr", "--lr 0.5"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
        sample(&store, &table(optimizer, DIM), &keys(20));
        let flags = format!("--format {format} {flags}");
        json(EXPORT, &flags, &store, &model, 0);
        let told = json(IMPORT, &format!("{flags} --create"), &new, &model, 0);
        assert_eq!(told["optimizer"], format!("{optimizer:?}"));
        assert_eq!(digest(&store), digest(&new));
        // What may be of two is asked for.
        let other = dir.path().join("o");
        if format == "npy" {
            for name in ["a", "m", "z", "n", "t"] {
                let _not_there = fs::remove_file(model.join(format!("{name}.npy")));
            }
            let said = says(IMPORT, "--format npy --create", &other, &model, 16);
            assert!(said.contains("--optimizer"), "{said}");
            assert!(!other.exists(), "nothing is made");
        }
    }
}

#[test]
fn each_file_has_the_column_that_its_name_says() {
    let cases: [(Optimizer, &str, &str, usize); 9] = [
        (Optimizer::Adagrad, "hugectr", "AdaGrad.accm", DIM),
        (Optimizer::Adam, "hugectr", "Adam.m", DIM),
        (Optimizer::Adam, "hugectr", "Adam.v", 2 * DIM),
        (Optimizer::Ftrl, "hugectr", "Ftrl.z", DIM),
        (Optimizer::Ftrl, "hugectr", "Ftrl.n", 2 * DIM),
        (Optimizer::Ftrl, "hugectr", "emb_vector", 0),
        (Optimizer::Adam, "npy", "v.npy", 2 * DIM),
        (Optimizer::Ftrl, "npy", "n.npy", 2 * DIM),
        (Optimizer::Momentum, "npy", "v.npy", DIM),
    ];
    for (optimizer, format, name, begin) in cases {
        let dir = tempfile::tempdir().unwrap();
        let [store, model] = ["s", "m"].map(|name| dir.path().join(name));
        let descriptor = table(optimizer, DIM);
        sample(&store, &descriptor, &keys(40));
        let flags = format!("--format {format} --threads 1");
        json(EXPORT, &flags, &store, &model, 0);
        let mut order = keys(40);
        order.sort_by_key(|key| hps::mix64(*key));
        let whole = rows(&descriptor, &order);
        let whole = whole.chunks(descriptor.row_f32s());
        let expected: Vec<f32> = whole
            .flat_map(|row| row[begin..begin + DIM].to_vec())
            .collect();
        let found = f32s(&model.join(name));
        assert_eq!(found[found.len() - 40 * DIM..], expected, "{name}");
    }
}

/// The file has -lr times ours, rounded; and ours is that over -lr, rounded.
#[test]
fn momentum_is_scaled_by_the_learning_rate() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Momentum, DIM), &keys(ROWS));
    let flags = "--format hugectr --lr 0.003";
    json(EXPORT, &format!("{flags} --threads 1"), &store, &model, 0);
    let rows = all_rows(&store);
    let scaled = f32s(&model.join("MomentumSGD.momtentum"));
    let order = u64s(&model.join("key"));
    for (key, values) in &rows {
        let at = order.iter().position(|k| k == key).unwrap();
        let expected: Vec<f32> = values[DIM..].iter().map(|v| v * -0.003).collect();
        assert_eq!(scaled[at * DIM..(at + 1) * DIM], expected);
    }
    json(IMPORT, &format!("{flags} --create"), &new, &model, 0);
    let mut rounded = 0;
    for ((key, now), (_, before)) in all_rows(&new).iter().zip(&rows) {
        assert_eq!(now[..DIM], before[..DIM], "weights of {key}");
        let expected: Vec<f32> = before[DIM..]
            .iter()
            .map(|v| (v * -0.003) / -0.003)
            .collect();
        assert_eq!(now[DIM..], expected, "momentum of {key}");
        rounded += usize::from(now[DIM..] != before[DIM..]);
    }
    assert!(rounded > 0, "0.003 is no power of two");
}

#[test]
fn what_hugectr_has_no_place_for_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
    let metadata = RowMetadata::new().count(true);
    let adam = table(Optimizer::Adam, DIM).metadata(metadata);
    sample(&store, &adam, &keys(50));
    let said = says(EXPORT, "--format hugectr", &store, &model, 0);
    let way = "left out: t, count (t is 7 in every row: --adam-step 7 brings it back)";
    assert!(said.contains(way), "{said}");
    let said = says(IMPORT, "--format hugectr --create", &new, &model, 16);
    assert!(said.contains("--adam-step"), "{said}");
    assert!(!new.exists(), "no store is made of what can't be imported");
    let [store, model] = ["rs", "rm"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::RowwiseAdagrad, DIM), &keys(50));
    let told = json(EXPORT, "--format hugectr", &store, &model, 0);
    assert_eq!(told["left_out"][0], "a");
    assert_eq!(fs::read_dir(&model).unwrap().count(), 2);
}

#[test]
fn weights_alone_begin_with_the_state_of_keys_never_pushed() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, new] = ["s", "m", "n"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adagrad, DIM), &keys(200));
    json(EXPORT, "--format hugectr --weights-only", &store, &model, 0);
    assert_eq!(fs::read_dir(&model).unwrap().count(), 2);
    let flags = "--format hugectr --create --optimizer adagrad --accumulator 0.25";
    let said = says(IMPORT, flags, &new, &model, 0);
    assert!(said.contains("weights only"), "{said}");
    for ((_, now), (_, before)) in all_rows(&new).iter().zip(all_rows(&store)) {
        assert_eq!(now[..DIM], before[..DIM]);
        assert_eq!(now[DIM..], [0.25; DIM]);
    }
    // Into the table with state: what it had is replaced.
    json(IMPORT, "--format hugectr", &store, &model, 0);
    let rows = all_rows(&store);
    assert!(rows.iter().all(|(_, row)| row[DIM..] == [0.0; DIM]));
}

#[test]
fn slots_are_the_upper_half_of_keys_or_one_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let [store, halves, one, new] = ["s", "h", "o", "n"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adagrad, DIM), &keys(300));
    let plain = "--format hugectr";
    json(EXPORT, &format!("{plain} --localized"), &store, &halves, 0);
    let expected: Vec<u64> = u64s(&halves.join("key"))
        .iter()
        .map(|key| key >> 32)
        .collect();
    assert_eq!(u64s(&halves.join("slot_id")), expected);
    json(
        EXPORT,
        &format!("{plain} --localized --slot 9"),
        &store,
        &one,
        0,
    );
    assert_eq!(u64s(&one.join("slot_id")), vec![9; 300]);
    says(EXPORT, "--format hugectr --slot 9", &store, &new, 16);
    says(EXPORT, "--format npy --localized", &store, &new, 16);
    json(IMPORT, "--format hugectr --create", &new, &halves, 0);
    assert_eq!(digest(&store), digest(&new));
    resize(&halves.join("slot_id"), -8);
    let said = says(IMPORT, "--format hugectr", &new, &halves, 4);
    assert!(said.contains("slot_id: corrupt at byte 2392"), "{said}");
}

#[test]
fn an_empty_model_is_legal() {
    let dir = tempfile::tempdir().unwrap();
    let [store, model, npy, new] = ["s", "m", "p", "n"].map(|name| dir.path().join(name));
    sample(&store, &table(Optimizer::Adagrad, DIM), &[]);
    let told = json(EXPORT, "--format hugectr", &store, &model, 0);
    assert_eq!((&told["rows"], &told["bytes"]), (&0.into(), &0.into()));
    let said = says(IMPORT, "--format hugectr --create", &new, &model, 16);
    assert!(said.contains("--dim"), "{said}");
    json(IMPORT, "--format hugectr --create --dim 6", &new, &model, 0);
    assert_eq!(digest(&store), digest(&new));
    json(EXPORT, "--format npy", &store, &npy, 0);
    let told = json(IMPORT, "--format npy", &new, &npy, 0);
    assert_eq!((&told["dim"], &told["step"]), (&DIM.into(), &2.into()));
}

/// Other keys stay, and so do checkpoints, the meta of the last one, and other tables.
#[test]
fn an_import_replaces_rows_and_keeps_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let [store, other, model] = ["s", "o", "m"].map(|name| dir.path().join(name));
    let adagrad = table(Optimizer::Adagrad, DIM);
    let (all, some) = (keys(400), keys(100));
    sample(&store, &adagrad, &all);
    sample(&other, &adagrad, &some[..50]);
    json(EXPORT, "--format hugectr", &other, &model, 0);
    let changed: Vec<f32> = vec![4.0; 50 * DIM];
    write_f32s(&model.join("emb_vector"), &changed);
    let told = json(IMPORT, "--format hugectr --step 70", &store, &model, 0);
    assert_eq!((&told["rows"], &told["keys"]), (&50.into(), &400.into()));
    for (key, row) in all_rows(&store) {
        let is_new = some[..50].contains(&key);
        assert_eq!(row[0] == 4.0, is_new, "{key}");
        assert_eq!(row[DIM..], rows(&adagrad, &[key])[DIM..]);
    }
    let opened = Store::open_read_only(&store, None, options()).unwrap();
    let steps: Vec<u64> = opened.checkpoints().iter().map(|c| c.step).collect();
    assert_eq!(steps, [5, 70]);
    let last = opened.last_checkpoint().unwrap().id;
    assert_eq!(opened.checkpoint_meta(last).unwrap(), b"of the trainer");
    drop(opened);
    // The checkpoint before is exported as it was.
    let before = dir.path().join("before");
    json(
        EXPORT,
        "--format hugectr --checkpoint 1",
        &store,
        &before,
        0,
    );
    let weights = f32s(&before.join("emb_vector"));
    assert!(weights.iter().all(|weight| *weight != 4.0));
    let said = says(IMPORT, "--format hugectr --step 70", &store, &model, 16);
    assert!(said.contains("must be greater than 70"), "{said}");
}

#[test]
fn one_thread_writes_the_same_bytes_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    sample(&store, &table(Optimizer::Ftrl, DIM), &keys(ROWS));
    let written = ["a", "b"].map(|name| {
        let model = dir.path().join(name);
        json(EXPORT, "--format hugectr --threads 1", &store, &model, 0);
        let files = ["key", "emb_vector", "Ftrl.n", "Ftrl.z"];
        files.map(|file| fs::read(model.join(file)).unwrap())
    });
    assert!(written[0] == written[1]);
    let keys = written[0][0].as_chunks::<8>().0.iter();
    assert!(
        keys.map(|key| hps::mix64(u64::from_le_bytes(*key)))
            .is_sorted()
    );
}

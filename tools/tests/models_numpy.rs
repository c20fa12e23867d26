//! Do models that NumPy writes train on in hps as they do there, and can NumPy read what comes out?
//!
//! `data/hugectr_models.py` has the format and the optimizers of HugeCTR without a line of hps.
#![expect(clippy::unwrap_used, reason = "test helpers fail the test")]

#[path = "support/models.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod models;
#[path = "support/python.rs"]
mod python;
#[path = "../../tests/common/skip.rs"]
mod skip;

use std::path::Path;
use std::process::{Command, Output};

use hps::{HyperParameters, Store, Update};
use models::*;
use python::python_with;

const DIM: usize = 7;

fn script(python: &str, arguments: &[&str], paths: &[&Path]) -> Output {
    let mut command = Command::new(python);
    command
        .arg(data("hugectr_models.py"))
        .args(arguments)
        .args(paths)
        .output()
        .unwrap()
}

fn passes(python: &str, arguments: &[&str], paths: &[&Path]) {
    let output = script(python, arguments, paths);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
}

/// Pushes gradients, step after step, and makes a checkpoint.
fn train(directory: &Path, keys: &[u64], gradients: &[f32], lr: f32) {
    let hyper = HyperParameters::new().epsilon(1e-7);
    let hyper = hyper.lambda1(0.01).lambda2(0.001);
    let store = Store::open(directory, options().hyper(hyper)).unwrap();
    let table = store.table(TABLE).unwrap();
    for gradient in gradients.chunks(keys.len() * DIM) {
        let mut weights = vec![0.0; gradient.len()];
        let lease = store.pull(table, keys, &mut weights).unwrap();
        store.push(&lease, Update::gradients(gradient, lr)).unwrap();
    }
    store.checkpoint(100, &[]).unwrap();
    store.close().unwrap();
}

#[test]
fn models_of_numpy_train_on_and_come_back() {
    let missing = "no python3 with NumPy: models were not compared with data/hugectr_models.py";
    let Some(python) = python_with("numpy", missing) else {
        return;
    };
    for (optimizer, flags) in [
        ("sgd", ""),
        ("adagrad", ""),
        ("momentum", "--lr 0.05"),
        ("nesterov", "--lr 0.05"),
        ("adam", "--adam-step 4"),
        ("ftrl", ""),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let [numpy, store, back, out] = ["m", "s", "b", "o"].map(|name| dir.path().join(name));
        let arguments = ["train", "--optimizer", optimizer, "--localized"];
        passes(python, &arguments, &[&numpy]);
        let (before, after) = (numpy.join("before"), numpy.join("after"));
        let create = format!("--format hugectr --create --optimizer {optimizer} {flags}");
        let told = json(IMPORT, &create, &store, &before, 0);
        assert_eq!(told["dim"], DIM);
        // What came in goes out: to the bit, or, where it was divided by -lr, nearly.
        let export = match flags.strip_prefix("--lr") {
            Some(_) => format!("--format hugectr {flags}"),
            None => String::from("--format hugectr"),
        };
        json(EXPORT, &export, &store, &back, 0);
        let exact = if export.contains("--lr") { "1e-6" } else { "0" };
        let compare = ["compare", "--slots", "--tolerance", exact];
        passes(python, &compare, &[&before, &back]);
        assert!(!script(python, &compare, &[&after, &back]).status.success());
        let gradients = f32s(&numpy.join("gradients"));
        train(&store, &u64s(&before.join("key")), &gradients, 0.05);
        json(EXPORT, &export, &store, &out, 0);
        let compare = ["compare", "--slots", "--tolerance", "1e-5"];
        passes(python, &compare, &[&after, &out]);
    }
}

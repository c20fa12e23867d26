//! What does `hps-import` make of any folder as a sparse model of HugeCTR's? The input is flags (1 weights
//! alone, 2 with a dim, 4 with an optimizer, 8 --repair), that optimizer, what to do with numbers that are not
//! finite, then the folder (`src/folder.rs`).
//!
//! Promise: the rows that stand there, to the bit, or an error, never a panic. Without --repair a folder is
//! taken exactly if a plain decoder takes it; with it, the rows are those that all files have whole.

#![no_main]

use std::collections::BTreeMap;

use hps_fuzz::folder::{Folder, args, same, word};
use hps_fuzz::{Input, u64_at};
use hps_tools::import::rows;
use libfuzzer_sys::fuzz_target;

const FILES: &[(&str, usize, &str)] = &[
    ("key", 8, ""),
    ("emb_vector", 0, ""),
    ("slot_id", 8, ""),
    ("MomentumSGD.momtentum", 0, ""),
    ("Nesterov.accm", 0, ""),
    ("AdaGrad.accm", 0, ""),
    ("Adam.m", 0, ""),
    ("Adam.v", 0, ""),
    ("Ftrl.z", 0, ""),
    ("Ftrl.n", 0, ""),
];
/// Optimizers, with their state files in the order of the row.
const STATE: &[(&str, &[&str])] = &[
    ("sgd", &[]),
    ("momentum", &["MomentumSGD.momtentum"]),
    ("nesterov", &["Nesterov.accm"]),
    ("adagrad", &["AdaGrad.accm"]),
    ("adam", &["Adam.m", "Adam.v"]),
    ("ftrl", &["Ftrl.z", "Ftrl.n"]),
    ("rowwise-adagrad", &[]),
];
const NON_FINITE: [&str; 3] = ["reject", "skip", "apply"];
const LR: f32 = 0.5;
const STEP: f32 = 77.0;

/// What is asked for.
struct Asked {
    weights_only: bool,
    dim: Option<usize>,
    optimizer: Option<usize>,
    repair: bool,
    non_finite: usize,
}

type Rows = BTreeMap<u64, Vec<f32>>;

/// The rows of a folder of which all files are whole; `None` where it is not good.
fn decode(folder: &Folder, asked: &Asked) -> Option<Rows> {
    let mut files = folder.files.clone();
    if asked.weights_only {
        files.retain(|name, _| ["key", "emb_vector", "slot_id"].contains(name));
    }
    let there = |name: &&str| files.contains_key(*name);
    let has_any = |of: &usize| STATE[*of].1.iter().any(|name| there(&name));
    let owners: Vec<usize> = (0..STATE.len()).filter(has_any).collect();
    let optimizer = match (asked.optimizer, &owners[..]) {
        (Some(asked), _) => asked,
        (None, [one]) => *one,
        (None, _) => return None,
    };
    let state = STATE[optimizer].1;
    if owners.iter().any(|owner| *owner != optimizer) {
        return None;
    }
    let is_whole = !owners.is_empty();
    if is_whole && !state.iter().all(|name| there(&name)) {
        return None;
    }
    let (keys, weights) = (files.get("key")?, files.get("emb_vector")?);
    if files.values().all(Vec::is_empty) {
        return asked.dim.map(|_| Rows::new());
    }
    let count = keys.len() / 8;
    if count == 0 || keys.len() % 8 != 0 || weights.len() % (4 * count) != 0 {
        return None;
    }
    let dim = weights.len() / (4 * count);
    if !(1..=8192).contains(&dim) || asked.dim.is_some_and(|asked| asked != dim) {
        return None;
    }
    for (name, file) in &files {
        let row_bytes = if ["key", "slot_id"].contains(name) {
            8
        } else {
            4 * dim
        };
        if file.len() != count * row_bytes {
            return None;
        }
    }
    let rows = take(&files, (count, dim), if is_whole { optimizer } else { 0 });
    // A key that stands twice is in a map once.
    (rows.len() == count).then_some(())?;
    let is_finite = |row: &Vec<f32>| row.iter().all(|number| number.is_finite());
    match NON_FINITE[asked.non_finite] {
        "reject" if !rows.values().all(is_finite) => None,
        "skip" => Some(rows.into_iter().filter(|(_, row)| is_finite(row)).collect()),
        _ => Some(rows),
    }
}

/// The first rows of files that have them.
fn take(
    files: &BTreeMap<&'static str, Vec<u8>>,
    (count, dim): (usize, usize),
    optimizer: usize,
) -> Rows {
    let mut rows = Rows::new();
    for at in 0..count {
        let of = |name: &str| {
            let file = &files[name];
            (0..dim).map(move |column| word(file, at * dim + column))
        };
        let mut row: Vec<f32> = of("emb_vector").collect();
        let (name, state) = STATE[optimizer];
        for file in state {
            let is_scaled = ["momentum", "nesterov"].contains(&name);
            row.extend(of(file).map(|number| if is_scaled { number / -LR } else { number }));
        }
        if name == "adam" {
            row.push(STEP);
        }
        rows.insert(u64_at(&files["key"], 8 * at), row);
    }
    rows
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let flags = input.number(1);
    let (optimizer, non_finite) = (input.below(STATE.len()), input.below(3));
    let folder = Folder::new(&mut input, FILES, |_, _, _| Vec::new());
    let asked = Asked {
        weights_only: flags & 1 != 0,
        dim: (flags & 2 != 0).then_some(folder.dim),
        optimizer: (flags & 4 != 0).then_some(optimizer),
        repair: flags & 8 != 0,
        non_finite,
    };
    let mut more = vec![
        String::from("--format=hugectr"),
        format!("--lr={LR}"),
        format!("--adam-step={STEP}"),
        format!("--non-finite={}", NON_FINITE[non_finite]),
    ];
    more.extend(asked.weights_only.then(|| String::from("--weights-only")));
    more.extend(asked.dim.map(|dim| format!("--dim={dim}")));
    more.extend(
        asked
            .optimizer
            .map(|of| format!("--optimizer={}", STATE[of].0)),
    );
    more.extend(asked.repair.then(|| String::from("--repair")));
    let on_disk = folder.write();
    let found = rows(&args(on_disk.path(), &more));
    let expected = decode(&folder, &asked);
    match (&found, &expected) {
        (Ok(found), Some(expected)) => same(&found.rows, expected),
        (Err(error), Some(_)) => panic!("refused: {error:#}"),
        (Ok(_), None) if !asked.repair => panic!("taken"),
        (Ok(found), None) => {
            let (dim, mut files) = (found.table.dim, folder.files.clone());
            let is_weight = |name: &str| ["key", "emb_vector", "slot_id"].contains(&name);
            files.retain(|name, _| is_weight(name) || !asked.weights_only);
            let rows_of = |(name, file): (&&str, &Vec<u8>)| match *name {
                "key" | "slot_id" => file.len() / 8,
                _ => file.len() / (4 * dim),
            };
            let count = files.iter().map(rows_of).min().expect("files");
            let state = files.keys().find(|name| !is_weight(name));
            let of = |name: &str| STATE.iter().position(|(_, all)| all.contains(&name));
            let optimizer = state.and_then(|name| of(name)).unwrap_or(0);
            assert_eq!(found.is_whole, optimizer > 0);
            let mut expected = take(&files, (count, dim), optimizer);
            if NON_FINITE[non_finite] == "skip" {
                expected.retain(|_, row| row.iter().all(|number| number.is_finite()));
            }
            same(&found.rows, &expected);
        }
        (Err(error), None) => assert!(!error.to_string().is_empty()),
    }
});

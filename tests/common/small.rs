//! A small store and the steps that tests repeat on it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "used by tests")]

use hps::*;

pub fn options() -> RuntimeOptions {
    RuntimeOptions::new()
        .cache_bytes(1 << 20)
        .io_depth(8)
        .threads(2)
}

pub fn sgd(name: &str, dim: usize) -> TableDescriptor {
    TableDescriptor::new(name, dim)
        .optimizer(Optimizer::Sgd)
        .initialiser(Initialiser::Zero)
}

pub fn values(store: &Store, table: TableId, keys: &[u64], dim: usize) -> Vec<f32> {
    let mut out = vec![0.0; keys.len() * dim];
    drop(store.pull(table, keys, &mut out).unwrap());
    out
}

pub fn set(store: &Store, table: TableId, keys: &[u64], value: f32, dim: usize) {
    let mut out = vec![0.0; keys.len() * dim];
    let lease = store.pull(table, keys, &mut out).unwrap();
    out.fill(value);
    store.push(&lease, Update::weights(&out)).unwrap();
}

/// Gives the first `keys` rows one value, in batches.
pub fn fill(store: &Store, table: TableId, keys: u64, batch: usize, value: f32, dim: usize) {
    let keys: Vec<u64> = (0..keys).map(mix64).collect();
    for keys in keys.chunks(batch) {
        set(store, table, keys, value, dim);
    }
}

pub fn invalid(error: Error) -> ArgumentError {
    match error {
        Error::InvalidArgument(invalid) => invalid,
        other => panic!("not an invalid argument: {other}"),
    }
}

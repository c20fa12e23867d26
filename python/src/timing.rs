//! How long do the calls take without Python? For `bench/calls.py`, which compares with that.

use std::time::Instant;

use hps::{PullPart, PushPart, Update};
use pyo3::prelude::*;

use crate::asked::Asked;
use crate::store::Store;
use crate::wait::work;

/// Seconds of each of `rounds` pulls and pushes of zeros by the Rust library: `[(pull, push)]`.
#[pyfunction]
pub fn time_rust_calls(
    py: Python<'_>,
    store: &Bound<'_, Store>,
    tables: &Bound<'_, PyAny>,
    keys: &Bound<'_, PyAny>,
    rounds: usize,
) -> PyResult<Vec<(f64, f64)>> {
    let cell = store.get().cell();
    let asked = Asked::of(cell, tables, keys)?;
    let (store, parts) = (cell.store(py)?, asked.parts());
    let keys: Vec<&[u64]> = asked.keys.iter().map(|keys| keys.as_slice()).collect();
    let mut outs: Vec<Vec<f32>> = parts.iter().map(|part| vec![0.0; part.weights()]).collect();
    let zeros = outs.clone();
    work(py, || {
        let mut all = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let since = Instant::now();
            let zipped = parts.iter().zip(&keys).zip(&mut outs);
            let mut pulls: Vec<_> = zipped
                .map(|((part, keys), out)| PullPart::new(part.table.id, keys, out))
                .collect();
            let lease = match &mut pulls[..] {
                [one] => store.pull(one.table, one.keys, one.out)?,
                several => store.pull_many(several)?,
            };
            let pull = since.elapsed().as_secs_f64();
            let since = Instant::now();
            let update = |values| Update::gradients(values, 0.01);
            let pushes: Vec<_> = parts
                .iter()
                .zip(&zeros)
                .map(|(part, values)| PushPart::new(part.table.id, update(values)))
                .collect();
            match &pushes[..] {
                [one] => drop(store.push(&lease, one.update)?),
                several => drop(store.push_many(&lease, several)?),
            }
            let push = since.elapsed().as_secs_f64();
            let since = Instant::now();
            drop(lease);
            all.push((pull + since.elapsed().as_secs_f64(), push));
        }
        Ok(all)
    })
}

//! Do all threads of a pool split a call as one would?

use std::sync::Arc;

use super::batch::{Batch, open};
use super::split::Wanted;
use crate::store::core::Table;
use crate::store::tests::{made, options, sgd};

/// By shard: hashes, positions, where weights go; and where each part ends.
type Told = (Vec<(Vec<u64>, Vec<u32>, Vec<usize>)>, Vec<usize>);

/// What a call of these parts (table, keys) is split into by so many threads.
fn told(threads: usize, given: &[(usize, Vec<u64>)], outs: &mut [Vec<f32>]) -> Told {
    let options = crate::RuntimeOptions {
        threads,
        shards: 4,
        ..options()
    };
    let (_disk, store) = made(options);
    let id = |t: usize| store.create_table(&sgd(&format!("t{t}"), 2 + t));
    let ids: Vec<_> = (0..3).map(|t| id(t).unwrap()).collect();
    let core = &store.parts.core;
    let table = |(t, _): &(usize, Vec<u64>)| core.table(ids[*t]).unwrap();
    let tables: Vec<Arc<Table>> = given.iter().map(table).collect();
    let parts = tables.iter().zip(given).zip(outs.iter_mut());
    let mut parts: Vec<_> = parts
        .map(|((table, (_, keys)), out)| Wanted {
            table,
            keys,
            out: Some(out),
        })
        .collect();
    let workers = &store.parts.workers;
    let arrays = (&workers.arrays, &*workers.foreground());
    let batch = Batch::new(arrays, core.shards.len(), &mut parts).unwrap();
    let mut by_shard = Vec::new();
    for (s, cell) in batch.cells.iter().enumerate() {
        let mut cell = open(cell);
        let rows = cell.unite(&workers.arrays, batch.map.len());
        assert_eq!(cell.unite(&workers.arrays, batch.map.len()), rows, "once");
        assert_eq!(cell.slots.len(), rows);
        let targets = cell.targets.iter().map(|out| out.as_ptr().addr());
        let targets: Vec<usize> = targets.collect();
        let all = batch.map.range_of(s, 0..given.len());
        assert_eq!(all, 0..rows);
        by_shard.push((
            cell.part.hashes.clone(),
            cell.part.positions.clone(),
            targets,
        ));
    }
    let ends = (0..4).flat_map(|s| (0..given.len()).map(move |o| (s, o)));
    let ends = ends.map(|(s, o)| batch.map.range(s, o).end).collect();
    (by_shard, ends)
}

/// Also where a part ends in the middle of a piece, or has no key, or a piece ends with a part.
#[test]
fn all_threads_split_what_one_would() {
    let keys = |n: u64| -> Vec<u64> { (0..n).map(|k| k * k % 97).collect() };
    let calls: [&[(usize, u64)]; 7] = [
        &[(0, 0)],
        &[(0, 1)],
        &[(0, 1000)],
        &[(2, 300), (0, 100), (2, 0), (1, 7), (0, 500)],
        &[(1, 0), (0, 0), (1, 0)],
        &[(0, 256), (1, 256), (2, 256)],
        &[(1, 0), (0, 31), (2, 0)],
    ];
    for call in calls {
        let given: Vec<_> = call.iter().map(|(t, n)| (*t, keys(*n))).collect();
        let out = |(t, keys): &(usize, Vec<u64>)| vec![0.0; keys.len() * (2 + t)];
        let mut outs: Vec<Vec<f32>> = given.iter().map(out).collect();
        let by_one = told(1, &given, &mut outs);
        for threads in [2, 3, 7] {
            let by_all = told(threads, &given, &mut outs);
            assert!(by_all == by_one, "{threads} threads: {call:?}");
        }
    }
}

//! A small store that holds each kind of file, to be damaged.

use std::path::Path;
use std::sync::Arc;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;

use super::common::plans::plan;
use super::common::{Op, Run, key};

/// Writes rows of keys by number to table 0.
pub fn rows(keys: std::ops::Range<u64>, value: f32) -> Op {
    Op::Rows(0, keys.map(key).collect(), value)
}

/// A store with two checkpoints in two directories, with removed rows and stale copies; its last one
/// has a row file of wide rows.
pub fn sample(seed: u64) -> (SimDisk, Run) {
    let mut plan = plan(3);
    plan.create.data_directories = vec!["a".into(), "b".into()];
    plan.options.retain_checkpoints = 2;
    let disk = SimDisk::new(seed);
    let mut run = Run::of(Arc::new(disk.clone()), &plan);
    run.create().unwrap();
    run.step(&rows(0..20, 1.0)).unwrap();
    run.step(&Op::Checkpoint(1, vec![1; 100])).unwrap();
    run.step(&rows(10..30, 2.0)).unwrap();
    run.step(&Op::Remove(0, vec![key(1), key(2)])).unwrap();
    run.step(&Op::Checkpoint(2, vec![2; 100])).unwrap();
    run.store = None;
    (disk, run)
}

/// Table, key and bits of a row.
pub type Bits = (TableId, u64, Vec<u32>);

/// The rows of a checkpoint (`None`: of the last) in their order, as bits; and the error that ended
/// it.
pub fn read_rows(
    disk: impl Into<Io>,
    root: &Path,
    checkpoint: Option<CheckpointId>,
) -> (Vec<Bits>, Option<Error>) {
    let options = RuntimeOptions::new()
        .cache_bytes(4 << 20)
        .shards(1)
        .threads(1)
        .inline(true);
    let mut found = Vec::new();
    let read = || -> Result<()> {
        let store = Store::open_read_only_on(disk, root, checkpoint, options)?;
        let id = checkpoint.unwrap_or_else(|| store.last_checkpoint().unwrap().id);
        let mut rows = store.rows(id)?;
        while let Some(row) = rows.next_row()? {
            let bits = row.values.iter().map(|v| v.to_bits()).collect();
            found.push((row.table, row.key, bits));
        }
        Ok(())
    };
    let error = read().err();
    (found, error)
}

/// How often [`grow`] writes a row.
pub const COPIES: u16 = 14;

/// Adds a table whose few rows are written many times, and a checkpoint: now there is an index snapshot;
/// the part with the keys of the last data directory, which lies in the first, has two entry blocks of
/// that table. It is made once the key
/// blocks of all copies are worth one. The one weight of each row is the number of its copy.
pub fn grow(run: &mut Run) {
    const ROWS: usize = 400;
    run.options.cache_bytes = 32 << 20;
    run.options.thresholds.shard_cache_bytes = 0;
    // Rows go out together: few files.
    run.options.flush_step_rows = 0;
    run.options.shards = 1;
    run.open().unwrap();
    let store = run.store();
    let table = TableDescriptor::new("many", 1).optimizer(Optimizer::Sgd);
    let table = store.create_table(&table).unwrap();
    // Three of four are in the last data directory.
    let of = |part: usize| {
        (0..)
            .map(key)
            .filter(move |k| part_range(part, 2).contains(&mix64(*k)))
    };
    let keys = of(1).take(ROWS / 4 * 3);
    let keys: Vec<u64> = keys.chain(of(0).take(ROWS / 4)).collect();
    for copy in 1..=COPIES {
        let mut weights = vec![0.0; keys.len()];
        let lease = store.pull(table, &keys, &mut weights).unwrap();
        weights.fill(f32::from(copy));
        store.push(&lease, Update::weights(&weights)).unwrap();
        store.flush().unwrap();
    }
    store.checkpoint(3, &[3; 100]).unwrap();
    run.store = None;
}

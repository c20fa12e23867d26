//! What do trainers of two tables do, by calls for both at once?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

use super::rng::Rng;
use super::trainers::{Change, DIM, Log, SHARED_KEYS, Scene, batch};
use hps::*;

/// Pulls again where there was no room: tickets under way have the places of a shard.
fn pull(store: &Store, ids: [TableId; 2], keys: &[u64], outs: &mut [Vec<f32>; 2]) -> Result<Lease> {
    loop {
        let [first, second] = &mut *outs;
        let mut parts = [
            PullPart::new(ids[0], keys, first),
            PullPart::new(ids[1], keys, second),
        ];
        match store.pull_many(&mut parts) {
            Err(Error::OverBudget { .. }) => shuttle::thread::yield_now(),
            result => return result,
        }
    }
}

/// Pulls or prefetches the same keys of both tables, checks them, and adds one to all of them.
pub fn train(scene: &Scene, store: &Store, trainer: usize, log: &Log, seed: u64) -> Result<()> {
    let ids = [store.table("t")?, store.table("u")?];
    let mut rng = Rng(seed.rotate_left(32) ^ trainer as u64);
    for _ in 0..scene.rounds {
        let keys = batch(scene, &mut rng, trainer);
        let mut outs = [(); 2].map(|()| vec![0.0; keys.len() * DIM]);
        let ticket = match rng.below(3) {
            0 => None,
            _ => {
                let parts = ids.map(|id| PrefetchPart::new(id, &keys));
                Some(store.prefetch_many(&parts)?)
            }
        };
        let ahead = match ticket {
            // A third of these are dropped, whatever has been done for them.
            Some(ticket) if !rng.one_in(3) => match ticket.wait() {
                Ok(lease) => Some(lease),
                Err(Error::OverBudget { .. }) => None,
                Err(error) => return Err(error),
            },
            _ => None,
        };
        let lease = match ahead {
            Some(lease) => {
                let [first, second] = &mut outs;
                lease.read_many(&mut [&mut first[..], &mut second[..]])?;
                lease
            }
            None => pull(store, ids, &keys, &mut outs)?,
        };
        let counts = log.after(log.ended.load(SeqCst));
        for out in &outs {
            for (key, row) in keys.iter().zip(out.chunks_exact(DIM)) {
                let own = counts.get(key).copied().unwrap_or(0) as f32;
                assert!(row.iter().all(|w| *w == row[0]), "a torn row of key {key}");
                let fits = row[0] == own || *key < SHARED_KEYS as u64 && row[0] >= own;
                assert!(fits, "key {key}: {} after {own} pushes", row[0]);
            }
        }
        let ones = vec![1.0; keys.len() * DIM];
        log.change(Change::Push(keys), || {
            let parts = ids.map(|id| PushPart::new(id, Update::deltas(&ones)));
            store.push_many(&lease, &parts)
        })?;
    }
    Ok(())
}

/// The rows of a checkpoint, of each table.
pub fn rows_of_both(store: &Store, checkpoint: CheckpointId) -> [BTreeMap<u64, f32>; 2] {
    let mut both = [BTreeMap::new(), BTreeMap::new()];
    let mut iter = store.rows(checkpoint).unwrap();
    while let Some(row) = iter.next_row().unwrap() {
        assert!(row.values.iter().all(|v| *v == row.values[0]), "a torn row");
        both[row.table.0 as usize].insert(row.key, row.values[0]);
    }
    both
}

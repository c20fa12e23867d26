//! Passes: rows stay while they last, come in while others last, and become blocks as HugeCTR's do.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/rng.rs"]
mod rng;
#[path = "common/small.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod small;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use rng::Rng;

const ROOT: &str = "/store";
const DIM: usize = 64;
/// Weights and AdaGrad's sums, and what is kept beside a row.
const ROW_BYTES: u64 = 2 * 4 * DIM as u64 + 48;

fn options(rows: u64) -> RuntimeOptions {
    let cache = (1 << 20) + rows * ROW_BYTES * 9 / 8;
    small::options().cache_bytes(cache).threads(2).shards(2)
}

fn open(disk: &SimDisk, options: RuntimeOptions) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options).unwrap()
}

fn ads() -> TableDescriptor {
    TableDescriptor::new("ads", DIM).seed(3)
}

/// A store whose table has the rows of keys 0 to `rows`, none of them in memory.
fn loaded(disk: &SimDisk, rows: u64, options: RuntimeOptions) -> Store {
    let io = Io::of(disk.clone());
    let create = CreateOptions::new();
    let store = Store::create_on(io, Path::new(ROOT), create, small::options()).unwrap();
    let table = store.create_table(&ads()).unwrap();
    let keys: Vec<u64> = (0..rows).collect();
    for keys in keys.chunks(500) {
        let mut weights = vec![0.0; keys.len() * DIM];
        let lease = store.pull(table, keys, &mut weights).unwrap();
        let update = Update::gradients(&weights, 0.1);
        store.push(&lease, update).unwrap();
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    open(disk, options)
}

fn cached(num_blocks: u32, target_hit_rate: f64, max_num_evict: u64) -> PolicyKind {
    PolicyKind::Cached {
        num_blocks,
        target_hit_rate,
        max_num_evict,
    }
}

/// HugeCTR's three phases, on sets of keys.
struct SetModel {
    blocks: VecDeque<BTreeSet<u64>>,
    num_blocks: usize,
    target_hit_rate: f64,
    evictions_left: u64,
}

impl SetModel {
    fn pass(&mut self, keys: &BTreeSet<u64>) -> (u64, bool) {
        let is_hit = |key: &&u64| self.blocks.iter().any(|block| block.contains(key));
        let hits = keys.iter().filter(is_hit).count();
        let is_full = self.blocks.len() == self.num_blocks;
        let is_missed = (hits as f64) < self.target_hit_rate * keys.len() as f64;
        let evicts = is_full && self.num_blocks > 0 && is_missed && self.evictions_left > 0;
        if evicts {
            self.evictions_left -= 1;
            self.blocks.pop_front();
        }
        let is_block = !is_full || evicts;
        if is_block {
            self.blocks.push_back(keys.clone());
        }
        (hits as u64, is_block)
    }
}

/// Keys of a pass: many popular ones, some others.
fn keyset(rng: &mut Rng, rows: u64, popular: u64, keys: usize) -> BTreeSet<u64> {
    let key = |rng: &mut Rng| match rng.below(2) {
        0 => rng.below(popular as usize) as u64,
        _ => rng.below(rows as usize) as u64,
    };
    (0..keys).map(|_| key(rng)).collect()
}

#[test]
fn hits_of_blocks_are_those_of_a_model_of_sets() {
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let rows = 4000;
        let (num_blocks, max_num_evict) = (rng.below(4) as u32, rng.below(4) as u64);
        let target_hit_rate = [0.0, 0.3, 0.5, 0.7, 1.0][rng.below(5)];
        let looks_ahead = rng.one_in(2);
        let policy = cached(num_blocks, target_hit_rate, max_num_evict);
        let disk = SimDisk::new(seed);
        let options = options(6 * 900).inline(rng.one_in(3)).policy(policy);
        let store = loaded(&disk, rows, options);
        let table = store.table("ads").unwrap();
        let mut model = SetModel {
            blocks: VecDeque::new(),
            num_blocks: num_blocks as usize,
            target_hit_rate,
            evictions_left: max_num_evict,
        };
        let mut before: Option<Pass> = None;
        for number in 0..15 {
            if number == 10 {
                store.unfreeze(table).unwrap();
                model.evictions_left = max_num_evict;
            }
            let keys = keyset(&mut rng, rows, 300, 900);
            let list: Vec<u64> = keys.iter().copied().collect();
            if !looks_ahead {
                before = None;
            }
            let ticket = store.begin_pass(&[PassPart::new(table, &list)]).unwrap();
            let pass = ticket.wait().unwrap();
            let found = &pass.report().tables[0];
            let (hits, is_block) = model.pass(&keys);
            let known = list.len() as u64;
            assert_eq!(
                (found.keys, found.known),
                (known, known),
                "seed {seed}, pass {number}"
            );
            assert_eq!(
                (found.hits, found.is_block),
                (hits, is_block),
                "seed {seed}, pass {number}"
            );
            // A batch of it: all hits.
            let reads = store.stats().reads;
            let mut weights = vec![0.0; 100 * DIM];
            let lease = store.pull(table, &list[..100], &mut weights).unwrap();
            store
                .push(&lease, Update::gradients(&weights, 0.1))
                .unwrap();
            assert_eq!(store.stats().reads, reads);
            drop(before.replace(pass));
        }
        drop(before);
        let stats = &store.stats().tables[0];
        assert_eq!(stats.blocks, model.blocks.len() as u64);
        // What blocks have is in memory.
        let reads = store.stats().reads;
        for block in &model.blocks {
            let keys: Vec<u64> = block.iter().copied().collect();
            store
                .pull(table, &keys, &mut vec![0.0; keys.len() * DIM])
                .unwrap();
        }
        assert_eq!(store.stats().reads, reads, "seed {seed}");
        store.checkpoint(2, &[]).unwrap();
        store.close().unwrap();
    }
}

/// Trains on passes, and gives all rows after it.
fn trained(
    policy: Option<PolicyKind>,
    pass_batches: usize,
    optimizer: Optimizer,
) -> Vec<(u64, Vec<u32>)> {
    let disk = SimDisk::new(7);
    let io = Io::of(disk.clone());
    let mut own = options(3 * 700);
    if let Some(policy) = policy {
        own = own.policy(policy);
    }
    // With the state of Adam rows are half as long again.
    own = own.cache_bytes(6 << 20);
    let store = Store::create_on(io, Path::new(ROOT), CreateOptions::new(), own.clone()).unwrap();
    let table = store.create_table(&ads().optimizer(optimizer)).unwrap();
    let mut store = Some(store);
    let mut rng = Rng(5);
    let batches: Vec<Vec<u64>> = (0..120)
        .map(|_| keyset(&mut rng, 9000, 400, 150).into_iter().collect())
        .collect();
    for (number, pass) in batches.chunks(pass_batches).enumerate() {
        let open_store = store.as_ref().unwrap();
        let keys: BTreeSet<u64> = pass.iter().flatten().copied().collect();
        let keys: Vec<u64> = keys.into_iter().collect();
        let begun = policy.map(|_| {
            let part = [PassPart::new(table, &keys)];
            open_store.begin_pass(&part).unwrap().wait().unwrap()
        });
        for (step, batch) in (number * pass_batches..).zip(pass) {
            let mut weights = vec![0.0; batch.len() * DIM];
            let lease = open_store.pull(table, batch, &mut weights).unwrap();
            let gradients: Vec<f32> = weights.iter().map(|w| w - 0.01 * step as f32).collect();
            open_store
                .push(&lease, Update::gradients(&gradients, 0.05))
                .unwrap();
        }
        // Inside of the pass.
        let id = open_store.checkpoint(number as u64 + 1, &[]).unwrap().id;
        if let Some(pass) = begun {
            assert_eq!(pass.end().keys, keys.len() as u64);
        }
        if number == 2 {
            // Opened anew: blocks are gone, rows are not.
            assert_eq!(open_store.last_checkpoint().unwrap().id, id);
            store.take().unwrap().close().unwrap();
            store = Some(open(&disk, own.clone()));
        }
    }
    let store = store.unwrap();
    let mut rows = store.rows(store.last_checkpoint().unwrap().id).unwrap();
    let mut all = Vec::new();
    while let Some(row) = rows.next_row().unwrap() {
        all.push((row.key, row.values.iter().map(|v| v.to_bits()).collect()));
    }
    all
}

#[test]
fn values_do_not_depend_on_passes_or_policies() {
    for optimizer in [Optimizer::Adagrad, Optimizer::Adam] {
        let expected = trained(None, 12, optimizer);
        assert!(expected.len() > 5000);
        for policy in [
            PolicyKind::Bilevel,
            cached(1, 0.9, 2),
            cached(0, 0.5, 0),
            PolicyKind::Lru,
        ] {
            for pass_batches in [5, 12] {
                let found = trained(Some(policy), pass_batches, optimizer);
                assert!(
                    found == expected,
                    "{policy:?}, {pass_batches} batches a pass"
                );
            }
        }
    }
}

#[test]
fn a_pass_beside_another_reads_only_what_that_one_lacks() {
    let disk = SimDisk::new(1);
    let policy = cached(0, 0.0, 0);
    let store = loaded(&disk, 3000, options(3000).policy(policy));
    let table = store.table("ads").unwrap();
    let of = |keys: std::ops::Range<u64>| keys.collect::<Vec<u64>>();
    let begin = |keys: &[u64]| store.begin_pass(&[PassPart::new(table, keys)]).unwrap();
    let row = store.tables()[0].1.row_bytes() as u64;
    let first = begin(&of(0..1000)).wait().unwrap();
    assert_eq!((first.report().hits, first.report().bytes), (0, 1000 * row));
    let second = begin(&of(400..1300)).wait().unwrap();
    // No block has them; but what the first has is not read again.
    assert_eq!(
        (second.report().hits, second.report().bytes),
        (0, 300 * row)
    );
    assert_eq!(first.end().hit_rate(), 0.0);
    // Those that only the first had are gone, the others are not.
    let reads = |keys: &[u64]| {
        let before = store.stats().read_bytes;
        store
            .pull(table, keys, &mut vec![0.0; keys.len() * DIM])
            .unwrap();
        store.stats().read_bytes > before
    };
    assert!(!reads(&of(400..1300)));
    assert!(reads(&of(0..400)));
    drop(second);
    assert!(reads(&of(400..1300)));
    // Keys that nobody ever pushed are in memory, too.
    let pass = begin(&of(10_000..10_100)).wait().unwrap();
    assert_eq!(
        (
            pass.report().keys,
            pass.report().known,
            pass.report().hit_rate()
        ),
        (100, 0, 1.0)
    );
}

#[test]
fn a_pass_that_does_not_fit_says_what_would_do() {
    for inline in [false, true] {
        let disk = SimDisk::new(1);
        let store = loaded(&disk, 6000, options(1000).inline(inline));
        let table = store.table("ads").unwrap();
        let all: Vec<u64> = (0..6000).collect();
        let begin = |keys: &[u64]| store.begin_pass(&[PassPart::new(table, keys)]);
        let error = begin(&all).unwrap_err();
        assert!(error.to_string().contains("hps-keyset split"), "{error}");
        let Error::OverBudget {
            needed_bytes,
            asked_rows,
            ..
        } = error
        else {
            unreachable!("{error}")
        };
        assert_eq!(asked_rows, 6000);
        // Half of it fits once nobody else holds rows.
        let held = begin(&all[..700]).unwrap().wait().unwrap();
        let error = begin(&all[700..2400]).unwrap().wait().unwrap_err();
        assert!(
            matches!(error, Error::OverBudget { ref leases, .. } if leases.len() == 2),
            "{error}"
        );
        let ticket = begin(&all[700..2400]).unwrap();
        let error = ticket.wait_for(Duration::from_millis(30)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(!ticket.is_ready());
        drop(held);
        let next = ticket.wait().unwrap();
        assert_eq!(next.end().keys, 1700);
        // Given up: nothing is left of it.
        drop(begin(&all[..1000]).unwrap());
        while store.stats().leases > 0 {
            std::thread::yield_now();
        }
        assert_eq!(store.stats().pinned_rows, 0);
        store.set_cache_bytes(needed_bytes).unwrap();
        assert_eq!(begin(&all).unwrap().wait().unwrap().end().keys, 6000);
        store.close().unwrap();
    }
}

#[test]
fn blocks_that_leave_no_room_are_part_of_what_is_needed() {
    let disk = SimDisk::new(1);
    let store = loaded(&disk, 6000, options(3000).policy(cached(2, 0.0, 0)));
    let table = store.table("ads").unwrap();
    let all: Vec<u64> = (0..6000).collect();
    let begin = |keys: &[u64]| store.begin_pass(&[PassPart::new(table, keys)]).unwrap();
    for keys in [&all[..1500], &all[1500..3000]] {
        assert!(begin(keys).wait().unwrap().end().tables[0].is_block);
    }
    let error = begin(&all[3000..5900]).wait().unwrap_err();
    let Error::OverBudget { needed_bytes, .. } = error else {
        unreachable!("{error}")
    };
    store.set_cache_bytes(needed_bytes).unwrap();
    let pass = begin(&all[3000..5900]).wait().unwrap();
    assert!(!pass.report().tables[0].is_block);
    // The table can be given another policy, and dropped, though blocks hold rows of it.
    drop(pass);
    assert_eq!(store.stats().tables[0].blocks, 2);
    let other = TableOptions::new().policy(PolicyKind::Bilevel);
    store.create_table_with(&ads(), other).unwrap();
    assert_eq!(
        (store.stats().tables[0].blocks, store.stats().pinned_rows),
        (0, 0)
    );
    store
        .create_table_with(&ads(), other.policy(cached(1, 0.0, 0)))
        .unwrap();
    assert!(begin(&all[..10]).wait().unwrap().end().tables[0].is_block);
    store.drop_table(table).unwrap();
    // And a store with blocks rolls back.
    let id = store.last_checkpoint().unwrap().id;
    let store = store.rollback(id).unwrap();
    let pass = store
        .begin_pass(&[PassPart::new(table, &all[..10])])
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!(pass.report().known, 10);
    drop(pass);
    store.rollback(id).unwrap().close().unwrap();
}

#[test]
fn a_pass_reads_its_keyset_file_by_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pass.keyset");
    let keys: Vec<u64> = (0..100_000).map(|k| k * 3).collect();
    let bytes: Vec<u8> = keys.iter().flat_map(|k| k.to_le_bytes()).collect();
    std::fs::write(&path, &bytes).unwrap();
    let disk = SimDisk::new(1);
    let store = loaded(&disk, 3000, small::options().cache_bytes(96 << 20));
    let table = store.table("ads").unwrap();
    let part = PassPart::from_file(table, &path, KeyType::I64);
    let pass = store.begin_pass(&[part]).unwrap().wait().unwrap();
    assert_eq!((pass.report().keys, pass.report().known), (100_000, 1000));
    // 12 bytes a row.
    assert_eq!(store.stats().lease_bytes, 1_200_000);
    assert_eq!(store.stats().pinned_rows, 100_000);
    drop(pass);

    std::fs::write(&path, &bytes[..1001]).unwrap();
    let error = store.begin_pass(&[part]).unwrap_err().to_string();
    assert!(
        error.contains("pass.keyset") && error.contains("offset 1000"),
        "{error}"
    );
    let error = store.begin_pass(&[]).unwrap_err();
    assert!(error.to_string().contains("at least one part"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(
        store.begin_pass(&[part]).unwrap_err(),
        Error::Io { .. }
    ));
    store.close().unwrap();
}

#[test]
fn a_hit_rate_that_is_no_share_is_refused() {
    for (rate, ok) in [(1.0, true), (1.1, false), (-0.1, false), (f64::NAN, false)] {
        let disk = SimDisk::new(1);
        let of_table = TableOptions::new().policy(cached(1, rate, 0));
        for options in [
            small::options().policy(cached(1, rate, 0)),
            small::options().table("ads", of_table),
        ] {
            let io = Io::of(disk.clone());
            let made = Store::create_on(io, Path::new(ROOT), CreateOptions::new(), options);
            match made {
                Ok(store) if ok => store.close().unwrap(),
                Err(Error::InvalidArgument(_)) if !ok => {}
                other => unreachable!("{rate}: {other:?}"),
            }
            if ok {
                break;
            }
        }
    }
}

#[test]
fn a_staged_table_is_read_once_when_the_store_is_opened() {
    let disk = SimDisk::new(1);
    // Opened with room for all.
    let store = loaded(&disk, 5000, options(5000).policy(PolicyKind::Staged));
    let stats = store.stats();
    assert_eq!((stats.resident_rows, stats.dirty_rows), (5000, 0));
    let table = store.table("ads").unwrap();
    let keys: Vec<u64> = (0..5000).collect();
    for keys in keys.chunks(700) {
        let mut weights = vec![0.0; keys.len() * DIM];
        let lease = store.pull(table, keys, &mut weights).unwrap();
        store
            .push(&lease, Update::gradients(&weights, 0.1))
            .unwrap();
    }
    let pass = store
        .begin_pass(&[PassPart::new(table, &keys)])
        .unwrap()
        .wait()
        .unwrap();
    assert_eq!((pass.report().hit_rate(), pass.report().bytes), (1.0, 0));
    drop(pass);
    let after = store.stats();
    assert_eq!((after.reads, after.written_bytes), (0, 0));
    let then = store.checkpoint(2, &[]).unwrap().id;
    assert!(store.stats().written_bytes > 0);
    let expected = small::values(&store, table, &keys, DIM);
    // A third one, with half of the rows removed; a reader of the one before has them.
    store.remove(table, &keys[..2500]).unwrap();
    store.checkpoint(3, &[]).unwrap();
    store.close().unwrap();
    let io = || Io::of(disk.clone());
    let staged = options(5000).policy(PolicyKind::Staged);
    let reader =
        Store::open_read_only_on(io(), Path::new(ROOT), Some(then), staged.clone()).unwrap();
    assert_eq!(reader.stats().resident_rows, 5000);
    assert!(small::values(&reader, table, &keys, DIM) == expected);
    assert_eq!(reader.stats().reads, 0);
    drop(reader);
    let store = open(&disk, staged.clone());
    assert_eq!(store.stats().resident_rows, 2500);
    store.close().unwrap();

    // Without room it says how much is needed.
    let small = staged.clone().cache_bytes(1 << 20);
    let error = Store::open_on(io(), Path::new(ROOT), small.clone()).unwrap_err();
    let Error::OverBudget { needed_bytes, .. } = error else {
        unreachable!("{error}")
    };
    open(&disk, small.cache_bytes(needed_bytes))
        .close()
        .unwrap();
}

/// A pass looked whether others hold rows only after it had found no room: where the one in the way ended
/// in between, it was refused for good, though it fits.
#[test]
fn a_pass_that_waits_for_one_that_ends_gets_its_room() {
    let disk = SimDisk::new(1);
    let store = loaded(&disk, 3000, options(1000));
    let table = store.table("ads").unwrap();
    let all: Vec<u64> = (0..3000).collect();
    let begin = |keys: &[u64]| store.begin_pass(&[PassPart::new(table, keys)]).unwrap();
    for round in 0..200 {
        let held = begin(&all[..1500]).wait().unwrap();
        let ticket = begin(&all[1500..3000]);
        if round % 2 == 0 {
            // It has looked once.
            assert!(ticket.wait_for(Duration::from_millis(1)).is_err());
        }
        drop(held);
        assert_eq!(ticket.wait().unwrap().end().keys, 1500, "round {round}");
    }
    store.close().unwrap();
}

/// A pass that waits for others had no place in the book of leases yet: its table could be dropped, and
/// waiting for it said so.
#[test]
fn a_table_stays_while_a_pass_of_it_waits_for_others() {
    for inline in [false, true] {
        let disk = SimDisk::new(1);
        let store = loaded(&disk, 3000, options(1000).inline(inline));
        let table = store.table("ads").unwrap();
        let other = store.create_table(&small::sgd("other", 4)).unwrap();
        let all: Vec<u64> = (0..3000).collect();
        let begin = |table, keys: &[u64]| store.begin_pass(&[PassPart::new(table, keys)]).unwrap();
        let held = begin(table, &all[..1500]).wait().unwrap();
        let stuck = begin(table, &all[1500..3000]);
        let behind = begin(other, &all[..10]);
        let error = store.drop_table(other).unwrap_err();
        let invalid = small::invalid(error);
        assert!(matches!(
            invalid,
            ArgumentError::LeasesOutstanding { count: 1, .. }
        ));
        drop((held, stuck));
        assert_eq!(behind.wait().unwrap().end().keys, 10);
        store.drop_table(other).unwrap();
        store.checkpoint(2, &[]).unwrap();
        store.close().unwrap();
    }
}

//! Do options of one table hold for that table, and for no other?
#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/rng.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod rng;
#[path = "common/small.rs"]
mod small;

use std::path::Path;

use hps::io::Io;
use hps::io::sim::SimDisk;
use hps::*;
use rng::Rng;
use small::{invalid, sgd};

const ROOT: &str = "/store";
const DIM: usize = 64;

/// In the caller's thread, in one shard: two runs do the same.
fn options() -> RuntimeOptions {
    small::options().threads(1).shards(1).inline(true)
}

fn create(options: RuntimeOptions) -> (SimDisk, Store) {
    let disk = SimDisk::new(1);
    let store = Store::create_on(
        Io::of(disk.clone()),
        Path::new(ROOT),
        CreateOptions::new(),
        options,
    )
    .unwrap();
    (disk, store)
}

fn open(disk: &SimDisk, options: RuntimeOptions) -> Store {
    Store::open_on(Io::of(disk.clone()), Path::new(ROOT), options).unwrap()
}

fn adam(name: &str) -> TableDescriptor {
    TableDescriptor::new(name, DIM)
        .optimizer(Optimizer::Adam)
        .seed(7)
}

fn calm() -> HyperParameters {
    HyperParameters::new().beta1(0.5).epsilon(1e-3)
}

fn hasty() -> HyperParameters {
    HyperParameters::new().beta2(0.9)
}

/// Changes more rows than fit, in an order that the seed draws.
fn train(store: &Store, table: TableId, seed: u64) {
    let mut rng = Rng(seed);
    for _ in 0..30 {
        let keys: Vec<u64> = (0..100).map(|_| rng.below(1500) as u64).collect();
        let mut out = vec![0.0; keys.len() * DIM];
        let lease = store.pull(table, &keys, &mut out).unwrap();
        let gradients: Vec<f32> = out.iter().map(|w| w - rng.below(9) as f32).collect();
        store
            .push(&lease, Update::gradients(&gradients, 0.05))
            .unwrap();
    }
}

/// All rows, state included.
fn bits(store: &Store, table: TableId) -> Vec<u32> {
    let mut found = Vec::new();
    for from in (0..1500u64).step_by(100) {
        let keys: Vec<u64> = (from..from + 100).collect();
        let lease = store.prefetch(table, &keys).unwrap().wait().unwrap();
        let mut rows = vec![0.0; keys.len() * (3 * DIM + 1)];
        lease.read_rows(&mut rows).unwrap();
        found.extend(rows.into_iter().map(f32::to_bits));
    }
    found
}

/// What a store of its own computes with these hyperparameters, in two runs.
fn alone(hyper: HyperParameters, seed: u64) -> Vec<u32> {
    let options = options().hyper(hyper);
    let (disk, store) = create(options.clone());
    let table = store.create_table(&adam("t")).unwrap();
    train(&store, table, seed);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let store = open(&disk, options);
    train(&store, table, seed + 1);
    let found = bits(&store, table);
    store.close_discarding();
    found
}

#[test]
fn two_tables_compute_as_two_stores_with_their_hyperparameters_would() {
    let options = options()
        .table("calm", TableOptions::new().hyper(calm()))
        .table("hasty", TableOptions::new().hyper(hasty()));
    let (disk, store) = create(options.clone());
    let tables = ["calm", "hasty", "other"].map(|name| store.create_table(&adam(name)).unwrap());
    for (table, seed) in tables.into_iter().zip([10, 20, 30]) {
        train(&store, table, seed);
    }
    assert!(store.stats().flushes > 0, "rows leave memory meanwhile");
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let store = open(&disk, options);
    for (table, seed) in tables.into_iter().zip([11, 21, 31]) {
        train(&store, table, seed);
    }
    let found = tables.map(|table| bits(&store, table));
    let defaults = HyperParameters::new();
    let expected = [alone(calm(), 10), alone(hasty(), 20), alone(defaults, 30)];
    for (name, (found, expected)) in ["calm", "hasty", "other"]
        .iter()
        .zip(found.iter().zip(&expected))
    {
        assert!(found == expected, "{name}");
    }
    assert!(
        expected[0] != alone(defaults, 10),
        "they change what is computed"
    );
    store.close_discarding();
}

#[test]
fn options_given_with_a_table_hold_until_the_close_and_after_a_rollback() {
    let (_, store) = create(options().table("t", TableOptions::new().hyper(hasty())));
    let own = TableOptions::new().hyper(calm()).policy(PolicyKind::Lru);
    let table = store.create_table_with(&adam("t"), own).unwrap();
    train(&store, table, 10);
    let id = store.checkpoint(1, &[]).unwrap().id;
    train(&store, table, 40);
    let store = store.rollback(id).unwrap();
    assert_eq!(store.stats().tables[0].policy, PolicyKind::Lru);
    train(&store, table, 11);
    assert!(
        bits(&store, table) == alone(calm(), 10),
        "not as if they were hasty"
    );
    store.close_discarding();
}

#[test]
fn a_table_that_is_there_gets_other_options_beside_a_lease() {
    let (_, store) = create(options().hyper(calm()));
    let table = store.create_table(&adam("t")).unwrap();
    train(&store, table, 10);
    let before = store.stats();
    let waits: Vec<_> = before.tables[0].waits().collect();
    let other = TableOptions::new().hyper(hasty()).policy(PolicyKind::Fifo);
    let lease = store.prefetch(table, &[1]).unwrap().wait().unwrap();
    assert_eq!(store.create_table_with(&adam("t"), other).unwrap(), table);
    assert_eq!(store.stats().tables[0].policy, PolicyKind::Fifo);
    let same = TableOptions::new();
    assert_eq!(store.create_table_with(&adam("t"), same).unwrap(), table);
    assert_eq!(store.stats().tables[0].policy, PolicyKind::Bilevel);
    // Its rows may be in the way of what was promised to others.
    let pinned = TableOptions::new().policy(PolicyKind::PinAll);
    let error = invalid(store.create_table_with(&adam("t"), pinned).unwrap_err());
    let held = matches!(error, ArgumentError::LeasesOutstanding { count: 2, .. });
    assert!(held, "{error}");
    assert_eq!(store.stats().tables[0].policy, PolicyKind::Bilevel);
    drop(lease);
    let bad = TableOptions::new().hyper(HyperParameters::new().beta1(1.0));
    let error = invalid(store.create_table_with(&adam("t"), bad).unwrap_err()).to_string();
    assert!(
        error.contains("beta1") && error.contains("\"t\""),
        "{error}"
    );
    assert_eq!(store.create_table_with(&adam("t"), other).unwrap(), table);
    let stats = &store.stats().tables[0];
    assert_eq!(
        (stats.policy, stats.waits().collect::<Vec<_>>()),
        (PolicyKind::Fifo, waits),
        "what is counted goes on"
    );
    assert_eq!(store.create_table(&adam("t")).unwrap(), table);
    assert_eq!(
        store.stats().tables[0].policy,
        PolicyKind::Fifo,
        "found as it is"
    );
    train(&store, table, 11);
    let changed = bits(&store, table);
    assert!(changed != alone(calm(), 10) && changed != alone(hasty(), 10));
    store.close_discarding();
}

/// Hits of each table, where the same is asked of both: a few rows again and again, and others that come
/// by once.
fn hits(policies: [PolicyKind; 2]) -> [u64; 2] {
    let of = |kind| TableOptions::new().policy(kind);
    let options = options()
        .policy(PolicyKind::Bilevel)
        .table("a", of(policies[0]))
        .table("b", of(policies[1]));
    let (disk, store) = create(options.clone());
    let tables = ["a", "b"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    let all: Vec<u64> = (0..300).chain(10_000..16_000).collect();
    for (table, keys) in tables
        .iter()
        .flat_map(|t| all.chunks(100).map(move |k| (t, k)))
    {
        small::set(&store, *table, keys, 1.0, DIM);
    }
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    // With no row in memory, and none changed from here on: a flush is for all tables.
    let store = open(&disk, options);
    let shown: Vec<PolicyKind> = store.stats().tables.iter().map(|t| t.policy).collect();
    assert_eq!(shown, policies);
    let mut hits = [0; 2];
    for round in 0..60u64 {
        let often = 0..300;
        let once = 10_000 + round * 100..10_000 + (round + 1) * 100;
        let keys: Vec<u64> = often.chain(once).collect();
        for (table, hits) in tables.into_iter().zip(&mut hits) {
            let before = store.stats().unique_hits;
            for keys in keys.chunks(100) {
                small::values(&store, table, keys, DIM);
            }
            *hits += store.stats().unique_hits - before;
        }
    }
    store.close_discarding();
    hits
}

#[test]
fn each_table_has_the_policy_that_is_named_for_it() {
    use PolicyKind::{Bilevel, Fifo, Lru};
    let [lru, _] = hits([Lru, Lru]);
    let [fifo, _] = hits([Fifo, Fifo]);
    let [bilevel, _] = hits([Bilevel, Bilevel]);
    assert!(fifo < lru && fifo < bilevel, "{fifo} {lru} {bilevel}");
    // They share the cache: what one keeps the other has not.
    let [beside_lru, beside_bilevel] = [Lru, Bilevel].map(|other| hits([Fifo, other])[0]);
    assert!(
        beside_lru != fifo && beside_bilevel != fifo,
        "{beside_lru} {beside_bilevel}"
    );
}

#[test]
fn a_pinned_table_keeps_its_rows_beside_one_that_does_not_fit() {
    let (_, store) =
        create(options().table("users", TableOptions::new().policy(PolicyKind::PinAll)));
    let [users, clicks] =
        ["users", "clicks"].map(|name| store.create_table(&sgd(name, DIM)).unwrap());
    // None of those that come by.
    let few: Vec<u64> = (1..201).collect();
    small::set(&store, users, &few, 1.0, DIM);
    small::set(&store, clicks, &few, 1.0, DIM);
    let resident = |table| {
        let before = store.stats().unique_hits;
        assert!(small::values(&store, table, &few, DIM) == vec![1.0; 200 * DIM]);
        store.stats().unique_hits - before
    };
    small::fill(&store, clicks, 8000, 400, 2.0, DIM);
    assert_eq!(resident(users), 200);
    assert!(resident(clicks) < 200);
    let batches = (1..40).map(|batch| (batch * 400..(batch + 1) * 400).collect());
    let pulled = |keys: Vec<u64>| store.pull(users, &keys, &mut vec![0.0; 400 * DIM]);
    let error = batches.map(pulled).find_map(Result::err).unwrap();
    match error {
        Error::OverBudget { table, .. } => assert_eq!(table, "users"),
        other => panic!("{other}"),
    }
    small::fill(&store, clicks, 8000, 400, 3.0, DIM);
    assert_eq!(
        resident(users),
        200,
        "the other goes on, and costs it nothing"
    );
    store.close_discarding();
}

#[test]
fn a_table_whose_part_of_the_cache_holds_no_row_is_named() {
    let (_, store) = create(options().shards(16));
    store.create_table(&sgd("narrow", 2)).unwrap();
    let error = store
        .create_table(&adam("wide").dim(8192))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cache_bytes") && error.contains("\"wide\""),
        "{error}"
    );
    assert_eq!(store.tables().len(), 1);
    store.close_discarding();
}

#[test]
fn options_of_a_table_that_comes_later_wait_for_it() {
    let pinned = TableOptions::new().policy(PolicyKind::PinAll);
    let options = options().table("late", pinned);
    let (disk, store) = create(options.clone());
    store.close().unwrap();
    let store = open(&disk, options.clone());
    store.create_table(&sgd("early", 2)).unwrap();
    store.create_table(&sgd("late", 2)).unwrap();
    let kinds = |store: &Store| {
        store
            .stats()
            .tables
            .iter()
            .map(|t| t.policy)
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&store), [PolicyKind::Bilevel, PolicyKind::PinAll]);
    store.checkpoint(1, &[]).unwrap();
    store.close().unwrap();
    let bad = options.clone().table(
        "late",
        TableOptions::new().hyper(HyperParameters::new().momentum(-1.0)),
    );
    let error = Store::open_on(Io::of(disk.clone()), Path::new(ROOT), bad)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("momentum") && error.contains("\"late\""),
        "{error}"
    );

    // A reader has options of its own, and creates nothing.
    let options = options
        .table("nobody", pinned)
        .table("early", TableOptions::new().policy(PolicyKind::Lru));
    let reader = Store::open_read_only_on(Io::of(disk), Path::new(ROOT), None, options).unwrap();
    assert_eq!(kinds(&reader), [PolicyKind::Lru, PolicyKind::PinAll]);
    reader.create_table_with(&sgd("late", 2), pinned).unwrap();
    let error = reader
        .create_table_with(&sgd("late", 2), TableOptions::new())
        .unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
}

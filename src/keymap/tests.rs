use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::units::mix64;

fn check(map: &KeyMap, model: &BTreeMap<u64, u64>) {
    assert_eq!(map.len(), model.len());
    assert!(map.iter_ordered().eq(model.iter().map(|(k, v)| (*k, *v))));
    let hashes: Vec<u64> = model.keys().flat_map(|k| [*k, k.wrapping_add(1)]).collect();
    let mut values = vec![0; hashes.len()];
    map.get_batch(&hashes, &mut values);
    for (hash, value) in hashes.iter().zip(values) {
        let expected = model.get(hash).copied();
        assert_eq!(map.get(*hash), expected, "{hash:#x}");
        assert_eq!((value != ABSENT).then_some(value), expected, "{hash:#x}");
    }
}

fn fill(hashes: impl Iterator<Item = u64>, load: Load) -> KeyMap {
    let mut map = KeyMap::new(0, u64::MAX, load);
    let mut model = BTreeMap::new();
    for (i, hash) in hashes.enumerate() {
        assert_eq!(map.insert(hash, i as u64), model.insert(hash, i as u64));
    }
    check(&map, &model);
    map
}

#[test]
fn extreme_hashes_are_ordinary() {
    let mut map = fill(
        [0, u64::MAX, 1, u64::MAX - 1, 1 << 63].into_iter(),
        Load::Dense,
    );
    assert_eq!(map.get(u64::MAX), Some(1));
    assert_eq!(map.remove(0), Some(0));
    assert_eq!(map.remove(0), None);
    assert_eq!(map.len(), 4);
    let mut single = KeyMap::new(7, 7, Load::Fast);
    assert_eq!(single.insert(7, 3), None);
    assert_eq!(
        (single.get(7), single.get(8), single.get(6)),
        (Some(3), None, None)
    );
}

#[test]
fn dense_runs_of_hashes_cost_levels_and_not_memory() {
    for start in [0, u64::MAX - 49_999, 0x1234_5678_0000_0000] {
        for load in [Load::Dense, Load::Fast] {
            let map = fill((0..50_000).map(|i| start + i), load);
            assert!(
                map.bytes() < 50_000 * 40,
                "{} bytes from {start:#x}",
                map.bytes()
            );
        }
    }
    // Clumps of 100 neighbours at the ends of 2^9 ranges, the worst case found: all homes of a
    // segment lie at its end, and 46 levels of halving are needed to tell the neighbours apart.
    let clumps = (1..=512u64).flat_map(|i| (0..100).map(move |j| (i << 54).wrapping_sub(j + 1)));
    let map = fill(clumps, Load::Dense);
    assert!(map.bytes() < 51_200 * 140, "{} bytes", map.bytes());
}

#[test]
fn a_dense_map_takes_at_most_20_bytes_per_key_at_every_size() {
    let shard = (u64::MAX / 3 + 5, u64::MAX / 3 * 2);
    let mut map = KeyMap::new(shard.0, shard.1, Load::Dense);
    let (mut key, mut worst) = (0u64, 0.0f64);
    while map.len() < 1_200_000 {
        key += 1;
        let hash = mix64(key);
        if hash < shard.0 || hash > shard.1 {
            continue;
        }
        map.insert(hash, key);
        if map.len() >= 100_000 && map.len().is_multiple_of(997) {
            worst = worst.max(map.bytes() as f64 / map.len() as f64);
        }
    }
    println!("worst {worst:.2} bytes per key from 100 K to 1.2 M");
    assert!(worst <= 20.0, "{worst} bytes per key");
}

#[test]
fn removing_gives_memory_back() {
    let mut map = KeyMap::new(0, u64::MAX, Load::Dense);
    (0..20_000).for_each(|k| assert_eq!(map.insert(mix64(k), k), None));
    let full = map.bytes();
    (0..20_000).for_each(|k| assert_eq!(map.remove(mix64(k)), Some(k)));
    assert!(
        map.is_empty() && map.bytes() * 20 < full,
        "{} of {full} bytes left",
        map.bytes()
    );
}

#[test]
fn freed_blocks_are_reused_and_bytes_counts_the_blocks_exactly() {
    let mut map = KeyMap::new(0, u64::MAX, Load::Dense);
    (0..300_000).for_each(|k| assert_eq!(map.insert(mix64(k), k), None));
    let blocks = |map: &KeyMap| {
        let segments = map.segments.iter();
        segments.map(|s| usize::from(s.places)).sum::<usize>() / BLOCK_PLACES
    };
    let tables = |map: &KeyMap| {
        let segments = map.segments.capacity() * size_of::<Segment>();
        size_of::<KeyMap>() + map.directory.capacity() * 4 + segments
    };
    // Nothing was freed that is not used again: what is left is headers and the pool's tables.
    let full = (blocks(&map), map.bytes());
    let rest = full.1 - tables(&map) - full.0 * 2048;
    assert!(
        rest < full.1 / 200,
        "{rest} bytes besides {} blocks",
        full.0
    );
    // Other keys take the blocks of those removed.
    for k in 0..300_000 {
        assert_eq!(map.remove(mix64(k)), Some(k));
        assert_eq!(map.insert(mix64(k + 1_000_000), k), None);
    }
    let changed = map.bytes() as f64 / full.1 as f64;
    assert!(changed < 1.1, "{changed} of the memory before");
    // Numbers are of one block each.
    let mut numbers: Vec<u32> = map.segments.iter().flat_map(|s| s.blocks).collect();
    numbers.retain(|x| *x != pool::NONE);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), blocks(&map));
}

#[test]
fn a_pool_gives_chunks_back_and_takes_freed_blocks_first() {
    let mut pool = Pool::default();
    let mut numbers: Vec<u32> = (0..20_000).map(|_| pool.take()).collect();
    let full = pool.bytes();
    assert!(
        (20_000 * 2048..20_000 * 2048 + 20_000).contains(&full),
        "{full}"
    );
    for (i, number) in (0..).zip(&numbers) {
        pool.get_mut(*number).unwrap().fill((i, i));
    }
    for (i, number) in (0..).zip(&numbers) {
        assert!(pool.get(*number).unwrap().iter().all(|x| *x == (i, i)));
    }
    assert!(pool.get(pool::NONE).is_none());
    // Every third block is freed and taken again: no memory is added.
    numbers.iter_mut().step_by(3).for_each(|x| pool.free(x));
    assert_eq!(numbers[0], pool::NONE);
    numbers.iter_mut().step_by(3).for_each(|x| *x = pool.take());
    assert!(pool.bytes() < full + 4096, "{} of {full}", pool.bytes());
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 20_000);
    // Only the first hundred are left, then none.
    numbers[100..].iter_mut().for_each(|x| pool.free(x));
    assert!(pool.bytes() < 120 * 2048, "{} bytes", pool.bytes());
    numbers[..100].iter_mut().for_each(|x| pool.free(x));
    assert_eq!(pool.bytes(), 0);
}

#[test]
#[should_panic(expected = "range")]
fn a_hash_outside_the_range_is_refused() {
    KeyMap::new(10, 20, Load::Dense).insert(21, 0);
}

/// A map built in order, entry by entry and many at once, by turns.
fn build(range: (u64, u64), load: Load, expected: usize, model: &BTreeMap<u64, u64>) -> KeyMap {
    let mut builder = Builder::new(range.0, range.1, load, expected);
    let all: Vec<(u64, u64)> = model.iter().map(|(hash, value)| (*hash, *value)).collect();
    let (mut rest, mut count) = (&all[..], 1);
    while let Some(((hash, value), others)) = rest.split_first() {
        assert!(builder.push(*hash, *value));
        let (now, later) = others.split_at(count.min(others.len()));
        assert!(builder.extend(now));
        rest = later;
        count = count * 3 % 5003;
    }
    builder.finish()
}

#[test]
fn a_built_map_takes_at_most_20_bytes_per_key_at_every_size() {
    let mut all: Vec<u64> = (0..400_000).map(mix64).collect();
    let mut entries = 400_000;
    let mut worst = 0.0f64;
    while entries > 100_000 {
        all.truncate(entries);
        let model: BTreeMap<u64, u64> = all.iter().map(|h| (*h, !*h >> 1)).collect();
        let map = build((0, u64::MAX), Load::Dense, 4_000_000, &model);
        check(&map, &model);
        worst = worst.max(map.bytes() as f64 / map.len() as f64);
        entries -= entries / 13;
    }
    assert!(worst <= 20.0, "{worst} bytes per key");
}

#[test]
fn a_map_is_built_of_hashes_chosen_to_collide() {
    let dense = |start: u64| (0..50_000).map(move |i| start + i).collect();
    let clumps = (1..=512u64).flat_map(|i| (0..100).map(move |j| (i << 54).wrapping_sub(j + 1)));
    let mixed = (0..9000).map(mix64).chain(5 << 40..(5 << 40) + 9000);
    let cases: [Vec<u64>; 6] = [
        Vec::new(),
        dense(0),
        dense(u64::MAX - 49_999),
        dense(0x1234_5678_0000_0000),
        clumps.collect(),
        mixed.collect(),
    ];
    for hashes in cases {
        let mut model: BTreeMap<u64, u64> = hashes.iter().map(|h| (*h, *h >> 1)).collect();
        let mut map = build((0, u64::MAX), Load::Dense, hashes.len(), &model);
        check(&map, &model);
        assert!(
            map.bytes() <= 20_000 + 140 * hashes.len(),
            "{} bytes",
            map.bytes()
        );
        // It goes on like any other.
        for hash in (0..20_000).map(|k| mix64(k) >> 1) {
            assert_eq!(map.insert(hash, 7), model.insert(hash, 7));
        }
        for hash in hashes.iter().step_by(2) {
            assert_eq!(map.remove(*hash), model.remove(hash));
        }
        check(&map, &model);
    }
}

#[test]
fn a_builder_refuses_what_is_out_of_order_or_range() {
    let mut builder = Builder::new(10, 20, Load::Dense, 3);
    let pushed = [9, 12, 12, 11, 21, 20].map(|hash| builder.push(hash, hash));
    assert_eq!(pushed, [false, true, false, false, false, true]);
    let map = builder.finish();
    assert!(map.iter_ordered().eq([(12, 12), (20, 20)]));
    // Of many none is added when one of them is wrong.
    let mut builder = Builder::new(10, 20, Load::Dense, 3);
    let mut extend = |hashes: &[u64]| {
        let entries: Vec<_> = hashes.iter().map(|hash| (*hash, *hash)).collect();
        builder.extend(&entries)
    };
    assert!(!extend(&[9, 12]) && !extend(&[12, 21]) && !extend(&[12, 12]) && !extend(&[13, 12]));
    assert!(extend(&[12, 14]) && extend(&[]));
    assert!(!extend(&[14, 15]) && extend(&[15]));
    let map = builder.finish();
    assert!(map.iter_ordered().eq([(12, 12), (14, 14), (15, 15)]));
}

#[test]
fn a_value_is_kept_where_that_is_asked_for() {
    let mut map = KeyMap::new(0, u64::MAX, Load::Dense);
    // A run of neighbours: some lie in nested maps.
    for hash in 0..5000 {
        assert_eq!(map.insert_unless(hash, 5, &mut |_| unreachable!()), None);
        let keep = hash % 2 == 0;
        let mut keeps = |old| old == 5 && keep;
        assert_eq!(map.insert_unless(hash, 6, &mut keeps), Some(5));
        assert_eq!(map.get(hash), Some(if keep { 5 } else { 6 }));
    }
    assert_eq!(map.len(), 5000);
}

/// Hashes from a few patterns, so that operations meet.
fn hashes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0u64..3000).prop_map(mix64),
        2 => 0u64..3000,
        1 => (0u64..3000).prop_map(|x| u64::MAX - x),
        1 => (0u64..64).prop_map(|x| 1u64 << x),
        2 => (0u64..3000).prop_map(|x| 0x8000_0000_0000_0000 + (x << 20)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_map_equals_a_btree(
        operations in prop::collection::vec((hashes(), 0u64..9, 0u8..5), 1..9000),
        dense in any::<bool>(),
    ) {
        let mut map = KeyMap::new(0, u64::MAX, if dense { Load::Dense } else { Load::Fast });
        let mut model = BTreeMap::new();
        for (hash, value, what) in operations {
            if what < 4 {
                prop_assert_eq!(map.insert(hash, value), model.insert(hash, value));
            } else {
                prop_assert_eq!(map.remove(hash), model.remove(&hash));
            }
        }
        check(&map, &model);
    }

    #[test]
    fn a_built_map_equals_one_of_inserts(
        keys in prop::collection::btree_set(hashes(), 0..9000),
        limits in (hashes(), hashes()),
        expected in 0usize..100_000,
        changes in prop::collection::vec((hashes(), any::<bool>()), 0..3000),
        dense in any::<bool>(),
    ) {
        let range = (limits.0.min(limits.1), limits.0.max(limits.1));
        let inside = |k: &u64| (range.0..=range.1).contains(k);
        let load = if dense { Load::Dense } else { Load::Fast };
        let mut model: BTreeMap<u64, u64> =
            keys.into_iter().filter(inside).map(|k| (k, k / 3)).collect();
        let mut map = build(range, load, expected, &model);
        check(&map, &model);
        for (hash, adds) in changes.into_iter().filter(|x| inside(&x.0)) {
            if adds {
                prop_assert_eq!(map.insert(hash, 1), model.insert(hash, 1));
            } else {
                prop_assert_eq!(map.remove(hash), model.remove(&hash));
            }
        }
        check(&map, &model);
    }

    #[test]
    fn a_range_is_what_a_btree_gives(
        keys in prop::collection::btree_set(hashes(), 1..6000),
        bounds in (hashes(), hashes()),
        limits in (hashes(), hashes()),
    ) {
        let (low, high) = (bounds.0.min(bounds.1), bounds.0.max(bounds.1));
        let (first, last) = (limits.0.min(limits.1), limits.0.max(limits.1));
        let mut map = KeyMap::new(first, last, Load::Dense);
        let mut model = BTreeMap::new();
        for key in keys.into_iter().filter(|k| (first..=last).contains(k)) {
            map.insert(key, key / 3);
            model.insert(key, key / 3);
        }
        check(&map, &model);
        prop_assert!(map.range(low, high).eq(model.range(low..=high).map(|(k, v)| (*k, *v))));
    }
}

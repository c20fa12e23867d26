use std::collections::BTreeMap;

use proptest::prelude::*;

use super::entry::{Form, Narrow, Wide};
use super::pool::{BLOCK_ENTRIES, Pool};
use super::*;
use crate::units::mix64;

pub(super) fn check(map: &KeyMap, model: &BTreeMap<u64, u64>) {
    assert_eq!(map.len(), model.len());
    assert!(map.iter_ordered().eq(model.iter().map(|(k, v)| (*k, *v))));
    super::walk::tests::check(map, model);
    let hashes: Vec<u64> = model.keys().flat_map(|k| [*k, k.wrapping_add(1)]).collect();
    let mut values = vec![0; hashes.len()];
    map.get_batch(&hashes, &mut values);
    for (hash, value) in hashes.iter().zip(values) {
        let expected = model.get(hash).copied();
        assert_eq!(map.get(*hash), expected, "{hash:#x}");
        assert_eq!((value != ABSENT).then_some(value), expected, "{hash:#x}");
    }
}

fn fill(hashes: impl Iterator<Item = u64>) -> KeyMap {
    let mut map = KeyMap::new(0, u64::MAX);
    let mut model = BTreeMap::new();
    for (i, hash) in hashes.enumerate() {
        assert_eq!(map.insert(hash, i as u64), model.insert(hash, i as u64));
    }
    check(&map, &model);
    map
}

#[test]
fn extreme_hashes_are_ordinary() {
    let mut map = fill([0, u64::MAX, 1, u64::MAX - 1, 1 << 63].into_iter());
    assert_eq!(map.get(u64::MAX), Some(1));
    assert_eq!(map.remove(0), Some(0));
    assert_eq!(map.remove(0), None);
    assert_eq!(map.len(), 4);
    let mut single = KeyMap::new(7, 7);
    assert_eq!(single.insert(7, 3), None);
    assert_eq!(
        (single.get(7), single.get(8), single.get(6)),
        (Some(3), None, None)
    );
}

#[test]
fn dense_runs_of_hashes_cost_levels_and_not_memory() {
    for start in [0, u64::MAX - 49_999, 0x1234_5678_0000_0000] {
        let map = fill((0..50_000).map(|i| start + i));
        assert!(
            map.bytes() < 50_000 * 40,
            "{} bytes from {start:#x}",
            map.bytes()
        );
    }
    // Clumps of 100 neighbours at the ends of 2^9 ranges: all of a segment are in one bucket, and 46
    // levels of halving would be needed to tell the neighbours apart.
    let clumps = (1..=512u64).flat_map(|i| (0..100).map(move |j| (i << 54).wrapping_sub(j + 1)));
    let map = fill(clumps);
    assert!(map.bytes() < 51_200 * 140, "{} bytes", map.bytes());
}

/// Locations as a store of 180 000 rows a file has them, with a class.
fn location(key: u64) -> u64 {
    ((key / 180_000) << 40) | ((key % 7 / 6) << 39) | ((key % 13) << CLASS_SHIFT) | (key % 180_000)
}

fn with_class(value: u64, class: u8) -> u64 {
    (value & !CLASS_BITS) | (u64::from(class) << CLASS_SHIFT)
}

/// The range of one of so many shards, and some hashes in it.
fn shard(shards: u64) -> ((u64, u64), impl Iterator<Item = u64>) {
    let each = u64::MAX / shards;
    let (low, high) = (each * (shards / 2), each * (shards / 2) + (each - 1));
    let hashes = (0..).map(move |key| match shards {
        1 => mix64(key),
        _ => low + mix64(key) / shards,
    });
    ((low, high), hashes)
}

#[test]
fn a_map_takes_at_most_13_bytes_per_key_where_its_table_has_a_million() {
    // Segments are worst just after most of them were split: one of these is at 1.15 million.
    for (shards, table) in [
        (1, 1_300_000),
        (3, 2_400_000),
        (16, 2_400_000),
        (64, 2_400_000),
    ] {
        let ((low, high), hashes) = shard(shards);
        let mut map = KeyMap::new(low, high);
        let mut worst = 0.0f64;
        let (first, last) = (1_000_000 / shards, table / shards);
        for (n, hash) in (1..=last).zip(hashes) {
            map.insert(hash, location(n));
            if n >= first && n % (last / 200) == 0 {
                worst = worst.max(map.bytes() as f64 / n as f64);
            }
        }
        assert!(
            worst > 11.5,
            "{worst} bytes per key is less than entries have"
        );
        assert!(worst <= 13.0, "{worst} bytes per key with {shards} shards");
    }
}

#[test]
fn entries_are_narrow_where_directory_and_bucket_tell_enough() {
    let kinds = |map: &KeyMap| {
        let wide = map.segments.iter().filter(|s| s.kind == Kind::Wide).count();
        (wide, map.segments.len() - wide)
    };
    // Ten bits and six of the bucket leave 48.
    let map = fill((0..100_000).map(mix64));
    assert!(
        map.segments
            .iter()
            .all(|s| (s.kind == Kind::Wide) == (s.depth < 10))
    );
    assert!(kinds(&map).0 > 0);
    let map = fill((0..1_000_000).map(mix64));
    assert_eq!(kinds(&map).0, 0);
    // A sixty-fourth of the range lacks six bits.
    let ((low, high), hashes) = shard(64);
    let mut map = KeyMap::new(low, high);
    hashes
        .take(5000)
        .for_each(|hash| assert_eq!(map.insert(hash, 1), None));
    let deep = |s: &Segment| s.depth >= 4;
    assert!(
        map.segments
            .iter()
            .all(|s| (s.kind == Kind::Wide) != deep(s))
    );
    assert!(kinds(&map).1 > 0);
}

/// What an entry holds of a hash is the same for those that are 2^48 apart: another bucket, or segment.
#[test]
fn hashes_with_equal_remainders_are_told_apart() {
    let all: Vec<u64> = (0..200_000).map(mix64).collect();
    let mut map = fill(all.iter().copied());
    let others =
        |hash: u64| (48..64).flat_map(move |bit| [hash ^ (1 << bit), hash.wrapping_add(1 << bit)]);
    for hash in all.iter().step_by(10) {
        let others: Vec<u64> = others(*hash).collect();
        let mut values = vec![0; others.len()];
        map.get_batch(&others, &mut values);
        assert!(values.iter().all(|x| *x == ABSENT), "{hash:#x}");
        assert!(
            others
                .iter()
                .all(|other| map.get(*other).is_none() && map.remove(*other).is_none())
        );
    }
    // All of them at once.
    let mut model: BTreeMap<u64, u64> = map.iter_ordered().collect();
    for hash in all.iter().step_by(500).copied().flat_map(others) {
        assert_eq!(
            map.insert(hash, location(hash >> 50)),
            model.insert(hash, location(hash >> 50))
        );
    }
    check(&map, &model);
}

#[test]
fn a_segment_gets_the_packing_that_its_values_need() {
    let narrow = |slot_bits: u32, number_bits: u32| {
        Packing::of(((1u64 << slot_bits) - 1) << 40 | ((1u64 << number_bits) - 1))
    };
    for (slot_bits, number_bits) in [
        (0, 0),
        (24, 11),
        (3, 32),
        (15, 20),
        (1, 1),
        (0, 32),
        (24, 0),
    ] {
        let packing = narrow(slot_bits, number_bits).unwrap();
        let value = |slot: u64, tombstone: u64, number: u64| slot << 40 | tombstone << 39 | number;
        let (slot, number) = ((1u64 << slot_bits) - 1, (1u64 << number_bits) - 1);
        for value in [
            value(slot, 0, number),
            value(0, 1, number),
            value(slot, 1, 0),
            0,
        ] {
            assert!(packing.fits(value));
            let entry = Narrow::new(0xffff_dead_beef_0123, value, packing);
            assert_eq!(
                Narrow::value(&entry, packing),
                value,
                "{value:#x} {packing:?}"
            );
            assert_eq!(Narrow::remainder(&entry), 0xdead_beef_0123);
        }
    }
    assert_eq!([narrow(24, 12), narrow(4, 32), narrow(16, 20)], [None; 3]);
    let some = narrow(5, 10).unwrap();
    let fits = |slot: u32, number: u32| some.fits(1u64 << slot << 40 | 1u64 << number);
    assert_eq!(
        [fits(14, 19), fits(15, 19), fits(14, 20)],
        [true, false, false]
    );
}

#[test]
fn a_value_that_does_not_fit_widens_its_segment_alone() {
    let hashes: Vec<u64> = (0..300_000).map(mix64).collect();
    let mut map = KeyMap::new(0, u64::MAX);
    let mut model = BTreeMap::new();
    let mut set = |map: &mut KeyMap, hash: u64, value: u64| {
        assert_eq!(map.insert(hash, value), model.insert(hash, value));
    };
    hashes
        .iter()
        .for_each(|hash| set(&mut map, *hash, location(*hash % 4_000_000)));
    let before = map.bytes();
    let wide = |map: &KeyMap| map.segments.iter().filter(|s| s.kind == Kind::Wide).count();
    assert_eq!(wide(&map), 0);
    // Many files, then large ones: other packings. Both at once: wide entries.
    set(&mut map, hashes[0], 0xff_ffff << 40 | 5);
    assert_eq!(
        (wide(&map), map.get(hashes[0])),
        (1, Some(0xff_ffff << 40 | 5))
    );
    for hash in &hashes[1..2000] {
        set(&mut map, *hash, 0x7fff << 40 | 1 << 39 | (hash & 0xfffff));
    }
    assert_eq!(wide(&map), 1);
    for hash in &hashes[1..5] {
        set(&mut map, *hash, 3 << 40 | u64::from(u32::MAX));
    }
    assert!((2..=5).contains(&wide(&map)), "{} segments", wide(&map));
    assert!(map.bytes() < before + before / 50);
    // The segments are split, rows are removed, all as before.
    for hash in (300_000..600_000).map(mix64) {
        set(&mut map, hash, location(hash % 1_000_000));
    }
    check(&map, &model);
    for hash in hashes.iter().step_by(3) {
        assert_eq!(map.remove(*hash), model.remove(hash));
    }
    check(&map, &model);
    // Built anew, the same.
    let built = build((0, u64::MAX), model.len(), &model);
    check(&built, &model);
    assert!(wide(&built) > 0);
}

#[test]
#[should_panic(expected = "location")]
fn a_value_that_is_no_location_is_refused() {
    KeyMap::new(0, 9).insert(5, 1 << 34);
}

#[test]
fn removing_gives_memory_back() {
    let mut map = KeyMap::new(0, u64::MAX);
    (0..20_000).for_each(|k| assert_eq!(map.insert(mix64(k), k), None));
    let full = map.bytes();
    (0..20_000).for_each(|k| assert_eq!(map.remove(mix64(k)), Some(k)));
    assert!(map.is_empty());
    assert_eq!(map.bytes(), tables(&map));
    assert!(map.bytes() * 19 < full, "{} of {full}", map.bytes());
}

/// Bytes of a map without its blocks.
fn tables(map: &KeyMap) -> usize {
    let segments = map.segments.capacity() * size_of::<Segment>();
    size_of::<KeyMap>() + map.directory.capacity() * 4 + segments
}

#[test]
fn freed_blocks_are_reused_and_bytes_counts_the_blocks_exactly() {
    let mut map = KeyMap::new(0, u64::MAX);
    (0..300_000).for_each(|k| assert_eq!(map.insert(mix64(k), k), None));
    let blocks = |map: &KeyMap| {
        let segments = map.segments.iter();
        segments
            .map(|s| s.len().div_ceil(BLOCK_ENTRIES))
            .sum::<usize>()
    };
    // Nothing was freed that is not used again: what is left is headers and the pool's tables.
    let full = (blocks(&map), map.bytes());
    let rest = full.1 - tables(&map) - full.0 * 176;
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
    let mut pool: Pool<Wide> = Pool::default();
    let mut numbers: Vec<u32> = (0..300_000).map(|_| pool.take()).collect();
    let full = pool.bytes();
    assert!(
        (300_000 * 256..300_000 * 256 + 30_000).contains(&full),
        "{full}"
    );
    let entry = |i| Wide::new(i, i, Packing::default());
    for (i, number) in (0..).zip(&numbers) {
        pool.get_mut(*number).unwrap().fill(entry(i));
    }
    for (i, number) in (0..).zip(&numbers) {
        assert!(pool.get(*number).unwrap().iter().all(|x| *x == entry(i)));
    }
    assert!(pool.get(pool::NONE).is_none());
    // Every third block is freed and taken again: no memory is added, a page and tables excepted.
    numbers.iter_mut().step_by(3).for_each(|x| pool.free(x));
    assert_eq!(numbers[0], pool::NONE);
    numbers.iter_mut().step_by(3).for_each(|x| *x = pool.take());
    assert!(pool.bytes() < full + 8192, "{} of {full}", pool.bytes());
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 300_000);
    // Only the first hundred are left, then none.
    numbers[100..].iter_mut().for_each(|x| pool.free(x));
    assert!(pool.bytes() < 160 * 256, "{} bytes", pool.bytes());
    numbers[..100].iter_mut().for_each(|x| pool.free(x));
    assert_eq!(pool.bytes(), 0);
}

#[test]
#[should_panic(expected = "range")]
fn a_hash_outside_the_range_is_refused() {
    KeyMap::new(10, 20).insert(21, 0);
}

/// A map built in order, entry by entry and many at once, by turns.
fn build(range: (u64, u64), expected: usize, model: &BTreeMap<u64, u64>) -> KeyMap {
    let mut builder = Builder::new(range.0, range.1, expected);
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
fn a_built_map_takes_at_most_13_bytes_per_key_where_its_table_has_a_million() {
    let ((low, high), hashes) = shard(4);
    let mut all: Vec<u64> = hashes.take(600_000).collect();
    let mut worst = 0.0f64;
    while all.len() > 250_000 {
        let model: BTreeMap<u64, u64> =
            all.iter().map(|h| (*h, location(*h % 4_000_000))).collect();
        let map = build((low, high), 4_000_000, &model);
        check(&map, &model);
        worst = worst.max(map.bytes() as f64 / map.len() as f64);
        all.truncate(all.len() - all.len() / 13);
    }
    assert!(worst <= 13.0, "{worst} bytes per key");
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
        let mut model: BTreeMap<u64, u64> = hashes.iter().map(|h| (*h, *h & !SPARE_BITS)).collect();
        let mut map = build((0, u64::MAX), hashes.len(), &model);
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
    let mut builder = Builder::new(10, 20, 3);
    let pushed = [9, 12, 12, 11, 21, 20].map(|hash| builder.push(hash, hash));
    assert_eq!(pushed, [false, true, false, false, false, true]);
    let map = builder.finish();
    assert!(map.iter_ordered().eq([(12, 12), (20, 20)]));
    // Of many none is added when one of them is wrong.
    let mut builder = Builder::new(10, 20, 3);
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

/// Values of any width, most of them of few files with few rows.
fn values() -> impl Strategy<Value = u64> {
    prop_oneof![
        20 => (0u64..4_000_000).prop_map(location),
        1 => any::<u64>().prop_map(|x| x & !SPARE_BITS),
    ]
}

/// The classes that follow these.
const NEXT: [u8; CLASSES] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0];

fn class_of(value: u64) -> u8 {
    u8::try_from((value & CLASS_BITS) >> CLASS_SHIFT).unwrap()
}

#[test]
fn a_round_over_all_classes_meets_each_entry_once_while_segments_are_split() {
    // Wide and narrow ones, some in nested maps; a range that is no power of two.
    let (low, high) = (u64::MAX / 3, u64::MAX / 3 * 2);
    let inside = |hash: &u64| (low..=high).contains(hash);
    let mut map = KeyMap::new(low, high);
    let mut model = BTreeMap::new();
    let dense = (0..5000).map(|i| low + (7 << 50) + i);
    for hash in (0..600_000).map(mix64).filter(inside).chain(dense) {
        map.insert(hash, location(hash >> 40));
        model.insert(hash, location(hash >> 40));
    }
    for hash in model.keys().step_by(700) {
        map.insert(*hash, 0xff_ffff << 40 | 0xffff_ffff);
    }
    let before: Vec<(u64, u64)> = map.iter_ordered().collect();
    assert!(!map.nested.is_empty());
    let mut later = (600_000..).map(mix64).filter(inside);
    let (mut from, mut steps, mut worst) = (0, 0, 0);
    while let Some(next) = map.replace_classes(from, 1000, &NEXT) {
        assert!(next > from && inside(&next));
        let met = before.partition_point(|x| x.0 < next) - before.partition_point(|x| x.0 < from);
        worst = worst.max(met);
        steps += 1;
        from = next;
        for hash in later.by_ref().take(1500) {
            map.insert(hash, 0);
        }
    }
    assert!(
        steps > before.len() / 1300 && worst < 1300,
        "{steps} steps of up to {worst}"
    );
    for (hash, value) in before {
        let expected = with_class(value, NEXT[usize::from(class_of(value))]);
        assert_eq!(map.get(hash), Some(expected), "{hash:#x}");
    }
}

#[test]
fn a_round_ends_where_there_are_no_entries() {
    let mut map = KeyMap::new(5, 5 + (1 << 40));
    assert_eq!(map.replace_classes(0, 10, &NEXT), None);
    map.insert(5, 0);
    assert_eq!(map.replace_classes(0, 0, &NEXT), Some(5));
    assert_eq!(map.replace_classes(5, 1, &NEXT), None);
    assert_eq!(map.get(5), Some(1 << CLASS_SHIFT));
    assert_eq!(map.replace_classes(u64::MAX, 1, &NEXT), None);
    assert_eq!(map.get(5), Some(2 << CLASS_SHIFT));
}

#[test]
fn a_round_may_begin_anywhere_and_ends_with_the_range() {
    // The directory goes on behind the range, which is no power of two.
    let (low, high) = (9, 9 + (5 << 40));
    let hashes = (0..4000).map(|i| low + mix64(i) % (5 << 40));
    let mut map = KeyMap::new(low, high);
    for hash in hashes.clone() {
        map.insert(hash, 0);
    }
    // Segments of more than one depth.
    for i in 0..400 {
        map.insert(low + (3 << 39) + i, 0);
    }
    for first in hashes.step_by(50) {
        let before: Vec<(u64, u64)> = map.iter_ordered().collect();
        let (mut from, mut steps) = (first, 0);
        while let Some(next) = map.replace_classes(from, 1, &NEXT) {
            assert!(next > from && (low..=high).contains(&next));
            from = next;
            steps += 1;
        }
        assert!(steps < map.segments.len() + 400);
        for (hash, value) in before {
            let next = with_class(value, NEXT[usize::from(class_of(value))]);
            let now = map.get(hash).unwrap();
            assert!(now == next || (hash < first && now == value), "{hash:#x}");
        }
    }
}

#[test]
#[should_panic(expected = "four bits")]
fn a_class_of_five_bits_is_refused() {
    KeyMap::new(0, 9).set_class(5, 16);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_map_equals_a_btree(
        operations in prop::collection::vec((hashes(), values(), 0u8..7), 1..9000),
    ) {
        let mut map = KeyMap::new(0, u64::MAX);
        let mut model = BTreeMap::new();
        for (hash, value, what) in operations {
            if what < 4 {
                prop_assert_eq!(map.insert(hash, value), model.insert(hash, value));
            } else if what == 4 {
                prop_assert_eq!(map.remove(hash), model.remove(&hash));
            } else {
                let (old, class) = (model.get_mut(&hash), class_of(value));
                prop_assert_eq!(map.set_class(hash, class), old.is_some());
                old.into_iter().for_each(|old| *old = with_class(*old, class));
            }
        }
        check(&map, &model);
        while map.replace_classes(0, usize::MAX, &NEXT).is_some() {}
        for value in model.values_mut() {
            *value = with_class(*value, NEXT[usize::from(class_of(*value))]);
        }
        check(&map, &model);
    }

    #[test]
    fn a_built_map_equals_one_of_inserts(
        keys in prop::collection::btree_set(hashes(), 0..9000),
        limits in (hashes(), hashes()),
        expected in 0usize..100_000,
        changes in prop::collection::vec((hashes(), any::<bool>()), 0..3000),
    ) {
        let range = (limits.0.min(limits.1), limits.0.max(limits.1));
        let inside = |k: &u64| (range.0..=range.1).contains(k);
        let mut model: BTreeMap<u64, u64> =
            keys.into_iter().filter(inside).map(|k| (k, k & !SPARE_BITS)).collect();
        let mut map = build(range, expected, &model);
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
}

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::options::PolicyKind;
use crate::units::{Slot, mix64, to_usize, unmix64};

/// A page, so that small caches have room for any number of them.
const ROW: usize = 1024;
const ALL: [PolicyKind; 4] = [
    PolicyKind::Bilevel,
    PolicyKind::Lru,
    PolicyKind::Fifo,
    PolicyKind::PinAll,
];

/// A cache of so many bytes, without tables.
fn empty(bytes: u64) -> Cache {
    let config = CacheConfig {
        bytes,
        flush_step: FlushStep::default(),
        range: (0, u64::MAX),
    };
    Cache::new(&config).unwrap()
}

fn table(row_f32s: usize, policy: PolicyKind) -> TableConfig {
    TableConfig {
        policy,
        ..TableConfig::of_rows(row_f32s)
    }
}

/// The least memory in which so many rows of each table fit, alone.
fn bytes_for(rows: usize, tables: &[TableConfig]) -> u64 {
    let fit = |bytes: u64| {
        let mut cache = empty(bytes);
        tables.iter().for_each(|t| cache.add_table(t).unwrap());
        (0..tables.len()).all(|t| cache.capacity(t) >= rows)
    };
    let (mut fails, mut fits) = (0, (rows as u64 + 1) << 20);
    while fails + 1 < fits {
        let middle = (fails + fits) / 2;
        *(if fit(middle) { &mut fits } else { &mut fails }) = middle;
    }
    fits
}

/// A cache of one table in which so many rows fit.
pub(super) fn cache(rows: usize, policy: PolicyKind) -> Cache {
    let table = table(ROW, policy);
    let mut cache = empty(bytes_for(rows, &[table]));
    cache.add_table(&table).unwrap();
    assert_eq!(cache.capacity(0), rows);
    cache
}

/// Lets rows leave until none may, or no more memory is taken than there is; whether that is so.
fn shrink(cache: &mut Cache) -> bool {
    loop {
        match cache.shrink() {
            Shrunk::More => {}
            shrunk => return shrunk == Shrunk::Fits,
        }
    }
}

/// So many rows.
fn step(rows: usize) -> FlushStep {
    FlushStep {
        rows,
        bytes: u64::MAX,
    }
}

/// Rows that can be had without that any leaves.
fn spare(cache: &Cache, table: usize) -> usize {
    cache.arena.spare_rows(cache.rows.tables[table].class)
}

fn add(cache: &mut Cache, key: u64, flags: Flags) -> Slot {
    let slot = cache.insert(0, mix64(key), flags, 0).unwrap();
    cache.row_mut(slot).fill(key as f32);
    slot
}

fn find(cache: &Cache, key: u64) -> Slot {
    let mut slots = [Slot::NONE];
    cache.lookup(0, &[mix64(key)], &mut slots);
    slots[0]
}

/// Writes victims out at once; returns (key, first word, tombstone) of each.
fn write_all(cache: &mut Cache, victims: &[Victim], ok: bool) -> Vec<(u64, f32, bool)> {
    let mut row = [0.0; ROW];
    let mut written = Vec::new();
    for victim in victims {
        if let Some(taken) = cache.copy_out(victim, u32::MAX, &mut row) {
            assert!(cache.flags(victim.slot).any(Flags::WRITING));
            written.push((unmix64(taken.hash), row[0], taken.tombstone));
            assert!(cache.written(victim, ok));
        }
    }
    cache.check();
    written
}

#[test]
fn the_budget_is_kept_for_every_size_and_policy() {
    for policy in ALL {
        for (row_f32s, bytes) in [
            (1, 16 << 10),
            (1, 100_003),
            (129, 1 << 20),
            (24_577, 1 << 20),
        ] {
            let mut cache = empty(bytes);
            cache.add_table(&table(row_f32s, policy)).unwrap();
            let mut rows = 0;
            while let Some(slot) = cache.insert(0, mix64(rows), Flags::NONE, 0) {
                cache.row_mut(slot).fill(rows as f32);
                rows += 1;
            }
            cache.check();
            let what = format!("{policy:?}, {rows} rows of {row_f32s} f32s in {bytes}");
            assert_eq!(rows, cache.capacity(0) as u64, "{what}");
            assert!(cache.bytes() <= bytes, "{what}: {}", cache.bytes());
            let needed = cache.cost_of(&[rows.try_into().unwrap()]);
            assert!(needed <= bytes, "{what}: {needed}");
            let more = cache.cost_of(&[usize::try_from(rows).unwrap() + 1]);
            assert!(more > bytes, "{what}: one more would have fit, {more}");
        }
    }
}

#[test]
fn bytes_for_less_than_a_row_of_each_size_are_refused() {
    for sizes in [&[8][..], &[5000], &[8, 5000, 8, 9000]] {
        let message = check_rows_fit(1, sizes).unwrap_err().to_string();
        let mut words = message.split_whitespace().rev();
        let needed: u64 = words.find_map(|word| word.parse().ok()).unwrap();
        let message = check_rows_fit(needed * 3 / 4, sizes).unwrap_err();
        assert!(message.to_string().contains("cache_bytes"), "{message}");
        check_rows_fit(needed, sizes).unwrap();
    }
}

#[test]
fn rows_move_from_lru_to_lfu_and_out() {
    let mut cache = cache(64, PolicyKind::Bilevel);
    let slots: Vec<Slot> = (0..64)
        .map(|key| add(&mut cache, key, Flags::NONE))
        .collect();
    cache.touch(&slots);
    assert_eq!(cache.level_of(slots[63]), Level::Lru);
    assert_eq!(
        cache.level_of(slots[0]),
        Level::Lfu,
        "the oldest rows fell off"
    );
    // Row 1 gets warm while it is a candidate, so row 0 leaves and row 1 does not.
    cache.touch(&[slots[1], slots[1], slots[1]]);
    assert_eq!(
        cache.insert(0, mix64(64), Flags::NONE, 0),
        None,
        "no slot is free"
    );
    assert_eq!(cache.reclaim(0, 2), 2);
    assert_eq!(
        (find(&cache, 0), find(&cache, 1), find(&cache, 2)),
        (Slot::NONE, slots[1], Slot::NONE)
    );
    cache.check();
    // Twice round: row 1 outlives all rows that were touched once.
    for key in 100..162 {
        let slot = add(&mut cache, key, Flags::NONE);
        cache.touch(&[slot]);
        cache.reclaim(0, 1);
    }
    assert_eq!(find(&cache, 1), slots[1]);
    assert_eq!(
        (3..48)
            .filter(|key| find(&cache, *key) != Slot::NONE)
            .count(),
        0
    );
    cache.check();
}

#[test]
fn frequency_survives_eviction() {
    let mut cache = cache(32, PolicyKind::Bilevel);
    let slot = add(&mut cache, 7, Flags::NONE);
    (0..40).for_each(|_| cache.touch(&[slot]));
    cache.remove(slot);
    assert_eq!(find(&cache, 7), Slot::NONE);
    let left = cache.left().to_vec();
    assert_eq!((left.len(), left[0].hash), (1, mix64(7)));
    cache
        .insert(0, mix64(7), Flags::NONE, left[0].class)
        .unwrap();
    for key in 100..131 {
        let slot = add(&mut cache, key, Flags::NONE);
        cache.touch(&[slot]);
    }
    assert_eq!(cache.reclaim(0, 23), 23);
    assert_ne!(
        find(&cache, 7),
        Slot::NONE,
        "the row that was hot before outlives the others"
    );
}

#[test]
fn pinned_rows_are_never_victims() {
    for policy in policy::evicting() {
        let mut cache = cache(100, policy);
        let slots: Vec<Slot> = (0..100)
            .map(|key| add(&mut cache, key, Flags::NONE))
            .collect();
        assert_eq!(cache.pin(&slots[..40]), 40);
        assert_eq!(cache.pin(&slots[..40]), 0);
        cache.begin_write(&slots[20..60], 1, None).unwrap();
        assert_eq!(
            (cache.pinned(), cache.dirty(), cache.evictable()),
            (40, 40, 40)
        );
        let mut victims = Vec::new();
        cache.take_victims(step(100), u32::MAX, &mut victims);
        cache.check();
        let chosen: BTreeSet<Slot> = victims.iter().map(|x| x.slot).collect();
        assert_eq!(
            chosen,
            slots[40..60].iter().copied().collect(),
            "{policy:?}"
        );
        cache.reclaim(0, usize::MAX);
        assert_eq!(cache.resident(), 60, "{policy:?}");
        cache.pin(&slots[40..41]);
        assert_eq!(
            write_all(&mut cache, &victims, true).len(),
            19,
            "one was pinned meanwhile"
        );
        cache.reclaim(0, usize::MAX);
        assert_eq!(cache.resident(), 41);
        assert_eq!(cache.unpin(&slots[..40]), 0);
        assert_eq!(cache.unpin(&slots[..40]), 40);
        assert!(cache.reclaim(0, usize::MAX) >= 78);
        assert_eq!(cache.resident(), 21, "rows 20 to 40 are dirty");
        cache.check();
    }
}

#[test]
fn staged_rows_never_leave() {
    let mut cache = cache(10, PolicyKind::PinAll);
    let slots: Vec<Slot> = (0..10)
        .map(|key| add(&mut cache, key, Flags::NONE))
        .collect();
    cache.begin_write(&slots[..5], 1, None).unwrap();
    let mut victims = Vec::new();
    cache.take_victims(step(10), u32::MAX, &mut victims);
    assert_eq!(
        (
            cache.reclaim(0, 1),
            cache.evictable(),
            victims.len(),
            cache.below_low_water()
        ),
        (0, 0, 0, false)
    );
    assert!(
        cache.take_frozen(&mut 0, step(10), 1, &mut victims),
        "a checkpoint writes them"
    );
    assert_eq!(write_all(&mut cache, &victims, true).len(), 5);
}

#[test]
fn a_cache_is_low_until_enough_rows_were_flushed() {
    let mut cache = cache(160, PolicyKind::Bilevel);
    let slots: Vec<Slot> = (0..158)
        .map(|key| add(&mut cache, key, Flags::ABSENT))
        .collect();
    assert_eq!(cache.flush_step().bytes / cache.row_cost(0), 10);
    cache.begin_write(&slots, 3, None).unwrap();
    assert!(
        !cache.below_low_water(),
        "more than an eighth of a step, and two rows, are left"
    );
    let last = add(&mut cache, 158, Flags::ABSENT);
    cache.begin_write(&[last], 3, None).unwrap();
    assert!(cache.below_low_water() && !cache.flags(slots[0]).any(Flags::ABSENT));
    let mut victims = Vec::new();
    cache.take_victims(step(10), u32::MAX, &mut victims);
    let keys: Vec<u64> = victims.iter().map(|x| unmix64(x.hash)).collect();
    assert_eq!(keys, (0..10).collect::<Vec<_>>(), "coldest first");
    write_all(&mut cache, &victims, true);
    assert!(!cache.below_low_water() && cache.evictable() == 10);
    assert_eq!(cache.reclaim(0, 12), 11);
    cache.check();
}

#[test]
fn a_cache_with_room_for_less_than_the_rows_in_use_is_low() {
    let mut cache = cache(160, PolicyKind::Bilevel);
    let slots: Vec<Slot> = (0..154)
        .map(|key| add(&mut cache, key, Flags::NONE))
        .collect();
    cache.begin_write(&slots, 1, None).unwrap();
    cache.pin(&slots[..6]);
    assert!(!cache.below_low_water(), "six slots for a batch of six");
    cache.pin(&slots[6..7]);
    assert!(cache.below_low_water());
    cache.unpin(&slots[..7]);
    assert!(!cache.below_low_water());
    let mut victims = Vec::new();
    cache.take_victims(step(5), u32::MAX, &mut victims);
    write_all(&mut cache, &victims, true);
    cache.pin(&slots[10..]);
    assert!(!cache.below_low_water(), "never more than a step");
}

#[test]
fn a_change_after_the_cut_keeps_the_frozen_row_beside_it() {
    let mut cache = cache(8, PolicyKind::Bilevel);
    let slots: Vec<Slot> = (0..4)
        .map(|key| add(&mut cache, key, Flags::NONE))
        .collect();
    cache.pin(&slots);
    cache.begin_write(&slots, 1, None).unwrap();
    cache.row_mut(slots[2]).fill(20.0);
    // Cut after interval 1; rows 2 (twice) and 3 change, row 3 was removed before.
    cache.set(slots[3], Flags::REMOVED);
    cache
        .begin_write(&[slots[2], slots[3], slots[2]], 2, Some(1))
        .unwrap();
    cache.row_mut(slots[2]).fill(21.0);
    cache.row_mut(slots[3]).fill(31.0);
    assert_eq!(
        (cache.frozen_copies(), cache.dirty(), cache.resident()),
        (2, 6, 4)
    );
    cache.check();
    let (mut cursor, mut victims) = (0, Vec::new());
    assert!(cache.take_frozen(&mut cursor, step(3), 1, &mut victims));
    assert_eq!(victims.len(), 3);
    let mut written = write_all(&mut cache, &victims, true);
    victims.clear();
    assert!(cache.take_frozen(&mut cursor, step(3), 1, &mut victims));
    written.extend(write_all(&mut cache, &victims, true));
    let tombstone = written.iter().position(|x| x.2).unwrap();
    assert_eq!(written.remove(tombstone).0, 3);
    assert_eq!(
        written,
        [(0, 0.0, false), (1, 1.0, false), (2, 20.0, false)]
    );
    victims.clear();
    assert!(!cache.take_frozen(&mut cursor, step(3), 1, &mut victims));
    assert_eq!(
        (cache.frozen_copies(), cache.dirty(), victims.len()),
        (0, 2, 0)
    );
    assert_eq!(cache.row(slots[2])[0], 21.0);
}

#[test]
fn begin_write_without_room_changes_nothing_and_works_later() {
    let mut cache = cache(4, PolicyKind::Bilevel);
    let slots: Vec<Slot> = (0..3)
        .map(|key| add(&mut cache, key, Flags::NONE))
        .collect();
    cache.pin(&slots);
    cache.begin_write(&slots, 1, None).unwrap();
    assert_eq!(cache.begin_write(&slots, 2, Some(1)), Err(3));
    assert_eq!(
        (
            cache.interval(slots[0]),
            cache.interval(slots[1]),
            spare(&cache, 0)
        ),
        (1, 1, 1)
    );
    let mut victims = Vec::new();
    cache.take_frozen(&mut 0, step(9), 1, &mut victims);
    assert_eq!(write_all(&mut cache, &victims, true).len(), 3);
    assert_eq!(
        cache.begin_write(&slots, 2, Some(1)),
        Ok(()),
        "nothing frozen is left"
    );
    assert_eq!((cache.frozen_copies(), cache.dirty()), (0, 3));
}

#[test]
fn a_failed_write_leaves_rows_dirty_and_tells_when_their_state_is_lost() {
    let mut cache = cache(4, PolicyKind::Lru);
    let slots: Vec<Slot> = (0..2)
        .map(|key| add(&mut cache, key, Flags::NONE))
        .collect();
    cache.begin_write(&slots, 5, None).unwrap();
    let (mut victims, mut row) = (Vec::new(), [0.0; ROW]);
    cache.take_victims(step(4), 4, &mut victims);
    assert_eq!(victims, [], "both changed after interval 4");
    cache.take_victims(step(4), 5, &mut victims);
    assert_eq!(cache.copy_out(&victims[0], 4, &mut row), None);
    for victim in &victims {
        assert_eq!(cache.copy_out(victim, 5, &mut row).unwrap().interval, 5);
        assert_eq!(
            cache.copy_out(victim, 5, &mut row),
            None,
            "it is being written"
        );
    }
    assert_eq!((cache.dirty(), cache.evictable()), (0, 0));
    cache.check();
    cache.begin_write(&slots[1..], 6, Some(5)).unwrap();
    assert_eq!(cache.frozen_copies(), 0, "its content is with the writer");
    assert!(cache.written(&victims[0], false));
    assert!(
        !cache.written(&victims[1], false),
        "the state of interval 5 is gone"
    );
    assert_eq!(
        (
            cache.dirty(),
            cache.interval(slots[0]),
            cache.interval(slots[1])
        ),
        (2, 5, 6)
    );
    cache.check();
    victims.clear();
    cache.take_victims(step(4), u32::MAX, &mut victims);
    assert_eq!(write_all(&mut cache, &victims, true).len(), 2);
    assert_eq!(cache.reclaim(0, 4), 4);
}

#[test]
fn a_removed_row_is_a_tombstone_first_and_then_absent() {
    let mut cache = cache(4, PolicyKind::Bilevel);
    let slot = add(&mut cache, 9, Flags::NONE);
    for (pushed_between, expected) in [(false, Flags::ABSENT), (true, Flags::DIRTY)] {
        cache.begin_write(&[slot], 1, None).unwrap();
        cache.set(slot, Flags::REMOVED);
        let (mut victims, mut row) = (Vec::new(), [0.0; ROW]);
        cache.take_victims(step(1), u32::MAX, &mut victims);
        assert!(
            cache
                .copy_out(&victims[0], u32::MAX, &mut row)
                .unwrap()
                .tombstone
        );
        if pushed_between {
            cache.begin_write(&[slot], 2, None).unwrap();
        }
        assert!(cache.written(&victims[0], true));
        assert_eq!(cache.flags(slot), expected);
    }
    cache.check();
}

#[test]
fn a_row_that_failed_to_load_goes_with_its_last_pin() {
    let mut cache = cache(4, PolicyKind::Bilevel);
    let slot = cache.insert(0, mix64(1), Flags::LOADING, 0).unwrap();
    cache.pin(&[slot, slot]);
    cache.clear(slot, Flags::LOADING);
    cache.set(slot, Flags::FAILED);
    assert_eq!(cache.unpin(&[slot]), 0);
    assert_eq!(find(&cache, 1), slot);
    assert_eq!(cache.unpin(&[slot]), 1);
    assert_eq!((find(&cache, 1), spare(&cache, 0)), (Slot::NONE, 4));
    cache.check();
}

#[test]
#[should_panic(expected = "as often as it was pinned")]
fn a_pin_too_few_is_a_broken_invariant() {
    let mut cache = cache(4, PolicyKind::Bilevel);
    let slot = add(&mut cache, 9, Flags::NONE);
    cache.unpin(&[slot]);
}

#[test]
fn a_row_is_pinned_once_however_often_a_batch_has_it() {
    let rows = 70_000;
    let mut cache = empty(8 << 20);
    cache.add_table(&TableConfig::of_rows(4)).unwrap();
    let slots: Vec<Slot> = (0..rows as u64)
        .map(|key| add(&mut cache, key, Flags::NONE))
        .collect();
    let ask = |cache: &mut Cache, keys: &[u64]| {
        let hashes: Vec<u64> = keys.iter().map(|key| mix64(*key)).collect();
        let mut found = vec![Slot::NONE; keys.len()];
        let hits = cache.hit_batch(0, &hashes, &mut found, &mut [], &mut Vec::new());
        let expected: Vec<Slot> = keys.iter().map(|key| slots[to_usize(*key)]).collect();
        assert_eq!(found, expected);
        hits
    };
    let hits = ask(&mut cache, &[3, 4, 3, 5, 3]);
    assert_eq!((hits.newly_pinned, hits.known, hits.repeats), (3, 3, true));
    assert_eq!((cache.pins(slots[3]), cache.pins(slots[5])), (1, 1));
    cache.unpin(&slots[3..6]);
    // What the last batch left in the states says nothing of this one.
    let hits = ask(&mut cache, &[5, 4, 3]);
    assert_eq!((hits.newly_pinned, hits.repeats), (3, false));
    cache.unpin(&slots[3..6]);
    // Positions that a state can't keep whole.
    let mut keys: Vec<u64> = (0..rows as u64).collect();
    assert!(!ask(&mut cache, &keys).repeats);
    keys.extend([66_000, 1]);
    let hits = ask(&mut cache, &keys);
    assert_eq!((hits.newly_pinned, hits.repeats), (0, true));
    assert_eq!((cache.pins(slots[66_000]), cache.pins(slots[1])), (2, 2));
    cache.unpin(&slots);
    assert_eq!(cache.unpin(&slots), rows);
    cache.check();
}

#[test]
fn a_row_has_as_many_pins_as_there_are_leases() {
    let mut cache = cache(4, PolicyKind::Bilevel);
    let slots = [1, 2].map(|key| add(&mut cache, key, Flags::NONE));
    for round in 1..=700 {
        cache.pin(&slots[..1]);
        assert_eq!(cache.pins(slots[0]), round);
    }
    cache.pin(&slots[1..]);
    for round in (1..=700).rev() {
        assert_eq!((cache.pins(slots[0]), cache.pinned()), (round, 2));
        assert_eq!(cache.unpin(&slots[..1]), usize::from(round == 1));
    }
    assert_eq!(cache.evictable(), 1);
    cache.check();
}

/// A state keeps the low bits of an interval only.
#[test]
fn a_row_that_stays_dirty_for_very_long_is_older_than_any_later_cut() {
    let mut cache = cache(8, PolicyKind::Bilevel);
    let slots = [1, 2].map(|key| add(&mut cache, key, Flags::NONE));
    cache.begin_write(&slots[..1], 7, None).unwrap();
    for interval in (8..200_000).step_by(999) {
        cache.begin_write(&slots[1..], interval, None).unwrap();
        let own = cache.interval(slots[0]);
        assert!((7..interval).contains(&own), "{own} {interval}");
        assert_eq!(cache.interval(slots[1]), interval);
        let (mut cursor, mut victims) = (0, Vec::new());
        cache.take_frozen(&mut cursor, step(9), interval - 1, &mut victims);
        let chosen: Vec<Slot> = victims.iter().map(|victim| victim.slot).collect();
        assert_eq!(chosen, slots[..1]);
    }
}

mod moves;
mod random;
mod sizes;
mod ssd;
mod tables;
mod words;
mod world;

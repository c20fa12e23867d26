//! Memory goes from rows of one size to those of another, and slots and contents stay.

use super::*;
use crate::mem::row_state::RowState;

const SMALL: usize = 4;
const LARGE: usize = 512;

fn two(bytes: u64, small: TableConfig, large: TableConfig) -> Cache {
    let mut cache = empty(bytes);
    cache.add_table(&small).unwrap();
    cache.add_table(&large).unwrap();
    cache
}

fn plain(row_f32s: usize) -> TableConfig {
    TableConfig::of_rows(row_f32s)
}

fn slot_of(cache: &Cache, table: usize, key: u64) -> Slot {
    let mut slots = [Slot::NONE];
    cache.lookup(table, &[mix64(key)], &mut slots);
    slots[0]
}

fn put(cache: &mut Cache, table: usize, key: u64) -> Slot {
    let slot = cache.insert(table, mix64(key), Flags::NONE, 0).unwrap();
    let row = cache.row_mut(slot);
    row.iter_mut()
        .enumerate()
        .for_each(|(i, word)| *word = (key + i as u64) as f32);
    slot
}

/// Adds rows of these keys, each once there is room for it.
fn stream(cache: &mut Cache, table: usize, keys: std::ops::Range<u64>) {
    for key in keys {
        assert!(cache.reclaim(table, 1) >= 1, "table {table}, key {key}");
        put(cache, table, key);
    }
    cache.check();
}

fn is_there(cache: &Cache, table: usize, key: u64) -> bool {
    let slot = slot_of(cache, table, key);
    if slot != Slot::NONE {
        let row = cache.row(slot);
        let right = row
            .iter()
            .enumerate()
            .all(|(i, word)| *word == (key + i as u64) as f32);
        assert!(right, "table {table}, key {key}: {row:?}");
    }
    slot != Slot::NONE
}

fn count(cache: &Cache, table: usize, keys: std::ops::Range<u64>) -> usize {
    keys.filter(|key| is_there(cache, table, *key)).count()
}

#[test]
fn rows_of_one_size_give_their_memory_to_rows_of_another() {
    let mut cache = two(1 << 20, plain(SMALL), plain(LARGE));
    let most = [0, 1].map(|table| cache.capacity(table));
    assert!(most[0] > 18_000 && most[1] > 450, "{most:?}");
    let mut first = 0;
    for round in 0..6 {
        let (table, other) = (round % 2, 1 - round % 2);
        // A few rows stay, spread over all spans of the other size.
        let others: Vec<u64> = (0..first)
            .filter(|key| is_there(&cache, other, *key))
            .collect();
        let kept: Vec<u64> = others
            .iter()
            .step_by(others.len() / 9 + 1)
            .copied()
            .collect();
        let slots: Vec<Slot> = kept
            .iter()
            .map(|key| slot_of(&cache, other, *key))
            .collect();
        cache.pin(&slots);
        // Until they go, slots up to the highest of them stay as well.
        let want = most[table] * if round % 2 == 0 { 9 } else { 6 } / 10;
        let can = cache.reclaim(table, want);
        assert!(can >= want, "round {round}: {can} of {want}");
        assert!(!cache.arena.is_over());
        cache.check();
        let keys = first..first + want as u64;
        for key in keys.clone() {
            put(&mut cache, table, key);
        }
        first = keys.end;
        assert_eq!(count(&cache, table, keys.clone()), want);
        for (key, slot) in kept.iter().zip(&slots) {
            assert!(is_there(&cache, other, *key), "round {round}, key {key}");
            assert_eq!(
                slot_of(&cache, other, *key),
                *slot,
                "a pinned row keeps its slot"
            );
        }
        // No more than the states of slots up to the highest that is pinned.
        let states = (cache.rows.states.touched() * size_of::<RowState>()) as u64;
        assert!(cache.bytes() <= (1 << 20) + states, "round {round}");
        assert_eq!(cache.unpin(&slots), slots.len());
        assert!(shrink(&mut cache));
        cache.check();
        assert!(cache.bytes() <= 1 << 20, "round {round}");
    }
}

#[test]
fn slot_numbers_are_given_back_but_for_pinned_rows() {
    let mut cache = two(
        1 << 20,
        table(SMALL, PolicyKind::Lru),
        table(LARGE, PolicyKind::Lru),
    );
    let most = cache.capacity(0) as u64;
    stream(&mut cache, 0, 0..most);
    let touched = cache.rows.states.touched();
    assert!(touched as u64 >= most);
    let words = cache.words.bytes();
    let pinned = [most - 1, most / 2, most * 3 / 4];
    let slots = pinned.map(|key| slot_of(&cache, 0, key));
    cache.pin(&slots);
    // A dirty row and one that stays: both get lower numbers.
    let dirty = slot_of(&cache, 0, most - 2);
    cache.begin_write(&[dirty], 1, None).unwrap();
    stream(&mut cache, 1, 0..450);
    stream(&mut cache, 1, 1000..2400);
    for (key, slot) in pinned.iter().zip(slots) {
        assert!(is_there(&cache, 0, *key));
        assert_eq!(slot_of(&cache, 0, *key), slot);
    }
    assert!(is_there(&cache, 0, most - 2), "a dirty row stays");
    let moved = slot_of(&cache, 0, most - 2);
    assert!(
        moved.index() < cache.arena.rows_in_spans(),
        "with another number"
    );
    assert!(cache.flags(moved).any(Flags::DIRTY));
    let highest = slots.iter().map(|slot| slot.index()).max().unwrap();
    assert_eq!(
        cache.rows.states.touched(),
        highest + 1,
        "as far as rows are pinned"
    );
    assert!(
        cache.words.bytes() < words / 4,
        "{} {words}",
        cache.words.bytes()
    );
    // Numbers of the zone are not used anew.
    let new = (2000..2400)
        .map(|key| slot_of(&cache, 1, key))
        .filter(|slot| *slot != Slot::NONE);
    assert!(new.max().unwrap().index() < touched / 4);
    cache.unpin(&slots);
    stream(&mut cache, 1, 3000..4000);
    assert!(cache.rows.states.touched() < touched / 4);
    // And back.
    stream(&mut cache, 0, most..2 * most);
    assert!(count(&cache, 0, most..2 * most) as u64 > most * 9 / 10);
}

#[test]
fn held_numbers_of_dirty_rows_stay() {
    let mut cache = two(1 << 20, plain(SMALL), plain(LARGE));
    let most = cache.capacity(0) as u64;
    stream(&mut cache, 0, 0..most);
    let dirty = slot_of(&cache, 0, most - 2);
    cache.begin_write(&[dirty], 1, None).unwrap();
    cache.hold_numbers(true);
    stream(&mut cache, 1, 0..450);
    stream(&mut cache, 1, 1000..1400);
    assert_eq!(slot_of(&cache, 0, most - 2), dirty);
    cache.hold_numbers(false);
    stream(&mut cache, 1, 2000..2600);
    assert_ne!(slot_of(&cache, 0, most - 2), dirty);
    assert!(is_there(&cache, 0, most - 2));
}

/// Giving numbers back takes all rows out of their queues. Those that came next stood there alone, and left
/// again and again while the others stayed for good.
#[test]
fn rows_leave_in_turn_after_numbers_were_given_back() {
    for policy in policy::evicting() {
        let mut cache = two(1 << 20, table(SMALL, policy), table(LARGE, policy));
        let most = cache.capacity(0) as u64;
        stream(&mut cache, 0, 0..most);
        let touched = cache.rows.states.touched();
        let mut key = 0;
        while cache.rows.states.touched() >= touched {
            stream(&mut cache, 1, key..key + 1);
            key += 1;
        }
        assert!(count(&cache, 0, 0..most) > 1000);
        // Some that nobody has to leave for, then many.
        let free = spare(&cache, 1) as u64;
        (key..key + free).for_each(|key| _ = put(&mut cache, 1, key));
        stream(&mut cache, 1, 10_000..13_000);
        let (old, large) = (count(&cache, 0, 0..most), count(&cache, 1, 10_000..13_000));
        println!("{policy:?}: {old} {large}");
        assert!(
            large > 300 || policy == PolicyKind::Bilevel,
            "{policy:?}: {large}"
        );
    }
}

/// Rows of the first table that stay when rows of the second come without end.
fn staying(policy: PolicyKind, floor_bytes: u64) -> u64 {
    let first = TableConfig {
        floor_bytes,
        ..table(64, policy)
    };
    let mut cache = two(1 << 20, first, table(64, policy));
    let most = cache.capacity(0) as u64;
    stream(&mut cache, 0, 0..most);
    stream(&mut cache, 1, 0..3 * most);
    count(&cache, 0, 0..most) as u64
}

#[test]
fn a_floor_keeps_rows() {
    for policy in policy::evicting() {
        let floor = 600 << 10;
        // With its number in a queue for all rows.
        let beside = if policy == PolicyKind::Bilevel {
            32
        } else {
            36
        };
        let rows = floor / (64 * 4 + beside);
        let (with, without) = (staying(policy, floor), staying(policy, 0));
        println!("{policy:?}: {with} rows stay with a floor of {rows}, {without} without");
        assert!(
            (rows - 8..=rows + rows / 20).contains(&with),
            "{policy:?}: {with} {rows}"
        );
        assert!(without < rows / 2, "{policy:?}: {without}");
    }
}

#[test]
fn a_floor_that_leaves_nothing_for_others_gives_way() {
    let floor = TableConfig {
        floor_bytes: u64::MAX,
        ..plain(64)
    };
    let mut cache = two(1 << 20, floor, plain(LARGE));
    let most = cache.capacity(0) as u64;
    stream(&mut cache, 0, 0..most);
    stream(&mut cache, 1, 0..40);
    assert!(is_there(&cache, 1, 39));
}

#[test]
fn a_ceiling_bounds_rows() {
    for policy in policy::evicting() {
        let ceiling_bytes = 256 << 10;
        let bounded = TableConfig {
            ceiling_bytes,
            ..table(64, policy)
        };
        let mut cache = two(1 << 20, bounded, table(LARGE, policy));
        let rows = to_usize(ceiling_bytes / (64 * 4 + 32));
        stream(&mut cache, 1, 0..300);
        for key in 0..3000 {
            cache.reclaim(0, 1);
            put(&mut cache, 0, key);
            let used = cache.rows.tables[0].counts.used;
            assert!(used <= rows, "{policy:?}: {used} of {rows} rows");
        }
        cache.check();
        assert!(cache.rows.tables[0].counts.used > rows * 9 / 10);
        assert_eq!(
            count(&cache, 1, 0..300),
            300,
            "{policy:?}: rows of others stay"
        );
        // A batch that is larger than the ceiling is served.
        assert!(cache.reclaim(0, 2 * rows) >= 2 * rows);
    }
}

#[test]
fn of_rows_used_alike_the_larger_leave_first() {
    let mut cache = two(1 << 20, plain(SMALL), plain(LARGE));
    let mut slots = Vec::new();
    for key in 0..4000u64 {
        slots.push(put(&mut cache, 0, key));
        if key % 20 == 0 {
            slots.push(put(&mut cache, 1, key));
        }
    }
    (0..3).for_each(|_| cache.touch(&slots));
    let spare = spare(&cache, 0);
    // Memory of a hundred large rows.
    let want = spare + 100 * (LARGE + 8) / 12;
    assert!(cache.reclaim(0, want) >= want);
    let large = count(&cache, 1, 0..4000);
    assert_eq!(count(&cache, 0, 0..4000), 4000);
    assert!((60..=150).contains(&large), "{large}");
    // Small rows that are used far less leave before large ones.
    let often: Vec<Slot> = (0..4000)
        .map(|key| slot_of(&cache, 1, key))
        .filter(|slot| *slot != Slot::NONE)
        .collect();
    (0..250).for_each(|_| cache.touch(&often));
    let want = super::spare(&cache, 1) + 10;
    assert!(cache.reclaim(1, want) >= want);
    assert_eq!(count(&cache, 1, 0..4000), large);
    assert!(count(&cache, 0, 0..4000) < 4000);
    cache.check();
}

#[test]
fn staged_rows_never_leave_while_others_do() {
    for policy in policy::evicting() {
        let mut cache = two(1 << 20, table(64, PolicyKind::PinAll), table(64, policy));
        stream(&mut cache, 0, 0..1000);
        stream(&mut cache, 1, 0..8000);
        assert_eq!(count(&cache, 0, 0..1000), 1000, "{policy:?}");
        assert!(cache.evictable() > 300);
        let rest = cache.reclaim(0, usize::MAX);
        assert_eq!((cache.resident(), cache.evictable()), (1000, 0));
        assert_eq!(count(&cache, 0, 0..1000), 1000);
        assert!(rest + 1000 + 64 >= cache.capacity(0), "{rest}");
        // With another policy they do.
        cache.set_table(0, &table(64, policy));
        cache.check();
        stream(&mut cache, 1, 10_000..20_000);
        assert!(count(&cache, 0, 0..1000) < 300);
        cache.set_table(0, &table(64, PolicyKind::PinAll));
        let stay = count(&cache, 0, 0..1000);
        stream(&mut cache, 1, 20_000..24_000);
        assert_eq!(count(&cache, 0, 0..1000), stay);
    }
}

/// A row that was written joins those that leave next. One that never leaves was looked at for ever, by a
/// thread that wanted room for a row of another table.
#[test]
fn staged_rows_that_were_written_stay_while_others_leave() {
    for policy in policy::evicting() {
        let mut cache = two(1 << 20, table(64, PolicyKind::PinAll), table(64, policy));
        stream(&mut cache, 0, 0..100);
        let slots: Vec<Slot> = (0..100).map(|key| slot_of(&cache, 0, key)).collect();
        cache.begin_write(&slots, 1, None).unwrap();
        let (mut victims, mut row) = (Vec::new(), [0.0; 64]);
        assert!(cache.take_frozen(&mut 0, step(100), 1, &mut victims));
        for victim in &victims {
            assert!(cache.copy_out(victim, 1, &mut row).is_some());
            assert!(cache.written(victim, true));
        }
        stream(&mut cache, 1, 0..8000);
        assert_eq!(count(&cache, 0, 0..100), 100, "{policy:?}");
        // Rows that were to leave next, of a table that keeps its rows from now on.
        cache.set_table(1, &table(64, PolicyKind::PinAll));
        cache.set_table(0, &table(64, policy));
        cache.check();
        assert_eq!(cache.reclaim(0, usize::MAX), spare(&cache, 0));
        assert_eq!((cache.evictable(), count(&cache, 0, 0..100)), (0, 0));
    }
}

#[test]
fn a_budget_is_changed_while_rows_are_pinned() {
    let mut cache = two(1 << 20, plain(SMALL), plain(LARGE));
    stream(&mut cache, 0, 0..10_000);
    stream(&mut cache, 1, 0..200);
    let slots: Vec<Slot> = (0..10_000)
        .step_by(100)
        .map(|key| slot_of(&cache, 0, key))
        .collect();
    cache.pin(&slots);
    for bytes in [256 << 10, 4 << 20, 1 << 20, 300 << 10, 2 << 20] {
        cache.set_bytes(bytes).unwrap();
        assert!(shrink(&mut cache) && !cache.arena.is_over(), "{bytes}");
        cache.check();
        assert!(cache.bytes() <= bytes, "{} of {bytes}", cache.bytes());
        for key in (0..10_000).step_by(100) {
            assert!(is_there(&cache, 0, key));
        }
        let most = cache.capacity(1);
        let can = cache.reclaim(1, usize::MAX);
        assert!(can * 10 >= most * 8, "{can} of {most} in {bytes}");
        stream(&mut cache, 1, bytes..bytes + can as u64 - 1);
        assert!(cache.evictable() + slots.len() >= can - 1);
    }
    cache.unpin(&slots);
    cache.set_bytes(0).unwrap();
    shrink(&mut cache);
    assert_eq!(cache.resident(), 0);
}

#[test]
fn memory_for_several_large_spans_costs_rows_of_about_so_much() {
    for spans in [1, 2, 5] {
        let mut cache = two(16 << 20, plain(64), plain(3072));
        let most = cache.capacity(0) as u64;
        stream(&mut cache, 0, 0..most);
        // No span of them empties by itself.
        for key in 0..most {
            let slot = slot_of(&cache, 0, mix64(key) % most);
            cache.touch(&[slot]);
        }
        let class = cache.rows.tables[1].class;
        let rows = spans * cache.arena.rows_per_span(class);
        assert!(cache.arena.span_bytes(class) > cache.arena.span_bytes(cache.rows.tables[0].class));
        let (evicted, row) = (cache.evicted(), 64 * 4 + 32);
        assert!(cache.reclaim(1, rows) >= rows);
        let left = (cache.evicted() - evicted) * row;
        let wanted = spans as u64 * cache.arena.span_bytes(class);
        println!("{left} bytes of rows left for {wanted}");
        assert!(left <= wanted * 3 / 2 + (64 << 10), "{left} for {wanted}");
        cache.check();
    }
}

#[test]
fn a_checkpoint_makes_no_row_colder() {
    for policy in policy::evicting() {
        let mut cache = two(1 << 20, table(64, policy), table(64, policy));
        let most = cache.capacity(0) as u64;
        stream(&mut cache, 0, 0..most);
        // A third of the rows was used often, lately.
        let hot: Vec<Slot> = (0..most / 3).map(|key| slot_of(&cache, 0, key)).collect();
        (0..20).for_each(|_| cache.touch(&hot));
        let stay = |cache: &mut Cache| {
            stream(cache, 1, 0..most / 4);
            count(cache, 0, 0..most / 3)
        };
        // All in their places: nothing is marked as used since it was looked at.
        for slot in &hot {
            let state = cache.rows.states.get_mut(*slot);
            state.flags = state.flags.without(Flags::VISITED);
        }
        let all: Vec<Slot> = (0..most).map(|key| slot_of(&cache, 0, key)).collect();
        let all: Vec<Slot> = all.into_iter().filter(|slot| *slot != Slot::NONE).collect();
        cache.begin_write(&all, 1, None).unwrap();
        let (mut victims, mut row, mut cursor) = (Vec::new(), [0.0; 64], 0);
        assert!(cache.take_frozen(&mut cursor, step(usize::MAX), 1, &mut victims));
        for victim in &victims {
            assert!(cache.copy_out(victim, 1, &mut row).is_some());
        }
        // In another order than that of their slots.
        victims.sort_by_key(|victim| victim.hash);
        for victim in &victims {
            assert!(cache.written(victim, true));
        }
        assert_eq!(victims.len(), all.len());
        let stayed = stay(&mut cache);
        println!("{policy:?}: {stayed} of {} stay", hot.len());
        match policy {
            PolicyKind::Bilevel => assert!(stayed * 100 >= hot.len() * 95, "{stayed}"),
            // Those that came first leave first; they are as many as those that came.
            _ => assert!(count(&cache, 0, most * 3 / 4..most) as u64 * 100 >= most / 4 * 95),
        }
    }
}

#[test]
fn rows_of_a_bounded_table_leave_in_the_order_of_its_policy() {
    for policy in policy::evicting() {
        let bounded = TableConfig {
            ceiling_bytes: 256 << 10,
            ..table(64, policy)
        };
        let mut cache = two(1 << 20, bounded, table(LARGE, policy));
        let rows = (256 << 10) / (64 * 4 + 32);
        for key in 0..3 * rows {
            cache.reclaim(0, 1);
            put(&mut cache, 0, key);
        }
        let young = count(&cache, 0, 3 * rows - rows / 2..3 * rows) as u64;
        println!("{policy:?}: {young} of the youngest {} stay", rows / 2);
        // Of rows used once each, bi-level keeps those that have waited for less.
        assert!(young * 10 >= rows / 2 * 9, "{policy:?}: {young}");
    }
}

use super::*;

/// Takes rows until there are none, each filled with its number.
fn fill(arena: &mut Arena, class: Class, row_f32s: usize) -> Vec<Place> {
    let mut places = Vec::new();
    while let Some(place) = arena.take(class) {
        arena.row_mut(place, row_f32s).fill(places.len() as f32);
        places.push(place);
    }
    places
}

fn holds(arena: &Arena, place: Place, row_f32s: usize, number: usize) -> bool {
    let row = arena.row(place, row_f32s);
    row.len() == row_f32s && row.iter().all(|word| *word == number as f32)
}

/// Moves all rows of closing spans, as an owner does.
fn move_rows(arena: &mut Arena, class: Class, row_f32s: usize, places: &mut [Place]) {
    for place in places {
        if arena.is_closing(*place) {
            let target = arena.take(class).unwrap();
            arena.copy(*place, target, row_f32s);
            arena.free(class, *place);
            *place = target;
        }
    }
    assert_eq!(arena.closing_rows(), 0);
    arena.check();
}

fn wrong(result: Result<impl Sized>) -> bool {
    matches!(
        result,
        Err(Error::InvalidArgument(ArgumentError::Option {
            name: "cache_bytes",
            ..
        }))
    )
}

#[test]
fn as_many_rows_as_the_capacity_says_keep_what_was_written() {
    for row_f32s in [1, 3, 4, 10, 33, 384, 1000, 5000, 20_000] {
        let mut arena = Arena::new(1 << 20).unwrap();
        let class = arena.class(row_f32s);
        assert_eq!(arena.spare_rows(class), arena.capacity(class));
        let places = fill(&mut arena, class, row_f32s);
        arena.check();
        assert!(!arena.is_over());
        assert_eq!(places.len(), arena.capacity(class), "{row_f32s} f32s");
        for (number, place) in places.iter().enumerate() {
            assert!(holds(&arena, *place, row_f32s, number), "{row_f32s} f32s");
        }
        for place in places {
            arena.free(class, place);
        }
        arena.check();
        assert_eq!((arena.bytes_used(), arena.free_rows(class)), (0, 0));
    }
}

#[test]
fn a_unit_is_about_a_512th_of_the_budget() {
    for (bytes_max, unit) in [
        (0, 4 << 10),
        (1 << 20, 4 << 10),
        (16 << 20, 32 << 10),
        (24 << 20, 32 << 10),
        (128 << 20, 256 << 10),
        (4 << 30, 2 << 20),
    ] {
        assert_eq!(unit_bytes(bytes_max), unit, "{bytes_max}");
    }
}

#[test]
fn hardly_any_memory_is_lost_by_rounding() {
    for mib in [16, 20, 31, 64, 100, 128, 500, 1024] {
        let mut arena = Arena::new(mib << 20).unwrap();
        for words in [8, 16, 24, 32, 48, 64, 96, 100, 128] {
            for states in [1, 2, 3] {
                let row_f32s = words * states;
                let class = arena.class(row_f32s);
                let each = (row_f32s * 4) as u64 + META_ROW_BYTES;
                let held = arena.capacity(class) as u64 * each;
                let budget = arena.bytes_max() as f64;
                assert!(
                    held as f64 >= 0.97 * budget,
                    "{mib} MiB, {row_f32s} f32s: {held}"
                );
                let rest =
                    arena.span_bytes(class) - (arena.rows_per_span(class) * row_f32s * 4) as u64;
                assert!(rest * 100 <= arena.span_bytes(class), "{row_f32s} f32s");
            }
        }
    }
}

#[test]
fn rows_that_are_too_large_have_no_capacity() {
    for (bytes_max, row_f32s) in [(0, 1), (4095, 4), (1 << 20, 1 << 18), (1 << 20, 1 << 30)] {
        let mut arena = Arena::new(bytes_max).unwrap();
        let class = arena.class(row_f32s);
        assert_eq!((arena.capacity(class), arena.spare_rows(class)), (0, 0));
        assert_eq!(arena.take(class), None);
        assert!(!arena.close_for(class, 1) && !arena.close_emptiest(class));
        assert!(arena.cost_of([(class, 1)].into_iter()) > bytes_max);
        arena.check();
    }
}

#[test]
fn a_row_larger_than_a_unit_lies_in_several() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let row_f32s = (300 << 10) / 4;
    let class = arena.class(row_f32s);
    assert_eq!(
        (arena.rows_per_span(class), arena.span_bytes(class)),
        (1, 512 << 10)
    );
    // Of spans that all have a rest the least with the least share of it.
    let uneven = arena.class(5000);
    assert_eq!(
        (arena.rows_per_span(uneven), arena.span_bytes(uneven)),
        (3, 64 << 10)
    );
    let places = fill(&mut arena, class, row_f32s);
    assert_eq!(places.len(), 1);
    assert!(holds(&arena, places[0], row_f32s, 0));
    arena.free(class, places[0]);
    arena.check();
}

#[test]
fn places_are_told_apart_up_to_64_gib() {
    for bytes_max in [64 << 30, 1 << 40, u64::MAX] {
        assert!(wrong(Arena::new(bytes_max)), "{bytes_max}");
    }
    let mut arena = Arena::new(1 << 20).unwrap();
    assert!(wrong(arena.set_bytes_max(64 << 30)));
    assert_eq!(arena.bytes_max(), 1 << 20);
    arena.check();
    for unit_log in 12..=21 {
        let units = places_units_max(1 << unit_log);
        let last = (units << (unit_log - ROW_BYTES_MIN_LOG)) - 1;
        assert!(last < u64::from(u32::MAX), "no row is at {:?}", Place::NONE);
        assert!(units << unit_log >= 63 << 30);
    }
}

#[test]
fn short_rows_share_a_class() {
    let mut arena = Arena::new(1 << 20).unwrap();
    assert_eq!(arena.class(1), arena.class(4));
    assert_ne!(arena.class(4), arena.class(5));
    let class = arena.class(1);
    let (short, long) = (arena.take(class).unwrap(), arena.take(class).unwrap());
    arena.row_mut(short, 1).fill(1.0);
    arena.row_mut(long, 4).fill(2.0);
    for _ in 0..8 {
        let other = arena.take(class).unwrap();
        arena.row_mut(other, 1).fill(3.0);
        assert!(holds(&arena, short, 1, 1) && holds(&arena, long, 4, 2));
    }
    assert_eq!(arena.classes().count(), 2);
}

#[test]
fn the_budget_counts_what_is_charged() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let class = arena.class(16);
    let all = arena.capacity(class);
    arena.charge(1 << 19, 0);
    assert_eq!(arena.bytes_used(), 1 << 19);
    let half = arena.capacity(class);
    assert!((all * 48 / 100..=all / 2).contains(&half));
    assert_eq!(fill(&mut arena, class, 16).len(), half);
    let (per_span, cost) = (arena.rows_per_span(class), arena.cost(class));
    for (rows, spans) in [(0, 0), (1, 1), (per_span, 1), (per_span + 1, 2)] {
        let asked = arena.cost_of([(class, rows)].into_iter());
        assert_eq!(asked, (1 << 19) + spans * cost);
    }
    arena.charge((1 << 20) + 1, 0);
    assert!(arena.is_over());
}

#[test]
fn fresh_spans_hand_out_rows_in_order() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let class = arena.class(16);
    let mut taken = || arena.take(class).unwrap();
    let places: Vec<u32> = (0..64).map(|_| taken().0).collect();
    assert!(places.is_sorted_by(|a, b| a + 1 == *b));
}

#[test]
#[should_panic(expected = "a row is freed once")]
fn a_row_is_not_freed_twice() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let class = arena.class(16);
    let (place, _other) = (arena.take(class).unwrap(), arena.take(class).unwrap());
    arena.free(class, place);
    arena.free(class, place);
}

#[test]
#[should_panic(expected = "a row is freed in its class")]
fn a_row_is_not_freed_in_another_class() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let (class, other) = (arena.class(16), arena.class(32));
    let place = arena.take(class).unwrap();
    arena.free(other, place);
}

#[test]
fn a_budget_that_grows_adds_a_region() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let class = arena.class(100);
    let first = fill(&mut arena, class, 100);
    let allocated = arena.bytes_allocated();
    arena.set_bytes_max(3 << 20).unwrap();
    assert!(arena.bytes_allocated() >= allocated + (2 << 20));
    assert_eq!(arena.spare_rows(class) + first.len(), arena.capacity(class));
    let more = fill(&mut arena, class, 100);
    assert_eq!(first.len() + more.len(), arena.capacity(class));
    arena.check();
    for places in [&first, &more] {
        for (number, place) in places.iter().enumerate() {
            assert!(holds(&arena, *place, 100, number));
        }
    }
    // From one region to the other, and back; not beyond the row.
    let (last, before) = (more[more.len() - 1], more[more.len() - 2]);
    arena.copy(first[1], last, 100);
    arena.copy(before, first[2], 100);
    assert!(holds(&arena, last, 100, 1) && holds(&arena, first[2], 100, more.len() - 2));
    assert!(holds(&arena, before, 100, more.len() - 2) && holds(&arena, first[3], 100, 3));
}

#[test]
fn spans_lie_in_one_region_each_whatever_its_size() {
    let mut arena = Arena::new((1 << 20) + (20 << 10)).unwrap();
    let wide = arena.class(8 << 10);
    let mut rows = 0;
    for more in [44, 52, 200, 1000_u64] {
        let (grown, allocated) = (arena.bytes_max() + (more << 10), arena.bytes_allocated());
        arena.set_bytes_max(grown).unwrap();
        let added = (arena.bytes_allocated() - allocated) as u64;
        assert!(added == 0 || added >= (1 << 20) / GROWTH_SHARE as u64);
        let places = fill(&mut arena, wide, 8 << 10);
        arena.check();
        for (number, place) in places.iter().enumerate() {
            assert!(holds(&arena, *place, 8 << 10, number));
        }
        rows += places.len();
        assert_eq!((arena.spare_rows(wide), rows), (0, arena.capacity(wide)));
    }
    assert!(arena.rows_touched_bytes() > 2 << 20);
}

#[test]
fn a_budget_that_shrinks_gives_pages_back_as_rows_leave() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let class = arena.class(100);
    let places = fill(&mut arena, class, 100);
    let (touched, allocated) = (arena.rows_touched_bytes(), arena.bytes_allocated());
    arena.set_bytes_max(1 << 19).unwrap();
    assert!(arena.is_over());
    assert_eq!((arena.take(class), arena.spare_rows(class)), (None, 0));
    assert_eq!(arena.rows_touched_bytes(), touched);
    let mut left = places.into_iter();
    while arena.is_over() {
        arena.free(class, left.next().unwrap());
        assert!(!arena.is_over() || arena.rows_touched_bytes() <= arena.bytes_used());
    }
    arena.check();
    assert!(arena.rows_touched_bytes() <= 1 << 19);
    left.for_each(|place| arena.free(class, place));
    arena.set_bytes_max(1 << 20).unwrap();
    assert_eq!(arena.bytes_allocated(), allocated);
    assert_eq!(fill(&mut arena, class, 100).len(), arena.capacity(class));
}

#[test]
fn free_units_keep_their_pages_while_the_budget_has_room() {
    let mut arena = Arena::new(32 << 20).unwrap();
    let row_f32s = (64 << 10) / 4;
    let class = arena.class(row_f32s);
    let places = fill(&mut arena, class, row_f32s);
    let touched = arena.rows_touched_bytes();
    for place in &places {
        arena.row_mut(*place, row_f32s).fill(1.0);
        arena.free(class, *place);
    }
    assert_eq!(arena.rows_touched_bytes(), touched);
    arena.charge((32 << 20) - (640 << 10), 0);
    assert_eq!(arena.rows_touched_bytes(), 640 << 10);
    assert!(arena.take(class).is_some());
    // What is kept beside the row needs room as well.
    assert_eq!(arena.rows_touched_bytes(), (9 * 64) << 10);
    arena.check();
    arena.charge(0, 0);
    let places: Vec<Place> = std::iter::from_fn(|| arena.take(class)).collect();
    let words = places.iter().map(|place| arena.row(*place, row_f32s)[0]);
    let kept = words.filter(|word| *word == 1.0).count();
    assert_eq!(kept, 8, "the others were given back");
}

#[test]
fn great_runs_stay_and_touched_units_go_first() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let class = arena.class(1024);
    let places: Vec<Place> = (0..11).map(|_| arena.take(class).unwrap()).collect();
    for (i, place) in places.iter().enumerate() {
        assert_eq!(arena.split(*place).0 as usize, i);
    }
    arena.free(class, places[3]);
    arena.charge(1 << 20, 0);
    arena.charge(0, 0);
    arena.free(class, places[7]);
    for i in [7, 3, 11] {
        let place = arena.take(class).unwrap();
        assert_eq!(arena.split(place).0, i);
    }
    arena.check();
}

#[test]
fn the_window_that_is_cheapest_to_empty_is_emptied() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let (small, wide) = (arena.class(1024), arena.class(8192));
    let places = fill(&mut arena, small, 1024);
    // Every other row stays, of the window of units 80 to 87 one.
    for place in &places {
        let unit = arena.split(*place).0;
        if unit % 2 == 1 || unit / 8 == 10 && unit != 82 {
            arena.free(small, *place);
        }
    }
    while arena.units.runs(3) > 0 {
        arena.take(wide).unwrap();
    }
    // The budget has room for one span and no more.
    arena.charge(arena.bytes_max() - arena.bytes_used() - arena.cost(wide), 0);
    assert!(arena.close_for(wide, 1));
    assert_eq!(arena.closing_rows(), 1);
    assert!(arena.is_closing(places[82]));
    assert!(!arena.close_for(wide, 1), "the room is needed already");
    arena.check();
}

#[test]
fn the_emptiest_span_is_closed_where_its_rows_fit_elsewhere() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let class = arena.class(64);
    let per_span = arena.rows_per_span(class);
    let mut places: Vec<Place> = (0..2 * per_span)
        .map(|_| arena.take(class).unwrap())
        .collect();
    assert!(!arena.close_emptiest(class), "no free row is there");
    for _ in 0..per_span / 2 + 1 {
        arena.free(class, places.pop().unwrap());
    }
    assert!(!arena.close_emptiest(class), "the other span is full");
    for _ in 0..per_span / 2 {
        arena.free(class, places.remove(0));
    }
    let (used, free) = (arena.bytes_used(), arena.free_rows(class));
    assert!(arena.close_emptiest(class));
    let closing = places
        .iter()
        .filter(|place| arena.is_closing(**place))
        .count();
    assert_eq!(
        (closing, arena.closing_rows()),
        (per_span - per_span / 2 - 1, closing)
    );
    assert!(!arena.is_closing(Place::NONE));
    assert!(!arena.close_emptiest(class), "there is no other span");
    arena.reopen();
    assert_eq!((arena.closing_rows(), arena.free_rows(class)), (0, free));
    arena.check();
    assert!(arena.close_emptiest(class));
    move_rows(&mut arena, class, 64, &mut places);
    assert_eq!(arena.bytes_used(), used - arena.cost(class));
}

#[test]
fn a_window_is_emptied_for_a_span_of_several_units() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let (narrow, wide) = (arena.class(1024), arena.class(8192));
    let mut places = fill(&mut arena, narrow, 1024);
    assert!(!arena.close_for(wide, 1), "the budget allows none");
    // Every other unit but those that were never used.
    let extra: Vec<Place> = (0..places.len() / 2).map(|i| places.remove(i)).collect();
    for place in extra {
        arena.free(narrow, place);
    }
    let mut rows: Vec<Place> = Vec::new();
    let mut windows = 0;
    loop {
        while let Some(place) = arena.take(wide) {
            arena.row_mut(place, 8192).fill(rows.len() as f32);
            rows.push(place);
        }
        let (spare, free) = (arena.spare_rows(wide), arena.free_rows(wide));
        assert_eq!((spare, free), (0, 0));
        if !arena.close_for(wide, 1) {
            break;
        }
        arena.check();
        windows += 1;
        move_rows(&mut arena, narrow, 1024, &mut places);
        assert_eq!(arena.spare_rows(wide), arena.rows_per_span(wide));
    }
    assert!(windows > 5, "{windows} windows");
    assert!(arena.bytes_used() + arena.cost(wide) > arena.bytes_max());
    for (number, place) in rows.iter().enumerate() {
        assert!(holds(&arena, *place, 8192, number));
    }
    arena.check();
}

#[test]
fn a_reserved_window_goes_to_its_class_or_is_given_up() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let (narrow, wide) = (arena.class(1024), arena.class(8192));
    let mut places = fill(&mut arena, narrow, 1024);
    let mut i = 0;
    places.retain(|place| {
        i += 1;
        let kept = i % 2 == 0;
        if !kept {
            arena.free(narrow, *place);
        }
        kept
    });
    while arena.units.runs(3) > 0 {
        arena.take(wide).unwrap();
    }
    assert!(arena.close_for(wide, 1));
    let spare = arena.spare_rows(narrow);
    arena.reopen();
    assert_eq!(arena.closing_rows(), 0);
    assert!(arena.spare_rows(narrow) >= spare);
    arena.check();
    assert!(arena.close_for(wide, 1));
    move_rows(&mut arena, narrow, 1024, &mut places);
    // Others do not get it, whatever they take.
    fill(&mut arena, narrow, 1024);
    arena
        .set_bytes_max(arena.bytes_max() + arena.cost(wide))
        .unwrap();
    assert!(arena.spare_rows(wide) >= arena.rows_per_span(wide));
    assert!(arena.take(wide).is_some());
    arena.check();
}

#[test]
fn donors_are_those_with_a_spans_free_rows() {
    let mut arena = Arena::new(1 << 20).unwrap();
    let classes = [arena.class(16), arena.class(64), arena.class(256)];
    let mut places: Vec<Vec<Place>> = Vec::new();
    for class in classes {
        let rows = 3 * arena.rows_per_span(class);
        places.push((0..rows).map(|_| arena.take(class).unwrap()).collect());
    }
    assert!(arena.donors(classes[0]).is_empty());
    // A row stays in each span: no span is given back.
    for (class, (places, spans)) in classes.into_iter().zip(places.iter().zip([3, 2, 1])) {
        let per_span = arena.rows_per_span(class);
        for (i, place) in places.iter().enumerate().take(spans * per_span) {
            if i % per_span != 0 {
                arena.free(class, *place);
            }
        }
    }
    assert_eq!(arena.donors(classes[1]), [classes[0]]);
    assert_eq!(arena.donors(classes[2]), [classes[0], classes[1]]);
    let (class, per_span) = (classes[1], arena.rows_per_span(classes[1]));
    while arena.free_rows(class) > per_span {
        arena.take(class).unwrap();
    }
    assert_eq!(arena.donors(classes[2]), [classes[0], class]);
    arena.take(class).unwrap();
    assert_eq!(arena.donors(classes[2]), [classes[0]]);
}

/// A store opens with addresses for all of its cache, and gives rows what buffers leave. A table that was made then got
/// spans by the addresses: with 68 KiB for rows, one span of 131 KiB for rows of 772 bytes, and no batch of it was admitted.
#[test]
fn a_span_is_a_small_part_of_the_budget_however_many_units_there_are() {
    let mut arena = Arena::new(1 << 20).unwrap();
    arena.set_bytes_max(68 << 10).unwrap();
    for row_f32s in [4, 193, 385, 700] {
        let class = arena.class(row_f32s);
        assert!(
            arena.cost(class) <= arena.bytes_max() / 4 && arena.capacity(class) > 0,
            "{row_f32s}: {}",
            arena.cost(class)
        );
    }
}

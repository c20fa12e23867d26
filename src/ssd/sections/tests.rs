//! Which entries a walk hands out, which blocks it reads for them, and what it refuses.

use super::*;
use crate::ssd::tests::rows::{Part, Place, rows, tombstones};
use crate::sync::thread;
use crate::units::FileSlot;

const STEP: u64 = 1 << 50;
const ROWS: u64 = 10_000;
/// Where the run of [`even`] begins.
const FIRST: u64 = 700;

/// Evenly spread hashes in blocks 2 to 31, behind another table's.
fn even(place: &Place) -> Arc<DataFile> {
    let hashes = |n: u64| (0..n).map(|i| i * STEP);
    let parts = [tombstones(0, hashes(FIRST)), rows(1, 1, hashes(ROWS))];
    let mut file = place.file(3, &parts);
    file.meta.hash_max = ROWS * STEP - 1;
    Arc::new(file)
}

fn open(file: &Arc<DataFile>, run: usize, range: (u64, u64), blocks: u64) -> SectionWalk {
    let walk = SectionWalk::open(file, &file.runs[run], range, blocks * BLOCK_BYTES, None);
    walk.unwrap().unwrap()
}

fn taken(walk: &mut SectionWalk, high: u64) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    walk.take_until(high, &mut out).unwrap();
    out
}

/// Hashes and locations of these entries of the run of [`even`].
fn entries(of: std::ops::Range<u64>) -> Vec<(u64, u64)> {
    let location = |i| Location::new(FileSlot::new(3), false, u32::try_from(FIRST + i).unwrap());
    of.map(|i| (i * STEP, location(i).0)).collect()
}

#[test]
fn the_part_of_hashes_in_a_range_is_exact_and_rounded_down() {
    assert_eq!(share(10, (0, 4), (0, 9)), 5);
    assert_eq!(share(10, (10, 14), (10, 19)), 5);
    assert_eq!(share(10, (0, 100), (10, 19)), 10);
    assert_eq!(share(10, (19, 100), (10, 19)), 1, "the last one alone");
    assert_eq!(share(10, (0, 10), (10, 19)), 1, "the first one alone");
    assert_eq!(share(3, (10, 14), (10, 19)), 1);
    assert_eq!(share(10, (0, 9), (10, 19)), 0);
    assert_eq!(share(10, (20, 29), (10, 19)), 0);
    assert_eq!(share(u64::MAX, (0, u64::MAX), (0, u64::MAX)), u64::MAX);
    assert_eq!(share(1 << 40, (0, u64::MAX / 2), (0, u64::MAX)), 1 << 39);
    let place = Place::new();
    let file = even(&place);
    let (run, middle) = (&file.runs[1], ROWS / 2 * STEP);
    assert_eq!(entries_in(&file, run, (0, middle - 1)), 5000);
    assert_eq!(entries_in(&file, run, (middle, u64::MAX)), 5000);
    assert_eq!(entries_in(&file, &file.runs[0], (0, u64::MAX)), FIRST);
}

#[test]
fn the_blocks_of_a_run_are_those_that_hold_its_first_and_last_entry() {
    let blocks = |first_entry, entries| {
        blocks_of(&Run {
            table: 0,
            kind: RunKind::Tombstones,
            first_entry,
            entries,
            offset: 0,
            stride: 0,
        })
    };
    assert_eq!(blocks(0, 1), (0, 1));
    assert_eq!(blocks(0, 340), (0, 1));
    assert_eq!(blocks(0, 341), (0, 2));
    assert_eq!(blocks(339, 1), (0, 1));
    assert_eq!(blocks(339, 2), (0, 2));
    assert_eq!(blocks(340, 340), (1, 2));
    assert_eq!(blocks(1000, 1), (2, 3));
    assert_eq!(blocks(700, 10_000), (2, 32));
}

#[test]
fn entries_come_with_their_locations_once_and_in_order_whatever_is_asked_for() {
    let place = Place::new();
    let file = even(&place);
    let steps = [
        0,
        1,
        10 * STEP - 1,
        10 * STEP,
        11 * STEP,
        // Around the end of a block, and of two.
        (2 * 340 - FIRST % 340) * STEP - 1,
        (3 * 340 - FIRST % 340) * STEP,
        7000 * STEP + 1,
        u64::MAX,
    ];
    for blocks in [1, 3, 100] {
        let mut walk = open(&file, 1, (0, u64::MAX), blocks);
        let mut done = 0;
        for high in steps {
            let until = (high / STEP + 1).min(ROWS);
            assert_eq!(taken(&mut walk, high), entries(done..until), "{high:#x}");
            assert_eq!(walk.taken(), until);
            done = until;
        }
        assert!(taken(&mut walk, u64::MAX).is_empty());
    }
    let mut others = open(&file, 0, (5 * STEP, 699 * STEP), 2);
    let found = taken(&mut others, 699 * STEP);
    let first = (5 * STEP, Location::new(FileSlot::new(3), true, 5).0);
    let last = (699 * STEP, Location::new(FileSlot::new(3), true, 699).0);
    assert_eq!((found[0], found[694], found.len()), (first, last, 695));
}

#[test]
fn a_run_without_hashes_in_the_range_is_not_opened() {
    let place = Place::new();
    let file = place.shared(1, &[rows(0, 1, 10..21)]);
    let open = |run: &Run, range| {
        let walk = SectionWalk::open(&file, run, range, BLOCK_BYTES, None).unwrap()?;
        let mut out = Vec::new();
        let mut walk = walk;
        walk.take_until(range.1, &mut out).unwrap();
        Some(out.iter().map(|(hash, _)| *hash).collect::<Vec<u64>>())
    };
    let run = file.runs[0];
    assert_eq!(open(&run, (0, 9)), None);
    assert_eq!(open(&run, (0, 10)), Some(vec![10]));
    assert_eq!(open(&run, (20, 99)), Some(vec![20]));
    assert_eq!(open(&run, (21, 99)), None);
    assert_eq!(open(&run, (13, 14)), Some(vec![13, 14]));
    let none = Run { entries: 0, ..run };
    assert_eq!(open(&none, (0, 99)), None);
}

#[test]
fn a_window_is_as_long_as_asked_and_no_longer_than_the_run() {
    let place = Place::new();
    let file = even(&place);
    thread::scope(|scope| {
        let reader = Reader::start(scope).unwrap();
        let window = |bytes, reader| {
            let walk = SectionWalk::open(&file, &file.runs[1], (0, u64::MAX), bytes, reader);
            walk.unwrap().unwrap().window.len() as u64 / BLOCK_BYTES
        };
        assert_eq!(window(0, None), 1);
        assert_eq!(window(16 * BLOCK_BYTES, None), 16);
        assert_eq!(window(16 * BLOCK_BYTES + 1, None), 17);
        assert_eq!(window(u64::MAX, None), 30);
        assert_eq!(window(16 * BLOCK_BYTES, Some(&reader)), 8);
        assert_eq!(window(16 * BLOCK_BYTES + 2, Some(&reader)), 9);
    });
    let walk = open(&file, 1, (0, u64::MAX), 8);
    let at = |block| file.keys_offset + block * BLOCK_BYTES;
    assert_eq!(walk.piece(9, 9), ((9, 17), at(9), 8 * 4096));
    assert_eq!(walk.piece(9, 3), ((9, 12), at(9), 3 * 4096));
    assert_eq!(walk.piece(30, 9), ((30, 32), at(30), 2 * 4096));
}

/// With an even spread a range begins in the block that is looked at first, or close behind it.
#[test]
fn where_a_range_begins_and_ends_is_guessed_to_the_block() {
    let place = Place::new();
    let file = even(&place);
    let range = (2900 * STEP - 1, 4900 * STEP);
    let (mut walk, reads) = place.counted(|| open(&file, 1, range, 8));
    // Two roots of 10 000 to both sides: entries 2699 and 5100 of the run.
    assert_eq!((walk.first, walk.next, walk.at), (9 * 340, 10, 340));
    assert_eq!(walk.likely_end, (700 + 5100) / 340 + 1);
    assert_eq!((walk.held, reads), ((9, 17), (1, 8 * BLOCK_BYTES)));
    let (found, reads) = place.counted(|| taken(&mut walk, range.1));
    assert_eq!(found, entries(2900..4901));
    assert_eq!((walk.taken(), reads), (2001, (0, 0)));

    let whole = open(&file, 1, (0, u64::MAX), 8);
    assert_eq!((whole.first, whole.at, whole.likely_end), (FIRST, 0, 32));
    let upper = open(&file, 1, (9990 * STEP, u64::MAX), 8);
    assert_eq!((upper.next, upper.likely_end), (31, 32));
    // The first hash is that of the range: from the first block on.
    let first = open(&file, 1, (0, 340 * STEP), 8);
    assert_eq!((first.first, first.at), (FIRST, 0));
    assert_eq!(first.likely_end, (700 + 340 + 200) / 340 + 1);
}

#[test]
fn a_range_that_begins_earlier_than_guessed_is_looked_for_further_and_further_back() {
    let place = Place::new();
    let low = (0..100).map(|i| i << 52);
    let hashes = low.chain((100..ROWS).map(|i| (1 << 63) + i));
    let parts = [tombstones(0, 0..400), tombstones(1, hashes)];
    let file = place.shared(3, &parts);
    let range = ((1 << 63) - 1, u64::MAX);
    let (mut walk, reads) = place.counted(|| open(&file, 1, range, 1));
    // Blocks 29, 28 and 21, and then the run's first.
    assert_eq!(reads, (4, 4 * BLOCK_BYTES));
    assert_eq!((walk.first, walk.next, walk.at), (400, 2, 100));
    let found = taken(&mut walk, u64::MAX);
    let location = |entry| Location::new(FileSlot::new(3), true, entry).0;
    assert_eq!(found[0], ((1 << 63) + 100, location(500)));
    assert_eq!(found[9899], ((1 << 63) + 9999, location(10_399)));
    assert_eq!(found.len(), 9900);

    // Nothing of the first block is in the range: it is looked at once.
    let range = (1 << 52, 3 << 52);
    let parts = [tombstones(1, (0..340).chain([1 << 52, 2 << 52]))];
    let file = place.shared(4, &parts);
    let mut walk = open(&file, 0, range, 1);
    assert_eq!(taken(&mut walk, range.1).len(), 2);
}

/// Nine of ten entries are at the beginning: more are in the first half than guessed.
fn crowded(place: &Place) -> (Arc<DataFile>, (u64, u64)) {
    let high = (1..=1000).map(|i| i << 52);
    let file = place.shared(4, &[tombstones(1, (0..9000).chain(high))]);
    (file, (0, 500 << 52))
}

#[test]
fn where_a_range_goes_on_beyond_its_likely_end_few_blocks_are_read_at_a_time() {
    let place = Place::new();
    let (file, range) = crowded(&place);
    let (found, reads) = place.counted(|| {
        let mut walk = open(&file, 0, range, 6);
        assert_eq!(walk.likely_end, 5200 / 340 + 1);
        taken(&mut walk, range.1)
    });
    assert_eq!(found.len(), 9500);
    // 6, 6 and 4 up to block 16, then three times 4: the last entry is in block 27.
    assert_eq!(reads, (6, 28 * BLOCK_BYTES));
}

#[test]
fn what_comes_next_is_asked_for_as_long_as_the_range_probably_goes_on() {
    let place = Place::new();
    let (file, range) = crowded(&place);
    let (found, reads) = place.counted(|| {
        thread::scope(|scope| {
            let reader = Reader::start(scope).unwrap();
            let bytes = 12 * BLOCK_BYTES;
            let walk = SectionWalk::open(&file, &file.runs[0], range, bytes, Some(&reader));
            let mut walk = walk.unwrap().unwrap();
            let ahead = |walk: &SectionWalk| walk.ahead.as_ref().map(|(_, blocks)| *blocks);
            assert_eq!((walk.held, ahead(&walk)), ((0, 6), Some((6, 12))));
            let mut found = taken(&mut walk, 6 * 340);
            assert_eq!((walk.held, ahead(&walk)), ((6, 12), Some((12, 16))));
            found.extend(taken(&mut walk, 12 * 340));
            assert_eq!((walk.held, ahead(&walk)), ((12, 16), None));
            found.extend(taken(&mut walk, 16 * 340));
            assert_eq!((walk.held, ahead(&walk)), ((16, 20), None));
            found.extend(taken(&mut walk, range.1));
            found
        })
    });
    let mut alone = open(&file, 0, range, 6);
    assert_eq!(found, taken(&mut alone, range.1));
    assert_eq!(reads, (6, 28 * BLOCK_BYTES));
}

/// What is said of 400 entries with hashes 0, 10, 20 and so on, after a change.
fn changed(change: &dyn Fn(&mut Part), promise: &dyn Fn(&mut DataFile)) -> Result<usize> {
    let place = Place::new();
    let mut part = tombstones(1, (0..400).map(|i| 10 * i));
    change(&mut part);
    let mut file = place.file(5, &[part]);
    (file.meta.hash_min, file.meta.hash_max) = (0, 3990);
    promise(&mut file);
    let file = Arc::new(file);
    let walk = SectionWalk::open(&file, &file.runs[0], (0, u64::MAX), 1 << 20, None)?;
    let mut out = Vec::new();
    walk.unwrap().take_until(u64::MAX, &mut out)?;
    Ok(out.len())
}

#[test]
fn keys_out_of_order_or_range_and_counts_that_differ_are_refused() {
    let nothing = |_: &mut Part| ();
    let as_it_is = |_: &mut DataFile| ();
    let refused = |change: &dyn Fn(&mut Part), promise: &dyn Fn(&mut DataFile)| {
        changed(change, promise).unwrap_err().to_string()
    };
    assert_eq!(changed(&nothing, &as_it_is).unwrap(), 400);
    let set = |at: usize, hash: u64| move |part: &mut Part| part.entries[at].0 = hash;
    for (at, hash) in [(100, 985), (100, 990), (340, 3385), (340, 3390)] {
        let error = refused(&set(at, hash), &as_it_is);
        assert!(error.contains("out of order"), "{at}: {error}");
    }
    assert_eq!(changed(&set(340, 3391), &as_it_is).unwrap(), 400);
    let out_of_range = "out of the file's range";
    let least = refused(&nothing, &|file| file.meta.hash_min = 1);
    assert!(least.contains(out_of_range), "{least}");
    let most = refused(&nothing, &|file| file.meta.hash_max = 3989);
    assert!(most.contains(out_of_range), "{most}");
    for (at, interval) in [(0, 0), (200, 3), (399, 0)] {
        let time = |part: &mut Part| part.entries[at].1 = interval;
        let promise = |file: &mut DataFile| {
            (file.meta.interval_min, file.meta.interval_max) = (1, 2);
        };
        let error = refused(&time, &promise);
        assert!(error.contains(out_of_range), "{at}: {error}");
        let promise = |file: &mut DataFile| {
            (file.meta.interval_min, file.meta.interval_max) = (0, 3);
        };
        assert_eq!(changed(&time, &promise).unwrap(), 400);
    }
    for tombstones in [399, 401] {
        let error = refused(&nothing, &|file| file.meta.tombstones = tombstones);
        assert!(error.contains("another number of keys"), "{error}");
    }
}

#[test]
fn tagged_numbers_and_the_first_location_say_what_hashes_and_locations_do() {
    let place = Place::new();
    let file = even(&place);
    // From the first entry on, from the middle of a block, and from where blocks are passed over first.
    for low in [
        0,
        33 * STEP,
        5_000 * STEP + 1,
        9_999 * STEP,
        (ROWS - 1) * STEP + 1,
    ] {
        let [mut walk, mut other] = [(); 2].map(|()| open(&file, 1, (low, u64::MAX), 3));
        let mut from = low;
        for high in [low, low + STEP, low + 700 * STEP, low + 1900 * STEP] {
            let mut tagged = Vec::new();
            let first = walk.take_tagged((from, high), (2, 3), &mut tagged).unwrap();
            let expected = taken(&mut other, high);
            assert_eq!(
                first.map(|f| f.0),
                expected.first().map(|e| e.1),
                "{low:#x} {high:#x}"
            );
            let entries = tagged.iter().zip(first.map_or(0, |f| f.0)..);
            let entries = entries.map(|(tagged, to)| {
                assert_eq!(tagged & 7, 2);
                (from + (tagged >> 3), to)
            });
            assert_eq!(entries.collect::<Vec<_>>(), expected);
            assert_eq!(walk.taken(), other.taken());
            from = high + 1;
        }
    }
}

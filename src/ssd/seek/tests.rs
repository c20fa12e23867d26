//! Where a range of mix64 begins and ends, also where blocks between can't be read.

use super::*;
use crate::ssd::tests::rows::{Place, tombstones};

/// Two tables; the second one's run begins inside a block and has hashes 0, 10, 20 and so on.
const FIRST: u64 = 500;

fn file(place: &Place, entries: u64) -> DataFile {
    let parts = [
        tombstones(0, 0..FIRST),
        tombstones(1, (0..entries).map(|i| 100 + 10 * i)),
    ];
    let mut file = place.file(1, &parts);
    (file.meta.hash_min, file.meta.hash_max) = (100, 90 + 10 * entries);
    file
}

#[test]
fn a_range_is_found_to_the_entry_with_few_reads() {
    let place = Place::new();
    let entries = 20_000;
    let file = file(&place, entries);
    let run = file.runs[1];
    let (end, most) = (FIRST + entries, file.meta.hash_max);
    let found = |low, high| {
        let (found, reads) = place.counted(|| entries_within(&file, &run, &(low..=high)).unwrap());
        (found, reads.0)
    };
    // What lies at the ends, or beyond them, takes no read.
    assert_eq!(found(0, u64::MAX), (FIRST..end, 0));
    assert_eq!(found(100, most), (FIRST..end, 0));
    assert_eq!(found(0, 99), (FIRST..FIRST, 0));
    assert_eq!(found(most + 1, u64::MAX), (FIRST..FIRST, 0));
    #[expect(clippy::reversed_empty_ranges, reason = "nothing is in it")]
    let (empty, none) = (300..=200, (FIRST..FIRST, 0));
    assert_eq!(found(*empty.start(), *empty.end()), none);
    // Of hashes that are spread evenly one place takes one block of the 60, two take twice that.
    assert_eq!(found(0, 100), (FIRST..FIRST + 1, 1));
    assert_eq!(found(most, most), (end - 1..end, 1));
    assert_eq!(found(0, most - 1), (FIRST..end - 1, 1));
    let middle = 100 + 10 * 10_000;
    let at = FIRST + 10_000;
    assert_eq!(found(middle, u64::MAX), (at..end, 1));
    assert_eq!(found(middle + 1, u64::MAX).0, at + 1..end);
    assert_eq!(found(middle - 9, middle + 10).0, at..at + 2);
    assert_eq!(found(middle + 1, middle + 9).0, at + 1..at + 1);
    for i in [0, 1, 179, 180, 181, 519, 520, 521, 19_999] {
        let hash = 100 + 10 * i;
        let (range, reads) = found(hash, hash);
        assert_eq!(range, FIRST + i..FIRST + i + 1, "entry {i}");
        assert!(reads <= 4, "{reads} reads for entry {i}");
    }
}

#[test]
fn hashes_that_are_not_spread_evenly_take_few_reads_more() {
    let place = Place::new();
    let entries = 20_000_u64;
    let half = entries / 2;
    // All but the last at one end, at the other, half at each; and ever wider apart.
    let spreads: [&dyn Fn(u64) -> u64; 4] = [
        &|i| if i + 1 == entries { u64::MAX - 1 } else { i },
        &|i| {
            if i == 0 {
                0
            } else {
                u64::MAX - 1 - entries + i
            }
        },
        &|i| {
            if i < half {
                i
            } else {
                u64::MAX - 1 - entries + i
            }
        },
        &|i| i * i * i,
    ];
    for (number, spread) in (1..).zip(spreads) {
        let parts = [tombstones(0, (0..entries).map(spread))];
        let mut file = place.file(number, &parts);
        (file.meta.hash_min, file.meta.hash_max) = (spread(0), spread(entries - 1));
        for i in (0..entries)
            .step_by(97)
            .chain([1, half - 1, half, entries - 1])
        {
            let hashes = spread(i)..=u64::MAX;
            let find = || entries_within(&file, &file.runs[0], &hashes).unwrap();
            let (found, reads) = place.counted(find);
            assert_eq!(found, i..entries, "spread {number}");
            assert!(
                reads.0 <= u64::from(GUESSES_MAX) + 6,
                "{reads:?} of {i}, spread {number}"
            );
        }
    }
}

/// Where the first sound entry behind is, or the last one before, as a walk over all would say.
#[test]
fn damaged_blocks_are_within_the_range_if_they_may_be() {
    let entries = 1500;
    let blocks = (FIRST + entries).div_ceil(PER_BLOCK);
    for damaged in 0..1_u64 << blocks {
        let place = Place::new();
        let file = file(&place, entries);
        let is_damaged = |block: u64| damaged >> block & 1 == 1;
        for block in (0..blocks).filter(|b| is_damaged(*b)) {
            let at = file.keys_offset + block * BLOCK_BYTES;
            place.disk.corrupt(&Place::path(1), at + 99, 1).unwrap();
        }
        let (first, end) = (FIRST, FIRST + entries);
        let sound: Vec<(u64, u64)> = (first..end)
            .filter(|entry| !is_damaged(entry / PER_BLOCK))
            .map(|entry| (entry, 100 + 10 * (entry - FIRST)))
            .collect();
        for at in [
            0, 100, 179, 180, 181, 300, 519, 520, 521, 860, 1199, 1200, 1498,
        ] {
            for wide in [0, 1, 200, 700, 2000] {
                let (low, high) = (101 + 10 * at, 100 + 10 * (at + wide));
                let before = sound.iter().rfind(|(_, hash)| *hash < low);
                let from = before.map_or(first, |(entry, _)| entry + 1);
                let behind = sound.iter().find(|(_, hash)| *hash > high);
                let until = behind.map_or(end, |(entry, _)| *entry).max(from);
                let expected = match high < low {
                    true => first..first,
                    false => from..until,
                };
                let found = entries_within(&file, &file.runs[1], &(low..=high)).unwrap();
                assert_eq!(found, expected, "blocks {damaged:b}, {low}..={high}");
            }
        }
    }
}

#[test]
fn a_block_with_fewer_keys_than_the_footer_says_and_a_read_that_fails_are_errors() {
    let place = Place::new();
    let mut file = file(&place, 1000);
    let (run, range) = (file.runs[1], 7000..=7000);
    let last = place.reads();
    assert!(entries_within(&file, &run, &range).is_ok() && place.reads() > last);
    let next = place.disk.calls();
    place
        .disk
        .fail_at(next, crate::io::sim::Fault::Error(5), false);
    let error = entries_within(&file, &run, &range).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    file.runs[1].entries += 1;
    let short = entries_within(&file, &file.runs[1], &(10_100..=10_100));
    file.meta.hash_max = 20_000;
    let told = entries_within(&file, &file.runs[1], &(10_101..=u64::MAX));
    let error = told.unwrap_err().to_string();
    assert!(error.contains("fewer keys than the footer"), "{error}");
    assert_eq!(short.unwrap(), FIRST..FIRST);
}

//! What scans, cursors and merges hand out, how much they read for it, and what they refuse.

use super::*;
use crate::FileNumber;
use crate::ssd::tests::rows::{Part, Place, row, rows, tombstones};

/// Hashes 0, 10, 20 and so on.
fn tens(n: u64) -> impl Iterator<Item = u64> {
    (0..n).map(|i| 10 * i)
}

/// Each step of a scan: number of its first entry, and hashes.
fn steps(scan: &mut KeyScan) -> Vec<(u64, Vec<u64>)> {
    let mut steps = Vec::new();
    while scan.step().unwrap() {
        assert_eq!(scan.keys.len(), scan.intervals.len());
        let hashes = scan.keys.iter().map(|key| mix64(*key)).collect();
        steps.push((scan.first, hashes));
    }
    assert!(scan.keys.is_empty() && !scan.step().unwrap());
    steps
}

#[test]
fn a_scan_hands_out_the_entries_asked_for_a_window_at_a_time() {
    let place = Place::new();
    let file = place.file(1, &[tombstones(0, tens(3000))]);
    let hashes = |of: std::ops::Range<u64>| -> Vec<u64> { of.map(|i| 10 * i).collect() };
    let scanned = |first, entries, window| {
        place.counted(|| steps(&mut KeyScan::new(&file, first, entries, window).unwrap()))
    };
    let (found, reads) = scanned(100, 800, 8192);
    assert_eq!(found, [(100, hashes(100..680)), (680, hashes(680..900))]);
    assert_eq!(reads, (2, 3 * 4096));
    let (found, reads) = scanned(700, 341, 4096);
    assert_eq!(
        found,
        [(700, hashes(700..1020)), (1020, hashes(1020..1041))]
    );
    assert_eq!(reads, (2, 2 * 4096));
    let (found, reads) = scanned(680, 340, 1 << 20);
    assert_eq!((found, reads), (vec![(680, hashes(680..1020))], (1, 4096)));
    let (found, reads) = scanned(0, 3000, 3 * 4096);
    assert_eq!(found.len(), 3);
    assert_eq!(found[2], (2040, hashes(2040..3000)));
    assert_eq!(reads, (3, 9 * 4096));
    assert_eq!(scanned(5, 0, 4096), (Vec::new(), (0, 0)));
}

#[test]
fn a_key_block_with_fewer_keys_than_the_footer_says_is_refused_before_any_is_handed_out() {
    let place = Place::new();
    let file = place.file(1, &[tombstones(0, tens(370))]);
    let refused = |first, entries| {
        let error = KeyScan::new(&file, first, entries, 8192).unwrap().step();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("fewer keys than the footer"), "{error}");
    };
    refused(0, 371);
    refused(0, 600);
    refused(341, 30);
    refused(370, 1);
    refused(500, 1);
    let mut whole = KeyScan::new(&file, 0, 370, 8192).unwrap();
    assert_eq!(steps(&mut whole).len(), 1);
}

/// Entries of a scan over 400 with hashes 0, 10, 20 and so on, after a change.
fn changed(change: &dyn Fn(&mut Part), promise: &dyn Fn(&mut DataFile)) -> Result<usize> {
    let place = Place::new();
    let mut part = tombstones(1, tens(400));
    change(&mut part);
    let mut file = place.file(5, &[part]);
    (file.meta.hash_min, file.meta.hash_max) = (0, 3990);
    promise(&mut file);
    let mut scan = KeyScan::new(&file, 0, 400, 4096)?;
    let mut entries = 0;
    while scan.step()? {
        entries += scan.keys.len();
    }
    Ok(entries)
}

#[test]
fn keys_out_of_order_and_out_of_the_range_of_the_file_are_refused() {
    let nothing = |_: &mut Part| ();
    let as_it_is = |_: &mut DataFile| ();
    let refused = |change: &dyn Fn(&mut Part), promise: &dyn Fn(&mut DataFile)| {
        let error = changed(change, promise).unwrap_err().to_string();
        assert!(error.contains("out of order or out of"), "{error}");
    };
    assert_eq!(changed(&nothing, &as_it_is).unwrap(), 400);
    let set = |at: usize, hash: u64| move |part: &mut Part| part.entries[at].0 = hash;
    for (at, hash) in [(100, 985), (100, 990), (340, 3385), (340, 3390)] {
        refused(&set(at, hash), &as_it_is);
    }
    assert_eq!(changed(&set(340, 3391), &as_it_is).unwrap(), 400);
    refused(&nothing, &|file| file.meta.hash_min = 1);
    refused(&nothing, &|file| file.meta.hash_max = 3989);
    for (at, interval) in [(0, 0), (200, 3), (399, 0)] {
        let time = |part: &mut Part| part.entries[at].1 = interval;
        refused(&time, &|file| {
            (file.meta.interval_min, file.meta.interval_max) = (1, 2);
        });
        let promise = |file: &mut DataFile| {
            (file.meta.interval_min, file.meta.interval_max) = (0, 3);
        };
        assert_eq!(changed(&time, &promise).unwrap(), 400);
    }
}

/// 50 rows of one f32, then 700 of three: the run begins inside a block, at entry 50.
fn two_runs(place: &Place) -> Arc<DataFile> {
    place.shared(7, &[rows(0, 1, tens(50)), rows(1, 3, tens(700))])
}

#[test]
fn a_cursor_walks_its_run_and_reads_each_row_from_few_windows() {
    let place = Place::new();
    let file = two_runs(&place);
    let mut cursor = RunCursor::new(&file, 1, 0).unwrap();
    let (mut reads, mut bytes) = (0, 0);
    for (i, hash) in (50..).zip(tens(700)) {
        let entry = Entry {
            hash,
            key: crate::units::unmix64(hash),
            interval: 1,
            number: i,
        };
        assert_eq!(cursor.entry(), Some(entry));
        let mut found = [0.0; 3];
        let (read, took) = place.counted(|| cursor.read_row(&mut found));
        read.unwrap();
        assert_eq!(found[..], row(7, hash, 3)[..]);
        (reads, bytes) = (reads + took.0, bytes + took.1);
        cursor.advance().unwrap();
    }
    assert_eq!(cursor.entry(), None);
    // Records from byte 5296 to 27 696 by windows of three blocks; the last is not as long.
    assert_eq!((reads, bytes), (3, 12_288 + 12_288 + 8192));
    assert_eq!((cursor.window_offset, cursor.window_filled), (20_480, 8192));
}

#[test]
fn windows_hold_two_records_and_no_more_than_the_run() {
    let place = Place::new();
    let file = two_runs(&place);
    let windows = |bytes| {
        let cursor = RunCursor::new(&file, 1, bytes).unwrap();
        (cursor.window_bytes, cursor.scan.window.len())
    };
    assert_eq!(windows(0), (2 * 32 + 8192, 4096));
    assert_eq!(windows(20_000), (20_000, 8192));
    assert_eq!(windows(40_000), (700 * 32 + 8192, 12_288));
    assert_eq!(windows(1 << 30), (700 * 32 + 8192, 4 * 4096));
    let few = RunCursor::new(&file, 0, 1 << 30).unwrap();
    assert_eq!(few.window_bytes, 50 * 24 + 8192);
    let wide = place.shared(8, &[rows(0, 4092, [1])]);
    let wide = RunCursor::new(&wide, 0, 1 << 30).unwrap();
    assert_eq!(wide.window_bytes, 2 * 16_384 + 8192);
}

#[test]
fn the_key_blocks_of_a_merge_take_64_mib_together() {
    const MIB: u64 = 1 << 20;
    assert_eq!(keys_window_bytes(0), 2 * MIB);
    assert_eq!(keys_window_bytes(128), 2 * MIB);
    assert_eq!(keys_window_bytes(256), MIB);
    assert_eq!(keys_window_bytes(1000), (64 * MIB / 1000) * 4);
    assert_eq!(keys_window_bytes(4096), 64 << 10);
    assert_eq!(keys_window_bytes(1_000_000), 64 << 10);
}

fn at(interval: u32, part: Part) -> Part {
    let entries = part.entries.iter().map(|(hash, _)| (*hash, interval));
    Part {
        entries: entries.collect(),
        ..part
    }
}

/// File, hash and kind of each.
type Copies = Vec<(u64, u64, RunKind)>;

/// The newest copies, and what contradicted one.
fn newest(merge: Merge) -> Result<(Copies, Contradicting)> {
    let mut found = Vec::new();
    let noted = merge.each_newest(&mut |file, entry, kind| {
        found.push((file.meta.number.0, entry.hash, kind));
    })?;
    Ok((found, noted))
}

#[test]
fn of_several_copies_of_a_key_that_of_the_greatest_rank_comes_out() {
    use RunKind::{Rows, Tombstones};
    let place = Place::new();
    let files = [
        place.shared(1, &[rows(0, 1, [10, 20, 30, 40]), rows(5, 1, [15])]),
        place.shared(
            3,
            &[at(3, rows(0, 1, [20, 30])), at(3, tombstones(0, [25]))],
        ),
        place.shared(2, &[at(2, rows(0, 1, [5, 20])), at(2, tombstones(0, [40]))]),
    ];
    let merge = |table| Merge::new(&files, table, 4096).unwrap();
    let (found, noted) = newest(merge(0)).unwrap();
    let expected = [
        (2, 5, Rows),
        (1, 10, Rows),
        (3, 20, Rows),
        (3, 25, Tombstones),
        (3, 30, Rows),
        (2, 40, Tombstones),
    ];
    assert_eq!(found, expected);
    assert_eq!((noted.copies, noted.files.len()), (0, 0));
    let (found, noted) = newest(merge(0).by_rank()).unwrap();
    assert_eq!((&found[..], noted.copies), (&expected[..], 0));
    assert_eq!(newest(merge(5)).unwrap().0, [(1, 15, Rows)]);
    assert_eq!(newest(merge(4)).unwrap().0, []);
    let some = Merge::within(&files, 0, &(10..=25), 0, 4096).unwrap();
    assert_eq!(newest(some).unwrap().0, expected[1..4]);

    // The same one until the merge steps on.
    let mut merge = merge(0);
    for (_, hash, _) in expected {
        let index = merge.newest().unwrap().unwrap();
        assert_eq!(merge.newest().unwrap(), Some(index));
        assert_eq!(merge.cursor(index).entry().unwrap().hash, hash);
        merge.step().unwrap();
    }
    assert_eq!(merge.newest().unwrap(), None);
}

#[test]
fn copies_that_contradict_each_other_are_refused_or_noted() {
    let place = Place::new();
    let of_rank = |number, rank, interval, hashes: &[u64]| {
        let part = at(interval, rows(0, 1, hashes.iter().copied()));
        let mut file = place.file(number, &[part]);
        file.meta.rank = rank;
        Arc::new(file)
    };
    let told = |files: &[Arc<DataFile>]| {
        let refused = Merge::new(files, 0, 4096).and_then(newest).unwrap_err();
        let merge = Merge::new(files, 0, 4096).unwrap().by_rank();
        let (found, noted) = newest(merge).unwrap();
        let found: Vec<(u64, u64)> = found.iter().map(|(file, hash, _)| (*file, *hash)).collect();
        let noted_files: Vec<u64> = noted.files.into_iter().map(|file| file.0).collect();
        (refused.to_string(), found, noted_files, noted.copies)
    };
    // An older copy of a later interval, of two keys.
    let files = [
        of_rank(1, 1, 5, &[10, 20, 30]),
        of_rank(2, 2, 4, &[10, 20]),
        of_rank(3, 3, 5, &[20]),
    ];
    let (refused, found, files_noted, copies) = told(&files);
    assert!(refused.contains("rank and interval of key"), "{refused}");
    assert_eq!(found, [(2, 10), (3, 20), (1, 30)]);
    assert_eq!((files_noted, copies), (vec![1], 1));
    // Two copies of one rank, whatever their intervals; a third one of a lower rank is none.
    let files = [
        of_rank(4, 7, 5, &[10, 20]),
        of_rank(5, 7, 5, &[10, 20]),
        of_rank(6, 6, 5, &[10, 20]),
    ];
    let (refused, found, files_noted, copies) = told(&files);
    assert!(refused.contains("two copies of one rank"), "{refused}");
    assert_eq!(found, [(4, 10), (4, 20)]);
    assert_eq!((files_noted, copies), (vec![5], 2));
    let mut sum = Contradicting {
        files: [FileNumber(5)].into(),
        copies: 2,
    };
    let files = [5, 9].map(FileNumber).into();
    sum.add(Contradicting { files, copies: 3 });
    assert_eq!((sum.copies, sum.files), (5, [5, 9].map(FileNumber).into()));
}

//! Rows that are read ahead are those that are read when they are needed.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::*;
use crate::io::sim::Fault;
use crate::ssd::tests::rows::{Place, row, rows, tombstones};

const WIDTH: usize = 30;
const WINDOW_BYTES: u64 = 16 << 10;

/// The newest copies in a range with their rows, read ahead or not.
fn walk(
    place: &Place,
    files: &[Arc<DataFile>],
    hashes: RangeInclusive<u64>,
    is_ahead: bool,
) -> Result<Vec<(u64, Vec<f32>)>> {
    let mut merge = Merge::within(files, 0, &hashes, 0, WINDOW_BYTES)?;
    if is_ahead {
        merge.read_ahead(&place.disk, files);
    }
    let mut found = Vec::new();
    let mut values = vec![0.0; WIDTH];
    while let Some(index) = merge.newest()? {
        let cursor = merge.cursor(index);
        let (kind, hash) = (cursor.run.kind, cursor.entry().map(|entry| entry.hash));
        if kind == RunKind::Rows {
            merge.read_row(index, &mut values)?;
            found.extend(hash.map(|hash| (hash, values.clone())));
        }
        merge.step()?;
    }
    Ok(found)
}

/// Long runs, a short one, one whose rows are all newer elsewhere for many windows, and tombstones.
fn files(place: &Place) -> Vec<Arc<DataFile>> {
    let tens = |n: u64, from: u64| (0..n).map(move |i| from + 10 * i);
    vec![
        place.shared(1, &[rows(0, WIDTH, tens(3000, 0)), rows(1, WIDTH, [7])]),
        place.shared(2, &[rows(0, WIDTH, tens(2000, 3))]),
        place.shared(
            3,
            &[rows(0, WIDTH, tens(1000, 5000)), tombstones(0, tens(9, 6))],
        ),
        place.shared(4, &[rows(0, WIDTH, [1, 29_999])]),
    ]
}

#[test]
fn rows_are_the_same_and_read_once() {
    let place = Place::new();
    let files = files(&place);
    for hashes in [
        0..=u64::MAX,
        4000..=17_000,
        15_000..=15_000,
        40_000..=50_000,
    ] {
        let (expected, plain) =
            place.counted(|| walk(&place, &files, hashes.clone(), false).unwrap());
        let (found, ahead) = place.counted(|| walk(&place, &files, hashes.clone(), true).unwrap());
        assert_eq!(found, expected, "{hashes:?}");
        // One that was asked for and not needed, for each run.
        let most = plain.1 + 3 * (WINDOW_BYTES + 8192);
        assert!(ahead.1 <= most, "{ahead:?} of {plain:?} in {hashes:?}");
    }
    let found = walk(&place, &files, 0..=u64::MAX, true).unwrap();
    assert_eq!(found.len(), 3000 + 2000 + 2);
    for (hash, values) in found {
        let number = match hash {
            1 | 29_999 => 4,
            _ if hash % 10 == 3 => 2,
            5000..15_000 => 3,
            _ => 1,
        };
        assert_eq!(values, row(number, hash, WIDTH), "hash {hash}");
    }
}

#[test]
fn windows_come_from_the_files_that_were_given_and_are_counted() {
    let place = Place::new();
    let files = files(&place);
    // The same elsewhere, where it is seen what is read of them.
    let other = Place::new();
    let views: Vec<Arc<DataFile>> = self::files(&other);
    let mut values = vec![0.0; WIDTH];
    let (before, (_, of_views)) = other.counted(|| {
        let mut merge = Merge::within(&views, 0, &(0..=u64::MAX), 0, WINDOW_BYTES).unwrap();
        merge.read_ahead(&place.disk, &files);
        assert_eq!(merge.bytes_ahead(), 0);
        while let Some(index) = merge.newest().unwrap() {
            if merge.cursor(index).run.kind == RunKind::Rows {
                merge.read_row(index, &mut values).unwrap();
            }
            merge.step().unwrap();
        }
        merge.bytes_ahead()
    });
    // Of the views only key blocks: 6 011 entries. Of the files rows of 120 bytes and more, 5 002 at least.
    assert!(of_views < 200_000, "{of_views} bytes");
    assert!((4000 * 120..6000 * 200).contains(&before), "{before} bytes");
}

#[test]
fn a_run_without_a_second_window_needs_no_queue() {
    let place = Place::new();
    let files = files(&place);
    let is_ahead = |hashes: RangeInclusive<u64>, files: &[Arc<DataFile>]| {
        let mut merge = Merge::within(files, 0, &hashes, 0, WINDOW_BYTES).unwrap();
        ReadAhead::begin(&place.disk, files, &mut merge.cursors).is_some()
    };
    assert!(is_ahead(0..=u64::MAX, &files));
    assert!(!is_ahead(0..=300, &files));
    assert!(!is_ahead(0..=u64::MAX, &files[3..]));
    assert!(!is_ahead(0..=u64::MAX, &[]));
    // Where entries of earlier intervals are left out, so are their rows.
    let mut merge = Merge::within(&files, 0, &(0..=u64::MAX), 1, WINDOW_BYTES).unwrap();
    assert!(ReadAhead::begin(&place.disk, &files, &mut merge.cursors).is_none());
}

#[test]
fn whichever_read_fails_or_ends_early_the_walk_says_so() {
    let place = Place::new();
    let files = files(&place);
    let begin = place.disk.calls();
    let expected = walk(&place, &files, 0..=u64::MAX, true).unwrap();
    let calls = place.disk.calls() - begin;
    for call in 0..calls {
        for fault in [Fault::Error(5), Fault::Short] {
            place.disk.fail_at(place.disk.calls() + call, fault, false);
            let found = walk(&place, &files, 0..=u64::MAX, true);
            place.disk.clear_faults();
            match found {
                Ok(found) => assert_eq!(found, expected, "call {call}"),
                Err(error) => assert!(
                    matches!(error, Error::Io { .. } | Error::Corrupt { .. }),
                    "call {call}: {error}"
                ),
            }
        }
    }
    // Rows in the middle of the second file.
    place.disk.corrupt(&Place::path(2), 100_000, 1).unwrap();
    let error = walk(&place, &files, 0..=u64::MAX, true).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { path, .. } if *path == Place::path(2)),
        "{error}"
    );
}

//! What is told of lost copies, without a store.

use super::*;
use crate::options::TableDescriptor;

#[test]
fn entries_are_found_in_ranges() {
    let ranges = vec![0..3, 5..6, 9..12];
    assert!(holds(&ranges, 2) && holds(&ranges, 5) && holds(&ranges, 11));
    assert!(!holds(&ranges, 3) && !holds(&ranges, 8) && !holds(&ranges, 12));
    assert_eq!(entries_of(&ranges), 7);
}

#[test]
fn each_lost_key_is_counted_by_what_it_has_now() {
    let mut counts = Counts::default();
    for (now, times) in [(Fate::Gone, 2), (Fate::Older, 3), (Fate::Back, 5)] {
        (0..times).for_each(|_| counts.add(now));
    }
    let right = Counts {
        gone: 2,
        older: 3,
        back: 5,
    };
    assert_eq!(counts, right);
    assert_eq!(counts.sum(), 10);
}

/// A row, a removed key; what is left of the key: nothing, a row or a mark of its removal, older, of
/// the same rank, newer.
#[test]
fn what_a_key_has_now_follows_from_what_is_left_of_it() {
    let copy = |tombstone| Copy {
        key: 1,
        file: FileNumber(2),
        rank: 5,
        tombstone,
    };
    let (row, removed) = (copy(false), copy(true));
    assert_eq!(fate(row, None), Some(Fate::Gone));
    assert_eq!(fate(removed, None), None);
    for older in [4, 5] {
        assert_eq!(fate(row, Some((older, false))), Some(Fate::Older));
        assert_eq!(fate(row, Some((older, true))), Some(Fate::Gone));
        assert_eq!(fate(removed, Some((older, false))), Some(Fate::Back));
        assert_eq!(fate(removed, Some((older, true))), None);
    }
    for removed_since in [false, true] {
        assert_eq!(fate(row, Some((6, removed_since))), None);
        assert_eq!(fate(removed, Some((6, removed_since))), None);
    }
}

/// Tells what was lost where nothing is left.
fn told(losses: Losses) -> (Vec<(String, LostRow)>, Counts, u64) {
    let tables = [table("users", false), table("items", false)];
    told_of(losses, &tables)
}

fn table(name: &str, is_dropped: bool) -> TableState {
    TableState {
        descriptor: TableDescriptor::new(name, 1),
        is_dropped,
    }
}

fn told_of(losses: Losses, tables: &[TableState]) -> (Vec<(String, LostRow)>, Counts, u64) {
    let left = Survivors {
        files: &[],
        tables: tables.len(),
    };
    let mut rows = Vec::new();
    let mut tell = |name: &str, row| {
        rows.push((String::from(name), row));
        Ok(())
    };
    let (counts, nameless) = losses.settle(Vec::new(), &left, tables, &mut tell).unwrap();
    (rows, counts, nameless)
}

#[test]
fn a_lost_key_is_told_once_with_the_file_of_its_newest_copy() {
    let mut losses = Losses::default();
    assert!(losses.is_empty());
    losses.add(FileNumber(30), 7, vec![(1, 5), (0, 8)], Vec::new());
    losses.add(FileNumber(10), 9, vec![(1, 5), (1, 6)], Vec::new());
    losses.add(FileNumber(20), 8, vec![(1, 5), (0, 9)], vec![4..6, 8..11]);
    losses.add(FileNumber(21), 8, Vec::new(), vec![0..1, 7..8]);
    assert!(!losses.is_empty());
    let (rows, counts, nameless) = told(losses);
    let row = |table: u32, key, file| {
        let name = ["users", "items"][table as usize];
        let now = Fate::Gone;
        let row = LostRow {
            table,
            key,
            file,
            now,
        };
        (String::from(name), row)
    };
    let mut right = vec![
        row(0, 8, FileNumber(30)),
        row(0, 9, FileNumber(20)),
        row(1, 5, FileNumber(10)),
        row(1, 6, FileNumber(10)),
    ];
    right.sort_by_key(|(_, row)| (row.table, mix64(row.key)));
    assert_eq!(rows, right);
    assert_eq!((counts.gone, counts.sum()), (4, 4));
    assert_eq!(nameless, 5 + 2);
}

#[test]
fn lost_entries_without_a_name_are_a_loss() {
    let mut losses = Losses::default();
    losses.add(FileNumber(1), 1, Vec::new(), Vec::new());
    assert!(losses.is_empty());
    losses.add(FileNumber(2), 2, Vec::new(), vec![3..4, 7..9]);
    assert!(!losses.is_empty());
    let (rows, counts, nameless) = told(losses);
    assert!(rows.is_empty());
    assert_eq!((counts, nameless), (Counts::default(), 3));
    let mut losses = Losses::default();
    losses.add(FileNumber(1), 1, vec![(0, 1)], Vec::new());
    assert!(!losses.is_empty());
}

#[test]
fn rows_of_a_dropped_table_are_no_loss() {
    let mut losses = Losses::default();
    losses.add(FileNumber(1), 1, vec![(0, 5), (1, 6), (2, 7)], Vec::new());
    let tables = [table("a", false), table("b", true), table("c", false)];
    let (rows, counts, _) = told_of(losses, &tables);
    let keys: Vec<u64> = rows.iter().map(|(_, row)| row.key).collect();
    assert_eq!((keys, counts.sum()), (vec![5, 7], 2));
}

#[test]
fn whoever_is_told_may_stop_it() {
    let mut losses = Losses::default();
    losses.add(FileNumber(1), 1, vec![(0, 1), (0, 2)], Vec::new());
    let left = Survivors {
        files: &[],
        tables: 1,
    };
    let mut calls = 0;
    let mut tell = |_: &str, _| {
        calls += 1;
        Err(crate::Error::Cancelled)
    };
    let ended = losses.settle(Vec::new(), &left, &[table("t", false)], &mut tell);
    assert!(matches!(ended, Err(crate::Error::Cancelled)));
    assert_eq!(calls, 1);
}

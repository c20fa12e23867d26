//! Entries of a file with several runs.

use super::*;
use crate::ssd::tests::rows::{Place, rows, tombstones};
use crate::units::{FileSlot, mix64};

#[test]
fn all_entries_of_a_file_come_run_by_run_with_their_locations() {
    let place = Place::new();
    let parts = [
        rows(2, 1, 0..400),
        tombstones(2, 5..8),
        tombstones(4, [9]),
        rows(6, 2, 0..20),
    ];
    let file = place.shared(11, &parts);
    let mut scan = EntryScan::new(&file);
    let mut batch = EntryBatch::default();
    let mut entry = 0;
    for part in &parts {
        assert!(scan.next(&mut batch).unwrap());
        assert_eq!(batch.table, part.table);
        let hashes: Vec<u64> = batch.keys.iter().map(|key| mix64(*key)).collect();
        assert!(hashes.iter().eq(part.entries.iter().map(|(hash, _)| hash)));
        assert_eq!(batch.locations.len(), hashes.len());
        for location in &batch.locations {
            assert_eq!(
                *location,
                Location::new(FileSlot::new(11), part.width == 0, entry)
            );
            entry += 1;
        }
    }
    assert!(!scan.next(&mut batch).unwrap() && batch.keys.is_empty());
    assert!(batch.locations.is_empty() && !scan.next(&mut batch).unwrap());
}

//! A snapshot that is being written while somebody else needs its room.

use super::*;
use crate::ssd::tests::tier::{checkpoint, flush, made};

/// Nothing is written while entries are stepped over, and only a write looked whether somebody waits:
/// a flush on a full disk stood still for a pass over the old part.
#[test]
fn whoever_steps_over_entries_of_files_that_are_gone_stops_where_its_room_is_needed() {
    let (_disk, mut ssd) = made(1);
    ssd.thresholds.snapshot_young_bytes = 0;
    flush(&ssd, 0, 0..5000);
    checkpoint(&ssd, 1, 1);
    ssd.refresh_snapshot(&ssd.capture(), 1, None);
    let [part] = ssd.snapshot_in_force()[..] else {
        unreachable!("one part")
    };
    let peek = || {
        let mut old = Old {
            ssd: &ssd,
            scan: Some(ssd.open_snapshot_part(part).unwrap()),
            at: 0,
            stay: vec![None],
        };
        old.peek(0)
    };
    assert!(matches!(peek(), Ok(None)));
    ssd.snapshots.break_off();
    assert!(matches!(peek(), Err(Error::Cancelled)));
}

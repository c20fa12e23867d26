//! What does `Footer::decode` make of any bytes, with a wrong and with a right checksum? And what
//! does `check_entries` make of any keys? The first byte is the number of keys, the second says by how
//! many blocks of sections the footer is behind its key blocks; then keys, then the footer.
//!
//! Promise: a value or an error, never a panic; what is taken is written again to the same bytes;
//! every record of a footer that is taken lies between header and key blocks.

#![no_main]

use hps::format::footer::Footer;
use hps::format::param_file::{PARAM_HEADER_BYTES, key_blocks};
use hps::format::{BLOCK_BYTES, Kind};
use hps_fuzz::{Input, ROWS, fix, identity, is_of_newest_version, padded, u64_at};
use libfuzzer_sys::fuzz_target;

/// Where a footer keeps `entries` and `keys_offset`.
const ENTRIES_AT: usize = 24;
const KEYS_OFFSET_AT: usize = 48;

fn decode(bytes: &[u8], offset: u64, keys: &[u64]) {
    let id = identity(ROWS);
    let Ok((footer, sum)) = Footer::decode(bytes, &id, offset) else {
        return;
    };
    if is_of_newest_version(bytes) {
        let again = footer.encode(&id, offset);
        assert_eq!(again, (bytes.to_vec(), sum), "written again");
    }
    let mut entries = 0;
    for run in &footer.runs {
        assert_eq!(run.first_entry, entries, "entries follow each other");
        entries += run.entries;
        let stride = u64::from(run.stride);
        for entry in [run.first_entry, entries - 1] {
            let inside = run.record_offset(entry).is_none_or(|at| {
                at >= PARAM_HEADER_BYTES as u64 && at + stride <= footer.keys_offset
            });
            assert!(inside, "a record outside of the rows");
        }
        assert_eq!(run.record_offset(entries), None, "a record after the run");
    }
    assert_eq!(entries, footer.entries);
    // Whatever the key blocks hold: said, not believed.
    let intervals = vec![footer.interval_min; keys.len()];
    if footer.check_entries(keys, &intervals).is_ok() {
        assert_eq!(keys.len() as u64, footer.entries);
    }
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let count = input.below(64);
    let moved = input.number(1) & 7;
    let keys: Vec<u64> = (0..count).map(|_| input.number(8)).collect();
    let file = input.take_all();
    let blocks = key_blocks(u64_at(file, ENTRIES_AT)).wrapping_mul(BLOCK_BYTES as u64);
    let offset = u64_at(file, KEYS_OFFSET_AT)
        .wrapping_add(blocks)
        .wrapping_add(moved * BLOCK_BYTES as u64);
    decode(file, offset, &keys);
    let mut bytes = padded(file, file.len().next_multiple_of(BLOCK_BYTES));
    fix(&mut bytes, &identity(ROWS), Kind::Footer, offset);
    decode(&bytes, offset, &keys);
});

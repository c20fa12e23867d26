//! What do the decoders of a part of an index snapshot make of any blocks? The input is a list of pieces (a
//! length of two bytes, then so many bytes); each becomes a block, padded with zeros. It is read as
//! it is, and with right checksums and a right digest.
//!
//! Promise: a value or an error, never a panic; a part that is taken is written again to the same
//! bytes (one of version 1 too), its entries rise by (table, mix64(key)), and each is of a file that
//! the part covers.

#![no_main]

use hps::format::index_snapshot::{
    COVERED_PER_BLOCK, SnapshotEntry, SnapshotFooter, decode_covered_block, decode_entry_block,
    decode_snapshot_header, encode_covered_block, encode_entry_block, encode_image_header,
    encode_part_header, encode_snapshot_footer,
};
use hps::format::{BLOCK_BYTES, Decoded};
use hps::{CheckpointId, FileNumber, mix64};
use hps_fuzz::{Input, SNAPSHOT, forge, identity, is_of_newest_version, padded};
use libfuzzer_sys::fuzz_target;

/// Most blocks of an input.
const BLOCKS_MAX: usize = 12;

type Snapshot = (
    CheckpointId,
    Option<u32>,
    Vec<FileNumber>,
    Vec<(u32, Vec<SnapshotEntry>)>,
);

/// Reads an index snapshot as the engine does: header, files, entries, footer.
fn read(file: &[u8]) -> Decoded<Option<Snapshot>> {
    let id = identity(SNAPSHOT);
    let mut blocks = file.chunks_exact(BLOCK_BYTES);
    let (Some(header), Some(last)) = (blocks.next(), blocks.next_back()) else {
        return Ok(None);
    };
    let footer_offset = (file.len() - BLOCK_BYTES) as u64;
    let footer = SnapshotFooter::decode(last, &id, footer_offset);
    let (checkpoint, mut tally) = decode_snapshot_header(header, &id)?;
    let (mut numbers, mut tables) = (Vec::new(), Vec::new());
    for block in blocks {
        if tally.covered_left() > 0 {
            decode_covered_block(block, &id, &mut tally, &mut numbers)?;
        } else {
            let mut entries = Vec::new();
            let table = decode_entry_block(block, &id, &mut tally, &mut entries)?;
            tables.push((table, entries));
        }
    }
    footer?.check(&tally)?;
    Ok(Some((checkpoint, tally.directory(), numbers, tables)))
}

fn write((checkpoint, directory, numbers, tables): &Snapshot) -> Vec<u8> {
    let id = identity(SNAPSHOT);
    let covered = u32::try_from(numbers.len()).expect("few files");
    let (header, mut tally) = match directory {
        Some(directory) => encode_part_header(&id, *checkpoint, *directory, covered),
        None => encode_image_header(&id, *checkpoint, covered),
    };
    let mut out = header.to_vec();
    let mut block = vec![0xee; BLOCK_BYTES];
    for numbers in numbers.chunks(COVERED_PER_BLOCK) {
        encode_covered_block(&mut block, numbers, &id, &mut tally);
        out.extend_from_slice(&block);
    }
    for (table, entries) in tables {
        encode_entry_block(&mut block, *table, entries, &id, &mut tally);
        out.extend_from_slice(&block);
    }
    out.extend_from_slice(&encode_snapshot_footer(&id, &tally).0);
    out
}

fn check(file: &[u8]) {
    let Ok(Some(snapshot)) = read(file) else {
        return;
    };
    let again = write(&snapshot);
    let ends = [file, &file[file.len() - BLOCK_BYTES..]];
    if ends.into_iter().all(is_of_newest_version) {
        assert_eq!(again, file, "written again");
    }
    assert_eq!(again.len(), file.len(), "written again");
    let (_, _, numbers, tables) = &snapshot;
    let entries = tables
        .iter()
        .flat_map(|(table, entries)| entries.iter().map(|entry| (*table, mix64(entry.key))));
    assert!(entries.is_sorted_by(|a, b| a < b), "entries rise");
    let mut all = tables.iter().flat_map(|(_, entries)| entries);
    assert!(all.all(|entry| (entry.ordinal as usize) < numbers.len()));
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input::new(input);
    let mut file = Vec::new();
    while !input.is_empty() && file.len() < BLOCKS_MAX * BLOCK_BYTES {
        let length = usize::try_from(input.number(2)).unwrap_or(0);
        file.extend_from_slice(&padded(input.take(length.min(BLOCK_BYTES)), BLOCK_BYTES));
    }
    check(&file);
    forge::snapshot(&mut file, &identity(SNAPSHOT));
    check(&file);
});

//! Is each single condition of an index snapshot looked at? As in `rules`.

use super::checksum::Kind;
use super::index_snapshot::{self, SnapshotEntry, SnapshotFooter, covered_blocks};
use super::layout::seal;
use super::rules::{panics, with_number};
use super::samples::{self, cut, identity};
use super::{BLOCK_BYTES, DIRECTORIES_MAX};
use crate::options::TABLES_MAX;
use crate::units::{CheckpointId, FileNumber};

const BLOCK: u64 = BLOCK_BYTES as u64;

#[test]
fn every_rule_of_an_index_snapshot_header_is_checked_alone() {
    let id = identity(samples::SNAPSHOT);
    let (block, _) = index_snapshot::encode_part_header(&id, CheckpointId(2), samples::PART, 512);
    let seed = id.seed(Kind::SnapshotHeader, 0);
    let takes = |at: usize, value: u32| {
        let bytes = with_number(&block, seed, at, &value.to_le_bytes());
        index_snapshot::decode_snapshot_header(&bytes, &id).is_ok()
    };
    let (number, covered, directory) = (48, 64, 68);
    assert!(takes(number, 9) && !takes(number, 10));
    assert!(takes(covered, 1) && !takes(covered, 0));
    assert!(
        takes(covered, index_snapshot::COVERED_MAX)
            && !takes(covered, index_snapshot::COVERED_MAX + 1)
    );
    let most = u32::try_from(DIRECTORIES_MAX).unwrap();
    assert!(takes(directory, 0) && takes(directory, most - 1) && !takes(directory, most));
    assert!(panics(|| index_snapshot::encode_part_header(
        &id,
        CheckpointId(2),
        most,
        1
    )));
    assert_eq!([1, 510, 511].map(covered_blocks), [1, 1, 2]);
}

#[test]
fn every_rule_of_a_block_of_file_numbers_is_checked_alone() {
    let id = identity(samples::SNAPSHOT);
    let start = || index_snapshot::encode_part_header(&id, CheckpointId(2), samples::PART, 512).1;
    let numbers = samples::covered();
    let encode = |pieces: &[&[FileNumber]]| {
        let (mut tally, mut out) = (start(), [0; BLOCK_BYTES]);
        for piece in pieces {
            index_snapshot::encode_covered_block(&mut out, piece, &id, &mut tally);
        }
        (out, tally)
    };
    let (first, second) = numbers.split_at(index_snapshot::COVERED_PER_BLOCK);
    assert!(!panics(|| encode(&[first, second])));
    assert!(panics(|| encode(&[&first[1..]])), "not full");
    assert!(panics(|| encode(&[first, second, &[]])), "empty");
    let seed = id.seed(Kind::SnapshotBlock, BLOCK);
    let takes = |block: &[u8], at: usize, value: u32| {
        let bytes = with_number(block, seed, at, &value.to_le_bytes());
        index_snapshot::decode_covered_block(&bytes, &id, &mut start(), &mut Vec::new()).is_ok()
    };
    let (block, _) = encode(&[first]);
    assert!(takes(&block, 8, 510) && !takes(&block, 8, 511));
    assert!(!takes(&block, 12, 1), "reserved bytes");
    let mut short = block;
    short[16 + 8 * 509..].fill(0);
    assert!(!takes(&short, 8, 509), "not full");
    // All are there; another block of them holds none.
    let (_, mut tally) = encode(&[first, second]);
    let empty = with_number(
        &[0; BLOCK_BYTES],
        id.seed(Kind::SnapshotBlock, 3 * BLOCK),
        8,
        &[0],
    );
    assert!(
        index_snapshot::decode_covered_block(&empty, &id, &mut tally, &mut Vec::new()).is_err()
    );
}

#[test]
fn every_rule_of_a_block_of_entries_is_checked_alone() {
    let id = identity(samples::SNAPSHOT);
    let (table, entries) = samples::snapshot_blocks().swap_remove(2);
    let start = || index_snapshot::encode_part_header(&id, CheckpointId(2), samples::PART, 2).1;
    let listed = || {
        let (mut tally, mut out) = (start(), [0; BLOCK_BYTES]);
        index_snapshot::encode_covered_block(&mut out, &[20, 23].map(FileNumber), &id, &mut tally);
        tally
    };
    let entries: Vec<_> = entries.into_iter().take(2).collect();
    let encode = |table: u32, mut tally: index_snapshot::SnapshotTally| {
        let mut out = [0; BLOCK_BYTES];
        index_snapshot::encode_entry_block(&mut out, table, &entries, &id, &mut tally);
        (out, tally)
    };
    let (block, after) = encode(table, listed());
    assert_eq!((listed().entries(), after.entries()), (0, 2));
    assert!(panics(|| encode(table, start())), "before the files");
    let most = u32::try_from(TABLES_MAX).unwrap();
    assert!(!panics(|| encode(most - 1, listed())) && panics(|| encode(most, listed())));
    let seed = |place: u64| id.seed(Kind::SnapshotBlock, place);
    let mut found = Vec::new();
    let takes = |bytes: &[u8], found: &mut Vec<_>| -> bool {
        index_snapshot::decode_entry_block(bytes, &id, &mut listed(), found).is_ok()
    };
    assert!(takes(&block, &mut found));
    assert_eq!(found, entries);
    let early = with_number(&block, seed(BLOCK), 8, &[2]);
    assert!(
        index_snapshot::decode_entry_block(&early, &id, &mut start(), &mut found).is_err(),
        "before the files"
    );
    let empty = with_number(&[0; BLOCK_BYTES], seed(2 * BLOCK), 8, &[0]);
    assert!(!takes(&empty, &mut found), "no entries");
    // A location: entry, class, three bits that are none, tombstone, ordinal.
    let location = |bits: u64| {
        let bytes = with_number(&block, seed(2 * BLOCK), 24, &bits.to_le_bytes());
        let mut part = listed().part(0);
        let mut hashes = Vec::new();
        let by_part = part.decode(&bytes, &id, &mut hashes).is_ok();
        let mut found = Vec::new();
        assert_eq!(takes(&bytes, &mut found), by_part, "{bits:#x}");
        found.first().copied().filter(|_| by_part)
    };
    let first = |ordinal, tombstone, class, entry| {
        let key = entries[0].key;
        Some(SnapshotEntry {
            key,
            ordinal,
            tombstone,
            entry,
            class,
        })
    };
    assert_eq!(location(7), first(0, false, 0, 7));
    assert_eq!(location(15 << 32 | 7), first(0, false, 15, 7));
    assert_eq!(
        location(1 << 40 | 1 << 39 | 9 << 32 | 0xffff_ffff),
        first(1, true, 9, u32::MAX)
    );
    for bit in 36..39 {
        assert_eq!(location(1 << bit | 7), None, "bit {bit}");
    }
    assert_eq!(location(2 << 40), None, "of the third of two files");
    let greater = SnapshotEntry {
        class: index_snapshot::CLASS_MAX + 1,
        ..entries[0]
    };
    let encode_greater = || {
        let (mut tally, mut out) = (listed(), [0; BLOCK_BYTES]);
        index_snapshot::encode_entry_block(&mut out, table, &[greater], &id, &mut tally);
    };
    assert!(panics(encode_greater), "a greater class");
}

/// Version 1 had one image of all data directories, without classes.
#[test]
fn an_image_of_version_1_is_read_and_has_no_directory_and_no_classes() {
    let id = identity(samples::SNAPSHOT);
    let file = samples::whole_snapshot_file();
    let (checkpoint, numbers, blocks) = samples::read_snapshot(&file, &id).unwrap();
    assert_eq!((checkpoint, numbers), (CheckpointId(2), samples::covered()));
    let of = |blocks: Vec<(u32, Vec<SnapshotEntry>)>| blocks.into_iter().flat_map(|(_, e)| e);
    let expected = of(samples::snapshot_blocks()).map(|e| SnapshotEntry { class: 0, ..e });
    assert!(of(blocks).eq(expected));
    let header = |file: &[u8]| {
        index_snapshot::decode_snapshot_header(&file[..BLOCK_BYTES], &id)
            .unwrap()
            .1
    };
    assert_eq!(header(&file).directory(), None);
    let part = samples::snapshot_file();
    assert_eq!(header(&part).directory(), Some(samples::PART));
    // The same bytes are reserved there, and so are the bits of a class.
    let seed = id.seed(Kind::SnapshotHeader, 0);
    let placed = with_number(&file[..BLOCK_BYTES], seed, 68, &1u32.to_le_bytes());
    assert!(index_snapshot::decode_snapshot_header(&placed, &id).is_err());
    let (_, mut tally) = index_snapshot::encode_image_header(&id, CheckpointId(2), 2);
    let mut block = [0; BLOCK_BYTES];
    index_snapshot::encode_covered_block(&mut block, &[20, 23].map(FileNumber), &id, &mut tally);
    let (table, entries) = samples::snapshot_blocks().swap_remove(2);
    let plain = SnapshotEntry {
        class: 0,
        ..entries[0]
    };
    let start = tally;
    index_snapshot::encode_entry_block(&mut block, table, &[plain], &id, &mut tally);
    let place = start.next_offset();
    let takes = |class: u64| {
        let old = u64::from_le_bytes(block[24..32].try_into().unwrap());
        let bits = (old | class << 32).to_le_bytes();
        let bytes = with_number(&block, id.seed(Kind::SnapshotBlock, place), 24, &bits);
        let by_part = start.part(0).decode(&bytes, &id, &mut Vec::new()).is_ok();
        let by_tally =
            index_snapshot::decode_entry_block(&bytes, &id, &mut start.clone(), &mut Vec::new())
                .is_ok();
        assert_eq!(by_part, by_tally);
        by_part
    };
    assert!(takes(0) && !takes(1) && !takes(8));
    // A footer of another version than the header is of another file.
    let footer_offset = file.len() as u64 - BLOCK;
    let read = |bytes: &[u8]| {
        let block = cut(bytes, footer_offset, BLOCK_BYTES);
        SnapshotFooter::decode(&block, &id, footer_offset).unwrap()
    };
    assert_ne!(read(&file).version, read(&part).version);
    let (_, whole) = index_snapshot::encode_image_header(&id, CheckpointId(2), 1);
    let empty = |tally: &index_snapshot::SnapshotTally, version| {
        SnapshotFooter {
            version,
            covered: 1,
            blocks: 0,
            entries: 0,
            tombstones: 0,
            digest: 0,
            ..read(&part)
        }
        .check(tally)
    };
    assert!(empty(&whole, read(&part).version).is_err());
}

#[test]
fn every_rule_of_an_index_snapshot_footer_is_checked_alone() {
    let id = identity(samples::SNAPSHOT);
    let file = samples::snapshot_file();
    let offset = file.len() as u64 - BLOCK;
    let block = cut(&file, offset, BLOCK_BYTES);
    let seed = id.seed(Kind::SnapshotFooter, offset);
    let decode = |fields: &[(usize, u64)]| {
        let mut bytes = block.clone();
        for (at, value) in fields {
            bytes[*at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        seal(&mut bytes, seed);
        SnapshotFooter::decode(&bytes, &id, offset)
    };
    let (blocks, entries, tombstones) = (24, 32, 40);
    let footer = decode(&[]).unwrap();
    let room = (footer.blocks - 2) * 255;
    assert!(
        decode(&[(blocks, footer.blocks + 1)]).is_err(),
        "a block more"
    );
    assert!(
        decode(&[(blocks, u64::MAX)]).is_err(),
        "blocks beyond reason"
    );
    assert!(decode(&[(entries, room)]).is_ok() && decode(&[(entries, room + 1)]).is_err());
    let counts = |all: u64, removed: u64| decode(&[(entries, all), (tombstones, removed)]);
    assert!(counts(9, 9).is_ok() && counts(9, 10).is_err());
    // A tally that has seen no block, and a footer that says so.
    let (_, start) = index_snapshot::encode_part_header(&id, CheckpointId(2), samples::PART, 512);
    let unlisted = SnapshotFooter {
        blocks: 0,
        entries: 0,
        tombstones: 0,
        digest: u64::from_le_bytes(file[..8].try_into().unwrap()),
        ..footer
    };
    assert!(unlisted.check(&start).is_err(), "files that are not listed");
    assert!(panics(|| index_snapshot::encode_snapshot_footer(
        &id, &start
    )));
    let (_, mut tally) = index_snapshot::decode_snapshot_header(&file[..BLOCK_BYTES], &id).unwrap();
    let mut numbers = Vec::new();
    for at in [BLOCK_BYTES, 2 * BLOCK_BYTES] {
        let bytes = &file[at..at + BLOCK_BYTES];
        index_snapshot::decode_covered_block(bytes, &id, &mut tally, &mut numbers).unwrap();
    }
    assert!(footer.check(&tally).is_err(), "blocks that are not read");
}

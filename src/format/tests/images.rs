//! Is each single condition of an image looked at? As in `rules`.

use super::BLOCK_BYTES;
use super::checksum::Kind;
use super::image::{self, ImageFooter, covered_blocks};
use super::layout::seal;
use super::rules::{panics, with_number};
use super::samples::{self, cut, identity};
use crate::options::TABLES_MAX;
use crate::units::CheckpointId;

const BLOCK: u64 = BLOCK_BYTES as u64;

#[test]
fn every_rule_of_an_image_header_is_checked_alone() {
    let id = identity(samples::IMAGE);
    let (block, _) = image::encode_image_header(&id, CheckpointId(2), 512);
    let seed = id.seed(Kind::ImageHeader, 0);
    let takes = |at: usize, value: u32| {
        let bytes = with_number(&block, seed, at, &value.to_le_bytes());
        image::decode_image_header(&bytes, &id).is_ok()
    };
    let (number, covered, zero) = (48, 64, 68);
    assert!(takes(number, 9) && !takes(number, 10));
    assert!(takes(covered, 1) && !takes(covered, 0));
    assert!(takes(covered, image::COVERED_MAX) && !takes(covered, image::COVERED_MAX + 1));
    assert!(takes(zero, 0) && !takes(zero, 1));
    assert_eq!([1, 510, 511].map(covered_blocks), [1, 1, 2]);
}

#[test]
fn every_rule_of_a_block_of_file_numbers_is_checked_alone() {
    let id = identity(samples::IMAGE);
    let start = || image::encode_image_header(&id, CheckpointId(2), 512).1;
    let numbers = samples::covered();
    let encode = |pieces: &[&[u64]]| {
        let (mut tally, mut out) = (start(), [0; BLOCK_BYTES]);
        for piece in pieces {
            image::encode_covered_block(&mut out, piece, &id, &mut tally);
        }
        (out, tally)
    };
    let (first, second) = numbers.split_at(image::COVERED_PER_BLOCK);
    assert!(!panics(|| encode(&[first, second])));
    assert!(panics(|| encode(&[&first[1..]])), "not full");
    assert!(panics(|| encode(&[first, second, &[]])), "empty");
    let seed = id.seed(Kind::ImageBlock, BLOCK);
    let takes = |block: &[u8], at: usize, value: u32| {
        let bytes = with_number(block, seed, at, &value.to_le_bytes());
        image::decode_covered_block(&bytes, &id, &mut start(), &mut Vec::new()).is_ok()
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
        id.seed(Kind::ImageBlock, 3 * BLOCK),
        8,
        &[0],
    );
    assert!(image::decode_covered_block(&empty, &id, &mut tally, &mut Vec::new()).is_err());
}

#[test]
fn every_rule_of_a_block_of_entries_is_checked_alone() {
    let id = identity(samples::IMAGE);
    let (table, entries) = samples::image_blocks().swap_remove(2);
    let start = || image::encode_image_header(&id, CheckpointId(2), 2).1;
    let listed = || {
        let (mut tally, mut out) = (start(), [0; BLOCK_BYTES]);
        image::encode_covered_block(&mut out, &[20, 23], &id, &mut tally);
        tally
    };
    let entries: Vec<_> = entries.into_iter().take(2).collect();
    let encode = |table: u32, mut tally: image::ImageTally| {
        let mut out = [0; BLOCK_BYTES];
        image::encode_entry_block(&mut out, table, &entries, &id, &mut tally);
        (out, tally)
    };
    let (block, after) = encode(table, listed());
    assert_eq!((listed().entries(), after.entries()), (0, 2));
    assert!(panics(|| encode(table, start())), "before the files");
    let most = u32::try_from(TABLES_MAX).unwrap();
    assert!(!panics(|| encode(most - 1, listed())) && panics(|| encode(most, listed())));
    let seed = |place: u64| id.seed(Kind::ImageBlock, place);
    let mut found = Vec::new();
    let takes = |bytes: &[u8], found: &mut Vec<_>| {
        image::decode_entry_block(bytes, &id, &mut listed(), found).is_ok()
    };
    assert!(takes(&block, &mut found));
    assert_eq!(found, entries);
    let early = with_number(&block, seed(BLOCK), 8, &[2]);
    assert!(
        image::decode_entry_block(&early, &id, &mut start(), &mut found).is_err(),
        "before the files"
    );
    let empty = with_number(&[0; BLOCK_BYTES], seed(2 * BLOCK), 8, &[0]);
    assert!(!takes(&empty, &mut found), "no entries");
}

#[test]
fn every_rule_of_an_image_footer_is_checked_alone() {
    let id = identity(samples::IMAGE);
    let file = samples::image_file();
    let offset = file.len() as u64 - BLOCK;
    let block = cut(&file, offset, BLOCK_BYTES);
    let seed = id.seed(Kind::ImageFooter, offset);
    let decode = |fields: &[(usize, u64)]| {
        let mut bytes = block.clone();
        for (at, value) in fields {
            bytes[*at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        seal(&mut bytes, seed);
        ImageFooter::decode(&bytes, &id, offset)
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
    let (_, start) = image::encode_image_header(&id, CheckpointId(2), 512);
    let unlisted = ImageFooter {
        blocks: 0,
        entries: 0,
        tombstones: 0,
        digest: u64::from_le_bytes(file[..8].try_into().unwrap()),
        ..footer
    };
    assert!(unlisted.check(&start).is_err(), "files that are not listed");
    assert!(panics(|| image::encode_image_footer(&id, &start)));
    let (_, mut tally) = image::decode_image_header(&file[..BLOCK_BYTES], &id).unwrap();
    let mut numbers = Vec::new();
    for at in [BLOCK_BYTES, 2 * BLOCK_BYTES] {
        let bytes = &file[at..at + BLOCK_BYTES];
        image::decode_covered_block(bytes, &id, &mut tally, &mut numbers).unwrap();
    }
    assert!(footer.check(&tally).is_err(), "blocks that are not read");
}

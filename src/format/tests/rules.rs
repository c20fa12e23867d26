//! Is each single condition of a decoder and an encoder looked at, to its last value?
//!
//! - A structure breaks one rule here, under a right checksum, and keeps all others: a check that
//!   is left out, or is off by one, can't hide behind its neighbours.
//! - What is just inside a bound is taken, what is just outside is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::checksum::{FileIdentity, Kind, ZERO_STORE};
use super::current::Current;
use super::footer::footer_bytes;
use super::footer::{Footer, RUNS_MAX, Run, RunKind, SECTIONS_MAX};
use super::identity::{StoreIdentity, claimed_store, decode_part, encode_part};
use super::layout::{DecodeError, seal};
use super::manifest::{Edit, FILE_BYTES_MAX, FileMeta};
use super::meta::decode_meta;
use super::param_file::{
    self, ENTRIES_MAX, KEYS_PER_BLOCK, ROW_BYTES_MAX, STRIDE_MAX, STRIDE_MIN, key_blocks,
    record_stride,
};
use super::samples::{self, STORE, cut, identity};
use super::{BLOCK_BYTES, DIRECTORIES_MAX};
use crate::options::{DIM_MAX, RowMetadata, TABLES_MAX};
use crate::units::{CheckpointId, FileNumber};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Whether the work stops at one of its own assertions.
pub(super) fn panics<T>(work: impl FnOnce() -> T) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

/// `bytes` with a little-endian number at `at`, under a right checksum.
pub(super) fn with_number(bytes: &[u8], seed: u64, at: usize, value: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + value.len()].copy_from_slice(value);
    seal(&mut bytes, seed);
    bytes
}

#[test]
fn current_that_contradicts_itself_is_neither_written_nor_read() {
    let current = samples::current();
    let seed = FileIdentity::new(STORE, FileNumber(0)).seed(Kind::Current, 0);
    // Offset of the field, a value just inside, a value just outside.
    let rules = [
        (64, 4095, 4096),
        (72, 64, 56),
        (72, current.manifest_bytes + 8, current.manifest_bytes + 4),
        (88, 2, 3),
    ];
    for (at, inside, outside) in rules {
        for (value, taken) in [(inside, true), (outside, false)] {
            let changed = with_number(&current.encode(&STORE), seed, at, &u64::to_le_bytes(value));
            let read = Current::decode(&changed, &STORE);
            assert_eq!(read.is_ok(), taken, "{value} at byte {at}: {read:?}");
            let mut other = current;
            match at {
                64 => other.manifest_number = FileNumber(value),
                72 => other.manifest_bytes = value,
                _ => other.checkpoint_id = CheckpointId(value),
            }
            assert_eq!(!panics(|| other.encode(&STORE)), taken, "{other:?}");
        }
    }
}

/// A manifest's record of a file, after a change of its bytes; whether it is taken.
fn takes_file_bytes(change: impl Fn(&mut [u8])) -> bool {
    let (mut bytes, _) = samples::manifest_of(&[Edit::AddFile(samples::file_meta())]);
    change(&mut bytes[64 + 16..]);
    seal(
        &mut bytes[64..],
        identity(samples::MANIFEST).seed(Kind::ManifestRecord, 64),
    );
    samples::read_manifest(&bytes, &identity(samples::MANIFEST)).is_ok()
}

#[test]
fn every_rule_of_a_file_in_a_manifest_is_checked_alone() {
    let tail = footer_bytes(RUNS_MAX, SECTIONS_MAX) as u64;
    let put = |bytes: &mut [u8], at: usize, value: u64| {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    let takes = |fields: &[(usize, u64)]| {
        takes_file_bytes(|bytes| {
            fields
                .iter()
                .for_each(|(at, value)| put(bytes, *at, *value))
        })
    };
    let (length, footer, rows, tombstones, hash_min, added) = (16, 24, 40, 48, 56, 72);
    assert!(takes(&[]));
    let most = FILE_BYTES_MAX - BLOCK;
    assert!(
        takes(&[(length, most), (footer, most - BLOCK)]),
        "the longest"
    );
    assert!(
        !takes(&[(length, FILE_BYTES_MAX), (footer, most)]),
        "too long"
    );
    assert!(
        !takes(&[(length, 28_672 + 512)]),
        "a length that is no multiple"
    );
    assert!(!takes(&[(footer, 24_576 + 512)]), "a footer between blocks");
    assert!(
        takes(&[(length, 2 * BLOCK), (footer, BLOCK)]),
        "the first place"
    );
    assert!(
        !takes(&[(length, BLOCK), (footer, 0)]),
        "a footer in the header"
    );
    assert!(!takes(&[(footer, 28_672)]), "a footer at the end");
    assert!(
        takes(&[(length, BLOCK + tail), (footer, BLOCK)]),
        "the longest footer"
    );
    assert!(
        !takes(&[(length, 2 * BLOCK + tail), (footer, BLOCK)]),
        "a longer one"
    );
    assert!(takes(&[(rows, 1), (tombstones, 0)]), "one entry");
    assert!(!takes(&[(rows, 0), (tombstones, 0)]), "none");
    assert!(takes(&[(rows, ENTRIES_MAX), (tombstones, 0)]), "all");
    assert!(!takes(&[(rows, ENTRIES_MAX), (tombstones, 1)]), "too many");
    assert!(!takes(&[(rows, u64::MAX)]), "more than can be counted");
    assert!(takes(&[(hash_min, u64::MAX - 3)]), "one hash");
    assert!(!takes(&[(hash_min, u64::MAX - 2)]), "hashes reversed");
    assert!(takes(&[(added, u64::MAX - 1)]), "added late");
    assert!(!takes(&[(added, u64::MAX)]), "added when removed");
    let small = |at: usize, value: u32| {
        takes_file_bytes(|bytes| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()))
    };
    let (directory, interval_min, zero) = (88, 92, 100);
    assert!(small(directory, 255) && !small(directory, 256));
    assert!(small(interval_min, 6) && !small(interval_min, 7));
    assert!(small(zero, 0) && !small(zero, 1));
}

/// Whether the record of an edit is taken after a change of its payload, under a right checksum.
fn takes_edit(edit: &Edit, at: usize, value: &[u8]) -> bool {
    let (mut bytes, _) = samples::manifest_of(std::slice::from_ref(edit));
    bytes[64 + 16 + at..64 + 16 + at + value.len()].copy_from_slice(value);
    let id = identity(samples::MANIFEST);
    seal(&mut bytes[64..], id.seed(Kind::ManifestRecord, 64));
    samples::read_manifest(&bytes, &id).is_ok()
}

#[test]
fn every_rule_of_the_edits_of_version_2_is_checked_alone() {
    let find = |number: u32| {
        let edits = samples::edits().into_iter();
        let mut found = edits.filter(|edit| samples::number_of(edit) == number);
        found.next().unwrap()
    };
    let tables = u32::try_from(TABLES_MAX).unwrap();
    let (last, beyond) = ((tables - 1).to_le_bytes(), tables.to_le_bytes());
    for number in [10, 11, 12] {
        let edit = find(number);
        assert!(takes_edit(&edit, 0, &last), "edit {number}: the last table");
        assert!(
            !takes_edit(&edit, 0, &beyond),
            "edit {number}: a table more"
        );
    }
    for number in [11, 12] {
        let edit = find(number);
        let checkpoint = |id: u64| takes_edit(&edit, 8, &id.to_le_bytes());
        assert!(checkpoint(1) && checkpoint(u64::MAX - 1), "edit {number}");
        assert!(!checkpoint(0) && !checkpoint(u64::MAX), "edit {number}");
    }
    let reserved = [(9, 60), (11, 4), (14, 4)];
    for (number, at) in reserved {
        let edit = find(number);
        assert!(takes_edit(&edit, at, &[0; 4]), "edit {number}");
        assert!(!takes_edit(&edit, at, &[1]), "edit {number}: reserved");
    }
    let (rename, cursor) = (find(12), find(13));
    for (edit, length, bytes) in [(&rename, 4, 6u32), (&cursor, 8, 6)] {
        assert!(takes_edit(edit, length, &bytes.to_le_bytes()));
        for other in [0, bytes - 1, bytes + 1, u32::MAX] {
            assert!(!takes_edit(edit, length, &other.to_le_bytes()), "{other}");
        }
        assert!(!takes_edit(edit, 16, &[0xff]), "a name that is not UTF-8");
    }
    let named = |bytes: usize| Edit::Cursor {
        name: "x".repeat(bytes),
        checkpoint: CheckpointId(1),
        interval: 0,
    };
    assert!(!panics(|| samples::manifest_of(&[named(1)])));
    assert!(!panics(|| samples::manifest_of(&[named(255)])));
    assert!(panics(|| samples::manifest_of(&[named(0)])), "no name");
    assert!(panics(|| samples::manifest_of(&[named(256)])), "too long");
    assert!(takes_edit(&cursor, 0, &u64::to_le_bytes(0)), "it goes");
    assert!(!takes_edit(&cursor, 0, &u64::to_le_bytes(u64::MAX)));
    let snapshot = find(14);
    assert!(takes_edit(&snapshot, 0, &[255]), "the last directory");
    assert!(!takes_edit(&snapshot, 0, &[0, 1]), "a directory more");
    let bytes = |value: u64| takes_edit(&snapshot, 16, &value.to_le_bytes());
    assert!(bytes(FILE_BYTES_MAX - 1) && !bytes(FILE_BYTES_MAX));
}

#[test]
fn a_file_is_in_the_checkpoints_from_added_to_before_removed() {
    let file = FileMeta {
        added: CheckpointId(3),
        removed: CheckpointId(5),
        ..samples::file_meta()
    };
    let held: Vec<u64> = (0..8)
        .filter(|id| file.in_checkpoint(CheckpointId(*id)))
        .collect();
    assert_eq!(held, [3, 4]);
}

#[test]
fn directories_of_a_store_are_checked_when_read() {
    let encode = |directories: &[&str]| {
        let store = StoreIdentity {
            uuid: STORE,
            directories: directories.iter().map(|name| (*name).to_owned()).collect(),
        };
        store.encode().unwrap()
    };
    let all = vec!["a"; DIRECTORIES_MAX];
    let read = StoreIdentity::decode(&encode(&all)).unwrap();
    assert_eq!(read.directories.len(), DIRECTORIES_MAX);
    let seed = FileIdentity::new(ZERO_STORE, FileNumber(0)).seed(Kind::Identity, 0);
    let takes = |names: &[&str], at: usize, value: &[u8]| {
        StoreIdentity::decode(&with_number(&encode(names), seed, at, value)).is_ok()
    };
    let (count, zero, first) = (48, 52, 56);
    assert!(takes(&["ab", "c"], count, &[2]));
    assert!(!takes(&["ab", "c"], zero, &[1]), "reserved bytes");
    assert!(!takes(&["ab", "c"], count, &[1]), "a name behind the last");
    assert!(
        !takes(&["ab", "c"], count, &[3]),
        "an empty name behind the last"
    );
    let empty = vec![0; 4096 - count];
    assert!(!takes(&["ab"], count, &empty), "none");
    let one_more = [&[1, 0, 0, 0, b'a'][..]; DIRECTORIES_MAX + 1].concat();
    let too_many = [&257u32.to_le_bytes()[..], &[0; 4], &one_more].concat();
    assert!(!takes(&["ab"], count, &too_many), "one too many");
    assert!(!takes(&["ab"], first + 4, &[0]), "a zero byte in a name");
    assert!(
        !takes(&["ab"], first + 4, &[0xff]),
        "a name that is not UTF-8"
    );
    assert!(
        !takes(&["ab"], first, &4096u32.to_le_bytes()),
        "a name behind the file's end"
    );
}

#[test]
fn a_part_names_its_store_and_an_index_that_can_be() {
    let last = u32::try_from(DIRECTORIES_MAX).unwrap() - 1;
    assert_eq!(decode_part(&encode_part(&STORE, last), &STORE), Ok(last));
    assert!(decode_part(&encode_part(&STORE, last + 1), &STORE).is_err());
    let part = encode_part(&STORE, 3);
    assert_eq!(claimed_store(&part), Some(STORE));
    assert_eq!(claimed_store(&part[..56]), Some(STORE));
    assert_eq!(claimed_store(&part[..55]), None);
}

/// Consecutive runs of one entry each: rows and tombstones of each of `tables`, and where the
/// footer is.
pub(super) fn footer_of(tables: u32) -> (Footer, u64) {
    let mut footer = Footer {
        hash_min: 9,
        hash_max: 9,
        interval_min: 4,
        interval_max: 4,
        ..Footer::default()
    };
    let mut end = BLOCK;
    for table in 0..tables {
        for (kind, stride) in [(RunKind::Rows, 24), (RunKind::Tombstones, 0)] {
            footer.runs.push(Run {
                table,
                kind,
                first_entry: footer.entries,
                entries: 1,
                offset: end,
                stride,
            });
            footer.entries += 1;
            end += u64::from(stride);
        }
    }
    footer.keys_offset = end.next_multiple_of(BLOCK);
    let offset = footer.keys_offset + key_blocks(footer.entries) * BLOCK;
    (footer, offset)
}

pub(super) fn footer_seed(offset: u64) -> u64 {
    identity(samples::ROWS).seed(Kind::Footer, offset)
}

#[test]
fn a_footer_has_one_run_to_all_runs() {
    let id = identity(samples::ROWS);
    for tables in [1, u32::try_from(TABLES_MAX).unwrap()] {
        let (footer, offset) = footer_of(tables);
        let (bytes, sum) = footer.encode(&id, offset);
        assert_eq!(Footer::decode(&bytes, &id, offset), Ok((footer, sum)));
        let mut longer = bytes;
        longer.resize(longer.len() + BLOCK_BYTES, 0);
        seal(&mut longer, footer_seed(offset));
        assert!(
            Footer::decode(&longer, &id, offset).is_err(),
            "a block more"
        );
    }
    let (footer, offset) = footer_of(u32::try_from(TABLES_MAX).unwrap() + 1);
    assert!(panics(|| footer.encode(&id, offset)));
}

/// Whether a footer is refused by its encoder after a change that leaves its place consistent.
fn refuses(change: impl FnOnce(&mut Footer, &mut u64)) -> bool {
    let (mut footer, mut offset) = footer_of(2);
    change(&mut footer, &mut offset);
    panics(|| footer.encode(&identity(samples::ROWS), offset))
}

#[test]
fn every_rule_of_a_footer_is_checked_alone() {
    assert!(!refuses(|_, _| {}));
    assert!(refuses(|footer, _| footer.hash_max = 8), "hashes");
    assert!(refuses(|footer, _| footer.interval_max = 3), "intervals");
    let pages_later = |footer: &mut Footer, offset: &mut u64| {
        footer.keys_offset += BLOCK;
        *offset += BLOCK;
    };
    assert!(refuses(pages_later), "a gap before the key blocks");
    assert!(
        refuses(|footer, _| footer.runs[2].table = 0),
        "a table twice"
    );
    assert!(!refuses(|footer, _| {
        footer.runs[3].table = u32::try_from(TABLES_MAX).unwrap() - 1;
    }));
    assert!(
        refuses(|footer, _| footer.runs[3].table = u32::try_from(TABLES_MAX).unwrap()),
        "a table that can't be"
    );
    assert!(
        refuses(|footer, _| footer.runs[3].offset += 8),
        "a gap between runs"
    );
    // The last rows of all: the pages they end in hide how far they reach.
    let last_stride = |stride: usize| {
        refuses(|footer, _| {
            footer.runs[2].stride = u32::try_from(stride).unwrap();
            footer.runs[3].offset = BLOCK + 24 + stride as u64;
        })
    };
    assert!(!last_stride(STRIDE_MIN) && !last_stride(STRIDE_MIN + 8));
    assert!(last_stride(STRIDE_MIN - 8), "rows too short");
    assert!(last_stride(STRIDE_MIN + 4), "rows that are not aligned");
    let wide = |stride: usize| {
        refuses(|footer, offset| {
            footer.runs[2].stride = u32::try_from(stride).unwrap();
            footer.runs[3].offset = BLOCK + 24 + stride as u64;
            footer.keys_offset = footer.runs[3].offset.next_multiple_of(BLOCK);
            *offset = footer.keys_offset + BLOCK;
        })
    };
    assert!(!wide(STRIDE_MAX));
    assert!(wide(STRIDE_MAX + 8), "rows too long");
    let with_stride = |footer: &mut Footer, _: &mut u64| footer.runs[3].stride = 24;
    assert!(refuses(with_stride), "tombstones with records");
}

#[test]
fn a_footer_has_as_many_entries_as_an_index_can_name() {
    // Rows of the first table, and as many tombstones of the second as are to be.
    let refuses_entries = |entries: u64| {
        refuses(|footer, offset| {
            footer.runs[3].entries = entries - 3;
            footer.entries = entries;
            *offset = footer.keys_offset + key_blocks(entries) * BLOCK;
        })
    };
    assert!(!refuses_entries(5));
    assert!(!refuses_entries(ENTRIES_MAX));
    assert!(refuses_entries(ENTRIES_MAX + 1));
}

#[test]
fn an_entry_outside_a_run_has_no_record_there() {
    let (footer, _) = footer_of(2);
    let rows = Run {
        entries: 3,
        ..footer.runs[2]
    };
    let found: Vec<Option<u64>> = (1..7).map(|entry| rows.record_offset(entry)).collect();
    let at = |n: u64| Some(rows.offset + 24 * n);
    assert_eq!(found, [None, at(0), at(1), at(2), None, None]);
    assert_eq!(footer.runs[1].record_offset(1), None, "a tombstone");
}

#[test]
fn keys_and_intervals_are_as_many_as_the_footer_says() {
    let mut footer = Footer {
        hash_min: 0,
        ..footer_of(1).0
    };
    let hash = crate::units::mix64(7);
    (footer.hash_min, footer.hash_max) = (hash, hash);
    footer.runs.truncate(1);
    footer.entries = 1;
    assert_eq!(footer.check_entries(&[7], &[4]), Ok(()));
    assert!(
        footer.check_entries(&[7, 7], &[4, 4]).is_err(),
        "one too many"
    );
    assert!(
        footer.check_entries(&[7], &[4, 4]).is_err(),
        "an interval too many"
    );
    assert!(footer.check_entries(&[8], &[4]).is_err(), "another key");
    assert!(
        footer.check_entries(&[7], &[3]).is_err(),
        "an early interval"
    );
}

#[test]
fn a_record_and_its_buffer_agree_in_length() {
    let id = identity(11);
    let encode = |bytes: usize, row: usize| {
        let mut out = vec![0; bytes];
        param_file::encode_record(&mut out, 1, &vec![0.0; row], &id, 4096)
    };
    assert!(!panics(|| encode(24, 2)));
    assert!(panics(|| encode(32, 2)) && panics(|| encode(16, 2)));
    let mut floats = [0.0f32; 2];
    let mut bytes = [0u8; 9];
    assert!(!panics(|| param_file::put_f32s(&mut bytes[..8], &floats)));
    assert!(
        panics(|| param_file::put_f32s(&mut bytes, &floats)),
        "a byte more"
    );
    assert!(
        panics(|| param_file::put_f32s(&mut bytes[..4], &floats)),
        "a word less"
    );
    assert!(!panics(|| param_file::get_f32s(&bytes[..8], &mut floats)));
    assert!(
        panics(|| param_file::get_f32s(&bytes, &mut floats)),
        "a byte more"
    );
    assert!(
        panics(|| param_file::get_f32s(&bytes[..4], &mut floats)),
        "a word less"
    );
    for (row_bytes, taken) in [(ROW_BYTES_MAX, true), (ROW_BYTES_MAX + 4, false)] {
        let (mut out, row) = (vec![0; record_stride(row_bytes)], vec![1; row_bytes]);
        param_file::encode_record_bytes(&mut out, 5, &row, &id, 4096);
        let read = param_file::view_record(&out, row_bytes, &id, 4096);
        assert_eq!(read.is_ok(), taken, "a row of {row_bytes} bytes");
    }
}

#[test]
fn the_widest_row_is_that_of_the_widest_table() {
    let widest = samples::descriptors().into_iter().map(|mut table| {
        table.dim = DIM_MAX;
        table.metadata = RowMetadata {
            show: true,
            click: true,
            count: true,
            last_step: true,
        };
        table.row_bytes()
    });
    assert_eq!(widest.max(), Some(ROW_BYTES_MAX));
}

#[test]
fn every_rule_of_a_key_block_is_checked_alone() {
    let (rows, offset, footer) = samples::rows_file();
    let id = identity(samples::ROWS);
    let place = footer.keys_offset;
    assert!(offset > place);
    let full = cut(&rows, place, BLOCK_BYTES);
    let seed = id.seed(Kind::KeyBlock, place);
    let takes = |bytes: &[u8]| {
        let (mut keys, mut intervals) = (Vec::new(), Vec::new());
        param_file::decode_key_block(bytes, &id, place, &mut keys, &mut intervals).is_ok()
    };
    assert!(takes(&full));
    assert!(
        !takes(&with_number(&full, seed, 12, &[1])),
        "reserved bytes"
    );
    let nothing = with_number(&[0; BLOCK_BYTES], seed, 8, &[0]);
    assert!(!takes(&nothing), "no entries");
    let encode = |keys: usize, intervals: usize| {
        let mut out = [0; BLOCK_BYTES];
        param_file::encode_key_block(&mut out, &vec![1; keys], &vec![1; intervals], &id, place)
    };
    assert!(!panics(|| encode(KEYS_PER_BLOCK, KEYS_PER_BLOCK)));
    assert!(panics(|| encode(KEYS_PER_BLOCK + 1, KEYS_PER_BLOCK + 1)));
    assert!(panics(|| encode(0, 0)) && panics(|| encode(2, 1)) && panics(|| encode(1, 2)));
}

#[test]
fn reserved_bytes_of_every_head_are_checked_under_a_right_checksum() {
    let id = identity(samples::ROWS);
    let block = param_file::encode_header(&id);
    let seed = id.seed(Kind::ParamHeader, 0);
    let takes = |at: usize, value: &[u8]| {
        param_file::check_header(&with_number(&block, seed, at, value), &id).is_ok()
    };
    assert!(takes(20, &[0]));
    assert!(!takes(20, &[1]), "in the prefix");
    assert!(!takes(32, &[1]), "another store");
    assert!(
        !takes(48, &[samples::ROWS.to_le_bytes()[0] + 1]),
        "another file"
    );
    assert!(!takes(56, &[1]), "after the number");
    assert!(!takes(64, &[1]), "in the padding");
    let id = identity(samples::META);
    let file = samples::meta_file();
    let seed = id.seed(Kind::MetaHeader, 0);
    let takes = |at: usize, value: u8| {
        let mut bytes = file.clone();
        bytes[at] = value;
        seal(&mut bytes[..128], seed);
        decode_meta(&bytes, &id).is_ok()
    };
    assert!(takes(127, 0) && !takes(127, 1));
    assert!(!takes(48, file[48] + 1), "another file");
    assert!(!takes(64, file[64] - 1), "a shorter body");
    assert!(!takes(72, file[72] ^ 1), "another body");
    assert!(panics(|| seal(&mut [0; 8], 1)) && !panics(|| seal(&mut [0; 9], 1)));
}

#[test]
fn an_error_of_a_decoder_keeps_its_place_and_versions() {
    let path = std::path::Path::new("a/b");
    let damaged = DecodeError::damaged(77, "what").at(path).to_string();
    assert!(damaged.contains("a/b") && damaged.contains("77") && damaged.contains("what"));
    let newer = DecodeError::Newer {
        found: 9,
        supported: 1,
    };
    let error = newer.at(path);
    assert!(
        matches!(
            error,
            crate::error::Error::Unsupported {
                found: 9,
                supported: 1,
                ..
            }
        ),
        "{error}"
    );
}

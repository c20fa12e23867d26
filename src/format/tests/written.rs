//! Is every structure read back as written, and nothing written that contradicts itself?

use proptest::prelude::*;

use super::checksum::{Kind, checksum};
use super::current::Current;
use super::descriptor::{DTYPES, OPTIMIZERS, decode_table, encode_table};
use super::footer::{Footer, RunKind};
use super::identity::{StoreIdentity, decode_part};
use super::layout::{DecodeError, seal};
use super::manifest::{Edit, ManifestReader};
use super::meta::decode_meta;
use super::param_file;
use super::rules::panics;
use super::samples::{self, STORE, cut, identity};
use super::{
    BLOCK_BYTES, FileKind, Version, data_file_name, file_name, index_snapshot, parse_file_name,
};
use crate::options::{Dtype, TableDescriptor};
use crate::units::{CheckpointId, FileNumber};

#[test]
fn a_parameter_file_is_read_back_as_written() {
    let (bytes, offset, footer) = samples::rows_file();
    let identity = identity(samples::ROWS);
    assert_eq!(
        samples::read_rows_file(&bytes, &identity, offset),
        Ok(footer.clone())
    );
    for ((table, kind, keys, f32s), run) in samples::runs().into_iter().zip(&footer.runs) {
        assert_eq!((run.table, run.kind), (table, kind));
        for (key, entry) in keys.into_iter().zip(run.first_entry..) {
            let Some(offset) = run.record_offset(entry) else {
                assert_eq!(kind, RunKind::Tombstones);
                continue;
            };
            let stride = usize::try_from(run.stride).unwrap();
            let record = cut(&bytes, offset, stride);
            let mut row = vec![0.0; f32s];
            let read = param_file::decode_record(&record, &mut row, &identity, offset, Some(key));
            assert_eq!(read, Ok(key));
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&row), bits(&samples::row_of(key, f32s)));
            let wrong = Some(key ^ 1);
            let read = param_file::decode_record(&record, &mut row, &identity, offset, wrong);
            assert!(read.is_err(), "another key is taken");
            let view = param_file::view_record(&record, f32s * 4, &identity, offset).unwrap();
            let mut copy = vec![0xee; stride];
            param_file::encode_record_bytes(&mut copy, key, view.row, &identity, offset);
            assert_eq!(copy, record);
        }
    }
}

#[test]
fn a_verifier_finds_a_flip_anywhere_in_a_parameter_file_or_snapshot() {
    let files = [
        (samples::ROWS, samples::rows_file()),
        (samples::SECTIONED, samples::sectioned_file()),
    ];
    for (number, (mut rows, offset, footer)) in files {
        let id = identity(number);
        assert_eq!(samples::read_rows_file(&rows, &id, offset), Ok(footer));
        for at in (0..rows.len()).step_by(97) {
            rows[at] ^= 4;
            let read = samples::read_rows_file(&rows, &id, offset);
            assert!(read.is_err(), "byte {at} of parameter file {number}");
            rows[at] ^= 4;
        }
    }
    let mut snapshot = samples::snapshot_file();
    for at in (0..snapshot.len()).step_by(97) {
        snapshot[at] ^= 4;
        let read = samples::read_snapshot(&snapshot, &identity(samples::SNAPSHOT));
        assert!(read.is_err(), "byte {at} of the index snapshot");
        snapshot[at] ^= 4;
    }
}

/// A footer after a change; encoding it is what is tested.
fn refuses_footer(change: impl FnOnce(&mut Footer)) -> bool {
    let (_, offset, mut footer) = samples::rows_file();
    change(&mut footer);
    let encode = || footer.encode(&identity(samples::ROWS), offset);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(encode)).is_err()
}

#[test]
fn a_footer_that_contradicts_itself_is_neither_written_nor_read() {
    assert!(!refuses_footer(|_| {}));
    assert!(refuses_footer(|footer| footer.entries += 1));
    assert!(refuses_footer(|footer| footer.runs.swap(0, 2)));
    assert!(refuses_footer(|footer| footer.runs[2].table = 0));
    assert!(refuses_footer(|footer| footer.runs[1].first_entry += 1));
    assert!(refuses_footer(|footer| footer.runs[0].entries = 0));
    assert!(refuses_footer(|footer| footer.runs[0].offset = 0));
    assert!(refuses_footer(|footer| footer.runs[0].stride = 8));
    assert!(refuses_footer(|footer| footer.runs[0].stride = 33));
    assert!(refuses_footer(|footer| footer.runs[1].offset = 4096));
    assert!(refuses_footer(|footer| footer.runs[2].table = u32::MAX));
    assert!(refuses_footer(|footer| footer.keys_offset += 4096));
    assert!(refuses_footer(|footer| footer.hash_min = u64::MAX));
    assert!(refuses_footer(|footer| footer.interval_min = 7));
    assert!(refuses_footer(|footer| footer.runs.clear()));
}

#[test]
fn keys_that_contradict_the_footer_are_refused() {
    let (bytes, offset, footer) = samples::rows_file();
    let (mut keys, mut intervals) = (Vec::new(), Vec::new());
    let identity = identity(samples::ROWS);
    for block in (footer.keys_offset..offset).step_by(BLOCK_BYTES) {
        let bytes = cut(&bytes, block, BLOCK_BYTES);
        param_file::decode_key_block(&bytes, &identity, block, &mut keys, &mut intervals).unwrap();
    }
    assert_eq!(footer.check_entries(&keys, &intervals), Ok(()));
    assert!(footer.check_entries(&keys[1..], &intervals[1..]).is_err());
    let mut swapped = keys.clone();
    swapped.swap(3, 4);
    assert!(footer.check_entries(&swapped, &intervals).is_err());
    let mut twice = keys.clone();
    twice[4] = twice[3];
    assert!(footer.check_entries(&twice, &intervals).is_err());
    let mut late = intervals.clone();
    late[9] = footer.interval_max + 1;
    assert!(footer.check_entries(&keys, &late).is_err());
    let mut narrow = footer.clone();
    narrow.hash_max -= 1;
    assert!(narrow.check_entries(&keys, &intervals).is_err());
}

#[test]
fn a_manifest_is_read_back_as_written() {
    let (bytes, digest) = samples::manifest_of(&samples::edits());
    let read = samples::read_manifest(&bytes, &identity(samples::MANIFEST)).unwrap();
    assert_eq!(read, (samples::edits(), digest));
    // The digest, computed apart from the checksums in the bytes.
    let mut sums = vec![u64::from_le_bytes(bytes[..8].try_into().unwrap())];
    let mut at = 64;
    while at < bytes.len() {
        sums.push(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()));
        let payload = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap());
        at += (16 + payload as usize).next_multiple_of(8);
    }
    assert_eq!(samples::digest_of(&sums), digest);
    assert_eq!(sums.len(), samples::edits().len() + 1);
}

/// A damaged manifest made a repair hash its rest again and again.
#[test]
fn an_edit_longer_than_any_is_refused_before_its_checksum() {
    let (header, _) = samples::manifest_of(&[]);
    for (payload_bytes, expected) in [(512u32, "checksum"), (513, "longer than any")] {
        let mut bytes = header.clone();
        bytes.extend([0; 8]);
        bytes.extend(payload_bytes.to_le_bytes());
        bytes.extend([0; 1024]);
        let mut reader = ManifestReader::new(&bytes, &identity(samples::MANIFEST)).unwrap();
        let error = format!("{:?}", reader.next_edit().unwrap_err());
        assert!(error.contains(expected), "{payload_bytes}: {error}");
    }
}

#[test]
fn a_manifest_reader_stops_at_its_first_error_and_names_the_place() {
    let (mut bytes, _) = samples::manifest_of(&samples::edits());
    let second = {
        let id = identity(samples::MANIFEST);
        let mut reader = ManifestReader::new(&bytes, &id).unwrap();
        reader.next_edit().unwrap();
        reader.offset()
    };
    bytes[usize::try_from(second).unwrap() + 20] ^= 1;
    let id = identity(samples::MANIFEST);
    let read: Vec<_> = ManifestReader::new(&bytes, &id).unwrap().collect();
    assert_eq!(read.len(), 2, "nothing after the error");
    assert!(matches!(&read[1], Err(DecodeError::Damaged { offset, .. }) if *offset == second));
}

/// The list of optimizers that a reader looks into was written by hand, and nothing held it complete: a
/// table with one that it lacks would have been written, and refused at the next open.
#[test]
fn each_optimizer_initialiser_and_type_of_weights_is_read_back_and_no_other_number_is() {
    let read = |table: &TableDescriptor, change: Option<(usize, usize)>| {
        let mut bytes = Vec::new();
        encode_table(3, table, &mut bytes);
        if let Some((at, number)) = change {
            bytes[at] = u8::try_from(number).unwrap();
        }
        decode_table(&bytes, 0).map(|(_, table)| table)
    };
    let table = |i: usize| TableDescriptor::new(&format!("t{i}"), 5);
    let optimizers = OPTIMIZERS.map(|optimizer| table(0).optimizer(optimizer));
    let dtypes = DTYPES.map(|dtype| table(1).dtype(dtype));
    let initialisers = samples::initialisers();
    let initialisers = initialisers.into_iter().map(|i| table(2).initialiser(i));
    let kinds = [
        (12, dtypes.to_vec()),
        (16, optimizers.to_vec()),
        (20, initialisers.collect()),
    ];
    for (at, tables) in kinds {
        for (table, number) in tables.iter().zip(1..) {
            // Its number is its place.
            assert_eq!(read(table, Some((at, number))).as_ref(), Ok(table));
            assert_eq!(read(table, None).as_ref(), Ok(table));
        }
        for number in [0, tables.len() + 1] {
            assert!(read(&tables[0], Some((at, number))).is_err(), "{number}");
        }
    }
}

/// Version 1 has weights of f32 only.
#[test]
fn a_type_of_weights_is_one_of_the_version_of_its_manifest() {
    let id = identity(samples::MANIFEST);
    for dtype in DTYPES {
        let edit = Edit::Table {
            id: 0,
            descriptor: TableDescriptor::new("narrow", 5).dtype(dtype),
        };
        let edits = std::slice::from_ref(&edit);
        let (bytes, digest) = samples::manifest_with(Version::V2, edits);
        let read = samples::read_manifest(&bytes, &id);
        assert_eq!(read, Ok((vec![edit.clone()], digest)));
        let old = panics(|| samples::manifest_with(Version::V1, edits));
        assert_eq!(old, dtype != Dtype::F32);
    }
    let plain = Edit::Table {
        id: 0,
        descriptor: TableDescriptor::new("narrow", 5),
    };
    let (mut bytes, _) = samples::manifest_with(Version::V1, &[plain]);
    for (number, known) in [(1u32, true), (2, false), (3, false)] {
        bytes[64 + 28..64 + 32].copy_from_slice(&number.to_le_bytes());
        seal(&mut bytes[64..], id.seed(Kind::ManifestRecord, 64));
        let read = samples::read_manifest(&bytes, &id);
        assert_eq!(read.is_ok(), known, "data type {number}");
    }
}

#[test]
fn unknown_numbers_in_edits_are_refused_under_a_right_checksum() {
    let table = samples::edits().swap_remove(1);
    let (bytes, _) = samples::manifest_of(std::slice::from_ref(&table));
    let seed = identity(samples::MANIFEST).seed(Kind::ManifestRecord, 64);
    let read = |at: usize, value: u32| {
        let mut bytes = bytes.clone();
        bytes[64 + at..64 + at + 4].copy_from_slice(&value.to_le_bytes());
        seal(&mut bytes[64..], seed);
        samples::read_manifest(&bytes, &identity(samples::MANIFEST))
    };
    let payload = 16;
    assert!(read(12, 2).is_ok(), "the table's own number");
    assert!(read(12, 99).is_err(), "kind of edit");
    assert!(read(payload, 4096).is_err(), "table number");
    assert!(read(payload + 4, 0).is_err(), "name length");
    assert!(read(payload + 8, 0).is_err(), "dim");
    for (dtype, known) in [(0, false), (2, true), (3, true), (4, false)] {
        assert_eq!(read(payload + 12, dtype).is_ok(), known, "dtype {dtype}");
    }
    assert!(read(payload + 16, 8).is_err(), "optimizer");
    assert!(read(payload + 20, 5).is_err(), "initialiser");
    assert!(
        read(payload + 24, 1).is_err(),
        "a parameter of the zero initialiser"
    );
    assert!(
        read(payload + 40, f32::NAN.to_bits()).is_err(),
        "accumulator"
    );
    assert!(read(payload + 44, 16).is_err(), "metadata");
    assert!(
        read(payload + 48, 0xffff_ffff).is_err(),
        "a name that is not UTF-8"
    );
}

#[test]
fn small_files_are_read_back_as_written() {
    let current = samples::current();
    assert_eq!(
        Current::decode(&current.encode(&STORE), &STORE),
        Ok(current)
    );
    let store = samples::store_identity();
    assert_eq!(StoreIdentity::decode(&store.encode().unwrap()), Ok(store));
    let part = super::identity::encode_part(&STORE, samples::PART);
    assert_eq!(decode_part(&part, &STORE), Ok(samples::PART));
    let file = samples::meta_file();
    let meta = decode_meta(&file, &identity(samples::META)).unwrap();
    assert_eq!(
        (meta.checkpoint_id, meta.body),
        (CheckpointId(2), b"{\"auc\":0.5}".as_slice())
    );
    assert_eq!(
        meta.checksum,
        u64::from_le_bytes(file[..8].try_into().unwrap())
    );
    let (empty, _) = super::meta::encode_meta_header(&identity(5), CheckpointId(1), &[]);
    assert_eq!(decode_meta(&empty, &identity(5)).unwrap().body, b"");
}

#[test]
fn data_directories_that_do_not_fit_are_refused() {
    let store = |directories: Vec<String>| {
        StoreIdentity {
            uuid: STORE,
            directories,
        }
        .encode()
    };
    assert!(store(Vec::new()).is_err());
    assert!(store(vec![String::new()]).is_err());
    assert!(store(vec!["a\0b".to_owned()]).is_err());
    assert!(store(vec!["a".to_owned(); 257]).is_err());
    assert!(store(vec!["x".repeat(4096 - 56 - 4)]).is_ok());
    assert!(store(vec!["x".repeat(4096 - 56 - 3)]).is_err());
}

#[test]
fn an_index_snapshot_is_read_back_as_written_and_its_blocks_keep_their_places() {
    let mut file = samples::snapshot_file();
    let id = identity(samples::SNAPSHOT);
    let expected = (
        CheckpointId(2),
        samples::covered(),
        samples::snapshot_blocks(),
    );
    assert_eq!(samples::read_snapshot(&file, &id), Ok(expected));
    let (front, back) = file.split_at_mut(4 * BLOCK_BYTES);
    front[3 * BLOCK_BYTES..].swap_with_slice(&mut back[..BLOCK_BYTES]);
    assert!(
        samples::read_snapshot(&file, &id).is_err(),
        "two blocks are exchanged"
    );
}

#[test]
fn entries_of_an_index_snapshot_are_refused_by_the_writer_out_of_order() {
    let blocks = samples::snapshot_blocks();
    let refused = |order: &[usize]| {
        let write = || {
            let id = identity(samples::SNAPSHOT);
            let (_, mut tally) =
                index_snapshot::encode_part_header(&id, CheckpointId(2), samples::PART, 512);
            let mut block = [0; BLOCK_BYTES];
            for numbers in samples::covered().chunks(index_snapshot::COVERED_PER_BLOCK) {
                index_snapshot::encode_covered_block(&mut block, numbers, &id, &mut tally);
            }
            for at in order {
                let (table, entries) = &blocks[*at];
                index_snapshot::encode_entry_block(&mut block, *table, entries, &id, &mut tally);
            }
        };
        std::panic::catch_unwind(write).is_err()
    };
    assert!(!refused(&[0, 1, 2]));
    assert!(refused(&[1, 0]), "hashes fall");
    assert!(refused(&[0, 0]), "a block twice");
    assert!(refused(&[2, 0]), "tables fall");
}

#[test]
fn names_of_files_are_read_back_and_no_others() {
    assert_eq!(data_file_name(FileNumber(42)), "000000000042.rows");
    for kind in FileKind::ALL {
        for number in [0, 1, 999_999_999_999, 1_000_000_000_000, u64::MAX] {
            assert_eq!(
                parse_file_name(&file_name(kind, FileNumber(number))),
                Some((kind, FileNumber(number)))
            );
        }
    }
    for name in [
        "",
        "CURRENT",
        "42.rows",
        "000000000042",
        "000000000042.",
        "000000000042.row",
        "0000000000042.rows",
        "+00000000042.rows",
        "-00000000042.rows",
        "000000000042.rows.rows",
        "00000000004x.rows",
        "18446744073709551616.rows",
        " 00000000042.rows",
    ] {
        assert_eq!(parse_file_name(name), None, "{name:?}");
    }
}

#[test]
fn the_fingerprint_changes_only_with_the_version() {
    // If this fails, the layout of a released version changed: make a new one, write a decision
    // record, and keep the golden files of this one.
    let fingerprints = Version::ALL.map(Version::fingerprint);
    assert_eq!(fingerprints, [0xf701_f698_1f75_9feb, 0x95c8_476d_9d32_037f]);
}

#[test]
fn golden_files_are_written_to_the_byte() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden-v2");
    let bless = std::env::var_os("HPS_BLESS").is_some();
    for (name, bytes) in samples::files() {
        let path = format!("{directory}/{name}");
        if bless {
            std::fs::create_dir_all(directory).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let golden = std::fs::read(&path).unwrap_or_default();
        let differs = golden.iter().zip(&bytes).position(|(a, b)| a != b);
        assert!(
            golden == bytes,
            "{path}: {} bytes, now {}; first difference at byte {differs:?}. A released format \
             must not change; before a release, HPS_BLESS=1 cargo test golden writes the files",
            golden.len(),
            bytes.len(),
        );
    }
}

#[test]
fn golden_files_of_version_1_are_read_as_they_were_written() {
    let read = |name: &str| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden-v1");
        std::fs::read(format!("{path}/{name}")).unwrap()
    };
    let (edits, current) = (
        samples::edits_of(Version::V1),
        samples::current_of(Version::V1),
    );
    let id = identity(samples::MANIFEST);
    let manifest = read("000000000003.manifest");
    let (found, digest) = samples::read_manifest(&manifest, &id).unwrap();
    assert_eq!((&found, digest), (&edits, current.manifest_digest));
    let (rows, offset, footer) = samples::rows_file();
    let id = identity(samples::ROWS);
    let golden = read("000000000007.rows");
    let found = samples::read_rows_file(&golden, &id, offset).unwrap();
    assert_eq!((found, golden.len()), (footer, rows.len()));
    let file = read("000000000008.meta");
    let meta = decode_meta(&file, &identity(samples::META)).unwrap();
    assert_eq!(meta.body, b"{\"auc\":0.5}".as_slice());
    let snapshot =
        samples::read_snapshot(&read("000000000009.image"), &identity(samples::SNAPSHOT));
    let expected = (
        CheckpointId(2),
        samples::covered(),
        samples::whole_snapshot_blocks(),
    );
    assert_eq!(snapshot, Ok(expected));
    let store = StoreIdentity::decode(&read("STORE"));
    assert_eq!(store, Ok(samples::store_identity()));
    assert_eq!(decode_part(&read("PART"), &STORE), Ok(samples::PART));
    // What is still written of it: CURRENT, where it reserves numbers.
    assert_eq!(Current::decode(&read("CURRENT"), &STORE), Ok(current));
    assert_eq!(current.encode(&STORE).to_vec(), read("CURRENT"));
    assert_eq!(samples::manifest_with(Version::V1, &edits).0, manifest);
}

/// A manifest of version 1 that took an edit of version 2 would be lost on the build that wrote it.
#[test]
fn an_edit_is_written_and_read_in_the_versions_that_have_it() {
    for edit in Version::ALL.map(samples::edits_of).concat() {
        let number = samples::number_of(&edit);
        for version in Version::ALL {
            let has = match number {
                7 => version == Version::V1,
                1..9 => true,
                _ => version == Version::V2,
            };
            let written = || samples::manifest_with(version, std::slice::from_ref(&edit));
            let written = std::panic::catch_unwind(written);
            assert_eq!(written.is_ok(), has, "edit {number} in {version:?}");
            let home = if number == 7 {
                Version::V1
            } else {
                Version::V2
            };
            let (mut bytes, _) = samples::manifest_with(home, std::slice::from_ref(&edit));
            let (header, _) = samples::manifest_with(version, &[]);
            bytes[..64].copy_from_slice(&header);
            match samples::read_manifest(&bytes, &identity(samples::MANIFEST)) {
                Ok((read, _)) => assert!(has && read == [edit.clone()], "edit {number}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(!has && error.contains("has no kind"), "{number}: {error}");
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn records_of_any_row_are_read_back(
        bits in proptest::collection::vec(any::<u32>(), 1..70), key: u64, offset in 0u64..1 << 40,
    ) {
        let row: Vec<f32> = bits.iter().map(|bits| f32::from_bits(*bits)).collect();
        let mut out = vec![0xee; param_file::record_stride(row.len() * 4)];
        let id = identity(11);
        let sum = param_file::encode_record(&mut out, key, &row, &id, offset);
        prop_assert_eq!(sum, checksum(&out[8..], id.seed(Kind::Record, offset)));
        let mut read = vec![0.0; row.len()];
        let decoded = param_file::decode_record(&out, &mut read, &id, offset, Some(key));
        prop_assert_eq!(decoded, Ok(key));
        prop_assert_eq!(read.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), bits);
    }
}

#[test]
fn a_file_that_contradicts_itself_is_not_taken_into_a_manifest() {
    let refused = |change: fn(&mut super::manifest::FileMeta)| {
        let mut file = samples::file_meta();
        change(&mut file);
        let encode = || samples::manifest_of(&[Edit::AddFile(file)]);
        std::panic::catch_unwind(encode).is_err()
    };
    assert!(!refused(|_| {}));
    assert!(refused(|file| file.removed = file.added));
    assert!(refused(|file| file.footer_offset = file.bytes));
    assert!(refused(|file| file.bytes += 1));
    assert!(refused(|file| file.rows = u64::MAX));
    assert!(refused(|file| file.directory = 256));
    assert!(refused(|file| file.interval_min = file.interval_max + 1));
    assert!(refused(|file| file.hash_min = u64::MAX));
}

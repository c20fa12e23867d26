//! Is everything refused that was not written for its place?

use proptest::prelude::*;

use super::BLOCK_BYTES;
use super::checksum::{FileIdentity, Kind};
use super::current::Current;
use super::footer::Footer;
use super::identity::{StoreIdentity, decode_part};
use super::index_snapshot;
use super::layout::{DecodeError, Decoded, seal};
use super::meta::decode_meta;
use super::param_file;
use super::samples::{self, STORE, cut, identity};
use crate::units::{CheckpointId, FileNumber};

/// Where a structure is claimed to be.
#[derive(Clone, Copy)]
struct Place {
    identity: FileIdentity,
    offset: u64,
}

/// A structure, how to read it, and what its checksum covers.
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    /// Number of the file and offset in it.
    number: u64,
    offset: u64,
    kind: Kind,
    /// Bytes under the first checksum.
    sealed: usize,
    /// Has magic, version and so on.
    versioned: bool,
    decode: fn(&[u8], Place) -> Decoded<()>,
}

impl Case {
    fn place(&self) -> Place {
        Place {
            identity: identity(self.number),
            offset: self.offset,
        }
    }

    fn read(&self, bytes: &[u8]) -> Decoded<()> {
        (self.decode)(bytes, self.place())
    }

    fn seed(&self) -> u64 {
        let store = if self.kind == Kind::Identity {
            [0; 16]
        } else {
            STORE
        };
        FileIdentity::new(store, FileNumber(self.number)).seed(self.kind, self.offset)
    }

    /// The bytes after a change, with a right checksum.
    fn resealed(&self, change: impl Fn(&mut [u8])) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        change(&mut bytes);
        seal(&mut bytes[..self.sealed], self.seed());
        bytes
    }
}

fn decode_covered(bytes: &[u8], place: Place) -> Decoded<()> {
    let (_, mut tally) = index_snapshot::encode_part_header(
        &place.identity,
        CheckpointId(2),
        super::samples::PART,
        512,
    );
    index_snapshot::decode_covered_block(bytes, &place.identity, &mut tally, &mut Vec::new())
}

/// Reads the third block of the sample snapshot, the first one of entries.
fn decode_entries(bytes: &[u8], place: Place) -> Decoded<()> {
    let (_, mut tally) = index_snapshot::encode_part_header(
        &place.identity,
        CheckpointId(2),
        super::samples::PART,
        512,
    );
    let mut block = [0; BLOCK_BYTES];
    for numbers in samples::covered().chunks(index_snapshot::COVERED_PER_BLOCK) {
        index_snapshot::encode_covered_block(&mut block, numbers, &place.identity, &mut tally);
    }
    index_snapshot::decode_entry_block(bytes, &place.identity, &mut tally, &mut Vec::new())
        .map(|_| ())
}

/// Structures of a parameter file.
fn rows_cases() -> Vec<Case> {
    let (rows, footer_offset, footer) = samples::rows_file();
    let number = samples::ROWS;
    let record = footer.runs[2]
        .record_offset(footer.runs[2].first_entry + 1)
        .unwrap();
    let last_keys = footer_offset - BLOCK_BYTES as u64;
    let case = |name, kind, offset, length, versioned, decode| Case {
        name,
        bytes: cut(&rows, offset, length),
        number,
        offset,
        kind,
        sealed: length,
        versioned,
        decode,
    };
    vec![
        case(
            "header",
            Kind::ParamHeader,
            0,
            BLOCK_BYTES,
            true,
            |bytes, place| param_file::check_header(bytes, &place.identity),
        ),
        case("record", Kind::Record, record, 32, false, |bytes, place| {
            let (id, row) = (&place.identity, &mut [0.0; 3]);
            param_file::decode_record(bytes, row, id, place.offset, None).map(|_| ())
        }),
        case(
            "key block",
            Kind::KeyBlock,
            last_keys,
            BLOCK_BYTES,
            false,
            |bytes, place| {
                let (mut keys, mut intervals) = (Vec::new(), Vec::new());
                let (id, offset) = (&place.identity, place.offset);
                param_file::decode_key_block(bytes, id, offset, &mut keys, &mut intervals)
                    .map(|_| ())
            },
        ),
        case(
            "footer",
            Kind::Footer,
            footer_offset,
            BLOCK_BYTES,
            true,
            |bytes, place| Footer::decode(bytes, &place.identity, place.offset).map(|_| ()),
        ),
    ]
}

/// Structures of an index snapshot.
fn snapshot_cases() -> Vec<Case> {
    let file = samples::snapshot_file();
    let block = BLOCK_BYTES as u64;
    let case = |name, kind, offset, versioned, decode| Case {
        name,
        bytes: cut(&file, offset, BLOCK_BYTES),
        number: samples::SNAPSHOT,
        offset,
        kind,
        sealed: BLOCK_BYTES,
        versioned,
        decode,
    };
    vec![
        case(
            "snapshot header",
            Kind::SnapshotHeader,
            0,
            true,
            |bytes, place| {
                index_snapshot::decode_snapshot_header(bytes, &place.identity).map(|_| ())
            },
        ),
        case("covered", Kind::SnapshotBlock, block, false, decode_covered),
        case(
            "entries",
            Kind::SnapshotBlock,
            3 * block,
            false,
            decode_entries,
        ),
        case(
            "snapshot footer",
            Kind::SnapshotFooter,
            6 * block,
            true,
            |bytes, place| {
                index_snapshot::SnapshotFooter::decode(bytes, &place.identity, place.offset)
                    .map(|_| ())
            },
        ),
    ]
}

/// Small files that are read whole.
fn file_cases() -> Vec<Case> {
    let files = samples::files();
    let case = |name: &'static str, number, kind, sealed: usize, decode| {
        let (_, bytes) = files
            .iter()
            .find(|(file, _)| *file == name)
            .unwrap()
            .clone();
        let sealed = sealed.min(bytes.len());
        Case {
            name,
            bytes,
            number,
            offset: 0,
            kind,
            sealed,
            versioned: true,
            decode,
        }
    };
    let all = usize::MAX;
    vec![
        case(
            "000000000003.manifest",
            samples::MANIFEST,
            Kind::ManifestHeader,
            64,
            |bytes, place| samples::read_manifest(bytes, &place.identity).map(|_| ()),
        ),
        case(
            "000000000008.meta",
            samples::META,
            Kind::MetaHeader,
            128,
            |bytes, place| decode_meta(bytes, &place.identity).map(|_| ()),
        ),
        case("CURRENT", 0, Kind::Current, all, |bytes, place| {
            Current::decode(bytes, &place.identity.store()).map(|_| ())
        }),
        case("STORE", 0, Kind::Identity, all, |bytes, _| {
            StoreIdentity::decode(bytes).map(|_| ())
        }),
        case(
            "PART",
            u64::from(samples::PART),
            Kind::Part,
            all,
            |bytes, place| decode_part(bytes, &place.identity.store()).map(|_| ()),
        ),
    ]
}

fn cases() -> Vec<Case> {
    let cases: Vec<Case> = rows_cases()
        .into_iter()
        .chain(snapshot_cases())
        .chain(file_cases())
        .collect();
    for case in &cases {
        assert_eq!(case.read(&case.bytes), Ok(()), "{}: intact", case.name);
    }
    cases
}

#[test]
fn every_flipped_byte_is_found() {
    for case in cases() {
        let mut bytes = case.bytes.clone();
        for at in 0..bytes.len() {
            for mask in [0x01, 0x80] {
                bytes[at] ^= mask;
                let read = case.read(&bytes);
                assert!(
                    read.is_err(),
                    "{}: byte {at} xor {mask:#x} is taken",
                    case.name
                );
                assert!(
                    !matches!(read, Err(DecodeError::Newer { .. })),
                    "{}: damage at byte {at} is taken for a newer version",
                    case.name
                );
                bytes[at] ^= mask;
            }
        }
    }
}

#[test]
fn every_shorter_length_is_refused() {
    for case in cases() {
        for length in 0..case.bytes.len() {
            // A manifest cut at a record is shorter and intact; CURRENT knows its length.
            let at_record = case.kind == Kind::ManifestHeader
                && samples::read_manifest(&case.bytes[..length], &identity(samples::MANIFEST))
                    .is_ok_and(|(_, digest)| digest != samples::current().manifest_digest);
            let read = case.read(&case.bytes[..length]);
            assert!(
                read.is_err() || at_record,
                "{}: {length} bytes are taken",
                case.name
            );
        }
        let longer = [case.bytes.as_slice(), &[0]].concat();
        assert!(
            case.read(&longer).is_err(),
            "{}: a byte more is taken",
            case.name
        );
    }
}

#[test]
fn zeros_are_refused() {
    for case in cases() {
        assert!(
            case.read(&vec![0; case.bytes.len()]).is_err(),
            "{}",
            case.name
        );
    }
}

#[test]
fn bytes_of_another_store_file_or_place_are_refused() {
    for case in cases() {
        let place = case.place();
        let mut store = STORE;
        store[15] ^= 1;
        let other = Place {
            identity: FileIdentity::new(store, FileNumber(case.number)),
            ..place
        };
        let refused = (case.decode)(&case.bytes, other).is_err();
        assert!(
            refused || case.kind == Kind::Identity,
            "{}: another store",
            case.name
        );

        let other = Place {
            identity: identity(case.number + 1),
            ..place
        };
        let refused = (case.decode)(&case.bytes, other).is_err();
        let unnumbered = matches!(case.kind, Kind::Identity | Kind::Current | Kind::Part);
        assert!(refused || unnumbered, "{}: another file", case.name);
    }
    for case in rows_cases()
        .iter()
        .chain(&snapshot_cases())
        .filter(|case| case.offset > 0)
    {
        let moved = Place {
            offset: case.offset + BLOCK_BYTES as u64,
            ..case.place()
        };
        let by_tally = case.kind == Kind::SnapshotBlock;
        assert!(
            (case.decode)(&case.bytes, moved).is_err() || by_tally,
            "{}: moved",
            case.name
        );
    }
}

#[test]
fn a_newer_version_is_told_from_damage() {
    for case in cases().iter().filter(|case| case.versioned) {
        let newer = case.resealed(|bytes| bytes[16] = 3);
        let expected = Err(DecodeError::Newer {
            found: 3,
            supported: 2,
        });
        assert_eq!(case.read(&newer), expected, "{}", case.name);
        let never = case.resealed(|bytes| bytes[16] = 0);
        let read = case.read(&never);
        assert!(
            matches!(read, Err(DecodeError::Damaged { .. })),
            "{}: {read:?}",
            case.name
        );
    }
}

#[test]
fn another_fingerprint_of_the_same_version_is_refused() {
    let footers = [Kind::Footer, Kind::SnapshotFooter];
    for case in cases()
        .iter()
        .filter(|case| case.versioned && !footers.contains(&case.kind))
    {
        let other = case.resealed(|bytes| bytes[24] ^= 1);
        let of_version_2 = case.resealed(|bytes| bytes[16] = 1);
        for changed in [other, of_version_2] {
            let error = case.read(&changed).unwrap_err().to_string();
            assert!(error.contains("fingerprint"), "{}: {error}", case.name);
        }
    }
}

#[test]
fn nonzero_padding_is_refused_under_a_right_checksum() {
    let unpadded = ["000000000003.manifest", "000000000008.meta"];
    for case in cases().iter().filter(|case| !unpadded.contains(&case.name)) {
        if case.name == "entries" {
            continue; // the block is full
        }
        // The last key block has free intervals at its end, everything else zeros.
        let padded = case.resealed(|bytes| *bytes.last_mut().unwrap() = 1);
        let full = case.name == "covered";
        assert!(
            case.read(&padded).is_err() || full,
            "{}: padding is taken",
            case.name
        );
    }
}

#[test]
fn a_footer_that_contradicts_itself_is_not_read_under_a_right_checksum() {
    let cases = rows_cases();
    let footer = cases.last().unwrap();
    // Entries, keys offset, first run: table, kind, first entry, entries, offset, stride, zero.
    for at in [24, 48, 88, 92, 96, 104, 112, 120, 124] {
        let bytes = footer.resealed(|bytes| bytes[at] ^= 0x11);
        assert!(footer.read(&bytes).is_err(), "byte {at}");
    }
}

/// Puts a u64 into bytes.
fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn unused_places_of_a_key_block_are_zero_under_a_right_checksum() {
    let cases = rows_cases();
    let block = cases
        .iter()
        .find(|case| case.kind == Kind::KeyBlock)
        .unwrap();
    assert_eq!(block.read(&block.resealed(|_| ())), Ok(()));
    let last_key = 16 + 8 * 339;
    assert!(
        block
            .read(&block.resealed(|bytes| bytes[last_key] = 1))
            .is_err(),
        "a key"
    );
    assert!(
        block
            .read(&block.resealed(|bytes| bytes[4095] = 1))
            .is_err(),
        "an interval"
    );
    for count in [0, 341, u64::from(u32::MAX), 1 << 32 | 5] {
        let bytes = block.resealed(|bytes| put(bytes, 8, count));
        assert!(block.read(&bytes).is_err(), "count {count:#x}");
    }
}

#[test]
fn entries_of_an_index_snapshot_out_of_order_or_reach_are_refused_under_a_right_checksum() {
    let cases = snapshot_cases();
    let block = cases.iter().find(|case| case.name == "entries").unwrap();
    let location = 16 + 8;
    let refused = |change: &dyn Fn(&mut [u8])| block.read(&block.resealed(change)).is_err();
    assert!(
        !refused(&|bytes| put(bytes, location, 511 << 40)),
        "the last file"
    );
    assert!(
        refused(&|bytes| put(bytes, location, 512 << 40)),
        "a file that is not covered"
    );
    for bit in 32..36 {
        let class = |bytes: &mut [u8]| put(bytes, location, 1 << bit);
        assert!(!refused(&class), "bit {bit} of a class");
    }
    for bit in 36..39 {
        assert!(
            refused(&|bytes| put(bytes, location, 1 << bit)),
            "reserved bit {bit}"
        );
    }
    assert!(
        refused(&|bytes| bytes.copy_within(16..32, 32)),
        "a key twice"
    );
    assert!(
        refused(&|bytes| bytes.copy_within(48..64, 16)),
        "keys that fall"
    );
    assert!(
        refused(&|bytes| put(bytes, 8, 254)),
        "an unused place that is not zero"
    );
    assert!(refused(&|bytes| put(bytes, 8, 0)), "no entries");
    assert!(
        refused(&|bytes| put(bytes, 8, 4096 << 32 | 255)),
        "a table that can't be"
    );
}

#[test]
fn padding_of_an_edit_is_zero_under_a_right_checksum() {
    // The name of the second table has 9 bytes.
    let (mut bytes, _) = samples::manifest_of(&samples::edits()[2..3]);
    let id = identity(samples::MANIFEST);
    assert!(samples::read_manifest(&bytes, &id).is_ok());
    *bytes.last_mut().unwrap() = 1;
    seal(&mut bytes[64..], id.seed(Kind::ManifestRecord, 64));
    assert!(samples::read_manifest(&bytes, &id).is_err());
}

proptest! {
    #[test]
    fn any_bytes_give_an_error_and_no_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        for case in file_cases().iter().chain(&rows_cases()) {
            prop_assert!(case.read(&bytes).is_err());
        }
    }

    #[test]
    fn hostile_bytes_under_right_checksums_do_not_panic(
        changes in proptest::collection::vec((0usize..160, any::<u8>()), 1..5),
    ) {
        let mutate = |bytes: &mut [u8]| {
            for (at, value) in &changes {
                if let Some(byte) = bytes.get_mut(8 + at) {
                    *byte = *value;
                }
            }
        };
        for case in cases() {
            let _ = case.read(&case.resealed(mutate));
        }
        for edit in samples::edits() {
            let (mut bytes, _) = samples::manifest_of(std::slice::from_ref(&edit));
            let record = bytes.len() - 64;
            mutate(&mut bytes[64..]);
            // The length stays that of the record, or nothing after it would be looked at.
            let payload = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
            if (payload as usize) > record - 16 {
                bytes[72..76].copy_from_slice(&u32::try_from(record - 16).unwrap().to_le_bytes());
            }
            seal(&mut bytes[64..], identity(samples::MANIFEST).seed(Kind::ManifestRecord, 64));
            if let Ok((edits, _)) = samples::read_manifest(&bytes, &identity(samples::MANIFEST)) {
                let again = samples::manifest_of(&edits).0;
                prop_assert_eq!(again, bytes, "what is taken is written the same");
            }
        }
    }
}

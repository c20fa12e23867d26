//! One of each file, made from fixed numbers: what the tests damage, and what the golden files
//! under tests/data/golden-v1 and golden-v2 hold.

use super::checksum::{Digest, FileIdentity, roll};
use super::current::Current;
use super::descriptor::OPTIMIZERS;
use super::footer::{Footer, Run, RunKind, Section};
use super::identity::{StoreIdentity, encode_part};
use super::index_snapshot::{self, SnapshotEntry, SnapshotFooter};
use super::layout::{DecodeError, Decoded, check_zero};
use super::manifest::{
    CheckpointMeta, Edit, FileMeta, ManifestReader, NOT_REMOVED, encode_manifest,
};
use super::param_file::{self, KEYS_PER_BLOCK};
use super::{BLOCK_BYTES, Version, meta};
use crate::options::{HyperParameters, Initialiser, RowMetadata, TableDescriptor};
use crate::units::{CheckpointId, FileNumber, mix64};

/// Store of all samples.
pub const STORE: [u8; 16] = *b"sample store 016";
/// Numbers of the sample files.
pub const MANIFEST: u64 = 3;
pub const ROWS: u64 = 7;
pub const META: u64 = 8;
pub const SNAPSHOT: u64 = 9;
pub const SECTIONED: u64 = 10;
/// Index of the sample data directory.
pub const PART: u32 = 1;

pub fn identity(number: u64) -> FileIdentity {
    FileIdentity::new(STORE, FileNumber(number))
}

/// Keys of a run, in order; the ends of u64 are among them.
fn keys(count: u64, salt: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..count)
        .map(|i| i.wrapping_mul(1_000_003) ^ salt)
        .collect();
    keys.push(u64::MAX);
    keys.sort_by_key(|key| mix64(*key));
    keys
}

/// A row whose bits are a function of its key; NaNs, infinities and -0 among them.
pub fn row_of(key: u64, f32s: usize) -> Vec<f32> {
    let word = |i: usize| u32::try_from(mix64(key ^ i as u64) >> 32).unwrap();
    (0..f32s).map(|i| f32::from_bits(word(i))).collect()
}

/// What is in the sample parameter file: (table, kind, keys, f32s of a row).
pub fn runs() -> Vec<(u32, RunKind, Vec<u64>, usize)> {
    vec![
        (0, RunKind::Rows, keys(345, 0), 4),
        (0, RunKind::Tombstones, keys(2, 5), 0),
        (3, RunKind::Rows, keys(4, 1 << 40), 3),
    ]
}

/// A parameter file; where its footer starts, and the footer.
pub fn rows_file() -> (Vec<u8>, u64, Footer) {
    rows_file_with(ROWS, &[])
}

/// One with sections of kinds that nobody knows: a block and a bit, and a byte.
pub fn sectioned_file() -> (Vec<u8>, u64, Footer) {
    let long: Vec<u8> = (0..5000u64).map(|i| mix64(i).to_le_bytes()[0]).collect();
    rows_file_with(SECTIONED, &[(3, &long), (9, &[7])])
}

fn rows_file_with(number: u64, sections: &[(u32, &[u8])]) -> (Vec<u8>, u64, Footer) {
    let identity = identity(number);
    let mut out = param_file::encode_header(&identity).to_vec();
    let mut footer = Footer {
        hash_min: u64::MAX,
        interval_min: 4,
        interval_max: 6,
        ..Footer::default()
    };
    let (mut rows_digest, mut keys_digest) = (Digest::new(), Digest::new());
    let mut all_keys = Vec::new();
    for (table, kind, keys, f32s) in runs() {
        let stride = param_file::record_stride(f32s * 4);
        let is_rows = kind == RunKind::Rows;
        footer.runs.push(Run {
            table,
            kind,
            first_entry: footer.entries,
            entries: keys.len() as u64,
            offset: out.len() as u64,
            stride: if is_rows {
                u32::try_from(stride).unwrap()
            } else {
                0
            },
        });
        footer.entries += keys.len() as u64;
        for key in keys {
            footer.hash_min = footer.hash_min.min(mix64(key));
            footer.hash_max = footer.hash_max.max(mix64(key));
            all_keys.push(key);
            if is_rows {
                let (mut record, offset) = (vec![0xee; stride], out.len() as u64);
                let row = row_of(key, f32s);
                let sum = param_file::encode_record(&mut record, key, &row, &identity, offset);
                rows_digest.update_u64(sum);
                out.extend_from_slice(&record);
            }
        }
    }
    out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
    footer.keys_offset = out.len() as u64;
    let intervals: Vec<u32> = (0u32..).map(|i| 4 + i % 3).take(all_keys.len()).collect();
    for (keys, intervals) in all_keys
        .chunks(KEYS_PER_BLOCK)
        .zip(intervals.chunks(KEYS_PER_BLOCK))
    {
        let (mut block, offset) = (vec![0xee; BLOCK_BYTES], out.len() as u64);
        let sum = param_file::encode_key_block(&mut block, keys, intervals, &identity, offset);
        keys_digest.update_u64(sum);
        out.extend_from_slice(&block);
    }
    for (kind, content) in sections {
        let (mut digest, offset) = (Digest::new(), out.len() as u64);
        digest.update(content);
        footer.sections.push(Section {
            kind: *kind,
            offset,
            bytes: content.len() as u64,
            checksum: Section::checksum(digest.digest64(), &identity, offset),
        });
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
    }
    footer.rows_digest = rows_digest.digest64();
    footer.keys_digest = keys_digest.digest64();
    let offset = out.len() as u64;
    out.extend_from_slice(&footer.encode(&identity, offset).0);
    (out, offset, footer)
}

/// A piece of a file.
pub fn cut(bytes: &[u8], offset: u64, length: usize) -> Vec<u8> {
    part(bytes, offset, length).unwrap().to_vec()
}

fn part(bytes: &[u8], offset: u64, length: usize) -> Decoded<&[u8]> {
    let from = usize::try_from(offset).unwrap();
    bytes
        .get(from..from + length)
        .ok_or_else(|| DecodeError::damaged(offset, "cut short"))
}

/// Reads a parameter file as a verifier would: every byte is looked at.
pub fn read_rows_file(bytes: &[u8], id: &FileIdentity, footer_offset: u64) -> Decoded<Footer> {
    let damaged = |what: &str| DecodeError::damaged(footer_offset, what);
    param_file::check_header(part(bytes, 0, BLOCK_BYTES)?, id)?;
    let tail = bytes
        .get(usize::try_from(footer_offset).unwrap()..)
        .unwrap_or(&[]);
    let (footer, _) = Footer::decode(tail, id, footer_offset)?;
    let (mut keys, mut intervals) = (Vec::new(), Vec::new());
    let mut digest = Digest::new();
    for block in 0..param_file::key_blocks(footer.entries) {
        let offset = footer.keys_offset + block * BLOCK_BYTES as u64;
        let block = part(bytes, offset, BLOCK_BYTES)?;
        let sum = param_file::decode_key_block(block, id, offset, &mut keys, &mut intervals)?;
        digest.update_u64(sum);
    }
    footer.check_entries(&keys, &intervals)?;
    if digest.digest64() != footer.keys_digest {
        return Err(damaged("keys digest"));
    }
    let (mut digest, mut end) = (Digest::new(), BLOCK_BYTES as u64);
    for run in &footer.runs {
        for (entry, key) in (run.first_entry..run.first_entry + run.entries)
            .zip(keys.iter().skip(usize::try_from(run.first_entry).unwrap()))
        {
            let Some(offset) = run.record_offset(entry) else {
                continue;
            };
            let stride = usize::try_from(run.stride).unwrap();
            let record = part(bytes, offset, stride)?;
            let row_bytes = if run.table == 0 { 16 } else { 12 };
            let view = param_file::view_record(record, row_bytes, id, offset)?;
            if view.key != *key {
                return Err(damaged("key"));
            }
            digest.update_u64(view.checksum);
            end = offset + stride as u64;
        }
    }
    if digest.digest64() != footer.rows_digest {
        return Err(damaged("rows digest"));
    }
    for section in &footer.sections {
        let length = usize::try_from(section.end().unwrap() - section.offset).unwrap();
        let all = part(bytes, section.offset, length)?;
        let (content, padding) = all.split_at(usize::try_from(section.bytes).unwrap());
        let mut digest = Digest::new();
        digest.update(content);
        if !section.is_sealed_by(digest.digest64(), id) {
            return Err(damaged("section"));
        }
        check_zero(padding, section.offset, "section")?;
    }
    let padding = usize::try_from(footer.keys_offset - end).unwrap();
    check_zero(part(bytes, end, padding)?, end, "rows")?;
    Ok(footer)
}

/// One of each initialiser, in the order of their numbers.
pub fn initialisers() -> Vec<Initialiser> {
    // Another one fails the build here, and takes its place behind the last.
    let next = |before: &Initialiser| match before {
        Initialiser::Zero => Some(Initialiser::Constant { value: -1.5 }),
        Initialiser::Constant { .. } => Some(Initialiser::Uniform {
            low: -0.25,
            high: 0.5,
        }),
        Initialiser::Uniform { .. } => Some(Initialiser::Normal {
            mean: 1.0,
            deviation: 0.125,
        }),
        Initialiser::Normal { .. } => None,
    };
    std::iter::successors(Some(Initialiser::Zero), next).collect()
}

/// Descriptors that together use every number.
pub fn descriptors() -> Vec<TableDescriptor> {
    let initialisers = initialisers();
    let mut out = Vec::new();
    for (i, optimizer) in OPTIMIZERS.into_iter().enumerate() {
        let mut table = TableDescriptor::new(&format!("table-ä{}", "x".repeat(i)), 8 + i);
        table.optimizer = optimizer;
        table.initialiser = *initialisers.get(i % initialisers.len()).unwrap();
        table.seed = mix64(i as u64);
        table.accumulator = 0.5;
        table.metadata = RowMetadata {
            show: i & 1 != 0,
            click: i & 2 != 0,
            count: i & 4 != 0,
            last_step: i == 0,
        };
        out.push(table);
    }
    out
}

/// A file of the version, as the manifest has it.
pub fn file_meta() -> FileMeta {
    FileMeta {
        number: FileNumber(ROWS),
        directory: PART,
        rank: 12,
        bytes: 28_672,
        footer_offset: 24_576,
        footer_checksum: 0x0102_0304_0506_0708,
        rows: 351,
        tombstones: 3,
        hash_min: 17,
        hash_max: u64::MAX - 3,
        interval_min: 4,
        interval_max: 6,
        added: CheckpointId(2),
        removed: NOT_REMOVED,
    }
}

fn checkpoint() -> CheckpointMeta {
    CheckpointMeta {
        id: CheckpointId(2),
        step: 1000,
        interval: 6,
        next_rank: 13,
        meta_number: FileNumber(META),
        meta_bytes: 139,
        meta_checksum: 0xbeef,
        unix_seconds: 1_800_000_000,
    }
}

fn hyper() -> HyperParameters {
    HyperParameters {
        lambda1: 0.75,
        ..HyperParameters::default()
    }
}

/// At least one of each edit of a version.
pub fn edits_of(version: Version) -> Vec<Edit> {
    let mut edits = edits_of_all();
    match version {
        Version::V1 => edits.push(Edit::CheckpointV1(checkpoint(), hyper())),
        Version::V2 => {
            let table = 3;
            edits.extend([
                Edit::HyperParameters {
                    table,
                    hyper: hyper(),
                },
                Edit::DropTable {
                    table,
                    dropped: CheckpointId(2),
                },
                Edit::RenameTable {
                    table: 4,
                    renamed: CheckpointId(2),
                    name: "neu-ä".to_owned(),
                },
                Edit::Cursor {
                    name: "reader".to_owned(),
                    checkpoint: CheckpointId(1),
                    interval: 0,
                },
                Edit::Snapshot {
                    directory: PART,
                    number: FileNumber(SNAPSHOT),
                    bytes: 16_384,
                    checksum: 0xfeed,
                },
                Edit::Checkpoint(checkpoint()),
            ]);
        }
    }
    edits.push(Edit::ForgetCheckpoint {
        id: CheckpointId(1),
    });
    edits
}

/// Those of the newest version.
pub fn edits() -> Vec<Edit> {
    edits_of(Version::NEWEST)
}

fn edits_of_all() -> Vec<Edit> {
    let mut edits = vec![Edit::Timeline {
        uuid: *b"sample branch 16",
        parent_checkpoint: CheckpointId(1),
    }];
    for (id, descriptor) in (0u32..).zip(descriptors()) {
        edits.push(Edit::Table { id, descriptor });
    }
    edits.push(Edit::AddFile(file_meta()));
    edits.push(Edit::RemoveFile {
        number: FileNumber(ROWS),
        removed: CheckpointId(3),
    });
    edits.push(Edit::DropFile {
        number: FileNumber(5),
    });
    edits.push(Edit::Image {
        number: FileNumber(SNAPSHOT),
        bytes: 16_384,
        checksum: 0xfeed,
    });
    edits
}

/// A manifest of `edits`; its digest.
pub fn manifest_of(edits: &[Edit]) -> (Vec<u8>, u64) {
    encode_manifest(Version::NEWEST, edits, &identity(MANIFEST))
}

/// A manifest of a version; its digest.
pub fn manifest_with(version: Version, edits: &[Edit]) -> (Vec<u8>, u64) {
    encode_manifest(version, edits, &identity(MANIFEST))
}

/// The number of an edit on disk.
pub fn number_of(edit: &Edit) -> u32 {
    super::payload::encode_payload(edit, &mut Vec::new())
}

/// Reads a manifest; edits and digest.
pub fn read_manifest(bytes: &[u8], id: &FileIdentity) -> Decoded<(Vec<Edit>, u64)> {
    let mut reader = ManifestReader::new(bytes, id)?;
    let edits = reader.by_ref().collect::<Decoded<Vec<_>>>()?;
    Ok((edits, reader.digest()))
}

/// The pointer to the sample manifest.
pub fn current() -> Current {
    current_of(Version::NEWEST)
}

/// That of a version.
pub fn current_of(version: Version) -> Current {
    let (bytes, digest) = encode_manifest(version, &edits_of(version), &identity(MANIFEST));
    Current {
        version,
        timeline: *b"sample branch 16",
        manifest_number: FileNumber(MANIFEST),
        manifest_bytes: bytes.len() as u64,
        manifest_digest: digest,
        checkpoint_id: CheckpointId(2),
        step: 1000,
        file_number_limit: FileNumber(4096),
        next_checkpoint_id: CheckpointId(3),
    }
}

/// The store's identity.
pub fn store_identity() -> StoreIdentity {
    let directories = vec!["part-0".to_owned(), "/mnt/zweite-ä/part-1".to_owned()];
    StoreIdentity {
        uuid: STORE,
        directories,
    }
}

/// A meta file.
pub fn meta_file() -> Vec<u8> {
    let body = b"{\"auc\":0.5}";
    let (header, _) = meta::encode_meta_header(&identity(META), CheckpointId(2), body);
    [header.as_slice(), body].concat()
}

/// Entries of the sample snapshot: (table, entries), a block each.
pub fn snapshot_blocks() -> Vec<(u32, Vec<SnapshotEntry>)> {
    let entry = |key: u64, i: u32| SnapshotEntry {
        key,
        ordinal: i % 512,
        tombstone: i.is_multiple_of(5),
        entry: u32::MAX - i,
        class: u8::try_from(i % 16).unwrap(),
    };
    let entries = |keys: Vec<u64>| {
        keys.into_iter()
            .zip(0..)
            .map(|(key, i)| entry(key, i))
            .collect()
    };
    let all: Vec<SnapshotEntry> = entries(keys(300, 0));
    let (full, rest) = all.split_at(index_snapshot::ENTRIES_PER_BLOCK);
    vec![
        (0, full.to_vec()),
        (0, rest.to_vec()),
        (3, entries(keys(2, 9))),
    ]
}

/// Numbers of the files that the sample snapshot covers: two blocks.
pub fn covered() -> Vec<FileNumber> {
    (0..512).map(|i| FileNumber(20 + 3 * i)).collect()
}

/// A part of an index snapshot.
pub fn snapshot_file() -> Vec<u8> {
    let (identity, count) = (identity(SNAPSHOT), u32::try_from(covered().len()).unwrap());
    let start = index_snapshot::encode_part_header(&identity, CheckpointId(2), PART, count);
    snapshot_after(start, snapshot_blocks())
}

/// An image of version 1, of all data directories: it has no classes.
pub fn whole_snapshot_file() -> Vec<u8> {
    let (identity, count) = (identity(SNAPSHOT), u32::try_from(covered().len()).unwrap());
    let start = index_snapshot::encode_image_header(&identity, CheckpointId(2), count);
    snapshot_after(start, whole_snapshot_blocks())
}

/// Its entries.
pub fn whole_snapshot_blocks() -> Vec<(u32, Vec<SnapshotEntry>)> {
    let mut blocks = snapshot_blocks();
    for entry in blocks.iter_mut().flat_map(|(_, entries)| entries) {
        entry.class = 0;
    }
    blocks
}

fn snapshot_after(
    (header, mut tally): ([u8; BLOCK_BYTES], index_snapshot::SnapshotTally),
    blocks: Vec<(u32, Vec<SnapshotEntry>)>,
) -> Vec<u8> {
    let (identity, numbers) = (identity(SNAPSHOT), covered());
    let mut out = header.to_vec();
    let mut block = vec![0xee; BLOCK_BYTES];
    for numbers in numbers.chunks(index_snapshot::COVERED_PER_BLOCK) {
        index_snapshot::encode_covered_block(&mut block, numbers, &identity, &mut tally);
        out.extend_from_slice(&block);
    }
    for (table, entries) in blocks {
        index_snapshot::encode_entry_block(&mut block, table, &entries, &identity, &mut tally);
        out.extend_from_slice(&block);
    }
    assert_eq!(tally.next_offset(), out.len() as u64);
    out.extend_from_slice(&index_snapshot::encode_snapshot_footer(&identity, &tally).0);
    out
}

type SnapshotContent = (
    CheckpointId,
    Vec<FileNumber>,
    Vec<(u32, Vec<SnapshotEntry>)>,
);

/// Reads an index snapshot: checkpoint, files, blocks.
pub fn read_snapshot(bytes: &[u8], id: &FileIdentity) -> Decoded<SnapshotContent> {
    let footer_offset = bytes.len().saturating_sub(BLOCK_BYTES) as u64;
    let footer = part(bytes, footer_offset, BLOCK_BYTES)?;
    let footer = SnapshotFooter::decode(footer, id, footer_offset)?;
    let (checkpoint, mut tally) =
        index_snapshot::decode_snapshot_header(part(bytes, 0, BLOCK_BYTES)?, id)?;
    let (mut numbers, mut blocks) = (Vec::new(), Vec::new());
    while tally.covered_left() > 0 {
        let block = part(bytes, tally.next_offset(), BLOCK_BYTES)?;
        index_snapshot::decode_covered_block(block, id, &mut tally, &mut numbers)?;
    }
    while tally.next_offset() < footer_offset {
        let mut entries = Vec::new();
        let block = part(bytes, tally.next_offset(), BLOCK_BYTES)?;
        let table = index_snapshot::decode_entry_block(block, id, &mut tally, &mut entries)?;
        blocks.push((table, entries));
    }
    footer.check(&tally)?;
    Ok((checkpoint, numbers, blocks))
}

/// One of each file, by name.
pub fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("000000000003.manifest", manifest_of(&edits()).0),
        ("000000000007.rows", rows_file().0),
        ("000000000008.meta", meta_file()),
        ("000000000009.snapshot", snapshot_file()),
        ("000000000010.rows", sectioned_file().0),
        ("CURRENT", current().encode(&STORE).to_vec()),
        ("STORE", store_identity().encode().unwrap().to_vec()),
        ("PART", encode_part(&STORE, PART).to_vec()),
    ]
}

/// The digest of a manifest of which `sums` are header's and records' checksums.
pub fn digest_of(sums: &[u64]) -> u64 {
    let (first, rest) = sums.split_first().unwrap();
    rest.iter().fold(*first, |digest, sum| roll(digest, *sum))
}

//! Parameter files of tests, with the entries that a test wants in them, right or wrong, under right
//! checksums.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::footer::{Footer, Run, RunKind};
use crate::format::manifest::{CheckpointMeta, FileMeta, NOT_REMOVED};
use crate::format::param_file::{
    KEYS_PER_BLOCK, encode_header, encode_key_block, encode_record, record_stride,
};
use crate::format::{FileIdentity, data_file_name};
use crate::io::sim::SimDisk;
use crate::io::{Directory, Disk, OpenMode};
use crate::ssd::data_file::DataFile;
use crate::units::{CheckpointId, FileNumber, FileSlot, to_usize, unmix64};

pub const STORE: [u8; 16] = [7; 16];
const BLOCK_BYTES: usize = 4096;

/// Entries of one run, in the order in which they are written.
#[derive(Clone, Debug)]
pub struct Part {
    pub table: u32,
    /// f32s of a row; none: tombstones.
    pub width: usize,
    /// (mix64 of the key, interval).
    pub entries: Vec<(u64, u32)>,
}

/// Rows of these hashes, of interval 1.
pub fn rows(table: u32, width: usize, hashes: impl IntoIterator<Item = u64>) -> Part {
    let entries = hashes.into_iter().map(|hash| (hash, 1)).collect();
    Part {
        table,
        width,
        entries,
    }
}

/// Tombstones of these hashes, of interval 1.
pub fn tombstones(table: u32, hashes: impl IntoIterator<Item = u64>) -> Part {
    rows(table, 0, hashes)
}

/// The row that a key with this hash has in a file.
pub fn row(number: u64, hash: u64, width: usize) -> Vec<f32> {
    let first = (number * 1000 + hash % 997) as f32;
    (0..width).map(|i| first + i as f32 / 8.0).collect()
}

/// A checkpoint, with a meta file of number 7.
pub fn checkpoint(id: u64) -> CheckpointMeta {
    CheckpointMeta {
        id: CheckpointId(id),
        step: id,
        interval: 1,
        next_rank: 1,
        meta_number: FileNumber(7),
        meta_bytes: 100,
        meta_checksum: 1,
        unix_seconds: 1,
    }
}

/// A file that is in checkpoints from `added` on, up to the one before `removed`.
pub fn file_meta(number: u64, added: u64, removed: CheckpointId) -> FileMeta {
    let file = Place::new().file(number, &[tombstones(0, 0..10)]);
    FileMeta {
        added: CheckpointId(added),
        removed,
        ..file.meta
    }
}

/// A data directory on the simulated disk.
pub struct Place {
    pub disk: SimDisk,
    pub directory: Arc<dyn Directory>,
}

impl Place {
    pub fn new() -> Place {
        let disk = SimDisk::new(1);
        disk.create_dir(Path::new("/part")).unwrap();
        let directory = disk.open_dir(Path::new("/part")).unwrap();
        Place { disk, directory }
    }

    pub fn path(number: u64) -> PathBuf {
        Path::new("/part").join(data_file_name(FileNumber(number)))
    }

    /// How many reads there were, and of how many bytes.
    pub fn reads(&self) -> (u64, u64) {
        let calls = self.disk.calls_by_kind();
        (
            calls.get("read").copied().unwrap_or(0),
            self.disk.read_bytes(),
        )
    }

    /// What `work` gives, and the reads and bytes that it took.
    pub fn counted<T>(&self, work: impl FnOnce() -> T) -> (T, (u64, u64)) {
        let before = self.reads();
        let made = work();
        let after = self.reads();
        (made, (after.0 - before.0, after.1 - before.1))
    }

    /// Makes a file; its rank and slot are its number.
    pub fn file(&self, number: u64, parts: &[Part]) -> DataFile {
        let identity = FileIdentity::new(STORE, FileNumber(number));
        let (bytes, footer) = content(&identity, parts);
        let meta = FileMeta {
            number: FileNumber(number),
            directory: 0,
            rank: number,
            bytes: bytes.len() as u64,
            footer_offset: bytes.len() as u64,
            footer_checksum: 0,
            rows: count(parts, RunKind::Rows),
            tombstones: count(parts, RunKind::Tombstones),
            hash_min: footer.hash_min,
            hash_max: footer.hash_max,
            interval_min: footer.interval_min,
            interval_max: footer.interval_max,
            added: CheckpointId(1),
            removed: NOT_REMOVED,
        };
        let path = Place::path(number);
        self.disk.write_file(&path, &bytes).unwrap();
        let name = data_file_name(FileNumber(number));
        let file = self.directory.open(&name, OpenMode::ReadDirect).unwrap();
        let slot = FileSlot::new(to_usize(number));
        DataFile::new(slot, meta, footer, identity, path, file, true)
    }

    /// The same, shared.
    pub fn shared(&self, number: u64, parts: &[Part]) -> Arc<DataFile> {
        Arc::new(self.file(number, parts))
    }
}

fn kind(part: &Part) -> RunKind {
    match part.width {
        0 => RunKind::Tombstones,
        _ => RunKind::Rows,
    }
}

fn count(parts: &[Part], of: RunKind) -> u64 {
    let parts = parts.iter().filter(|part| kind(part) == of);
    parts.map(|part| part.entries.len() as u64).sum()
}

/// Header, records and key blocks, and what a footer would say of them.
fn content(identity: &FileIdentity, parts: &[Part]) -> (Vec<u8>, Footer) {
    let mut bytes = encode_header(identity).to_vec();
    let mut runs = Vec::new();
    let all: Vec<(u64, u32)> = parts.iter().flat_map(|p| p.entries.clone()).collect();
    let mut first_entry = 0;
    for part in parts {
        let stride = match part.width {
            0 => 0,
            width => record_stride(4 * width),
        };
        runs.push(Run {
            table: part.table,
            kind: kind(part),
            first_entry,
            entries: part.entries.len() as u64,
            offset: bytes.len() as u64,
            stride: u32::try_from(stride).unwrap(),
        });
        first_entry += part.entries.len() as u64;
        for (hash, _) in part.entries.iter().filter(|_| stride > 0) {
            let offset = bytes.len();
            bytes.resize(offset + stride, 0);
            let row = row(identity.number().0, *hash, part.width);
            let record = &mut bytes[offset..];
            encode_record(record, unmix64(*hash), &row, identity, offset as u64);
        }
    }
    bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
    let keys_offset = bytes.len() as u64;
    for entries in all.chunks(KEYS_PER_BLOCK) {
        let offset = bytes.len();
        bytes.resize(offset + BLOCK_BYTES, 0);
        let keys: Vec<u64> = entries.iter().map(|(hash, _)| unmix64(*hash)).collect();
        let intervals: Vec<u32> = entries.iter().map(|(_, interval)| *interval).collect();
        let block = &mut bytes[offset..];
        encode_key_block(block, &keys, &intervals, identity, offset as u64);
    }
    let footer = Footer {
        entries: all.len() as u64,
        rows_digest: 0,
        keys_digest: 0,
        keys_offset,
        hash_min: all.iter().map(|e| e.0).min().unwrap_or(0),
        hash_max: all.iter().map(|e| e.0).max().unwrap_or(0),
        interval_min: all.iter().map(|e| e.1).min().unwrap_or(0),
        interval_max: all.iter().map(|e| e.1).max().unwrap_or(0),
        runs,
        sections: Vec::new(),
    };
    (bytes, footer)
}

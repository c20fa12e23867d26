//! How do wrong bytes get past a checksum?
//!
//! - Every function here looks at bytes as docs/FORMAT.md lays them out, trusts no length in them,
//!   and writes right checksums and digests over whatever they hold. Nothing else is changed.
//! - [`store`] does so for a whole directory, up to `CURRENT`: what a careful attacker could do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hps::FileNumber;
use hps::format::checksum::{Digest, FileIdentity, Kind, ZERO_STORE, checksum, roll};
use hps::format::footer::FOOTER_MAGIC;
use hps::format::meta::META_HEADER_BYTES;
use hps::format::param_file::key_blocks;
use hps::format::{
    BLOCK_BYTES, CURRENT_NAME, FileKind, PART_NAME, STORE_NAME, file_name, parse_file_name,
};

use crate::{fix, identity, put_u64, u32_at, u64_at};

/// Bytes of a manifest's header, and of the head of its records.
const HEADER_BYTES: usize = 64;
const EDIT_HEAD_BYTES: usize = 16;
/// Footer: head (of version 1, and since), each of its runs, each of its sections.
const FOOTER_HEAD_BYTES: [usize; 2] = [80, 88];
const RUN_BYTES: usize = 40;
const SECTION_BYTES: usize = 32;
/// Most records of a run that get a checksum: no file of a target has more.
const RECORDS_MAX: u64 = 1024;

/// Files by path.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A meta file: checksums of body and header. Returns the header's, which covers the file.
pub fn meta(bytes: &mut [u8], id: &FileIdentity) -> u64 {
    let Some((header, body)) = bytes.split_at_mut_checked(META_HEADER_BYTES) else {
        return 0;
    };
    let seed = id.seed(Kind::MetaBody, META_HEADER_BYTES as u64);
    put_u64(header, 72, checksum(body, seed));
    fix(header, id, Kind::MetaHeader, 0);
    u64_at(header, 0)
}

/// A manifest: checksums of its header and of every record that fits. Returns the digest.
pub fn manifest(bytes: &mut [u8], id: &FileIdentity) -> u64 {
    records(bytes, id, |_, _| {})
}

/// As [`manifest`]; `change` gets kind and payload of each record first.
fn records(bytes: &mut [u8], id: &FileIdentity, change: impl Fn(u32, &mut [u8])) -> u64 {
    let Some((header, mut rest)) = bytes.split_at_mut_checked(HEADER_BYTES) else {
        return 0;
    };
    fix(header, id, Kind::ManifestHeader, 0);
    let mut digest = u64_at(header, 0);
    let mut offset = HEADER_BYTES;
    while rest.len() >= EDIT_HEAD_BYTES {
        let payload = u32_at(rest, 8) as usize;
        let length = (EDIT_HEAD_BYTES + payload).next_multiple_of(8);
        let Some((record, after)) = rest.split_at_mut_checked(length) else {
            break;
        };
        let kind = u32_at(record, 12);
        change(kind, &mut record[EDIT_HEAD_BYTES..]);
        fix(record, id, Kind::ManifestRecord, offset as u64);
        digest = roll(digest, u64_at(record, 0));
        offset += length;
        rest = after;
    }
    digest
}

/// An index snapshot of whole blocks: checksums of all, and the digest in the footer. Returns the
/// footer's checksum, which covers the file.
pub fn snapshot(bytes: &mut [u8], id: &FileIdentity) -> u64 {
    let count = bytes.len() / BLOCK_BYTES;
    if count < 2 {
        return 0;
    }
    let mut digest = 0;
    for (i, block) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        let offset = (i * BLOCK_BYTES) as u64;
        if i == 0 {
            fix(block, id, Kind::SnapshotHeader, 0);
            digest = u64_at(block, 0);
        } else if i + 1 < count {
            fix(block, id, Kind::SnapshotBlock, offset);
            digest = roll(digest, u64_at(block, 0));
        } else {
            put_u64(block, 48, digest);
            fix(block, id, Kind::SnapshotFooter, offset);
        }
    }
    u64_at(bytes, (count - 1) * BLOCK_BYTES)
}

/// A parameter file: header, the records and key blocks that its footer names, footer with both
/// digests. Returns the footer's checksum, which covers the file; 0 where there is no footer.
pub fn rows(bytes: &mut [u8], id: &FileIdentity) -> u64 {
    let magic = |at: &usize| bytes.get(at + 8..at + 16) == Some(FOOTER_MAGIC.as_slice());
    let Some(footer) = (0..bytes.len()).step_by(BLOCK_BYTES).rev().find(magic) else {
        return 0;
    };
    if let Some(header) = bytes.get_mut(..BLOCK_BYTES) {
        fix(header, id, Kind::ParamHeader, 0);
    }
    let runs = (u32_at(bytes, footer + 20) as usize).min((bytes.len() - footer) / RUN_BYTES);
    let is_old = u32_at(bytes, footer + 16) < 2;
    let lists = footer + FOOTER_HEAD_BYTES[usize::from(!is_old)];
    let mut digest = Digest::new();
    for run in 0..runs {
        let at = lists + run * RUN_BYTES;
        let (kind, entries) = (u32_at(bytes, at + 4), u64_at(bytes, at + 16));
        let (first, stride) = (u64_at(bytes, at + 24), u32_at(bytes, at + 32));
        for entry in 0..entries.min(RECORDS_MAX) {
            let offset = entry.wrapping_mul(u64::from(stride)).wrapping_add(first);
            let Some(record) = piece(bytes, offset, stride as usize).filter(|_| kind == 0) else {
                break;
            };
            fix(record, id, Kind::Record, offset);
            digest.update_u64(u64_at(record, 0));
        }
    }
    put_u64(bytes, footer + 32, digest.digest64());
    let mut digest = Digest::new();
    let mut offset = u64_at(bytes, footer + 48);
    let blocks = key_blocks(u64_at(bytes, footer + 24)).saturating_mul(BLOCK_BYTES as u64);
    let keys_end = offset.saturating_add(blocks).min(footer as u64);
    while offset < keys_end {
        let Some(block) = piece(bytes, offset, BLOCK_BYTES) else {
            break;
        };
        fix(block, id, Kind::KeyBlock, offset);
        digest.update_u64(u64_at(block, 0));
        offset += BLOCK_BYTES as u64;
    }
    put_u64(bytes, footer + 40, digest.digest64());
    if !is_old {
        sections(bytes, id, footer, lists + runs * RUN_BYTES);
    }
    fix(&mut bytes[footer..], id, Kind::Footer, footer as u64);
    u64_at(bytes, footer)
}

/// Checksums of the sections that the footer at `footer` lists from `at` on.
fn sections(bytes: &mut [u8], id: &FileIdentity, footer: usize, at: usize) {
    let most = bytes.len().saturating_sub(at) / SECTION_BYTES;
    let count = (u32_at(bytes, footer + 80) as usize).min(most);
    for place in (at..).step_by(SECTION_BYTES).take(count) {
        let (offset, length) = (u64_at(bytes, place + 8), u64_at(bytes, place + 16));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if let Some(content) = piece(bytes, offset, length) {
            let sum = checksum(content, id.seed(Kind::Section, offset));
            put_u64(bytes, place + 24, sum);
        }
    }
}

fn piece(bytes: &mut [u8], offset: u64, length: usize) -> Option<&mut [u8]> {
    let from = usize::try_from(offset).ok()?;
    bytes.get_mut(from..from.checked_add(length)?)
}

/// A whole store: every file of its own (a copy of a manifest as such), then the checksums that the manifest has of files, then
/// the digest that `CURRENT` has of the manifest.
pub fn store(files: &mut Files, root: &Path) {
    let mut sums = BTreeMap::new();
    for (path, bytes) in files.iter_mut() {
        let name = path
            .file_name()
            .map_or_else(String::new, |n| n.to_string_lossy().into());
        match (name.as_str(), parse_file_name(&name)) {
            (STORE_NAME, _) => fix(
                bytes,
                &FileIdentity::new(ZERO_STORE, FileNumber(0)),
                Kind::Identity,
                0,
            ),
            (PART_NAME, _) => {
                let index = u64_at(bytes, 48);
                fix(bytes, &identity(index), Kind::Part, 0);
            }
            (_, Some((kind, number))) => {
                let id = identity(number.0);
                let sum = match kind {
                    FileKind::Rows => rows(bytes, &id),
                    FileKind::Meta => meta(bytes, &id),
                    FileKind::Image | FileKind::Snapshot => snapshot(bytes, &id),
                    FileKind::Manifest => continue,
                    // Its edits are right ones, whatever they say, and may differ from the manifest's.
                    FileKind::ManifestCopy => {
                        manifest(bytes, &id);
                        continue;
                    }
                };
                sums.insert((kind, number), sum);
            }
            _ => {}
        }
    }
    let current_path = root.join(CURRENT_NAME);
    let Some(mut current) = files.remove(&current_path) else {
        return;
    };
    let number = u64_at(&current, 64);
    if let Some(bytes) =
        files.get_mut(&root.join(file_name(FileKind::Manifest, FileNumber(number))))
    {
        let committed = usize::try_from(u64_at(&current, 72)).unwrap_or(usize::MAX);
        let committed = committed.min(bytes.len());
        let digest = records(
            &mut bytes[..committed],
            &identity(number),
            |kind, payload| {
                // AddFile, Image, Snapshot, Checkpoint: which file, where its number and checksum are.
                let (file, number_at, sum_at) = match kind {
                    3 => (FileKind::Rows, 0, 32),
                    6 => (FileKind::Image, 0, 16),
                    14 => (FileKind::Snapshot, 8, 24),
                    7 | 9 => (FileKind::Meta, 24, 40),
                    _ => return,
                };
                if let Some(sum) = sums.get(&(file, FileNumber(u64_at(payload, number_at)))) {
                    put_u64(payload, sum_at, *sum);
                }
            },
        );
        put_u64(&mut current, 80, digest);
    }
    fix(&mut current, &identity(0), Kind::Current, 0);
    files.insert(current_path, current);
}

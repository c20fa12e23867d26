//! What does the end of a parameter file say about the rest?
//!
//! - The footer's checksum covers the file: it digests the checksums of records and key blocks,
//!   and the header follows from the file's identity.
//! - Entries are numbered through the runs, without a gap; so are the bytes of the records.
//! - A footer that contradicts itself is refused, though its checksum is right.
//! - Between key blocks and footer there may be sections, from version 2 on. Their kinds are not known
//!   to this build, which writes none: they are stepped over, and a verifier checks their bytes.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::checksum::{FileIdentity, Kind};
use super::layout::{DecodeError, Decoded, check_seal, check_zero, layout, seal, view};
use super::param_file::{ENTRIES_MAX, PARAM_HEADER_BYTES, STRIDE_MAX, STRIDE_MIN, key_blocks};
use super::{BLOCK_BYTES, Version};
use crate::options::TABLES_MAX;
use crate::units::{mix64, narrow, to_usize};

/// Magic bytes of the footer.
pub const FOOTER_MAGIC: [u8; 8] = *b"HPSFOOT\0";
/// Most runs of a file: two for each table.
pub const RUNS_MAX: usize = 2 * TABLES_MAX;

/// Most sections of a file.
pub const SECTIONS_MAX: usize = 64;

layout! {
    /// The start of the footer in version 1; runs follow.
    FooterHeadV1 = 80 {
        checksum: U64,
        magic: [u8; 8],
        version: U32,
        runs: U32,
        entries: U64,
        rows_digest: U64,
        keys_digest: U64,
        keys_offset: U64,
        hash_min: U64,
        hash_max: U64,
        interval_min: U32,
        interval_max: U32,
    }
}

layout! {
    /// The start of the footer; runs follow, then sections.
    FooterHead = 88 {
        checksum: U64,
        magic: [u8; 8],
        version: U32,
        runs: U32,
        entries: U64,
        rows_digest: U64,
        keys_digest: U64,
        keys_offset: U64,
        hash_min: U64,
        hash_max: U64,
        interval_min: U32,
        interval_max: U32,
        sections: U32,
        zero: U32,
    }
}

layout! {
    /// One run in the footer.
    RunEntry = 40 {
        table: U32,
        kind: U32,
        first_entry: U64,
        entries: U64,
        offset: U64,
        stride: U32,
        zero: U32,
    }
}

layout! {
    /// One section in the footer.
    SectionEntry = 32 {
        kind: U32,
        zero: U32,
        offset: U64,
        bytes: U64,
        checksum: U64,
    }
}

/// Bytes of the footer with that many runs and sections.
#[must_use]
pub const fn footer_bytes(runs: usize, sections: usize) -> usize {
    let lists = runs * RunEntry::BYTES + sections * SectionEntry::BYTES;
    (FooterHead::BYTES + lists).next_multiple_of(BLOCK_BYTES)
}

/// Bytes between key blocks and footer that mean something to whoever knows their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it is, from 1; no kind is known yet.
    pub kind: u32,
    /// Where it is: at a multiple of 4096.
    pub offset: u64,
    /// Bytes, at least 1; zeros follow to a multiple of 4096.
    pub bytes: u64,
    /// The checksum of these bytes.
    pub checksum: u64,
}

impl Section {
    /// Where the next section, or the footer, is.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        let end = self.offset.checked_add(self.bytes)?;
        end.checked_next_multiple_of(BLOCK_BYTES as u64)
    }

    /// Whether the digest of its bytes is that of its checksum.
    #[must_use]
    pub fn is_sealed_by(&self, digest: u64, identity: &FileIdentity) -> bool {
        self.checksum == Section::checksum(digest, identity, self.offset)
    }

    /// The checksum of a section at an offset, from the xxh3-64 of its bytes.
    #[must_use]
    pub fn checksum(digest: u64, identity: &FileIdentity, offset: u64) -> u64 {
        digest ^ identity.seed(Kind::Section, offset)
    }
}

/// What the entries of a run are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunKind {
    /// Keys with a record each.
    Rows,
    /// Keys removed.
    Tombstones,
}

impl RunKind {
    /// Its number on disk.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            RunKind::Rows => 0,
            RunKind::Tombstones => 1,
        }
    }
}

/// Consecutive entries of one table and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The table's number.
    pub table: u32,
    /// Rows or tombstones.
    pub kind: RunKind,
    /// Number of its first entry in the file.
    pub first_entry: u64,
    /// Number of entries, at least 1.
    pub entries: u64,
    /// Where its first record is; for tombstones, where the rows before them end.
    pub offset: u64,
    /// Bytes from record to record; 0 for tombstones.
    pub stride: u32,
}

impl Run {
    /// Where the record of entry `entry` (numbered in the file) is; `None` if it has none here.
    #[inline]
    #[must_use]
    pub fn record_offset(&self, entry: u64) -> Option<u64> {
        let index = entry.checked_sub(self.first_entry)?;
        (self.kind == RunKind::Rows && index < self.entries)
            .then(|| self.offset + index * u64::from(self.stride))
    }
}

/// What a parameter file holds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Footer {
    /// Number of entries: rows and tombstones.
    pub entries: u64,
    /// xxh3-64 of the records' checksums.
    pub rows_digest: u64,
    /// xxh3-64 of the key blocks' checksums.
    pub keys_digest: u64,
    /// Where the key blocks start.
    pub keys_offset: u64,
    /// Smallest mix64(key).
    pub hash_min: u64,
    /// Largest mix64(key).
    pub hash_max: u64,
    /// Smallest interval.
    pub interval_min: u32,
    /// Largest interval.
    pub interval_max: u32,
    /// The runs, by (table, kind).
    pub runs: Vec<Run>,
    /// The sections, by kind.
    pub sections: Vec<Section>,
}

impl Footer {
    /// Encodes the footer for file offset `offset`; returns its bytes (a multiple of 4096) and
    /// its checksum.
    #[must_use]
    pub fn encode(&self, identity: &FileIdentity, offset: u64) -> (Vec<u8>, u64) {
        let checked = self.check(offset);
        assert!(
            checked.is_ok(),
            "a footer is consistent when written: {checked:?}"
        );
        let head = FooterHead {
            checksum: U64::ZERO,
            magic: FOOTER_MAGIC,
            version: U32::new(Version::NEWEST.number()),
            runs: U32::new(narrow(self.runs.len())),
            entries: U64::new(self.entries),
            rows_digest: U64::new(self.rows_digest),
            keys_digest: U64::new(self.keys_digest),
            keys_offset: U64::new(self.keys_offset),
            hash_min: U64::new(self.hash_min),
            hash_max: U64::new(self.hash_max),
            interval_min: U32::new(self.interval_min),
            interval_max: U32::new(self.interval_max),
            sections: U32::new(u32::try_from(self.sections.len()).unwrap_or(u32::MAX)),
            zero: U32::ZERO,
        };
        let length = footer_bytes(self.runs.len(), self.sections.len());
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(head.as_bytes());
        for run in &self.runs {
            let entry = RunEntry {
                table: U32::new(run.table),
                kind: U32::new(run.kind.number()),
                first_entry: U64::new(run.first_entry),
                entries: U64::new(run.entries),
                offset: U64::new(run.offset),
                stride: U32::new(run.stride),
                zero: U32::ZERO,
            };
            out.extend_from_slice(entry.as_bytes());
        }
        for section in &self.sections {
            let entry = SectionEntry {
                kind: U32::new(section.kind),
                zero: U32::ZERO,
                offset: U64::new(section.offset),
                bytes: U64::new(section.bytes),
                checksum: U64::new(section.checksum),
            };
            out.extend_from_slice(entry.as_bytes());
        }
        out.resize(length, 0);
        let sum = seal(&mut out, identity.seed(Kind::Footer, offset));
        (out, sum)
    }

    /// Decodes the footer at file offset `offset`, which ends the file; returns its checksum too.
    ///
    /// # Errors
    /// `Newer`, or `Damaged` at `offset` (also for intact bytes that contradict themselves).
    pub fn decode(bytes: &[u8], identity: &FileIdentity, offset: u64) -> Decoded<(Footer, u64)> {
        let bad = |why: &str| Err(DecodeError::damaged(offset, format!("footer: {why}")));
        let (head, _) = view::<FooterHeadV1>(bytes, offset, "footer")?;
        if head.magic != FOOTER_MAGIC {
            return bad("its magic bytes are missing");
        }
        let sum = check_seal(bytes, identity.seed(Kind::Footer, offset), offset, "footer")?;
        let version = Version::of(head.version.get(), offset)?;
        let (sections, body) = decode_sections_head(bytes, version, offset)?;
        let runs = to_usize(head.runs.get());
        let lists = match runs <= RUNS_MAX && sections <= SECTIONS_MAX {
            true => runs * RunEntry::BYTES + sections * SectionEntry::BYTES,
            false => usize::MAX,
        };
        let head_bytes = bytes.len() - body.len();
        let length = lists.checked_add(head_bytes);
        let length = length.and_then(|n| n.checked_next_multiple_of(BLOCK_BYTES));
        if runs == 0 || length != Some(bytes.len()) {
            return bad("its length is not that of its runs and sections");
        }
        let Ok((entries, body)) = <[RunEntry]>::ref_from_prefix_with_elems(body, runs) else {
            return bad("its runs are cut short");
        };
        let Ok((places, padding)) = <[SectionEntry]>::ref_from_prefix_with_elems(body, sections)
        else {
            return bad("its sections are cut short");
        };
        check_zero(padding, offset, "footer")?;
        let footer = Footer {
            entries: head.entries.get(),
            rows_digest: head.rows_digest.get(),
            keys_digest: head.keys_digest.get(),
            keys_offset: head.keys_offset.get(),
            hash_min: head.hash_min.get(),
            hash_max: head.hash_max.get(),
            interval_min: head.interval_min.get(),
            interval_max: head.interval_max.get(),
            runs: entries
                .iter()
                .map(|entry| decode_run(entry, offset))
                .collect::<Result<_, _>>()?,
            sections: places
                .iter()
                .map(|place| decode_section(place, offset))
                .collect::<Result<_, _>>()?,
        };
        footer.check(offset)?;
        Ok((footer, sum))
    }

    /// Everything that must hold of a footer at file offset `offset`, without the file.
    fn check(&self, offset: u64) -> Decoded<()> {
        let bad = |why: &str| Err(DecodeError::damaged(offset, format!("footer: {why}")));
        if self.runs.is_empty() || self.entries == 0 || self.entries > ENTRIES_MAX {
            return bad("it has no entries, or too many");
        }
        if self.hash_min > self.hash_max || self.interval_min > self.interval_max {
            return bad("its ranges are reversed");
        }
        let block = BLOCK_BYTES as u64;
        if !self.keys_offset.is_multiple_of(block) || !offset.is_multiple_of(block) {
            return bad("its sections are not aligned");
        }
        let keys_end = self
            .keys_offset
            .checked_add(key_blocks(self.entries) * block);
        let sections_end = keys_end.and_then(|end| check_sections(&self.sections, end));
        if sections_end != Some(offset) {
            return bad("the key blocks and sections do not lie between rows and footer");
        }
        let mut last = None;
        let mut first_entry = 0u64;
        let mut end = PARAM_HEADER_BYTES as u64;
        for run in &self.runs {
            if last.is_some_and(|last| last >= (run.table, run.kind)) {
                return bad("its runs are out of order");
            }
            last = Some((run.table, run.kind));
            let Some(next) = check_run(run, first_entry, end) else {
                return bad("one of its runs has a wrong table, count, offset or stride");
            };
            (first_entry, end) = next;
        }
        if first_entry != self.entries {
            return bad("its runs do not add up to its entries");
        }
        if end.checked_next_multiple_of(block) != Some(self.keys_offset) {
            return bad("the rows do not end where the key blocks start");
        }
        Ok(())
    }

    /// Where the key blocks end.
    #[must_use]
    pub fn keys_end(&self) -> u64 {
        let blocks = key_blocks(self.entries);
        self.keys_offset.saturating_add(blocks * BLOCK_BYTES as u64)
    }

    /// Checks all keys and intervals of the file, in the order of the entries, against the footer:
    /// number, order inside each run, ranges.
    ///
    /// # Errors
    /// `Damaged` at the start of the key blocks.
    pub fn check_entries(&self, keys: &[u64], intervals: &[u32]) -> Decoded<()> {
        let bad = |why: &str| {
            Err(DecodeError::damaged(
                self.keys_offset,
                format!("keys: {why}"),
            ))
        };
        if keys.len() as u64 != self.entries || intervals.len() != keys.len() {
            return bad("their number is not the footer's");
        }
        let mut rest = keys;
        let mut range: Option<(u64, u64)> = None;
        for run in &self.runs {
            let count = to_usize(run.entries);
            let Some((these, next)) = rest.split_at_checked(count) else {
                return bad("their number is not that of the runs");
            };
            rest = next;
            if !these.is_sorted_by(|a, b| mix64(*a) < mix64(*b)) {
                return bad("they are not sorted inside a run");
            }
            if let (Some(first), Some(last)) = (these.first(), these.last()) {
                let (low, high) = range.unwrap_or((u64::MAX, 0));
                range = Some((low.min(mix64(*first)), high.max(mix64(*last))));
            }
        }
        if range != Some((self.hash_min, self.hash_max)) {
            return bad("their range is not the footer's");
        }
        let intervals = (
            intervals.iter().min().copied(),
            intervals.iter().max().copied(),
        );
        if intervals != (Some(self.interval_min), Some(self.interval_max)) {
            return bad("their intervals are not in the footer's range");
        }
        Ok(())
    }
}

/// The number of sections, and what follows the footer's head.
fn decode_sections_head(bytes: &[u8], version: Version, offset: u64) -> Decoded<(usize, &[u8])> {
    if version == Version::V1 {
        let (_, body) = view::<FooterHeadV1>(bytes, offset, "footer")?;
        return Ok((0, body));
    }
    let (head, body) = view::<FooterHead>(bytes, offset, "footer")?;
    if head.zero != U32::ZERO {
        let why = "footer: reserved bytes are not zero";
        return Err(DecodeError::damaged(offset, why));
    }
    Ok((to_usize(head.sections.get()), body))
}

fn decode_section(place: &SectionEntry, offset: u64) -> Decoded<Section> {
    if place.zero != U32::ZERO {
        let why = "footer: reserved bytes are not zero";
        return Err(DecodeError::damaged(offset, why));
    }
    Ok(Section {
        kind: place.kind.get(),
        offset: place.offset.get(),
        bytes: place.bytes.get(),
        checksum: place.checksum.get(),
    })
}

/// Checks sections against where the key blocks end; returns where they end.
fn check_sections(sections: &[Section], keys_end: u64) -> Option<u64> {
    let (mut end, mut last) = (keys_end, 0);
    for section in sections {
        let right = section.kind > last && section.offset == end && section.bytes > 0;
        (end, last) = (section.end().filter(|_| right)?, section.kind);
    }
    (sections.len() <= SECTIONS_MAX).then_some(end)
}

fn decode_run(entry: &RunEntry, offset: u64) -> Decoded<Run> {
    let kind = match entry.kind.get() {
        0 => RunKind::Rows,
        1 => RunKind::Tombstones,
        other => {
            let why = format!("footer: a run of unknown kind {other}");
            return Err(DecodeError::damaged(offset, why));
        }
    };
    if entry.zero != U32::ZERO {
        return Err(DecodeError::damaged(
            offset,
            "footer: reserved bytes are not zero",
        ));
    }
    Ok(Run {
        table: entry.table.get(),
        kind,
        first_entry: entry.first_entry.get(),
        entries: entry.entries.get(),
        offset: entry.offset.get(),
        stride: entry.stride.get(),
    })
}

/// Checks one run against where entries and rows before it end; returns where it ends.
fn check_run(run: &Run, first_entry: u64, end: u64) -> Option<(u64, u64)> {
    let sane = usize::try_from(run.table).is_ok_and(|table| table < TABLES_MAX)
        && run.first_entry == first_entry
        && run.offset == end
        && (1..=ENTRIES_MAX).contains(&run.entries);
    let next_entry = run.first_entry.checked_add(run.entries)?;
    let stride = usize::try_from(run.stride).ok()?;
    let (stride_fits, next_end) = match run.kind {
        RunKind::Tombstones => (stride == 0, end),
        RunKind::Rows => (
            (STRIDE_MIN..=STRIDE_MAX).contains(&stride) && stride.is_multiple_of(8),
            end.checked_add(run.entries.checked_mul(u64::from(run.stride))?)?,
        ),
    };
    (sane && stride_fits).then_some((next_entry, next_end))
}

//! How is one index image read by several threads?
//!
//! Its entry blocks are in the order of (table, mix64). [`ImageRanges::block_of`] finds where a
//! place in that order begins; each thread walks the blocks between two such places with an
//! [`ImageWalk`]; in the end the parts they read are joined and compared with the footer.
//!
//! Invariants:
//! - What a walk hands out counts only after [`ImageRanges::finish`]: each block is verified, but
//!   only all of them together are the image in force.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::Ssd;
use super::image::ImageScan;
use super::pieces::{aligned, read_exact};
use crate::error::{Error, Result};
use crate::format::image::{ENTRIES_PER_BLOCK, ImageFooter, ImageTally};
use crate::format::image_part::ImagePart;
use crate::format::{BLOCK_BYTES, FileIdentity};
use crate::io::{AlignedBuffer, DiskFile};
use crate::units::CheckpointId;

/// Blocks read at a time to find a place in the order.
const PROBE_BLOCKS: u64 = 16;
/// Bytes that a walk reads at a time.
const WALK_BYTES: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// An open image, its header, list of files and footer verified.
#[derive(Debug)]
pub struct ImageRanges {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    identity: FileIdentity,
    /// After the file numbers.
    tally: ImageTally,
    footer: ImageFooter,
    /// Numbers of the files that it covers.
    pub covered: Vec<u64>,
    /// Blocks of entries.
    blocks: u64,
    /// Table and hash of the first entry of blocks that were looked at.
    starts: BTreeMap<u64, (u32, u64)>,
}

impl Ssd {
    /// The image, if there is one that an open at `checkpoint` can use.
    pub fn image_ranges(&self, checkpoint: CheckpointId) -> Option<ImageRanges> {
        let opened = self.open_image(self.image_in_force()?);
        match opened.and_then(|scan| Ok((scan.checkpoint, ImageRanges::new(scan)?))) {
            Ok((of, image)) => (of <= checkpoint).then_some(image),
            Err(error) => {
                tracing::warn!(%error, "the index image is damaged; key blocks are read instead");
                None
            }
        }
    }
}

impl ImageRanges {
    /// Takes an image that was just opened, and verifies its footer.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported`.
    pub(super) fn new(scan: ImageScan) -> Result<ImageRanges> {
        let (file, path, identity, reference, tally, covered) = scan.into_parts();
        let last = reference.bytes.saturating_sub(BLOCK);
        let mut block = aligned(&path, BLOCK)?;
        read_exact(&*file, &path, &mut block, last)?;
        let footer = ImageFooter::decode(&block, &identity, last).map_err(|e| e.at(&path))?;
        if footer.checksum != reference.checksum {
            return Err(Error::corrupt(&path, last, "not the image in force"));
        }
        let blocks = last.saturating_sub(tally.next_offset()) / BLOCK;
        Ok(ImageRanges {
            file,
            path,
            identity,
            tally,
            footer,
            covered,
            blocks,
            starts: BTreeMap::new(),
        })
    }

    /// Entries, as the footer says.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.footer.entries
    }

    /// No fewer entries than so many blocks hold.
    #[must_use]
    pub fn entries_max(blocks: u64) -> u64 {
        blocks * ENTRIES_PER_BLOCK as u64
    }

    /// Blocks of entries.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many blocks begin before this place in the order.
    ///
    /// # Cost
    /// A logarithm of the number of blocks, and no block is read twice for it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block_of(&mut self, table: u32, hash: u64) -> Result<u64> {
        let (mut low, mut high) = (0, self.blocks);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle)? < (table, hash) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn start(&mut self, block: u64) -> Result<(u32, u64)> {
        if let Some(start) = self.starts.get(&block) {
            return Ok(*start);
        }
        let from = block / PROBE_BLOCKS * PROBE_BLOCKS;
        let mut walk = self.walk((from, (from + PROBE_BLOCKS).min(self.blocks)))?;
        let mut starts = Vec::new();
        let mut number = from;
        while let Some(start) = walk.step()? {
            starts.push((number, start));
            number += 1;
        }
        self.starts.extend(starts);
        let none = || Error::corrupt(&self.path, block * BLOCK, "the image ends early");
        self.starts.get(&block).copied().ok_or_else(none)
    }

    /// Walks the blocks with these numbers.
    ///
    /// # Errors
    /// `Io` when there is no memory for its window.
    pub fn walk(&self, (from, to): (u64, u64)) -> Result<ImageWalk<'_>> {
        let part = self.tally.part(from);
        let offset = part.next_offset();
        let bytes = ((to - from) * BLOCK).clamp(BLOCK, WALK_BYTES);
        Ok(ImageWalk {
            image: self,
            end: offset + (to - from) * BLOCK,
            part,
            window: aligned(&self.path, bytes)?,
            window_offset: offset,
            window_end: offset,
            table: 0,
            entries: Vec::with_capacity(ENTRIES_PER_BLOCK),
        })
    }

    /// Whether these parts, in order, are the image in force.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn finish<'a>(&self, parts: impl Iterator<Item = &'a ImagePart>) -> Result<()> {
        let mut tally = self.tally;
        let check = || {
            for part in parts {
                tally.join(part)?;
            }
            self.footer.check(&tally)
        };
        check().map_err(|e| e.at(&self.path))
    }

    /// Damage at a block of it.
    #[must_use]
    pub fn damaged(&self, what: impl Into<String>) -> Error {
        Error::corrupt(&self.path, 0, what)
    }
}

/// Walks blocks of entries.
pub struct ImageWalk<'a> {
    image: &'a ImageRanges,
    part: ImagePart,
    end: u64,
    window: AlignedBuffer,
    window_offset: u64,
    window_end: u64,
    /// Table of the entries of the last step.
    pub table: u32,
    /// Hash and location, as the image has it, of each of them.
    pub entries: Vec<(u64, u64)>,
}

impl ImageWalk<'_> {
    /// Reads the next block and tells the place of its first entry; `None` at the end.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn step(&mut self) -> Result<Option<(u32, u64)>> {
        let offset = self.part.next_offset();
        self.entries.clear();
        if offset >= self.end {
            return Ok(None);
        }
        let image = self.image;
        if offset >= self.window_end {
            let bytes = (self.end - offset).min(self.window.len() as u64);
            let length = usize::try_from(bytes).unwrap_or(usize::MAX);
            read_exact(
                &*image.file,
                &image.path,
                &mut self.window[..length],
                offset,
            )?;
            self.window_offset = offset;
            self.window_end = offset + bytes;
        }
        let at = usize::try_from(offset - self.window_offset).unwrap_or(usize::MAX);
        let block = &self.window[at..at + BLOCK_BYTES];
        self.table = self
            .part
            .decode(block, &image.identity, &mut self.entries)
            .map_err(|e| e.at(&image.path))?;
        Ok(self.entries.first().map(|e| (self.table, e.0)))
    }

    /// The blocks read so far belong to the part of another walk.
    pub fn restart(&mut self) {
        self.part.restart();
    }

    /// What was read.
    #[must_use]
    pub fn into_part(self) -> ImagePart {
        self.part
    }
}

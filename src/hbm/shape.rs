//! How large is a table, and what is asked of its calls? The same for every device.

use super::index::{bytes_of, sectors_for};
use super::status::Status;
use crate::error::{ArgumentError, Error, Result};
use crate::options::{HyperParameters, NonFinite, TableDescriptor};
use crate::row::{RowLayout, check_hyper};

/// Items of a block in a pass of the sort.
pub const SORT_ITEMS: usize = 4096;
/// Digits of a pass.
pub const DIGITS: usize = 256;
/// A key that a call names as often is summed by whole thread blocks.
pub const LONG_RUN: usize = 256;
/// Bytes of the status records of both streams, and of a table's counters.
pub const SMALL_BYTES: usize = 2 * Status::BYTES + 64;
/// Rows of an arena at most: numbers have 32 bits, the greatest stands for none.
const ROWS_MAX: usize = u32::MAX as usize - 1;
/// Keys of a call at most.
const BATCH_KEYS_MAX: usize = 1 << 30;

/// What a table in device memory is opened with.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HbmOptions {
    /// Rows of the arena, and keys that each of the two indexes holds. 1 to 2^32 - 2.
    pub rows_max: usize,
    /// Keys of one accumulate, pack or split at most. 1 to 2^30; default 2^20. Takes about 20 bytes each,
    /// and dim / 64 more.
    pub batch_keys_max: usize,
    /// Bytes through which `place` moves rows from pinned memory; default 32 MiB, at least one row.
    pub staging_bytes: usize,
    /// What becomes of gradients that are not finite; default `Skip`.
    pub non_finite: NonFinite,
    /// The optimizer's.
    pub hyper: HyperParameters,
}

impl HbmOptions {
    /// Options for an arena of so many rows.
    #[must_use]
    pub fn new(rows_max: usize) -> HbmOptions {
        HbmOptions {
            rows_max,
            batch_keys_max: 1 << 20,
            staging_bytes: 32 << 20,
            non_finite: NonFinite::default(),
            hyper: HyperParameters::default(),
        }
    }

    /// Keys of one call at most.
    #[must_use]
    pub fn batch_keys_max(mut self, keys: usize) -> HbmOptions {
        self.batch_keys_max = keys;
        self
    }

    /// Bytes of the staging memory.
    #[must_use]
    pub fn staging_bytes(mut self, bytes: usize) -> HbmOptions {
        self.staging_bytes = bytes;
        self
    }

    /// What becomes of gradients that are not finite.
    #[must_use]
    pub fn non_finite(mut self, what: NonFinite) -> HbmOptions {
        self.non_finite = what;
        self
    }

    /// The optimizer's hyperparameters.
    #[must_use]
    pub fn hyper(mut self, hyper: HyperParameters) -> HbmOptions {
        self.hyper = hyper;
        self
    }
}

/// Device memory of a table, in bytes; the caller's buffers come on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Footprint {
    /// Rows, each rounded up to 16 bytes.
    pub arena: u64,
    /// Two indexes.
    pub indexes: u64,
    /// One byte a row: changed since it was placed.
    pub dirty: u64,
    /// For calls of `batch_keys_max` keys, and the staging memory: whatever the rows.
    pub scratch: u64,
}

impl Footprint {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.arena + self.indexes + self.dirty + self.scratch
    }
}

/// What a table of these options takes, before it is taken.
///
/// # Errors
/// `InvalidArgument` naming the option that is out of range.
pub fn footprint(descriptor: &TableDescriptor, options: &HbmOptions) -> Result<Footprint> {
    Ok(Shape::new(descriptor, options)?.footprint())
}

/// Lengths in words of a row and of the scratch memory.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub descriptor: TableDescriptor,
    pub options: HbmOptions,
    pub dim: usize,
    pub row_f32s: usize,
    /// `row_f32s` rounded up to 16 bytes.
    pub stride: usize,
    #[cfg(any(feature = "cuda", feature = "emu"))]
    pub metadata_at: usize,
    pub sectors: usize,
}

impl Shape {
    pub fn new(descriptor: &TableDescriptor, options: &HbmOptions) -> Result<Shape> {
        descriptor.validate()?;
        check_hyper(&options.hyper)?;
        in_range("rows_max", options.rows_max, ROWS_MAX)?;
        in_range("batch_keys_max", options.batch_keys_max, BATCH_KEYS_MAX)?;
        let layout = RowLayout::new(descriptor);
        let row_f32s = layout.row_f32s();
        if options.staging_bytes < 4 * row_f32s {
            return Err(option(
                "staging_bytes",
                &options.staging_bytes,
                format!("a row has {} bytes", 4 * row_f32s),
            ));
        }
        Ok(Shape {
            descriptor: descriptor.clone(),
            options: options.clone(),
            dim: descriptor.dim,
            row_f32s,
            stride: row_f32s.next_multiple_of(4),
            #[cfg(any(feature = "cuda", feature = "emu"))]
            metadata_at: layout.metadata_range().start,
            sectors: sectors_for(options.rows_max),
        })
    }

    pub fn footprint(&self) -> Footprint {
        let bytes = |count: usize| count as u64;
        let sizes: usize = self.scratch().iter().map(|s| s.next_multiple_of(256)).sum();
        Footprint {
            arena: bytes(self.options.rows_max) * bytes(self.stride) * 4,
            indexes: 2 * bytes(bytes_of(self.sectors)),
            dirty: bytes(self.options.rows_max),
            scratch: bytes(sizes) + bytes(self.options.staging_bytes),
        }
    }

    /// Blocks of a pass of the sort over so many keys.
    pub fn sort_blocks(count: usize) -> usize {
        count.div_ceil(SORT_ITEMS).max(1)
    }

    /// Bytes of the scratch areas, in the order of `table::Scratch`.
    pub fn scratch(&self) -> [usize; 10] {
        let keys = self.options.batch_keys_max;
        let longs = keys / LONG_RUN + 1;
        [
            8 * keys, // u64 keys of a split, or u32 rows
            4 * keys,
            4 * keys,
            4 * keys,
            4 * DIGITS * Shape::sort_blocks(keys),
            4 * DIGITS,
            4 * longs,
            4 * longs * self.dim,
            8 * longs,
            SMALL_BYTES,
        ]
    }

    /// Bits of a row number.
    pub fn row_bits(&self) -> u32 {
        usize::BITS - (self.options.rows_max - 1).leading_zeros()
    }
}

/// An argument that can't be served, and the way out.
pub(crate) fn option(name: &'static str, value: &impl ToString, why: String) -> Error {
    ArgumentError::Option {
        name,
        value: value.to_string(),
        why,
    }
    .into()
}

fn in_range(name: &'static str, value: usize, most: usize) -> Result<()> {
    if value == 0 || value > most {
        return Err(option(name, &value, format!("must be from 1 to {most}")));
    }
    Ok(())
}

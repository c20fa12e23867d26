//! What is passed to each kernel? The host twin of `kernels/common.cu`.
//!
//! Invariants:
//! - Every structure has the layout that the kernels compile: both sides assert the sizes.
//! - Addresses are those of the device; 0 is none.

use super::launcher::{Address, Plain};

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident [$bytes:literal] { $($field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name { $(pub $field: $kind,)* }
        const _: () = assert!(size_of::<$name>() == $bytes, "as in common.cu");
        impl Args for $name {}
    )*};
}

/// An argument structure of a kernel.
pub trait Args: Copy + Send + Sync + 'static {}

/// What stays on the device until the host asks: [`Status::WORDS`] words of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// First refused call; 0: none.
    pub call: u64,
    pub key: u64,
    pub reason: u32,
    pub position: u32,
    /// Positions of that call that were refused.
    pub refused: u64,
    /// Positions left out so far: gradients that are not finite.
    pub skipped: u64,
    /// Rows of the last pack.
    pub packed: u64,
}

impl Status {
    pub const WORDS: usize = 8;
    pub const BYTES: usize = Status::WORDS * size_of::<u64>();
    /// Where `packed` lies.
    pub const PACKED_AT: u64 = 40;

    /// The record in words.
    pub fn of(words: [u64; Status::WORDS]) -> Status {
        let [call, key, why, refused, skipped, packed, ..] = words;
        let halves = [why & 0xffff_ffff, why >> 32];
        let [reason, position] = halves.map(|half| u32::try_from(half).unwrap_or(u32::MAX));
        Status {
            call,
            key,
            reason,
            position,
            refused,
            skipped,
            packed,
        }
    }
}

/// Why a call was refused, as the kernels number it.
pub const REFUSED_KEY: u32 = 1;
pub const REFUSED_GRADIENT: u32 = 2;
pub const REFUSED_ROW: u32 = 3;

/// Threads of a block, in every launch.
pub const THREADS: u32 = 256;
/// Items of a block in a pass of the sort.
pub const SORT_ITEMS: usize = 4096;
/// Digits of a pass.
pub const DIGITS: usize = 256;
/// A key that a call names as often is summed by thread blocks of its own.
pub const LONG_RUN: usize = 256;
/// Columns of a long run that a block sums.
pub const LONG_COLUMNS: usize = 8;

arguments! {
    /// insert, rows_of.
    IndexArgs [104] {
        status: Address,
        call: u64,
        entries: Address,
        sectors: u64,
        keys: Address,
        rows: Address,
        counts: Address,
        failed: Address,
        failed_max: u64,
        found: Address,
        positions: Address,
        long_count: Address,
        n: u32,
        rows_max: u32,
    }
    /// get, place, pack, check_rows.
    RowsArgs [96] {
        status: Address,
        call: u64,
        entries: Address,
        sectors: u64,
        keys: Address,
        rows: Address,
        count: Address,
        arena: Address,
        packed: Address,
        dirty: Address,
        n: u32,
        rows_max: u32,
        stride: u32,
        width: u32,
    }
    /// A pass of the sort.
    SortArgs [96] {
        status: Address,
        call: u64,
        keys_in: Address,
        keys_out: Address,
        positions_in: Address,
        positions_out: Address,
        counts: Address,
        totals: Address,
        dirty: Address,
        ends: Address,
        n: u32,
        blocks: u32,
        shift: u32,
        parts: u32,
    }
    /// accumulate, but for its look-up and sort.
    UpdateArgs [176] {
        status: Address,
        call: u64,
        rows: Address,
        positions: Address,
        gradients: Address,
        arena: Address,
        dirty: Address,
        flags: Address,
        long_count: Address,
        long_starts: Address,
        long_sums: Address,
        long_extra: Address,
        shows: Address,
        clicks: Address,
        n: u32,
        dim: u32,
        stride: u32,
        metadata_at: u32,
        columns: u32,
        step: u32,
        skip: u32,
        lr: f32,
        momentum: f32,
        epsilon: f32,
        beta1: f32,
        beta2: f32,
        ftrl_beta: f32,
        lambda1: f32,
        lambda2: f32,
        looks: u32,
    }
    /// merge.
    MergeArgs [32] {
        positions: Address,
        from: Address,
        to: Address,
        n: u32,
        width: u32,
    }
}

impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for f32 {}

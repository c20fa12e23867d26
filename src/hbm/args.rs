//! What is passed to each kernel? The host twin of `kernels/common.cu`.
//!
//! Invariants:
//! - Every structure has the layout that the kernels compile: both sides assert the sizes.
//! - Addresses are those of the device; 0 is none.

/// An address of the device. Pinned host memory has one, too.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address(pub u64);

impl Address {
    /// Nothing is there.
    pub const NONE: Address = Address(0);

    /// The address so many bytes on.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }
}

/// Values that any bits make: they are copied as they are.
pub trait Plain: Copy + Send + Sync + 'static {}

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

/// Threads of a block, in every launch.
pub const THREADS: u32 = 256;

arguments! {
    /// insert, rows_of.
    IndexArgs [96] {
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
    UpdateArgs [184] {
        status: Address,
        call: u64,
        rows: Address,
        positions: Address,
        looked_at: Address,
        keys: Address,
        gradients: Address,
        arena: Address,
        dirty: Address,
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
    MergeArgs [48] {
        status: Address,
        call: u64,
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

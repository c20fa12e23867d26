//! How are options made outside of this crate, where a literal of a `#[non_exhaustive]` struct does
//! not compile? By `new`, and a method for each field, of the field's name.

use std::collections::BTreeMap;
use std::path::PathBuf;

#[cfg(feature = "sim")]
use super::Thresholds;
use super::{
    CreateOptions, Dtype, HyperParameters, Initialiser, IoEngine, NonFinite, Optimizer, PolicyKind,
    RowMetadata, RuntimeOptions, TableDescriptor, TableOptions,
};

/// Gives a struct a method for each field, which sets it and gives the struct back; with `const`
/// before its name, one that constants can be made by.
macro_rules! setters {
    (const $options:ident $fields:tt) => {
        $crate::options::setters!(@ [const] $options $fields);
    };
    ($options:ident $fields:tt) => {
        $crate::options::setters!(@ [] $options $fields);
    };
    (@ $const:tt $options:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        impl $options {
            $($crate::options::setters!(
                @@ $const $options $(#[$attribute])* $field: $type
            );)*
        }
    };
    (@@ [$($const:tt)?] $options:ident $(#[$attribute:meta])* $field:ident: $type:ty) => {
        #[doc = concat!(
            "Sets [`", stringify!($field), "`](field@", stringify!($options), "::",
            stringify!($field), ")."
        )]
        $(#[$attribute])*
        #[must_use]
        pub $($const)? fn $field(mut self, $field: $type) -> $options {
            self.$field = $field;
            self
        }
    };
}
pub(crate) use setters;

setters!(RowMetadata {
    show: bool,
    click: bool,
    count: bool,
    last_step: bool,
});

setters!(TableDescriptor {
    name: String,
    dim: usize,
    dtype: Dtype,
    optimizer: Optimizer,
    initialiser: Initialiser,
    seed: u64,
    accumulator: f32,
    metadata: RowMetadata,
});

setters!(HyperParameters {
    momentum: f32,
    epsilon: f32,
    beta1: f32,
    beta2: f32,
    ftrl_beta: f32,
    lambda1: f32,
    lambda2: f32,
});

setters!(CreateOptions {
    data_directories: Vec<PathBuf>,
});

setters!(RuntimeOptions {
    cache_bytes: u64,
    shards: usize,
    threads: usize,
    io_depth: usize,
    io: IoEngine,
    policy: PolicyKind,
    file_bytes: u64,
    flush_step_rows: usize,
    space_bound: f64,
    compaction_threads: usize,
    open_files_max: usize,
    disk_bytes_max: u64,
    retain_checkpoints: usize,
    inline: bool,
    warm: bool,
    non_finite: NonFinite,
    hyper: HyperParameters,
    tables: BTreeMap<String, TableOptions>,
    moved_directories: Vec<PathBuf>,
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    thresholds: Thresholds,
});

impl RowMetadata {
    /// No column.
    #[must_use]
    pub fn new() -> RowMetadata {
        RowMetadata::default()
    }
}

impl HyperParameters {
    /// The defaults.
    #[must_use]
    pub fn new() -> HyperParameters {
        HyperParameters::default()
    }
}

impl RuntimeOptions {
    /// The defaults.
    #[must_use]
    pub fn new() -> RuntimeOptions {
        RuntimeOptions::default()
    }
}

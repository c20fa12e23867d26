//! Which kernels are there, and what is their source?
//!
//! The source is part of the library; CUDA compiles it when a device is opened, the emulator's build
//! when the feature `emu` is on. `tools/kernels.sh` compares the names with the compiled ones.

/// The source, one translation unit without includes.
#[cfg(feature = "cuda")]
pub const SOURCE: &str = concat!(
    include_str!("../../kernels/common.cu"),
    include_str!("../../kernels/index.cu"),
    include_str!("../../kernels/rows.cu"),
    include_str!("../../kernels/group.cu"),
    include_str!("../../kernels/long_runs.cu"),
    include_str!("../../kernels/update.cu"),
);

#[cfg(all(test, feature = "emu"))]
mod tests;

/// All kernels.
pub const NAMES: &[&str] = &[
    "insert",
    "rows_of",
    "check_rows",
    "merge",
    "probe_read",
    "probe_write",
    "sort_scan",
    "count_by_row",
    "move_by_row",
    "count_by_owner",
    "move_by_owner",
    "count_by_dirty",
    "move_by_dirty",
    "check_gradients",
    "flag_gradients",
    "find_long",
    "rowwise",
    "get_wide4",
    "pack_wide4",
    "place_wide4",
    "get_wide8",
    "pack_wide8",
    "place_wide8",
    "get_wide16",
    "pack_wide16",
    "place_wide16",
    "get_wide32",
    "pack_wide32",
    "place_wide32",
    "get_word4",
    "pack_word4",
    "place_word4",
    "get_word32",
    "pack_word32",
    "place_word32",
    "sgd_wide4",
    "sgd_wide16",
    "sgd_wide32",
    "sgd_word16",
    "momentum_wide4",
    "momentum_wide16",
    "momentum_wide32",
    "momentum_word16",
    "nesterov_wide4",
    "nesterov_wide16",
    "nesterov_wide32",
    "nesterov_word16",
    "adagrad_wide4",
    "adagrad_wide16",
    "adagrad_wide32",
    "adagrad_word16",
    "adam_wide4",
    "adam_wide16",
    "adam_wide32",
    "adam_word16",
    "ftrl_wide4",
    "ftrl_wide16",
    "ftrl_wide32",
    "ftrl_word16",
];

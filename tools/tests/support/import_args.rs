//! What a model's rows are read by, without a store.

use std::path::Path;

use clap::Parser;
use hps_tools::import::Args;

/// Flags as a command line has them, words apart.
pub fn import_args(flags: &str, model: &Path) -> Args {
    let words = "import --format parquet --table t --create"
        .split(' ')
        .chain(flags.split(' '));
    Args::parse_from(words.map(Path::new).chain([Path::new("none"), model]))
}

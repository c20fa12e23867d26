//! What does `hps-fsck` accept?

use std::path::PathBuf;

use clap::{Parser, ValueHint};
use hps::CheckpointId;

use crate::cli::{self, Common};

/// Checks a store on disk, and repairs it if asked.
///
/// Verifies the identity files, CURRENT and the manifest, every parameter file of every retained
/// checkpoint against the manifest (length, checksums, order of keys), the meta files, and the
/// index snapshot against the key blocks. A store that is open elsewhere is checked as of its
/// retained checkpoints.
///
/// With --repair everything that verifies is saved into a new store beside DIR, which then takes
/// DIR's place; the damaged store is kept as DIR.damaged. Sound files are shared by hard links. A data
/// directory that is not there is not repaired around: mount it, or name it by --without-directory.
///
/// Exit codes: 0 whole (leftovers of a crash are named), 1 the stores differ (--diff) or all damage
/// was repaired, 4 damage was found, or bytes that the device can't read (or it was repaired at the
/// cost of rows), 8 could not run (no store, no permission, another I/O error), 16 wrong arguments,
/// 32 stopped by Ctrl-C.
#[derive(Clone, Debug, Parser)]
#[command(name = "hps-fsck", version, long_version = cli::version())]
pub struct Args {
    /// The store's directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Only what can be checked without reading rows and keys: identity, manifest, lengths,
    /// headers, footers
    #[arg(long, conflicts_with_all = ["full", "digest", "diff"])]
    pub quick: bool,
    /// Every byte of every file (the default)
    #[arg(long)]
    pub full: bool,
    /// Count the rows of this retained checkpoint (or repair it) instead of the last one
    #[arg(long, value_name = "ID")]
    pub checkpoint: Option<CheckpointId>,
    /// Print a digest of all rows of the checkpoint: equal for equal rows, whatever the files
    #[arg(long)]
    pub digest: bool,
    /// Compare the rows of the checkpoint with those of the last checkpoint of another store
    #[arg(long, value_name = "OTHER_DIR", value_hint = ValueHint::DirPath)]
    pub diff: Option<PathBuf>,
    /// Save what verifies, list the keys that are lost, and put the repaired store in DIR's place
    #[arg(long, conflicts_with_all = ["quick", "digest", "diff"])]
    pub repair: bool,
    /// If the checkpoint's meta file is damaged, give the repaired store an empty one
    #[arg(long, requires = "repair")]
    pub without_meta: bool,
    /// Repair without data directory N, counted from 0, which is lost: its rows are given up; may be
    /// given again
    #[arg(long, value_name = "N", requires = "repair")]
    pub without_directory: Vec<usize>,
    /// Repair a store that belongs to another user: the new files will belong to you
    #[arg(long, requires = "repair")]
    pub force: bool,
    /// Print how many rows have a norm of which size
    #[arg(long)]
    pub norms: bool,
    /// Print one JSON object, plain numbers
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Colours, progress, and how much is said
    #[command(flatten)]
    pub common: Common,
}

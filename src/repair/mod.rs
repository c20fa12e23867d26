//! How is everything saved that can be saved of a damaged store?
//!
//! A new store is built beside the damaged one from what verifies; then the two change places.
//!
//! - Nothing in the damaged store is changed; it is kept beside the repaired one.
//! - Sound parameter files are shared by hard links, damaged ones are written anew.
//! - The new store is inspected in full before anything is swapped.
//! - The store must not be open: its lock is held to the end.

mod build;
mod copies;
mod file;
mod find;
mod holes;
mod layout;
mod lost;
mod snapshot;
mod swap;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{ArgumentError, Error, Result};
use crate::format::{FileKind, parse_file_name};
use crate::inspect::{MissingDirectory, Progress, Report, Scope, Severity, look};
use crate::io::{Directory, Io};
use crate::options::setters;
use crate::ssd::directories::{check_part, open_part, open_root};
use crate::ssd::lock::{Locks, lock_writer};
use crate::units::{CheckpointId, FileNumber};

use build::Build;

pub use lost::{Counts, Fate, LostRow, LostRows};

/// Damage that an inspection could not see behind other damage is found in the store that was
/// built without the latter.
const ROUNDS: usize = 3;

/// What the repaired store shall hold.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RepairOptions {
    /// The retained checkpoint; `None`: the last that can be found.
    pub checkpoint: Option<CheckpointId>,
    /// Where the checkpoint's meta file is damaged: an empty one takes its place.
    pub without_meta: bool,
    /// Data directories that are lost, by their place in the list: rows that only they hold are given
    /// up. One that is missing and not named here may just not be mounted, and is not repaired.
    pub without_directories: Vec<usize>,
}

setters!(RepairOptions {
    checkpoint: Option<CheckpointId>,
    without_meta: bool,
    without_directories: Vec<usize>,
});

impl RepairOptions {
    /// The last checkpoint, with all that it needs.
    #[must_use]
    pub fn new() -> RepairOptions {
        RepairOptions::default()
    }
}

/// A store that was built from a damaged one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Repaired {
    /// Where it is.
    pub path: PathBuf,
    /// The checkpoint that it holds.
    pub checkpoint: CheckpointId,
    /// The trainer's step of it.
    pub step: u64,
    /// Whether its meta file was lost, and is empty now.
    pub meta_lost: bool,
    /// What was wrong with CURRENT or the manifest, if later checkpoints may be lost by that.
    pub version_lost: Option<String>,
    /// Earlier checkpoints that it holds as well: all of their files are sound.
    pub checkpoints_kept: Vec<CheckpointId>,
    /// Retained checkpoints that it does not hold.
    pub checkpoints_dropped: Vec<CheckpointId>,
    /// Data directories outside the store: the damaged one's, and the new one inside it.
    pub moved: Vec<(PathBuf, PathBuf)>,
    /// Data directories that were given up, and where their new one is.
    pub given_up: Vec<(usize, PathBuf)>,
    /// Names of the tables that the checkpoint has, by number; those that were dropped are left out.
    pub tables: Vec<String>,
    /// Files that are shared with the damaged store.
    pub files_shared: u64,
    /// Files that were written anew, with what verified of them; rows of dropped tables are left out.
    pub files_rewritten: u64,
    /// Files of which nothing was left that the checkpoint needs.
    pub files_gone: u64,
    /// Rows and removed keys in rewritten files.
    pub entries_saved: u64,
    /// How many keys have lost their newest copy; each was told.
    pub lost: Counts,
    /// Entries that are lost and can't be named; any of them may have been replaced since, and any
    /// may be a removed key, which is back then.
    pub nameless: u64,
    /// Copies that no store writes beside others: of one rank, or older ones of a later interval. Of each
    /// key the one in the younger file was kept, which may not be the right one.
    pub undecided: u64,
    _locks: Locks,
}

impl Repaired {
    /// Whether every row of every retained checkpoint is what it was.
    #[must_use]
    pub fn lost_nothing(&self) -> bool {
        self.lost == Counts::default()
            && self.nameless == 0
            && self.undecided == 0
            && !self.meta_lost
            && self.version_lost.is_none()
            && self.checkpoints_dropped.is_empty()
    }

    /// Puts the repaired store in the place of the damaged one at `root`; returns where that is
    /// now.
    ///
    /// # Durability
    /// Survives a crash once this returns. After a crash before that, `root` is one of the two, and
    /// the next repair ends the swap; only where the file system can't exchange names, `root` may be
    /// missing, and both stand beside.
    ///
    /// # Errors
    /// `Io`.
    pub fn swap(&self, root: &Path) -> Result<PathBuf> {
        self.take_place(&Io::best(), root)
    }

    /// [`Repaired::swap`] on a disk of the caller's.
    ///
    /// # Errors
    /// As [`Repaired::swap`].
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    pub fn swap_on(&self, io: &Io, root: &Path) -> Result<PathBuf> {
        self.take_place(io, root)
    }

    fn take_place(&self, io: &Io, root: &Path) -> Result<PathBuf> {
        let site = Site::open(io, root)?;
        let aside = swap::swap(&*site.parent, &site.name, &site.repaired)?;
        Ok(root.with_file_name(aside))
    }
}

/// What became of a repair.
#[derive(Debug)]
pub enum RepairOutcome {
    /// There is nothing to repair.
    Whole(Report),
    /// A repaired store stands beside the damaged one; [`Repaired::swap`] ends the repair.
    Built(Report, Box<Repaired>),
}

/// Builds a repaired store beside the store in `root`, if that is damaged, and tells `lost` of every
/// key whose newest copy is lost, by table and mix64(key), once that store is whole. `root` has a parent
/// directory and no `..` at its end. `progress` is told bytes of three passes: over the damaged
/// store, over its damaged files, over the new store.
///
/// # Cost
/// Reads the store twice, and the key blocks of each earlier checkpoint that is whole; writes as many
/// bytes as the damaged files have. Memory as for an inspection,
/// and 32 bytes for each lost row of files that still name it. What only the index snapshot names,
/// such as the rows of a lost data directory, is not held.
///
/// # Errors
/// `Locked` when the store is open; `MissingDirectory` when a data directory is missing and the
/// options don't say that it is lost; `Corrupt` when it can't be repaired, which says what would
/// help; `InvalidArgument` for no store, a checkpoint that is not retained, or a data directory that
/// is called lost and is there; `Io`, `NoSpace`;
/// `Cancelled`. The store is as it was, and what was built is removed.
///
/// # Examples
/// ```
/// # use hps::*;
/// # use std::ops::ControlFlow;
/// use hps::repair::{LostRow, RepairOptions, RepairOutcome, repair};
/// # let directory = std::env::temp_dir().join(format!("hps-repair-{}", std::process::id()));
/// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
/// # Store::create(&directory, CreateOptions::new(), options)?.close()?;
/// let mut lost = |table: &str, row: LostRow| {
///     println!("{table}: {row:?} is lost");
///     Ok(())
/// };
/// let mut progress = |_, _| ControlFlow::Continue(());
/// match repair(&directory, RepairOptions::new(), &mut lost, &mut progress)? {
///     RepairOutcome::Whole(_) => println!("nothing to repair"),
///     RepairOutcome::Built(_, repaired) => {
///         let damaged = repaired.swap(&directory)?;
///         println!("the damaged store is at {}", damaged.display());
///     }
/// }
/// # std::fs::remove_dir_all(&directory).ok();
/// # hps::Result::Ok(())
/// ```
pub fn repair(
    root: &Path,
    options: RepairOptions,
    lost: &mut LostRows<'_>,
    progress: &mut Progress<'_>,
) -> Result<RepairOutcome> {
    mend(&Io::best(), root, options, lost, progress)
}

/// [`repair`] on a disk of the caller's.
///
/// # Errors
/// As [`repair`].
#[cfg(feature = "sim")]
#[doc(hidden)]
pub fn repair_on(
    io: &Io,
    root: &Path,
    options: RepairOptions,
    lost: &mut LostRows<'_>,
    progress: &mut Progress<'_>,
) -> Result<RepairOutcome> {
    mend(io, root, options, lost, progress)
}

fn mend(
    io: &Io,
    root: &Path,
    options: RepairOptions,
    lost: &mut LostRows<'_>,
    progress: &mut Progress<'_>,
) -> Result<RepairOutcome> {
    // No store, no lock: a directory of something else gets no file of ours.
    let place = open_root(&*io.disk, root)?;
    let (store, directories) = find::identity(&*place)?;
    let site = Site::open(io, root)?;
    let locks = lock_writer(&place)?;
    swap::finish(&*site.parent, &site.name, &site.repaired)?;
    check_given_up(&*place, &store, &directories, &options)?;
    let scope = Scope {
        full: true,
        unreadable_is_damage: true,
        without_meta: options.without_meta,
        ..Scope::default()
    };
    let mut report = look(io, root, scope, progress)?;
    // That is this repair itself.
    report.open_elsewhere = false;
    let given_up = &options.without_directories;
    let missing = &report.missing_directories;
    if let Some(missing) = missing.iter().find(|m| !given_up.contains(&m.index)) {
        let MissingDirectory { index, path, empty } = missing.clone();
        return Err(Error::MissingDirectory { index, path, empty });
    }
    if report.worst() < Some(Severity::Cache) {
        return Ok(RepairOutcome::Whole(report));
    }
    let mut build = Build::new(io, place, site, store, &directories)?;
    let built = rounds(&mut build, &report, &options, progress).and_then(|mut repaired| {
        build.settle(&mut repaired, lost)?;
        Ok(repaired)
    });
    match built {
        Ok(repaired) => Ok(RepairOutcome::Built(
            report,
            Box::new(Repaired {
                _locks: locks,
                ..repaired
            }),
        )),
        Err(error) => {
            build.clear()?;
            Err(error)
        }
    }
}

/// Nobody gives up a data directory that is there by a slip.
fn check_given_up(
    root: &dyn Directory,
    store: &[u8; 16],
    names: &[PathBuf],
    options: &RepairOptions,
) -> Result<()> {
    let refused = |index: usize, why: String| {
        let (name, value) = ("without_directories", index.to_string());
        Err(ArgumentError::Option { name, value, why }.into())
    };
    for &index in &options.without_directories {
        let Some(name) = names.get(index) else {
            let why = format!("the store has data directories 0 to {}", names.len() - 1);
            return refused(index, why);
        };
        let place = open_part(root, name, index);
        if place.is_ok_and(|place| check_part(&*place, store, index).is_ok()) {
            let path = root.path().join(name);
            let why = format!(
                "{} is there, and its rows would be given up",
                path.display()
            );
            return refused(index, why);
        }
    }
    Ok(())
}

fn rounds(
    build: &mut Build<'_>,
    report: &Report,
    options: &RepairOptions,
    progress: &mut Progress<'_>,
) -> Result<Repaired> {
    let mut damaged = damaged_files(report);
    for round in 0..ROUNDS {
        let repaired = build.run(&damaged, round > 0, options, progress)?;
        // Links lead to what the device has lost of the damaged store.
        let scope = Scope {
            full: true,
            unreadable_is_damage: true,
            ..Scope::default()
        };
        let report = look(build.io(), &repaired.path, scope, progress)?;
        if report.worst().is_none() {
            return Ok(repaired);
        }
        let mut more = damaged_files(&report);
        more.extend(build.contradicting(&repaired)?);
        if more.is_subset(&damaged) {
            break;
        }
        damaged.extend(more);
    }
    let what =
        "what was saved does not make a whole store: nothing was changed; please report this";
    Err(Error::corrupt(build.root(), 0, what))
}

/// Numbers of the parameter files, and of the parts of the index snapshot, that something is wrong with.
fn damaged_files(report: &Report) -> BTreeSet<FileNumber> {
    let names = report
        .findings
        .iter()
        .filter(|f| f.severity > Severity::Leftover);
    let names = names.filter_map(|f| f.path.file_name()?.to_str());
    names
        .filter_map(|name| match parse_file_name(name) {
            Some((FileKind::Rows | FileKind::Image | FileKind::Snapshot, number)) => Some(number),
            _ => None,
        })
        .collect()
}

/// Where a repair works: the directory that holds the store, and the two names in it.
struct Site {
    parent: Arc<dyn Directory>,
    /// Of the damaged store.
    name: OsString,
    /// Of the repaired one, until they change places.
    repaired: OsString,
    /// Where that is.
    path: PathBuf,
}

impl Site {
    fn open(io: &Io, root: &Path) -> Result<Site> {
        let Some(name) = root.file_name() else {
            let why = "has no name to put another directory beside; give the directory itself";
            return Err(ArgumentError::NotAStore {
                path: root.to_path_buf(),
                why: String::from(why),
            }
            .into());
        };
        let mut repaired = name.to_os_string();
        repaired.push(".repair");
        let parent = root.parent().filter(|p| !p.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let opened = io.disk.open_dir(parent);
        Ok(Site {
            parent: opened.map_err(|e| Error::io("open", parent, e))?,
            name: name.to_os_string(),
            path: root.with_file_name(&repaired),
            repaired,
        })
    }
}

#[cfg(test)]
mod tests;

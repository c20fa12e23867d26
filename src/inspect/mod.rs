//! Is a store on disk whole, and what is in it? A read-only view of a directory, for tools.
//!
//! - Nothing on disk is believed and nothing is written; every file is looked at, also after
//!   another was found damaged, as far as it can be found at all.
//! - A store that is open elsewhere can be inspected: its retained checkpoints are locked like a
//!   reader's, what its writer has not yet made durable is not looked at, and what it replaces
//!   meanwhile is no damage (`moment`).
//! - Memory: no index; a bit per entry, 12 bytes per entry of the files that are read at a time, 64
//!   MiB of key blocks (16 KiB a file, with more than 4096 files) and read buffers of 4 MiB a thread.

mod live;
mod moment;
mod report;
mod rows;
mod snapshot;
mod snapshot_parts;
mod stream;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{ArgumentError, Error, Result};
use crate::format::current::Current;
use crate::format::footer::Footer;
use crate::format::manifest::{CheckpointMeta, FileMeta};
use crate::format::{
    CURRENT_TEMPORARY_NAME, FileIdentity, FileKind, STORE_NAME, data_file_name, file_name,
    manifest_names, parse_file_name,
};
use crate::io::{Directory, Io, LockGuard, OpenMode, is_unreadable, raise_descriptor_limit_to};
use crate::options::{TableDescriptor, setters};
use crate::ssd::data_file::DataFile;
use crate::ssd::directories::{check_part, open_part, open_root, read_store};
use crate::ssd::edits::Replay;
use crate::ssd::manifest_reader::check_sanity;
use crate::ssd::meta_file::check_meta_file;
use crate::ssd::names::STORE_TEMPORARY_NAME;
use crate::ssd::open_footer;
use crate::ssd::opening::DESCRIPTORS_SPARE;
use crate::ssd::small_files::read_start;
use crate::ssd::tables::descriptors;
use crate::units::{CheckpointId, FileNumber, FileSlot};

use moment::{Changes, Moment, Reading};
pub use report::{
    CheckpointReport, CursorReport, FileReport, Finding, MissingDirectory, Report, Severity,
    SnapshotPartReport, TableReport,
};
pub use rows::{NORM_BUCKETS, ValueStats};

/// How much is looked at.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Scope {
    /// Every byte of every file; else the identity, the manifest, lengths, headers and footers.
    pub full: bool,
    /// The checkpoint whose rows are counted (retained); `None`: the last.
    pub checkpoint: Option<CheckpointId>,
    /// Bytes that the device can't give are a finding, and not an error.
    pub unreadable_is_damage: bool,
    /// Only the parameter files of the checkpoint: no meta file, no copy of the manifest, no index snapshot,
    /// no leftovers, nothing that only other checkpoints need; rows are verified and not counted.
    pub rows_only: bool,
    /// A meta file that can't be read for whatever cause is a finding: a repair is to do without.
    pub(crate) without_meta: bool,
}

setters!(const Scope {
    full: bool,
    checkpoint: Option<CheckpointId>,
    unreadable_is_damage: bool,
    rows_only: bool,
});

impl Scope {
    /// A quick look at the last checkpoint.
    #[must_use]
    pub const fn new() -> Scope {
        Scope {
            full: false,
            checkpoint: None,
            unreadable_is_damage: false,
            rows_only: false,
            without_meta: false,
        }
    }
}

/// Shared locks on retained checkpoints.
type Locks = Vec<Box<dyn LockGuard>>;

/// A parameter file that could be opened.
struct Opened {
    file: Arc<DataFile>,
    footer: Footer,
}

/// A data directory, open if it is there.
struct Part {
    path: PathBuf,
    place: Option<Arc<dyn Directory>>,
}

struct Inspection<'a> {
    io: &'a Io,
    root: Arc<dyn Directory>,
    scope: Scope,
    progress: &'a mut (dyn FnMut(u64, u64) -> ControlFlow<()> + 'a),
    report: Report,
    changes: Changes,
}

/// Told (bytes done, bytes to do) of parameter files; may end the work.
pub type Progress<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// Looks at the store in the directory `root`. `progress` is told (bytes read, bytes to read) of parameter files.
///
/// # Errors
/// `InvalidArgument` when `root` is no directory of a store or the checkpoint is not retained,
/// `Io` when something can't be read, `Unsupported` for a newer format, `Cancelled` when `progress`
/// breaks. Damage is no error but a finding.
///
/// # Cost
/// A descriptor for each parameter file: the process' limit of open files is raised for them, as far as the
/// system lets it be.
///
/// # Examples
/// ```
/// # use hps::{CreateOptions, RuntimeOptions, Store};
/// # fn main() -> hps::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("hps-inspect-{}", std::process::id()));
/// # let options = RuntimeOptions::new().cache_bytes(16 << 20);
/// # let store = Store::create(&directory, CreateOptions::new(), options)?;
/// # store.checkpoint(1, &[])?;
/// # store.close()?;
/// use std::ops::ControlFlow;
///
/// use hps::inspect::{Scope, inspect};
///
/// let scope = Scope::new().full(true);
/// let report = inspect(&directory, scope, &mut |_done, _all| ControlFlow::Continue(()))?;
/// assert!(report.findings.is_empty());
/// # std::fs::remove_dir_all(&directory).ok();
/// # Ok(())
/// # }
/// ```
pub fn inspect(root: &Path, scope: Scope, progress: &mut Progress<'_>) -> Result<Report> {
    look(&Io::best(), root, scope, progress)
}

/// [`inspect`] on a disk of the caller's.
///
/// # Errors
/// As [`inspect`].
#[cfg(feature = "sim")]
#[doc(hidden)]
pub fn inspect_on(
    io: &Io,
    root: &Path,
    scope: Scope,
    progress: &mut Progress<'_>,
) -> Result<Report> {
    look(io, root, scope, progress)
}

pub(crate) fn look(
    io: &Io,
    root: &Path,
    scope: Scope,
    progress: &mut Progress<'_>,
) -> Result<Report> {
    let mut inspection = Inspection {
        io,
        root: open_root(&*io.disk, root)?,
        scope,
        progress,
        report: Report {
            unreadable_is_damage: scope.unreadable_is_damage,
            ..Report::default()
        },
        changes: Changes::new(),
    };
    inspection.run()?;
    let mut report = inspection.report;
    let key = |f: &Finding| (std::cmp::Reverse(f.severity), f.path.clone(), f.offset);
    report.findings.sort_by_key(key);
    Ok(report)
}

impl Inspection<'_> {
    fn run(&mut self) -> Result<()> {
        let Some((store, directories)) = self.identity()? else {
            return Ok(());
        };
        self.report.store = Some(store);
        self.report.open_elsewhere = moment::is_open(&*self.root);
        let of_identity = self.report.findings.len();
        let (mut moment, wanted, files) = loop {
            let Some(moment) = self.versions(&store, &directories)? else {
                return Ok(());
            };
            let wanted = self.wanted(&moment.reading.replay)?;
            let files = self.open_all(&store, &directories, &moment.reading)?;
            // What is open stays readable: from here on no writer is quicker.
            if !self.leave_out(&store, &moment.reading.current) || !self.changes.follow() {
                break (moment, wanted, files);
            }
            self.report.findings.truncate(of_identity);
            self.report.checkpoints.clear();
            self.report.cursors.clear();
            self.report.files.clear();
        };
        let snapshot = match self.scope.rows_only {
            true => Vec::new(),
            false => self.snapshot(&mut moment, &directories)?,
        };
        let reading = &moment.reading;
        if self.scope.full {
            self.contents(
                &reading.replay,
                &files,
                wanted.unwrap_or_default(),
                snapshot,
            )?;
        }
        if !self.report.open_elsewhere && !self.scope.rows_only {
            self.leftovers(&directories, &reading.current, &reading.replay)?;
        }
        self.report.left_out = self.leave_out(&store, &reading.current);
        Ok(())
    }

    /// Leaves out findings that tell of a change, and not of damage; whether there were any.
    fn leave_out(&mut self, store: &[u8; 16], before: &Current) -> bool {
        let place = (&*self.root, store);
        let findings = &mut self.report.findings;
        let left_out = moment::retain_what_still_counts(findings, place, before, &mut self.changes);
        if moment::is_open(&*self.root) {
            self.report.open_elsewhere = true;
            // What a writer is about to commit looks the same.
            self.report
                .findings
                .retain(|f| f.severity > Severity::Leftover);
        }
        left_out
    }

    /// The checkpoint whose rows are counted.
    fn wanted(&mut self, replay: &Replay) -> Result<Option<CheckpointId>> {
        let wanted = match self.scope.checkpoint {
            Some(id) if replay.checkpoints.iter().all(|c| c.id != id) => {
                let retained = replay.checkpoints.iter().map(|c| c.id).collect();
                return Err(ArgumentError::UnknownCheckpoint { id, retained }.into());
            }
            Some(id) => Some(id),
            None => replay.checkpoints.last().map(|c| c.id),
        };
        self.report.checkpoint = wanted;
        Ok(wanted)
    }

    /// Everything that CURRENT names, but for the index snapshot.
    fn open_all(
        &mut self,
        store: &[u8; 16],
        directories: &[Part],
        reading: &Reading,
    ) -> Result<BTreeMap<FileNumber, Opened>> {
        if self.scope.rows_only {
            return self.open_files(store, directories, &reading.replay);
        }
        self.manifest_copy(reading)?;
        for c in &reading.replay.checkpoints {
            match self.meta_file(store, c) {
                Ok(()) => {}
                Err(Error::Io { path, source, .. })
                    if self.scope.without_meta && source.kind() == ErrorKind::PermissionDenied =>
                {
                    let what = format!("may not be read: {source}");
                    self.report.add(Severity::Damage, &path, None, what);
                }
                Err(error) => self.report.note(Severity::Damage, error)?,
            }
        }
        self.open_files(store, directories, &reading.replay)
    }

    /// STORE and PART files.
    fn identity(&mut self) -> Result<Option<([u8; 16], Vec<Part>)>> {
        let (store, names) = match read_store(&*self.root) {
            Ok(read) => read,
            Err(error) => {
                // A directory with a manifest was a store, whose identity is gone.
                let was = self.root.list().is_ok_and(|names| {
                    let is = |n: &str| {
                        use FileKind::{Manifest, ManifestCopy};
                        matches!(parse_file_name(n), Some((Manifest | ManifestCopy, _)))
                    };
                    names.iter().any(|e| is(&e.name))
                });
                if was && matches!(error, Error::InvalidArgument(_)) {
                    let path = self.root.path().join(STORE_NAME);
                    let what = String::from("missing: no file of the store can be verified");
                    self.report.add(Severity::Damage, &path, None, what);
                } else {
                    self.report.note(Severity::Damage, error)?;
                }
                return Ok(None);
            }
        };
        let mut parts = Vec::new();
        for (i, name) in names.iter().enumerate() {
            let path = self.root.path().join(name);
            let opened = open_part(&*self.root, name, i);
            let checked = match &opened {
                Ok(place) => check_part(&**place, &store, i),
                Err(_) => Ok(()),
            };
            let (place, error) = match (opened, checked) {
                (Ok(_), Err(error @ Error::MissingDirectory { .. })) => (None, Some(error)),
                (Ok(place), checked) => (Some(place), checked.err()),
                (Err(error), _) => (None, Some(error)),
            };
            if let Some(error) = error {
                self.report.note(Severity::Damage, error)?;
            }
            parts.push(Part { path, place });
        }
        Ok(Some((store, parts)))
    }

    /// Is the copy of the manifest one? Stores made before there was one have none until their next
    /// checkpoint.
    fn manifest_copy(&mut self, reading: &Reading) -> Result<()> {
        let [_, name] = manifest_names(reading.current.manifest_number);
        let copy = self.root.path().join(&name);
        let gone = || match self.root.open(&name, OpenMode::Read) {
            Err(error) => error.kind() == ErrorKind::NotFound,
            Ok(_) => false,
        };
        let bytes = reading.current.manifest_bytes;
        let found = match read_start(&*self.root, &name, bytes) {
            Ok(found) => found,
            Err(_) if gone() => return Ok(()),
            Err(Error::Io { source, .. }) if is_unreadable(&source) => {
                // Nothing but a repair reads it: the inspection goes on.
                let what = format!("the device can't read it: {source}");
                self.report.add(Severity::Cache, &copy, None, what);
                return Ok(());
            }
            Err(error) => return self.report.note(Severity::Cache, error),
        };
        let mut pairs = reading.manifest.iter().zip(&found);
        if let Some(at) = pairs.position(|(a, b)| a != b) {
            let what = String::from("not what the manifest says");
            self.report
                .add(Severity::Cache, &copy, Some(at as u64), what);
        }
        Ok(())
    }

    /// What CURRENT commits, with every retained checkpoint locked against a writer.
    fn versions(&mut self, store: &[u8; 16], parts: &[Part]) -> Result<Option<Moment>> {
        let directories = parts.len();
        let moment = match Moment::take((&*self.root, store), parts, &mut self.changes) {
            Ok(Some(moment)) => moment,
            Ok(None) => {
                self.report.left_out = true;
                return Ok(None);
            }
            Err(error) => {
                self.report.note(Severity::Damage, error)?;
                return Ok(None);
            }
        };
        let Reading {
            current, replay, ..
        } = &moment.reading;
        if let Err(error) = check_sanity(self.root.path(), current, replay, directories) {
            self.report.note(Severity::Damage, error)?;
            return Ok(None);
        }
        self.report.format_version = Some(current.version.number());
        let cursors = replay.cursors.iter();
        self.report
            .cursors
            .extend(cursors.map(|(name, at)| CursorReport {
                name: name.clone(),
                checkpoint: at.checkpoint,
            }));
        for c in &replay.checkpoints {
            let files = || replay.files.values().filter(|f| f.in_checkpoint(c.id));
            self.report.checkpoints.push(CheckpointReport {
                id: c.id,
                step: c.step,
                unix_seconds: c.unix_seconds,
                meta_bytes: c.meta_bytes,
                files: files().count() as u64,
                bytes: files().map(|f| f.bytes).sum(),
            });
        }
        Ok(Some(moment))
    }

    fn meta_file(&self, store: &[u8; 16], c: &CheckpointMeta) -> Result<()> {
        const QUICK_BYTES_MAX: u64 = 1 << 20;
        if !self.scope.full && c.meta_bytes > QUICK_BYTES_MAX {
            let name = file_name(FileKind::Meta, c.meta_number);
            let path = self.root.path().join(&name);
            let file = self.root.open(&name, OpenMode::Read);
            let bytes = file.and_then(|f| f.bytes());
            let bytes = bytes.map_err(|e| Error::io("measure", &path, e))?;
            if bytes < c.meta_bytes {
                return Err(Error::corrupt(&path, bytes, "the file ends early"));
            }
            return Ok(());
        }
        check_meta_file(&*self.root, store, c)
    }

    /// Every parameter file that the manifest names; those that can't be opened are findings.
    fn open_files(
        &mut self,
        store: &[u8; 16],
        parts: &[Part],
        replay: &Replay,
    ) -> Result<BTreeMap<FileNumber, Opened>> {
        let mut opened = BTreeMap::new();
        // All stay open, and a repair opens them once more.
        raise_descriptor_limit_to(2 * replay.files.len() as u64 + DESCRIPTORS_SPARE);
        let wanted = self.report.checkpoint.unwrap_or_default();
        let all = !self.scope.rows_only;
        let tables = descriptors(&replay.tables.now());
        for (slot, meta) in (0..).map(FileSlot::new).zip(replay.files.values()) {
            if !all && !meta.in_checkpoint(wanted) {
                continue;
            }
            let Some(part) = parts.get(meta.directory as usize) else {
                continue;
            };
            let path = part.path.join(data_file_name(meta.number));
            self.report.files.push(FileReport {
                number: meta.number,
                path: path.clone(),
                bytes: meta.bytes,
                entries: meta.rows + meta.tombstones,
                live: None,
            });
            let identity = FileIdentity::new(*store, meta.number);
            // That it is not there was a finding.
            let Some(place) = &part.place else {
                continue;
            };
            match open_file(&**place, &identity, meta, &tables) {
                Ok((file, footer)) => {
                    let view = footer.clone();
                    let file = DataFile::new(slot, *meta, view, identity, path, file, true);
                    let file = Arc::new(file);
                    opened.insert(meta.number, Opened { file, footer });
                }
                Err(error) => {
                    let at = unreadable_end(&**place, meta, &error);
                    self.report.note_at(Severity::Damage, error, at)?;
                }
            }
        }
        Ok(opened)
    }

    /// Files of the store's kinds that nothing needs. Other names are not the store's business.
    fn leftovers(&mut self, parts: &[Part], current: &Current, replay: &Replay) -> Result<()> {
        let metas: Vec<FileNumber> = replay.checkpoints.iter().map(|c| c.meta_number).collect();
        // One that is not there was a finding.
        let places = parts.iter().filter_map(|part| part.place.as_ref());
        for directory in places.chain([&self.root]) {
            let names = directory
                .list()
                .map_err(|e| Error::io("list", directory.path(), e))?;
            for entry in names {
                let temporary = [CURRENT_TEMPORARY_NAME, STORE_TEMPORARY_NAME];
                let needed = match parse_file_name(&entry.name) {
                    None => {
                        !temporary.contains(&&*entry.name) || !Arc::ptr_eq(directory, &self.root)
                    }
                    Some((FileKind::Rows, n)) => replay.files.contains_key(&n),
                    Some((FileKind::Meta, n)) => metas.contains(&n),
                    Some((FileKind::Manifest | FileKind::ManifestCopy, n)) => {
                        n == current.manifest_number
                    }
                    Some((kind @ (FileKind::Image | FileKind::Snapshot), n)) => {
                        replay.has_part(kind, n)
                    }
                };
                if !needed {
                    let path = directory.path().join(&entry.name);
                    let what = format!("{} bytes that no retained checkpoint needs", entry.bytes);
                    self.report.add(Severity::Leftover, &path, None, what);
                }
            }
        }
        Ok(())
    }
}

/// Where the device can't read the header or the footer of a file, if that is what an error says.
fn unreadable_end(place: &dyn Directory, meta: &FileMeta, error: &Error) -> Option<u64> {
    if !matches!(error, Error::Io { source, .. } if is_unreadable(source)) {
        return None;
    }
    let name = data_file_name(meta.number);
    // Opening for direct reads may read the first block, to learn how they are aligned.
    let direct = place.open(&name, OpenMode::ReadDirect);
    let file = direct.or_else(|_| place.open(&name, OpenMode::Read)).ok()?;
    let header = stream::first_unreadable(&*file, 0..4096);
    header.or_else(|| stream::first_unreadable(&*file, meta.footer_offset..meta.bytes))
}

/// Opens a parameter file, its footer compared with the manifest and the tables.
fn open_file(
    place: &dyn Directory,
    identity: &FileIdentity,
    meta: &FileMeta,
    tables: &[TableDescriptor],
) -> Result<(Arc<dyn crate::io::DiskFile>, Footer)> {
    let (file, footer) = open_footer(place, identity, meta)?;
    let path = &*place.path().join(data_file_name(meta.number));
    let promised = (
        meta.hash_min,
        meta.hash_max,
        meta.interval_min,
        meta.interval_max,
    );
    let found = (
        footer.hash_min,
        footer.hash_max,
        footer.interval_min,
        footer.interval_max,
    );
    if promised != found {
        let what = "hashes or intervals are not in the manifest's range";
        return Err(Error::corrupt(path, meta.footer_offset, what));
    }
    for run in &footer.runs {
        let stride = tables
            .get(run.table as usize)
            .map(|t| crate::format::param_file::record_stride(t.row_bytes()));
        let right = run.stride == 0 || stride == Some(run.stride as usize);
        if !right || stride.is_none() {
            let what = format!("a run of table {} with rows of another size", run.table);
            return Err(Error::corrupt(path, meta.footer_offset, what));
        }
    }
    Ok((file, footer))
}

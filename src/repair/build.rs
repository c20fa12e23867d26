//! How is the repaired store put together?
//!
//! - Links and new files first, then manifest, CURRENT and, last, STORE: what is cut short is no
//!   store.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::copies::{Copies, Kept};
use super::file::{self, SavedFile};
use super::find::{self, Version};
use super::layout::{self, Part};
use super::lost::{Counts, Losses, LostRows, Survivors};
use super::{RepairOptions, Repaired, Site};
use crate::error::{ArgumentError, Error, Result};
use crate::format::identity::encode_part;
use crate::format::manifest::CheckpointMeta;
use crate::format::parse_file_name;
use crate::format::{FileIdentity, FileKind, PART_NAME, data_file_name, file_name, meta};
use crate::inspect::Progress;
use crate::io::{Directory, Io, Queue, is_no_file, is_unreadable};
use crate::options::NUMBERS_RESERVED;
use crate::ssd::create::{Next, write_root};
use crate::ssd::edits::{self, Replay, SnapshotPart, Start};
use crate::ssd::export::link;
use crate::ssd::index_snapshot::SnapshotScan;
use crate::ssd::meta_file::check_meta_file;
use crate::ssd::names::LOCK_NAME;
use crate::ssd::small_files::{sync, write_whole};
use crate::ssd::space::refused;
use crate::ssd::tables::{TableState, descriptors};
use crate::ssd::version::{Cursors, Versions};
use crate::units::{CheckpointId, FileNumber};

const QUEUE_DEPTH: usize = 4;
const QUEUE_BYTES: usize = 512 << 10;

/// Builds the repaired store.
pub(super) struct Build<'a> {
    io: &'a Io,
    pub(super) root: Arc<dyn Directory>,
    site: Site,
    /// The repaired store's directory, once it is made.
    made: Option<Arc<dyn Directory>>,
    pub(super) store: [u8; 16],
    /// Data directories of the damaged store, as STORE names them.
    names: Vec<PathBuf>,
    pub(super) parts: Vec<Part>,
    /// No file has this number or a greater one.
    next_number: FileNumber,
    /// Most copies that contradicted others in what was built so far.
    undecided: u64,
    unsettled: Option<Unsettled>,
}

/// What is to be told once the repaired store is known to be whole.
struct Unsettled {
    losses: Losses,
    /// The files that are left.
    files: Vec<Kept>,
    /// The index snapshot of the damaged store.
    snapshot: Vec<SnapshotPart>,
    /// Of the checkpoint that is kept.
    tables: Vec<TableState>,
}

impl<'a> Build<'a> {
    pub fn new(
        io: &'a Io,
        root: Arc<dyn Directory>,
        site: Site,
        store: [u8; 16],
        directories: &[PathBuf],
    ) -> Result<Build<'a>> {
        let build = Build {
            io,
            root,
            site,
            made: None,
            store,
            names: directories.to_vec(),
            parts: Vec::new(),
            next_number: FileNumber::NONE,
            undecided: 0,
            unsettled: None,
        };
        // Before anything is built: what is in the way is not cleared after an error.
        build.clear()?;
        Ok(build)
    }

    pub fn io(&self) -> &Io {
        self.io
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The repaired store's directory.
    pub(super) fn place(&self) -> Result<&dyn Directory> {
        let gone = || Error::io("open", &self.site.path, ErrorKind::NotFound.into());
        self.made.as_deref().ok_or_else(gone)
    }

    /// Removes what was built, and what an earlier repair that was killed has left.
    pub fn clear(&self) -> Result<()> {
        layout::clear(&*self.site.parent, &self.site.repaired, &self.names)
    }

    /// Builds the store, taking the parameter files of these numbers for damaged. `again`: what was
    /// built before was not whole, though each of its files was; copies that contradict each other
    /// are left out of the files that are written.
    pub fn run(
        &mut self,
        damaged: &BTreeSet<FileNumber>,
        again: bool,
        options: &RepairOptions,
        progress: &mut Progress<'_>,
    ) -> Result<Repaired> {
        self.clear()?;
        let version = find::versions(&*self.root, &self.store)?;
        let replay = &version.replay;
        self.parts = layout::parts(
            &*self.root,
            &self.site.path,
            &self.names,
            &options.without_directories,
        )?;
        self.check_parts(replay)?;
        let next_checkpoint = self.next_numbers(&version)?;
        let (mut checkpoint, meta_lost) = self.choose(replay, options)?;
        let tables = replay.tables.view(checkpoint.id);
        let site = &self.site;
        self.made = Some(layout::begin(
            &*site.parent,
            &site.repaired,
            &mut self.parts,
        )?);
        let outside = self.parts.iter().filter(|p| !p.inside && !p.given_up);
        let given_up = self.parts.iter().enumerate().filter(|(_, p)| p.given_up);
        let mut repaired = Repaired {
            path: self.site.path.clone(),
            checkpoint: checkpoint.id,
            step: checkpoint.step,
            meta_lost,
            version_lost: version.lost.as_ref().map(ToString::to_string),
            checkpoints_kept: Vec::new(),
            checkpoints_dropped: Vec::new(),
            moved: outside
                .map(|part| (part.old.clone(), part.new.clone()))
                .collect(),
            given_up: given_up
                .map(|(index, part)| (index, self.root.path().join(&part.name)))
                .collect(),
            tables: names_of(&tables),
            files_shared: 0,
            files_rewritten: 0,
            files_gone: 0,
            entries_saved: 0,
            lost: Counts::default(),
            nameless: 0,
            undecided: self.undecided,
            _locks: Vec::new(),
        };
        let (mut bad, linked) = self.link_sound(replay, damaged)?;
        let kept = self.earlier(replay, checkpoint.id, &bad)?;
        let mut files = self.shared(replay, &linked, &kept, checkpoint.id)?;
        repaired.files_shared = files.len() as u64;
        repaired.checkpoints_kept = kept.iter().map(|c| c.id).collect();
        let others = replay.checkpoints.iter().map(|c| c.id);
        let others = others.filter(|id| *id != checkpoint.id);
        repaired.checkpoints_dropped = others
            .filter(|id| !repaired.checkpoints_kept.contains(id))
            .collect();
        self.meta_file(&mut checkpoint, meta_lost)?;
        let mut losses = Losses::default();
        bad.retain(|number| replay.files[number].in_checkpoint(checkpoint.id));
        let (repairing, lost) = (&mut repaired, &mut losses);
        let first_written = files.len();
        files.extend(self.save(replay, checkpoint.id, &bad, repairing, lost, progress)?);
        for written in &mut files[first_written..] {
            written.doubted |= again;
        }
        if files.iter().any(|f| f.doubted) {
            let mut queue = self.queue()?;
            let copies = Copies {
                parts: &self.parts,
                store: self.store,
                checkpoint: checkpoint.id,
            };
            let next = &mut self.next_number;
            copies.leave_stale_out(&mut files, &descriptors(&tables), &mut *queue, next)?;
        }
        let snapshot = self.keep_snapshot(replay, damaged, &bad, checkpoint.id)?;
        let mut cursors = replay.cursors.clone();
        if !losses.is_empty() {
            // Rows that are lost are among nobody's changes: who follows the store takes a whole copy, and no
            // delta goes on from this checkpoint as it was.
            cursors.clear();
            let now = self.io.disk.unix_seconds();
            checkpoint.unix_seconds = now.max(checkpoint.unix_seconds + 1);
        }
        let checkpoints = (&*kept, &checkpoint);
        let parts = (&snapshot[..], &cursors);
        self.finish(replay, &files, checkpoints, parts, next_checkpoint)?;
        self.unsettled = Some(Unsettled {
            losses,
            files,
            snapshot: replay.snapshot.clone(),
            tables,
        });
        Ok(repaired)
    }

    /// Tells what was lost, once the store that [`Build::run`] built is known to be whole.
    pub fn settle(&mut self, repaired: &mut Repaired, told: &mut LostRows<'_>) -> Result<()> {
        let unsettled = self.unsettled.take();
        let Some(unsettled) = unsettled.filter(|unsettled| !unsettled.losses.is_empty()) else {
            return Ok(());
        };
        let Unsettled {
            losses,
            files,
            snapshot,
            tables,
        } = unsettled;
        // A part of a later checkpoint does not list what was live at this one.
        let scans = snapshot
            .iter()
            .filter_map(|part| self.open_snapshot_part(part));
        let scans = scans.filter(|scan| scan.checkpoint <= repaired.checkpoint);
        let scans: Vec<SnapshotScan> = scans.collect();
        let metas = files.iter().map(|kept| kept.meta);
        let opened = self.copies(repaired.checkpoint).open(metas)?;
        let left = Survivors {
            files: &opened,
            tables: tables.len(),
        };
        (repaired.lost, repaired.nameless) = losses.settle(scans, &left, &tables, told)?;
        Ok(())
    }

    /// Files of the store that [`Build::run`] built whose copies contradict those of others.
    pub fn contradicting(&mut self, repaired: &Repaired) -> Result<BTreeSet<FileNumber>> {
        let Some(Unsettled { files, tables, .. }) = &self.unsettled else {
            return Ok(BTreeSet::new());
        };
        let copies = self.copies(repaired.checkpoint);
        let metas = files.iter().map(|kept| kept.meta);
        let found = copies.contradicting(metas, tables.len())?;
        let found = found.unwrap_or_default();
        self.undecided = self.undecided.max(found.copies);
        Ok(found.files)
    }

    /// What is asked of the entries of a checkpoint's files.
    fn copies(&self, checkpoint: CheckpointId) -> Copies<'_> {
        Copies {
            parts: &self.parts,
            store: self.store,
            checkpoint,
        }
    }

    fn check_parts(&self, replay: &Replay) -> Result<()> {
        let most = replay
            .files
            .values()
            .map(|f| f.directory)
            .max()
            .unwrap_or(0);
        if most as usize >= self.parts.len() {
            let what = format!(
                "{} data directories are known, file lists name {}: restore STORE from a backup",
                self.parts.len(),
                most + 1
            );
            return Err(Error::corrupt(self.root.path(), 0, what));
        }
        Ok(())
    }

    /// File numbers and checkpoint ids that were never used; gives the id of the next checkpoint.
    fn next_numbers(&mut self, version: &Version) -> Result<CheckpointId> {
        let replay = &version.replay;
        let beyond = |number: u64| match number > u64::MAX / 8 {
            true => Err(Error::corrupt(
                self.root.path(),
                0,
                "a number beyond reason",
            )),
            false => Ok(number),
        };
        let file = |number: FileNumber| beyond(number.0).map(FileNumber);
        let last = replay.checkpoints.iter().map(|c| c.id).max();
        let last = CheckpointId(beyond(last.unwrap_or_default().0)?);
        let known = replay.files.keys().copied();
        let metas = replay.checkpoints.iter().map(|c| c.meta_number);
        let snapshot = replay.snapshot.iter().map(|part| part.number);
        let mut most = known.chain(metas).chain(snapshot).max().unwrap_or_default();
        if let (Some(current), true) = (&version.current, version.proven) {
            beyond(current.next_checkpoint_id.0)?;
            self.next_number = file(current.file_number_limit)?.max(file(most)?.next());
            return Ok(current.next_checkpoint_id.max(last.next()));
        }
        // A data directory that is gone has no numbers.
        let places = self.parts.iter().filter_map(|p| p.source.as_ref());
        for directory in places.chain([&self.root]) {
            let names = directory.list().unwrap_or_default();
            let numbers = names.iter().filter_map(|e| parse_file_name(&e.name));
            most = most.max(numbers.map(|(_, number)| number).max().unwrap_or_default());
        }
        // As many as were reserved at that time may have been used, and their files removed. CURRENT
        // may be of an earlier time, or of a later one.
        let (mut number, mut id) = (file(most)?.plus(2 * NUMBERS_RESERVED), last.next().next());
        if let Some(current) = &version.current {
            number = number.max(file(current.file_number_limit)?);
            id = id.max(CheckpointId(beyond(current.next_checkpoint_id.0)?));
        }
        self.next_number = number;
        Ok(id)
    }

    fn take_number(&mut self) -> FileNumber {
        self.next_number.take()
    }

    /// The checkpoint to keep, and whether its meta file has to be made anew.
    fn choose(&self, replay: &Replay, options: &RepairOptions) -> Result<(CheckpointMeta, bool)> {
        let wanted = match options.checkpoint {
            Some(id) => replay.checkpoints.iter().find(|c| c.id == id),
            None => replay.checkpoints.last(),
        };
        let Some(wanted) = wanted else {
            let retained = replay.checkpoints.iter().map(|c| c.id).collect();
            let id = options.checkpoint.unwrap_or_default();
            return Err(ArgumentError::UnknownCheckpoint { id, retained }.into());
        };
        let found = match self.meta_damage(wanted) {
            // The user gives it up, whatever keeps it from being read.
            Err(_) if options.without_meta => return Ok((*wanted, true)),
            found => found?,
        };
        let Some(error) = found else {
            return Ok((*wanted, false));
        };
        if options.without_meta {
            return Ok((*wanted, true));
        }
        let mut others = Vec::new();
        for c in &replay.checkpoints {
            if matches!(self.meta_damage(c), Ok(None)) {
                others.push(format!("--checkpoint {} (step {})", c.id, c.step));
            }
        }
        let other = if others.is_empty() {
            String::new()
        } else {
            format!("go back by {}, or ", others.join(" or "))
        };
        let path = self
            .root
            .path()
            .join(file_name(FileKind::Meta, wanted.meta_number));
        let what = format!(
            "the meta file of checkpoint {} can't be restored ({error}): {other}keep its rows with \
             an empty one by --without-meta",
            wanted.id
        );
        Err(Error::corrupt(&path, 0, what))
    }

    /// What is wrong with a checkpoint's meta file.
    ///
    /// # Errors
    /// `Io` for what is no damage: a checkpoint would be given up that is whole.
    fn meta_damage(&self, c: &CheckpointMeta) -> Result<Option<Error>> {
        match check_meta_file(&*self.root, &self.store, c) {
            Ok(()) => Ok(None),
            Err(Error::Io {
                operation,
                path,
                source,
            }) if !is_no_file(&source) && !is_unreadable(&source) => {
                Err(Error::io(operation, &path, source))
            }
            Err(error) => Ok(Some(error)),
        }
    }

    fn meta_file(&mut self, checkpoint: &mut CheckpointMeta, lost: bool) -> Result<()> {
        if !lost {
            let name = file_name(FileKind::Meta, checkpoint.meta_number);
            return link(&*self.root, self.place()?, &name);
        }
        checkpoint.meta_number = self.take_number();
        let identity = FileIdentity::new(self.store, checkpoint.meta_number);
        let (header, sum) = meta::encode_meta_header(&identity, checkpoint.id, &[]);
        checkpoint.meta_bytes = header.len() as u64;
        checkpoint.meta_checksum = sum;
        let name = file_name(FileKind::Meta, checkpoint.meta_number);
        write_whole(self.place()?, &name, &header)
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let queue = self.io.engine.queue(QUEUE_DEPTH, QUEUE_BYTES);
        queue.map_err(|e| Error::io("make a submission queue for", &self.site.path, e))
    }

    /// Links every file that is not damaged; gives the numbers of those that are, and of the links.
    fn link_sound(
        &self,
        replay: &Replay,
        damaged: &BTreeSet<FileNumber>,
    ) -> Result<(BTreeSet<FileNumber>, BTreeSet<FileNumber>)> {
        let (mut bad, mut linked) = (BTreeSet::new(), BTreeSet::new());
        for meta in replay.files.values() {
            let part = &self.parts[meta.directory as usize];
            let name = data_file_name(meta.number);
            let source = part.source.as_ref();
            let Some(source) = source.filter(|_| !damaged.contains(&meta.number)) else {
                bad.insert(meta.number);
                continue;
            };
            match source.hard_link(&name, &**part.place()?, &name) {
                Ok(()) => drop(linked.insert(meta.number)),
                // Gone, or a directory in its place.
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                    bad.insert(meta.number);
                }
                Err(e) => {
                    let (place, path) = (&**part.place()?, part.new.join(name));
                    return Err(refused("hard-link to", place, &path, 0, e));
                }
            }
        }
        Ok((bad, linked))
    }

    /// Checkpoints before `last` that are whole, with their meta files linked.
    fn earlier(
        &self,
        replay: &Replay,
        last: CheckpointId,
        bad: &BTreeSet<FileNumber>,
    ) -> Result<Vec<CheckpointMeta>> {
        let mut kept = Vec::new();
        for c in replay.checkpoints.iter().filter(|c| c.id < last) {
            let sound = bad.iter().all(|n| !replay.files[n].in_checkpoint(c.id));
            if sound && self.meta_damage(c)?.is_none() && self.copies(c.id).agree(replay)? {
                let name = file_name(FileKind::Meta, c.meta_number);
                link(&*self.root, self.place()?, &name)?;
                kept.push(*c);
            }
        }
        Ok(kept)
    }

    /// The linked files that a checkpoint needs; the others' links are removed.
    fn shared(
        &self,
        replay: &Replay,
        linked: &BTreeSet<FileNumber>,
        kept: &[CheckpointMeta],
        last: CheckpointId,
    ) -> Result<Vec<Kept>> {
        let mut files = Vec::new();
        for number in linked {
            let meta = replay.files[number];
            let needed = meta.in_checkpoint(last) || kept.iter().any(|c| meta.in_checkpoint(c.id));
            if needed {
                files.push(Kept {
                    meta,
                    doubted: false,
                });
            } else {
                let part = &self.parts[meta.directory as usize];
                layout::remove(&**part.place()?, &data_file_name(*number))?;
            }
        }
        Ok(files)
    }

    /// Saves what there is of damaged files.
    fn save(
        &mut self,
        replay: &Replay,
        checkpoint: CheckpointId,
        bad: &BTreeSet<FileNumber>,
        repaired: &mut Repaired,
        losses: &mut Losses,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Kept>> {
        let mut kept = Vec::new();
        // What is written is of this checkpoint alone: one before it that needs a damaged file is not kept.
        let tables = replay.tables.view(checkpoint);
        let mut queue = self.queue()?;
        let sizes = bad.iter().map(|n| replay.files[n].bytes);
        let bytes_all = sizes.fold(0, u64::saturating_add);
        let mut bytes = 0;
        for number in bad {
            let old = replay.files[number];
            if progress(bytes, bytes_all).is_break() {
                return Err(Error::Cancelled);
            }
            let fresh = self.take_number();
            let source = self.parts[old.directory as usize].source.as_deref();
            let copies = self.copies(checkpoint);
            let mut target = copies.target(&mut *queue, old.directory, fresh)?;
            let identity = FileIdentity::new(self.store, old.number);
            let saved = file::save(source, &identity, &old, &tables, &mut target)?;
            let SavedFile {
                written,
                entries,
                guessed: doubted,
                lost,
                nameless,
            } = saved;
            bytes = old.bytes.saturating_add(bytes);
            repaired.entries_saved += entries;
            repaired.files_rewritten += u64::from(written.is_some());
            repaired.files_gone += u64::from(written.is_none());
            kept.extend(written.map(|meta| Kept { meta, doubted }));
            losses.add(old.number, old.rank, lost, nameless);
        }
        Ok(kept)
    }

    /// Writes what makes the files a store.
    fn finish(
        &mut self,
        replay: &Replay,
        files: &[Kept],
        (kept, checkpoint): (&[CheckpointMeta], &CheckpointMeta),
        (snapshot, cursors): (&[SnapshotPart], &Cursors),
        next_checkpoint: CheckpointId,
    ) -> Result<()> {
        let mut versions = Versions::default();
        for kept in files {
            versions.insert_closed(kept.meta, None);
        }
        for (i, part) in (0..).zip(&self.parts) {
            let place = &**part.place()?;
            write_whole(place, PART_NAME, &encode_part(&self.store, i))?;
            sync(place)?;
        }
        write_whole(self.place()?, LOCK_NAME, &[])?;
        let names: Vec<String> = self.parts.iter().map(|p| p.name.clone()).collect();
        let timeline = self.io.disk.fresh_uuid();
        let checkpoints = [kept, &[*checkpoint]].concat();
        let start = Start {
            timeline,
            parent: checkpoint.id,
            tables: &replay.tables.going_on_from(checkpoint.id, &[]),
            checkpoints: &checkpoints,
            hyper: &replay.hyper,
            cursors,
            snapshot,
        };
        let commit = edits::snapshot(&versions, &start);
        let next = Next {
            number: self.take_number(),
            checkpoint: next_checkpoint,
        };
        write_root(
            self.place()?,
            self.store,
            timeline,
            &names,
            &commit,
            Some((checkpoint, next)),
        )
        .map(drop)
    }
}

/// The names of the tables that are there, by number.
fn names_of(tables: &[TableState]) -> Vec<String> {
    let there = tables.iter().filter(|table| !table.is_dropped);
    there.map(|table| table.descriptor.name.clone()).collect()
}

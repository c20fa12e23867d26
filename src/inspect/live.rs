//! Which rows count in a version, and does the index snapshot agree?

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::Duration;

use super::rows::{Failed, Looked, Sink};
use super::snapshot::Walk;
use super::{Inspection, Opened, Severity, TableReport, ValueStats};
use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::ssd::data_file::DataFile;
use crate::ssd::edits::Replay;
use crate::ssd::scan::{Entry, Merge, keys_window_bytes};
use crate::ssd::tables::descriptors;
use crate::units::{CheckpointId, FileNumber, TableId, to_usize};

/// Files that are read at the same time: the device is waited for, not the processor.
const THREADS: usize = 4;
/// Up to so many bytes one thread reads all files: starting others takes longer.
const ALONE_BYTES_MAX: u64 = 1 << 20;
/// How often progress is told.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A bit per entry, by the file's slot: it has no newer copy. Empty for files that are not in the
/// version.
pub(super) type Live = Vec<Vec<u64>>;

/// An entry of the version: the newest of its key.
struct Newest {
    order: (u32, u64),
    key: u64,
    slot: usize,
    entry: u32,
    tombstone: bool,
}

impl Inspection<'_> {
    /// Every byte of every file, and what the rows of a checkpoint hold.
    pub(super) fn contents(
        &mut self,
        replay: &Replay,
        files: &BTreeMap<FileNumber, Opened>,
        checkpoint: CheckpointId,
        snapshot: Vec<Walk>,
    ) -> Result<()> {
        let all = files.values();
        let bytes_all = all.map(|f| f.file.meta.footer_offset - 4096).sum();
        let bytes_read = AtomicU64::new(0);
        let mut sound = HashSet::new();
        let every: Vec<&Opened> = files.values().collect();
        let keys = self.each_file(&every, &bytes_read, bytes_all, &|sink, opened| {
            sink.check_keys(opened)
        })?;
        for (opened, result) in every.iter().zip(keys) {
            match result {
                Ok(()) => drop(sound.insert(opened.file.meta.number)),
                Err(failed) => self.note_failed(failed)?,
            }
        }
        let wanted = |number: &FileNumber| replay.files[number].in_checkpoint(checkpoint);
        let version = replay.files.keys().filter(|n| wanted(n));
        let complete = version.clone().all(|n| sound.contains(n));
        let version: Vec<Arc<DataFile>> = version
            .filter(|n| sound.contains(*n))
            .filter_map(|n| files.get(n))
            .map(|opened| Arc::clone(&opened.file))
            .collect();
        let parts = snapshot.into_iter();
        let parts = parts.map(|walk| self.comparison(replay, walk, complete, checkpoint));
        let parts = parts.collect();
        let live = match self.scope.rows_only {
            true => vec![Vec::new(); replay.files.len()],
            false => self.count_live(replay, &version, checkpoint, parts)?,
        };
        let sound: Vec<&Opened> = every
            .into_iter()
            .filter(|f| sound.contains(&f.file.meta.number))
            .collect();
        let descriptors = descriptors(&replay.tables.view(checkpoint));
        let tables = &descriptors[..];
        let rows = self.each_file(&sound, &bytes_read, bytes_all, &|sink, opened| {
            sink.check_rows(opened, tables, &live[opened.file.slot.index()])
        })?;
        for checked in rows {
            let checked = match checked {
                Ok(checked) => checked,
                Err(failed) => {
                    self.note_failed(failed)?;
                    continue;
                }
            };
            for report in &mut self.report.tables {
                if let Some((weights, state)) = checked.values.get(report.id.0 as usize) {
                    report.weights.merge(weights);
                    report.state.merge(state);
                }
            }
            for error in checked.damage {
                self.report.note(Severity::Damage, error)?;
            }
        }
        self.report.bytes_read = bytes_read.into_inner();
        for file in &mut self.report.files {
            let Some(opened) = files.get(&file.number) else {
                continue;
            };
            let bits = &live[opened.file.slot.index()];
            let ones = bits.iter().map(|w| u64::from(w.count_ones())).sum();
            file.live = (!bits.is_empty()).then_some(ones);
        }
        Ok(())
    }

    fn note_failed(&mut self, failed: Failed) -> Result<()> {
        let (error, at) = (failed.error, failed.unreadable_at);
        self.report.note_at(Severity::Damage, error, at)
    }

    /// Does the same with each file, several at a time; results in their order. Progress is told
    /// meanwhile. Where there is little to read, threads would take longer than the work; where none
    /// is to be had, this one does it.
    fn each_file<T: Send>(
        &mut self,
        files: &[&Opened],
        bytes_read: &AtomicU64,
        bytes_all: u64,
        work: &(dyn Fn(&mut Sink<'_>, &Opened) -> Looked<T> + Sync),
    ) -> Result<Vec<Looked<T>>> {
        let threads = THREADS.min(files.len());
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let sizes = files.iter().map(|f| f.file.meta.bytes);
        let (longest, sum) = (sizes.clone().max().unwrap_or(0), sizes.sum::<u64>());
        let (engine, root) = (&*self.io.engine, self.root.path());
        // Tells, after each file, whoever can be told by the thread that works.
        let one = |tell: &mut dyn FnMut()| -> Result<Vec<(usize, Looked<T>)>> {
            let mut sink = Sink::new(engine, root, longest, bytes_read, &stop)?;
            let mut done = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = files.get(i) else {
                    return Ok(done);
                };
                done.push((i, work(&mut sink, file)));
                tell();
            }
        };
        let mut look = || {
            let read = bytes_read.load(Ordering::Relaxed);
            if (self.progress)(read, bytes_all).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let parts = std::thread::scope(|scope| {
            let threads = if sum <= ALONE_BYTES_MAX { 0 } else { threads };
            let running: Vec<_> = (0..threads)
                .map_while(|_| start(scope, || one(&mut || ())))
                .collect();
            if running.is_empty() {
                return one(&mut look).map(|done| vec![done]);
            }
            while running.iter().any(|thread| !thread.is_finished()) {
                std::thread::sleep(LOOK_EVERY);
                look();
            }
            let joined = running.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect::<Result<Vec<_>>>()
        })?;
        if stop.into_inner() {
            return Err(Error::Cancelled);
        }
        let mut results: Vec<_> = parts.into_iter().flatten().collect();
        results.sort_by_key(|(i, _)| *i);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }

    /// The newest copy of every key, found by merging the key blocks; of no key of a dropped table.
    fn count_live(
        &mut self,
        replay: &Replay,
        version: &[Arc<DataFile>],
        checkpoint: CheckpointId,
        mut parts: Vec<Comparison>,
    ) -> Result<Live> {
        let mut live: Live = vec![Vec::new(); replay.files.len()];
        for file in version {
            let words = to_usize(file.entries().div_ceil(64));
            live[file.slot.index()] = vec![0; words];
        }
        let window = keys_window_bytes(version.len());
        let tables = (0..).zip(replay.tables.view(checkpoint));
        for (id, state) in tables.filter(|(_, table)| !table.is_dropped) {
            let mut table = TableReport {
                id: TableId(id),
                descriptor: state.descriptor,
                rows: 0,
                tombstones: 0,
                weights: ValueStats::default(),
                state: ValueStats::default(),
            };
            let mut count = |file: &DataFile, entry: Entry, kind: RunKind| {
                let newest = Newest {
                    order: (id, entry.hash),
                    key: entry.key,
                    slot: file.slot.index(),
                    entry: entry.number,
                    tombstone: kind == RunKind::Tombstones,
                };
                table.rows += u64::from(!newest.tombstone);
                table.tombstones += u64::from(newest.tombstone);
                if let Some(word) = live[newest.slot].get_mut(newest.entry as usize / 64) {
                    *word |= 1 << (newest.entry % 64);
                }
                let of_its_range = |part: &&mut Comparison| part.range.contains(&entry.hash);
                if let Some(part) = parts.iter_mut().find(of_its_range) {
                    part.compare(&newest);
                }
            };
            let merge = Merge::new(version, id, window);
            let result = merge.and_then(|merge| merge.each_newest(&mut count));
            self.report.tables.push(table);
            if let Err(error) = result {
                self.report.note(Severity::Damage, error)?;
            }
        }
        for part in parts {
            if let Err(error) = part.end() {
                self.report.note(Severity::Cache, error)?;
            }
        }
        Ok(live)
    }

    /// Sets a part of the index snapshot beside the version of a checkpoint. Only where every file of that is
    /// sound, its entries can be compared.
    fn comparison(
        &self,
        replay: &Replay,
        walk: Walk,
        complete: bool,
        checkpoint: CheckpointId,
    ) -> Comparison {
        let mut covered = vec![false; replay.files.len()];
        let tables = replay.tables.view(checkpoint);
        // A file's slot is its place in the manifest's list.
        let slots: HashMap<FileNumber, usize> = replay.files.keys().copied().zip(0..).collect();
        let of_version = |number: &FileNumber| {
            let slot = slots.get(number).copied();
            slot.filter(|_| replay.files[number].in_checkpoint(checkpoint))
        };
        let slots: Vec<Option<usize>> = walk.covered().iter().map(of_version).collect();
        for slot in slots.iter().flatten() {
            covered[*slot] = true;
        }
        Comparison {
            compares: complete && walk.checkpoint() <= checkpoint,
            path: walk.path().to_path_buf(),
            range: walk.range(),
            walk,
            covered,
            slots,
            dropped: tables.iter().map(|t| t.is_dropped).collect(),
            error: None,
        }
    }
}

/// A part of the index snapshot beside the merge of the key blocks.
struct Comparison {
    /// The hashes that it has.
    range: RangeInclusive<u64>,
    walk: Walk,
    /// Whether entries are compared, or the part's own blocks are verified only.
    compares: bool,
    /// Whether it lists a file, by slot.
    covered: Vec<bool>,
    /// Slots of the files that it lists, where they are of the version.
    slots: Vec<Option<usize>>,
    /// By table: it was dropped after the part was made, perhaps.
    dropped: Vec<bool>,
    error: Option<Error>,
    path: PathBuf,
}

impl Comparison {
    fn compare(&mut self, newest: &Newest) {
        if self.compares
            && let Err(error) = self.try_compare(newest)
        {
            self.error = Some(error);
            self.compares = false;
        }
    }

    fn try_compare(&mut self, newest: &Newest) -> Result<()> {
        self.skip_before(newest.order)?;
        let covered = self.covered[newest.slot];
        let walk = &mut self.walk;
        let found = walk.peek()?.filter(|(order, _)| *order == newest.order);
        let place = found.map(|(_, entry)| {
            let slot = self.slots.get(entry.ordinal as usize).copied().flatten();
            (slot, entry.entry, entry.tombstone)
        });
        if found.is_some() {
            walk.step();
        }
        let right = (Some(newest.slot), newest.entry, newest.tombstone);
        if covered && place != Some(right) {
            let what = format!("key {:#x} is not where its newest copy is", newest.key);
            return Err(Error::corrupt(&self.path, 0, what));
        }
        Ok(())
    }

    /// Keys that the version has not: they may stand there only for files that left it, or tables.
    fn skip_before(&mut self, order: (u32, u64)) -> Result<()> {
        let walk = &mut self.walk;
        while let Some((at, entry)) = walk.peek()?
            && at < order
        {
            let slot = self.slots.get(entry.ordinal as usize).copied().flatten();
            let dropped = self.dropped.get(at.0 as usize).copied().unwrap_or(false);
            if slot.is_some() && !dropped {
                let what = format!("key {:#x} is in no file of the version", entry.key);
                return Err(Error::corrupt(&self.path, 0, what));
            }
            walk.step();
        }
        Ok(())
    }

    /// Reads to the end, where the part as a whole is verified.
    fn end(mut self) -> Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.compares {
            self.skip_before((u32::MAX, u64::MAX))?;
        }
        while self.walk.peek()?.is_some() {
            self.walk.step();
        }
        Ok(())
    }
}

/// Starts a thread, where one is to be had.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    #[cfg(test)]
    crate::sync::refused::ask().ok()?;
    let thread = Builder::new().name(String::from("hps-inspect"));
    thread.spawn_scoped(scope, work).ok()
}

#[cfg(test)]
mod tests {
    use crate::options::CreateOptions;
    use std::ops::ControlFlow;
    use std::path::Path;
    use std::sync::Arc;

    use super::{ALONE_BYTES_MAX, THREADS};
    use crate::inspect::{Scope, look};
    use crate::io::Io;
    use crate::io::sim::SimDisk;
    use crate::sync::refused;
    use crate::*;

    /// Rows of half a kilobyte, a file for every 500 of them.
    fn store(disk: &SimDisk, path: &Path, rows: u64) {
        let options = RuntimeOptions {
            cache_bytes: 4 << 20,
            inline: true,
            threads: 1,
            ..RuntimeOptions::default()
        };
        let store =
            Store::create_on(Arc::new(disk.clone()), path, CreateOptions::new(), options).unwrap();
        let table = TableDescriptor {
            optimizer: Optimizer::Sgd,
            ..TableDescriptor::new("rows", 128)
        };
        let table = store.create_table(&table).unwrap();
        for batch in (0..rows).collect::<Vec<u64>>().chunks(500) {
            let mut out = vec![0.0; batch.len() * 128];
            let lease = store.pull(table, batch, &mut out).unwrap();
            store.push(&lease, Update::weights(&out)).unwrap();
        }
        store.checkpoint(1, b"").unwrap();
        store.close().unwrap();
    }

    /// An inspection in a container that had no process left (`pids.max`) panicked: `failed to
    /// spawn thread`.
    #[test]
    fn an_inspection_that_gets_no_threads_does_the_work_itself() {
        let (disk, path) = (SimDisk::new(1), Path::new("/store"));
        store(&disk, path, 4000);
        let scope = Scope {
            full: true,
            ..Scope::default()
        };
        let io = Io::of(disk);
        let look = |threads: usize, stop_at: u64| {
            refused::LEFT.set(threads);
            let mut told = Vec::new();
            let report = look(&io, path, scope, &mut |done, all| {
                told.push((done, all));
                match done >= stop_at {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            refused::LEFT.set(usize::MAX);
            (report, told)
        };
        let (wanted, _) = look(usize::MAX, u64::MAX);
        let wanted = wanted.unwrap();
        assert!(wanted.bytes_read > 1 << 20 && wanted.files.len() > 1);
        for threads in 0..4 {
            let (report, told) = look(threads, u64::MAX);
            assert_eq!(format!("{:?}", report.unwrap()), format!("{wanted:?}"));
            let (done, all) = *told.last().unwrap();
            assert!(done == all && told.len() > 1, "{threads} threads: {told:?}");
        }
        let (cancelled, _) = look(0, 1);
        assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    }

    /// Reading a small store takes less time than a thread takes to start.
    #[test]
    fn threads_are_started_where_there_is_much_to_read_and_nowhere_else() {
        for (rows, threads) in [(600, 0), (4000, THREADS)] {
            let (disk, path) = (SimDisk::new(1), Path::new("/store"));
            store(&disk, path, rows);
            let scope = Scope {
                full: true,
                ..Scope::default()
            };
            refused::LEFT.set(100);
            let report = look(&Io::of(disk), path, scope, &mut |_, _| {
                ControlFlow::Continue(())
            });
            let started = 100 - refused::LEFT.replace(usize::MAX);
            let files = report.unwrap().files;
            let bytes: u64 = files.iter().map(|f| f.bytes).sum();
            // For the key blocks, and for the rows.
            assert_eq!(started, 2 * threads.min(files.len()), "{bytes} bytes");
            assert_eq!(bytes > ALONE_BYTES_MAX, started > 0);
        }
    }
}

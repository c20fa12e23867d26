//! A workload on a disk with a fault: what may be said, what must go on, and what is on the disk then.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it does not expect must fail"
)]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hps::io::Io;
use hps::io::sim::{CrashMode, Failure, Fault, Remnants, SimDisk};
use hps::*;
use nix::errno::Errno;

use super::common::plans::Plan;
use super::common::tables::keys_of;
use super::common::verify::{Verdict, compare_rows, verify};
use super::common::{Model, Op, ROOT, Run, descriptor, key, same};

/// How a run with a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The fault came after the last call.
    NotHit,
    /// No call of the API failed, and nothing was refused.
    Absorbed,
    /// Some calls failed, and worked when they were repeated.
    Repeated,
    /// The store refused writes until it was opened again.
    Poisoned,
    /// The store was being opened or rolled back; it opens later.
    NotOpened,
    /// The store could not be created.
    NotCreated,
}

/// Whether failures leave the durable state unknown. An interrupted rename is made again, a
/// bounded number of times.
fn are_unknown(failures: &[Failure]) -> bool {
    let interrupted = |f: &&Failure| f.kind == "rename" && f.errno == Errno::EINTR as i32;
    let of = |f: &Failure| match f.kind {
        "sync" | "sync_dir" => true,
        "rename" => f.errno != Errno::EINTR as i32,
        _ => false,
    };
    failures.iter().any(of) || failures.iter().filter(interrupted).count() > 50
}

/// An error that a failing device may cause; no room only where the disk said so.
fn is_clean(error: &Error, failures: &[Failure]) -> Verdict {
    let full = |errno: i32| errno == Errno::ENOSPC as i32 || errno == Errno::EDQUOT as i32;
    let told = failures.iter().any(|f| full(f.errno));
    match error {
        Error::Io {
            operation, source, ..
        } if source.kind() == ErrorKind::StorageFull && ["create", "write"].contains(operation) => {
            Err(format!("no room, told as {error:?}"))
        }
        Error::NoSpace { .. } if !told => Err(format!("{error}, and {failures:?}")),
        Error::Io { .. } | Error::NoSpace { .. } | Error::Poisoned { .. } => Ok(()),
        other => Err(format!("an unexpected kind of error: {other}")),
    }
}

/// Whether these weights may be found: they are the model's, or a put that failed may have written them.
fn may_be(model: &Model, table: usize, key: u64, weights: &[f32]) -> bool {
    let is = |row: &Vec<u32>| weights.iter().zip(row).all(|(w, r)| w.to_bits() == *r);
    let mut half = model.half_put.get(&(table, key)).into_iter().flatten();
    half.any(is) || same(weights, &model.row(table, key)[..weights.len()])
}

/// Known keys are known, and rows have the model's values. On a disk that is still broken rows may
/// be refused that are not in memory; else only those that need room that can't be made.
fn reads_go_on(run: &Run, broken: bool) -> Verdict {
    let (store, model) = (run.store(), &run.model);
    let (mut read, resident) = (0, store.stats().resident_rows);
    for (table, _) in model.tables.there() {
        let count = keys_of(table);
        let (id, dim) = (
            TableId(u32::try_from(table).unwrap()),
            descriptor(table).dim,
        );
        for key in (0..count).map(key) {
            let known = store.contains(id, &[key]).map_err(|e| e.to_string())?;
            let may_be_put = known == [true] && model.half_put.contains_key(&(table, key));
            if known != [model.rows.contains_key(&(table, key))] && !may_be_put {
                return Err(format!("table {table}: contains({key:#x}) is {known:?}"));
            }
            let mut out = vec![0.0; dim];
            match store.pull(id, &[key], &mut out) {
                Ok(_) if may_be(model, table, key, &out) => read += 1,
                Ok(_) => return Err(format!("table {table}: row {key:#x} has another value")),
                Err(Error::Poisoned { .. }) => {}
                Err(Error::Io { .. } | Error::NoSpace { .. }) if broken => {}
                Err(e) => return Err(format!("table {table}: row {key:#x}: {e}")),
            }
        }
    }
    if read == 0 && resident > 0 {
        return Err(format!("{resident} rows in memory, and none is read"));
    }
    let (Some(last), Some(saved)) = (store.last_checkpoint(), model.durable.saved.last()) else {
        return Ok(());
    };
    match compare_rows(store, &last, saved) {
        Err(e) if !broken => Err(format!("rows of a checkpoint: {e}")),
        Err(Error::Io { .. }) | Ok(()) => Ok(()),
        Err(e) => Err(format!("rows of a checkpoint: {e}")),
    }
}

fn writes_are_refused(store: &Store) -> Verdict {
    let poisoned = |result: Result<()>| match result {
        Err(Error::Poisoned { .. }) => Ok(()),
        other => Err(format!("not refused after a failed sync: {other:?}")),
    };
    poisoned(store.checkpoint(1 << 40, &[]).map(drop))?;
    poisoned(store.remove(TableId(0), &[key(1)]).map(drop))?;
    poisoned(store.flush().map(drop))?;
    poisoned(store.compact_fully().map(drop))
}

/// What is on the disk, found by opening it and after a power cut. The disk works again.
fn verify_everywhere(disk: &SimDisk, run: &Run) -> Verdict {
    // A checkpoint whose lock could not be had is kept for its reader.
    let exact = disk.failures().iter().all(|f| f.kind != "lock");
    let mode = [CrashMode::KeepNone, CrashMode::Random][disk.calls() as usize % 2];
    let left = disk.crash(disk.calls(), mode);
    verify(&left, &run.model, &run.options, exact).map_err(|e| format!("{mode:?}: {e}"))?;
    verify(disk, &run.model, &run.options, exact).map_err(|e| format!("opened again: {e}"))
}

/// Opening what is on a disk that is still broken: a clean error, or the store as it was.
fn opens_or_says_why(disk: &SimDisk, run: &Run) -> Verdict {
    for read_only in [true, false] {
        let before = disk.failures().len();
        let shared = Io::of(disk.clone());
        let (root, options) = (&run.model.root, run.options.clone());
        let opened = match read_only {
            true => Store::open_read_only_on(shared, root, None, options),
            false => Store::open_on(shared, root, options),
        };
        let Err(error) = opened.map(drop) else {
            continue;
        };
        let failures = &disk.failures()[before..];
        match &error {
            // There is no checkpoint yet, or half a store.
            Error::InvalidArgument(_) if run.model.durable.saved.is_empty() => continue,
            _ => is_clean(&error, failures),
        }
        .and_then(|()| says_read_only(&error, read_only, failures, root))
        .map_err(|e| format!("opening it as it is (read-only: {read_only}): {e}"))?;
    }
    Ok(())
}

/// A disk that takes no writes lets readers in, and tells a writer which directory it is and what
/// can be done.
fn says_read_only(error: &Error, read_only: bool, failures: &[Failure], root: &Path) -> Verdict {
    let refused = failures.iter().any(|f| f.errno == Errno::EROFS as i32);
    let text = error.to_string();
    let told = text.contains(&format!("{}: ", root.display())) && text.contains("read-only");
    match (refused, read_only) {
        (false, _) => Ok(()),
        (true, true) => Err(format!("a reader is refused: {text}")),
        (true, false) if told => Ok(()),
        (true, false) => Err(format!("no way out: {text}")),
    }
}

fn not_created(disk: &SimDisk, run: &Run) -> Verdict {
    opens_or_says_why(disk, run)?;
    disk.clear_faults();
    let shared = Io::of(disk.clone());
    match Store::open_on(shared.clone(), Path::new(ROOT), run.options.clone()) {
        Ok(store) => store.close().map_err(|e| e.to_string()),
        Err(Error::InvalidArgument(ArgumentError::NotAStore { .. })) => {
            let mut again = Run::new(shared, &run.options);
            again.model.create.clone_from(&run.model.create);
            again.model.root = PathBuf::from("/fresh");
            again.create().map_err(|e| format!("creating again: {e}"))
        }
        Err(e) => Err(format!("half created: {e}")),
    }
}

/// A workload on a disk with a fault.
struct Broken {
    disk: SimDisk,
    run: Run,
    sticky: bool,
    /// The disk still reads, all that it ever had.
    reads: bool,
}

impl Broken {
    /// Does one operation; what failed below it is told by the disk. `None`: the workload goes on.
    fn step(&mut self, op: &Op) -> std::result::Result<Option<End>, String> {
        let before = self.disk.failures().len();
        let result = self.run.step(op);
        let failures = self.disk.failures().split_off(before);
        // What an export does to its target says nothing of the store.
        let unknown = are_unknown(&failures) && !matches!(op, Op::Export);
        let Err(error) = result else {
            if unknown && self.run.store.is_some() {
                return self.is_poisoned().map(Some);
            }
            return Ok(None);
        };
        let at = |e: String| format!("{op}: after {error} ({failures:?}): {e}");
        is_clean(&error, &failures).map_err(at)?;
        if self.run.store.is_none() {
            // A rollback or an opening failed: the store is opened at what there is.
            opens_or_says_why(&self.disk, &self.run).map_err(at)?;
            self.disk.clear_faults();
            verify_everywhere(&self.disk, &self.run).map_err(at)?;
            return Ok(Some(End::NotOpened));
        }
        if unknown || matches!(error, Error::Poisoned { .. }) {
            return self.is_poisoned().map(Some).map_err(at);
        }
        let before = self.disk.failures().len();
        self.reads_go_on().map_err(at)?;
        // To read from a closed file, another one may have been synced, in vain.
        if are_unknown(&self.disk.failures().split_off(before)) {
            return self.is_poisoned().map(Some).map_err(at);
        }
        self.disk.clear_faults();
        self.run.model.doubt = None;
        self.run.step(op).map_err(|e| at(format!("again: {e}")))?;
        Ok(Some(End::Repeated))
    }

    fn reads_go_on(&self) -> Verdict {
        reads_go_on(&self.run, self.sticky)?;
        let last = self.run.store().last_checkpoint();
        match (last, self.run.model.durable.saved.last()) {
            (Some(last), Some(saved)) if self.reads => {
                compare_rows(self.run.store(), &last, saved).map_err(|e| e.to_string())
            }
            _ => Ok(()),
        }
    }

    /// The store refuses writes, is read on, and opens at its last checkpoint once the disk works.
    fn is_poisoned(&mut self) -> std::result::Result<End, String> {
        writes_are_refused(self.run.store())?;
        self.reads_go_on()?;
        drop(self.run.store.take());
        opens_or_says_why(&self.disk, &self.run)?;
        self.disk.clear_faults();
        verify_everywhere(&self.disk, &self.run)?;
        Ok(End::Poisoned)
    }
}

/// One workload in which call number `call` fails; also the kind of that call.
pub fn run_with_fault(
    seed: u64,
    plan: &Plan,
    call: u64,
    fault: Fault,
    sticky: bool,
) -> std::result::Result<(End, &'static str), String> {
    let disk = SimDisk::new(seed);
    disk.set_remnants([Remnants::Zeros, Remnants::Junk][call as usize % 2]);
    disk.fail_at(call, fault, sticky);
    let run = Run::of(Arc::new(disk.clone()), plan);
    let reads = fault == Fault::ReadOnly;
    let mut broken = Broken {
        disk,
        run,
        sticky,
        reads,
    };
    let kind = |disk: &SimDisk| disk.kinds().get(call as usize).copied().unwrap_or("");
    if broken.run.create().is_err() {
        let kind = kind(&broken.disk);
        drop(broken.run.store.take());
        return not_created(&broken.disk, &broken.run).map(|()| (End::NotCreated, kind));
    }
    let mut end = End::Absorbed;
    for op in &plan.ops {
        match broken.step(op)? {
            Some(End::Repeated) => end = End::Repeated,
            Some(other) => return Ok((other, kind(&broken.disk))),
            None => {}
        }
    }
    let Broken { disk, mut run, .. } = broken;
    let kind = kind(&disk);
    disk.clear_faults();
    drop(run.store.take());
    if kind.is_empty() {
        return Ok((End::NotHit, kind));
    }
    // A call that changes nothing leaves what it would have left anyway.
    let reads = ["open", "list", "read", "bytes", "space"].contains(&kind);
    if end != End::Absorbed || !reads || call.is_multiple_of(16) {
        verify_everywhere(&disk, &run)?;
    }
    Ok((end, kind))
}

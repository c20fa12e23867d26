//! How is a workload cut off at every call, and everything that a crash may leave looked at?
//!
//! - Before every call that changes what a crash could leave, several remains of the disk are
//!   taken. Those with the names and bytes of one already seen are not looked at again.
//! - The others are opened and compared with the model. Of each call's, the first new one is also
//!   cut off again, at every call of its own recovery. So is, at every other call, what a killed
//!   process leaves: nothing lost yet, but not durable.
//! - A [`Lie`] stands for an engine with a mistake, and so for its recoveries: it answers calls that
//!   the disk then never sees, or makes others before them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hps::format::checksum::digest128;
use hps::format::current::Current;
use hps::format::identity::StoreIdentity;
use hps::format::manifest::{Edit, ManifestReader, encode_manifest};
use hps::format::{FileIdentity, Version, manifest_names};
use hps::io::Io;
use hps::io::sim::{CrashMode, Remnants, SimDisk};
use hps::*;

use super::common::plans::Plan;
use super::common::tables::Changes;
use super::common::verify::{Verdict, numbered, verify, verify_and_go_on};
use super::common::{History, Model, Op, ROOT, Run};
use super::hooked::{Hook, HookedDisk};

/// What a [`Lie`] does about a call.
pub enum Told {
    /// Nothing: the disk gets it.
    Nothing,
    /// Other calls were made; now the disk gets it.
    Acted,
    /// The answer, without the disk.
    Answer(io::Result<()>),
}

/// Asked before each call, with what is being done, and the call's kind and path.
pub type Lie = Box<dyn FnMut(&SimDisk, &str, &'static str, &Path) -> Told + Send>;

/// Makes one for each disk: the workload's, and those of recoveries that are cut off.
pub type Liar = Arc<dyn Fn() -> Lie + Send + Sync>;

/// What a workload did, as far as tests ask for it.
#[derive(Debug, Default)]
pub struct Tally {
    pub flushes: u64,
    /// Of these, those that nobody asked for.
    pub evictions: u64,
    pub checkpoints: u64,
    /// Checkpoints after which the counters were compared with those of a store opened on it.
    pub recounted: u64,
    pub compactions: u64,
    /// Parameter files that were opened again after they had been closed.
    pub reopened: u64,
    pub removes: u64,
    /// Index snapshots begun, and manifests begun because the last one had grown.
    pub snapshots: u64,
    pub rolls: u64,
    /// Parts of snapshots by directory.
    pub parts: BTreeMap<PathBuf, u64>,
    /// Operations by name.
    pub ops: BTreeSet<String>,
    /// Whether it began on a store of version 1.
    pub older: bool,
    /// What was done to tables that come and go.
    pub tables: Changes,
    pub directories: usize,
    /// The greatest file number.
    pub number_max: u64,
    /// Row files that were made, and of these, unlinked.
    pub made: BTreeSet<PathBuf>,
    pub unlinked: usize,
    /// Calls at which it was cut off, remains of them, and those opened: each that is new.
    pub calls: u64,
    pub remains: u64,
    pub opened: u64,
    /// Recoveries that were cut off again, and what was opened after that.
    pub cut_again: u64,
    pub opened_again: u64,
}

impl Tally {
    fn add(&mut self, stats: &Stats) {
        self.flushes += stats.flushes;
        self.compactions += stats.compactions;
        self.reopened += stats.files_reopened;
    }

    fn created(&mut self, path: &Path) {
        let is = |extension: &str| path.extension().is_some_and(|e| e == extension);
        if is("snapshot") {
            // A snapshot has one part in each directory that has files.
            let place = path.parent().map(Path::to_path_buf).unwrap_or_default();
            let parts = self.parts.entry(place).or_default();
            *parts += 1;
            self.snapshots = self.snapshots.max(*parts);
        }
        let stem = path.file_stem().and_then(|s| s.to_str());
        let number = stem.and_then(|s| s.parse().ok()).unwrap_or(0);
        self.number_max = self.number_max.max(number);
    }
}

/// What a crash left.
pub struct Remains {
    pub call: u64,
    pub mode: CrashMode,
    pub survivor: u64,
    pub disk: SimDisk,
    /// The process was killed; the power did not fail.
    pub killed: bool,
}

fn remains_of(disk: &SimDisk, seed: u64, call: u64) -> Vec<Remains> {
    let random = seed << 20 | call << 3;
    let modes = [(0, CrashMode::KeepNone), (0, CrashMode::KeepAll)].into_iter();
    let modes = modes.chain((random..random + 6).map(|survivor| (survivor, CrashMode::Random)));
    let take = |(survivor, mode)| Remains {
        call,
        mode,
        survivor,
        disk: disk.crash(survivor, mode),
        killed: false,
    };
    modes.map(take).collect()
}

/// What the hook of a disk collects.
#[derive(Default)]
struct Collected {
    /// The name of the operation.
    doing: String,
    seen: BTreeSet<u128>,
    remains: Vec<Remains>,
    calls: u64,
    taken: u64,
    created: Vec<PathBuf>,
}

impl Collected {
    fn take(&mut self, disk: &SimDisk, seed: u64) {
        let before = self.remains.len();
        for remains in remains_of(disk, seed, self.calls) {
            self.taken += 1;
            if self.seen.insert(remains.disk.digest(digest128)) {
                self.remains.push(remains);
            }
        }
        if self.calls % 2 == 1 && self.remains.len() > before {
            self.remains.push(Remains {
                call: self.calls,
                mode: CrashMode::KeepAll,
                survivor: seed,
                disk: disk.killed(seed),
                killed: true,
            });
        }
    }
}

/// A workload being run and cut off everywhere.
pub struct Trial {
    seed: u64,
    pub disk: SimDisk,
    collected: Arc<Mutex<Collected>>,
    pub run: Run,
    liar: Option<Liar>,
    /// Whether recoveries are cut off too.
    pub cuts_again: bool,
    tally: Tally,
    /// The last call of which remains were cut again.
    cut_call: Option<u64>,
    /// Whether no checkpoint was made since the store was opened.
    fresh: bool,
}

impl Trial {
    /// On a disk that tells the truth, except where `lie` answers instead.
    pub fn new(seed: u64, plan: &Plan, liar: Option<Liar>) -> Trial {
        let disk = SimDisk::new(seed);
        if seed.is_multiple_of(4) {
            disk.set_remnants(Remnants::Junk);
        }
        let collected = Arc::new(Mutex::new(Collected::default()));
        let hook: Hook = {
            let (disk, collected) = (disk.clone(), Arc::clone(&collected));
            let lie = Mutex::new(liar.as_ref().map(|liar| liar()));
            Arc::new(move |kind, path: &Path| {
                let mut collected = collected.lock().unwrap();
                collected.take(&disk, seed);
                if kind == "create" {
                    collected.created.push(path.to_path_buf());
                }
                let told = match &mut *lie.lock().unwrap() {
                    Some(lie) => lie(&disk, &collected.doing, kind, path),
                    None => Told::Nothing,
                };
                if matches!(told, Told::Acted) {
                    collected.take(&disk, seed);
                }
                collected.calls += 1;
                match told {
                    Told::Nothing | Told::Acted => None,
                    Told::Answer(answer) => Some(answer),
                }
            })
        };
        let shared = Io::of(HookedDisk::new(disk.clone(), hook));
        Trial {
            seed,
            disk,
            collected,
            run: Run::of(shared, plan),
            liar,
            cuts_again: true,
            tally: Tally::default(),
            cut_call: None,
            fresh: true,
        }
    }

    /// Does a piece of the work and looks at every crash in it.
    fn step(&mut self, what: &str, work: impl FnOnce(&mut Run) -> Result<()>) -> Verdict {
        let mut before = self.run.model.clone();
        let options = self.run.options.clone();
        what.clone_into(&mut self.collected.lock().unwrap().doing);
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut self.run)));
        let seed = self.seed;
        let told = |e: &str| format!("seed {seed}, {what}: {e}");
        done.map_err(|_| told("panicked"))?
            .map_err(|e| told(&e.to_string()))?;
        let after = &self.run.model;
        let shown = |h: &History| {
            let steps: Vec<u64> = h.saved.iter().map(|s| s.step).collect();
            (steps, h.kept, h.tables.clone())
        };
        let exported = after.exports.len() > before.exports.len();
        let changed = shown(&after.durable) != shown(&before.durable);
        if changed {
            before.doubt = Some(after.durable.clone());
        }
        for export in &after.exports[before.exports.len()..] {
            let mut export = export.clone();
            export.done = false;
            before.exports.push(export);
        }
        let remains = {
            let mut collected = self.collected.lock().unwrap();
            self.tally.calls = collected.calls;
            self.tally.remains = collected.taken;
            std::mem::take(&mut collected.remains)
        };
        for remains in remains {
            self.look(&remains, &before, &options).map_err(|e| {
                let Remains {
                    call,
                    mode,
                    survivor,
                    killed,
                    ..
                } = remains;
                let how = if killed { "killed" } else { "cut" };
                told(&format!("call {call}, {how}, {mode:?} {survivor}: {e}"))
            })?;
        }
        if changed || exported || before.created != self.run.model.created {
            // What was right before may be wrong from here on.
            self.collected.lock().unwrap().seen.clear();
        }
        Ok(())
    }

    fn look(&mut self, remains: &Remains, model: &Model, options: &RuntimeOptions) -> Verdict {
        if remains.killed {
            let disk = remains.disk.clone();
            return match model.created && self.cuts_again {
                true => self.cut_recovery(disk, remains, model, options),
                false => Ok(()),
            };
        }
        self.tally.opened += 1;
        let again = self.cut_call != Some(remains.call);
        self.cut_call = Some(remains.call);
        // What recovery changes, it changes on a disk of its own.
        let twin = again.then(|| remains.disk.crash(0, CrashMode::KeepAll));
        let go_on = self.tally.opened.is_multiple_of(3);
        let other = options
            .clone()
            .shards(1 + usize::try_from(remains.survivor % 3).unwrap());
        guarded(|| match (model.created, go_on) {
            (false, _) => verify_half_created(&remains.disk, model, &other),
            (true, false) => verify(&remains.disk, model, &other, true),
            (true, true) => verify_and_go_on(&remains.disk, model, &other, true),
        })?;
        match twin {
            Some(twin) if model.created && self.cuts_again => {
                self.cut_recovery(twin, remains, model, options)
            }
            _ => Ok(()),
        }
    }

    /// Opens remains, cuts that off at each call, and opens what is left of it.
    fn cut_recovery(
        &mut self,
        disk: SimDisk,
        remains: &Remains,
        model: &Model,
        options: &RuntimeOptions,
    ) -> Verdict {
        let left = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&self.collected);
        let take = {
            let (disk, left) = (disk.clone(), Arc::clone(&left));
            let random = remains.survivor ^ remains.call << 32;
            move || {
                for (seed, mode) in [(0, CrashMode::KeepNone), (random, CrashMode::Random)] {
                    let after = disk.crash(seed, mode);
                    if seen.lock().unwrap().seen.insert(after.digest(digest128)) {
                        left.lock().unwrap().push(after);
                    }
                }
            }
        };
        let hook: Hook = {
            let (take, disk) = (take.clone(), disk.clone());
            let lie = Mutex::new(self.liar.as_ref().map(|liar| liar()));
            Arc::new(move |kind, path| {
                take();
                let told = match &mut *lie.lock().unwrap() {
                    Some(lie) => lie(&disk, "recovery", kind, path),
                    None => Told::Nothing,
                };
                match told {
                    Told::Nothing => None,
                    Told::Acted => {
                        take();
                        None
                    }
                    Told::Answer(answer) => Some(answer),
                }
            })
        };
        let hooked = Io::of(HookedDisk::new(disk, hook));
        let store = Store::open_on(hooked, &model.root, options.clone());
        drop(store.map_err(|e| format!("does not open: {e}"))?);
        take();
        self.tally.cut_again += 1;
        let left = std::mem::take(&mut *left.lock().unwrap());
        for (n, disk) in left.into_iter().enumerate() {
            self.tally.opened_again += 1;
            guarded(|| verify(&disk, model, options, true))
                .map_err(|e| format!("cut off again in its recovery ({n}): {e}"))?;
        }
        Ok(())
    }

    /// The whole workload; `honest` unless the disk or the engine lies.
    pub fn whole(mut self, plan: &Plan, honest: bool) -> std::result::Result<Tally, String> {
        let seed = self.seed;
        self.step("create", Run::create)?;
        self.tally.directories = plan.create.data_directories.len().max(1);
        if plan.older {
            let first = Op::Checkpoint(0, b"of version 1".to_vec());
            self.step("the first checkpoint", |run| run.step(&first))?;
            self.step("close", |run| {
                run.store = None;
                Ok(())
            })?;
            make_older(&self.disk);
            self.collected.lock().unwrap().seen.clear();
            self.step("open", Run::open)?;
            self.tally.older = true;
        }
        for op in &plan.ops {
            let before = self.run.store().stats();
            self.collected.lock().unwrap().created.clear();
            self.step(&op.to_string(), |run| run.step(op))?;
            self.count(op, &before);
            // A compaction that is due once a checkpoint is durable is not in it.
            let compacted = self.run.store().stats().compactions != before.compactions;
            if honest && matches!(op, Op::Checkpoint(..)) && !compacted {
                counters_are_exact(seed, &self.disk, &self.run);
                self.tally.recounted += 1;
            }
        }
        let stats = self.run.store().stats();
        self.collected.lock().unwrap().take(&self.disk, seed);
        self.step("the end", |_| Ok(()))?;
        let mut tally = std::mem::take(&mut self.tally);
        tally.tables = self.run.changes;
        tally.add(&stats);
        let left: BTreeSet<PathBuf> = self.disk.paths().into_iter().collect();
        tally.unlinked = tally.made.difference(&left).count();
        let calls = self.disk.changing_calls().len() as u64;
        assert!(
            !honest || tally.calls == calls,
            "{calls} calls, {} seen",
            tally.calls
        );
        Ok(tally)
    }

    fn count(&mut self, op: &Op, before: &Stats) {
        let created = std::mem::take(&mut self.collected.lock().unwrap().created);
        let tally = &mut self.tally;
        created.iter().for_each(|path| tally.created(path));
        let begun = created
            .iter()
            .any(|p| p.extension().is_some_and(|e| e == "manifest"));
        let name = format!("{op:?}");
        let name = name.split(['(', ' ']).next().unwrap_or_default();
        tally.ops.insert(name.to_owned());
        let rows = numbered(&self.disk, Path::new(ROOT)).into_iter();
        tally
            .made
            .extend(rows.filter(|p| p.extension().is_some_and(|e| e == "rows")));
        let now = self.run.store().stats();
        let is_new = matches!(op, Op::Reopen(_) | Op::ReopenOther(_) | Op::Rollback(_));
        match op {
            Op::Checkpoint(..) => {
                tally.checkpoints += 1;
                tally.rolls += u64::from(begun && !self.fresh);
                self.fresh = false;
            }
            Op::Recommit | Op::Forget => self.fresh &= !begun,
            Op::Remove(..) => tally.removes += 1,
            _ => {}
        }
        if is_new {
            tally.add(before);
            self.fresh = true;
        } else if !matches!(op, Op::Flush | Op::Checkpoint(..)) {
            tally.evictions += now.flushes - before.flushes;
        }
    }
}

/// Makes a store one of version 1, as far as CURRENT and its manifest go: its files are all of version 2.
fn make_older(disk: &SimDisk) {
    let read = |name: &str| disk.read_file(&Path::new(ROOT).join(name)).unwrap();
    let store = StoreIdentity::decode(&read("STORE")).unwrap().uuid;
    let current = Current::decode(&read("CURRENT"), &store).unwrap();
    let id = FileIdentity::new(store, current.manifest_number);
    let names = manifest_names(current.manifest_number);
    let bytes = usize::try_from(current.manifest_bytes).unwrap();
    let content = read(&names[0]);
    let edits = ManifestReader::new(&content[..bytes], &id).unwrap();
    let older = |edit: Edit| match edit {
        // Files that are not named any more go at the next open.
        Edit::HyperParameters { .. } | Edit::Snapshot { .. } => None,
        Edit::Checkpoint(meta) => Some(Edit::CheckpointV1(meta, HyperParameters::new())),
        other => Some(other),
    };
    let edits: Vec<Edit> = edits.filter_map(|edit| older(edit.unwrap())).collect();
    let (out, digest) = encode_manifest(Version::V1, &edits, &id);
    let current = Current {
        version: Version::V1,
        manifest_bytes: out.len() as u64,
        manifest_digest: digest,
        ..current
    };
    for (name, bytes) in names.iter().zip([&out, &out]) {
        disk.write_file(&Path::new(ROOT).join(name), bytes).unwrap();
    }
    let bytes = current.encode(&store);
    disk.write_file(&Path::new(ROOT).join("CURRENT"), &bytes)
        .unwrap();
}

/// A verdict, also where the test panics.
pub fn guarded(verdict: impl FnOnce() -> Verdict) -> Verdict {
    let told = |panic: Box<dyn std::any::Any + Send>| {
        let text = panic.downcast_ref::<String>().cloned();
        format!("panicked: {}", text.unwrap_or_default())
    };
    catch_unwind(AssertUnwindSafe(verdict)).unwrap_or_else(|panic| Err(told(panic)))
}

/// Before `create` returned there is no store, or an empty one.
pub fn verify_half_created(disk: &SimDisk, model: &Model, options: &RuntimeOptions) -> Verdict {
    match Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options.clone()) {
        Ok(store) => {
            drop(store);
            return verify_and_go_on(disk, model, options, true);
        }
        Err(Error::InvalidArgument(ArgumentError::NotAStore { .. })) => {}
        Err(e) => return Err(format!("half created: {e}")),
    }
    let mut again = Run::new(Arc::new(disk.clone()), options);
    again.model.root = PathBuf::from("/fresh");
    again.model.create.clone_from(&model.create);
    again.create().map_err(|e| format!("creating again: {e}"))?;
    drop(again.store.take());
    verify(disk, &again.model, options, true).map_err(|e| format!("created again: {e}"))
}

/// A whole workload, cut off at every call.
pub fn crash_everywhere(
    seed: u64,
    plan: &Plan,
    liar: Option<Liar>,
) -> std::result::Result<Tally, String> {
    let honest = liar.is_none();
    Trial::new(seed, plan, liar).whole(plan, honest)
}

/// The counters of the store are those of a store opened on what is durable.
fn counters_are_exact(seed: u64, disk: &SimDisk, run: &Run) {
    let left = Arc::new(disk.crash(seed, CrashMode::KeepNone));
    let recounted = Store::open_on(left, Path::new(ROOT), run.options.clone()).unwrap();
    let counters = |stats: Stats| {
        let Stats {
            index_keys,
            files,
            current_bytes,
            live_bytes,
            pinned_bytes,
            ..
        } = stats;
        (index_keys, files, current_bytes, live_bytes, pinned_bytes)
    };
    let (kept, found) = (counters(run.store().stats()), counters(recounted.stats()));
    assert_eq!(
        kept, found,
        "seed {seed}: (keys, files, current, live, pinned bytes)"
    );
}

/// Does `work` for each of `seeds`, by as many threads as there are processors.
pub fn in_parallel<T: Send>(
    seeds: std::ops::Range<u64>,
    work: impl Fn(u64) -> T + Sync,
) -> Vec<(u64, T)> {
    let next = AtomicU64::new(seeds.start);
    let take = || {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        (seed < seeds.end).then(|| (seed, work(seed)))
    };
    std::thread::scope(|scope| {
        let work = || std::iter::from_fn(take).collect::<Vec<_>>();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        let joined = joined.map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)));
        joined.flatten().collect()
    })
}

/// A number given in the environment.
pub fn environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number")),
    )
}

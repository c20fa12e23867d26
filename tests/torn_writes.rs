//! What does the last write of a file leave when the power goes in the middle of it?
//!
//! - Before each sync, the last write of that file is cut at each 512-byte boundary; what follows
//!   is what was there before, zeros, or junk. All else on the disk is lost, or all of it kept. The
//!   store opens at the checkpoint before, or at the one being made, whole.
//! - A sector of 512 bytes is old or new, as devices promise: the manifest is appended in the
//!   middle of one, whose first part is committed.
//! - The same below the length that the manifest or CURRENT commits is damage: an error, and never
//!   another value. Above it, it is no part of the store.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "common/crash.rs"]
#[expect(dead_code, reason = "the crash test uses the rest")]
mod common;
#[path = "../fuzz/src/forge.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forge;
#[path = "common/forging.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod forging;
#[path = "common/hooked.rs"]
mod hooked;
#[path = "common/oracle.rs"]
mod oracle;
#[path = "common/repairs.rs"]
#[expect(dead_code, reason = "tests of repairs use the rest")]
mod repairs;
#[path = "common/sample.rs"]
mod sample;
#[path = "../fuzz/src/tiny.rs"]
#[expect(
    clippy::expect_used,
    reason = "a test that can not make its store must fail"
)]
mod tiny;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::plans::plan;
use common::verify::verify;
use common::{Model, Op, ROOT, Random, Run, key};
use forging::{STORE, fix, identity, put_u64, u32_at, u64_at};
use hooked::{Hook, HookedDisk};
use hps::format::current::Current;
use hps::io::Io;
use hps::io::sim::{CrashMode, SECTOR_BYTES, SimDisk};
use hps::*;
use oracle::{Oracle, name_of};
use sample::rows;
use tiny::Tiny;

/// Weights of a narrow row.
const NARROW_DIM: usize = 256;

/// What follows a cut.
const FILLS: [&str; 3] = ["what was there", "zeros", "junk"];

/// `new` up to `cut`, then a filling as long as `new`; of old bytes only as many as there were.
fn torn(old: &[u8], new: &[u8], cut: usize, fill: &str) -> Vec<u8> {
    let mut out = new[..cut].to_vec();
    match fill {
        "what was there" => out.extend_from_slice(old.get(cut..).unwrap_or(&[])),
        "zeros" => out.resize(new.len(), 0),
        _ => {
            let mut random = Random(cut as u64);
            out.resize_with(new.len(), || random.next().to_le_bytes()[0]);
        }
    }
    out
}

/// A disk after a torn write.
struct Torn {
    what: String,
    base: SimDisk,
    path: PathBuf,
    content: Vec<u8>,
}

/// Every way in which the last write of a file that is about to be synced may be torn.
fn all_torn(disk: &SimDisk, path: &Path) -> Vec<Torn> {
    let bases = [CrashMode::KeepNone, CrashMode::KeepAll].map(|mode| (mode, disk.crash(0, mode)));
    let old = bases[0].1.read_file(path).unwrap_or_default();
    let new = disk.read_file(path).unwrap();
    if old == new {
        return Vec::new();
    }
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let mut all = Vec::new();
    for sector in (same / SECTOR_BYTES * SECTOR_BYTES..new.len()).step_by(SECTOR_BYTES) {
        // A sector is whole: where it held committed bytes too, they are there.
        let cut = sector.max(same);
        for fill in FILLS {
            for (mode, base) in &bases {
                all.push(Torn {
                    what: format!("{} cut at {cut}, {fill}, {mode:?}", path.display()),
                    base: base.clone(),
                    path: path.to_path_buf(),
                    content: torn(&old, &new, cut, fill),
                });
            }
        }
    }
    all
}

/// A workload; before each sync, all torn writes are collected.
struct Trial {
    run: Run,
    torn: Arc<Mutex<Vec<Torn>>>,
    counts: BTreeMap<String, usize>,
}

impl Trial {
    fn new(options: &RuntimeOptions) -> Trial {
        let disk = SimDisk::new(1);
        let torn = Arc::new(Mutex::new(Vec::new()));
        let hook: Hook = {
            let (disk, torn) = (disk.clone(), Arc::clone(&torn));
            Arc::new(move |kind, path: &Path| {
                if kind == "sync" {
                    torn.lock().unwrap().extend(all_torn(&disk, path));
                }
                None
            })
        };
        let shared = Io::of(HookedDisk::new(disk, hook));
        Trial {
            run: Run::new(shared, options),
            torn,
            counts: BTreeMap::new(),
        }
    }

    /// Does something and looks at every torn write in it.
    fn step(&mut self, work: impl FnOnce(&mut Run) -> Result<()>) {
        let mut before = self.run.model.clone();
        work(&mut self.run).unwrap();
        before.doubt = Some(self.run.model.durable.clone());
        for torn in std::mem::take(&mut *self.torn.lock().unwrap()) {
            // A copy: all of a disk after a crash is durable.
            let disk = torn.base.crash(0, CrashMode::KeepAll);
            if disk.write_file(&torn.path, &torn.content).is_err() {
                continue; // Its directory is gone too.
            }
            look(&disk, &before, &self.run.options, &torn.what);
            let name = torn.path.file_name().unwrap().to_str().unwrap();
            let kind = name
                .rsplit_once('.')
                .filter(|(stem, _)| stem.parse::<u64>().is_ok());
            let kind = kind.map_or(name, |(_, kind)| kind).to_owned();
            *self.counts.entry(kind).or_default() += 1;
        }
    }
}

fn look(disk: &SimDisk, model: &Model, options: &RuntimeOptions, what: &str) {
    if model.created {
        return verify(disk, model, options, true).unwrap_or_else(|e| panic!("{what}: {e}"));
    }
    // Before `create` returned there is no store, or an empty one.
    match Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options.clone()) {
        Err(Error::InvalidArgument(ArgumentError::NotAStore { .. })) => {}
        Err(e) => panic!("{what}: {e}"),
        Ok(store) => assert!(store.tables().is_empty() && store.checkpoints().is_empty()),
    }
}

#[test]
fn a_torn_last_write_of_any_file_leaves_one_whole_checkpoint() {
    let options = plan(3).options.retain_checkpoints(1);
    let mut trial = Trial::new(&options);
    trial.run.model.create.data_directories = vec!["a".into(), "b".into()];
    trial.step(Run::create);
    let ops = [
        rows(0..20, 1.0),
        Op::Checkpoint(1, vec![1; 700]),
        rows(10..24, 2.0),
        Op::Remove(0, vec![key(1), key(2)]),
        Op::Flush,
        Op::Compact,
        Op::Checkpoint(2, vec![2; 1500]),
        rows(0..6, 3.0),
        Op::Checkpoint(3, vec![]),
    ];
    for op in &ops {
        trial.step(|run| run.step(op));
    }
    println!("{:?}", trial.counts);
    for kind in [
        "CURRENT",
        "CURRENT.tmp",
        "PART",
        "STORE.tmp",
        "copy",
        "manifest",
        "meta",
        "rows",
    ] {
        let count = trial.counts.get(kind).copied().unwrap_or(0);
        assert!(count >= FILLS.len(), "{count} torn writes of {kind}");
    }
}

/// What opening and reading all of a changed store says.
fn read(oracle: &Oracle, files: &forge::Files) -> String {
    let disk = Arc::new(Tiny::disk(files));
    match Store::open_on(disk, Path::new(tiny::ROOT), tiny::options()) {
        Err(error) => name_of(&error),
        Ok(store) => {
            let told: Vec<String> = oracle.read(&store).into_iter().collect();
            told.join(", ")
        }
    }
}

/// Where nothing that an open or a reader needs is after a place.
fn is_unused(files: &forge::Files, path: &Path, cut: usize) -> bool {
    let bytes = &files[path];
    match path.extension().and_then(|e| e.to_str()) {
        // What a store can do without.
        Some("snapshot" | "copy") => true,
        // Zeros between the last record and the key blocks, which only a verifier reads.
        Some("rows") => bytes[cut..8192.max(cut)].iter().all(|b| *b == 0) && cut < 8192,
        _ => false,
    }
}

#[test]
fn below_the_committed_length_a_torn_write_is_damage_and_above_it_is_nothing() {
    let tiny = Tiny::new().unwrap();
    let oracle = Oracle::new(&tiny);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (path, bytes) in &tiny.files {
        for cut in (0..bytes.len()).step_by(SECTOR_BYTES) {
            for fill in FILLS {
                let mut files = tiny.files.clone();
                let content = match fill {
                    // To the end of the sector junk and then right bytes: torn in the middle.
                    "junk" => {
                        let end = bytes.len().min(cut + SECTOR_BYTES);
                        let mut content = torn(&[], &bytes[..end], cut, fill);
                        content.extend_from_slice(&bytes[end..]);
                        content
                    }
                    _ => torn(&[], bytes, cut, fill),
                };
                if content == *bytes {
                    continue;
                }
                files.insert(path.clone(), content);
                let told = read(&oracle, &files);
                *counts.entry(told.clone()).or_default() += 1;
                let unused =
                    is_unused(&tiny.files, path, cut) && (fill == "junk" || told.is_empty());
                let damage = told.contains("Corrupt");
                let what = format!("{} at {cut}: {fill}: {told:?}", path.display());
                assert!(damage || unused, "{what}");
            }
        }
    }
    println!("{counts:?}");
    let found = counts.iter().filter(|(told, _)| told.contains("Corrupt"));
    let found: usize = found.map(|(_, count)| count).sum();
    assert!(found > 250, "{counts:?}");
    above_is_nothing(&tiny, &oracle);
}

fn above_is_nothing(tiny: &Tiny, oracle: &Oracle) {
    let current = Current::decode(&tiny.files[&Path::new(tiny::ROOT).join("CURRENT")], &STORE);
    let committed = usize::try_from(current.unwrap().manifest_bytes).unwrap();
    for (path, bytes) in &tiny.files {
        let kind = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        for (fill, byte) in [("zeros", 0), ("junk", 0xa5u8)] {
            for length in [1, 7, 8, 511, 512, 4096, 10_000] {
                let mut files = tiny.files.clone();
                files.get_mut(path).unwrap().extend(vec![byte; length]);
                let expected = match (kind, fill) {
                    // Appended and not committed; preallocated; a cache.
                    ("manifest" | "copy" | "snapshot", _) | ("rows", "zeros") => "",
                    ("rows", _) => "Corrupt",
                    ("meta", _) => "meta: Corrupt",
                    _ if path.ends_with("LOCK") => "",
                    _ => "Corrupt",
                };
                let told = read(oracle, &files);
                assert_eq!(told, expected, "{length} {fill} after {}", path.display());
            }
        }
        assert!(kind != "manifest" || bytes.len() == committed);
    }
}

/// An append to the manifest, and to its copy, rewrites the sector that holds the last committed
/// bytes, with the same bytes in front. Torn in one of the two, by a device that does not write a
/// sector whole, it costs nothing: the store opens, or says which file is damaged, and a repair
/// gets everything back from the other.
#[test]
fn a_torn_sector_with_committed_bytes_of_a_manifest_is_got_back_from_its_copy() {
    let (mut opened, mut repaired) = (0, 0);
    for seed in [3, 4, 5] {
        let disk = SimDisk::new(seed);
        let taken = Arc::new(Mutex::new(Vec::new()));
        let hook: Hook = {
            let (disk, taken) = (disk.clone(), Arc::clone(&taken));
            Arc::new(move |kind, path: &Path| {
                let appended = path
                    .extension()
                    .is_some_and(|e| e == "manifest" || e == "copy");
                if kind == "sync" && appended {
                    let before = disk.crash(0, CrashMode::KeepNone);
                    let now = disk.read_file(path).unwrap();
                    taken
                        .lock()
                        .unwrap()
                        .push((before, path.to_path_buf(), now));
                }
                None
            })
        };
        let plan = plan(seed);
        let shared = Io::of(HookedDisk::new(disk, hook));
        let mut run = Run::of(shared, &plan);
        run.create().unwrap();
        for op in &plan.ops {
            taken.lock().unwrap().clear();
            run.step(op).unwrap();
            for (base, path, now) in taken.lock().unwrap().drain(..) {
                let whole = base.crash(0, CrashMode::KeepAll);
                let Some(last) = last_of(&whole) else {
                    continue;
                };
                let right = repairs::of_sim(&whole, Path::new(ROOT), last);
                for filling in ["half new", "zeros", "junk"] {
                    let disk = base.crash(0, CrashMode::KeepAll);
                    if !tear(&disk, &path, &now, filling) {
                        continue;
                    }
                    let what = format!("seed {seed}, {op}, {}, {filling}", path.display());
                    match is_got_back(&disk, &path, &what) {
                        true => repaired += 1,
                        false => opened += 1,
                    }
                    let found = repairs::of_sim(&disk, Path::new(ROOT), last);
                    assert!(found == right, "{what}: other rows");
                    assert_eq!(last_of(&disk), Some(last), "{what}");
                }
            }
        }
    }
    println!("{opened} opened, {repaired} repaired");
    assert!(
        opened > 10 && repaired > 4,
        "{opened} opened, {repaired} repaired"
    );
}

/// Tears the sector in which the committed bytes of a file end and new ones begin. False where
/// there is none.
fn tear(disk: &SimDisk, path: &Path, now: &[u8], filling: &str) -> bool {
    let Ok(old) = disk.read_file(path) else {
        return false; // A new file, whose name is not durable.
    };
    let start = old.len() / SECTOR_BYTES * SECTOR_BYTES;
    let end = now.len().min(start + SECTOR_BYTES);
    if start == old.len() || old.is_empty() {
        return false;
    }
    let mut content = now[..end].to_vec();
    let mut random = Random(end as u64);
    match filling {
        "half new" => content.truncate((old.len() + end) / 2),
        "zeros" => content[start..].fill(0),
        _ => content[start..].fill_with(|| random.next().to_le_bytes()[0]),
    }
    disk.write_file(path, &content).unwrap();
    true
}

/// The last checkpoint of a store that opens.
fn last_of(disk: &SimDisk) -> Option<CheckpointId> {
    let options = RuntimeOptions::default();
    let reader =
        Store::open_read_only_on(Arc::new(disk.clone()), Path::new(ROOT), None, options).ok()?;
    Some(reader.last_checkpoint()?.id)
}

/// The store opens, or names the damaged manifest, and a repair loses nothing. Whether it had to.
fn is_got_back(disk: &SimDisk, path: &Path, what: &str) -> bool {
    let options = RuntimeOptions::default();
    match Store::open_on(Arc::new(disk.clone()), Path::new(ROOT), options) {
        Ok(store) => {
            drop(store);
            return false;
        }
        Err(Error::Corrupt { path: told, .. }) => assert_eq!(told, path, "{what}"),
        Err(other) => panic!("{what}: {other}"),
    }
    assert!(path.extension().is_some_and(|e| e == "manifest"), "{what}");
    let outcome = repairs::repair_telling(disk, repair::RepairOptions::default());
    match outcome.unwrap_or_else(|e| panic!("{what}: {e}")) {
        (repair::RepairOutcome::Built(_, repaired), lost) => {
            let all = lost.is_empty() && repaired.nameless == 0;
            assert!(all, "{what}: {lost:?}");
            repaired
                .swap_on(&Io::of(disk.clone()), Path::new(ROOT))
                .unwrap();
        }
        (repair::RepairOutcome::Whole(report), _) => panic!("{what}: {report:?}"),
    }
    true
}

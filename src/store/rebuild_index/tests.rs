//! Is the index that was built the one that a walk over all key blocks gives?

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::io::Io;
use crate::io::sim::{Fault, SimDisk};
use crate::options::{
    CreateOptions, Initialiser, Optimizer, RuntimeOptions, TableDescriptor, Thresholds,
};
use crate::ssd::data_file::{DataFile, Location, RunState};
use crate::ssd::held::Held;
use crate::ssd::scan::KeyScan;
use crate::store::open;
use crate::store::parts::Parts;
use crate::store::{Store, Update};
use crate::units::{CheckpointId, FileNumber, FileSlot, mix64};

const ROOT: &str = "/store";

/// By table and hash: rank and location of the newest copy.
type Newest = BTreeMap<(u32, u64), (u64, Location)>;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0) % n
    }
}

/// The safe twin: every key block of every file, one after the other, the index snapshot not looked at.
fn walk(parts: &Parts) -> Newest {
    let mut newest = Newest::new();
    let files: Vec<_> = parts.core.ssd.versions().current().cloned().collect();
    for file in files {
        for run in &file.runs {
            let mut scan = KeyScan::new(&file, run.first_entry, run.entries, 1 << 16).unwrap();
            while scan.step().unwrap() {
                for (key, entry) in scan.keys.iter().zip(scan.first..) {
                    let tombstone = run.kind == RunKind::Tombstones;
                    let entry = u32::try_from(entry).unwrap();
                    let this = (file.meta.rank, Location::new(file.slot, tombstone, entry));
                    let best = newest.entry((run.table, mix64(*key))).or_insert(this);
                    *best = (*best).max(this);
                }
            }
        }
    }
    newest
}

/// Opens, and compares what was built with the twin's.
pub(super) fn check(disk: &Io, options: &RuntimeOptions) -> Result<usize> {
    let root = open::Place::Path(Path::new(ROOT));
    let parts = open::open(disk, root, options.clone(), false, None)?;
    let expected = walk(&parts);
    let mut found = BTreeMap::new();
    for cell in &parts.core.shards {
        for (table, state) in cell.lock().tables.iter().enumerate() {
            for (hash, location) in state.index.iter() {
                let before = found.insert((u32::try_from(table).unwrap(), hash), location);
                assert_eq!(before, None, "a key in two shards");
            }
        }
    }
    let expected: BTreeMap<_, _> = expected.into_iter().map(|(k, v)| (k, v.1)).collect();
    assert!(
        found == expected,
        "{} keys, not {}",
        found.len(),
        expected.len()
    );
    let versions = parts.core.ssd.versions();
    let mut recounts: BTreeMap<FileSlot, DataFile> = BTreeMap::new();
    for file in versions.current() {
        let mut recount = file.view(file.file.get().unwrap());
        recount.states = RunState::of_runs(&file.meta, &file.runs);
        recounts.insert(file.slot, recount);
    }
    for location in found.values() {
        assert!(recounts[&location.slot()].add_live(location.entry()) > 0);
    }
    for file in versions.current() {
        let recount = &recounts[&file.slot];
        let [counted, expected] =
            [file, recount].map(|file| (file.live_entries(), file.live_bytes()));
        assert_eq!(counted, expected, "{:?}", file.path);
        assert_eq!(file.live_weight(), recount.live_weight(), "{:?}", file.path);
    }
    assert!(versions.held().iter().all(Held::equals_a_recount));
    Ok(found.len())
}

fn random_options(random: &mut Random) -> RuntimeOptions {
    RuntimeOptions {
        cache_bytes: 1 << 20,
        io_depth: 4,
        file_bytes: 1 << 20,
        threads: 1 + usize::try_from(random.below(3)).unwrap(),
        shards: [1, 2, 4, 7][usize::try_from(random.below(4)).unwrap()],
        inline: random.below(2) == 0,
        thresholds: Thresholds {
            snapshot_young_bytes: random.below(3) * (16 << 10),
            snapshot_young_part: [2, 8, u64::MAX][usize::try_from(random.below(3)).unwrap()],
            open_unit_entries: [64, 700, 1 << 16][usize::try_from(random.below(3)).unwrap()],
            ..Thresholds::default()
        },
        ..RuntimeOptions::default()
    }
}

/// Pushes, removes, flushes, compactions and checkpoints in any order.
fn history(random: &mut Random, disk: &Io, create: CreateOptions, options: RuntimeOptions) {
    let store = Store::create_on(disk.clone(), Path::new(ROOT), create, options).unwrap();
    let tables: Vec<_> = (0..=random.below(3))
        .map(|i| {
            let descriptor = TableDescriptor {
                optimizer: Optimizer::Sgd,
                initialiser: Initialiser::Zero,
                ..TableDescriptor::new(&format!("t{i}"), 4)
            };
            store.create_table(&descriptor).unwrap()
        })
        .collect();
    let keys = 1 + random.below(6000);
    let mut step = 0;
    for _ in 0..10 + random.below(40) {
        let table = tables[usize::try_from(random.below(tables.len() as u64)).unwrap()];
        let from = random.below(keys);
        let mut batch: Vec<u64> = (from..from + 1 + random.below(1500)).collect();
        batch.retain(|_| random.below(4) > 0);
        match random.below(10) {
            0 => {
                store.flush().unwrap();
            }
            1 => {
                store.compact_fully().unwrap();
            }
            2 => {
                store.remove(table, &batch).unwrap();
            }
            3 | 4 => {
                step += 1;
                store.checkpoint(step, &[]).unwrap();
            }
            _ => {
                let mut rows = vec![0.0; batch.len() * 4];
                let lease = store.pull(table, &batch, &mut rows).unwrap();
                store.push(&lease, Update::weights(&rows)).unwrap();
            }
        }
    }
    store.checkpoint(step + 1, &[]).unwrap();
    store.close().unwrap();
}

pub(super) fn snapshots(disk: &SimDisk) -> Vec<std::path::PathBuf> {
    let all = disk.paths().into_iter();
    all.filter(|p| p.extension().is_some_and(|e| e == "snapshot"))
        .collect()
}

#[test]
fn after_any_history_the_index_built_is_that_of_a_walk_over_all_key_blocks() {
    let (mut with_snapshot, mut with_parts, mut keys) = (0, 0, 0);
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random(mix64(seed + 1));
        let sim = SimDisk::new(seed);
        let disk = Io::from(Arc::new(sim.clone()));
        let directories = (0..1 + random.below(4)).map(|d| format!("data-{d}").into());
        let create = CreateOptions::new().data_directories(directories.collect());
        let options = random_options(&mut Random(seed));
        history(&mut random, &disk, create, options);
        for _ in 0..3 {
            keys += check(&disk, &random_options(&mut random)).unwrap();
        }
        let mut parts = snapshots(&sim);
        with_snapshot += usize::from(!parts.is_empty());
        with_parts += usize::from(parts.len() > 1);
        // A byte of a part is wrong, early or late: what was built from that is thrown away; and
        // then the same with the next part.
        while let Some(part) = parts.pop() {
            let bytes = sim.read_file(&part).unwrap().len() as u64;
            sim.corrupt(&part, random.below(bytes), 4).unwrap();
            check(&disk, &random_options(&mut random)).unwrap();
        }
    }
    assert!(
        with_snapshot > 20 && with_parts > 10 && keys > 50_000,
        "{with_snapshot} snapshots, {with_parts} of several parts, {keys} keys"
    );
}

/// What an open has to read: the index snapshot, the key blocks of files that it does not cover, and of
/// each file the blocks at both ends. Beside it, the entries of these key blocks.
fn needed(parts: &Parts, snapshot_bytes: u64) -> (u64, u64) {
    let snapshot = parts.core.ssd.snapshot_ranges(CheckpointId(u64::MAX));
    let covered: Vec<FileNumber> = snapshot.into_iter().flat_map(|part| part.covered).collect();
    let (mut bytes, mut entries) = (snapshot_bytes, 0);
    for file in parts.core.ssd.versions().current() {
        bytes += 2 * 4096;
        if !covered.contains(&file.meta.number) {
            bytes += file.meta.footer_offset - file.keys_offset;
            entries += file.entries();
        }
    }
    (bytes, entries)
}

/// Rows of 16 bytes have no index snapshot after a load: it would be a third of what was flushed, and may
/// be a tenth. Nothing said how much an open may read then.
#[test]
fn an_open_of_narrow_rows_reads_each_key_block_about_once_and_the_space_bound_keeps_them_few() {
    const KEYS: u64 = 120_000;
    let sim = SimDisk::new(9);
    let disk = Io::from(Arc::new(sim.clone()));
    let options = RuntimeOptions {
        cache_bytes: 4 << 20,
        file_bytes: 1 << 20,
        threads: 2,
        thresholds: Thresholds {
            open_unit_entries: 16 << 10,
            ..Thresholds::default()
        },
        ..RuntimeOptions::default()
    };
    // Files that the caller writes are the same each time, and their keys spread over all shards;
    // on a busy machine the writer thread made some of a few shards only.
    let alone = RuntimeOptions {
        inline: true,
        threads: 1,
        ..options.clone()
    };
    let store = Store::create_on(
        disk.clone(),
        Path::new(ROOT),
        CreateOptions::new(),
        alone.clone(),
    )
    .unwrap();
    let descriptor = TableDescriptor {
        optimizer: Optimizer::Sgd,
        ..TableDescriptor::new("narrow", 4)
    };
    store.create_table(&descriptor).unwrap();
    store.checkpoint(0, &[]).unwrap();
    store.close().unwrap();
    // Loaded; then trained on some of the keys, then on all, four times before the last open.
    let mut step = 0;
    for (every, passes) in [(1, 1), (5, 1), (5, 1), (3, 1), (1, 1), (1, 4)] {
        let store = Store::open_on(disk.clone(), Path::new(ROOT), alone.clone()).unwrap();
        let table = store.table("narrow").unwrap();
        let keys: Vec<u64> = (0..KEYS)
            .filter(|k| mix64(*k).is_multiple_of(every))
            .collect();
        for _ in 0..passes {
            for batch in keys.chunks(4096) {
                let mut rows = vec![0.0; batch.len() * 4];
                let lease = store.pull(table, batch, &mut rows).unwrap();
                store.push(&lease, Update::weights(&rows)).unwrap();
            }
            step += 1;
            store.checkpoint(step, &[]).unwrap();
        }
        store.close().unwrap();
        let before = sim.read_bytes();
        let root = open::Place::Path(Path::new(ROOT));
        let parts = open::open(&disk, root, options.clone(), false, None).unwrap();
        let read = sim.read_bytes() - before;
        let snapshots = snapshots(&sim);
        assert_eq!(snapshots.len(), usize::from(passes == 4));
        let snapshot = snapshots
            .iter()
            .map(|path| sim.read_file(path).unwrap().len());
        let snapshot = snapshot.sum::<usize>() as u64;
        let (bytes, entries) = needed(&parts, snapshot);
        println!("step {step}: {read} bytes read, {bytes} needed, {entries} young entries");
        // Four threads begin in the middle of a run; each end of a part costs some blocks, and in
        // the index snapshot three places are sought, 64 KiB at each step.
        let steps = (snapshot >> 16).checked_ilog2().map_or(0, |log| log + 2);
        let most = bytes + bytes / 5 + 3 * (u64::from(steps) << 16);
        assert!(read <= most, "{read} of {bytes}, at most {most}");
        // Twice the live rows, and half a file.
        assert!(entries <= 2 * KEYS + (1 << 20) / 46, "{entries} entries");
    }
}

#[test]
fn damage_to_a_key_block_that_no_snapshot_covers_is_named() {
    let sim = SimDisk::new(5);
    let disk = Io::from(Arc::new(sim.clone()));
    let mut random = Random(5);
    let mut options = random_options(&mut random);
    options.thresholds.snapshot_young_bytes = u64::MAX >> 1;
    history(&mut random, &disk, CreateOptions::new(), options.clone());
    assert_eq!(snapshots(&sim).len(), 0);
    let root = open::Place::Path(Path::new(ROOT));
    let parts = open::open(&disk, root, options.clone(), false, None).unwrap();
    let file = parts.core.ssd.versions().current().last().cloned().unwrap();
    drop(parts);
    sim.corrupt(&file.path, file.keys_offset + 40, 1).unwrap();
    match check(&disk, &options) {
        Err(Error::Corrupt { path, .. }) => assert_eq!(path, file.path),
        other => unreachable!("{other:?}"),
    }
}

/// Threads of their own read key blocks: what one of them meets has to reach the open.
#[test]
fn an_open_in_which_a_read_fails_says_so_whichever_thread_it_was() {
    const EIO: i32 = 5;
    let sim = SimDisk::new(11);
    let disk = Io::from(Arc::new(sim.clone()));
    let options = RuntimeOptions {
        threads: 2,
        shards: 4,
        inline: false,
        thresholds: Thresholds {
            snapshot_young_bytes: u64::MAX >> 1,
            open_unit_entries: 64,
            ..Thresholds::default()
        },
        ..random_options(&mut Random(1))
    };
    history(&mut Random(8), &disk, CreateOptions::new(), options.clone());
    let try_open = || {
        let root = open::Place::Path(Path::new(ROOT));
        open::open(&disk, root, options.clone(), true, None).map(drop)
    };
    let before = sim.calls();
    try_open().unwrap();
    let calls = sim.calls() - before;
    let mut failed = 0;
    for call in (0..calls).step_by(3) {
        sim.fail_at(sim.calls() + call, Fault::Error(EIO), false);
        let result = try_open();
        sim.clear_faults();
        match result {
            Ok(()) => {}
            Err(Error::Io { .. }) => failed += 1,
            Err(other) => unreachable!("{other}"),
        }
    }
    // The manifest has a copy, and threads do not always need the same number of calls.
    assert!(failed > calls / 6 && failed > 10, "{failed} of {calls}");
    try_open().unwrap();
}

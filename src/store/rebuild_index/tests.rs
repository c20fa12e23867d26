//! Is the index that was built the one that a walk over all key blocks gives?

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::format::footer::RunKind;
use crate::io::Io;
use crate::io::sim::{Fault, SimDisk};
use crate::options::{
    CreateOptions, Initialiser, Optimizer, RuntimeOptions, TableDescriptor, Thresholds,
};
use crate::ssd::data_file::Location;
use crate::ssd::scan::KeyScan;
use crate::store::open;
use crate::store::parts::Parts;
use crate::store::{Store, Update};
use crate::units::{CheckpointId, mix64};

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

/// The safe twin: every key block of every file, one after the other, the image not looked at.
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
fn check(disk: &Io, options: &RuntimeOptions) -> Result<usize> {
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
    let mut live: BTreeMap<u32, u64> = BTreeMap::new();
    for location in found.values() {
        *live.entry(location.slot()).or_default() += 1;
    }
    for file in parts.core.ssd.versions().current() {
        let counted = live.get(&file.slot).copied().unwrap_or(0);
        assert_eq!(
            file.live.load(Ordering::Relaxed),
            counted,
            "{:?}",
            file.path
        );
    }
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
            image_young_bytes: random.below(3) * (16 << 10),
            image_young_part: [2, 8, u64::MAX][usize::try_from(random.below(3)).unwrap()],
            open_unit_entries: [64, 700, 1 << 16][usize::try_from(random.below(3)).unwrap()],
            ..Thresholds::default()
        },
        ..RuntimeOptions::default()
    }
}

/// Pushes, removes, flushes, compactions and checkpoints in any order.
fn history(random: &mut Random, disk: &Io, options: RuntimeOptions) {
    let store =
        Store::create_on(disk.clone(), Path::new(ROOT), CreateOptions::new(), options).unwrap();
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

fn images(disk: &SimDisk) -> Vec<std::path::PathBuf> {
    let all = disk.paths().into_iter();
    all.filter(|p| p.extension().is_some_and(|e| e == "image"))
        .collect()
}

#[test]
fn after_any_history_the_index_built_is_that_of_a_walk_over_all_key_blocks() {
    let (mut with_image, mut keys) = (0, 0);
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random(mix64(seed + 1));
        let sim = SimDisk::new(seed);
        let disk = Io::from(Arc::new(sim.clone()));
        history(&mut random, &disk, random_options(&mut Random(seed)));
        for _ in 0..3 {
            keys += check(&disk, &random_options(&mut random)).unwrap();
        }
        let Some(image) = images(&sim).pop() else {
            continue;
        };
        with_image += 1;
        // A byte of it is wrong, early or late: all that was built from it is thrown away.
        let bytes = sim.read_file(&image).unwrap().len() as u64;
        sim.corrupt(&image, random.below(bytes), 4).unwrap();
        check(&disk, &random_options(&mut random)).unwrap();
    }
    assert!(
        with_image > 20 && keys > 50_000,
        "{with_image} images, {keys} keys"
    );
}

/// What an open has to read: the image, the key blocks of files that it does not cover, and of
/// each file the blocks at both ends. Beside it, the entries of these key blocks.
fn needed(parts: &Parts, image_bytes: u64) -> (u64, u64) {
    let image = parts.core.ssd.image_ranges(CheckpointId(u64::MAX));
    let covered = image.map_or(Vec::new(), |image| image.covered);
    let (mut bytes, mut entries) = (image_bytes, 0);
    for file in parts.core.ssd.versions().current() {
        bytes += 2 * 4096;
        if !covered.contains(&file.meta.number) {
            bytes += file.meta.footer_offset - file.keys_offset;
            entries += file.entries();
        }
    }
    (bytes, entries)
}

/// Rows of 16 bytes have no image after a load: it would be a third of what was flushed, and may
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
        let images = images(&sim);
        assert_eq!(images.len(), usize::from(passes == 4));
        let image = images.iter().map(|path| sim.read_file(path).unwrap().len());
        let image = image.sum::<usize>() as u64;
        let (bytes, entries) = needed(&parts, image);
        println!("step {step}: {read} bytes read, {bytes} needed, {entries} young entries");
        // Four threads begin in the middle of a run; each end of a part costs some blocks, and in
        // the image three places are sought, 64 KiB at each step.
        let steps = (image >> 16).checked_ilog2().map_or(0, |log| log + 2);
        let most = bytes + bytes / 5 + 3 * (u64::from(steps) << 16);
        assert!(read <= most, "{read} of {bytes}, at most {most}");
        // Twice the live rows, and half a file.
        assert!(entries <= 2 * KEYS + (1 << 20) / 46, "{entries} entries");
    }
}

#[test]
fn damage_to_a_key_block_that_no_image_covers_is_named() {
    let sim = SimDisk::new(5);
    let disk = Io::from(Arc::new(sim.clone()));
    let mut random = Random(5);
    let mut options = random_options(&mut random);
    options.thresholds.image_young_bytes = u64::MAX >> 1;
    history(&mut random, &disk, options.clone());
    assert_eq!(images(&sim).len(), 0);
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
            image_young_bytes: u64::MAX >> 1,
            open_unit_entries: 64,
            ..Thresholds::default()
        },
        ..random_options(&mut Random(1))
    };
    history(&mut Random(8), &disk, options.clone());
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

/// Into which units is the work cut, and is an image that is whole made use of?
mod cut {
    use super::super::*;
    use crate::io::Io;
    use crate::options::{RuntimeOptions, TableOptions, Thresholds};
    use crate::store::open;
    use crate::store::parts::Parts;
    use crate::store::tests::{ROOT, made, options, set, sgd};

    /// Three tables, of which the second has most rows; with an image of all of them, or without.
    fn three_tables(image: bool) -> (Io, RuntimeOptions) {
        let options = RuntimeOptions {
            cache_bytes: 8 << 20,
            shards: 7,
            thresholds: Thresholds {
                image_young_bytes: if image { 0 } else { u64::MAX >> 1 },
                open_unit_entries: 1000,
                ..Thresholds::default()
            },
            ..options()
        };
        let (disk, store) = made(options.clone());
        for (name, rows) in [("a", 500), ("b", 6500), ("c", 2900)] {
            let table = store.create_table(&sgd(name, 4)).unwrap();
            let keys: Vec<u64> = (0..rows).collect();
            set(&store, table, &keys, 1.0);
        }
        let table = store.table("b").unwrap();
        store.remove(table, &[1, 2, 3]).unwrap();
        store.checkpoint(1, &[]).unwrap();
        store.close().unwrap();
        (disk, options)
    }

    fn opened(disk: &Io, options: &RuntimeOptions) -> Parts {
        let place = open::Place::Path(Path::new(ROOT));
        open::open(disk, place, options.clone(), false, None).unwrap()
    }

    fn files(parts: &Parts) -> Vec<Arc<DataFile>> {
        parts.core.ssd.versions().current().cloned().collect()
    }

    #[test]
    fn great_tables_are_cut_into_units_of_neighbouring_shards() {
        let (disk, options) = three_tables(false);
        let parts = opened(&disk, &options);
        let shape = |threads| -> Vec<(usize, Range<usize>)> {
            let units = units(&parts.core, &files(&parts), None, threads).unwrap();
            for unit in &units {
                assert_eq!(unit.blocks, (0, 0), "there is no image");
                let first = *part_range(unit.shards.start, 7).start();
                assert_eq!(
                    unit.range,
                    (first, *part_range(unit.shards.end - 1, 7).end())
                );
            }
            units.into_iter().map(|u| (u.table, u.shards)).collect()
        };
        // As many as threads, or as there are thousands of entries, or shards.
        assert_eq!(shape(1), [(0, 0..7), (1, 0..7), (2, 0..7)]);
        let three = [(1, 0..2), (1, 2..4), (1, 4..7)];
        assert_eq!(shape(3)[1..4], three);
        assert_eq!(shape(3)[4..], [(2, 0..3), (2, 3..7)]);
        let many = shape(64);
        assert_eq!(many.iter().filter(|u| u.0 == 1).count(), 6);
        assert_eq!(many.iter().filter(|u| u.0 == 2).count(), 2);
        let wide = RuntimeOptions {
            thresholds: Thresholds {
                open_unit_entries: 500,
                ..options.thresholds
            },
            ..options
        };
        drop(parts);
        let parts = opened(&disk, &wide);
        let units = units(&parts.core, &files(&parts), None, 64).unwrap();
        let of = |table| units.iter().filter(|u| u.table == table).count();
        assert_eq!([of(0), of(1), of(2)], [1, 7, 5], "a shard is not cut");
        let all = young_in(&files(&parts), 1, (0, u64::MAX));
        assert_eq!(all, 6503, "rows and tombstones");
        assert_eq!(entries(&files(&parts)), 500 + 6503 + 2900);
    }

    #[test]
    fn units_share_the_blocks_of_an_image_and_leave_out_none() {
        let (disk, options) = three_tables(true);
        let parts = opened(&disk, &options);
        let mut image = parts.core.ssd.image_ranges(CheckpointId(1)).unwrap();
        for threads in [1, 2, 4, 64] {
            let units = units(&parts.core, &[], Some(&mut image), threads).unwrap();
            let mut next = 0;
            for unit in &units {
                assert_eq!(unit.blocks.0, next, "{unit:?}");
                let table = u32::try_from(unit.table).unwrap();
                let first = image.block_of(table, unit.range.0).unwrap();
                assert_eq!(
                    unit.blocks.0, first,
                    "{unit:?}: the first that begins in it"
                );
                next = unit.blocks.1;
            }
            assert_eq!(next, image.blocks());
            let most = |table: usize| {
                let of = units.iter().filter(|u| u.table == table);
                let blocks: u64 = of.map(|u| u.blocks.1 - u.blocks.0).sum();
                let entries = ImageRanges::entries_max(blocks);
                usize::try_from(entries / 1000)
                    .unwrap()
                    .clamp(1, threads.min(7))
            };
            for table in 0..3 {
                let count = units.iter().filter(|u| u.table == table).count();
                assert_eq!(count, most(table), "table {table} by {threads}");
            }
        }
    }

    /// An image that is taken to be damaged costs an open its time and nothing else: whatever was wrong
    /// with the reading of a whole one was not seen.
    #[test]
    fn an_image_that_is_whole_is_made_use_of() {
        let (disk, options) = three_tables(true);
        for (shards, threads, least) in [(7, 1, 1000), (3, 2, 64), (4, 3, 1 << 16), (1, 2, 64)] {
            let options = RuntimeOptions {
                shards,
                threads,
                inline: false,
                thresholds: Thresholds {
                    open_unit_entries: least,
                    ..options.thresholds
                },
                ..options.clone()
            };
            let parts = opened(&disk, &options);
            let mut image = parts.core.ssd.image_ranges(CheckpointId(1)).unwrap();
            assert_eq!(image.entries(), 500 + 6500 + 2900, "{image:?}");
            let before = parts.core.ssd.images.bytes();
            let live = Rebuild::new(&parts.core)
                .load_from(&files(&parts), Some(&mut image))
                .unwrap();
            assert_eq!(live.iter().sum::<u64>(), image.entries());
            assert_eq!(parts.core.ssd.images.bytes(), before);
        }
    }

    #[test]
    fn twice_as_many_threads_as_serve_batches_build_and_one_with_inline() {
        let threads = |threads, inline| {
            let (_, store) = made(RuntimeOptions {
                threads,
                inline,
                ..options()
            });
            Rebuild::new(&store.parts.core).threads()
        };
        assert_eq!(
            [threads(1, false), threads(3, false), threads(3, true)],
            [2, 6, 1]
        );
    }

    /// A descriptor of another length would have rows read as rows of another table.
    #[test]
    fn a_file_of_a_table_that_is_not_there_or_has_longer_rows_is_damaged() {
        let (disk, options) = three_tables(false);
        let parts = opened(&disk, &options);
        let rebuild = Rebuild::new(&parts.core);
        let files = files(&parts);
        let tables = parts.core.all_tables();
        assert!(files.iter().all(|f| rebuild.check_runs(f).is_ok()));
        let mut wide = tables.clone();
        wide[2] = Arc::new(open::make_table(
            2,
            &sgd("c", 5),
            TableOptions::new(),
            &options,
        ));
        let refused = |what: &str| {
            let error = files.iter().find_map(|f| rebuild.check_runs(f).err());
            assert!(error.is_some(), "{what}");
        };
        // Records are padded to 8 bytes: this one is longer.
        let strides = [4, 5].map(|dim| record_stride(sgd("c", dim).row_bytes()));
        assert!(strides[0] < strides[1], "{strides:?}");
        parts.core.set_tables(wide);
        refused("longer rows");
        parts.core.set_tables(tables[..2].to_vec());
        refused("no such table");
        parts.core.set_tables(tables);
    }

    #[test]
    fn half_of_what_no_image_covers_counts_as_flushed() {
        let (disk, options) = three_tables(false);
        let parts = opened(&disk, &options);
        let bytes: u64 = files(&parts).iter().map(|f| f.meta.bytes).sum();
        assert_eq!(parts.core.ssd.images.flushed_bytes(), bytes / 2);
        assert!(bytes > 0);
    }
}

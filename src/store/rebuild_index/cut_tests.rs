//! Into which units is the work cut, and is a snapshot that is whole made use of?

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::tests::{check, snapshots};
    use super::super::*;
    use crate::io::Io;
    use crate::io::sim::SimDisk;
    use crate::options::{CreateOptions, RuntimeOptions, TableOptions, Thresholds};
    use crate::store::parts::Parts;
    use crate::store::tests::{ROOT, made, options, set, sgd};
    use crate::store::{Store, open};

    /// Three tables, of which the second has most rows; with an index snapshot of all of them, or without.
    fn three_tables(snapshot: bool) -> (Io, RuntimeOptions) {
        three_tables_in(1, snapshot)
    }

    /// The same in so many data directories.
    fn three_tables_in(directories: usize, snapshot: bool) -> (Io, RuntimeOptions) {
        three_tables_on(&SimDisk::new(1), directories, snapshot)
    }

    fn three_tables_on(sim: &SimDisk, directories: usize, snapshot: bool) -> (Io, RuntimeOptions) {
        let options = RuntimeOptions {
            cache_bytes: 8 << 20,
            shards: 7,
            thresholds: Thresholds {
                snapshot_young_bytes: if snapshot { 0 } else { u64::MAX >> 1 },
                open_unit_entries: 1000,
                ..Thresholds::default()
            },
            ..options()
        };
        let disk = Io::from(Arc::new(sim.clone()));
        let data_directories = (0..directories).map(|d| format!("data-{d}").into());
        let created = CreateOptions::new().data_directories(data_directories.collect());
        let root = Path::new(ROOT);
        let store = Store::create_on(disk.clone(), root, created, options.clone()).unwrap();
        for (name, rows) in [("a", 500), ("b", 6500), ("c", 2900)] {
            let table = store.create_table(&sgd(name, 4)).unwrap();
            let keys: Vec<u64> = (0..rows).collect();
            set(&store, table, &keys, 1.0);
        }
        let table = store.table("b").unwrap();
        // Each has a tombstone then.
        store.flush().unwrap();
        store.remove(table, &[1, 2, 3]).unwrap();
        store.checkpoint(1, &[]).unwrap();
        store.close().unwrap();
        (disk, options)
    }

    fn opened(disk: &Io, options: &RuntimeOptions) -> Parts {
        let place = open::Place::Path(Path::new(ROOT));
        open::open(disk, place, options.clone(), false, None).unwrap()
    }

    fn cut_into(
        parts: &Parts,
        snapshot: &mut [SnapshotRanges],
        young: &[Arc<DataFile>],
        threads: usize,
    ) -> Vec<Unit> {
        match units(&parts.core, young, snapshot, threads) {
            Ok(units) => units,
            Err(Failed::Part(_, error) | Failed::Store(error)) => unreachable!("{error}"),
        }
    }

    fn files(parts: &Parts) -> Vec<Arc<DataFile>> {
        parts.core.ssd.versions().current().cloned().collect()
    }

    #[test]
    fn great_tables_are_cut_into_units_of_neighbouring_shards() {
        let (disk, options) = three_tables(false);
        let parts = opened(&disk, &options);
        let shape = |threads| -> Vec<(usize, Range<usize>)> {
            let units = cut_into(&parts, &mut [], &files(&parts), threads);
            for unit in &units {
                assert_eq!(unit.blocks, [], "there is no snapshot");
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
        let units = cut_into(&parts, &mut [], &files(&parts), 64);
        let of = |table| units.iter().filter(|u| u.table == table).count();
        assert_eq!([of(0), of(1), of(2)], [1, 7, 5], "a shard is not cut");
        let all = young_in(&files(&parts), 1, (0, u64::MAX));
        assert_eq!(all, 6503, "rows and tombstones");
        assert_eq!(entries(&files(&parts)), 500 + 6503 + 2900);
    }

    #[test]
    fn units_share_the_blocks_of_each_part_and_leave_out_none() {
        for directories in [1, 3, 8] {
            let (disk, options) = three_tables_in(directories, true);
            let parts = opened(&disk, &options);
            let mut snapshot = parts.core.ssd.snapshot_ranges(CheckpointId(1));
            assert_eq!(snapshot.len(), directories);
            for threads in [1, 2, 4, 64] {
                let units = cut_into(&parts, &mut snapshot, &[], threads);
                for (p, part) in snapshot.iter_mut().enumerate() {
                    let mut next = 0;
                    for unit in &units {
                        let found = unit.blocks.iter().find(|(of, _)| *of == p);
                        let (low, high) = (unit.range.0, unit.range.1);
                        let touches = low <= part.range.1 && part.range.0 <= high;
                        assert_eq!(found.is_some(), touches, "{unit:?}");
                        let Some((_, blocks)) = found else { continue };
                        assert_eq!(blocks.0, next, "{unit:?}");
                        let table = u32::try_from(unit.table).unwrap();
                        let first = part.block_of(table, low.max(part.range.0)).unwrap();
                        assert_eq!(blocks.0, first, "{unit:?}: the first that begins in it");
                        next = blocks.1;
                    }
                    assert_eq!(next, part.blocks());
                }
                let most = |table: usize| {
                    let of = units.iter().filter(|u| u.table == table);
                    let blocks = of.flat_map(|u| &u.blocks).map(|(_, (from, to))| to - from);
                    let entries = SnapshotRanges::entries_max(blocks.sum());
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
    }

    /// A part that is taken to be damaged costs an open its time and nothing else: whatever was wrong
    /// with the reading of a whole one was not seen.
    #[test]
    fn a_snapshot_that_is_whole_is_made_use_of() {
        for directories in [1, 2, 3, 8] {
            let (disk, options) = three_tables_in(directories, true);
            for (shards, threads, least) in [(7, 1, 1000), (3, 2, 64), (4, 3, 1 << 16), (1, 2, 64)]
            {
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
                let mut snapshot = parts.core.ssd.snapshot_ranges(CheckpointId(1));
                let entries: u64 = snapshot.iter().map(SnapshotRanges::entries).sum();
                assert_eq!(entries, 500 + 6500 + 2900, "{snapshot:?}");
                let before = parts.core.ssd.snapshots.bytes();
                let live = Rebuild::new(&parts.core)
                    .load_from(&files(&parts), &mut snapshot)
                    .unwrap()
                    .expect("no part is damaged");
                assert_eq!(live.sum(), entries);
                assert_eq!(snapshot.len(), directories);
                assert_eq!(parts.core.ssd.snapshots.bytes(), before);
            }
        }
    }

    /// The key blocks of one directory are read instead, and the parts of the others stay in use.
    #[test]
    fn a_part_that_is_damaged_or_gone_is_built_alone_from_the_key_blocks_of_its_directory() {
        let sim = SimDisk::new(1);
        let (disk, options) = three_tables_on(&sim, 4, true);
        let parts = opened(&disk, &options);
        let in_force = parts.core.ssd.snapshot_ranges(CheckpointId(1));
        let file = |part: usize| in_force[part].path().to_path_buf();
        let damaged = file(2);
        let count = in_force[2].blocks();
        drop(parts);
        let whole = sim.read_file(&damaged).unwrap();
        assert_eq!(whole.len() as u64, (count + 3) * 4096);
        // Header, list of files, each block of entries, footer.
        for block in 0..count + 3 {
            let mut one = whole.clone();
            one[usize::try_from(block * 4096 + 77).unwrap()] ^= 4;
            sim.write_file(&damaged, &one).unwrap();
            for threads in [1, 3] {
                let options = RuntimeOptions {
                    threads,
                    inline: threads == 1,
                    ..options.clone()
                };
                check_without(&disk, &options, 2);
            }
        }
        // A part of another directory, under its name: its bytes are of another place.
        let other = sim.read_file(&file(1)).unwrap();
        sim.write_file(&damaged, &other).unwrap();
        check_without(&disk, &options, 2);
        sim.remove(&damaged).unwrap();
        check_without(&disk, &options, 2);
        sim.write_file(&damaged, &whole).unwrap();
        let parts = opened(&disk, &options);
        assert_eq!(parts.core.ssd.snapshot_ranges(CheckpointId(1)).len(), 4);
    }

    /// A store of version 1 has one image of all data directories, in its own.
    #[test]
    fn the_image_of_a_store_of_version_1_is_read_until_parts_replace_it() {
        let sim = SimDisk::new(1);
        let golden = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/data/golden-store-v1-directories"
        );
        let mut places = vec![PathBuf::from(golden)];
        while let Some(place) = places.pop() {
            let inside = Path::new(ROOT).join(place.strip_prefix(golden).unwrap());
            sim.create_dir(&inside).unwrap();
            for entry in std::fs::read_dir(&place).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    places.push(path);
                    continue;
                }
                let target = Path::new(ROOT).join(path.strip_prefix(golden).unwrap());
                sim.write_file(&target, &std::fs::read(&path).unwrap())
                    .unwrap();
            }
        }
        let disk = Io::from(Arc::new(sim.clone()));
        let options = RuntimeOptions {
            thresholds: Thresholds {
                snapshot_young_bytes: 0,
                snapshot_young_part: u64::MAX,
                open_unit_entries: 64,
                ..Thresholds::default()
            },
            ..options()
        };
        let keys = check(&disk, &options).unwrap();
        let parts = opened(&disk, &options);
        let checkpoint = parts.core.ssd.last_id().unwrap();
        let mut snapshot = parts.core.ssd.snapshot_ranges(checkpoint);
        assert_eq!(snapshot.len(), 1);
        assert_eq!(
            (snapshot[0].directory, snapshot[0].range),
            (None, (0, u64::MAX))
        );
        let whole = snapshot[0].path().to_path_buf();
        let rebuild = Rebuild::new(&parts.core);
        assert!(
            rebuild
                .load_from(&files(&parts), &mut snapshot)
                .unwrap()
                .is_some()
        );
        drop(parts);
        // It counts as bytes on disk, and goes when there are parts.
        let store = Store::open_on(disk.clone(), Path::new(ROOT), options.clone()).unwrap();
        let bytes = sim.read_file(&whole).unwrap().len() as u64;
        assert_eq!(store.parts.core.ssd.snapshots.bytes(), bytes);
        let (table, _) = store.tables()[0].clone();
        set(&store, table, &(0..500).collect::<Vec<u64>>(), 1.0);
        let step = store.last_checkpoint().unwrap().step;
        store.checkpoint(step + 1, &[]).unwrap();
        store.close().unwrap();
        let homes = snapshots(&sim);
        assert!(!homes.contains(&whole), "{homes:?}");
        assert!(check(&disk, &options).unwrap() >= keys);
        let parts = opened(&disk, &options);
        let snapshot = parts.core.ssd.snapshot_ranges(checkpoint.next());
        let directories: Vec<_> = snapshot.iter().filter_map(|part| part.directory).collect();
        assert_eq!(directories, [0, 1, 2]);
        assert_eq!(homes.len(), 3);
    }

    /// Opens beside one part that is of no use, and tells that the others were used.
    fn check_without(disk: &Io, options: &RuntimeOptions, without: usize) {
        check(disk, options).unwrap();
        let parts = opened(disk, options);
        let mut snapshot = parts.core.ssd.snapshot_ranges(CheckpointId(1));
        let rebuild = Rebuild::new(&parts.core);
        while rebuild
            .load_from(&files(&parts), &mut snapshot)
            .unwrap()
            .is_none()
        {}
        let used: Vec<_> = snapshot.iter().filter_map(|part| part.directory).collect();
        let all = 0..u32::try_from(parts.core.ssd.directories.len()).unwrap();
        let expected: Vec<u32> = all.filter(|d| *d as usize != without).collect();
        assert_eq!(used, expected);
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
    fn half_of_what_no_snapshot_covers_counts_as_flushed() {
        let (disk, options) = three_tables(false);
        let parts = opened(&disk, &options);
        let bytes: u64 = files(&parts).iter().map(|f| f.meta.bytes).sum();
        assert_eq!(parts.core.ssd.snapshots.flushed_bytes(), bytes / 2);
        assert!(bytes > 0);
    }
}

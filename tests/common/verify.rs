//! Does a store show what the model says, and nothing else?
//!
//! - Every retained checkpoint: its step, its meta, every row to the bit, no row more.
//! - Pulls and `contains` of every key that a workload may use.
//! - No file stays that the manifest does not need.
//! - An export that was acknowledged is a store of that checkpoint; one that was not is that, or
//!   no store.

#![expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect must fail"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hps::format::current::Current;
use hps::format::identity::StoreIdentity;
use hps::format::index_snapshot::{
    SnapshotFooter, decode_covered_block, decode_entry_block, decode_snapshot_header,
};
use hps::format::manifest::ManifestReader;
use hps::format::{BLOCK_BYTES, DecodeError, FileIdentity, FileKind, file_name, parse_file_name};
use hps::io::sim::SimDisk;
use hps::ssd::edits::{Replay, SnapshotPart};
use hps::*;

use super::tables::{Tables, keys_of};
use super::{Export, History, Model, Op, Rows, Run, Saved, descriptor, key, same};

/// What a test found wrong.
pub type Verdict = std::result::Result<(), String>;

macro_rules! check {
    ($ok:expr, $($what:tt)*) => {
        if !$ok {
            return Err(format!($($what)*));
        }
    };
}

fn open(
    disk: &SimDisk,
    root: &Path,
    options: &RuntimeOptions,
) -> std::result::Result<Store, String> {
    let opened = Store::open_on(Arc::new(disk.clone()), root, options.clone());
    opened.map_err(|e| format!("does not open: {e}"))
}

/// Opens the disk and compares everything with the model. With `exact`, as many checkpoints are
/// retained as the options say, otherwise that many or more.
pub fn verify(disk: &SimDisk, model: &Model, options: &RuntimeOptions, exact: bool) -> Verdict {
    let store = open(disk, &model.root, options)?;
    compare(&store, model, exact)?;
    no_orphans(disk, &model.root)?;
    let stats = store.stats();
    check!(
        !store.has_changes() && stats.uncheckpointed_rows == 0,
        "changes after opening: {stats:?}"
    );
    store.close().map_err(|e| format!("does not close: {e}"))?;
    model.exports.iter().try_for_each(|export| {
        let told = |e| format!("export to {}: {e}", export.root.display());
        check_export(disk, export, options).map_err(told)
    })
}

fn check_export(disk: &SimDisk, export: &Export, options: &RuntimeOptions) -> Verdict {
    let options = options.clone().moved_directories(Vec::new());
    let opened = Store::open_on(Arc::new(disk.clone()), &export.root, options);
    let store = match opened {
        Ok(store) => store,
        Err(Error::InvalidArgument(ArgumentError::NotAStore { .. })) if !export.done => {
            return Ok(());
        }
        Err(e) => return Err(format!("does not open: {e}")),
    };
    let durable = History {
        saved: vec![export.saved.clone()],
        kept: 1,
        tables: export.tables.clone(),
    };
    let model = Model {
        durable,
        ..Model::default()
    };
    compare(&store, &model, true)?;
    no_orphans(disk, &export.root)?;
    store.close().map_err(|e| format!("does not close: {e}"))
}

/// As [`verify`]; then changes rows, makes a checkpoint, opens and compares again.
pub fn verify_and_go_on(
    disk: &SimDisk,
    model: &Model,
    options: &RuntimeOptions,
    exact: bool,
) -> Verdict {
    let store = open(disk, &model.root, options)?;
    let history = compare(&store, model, exact)?;
    let go_on = |store: Store| -> Result<Run> {
        let mut run = Run::new(Arc::new(disk.clone()), options);
        run.model.root.clone_from(&model.root);
        run.model.create.clone_from(&model.create);
        run.model.reopened(history.clone());
        run.store = Some(store);
        run.first_tables()?;
        run.step(&Op::Rows(0, (38..42).map(key).collect(), -5.0))?;
        run.step(&Op::Remove(0, vec![key(3), key(45)]))?;
        let last = history.saved.last().map_or(0, |s| s.step);
        run.step(&Op::Checkpoint(last + 1, b"after the crash".to_vec()))?;
        run.store = None;
        Ok(run)
    };
    let run = go_on(store).map_err(|e| format!("does not go on: {e}"))?;
    verify(disk, &run.model, options, exact).map_err(|e| format!("after going on: {e}"))
}

/// Compares an open store, just opened, with the model; returns the history that it shows.
pub fn compare(store: &Store, model: &Model, exact: bool) -> std::result::Result<History, String> {
    let infos = store.checkpoints();
    let steps: Vec<u64> = infos.iter().map(|i| i.step).collect();
    let fits = |history: &&History| {
        let all: Vec<u64> = history.saved.iter().map(|s| s.step).collect();
        let enough = steps.len() == history.kept || !exact && steps.len() > history.kept;
        enough && all.ends_with(&steps) && history.tables.differ(store).is_none()
    };
    let mut candidates = [Some(&model.durable), model.doubt.as_ref()]
        .into_iter()
        .flatten();
    let Some(history) = candidates.find(fits) else {
        let names: Vec<String> = store.tables().into_iter().map(|(_, d)| d.name).collect();
        let last = |h: &History| {
            let steps: Vec<u64> = h.saved.iter().map(|s| s.step).collect();
            (steps, h.kept, h.tables.clone())
        };
        let doubt = model.doubt.as_ref().map(last);
        return Err(format!(
            "checkpoints of steps {steps:?} and tables {names:?}; acknowledged (steps, retained, \
             tables) {:?}, in doubt {doubt:?}",
            last(&model.durable)
        ));
    };
    let first = history.saved.len() - infos.len();
    for (info, saved) in infos.iter().zip(&history.saved[first..]) {
        compare_checkpoint(store, info, saved)?;
        compare_tables(store, info, saved)?;
    }
    let shown: Vec<_> = infos.iter().zip(&history.saved[first..]).collect();
    for pair in shown.windows(2) {
        compare_changes(store, pair[0], pair[1])?;
    }
    let empty = Rows::new();
    let rows = history.saved.last().map_or(&empty, |s| &s.rows);
    compare_pulls(store, rows, &history.tables)?;
    let mut history = history.clone();
    history.kept = steps.len();
    Ok(history)
}

/// What changed between two checkpoints turns the rows of one into those of the other.
fn compare_changes(
    store: &Store,
    (since, before): (&CheckpointInfo, &Saved),
    (until, after): (&CheckpointInfo, &Saved),
) -> Verdict {
    let told = |e: Error| format!("changes of steps {} to {}: {e}", since.step, until.step);
    let tables = store.tables_at(until.id).map_err(told)?;
    let is_there = |table: usize| tables.iter().any(|(id, _)| id.0 as usize == table);
    let mut rows: Rows = (*before.rows).clone();
    rows.retain(|(table, _), _| is_there(*table));
    let mut changes = store.incremental(since.id, until.id).map_err(told)?;
    while let Some(change) = changes.next_change().map_err(told)? {
        match change {
            Change::Row(row) => {
                let bits = row.values.iter().map(|v| v.to_bits()).collect();
                rows.insert((row.table.0 as usize, row.key), bits);
            }
            Change::Removed { table, key, .. } => {
                rows.remove(&(table.0 as usize, key));
            }
            other => return Err(format!("{other:?}")),
        }
    }
    let same = rows == *after.rows;
    check!(same, "changes of steps {} to {}", since.step, until.step);
    Ok(())
}

fn compare_checkpoint(store: &Store, info: &CheckpointInfo, saved: &Saved) -> Verdict {
    let step = saved.step;
    let told = |e: Error| format!("checkpoint of step {step}: {e}");
    let meta = store.checkpoint_meta(info.id).map_err(told)?;
    check!(meta == saved.meta, "step {step}: meta differs");
    check!(
        info.meta_bytes == meta.len() as u64,
        "step {step}: length of meta"
    );
    compare_rows(store, info, saved).map_err(told)
}

/// A checkpoint has its tables under the names of that time.
fn compare_tables(store: &Store, info: &CheckpointInfo, saved: &Saved) -> Verdict {
    let shown = store.tables_at(info.id).map_err(|e| e.to_string())?;
    let shown = shown.into_iter().map(|(id, t)| (id.0 as usize, t.name));
    let own = shown.filter(|(number, _)| *number < saved.tables.count());
    let own: Vec<(usize, String)> = own.collect();
    let expected = saved.tables.there().map(|(n, name)| (n, name.to_owned()));
    let expected: Vec<(usize, String)> = expected.collect();
    check!(
        own == expected,
        "step {}: tables {own:?} instead of {expected:?}",
        saved.step
    );
    Ok(())
}

/// Walks the rows of a checkpoint. Errors are the store's; a row that is not the model's panics.
pub fn compare_rows(store: &Store, info: &CheckpointInfo, saved: &Saved) -> Result<()> {
    let step = saved.step;
    let mut rows = store.rows(info.id)?;
    let mut count = 0;
    while let Some(row) = rows.next_row()? {
        let at = (row.table.0 as usize, row.key);
        let expected = saved.rows.get(&at);
        let found = || row.values.iter().map(|v| v.to_bits());
        assert!(
            expected.is_some_and(|bits| found().eq(bits.iter().copied())),
            "step {step}: row {at:x?} is {:?}, known: {}",
            &row.values[..2],
            expected.is_some()
        );
        count += 1;
    }
    assert_eq!(count, saved.rows.len(), "step {step}: rows");
    Ok(())
}

fn compare_pulls(store: &Store, rows: &Rows, tables: &Tables) -> Verdict {
    let model = Model {
        rows: rows.clone(),
        ..Model::default()
    };
    for (table, _) in tables.there() {
        let count = keys_of(table);
        let dim = descriptor(table).dim;
        let id = TableId(u32::try_from(table).unwrap());
        let keys: Vec<u64> = (0..count).map(key).collect();
        let known = store.contains(id, &keys).map_err(|e| e.to_string())?;
        for (key, known) in keys.iter().zip(known) {
            let expected = rows.contains_key(&(table, *key));
            check!(
                known == expected,
                "table {table}: contains({key:#x}) is {known}"
            );
        }
        for keys in keys.chunks(3) {
            let mut out = vec![0.0; keys.len() * dim];
            let lease = store.pull(id, keys, &mut out);
            drop(lease.map_err(|e| format!("pull of table {table}: {e}"))?);
            for (key, got) in keys.iter().zip(out.chunks(dim)) {
                let row = model.row(table, *key);
                check!(
                    same(got, &row[..dim]),
                    "table {table}: pulled row {key:#x} differs"
                );
            }
        }
    }
    Ok(())
}

/// Every numbered file is named by the manifest, and the manifest names files that are needed.
pub fn no_orphans(disk: &SimDisk, root: &Path) -> Verdict {
    let read = |name: &str| {
        disk.read_file(&root.join(name))
            .map_err(|e| format!("{name}: {e}"))
    };
    let stored = StoreIdentity::decode(&read("STORE")?).map_err(|e| format!("STORE: {e:?}"))?;
    let store = stored.uuid;
    let current = Current::decode(&read("CURRENT")?, &store).map_err(|e| format!("{e:?}"))?;
    let manifest = file_name(FileKind::Manifest, current.manifest_number);
    let content = read(&manifest)?;
    let identity = FileIdentity::new(store, current.manifest_number);
    let committed = &content[..usize::try_from(current.manifest_bytes).unwrap()];
    let mut reader = ManifestReader::new(committed, &identity).map_err(|e| format!("{e:?}"))?;
    let mut replay = Replay::default();
    while let Some(edit) = reader.next_edit().map_err(|e| format!("{e:?}"))? {
        replay.apply(edit)?;
    }
    let needed = |f: &hps::format::manifest::FileMeta| {
        replay
            .checkpoints
            .iter()
            .any(|c| f.added <= c.id && c.id < f.removed)
    };
    let copy = file_name(FileKind::ManifestCopy, current.manifest_number);
    check!(
        read(&copy)?.starts_with(committed),
        "{copy} is no copy of the manifest"
    );
    let mut expected = BTreeSet::from([manifest, copy]);
    for file in replay.files.values() {
        check!(
            needed(file),
            "the manifest names file {} for no checkpoint",
            file.number
        );
        expected.insert(file_name(FileKind::Rows, file.number));
    }
    let metas = replay.checkpoints.iter().map(|c| c.meta_number);
    expected.extend(metas.map(|n| file_name(FileKind::Meta, n)));
    for part in &replay.snapshot {
        let name = part.file_name();
        let home = part.home(stored.directories.len());
        let place = home.map(|home| &*stored.directories[home]);
        let found = read(&Path::new(place.unwrap_or("")).join(&name).to_string_lossy())?;
        part_is_whole(&found, store, part, &replay, stored.directories.len())
            .map_err(|e| format!("{name}: {e:?}"))?;
        expected.insert(name);
    }
    let found: BTreeSet<String> = numbered(disk, root).iter().map(|p| name_of(p)).collect();
    check!(
        found == expected,
        "files {found:?}, the manifest needs {expected:?}"
    );
    Ok(())
}

/// A part of an index snapshot is only a cache; but one that CURRENT commits was synced before. It
/// has the keys, and lists the files, of its data directory alone.
fn part_is_whole(
    content: &[u8],
    store: [u8; 16],
    part: &SnapshotPart,
    replay: &Replay,
    directories: usize,
) -> std::result::Result<(), DecodeError> {
    let identity = &FileIdentity::new(store, part.number);
    let mut blocks = content.chunks_exact(BLOCK_BYTES);
    let mut next = || blocks.next().unwrap_or(&[]);
    let (_, mut tally) = decode_snapshot_header(next(), identity)?;
    assert_eq!(tally.directory(), part.directory);
    let (mut covered, mut entries) = (Vec::new(), Vec::new());
    while tally.covered_left() > 0 {
        decode_covered_block(next(), identity, &mut tally, &mut covered)?;
    }
    let range = match part.directory {
        Some(directory) => part_range(directory as usize, directories),
        None => 0..=u64::MAX,
    };
    while tally.next_offset() + (BLOCK_BYTES as u64) < content.len() as u64 {
        decode_entry_block(next(), identity, &mut tally, &mut entries)?;
        assert!(
            entries
                .iter()
                .all(|entry| range.contains(&mix64(entry.key)))
        );
    }
    for file in covered.iter().filter_map(|number| replay.files.get(number)) {
        assert!(part.directory.is_none_or(|d| d == file.directory));
    }
    let footer = SnapshotFooter::decode(next(), identity, tally.next_offset())?;
    footer.check(&tally)?;
    assert_eq!(
        footer.checksum, part.checksum,
        "another part than the one in force"
    );
    Ok(())
}

/// Files of the store with a number in their name.
pub fn numbered(disk: &SimDisk, root: &Path) -> Vec<PathBuf> {
    let paths = disk.paths().into_iter().filter(|p| p.starts_with(root));
    paths
        .filter(|p| parse_file_name(&name_of(p)).is_some())
        .collect()
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

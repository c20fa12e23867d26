//! Whatever the blocks that had reached the disk when the power went: does the file system recover, and
//! does the store open at a checkpoint that this moment allows?
//!
//! A loop device on a file of our own file system shows every write and flush of ext4, XFS or btrfs
//! below a store, with io_uring and O_DIRECT. From that log come images: everything up to a flush, and
//! of the writes after it all, none, or some blocks. Each is mounted (which replays the journal),
//! looked at by the file system's checker, opened, compared, and every eighth is trained on. The same
//! with a repair and its exchange of names, on ext4.
//!
//! Needs root, loop devices, FUSE, and the tools of each file system; where they are missing, the test
//! says SKIPPED. `HPS_BLOCK_IMAGES` is the number of images (50; half as many of XFS and btrfs);
//! `HPS_SEED` repeats them.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "disks/block_log.rs"]
mod block_log;
mod disks;
#[path = "disks/file_system.rs"]
mod file_system;
#[path = "disks/fuse.rs"]
mod fuse;
#[path = "disks/images.rs"]
mod images;
#[path = "../../tests/common/seed.rs"]
mod seed;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use disks::{DIM, Random, Trainer, environment, options, own_mounts, say, skipped};
use file_system::Kind;
use hps::repair::{RepairOutcome, repair_on};
use hps::*;
use images::{Disk, Place, Recording};

/// A checkpoint: between which calls it was made, and what is in it.
struct Made {
    begun: usize,
    acknowledged: usize,
    step: u64,
    rows: BTreeMap<u64, f32>,
}

/// What was done to the disk, and what was promised meanwhile.
struct History {
    recording: Recording,
    created: usize,
    checkpoints: Vec<Made>,
    options: RuntimeOptions,
}

/// Trains on the disk.
fn train(disk: &Disk, place: &Place, seed: u64) -> History {
    let mounted = place.mounted(disk).unwrap();
    let base = disk.log.begin();
    let options = options()
        .inline(seed % 2 == 1)
        .retain_checkpoints(1 + (seed / 4 % 2) as usize);
    let mut random = Random(seed);
    let mut trainer = Trainer::create(&place.root().join("store"), options.clone()).unwrap();
    assert!(trainer.store().stats().direct_io, "no O_DIRECT");
    let created = disk.log.calls();
    let mut checkpoints = Vec::new();
    for batch in 1..=24u64 {
        match random.below(8) {
            0 => drop(trainer.store().flush().unwrap()),
            1 => drop(trainer.store().compact_fully().unwrap()),
            2 if batch > 4 => {
                // Closes without what came after the last checkpoint, and opens again.
                trainer.store.take().unwrap().close_discarding();
                trainer.reopen();
            }
            _ => trainer.set_random(&mut random, 3000, 500).unwrap(),
        }
        if batch.is_multiple_of(3) {
            let begun = disk.log.calls();
            let meta = vec![3; random.below(6000) as usize];
            trainer.checkpoint(&meta).unwrap();
            checkpoints.push(Made {
                begun,
                acknowledged: disk.log.calls(),
                step: trainer.step,
                rows: trainer.durable.clone(),
            });
        }
    }
    let log = disk.log.end();
    trainer.store.take().unwrap().close().unwrap();
    mounted.unmount().unwrap();
    History {
        recording: Recording { base, log },
        created,
        checkpoints,
        options,
    }
}

fn text(error: Error) -> String {
    error.to_string()
}

/// The rows of the last checkpoint, each of equal weights.
fn rows_of(store: &Store) -> std::result::Result<BTreeMap<u64, f32>, String> {
    let mut rows = BTreeMap::new();
    if let Some(last) = store.last_checkpoint() {
        let mut all = store.rows(last.id).map_err(text)?;
        while let Some(row) = all.next_row().map_err(text)? {
            let weights = &row.values[..DIM];
            if weights.iter().any(|w| *w != weights[0]) {
                return Err(format!("a torn row of key {}", row.key));
            }
            rows.insert(row.key, weights[0]);
        }
    }
    Ok(rows)
}

impl History {
    /// The steps of the newest checkpoint that must be there at a moment, and that may be.
    fn allowed(&self, cut: usize) -> (u64, u64) {
        let last = |done: &dyn Fn(&Made) -> bool| {
            let steps = self.checkpoints.iter().filter(|c| done(c)).map(|c| c.step);
            steps.max().unwrap_or(0)
        };
        (last(&|c| c.acknowledged <= cut), last(&|c| c.begun < cut))
    }

    /// What is wrong with the store below `root` at a moment; the step of its newest checkpoint.
    fn look(&self, root: &Path, cut: usize, train: bool) -> std::result::Result<u64, String> {
        let path = root.join("store");
        let (must, may) = self.allowed(cut);
        if !path.join("STORE").exists() {
            return match self.created > cut {
                true => Ok(0),
                false => Err("no store".to_owned()),
            };
        }
        let store = Store::open(&path, self.options.clone()).map_err(text)?;
        let step = store.last_checkpoint().map_or(0, |last| last.step);
        if step < must || step > may {
            return Err(format!("checkpoint {step}, not of {must} to {may}"));
        }
        let rows = rows_of(&store)?;
        let made = self.checkpoints.iter().find(|made| made.step == step);
        if made.map_or(!rows.is_empty(), |made| made.rows != rows) {
            return Err(format!("rows of checkpoint {step}"));
        }
        let mut trainer = Trainer {
            path,
            options: self.options.clone(),
            store: Some(store),
            rows: rows.clone(),
            durable: rows,
            step,
        };
        // A store without its table was cut off while it was created.
        if train && step > 0 {
            trainer
                .set_random(&mut Random(step), 3000, 500)
                .map_err(text)?;
            trainer.checkpoint(b"on").map_err(text)?;
            trainer.reopen();
        }
        trainer.store.take().unwrap().close().map_err(text)?;
        trainer.inspection_is_clean();
        Ok(step)
    }
}

/// What was found, over all images.
#[derive(Default, Debug)]
struct Counts {
    images: usize,
    calls: usize,
    flushes: usize,
    blocks: usize,
    newer: usize,
    empty: usize,
}

fn images(place: &Place, history: &History, count: usize, seed: u64, counts: &mut Counts) {
    let recording = &history.recording;
    let cuts = recording.cuts(count, &mut Random(seed));
    counts.blocks += recording.each_image(&cuts, |number, at, image| {
        let step = place
            .look(image, |root| history.look(root, at.cut, number % 8 == 0))
            .unwrap_or_else(|wrong| panic!("seed {seed}, {at:?}: {wrong}"));
        counts.newer += usize::from(step > history.allowed(at.cut).0);
        counts.empty += usize::from(step == 0 && at.cut > 0);
    });
    counts.images += cuts.len();
    counts.calls += recording.log.len();
    counts.flushes += recording.flushes();
}

/// A disk that says that it flushed, and did not: its images must be found wrong, or the test itself
/// would be.
fn a_lie_is_found(place: &Place, history: &History) {
    let [first, .., last] = &history.checkpoints[..] else {
        panic!("fewer than two checkpoints");
    };
    let image = history.recording.until(first.acknowledged);
    let found = place.look(&image, |root| history.look(root, last.acknowledged, false));
    let Err(wrong) = found else {
        panic!("a checkpoint that is not there was not missed");
    };
    let expected = format!("not of {} to {}", last.step, last.step);
    assert!(wrong.contains(&expected), "{wrong}");
}

/// How many images, and the seed.
fn wanted() -> (usize, u64) {
    let images = usize::try_from(environment("HPS_BLOCK_IMAGES", 50)).unwrap();
    (images, seed::fresh("block_log"))
}

/// Histories on disks of a kind, and images of each.
fn images_of(kind: Kind, wanted: usize, seed: u64) {
    let mut counts = Counts::default();
    // One history for each kind of settings, or for the next one where few images are wanted.
    let histories = (wanted / 50).max(1);
    for number in 0..histories {
        let seed = seed + number as u64;
        let (disk, place) = match Place::new(kind, seed) {
            Ok(made) => made,
            Err(why) if number == 0 => {
                return skipped(&format!("block_log, {}", kind.name()), &why);
            }
            Err(why) => panic!("the first worked: {why}"),
        };
        let history = train(&disk, &place, seed);
        drop(disk);
        let share = wanted / histories + usize::from(number < wanted % histories);
        images(&place, &history, share, seed, &mut counts);
        a_lie_is_found(&place, &history);
    }
    assert!(counts.flushes > 20 * histories, "{counts:?}");
    // Few images may have neither.
    let some = counts.blocks > 0 && counts.empty > 0;
    assert!(some || wanted < 50, "{counts:?}");
    say(&format!(
        "block_log: {} images of {} calls of {} with {} flushes; {} blocks kept by chance; {} with a \
         checkpoint that was not yet acknowledged, {} before the first; seed {seed}",
        counts.images,
        counts.calls,
        kind.name(),
        counts.flushes,
        counts.blocks,
        counts.newer,
        counts.empty
    ));
}

#[test]
fn whatever_blocks_reached_a_disk_with_ext4_a_checkpoint_that_the_moment_allows_opens() {
    const NAME: &str =
        "whatever_blocks_reached_a_disk_with_ext4_a_checkpoint_that_the_moment_allows_opens";
    if own_mounts(NAME) {
        let (wanted, seed) = wanted();
        images_of(Kind::Ext4, wanted, seed);
    }
}

#[test]
fn whatever_blocks_reached_a_disk_with_xfs_a_checkpoint_that_the_moment_allows_opens() {
    const NAME: &str =
        "whatever_blocks_reached_a_disk_with_xfs_a_checkpoint_that_the_moment_allows_opens";
    if own_mounts(NAME) {
        let (wanted, seed) = wanted();
        images_of(Kind::Xfs, wanted.div_ceil(2), seed);
    }
}

#[test]
fn whatever_blocks_reached_a_disk_with_btrfs_a_checkpoint_that_the_moment_allows_opens() {
    const NAME: &str =
        "whatever_blocks_reached_a_disk_with_btrfs_a_checkpoint_that_the_moment_allows_opens";
    if own_mounts(NAME) {
        let (wanted, seed) = wanted();
        images_of(Kind::Btrfs, wanted.div_ceil(2), seed);
    }
}

/// Files below a directory, but those that come and go.
fn files_below(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut left = vec![directory.to_path_buf()];
    while let Some(next) = left.pop() {
        let Ok(entries) = fs::read_dir(&next) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.file_name() != Some("LOCK".as_ref()) {
                let name = path.strip_prefix(directory).unwrap().to_path_buf();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// A repair, the exchange included; whether there was something to do. `built` is called before the
/// exchange.
fn mend(root: &Path, built: impl FnOnce()) -> std::result::Result<bool, String> {
    let disk = hps::io::Io::pread();
    let mut go_on = |_, _| ControlFlow::Continue(());
    let mut told = |_: &str, _| Ok(());
    let outcome = repair_on(&disk, root, Default::default(), &mut told, &mut go_on);
    match outcome.map_err(text)? {
        RepairOutcome::Whole(_) => Ok(false),
        RepairOutcome::Built(_, repaired) => {
            built();
            repaired.swap_on(&disk, root).map_err(text)?;
            Ok(true)
        }
    }
}

/// What must be there after a repair that was cut off, and after the next one.
fn is_mended(
    home: &Path,
    damaged: &BTreeMap<PathBuf, Vec<u8>>,
    rows: &BTreeMap<u64, f32>,
    over: bool,
) -> std::result::Result<(), String> {
    let root = home.join("store");
    let is_damaged = |name: &str| files_below(&home.join(name)) == *damaged;
    if !root.join("STORE").exists() {
        return Err("no store under its name".to_owned());
    }
    if !["store", "store.repair", "store.damaged"]
        .into_iter()
        .any(is_damaged)
    {
        return Err("the damaged store is not what it was".to_owned());
    }
    if over && !is_damaged("store.damaged") {
        return Err("the repair was over, and the damaged store has not its name".to_owned());
    }
    let had_to = mend(&root, || ())?;
    if over && had_to {
        return Err("twice is not once".to_owned());
    }
    let mut names: Vec<String> = fs::read_dir(home)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lost+found")
        .collect();
    names.sort();
    if names != ["store", "store.damaged"] || !is_damaged("store.damaged") {
        return Err(format!("{names:?} after the second repair"));
    }
    let store = Store::open(&root, options()).map_err(text)?;
    if rows_of(&store)? != *rows {
        return Err("other rows than after a repair without a cut".to_owned());
    }
    store.close().map_err(text)
}

#[test]
fn a_repair_whose_power_goes_leaves_one_store_or_the_other_and_is_ended_by_the_next() {
    const NAME: &str =
        "a_repair_whose_power_goes_leaves_one_store_or_the_other_and_is_ended_by_the_next";
    if !own_mounts(NAME) {
        return;
    }
    let (wanted, seed) = wanted();
    let (disk, place) = match Place::new(Kind::Ext4, seed) {
        Ok(made) => made,
        Err(why) => return skipped("block_log, repair", &why),
    };
    let mounted = place.mounted(&disk).unwrap();
    let root = place.root().join("store");
    let mut trainer = Trainer::create(&root, options()).unwrap();
    for step in 0..6 {
        trainer
            .set_random(&mut Random(seed + step), 2000, 500)
            .unwrap();
        trainer.checkpoint(b"whole").unwrap();
    }
    trainer.store.take().unwrap().close().unwrap();
    let files = files_below(&root);
    let mut row_files = files
        .keys()
        .filter(|p| p.extension().is_some_and(|e| e == "rows"));
    // The first record of a file, and the manifest.
    let manifest = files
        .keys()
        .find(|p| p.extension().is_some_and(|e| e == "manifest"));
    for (path, offset) in [
        (row_files.next_back().unwrap(), 4200),
        (manifest.unwrap(), 70),
    ] {
        let file = File::options().write(true).open(root.join(path)).unwrap();
        file.write_all_at(&[!files[path][offset]], offset as u64)
            .unwrap();
        file.sync_all().unwrap();
    }
    let damaged = files_below(&root);
    mounted.unmount().unwrap();

    let mounted = place.mounted(&disk).unwrap();
    let base = disk.log.begin();
    let mut built = 0;
    let mended = mend(&root, || built = disk.log.calls());
    assert!(mended.unwrap(), "nothing was repaired");
    let over = disk.log.calls();
    let log = disk.log.end();
    let store = Store::open_read_only(&root, None, options()).unwrap();
    let rows = rows_of(&store).unwrap();
    store.close().unwrap();
    assert!(
        rows.len() >= trainer.durable.len() - 1 && rows != trainer.durable,
        "one row is lost"
    );
    mounted.unmount().unwrap();
    drop(disk);

    let recording = Recording { base, log };
    // Anywhere in the repair, and everywhere in the exchange of names.
    let mut random = Random(seed);
    let mut cuts = recording.cuts(wanted / 2, &mut random);
    cuts.extend(recording.every_cut(built, &mut random));
    cuts.sort_by_key(|cut| cut.flushed);
    let mut ended = 0;
    recording.each_image(&cuts, |_, at, image| {
        let found = place.look(image, |home| {
            let swapped = home.join("store.damaged").exists();
            is_mended(home, &damaged, &rows, at.cut >= over).map(|()| swapped)
        });
        ended += usize::from(found.unwrap_or_else(|wrong| panic!("seed {seed}, {at:?}: {wrong}")));
    });
    let end = recording.until(over);
    place
        .look(&end, |home| is_mended(home, &damaged, &rows, true))
        .unwrap();
    assert!(0 < ended && ended < cuts.len(), "{ended} of {}", cuts.len());
    say(&format!(
        "block_log: {} images of a repair of {} calls with {} flushes; {ended} after the exchange; \
         seed {seed}",
        cuts.len() + 1,
        recording.log.len(),
        recording.flushes()
    ));
}

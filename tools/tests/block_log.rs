//! Whatever the blocks that had reached the disk when the power went: does ext4 recover, and does the
//! store open at a checkpoint that this moment allows?
//!
//! A loop device on a file of our own file system shows every write and flush of ext4 below a store,
//! with io_uring and O_DIRECT. From that log come images: everything up to a flush, and of the writes
//! after it all, none, or some blocks. Each is mounted (which replays the journal), checked by e2fsck,
//! opened, compared, and every eighth is trained on.
//!
//! Needs root, loop devices, FUSE, e2fsprogs; where they are missing, the test says SKIPPED.
//! `HPS_BLOCK_IMAGES` is the number of images (50); `HPS_SEED` repeats them.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that meets what it does not expect must fail"
)]

#[path = "disks/block_log.rs"]
mod block_log;
mod disks;
#[path = "disks/ext4.rs"]
mod ext4;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use block_log::{BlockLog, BlockLogFs, NAME, Record, apply, apply_some};
use disks::{DIM, Random, Trainer, environment, options, own_mounts, say, skipped};
use ext4::Mounted;
use fuser::{BackgroundSession, Config, MountOption};
use hps::*;
use tempfile::TempDir;

const DISK_BYTES: usize = 40 << 20;
/// (mkfs options, mount options): small and large blocks, data in order and not.
const FILE_SYSTEMS: [(&[&str], &str); 4] = [
    (&["-b", "4096"], "commit=300"),
    (&["-b", "4096"], "commit=1"),
    (&["-b", "1024"], "commit=300"),
    (&["-b", "4096"], "data=writeback,commit=300"),
];

/// The disk as a file, and the directory it is mounted on.
struct Disk {
    server: Option<BackgroundSession>,
    log: BlockLog,
    directory: TempDir,
}

impl Disk {
    fn new() -> std::result::Result<Disk, String> {
        let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
        let log = BlockLog::new(DISK_BYTES);
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("hps-block-log".to_owned())];
        let fs = BlockLogFs(log.clone());
        let server = fuser::spawn_mount(fs, directory.path(), &config);
        let server = server.map_err(|e| format!("no FUSE mount: {e}"))?;
        Ok(Disk {
            server: Some(server),
            log,
            directory,
        })
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.umount_and_join().unwrap();
        }
    }
}

/// A checkpoint: between which calls it was made, and what is in it.
struct Made {
    begun: usize,
    acknowledged: usize,
    step: u64,
    rows: BTreeMap<u64, f32>,
}

/// What was done to the disk, and what was promised meanwhile.
struct History {
    base: Vec<u8>,
    log: Vec<Record>,
    created: usize,
    checkpoints: Vec<Made>,
    options: RuntimeOptions,
}

/// Trains on the disk.
fn record(disk: &Disk, place: &Path, mount: &str, seed: u64) -> History {
    let mounted = Mounted::new(&disk.file(), place, mount).unwrap();
    let base = disk.log.begin();
    let options = RuntimeOptions {
        inline: seed % 2 == 1,
        retain_checkpoints: 1 + (seed / 4 % 2) as usize,
        ..options()
    };
    let mut random = Random(seed);
    let mut trainer = Trainer::create(&place.join("store"), options.clone()).unwrap();
    assert!(trainer.store().stats().direct_io, "no O_DIRECT");
    let created = disk.log.calls();
    let mut checkpoints = Vec::new();
    for batch in 1..=24u64 {
        match random.below(8) {
            0 => drop(trainer.store().flush().unwrap()),
            1 => drop(trainer.store().compact().unwrap()),
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
        base,
        log,
        created,
        checkpoints,
        options,
    }
}

/// What is on the disk when the power goes: all calls before `flushed`, and of those from there to
/// `cut` all, none, or the blocks that a seed chooses.
#[derive(Clone, Copy, Debug)]
struct Cut {
    flushed: usize,
    cut: usize,
    kept: Kept,
}

#[derive(Clone, Copy, Debug)]
enum Kept {
    All,
    Nothing,
    Some(u64),
}

impl History {
    /// The calls after each flush: what a disk may reorder or lose until the next.
    fn epochs(&self) -> Vec<(usize, usize)> {
        let flushes = self.log.iter().enumerate();
        let ends = flushes.filter_map(|(i, r)| matches!(r, Record::Flush).then_some(i));
        let mut epochs = Vec::new();
        let mut from = 0;
        for end in ends {
            epochs.push((from, end));
            from = end + 1;
        }
        epochs.push((from, self.log.len()));
        epochs
    }

    /// Half of them at flushes, evenly, or all flushes; the others within the epochs.
    fn cuts(&self, images: usize, random: &mut Random) -> Vec<Cut> {
        let epochs = self.epochs();
        let at_flushes = (images / 2).clamp(1, epochs.len());
        let mut cuts = Vec::new();
        for i in 0..at_flushes {
            let (flushed, _) = epochs[i * epochs.len() / at_flushes];
            let cut = flushed;
            let kept = Kept::Nothing;
            cuts.push(Cut { flushed, cut, kept });
        }
        let ends = epochs
            .iter()
            .flat_map(|(from, to)| (*from..*to).map(|call| (*from, call + 1)));
        let ends: Vec<(usize, usize)> = ends.collect();
        while cuts.len() < images {
            // Each write is as likely the last one: long epochs are cut more often.
            let (flushed, cut) = ends[random.below(ends.len() as u64) as usize];
            let kept = match random.below(8) {
                0 => Kept::All,
                1 => Kept::Nothing,
                _ => Kept::Some(random.below(1 << 40)),
            };
            cuts.push(Cut { flushed, cut, kept });
        }
        cuts.sort_by_key(|cut| cut.flushed);
        cuts
    }

    /// The steps of the newest checkpoint that must be there at a moment, and that may be.
    fn allowed(&self, cut: usize) -> (u64, u64) {
        let last = |done: &dyn Fn(&Made) -> bool| {
            let steps = self.checkpoints.iter().filter(|c| done(c)).map(|c| c.step);
            steps.max().unwrap_or(0)
        };
        (last(&|c| c.acknowledged <= cut), last(&|c| c.begun < cut))
    }
}

/// Where images are put and mounted.
struct Bench {
    image: PathBuf,
    place: PathBuf,
    mount: &'static str,
}

impl Bench {
    fn mounted(&self) -> std::result::Result<Mounted, String> {
        Mounted::new(&self.image, &self.place, self.mount)
    }

    /// What is wrong with the store in an image; the step of its newest checkpoint.
    fn look(
        &self,
        bytes: &[u8],
        history: &History,
        cut: usize,
        train: bool,
    ) -> std::result::Result<u64, String> {
        fs::write(&self.image, bytes).unwrap();
        self.mounted()?.unmount()?;
        ext4::check(&self.image)?;
        let mounted = self.mounted()?;
        let found = self.open(history, cut, train);
        mounted.unmount()?;
        found
    }

    fn open(&self, history: &History, cut: usize, train: bool) -> std::result::Result<u64, String> {
        let path = self.place.join("store");
        let (must, may) = history.allowed(cut);
        if !path.join("STORE").exists() {
            return match history.created > cut {
                true => Ok(0),
                false => Err("no store".to_owned()),
            };
        }
        let text = |error: Error| error.to_string();
        let store = Store::open(&path, history.options.clone()).map_err(text)?;
        let last = store.last_checkpoint();
        let step = last.as_ref().map_or(0, |last| last.step);
        if step < must || step > may {
            return Err(format!("checkpoint {step}, not of {must} to {may}"));
        }
        let mut rows = BTreeMap::new();
        if let Some(last) = &last {
            let mut all = store.rows(last.id).map_err(text)?;
            while let Some(row) = all.next_row().map_err(text)? {
                let weights = &row.values[..DIM];
                if weights.iter().any(|w| *w != weights[0]) {
                    return Err(format!("a torn row of key {}", row.key));
                }
                rows.insert(row.key, weights[0]);
            }
        }
        let made = history.checkpoints.iter().find(|made| made.step == step);
        if made.map_or(!rows.is_empty(), |made| made.rows != rows) {
            return Err(format!("rows of checkpoint {step}"));
        }
        let mut trainer = Trainer {
            path,
            options: history.options.clone(),
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

fn images(bench: &Bench, history: &History, count: usize, seed: u64, counts: &mut Counts) {
    let cuts = history.cuts(count, &mut Random(seed));
    let (mut bytes, mut applied) = (history.base.clone(), 0);
    for (number, at) in cuts.iter().enumerate() {
        apply(&mut bytes, &history.log, applied..at.flushed);
        applied = at.flushed;
        let mut image = bytes.clone();
        let rest = at.flushed..at.cut;
        match at.kept {
            Kept::Nothing => {}
            Kept::All => apply(&mut image, &history.log, rest),
            Kept::Some(seed) => {
                let mut random = Random(seed);
                let mut kept = || random.below(2) == 0;
                counts.blocks += apply_some(&mut image, &history.log, rest, &mut kept);
            }
        }
        let step = bench
            .look(&image, history, at.cut, number % 8 == 0)
            .unwrap_or_else(|wrong| panic!("seed {seed}, {at:?}: {wrong}"));
        counts.images += 1;
        counts.newer += usize::from(step > history.allowed(at.cut).0);
        counts.empty += usize::from(step == 0);
    }
    counts.calls += history.log.len();
    counts.flushes += history.epochs().len() - 1;
}

/// A disk that says that it flushed, and did not: its images must be found wrong, or the test itself
/// would be.
fn a_lie_is_found(bench: &Bench, history: &History) {
    let [first, .., last] = &history.checkpoints[..] else {
        panic!("fewer than two checkpoints");
    };
    let mut bytes = history.base.clone();
    apply(&mut bytes, &history.log, 0..first.acknowledged);
    let found = bench.look(&bytes, history, last.acknowledged, false);
    let wrong = found.expect_err("a checkpoint that is not there was not missed");
    let expected = format!("not of {} to {}", last.step, last.step);
    assert!(wrong.contains(&expected), "{wrong}");
}

#[test]
fn whatever_blocks_reached_the_disk_a_checkpoint_that_the_moment_allows_opens() {
    if !own_mounts("whatever_blocks_reached_the_disk_a_checkpoint_that_the_moment_allows_opens") {
        return;
    }
    let wanted = usize::try_from(environment("HPS_BLOCK_IMAGES", 50)).unwrap();
    let seed = environment("HPS_SEED", u64::from(std::process::id()));
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("mount");
    let memory = directory.path().join("images");
    fs::create_dir(&place).unwrap();
    fs::create_dir(&memory).unwrap();
    // Images are written and thrown away; without the right they go to the disk.
    let tmpfs = [
        "-t".as_ref(),
        "tmpfs".as_ref(),
        "tmpfs".as_ref(),
        memory.as_os_str(),
    ];
    let in_memory = ext4::run("mount", &tmpfs).is_ok();
    let mut counts = Counts::default();
    // One history for each kind of file system, or for the next one where few images are wanted.
    let histories = (wanted / 50).max(1);
    for number in 0..histories {
        let seed = seed + number as u64;
        let (make, mount) = FILE_SYSTEMS[(seed % 4) as usize];
        let disk = match Disk::new() {
            Ok(disk) => disk,
            Err(why) => return skipped("block_log", &why),
        };
        let lazy = [
            "-m",
            "0",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
        ];
        let ready = ext4::make(&disk.file(), &[make, &lazy].concat())
            .and_then(|()| Mounted::new(&disk.file(), &place, mount)?.unmount());
        if let Err(why) = ready {
            return skipped("block_log", &why);
        }
        say(&format!("block_log: seed {seed}, {make:?}, {mount}"));
        let history = record(&disk, &place, mount, seed);
        drop(disk);
        let bench = Bench {
            image: memory.join("image"),
            place: place.clone(),
            mount,
        };
        let share = wanted / histories + usize::from(number < wanted % histories);
        images(&bench, &history, share, seed, &mut counts);
        a_lie_is_found(&bench, &history);
    }
    assert!(counts.flushes > 20 * histories, "{counts:?}");
    say(&format!(
        "block_log: {} images of {} calls with {} flushes; {} blocks kept by chance; {} with a \
         checkpoint that was not yet acknowledged, {} before the first; seed {seed}",
        counts.images, counts.calls, counts.flushes, counts.blocks, counts.newer, counts.empty
    ));
    if in_memory {
        fs::remove_file(memory.join("image")).unwrap();
        ext4::run("umount", &[&memory]).unwrap();
    }
}

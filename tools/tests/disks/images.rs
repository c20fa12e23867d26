//! What may be on a disk when the power goes: how do tests record it, and how do they look at it?
//!
//! - [`Disk`] is a block device whose traffic is recorded; ext4, XFS or btrfs is made on it.
//! - From a [`Recording`] come [`Cut`]s: everything up to a flush, and of the writes after it all, none,
//!   or some blocks.
//! - [`Place`] mounts an image, as after a power cut, and has its checker look at it.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "test helpers fail the test"
)]

use std::fs;
use std::path::{Path, PathBuf};

use fuser::{BackgroundSession, Config, MountOption};
use tempfile::TempDir;

use super::block_log::{BlockLog, BlockLogFs, NAME, Record, apply, apply_some};
use super::disks::Random;
use super::file_system::{self, Kind, Mounted};

type Answer<T> = Result<T, String>;

/// How a file system is made and mounted, on how large a disk.
#[derive(Clone, Copy)]
struct System {
    kind: Kind,
    make: &'static [&'static str],
    mount: &'static str,
    bytes: usize,
}

/// Made at once, without what is done later in the background, and without discards.
const EXT4: &str = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
const fn ext4(block: &'static [&'static str], mount: &'static str) -> System {
    System {
        kind: Kind::Ext4,
        make: block,
        mount,
        bytes: 40 << 20,
    }
}
/// Small and large blocks, data in order and not.
const EXT4_SYSTEMS: [System; 4] = [
    ext4(&["-m", "0", "-E", EXT4, "-b", "4096"], "commit=300"),
    ext4(&["-m", "0", "-E", EXT4, "-b", "4096"], "commit=1"),
    ext4(&["-m", "0", "-E", EXT4, "-b", "1024"], "commit=300"),
    ext4(
        &["-m", "0", "-E", EXT4, "-b", "4096"],
        "data=writeback,commit=300",
    ),
];
const XFS: System = System {
    kind: Kind::Xfs,
    make: &["-K"],
    mount: "defaults",
    bytes: 48 << 20,
};
/// Data and metadata in the same block groups, as on small disks.
const BTRFS: System = System {
    kind: Kind::Btrfs,
    make: &["-K", "--mixed"],
    mount: "nodiscard",
    bytes: 64 << 20,
};

/// A block device, as a file.
pub struct Disk {
    server: Option<BackgroundSession>,
    pub log: BlockLog,
    directory: TempDir,
}

impl Disk {
    fn new(bytes: usize) -> Answer<Disk> {
        let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
        let log = BlockLog::new(bytes);
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

/// Where file systems are mounted, and images are kept: in memory, where that is allowed.
pub struct Place {
    system: System,
    in_memory: bool,
    directory: TempDir,
}

impl Place {
    /// A disk with a new file system of a kind, and a place for it; or why there can be none. The seed
    /// chooses among the settings of ext4.
    pub fn new(kind: Kind, seed: u64) -> Answer<(Disk, Place)> {
        let directory = tempfile::tempdir().map_err(|e| e.to_string())?;
        let system = match kind {
            Kind::Ext4 => EXT4_SYSTEMS[(seed % 4) as usize],
            Kind::Xfs => XFS,
            Kind::Btrfs => BTRFS,
        };
        let mut place = Place {
            system,
            in_memory: false,
            directory,
        };
        for name in ["mount", "images"] {
            fs::create_dir(place.directory.path().join(name)).map_err(|e| e.to_string())?;
        }
        let images = place.directory.path().join("images");
        let tmpfs = ["-t".as_ref(), "tmpfs".as_ref(), "tmpfs".as_ref()];
        let tmpfs = [&tmpfs[..], &[images.as_os_str()]].concat();
        place.in_memory = file_system::run("mount", &tmpfs).is_ok();
        let disk = Disk::new(system.bytes)?;
        file_system::make(kind, &disk.file(), system.make)?;
        place.mounted(&disk)?.unmount()?;
        Ok((disk, place))
    }

    /// The root of the file system, once it is mounted.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    pub fn mounted(&self, disk: &Disk) -> Answer<Mounted> {
        Mounted::new(
            self.system.kind,
            &disk.file(),
            &self.root(),
            self.system.mount,
        )
    }

    /// What a look into an image says, once its journal was replayed and its checker found nothing.
    pub fn look<T>(&self, bytes: &[u8], look: impl FnOnce(&Path) -> Answer<T>) -> Answer<T> {
        let image = self.directory.path().join("images/image");
        fs::write(&image, bytes).unwrap();
        let (kind, mount) = (self.system.kind, self.system.mount);
        let mount = || Mounted::new(kind, &image, &self.root(), mount);
        mount()?.unmount()?;
        file_system::check(kind, &image)?;
        let mounted = mount()?;
        let found = look(mounted.place());
        mounted.unmount()?;
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let images = self.directory.path().join("images");
        if self.in_memory {
            drop(file_system::run(
                "umount",
                &["--lazy".as_ref(), images.as_os_str()],
            ));
        }
    }
}

/// What is on the disk when the power goes: all calls before `flushed`, and of those from there to
/// `cut` all, none, or the blocks that a seed chooses.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub flushed: usize,
    pub cut: usize,
    kept: Kept,
}

#[derive(Clone, Copy, Debug)]
enum Kept {
    All,
    Nothing,
    Some(u64),
}

/// What was on the disk, and all calls since.
pub struct Recording {
    pub base: Vec<u8>,
    pub log: Vec<Record>,
}

impl Recording {
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

    pub fn flushes(&self) -> usize {
        self.epochs().len() - 1
    }

    /// Half of them at flushes, evenly, or all flushes; the others within the epochs.
    pub fn cuts(&self, images: usize, random: &mut Random) -> Vec<Cut> {
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

    /// Three cuts after each call from one on, sorted.
    pub fn every_cut(&self, from: usize, random: &mut Random) -> Vec<Cut> {
        let epochs = self.epochs().into_iter();
        let ends = epochs.flat_map(|(begin, end)| (begin..=end).map(move |cut| (begin, cut)));
        ends.filter(|(_, cut)| *cut > from)
            .flat_map(|(flushed, cut)| {
                let some = Kept::Some(random.below(1 << 40));
                [Kept::All, Kept::Nothing, some].map(|kept| Cut { flushed, cut, kept })
            })
            .collect()
    }

    /// The disk with all calls before one.
    pub fn until(&self, call: usize) -> Vec<u8> {
        let mut bytes = self.base.clone();
        apply(&mut bytes, &self.log, 0..call);
        bytes
    }

    /// Makes the image of each cut; gives the number of blocks that were kept by chance.
    pub fn each_image(&self, cuts: &[Cut], mut look: impl FnMut(usize, Cut, &[u8])) -> usize {
        let (mut bytes, mut applied, mut blocks) = (self.base.clone(), 0, 0);
        for (number, cut) in cuts.iter().enumerate() {
            apply(&mut bytes, &self.log, applied..cut.flushed);
            applied = cut.flushed;
            let mut image = bytes.clone();
            let rest = cut.flushed..cut.cut;
            match cut.kept {
                Kept::Nothing => {}
                Kept::All => apply(&mut image, &self.log, rest),
                Kept::Some(seed) => {
                    let mut random = Random(seed);
                    let mut kept = || random.below(2) == 0;
                    blocks += apply_some(&mut image, &self.log, rest, &mut kept);
                }
            }
            look(number, *cut, &image);
        }
        blocks
    }
}

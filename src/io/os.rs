//! How are files and directories of the operating system reached?
//!
//! A path is looked up once, when a directory is opened; everything else goes by names relative to
//! that open directory. Renaming or replacing it, or changing the process' own directory, moves
//! nothing under a store that is open.
//!
//! Invariants:
//! - A name is one component: never empty, `.`, `..` or with a slash in it.
//! - O_DIRECT is in force only where the file system takes it and says (or shows) an alignment of
//!   at most 4096; elsewhere, and on tmpfs, which has no device, files go through the page cache.
//! - A file is looked at after it is opened and before it is used: only regular files pass.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, FcntlArg, OFlag, RenameFlags, fcntl, openat, renameat, renameat2};
use nix::sys::stat::{Mode, SFlag, fstatat, mkdirat};
use nix::sys::statfs::{
    AFS_SUPER_MAGIC, CODA_SUPER_MAGIC, FUSE_SUPER_MAGIC, FsType, NCP_SUPER_MAGIC, NFS_SUPER_MAGIC,
    SMB_SUPER_MAGIC, TMPFS_MAGIC, fstatfs,
};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use super::buffer::{AlignedBuffer, BUFFER_ALIGN_BYTES};
use super::lock::FileLock;
use super::transfer::{Transfer, retry};
use super::{
    Directory, DirectoryEntry, DirectoryId, Disk, DiskFile, LockGuard, LockKind, OpenMode, Space,
    uring,
};

/// Alignment assumed where nothing is known; the store writes in multiples of it.
const ALIGN_BYTES_MAX: usize = BUFFER_ALIGN_BYTES;

/// File systems whose files other machines may see, by the number that statfs gives.
const SHARED: [FsType; 17] = [
    NFS_SUPER_MAGIC,
    SMB_SUPER_MAGIC,
    // SMB by the kernel's client: version 1, and 2 or later.
    FsType(0xFF53_4D42),
    FsType(0xFE53_4D42),
    // sshfs, gcsfuse, s3fs, JuiceFS, GlusterFS, and local ones, which can't be told apart.
    FUSE_SUPER_MAGIC,
    // 9p.
    FsType(0x0102_1997),
    CODA_SUPER_MAGIC,
    NCP_SUPER_MAGIC,
    AFS_SUPER_MAGIC,
    // AFS by the kernel's client.
    FsType(0x6B41_4653),
    // Ceph, Lustre, GPFS, BeeGFS, GFS2, OCFS2, OrangeFS.
    FsType(0x00C3_6400),
    FsType(0x0BD0_0BD0),
    FsType(0x4750_4653),
    FsType(0x1983_0326),
    FsType(0x0116_1970),
    FsType(0x7461_636F),
    FsType(0x2003_0528),
];

/// Of the uuids made in this process.
static UUIDS: AtomicU64 = AtomicU64::new(1);

/// The operating system's directories and clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

impl Disk for OsDisk {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Directory>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(flags.bits()).open(path)?;
        let path = path.to_path_buf();
        Ok(Arc::new(OsDirectory { file, path }))
    }

    fn fresh_uuid(&self) -> [u8; 16] {
        use std::hash::{BuildHasher, Hasher};
        let mut bytes = [0; 16];
        for half in bytes.chunks_exact_mut(8) {
            // The standard library seeds each of these from the system's random numbers.
            let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
            hasher.write_u64(UUIDS.fetch_add(1, Ordering::Relaxed));
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            hasher.write_u128(now.map_or(0, |d| d.as_nanos()));
            hasher.write_u32(std::process::id());
            half.copy_from_slice(&hasher.finish().to_le_bytes());
        }
        bytes
    }

    fn unix_seconds(&self) -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |d| d.as_secs())
    }
}

/// An open directory.
#[derive(Debug)]
struct OsDirectory {
    file: File,
    path: PathBuf,
}

/// A name that stays inside its directory.
fn inside<N: AsRef<OsStr> + ?Sized>(name: &N) -> io::Result<&OsStr> {
    let name = name.as_ref();
    let bytes = name.as_bytes();
    if matches!(bytes, b"" | b"." | b"..") || bytes.contains(&b'/') {
        return Err(Errno::EINVAL.into());
    }
    Ok(name)
}

impl OsDirectory {
    /// Opens a regular file without following a link or waiting for a FIFO's other end.
    fn open_regular(&self, name: &str, flags: OFlag) -> io::Result<File> {
        let name = inside(name)?;
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = File::from(retry(|| Ok(openat(&self.file, name, flags, mode)?))?);
        let kind = file.metadata()?.file_type();
        if kind.is_file() {
            return Ok(file);
        }
        if kind.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        let what = "not a regular file";
        Err(io::Error::new(ErrorKind::InvalidInput, what))
    }

    fn open_file(&self, name: &str, mode: OpenMode) -> io::Result<OsFile> {
        let flags = match mode {
            OpenMode::Read | OpenMode::ReadDirect => OFlag::O_RDONLY,
            OpenMode::Create | OpenMode::CreateDirect => {
                OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL
            }
        };
        let file = self.open_regular(name, flags)?;
        if matches!(mode, OpenMode::ReadDirect | OpenMode::CreateDirect)
            && let Some(align_bytes) = make_direct(&file)?
        {
            return Ok(OsFile {
                file,
                align_bytes,
                direct: true,
            });
        }
        // Without O_NONBLOCK: io_uring would answer EAGAIN where it should wait.
        set_flags(&file, OFlag::empty())?;
        Ok(OsFile {
            file,
            align_bytes: 1,
            direct: false,
        })
    }

    /// Whether a name still leads to a file that was opened by it.
    fn leads_to(&self, name: &str, file: &File) -> io::Result<bool> {
        let held = file.metadata()?;
        match fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == (held.dev(), held.ino())),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Directory for OsDirectory {
    fn path(&self) -> &Path {
        &self.path
    }

    fn id(&self) -> io::Result<DirectoryId> {
        let found = self.file.metadata()?;
        Ok(DirectoryId {
            device: found.dev(),
            inode: found.ino(),
        })
    }

    fn open(&self, name: &str, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.open_file(name, mode)?))
    }

    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Directory>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let file = retry(|| Ok(openat(&self.file, path, flags, Mode::empty())?))?;
        let path = self.path.join(path);
        let file = File::from(file);
        Ok(Arc::new(OsDirectory { file, path }))
    }

    fn create_dir(&self, name: &OsStr) -> io::Result<()> {
        let name = inside(name)?;
        retry(|| Ok(mkdirat(&self.file, name, Mode::S_IRWXU)?))
    }

    fn list(&self) -> io::Result<Vec<DirectoryEntry>> {
        // Its own descriptor: a copy of the held one would share the place in the list.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut names = retry(|| Ok(Dir::openat(&self.file, ".", flags, Mode::empty())?))?;
        let mut entries = Vec::new();
        for entry in names.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let found = match fstatat(&self.file, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                Err(Errno::ENOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            let kind = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT;
            let bytes = u64::try_from(found.st_size).unwrap_or(0);
            entries.push(DirectoryEntry {
                name: name.to_string_lossy().into_owned(),
                bytes: if kind == SFlag::S_IFDIR { 0 } else { bytes },
                is_file: kind == SFlag::S_IFREG,
            });
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    fn rename(&self, source: &OsStr, target: &OsStr) -> io::Result<()> {
        let (source, target) = (inside(source)?, inside(target)?);
        retry(|| Ok(renameat(&self.file, source, &self.file, target)?))
    }

    fn exchange(&self, one: &OsStr, other: &OsStr) -> io::Result<()> {
        let (one, other) = (inside(one)?, inside(other)?);
        let flags = RenameFlags::RENAME_EXCHANGE;
        retry(|| Ok(renameat2(&self.file, one, &self.file, other, flags)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let name = inside(name)?;
        retry(|| Ok(unlinkat(&self.file, name, UnlinkatFlags::NoRemoveDir)?))
    }

    fn hard_link(&self, source: &str, target: &dyn Directory, name: &str) -> io::Result<()> {
        let (source, name) = (inside(source)?, inside(name)?);
        let target = target.as_fd().ok_or(Errno::EXDEV)?;
        retry(|| Ok(linkat(&self.file, source, target, name, AtFlags::empty())?))
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn lock(&self, name: &str, kind: LockKind, create: bool) -> io::Result<Box<dyn LockGuard>> {
        let flags = match create {
            true => OFlag::O_RDWR | OFlag::O_CREAT,
            false => OFlag::O_RDONLY,
        };
        let guard = FileLock::take(|| self.open_regular(name, flags), kind)?;
        // A lock on a file that lost its name excludes nobody.
        match self.leads_to(name, guard.file()?)? {
            true => Ok(Box::new(guard)),
            false => Err(ErrorKind::WouldBlock.into()),
        }
    }

    fn lock_whole(&self) -> io::Result<Box<dyn LockGuard>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let open = || {
            let file = retry(|| Ok(openat(&self.file, ".", flags, Mode::empty())?))?;
            Ok(File::from(file))
        };
        Ok(Box::new(FileLock::take(open, LockKind::Exclusive)?))
    }

    fn space(&self) -> io::Result<Space> {
        let found = retry(|| Ok(fstatvfs(&self.file)?))?;
        let unit = found.fragment_size();
        Ok(Space {
            total_bytes: found.blocks().saturating_mul(unit),
            free_bytes: found.blocks_available().saturating_mul(unit),
        })
    }

    fn is_shared(&self) -> io::Result<bool> {
        let found = retry(|| Ok(fstatfs(&self.file)?))?;
        Ok(SHARED.contains(&found.filesystem_type()))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(&self.file))
    }
}

/// A regular file.
#[derive(Debug)]
struct OsFile {
    file: File,
    align_bytes: usize,
    direct: bool,
}

/// Sets the status flags of an open file to exactly these (of those that can be changed).
fn set_flags(file: &File, flags: OFlag) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_SETFL(flags)).map(drop)
}

/// Turns O_DIRECT on and tells the alignment it needs; `None` where it is not to be had.
///
/// It is set on the open file, not at the open, where a refusal would leave an empty file behind.
fn make_direct(file: &File) -> io::Result<Option<usize>> {
    if fstatfs(file).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC) {
        return Ok(None);
    }
    match set_flags(file, OFlag::O_DIRECT) {
        Ok(()) => {}
        Err(nix::errno::Errno::EINVAL) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    match uring::direct_align_bytes(file.as_raw_fd()) {
        Some(told) => Ok(usable_align_bytes(told)),
        None => Ok(usable_align_bytes(probed_align_bytes(file)?)),
    }
}

/// The alignment to keep where the kernel tells this one; `None` where O_DIRECT is of no use. 0: the
/// file system has none for this file, whatever it says to the flag.
fn usable_align_bytes(told: usize) -> Option<usize> {
    let align_bytes = told.max(512);
    let usable = told > 0 && align_bytes <= ALIGN_BYTES_MAX && align_bytes.is_power_of_two();
    usable.then_some(align_bytes)
}

/// Finds the alignment by reading 512 bytes; what an empty file does not show is assumed.
fn probed_align_bytes(file: &File) -> io::Result<usize> {
    if file.metadata()?.len() == 0 {
        return Ok(ALIGN_BYTES_MAX);
    }
    let mut buffer = AlignedBuffer::try_new(1024)?;
    match retry(|| file.read_at(&mut buffer[512..], 0)) {
        Ok(_) => Ok(512),
        Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => Ok(ALIGN_BYTES_MAX),
        Err(error) => Err(error),
    }
}

impl DiskFile for OsFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        Transfer::read(offset, bytes.len(), self.align_bytes)
            .run(|rest, offset| self.file.read_at(&mut bytes[rest], offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        Transfer::write(offset, bytes.len(), self.align_bytes)
            .run(|rest, offset| self.file.write_at(&bytes[rest], offset))
            .map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn align_bytes(&self) -> usize {
        self.align_bytes
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn raw_fd(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 counted as 512: a file system that takes the flag and has no direct I/O for a file (one that
    /// is encrypted or compressed) refused every request.
    #[test]
    fn a_file_without_direct_io_is_read_through_the_page_cache() {
        assert_eq!(usable_align_bytes(0), None);
        assert_eq!(usable_align_bytes(1), Some(512));
        assert_eq!(usable_align_bytes(512), Some(512));
        assert_eq!(usable_align_bytes(4096), Some(4096));
        assert_eq!(usable_align_bytes(3 * 512), None);
        assert_eq!(usable_align_bytes(8192), None);
    }

    #[test]
    fn a_probe_finds_the_alignment_that_the_kernel_tells() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_path_buf();
        let file = File::open(&path).unwrap();
        let place = OsDirectory { file, path };
        let file = place.open_file("file", OpenMode::CreateDirect).unwrap();
        if !file.is_direct() {
            println!("skipped: no O_DIRECT here");
            return;
        }
        assert_eq!(
            probed_align_bytes(&file.file).unwrap(),
            ALIGN_BYTES_MAX,
            "an empty file"
        );
        file.write_at(&AlignedBuffer::try_new(4096).unwrap(), 0)
            .unwrap();
        match uring::direct_align_bytes(file.file.as_raw_fd()) {
            Some(told) => assert_eq!(probed_align_bytes(&file.file).unwrap(), told.max(512)),
            None => println!("the kernel does not tell"),
        }
    }
}

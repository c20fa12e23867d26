//! What does a disk hold after a power cut, and what happens when a call fails?
//!
//! [`SimDisk`] is a file system in memory, driven by a seed, that keeps what is durable apart from
//! what was only written.
//!
//! The model:
//! - A file has its durable bytes and a list of unsynced writes, cut at sectors of 512 bytes. A
//!   sector is never torn. `sync` makes bytes and length durable, but not the name.
//! - A directory has its durable names and a list of unsynced changes of names. `sync_dir` makes
//!   that directory's names durable: neither its own name nor what its files hold.
//! - A rename is atomic.
//! - An open directory stays what it is, whatever becomes of its name.
//! - After a crash ([`CrashMode::Random`]) each directory has its durable names and either the
//!   first few unsynced changes or any subset of them, in order. Each file has any subset of its
//!   unsynced sectors, of several unsynced writes to one sector any, and any length between the
//!   durable and the written one. So removed names may come back, and old bytes may stay.
//! - A sector inside that length which was never written, or lost, is zero ([`Remnants::Zeros`]:
//!   ext4 with its default `data=ordered`, XFS, btrfs), or what else the device held: random bytes,
//!   or a sector of a file that is no more ([`Remnants::Junk`]: ext4 with `data=writeback`).
//! - A write that fails may have left some of its first sectors. A sync that fails, of a file or a
//!   directory, loses some of what was unsynced for good, although reads and lists still see it,
//!   and a later sync that succeeds does not bring it back.
//! - A create, mkdir, link, rename or remove that fails with EIO may have been done. Other errors
//!   (no room, no rights, no descriptors) come before anything is done.
//! - A full disk refuses what grows a file; with less than a block of room it may refuse names too,
//!   with ENOSPC or, under a quota, EDQUOT.
//! - A sector that can't be read stays so after a crash.
//! - A read may be told to bring a sector of elsewhere, or an older one of the same place.
//! - A queue executes requests when their completion is taken, or before, in any order. A sync
//!   therefore does not cover writes that were not waited for.
//! - Short and interrupted calls are absorbed by the same code as in the other engines.
//!
//! Invariants:
//! - What happens depends on the seed and the order of the calls only: uuids and the clock too.
//! - From `stop_at` on every call fails with EIO and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nix::errno::Errno;

use self::node::FileNode;
use self::state::State;
use super::buffer::Pool;
use super::transfer::{Transfer, retry};
use super::{Directory, Disk, DiskFile, Engine, LockGuard, LockKind, OpenMode, Queue};
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, MutexGuard, thread};
use crate::units::saturate;

mod bytes;
mod crash;
mod directory;
mod node;
pub mod plant;
mod queue;
mod state;

/// What the simulated device writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

/// What a crash leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashMode {
    /// Nothing.
    KeepNone,
    /// Everything.
    KeepAll,
    /// What the seed says: see the module's model.
    Random,
}

/// What stands in sectors inside a file's length that were never written, or lost in a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remnants {
    /// Zeros.
    Zeros,
    /// Zeros, random bytes, or sectors of removed files.
    Junk,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// With this errno.
    Error(i32),
    /// A read or write moves half of what was asked (at least one unit); other calls succeed.
    Short,
    /// With EINTR.
    Interrupted,
    /// With EROFS, where it would change the disk; a lock where it opens its file for writing. Other
    /// calls succeed. Sticky, this is a file system that turns read-only.
    ReadOnly,
    /// A read brings another sector of the disk in place of one that was asked for; other calls
    /// succeed.
    Misdirected,
    /// A read brings what one of its sectors held before it was last written, or what a removed
    /// file had; other calls succeed.
    Stale,
}

/// A call that failed, as its caller was told (an interrupted one was made again).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its number.
    pub call: u64,
    /// Its kind, as in [`SimDisk::calls_by_kind`].
    pub kind: &'static str,
    /// What it failed with.
    pub errno: i32,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    latency_ns: AtomicU64,
}

/// A disk in memory. Clones share it.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

impl SimDisk {
    /// An empty disk, with nothing but the directory `/`.
    #[must_use]
    pub fn new(seed: u64) -> SimDisk {
        SimDisk::from_state(State::new(seed))
    }

    fn from_state(state: State) -> SimDisk {
        let shared = Shared {
            state: Mutex::new(state),
            latency_ns: AtomicU64::new(0),
        };
        SimDisk {
            shared: Arc::new(shared),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for a call that takes the device's time.
    fn call_state(&self) -> MutexGuard<'_, State> {
        let latency = Duration::from_nanos(self.shared.latency_ns.load(Ordering::Relaxed));
        if !latency.is_zero() {
            thread::sleep(latency);
        }
        self.state()
    }

    /// The disk as found after a power cut now. This one goes on unchanged; the new one has no
    /// locks, no faults, no calls yet and honest syncs.
    #[must_use]
    pub fn crash(&self, seed: u64, mode: CrashMode) -> SimDisk {
        SimDisk::from_state(self.state().crashed(seed, mode))
    }

    /// Cuts the power: the disks as they may be found afterwards, one for each mode. Every call from
    /// now on fails with EIO, also in other threads: none can succeed and be missing on these disks.
    #[must_use]
    pub fn cut(&self, seed: u64, modes: &[CrashMode]) -> Vec<SimDisk> {
        let mut state = self.state();
        state.stop_at = Some(0);
        let left = modes.iter().map(|mode| state.crashed(seed, *mode));
        left.map(SimDisk::from_state).collect()
    }

    /// The disk as the next process finds it if this one is killed now: nothing is lost, and what
    /// was not synced may still be by a crash. This one goes on unchanged; the new one has no
    /// locks, no faults and no calls yet.
    #[must_use]
    pub fn killed(&self, seed: u64) -> SimDisk {
        SimDisk::from_state(self.state().killed(seed))
    }

    /// Calls so far. Every operation of a disk, a file or a queue that would reach the device is
    /// one, and so is each of its retries.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Calls so far by kind: "open_dir", "open", "create", "mkdir", "list", "rename", "remove",
    /// "link", "sync_dir", "lock", "lock_dir", "space", "read", "write", "sync", "bytes".
    #[must_use]
    pub fn calls_by_kind(&self) -> BTreeMap<&'static str, u64> {
        self.state().calls_by_kind.clone()
    }

    /// Bytes that reads brought so far.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.state().read_bytes
    }

    /// The kinds of the calls so far, by number.
    #[must_use]
    pub fn kinds(&self) -> Vec<&'static str> {
        self.state().kinds.clone()
    }

    /// The numbers of the calls so far that change what a crash could leave. Stopping at any
    /// other call leaves what stopping at the next one of these does.
    #[must_use]
    pub fn changing_calls(&self) -> Vec<u64> {
        self.state().changing_calls.clone()
    }

    /// Lets call number `call` fail, counted from 0 since the disk was made (so that
    /// `fail_at(disk.calls(), ..)` is the next one); if `sticky`, all after it too.
    pub fn fail_at(&self, call: u64, fault: Fault, sticky: bool) {
        self.state().faults.push((call, fault, sticky));
    }

    /// Takes back all `fail_at` and `stop_at`.
    pub fn clear_faults(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.stop_at = None;
    }

    /// From call number `call` on every call fails with EIO and nothing changes any more.
    pub fn stop_at(&self, call: u64) {
        self.state().stop_at = Some(call);
    }

    /// The calls so far that failed, of whatever cause but a wrong argument.
    #[must_use]
    pub fn failures(&self) -> Vec<Failure> {
        self.state().failures.clone()
    }

    /// Lets writes beyond this many bytes fail with ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        self.set_limit(bytes, Errno::ENOSPC);
    }

    /// Lets writes beyond this many bytes fail with EDQUOT.
    pub fn set_quota(&self, bytes: u64) {
        self.set_limit(bytes, Errno::EDQUOT);
    }

    /// Makes it one that other machines have mounted as well: no lock keeps anybody out.
    pub fn share(&self) {
        self.state().is_shared = true;
    }

    fn set_limit(&self, bytes: u64, errno: Errno) {
        let mut state = self.state();
        (state.capacity, state.full_errno) = (Some(bytes), errno);
    }

    /// What crashes leave where nothing was written; zeros unless said otherwise.
    pub fn set_remnants(&self, remnants: Remnants) {
        self.state().remnants = remnants;
    }

    /// One number for all names and bytes as reads see them, and the sectors that can't be read.
    /// `of` is the digest of some bytes; the same function each time. Not a call.
    #[must_use]
    pub fn digest(&self, of: fn(&[u8]) -> u128) -> u128 {
        self.state().digest(of)
    }

    /// A disk that lies: `sync` of files succeeds and does nothing.
    pub fn set_skip_sync(&self, skip: bool) {
        self.state().skip_sync = skip;
    }

    /// A disk that lies: `sync_dir` succeeds and does nothing.
    pub fn set_skip_sync_dir(&self, skip: bool) {
        self.state().skip_sync_dir = skip;
    }

    /// Sets the clock, which stands still otherwise.
    pub fn set_unix_seconds(&self, seconds: u64) {
        self.state().unix_seconds = seconds;
    }

    /// The time that each call takes.
    pub fn set_latency(&self, latency: Duration) {
        let ns = saturate(latency.as_nanos());
        self.shared.latency_ns.store(ns, Ordering::Relaxed);
    }

    /// Flips bits of one byte of a file, durably and behind everyone's back. Not a call.
    ///
    /// # Errors
    /// `NotFound` without such a file, `InvalidInput` beyond its end.
    pub fn corrupt(&self, path: &Path, offset: u64, mask: u8) -> io::Result<()> {
        let mut state = self.state();
        let inode = state.resolve(path)?;
        let at = usize::try_from(offset).map_err(|_| ErrorKind::InvalidInput)?;
        if state.file(inode)?.flip(at, mask) {
            Ok(())
        } else {
            Err(ErrorKind::InvalidInput.into())
        }
    }

    /// From now on no read gets the sector of a byte: EIO. Until the file is replaced. Not a call.
    ///
    /// # Errors
    /// `NotFound` without such a file.
    pub fn lose_sector(&self, path: &Path, offset: u64) -> io::Result<()> {
        let mut state = self.state();
        let inode = state.resolve(path)?;
        let at = usize::try_from(offset).map_err(|_| ErrorKind::InvalidInput)?;
        state.file(inode)?.lost.insert(at / SECTOR_BYTES);
        Ok(())
    }

    /// The bytes of a file as reads see them. Not a call.
    ///
    /// # Errors
    /// `NotFound` without such a file.
    pub fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        let inode = state.resolve(path)?;
        Ok(state.file(inode)?.live.to_vec())
    }

    /// Makes or replaces a file, durable with its name. Not a call.
    ///
    /// # Errors
    /// `NotFound` without the directory.
    pub fn write_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.state().plant(path, FileNode::durable(bytes.to_vec()))
    }

    /// The paths of all files as reads see them, sorted. Not a call.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.state()
            .paths()
            .into_iter()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk")
            .field("calls", &self.calls())
            .finish_non_exhaustive()
    }
}

impl Disk for SimDisk {
    fn open_dir(&self, path: &Path) -> io::Result<Arc<dyn Directory>> {
        Ok(Arc::new(self.root(path)?))
    }

    fn fresh_uuid(&self) -> [u8; 16] {
        let mut state = self.state();
        let mut uuid = [0; 16];
        for half in uuid.chunks_exact_mut(8) {
            half.copy_from_slice(&state.uuids.next().to_le_bytes());
        }
        uuid
    }

    fn unix_seconds(&self) -> u64 {
        self.state().unix_seconds
    }
}

impl Engine for SimDisk {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>> {
        let pool = Pool::try_new(depth, buffer_bytes)?;
        let seed = self.state().random.next();
        Ok(Box::new(queue::SimQueue::new(pool, seed)))
    }
}

/// An open file of a [`SimDisk`].
struct SimFile {
    disk: SimDisk,
    inode: u64,
    mode: OpenMode,
}

impl SimFile {
    /// As the kernel does for O_DIRECT.
    fn check(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let align = self.align_bytes();
        let fits = bytes.len().is_multiple_of(align)
            && bytes.as_ptr().addr().is_multiple_of(align)
            && offset.is_multiple_of(align as u64);
        if fits {
            Ok(())
        } else {
            Err(Errno::EINVAL.into())
        }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check(bytes, offset)?;
        let align = self.align_bytes();
        Transfer::read(offset, bytes.len(), align).run(|rest, offset| {
            self.disk
                .call_state()
                .read(self.inode, &mut bytes[rest], offset, align)
        })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if matches!(self.mode, OpenMode::Read | OpenMode::ReadDirect) {
            return Err(Errno::EBADF.into());
        }
        self.check(bytes, offset)?;
        let align = self.align_bytes();
        Transfer::write(offset, bytes.len(), align)
            .run(|rest, offset| {
                self.disk
                    .call_state()
                    .write(self.inode, &bytes[rest], offset, align)
            })
            .map(drop)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call_state().sync(self.inode)
    }

    fn bytes(&self) -> io::Result<u64> {
        retry(|| self.disk.call_state().bytes(self.inode))
    }

    fn align_bytes(&self) -> usize {
        if self.is_direct() { SECTOR_BYTES } else { 1 }
    }

    fn is_direct(&self) -> bool {
        matches!(self.mode, OpenMode::ReadDirect | OpenMode::CreateDirect)
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.disk.state().release(self.inode);
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile")
            .field("inode", &self.inode)
            .field("mode", &self.mode)
            .finish()
    }
}

/// A lock of a [`SimDisk`].
#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    inode: u64,
    kind: LockKind,
}

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.state().unlock(self.inode, self.kind);
    }
}

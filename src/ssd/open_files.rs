//! Which parameter files are open, where there are more of them than descriptors?
//!
//! A [`Handle`] stands for a file whether it is open or not; the coldest are closed, and opened
//! again when somebody reads.
//!
//! Invariants:
//! - No more files are open than the bound, but for those in somebody's hands at the moment: a
//!   request in flight keeps its file; and for one more of each thread that opens one just then.
//! - A file is closed only when it is durable: one that was never synced is synced first, and a sync
//!   that fails refuses writes, as everywhere. From then on files are closed as they are.
//! - Before a file loses its name, or its store ends, every handle of it that somebody has is opened
//!   and stays so.
//! - The locks here are taken last of all.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use super::poison::Poison;
use crate::format::data_file_name;
use crate::io::{Directory, DiskFile, OpenMode, is_out_of_descriptors};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use crate::sync::{Mutex, MutexGuard};
use crate::units::FileNumber;

/// Files that are closed at once where the system gives no descriptor.
const CLOSED_AT_ONCE: usize = 16;

/// The parameter files of one store that may be closed and opened again.
#[derive(Debug)]
pub struct OpenFiles {
    max: usize,
    open: AtomicUsize,
    /// How often one was opened again.
    reopened: AtomicU64,
    /// Of those that are open, those that were never synced.
    unsynced: AtomicUsize,
    poison: Arc<Poison>,
    handles: Mutex<Handles>,
}

#[derive(Debug, Default)]
struct Handles {
    /// Those that were opened, as a clock: whoever was used since the last look comes again later.
    clock: VecDeque<Weak<Handle>>,
    /// All, by file number.
    by_number: HashMap<FileNumber, Vec<Weak<Handle>>>,
    /// Handles that were dropped since the clock was swept.
    dropped: usize,
}

impl Handles {
    /// A handle is being dropped. Entries of such are taken away by the hundred.
    fn forget(&mut self, number: FileNumber) {
        if let Some(known) = self.by_number.get_mut(&number) {
            known.retain(|handle| handle.strong_count() > 0);
            if known.is_empty() {
                self.by_number.remove(&number);
            }
        }
        self.dropped += 1;
        if self.dropped > 100 + self.clock.len() / 2 {
            self.clock.retain(|handle| handle.strong_count() > 0);
            self.dropped = 0;
        }
    }
}

impl OpenFiles {
    /// None yet, `max` at most.
    pub fn new(max: usize, poison: &Arc<Poison>) -> Arc<OpenFiles> {
        Arc::new(OpenFiles {
            max,
            open: AtomicUsize::new(0),
            reopened: AtomicU64::new(0),
            unsynced: AtomicUsize::new(0),
            poison: Arc::clone(poison),
            handles: Mutex::default(),
        })
    }

    /// Most files that stay open; of a reader, which closes none, those that are.
    pub fn max(&self) -> usize {
        if self.max == usize::MAX {
            return self.open();
        }
        self.max
    }

    /// Files that are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Files that were closed and opened again, so far.
    pub fn reopened(&self) -> u64 {
        self.reopened.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of an open file of the store. [`OpenFiles::make_room`] comes before.
    pub fn adopt(
        self: &Arc<Self>,
        place: &Arc<dyn Directory>,
        number: FileNumber,
        file: Arc<dyn DiskFile>,
        synced: bool,
    ) -> Arc<Handle> {
        let (align_bytes, direct) = (file.align_bytes(), file.is_direct());
        let handle = Arc::new_cyclic(|me| Handle {
            owner: Some(Owner {
                files: Arc::clone(self),
                place: Arc::clone(place),
                number,
                kept: AtomicBool::new(false),
                me: Weak::clone(me),
            }),
            file: Mutex::new(Some(file)),
            used: AtomicBool::new(false),
            syncing: Mutex::new(false),
            synced: AtomicBool::new(synced),
            align_bytes,
            direct,
        });
        self.open.fetch_add(1, Ordering::Relaxed);
        self.unsynced
            .fetch_add(usize::from(!synced), Ordering::Relaxed);
        let mut handles = self.lock();
        let known = handles.by_number.entry(number).or_default();
        known.push(Arc::downgrade(&handle));
        handles.clock.push_back(Arc::downgrade(&handle));
        drop(handles);
        handle
    }

    /// Closes files until one more fits under the bound: those that are durable first, as long as
    /// the others are the smaller part.
    pub fn make_room(&self) {
        if self.open() >= self.max {
            self.close_down_to(self.max.saturating_sub(1));
        }
    }

    /// Closes some where the system has no descriptor left: others in this process have them, and
    /// the store does with fewer. False when none was to be closed.
    pub fn give_back(&self) -> bool {
        let before = self.open();
        self.close_down_to(before.saturating_sub(CLOSED_AT_ONCE));
        self.open() < before
    }

    /// Makes a call that needs a descriptor; once more after some were given back, where there is
    /// none.
    ///
    /// # Errors
    /// Those of the call.
    pub fn with_descriptor<T>(&self, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match make() {
            Err(error) if is_out_of_descriptors(&error) && self.give_back() => make(),
            result => result,
        }
    }

    fn close_down_to(&self, most: usize) {
        for unsynced_too in [false, true] {
            // Each is looked at twice: the first look takes its mark.
            let looks = 2 * self.lock().clock.len();
            for _ in 0..looks {
                if self.open() <= most {
                    return;
                }
                let next = self.lock().clock.pop_front();
                let Some(handle) = next.and_then(|handle| handle.upgrade()) else {
                    continue;
                };
                let many = 2 * self.unsynced.load(Ordering::Relaxed) > self.max;
                let spared = !(unsynced_too || many || handle.is_synced())
                    || handle.used.swap(false, Ordering::Relaxed);
                if spared || !self.close(&handle) {
                    self.lock().clock.push_back(Arc::downgrade(&handle));
                }
            }
        }
    }

    /// False when it has to stay open.
    fn close(&self, handle: &Handle) -> bool {
        // Once writes are refused nothing is synced any more, and nothing needs to be.
        let writable = self.poison.check().is_ok();
        if writable && let Err(error) = handle.make_durable() {
            let cause = format!("sync a file to be closed: {error}");
            tracing::error!(%cause, "the store refuses writes from here on");
            self.poison.set(cause);
        }
        let mut file = handle.lock();
        if handle.is_kept() {
            return false;
        }
        if file.take().is_some() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
        true
    }

    /// A file is about to lose its name, or may lose it unnoticed: whoever has it keeps it open.
    ///
    /// # Errors
    /// What the system says when it can't be opened.
    pub fn keep(&self, number: FileNumber) -> io::Result<()> {
        let handles: Vec<Arc<Handle>> = {
            let handles = self.lock();
            let known = handles.by_number.get(&number).into_iter().flatten();
            known.filter_map(Weak::upgrade).collect()
        };
        for handle in handles {
            if let Some(owner) = &handle.owner {
                owner.kept.store(true, Ordering::Release);
            }
            handle.get()?;
        }
        Ok(())
    }
}

/// Where a file is that may be closed and opened again.
#[derive(Debug)]
struct Owner {
    files: Arc<OpenFiles>,
    place: Arc<dyn Directory>,
    number: FileNumber,
    /// It has lost its name, or is about to.
    kept: AtomicBool,
    me: Weak<Handle>,
}

/// A parameter file, open or not. Read through it as through a file; a queue wants [`Handle::get`].
#[derive(Debug)]
pub struct Handle {
    /// None: it is open as long as the handle lives.
    owner: Option<Owner>,
    file: Mutex<Option<Arc<dyn DiskFile>>>,
    used: AtomicBool,
    /// Held during a sync; whether one failed.
    syncing: Mutex<bool>,
    synced: AtomicBool,
    align_bytes: usize,
    direct: bool,
}

impl Handle {
    /// A file that stays open.
    #[must_use]
    pub fn fixed(file: Arc<dyn DiskFile>, synced: bool) -> Arc<Handle> {
        Arc::new(Handle {
            owner: None,
            align_bytes: file.align_bytes(),
            direct: file.is_direct(),
            file: Mutex::new(Some(file)),
            used: AtomicBool::new(false),
            syncing: Mutex::new(false),
            synced: AtomicBool::new(synced),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn DiskFile>>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_kept(&self) -> bool {
        let owner = self.owner.as_ref();
        owner.is_none_or(|owner| owner.kept.load(Ordering::Acquire))
    }

    /// Whether its bytes are durable.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Makes its bytes durable, if they are not. A failure is final.
    ///
    /// # Errors
    /// What the system says, once; EIO afterwards.
    pub fn make_durable(&self) -> io::Result<()> {
        if self.is_synced() {
            return Ok(());
        }
        let mut failed = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(io::Error::from_raw_os_error(5));
        }
        if !self.is_synced() {
            let open = self.lock().clone();
            let result = match open {
                // That is no use of it.
                Some(file) => file.sync(),
                None => self.get().and_then(|file| file.sync()),
            };
            *failed = result.is_err();
            result?;
            self.synced.store(true, Ordering::Release);
            if let Some(owner) = &self.owner {
                owner.files.unsynced.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// The open file: opened, if it was closed.
    ///
    /// # Errors
    /// What the system says.
    pub fn get(&self) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &*self.lock() {
            // Used again: it was not opened for this.
            self.used.store(true, Ordering::Relaxed);
            return Ok(Arc::clone(file));
        }
        let Some(owner) = &self.owner else {
            return Err(io::ErrorKind::NotFound.into());
        };
        owner.files.make_room();
        owner.files.with_descriptor(|| self.open(owner))
    }

    fn open(&self, owner: &Owner) -> io::Result<Arc<dyn DiskFile>> {
        let mut slot = self.lock();
        if let Some(file) = &*slot {
            return Ok(Arc::clone(file));
        }
        let name = data_file_name(owner.number);
        let file = owner.place.open(&name, OpenMode::ReadDirect)?;
        *slot = Some(Arc::clone(&file));
        owner.files.open.fetch_add(1, Ordering::Relaxed);
        owner.files.reopened.fetch_add(1, Ordering::Relaxed);
        drop(slot);
        owner.files.lock().clock.push_back(Weak::clone(&owner.me));
        Ok(file)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(owner) = &self.owner else { return };
        if self.lock().take().is_some() {
            owner.files.open.fetch_sub(1, Ordering::Relaxed);
        }
        let unsynced = usize::from(!self.is_synced());
        owner.files.unsynced.fetch_sub(unsynced, Ordering::Relaxed);
        owner.files.lock().forget(owner.number);
    }
}

impl DiskFile for Handle {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.get()?.read_at(bytes, offset)
    }

    fn write_at(&self, _bytes: &[u8], _offset: u64) -> io::Result<()> {
        // It is immutable.
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.make_durable()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.get()?.bytes()
    }

    fn align_bytes(&self) -> usize {
        self.align_bytes
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

#[cfg(test)]
mod tests;

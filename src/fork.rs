//! What must a child that this process forks leave alone?
//!
//! A child made by `fork` (Python's `os.fork`, a worker of a data loader) has a copy of the memory
//! and of the descriptors of its parent, and one thread: the one that forked. So a store in it has
//! locks that nobody gives back, threads that do not run, and rings that are its parent's.
//!
//! Invariants:
//! - What belongs to one process notes it ([`Process::this`]) and asks before each use
//!   ([`Process::is_this`]: a load and a comparison).
//! - The child closes its copies of the descriptors that are noted here ([`Noted`]), before `fork`
//!   returns in it: a lock does not live on in a worker when the trainer is killed.
//! - What runs in the child between `fork` and its return takes no lock and asks for no memory.
//!
//! A child made by `posix_spawn`, or by a bare system call, runs none of this. The first runs
//! another program at once; locks know their process by its id as well.
#![expect(
    unsafe_code,
    reason = "handlers of fork, and the descriptors they close, are the system's"
)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use std::time::Duration;

use nix::libc;

/// Forks between the process that first asked and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Forks that this process has begun, and those that it has come back from.
static BEGUN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);

static DESCRIPTORS: Chunk = Chunk::new();

const CHUNK: usize = 64;
/// Where no descriptor is noted.
const NONE: RawFd = -1;
/// How often something is tried again because a fork came between.
const TRIES: u32 = 64;

/// Descriptors that children close. Chunks are added and never removed, so that a child can walk
/// them whatever the other threads of its parent were doing.
struct Chunk {
    slots: [AtomicI32; CHUNK],
    next: OnceLock<Box<Chunk>>,
}

impl Chunk {
    const fn new() -> Chunk {
        Chunk {
            slots: [const { AtomicI32::new(NONE) }; CHUNK],
            next: OnceLock::new(),
        }
    }
}

/// A process, as told apart from those that it was forked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The one that runs this.
    #[must_use]
    pub fn this() -> Process {
        install();
        Process(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether it is the one that runs this; false in a forked child.
    #[inline]
    #[must_use]
    pub fn is_this(self) -> bool {
        GENERATION.load(Ordering::Relaxed) == self.0
    }
}

/// Keeps a descriptor noted; to be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Noted {
    slot: &'static AtomicI32,
    process: Process,
}

impl Noted {
    /// Notes an open descriptor: each child closes its copy.
    #[must_use]
    pub fn new(descriptor: RawFd) -> Noted {
        let process = Process::this();
        let mut chunk = &DESCRIPTORS;
        loop {
            for slot in &chunk.slots {
                let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                if slot
                    .compare_exchange(NONE, descriptor, success, failure)
                    .is_ok()
                {
                    return Noted { slot, process };
                }
            }
            chunk = chunk.next.get_or_init(|| Box::new(Chunk::new()));
        }
    }

    /// Whether this process has the descriptor; false in a child, which has closed it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.process.is_this()
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // A child has emptied all slots, and may have filled this one anew.
        if self.process.is_this() {
            self.slot.store(NONE, Ordering::Release);
        }
    }
}

/// Opens something and notes its descriptor, again if a fork came between: that child has a copy
/// that it does not close. Forks that don't end (or never stop) are not waited for.
///
/// # Errors
/// What `open` gives.
pub fn noted<T, E>(
    mut open: impl FnMut() -> Result<T, E>,
    descriptor: impl Fn(&T) -> RawFd,
) -> Result<(T, Noted), E> {
    install();
    let mut tries = 0;
    loop {
        let begun = BEGUN.load(Ordering::SeqCst);
        let quiet = ENDED.load(Ordering::SeqCst) == begun;
        if !quiet && tries < TRIES {
            tries += 1;
            std::thread::sleep(Duration::from_micros(100));
            continue;
        }
        let opened = open()?;
        let note = Noted::new(descriptor(&opened));
        if BEGUN.load(Ordering::SeqCst) == begun || tries >= TRIES {
            return Ok((opened, note));
        }
        tries += 1;
    }
}

/// Asks the system, once, to tell of forks.
fn install() {
    static INSTALLED: Once = Once::new();
    if INSTALLED.is_completed() {
        return;
    }
    INSTALLED.call_once(|| {
        // SAFETY: the handlers are functions of this library and live as long as the process does;
        // they only use atomics and `close`, which are allowed between fork and exec.
        let code = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        if code != 0 {
            let error = std::io::Error::from_raw_os_error(code);
            tracing::warn!(%error, "a forked child is not told from its parent");
        }
    });
}

extern "C" fn prepare() {
    BEGUN.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn parent() {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
    // Of the parent's threads others may have been forking as well: they are not here.
    ENDED.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
    let mut chunk = Some(&DESCRIPTORS);
    while let Some(at) = chunk {
        for slot in &at.slots {
            let descriptor = slot.swap(NONE, Ordering::AcqRel);
            if descriptor != NONE {
                // SAFETY: whoever noted the descriptor does not use it in this process.
                unsafe { libc::close(descriptor) };
            }
        }
        chunk = at.next.get().map(|next| &**next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_process_knows_itself_and_a_note_is_taken_back() {
        assert!(Process::this().is_this());
        assert!(!Process(GENERATION.load(Ordering::Relaxed) + 1).is_this());
        let file = tempfile::tempfile().unwrap();
        let note = Noted::new(file.as_raw_fd());
        assert!(note.is_open());
        let slot = note.slot;
        assert_eq!(slot.load(Ordering::Relaxed), file.as_raw_fd());
        drop(note);
        assert_ne!(slot.load(Ordering::Relaxed), file.as_raw_fd());
    }

    #[test]
    fn there_is_room_for_any_number_of_descriptors() {
        // No descriptor has such a number: a child that another test forks closes nothing of ours.
        let descriptors: Vec<RawFd> = (0..1000).map(|i| 1 << 30 | i).collect();
        let notes: Vec<_> = descriptors.iter().map(|d| Noted::new(*d)).collect();
        let kept = notes.iter().map(|note| note.slot.load(Ordering::Relaxed));
        assert!(kept.eq(descriptors));
    }

    /// A worker that was forked between the opening of the lock file and the note about it had a
    /// copy that it never closed.
    #[test]
    fn what_was_opened_while_a_fork_began_is_opened_again() {
        let mut opened = 0;
        let file = noted(
            || {
                opened += 1;
                if opened < 3 {
                    prepare();
                    parent();
                }
                tempfile::tempfile()
            },
            |file| file.as_raw_fd(),
        );
        assert!(file.is_ok());
        assert!(opened >= 3);
    }
}

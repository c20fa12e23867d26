//! What does a ring take of the kernel, and how much of it may this process have?
//!
//! A ring needs a descriptor and memory that can't be swapped; so do registered buffers. The second
//! is bounded by RLIMIT_MEMLOCK, for all processes of a user together (64 KiB to 8 MiB in a
//! container, no bound with CAP_IPC_LOCK).
//!
//! Invariants:
//! - A ring that is refused for want of memory is asked for again with fewer entries.
//! - Registered buffers leave a part of the limit to rings: those count for more.
//! - What is refused is counted, and said once per engine.
//! - A forked child has neither the ring's memory nor its descriptor.

#![expect(
    unsafe_code,
    reason = "buffers are registered by address, and a parent's ring is not torn down"
)]

use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use io_uring::IoUring;
use nix::libc;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::fork::{self, Noted, Process};
use crate::pages::HUGE_BYTES;
use crate::units::{narrow, to_usize};

use super::super::QueueCounts;
use super::super::buffer::Pool;

/// Entries of the largest ring that the kernel makes, and of the smallest that is asked for.
const ENTRIES_MAX: usize = 32768;
const ENTRIES_MIN: usize = 8;
/// Buffers that the kernel registers with one ring.
const REGISTERED_MAX: usize = 1 << 14;
/// Of the limit of locked memory, rings get a half or this, whichever is less.
const RING_BYTES: u64 = 1 << 20;
/// The bit of CAP_IPC_LOCK in a set of capabilities.
const IPC_LOCK: u64 = 1 << 14;

/// Numbers the rings, so that a buffer knows which one registered it.
static RINGS: AtomicU64 = AtomicU64::new(0);
/// Bytes of registered buffers of this process.
static REGISTERED_BYTES: AtomicU64 = AtomicU64::new(0);

/// What the queues of one engine have, and what was said of it.
#[derive(Debug, Default)]
pub(super) struct Account {
    queues: AtomicU64,
    plain_queues: AtomicU64,
    rings_lost: AtomicU64,
    buffers: AtomicU64,
    registered_buffers: AtomicU64,
    said_plain: AtomicBool,
    said_lost: AtomicBool,
    said_unregistered: AtomicBool,
    /// No ring is made.
    #[cfg(test)]
    pub refuses: AtomicBool,
}

impl Account {
    pub fn counts(&self) -> QueueCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        QueueCounts {
            queues: get(&self.queues),
            plain_queues: get(&self.plain_queues),
            rings_lost: get(&self.rings_lost),
            buffers: get(&self.buffers),
            registered_buffers: get(&self.registered_buffers),
        }
    }

    pub fn queue_made(&self, buffers: usize) {
        self.queues.fetch_add(1, Ordering::Relaxed);
        self.buffers.fetch_add(buffers as u64, Ordering::Relaxed);
    }

    pub fn queue_gone(&self, buffers: usize, plain: bool) {
        self.queues.fetch_sub(1, Ordering::Relaxed);
        self.buffers.fetch_sub(buffers as u64, Ordering::Relaxed);
        self.plain_queues
            .fetch_sub(u64::from(plain), Ordering::Relaxed);
    }

    /// A queue goes on with plain calls.
    pub fn falls_back(&self, error: &io::Error) {
        self.plain_queues.fetch_add(1, Ordering::Relaxed);
        if !self.said_plain.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "no ring for some queues: plain reads and writes are used");
        }
    }

    /// A ring takes no more requests.
    pub fn ring_lost(&self, error: &io::Error) {
        self.rings_lost.fetch_add(1, Ordering::Relaxed);
        if !self.said_lost.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "a ring failed; what it had not taken is done by a new one");
        }
    }

    fn registered(&self, registered: usize, buffers: usize) {
        self.registered_buffers
            .fetch_add(registered as u64, Ordering::Relaxed);
        if registered < buffers && !self.said_unregistered.swap(true, Ordering::Relaxed) {
            tracing::info!(
                registered,
                buffers,
                "not all buffers of a queue are registered: the limit of locked memory is low"
            );
        }
    }
}

/// A ring, and what it registered.
pub(super) struct Ring {
    uring: ManuallyDrop<IoUring>,
    /// Its descriptor is not kept by children.
    note: Option<Noted>,
    process: Process,
    number: u64,
    entries: usize,
    registered_buffers: usize,
    registered_bytes: u64,
    account: Arc<Account>,
}

impl Ring {
    /// Makes a ring for up to `depth` requests at a time; for fewer, where memory is short.
    pub fn new(depth: usize, account: &Arc<Account>) -> io::Result<Ring> {
        #[cfg(test)]
        if account.refuses.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let mut entries = depth.clamp(1, ENTRIES_MAX);
        let (uring, note) = loop {
            match build(entries) {
                Err(error)
                    if error.raw_os_error() == Some(libc::ENOMEM) && entries > ENTRIES_MIN =>
                {
                    entries = (entries / 2).max(ENTRIES_MIN);
                }
                made => break made?,
            }
        };
        // Reads and writes without vectors are as old as this.
        if !uring.params().is_feature_rw_cur_pos() {
            return Err(io::Error::new(
                ErrorKind::Unsupported,
                "io_uring lacks plain reads",
            ));
        }
        Ok(Ring {
            uring: ManuallyDrop::new(uring),
            note: Some(note),
            process: Process::this(),
            number: RINGS.fetch_add(1, Ordering::Relaxed),
            entries,
            registered_buffers: 0,
            registered_bytes: 0,
            account: Arc::clone(account),
        })
    }

    /// The ring itself.
    pub fn uring(&mut self) -> &mut IoUring {
        &mut self.uring
    }

    /// See [`super::AlignedBuffer::registered`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Requests that it has room for.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Registers the buffers of a pool that are taken first, as many as the limit of locked memory
    /// lets; the others are used as they are.
    pub fn register(&mut self, pool: &mut Pool) {
        let (buffers, bytes) = (pool.count(), pool.buffer_bytes() as u64);
        let unit = unit_bytes(buffers, bytes);
        let room = to_usize(room_bytes() / unit * unit / bytes);
        let mut count = buffers.min(REGISTERED_MAX).min(room);
        while count > 0 {
            match self.try_register(pool, count) {
                Ok(()) => break,
                // Huge pages count whole, and so do other processes of this user.
                Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => count /= 2,
                Err(_) => count = 0,
            }
        }
        self.registered_buffers = count;
        self.registered_bytes = (count as u64 * bytes).next_multiple_of(unit);
        REGISTERED_BYTES.fetch_add(self.registered_bytes, Ordering::Relaxed);
        self.account.registered(count, buffers);
    }

    fn try_register(&mut self, pool: &mut Pool, count: usize) -> io::Result<()> {
        let vectors: Vec<libc::iovec> = pool
            .next_taken()
            .take(count)
            .map(|buffer| libc::iovec {
                iov_base: buffer.start().as_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        // SAFETY: each vector is a live buffer. The kernel pins its pages, so that even after the
        // buffer is freed the ring refers to memory; requests only name buffers that they hold.
        unsafe { self.uring.submitter().register_buffers(&vectors) }?;
        for (index, buffer) in pool.next_taken().take(count).enumerate() {
            if let Ok(index) = u16::try_from(index) {
                buffer.set_registered(self.number, index);
            }
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // Its memory is not here, and its descriptor is closed.
            return;
        }
        REGISTERED_BYTES.fetch_sub(self.registered_bytes, Ordering::Relaxed);
        self.account
            .registered_buffers
            .fetch_sub(self.registered_buffers as u64, Ordering::Relaxed);
        self.note = None;
        // SAFETY: the ring is used no more, and dropped only here.
        unsafe { ManuallyDrop::drop(&mut self.uring) }
    }
}

fn build(entries: usize) -> io::Result<(IoUring, Noted)> {
    let entries = narrow(entries);
    let build = || IoUring::builder().dontfork().build(entries);
    fork::noted(build, |ring: &IoUring| ring.as_raw_fd())
}

/// What is locked at a time when so many buffers of so many bytes are registered: what lies in a huge page
/// locks all of it.
fn unit_bytes(buffers: usize, bytes: u64) -> u64 {
    match buffers as u64 * bytes >= HUGE_BYTES as u64 {
        true => HUGE_BYTES as u64,
        false => bytes,
    }
}

/// Bytes of buffers that this process may register beside those it has.
fn room_bytes() -> u64 {
    let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft != RLIM_INFINITY && !may_lock_any() => soft,
        Ok(_) => return u64::MAX,
        Err(_) => 0,
    };
    let registered = REGISTERED_BYTES.load(Ordering::Relaxed);
    allowed_bytes(limit).saturating_sub(registered)
}

/// The part of a limit of locked memory that registered buffers may have.
fn allowed_bytes(limit: u64) -> u64 {
    limit - (limit / 2).min(RING_BYTES)
}

/// Whether this process may lock any amount of memory.
fn may_lock_any() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    line.is_some_and(|set| set & IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_have_a_part_of_the_limit_that_buffers_leave() {
        assert_eq!(allowed_bytes(0), 0);
        assert_eq!(allowed_bytes(64 << 10), 32 << 10);
        assert_eq!(allowed_bytes(8 << 20), 7 << 20);
    }

    #[test]
    fn buffers_in_huge_pages_lock_whole_ones() {
        let huge = HUGE_BYTES as u64;
        assert_eq!(unit_bytes(4, 4096), 4096);
        assert_eq!(unit_bytes(3, 512 << 10), 512 << 10);
        assert_eq!(
            [unit_bytes(4, 512 << 10), unit_bytes(5, 512 << 10)],
            [huge; 2]
        );
    }

    #[test]
    fn what_rings_had_registered_is_given_back() {
        for bytes in [4096, 640 << 10] {
            let account = Arc::new(Account::default());
            let Ok(mut ring) = Ring::new(4, &account) else {
                println!("skipped: no uring");
                return;
            };
            let mut pool = Pool::try_new(4, bytes).unwrap();
            ring.register(&mut pool);
            let registered = account.counts().registered_buffers * bytes as u64;
            let unit = unit_bytes(4, bytes as u64);
            assert_eq!(ring.registered_bytes, registered.next_multiple_of(unit));
            drop(ring);
            assert_eq!(account.counts().registered_buffers, 0);
        }
    }
}

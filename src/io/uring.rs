//! How are many requests kept in flight with few system calls?
//!
//! [`UringEngine`] moves bytes of the operating system's files through io_uring, a ring per queue,
//! with registered buffers where the kernel lets us pin them.
//!
//! Invariants:
//! - A ring that can't be made, or that fails, costs its queue a smaller ring, a new one or, in the
//!   end, plain calls; it never costs a request. `name` and `counts` say what there is.

#![expect(
    unsafe_code,
    reason = "a ring is tried out, and statx fills in what it is given"
)]

use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::Arc;

use io_uring::{IoUring, Probe, opcode};
use nix::libc;

use super::{Engine, Queue, QueueCounts};

mod queue;
mod ring;

use queue::UringQueue;
use ring::Account;

/// Reads and writes by io_uring.
#[derive(Clone, Debug)]
pub struct UringEngine {
    account: Arc<Account>,
}

impl UringEngine {
    /// The engine, if this kernel and this process may use io_uring.
    ///
    /// # Errors
    /// What the kernel said when a ring was set up and used, or `Unsupported` when it lacks an
    /// operation. The caller falls back to `pread`.
    pub fn new() -> io::Result<UringEngine> {
        match try_out() {
            // Short of memory, descriptors or room for locked pages: each queue asks for itself.
            Err(error) if is_short(&error) => {}
            tried => tried?,
        }
        Ok(UringEngine {
            account: Arc::default(),
        })
    }
}

/// Whether the kernel refuses a ring for now, or for want of something.
fn is_short(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOMEM | libc::EAGAIN | libc::EMFILE | libc::ENFILE)
    )
}

/// Sets a ring up and uses it.
fn try_out() -> io::Result<()> {
    let mut ring: IoUring = IoUring::builder().dontfork().build(2)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::ReadFixed::CODE,
        opcode::WriteFixed::CODE,
        opcode::Nop::CODE,
    ];
    if !needed.iter().all(|code| probe.is_supported(*code)) {
        let what = "io_uring lacks plain reads or writes";
        return Err(io::Error::new(ErrorKind::Unsupported, what));
    }
    // A sandbox may allow the setup and refuse the use.
    // SAFETY: a no-op refers to no memory.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }
        .map_err(|error| io::Error::other(error.to_string()))?;
    ring.submit_and_wait(1)?;
    Ok(())
}

impl Engine for UringEngine {
    fn name(&self) -> &'static str {
        let counts = self.account.counts();
        match counts.plain_queues {
            0 => "uring",
            plain if plain < counts.queues => "uring+pread",
            _ => "pread",
        }
    }

    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>> {
        let queue = UringQueue::new(depth, buffer_bytes, &self.account)?;
        Ok(Box::new(queue))
    }

    fn counts(&self) -> QueueCounts {
        self.account.counts()
    }
}

/// The alignment that the kernel (6.1 and later) tells for O_DIRECT on an open file; 0 where the
/// file system says that it has none, `None` where nothing is told.
pub(super) fn direct_align_bytes(fd: RawFd) -> Option<usize> {
    // SAFETY: `statx` is plain integers, for which zero bytes are a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (flags, mask) = (libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN);
    // SAFETY: the path is a terminated string and `found` is a statx to be filled in.
    let code = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &raw mut found) };
    if code != 0 || found.stx_mask & mask == 0 {
        return None;
    }
    usize::try_from(found.stx_dio_offset_align.max(found.stx_dio_mem_align)).ok()
}

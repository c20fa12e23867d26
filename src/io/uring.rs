//! How are many requests kept in flight with few system calls?
//!
//! [`UringEngine`] moves bytes of the operating system's files through io_uring, a ring per queue,
//! with registered buffers where the kernel lets us pin them.
//!
//! Invariants:
//! - A request's buffer and file stay in the queue's slots from before the kernel hears of the
//!   request until its completion is reaped; dropping a queue reaps all first.
//! - A slot has at most one entry in the ring, so `depth` entries never overflow it.
//! - When the kernel refuses to take entries for good, those it has not taken fail with its error
//!   and are never offered again; those it has taken are waited for.
//! - A ring is set up without flags that tie it to one thread: queues move between threads.

#![expect(
    unsafe_code,
    reason = "the kernel reads and writes buffers that it is given by address"
)]

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue, types};
use nix::libc;

use crate::fork::Process;

use super::buffer::{AlignedBuffer, Pool};
use super::transfer::{RETRIES_MAX, Step, Transfer};
use super::{Completion, DiskFile, Engine, Queue};

/// Numbers the queues, so that a buffer knows which ring registered it.
static QUEUES: AtomicU64 = AtomicU64::new(0);

/// Reads and writes by io_uring.
#[derive(Clone, Copy, Debug)]
pub struct UringEngine {
    _made_by_new: (),
}

impl UringEngine {
    /// The engine, if this kernel and this process may use io_uring.
    ///
    /// # Errors
    /// What the kernel said when a ring was set up and used, or `Unsupported` when it lacks an
    /// operation. The caller falls back to `pread`.
    pub fn new() -> io::Result<UringEngine> {
        let mut ring = IoUring::new(2)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::ReadFixed::CODE,
            opcode::Nop::CODE,
        ];
        if !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(io::Error::new(
                ErrorKind::Unsupported,
                "io_uring lacks plain reads",
            ));
        }
        // A sandbox may allow the setup and refuse the use.
        // SAFETY: a no-op refers to no memory.
        unsafe { ring.submission().push(&opcode::Nop::new().build()) }
            .map_err(|error| io::Error::other(error.to_string()))?;
        ring.submit_and_wait(1)?;
        Ok(UringEngine { _made_by_new: () })
    }
}

impl Engine for UringEngine {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn queue(&self, depth: usize, buffer_bytes: usize) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(UringQueue::new(depth, buffer_bytes)?))
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

/// A request between its submission and its completion.
#[derive(Debug)]
struct InFlight {
    /// Keeps the descriptor open.
    _file: Arc<dyn DiskFile>,
    fd: RawFd,
    buffer: AlignedBuffer,
    transfer: Transfer,
    tag: u64,
}

/// One ring with its buffers.
struct UringQueue {
    ring: ManuallyDrop<IoUring>,
    /// Whose ring it is.
    process: Process,
    /// See [`AlignedBuffer::registered`].
    number: u64,
    pool: Pool,
    slots: Vec<Option<InFlight>>,
    slots_free: Vec<usize>,
    /// Slots whose entries the kernel has not taken yet, in the ring's order.
    offered: VecDeque<usize>,
    completions: VecDeque<Completion>,
    /// Why the kernel takes no more entries (its errno).
    broken: Option<i32>,
}

impl UringQueue {
    fn new(depth: usize, buffer_bytes: usize) -> io::Result<UringQueue> {
        if u32::try_from(buffer_bytes).is_err() {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "buffers of 4 GiB or more",
            ));
        }
        let mut pool = Pool::try_new(depth, buffer_bytes)?;
        let entries = u32::try_from(depth)
            .map_err(|_| io::Error::new(ErrorKind::InvalidInput, "a queue deeper than 2^32"))?;
        let ring = IoUring::builder().dontfork().build(entries)?;
        let number = QUEUES.fetch_add(1, Ordering::Relaxed);
        register(&ring, number, &mut pool);
        Ok(UringQueue {
            ring: ManuallyDrop::new(ring),
            process: Process::this(),
            number,
            pool,
            slots: (0..depth).map(|_| None).collect(),
            slots_free: (0..depth).collect(),
            offered: VecDeque::with_capacity(depth),
            completions: VecDeque::with_capacity(depth),
            broken: None,
        })
    }

    /// Requests in the slots: offered to the kernel or taken by it.
    fn occupied(&self) -> usize {
        self.slots.len() - self.slots_free.len()
    }

    fn start(
        &mut self,
        file: &Arc<dyn DiskFile>,
        transfer: Transfer,
        buffer: AlignedBuffer,
        tag: u64,
    ) {
        self.pool
            .admit(self.in_flight(), transfer.rest().end, &buffer);
        let refused = match (file.raw_fd(), self.broken) {
            (Some(fd), None) => {
                let Some(slot) = self.slots_free.pop() else {
                    unreachable!("fewer requests than slots, and no slot is free")
                };
                let file = Arc::clone(file);
                self.slots[slot] = Some(InFlight {
                    _file: file,
                    fd,
                    buffer,
                    transfer,
                    tag,
                });
                self.offer(slot);
                return;
            }
            (_, Some(errno)) => io::Error::from_raw_os_error(errno),
            (None, None) => io::Error::new(ErrorKind::Unsupported, "a file without descriptor"),
        };
        self.completions.push_back(Completion {
            tag,
            buffer,
            result: Err(refused),
        });
    }

    /// Puts the entry for the rest of a slot's transfer into the ring.
    fn offer(&mut self, slot: usize) {
        let Some(request) = &self.slots[slot] else {
            unreachable!("an empty slot was offered")
        };
        let entry = entry(request, self.number).user_data(slot as u64);
        // SAFETY: the entry's memory is the buffer in the slot, and its descriptor the file's in
        // the slot; both stay there until the completion is reaped.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        assert!(
            pushed.is_ok(),
            "a slot has one entry, and the ring has room for each slot"
        );
        self.offered.push_back(slot);
    }

    /// Gives the kernel what was offered and waits for `wanted` completions.
    fn enter(&mut self, wanted: usize) {
        if self.broken.is_some() {
            return self.wait_for_taken();
        }
        let mut retries = 0;
        loop {
            let result = self.ring.submit_and_wait(wanted);
            let left = self.ring.submission().len();
            while self.offered.len() > left {
                self.offered.pop_front();
            }
            let Err(error) = result else { return };
            match error.raw_os_error() {
                // The wait was cut short; what was taken is counted.
                Some(libc::EINTR) => return,
                // The kernel is short of memory, or of room for completions: reaping helps.
                Some(libc::EAGAIN | libc::EBUSY) if retries < RETRIES_MAX => {
                    if !self.ring.completion().is_empty() {
                        return;
                    }
                    retries += 1;
                    std::thread::sleep(Duration::from_micros(100));
                }
                errno => {
                    self.fail_offered(errno.unwrap_or(libc::EIO));
                    return;
                }
            }
        }
    }

    /// Fails what the kernel never took. From here on it is never offered anything again, so that
    /// the buffers may go although their entries are still in the ring.
    fn fail_offered(&mut self, errno: i32) {
        self.broken = Some(errno);
        while let Some(slot) = self.offered.pop_front() {
            self.finish(slot, Err(io::Error::from_raw_os_error(errno)));
        }
    }

    /// Waits for a completion without offering anything.
    fn wait_for_taken(&mut self) {
        if self.occupied() == 0 || !self.ring.completion().is_empty() {
            return;
        }
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: no entries are submitted and no argument is passed.
        let result = unsafe {
            self.ring
                .submitter()
                .enter::<libc::sigset_t>(0, 1, flags, None)
        };
        if result.is_err() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Takes the completions that are there; resumes what was cut short.
    fn reap(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else {
                return;
            };
            let slot = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let Some(Some(request)) = self.slots.get_mut(slot) else {
                unreachable!("a completion of a request that is not in flight")
            };
            match request.transfer.advance(moved(entry.result())) {
                Step::Done(result) => self.finish(slot, result),
                Step::Again => match self.broken {
                    None => self.offer(slot),
                    Some(errno) => self.finish(slot, Err(io::Error::from_raw_os_error(errno))),
                },
            }
        }
    }

    fn finish(&mut self, slot: usize, result: io::Result<usize>) {
        let Some(request) = self.slots[slot].take() else {
            unreachable!("an empty slot was finished")
        };
        self.slots_free.push(slot);
        let InFlight { buffer, tag, .. } = request;
        self.completions.push_back(Completion {
            tag,
            buffer,
            result,
        });
    }
}

/// Registers a queue's buffers; where the kernel refuses (RLIMIT_MEMLOCK) they are used as they
/// are.
fn register(ring: &IoUring, number: u64, pool: &mut Pool) {
    let vectors: Vec<libc::iovec> = pool
        .iter_mut()
        .map(|buffer| libc::iovec {
            iov_base: buffer.start().as_ptr().cast(),
            iov_len: buffer.len(),
        })
        .collect();
    // SAFETY: each vector is a live buffer. The kernel pins its pages, so that even after the
    // buffer is freed the ring refers to memory; requests only name buffers that they hold.
    if unsafe { ring.submitter().register_buffers(&vectors) }.is_err() {
        return;
    }
    for (index, buffer) in pool.iter_mut().enumerate() {
        if let Ok(index) = u16::try_from(index) {
            buffer.set_registered(number, index);
        }
    }
}

/// The ring entry for the rest of a transfer.
fn entry(request: &InFlight, queue: u64) -> squeue::Entry {
    let rest = request.transfer.rest();
    assert!(
        rest.end <= request.buffer.len(),
        "a request longer than its buffer"
    );
    let bytes = u32::try_from(rest.len()).unwrap_or(u32::MAX);
    // A wrapping address needs no `unsafe`; the assertion above keeps it inside the buffer.
    let memory = request.buffer.start().as_ptr().wrapping_add(rest.start);
    let (fd, offset) = (types::Fd(request.fd), request.transfer.file_offset());
    match (
        request.transfer.is_write(),
        request.buffer.registered(queue),
    ) {
        (false, Some(index)) => opcode::ReadFixed::new(fd, memory, bytes, index)
            .offset(offset)
            .build(),
        (false, None) => opcode::Read::new(fd, memory, bytes).offset(offset).build(),
        (true, Some(index)) => opcode::WriteFixed::new(fd, memory, bytes, index)
            .offset(offset)
            .build(),
        (true, None) => opcode::Write::new(fd, memory, bytes).offset(offset).build(),
    }
}

/// The result of a completion. ECANCELED is what requests get whose submitting thread ended
/// before a worker took them; they are offered again, like interrupted ones.
fn moved(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| match result.wrapping_neg() {
        libc::ECANCELED => ErrorKind::Interrupted.into(),
        errno => io::Error::from_raw_os_error(errno),
    })
}

impl Queue for UringQueue {
    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn buffer_bytes(&self) -> usize {
        self.pool.buffer_bytes()
    }

    fn in_flight(&self) -> usize {
        self.occupied() + self.completions.len()
    }

    fn buffer(&mut self) -> Option<AlignedBuffer> {
        self.pool.take()
    }

    fn recycle(&mut self, buffer: AlignedBuffer) {
        self.pool.put(buffer);
    }

    fn read(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    ) {
        self.start(
            file,
            Transfer::read(offset, bytes, file.align_bytes()),
            buffer,
            tag,
        );
    }

    fn write(
        &mut self,
        file: &Arc<dyn DiskFile>,
        offset: u64,
        bytes: usize,
        buffer: AlignedBuffer,
        tag: u64,
    ) {
        self.start(
            file,
            Transfer::write(offset, bytes, file.align_bytes()),
            buffer,
            tag,
        );
    }

    fn submit(&mut self) {
        if !self.offered.is_empty() {
            self.enter(0);
        }
    }

    fn wait(&mut self) -> Option<Completion> {
        loop {
            self.submit();
            if self.completions.is_empty() {
                self.reap();
            }
            if let Some(completion) = self.completions.pop_front() {
                return Some(completion);
            }
            if self.occupied() == 0 {
                return None;
            }
            self.enter(1);
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The ring is the parent's, and its memory is not here.
            return;
        }
        while self.wait().is_some() {}
        // SAFETY: the ring is used no more, and dropped only here.
        unsafe { ManuallyDrop::drop(&mut self.ring) }
    }
}

impl fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringQueue")
            .field("depth", &self.slots.len())
            .field("buffer_bytes", &self.pool.buffer_bytes())
            .field("in_flight", &self.in_flight())
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Disk, OpenMode, OsDisk};
    use super::*;

    /// A queue and an open file of 64 KiB; `None` where io_uring is refused.
    fn queue_and_file() -> Option<(UringQueue, Arc<dyn DiskFile>, tempfile::TempDir)> {
        UringEngine::new()
            .map_err(|error| println!("skipped uring: {error}"))
            .ok()?;
        let directory = tempfile::tempdir().unwrap();
        let place = OsDisk.open_dir(directory.path()).unwrap();
        let file = place.open("file", OpenMode::CreateDirect).unwrap();
        file.write_at(&AlignedBuffer::try_new(65536).unwrap(), 0)
            .unwrap();
        Some((UringQueue::new(4, 4096).unwrap(), file, directory))
    }

    #[test]
    fn buffers_are_registered_each_under_its_own_index() {
        let Some((mut queue, _file, _directory)) = queue_and_file() else {
            return;
        };
        let mut indexes: Vec<_> = (0..4)
            .filter_map(|_| queue.buffer().unwrap().registered(queue.number))
            .collect();
        if indexes.is_empty() {
            println!("this process may not pin memory");
            return;
        }
        indexes.sort_unstable();
        assert_eq!(indexes, [0, 1, 2, 3]);
    }

    #[test]
    fn entries_that_the_kernel_never_took_fail_and_those_it_took_are_waited_for() {
        let Some((mut queue, file, _directory)) = queue_and_file() else {
            return;
        };
        for tag in 0..4 {
            let buffer = queue.buffer().unwrap();
            queue.read(&file, tag * 4096, 4096, buffer, tag);
            if tag == 1 {
                queue.submit();
                assert!(queue.offered.is_empty());
            }
        }
        queue.fail_offered(libc::ENOMEM);
        assert_eq!(queue.in_flight(), 4);
        let mut failed = Vec::new();
        while let Some(completion) = queue.wait() {
            match completion.result {
                Ok(bytes) => assert_eq!((bytes, completion.tag < 2), (4096, true)),
                Err(error) => failed.push((completion.tag, error.raw_os_error())),
            }
            queue.recycle(completion.buffer);
        }
        assert_eq!(failed, [(2, Some(libc::ENOMEM)), (3, Some(libc::ENOMEM))]);
        let buffer = queue.buffer().unwrap();
        queue.read(&file, 0, 4096, buffer, 9);
        let completion = queue.wait().unwrap();
        assert_eq!(
            completion.result.unwrap_err().raw_os_error(),
            Some(libc::ENOMEM)
        );
    }

    #[test]
    fn a_cancelled_request_counts_as_interrupted_and_an_errno_stays() {
        assert_eq!(
            moved(-libc::ECANCELED).unwrap_err().kind(),
            ErrorKind::Interrupted
        );
        assert_eq!(
            moved(-libc::EIO).unwrap_err().raw_os_error(),
            Some(libc::EIO)
        );
        assert_eq!(moved(7).unwrap(), 7);
    }
}

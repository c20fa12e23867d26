//! How does a queue go on whatever becomes of its ring?
//!
//! Invariants:
//! - A request's buffer and file stay in the queue's slots from before the kernel hears of the
//!   request until its completion is reaped; dropping a queue reaps all first.
//! - A slot has at most one entry in the ring, so the entries never overflow it. Requests beyond
//!   the slots wait, in the order in which they came.
//! - When the kernel refuses for good to take entries, those it has not taken wait; those it has
//!   taken are reaped. Then a new ring goes on, and where there is none plain calls do.
//! - No request is lost, and none fails for its ring's sake. One that a ring gave back undone may
//!   be done again: it reads or writes the same bytes at the same place.
//! - A ring is set up without flags that tie it to one thread: queues move between threads.

#![expect(
    unsafe_code,
    reason = "the kernel reads and writes buffers that it is given by address"
)]

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{EnterFlags, opcode, squeue, types};
use nix::libc;

use crate::fork::Process;
use crate::units::{narrow, to_usize};

use super::super::buffer::{AlignedBuffer, Pool};
use super::super::transfer::{RETRIES_MAX, Step, Transfer};
use super::super::{Completion, DiskFile, Queue, Request};
use super::ring::{Account, Ring};

/// Rings that a queue may lose before it asks for no other.
const RINGS_MAX: u32 = 16;

/// A request between its submission and its completion.
#[derive(Debug)]
struct InFlight {
    /// Keeps the descriptor open.
    file: Arc<dyn DiskFile>,
    fd: RawFd,
    buffer: AlignedBuffer,
    transfer: Transfer,
    tag: u64,
}

impl InFlight {
    /// Does the rest with a plain call.
    fn plainly(mut self) -> Completion {
        let (rest, offset) = (self.transfer.rest(), self.transfer.file_offset());
        let (start, end) = (rest.start, rest.end);
        let result = match self.transfer.is_write() {
            false => self.file.read_at(&mut self.buffer[rest], offset),
            true => {
                let written = self.file.write_at(&self.buffer[rest], offset);
                written.map(|()| end - start)
            }
        };
        self.completed(result.map(|moved| start + moved))
    }

    fn completed(self, result: io::Result<usize>) -> Completion {
        Completion {
            tag: self.tag,
            buffer: self.buffer,
            result,
        }
    }
}

/// One ring with its buffers, or the plain calls that stand for it.
pub(super) struct UringQueue {
    /// `None`: plain calls, for good.
    ring: Option<Ring>,
    pool: Pool,
    /// As many as the ring has entries.
    slots: Vec<Option<InFlight>>,
    slots_free: Vec<usize>,
    /// Slots whose entries the kernel has not taken yet, in the ring's order.
    offered: VecDeque<usize>,
    /// Requests that are in no slot.
    waiting: VecDeque<InFlight>,
    completions: VecDeque<Completion>,
    /// The ring takes no more entries.
    broken: bool,
    /// The ring has completed a request.
    proven: bool,
    rings_lost: u32,
    /// The ring has not been asked to register buffers.
    unregistered: bool,
    account: Arc<Account>,
    process: Process,
}

impl UringQueue {
    /// Makes a queue; where there is no ring, one of plain calls.
    pub fn new(
        depth: usize,
        buffer_bytes: usize,
        account: &Arc<Account>,
    ) -> io::Result<UringQueue> {
        if u32::try_from(buffer_bytes).is_err() {
            let what = "buffers of 4 GiB or more";
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let pool = Pool::try_new(depth, buffer_bytes)?;
        account.queue_made(depth);
        let mut queue = UringQueue {
            ring: None,
            pool,
            slots: Vec::new(),
            slots_free: Vec::new(),
            offered: VecDeque::with_capacity(depth),
            waiting: VecDeque::new(),
            completions: VecDeque::with_capacity(depth),
            broken: false,
            proven: false,
            rings_lost: 0,
            unregistered: false,
            account: Arc::clone(account),
            process: Process::this(),
        };
        match Ring::new(depth, account) {
            Ok(ring) => queue.install(ring),
            Err(error) => account.falls_back(&error),
        }
        Ok(queue)
    }

    /// Goes on with a ring; no request is in a slot.
    fn install(&mut self, ring: Ring) {
        let entries = ring.entries();
        self.slots.clear();
        self.slots.resize_with(entries, || None);
        self.slots_free = (0..entries).collect();
        self.ring = Some(ring);
        (self.broken, self.proven, self.unregistered) = (false, false, true);
    }

    /// Requests in the slots: offered to the kernel or taken by it.
    fn occupied(&self) -> usize {
        self.slots.len() - self.slots_free.len()
    }

    /// Offers a request to the kernel.
    fn seat(&mut self, slot: usize, request: InFlight) {
        self.slots[slot] = Some(request);
        self.offer(slot);
    }

    /// Puts the entry for the rest of a slot's transfer into the ring.
    fn offer(&mut self, slot: usize) {
        let (Some(request), Some(ring)) = (&self.slots[slot], &mut self.ring) else {
            unreachable!("an empty slot was offered, or there is no ring")
        };
        let entry = entry(request, ring.number()).user_data(slot as u64);
        // SAFETY: the entry's memory is the buffer in the slot, and its descriptor the file's in
        // the slot; both stay there until the completion is reaped.
        let pushed = unsafe { ring.uring().submission().push(&entry) };
        assert!(
            pushed.is_ok(),
            "a slot has one entry, and the ring has room for each slot"
        );
        self.offered.push_back(slot);
    }

    /// Gives the kernel what was offered and waits for `wanted` completions.
    fn enter(&mut self, wanted: usize) {
        if self.broken {
            return self.wait_for_taken();
        }
        let mut retries = 0;
        loop {
            let Some(ring) = &mut self.ring else { return };
            let uring = ring.uring();
            let result = uring.submit_and_wait(wanted);
            let left = uring.submission().len();
            let arrived = !uring.completion().is_empty();
            while self.offered.len() > left {
                self.offered.pop_front();
            }
            let Err(error) = result else { return };
            match error.raw_os_error() {
                // The wait was cut short; what was taken is counted.
                Some(libc::EINTR) => return,
                // The kernel is short of memory, or of room for completions: reaping helps.
                Some(libc::EAGAIN | libc::EBUSY) if retries < RETRIES_MAX => {
                    if arrived {
                        return;
                    }
                    retries += 1;
                    std::thread::sleep(Duration::from_micros(100));
                }
                _ => return self.give_up(&error),
            }
        }
    }

    /// Takes back what the kernel never took. From here on the ring is never offered anything, so
    /// that the buffers may go although their entries are still in it.
    fn give_up(&mut self, error: &io::Error) {
        self.broken = true;
        self.rings_lost += 1;
        self.account.ring_lost(error);
        while let Some(slot) = self.offered.pop_back() {
            if let Some(request) = self.slots[slot].take() {
                self.waiting.push_front(request);
            }
            self.slots_free.push(slot);
        }
    }

    /// Replaces a ring that is broken and drained, and goes on with what waits.
    fn replace(&mut self) {
        // One that never worked is worth one more try.
        let asks = (self.proven || self.rings_lost == 1) && self.rings_lost < RINGS_MAX;
        let depth = self.pool.count();
        // First, so that the kernel gets back what the old one takes.
        self.ring = None;
        let made = match asks {
            true => Ring::new(depth, &self.account),
            false => Err(io::Error::other(
                "the rings of a queue fail again and again",
            )),
        };
        match made {
            Ok(ring) => {
                self.install(ring);
                self.seat_waiting();
            }
            Err(error) => {
                self.account.falls_back(&error);
                self.broken = false;
                let waiting = std::mem::take(&mut self.waiting);
                self.completions
                    .extend(waiting.into_iter().map(InFlight::plainly));
            }
        }
    }

    /// Gives free slots to those that wait.
    fn seat_waiting(&mut self) {
        while !self.broken
            && !self.waiting.is_empty()
            && let Some(slot) = self.slots_free.pop()
            && let Some(request) = self.waiting.pop_front()
        {
            self.seat(slot, request);
        }
    }

    /// Waits for a completion without offering anything.
    fn wait_for_taken(&mut self) {
        let taken = self.occupied();
        let Some(ring) = &mut self.ring else { return };
        let uring = ring.uring();
        if taken == 0 || !uring.completion().is_empty() {
            return;
        }
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: no entries are submitted and no argument is passed.
        let result = unsafe { uring.submitter().enter::<libc::sigset_t>(0, 1, flags, None) };
        if result.is_err() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Takes the completions that are there; resumes what was cut short.
    fn reap(&mut self) {
        loop {
            let Some(ring) = &mut self.ring else { return };
            let Some(entry) = ring.uring().completion().next() else {
                return self.seat_waiting();
            };
            let slot = to_usize(entry.user_data());
            let Some(Some(request)) = self.slots.get_mut(slot) else {
                unreachable!("a completion of a request that is not in flight")
            };
            if is_of_the_ring(entry.result()) {
                let request = self.vacate(slot);
                self.completions.push_back(request.plainly());
                continue;
            }
            self.proven = true;
            match request.transfer.advance(moved(entry.result())) {
                Step::Done(result) => {
                    let request = self.vacate(slot);
                    self.completions.push_back(request.completed(result));
                }
                Step::Again if self.broken => {
                    let request = self.vacate(slot);
                    self.waiting.push_back(request);
                }
                Step::Again => self.offer(slot),
            }
        }
    }

    fn vacate(&mut self, slot: usize) -> InFlight {
        let Some(request) = self.slots[slot].take() else {
            unreachable!("an empty slot was vacated")
        };
        self.slots_free.push(slot);
        request
    }
}

/// The ring entry for the rest of a transfer.
fn entry(request: &InFlight, ring: u64) -> squeue::Entry {
    let rest = request.transfer.rest();
    assert!(
        rest.end <= request.buffer.len(),
        "a request longer than its buffer"
    );
    let bytes = narrow(rest.len());
    // A wrapping address needs no `unsafe`; the assertion above keeps it inside the buffer.
    let memory = request.buffer.start().as_ptr().wrapping_add(rest.start);
    let (fd, offset) = (types::Fd(request.fd), request.transfer.file_offset());
    match (request.transfer.is_write(), request.buffer.registered(ring)) {
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

/// Whether a completion tells of the ring, not of the file: ECANCELED is what requests get that no
/// worker could take (no process may be made, the submitting thread ended), EAGAIN and ENOMEM what
/// they get when the kernel has no memory for them. Nothing was moved.
fn is_of_the_ring(result: i32) -> bool {
    matches!(
        result.wrapping_neg(),
        libc::ECANCELED | libc::EAGAIN | libc::ENOMEM
    )
}

/// The result of a completion.
fn moved(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.wrapping_neg()))
}

impl Queue for UringQueue {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    fn in_flight(&self) -> usize {
        self.occupied() + self.waiting.len() + self.completions.len()
    }

    fn buffer(&mut self) -> Option<AlignedBuffer> {
        if self.unregistered
            && self.pool.is_whole()
            && let Some(ring) = &mut self.ring
        {
            self.unregistered = false;
            ring.register(&mut self.pool);
        }
        self.pool.take()
    }

    fn start(&mut self, request: Request) {
        let (offset, bytes, align) = (request.offset, request.bytes, request.file.align_bytes());
        let transfer = match request.write {
            false => Transfer::read(offset, bytes, align),
            true => Transfer::write(offset, bytes, align),
        };
        let Request {
            file, buffer, tag, ..
        } = request;
        let Some(fd) = file.raw_fd() else {
            let what = io::Error::new(ErrorKind::Unsupported, "a file without descriptor");
            self.completions.push_back(Completion {
                tag,
                buffer,
                result: Err(what),
            });
            return;
        };
        let request = InFlight {
            file,
            fd,
            buffer,
            transfer,
            tag,
        };
        if self.ring.is_none() {
            self.completions.push_back(request.plainly());
        } else if self.broken {
            self.waiting.push_back(request);
        } else {
            match self.slots_free.pop() {
                Some(slot) => self.seat(slot, request),
                None => self.waiting.push_back(request),
            }
        }
    }

    fn submit(&mut self) {
        if self.broken && self.occupied() == 0 {
            self.replace();
        }
        if !self.offered.is_empty() {
            self.enter(0);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.submit();
        if self.completions.is_empty() {
            self.reap();
        }
        self.completions.pop_front()
    }

    fn wait(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.poll() {
                return Some(completion);
            }
            if self.in_flight() == 0 {
                return None;
            }
            self.enter(1);
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        // In a forked child there is nothing to wait for.
        if self.process.is_this() {
            while self.wait().is_some() {}
            self.account
                .queue_gone(self.pool.count(), self.ring.is_none());
        }
    }
}

impl fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringQueue")
            .field("depth", &self.pool.count())
            .field("buffer_bytes", &self.pool.buffer_bytes())
            .field("in_flight", &self.in_flight())
            .field("ring", &self.ring.as_ref().map(Ring::entries))
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;

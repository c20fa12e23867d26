//! Which memory may a device read into and write from?
//!
//! Invariants:
//! - An [`AlignedBuffer`] starts at a multiple of [`BUFFER_ALIGN_BYTES`] and owns its bytes; they
//!   never move while it lives, so a queue may hold their address as long as it holds the buffer.
//! - Forked children do not have the memory. Were it shared until somebody writes, a page that a
//!   device fills during a fork could become the child's, and its parent would read an old copy.
//! - The buffers of a queue lie in one mapping: their number is not bounded by that of mappings.
//! - Small mappings are kept for the next buffers, a few of them, and zeroed before: opening a small
//!   store takes thirty. A child keeps none of its parent's.
//! - Its bytes are initialised from the start (zero).
//! - Running out of memory is an error, not an abort.

#![expect(
    unsafe_code,
    reason = "memory aligned for O_DIRECT is mapped, and kept from children"
)]

use std::ffi::c_void;
use std::fmt;
use std::io::{self, ErrorKind};
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::fork::Process;
use crate::pages::HUGE_BYTES;

/// Alignment of every buffer: enough for O_DIRECT on any device with blocks up to a page.
pub const BUFFER_ALIGN_BYTES: usize = 4096;

/// Zeroed memory of this process alone.
#[derive(Debug)]
struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
    process: Process,
}

// SAFETY: the mapping is addresses; who may use the bytes behind them the buffers say.
unsafe impl Send for Mapping {}

// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Most bytes of a mapping that is kept, and most mappings: 2 MiB in all.
const KEPT_BYTES_MAX: usize = 64 << 10;
const KEPT_MAX: usize = 32;

/// Mappings that nobody uses. Whoever finds it locked, and so each child that was forked meanwhile,
/// does without.
static KEPT: Mutex<[Option<Mapping>; KEPT_MAX]> = Mutex::new([const { None }; KEPT_MAX]);

impl Mapping {
    /// Zeroed memory: that of a mapping that was kept, or a new one.
    fn try_new(bytes: usize) -> io::Result<Mapping> {
        if bytes == 0 || bytes > KEPT_BYTES_MAX {
            return Mapping::map(bytes);
        }
        // Few lengths, so that what was kept fits the next buffer.
        let bytes = bytes.next_power_of_two().max(BUFFER_ALIGN_BYTES);
        match Mapping::take_kept(bytes) {
            Some(mapping) => Ok(mapping),
            None => Mapping::map(bytes),
        }
    }

    fn take_kept(bytes: usize) -> Option<Mapping> {
        let mut kept = KEPT.try_lock().ok()?;
        let fits = |m: &Mapping| m.bytes == bytes && m.process.is_this();
        let place = kept.iter_mut().find(|m| m.as_ref().is_some_and(fits))?;
        let mapping = place.take()?;
        drop(kept);
        // SAFETY: the mapping is `bytes` long, and nobody else has it: it was among those that are
        // kept, where it came without any buffer left, and was just taken from there.
        unsafe { mapping.start.cast::<u8>().write_bytes(0, bytes) };
        Some(mapping)
    }

    /// Whether it is kept for the next buffers.
    fn is_kept(&self) -> bool {
        if self.bytes > KEPT_BYTES_MAX {
            return false;
        }
        let Ok(mut kept) = KEPT.try_lock() else {
            return false;
        };
        let place = kept.iter_mut().find(|m| m.is_none());
        place.is_some_and(|place| {
            *place = Some(Mapping { ..*self });
            true
        })
    }

    fn map(bytes: usize) -> io::Result<Mapping> {
        let length = NonZeroUsize::new(bytes)
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "a buffer of zero bytes"))?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses a place where nothing is.
        let start = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) }?;
        let process = Process::this();
        // SAFETY: the range is the mapping just made, which a child does not use: see `process`.
        let advised = unsafe { madvise(start, bytes, MmapAdvise::MADV_DONTFORK) };
        if let Err(error) = advised {
            tracing::debug!(%error, "forked children have I/O buffers");
        }
        if bytes >= HUGE_BYTES {
            // SAFETY: the range is the mapping just made; its content stays as it is.
            let advised = unsafe { madvise(start, bytes, MmapAdvise::MADV_HUGEPAGE) };
            if let Err(error) = advised {
                tracing::debug!(%error, bytes, "I/O buffers have small pages");
            }
        }
        Ok(Mapping {
            start,
            bytes,
            process,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Something else may be there in a child.
        if !self.process.is_this() || self.is_kept() {
            return;
        }
        // SAFETY: the range was mapped by this process and is unmapped once; no buffer is left.
        if let Err(error) = unsafe { munmap(self.start, self.bytes) } {
            tracing::warn!(%error, "I/O buffers stay mapped");
        }
    }
}

/// Owned memory, aligned for direct I/O, zeroed when allocated.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    bytes: usize,
    /// Keeps the memory; buffers of a pool share it, each with its own part.
    mapping: Arc<Mapping>,
    registered: Option<Registration>,
}

/// Where a queue registered a buffer with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registration {
    queue: u64,
    index: u16,
}

// SAFETY: the buffer is the only owner of its bytes, so it may move between threads like a Vec.
unsafe impl Send for AlignedBuffer {}

// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocates `bytes` zeroed bytes.
    ///
    /// # Errors
    /// `OutOfMemory` when the system refuses, `InvalidInput` when `bytes` is zero.
    pub fn try_new(bytes: usize) -> io::Result<AlignedBuffer> {
        let mapping = Arc::new(Mapping::try_new(bytes)?);
        Ok(AlignedBuffer::part(&mapping, 0, bytes))
    }

    /// The buffer of a part of a mapping, which no other buffer has.
    fn part(mapping: &Arc<Mapping>, offset: usize, bytes: usize) -> AlignedBuffer {
        assert!(
            offset.is_multiple_of(BUFFER_ALIGN_BYTES) && offset + bytes <= mapping.bytes,
            "a buffer outside its mapping"
        );
        let start = mapping.start.cast();
        AlignedBuffer {
            // SAFETY: the sum lies inside the mapping, as just checked.
            start: unsafe { start.byte_add(offset) },
            bytes,
            mapping: Arc::clone(mapping),
            registered: None,
        }
    }

    /// The index under which the queue with this number registered the buffer.
    pub(super) fn registered(&self, queue: u64) -> Option<u16> {
        self.registered
            .filter(|registration| registration.queue == queue)
            .map(|r| r.index)
    }

    /// Notes that a queue registered the buffer under `index`.
    pub(super) fn set_registered(&mut self, queue: u64, index: u16) {
        self.registered = Some(Registration { queue, index });
    }

    /// The address of the first byte, for a request that outlives any borrow.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        debug_assert!(self.mapping.process.is_this(), "a buffer of the parent");
        // SAFETY: `start` points to `bytes` initialised bytes of the mapping, which lives as long
        // as self; nobody in a forked child, which has no such memory, comes here: what owns
        // buffers asks first whose they are.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes this the only access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer")
            .field("bytes", &self.bytes)
            .field("registered", &self.registered)
            .finish()
    }
}

/// The buffers of one queue.
#[derive(Debug)]
pub struct Pool {
    free: Vec<AlignedBuffer>,
    count: usize,
    buffer_bytes: usize,
}

impl Pool {
    /// Allocates `count` buffers, in one piece.
    ///
    /// # Errors
    /// `InvalidInput` for no buffers or a size that is not a multiple of 4096, `OutOfMemory`.
    pub fn try_new(count: usize, buffer_bytes: usize) -> io::Result<Pool> {
        if count == 0 || buffer_bytes == 0 || !buffer_bytes.is_multiple_of(BUFFER_ALIGN_BYTES) {
            let why = format!("a queue of {count} buffers of {buffer_bytes} bytes");
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let mut free = Vec::new();
        free.try_reserve_exact(count)
            .map_err(|_| ErrorKind::OutOfMemory)?;
        let bytes = count.checked_mul(buffer_bytes);
        let mapping = Mapping::try_new(bytes.ok_or(ErrorKind::OutOfMemory)?)?;
        let mapping = Arc::new(mapping);
        for i in 0..count {
            free.push(AlignedBuffer::part(
                &mapping,
                i * buffer_bytes,
                buffer_bytes,
            ));
        }
        Ok(Pool {
            free,
            count,
            buffer_bytes,
        })
    }

    /// Buffers in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Size of each in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Holds a caller to its promises: room in the queue, and a buffer as long as the request.
    pub(super) fn admit(&self, in_flight: usize, bytes: usize, buffer: &AlignedBuffer) {
        assert!(
            in_flight < self.count,
            "more requests than the queue's depth"
        );
        assert!(bytes <= buffer.len(), "a request longer than its buffer");
    }

    /// Takes a free one.
    pub fn take(&mut self) -> Option<AlignedBuffer> {
        self.free.pop()
    }

    /// Takes a buffer back; one of another size, or one too many, is freed instead.
    pub fn put(&mut self, buffer: AlignedBuffer) {
        if self.free.len() < self.count && buffer.len() == self.buffer_bytes {
            self.free.push(buffer);
        }
    }

    /// Whether no buffer is in flight or in the caller's hands.
    pub(super) fn is_whole(&self) -> bool {
        self.free.len() == self.count
    }

    /// The free buffers in the order in which they are taken.
    pub(super) fn next_taken(&mut self) -> impl Iterator<Item = &mut AlignedBuffer> {
        self.free.iter_mut().rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The safe twin: the same contract out of whole pages in a `Vec`.
    #[derive(Clone)]
    #[repr(align(4096))]
    struct Page([u8; BUFFER_ALIGN_BYTES]);

    struct Twin(Vec<Page>);

    trait Contract: Sized {
        fn make(bytes: usize) -> io::Result<Self>;
        fn address(&self) -> usize;
        fn get(&self, index: usize) -> u8;
        fn set(&mut self, index: usize, byte: u8);
        fn count(&self) -> usize;
    }

    impl Contract for Twin {
        fn make(bytes: usize) -> io::Result<Twin> {
            if bytes == 0 {
                return Err(ErrorKind::InvalidInput.into());
            }
            let mut pages = Vec::new();
            let count = bytes / BUFFER_ALIGN_BYTES;
            pages
                .try_reserve_exact(count)
                .map_err(|_| ErrorKind::OutOfMemory)?;
            pages.resize(count, Page([0; BUFFER_ALIGN_BYTES]));
            Ok(Twin(pages))
        }
        fn address(&self) -> usize {
            self.0.as_ptr().addr()
        }
        fn get(&self, index: usize) -> u8 {
            self.0[index / BUFFER_ALIGN_BYTES].0[index % BUFFER_ALIGN_BYTES]
        }
        fn set(&mut self, index: usize, byte: u8) {
            self.0[index / BUFFER_ALIGN_BYTES].0[index % BUFFER_ALIGN_BYTES] = byte;
        }
        fn count(&self) -> usize {
            self.0.len() * BUFFER_ALIGN_BYTES
        }
    }

    impl Contract for AlignedBuffer {
        fn make(bytes: usize) -> io::Result<AlignedBuffer> {
            AlignedBuffer::try_new(bytes)
        }
        fn address(&self) -> usize {
            self.as_ptr().addr()
        }
        fn get(&self, index: usize) -> u8 {
            self[index]
        }
        fn set(&mut self, index: usize, byte: u8) {
            self[index] = byte;
        }
        fn count(&self) -> usize {
            self.len()
        }
    }

    fn pattern(index: usize) -> u8 {
        u8::try_from(index % 251).unwrap()
    }

    fn keeps_the_contract<B: Contract + Send + 'static>() {
        assert_eq!(
            B::make(0).err().map(|e| e.kind()),
            Some(ErrorKind::InvalidInput)
        );
        assert!(
            B::make(usize::MAX & !0xffff).is_err(),
            "more than an address space"
        );
        // An optimiser may leave out an allocation that nobody looks at, and so its failure.
        let refused = std::hint::black_box(B::make(1 << 61));
        assert_eq!(
            refused.err().map(|e| e.kind()),
            Some(ErrorKind::OutOfMemory)
        );
        for bytes in [4096, 8192, 1 << 20, HUGE_BYTES] {
            let mut buffer = B::make(bytes).unwrap();
            assert_eq!(buffer.address() % BUFFER_ALIGN_BYTES, 0);
            assert_eq!(buffer.count(), bytes);
            assert!((0..bytes).all(|i| buffer.get(i) == 0));
            (0..bytes).for_each(|i| buffer.set(i, pattern(i)));
            let address = buffer.address();
            let moved = std::thread::spawn(move || buffer).join().unwrap();
            assert_eq!(moved.address(), address, "the bytes stay where they are");
            assert!((0..bytes).all(|i| moved.get(i) == pattern(i)));
        }
    }

    #[test]
    fn an_aligned_buffer_keeps_the_contract() {
        keeps_the_contract::<AlignedBuffer>();
    }

    #[test]
    fn the_safe_twin_keeps_the_same_contract() {
        keeps_the_contract::<Twin>();
    }

    #[test]
    fn memory_that_is_used_again_is_zero_and_of_one_buffer_alone() {
        for round in 0..20 {
            let make = |i: usize| AlignedBuffer::try_new(4096 << (i % 6)).unwrap();
            let mut buffers: Vec<AlignedBuffer> = (0..KEPT_MAX + 8).map(make).collect();
            for (mark, buffer) in (1..).zip(&mut buffers) {
                assert!(buffer.iter().all(|byte| *byte == 0), "round {round}");
                buffer.fill(mark);
            }
            for (mark, buffer) in (1..).zip(&buffers) {
                assert!(buffer.iter().all(|byte| *byte == mark), "round {round}");
            }
        }
    }

    #[test]
    fn a_buffer_is_registered_with_one_queue_only() {
        let mut buffer = AlignedBuffer::try_new(4096).unwrap();
        assert_eq!(buffer.registered(1), None);
        buffer.set_registered(1, 7);
        assert_eq!(buffer.registered(1), Some(7));
        assert_eq!(buffer.registered(2), None);
    }

    #[test]
    fn a_pool_hands_out_its_buffers_and_keeps_no_foreign_ones() {
        let mut pool = Pool::try_new(2, 4096).unwrap();
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        pool.put(AlignedBuffer::try_new(8192).unwrap());
        assert!(pool.take().is_none());
        pool.put(one);
        pool.put(two);
        pool.put(AlignedBuffer::try_new(4096).unwrap());
        assert_eq!((0..3).filter_map(|_| pool.take()).count(), 2);
        assert!(Pool::try_new(0, 4096).is_err());
        assert!(Pool::try_new(1, 100).is_err());
    }
}

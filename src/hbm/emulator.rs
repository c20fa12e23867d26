//! The kernels without a GPU: host code of the same files, every thread a fiber, the schedule seeded.
//!
//! Invariants:
//! - Memory of the device is poisoned when it is taken and lies between guard zones, which every read
//!   looks at: a kernel that writes beside a buffer is found.
//! - Launches are done when they are given. Yet what two streams, or two threads of a launch, do to the
//!   same word without an order that CUDA promises is found (`kernels/emu/races.cpp`).
//! - An emulator that has said that the device is lost says so ever after.
#![expect(
    unsafe_code,
    reason = "launches compiled kernels on memory that it hands out by address"
)]

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::time::Instant;

use super::args::{Address, Args, Plain, THREADS};
use super::launcher::{DeviceInfo, GraphId, Launcher, Mark, Memory, Stream};
use crate::error::{Error, Result};
use crate::units::narrow;

unsafe extern "C" {
    fn hps_emu_open() -> *mut c_void;
    fn hps_emu_close(device: *mut c_void);
    fn hps_emu_plant(device: *mut c_void, how: c_uint, barrier: c_uint, kernel: *const c_char);
    fn hps_emu_take(device: *mut c_void, at: c_ulonglong, bytes: c_ulonglong);
    fn hps_emu_order(device: *mut c_void, before: c_uint, then: c_uint);
    fn hps_emu_barriers(text: *mut c_char, text_bytes: c_ulonglong);
    fn hps_emu_touch(
        device: *mut c_void,
        stream: c_uint,
        what: *const c_char,
        at: c_ulonglong,
        bytes: c_ulonglong,
        writes: c_uint,
        error: *mut c_char,
        error_bytes: c_ulonglong,
    ) -> c_int;
    fn hps_emu_launch(
        device: *mut c_void,
        stream: c_uint,
        name: *const c_char,
        grid: c_uint,
        block: c_uint,
        args: *mut c_void,
        seed: c_ulonglong,
        preempt: c_uint,
        error: *mut c_char,
        error_bytes: c_ulonglong,
    ) -> c_int;
}

/// Bytes on either side of an allocation that nobody may touch.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0x5c;
const POISON: u8 = 0xa5;
/// Of 256 places where a thread may be interrupted: how often it is.
const PREEMPT: u32 = 64;
/// What errors call an emulated device.
const NAME: &str = "emulator";
/// Memory of an emulated device, unless a test says less.
const MEMORY_BYTES: u64 = 1 << 30;

/// A mistake that the emulator makes of a right kernel or a right order, for the test that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Planted {
    /// No thread waits at the barrier of this place in [`barriers`].
    LeftOut(u32),
    /// Only some threads of a block, or lanes of a warp, wait at this barrier.
    Divergent(u32),
    /// Kernels of `kernels/emu/planted.cu` that begin with this word take the place of others.
    Kernel(&'static str),
    /// The device ignores the order between streams.
    Unordered,
}

/// The barriers of the kernels that launches have met so far: file, line and call. Places do not change.
#[must_use]
pub fn barriers() -> Vec<String> {
    let mut text = vec![0u8; 16 << 10];
    // SAFETY: `text` has the length given; the callee ends it with 0.
    unsafe { hps_emu_barriers(text.as_mut_ptr().cast(), text.len() as u64) };
    text_of(&text).lines().map(str::to_owned).collect()
}

fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// What goes wrong on an emulated device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// The call of this number, counted from 1, fails once.
    pub fail_at: Option<u64>,
    /// The device is lost at the call of this number.
    pub lost_at: Option<u64>,
    /// Bytes of device memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of pinned memory.
    pub pinned_bytes: Option<u64>,
    /// A mistake to be found.
    pub planted: Option<Planted>,
}

impl Faults {
    /// The call of this number fails once.
    #[must_use]
    pub fn fail_at(mut self, call: u64) -> Faults {
        self.fail_at = Some(call);
        self
    }

    /// The device is lost at the call of this number.
    #[must_use]
    pub fn lost_at(mut self, call: u64) -> Faults {
        self.lost_at = Some(call);
        self
    }

    /// So much device memory, so much pinned memory.
    #[must_use]
    pub fn memory(mut self, device: u64, pinned: u64) -> Faults {
        self.memory_bytes = Some(device);
        self.pinned_bytes = Some(pinned);
        self
    }

    /// A mistake that the emulator has to find.
    #[must_use]
    pub fn planted(mut self, mistake: Planted) -> Faults {
        self.planted = Some(mistake);
        self
    }
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    memory: Memory,
    bytes: usize,
}

impl Allocation {
    fn layout(self) -> Layout {
        Layout::from_size_align(self.bytes + 2 * GUARD, 256).unwrap_or(Layout::new::<u64>())
    }
}

/// A launch that was recorded.
#[derive(Debug)]
struct Launch {
    kernel: &'static str,
    blocks: u32,
    /// The arguments, in words so that they are aligned.
    args: Vec<u64>,
}

/// The C++ half: what is known of threads and memory. By number, since only this emulator uses it.
#[derive(Debug)]
struct Native(usize);

impl Native {
    fn open(planted: Option<Planted>) -> Native {
        // SAFETY: takes nothing; what it returns lives until `drop`.
        let device = unsafe { hps_emu_open() };
        let (how, barrier, kernel) = match planted {
            Some(Planted::LeftOut(barrier)) => (1, barrier, ""),
            Some(Planted::Divergent(barrier)) => (2, barrier, ""),
            Some(Planted::Kernel(mistake)) => (3, 0, mistake),
            Some(Planted::Unordered) | None => (0, 0, ""),
        };
        let kernel = CString::new(kernel).unwrap_or_default();
        // SAFETY: the device was made above; the text ends with 0 and is copied.
        unsafe { hps_emu_plant(device, how, barrier, kernel.as_ptr()) };
        Native(device.expose_provenance())
    }

    fn device(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: made by `open`, closed once.
        unsafe { hps_emu_close(self.device()) };
    }
}

fn number_of(stream: Stream) -> c_uint {
    narrow(stream.index())
}

/// A device that is not there.
#[derive(Debug)]
pub struct Emulator {
    native: Native,
    seed: u64,
    faults: Faults,
    calls: u64,
    lost: bool,
    /// By address.
    memory: BTreeMap<u64, Allocation>,
    recording: Option<Vec<Launch>>,
    graphs: Vec<Vec<Launch>>,
    marks: Vec<Instant>,
}

impl Emulator {
    /// A device whose schedules follow from the seed.
    pub fn new(seed: u64, faults: Faults) -> Emulator {
        Emulator {
            native: Native::open(faults.planted),
            seed,
            faults,
            calls: 0,
            lost: false,
            memory: BTreeMap::new(),
            recording: None,
            graphs: Vec::new(),
            marks: Vec::new(),
        }
    }

    /// Counts a call of the device; fails it if a fault says so.
    fn call(&mut self, operation: &str) -> Result<u64> {
        self.calls += 1;
        if self.faults.lost_at == Some(self.calls) {
            self.lost = true;
        }
        if self.lost {
            return Err(failed(operation, "the device was lost"));
        }
        if self.faults.fail_at == Some(self.calls) {
            return Err(failed(operation, "a fault that was asked for"));
        }
        Ok(self.calls)
    }

    fn taken(&self, memory: Memory) -> u64 {
        let same = self.memory.values().filter(|a| a.memory == memory);
        same.map(|a| a.bytes as u64).sum()
    }

    fn limit(&self, memory: Memory) -> u64 {
        let given = match memory {
            Memory::Device => self.faults.memory_bytes,
            Memory::Pinned => self.faults.pinned_bytes,
        };
        given.unwrap_or(MEMORY_BYTES)
    }

    /// Checks that bytes lie inside an allocation.
    fn check(&self, operation: &str, at: Address, bytes: usize) -> Result<()> {
        let found = self.memory.range(..=at.0).next_back();
        let inside = found.is_some_and(|(start, a)| at.0 + bytes as u64 <= start + a.bytes as u64);
        if inside || bytes == 0 {
            return Ok(());
        }
        Err(failed(operation, "an address outside of all allocations"))
    }

    fn check_guards(&self) -> Result<()> {
        for (start, allocation) in &self.memory {
            for zone in [start - GUARD as u64, start + allocation.bytes as u64] {
                // SAFETY: both zones belong to the allocation, which lives as long as the map's entry.
                let zone = unsafe { std::slice::from_raw_parts(zone as *const u8, GUARD) };
                if zone.iter().any(|byte| *byte != GUARD_BYTE) {
                    return Err(failed("launch", "a kernel wrote beside an allocation"));
                }
            }
        }
        Ok(())
    }

    /// Remembers what the host does to memory, and checks that it may.
    fn touch(
        &self,
        stream: Stream,
        what: &'static str,
        (at, bytes): (Address, usize),
        writes: bool,
    ) -> Result<()> {
        self.check(what, at, bytes)?;
        let name = CString::new(what).unwrap_or_default();
        let mut text = vec![0u8; 256];
        // SAFETY: the device lives as long as `self`; `what` ends with 0; `text` has the length given. The
        // address is only compared.
        let code = unsafe {
            hps_emu_touch(
                self.native.device(),
                number_of(stream),
                name.as_ptr(),
                at.0,
                bytes as u64,
                c_uint::from(writes),
                text.as_mut_ptr().cast(),
                text.len() as u64,
            )
        };
        match code {
            0 => Ok(()),
            _ => Err(failed(what, &text_of(&text))),
        }
    }

    fn order_native(&self, before: Stream, then: Stream) {
        let (before, then) = (number_of(before), number_of(then));
        // SAFETY: the device lives as long as `self`.
        unsafe { hps_emu_order(self.native.device(), before, then) };
    }

    fn run(&mut self, stream: Stream, launch: &mut Launch, number: u64) -> Result<()> {
        let Launch {
            kernel,
            blocks,
            args,
        } = launch;
        let name = CString::new(*kernel).unwrap_or_default();
        let mut text = vec![0u8; 256];
        // SAFETY: the kernel's one argument is a structure of these bytes (args.rs and common.cu assert
        // the sizes); the addresses in it are of allocations of this emulator; `text` has the length given.
        let code = unsafe {
            hps_emu_launch(
                self.native.device(),
                number_of(stream),
                name.as_ptr(),
                *blocks,
                THREADS,
                args.as_mut_ptr().cast(),
                self.seed.wrapping_mul(1_000_003).wrapping_add(number),
                PREEMPT,
                text.as_mut_ptr().cast(),
                text.len() as u64,
            )
        };
        if code == 0 {
            return Ok(());
        }
        Err(failed(&format!("launch {kernel}"), &text_of(&text)))
    }
}

fn failed(operation: &str, why: &str) -> Error {
    Error::Device {
        device: NAME.to_owned(),
        operation: operation.to_owned(),
        why: why.to_owned(),
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        for (start, allocation) in &self.memory {
            let base = (start - GUARD as u64) as *mut u8;
            // SAFETY: allocated with this layout in `allocate`, freed once: the map goes with it.
            unsafe { dealloc(base, allocation.layout()) };
        }
    }
}

impl Launcher for Emulator {
    fn device(&self) -> &str {
        NAME
    }

    fn info(&self) -> Result<DeviceInfo> {
        let limit = self.limit(Memory::Device);
        Ok(DeviceInfo {
            name: NAME.to_owned(),
            memory_bytes: limit,
            free_bytes: limit.saturating_sub(self.taken(Memory::Device)),
            // Few blocks, so that loops stride and threads are few.
            multiprocessors: 0,
        })
    }

    fn allocate(&mut self, memory: Memory, bytes: usize) -> Result<Address> {
        self.call("allocate")?;
        let free = self.limit(memory).saturating_sub(self.taken(memory));
        if bytes as u64 > free {
            return Err(Error::DeviceMemory {
                device: NAME.to_owned(),
                what: match memory {
                    Memory::Device => "a buffer",
                    Memory::Pinned => "a pinned buffer",
                },
                asked_bytes: bytes as u64,
                free_bytes: (memory == Memory::Device).then_some(free),
            });
        }
        let allocation = Allocation { memory, bytes };
        let layout = allocation.layout();
        // SAFETY: the layout has a size above 0.
        let base = unsafe { alloc(layout) };
        if base.is_null() {
            return Err(failed("allocate", "no memory"));
        }
        // SAFETY: the layout has bytes + 2 * GUARD bytes.
        unsafe { base.write_bytes(GUARD_BYTE, bytes + 2 * GUARD) };
        // SAFETY: GUARD bytes on still lie inside.
        let start = unsafe { base.add(GUARD) };
        // SAFETY: `bytes` bytes from there lie inside, before the second zone.
        unsafe { start.write_bytes(POISON, bytes) };
        let address = start.expose_provenance() as u64;
        self.memory.insert(address, allocation);
        // SAFETY: the device lives as long as `self`; the address is only compared.
        unsafe { hps_emu_take(self.native.device(), address, bytes as u64) };
        Ok(Address(address))
    }

    fn write<T: Plain>(&mut self, stream: Stream, to: Address, values: &[T]) -> Result<()> {
        self.call("write")?;
        let bytes = size_of_val(values);
        self.touch(stream, "write", (to, bytes), true)?;
        // SAFETY: the target lies inside an allocation, checked above; the source is a slice.
        unsafe { std::ptr::copy(values.as_ptr().cast::<u8>(), to.0 as *mut u8, bytes) };
        Ok(())
    }

    fn read<T: Plain>(&mut self, stream: Stream, from: Address, values: &mut [T]) -> Result<()> {
        self.call("read")?;
        self.check_guards()?;
        let bytes = size_of_val(values);
        self.touch(stream, "read", (from, bytes), false)?;
        // The host has waited: what it gives to any stream from now on comes after all that.
        for then in Stream::ALL {
            self.order_native(stream, then);
        }
        // SAFETY: the source lies inside an allocation, checked above, all of whose bytes were written; any
        // bits are a value of a `Plain` type; the target is a slice.
        unsafe { std::ptr::copy(from.0 as *const u8, values.as_mut_ptr().cast::<u8>(), bytes) };
        Ok(())
    }

    fn copy(&mut self, stream: Stream, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.call("copy")?;
        self.touch(stream, "copy", (from, bytes), false)?;
        self.touch(stream, "copy", (to, bytes), true)?;
        // SAFETY: both lie inside allocations, checked above; `copy` allows them to overlap.
        unsafe { std::ptr::copy(from.0 as *const u8, to.0 as *mut u8, bytes) };
        Ok(())
    }

    fn fill(&mut self, stream: Stream, at: Address, byte: u8, bytes: usize) -> Result<()> {
        self.call("fill")?;
        self.touch(stream, "fill", (at, bytes), true)?;
        let at = at.0 as *mut u8;
        // SAFETY: the bytes lie inside an allocation, checked above.
        unsafe { at.write_bytes(byte, bytes) };
        Ok(())
    }

    fn launch<A: Args>(
        &mut self,
        stream: Stream,
        kernel: &'static str,
        blocks: u32,
        args: &A,
    ) -> Result<()> {
        let number = self.call(kernel)?;
        let mut words = vec![0u64; size_of::<A>().div_ceil(8)];
        let to = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the words have room for the structure, whose fields leave no padding (args.rs asserts its
        // size); it is copied as bytes.
        unsafe { std::ptr::copy(std::ptr::from_ref(args).cast::<u8>(), to, size_of::<A>()) };
        let mut launch = Launch {
            kernel,
            blocks,
            args: words,
        };
        match &mut self.recording {
            Some(list) => list.push(launch),
            None => self.run(stream, &mut launch, number)?,
        }
        Ok(())
    }

    fn order(&mut self, before: Stream, then: Stream) -> Result<()> {
        self.call("order")?;
        if self.faults.planted != Some(Planted::Unordered) {
            self.order_native(before, then);
        }
        Ok(())
    }

    fn begin_capture(&mut self, _stream: Stream) -> Result<()> {
        self.call("begin a recording")?;
        self.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&mut self, _stream: Stream) -> Result<GraphId> {
        let recorded = self.recording.take().unwrap_or_default();
        self.call("end a recording")?;
        self.graphs.push(recorded);
        Ok(GraphId(narrow(self.graphs.len() - 1)))
    }

    fn replay(&mut self, stream: Stream, graph: GraphId) -> Result<()> {
        let number = self.call("replay")?;
        let Some(launches) = self.graphs.get_mut(graph.0 as usize) else {
            return Err(failed("replay", "nothing was recorded under this number"));
        };
        let mut launches = std::mem::take(launches);
        let done = launches
            .iter_mut()
            .try_for_each(|launch| self.run(stream, launch, number));
        self.graphs[graph.0 as usize] = launches;
        done
    }

    fn mark(&mut self, _stream: Stream) -> Result<Mark> {
        self.marks.push(Instant::now());
        Ok(Mark(narrow(self.marks.len() - 1)))
    }

    fn seconds(&mut self, from: Mark, to: Mark) -> Result<f64> {
        let at = |mark: Mark| self.marks.get(mark.0 as usize).copied();
        match (at(from), at(to)) {
            (Some(from), Some(to)) => Ok(to.saturating_duration_since(from).as_secs_f64()),
            _ => Err(failed("seconds", "no such mark was taken")),
        }
    }
}

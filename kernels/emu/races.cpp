// Who reads and writes what? The kernels are compiled with -fsanitize=thread, which puts a call before every
// access to memory; here these calls are answered by this file instead of by ThreadSanitizer's library.
//
// Two accesses to a word, one of them a write, must be in an order that CUDA promises: launches of one
// stream, streams that were ordered, a barrier of the block, a __syncwarp of lanes that are in its mask, or
// both are atomic. Whatever order the schedule happens to take, others are found. So is every address that
// is neither the thread's own, nor shared memory, nor an allocation, and shared memory that is read before
// it is written.
#include "device.hpp"

#include <atomic>
#include <cstdlib>

namespace emu {
namespace {
// Who does something to memory: a thread of a launch, or the host.
struct Doer {
  Device& device;
  unsigned stream;
  Access access;
  const Fiber* fiber;  // null: the host
};

enum Kind { READ, WRITE, ATOMIC };
const char* const VERBS[] = {"reads", "writes", "atomically changes"};

// Whether all of a launch was before what is done now.
bool launch_was_before(const Doer& now, uint32_t launch) {
  if (launch == 0) return true;
  unsigned stream = launch & 1;
  return stream == now.stream || launch <= now.device.after[now.stream];
}

bool was_before(const Doer& now, const Access& then) {
  if (then.launch != now.access.launch) return launch_was_before(now, then.launch);
  const Fiber* fiber = now.fiber;
  if (!fiber || then.block != now.access.block) return !fiber;
  if (then.barriers < now.access.barriers || then.thread == now.access.thread) return true;
  bool same_warp = then.thread / WARP == now.access.thread / WARP;
  return same_warp && fiber->seen[then.thread % WARP] > then.clock;
}

bool was_before(const Doer& now, const Crowd& crowd) {
  if (crowd.who == NOBODY) return true;
  bool is_one = crowd.who == THREAD || crowd.last.launch != now.access.launch;
  if (is_one) return was_before(now, crowd.last);
  if (crowd.who == GRID || crowd.last.block != now.access.block) return false;
  if (crowd.last.barriers < now.access.barriers) return true;
  if (crowd.who == BLOCK || crowd.last.thread / WARP != now.access.thread / WARP) return false;
  unsigned self = now.access.thread % WARP;
  for (unsigned k = 0; k < WARP; ++k)
    if (k != self && (crowd.lanes >> k & 1) && now.fiber->seen[k] <= crowd.last.clock)
      return false;
  return true;
}

// Adds an access to those that it is in no order with.
void join(const Doer& now, Crowd& crowd) {
  const Access& mine = now.access;
  uint32_t lane = 1u << (mine.thread % WARP);
  if (was_before(now, crowd)) {
    crowd = {mine, lane, THREAD};
    return;
  }
  Access& last = crowd.last;
  if (crowd.who == GRID || last.block != mine.block) crowd.who = GRID;
  else if (crowd.who == BLOCK || last.thread / WARP != mine.thread / WARP) crowd.who = BLOCK;
  else crowd.who = LANES;
  crowd.lanes |= lane;
  uint32_t clock = last.clock > mine.clock ? last.clock : mine.clock;
  last = mine;
  last.clock = clock;
}

std::string thread_of(const Access& access) {
  return "thread " + std::to_string(access.thread) + " of block " + std::to_string(access.block);
}

void tell(const Doer& now, Kind kind, const Access& then, const char* past,
          const std::string& where) {
  auto& names = now.device.names;
  std::string text = "race: " + names[now.access.launch];
  if (now.fiber) text += ", " + thread_of(now.access) + ",";
  text += std::string(" ") + VERBS[kind] + " " + where + ", which ";
  if (then.launch == now.access.launch)
    note(text + thread_of(then) + " has " + past + "; no barrier is between them");
  else
    note(text + names[then.launch] + " on the other stream has " + past +
         "; the streams are not ordered");
}

std::string place_of(const char* what, uint64_t at) {
  return std::string(what) + " byte " + std::to_string(at);
}

// One access to one cell; false: it is told.
bool access(const Doer& now, Kind kind, Cell& cell, const char* what, uint64_t at) {
  const Access* other = was_before(now, cell.write) ? nullptr : &cell.write;
  const char* past = "written";
  for (unsigned s = 0; s < 2 && !other; ++s) {
    if (kind != READ && !was_before(now, cell.reads[s])) other = &cell.reads[s].last, past = "read";
    if (kind != ATOMIC && !was_before(now, cell.atomics[s]))
      other = &cell.atomics[s].last, past = "used atomically";
  }
  if (other) {
    tell(now, kind, *other, past, place_of(what, at));
    return false;
  }
  if (kind == WRITE) {
    cell = Cell{};
    cell.write = now.access;
  } else {
    join(now, (kind == READ ? cell.reads : cell.atomics)[now.stream]);
  }
  return true;
}

Allocation* allocation_of(Device& device, uint64_t at, uint64_t bytes) {
  auto found = device.memory.upper_bound(at);
  if (found == device.memory.end()) return nullptr;
  Allocation& a = found->second;
  return at >= a.start && at + bytes <= a.start + a.bytes ? &a : nullptr;
}

Cell* cells_for(uint64_t count) {
  // From the system as zeros, and only what is touched.
  void* cells = calloc(count, sizeof(Cell));
  if (!cells) abort();
  return (Cell*)cells;
}

// From here on every byte has a cell.
void split(Allocation& a) {
  Cell* cells = cells_for(a.bytes);
  for (uint64_t i = 0; i < a.bytes; ++i) cells[i] = a.cells[i / a.unit];
  free(a.cells);
  a.cells = cells;
  a.unit = 1;
}

void access_all(const Doer& now, Kind kind, Allocation& a, uint64_t at, uint64_t bytes) {
  uint64_t first = at - a.start;
  if (a.unit == 4 && (first % 4 != 0 || (bytes % 4 != 0 && first + bytes != a.bytes))) split(a);
  for (uint64_t i = first / a.unit; i * a.unit < first + bytes; ++i)
    if (!access(now, kind, a.cells[i], "device memory,", i * a.unit)) return;
}

[[maybe_unused]] void access_shared(const Doer& now, Kind kind, Block& block, uint64_t at,
                                    uint64_t bytes) {
  for (uint64_t i = at / 4; i * 4 < at + bytes; ++i) {
    Cell& cell = block.cells[i];
    const Access& last = cell.write;
    // What an earlier block has left.
    if (last.launch != now.access.launch || last.block != block.number) cell = Cell{};
    if (kind != WRITE && cell.write.launch == 0) {
      note(place_of("shared memory is read before it is written:", i * 4));
      return;
    }
    if (!access(now, kind, cell, "shared memory,", i * 4)) return;
  }
}

[[maybe_unused]] void of_kernel(Kind kind, const volatile void* pointer, uint64_t bytes) {
  auto& s = schedule();
  Fiber* fiber = s.current;
  if (!fiber) return;
  uint64_t at = (uint64_t)pointer, stack = (uint64_t)fiber->stack;
  if (at >= stack && at < stack + STACK_BYTES) return;
  Block& block = *fiber->block;
  Access mine = {s.launch, (uint16_t)block.number, (uint16_t)fiber->number, block.barriers,
                 fiber->clock};
  Doer now = {*s.device, s.stream, mine, fiber};
  uint64_t shared = (uint64_t)block.shared.data();
  if (at >= shared && at + bytes <= shared + SHARED_BYTES) {
    access_shared(now, kind, block, at - shared, bytes);
  } else if (Allocation* a = allocation_of(*s.device, at, bytes)) {
    access_all(now, kind, *a, at, bytes);
  } else {
    note(std::string(s.kernel) + " " + VERBS[kind] + " an address outside of all allocations");
  }
  if (!s.error.empty()) leave();
}
}  // namespace

Device::~Device() {
  for (auto& each : memory) free(each.second.cells);
}

uint32_t Device::next(unsigned stream, const char* name) {
  static std::atomic<uint32_t> count{0};
  last[stream] = ++count * 2 + stream;
  names[last[stream]] = name;
  return last[stream];
}

void touch(Device& device, unsigned stream, const char* what, uint64_t at, uint64_t bytes,
           bool writes) {
  if (bytes == 0) return;
  Allocation* a = allocation_of(device, at, bytes);
  if (!a) return;
  uint32_t launch = device.next(stream, what);
  Doer now = {device, stream, {launch, 0, 0, 0, 0}, nullptr};
  access_all(now, writes ? WRITE : READ, *a, at, bytes);
}
}  // namespace emu

extern "C" void hps_emu_take(emu::Device* device, unsigned long long at, unsigned long long bytes) {
  emu::Allocation a = {at, bytes, 4, emu::cells_for((bytes + 3) / 4)};
  device->memory[at + bytes] = a;
}

#ifndef EMU_TSAN
// What the compiler calls.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_atomic_thread_fence(int) {}
void __tsan_read_range(void* p, unsigned long n) { emu::of_kernel(emu::READ, p, n); }
void __tsan_write_range(void* p, unsigned long n) { emu::of_kernel(emu::WRITE, p, n); }
#define PLAIN(n)                                                                 \
  void __tsan_read##n(void* p) { emu::of_kernel(emu::READ, p, n); }              \
  void __tsan_write##n(void* p) { emu::of_kernel(emu::WRITE, p, n); }            \
  void __tsan_unaligned_read##n(void* p) { emu::of_kernel(emu::READ, p, n); }    \
  void __tsan_unaligned_write##n(void* p) { emu::of_kernel(emu::WRITE, p, n); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
#define ATOMIC_OF(bits, T)                                                       \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                       \
    emu::of_kernel(emu::ATOMIC, p, bits / 8);                                    \
    return __atomic_load_n(p, __ATOMIC_RELAXED);                                 \
  }                                                                              \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) {                    \
    emu::of_kernel(emu::ATOMIC, p, bits / 8);                                    \
    __atomic_store_n(p, v, __ATOMIC_RELAXED);                                    \
  }                                                                              \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) {                   \
    emu::of_kernel(emu::ATOMIC, p, bits / 8);                                    \
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);                           \
  }                                                                              \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* seen, T v, int, int) { \
    emu::of_kernel(emu::ATOMIC, p, bits / 8);                                    \
    return __atomic_compare_exchange_n(p, seen, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
  }                                                                              \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T seen, T v, int, int) { \
    emu::of_kernel(emu::ATOMIC, p, bits / 8);                                    \
    __atomic_compare_exchange_n(p, &seen, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    return seen;                                                                 \
  }
ATOMIC_OF(32, unsigned)
ATOMIC_OF(64, unsigned long)
}
#endif

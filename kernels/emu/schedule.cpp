// Threads of a launch as fibers of one host thread, in an order that follows from a seed. Barriers and
// masks are checked. Compiled without a sanitizer: only the kernels are looked at.
#include "device.hpp"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#if defined(EMU_TSAN)
#include <sanitizer/tsan_interface.h>
#define TO_FIBER(fiber) __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync)
#define RELEASE(tag) __tsan_release(tag)
#define ACQUIRE(tag) __tsan_acquire(tag)
#else
#define TO_FIBER(fiber) (void)0
#define RELEASE(tag) (void)0
#define ACQUIRE(tag) (void)0
#endif

namespace emu {
namespace {
std::map<std::string, void (*)(const void*)>& kernels() {
  static std::map<std::string, void (*)(const void*)> all;
  return all;
}

// Barriers of the source, in the order in which they were first met.
struct Site { std::string name; const char* file; int line; };
std::mutex sites_lock;
std::vector<Site>& sites() {
  static std::vector<Site> all;
  return all;
}
unsigned site_of(Place place, const char* what) {
  std::lock_guard<std::mutex> held(sites_lock);
  auto& all = sites();
  for (unsigned i = 0; i < all.size(); ++i)
    if (all[i].line == place.line && all[i].file == place.file) return i;
  const char* base = strrchr(place.file, '/');
  std::string name = base ? base + 1 : place.file;
  all.push_back({name + ":" + std::to_string(place.line) + " " + what, place.file, place.line});
  return unsigned(all.size() - 1);
}

uint64_t random_number() {
  uint64_t& x = schedule().random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return x;
}

#ifdef EMU_TSAN
// Every thread of a launch releases it, the host acquires it at the end, and new fibers come after the host.
// Until then no memory is used twice: stacks and shared memory of blocks that have ended stay theirs.
thread_local char launch_end;
thread_local std::vector<std::vector<char>> shared_before;
#endif

__attribute__((noinline)) void go_home(Fiber* fiber) {
  auto& s = schedule();
  if (_setjmp(fiber->jump)) return;
  TO_FIBER(s.sanitizer_home);
  _longjmp(s.home, 1);
}

// A fiber does one launch after another.
void body() {
  auto& s = schedule();
  Fiber* fiber = s.current;
  for (;;) {
    s.entry(s.args);
    for (const Store& store : fiber->stores) __atomic_store_n(store.to, store.value, __ATOMIC_RELAXED);
#ifdef EMU_TSAN
    RELEASE(&launch_end);
#endif
    fiber->state = DONE;
    go_home(fiber);
  }
}

__attribute__((noinline)) void resume(Fiber* fiber) {
  auto& s = schedule();
  s.current = fiber;
  if (!_setjmp(s.home)) {
    TO_FIBER(fiber->sanitizer);
    if (fiber->started) _longjmp(fiber->jump, 1);
    fiber->started = true;
    setcontext(&fiber->context);
  }
  s.current = nullptr;
}

// Whether the planted mistake keeps this thread from waiting here.
bool passes_by(Place place, const char* what, unsigned number, unsigned half) {
  unsigned site = site_of(place, what);
  const Device& device = *schedule().device;
  if (device.barrier != site) return false;
  return device.plant == LEFT_OUT || (device.plant == DIVERGENT && number >= half);
}

// Lets lanes go on that all wait for each other.
bool release_lanes(Block& block, size_t first) {
  bool any = false;
  size_t count = block.fibers.size();
  unsigned waiting_mask = 0;
  for (size_t at = first; at < count && at < first + WARP; ++at) {
    Fiber* asking = block.fibers[at];
    if (asking->state != AT_WARP_OP || asking->mask == waiting_mask) continue;
    bool all = true;
    for (unsigned k = 0; k < WARP && all; ++k) {
      if (!(asking->mask >> k & 1)) continue;
      if (first + k >= count) {
        note("a mask names a lane past the block");
        return any;
      }
      Fiber* lane = block.fibers[first + k];
      if (lane->state == DONE) {
        note("a mask names a lane that has exited");
        return any;
      }
      all = lane->state == AT_WARP_OP && lane->mask == asking->mask && lane->op == asking->op;
    }
    if (!all) {
      waiting_mask = asking->mask;
      continue;
    }
    unsigned mask = asking->mask;
    uint64_t given[WARP] = {};
    uint32_t seen[WARP] = {};
    // Only __syncwarp orders memory; a shuffle does not.
    bool orders = asking->op == SYNC;
    for (unsigned k = 0; k < WARP; ++k) {
      if (!(mask >> k & 1)) continue;
      Fiber* lane = block.fibers[first + k];
      given[k] = lane->given;
      if (!orders) continue;
      lane->seen[k] = ++lane->clock;
      for (unsigned l = 0; l < WARP; ++l)
        if (lane->seen[l] > seen[l]) seen[l] = lane->seen[l];
    }
    for (unsigned k = 0; k < WARP; ++k) {
      if (!(mask >> k & 1)) continue;
      Fiber* lane = block.fibers[first + k];
      memcpy(lane->results, given, sizeof given);
      if (orders) memcpy(lane->seen, seen, sizeof seen);
      lane->state = RUNS;
    }
    any = true;
  }
  return any;
}

// Lets threads go on that have met; whether any does.
bool release(Block& block) {
  bool any = false;
  for (size_t first = 0; first < block.fibers.size(); first += WARP)
    any |= release_lanes(block, first);
  size_t live = 0, waiting = 0;
  const Fiber* one = nullptr;
  for (Fiber* fiber : block.fibers) {
    live += fiber->state != DONE;
    if (fiber->state != AT_BARRIER) continue;
    ++waiting;
    if (one && (one->place.line != fiber->place.line || one->place.file != fiber->place.file))
      note("threads of a block wait at different barriers");
    one = fiber;
  }
  if (live == 0 || waiting != live) return any;
  if (live != block.fibers.size())
    note("a barrier that some threads of the block have not reached: they have exited");
  for (Fiber* fiber : block.fibers) fiber->state = RUNS;
  ++block.barriers;
  return true;
}

// By place of the block in the pool.
Cell* shared_cells(size_t at) {
  static thread_local std::vector<std::vector<Cell>> all;
  if (all.size() <= at) all.resize(at + 1);
  all[at].resize(SHARED_BYTES / 4);
  return all[at].data();
}

// The fibers of this host thread, kept for the next launch: to make one takes longer than to run it.
Fiber* fiber_at(size_t at) {
  static thread_local std::vector<std::unique_ptr<Fiber>> all;
  while (all.size() <= at) {
    all.emplace_back(new Fiber);
    all.back()->stack = (char*)malloc(STACK_BYTES);
    // Not in the fiber: a sanitizer would give each an allocator's memory of its own.
    all.back()->copies.reserve(64);
    all.back()->stores.reserve(16);
  }
  return all[at].get();
}

void make_ready(Fiber* fiber) {
#ifdef EMU_TSAN
  fiber->started = false;
  fiber->sanitizer = __tsan_create_fiber(0);
#endif
  if (fiber->started) return;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = STACK_BYTES;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, body, 0);
}

void start(Block& block, size_t at, unsigned number) {
  auto& s = schedule();
  unsigned threads = s.block.x * s.block.y * s.block.z;
  block.live = true;
  block.number = number;
  block.barriers = 0;
  block.index = {number % s.grid.x, number / s.grid.x % s.grid.y, number / s.grid.x / s.grid.y};
#ifdef EMU_TSAN
  if (!block.shared.empty()) shared_before.push_back(std::move(block.shared));
  at = number;
#endif
  block.shared.assign(SHARED_BYTES, (char)0xa5);
  block.cells = shared_cells(at);
  block.fibers.clear();
  for (unsigned t = 0; t < threads; ++t) {
    Fiber* fiber = fiber_at(at * threads + t);
    make_ready(fiber);
    fiber->state = RUNS;
    fiber->block = &block;
    fiber->number = t;
    fiber->index = {t % s.block.x, t / s.block.x % s.block.y, t / s.block.x / s.block.y};
    fiber->shared_used = 0;
    fiber->copies.clear();
    fiber->stores.clear();
    fiber->group = 0;
    fiber->clock = 0;
    memset(fiber->seen, 0, sizeof fiber->seen);
    block.fibers.push_back(fiber);
  }
}

// Runs threads in any order, until all wait; with preemption only some of them.
void sweep(std::vector<Fiber*>& ready) {
  auto& s = schedule();
  size_t count = ready.size(), limit = s.preempt ? 1 + random_number() % count : count;
  for (size_t i = 0; i < limit && s.error.empty(); ++i) {
    std::swap(ready[i], ready[i + random_number() % (count - i)]);
    if (ready[i]->state == RUNS) resume(ready[i]);
  }
}

void run_blocks(unsigned resident) {
  auto& s = schedule();
  unsigned blocks = s.grid.x * s.grid.y * s.grid.z, next = 0;
  std::vector<Block> pool(resident < blocks ? resident : blocks);
  for (size_t i = 0; i < pool.size(); ++i) start(pool[i], i, next++);
  std::vector<Fiber*> ready;
  while (s.error.empty()) {
    ready.clear();
    for (Block& block : pool)
      for (Fiber* fiber : block.fibers)
        if (block.live && fiber->state == RUNS) ready.push_back(fiber);
    if (!ready.empty()) sweep(ready);
    bool progress = !ready.empty(), live = false;
    for (size_t i = 0; i < pool.size(); ++i) {
      Block& block = pool[i];
      if (!block.live) continue;
      bool done = true;
      for (Fiber* fiber : block.fibers) done &= fiber->state == DONE;
      if (done && next < blocks) start(block, i, next++);
      else if (done) block.live = false;
      else if (release(block)) progress = true;
      live |= block.live;
    }
    if (!live) break;
    if (!progress) note("deadlock: every thread waits for threads that do not come");
  }
  // Those that an error has stopped half way begin anew.
  for (Block& block : pool)
    for (Fiber* fiber : block.fibers)
      if (fiber->state != DONE) fiber->started = false;
#ifdef EMU_TSAN
  ACQUIRE(&launch_end);
  shared_before.clear();
  for (size_t i = 0; i < size_t(next) * s.block.x; ++i) __tsan_destroy_fiber(fiber_at(i)->sanitizer);
#endif
}
}  // namespace

Schedule& schedule() {
  static thread_local Schedule one;
  return one;
}

Kernel::Kernel(const char* name, void (*entry)(const void*)) { kernels()[name] = entry; }

void note(const std::string& what) {
  auto& s = schedule();
  if (s.error.empty()) s.error = what;
}

void leave() {
  Fiber* fiber = schedule().current;
  for (;;) go_home(fiber);
}

void fail(const char* what) {
  note(what);
  leave();
}

uint3e thread_index() { return schedule().current->index; }
uint3e block_index() { return schedule().current->block->index; }
uint3e block_size() { return schedule().block; }
uint3e grid_size() { return schedule().grid; }
unsigned lane() { return schedule().current->number % WARP; }
uint64_t of_lane(unsigned lane) { return schedule().current->results[lane]; }

void maybe_yield() {
  auto& s = schedule();
  if (s.preempt && (random_number() & 255) < s.preempt) go_home(s.current);
}

void* shared(size_t bytes) {
  Fiber* fiber = schedule().current;
  size_t at = (fiber->shared_used + 15) & ~size_t(15);
  if (at + bytes > SHARED_BYTES) fail("more shared memory than 48 KiB");
  fiber->shared_used = at + bytes;
  return fiber->block->shared.data() + at;
}

void begin_copy(Copy copy) {
  Fiber* fiber = schedule().current;
  fiber->copies.push_back({fiber->group, copy});
}

void close_copies() { ++schedule().current->group; }

bool next_copy(unsigned pending, Copy* copy, Place place) {
  Fiber* fiber = schedule().current;
  if (passes_by(place, "wait_for_copies", fiber->number, 128)) return false;
  auto& all = fiber->copies;
  if (all.empty() || all.front().first + pending >= fiber->group) return false;
  *copy = all.front().second;
  all.erase(all.begin());
  return true;
}

void keep_store(Store store) { schedule().current->stores.push_back(store); }

bool next_store(Store* store, Place place) {
  Fiber* fiber = schedule().current;
  auto& all = fiber->stores;
  if (all.empty() || passes_by(place, "fence_stores", fiber->number % WARP, 4)) return false;
  *store = all.front();
  all.erase(all.begin());
  return true;
}

void block_barrier(Place place) {
  Fiber* fiber = schedule().current;
  if (passes_by(place, "__syncthreads", fiber->number, 128)) return;
  fiber->place = place;
  fiber->state = AT_BARRIER;
  char* tag = &fiber->block->tags[fiber->block->barriers & 1];
  RELEASE(tag);
  go_home(fiber);
  ACQUIRE(tag);
  (void)tag;
}

void warp_op(unsigned mask, Op op, uint64_t value, Place place) {
  Fiber* fiber = schedule().current;
  if (op == SYNC && passes_by(place, "__syncwarp", fiber->number % WARP, 8)) return;
  if (!(mask >> (fiber->number % WARP) & 1)) fail("a lane outside its own mask");
  fiber->mask = mask;
  fiber->op = op;
  fiber->given = value;
  fiber->state = AT_WARP_OP;
  if (op == SYNC) RELEASE(&fiber->tag);
  go_home(fiber);
  Fiber** warp = &fiber->block->fibers[fiber->number & ~(WARP - 1)];
  if (op == SYNC)
    for (unsigned k = 0; k < WARP; ++k)
      if (mask >> k & 1) ACQUIRE(&warp[k]->tag);
  (void)warp;
}

// Runs a kernel to its end; what went wrong, or nothing.
static std::string launch(Device& device, unsigned stream, const char* name, unsigned blocks,
                          unsigned threads, const void* args, uint64_t seed, unsigned preempt) {
  auto found = kernels().end();
  if (device.plant == OTHER_KERNEL) found = kernels().find(device.kernel + "_" + name);
  if (found == kernels().end()) found = kernels().find(name);
  if (found == kernels().end()) return "there is no such kernel";
  auto& s = schedule();
  s.device = &device;
  s.kernel = found->first.c_str();
  s.stream = stream;
  s.launch = device.next(stream, name);
  s.grid = {blocks, 1, 1};
  s.block = {threads, 1, 1};
  s.random = seed * 0x9e3779b97f4a7c15ull + 0x1234567;
  s.preempt = preempt;
  s.error.clear();
  s.entry = found->second;
  s.args = args;
#ifdef EMU_TSAN
  s.sanitizer_home = __tsan_get_current_fiber();
#endif
  run_blocks(4);
  return s.error;
}
}  // namespace emu

static int told(const std::string& what, char* error, unsigned long long bytes) {
  if (what.empty()) return 0;
  std::snprintf(error, bytes, "%s", what.c_str());
  return 1;
}

// The calls of src/hbm/emulator.rs. Those that can fail return 1 and write why into `error`.
extern "C" {
emu::Device* hps_emu_open() {
  emu::link_kernels();
  return new emu::Device;
}
void hps_emu_close(emu::Device* device) { delete device; }

void hps_emu_plant(emu::Device* device, unsigned how, unsigned barrier, const char* kernel) {
  device->plant = (emu::Plant)how;
  device->barrier = barrier;
  device->kernel = kernel;
}

int hps_emu_launch(emu::Device* device, unsigned stream, const char* name, unsigned blocks,
                   unsigned threads, const void* args, unsigned long long seed, unsigned preempt,
                   char* error, unsigned long long error_bytes) {
  auto what = emu::launch(*device, stream, name, blocks, threads, args, seed, preempt);
  return told(what, error, error_bytes);
}

// What the host does to memory in a stream's order.
int hps_emu_touch(emu::Device* device, unsigned stream, const char* what, unsigned long long at,
                  unsigned long long bytes, unsigned writes, char* error,
                  unsigned long long error_bytes) {
  emu::schedule().error.clear();
  emu::touch(*device, stream, what, at, bytes, writes != 0);
  return told(emu::schedule().error, error, error_bytes);
}

void hps_emu_order(emu::Device* device, unsigned before, unsigned then) {
  if (before != then) device->after[then] = device->last[before];
}

// Names of the barriers that were met, a line each, in the order of their numbers.
void hps_emu_barriers(char* text, unsigned long long bytes) {
  std::lock_guard<std::mutex> held(emu::sites_lock);
  std::string all;
  for (const auto& site : emu::sites()) all += site.name + "\n";
  std::snprintf(text, bytes, "%s", all.c_str());
}
}

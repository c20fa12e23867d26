// An emulated device: its threads, and what is known of its memory.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_emu.hpp"

namespace emu {
constexpr size_t SHARED_BYTES = 48 << 10;
constexpr size_t STACK_BYTES = 64 << 10;
constexpr unsigned WARP = 32;

// One access to a word. `launch` counts what all devices were given, twice, plus the stream.
struct Access {
  uint32_t launch;
  uint16_t block, thread;
  uint32_t barriers;  // that its block had passed
  uint32_t clock;     // how often its thread had met others of its warp
};

// Accesses that are in no order with each other: those of one thread, of lanes of a warp, of a block
// between two barriers, or of a grid.
enum Who : uint8_t { NOBODY, THREAD, LANES, BLOCK, GRID };
struct Crowd {
  Access last;
  uint32_t lanes;
  Who who;
};

// What has been done to a word: the last write, and what came after it, by stream.
struct Cell {
  Access write;
  Crowd reads[2], atomics[2];
};

// Memory of the device. Words have a cell each; once single bytes are used, every byte has one.
struct Allocation {
  uint64_t start, bytes;
  unsigned unit;  // bytes of a cell
  Cell* cells;
};

// A mistake that is asked for.
enum Plant : unsigned { NOTHING, LEFT_OUT, DIVERGENT, OTHER_KERNEL };

struct Device {
  std::map<uint64_t, Allocation> memory;  // by end
  std::unordered_map<uint32_t, std::string> names;  // of what was given, by launch
  uint32_t last[2] = {0, 0};              // by stream: the last that it was given
  uint32_t after[2] = {0, 0};             // by stream: what it comes after of the other one
  Plant plant = NOTHING;
  unsigned barrier = 0;
  std::string kernel;

  ~Device();
  uint32_t next(unsigned stream, const char* name);
};

enum State { RUNS, AT_BARRIER, AT_WARP_OP, DONE };
struct Block;

// A thread of the device.
struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  bool started = false;
  State state = DONE;
  Block* block;
  unsigned number;
  uint3e index;
  size_t shared_used;
  char* stack = nullptr;
  unsigned mask;
  Op op;
  Place place;
  uint64_t given, results[WARP];
  uint32_t clock, seen[WARP];  // what it comes after: clocks of the lanes of its warp
  std::vector<std::pair<unsigned, Copy>> copies;  // begun and not yet waited for, with their groups
  unsigned group;                                 // that the next copy belongs to
  std::vector<Store> stores;                      // that other blocks do not see yet
  void* sanitizer = nullptr;
  char tag;
};

struct Block {
  uint3e index;
  unsigned number;
  std::vector<Fiber*> fibers;
  std::vector<char> shared;
  Cell* cells;  // of shared memory; what earlier launches have left is forgotten when it is met
  bool live = false;
  uint32_t barriers;
  char tags[2];
};

struct Schedule {
  Device* device = nullptr;
  const char* kernel = "";
  unsigned stream = 0;
  uint32_t launch = 0;
  uint3e grid{}, block{};
  uint64_t random = 1;
  unsigned preempt = 0;
  Fiber* current = nullptr;
  jmp_buf home;
  void* sanitizer_home = nullptr;
  void (*entry)(const void*) = nullptr;
  const void* args = nullptr;
  std::string error;
};
Schedule& schedule();

// The first error is the one that is told.
void note(const std::string& what);
// Leaves the thread for good.
[[noreturn]] void leave();
// What the host does to memory: reads it, or writes it.
void touch(Device& device, unsigned stream, const char* what, uint64_t at, uint64_t bytes,
           bool writes);
}  // namespace emu

// What the kernels see of CUDA when they are compiled as host code. The rest is in schedule.cpp (threads,
// barriers) and races.cpp (who reads and writes what).
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>

#define HPS_EMU 1
#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define HPS_SHARED(T, name, n) T* name = (T*)emu::shared(sizeof(T) * (n))

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct uint3e { unsigned x, y, z; };

namespace emu {
// What lanes of a warp do together.
enum Op { SYNC, BALLOT, SHUFFLE, SHUFFLE_XOR, SHUFFLE_UP, MATCH };

// Where a barrier stands in the source.
struct Place { const char* file; int line; };

uint3e thread_index();
uint3e block_index();
uint3e block_size();
uint3e grid_size();
unsigned lane();
// Memory of the block: each thread that asks in the same order gets the same.
void* shared(size_t bytes);
void block_barrier(Place place);
// Gives `value` and waits for all lanes of the mask; of_lane then says what each of them gave.
void warp_op(unsigned mask, Op op, uint64_t value, Place place);
uint64_t of_lane(unsigned lane);
// A place where the schedule may go on with another thread.
void maybe_yield();
// In kernels.cpp.
void link_kernels();
// Ends the launch.
void fail(const char* what);

// A copy to shared memory that the thread has begun. It is done when the thread waits for its group: no
// sooner, so that what reads it before finds other bits.
struct Copy {
  void* to;
  const void* from;
  void (*run)(void* to, const void* from);
};
void begin_copy(Copy copy);
void close_copies();
// The next copy of all groups but the last `pending`; false: there is none.
bool next_copy(unsigned pending, Copy* copy, Place place);

// A word for other blocks. They see it once the thread has fenced its stores, or the launch has ended: no sooner.
struct Store { unsigned* to; unsigned value; };
void keep_store(Store store);
// The next word that is kept back; false: there is none, or the fence is left out.
bool next_store(Store* store, Place place);
inline void store_now(unsigned* to, unsigned value) { keep_store({to, value}); }

template <class V> inline void copy_ahead(V* to, const V* from) {
  // What lay there is lost from here on.
  V lost;
  memset(&lost, 0xa5, sizeof lost);
  *to = lost;
  begin_copy({to, from, [](void* to, const void* from) { *(V*)to = *(const V*)from; }});
}

template <class T> inline uint64_t bits(T v) {
  static_assert(sizeof(T) <= 8, "a register, or two");
  uint64_t r = 0;
  memcpy(&r, &v, sizeof v);
  return r;
}
template <class T> inline T unbits(uint64_t r) {
  T v;
  memcpy(&v, &r, sizeof v);
  return v;
}

// A kernel by name, called with the one structure that it takes.
struct Kernel {
  Kernel(const char* name, void (*entry)(const void*));
};
template <auto F> struct Entry;
template <class A, void (*F)(A)> struct Entry<F> {
  // The structure is the launcher's, and no memory of the device.
  __attribute__((no_sanitize("thread"))) static void call(const void* args) { F(*(const A*)args); }
};
}  // namespace emu

#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())
#define blockDim (emu::block_size())
#define gridDim (emu::grid_size())
#define EMU_KERNEL(k) static emu::Kernel emu_kernel_##k(#k, &emu::Entry<&k>::call)
#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(EMU_HERE) { emu::block_barrier({file, line}); }
inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_HERE) {
  emu::warp_op(mask, emu::SYNC, 0, {file, line});
}

namespace emu {
inline void fence_stores(EMU_HERE) {
  Store store;
  while (next_store(&store, {file, line})) __atomic_store_n(store.to, store.value, __ATOMIC_RELAXED);
}

template <int N> inline void wait_for_copies(EMU_HERE) {
  Copy copy;
  while (next_copy(N, &copy, {file, line})) copy.run(copy.to, copy.from);
}
}  // namespace emu

inline unsigned __ballot_sync(unsigned mask, int p) {
  emu::warp_op(mask, emu::BALLOT, p != 0, {});
  unsigned r = 0;
  for (unsigned k = 0; k < 32; ++k)
    if (mask >> k & 1) r |= unsigned(emu::of_lane(k)) << k;
  return r;
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }

template <class T> inline T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  emu::warp_op(mask, emu::SHUFFLE, emu::bits(v), {});
  unsigned k = (emu::lane() & ~unsigned(width - 1)) + (unsigned(source) & unsigned(width - 1));
  if (!(mask >> k & 1)) emu::fail("__shfl_sync reads a lane outside the mask");
  return emu::unbits<T>(emu::of_lane(k));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int x) {
  emu::warp_op(mask, emu::SHUFFLE_XOR, emu::bits(v), {});
  unsigned k = emu::lane() ^ unsigned(x);
  if (k > 31 || !(mask >> k & 1)) emu::fail("__shfl_xor_sync reads a lane outside the mask");
  return emu::unbits<T>(emu::of_lane(k));
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by) {
  emu::warp_op(mask, emu::SHUFFLE_UP, emu::bits(v), {});
  unsigned lane = emu::lane();
  return emu::unbits<T>(emu::of_lane(lane >= by ? lane - by : lane));
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T v) {
  emu::warp_op(mask, emu::MATCH, emu::bits(v), {});
  unsigned r = 0;
  for (unsigned k = 0; k < 32; ++k)
    if ((mask >> k & 1) && emu::of_lane(k) == emu::bits(v)) r |= 1u << k;
  return r;
}

template <class T> inline T atomicAdd(T* p, T v) {
  static_assert(std::is_integral<T>::value, "");
  emu::maybe_yield();
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
// The GPU has it, the kernels may not use it: the order of such a sum is the schedule's.
inline float atomicAdd(float*, float) {
  emu::fail("atomicAdd of floats: a sum in no order");
  return 0.0f;
}
template <class T> inline T atomicCAS(T* p, T compare, T v) {
  emu::maybe_yield();
  T seen = compare;
  __atomic_compare_exchange_n(p, &seen, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  emu::maybe_yield();
  return seen;
}

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline unsigned __float_as_uint(float x) { return (unsigned)emu::bits(x); }
inline float __uint_as_float(unsigned u) { return emu::unbits<float>(u); }

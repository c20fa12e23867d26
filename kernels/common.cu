// What all kernels share: types, the status record, the arguments. No includes: NVRTC has none, and
// the emulator brings its own.
//
// Every kernel takes one argument structure by value. The host twin of this page is
// src/hbm/args.rs: both sides assert the sizes.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef HPS_EMU
#define HPS_SHARED(T, name, n) __shared__ T name[n]
#define EMU_KERNEL(name)
#endif

// Copies of 4 or 16 bytes to shared memory that go on while the thread does something else. `close_copies` ends
// a group of them; `wait_for_copies<N>` waits for all groups but the last N. Other threads see them behind a
// barrier that comes after the wait.
#ifdef HPS_EMU
using emu::close_copies;
using emu::copy_ahead;
using emu::wait_for_copies;
#else
template <class V>
__device__ __forceinline__ void copy_ahead(V* to, const V* from) {
#if __CUDA_ARCH__ >= 800
  u32 at;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(at) : "l"(to));
  if (sizeof(V) == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
#else
  *to = *from;
#endif
}
__device__ __forceinline__ void close_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}
#endif

// A word that other threads of this launch may be changing.
template <class T>
__device__ __forceinline__ T load_now(const T* p) {
#ifdef HPS_EMU
  return __atomic_load_n(p, __ATOMIC_RELAXED);
#else
  return *(volatile const T*)p;
#endif
}

// A word that threads of other blocks read by load_now. `fence_stores` stands between it and the atomic that
// tells of it, `fence_loads` between an atomic that is told and the loads.
#ifdef HPS_EMU
using emu::fence_stores;
using emu::store_now;
__device__ __forceinline__ void fence_loads() {}
#else
__device__ __forceinline__ void store_now(u32* p, u32 value) { *(volatile u32*)p = value; }
__device__ __forceinline__ void fence_stores() { __threadfence(); }
__device__ __forceinline__ void fence_loads() { __threadfence(); }
#endif

// A kernel of blocks of THREADS threads, of which so many fit on a multiprocessor: told how many registers it
// may take, the compiler does not spill for the sake of more blocks.
#define HPS_KERNEL_OF(blocks) extern "C" __global__ void __launch_bounds__(THREADS, blocks)
#define HPS_KERNEL HPS_KERNEL_OF(4)

// No row: what an index holds where there is no key.
#define NO_ROW 0xffffffffu
// No key. The key of this value lives in a cell of its own behind the last sector.
#define NO_KEY 0xffffffffffffffffull
#define THREADS 256
#define WARPS (THREADS / 32)
// Items of a block in a pass of the sort, and digits of a pass.
#define SORT_ITEMS 4096
#define DIGITS 256
// A key that a call names LONG_RUN times is summed by whole blocks; one that it names GIANT_RUN times, by the first
// blocks of the grid, which do nothing else. (Smaller on the emulator: its batches are.)
#define LONG_RUN 256
#ifdef HPS_EMU
#define GIANT_RUN (2 * LONG_RUN)
#else
#define GIANT_RUN (16 * LONG_RUN)
#endif
// Marks a position whose gradient does not count. Positions lie below 2^30.
#define LEFT_OUT 0x80000000u
#define FULL_WARP 0xffffffffu

// Why a call was refused.
#define REFUSED_KEY 1u
#define REFUSED_GRADIENT 2u
#define REFUSED_ROW 3u
#define REFUSED_POSITION 4u

// Stays on the device until the host asks. `call` is the first refused call; while it is not 0 no
// later call changes anything.
struct Status {
  u64 call;
  u64 key;
  u32 reason;
  u32 position;
  u64 refused;  // positions of that call that were refused
  u64 skipped;  // positions left out since the table was made: gradients that are not finite
  u64 packed;   // rows of the last pack
  u64 spare[2];
};
static_assert(sizeof(Status) == 64, "the host reads it");

// One index: `sectors` of two entries {key, row}, and the cell of NO_KEY behind them.
struct Entry {
  u64 key;
  u32 row;
  u32 spare;
};
static_assert(sizeof(Entry) == 16, "two fill a sector of 32 bytes");

struct IndexArgs {
  Status* status;
  u64 call;
  Entry* entries;
  u64 sectors;
  const u64* keys;
  const u32* rows;
  u64* counts;  // inserted, failed
  u64* failed;  // keys, [failed_max]
  u64 failed_max;
  u32* found;      // rows_of: row by position
  u32* long_count; // rows_of: three words set to 0
  u32 n;
  u32 rows_max;
};
static_assert(sizeof(IndexArgs) == 96, "as in args.rs");

struct RowsArgs {
  Status* status;
  u64 call;
  const Entry* entries;
  u64 sectors;
  const u64* keys;      // get
  const u32* rows;      // place, pack
  const u64* count;     // pack: how many of `rows` there are, on the device; else null
  float* arena;         // [rows_max, stride]
  float* packed;        // [n, width]
  u8* dirty;            // [rows_max]
  u32 n;
  u32 rows_max;
  u32 stride;
  u32 width;
};
static_assert(sizeof(RowsArgs) == 96, "as in args.rs");

struct SortArgs {
  const Status* status;
  u64 call;
  const void* keys_in;   // u32, or u64 where keys are split among devices
  void* keys_out;
  const u32* positions_in;  // null: 0, 1, 2, ...
  u32* positions_out;
  u32* counts;  // [DIGITS, blocks]
  u32* totals;  // [DIGITS]
  const u8* dirty;
  u64* ends;    // split: end of each part, [parts]; pack: rows packed
  u32 n;
  u32 blocks;
  u32 shift;
  u32 parts;
};
static_assert(sizeof(SortArgs) == 96, "as in args.rs");

struct UpdateArgs {
  Status* status;
  u64 call;
  const u32* rows;       // sorted, [n]
  u32* positions;        // [n]; with LEFT_OUT where a gradient is known not to be finite
  u32* looked_at;        // [n], scratch: the same of long runs whose gradients have been looked at
  const u64* keys;       // [n], in the caller's order
  const float* gradients;  // [n, dim]
  float* arena;
  u8* dirty;
  u32* long_count;       // [3]: giant runs, other long runs, positions that are flagged
  u32* long_starts;      // [n / LONG_RUN]: giant runs from the front, the others from the back
  float* long_sums;      // [n / LONG_RUN, dim]
  u32* long_extra;       // [n / LONG_RUN, 2]: where it ends, how many words of its sum are stored
  const u32* shows;      // [n] or null
  const u32* clicks;
  u32 n;
  u32 dim;
  u32 stride;
  u32 metadata_at;       // word of the row where the metadata columns begin
  u32 columns;           // bits: show 1, click 2, count 4, last step 8
  u32 step;
  u32 skip;              // leave positions out whose gradient is not finite
  float lr;
  float momentum;
  float epsilon;
  float beta1;
  float beta2;
  float ftrl_beta;
  float lambda1;
  float lambda2;
  u32 looks;             // each lane sees all that it needs to say itself whether a gradient is finite
};
static_assert(sizeof(UpdateArgs) == 184, "as in args.rs");

struct MergeArgs {
  Status* status;
  u64 call;
  const u32* positions;  // [n]
  const float* from;     // [n, width]
  float* to;             // [n, width]
  u32 n;
  u32 width;
};
static_assert(sizeof(MergeArgs) == 48, "as in args.rs");

// The bijection that orders keys (units.rs).
__device__ __forceinline__ u64 mix64(u64 x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x ^ (x >> 32);
}

// Where a key's probing begins. Another mix than mix64, whose high bits name the owner of a key.
__device__ __forceinline__ u64 slot_hash(u64 x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

// Whether another call was refused: then this one does nothing. (A recorded one may have a number below it.) A
// refusal by a kernel of this very call counts too where `own` is set: what changes rows comes after what
// looks keys up. It is not to be set in a kernel that refuses: lanes of a warp would see it at different times.
__device__ __forceinline__ bool is_refused(const Status* status, u64 call, bool own) {
  u64 first = load_now(&status->call);
  return first != 0 && (own || first != call);
}

// Whether a kernel before this one has refused this very call for a key.
__device__ __forceinline__ bool is_refused_for_a_key(const Status* status, u64 call) {
  return load_now(&status->call) == call && load_now(&status->reason) == REFUSED_KEY;
}

// Refuses this call. The first thread that does says which key it was.
__device__ __forceinline__ void refuse(Status* status, u64 call, u32 reason, u64 key, u32 position) {
  if (atomicCAS(&status->call, (u64)0, call) == 0) {
    status->key = key;
    status->position = position;
    // By an atomic: other blocks of the same launch may look at it. It is 0 where no call is refused.
    atomicCAS(&status->reason, 0u, reason);
  }
  atomicAdd(&status->refused, (u64)1);
}

__device__ __forceinline__ bool is_finite(float x) {
  return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

__device__ __forceinline__ bool is_finite(float4 x) {
  return is_finite(x.x) && is_finite(x.y) && is_finite(x.z) && is_finite(x.w);
}

// Arithmetic that is rounded after every operation and never fused, whatever the compiler's options.
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float sub(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float quot(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }

__device__ __forceinline__ u32 clamp_to_u32(u64 x) { return x > 0xffffffffull ? 0xffffffffu : (u32)x; }

// What changes no number that is added to it, not even -0.
__device__ __forceinline__ void nothing(float& x) { x = -0.0f; }
__device__ __forceinline__ void nothing(float4& x) { x = make_float4(-0.0f, -0.0f, -0.0f, -0.0f); }

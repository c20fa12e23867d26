// Are gradients finite, and the sums of keys that are named very often: what update.cu builds on.
//
// Shapes and host twin: as update.cu. Geometry: a warp for 32 gradients, or a thread block for each long run
// and 8 of its columns. Memory order: shared memory between barriers, asynchronous copies behind a wait and a barrier;
// words of a sum are stored, fenced and counted, and who counts the last one reads all. Sums rise with the position.

// Whether a gradient is not finite, looked at by a warp.
__device__ __forceinline__ bool is_bad(const float* gradient, u32 dim) {
  bool bad = false;
  for (u32 c = threadIdx.x & 31; c < dim; c += 32) bad |= !is_finite(gradient[c]);
  return __any_sync(FULL_WARP, bad);
}

// check_gradients: refuses the call if a gradient is not finite. Over the caller's order.
HPS_KERNEL check_gradients(UpdateArgs a) {
  if (is_refused(a.status, a.call, false) || is_refused_for_a_key(a.status, a.call)) return;
  u64 warps = (u64)gridDim.x * (blockDim.x / 32);
  for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; i < a.n; i += warps) {
    bool bad = is_bad(a.gradients + i * a.dim, a.dim);
    if (bad && (threadIdx.x & 31) == 0)
      refuse(a.status, a.call, REFUSED_GRADIENT, a.keys[i], (u32)i);
  }
}
EMU_KERNEL(check_gradients);

// Looks at the gradients of up to 32 places, four at a time, by a warp. Its lane k gives the position of the k-th
// place, and gets it flagged if that gradient is not finite.
__device__ __forceinline__ u32 look_at_places(const UpdateArgs& a, u32 position, u32 places) {
  u32 lane = threadIdx.x & 31;
  for (u32 k = 0; k < places; k += 4) {
    const float* from[4];
    bool bad[4] = {};
#pragma unroll
    for (u32 u = 0; u < 4; ++u)
      from[u] = a.gradients + (u64)__shfl_sync(FULL_WARP, position, k + u < places ? k + u : k) * a.dim;
    for (u32 c = lane; c < a.dim; c += 32) {
      float held[4];
#pragma unroll
      for (u32 u = 0; u < 4; ++u) held[u] = from[u][c];
#pragma unroll
      for (u32 u = 0; u < 4; ++u) bad[u] |= !is_finite(held[u]);
    }
#pragma unroll
    for (u32 u = 0; u < 4; ++u)
      if (__any_sync(FULL_WARP, bad[u]) && lane == k + u) position |= LEFT_OUT;
  }
  return position;
}

// Looks at the gradients of places below `end`, 32 a warp: `thread` is the first of a thread's places, `threads` how
// many threads look. Each place is given to `keep`, with its position.
template <class Keep>
__device__ __forceinline__ void look_at_all(const UpdateArgs& a, u32 thread, u32 threads, u32 end, Keep keep) {
  u32 lane = threadIdx.x & 31;
  for (u32 p = thread - lane; p < end; p += threads) {
    u32 places = end - p < 32 ? end - p : 32, own = lane < places ? a.positions[p + lane] : 0;
    u32 position = look_at_places(a, own, places);
    if (lane < places) keep(p + lane, position);
  }
}

// flag_gradients: positions of gradients that are not finite are flagged, and counted.
HPS_KERNEL flag_gradients(UpdateArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  look_at_all(a, thread, threads, a.n, [&](u32 place, u32 position) {
    if (!(position & LEFT_OUT)) return;
    a.positions[place] = position;
    atomicAdd(&a.long_count[2], 1u);
  });
}
EMU_KERNEL(flag_gradients);

// find_long: lists where runs of LONG_RUN places and more begin, giant ones from the front and the others from
// the back. The order among them is no matter: each run is a row of its own.
HPS_KERNEL find_long(UpdateArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i + LONG_RUN <= a.n; i += stride) {
    u32 row = a.rows[i];
    if (i > 0 && a.rows[i - 1] == row) continue;
    if (a.rows[i + LONG_RUN - 1] != row) continue;
    u64 low = i + LONG_RUN - 1, high = a.n;  // the last place of the run lies in [low, high)
    while (high - low > 1) {
      u64 middle = low + (high - low) / 2;
      if (a.rows[middle] == row) low = middle; else high = middle;
    }
    bool giant = high - i >= GIANT_RUN;
    u32 before = atomicAdd(&a.long_count[giant ? 0 : 1], 1u);
    u32 run = giant ? before : a.n / LONG_RUN - 1 - before;
    a.long_starts[run] = (u32)i;
    a.long_extra[2 * (u64)run] = (u32)high;
    a.long_extra[2 * (u64)run + 1] = 0;
  }
}
EMU_KERNEL(find_long);

// Places that are staged at a time, how many such slots there are, and columns of a run that a block sums.
#define STAGED 256
#define SLOTS 5
#define COLUMNS 8
#define SLOT_WORDS (STAGED * COLUMNS)

// Which runs are long, once find_long has listed them.
struct LongRuns {
  const UpdateArgs& a;
  u32 giants, count;

  __device__ __forceinline__ LongRuns(const UpdateArgs& args) : a(args) {
    giants = load_now(&a.long_count[0]);
    count = giants + load_now(&a.long_count[1]);
  }

  // Parts of each one: blocks that sum it.
  __device__ __forceinline__ u32 parts() const { return (a.dim + COLUMNS - 1) / COLUMNS; }

  // The number of the k-th one; giant ones come first.
  __device__ __forceinline__ u32 at(u32 k) const {
    return k < giants ? k : a.n / LONG_RUN - 1 - (k - giants);
  }
};

// What a thread of all warps but the first copies into a slot: which gradients.
template <class V>
struct Stage {
  static constexpr u32 lanes = sizeof(V) / 4, each = COLUMNS / lanes, all = STAGED * each;
  static constexpr u32 loaders = THREADS - 32, rounds = (all + loaders - 1) / loaders;
  u32 at[rounds];

  // Whatever lies beside the run is read at its last place: what is in flight here must not wait for a branch.
  __device__ __forceinline__ void look(const u32* positions, u32 begin, u32 end) {
#pragma unroll
    for (u32 r = 0; r < rounds; ++r) {
      u32 place = begin + (threadIdx.x - 32 + r * loaders) / each;
      at[r] = positions[place < end ? place : end - 1];
    }
  }

  __device__ __forceinline__ void copy(const UpdateArgs& a, float* slot, u32 begin, u32 end,
                                       u32 column) const {
#pragma unroll
    for (u32 r = 0; r < rounds; ++r) {
      u32 k = threadIdx.x - 32 + r * loaders;
      if (k >= all) continue;
      V* to = (V*)slot + k;
      const float* from = a.gradients + (u64)at[r] * a.dim + column;
      bool out = begin + k / each >= end || column + k % each * lanes >= a.dim;
      if (out || (at[r] & LEFT_OUT)) nothing(*to);
      else copy_ahead(to, (const V*)from + k % each);
    }
  }
};

// Adds a column of a slot. A part of it is written out: the compiler reads as far ahead as it has registers for.
__device__ __forceinline__ float add_slot(float sum, const float* column) {
  constexpr u32 part = STAGED / 2;
#pragma unroll 1
  for (u32 from = 0; from < STAGED; from += part, column += part * COLUMNS) {
    float held[part];
#pragma unroll
    for (u32 k = 0; k < part; ++k) held[k] = column[k * COLUMNS];
#pragma unroll
    for (u32 k = 0; k < part; ++k) sum = add(sum, held[k]);
  }
  return sum;
}

// The sum of 8 columns of a run: warp 0 adds what the other warps have staged, while they stage what
// comes next. Threads below COLUMNS have the sums.
template <class V>
__device__ __forceinline__ float sum_run(const UpdateArgs& a, const u32* positions, float* slots,
                                         u32 begin, u32 end, u32 column) {
  constexpr u32 together = sizeof(V) == 16 ? SLOTS - 1 : 1;
  u32 tiles = (end - begin + STAGED - 1) / STAGED;
  bool stages = threadIdx.x >= 32;
  Stage<V> next;
  if (stages) {
    // All slots but one, as many at a time as there are registers for.
#pragma unroll
    for (u32 s = 0; s < SLOTS - 1; s += together) {
      Stage<V> first[together];
#pragma unroll
      for (u32 u = 0; u < together; ++u)
        first[u].look(positions, begin + (s + u) * STAGED, end);
#pragma unroll
      for (u32 u = 0; u < together; ++u) {
        if (s + u < tiles)
          first[u].copy(a, slots + (s + u) * SLOT_WORDS, begin + (s + u) * STAGED, end, column);
        close_copies();
      }
    }
    next.look(positions, begin + (SLOTS - 1) * STAGED, end);
  }
  float sum = -0.0f;
  u32 full = 0, free = SLOTS - 1;
  for (u32 t = 0; t < tiles; ++t) {
    if (stages) wait_for_copies<SLOTS - 2>();
    __syncthreads();
    if (stages) {
      if (t + SLOTS - 1 < tiles)
        next.copy(a, slots + free * SLOT_WORDS, begin + (t + SLOTS - 1) * STAGED, end, column);
      close_copies();
      next.look(positions, begin + (t + SLOTS) * STAGED, end);
    } else if (threadIdx.x < COLUMNS) {
      sum = add_slot(sum, slots + full * SLOT_WORDS + threadIdx.x);
    }
    free = full;
    full = full + 1 < SLOTS ? full + 1 : 0;
  }
  return sum;
}

// What a block takes: parts of giant runs, or else parts of other long runs, and short ones. Of a giant run a part
// takes as long as the whole rest of a launch.
struct Share {
  u32 block, blocks;  // which of how many that take the same
  u64 first, end;     // of the parts of all long runs, giant ones first
  bool is_giant;

  __device__ __forceinline__ Share(const LongRuns& longs) {
    u32 parts = longs.parts(), most = gridDim.x / 2;
    u64 giant_parts = (u64)longs.giants * parts;
    u32 giants = giant_parts < most ? (u32)giant_parts : most;
    is_giant = blockIdx.x < giants;
    block = is_giant ? blockIdx.x : blockIdx.x - giants;
    blocks = is_giant ? giants : gridDim.x - giants;
    // One block alone takes all.
    first = is_giant || giants == 0 ? 0 : giant_parts;
    end = is_giant ? giant_parts : (u64)longs.count * parts;
  }
};

// Shared memory of a block that works on long runs. One array, and so one address to hold.
struct Staging {
  float* slots;  // then the sums of a whole run

  // Shows and clicks.
  __device__ __forceinline__ u64* metadata() const { return (u64*)(slots + SLOTS * SLOT_WORDS); }
  // Which run this block has ended, whether a sum is not finite, positions that count.
  __device__ __forceinline__ u32* words() const { return (u32*)(metadata() + 2); }
};

__device__ __forceinline__ Staging staging() {
  HPS_SHARED(float4, all, SLOTS * SLOT_WORDS / 4 + 2);
  return Staging{(float*)all};
}
static_assert(SLOTS * SLOT_WORDS >= 8192, "the slots hold the sums of the widest row");

// A long run, as one block sees it.
template <class V>
struct LongRun {
  const UpdateArgs& a;
  Staging shared;
  const u32* positions;
  u32 begin, end;
  u32* sums;  // [dim], other blocks write them, too

  // One part of the sum. Whether this thread has stored the last word of all.
  __device__ __forceinline__ bool sum_part(u32 column, u32* stored) const {
    float sum = sum_run<V>(a, positions, shared.slots, begin, end, column);
    if (threadIdx.x >= COLUMNS || column + threadIdx.x >= a.dim) return false;
    store_now(&sums[column + threadIdx.x], __float_as_uint(sum));
    fence_stores();
    bool is_last = atomicAdd(stored, 1u) + 1 == a.dim;
    fence_loads();
    return is_last;
  }

  // Brings the sums to shared memory; whether all of them are finite.
  __device__ __forceinline__ bool bring() const {
    if (threadIdx.x == 0) shared.words()[1] = shared.words()[2] = 0, shared.metadata()[0] = shared.metadata()[1] = 0;
    __syncthreads();
    for (u32 c = threadIdx.x; c < a.dim; c += THREADS) {
      shared.slots[c] = __uint_as_float(load_now(&sums[c]));
      if (!is_finite(shared.slots[c])) atomicAdd(&shared.words()[1], 1u);
    }
    __syncthreads();
    return shared.words()[1] == 0;
  }

  // Looks at each gradient. Positions with flags are in memory of their own: other blocks read them without.
  __device__ __forceinline__ void look() {
    look_at_all(a, begin + threadIdx.x, THREADS, end,
                [&](u32 place, u32 position) { a.looked_at[place] = position; });
    positions = a.looked_at;
    __syncthreads();
  }

  // Counts positions, which may be all, shows and clicks; in shared memory behind the next barrier.
  __device__ __forceinline__ void count(bool all) const {
    if (all && !a.shows && !a.clicks) {
      if (threadIdx.x == 0) shared.words()[2] = end - begin;
      return;
    }
    u32 counted = 0;
    u64 shows = 0, clicks = 0;
    for (u32 p = begin + threadIdx.x; p < end; p += THREADS) {
      u32 position = positions[p];
      if (position & LEFT_OUT) continue;
      ++counted;
      if (a.shows) shows += a.shows[position];
      if (a.clicks) clicks += a.clicks[position];
    }
    atomicAdd(&shared.words()[2], counted);
    if (shows) atomicAdd(&shared.metadata()[0], shows);
    if (clicks) atomicAdd(&shared.metadata()[1], clicks);
  }
};

// Sums and steps of long runs: a block for each 8 columns of one; the block that ends the last part of a run
// takes the step. Gradients that are not finite make a sum that is not: unless all have been looked at already, it is
// found by that, and the run is summed again. `step` is called by all threads, with the places where the run begins
// and ends; its sums and what was counted are then in `shared`.
template <class V, class StepOf>
__device__ __forceinline__ void take_long_runs(const LongRuns& longs, const Staging& shared, const Share& share,
                                               StepOf step) {
  const UpdateArgs& a = longs.a;
  u32 parts = longs.parts();
  if (threadIdx.x == 0) shared.words()[0] = NO_ROW;
  for (u64 item = share.first + share.block; item < share.end; item += share.blocks) {
    u32 run = longs.at((u32)(item / parts)), column = (u32)(item % parts) * COLUMNS;
    u32* extra = a.long_extra + 2 * (u64)run;
    LongRun<V> one{a, shared, a.positions, a.long_starts[run], extra[0], (u32*)a.long_sums + (u64)run * a.dim};
    // Once, or once more for all columns. Barriers of sum_part lie between a word that is read and the next one.
    bool again = false, ends = true;
    for (;;) {
      bool is_last = one.sum_part(column, &extra[1]);
      if (!again) {
        if (is_last) shared.words()[0] = run;
        __syncthreads();
        ends = shared.words()[0] == run;
        if (!ends) break;
      } else if (column + COLUMNS < a.dim) {
        column += COLUMNS;
        __syncthreads();
        continue;
      }
      if (one.bring() || again || !a.skip || !a.looks) break;
      one.look();
      again = true;
      column = 0;
    }
    if (!ends) continue;
    one.count(!again && (a.looks || load_now(&a.long_count[2]) == 0));
    __syncthreads();
    step(one.begin, one.end);
    // The slots are free, and what was counted has been read.
    __syncthreads();
  }
}

// What comes before update: are gradients finite, and the sums of keys that are named very often.
//
// Shapes and host twin: as update.cu. Geometry: a warp a gradient, or a thread block for each long run
// and 8 of its columns. Memory order: shared memory between barriers; sums rise with the position.

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

// flag_gradients: flags[p] = whether the gradient of sorted place p is not finite.
HPS_KERNEL flag_gradients(UpdateArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u64 warps = (u64)gridDim.x * (blockDim.x / 32);
  for (u64 p = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32; p < a.n; p += warps) {
    bool bad = is_bad(a.gradients + (u64)a.positions[p] * a.dim, a.dim);
    if ((threadIdx.x & 31) == 0) a.flags[p] = bad;
  }
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
    u32* extra = a.long_extra + 5 * (u64)run;
    extra[0] = extra[1] = extra[2] = extra[4] = 0;
    extra[3] = (u32)high;
  }
}
EMU_KERNEL(find_long);

// Which runs are long, once find_long has listed them.
struct LongRuns {
  const UpdateArgs& a;
  u32 giants, count;

  __device__ __forceinline__ LongRuns(const UpdateArgs& args) : a(args) {
    giants = load_now(&a.long_count[0]);
    count = giants + load_now(&a.long_count[1]);
  }

  // The number of the k-th one; giant ones come first.
  __device__ __forceinline__ u32 at(u32 k) const {
    return k < giants ? k : a.n / LONG_RUN - 1 - (k - giants);
  }
};

// flag_long: flag_gradients, for the places of long runs whose sum is not finite. Each run begins with another
// warp, so that short ones do not all fall to the first.
HPS_KERNEL flag_long(UpdateArgs a) {
  if (is_refused(a.status, a.call, true) || load_now(&a.long_count[2]) == 0) return;
  LongRuns longs(a);
  u32 warps = gridDim.x * (blockDim.x / 32);
  u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  for (u32 k = 0; k < longs.count; ++k) {
    u32 run = longs.at(k);
    if (a.long_extra[5 * (u64)run + 4] == 0) continue;
    u32 end = a.long_extra[5 * (u64)run + 3];
    for (u64 p = (u64)a.long_starts[run] + (warp + k * 311) % warps; p < end; p += warps) {
      bool bad = is_bad(a.gradients + (u64)a.positions[p] * a.dim, a.dim);
      if ((threadIdx.x & 31) == 0) a.flags[p] = bad;
    }
  }
}
EMU_KERNEL(flag_long);

// Places that are staged at a time, how many such slots there are, and columns of a run that a block sums.
#define STAGED 256
#define SLOTS 5
#define COLUMNS 8
#define SLOT_WORDS (STAGED * COLUMNS)

// What a thread of all warps but the first copies into a slot: which gradients.
template <class V>
struct Stage {
  static constexpr u32 lanes = sizeof(V) / 4, each = COLUMNS / lanes, all = STAGED * each;
  static constexpr u32 loaders = THREADS - 32, rounds = (all + loaders - 1) / loaders;
  u32 at[rounds];

  __device__ __forceinline__ void look(const UpdateArgs& a, u32 begin, u32 end, u32 column,
                                       bool flagged) {
#pragma unroll
    for (u32 r = 0; r < rounds; ++r) {
      u32 k = threadIdx.x - 32 + r * loaders, place = begin + k / each;
      bool out = k >= all || place >= end || column + k % each * lanes >= a.dim;
      at[r] = NO_ROW;
      if (!out) {
        u32 position = a.positions[place], flag = flagged ? a.flags[place] : 0;
        at[r] = flag ? NO_ROW : position;
      }
    }
  }

  __device__ __forceinline__ void copy(const UpdateArgs& a, float* slot, u32 column) const {
#pragma unroll
    for (u32 r = 0; r < rounds; ++r) {
      u32 k = threadIdx.x - 32 + r * loaders;
      V* to = (V*)slot + k;
      const float* from = a.gradients + (u64)at[r] * a.dim + column;
      if (k >= all) continue;
      if (at[r] == NO_ROW) nothing(*to);
      else copy_ahead(to, (const V*)from + k % each);
    }
  }
};

// Adds a column of a slot. What comes next is read while this is added.
template <u32 ahead>
__device__ __forceinline__ float add_slot(float sum, const float* column) {
  float now[ahead], next[ahead];
#pragma unroll
  for (u32 u = 0; u < ahead; ++u) now[u] = column[u * COLUMNS];
#pragma unroll 2
  for (u32 k = ahead; k <= STAGED; k += ahead) {
    if (k < STAGED) {
#pragma unroll
      for (u32 u = 0; u < ahead; ++u) next[u] = column[(k + u) * COLUMNS];
    }
#pragma unroll
    for (u32 u = 0; u < ahead; ++u) sum = add(sum, now[u]);
#pragma unroll
    for (u32 u = 0; u < ahead; ++u) now[u] = next[u];
  }
  return sum;
}

// The sum of 8 columns of a run: warp 0 adds what the other warps have staged, while they stage what
// comes next. Threads below COLUMNS have the sums.
template <class V>
__device__ __forceinline__ float sum_run(const UpdateArgs& a, float* slots, u32 begin, u32 end,
                                         u32 column, bool flagged) {
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
        first[u].look(a, begin + (s + u) * STAGED, end, column, flagged);
#pragma unroll
      for (u32 u = 0; u < together; ++u) {
        if (s + u < tiles) first[u].copy(a, slots + (s + u) * SLOT_WORDS, column);
        close_copies();
      }
    }
    next.look(a, begin + (SLOTS - 1) * STAGED, end, column, flagged);
  }
  float sum = -0.0f;
  u32 full = 0, free = SLOTS - 1;
  for (u32 t = 0; t < tiles; ++t) {
    if (stages) wait_for_copies<SLOTS - 2>();
    __syncthreads();
    if (stages) {
      if (t + SLOTS - 1 < tiles) next.copy(a, slots + free * SLOT_WORDS, column);
      close_copies();
      next.look(a, begin + (t + SLOTS) * STAGED, end, column, flagged);
    } else if (threadIdx.x < COLUMNS) {
      sum = add_slot<sizeof(V) == 16 ? 16 : 8>(sum, slots + full * SLOT_WORDS + threadIdx.x);
    }
    free = full;
    full = full + 1 < SLOTS ? full + 1 : 0;
  }
  return sum;
}

// Shared memory of a block: slots, and what the first block of a run counts.
struct Staging {
  float* slots;
  u32* positions;
  u64* metadata;
};

__device__ __forceinline__ Staging staging() {
  HPS_SHARED(float4, slots, SLOTS * SLOT_WORDS / 4);
  HPS_SHARED(u32, positions, 1);
  HPS_SHARED(u64, metadata, 2);
  return Staging{(float*)slots, positions, metadata};
}

// Sums of long runs: a block for each 8 columns of one; the first block of a run counts its positions, too.
// Gradients that are not finite make a sum that is not: unless each gradient has a flag already, that is found by
// the sum, and `again` sums such runs again once their gradients have flags.
template <class V>
__device__ __forceinline__ void sum_long_runs(const UpdateArgs& a, bool again) {
  LongRuns longs(a);
  auto [slots, positions, metadata] = staging();
  bool flagged = a.skip && (again || !a.looks), counts = flagged || a.shows || a.clicks;
  u32 parts = (a.dim + COLUMNS - 1) / COLUMNS;
  u64 work = (u64)longs.count * parts;
  for (u64 item = blockIdx.x; item < work; item += gridDim.x) {
    u32 run = longs.at((u32)(item / parts)), column = (u32)(item % parts) * COLUMNS;
    u32* extra = a.long_extra + 5 * (u64)run;
    if (again && extra[4] == 0) continue;
    u32 begin = a.long_starts[run], end = extra[3];
    // sum_run passes barriers before and behind what is counted.
    if (threadIdx.x == 0) *positions = 0, metadata[0] = metadata[1] = 0;
    float sum = sum_run<V>(a, slots, begin, end, column, flagged);
    if (threadIdx.x < COLUMNS && column + threadIdx.x < a.dim) {
      a.long_sums[(u64)run * a.dim + column + threadIdx.x] = sum;
      if (a.skip && !flagged && !is_finite(sum) && atomicCAS(&extra[4], 0u, 1u) == 0)
        atomicAdd(&a.long_count[2], 1u);
    }
    if (column == 0 && counts) {
      u32 counted = 0;
      u64 shows = 0, clicks = 0;
      for (u32 p = begin + threadIdx.x; p < end; p += THREADS) {
        if (flagged && a.flags[p]) continue;
        ++counted;
        if (a.shows) shows += a.shows[a.positions[p]];
        if (a.clicks) clicks += a.clicks[a.positions[p]];
      }
      atomicAdd(positions, counted);
      if (shows) atomicAdd(&metadata[0], shows);
      if (clicks) atomicAdd(&metadata[1], clicks);
    }
    // No thread still reads what was staged when the next item comes.
    __syncthreads();
    if (column == 0 && threadIdx.x == 0) {
      u32 counted = counts ? *positions : end - begin;
      extra[0] = counted;
      extra[1] = clamp_to_u32(metadata[0]);
      extra[2] = clamp_to_u32(metadata[1]);
      if (end - begin > counted) atomicAdd(&a.status->skipped, (u64)(end - begin - counted));
    }
  }
}

// long_sums: sums of long runs that are not finite, again.
HPS_KERNEL long_sums(UpdateArgs a) {
  if (is_refused(a.status, a.call, true) || load_now(&a.long_count[2]) == 0) return;
  if (a.dim % 4 == 0) sum_long_runs<float4>(a, true);
  else sum_long_runs<float>(a, true);
}
EMU_KERNEL(long_sums);

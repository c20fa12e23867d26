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

// find_long: lists where runs of LONG_RUN places and more begin. The order of the list is no matter:
// each run is a row of its own.
HPS_KERNEL find_long(UpdateArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i + LONG_RUN <= a.n; i += stride) {
    u32 row = a.rows[i];
    if (i > 0 && a.rows[i - 1] == row) continue;
    if (a.rows[i + LONG_RUN - 1] != row) continue;
    u32 run = atomicAdd(a.long_count, 1u);
    a.long_starts[run] = (u32)i;
    u64 low = i + LONG_RUN - 1, high = a.n;  // the last place of the run lies in [low, high)
    while (high - low > 1) {
      u64 middle = low + (high - low) / 2;
      if (a.rows[middle] == row) low = middle; else high = middle;
    }
    u32* extra = a.long_extra + 4 * (u64)run;
    extra[0] = extra[1] = extra[2] = 0;
    extra[3] = (u32)high;
  }
}
EMU_KERNEL(find_long);

// flag_long: flag_gradients, for the places of long runs only. A warp reads where 32 runs lie at once; each
// run begins with another warp, so that short ones do not all fall to the first.
HPS_KERNEL flag_long(UpdateArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 longs = load_now(a.long_count), lane = threadIdx.x & 31;
  u32 warps = gridDim.x * (blockDim.x / 32);
  u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  for (u32 base = 0; base < longs; base += 32) {
    u32 begins = base + lane < longs ? a.long_starts[base + lane] : 0;
    u32 ends = base + lane < longs ? a.long_extra[4 * (base + lane) + 3] : 0;
    for (u32 k = 0; k < 32 && base + k < longs; ++k) {
      u32 begin = __shfl_sync(FULL_WARP, begins, k), end = __shfl_sync(FULL_WARP, ends, k);
      u32 turn = (warp + (base + k) * 311) % warps;
      for (u64 p = (u64)begin + turn; p < end; p += warps) {
        bool bad = is_bad(a.gradients + (u64)a.positions[p] * a.dim, a.dim);
        if (lane == 0) a.flags[p] = bad;
      }
    }
  }
}
EMU_KERNEL(flag_long);

#define STAGED 512
#define COLUMNS 8

// What a thread of all warps but the first stages of STAGED places: which gradients, and their values. Which
// ones the next places need is read while these are waited for.
template <class V>
struct Stage {
  static constexpr u32 lanes = sizeof(V) / 4, each = COLUMNS / lanes, all = STAGED * each;
  static constexpr u32 loaders = THREADS - 32, rounds = (all + loaders - 1) / loaders;
  u32 at[rounds];

  __device__ __forceinline__ void look(const UpdateArgs& a, u32 begin, u32 end, u32 column) {
#pragma unroll
    for (u32 r = 0; r < rounds; ++r) {
      u32 k = threadIdx.x - 32 + r * loaders, place = begin + k / each;
      bool out = k >= all || place >= end || column + k % each * lanes >= a.dim;
      at[r] = NO_ROW;
      if (!out) {
        u32 position = a.positions[place], flag = a.skip ? a.flags[place] : 0;
        at[r] = flag ? NO_ROW : position;
      }
    }
  }

  __device__ __forceinline__ void load(const UpdateArgs& a, V* held, u32 column) const {
#pragma unroll
    for (u32 r = 0; r < rounds; ++r) {
      u32 k = threadIdx.x - 32 + r * loaders;
      const float* from = a.gradients + (u64)at[r] * a.dim + column;
      nothing(held[r]);
      if (at[r] != NO_ROW) held[r] = ((const V*)from)[k % each];
    }
  }

  __device__ __forceinline__ void store(const V* held, float* to) const {
#pragma unroll
    for (u32 r = 0; r < rounds; ++r) {
      u32 k = threadIdx.x - 32 + r * loaders;
      if (k < all) ((V*)to)[k] = held[r];
    }
  }
};

// The sum of 8 columns of a run: warp 0 adds what the other warps have staged, while they stage what
// comes next. Threads below COLUMNS have the sums.
template <class V>
__device__ __forceinline__ float sum_run(const UpdateArgs& a, float* staged, u32 begin, u32 end, u32 column) {
  u32 tiles = (end - begin + STAGED - 1) / STAGED;
  float sum = -0.0f;
  Stage<V> stage;
  if (threadIdx.x >= 32) stage.look(a, begin, end, column);
  for (u32 t = 0; t <= tiles; ++t) {
    if (threadIdx.x >= 32 && t < tiles) {
      V held[Stage<V>::rounds];
      stage.load(a, held, column);
      stage.look(a, begin + (t + 1) * STAGED, end, column);
      stage.store(held, staged + (t & 1) * (STAGED * COLUMNS));
    } else if (threadIdx.x < COLUMNS && t > 0) {
      const float* from = staged + ((t - 1) & 1) * (STAGED * COLUMNS) + threadIdx.x;
#pragma unroll 32
      for (u32 k = 0; k < STAGED; ++k) sum = add(sum, from[k * COLUMNS]);
    }
    __syncthreads();
  }
  return sum;
}

// long_sums: a block for each 8 columns of a long run; the first one counts its positions, too.
HPS_KERNEL long_sums(UpdateArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  HPS_SHARED(float4, wide, 2 * STAGED * COLUMNS / 4);
  float* staged = (float*)wide;
  HPS_SHARED(u32, positions, 1);  // that count
  u32& counted_in = *positions;
  HPS_SHARED(u64, metadata, 2);
  u32 parts = (a.dim + COLUMNS - 1) / COLUMNS;
  u64 work = (u64)load_now(a.long_count) * parts;
  for (u64 item = blockIdx.x; item < work; item += gridDim.x) {
    u32 run = (u32)(item / parts), column = (u32)(item % parts) * COLUMNS;
    u32 begin = a.long_starts[run];
    u32 end = a.long_extra[4 * (u64)run + 3];
    // sum_run passes barriers, the last one at its end: all see these zeros, and no thread still reads what
    // was staged when the next item comes.
    if (threadIdx.x == 0) counted_in = 0, metadata[0] = metadata[1] = 0;
    float sum = a.dim % 4 == 0 ? sum_run<float4>(a, staged, begin, end, column)
                               : sum_run<float>(a, staged, begin, end, column);
    if (threadIdx.x < COLUMNS && column + threadIdx.x < a.dim)
      a.long_sums[(u64)run * a.dim + column + threadIdx.x] = sum;
    if (column == 0) {
      u32 counted = 0;
      u64 shows = 0, clicks = 0;
      for (u32 p = begin + threadIdx.x; p < end; p += THREADS) {
        if (a.skip && a.flags[p]) continue;
        ++counted;
        if (a.shows) shows += a.shows[a.positions[p]];
        if (a.clicks) clicks += a.clicks[a.positions[p]];
      }
      atomicAdd(&counted_in, counted);
      if (shows) atomicAdd(&metadata[0], shows);
      if (clicks) atomicAdd(&metadata[1], clicks);
      __syncthreads();
      if (threadIdx.x == 0) {
        u32* extra = a.long_extra + 4 * (u64)run;
        extra[0] = counted_in;
        extra[1] = clamp_to_u32(metadata[0]);
        extra[2] = clamp_to_u32(metadata[1]);
        if (end - begin > counted_in)
          atomicAdd(&a.status->skipped, (u64)(end - begin - counted_in));
      }
    }
  }
}
EMU_KERNEL(long_sums);

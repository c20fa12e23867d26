// accumulate: gradients of equal keys summed in the caller's order, then one step of the optimizer.
//
// Shapes: rows, positions [n], sorted by row number, equal ones in the caller's order; gradients
// [n, dim]; arena [rows_max, stride]: weights, state, metadata columns.
// Geometry: update_*: T lanes for each sorted place (those that begin a run work) and for each long
// run, grid-stride. long_*: whole thread blocks, for runs of LONG_RUN and more. Memory order: a row
// has one tile that changes it; long_* end before update_* begins. Host twin: hbm/cpu.rs, with the
// arithmetic of row/optimizer.rs: every operation rounded, none fused, in that order.
//
// A sum begins with -0, which changes no number that is added to it, not even another -0.

enum Rule { SGD, MOMENTUM, NESTEROV, ADAGRAD, ROWWISE, ADAM, FTRL };

// What a rule needs beside weight, state and gradient.
struct Step {
  const UpdateArgs* a;
  float c1, c2;      // Adam's corrections
  float divisor;     // row-wise AdaGrad
};

template <Rule R>
__device__ __forceinline__ void change(const Step& s, float& w, float& x, float& y, float g) {
  const UpdateArgs& a = *s.a;
  if (R == SGD) {
    w = sub(w, mul(a.lr, g));
  } else if (R == MOMENTUM) {
    x = add(mul(a.momentum, x), g);
    w = sub(w, mul(a.lr, x));
  } else if (R == NESTEROV) {
    x = add(mul(a.momentum, x), g);
    w = sub(w, mul(a.lr, add(g, mul(a.momentum, x))));
  } else if (R == ADAGRAD) {
    x = add(x, mul(g, g));
    w = sub(w, quot(mul(a.lr, g), add(root(x), a.epsilon)));
  } else if (R == ROWWISE) {
    w = sub(w, quot(mul(a.lr, g), s.divisor));
  } else if (R == ADAM) {
    x = add(mul(a.beta1, x), mul(sub(1.0f, a.beta1), g));
    y = add(mul(a.beta2, y), mul(mul(sub(1.0f, a.beta2), g), g));
    w = sub(w, quot(mul(a.lr, quot(x, s.c1)), add(root(quot(y, s.c2)), a.epsilon)));
  } else {
    float grown = add(y, mul(g, g)), r = root(grown);
    float sigma = quot(sub(r, root(y)), a.lr);
    x = add(x, sub(g, mul(sigma, w)));
    y = grown;
    u32 sign = __float_as_uint(x) & 0x80000000u;
    float above = sub(__uint_as_float(__float_as_uint(a.lambda1) | sign), x);
    float below = add(quot(add(a.ftrl_beta, r), a.lr), a.lambda2);
    w = __uint_as_float(__float_as_uint(x) ^ sign) <= a.lambda1 ? 0.0f : quot(above, below);
  }
}

template <Rule R>
__device__ __forceinline__ void change(const Step& s, float4& w, float4& x, float4& y, float4 g) {
  change<R>(s, w.x, x.x, y.x, g.x);
  change<R>(s, w.y, x.y, y.y, g.y);
  change<R>(s, w.z, x.z, y.z, g.z);
  change<R>(s, w.w, x.w, y.w, g.w);
}

__device__ __forceinline__ float plus(float a, float b) { return add(a, b); }
__device__ __forceinline__ float4 plus(float4 a, float4 b) {
  return make_float4(add(a.x, b.x), add(a.y, b.y), add(a.z, b.z), add(a.w, b.w));
}

__device__ __forceinline__ float one_minus_power(float base, u32 exponent) {
  double square = (double)base, power = 1.0;
  while (exponent > 0) {
    if (exponent & 1) power = __dmul_rn(power, square);
    square = __dmul_rn(square, square);
    exponent >>= 1;
  }
  return (float)__dsub_rn(1.0, power);
}

// Counts a push in the metadata columns of a row.
__device__ __forceinline__ void count_push(const UpdateArgs& a, float* row, u64 shows, u64 clicks) {
  u32* columns = (u32*)row + a.metadata_at;
  if (a.columns & 1) { *columns = clamp_to_u32(*columns + shows); ++columns; }
  if (a.columns & 2) { *columns = clamp_to_u32(*columns + clicks); ++columns; }
  if (a.columns & 4) { *columns = clamp_to_u32((u64)*columns + 1); ++columns; }
  if (a.columns & 8) *columns = a.step;
}

// One run: where it begins, its row, the lanes that work on it. `sums` is its sum if it is long, else null.
template <class V>
struct Run {
  const UpdateArgs& a;
  u32 mask, place, row;
  const float* sums;

  __device__ __forceinline__ const V* gradient(u32 p) const {
    return (const V*)(a.gradients + (u64)a.positions[p] * a.dim);
  }

  __device__ __forceinline__ bool goes_on(u32 p) const { return p < a.n && a.rows[p] == row; }

  // The sum of one vector over the run; `counted` is the number of positions that count.
  __device__ __forceinline__ V sum(u32 c, u32* counted) const {
    if (sums) return ((const V*)sums)[c];
    V total;
    nothing(total);
    u32 count = 0;
    // Four at a time: their loads are in flight together.
    for (u32 p = place; goes_on(p);) {
      V held[4];
      u32 last = 1;
      held[0] = gradient(p)[c];
      if (goes_on(p + 1)) {
#pragma unroll
        for (u32 u = 1; u < 4; ++u)
          if (goes_on(p + u)) held[u] = gradient(p + u)[c], last = u + 1;
      }
#pragma unroll
      for (u32 u = 0; u < 4; ++u) {
        if (u >= last) continue;
        if (a.skip && !a.looks && a.flags[p + u]) continue;
        if (a.skip && a.looks && __any_sync(mask, !is_finite(held[u]))) continue;
        total = plus(total, held[u]);
        ++count;
      }
      p += last;
      if (last < 4) break;
    }
    *counted = count;
    return total;
  }
};

// The run of a tile, which has one for each place and one for each long run. False: the place lies inside a
// run, or heads a long one. `run` is the number of a long run, else NO_ROW.
__device__ __forceinline__ bool run_of(const UpdateArgs& a, u64 tile, u32* place, u32* run) {
  if (tile >= a.n) {
    *run = (u32)(tile - a.n);
    *place = a.long_starts[*run];
    return true;
  }
  *run = NO_ROW;
  *place = (u32)tile;
  u32 row = a.rows[tile];
  if (tile > 0 && a.rows[tile - 1] == row) return false;
  u64 end = tile + LONG_RUN - 1;
  return end >= a.n || a.rows[end] != row;
}

__device__ __forceinline__ const float* sums_of(const UpdateArgs& a, u32 run) {
  return run == NO_ROW ? nullptr : a.long_sums + (u64)run * a.dim;
}

// What one lane does when the row has changed, by `counted` positions: the row is dirty, what was left out and
// the push are counted.
template <class V>
__device__ __forceinline__ void finish_run(const Run<V>& one, u32 run, u32 counted) {
  const UpdateArgs& a = one.a;
  if (counted > 0) a.dirty[one.row] = 1;
  if (a.skip == 0 && a.columns == 0) return;
  u64 shows = 0, clicks = 0;
  u32 length = counted;
  if (one.sums) {
    shows = a.long_extra[4 * run + 1];
    clicks = a.long_extra[4 * run + 2];
  } else {
    u32 p = one.place;
    for (; one.goes_on(p); ++p) {
      bool out = false;
      if (a.skip && !a.looks) out = a.flags[p] != 0;
      if (a.skip && a.looks && (a.shows || a.clicks)) {
        // Rare: a metadata column beside the option; look at the whole gradient once more.
        for (u32 c = 0; c < a.dim / (sizeof(V) / 4) && !out; ++c) out = !is_finite(one.gradient(p)[c]);
      }
      if (out) continue;
      if (a.shows) shows += a.shows[a.positions[p]];
      if (a.clicks) clicks += a.clicks[a.positions[p]];
    }
    length = p - one.place;
  }
  if (length > counted) atomicAdd(&a.status->skipped, (u64)(length - counted));
  if (counted > 0 && a.columns) count_push(a, a.arena + (u64)one.row * a.stride, shows, clicks);
}

template <Rule R, int T, class V>
__device__ __forceinline__ void update_run(const UpdateArgs& a, u32 place, u32 run, u32 tile_mask) {
  u32 at = threadIdx.x % T, lanes = sizeof(V) / 4, words = a.dim / lanes;
  u32 row = a.rows[place];
  const float* sums = sums_of(a, run);
  // Lanes without a vector leave; they must not be in the mask of those that look at one.
  u32 active = words < T ? tile_mask & (((1u << words) - 1) << ((threadIdx.x & 31) - at)) : tile_mask;
  if (at >= words) return;
  Run<V> one{a, active, place, row, sums};
  u32 counted = sums ? a.long_extra[4 * run] : 0;
  if (sums && counted == 0) return;
  float* words_of = a.arena + (u64)row * a.stride;
  V* w = (V*)words_of;
  float* state = words_of + a.dim;
  V g, wv, xv, yv;
  nothing(xv);
  nothing(yv);
  Step step{&a, 0.0f, 0.0f, 0.0f};
  if (R == ADAM) {
    float t = add(state[2 * a.dim], 1.0f);
    u32 count = t > 0.0f ? (t < 4294967296.0f ? (u32)t : 0xffffffffu) : 0;
    step.c1 = one_minus_power(a.beta1, count);
    step.c2 = one_minus_power(a.beta2, count);
    __syncwarp(active);
  }
  bool first = true;
  for (u32 c = at; c < words; c += T) {
    wv = w[c];
    if (R != SGD) xv = ((V*)state)[c];
    if (R == ADAM || R == FTRL) yv = ((V*)(state + a.dim))[c];
    g = one.sum(c, &counted);
    if (counted == 0) break;
    if (R == ADAM && first && at == 0) state[2 * a.dim] = add(state[2 * a.dim], 1.0f);
    first = false;
    change<R>(step, wv, xv, yv, g);
    w[c] = wv;
    if (R != SGD) ((V*)state)[c] = xv;
    if (R == ADAM || R == FTRL) ((V*)(state + a.dim))[c] = yv;
  }
  if (at == 0) finish_run(one, run, counted);
}

template <Rule R, int T, class V>
__device__ __forceinline__ void update(const UpdateArgs& a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 longs = load_now(a.long_count);
  u64 tiles = (u64)gridDim.x * (blockDim.x / T);
  u32 tile_mask = (T == 32 ? FULL_WARP : ((1u << (T & 31)) - 1)) << ((threadIdx.x & 31) / T * T);
  for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / T; i < (u64)a.n + longs; i += tiles) {
    u32 place, run;
    if (run_of(a, i, &place, &run)) update_run<R, T, V>(a, place, run, tile_mask);
  }
}

#define UPDATE_KERNEL(name, R, T, V, blocks)                             \
  HPS_KERNEL_OF(blocks) name(UpdateArgs a) { update<R, T, V>(a); }       \
  EMU_KERNEL(name);
#define UPDATE_KERNELS(name, R, blocks)                                  \
  UPDATE_KERNEL(name##_wide4, R, 4, float4, blocks)                      \
  UPDATE_KERNEL(name##_wide16, R, 16, float4, blocks)                    \
  UPDATE_KERNEL(name##_wide32, R, 32, float4, blocks)                    \
  UPDATE_KERNEL(name##_word16, R, 16, float, blocks)
UPDATE_KERNELS(sgd, SGD, 4)
UPDATE_KERNELS(momentum, MOMENTUM, 4)
UPDATE_KERNELS(nesterov, NESTEROV, 4)
UPDATE_KERNELS(adagrad, ADAGRAD, 4)
UPDATE_KERNELS(adam, ADAM, 3)
UPDATE_KERNELS(ftrl, FTRL, 3)

// Row-wise AdaGrad: 16 lanes a row; lane l sums the squares of elements l, l + 16, ..., then the lanes
// add 8, 4, 2, 1 apart. Never `looks`.
HPS_KERNEL rowwise(UpdateArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 longs = load_now(a.long_count);
  u64 tiles = (u64)gridDim.x * (blockDim.x / 16);
  u32 at = threadIdx.x % 16, mask = 0xffffu << ((threadIdx.x & 31) / 16 * 16);
  for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 16; i < (u64)a.n + longs; i += tiles) {
    u32 place, run;
    if (!run_of(a, i, &place, &run)) continue;
    u32 row = a.rows[place];
    const float* sums = sums_of(a, run);
    Run<float> one{a, mask, place, row, sums};
    u32 counted = sums ? a.long_extra[4 * run] : 0;
    float* w = a.arena + (u64)row * a.stride;
    float squares = 0.0f;
    for (u32 c = at; c < a.dim; c += 16) {
      float g = one.sum(c, &counted);
      squares = add(squares, mul(g, g));
    }
    for (u32 apart = 8; apart > 0; apart /= 2)
      squares = add(squares, __shfl_xor_sync(mask, squares, apart));
    // Lanes beyond dim have counted nothing; lane 0 always has an element.
    counted = __shfl_sync(mask, counted, 0, 16);
    if (counted == 0 && sums) continue;
    if (counted > 0) {
      float state = add(w[a.dim], quot(squares, (float)a.dim));
      __syncwarp(mask);
      Step step{&a, 0.0f, 0.0f, add(root(state), a.epsilon)};
      float unused = 0.0f;
      for (u32 c = at; c < a.dim; c += 16) {
        u32 again;
        float g = one.sum(c, &again), wv = w[c];
        change<ROWWISE>(step, wv, unused, unused, g);
        w[c] = wv;
      }
      if (at == 0) w[a.dim] = state;
    }
    if (at == 0) finish_run(one, run, counted);
  }
}
EMU_KERNEL(rowwise);

// accumulate: gradients of equal keys summed in the caller's order, then one step of the optimizer.
//
// Shapes: rows, positions [n], sorted by row number, equal ones in the caller's order; gradients
// [n, dim]; arena [rows_max, stride]: weights, state, metadata columns.
// Geometry: first whole blocks each sum a part of a long run, then T lanes for each sorted place (those that begin a
// short run work), grid-stride; blocks that have a part of a giant run do nothing else. So the one long chain of adds
// of the hottest key runs beside all that waits for memory. Memory order: a row has one tile that changes it.
// Host twin: hbm/cpu.rs, with the arithmetic of row/optimizer.rs: every operation rounded, none fused, in that
// order.
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

// What a tile knows of a sorted place. It is read while the tile works on the place before.
struct Place {
  u32 row, before, next;  // of this place, and of those beside it
  u32 position;

  __device__ __forceinline__ void look(const UpdateArgs& a, u32 i) {
    if (i >= a.n) return;
    row = a.rows[i];
    position = a.positions[i];
    before = i > 0 ? a.rows[i - 1] : NO_ROW;
    next = i + 1 < a.n ? a.rows[i + 1] : NO_ROW;
  }
};

// Whether a run of more than one place that begins here is long.
__device__ __forceinline__ bool is_long(const UpdateArgs& a, u32 place, u32 row) {
  return place + LONG_RUN <= a.n && a.rows[place + LONG_RUN - 1] == row;
}

// One run and the tile of T lanes that works on it. `lanes` of them do, the first ones: those of `mask`.
template <int T, class V>
struct Run {
  const UpdateArgs& a;
  u32 place, row;
  u32 mask, lanes;
  const V* whole;  // its sum where that is there: of a long run, or the gradient of a run of one place; else null
  u32 length;      // of the run, once it is summed
  u32 counted;     // how many of its positions count

  __device__ __forceinline__ const V* gradient(u32 position) const {
    return (const V*)(a.gradients + (u64)position * a.dim);
  }

  // The sum of one vector over the run. `checks`: gradients that are not finite are left out as they are met.
  __device__ __forceinline__ V add_up(u32 c, bool checks) {
    u32 at = threadIdx.x % T;
    V total;
    nothing(total);
    counted = 0;
    // As many places at a time as there are lanes; each lane reads where one gradient is.
    for (u32 p = place;; p += lanes) {
      u32 mine = p + at, position = 0;
      bool inside = mine < a.n && a.rows[mine] == row;
      if (inside) position = a.positions[mine];
      u32 here = __popc(__ballot_sync(mask, inside) & mask);
      u32 outs = __ballot_sync(mask, position & LEFT_OUT) >> ((threadIdx.x & 31) - at);
      // Four at a time: their loads are in flight together.
      for (u32 k = 0; k < here; k += 4) {
        V held[4];
#pragma unroll
        for (u32 u = 0; u < 4; ++u) {
          u32 from = k + u < here ? k + u : k;
          held[u] = gradient(__shfl_sync(mask, position, from, T) & ~LEFT_OUT)[c];
        }
#pragma unroll
        for (u32 u = 0; u < 4; ++u) {
          if (k + u >= here || (outs >> (k + u) & 1)) continue;
          if (checks && __any_sync(mask, !is_finite(held[u]))) continue;
          total = plus(total, held[u]);
          ++counted;
        }
      }
      if (here < lanes) {
        length = p + here - place;
        return total;
      }
    }
  }

  // The sum of a run of several places, vector `c`. A gradient that is not finite makes a sum that is not: only then
  // is each one looked at.
  __device__ __forceinline__ V sum_of_many(u32 c) {
    for (bool checks = false;; checks = true) {
      V total = add_up(c, checks);
      if (checks || !a.skip || !a.looks || !__any_sync(mask, !is_finite(total))) return total;
    }
  }

  // Whether the gradient of a run of one place counts.
  __device__ __forceinline__ void check_only(V gradient) {
    if (a.skip && length == 1) {
      bool out = a.looks ? __any_sync(mask, !is_finite(gradient)) : (a.positions[place] & LEFT_OUT) != 0;
      counted = out ? 0 : 1;
    }
  }

  // The sum of one vector.
  __device__ __forceinline__ V sum(u32 c) {
    if (!whole) return sum_of_many(c);
    V sum = whole[c];
    check_only(sum);
    return sum;
  }

  // Shows and clicks of the positions that count, by one lane.
  __device__ __forceinline__ void count(u64* shows, u64* clicks) const {
    if (counted == 0 || (!a.shows && !a.clicks)) return;
    for (u32 p = place; p < place + length; ++p) {
      u32 position = a.positions[p];
      bool out = position & LEFT_OUT;
      // Rare: something was left out; look at each gradient once more.
      if (a.skip && a.looks && length > counted)
        for (u32 c = 0; c < lanes && !out; ++c) out = !is_finite(gradient(position)[c]);
      if (out) continue;
      if (a.shows) *shows += a.shows[position];
      if (a.clicks) *clicks += a.clicks[position];
    }
  }

  // What one lane does when the row has changed: it is dirty, what was left out and the push are counted.
  __device__ __forceinline__ void finish(u64 shows, u64 clicks) const {
    if (counted > 0) a.dirty[row] = 1;
    if (length > counted) atomicAdd(&a.status->skipped, (u64)(length - counted));
    if (counted > 0 && a.columns) count_push(a, a.arena + (u64)row * a.stride, shows, clicks);
  }

  // One step of the row.
  template <Rule R>
  __device__ __forceinline__ void step(u32 words) {
    u32 at = threadIdx.x % T;
    float* words_of = a.arena + (u64)row * a.stride;
    V* w = (V*)words_of;
    float* state = words_of + a.dim;
    Step step{&a, 0.0f, 0.0f, 0.0f};
    if (R == ADAM) {
      float t = add(state[2 * a.dim], 1.0f);
      u32 count = t > 0.0f ? (t < 4294967296.0f ? (u32)t : 0xffffffffu) : 0;
      step.c1 = one_minus_power(a.beta1, count);
      step.c2 = one_minus_power(a.beta2, count);
      __syncwarp(mask);
    }
    // Lanes beyond the last vector of a round sum the first one once more: no lane leaves the tile.
    for (u32 first = 0; first < words; first += T) {
      bool inside = first + at < words;
      u32 c = inside ? first + at : 0;
      V g, wv, xv, yv;
      nothing(g);
      nothing(wv);
      nothing(xv);
      nothing(yv);
      if (!whole) g = sum_of_many(c);
      if (inside) {
        wv = w[c];
        if (R != SGD) xv = ((V*)state)[c];
        if (R == ADAM || R == FTRL) yv = ((V*)(state + a.dim))[c];
      }
      if (whole) g = whole[c], check_only(g);
      if (counted == 0) break;
      if (R == ADAM && first == 0 && at == 0) state[2 * a.dim] = add(state[2 * a.dim], 1.0f);
      change<R>(step, wv, xv, yv, g);
      if (!inside) continue;
      w[c] = wv;
      if (R != SGD) ((V*)state)[c] = xv;
      if (R == ADAM || R == FTRL) ((V*)(state + a.dim))[c] = yv;
    }
  }
};

// Lanes of a tile that have a vector to work on. The others leave: they must not be in the mask of those
// that look at one.
template <int T>
__device__ __forceinline__ u32 active_lanes(u32 words) {
  u32 base = (threadIdx.x & 31) / T * T;
  u32 lanes = words < T ? words : T;
  return (lanes == 32 ? FULL_WARP : (1u << lanes) - 1) << base;
}

// Steps of all runs but long ones, T lanes each. `step` is called with a run.
template <int T, class V, class StepOf>
__device__ __forceinline__ void step_short_runs(const UpdateArgs& a, const Share& share, u32 active,
                                                u32 lanes, StepOf step) {
  // Below 2^31: n is at most 2^30, and a grid is far smaller.
  u32 tiles = share.blocks * (THREADS / T), i = (share.block * THREADS + threadIdx.x) / T;
  Place next;
  next.look(a, i);
  for (; i < a.n; i += tiles) {
    u32 row = next.row;
    bool heads = next.before != row, is_one = next.next != row;
    const V* only = (const V*)(a.gradients + (u64)(next.position & ~LEFT_OUT) * a.dim);
    next.look(a, i + tiles);
    if (!heads || (!is_one && is_long(a, i, row))) continue;
    Run<T, V> run{a, i, row, active, lanes, is_one ? only : nullptr, 1, 1};
    step(run);
    if (threadIdx.x % T != 0) continue;
    u64 shows = 0, clicks = 0;
    run.count(&shows, &clicks);
    run.finish(shows, clicks);
  }
}

// The step of a long run whose sum is in shared memory, by the first tile of the block.
template <int T, class V, class StepOf>
__device__ __forceinline__ void step_long_run(const UpdateArgs& a, const Staging& shared, u32 active,
                                              u32 lanes, u32 begin, u32 end, StepOf step) {
  if (threadIdx.x >= lanes) return;
  u32 counted = shared.words()[2];
  Run<T, V> run{a, begin, a.rows[begin], active, lanes, (const V*)shared.slots, end - begin, counted};
  if (counted > 0) step(run);
  if (threadIdx.x == 0)
    run.finish(clamp_to_u32(shared.metadata()[0]), clamp_to_u32(shared.metadata()[1]));
}

template <Rule R, int T, class V>
__device__ __forceinline__ void update(const UpdateArgs& a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 words = a.dim / (sizeof(V) / 4), active = active_lanes<T>(words), lanes = words < T ? words : T;
  auto step = [&](Run<T, V>& run) { run.template step<R>(words); };
  Staging shared = staging();
  LongRuns longs(a);
  Share share(longs);
  take_long_runs<V>(longs, shared, share, [&](u32 begin, u32 end) {
    step_long_run<T, V>(a, shared, active, lanes, begin, end, step);
  });
  if (!share.is_giant && threadIdx.x % T < words) step_short_runs<T, V>(a, share, active, lanes, step);
}

// Three blocks fit on a multiprocessor of sm_80 or sm_90. With more registers than four blocks would leave each
// thread, the loads of a row are in flight together.
#define UPDATE_KERNEL(name, R, T, V)                              \
  HPS_KERNEL_OF(3) name(UpdateArgs a) { update<R, T, V>(a); }     \
  EMU_KERNEL(name);
#define UPDATE_KERNELS(name, R)                \
  UPDATE_KERNEL(name##_wide4, R, 4, float4)    \
  UPDATE_KERNEL(name##_wide16, R, 16, float4)  \
  UPDATE_KERNEL(name##_wide32, R, 32, float4)  \
  UPDATE_KERNEL(name##_word16, R, 16, float)
UPDATE_KERNELS(sgd, SGD)
UPDATE_KERNELS(momentum, MOMENTUM)
UPDATE_KERNELS(nesterov, NESTEROV)
UPDATE_KERNELS(adagrad, ADAGRAD)
UPDATE_KERNELS(adam, ADAM)
UPDATE_KERNELS(ftrl, FTRL)

// Row-wise AdaGrad: 16 lanes a row; lane l sums the squares of elements l, l + 16, ..., then the lanes
// add 8, 4, 2, 1 apart. Never `looks`.
__device__ __forceinline__ void step_rowwise(Run<16, float>& run) {
  const UpdateArgs& a = run.a;
  u32 at = threadIdx.x % 16;
  float squares = 0.0f;
  for (u32 first = 0; first < a.dim; first += 16) {
    bool inside = first + at < a.dim;
    float g = run.sum(inside ? first + at : a.dim - 1);
    if (inside) squares = add(squares, mul(g, g));
  }
  if (run.counted == 0) return;
  for (u32 apart = 8; apart > 0; apart /= 2)
    squares = add(squares, __shfl_xor_sync(run.mask, squares, apart));
  float* w = a.arena + (u64)run.row * a.stride;
  float state = add(w[a.dim], quot(squares, (float)a.dim));
  __syncwarp(run.mask);
  Step step{&a, 0.0f, 0.0f, add(root(state), a.epsilon)};
  float unused = 0.0f;
  for (u32 first = 0; first < a.dim; first += 16) {
    bool inside = first + at < a.dim;
    u32 c = inside ? first + at : a.dim - 1;
    float g = run.sum(c);
    if (!inside) continue;
    float wv = w[c];
    change<ROWWISE>(step, wv, unused, unused, g);
    w[c] = wv;
  }
  if (at == 0) w[a.dim] = state;
}

HPS_KERNEL_OF(3) rowwise(UpdateArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 mask = 0xffffu << ((threadIdx.x & 31) / 16 * 16);
  auto step = [](Run<16, float>& run) { step_rowwise(run); };
  Staging shared = staging();
  LongRuns longs(a);
  Share share(longs);
  auto step_long = [&](u32 begin, u32 end) {
    step_long_run<16, float>(a, shared, mask, 16, begin, end, step);
  };
  if (a.dim % 4 == 0) take_long_runs<float4>(longs, shared, share, step_long);
  else take_long_runs<float>(longs, shared, share, step_long);
  if (!share.is_giant) step_short_runs<16, float>(a, share, mask, 16, step);
}
EMU_KERNEL(rowwise);

// Rows in and out of the arena.
//
// Shapes: arena [rows_max, stride] (stride: words of a row rounded up to 4), packed [n, width].
// Geometry: a warp takes 32 keys or row numbers, one a lane, then copies these rows together, `T`
// lanes a row, several rows in flight. V4: 16 bytes a lane, where width is a multiple of 4; else 4.
// Memory order: none; rows of one launch are distinct, or only read. Host twin: hbm/cpu.rs.

template <int T, bool V4, class Copy>
__device__ __forceinline__ void copy_rows(u32 row, u32 width, Copy copy) {
  constexpr u32 together = 32 / T;
  constexpr u32 ahead = T < 4 ? T : 4;
  u32 lane = threadIdx.x & 31, sub = lane / T, at = lane % T;
  u32 words = V4 ? width / 4 : width;
  for (u32 k = 0; k < T; k += ahead) {
    u32 from[ahead], row_of[ahead];
#pragma unroll
    for (u32 u = 0; u < ahead; ++u) {
      from[u] = (k + u) * together + sub;
      row_of[u] = __shfl_sync(FULL_WARP, row, from[u]);
    }
    for (u32 c = at; c < words; c += T) copy(from, row_of, c);
  }
}

template <int T, bool V4>
__device__ __forceinline__ void gather(const RowsArgs& a, u64 base, u32 row) {
  copy_rows<T, V4>(row, a.width, [&](const u32* from, const u32* row_of, u32 c) {
    constexpr u32 ahead = T < 4 ? T : 4;
    if (V4) {
      float4 held[ahead];
#pragma unroll
      for (u32 u = 0; u < ahead; ++u)
        if (row_of[u] != NO_ROW)
          held[u] = __ldcs((const float4*)(a.arena + (u64)row_of[u] * a.stride) + c);
#pragma unroll
      for (u32 u = 0; u < ahead; ++u)
        if (row_of[u] != NO_ROW)
          __stcs((float4*)(a.packed + (base + from[u]) * a.width) + c, held[u]);
    } else {
      float held[ahead];
#pragma unroll
      for (u32 u = 0; u < ahead; ++u)
        if (row_of[u] != NO_ROW) held[u] = a.arena[(u64)row_of[u] * a.stride + c];
#pragma unroll
      for (u32 u = 0; u < ahead; ++u)
        if (row_of[u] != NO_ROW) __stcs(a.packed + (base + from[u]) * a.width + c, held[u]);
    }
  });
}

// get: packed[i] = the first `width` words of the row of keys[i]. A key that is not there refuses the
// call, and its place in `packed` stays as it was.
template <int T, bool V4>
__device__ __forceinline__ void get_rows(const RowsArgs& a) {
  if (is_refused(a.status, a.call, false)) return;
  u32 lane = threadIdx.x & 31;
  u64 stride = (u64)gridDim.x * blockDim.x;
  u64 warp = (u64)blockIdx.x * blockDim.x + (threadIdx.x & ~31u);
  for (u64 base = warp; base < a.n; base += stride) {
    u64 i = base + lane;
    u32 row = NO_ROW;
    if (i < a.n) {
      u64 key = __ldcs(a.keys + i);
      row = find(a.entries, a.sectors, key);
      if (row == NO_ROW) refuse(a.status, a.call, REFUSED_KEY, key, (u32)i);
    }
    gather<T, V4>(a, base, row);
  }
}

// pack: packed[i] = the row of number rows[i], which is clean from now on. `count` on the device says
// how many there are.
template <int T, bool V4>
__device__ __forceinline__ void pack_rows(const RowsArgs& a) {
  if (is_refused(a.status, a.call, true)) return;
  u64 n = load_now(a.count);
  u32 lane = threadIdx.x & 31;
  u64 stride = (u64)gridDim.x * blockDim.x;
  u64 warp = (u64)blockIdx.x * blockDim.x + (threadIdx.x & ~31u);
  for (u64 base = warp; base < n; base += stride) {
    u64 i = base + lane;
    u32 row = i < n ? a.rows[i] : NO_ROW;
    if (row != NO_ROW) a.dirty[row] = 0;
    gather<T, V4>(a, base, row);
  }
}

// place: the row of number rows[i] = packed[i], clean. A number beyond the arena refuses the call and
// changes nothing of that row; the words between width and stride are not touched.
template <int T, bool V4>
__device__ __forceinline__ void place_rows(const RowsArgs& a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 lane = threadIdx.x & 31;
  u64 stride = (u64)gridDim.x * blockDim.x;
  u64 warp = (u64)blockIdx.x * blockDim.x + (threadIdx.x & ~31u);
  for (u64 base = warp; base < a.n; base += stride) {
    u64 i = base + lane;
    u32 row = i < a.n ? a.rows[i] : NO_ROW;
    if (row != NO_ROW) a.dirty[row] = 0;
    copy_rows<T, V4>(row, a.width, [&](const u32* from, const u32* row_of, u32 c) {
      constexpr u32 ahead = T < 4 ? T : 4;
#pragma unroll
      for (u32 u = 0; u < ahead; ++u) {
        if (row_of[u] == NO_ROW) continue;
        float* to = a.arena + (u64)row_of[u] * a.stride;
        const float* of = a.packed + (base + from[u]) * a.width;
        if (V4)
          ((float4*)to)[c] = __ldcs((const float4*)of + c);
        else
          to[c] = __ldcs(of + c);
      }
    });
  }
}

// check_rows: refuses the call if a row number lies beyond the arena. Before place and pack.
HPS_KERNEL check_rows(RowsArgs a) {
  if (is_refused(a.status, a.call, false)) return;
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += stride)
    if (a.rows[i] >= a.rows_max) refuse(a.status, a.call, REFUSED_ROW, a.rows[i], (u32)i);
}
EMU_KERNEL(check_rows);

#define ROW_KERNELS(name, T, V4)                                        \
  HPS_KERNEL get_##name(RowsArgs a) { get_rows<T, V4>(a); }     \
  EMU_KERNEL(get_##name);                                               \
  HPS_KERNEL pack_##name(RowsArgs a) { pack_rows<T, V4>(a); }   \
  EMU_KERNEL(pack_##name);                                              \
  HPS_KERNEL place_##name(RowsArgs a) { place_rows<T, V4>(a); } \
  EMU_KERNEL(place_##name);
ROW_KERNELS(wide4, 4, true)
ROW_KERNELS(wide8, 8, true)
ROW_KERNELS(wide16, 16, true)
ROW_KERNELS(wide32, 32, true)
ROW_KERNELS(word4, 4, false)
ROW_KERNELS(word32, 32, false)

// merge: to[positions[i]] = from[i], rows of `width` words. Undoes a split. A position beyond the rows refuses
// the call: after a split that was refused, positions are whatever lay there.
HPS_KERNEL merge(MergeArgs a) {
  if (is_refused(a.status, a.call, false)) return;
  u64 warps = (u64)gridDim.x * (blockDim.x / 32);
  u64 warp = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  for (u64 i = warp; i < a.n; i += warps) {
    u32 position = a.positions[i];
    if (position >= a.n) {
      if ((threadIdx.x & 31) == 0) refuse(a.status, a.call, REFUSED_POSITION, position, (u32)i);
      continue;
    }
    float* to = a.to + (u64)position * a.width;
    for (u32 c = threadIdx.x & 31; c < a.width; c += 32) __stcs(to + c, a.from[i * a.width + c]);
  }
}
EMU_KERNEL(merge);

// probe_read, probe_write: the limits that benchmarks compare with: random sectors of 32 bytes, each
// thread some of its own, over the buffer from `arena` on; `n` sectors in it, `rows_max` accesses in all.
HPS_KERNEL probe_read(RowsArgs a) {
  u64 stride = (u64)gridDim.x * blockDim.x;
  float sum = 0.0f;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.rows_max; i += stride) {
    const float4* sector = (const float4*)a.arena + 2 * __umul64hi(mix64(i + a.call), (u64)a.n);
    float4 x = sector[0], y = sector[1];
    sum += x.x + y.w;
  }
  if (sum == 1.2345e30f) a.packed[0] = sum;  // never: what is read must be used
}
EMU_KERNEL(probe_read);

HPS_KERNEL probe_write(RowsArgs a) {
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.rows_max; i += stride) {
    float4* sector = (float4*)a.arena + 2 * __umul64hi(mix64(i + a.call), (u64)a.n);
    float x = (float)(u32)i;
    sector[0] = make_float4(x, x, x, x);
    sector[1] = make_float4(x, x, x, x);
  }
}
EMU_KERNEL(probe_write);

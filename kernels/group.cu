// Equal keys brought together: a stable radix sort of (row number, position), 8 bits a pass.
//
// Shapes: keys [n], positions [n], counts [DIGITS, blocks], totals [DIGITS].
// Geometry: THREADS threads; sort_count and sort_move: a block for every SORT_ITEMS items; sort_scan:
// any grid, a warp a digit. A pass is count, scan, move, each a launch. Memory order: shared memory between
// barriers; each place of the output has one writer. Host twin: the stable sort of hbm/cpu.rs.
//
// The same passes split keys by the device that owns them, and row numbers by whether they are dirty.

// What a pass orders by.
enum Order { BY_ROW, BY_OWNER, BY_DIRTY };

template <Order O>
__device__ __forceinline__ u32 digit_of(const SortArgs& a, u64 i) {
  if (O == BY_ROW) return (((const u32*)a.keys_in)[i] >> a.shift) & (DIGITS - 1);
  if (O == BY_OWNER) return (u32)__umul64hi(mix64(((const u64*)a.keys_in)[i]), (u64)a.parts);
  return a.dirty[((const u32*)a.keys_in)[i]] ? 0 : 1;
}

template <Order O>
__device__ __forceinline__ void count_digits(const SortArgs& a) {
  if (is_refused(a.status, a.call, true)) return;
  HPS_SHARED(u32, counts, DIGITS);
  counts[threadIdx.x] = 0;
  __syncthreads();
  u64 begin = (u64)blockIdx.x * SORT_ITEMS;
  for (u32 k = threadIdx.x; k < SORT_ITEMS && begin + k < a.n; k += THREADS)
    atomicAdd(&counts[digit_of<O>(a, begin + k)], 1u);
  __syncthreads();
  a.counts[(u64)threadIdx.x * a.blocks + blockIdx.x] = counts[threadIdx.x];
}

// The sum of the values of a warp's lanes up to this one.
__device__ __forceinline__ u32 sum_up_to(u32 value) {
  for (u32 apart = 1; apart < 32; apart *= 2) {
    u32 below = __shfl_up_sync(FULL_WARP, value, apart);
    if ((threadIdx.x & 31) >= apart) value += below;
  }
  return value;
}

// The sum of the values of a block's threads before this one.
__device__ __forceinline__ u32 sum_before(u32 value, u32* warp_sums) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32, sum = sum_up_to(value), before = 0;
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  for (u32 w = 0; w < warp; ++w) before += warp_sums[w];
  return before + sum - value;
}

// sort_scan: counts of a digit become their sums over the blocks before; a warp a digit.
HPS_KERNEL sort_scan(SortArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 lane = threadIdx.x & 31, warps = gridDim.x * WARPS;
  for (u32 digit = (blockIdx.x * THREADS + threadIdx.x) / 32; digit < DIGITS; digit += warps) {
    u32* counts = a.counts + (u64)digit * a.blocks;
    u32 before = 0;
    for (u32 base = 0; base < a.blocks; base += 32) {
      u32 i = base + lane, value = i < a.blocks ? counts[i] : 0;
      u32 sum = sum_up_to(value);
      if (i < a.blocks) counts[i] = before + sum - value;
      before += __shfl_sync(FULL_WARP, sum, 31);
    }
    if (lane == 0) a.totals[digit] = before;
  }
}
EMU_KERNEL(sort_scan);

// Items that a thread takes. A warp's lie side by side, so that rounds rise with places.
constexpr u32 ROUNDS = SORT_ITEMS / THREADS;

__device__ __forceinline__ u64 first_item() {
  return (u64)blockIdx.x * SORT_ITEMS + threadIdx.x / 32 * (ROUNDS * 32) + (threadIdx.x & 31);
}

// Ranks of a block's items among those of its warp with the same digit; `seen` counts them by warp and digit.
// `digit_at(r)` is DIGITS where there is no item. The barrier behind it is the caller's.
template <class DigitAt>
__device__ __forceinline__ void rank_items(u32* seen, u32* ranks, DigitAt digit_at) {
  u32 lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll
  for (u32 r = 0; r < ROUNDS; ++r) {
    u32 digit = digit_at(r);
    bool inside = digit < DIGITS;
    u32 same = __match_any_sync(FULL_WARP, digit);
    u32 before = __popc(same & ((1u << lane) - 1));
    u32 base = inside ? seen[warp * DIGITS + digit] : 0;
    __syncwarp();
    if (inside && before == 0) seen[warp * DIGITS + digit] = base + __popc(same);
    __syncwarp();
    ranks[r] = base + before;
  }
}

// Counts of this thread's digit by warp become where its items begin, warp by warp. Returns where the last ones end.
__device__ __forceinline__ u32 add_over_warps(u32* seen, u32 start) {
  for (u32 w = 0; w < WARPS; ++w) {
    u32 here = seen[w * DIGITS + threadIdx.x];
    seen[w * DIGITS + threadIdx.x] = start;
    start += here;
  }
  return start;
}

// Items straight to where they belong: by owner and by dirty, digits are few, and neighbours stay neighbours.
template <Order O>
__device__ __forceinline__ void move_items(const SortArgs& a) {
  if (is_refused(a.status, a.call, true)) return;
  HPS_SHARED(u32, warp_sums, WARPS);
  HPS_SHARED(u32, seen, WARPS * DIGITS);
  for (u32 k = threadIdx.x; k < WARPS * DIGITS; k += THREADS) seen[k] = 0;
  u32 digit_total = a.totals[threadIdx.x];
  u32 start = sum_before(digit_total, warp_sums);
  if (blockIdx.x == 0 && a.ends && threadIdx.x < a.parts) a.ends[threadIdx.x] = (u64)start + digit_total;
  // sum_before has a barrier: the zeros of `seen` are there.
  u64 begin = first_item();
  u32 digits[ROUNDS], ranks[ROUNDS];
  rank_items(seen, ranks, [&](u32 r) {
    u64 i = begin + r * 32;
    return digits[r] = i < a.n ? digit_of<O>(a, i) : DIGITS;
  });
  __syncthreads();
  add_over_warps(seen, start + a.counts[(u64)threadIdx.x * a.blocks + blockIdx.x]);
  __syncthreads();
#pragma unroll
  for (u32 r = 0; r < ROUNDS; ++r) {
    u64 i = begin + r * 32;
    if (i >= a.n || (O == BY_DIRTY && digits[r] != 0)) continue;
    u32 to = seen[threadIdx.x / 32 * DIGITS + digits[r]] + ranks[r];
    if (O == BY_OWNER)
      ((u64*)a.keys_out)[to] = ((const u64*)a.keys_in)[i];
    else
      ((u32*)a.keys_out)[to] = ((const u32*)a.keys_in)[i];
    a.positions_out[to] = a.positions_in ? a.positions_in[i] : (u32)i;
  }
}

// By row, digits are many: a block orders its items in shared memory first, so that those of a digit are
// written side by side.
template <>
__device__ __forceinline__ void move_items<BY_ROW>(const SortArgs& a) {
  if (is_refused(a.status, a.call, true)) return;
  HPS_SHARED(u32, warp_sums, 2 * WARPS);
  HPS_SHARED(u32, seen, WARPS * DIGITS);
  HPS_SHARED(u32, shift_of, DIGITS);  // from an item's place in the block to its place in the output
  HPS_SHARED(u32, staged, 2 * SORT_ITEMS);
  const u32* rows = (const u32*)a.keys_in;
  u64 begin = first_item();
  u32 keys[ROUNDS], ranks[ROUNDS];
#pragma unroll
  for (u32 r = 0; r < ROUNDS; ++r) keys[r] = begin + r * 32 < a.n ? rows[begin + r * 32] : 0;
  for (u32 k = threadIdx.x; k < WARPS * DIGITS; k += THREADS) seen[k] = 0;
  u32 start = sum_before(a.totals[threadIdx.x], warp_sums);
  start += a.counts[(u64)threadIdx.x * a.blocks + blockIdx.x];
  auto digit = [&](u32 key) { return (key >> a.shift) & (DIGITS - 1); };
  // sum_before has a barrier: the zeros of `seen` are there.
  rank_items(seen, ranks, [&](u32 r) { return begin + r * 32 < a.n ? digit(keys[r]) : DIGITS; });
  __syncthreads();
  u32 count = add_over_warps(seen, 0), here = sum_before(count, warp_sums + WARPS);
  for (u32 w = 0; w < WARPS; ++w) seen[w * DIGITS + threadIdx.x] += here;
  shift_of[threadIdx.x] = start - here;
  __syncthreads();
#pragma unroll
  for (u32 r = 0; r < ROUNDS; ++r) {
    u64 i = begin + r * 32;
    if (i >= a.n) continue;
    u32 to = seen[threadIdx.x / 32 * DIGITS + digit(keys[r])] + ranks[r];
    staged[to] = keys[r];
    staged[SORT_ITEMS + to] = a.positions_in ? a.positions_in[i] : (u32)i;
  }
  __syncthreads();
  u32 left = a.n - blockIdx.x * SORT_ITEMS, items = left < SORT_ITEMS ? left : SORT_ITEMS;
  for (u32 k = threadIdx.x; k < items; k += THREADS) {
    u32 key = staged[k], to = k + shift_of[digit(key)];
    ((u32*)a.keys_out)[to] = key;
    a.positions_out[to] = staged[SORT_ITEMS + k];
  }
}

#define SORT_KERNELS(name, O, blocks)                                   \
  HPS_KERNEL count_##name(SortArgs a) { count_digits<O>(a); }            \
  EMU_KERNEL(count_##name);                                              \
  HPS_KERNEL_OF(blocks) move_##name(SortArgs a) { move_items<O>(a); }    \
  EMU_KERNEL(move_##name);
SORT_KERNELS(by_row, BY_ROW, 3)
SORT_KERNELS(by_owner, BY_OWNER, 4)
SORT_KERNELS(by_dirty, BY_DIRTY, 4)

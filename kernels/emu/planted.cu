// Kernels with a mistake each, for the test that the emulator finds it. A kernel `mistake_name` is launched
// in place of `name` where `mistake` is planted. Barriers are left out by the emulator itself.

// An unordered sum: floats added as threads come.
HPS_KERNEL atomic_adagrad_wide4(UpdateArgs a) {
  LongRuns longs(a);
  for (u32 k = blockIdx.x; k < longs.count; k += gridDim.x) {
    u32 run = longs.at(k), begin = a.long_starts[run], end = a.long_extra[2 * run];
    float* sums = a.long_sums + (u64)run * a.dim;
    for (u32 c = threadIdx.x; c < a.dim; c += THREADS) sums[c] = 0.0f;
    __syncthreads();
    for (u32 i = threadIdx.x; i < (end - begin) * a.dim; i += THREADS)
      atomicAdd(&sums[i % a.dim],
                a.gradients[(u64)a.positions[begin + i / a.dim] * a.dim + i % a.dim]);
  }
}
EMU_KERNEL(atomic_adagrad_wide4);

// Another: a sort that is not stable, so that gradients of a key are added in the order of the schedule.
// No thread races with another; only the bits tell.
HPS_KERNEL unstable_move_by_row(SortArgs a) {
  HPS_SHARED(u32, warp_sums, WARPS);
  HPS_SHARED(u32, next, DIGITS);
  u32 start = sum_before(a.totals[threadIdx.x], warp_sums);
  next[threadIdx.x] = start + a.counts[(u64)threadIdx.x * a.blocks + blockIdx.x];
  __syncthreads();
  u64 begin = (u64)blockIdx.x * SORT_ITEMS;
  for (u32 k = threadIdx.x; k < SORT_ITEMS && begin + k < a.n; k += THREADS) {
    u32 to = atomicAdd(&next[digit_of<BY_ROW>(a, begin + k)], 1u);
    ((u32*)a.keys_out)[to] = ((const u32*)a.keys_in)[begin + k];
    a.positions_out[to] = a.positions_in ? a.positions_in[begin + k] : (u32)(begin + k);
  }
}
EMU_KERNEL(unstable_move_by_row);

// An index that is read while other threads of the launch build it.
HPS_KERNEL reading_insert(IndexArgs a) {
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += stride) {
    u32 how = insert_one(a.entries, a.sectors, a.keys[i], a.rows[i]);
    if (how == 1 && find(a.entries, a.sectors, a.keys[i]) != NO_ROW)
      atomicAdd(&a.counts[0], (u64)1);
  }
}
EMU_KERNEL(reading_insert);

// A row that is copied by two tiles at once.
HPS_KERNEL twice_place_wide4(RowsArgs a) {
  u32 words = a.width;
  for (u32 i = 0; i < a.n; ++i)
    for (u32 c = threadIdx.x; c < 2 * words; c += THREADS)
      a.arena[(u64)a.rows[i] * a.stride + c % words] = a.packed[(u64)i * a.width + c % words];
}
EMU_KERNEL(twice_place_wide4);

// A read beside the buffer, which changes nothing that a guard zone could show.
HPS_KERNEL beside_rows_of(IndexArgs a) {
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 3) a.long_count[i] = 0;
  if (i < a.n) a.found[i] = find(a.entries, a.sectors, a.keys[(long long)i - 1]);
}
EMU_KERNEL(beside_rows_of);

// Shared memory that is taken to be zero.
HPS_KERNEL unset_count_by_row(SortArgs a) {
  HPS_SHARED(u32, counts, DIGITS);
  u64 begin = (u64)blockIdx.x * SORT_ITEMS;
  for (u32 k = threadIdx.x; k < SORT_ITEMS && begin + k < a.n; k += THREADS)
    atomicAdd(&counts[digit_of<BY_ROW>(a, begin + k)], 1u);
  __syncthreads();
  a.counts[(u64)threadIdx.x * a.blocks + blockIdx.x] = counts[threadIdx.x];
}
EMU_KERNEL(unset_count_by_row);

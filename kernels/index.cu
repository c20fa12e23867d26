// The index: key -> row number. Built by insert, cleared whole, never written while it is read.
//
// Shapes: keys [n], rows [n]; entries [2 * sectors + 1].
// Geometry: one thread a key, grid-stride, any grid. Memory order: an entry's key is claimed by one
// compare-and-swap, its row by another; readers come in a later launch. Host twin: hbm/cpu.rs.

__device__ __forceinline__ u32 find(const Entry* entries, u64 sectors, u64 key) {
  const ulonglong2* pairs = (const ulonglong2*)entries;
  if (key == NO_KEY) return (u32)pairs[2 * sectors].y;
  u64 sector = __umul64hi(slot_hash(key), sectors);
  for (u64 probes = 0; probes < sectors; ++probes) {
    ulonglong2 a = pairs[2 * sector], b = pairs[2 * sector + 1];
    if (a.x == key) return (u32)a.y;
    if (b.x == key) return (u32)b.y;
    if (a.x == NO_KEY || b.x == NO_KEY) return NO_ROW;
    sector = sector + 1 == sectors ? 0 : sector + 1;
  }
  return NO_ROW;
}

// Claims the row of an entry whose key is ours: 1 inserted, 2 there already with this row, 0 refused:
// the key has another row.
__device__ __forceinline__ u32 claim_row(Entry* entry, u32 row) {
  u32 old = atomicCAS(&entry->row, NO_ROW, row);
  return old == NO_ROW ? 1u : (old == row ? 2u : 0u);
}

__device__ __forceinline__ u32 insert_one(Entry* entries, u64 sectors, u64 key, u32 row) {
  if (key == NO_KEY) return claim_row(&entries[2 * sectors], row);
  u64 sector = __umul64hi(slot_hash(key), sectors);
  for (u64 probes = 0; probes < sectors; ++probes) {
    for (u32 half = 0; half < 2; ++half) {
      Entry* entry = &entries[2 * sector + half];
      u64 seen = load_now(&entry->key);
      if (seen == NO_KEY) seen = atomicCAS(&entry->key, NO_KEY, key);
      if (seen == NO_KEY || seen == key) return claim_row(entry, row);
    }
    sector = sector + 1 == sectors ? 0 : sector + 1;
  }
  return 0;
}

// insert: entries of keys that are not there. A key that finds no entry, or names a row beyond the
// arena, or is there with another row, is listed in `failed`; nothing is overwritten.
HPS_KERNEL insert(IndexArgs a) {
  if (is_refused(a.status, a.call, true)) return;
  u32 done = 0;
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += stride) {
    u64 key = a.keys[i];
    u32 row = a.rows[i];
    u32 how = row < a.rows_max ? insert_one(a.entries, a.sectors, key, row) : 0;
    if (how == 0) {
      u64 at = atomicAdd(&a.counts[1], (u64)1);
      if (at < a.failed_max) a.failed[at] = key;
    }
    done += how == 1;
  }
  for (u32 apart = 16; apart > 0; apart /= 2) done += __shfl_xor_sync(FULL_WARP, done, apart);
  if ((threadIdx.x & 31) == 0 && done > 0) atomicAdd(&a.counts[0], (u64)done);
}
EMU_KERNEL(insert);

// rows_of: the row of each key, for the sort of an accumulate. Refuses the call for a key not there.
HPS_KERNEL rows_of(IndexArgs a) {
  if (is_refused(a.status, a.call, false)) return;
  u64 first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (first < 3) a.long_count[first] = 0;
  u64 stride = (u64)gridDim.x * blockDim.x;
  for (u64 i = first; i < a.n; i += stride) {
    u64 key = a.keys[i];
    u32 row = find(a.entries, a.sectors, key);
    if (row == NO_ROW) refuse(a.status, a.call, REFUSED_KEY, key, (u32)i);
    a.found[i] = row;
  }
}
EMU_KERNEL(rows_of);

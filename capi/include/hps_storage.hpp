/*
 * A table of hps behind the calls of HierarchicalKV's external storage. C++17; the rules are those of
 * hps.hpp.
 */
#ifndef HPS_STORAGE_HPP
#define HPS_STORAGE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hps.hpp"

namespace hps {

/* Stands where HierarchicalKV has a cudaStream_t; nothing is queued on it. */
struct NoStream {};

/*
 * A table behind the calls of HierarchicalKV's external storage (nv::merlin::ExternalStorage), on
 * memory of the host. A value of a key is the weights of its row; `value_dims` must be the table's
 * dim. Where the table has optimizer state, insert_or_assign gives the state of a key that was never
 * pushed.
 *
 * - Pointers are of the host, not of a device, and a call has done its work when it returns: a
 *   stream has nothing to order. Whoever holds rows on a device copies them, and synchronizes,
 *   around the calls.
 * - Keys are 64 bits wide. Every key is a key; with `masked`, those that equal it are passed over,
 *   as HierarchicalKV's EMPTY_KEY is.
 * - Several threads may call. A find beside an erase of the same key may give the row of a key that
 *   was never stored.
 * - Durable is what a checkpoint of the store has.
 * - A batch may be larger than the cache: it is found piece by piece.
 */
template <class Key = uint64_t>
class KeyValueStorage {
 public:
  static_assert(std::is_integral_v<Key> && sizeof(Key) == 8, "keys are 64 bits wide");
  using size_type = std::size_t;
  using key_type = Key;
  using value_type = float;

  explicit KeyValueStorage(Table table, std::optional<Key> masked = std::nullopt)
      : table_(std::move(table)), masked_(masked) {}

  /* keys: [n], values: [n, value_dims]. Of equal keys the last one counts. */
  void insert_or_assign(size_type n, const Key *keys, const float *values, size_type value_dims,
                        NoStream = {}) {
    check(value_dims);
    std::vector<uint64_t> of;
    std::vector<float> rows;
    for (size_type i = 0; masked_ && i < n; i++) {
      if (keys[i] == *masked_) continue;
      of.push_back(static_cast<uint64_t>(keys[i]));
      rows.insert(rows.end(), values + i * value_dims, values + (i + 1) * value_dims);
    }
    if (masked_) {
      table_.put(of, rows);
    } else {
      of.assign(keys, keys + n);
      table_.put(of, Values(values, n * value_dims));
    }
  }

  /* keys: [n], values: [n, value_dims], founds: [n]. Where founds[i] is true nothing is done. Where
   * it is false and the key is stored, its value is written and founds[i] becomes true; else both
   * stay as they are. Gives how many were found. */
  size_type find(size_type n, const Key *keys, float *values, size_type value_dims, bool *founds,
                 NoStream = {}) const {
    check(value_dims);
    std::vector<uint64_t> of;
    std::vector<size_type> at;
    for (size_type i = 0; i < n; i++) {
      if (founds[i] || (masked_ && keys[i] == *masked_)) continue;
      of.push_back(static_cast<uint64_t>(keys[i]));
      at.push_back(i);
    }
    std::vector<uint8_t> is_there = table_.contains(of);
    size_type count = 0;
    for (size_type i = 0; i < of.size(); i++) {
      if (is_there[i] == 0) continue;
      of[count] = of[i];
      at[count] = at[i];
      count++;
    }
    std::vector<float> rows;
    size_type piece = PIECE;
    for (size_type done = 0; done < count;) {
      size_type now = std::min(piece, count - done);
      rows.resize(now * value_dims);
      try {
        table_.pull(Keys(of.data() + done, now), rows);
      } catch (const Error &error) {
        if (error.code() != HPS_OVER_BUDGET || now == 1) throw;
        piece = now / 2;
        continue;
      }
      for (size_type i = 0; i < now; i++) {
        std::copy_n(rows.data() + i * value_dims, value_dims, values + at[done + i] * value_dims);
        founds[at[done + i]] = true;
      }
      done += now;
    }
    return count;
  }

  /* keys: [n]. Keys that are not stored are passed over. */
  void erase(size_type n, const Key *keys, NoStream = {}) {
    std::vector<uint64_t> of;
    for (size_type i = 0; i < n; i++)
      if (!masked_ || keys[i] != *masked_) of.push_back(static_cast<uint64_t>(keys[i]));
    size_type piece = PIECE;
    for (size_type done = 0; done < of.size();) {
      size_type now = std::min(piece, of.size() - done);
      try {
        table_.remove(Keys(of.data() + done, now));
      } catch (const Error &error) {
        if (error.code() != HPS_OVER_BUDGET || now == 1) throw;
        piece = now / 2;
        continue;
      }
      done += now;
    }
  }

  const Table &table() const { return table_; }

 private:
  static constexpr size_type PIECE = 65536;

  void check(size_type value_dims) const {
    if (value_dims == table_.dim()) return;
    throw std::invalid_argument("value_dims is " + std::to_string(value_dims) +
                                ", the table's dim is " + std::to_string(table_.dim()));
  }

  Table table_;
  std::optional<Key> masked_;
};

}  // namespace hps

#endif

/*
 * hps for C++17: the calls of hps.h, with handles that free themselves and errors that are thrown.
 *
 * Rules beside those at the top of hps.h:
 *
 *  - Every call that fails throws hps::Error. A wait that runs out of time does not: it gives
 *    nothing.
 *  - Objects move, and free their handle at the end; Store and Table are copied as shared_ptr is.
 *    When the last copy of a store ends that was not closed, this equals a crash: the store opens at
 *    its last checkpoint.
 *  - Arrays are hps::View: made from a std::vector, a std::array, an array, or a pointer and a
 *    length.
 *  - Nothing here has state of its own: threads are as hps.h says.
 */
#ifndef HPS_HPP
#define HPS_HPP

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hps.h"

namespace hps {

class PassTicket; /* hps_passes.hpp */

/* A call failed. what() is the message; code() one of hps_code. */
class Error : public std::runtime_error {
 public:
  explicit Error(hps_error *error)
      : std::runtime_error(error == nullptr ? "hps: no memory for an error"
                                            : hps_error_message(error)),
        error_(error, hps_error_free) {}

  int32_t code() const noexcept { return error_ ? hps_error_code(error_.get()) : HPS_OTHER; }

  /* Of HPS_INVALID_ARGUMENT, which rule was broken: "UnknownTable", ...; else empty. */
  std::string kind() const { return error_ ? hps_error_kind(error_.get()) : ""; }

  /* A number that the error holds, such as "needed_bytes" of HPS_OVER_BUDGET. */
  std::optional<uint64_t> number(const char *name) const {
    uint64_t value = 0;
    if (error_ && hps_error_field_u64(error_.get(), name, &value) == 1) return value;
    return std::nullopt;
  }

  /* A text that the error holds, such as "path" of HPS_IO. */
  std::optional<std::string> text(const char *name) const {
    const char *value = error_ ? hps_error_field_text(error_.get(), name) : nullptr;
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  }

 private:
  std::shared_ptr<hps_error> error_;
};

/* A pointer and a length. */
template <class T>
class View {
 public:
  View() = default;
  View(T *data, std::size_t size) : data_(data), size_(size) {}
  template <std::size_t N>
  View(T (&array)[N]) : data_(array), size_(N) {}
  /* Of std::vector, std::array and the like. */
  template <class C, class = std::enable_if_t<std::is_convertible_v<
                         decltype(std::declval<C &>().data()), T *>>>
  View(C &&container) : data_(container.data()), size_(container.size()) {}

  T *data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

using Keys = View<const uint64_t>;
using Values = View<const float>;
using Floats = View<float>;

namespace detail {

template <class T, void (*Free)(T *)>
struct Freed {
  void operator()(T *handle) const noexcept { Free(handle); }
};

template <class T, void (*Free)(T *)>
using Handle = std::unique_ptr<T, Freed<T, Free>>;

inline void check(int32_t code, hps_error *error) {
  if (code != HPS_OK) throw Error(error);
}

/* Makes a call whose last argument is the error. */
template <class Call, class... Arguments>
void call(Call function, Arguments... arguments) {
  hps_error *error = nullptr;
  int32_t code = function(arguments..., &error);
  check(code, error);
}

/* As above; false where the time of a wait passed. */
template <class Call, class... Arguments>
bool wait(Call function, Arguments... arguments) {
  hps_error *error = nullptr;
  int32_t code = function(arguments..., &error);
  if (code == HPS_DEADLINE) {
    hps_error_free(error);
    return false;
  }
  check(code, error);
  return true;
}

inline uint64_t microseconds(std::chrono::microseconds limit) {
  return static_cast<uint64_t>(std::max<std::chrono::microseconds::rep>(limit.count(), 0));
}

}  // namespace detail

/* Options of one table; docs/C.md and hps.h say what each means. */
class TableOptions {
 public:
  TableOptions() : handle_(hps_table_options_new()) {}
  TableOptions &hyper(const hps_hyper &hyper) {
    detail::call(hps_table_options_set_hyper, get(), &hyper);
    return *this;
  }
  TableOptions &policy(hps_policy policy) {
    detail::call(hps_table_options_set_policy, get(), static_cast<int32_t>(policy));
    return *this;
  }
  TableOptions &policy_cached(uint32_t num_blocks, double target_hit_rate, uint64_t max_num_evict) {
    detail::call(hps_table_options_set_policy_cached, get(), num_blocks, target_hit_rate,
                 max_num_evict);
    return *this;
  }
  TableOptions &cache_bytes_min(uint64_t bytes) {
    detail::call(hps_table_options_set_cache_bytes_min, get(), bytes);
    return *this;
  }
  TableOptions &cache_bytes_max(uint64_t bytes) {
    detail::call(hps_table_options_set_cache_bytes_max, get(), bytes);
    return *this;
  }
  hps_table_options *get() const { return handle_.get(); }

 private:
  detail::Handle<hps_table_options, hps_table_options_free> handle_;
};

/* Options of an open or a create. */
class Options {
 public:
  Options() : handle_(hps_options_new()) {}
  Options &cache_bytes(uint64_t bytes) { return set(hps_options_set_cache_bytes, bytes); }
  Options &shards(std::size_t shards) { return set(hps_options_set_shards, shards); }
  Options &threads(std::size_t threads) { return set(hps_options_set_threads, threads); }
  Options &io_depth(std::size_t depth) { return set(hps_options_set_io_depth, depth); }
  Options &io(hps_io io) { return set(hps_options_set_io, static_cast<int32_t>(io)); }
  Options &policy(hps_policy policy) {
    return set(hps_options_set_policy, static_cast<int32_t>(policy));
  }
  Options &policy_cached(uint32_t num_blocks, double target_hit_rate, uint64_t max_num_evict) {
    return set(hps_options_set_policy_cached, num_blocks, target_hit_rate, max_num_evict);
  }
  Options &file_bytes(uint64_t bytes) { return set(hps_options_set_file_bytes, bytes); }
  Options &flush_step_rows(std::size_t rows) { return set(hps_options_set_flush_step_rows, rows); }
  Options &space_bound(double bound) { return set(hps_options_set_space_bound, bound); }
  Options &compaction_threads(std::size_t threads) {
    return set(hps_options_set_compaction_threads, threads);
  }
  Options &open_files_max(std::size_t files) { return set(hps_options_set_open_files_max, files); }
  Options &disk_bytes_max(uint64_t bytes) { return set(hps_options_set_disk_bytes_max, bytes); }
  Options &retain_checkpoints(std::size_t count) {
    return set(hps_options_set_retain_checkpoints, count);
  }
  Options &inline_work(bool on) { return set(hps_options_set_inline, int32_t{on}); }
  Options &warm(bool on) { return set(hps_options_set_warm, int32_t{on}); }
  Options &non_finite(hps_non_finite what) {
    return set(hps_options_set_non_finite, static_cast<int32_t>(what));
  }
  Options &hyper(const hps_hyper &hyper) { return set(hps_options_set_hyper, &hyper); }
  Options &table(const std::string &name, const TableOptions &options) {
    return set(hps_options_set_table, name.c_str(), options.get());
  }
  Options &data_directory(const std::string &path) {
    return set(hps_options_add_data_directory, path.c_str());
  }
  Options &moved_directory(const std::string &path) {
    return set(hps_options_add_moved_directory, path.c_str());
  }
  hps_options *get() const { return handle_.get(); }

 private:
  template <class Setter, class... Value>
  Options &set(Setter setter, Value... value) {
    detail::call(setter, get(), value...);
    return *this;
  }

  detail::Handle<hps_options, hps_options_free> handle_;
};

/* The default hyperparameters. */
inline hps_hyper default_hyper() {
  hps_hyper hyper;
  detail::call(hps_hyper_default, &hyper);
  return hyper;
}

/* What is fixed with a table's data. */
class Descriptor {
 public:
  Descriptor(const std::string &name, std::size_t dim) {
    hps_descriptor *made = nullptr;
    detail::call(hps_descriptor_new, name.c_str(), dim, &made);
    handle_.reset(made);
  }
  Descriptor &optimizer(hps_optimizer rule) {
    detail::call(hps_descriptor_set_optimizer, get(), static_cast<int32_t>(rule));
    return *this;
  }
  Descriptor &initialiser(hps_initialiser kind, float a = 0, float b = 0) {
    detail::call(hps_descriptor_set_initialiser, get(), static_cast<int32_t>(kind), a, b);
    return *this;
  }
  Descriptor &seed(uint64_t seed) {
    detail::call(hps_descriptor_set_seed, get(), seed);
    return *this;
  }
  Descriptor &accumulator(float accumulator) {
    detail::call(hps_descriptor_set_accumulator, get(), accumulator);
    return *this;
  }
  /* Numbers of hps_metadata, added. */
  Descriptor &metadata(int32_t columns) {
    detail::call(hps_descriptor_set_metadata, get(), columns);
    return *this;
  }
  hps_descriptor *get() const { return handle_.get(); }

 private:
  detail::Handle<hps_descriptor, hps_descriptor_free> handle_;
};

/* Rows that stay in memory until it ends. */
class Lease {
 public:
  Lease() = default;
  explicit Lease(hps_lease *handle) : handle_(handle) {}
  std::size_t size() const { return hps_lease_len(get()); }
  std::size_t parts() const { return hps_lease_parts(get()); }
  uint64_t id() const { return hps_lease_id(get()); }
  /* [n, dim]: the weights as they are now. */
  void read(Floats out) const { detail::call(hps_lease_read, get(), out.data(), out.size()); }
  /* [n, row_f32s]: whole rows. */
  void read_rows(Floats out) const {
    detail::call(hps_lease_read_rows, get(), out.data(), out.size());
  }
  void read_part(std::size_t part, Floats out) const {
    detail::call(hps_lease_read_part, get(), part, out.data(), out.size());
  }
  void read_rows_part(std::size_t part, Floats out) const {
    detail::call(hps_lease_read_rows_part, get(), part, out.data(), out.size());
  }
  const hps_lease *get() const { return handle_.get(); }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  detail::Handle<hps_lease, hps_lease_free> handle_;
};

/* A prefetch on its way; it is cancelled where it ends before it has given its lease. */
class Ticket {
 public:
  explicit Ticket(hps_ticket *handle) : handle_(handle) {}
  bool ready() const {
    int32_t ready = 0;
    detail::call(hps_ticket_poll, handle_.get(), &ready);
    return ready != 0;
  }
  Lease wait() const {
    hps_lease *lease = nullptr;
    detail::call(hps_ticket_wait, handle_.get(), HPS_FOREVER, &lease);
    return Lease(lease);
  }
  /* Nothing where the rows are not resident in time: wait again. */
  std::optional<Lease> wait_for(std::chrono::microseconds limit) const {
    hps_lease *lease = nullptr;
    uint64_t us = detail::microseconds(limit);
    if (!detail::wait(hps_ticket_wait, handle_.get(), us, &lease)) return std::nullopt;
    return Lease(lease);
  }

 private:
  detail::Handle<hps_ticket, hps_ticket_free> handle_;
};

/* A checkpoint on its way. It goes on where the ticket ends. */
class CheckpointTicket {
 public:
  explicit CheckpointTicket(hps_checkpoint_ticket *handle) : handle_(handle) {}
  bool done() const {
    int32_t done = 0;
    detail::call(hps_checkpoint_ticket_poll, handle_.get(), &done);
    return done != 0;
  }
  hps_checkpoint_info wait() const {
    hps_checkpoint_info info;
    detail::call(hps_checkpoint_ticket_wait, handle_.get(), HPS_FOREVER, &info);
    return info;
  }
  std::optional<hps_checkpoint_info> wait_for(std::chrono::microseconds limit) const {
    hps_checkpoint_info info;
    uint64_t us = detail::microseconds(limit);
    if (!detail::wait(hps_checkpoint_ticket_wait, handle_.get(), us, &info)) return std::nullopt;
    return info;
  }

 private:
  detail::Handle<hps_checkpoint_ticket, hps_checkpoint_ticket_free> handle_;
};

/* A walk over the rows of a checkpoint. */
class Rows {
 public:
  explicit Rows(hps_row_iter *handle) : handle_(handle) {}
  /* The next rows, all of one table: how many, 0 at the end. */
  std::size_t next(View<uint64_t> keys, Floats values, uint32_t &table) const {
    std::size_t count = 0;
    detail::call(hps_row_iter_next, handle_.get(), keys.data(), keys.size(), values.data(),
                 values.size(), nullptr, &table, &count);
    return count;
  }

 private:
  detail::Handle<hps_row_iter, hps_row_iter_free> handle_;
};

/* Keeps a checkpoint until it ends. */
class Hold {
 public:
  explicit Hold(hps_hold *handle) : handle_(handle) {}

 private:
  detail::Handle<hps_hold, hps_hold_free> handle_;
};

/* A table of an open store. */
class Table {
 public:
  Table() = default;
  Table(std::shared_ptr<hps_store> store, uint32_t id) : store_(std::move(store)), id_(id) {
    hps_table_info info;
    detail::call(hps_describe_table, store_.get(), id_, &info);
    dim_ = info.dim;
    row_f32s_ = info.row_f32s;
  }

  uint32_t id() const { return id_; }
  std::size_t dim() const { return dim_; }
  std::size_t row_f32s() const { return row_f32s_; }

  /* out: [n, dim]. */
  Lease pull(Keys keys, Floats out) const {
    hps_lease *lease = nullptr;
    detail::call(hps_pull, store_.get(), id_, keys.data(), keys.size(), out.data(), out.size(),
                 &lease);
    return Lease(lease);
  }
  Ticket prefetch(Keys keys) const {
    hps_ticket *ticket = nullptr;
    detail::call(hps_prefetch, store_.get(), id_, keys.data(), keys.size(), &ticket);
    return Ticket(ticket);
  }
  /* keys: each once; or a keyset file. */
  PassTicket begin_pass(Keys keys) const;
  PassTicket begin_pass(const std::string &keyset, hps_key_type key_type) const;
  /* Blocks may leave again, as often as the policy says. */
  void unfreeze() const { detail::call(hps_unfreeze, store_.get(), id_); }
  /* gradients: [n, dim] for the n keys of the lease. */
  hps_push_report push(const Lease &lease, Values gradients, float lr) const {
    hps_push_report report;
    detail::call(hps_push_gradients, store_.get(), lease.get(), gradients.data(), gradients.size(),
                 lr, &report);
    return report;
  }
  hps_push_report push(const Lease &lease, const hps_update &update) const {
    hps_push_report report;
    detail::call(hps_push, store_.get(), lease.get(), &update, &report);
    return report;
  }
  /* values: [n, dim] of HPS_WEIGHTS, [n, row_f32s] of HPS_ROWS. */
  hps_put_report put(Keys keys, Values values, hps_values kind = HPS_WEIGHTS,
                     bool verbatim = false) const {
    hps_put_report report;
    uint32_t flags = verbatim ? HPS_VERBATIM : 0;
    detail::call(hps_put, store_.get(), id_, keys.data(), keys.size(), static_cast<int32_t>(kind),
                 values.data(), values.size(), flags, &report);
    return report;
  }
  std::vector<uint8_t> contains(Keys keys) const {
    std::vector<uint8_t> found(keys.size());
    detail::call(hps_contains, store_.get(), id_, keys.data(), keys.size(), found.data());
    return found;
  }
  uint64_t remove(Keys keys) const {
    uint64_t removed = 0;
    detail::call(hps_remove, store_.get(), id_, keys.data(), keys.size(), &removed);
    return removed;
  }

 private:
  std::shared_ptr<hps_store> store_;
  uint32_t id_ = 0;
  std::size_t dim_ = 0, row_f32s_ = 0;
};

/* A store. */
class Store {
 public:
  static Store create(const std::string &directory, const Options &options = Options()) {
    return made(hps_create, directory.c_str(), options.get());
  }
  static Store open(const std::string &directory, const Options &options = Options()) {
    return made(hps_open, directory.c_str(), options.get());
  }
  /* checkpoint 0: the last one. */
  static Store open_read_only(const std::string &directory, uint64_t checkpoint = 0,
                              const Options &options = Options()) {
    return made(hps_open_read_only, directory.c_str(), checkpoint, options.get());
  }
  /* Opens or creates the store, and gives its tables in the order of the descriptors. */
  static std::pair<Store, std::vector<Table>> open_or_create(
      const std::string &directory, const std::vector<const Descriptor *> &descriptors,
      const Options &options = Options()) {
    std::vector<const hps_descriptor *> handles;
    for (const Descriptor *descriptor : descriptors) handles.push_back(descriptor->get());
    std::vector<uint32_t> ids(descriptors.size());
    Store store = made(hps_open_or_create, directory.c_str(), options.get(), handles.data(),
                       handles.size(), ids.data());
    std::vector<Table> tables;
    for (uint32_t id : ids) tables.emplace_back(store.handle_, id);
    return {std::move(store), std::move(tables)};
  }

  /* Throws HPS_UNCHECKPOINTED where changes are lost and `discard` is false; it closes, too. */
  void close(bool discard = false) const { detail::call(hps_close, get(), int32_t{discard}); }
  bool has_changes() const {
    int32_t changes = 0;
    detail::call(hps_has_changes, get(), &changes);
    return changes != 0;
  }
  void set_cache_bytes(uint64_t bytes) const { detail::call(hps_set_cache_bytes, get(), bytes); }

  Table create_table(const Descriptor &descriptor) const {
    uint32_t id = 0;
    detail::call(hps_create_table, get(), descriptor.get(), &id);
    return Table(handle_, id);
  }
  Table create_table(const Descriptor &descriptor, const TableOptions &options) const {
    uint32_t id = 0;
    detail::call(hps_create_table_with, get(), descriptor.get(), options.get(), &id);
    return Table(handle_, id);
  }
  Table table(const std::string &name) const {
    uint32_t id = 0;
    detail::call(hps_table, get(), name.c_str(), &id);
    return Table(handle_, id);
  }
  std::vector<hps_table_info> tables() const {
    std::size_t count = 0;
    detail::call(hps_tables, get(), nullptr, std::size_t{0}, &count);
    std::vector<hps_table_info> infos(count);
    detail::call(hps_tables, get(), infos.data(), infos.size(), &count);
    infos.resize(std::min(count, infos.size()));
    return infos;
  }
  void drop_table(const Table &table) const { detail::call(hps_drop_table, get(), table.id()); }
  void rename_table(const Table &table, const std::string &name) const {
    detail::call(hps_rename_table, get(), table.id(), name.c_str());
  }

  Lease pull(View<const hps_pull_part> parts) const {
    hps_lease *lease = nullptr;
    detail::call(hps_pull_many, get(), parts.data(), parts.size(), &lease);
    return Lease(lease);
  }
  Ticket prefetch(View<const hps_prefetch_part> parts) const {
    hps_ticket *ticket = nullptr;
    detail::call(hps_prefetch_many, get(), parts.data(), parts.size(), &ticket);
    return Ticket(ticket);
  }
  PassTicket begin_pass(View<const hps_pass_part> parts) const;
  std::vector<hps_push_report> push(const Lease &lease, View<const hps_push_part> parts) const {
    std::vector<hps_push_report> reports(parts.size());
    detail::call(hps_push_many, get(), lease.get(), parts.data(), parts.size(), reports.data());
    return reports;
  }

  hps_checkpoint_info checkpoint(uint64_t step, View<const uint8_t> meta = {}) const {
    hps_checkpoint_info info;
    detail::call(hps_checkpoint, get(), step, meta.data(), meta.size(), &info);
    return info;
  }
  CheckpointTicket checkpoint_begin(uint64_t step, View<const uint8_t> meta = {}) const {
    hps_checkpoint_ticket *ticket = nullptr;
    detail::call(hps_checkpoint_begin, get(), step, meta.data(), meta.size(), &ticket);
    return CheckpointTicket(ticket);
  }
  std::vector<hps_checkpoint_info> checkpoints() const {
    std::size_t count = 0;
    detail::call(hps_checkpoints, get(), nullptr, std::size_t{0}, &count);
    std::vector<hps_checkpoint_info> infos(count);
    detail::call(hps_checkpoints, get(), infos.data(), infos.size(), &count);
    infos.resize(std::min(count, infos.size()));
    return infos;
  }
  std::optional<hps_checkpoint_info> last_checkpoint() const {
    hps_checkpoint_info info;
    detail::call(hps_last_checkpoint, get(), &info);
    if (info.id == 0) return std::nullopt;
    return info;
  }
  std::vector<uint8_t> checkpoint_meta(uint64_t checkpoint) const {
    hps_bytes *bytes = nullptr;
    detail::call(hps_checkpoint_meta, get(), checkpoint, &bytes);
    detail::Handle<hps_bytes, hps_bytes_free> freed(bytes);
    const uint8_t *data = hps_bytes_data(bytes);
    return std::vector<uint8_t>(data, data + hps_bytes_len(bytes));
  }
  void rollback(uint64_t checkpoint) const { detail::call(hps_rollback, get(), checkpoint); }
  void export_to(uint64_t checkpoint, const std::string &target) const {
    detail::call(hps_export, get(), checkpoint, target.c_str(), nullptr, std::size_t{0});
  }
  Hold hold(uint64_t checkpoint) const {
    hps_hold *hold = nullptr;
    detail::call(hps_hold_checkpoint, get(), checkpoint, &hold);
    return Hold(hold);
  }
  Rows rows(uint64_t checkpoint) const {
    hps_row_iter *rows = nullptr;
    detail::call(hps_rows, get(), checkpoint, &rows);
    return Rows(rows);
  }
  Rows rows_of(uint64_t checkpoint, const Table &table, std::size_t part = 0,
               std::size_t parts = 1) const {
    hps_row_iter *rows = nullptr;
    detail::call(hps_rows_of, get(), checkpoint, table.id(), part, parts, &rows);
    return Rows(rows);
  }

  hps_identity identity() const {
    hps_identity identity;
    detail::call(hps_store_identity, get(), &identity);
    return identity;
  }
  /* One counter, by its name; docs/C.md lists them. */
  uint64_t stat(const char *name) const {
    hps_stats *stats = nullptr;
    detail::call(hps_stats_read, get(), &stats);
    detail::Handle<hps_stats, hps_stats_free> freed(stats);
    uint64_t value = 0;
    detail::call(hps_stats_get, stats, name, &value);
    return value;
  }
  hps_store *get() const { return handle_.get(); }

 private:
  explicit Store(hps_store *handle) : handle_(handle, hps_store_free) {}
  template <class Call, class... Arguments>
  static Store made(Call function, Arguments... arguments) {
    hps_store *store = nullptr;
    detail::call(function, arguments..., &store);
    return Store(store);
  }

  std::shared_ptr<hps_store> handle_;
};

}  // namespace hps

#include "hps_passes.hpp"

#endif

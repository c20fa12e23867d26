/*
 * Passes of hps for C++17. hps.hpp includes it.
 *
 *   hps::PassTicket next = table.begin_pass(keys);    // or store.begin_pass(parts), with keyset files
 *   hps::Pass pass = next.wait();                     // all its rows are in memory until it ends
 *   pass.end().hit_rate;
 */
#ifndef HPS_PASSES_HPP
#define HPS_PASSES_HPP

#include "hps.hpp"

namespace hps {

/* Keeps the rows of a pass in memory until it ends. */
class Pass {
 public:
  Pass() = default;
  explicit Pass(hps_pass *handle) : handle_(handle) {}
  /* What bringing it in came to. */
  hps_pass_report report() const {
    hps_pass_report report;
    detail::call(hps_pass_read, get(), &report, nullptr, std::size_t{0}, nullptr);
    return report;
  }
  /* The same by part, in their order. */
  std::vector<hps_pass_table_report> tables() const {
    std::size_t count = 0;
    detail::call(hps_pass_read, get(), nullptr, nullptr, std::size_t{0}, &count);
    std::vector<hps_pass_table_report> tables(count);
    detail::call(hps_pass_read, get(), nullptr, tables.data(), tables.size(), &count);
    return tables;
  }
  /* [n, dim]: weights of a part's rows, in the order of its keys, from number `first` on. */
  void read(std::size_t part, std::size_t first, Floats out) const {
    detail::call(hps_pass_read_weights, get(), part, first, out.data(), out.size());
  }
  /* [n, row_f32s]: whole rows. */
  void read_rows(std::size_t part, std::size_t first, Floats out) const {
    detail::call(hps_pass_read_rows, get(), part, first, out.data(), out.size());
  }
  /* Writes rows, whatever they held: as Table::put of these keys, but they are not looked up. */
  hps_put_report put(std::size_t part, std::size_t first, Values values,
                     hps_values kind = HPS_WEIGHTS, bool verbatim = false) const {
    hps_put_report report;
    uint32_t flags = verbatim ? HPS_VERBATIM : 0;
    detail::call(hps_pass_put, get(), part, first, static_cast<int32_t>(kind), values.data(),
                 values.size(), flags, &report);
    return report;
  }
  /* Ends it, once or again: its rows may leave memory, but for those of blocks. */
  hps_pass_report end() const {
    hps_pass_report report;
    detail::call(hps_pass_end, get(), &report);
    return report;
  }
  hps_pass *get() const { return handle_.get(); }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  detail::Handle<hps_pass, hps_pass_free> handle_;
};

/* A pass on its way; it is given up where it ends before it has given its pass. */
class PassTicket {
 public:
  explicit PassTicket(hps_pass_ticket *handle) : handle_(handle) {}
  bool ready() const {
    int32_t ready = 0;
    detail::call(hps_pass_ticket_poll, handle_.get(), &ready);
    return ready != 0;
  }
  /* Throws HPS_OVER_BUDGET at once where it has no room beside what others hold. */
  Pass wait() const {
    hps_pass *pass = nullptr;
    detail::call(hps_pass_ticket_wait, handle_.get(), HPS_FOREVER, &pass);
    return Pass(pass);
  }
  /* Nothing where the rows are not in memory in time: wait again. */
  std::optional<Pass> wait_for(std::chrono::microseconds limit) const {
    hps_pass *pass = nullptr;
    uint64_t us = detail::microseconds(limit);
    if (!detail::wait(hps_pass_ticket_wait, handle_.get(), us, &pass)) return std::nullopt;
    return Pass(pass);
  }

 private:
  detail::Handle<hps_pass_ticket, hps_pass_ticket_free> handle_;
};

namespace detail {

inline PassTicket begin_pass(hps_store *store, View<const hps_pass_part> parts) {
  hps_pass_ticket *ticket = nullptr;
  call(hps_begin_pass, store, parts.data(), parts.size(), &ticket);
  return PassTicket(ticket);
}

}  // namespace detail

inline PassTicket Store::begin_pass(View<const hps_pass_part> parts) const {
  return detail::begin_pass(get(), parts);
}

inline PassTicket Table::begin_pass(Keys keys) const {
  hps_pass_part part[1] = {};
  part[0].table = id_;
  part[0].keys = keys.data();
  part[0].keys_len = keys.size();
  return detail::begin_pass(store_.get(), part);
}

inline PassTicket Table::begin_pass(const std::string &keyset, hps_key_type key_type) const {
  hps_pass_part part[1] = {};
  part[0].table = id_;
  part[0].key_type = static_cast<int32_t>(key_type);
  part[0].path = keyset.c_str();
  return detail::begin_pass(store_.get(), part);
}

}  // namespace hps

#endif

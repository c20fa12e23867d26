/* The classes of hps.hpp and hps_storage.hpp: `wrapper DIRECTORY`, which is empty. */
#include "hps_storage.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#define CHECK(what)                                                          \
  do {                                                                       \
    if (!(what)) {                                                           \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
      std::exit(1);                                                          \
    }                                                                        \
  } while (0)

namespace {

std::string root;

hps::Options small_options() {
  hps::Options options;
  options.cache_bytes(4 << 20).threads(2).shards(2).io(HPS_IO_PREAD);
  return options;
}

/* The code of the error that the work throws; HPS_OK if none. */
template <class Work>
int32_t code_of(Work work) {
  try {
    work();
  } catch (const hps::Error &error) {
    CHECK(std::strlen(error.what()) > 0);
    return error.code();
  }
  return HPS_OK;
}

void a_store_lives_its_life() {
  hps::TableOptions calm;
  calm.policy(HPS_POLICY_LRU).cache_bytes_min(0).cache_bytes_max(1 << 20);
  calm.hyper(hps::default_hyper());
  hps::Options options = small_options();
  options.io_depth(8).policy(HPS_POLICY_BILEVEL).file_bytes(1 << 20).flush_step_rows(0);
  options.space_bound(2.0).compaction_threads(1).open_files_max(64).warm(true).disk_bytes_max(1 << 30);
  options.retain_checkpoints(2).inline_work(false).non_finite(HPS_NON_FINITE_SKIP);
  options.hyper(hps::default_hyper()).table("users", calm).data_directory("one");
  hps::Descriptor items("items", 2), users("users", 1);
  items.optimizer(HPS_SGD).initialiser(HPS_INIT_CONSTANT, 0.5f).seed(3).accumulator(0);
  users.metadata(HPS_METADATA_COUNT);

  auto [store, tables] = hps::Store::open_or_create(root + "/life", {&items, &users}, options);
  CHECK(tables.size() == 2 && tables[0].dim() == 2 && tables[1].row_f32s() == 3);
  CHECK(store.tables().size() == 2 && store.table("users").id() == tables[1].id());
  hps::Table table = tables[0];
  std::array<uint64_t, 3> keys{7, 42, 7};
  std::vector<float> weights(6);
  hps::Lease lease = table.pull(keys, weights);
  CHECK(weights[0] == 0.5f && lease.size() == 3 && lease.parts() == 1 && lease.id() > 0);
  CHECK(table.push(lease, std::vector<float>{1, 1, 1, 1, 1, 1}, 0.25f).rows == 2);
  lease.read(weights);
  CHECK(weights[0] == 0.0f && weights[2] == 0.25f);
  std::vector<float> rows(6);
  lease.read_rows(rows);
  lease.read_part(0, rows);
  lease.read_rows_part(0, rows);
  CHECK(rows == weights);
  hps_update update{};
  float one[1] = {1};
  update.kind = HPS_DELTAS;
  update.values = one;
  update.values_len = 1;
  CHECK(code_of([&, &store = store] { table.push(lease, update); (void)store; }) ==
        HPS_INVALID_ARGUMENT);
  lease = hps::Lease();
  CHECK(!lease);

  CHECK(store.has_changes());
  std::vector<uint8_t> meta{1, 2, 3};
  uint64_t first = store.checkpoint(1, meta).id;
  CHECK(!store.has_changes() && store.checkpoint_meta(first) == meta);
  hps::Ticket ticket = table.prefetch(keys);
  std::optional<hps::Lease> came;
  while (!came) came = ticket.wait_for(std::chrono::milliseconds(1));
  CHECK(came->size() == 3 && ticket.ready());
  CHECK(code_of([&] { ticket.wait(); }) == HPS_INVALID_ARGUMENT);
  came.reset();
  CHECK(table.prefetch(keys).wait().size() == 3);

  hps_pull_part pull{};
  pull.table = table.id();
  pull.keys = keys.data();
  pull.keys_len = 3;
  pull.out = weights.data();
  pull.out_len = 6;
  hps_pull_part pulls[1] = {pull};
  hps::Lease of_parts = store.pull(pulls);
  hps_push_part push{};
  push.table = table.id();
  push.update.kind = HPS_GRADIENTS;
  push.update.lr = 1;
  push.update.values = weights.data();
  push.update.values_len = 6;
  CHECK(store.push(of_parts, hps::View<const hps_push_part>(&push, 1))[0].rows == 2);
  hps_prefetch_part ahead{};
  ahead.table = table.id();
  ahead.keys = keys.data();
  ahead.keys_len = 3;
  CHECK(store.prefetch(hps::View<const hps_prefetch_part>(&ahead, 1)).wait().size() == 3);
  of_parts = hps::Lease();

  hps::CheckpointTicket begun = store.checkpoint_begin(2);
  std::optional<hps_checkpoint_info> second;
  while (!second) second = begun.wait_for(std::chrono::milliseconds(1));
  CHECK(second->step == 2 && begun.done() && store.checkpoints().size() == 2);
  CHECK(store.last_checkpoint()->id == second->id);
  CHECK(store.checkpoint_begin(3).wait().step == 3);
  uint64_t last = store.last_checkpoint()->id, of[8];
  uint32_t of_table;
  std::vector<float> values(16);
  CHECK(store.rows(last).next(of, values, of_table) == 2 && of_table == table.id());
  CHECK(store.rows_of(last, table).next(of, values, of_table) == 2);
  { hps::Hold hold = store.hold(last); CHECK(store.stat("holds") == 1); }
  store.export_to(last, root + "/life-export");
  CHECK(hps::Store::open(root + "/life-export", small_options()).table("items").dim() == 2);
  CHECK(store.identity().checkpoint == last);
  CHECK(hps::Store::open_read_only(root + "/life", 0, small_options()).has_changes() == false);
  store.rollback(second->id);
  CHECK(store.last_checkpoint()->id == second->id);
  store.set_cache_bytes(5 << 20);
  hps::Table third = store.create_table(hps::Descriptor("third", 1));
  store.create_table(hps::Descriptor("fourth", 1), calm);
  store.rename_table(third, "fifth");
  store.drop_table(third);
  CHECK(code_of([&, &store = store] { store.close(); }) == HPS_UNCHECKPOINTED);
  CHECK(code_of([&] { table.pull(keys, weights); }) == HPS_INVALID_ARGUMENT);
}

void passes_come_and_go() {
  hps::Descriptor items("items", 2), users("users", 1);
  hps::TableOptions cached;
  cached.policy_cached(1, 0.5, 1);
  hps::Options options = small_options();
  options.table("users", cached).policy_cached(0, 0.5, 0);
  auto [store, tables] = hps::Store::open_or_create(root + "/passes", {&items, &users}, options);
  std::vector<uint64_t> keys{1, 2, 3};
  tables[1].put(keys, std::vector<float>(3));
  hps::PassTicket ticket = tables[1].begin_pass(keys);
  std::optional<hps::Pass> came;
  while (!came) came = ticket.wait_for(std::chrono::milliseconds(1));
  CHECK(ticket.ready() && code_of([&] { ticket.wait(); }) == HPS_INVALID_ARGUMENT);
  CHECK(came->report().keys == 3 && came->report().known == 3 && store.stat("pinned_rows") == 3);
  CHECK(came->end().keys == 3 && came->end().hits == 0 && came->tables()[0].is_block == 1);
  CHECK(store.stat("leases") == 0);

  std::string file = root + "/passes.keyset";
  std::FILE *written = std::fopen(file.c_str(), "wb");
  uint32_t small[4] = {1, 2, 3, 4};
  CHECK(written != nullptr && std::fwrite(small, sizeof small, 1, written) == 1);
  CHECK(std::fclose(written) == 0);
  CHECK(tables[1].begin_pass(file, HPS_KEYS_U32).wait().end().hit_rate == 1.0);
  CHECK(tables[1].begin_pass(file, HPS_KEYS_I64).wait().end().keys == 2);
  tables[1].unfreeze();

  std::vector<hps_pass_part> parts(2);
  parts[0].table = tables[0].id();
  parts[0].keys = keys.data();
  parts[0].keys_len = 3;
  parts[1].table = tables[1].id();
  parts[1].key_type = HPS_KEYS_U32;
  parts[1].path = file.c_str();
  hps::Pass pass = store.begin_pass(parts).wait();
  CHECK(pass && pass.tables().size() == 2 && pass.tables()[1].keys == 4);
  CHECK(pass.report().keys == 7 && store.stat("pinned_rows") >= 7);
  pass = hps::Pass();
  CHECK(!pass && store.stat("leases") == 0);
  CHECK(code_of([&, &store = store] { store.begin_pass({}); }) == HPS_INVALID_ARGUMENT);
  store.close(true);
}

void an_error_says_what_and_why() {
  hps::Store store = hps::Store::create(root + "/errors", small_options());
  try {
    store.table("nobody");
    CHECK(false);
  } catch (const hps::Error &error) {
    CHECK(error.code() == HPS_INVALID_ARGUMENT && error.kind() == "UnknownTable");
    CHECK(error.text("name") == std::string("nobody") && !error.number("name"));
    CHECK(!error.text("errno"));
  }
  CHECK(code_of([] { hps::Store::open(root + "/nowhere"); }) == HPS_INVALID_ARGUMENT);
  CHECK(!store.last_checkpoint());
  store.close();
}

void rows_are_kept_for_a_cache_above() {
  using Storage = hps::KeyValueStorage<int64_t>;
  const std::size_t dims = 3;
  hps::Store store = hps::Store::create(root + "/storage", small_options());
  hps::Descriptor descriptor("values", dims);
  descriptor.optimizer(HPS_SGD);
  const int64_t empty = -1;
  Storage storage(store.create_table(descriptor), empty);
  int64_t keys[4] = {5, empty, 6, 5};
  float values[4 * dims] = {1, 2, 3, 9, 9, 9, 4, 5, 6, 7, 8, 9};
  storage.insert_or_assign(4, keys, values, dims);

  int64_t asked[5] = {6, 77, 5, empty, 5};
  float got[5 * dims];
  bool founds[5] = {false, false, false, false, true};
  std::fill(got, got + 5 * dims, -1.0f);
  CHECK(storage.find(5, asked, got, dims, founds) == 2);
  CHECK(founds[0] && !founds[1] && founds[2] && !founds[3] && founds[4]);
  /* Of equal keys the last one counts; what was not found, or was found before, is untouched. */
  float wanted[5 * dims] = {4, 5, 6, -1, -1, -1, 7, 8, 9, -1, -1, -1, -1, -1, -1};
  CHECK(std::equal(got, got + 5 * dims, wanted));

  /* An update in the middle of it: an assign replaces. */
  float other[dims] = {0, 0, 1};
  storage.insert_or_assign(1, asked, other, dims);
  founds[0] = false;
  CHECK(storage.find(1, asked, got, dims, founds) == 1 && got[2] == 1.0f);
  storage.erase(2, asked);
  founds[0] = false;
  CHECK(storage.find(1, asked, got, dims, founds) == 0 && !founds[0]);
  try {
    storage.find(1, asked, got, dims + 1, founds);
    CHECK(false);
  } catch (const std::invalid_argument &) {
  }

  /* Without a mask every key is a key. */
  hps::KeyValueStorage<uint64_t> all(storage.table());
  uint64_t greatest = std::numeric_limits<uint64_t>::max();
  all.insert_or_assign(1, &greatest, other, dims, hps::NoStream{});
  bool found = false;
  CHECK(all.find(1, &greatest, got, dims, &found) == 1 && found);

  /* More rows than the cache holds, in one call. */
  const std::size_t many = 300000;
  std::vector<uint64_t> all_keys(many);
  std::vector<float> all_values(many * dims), all_got(many * dims);
  for (std::size_t i = 0; i < many; i++) {
    all_keys[i] = i;
    all_values[i * dims] = static_cast<float>(i);
  }
  all.insert_or_assign(many, all_keys.data(), all_values.data(), dims);
  std::unique_ptr<bool[]> all_founds(new bool[many]());
  CHECK(all.find(many, all_keys.data(), all_got.data(), dims, all_founds.get()) == many);
  CHECK(all_got == all_values);
  all.erase(many, all_keys.data());
  std::fill_n(all_founds.get(), many, false);
  CHECK(all.find(many, all_keys.data(), all_got.data(), dims, all_founds.get()) == 0);
  store.checkpoint(1);
  store.close();
}

}  // namespace

int main(int argc, char **argv) {
  CHECK(argc == 2);
  root = argv[1];
  a_store_lives_its_life();
  passes_come_and_go();
  an_error_says_what_and_why();
  rows_are_kept_for_a_cache_above();
  std::puts("all classes used");
}

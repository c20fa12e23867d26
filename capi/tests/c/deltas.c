/* Changes since a checkpoint, cursors, copies that take deltas: `deltas DIRECTORY`, which is empty. */
#include "check.h"

enum { DIM = 2, ROW = 2 * DIM };

static uint32_t table_of(hps_store *store) {
  uint32_t table;
  OK(hps_table(store, "users", &table, &error));
  return table;
}

static void set(hps_store *store, uint64_t first, size_t n, float value) {
  uint64_t keys[64];
  float rows[64 * DIM];
  for (size_t i = 0; i < n; i++) keys[i] = first + i;
  for (size_t i = 0; i < n * DIM; i++) rows[i] = value;
  OK(hps_put(store, table_of(store), keys, n, HPS_WEIGHTS, rows, n * DIM, 0, NULL, &error));
}

static uint64_t checkpoint(hps_store *store, uint64_t step) {
  hps_checkpoint_info info;
  OK(hps_checkpoint(store, step, (const uint8_t *)"meta", 4, &info, &error));
  return info.id;
}

/* All changes, in pieces that have no room for many. */
static void changes_are(hps_changes *changes, size_t rows, size_t removed) {
  uint64_t keys[7], gone[3];
  float values[7 * ROW];
  uint32_t of;
  size_t count = 1, more = 0, all = 0, all_gone = 0;
  while (count + more > 0) {
    OK(hps_changes_next(changes, keys, 7, values, 7 * ROW, gone, 3, &of, &count, &more, &error));
    for (size_t i = 0; i < count; i++) CHECK(values[i * ROW] == 2.0f);
    all += count;
    all_gone += more;
  }
  CHECK(all == rows && all_gone == removed);
  hps_changes_free(changes);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  root = argv[1];
  hps_options *options = small_options();
  hps_descriptor *descriptor;
  hps_store *store, *copy;
  uint32_t table;
  OK(hps_create(below("store"), options, &store, &error));
  OK(hps_descriptor_new("users", DIM, &descriptor, &error));
  OK(hps_create_table(store, descriptor, &table, &error));
  hps_descriptor_free(descriptor);
  set(store, 0, 50, 1.0f);
  uint64_t first = checkpoint(store, 10);
  hps_delta_info info;
  OK(hps_write_delta(store, first, below("delta-0"), NULL, 0, &info, &error));
  CHECK(info.sequence == 0 && info.since == 0 && info.rows == 50 && info.is_new == 1);
  OK(hps_set_cursor(store, "serving", first, &error));
  FAILS(HPS_INVALID_ARGUMENT, "UnknownCheckpoint", hps_set_cursor(store, "x", 99, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other", hps_set_cursor(store, "", first, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_set_cursor(store, NULL, first, &error));

  set(store, 20, 20, 2.0f);
  const uint64_t gone[5] = {1, 2, 3, 4, 5};
  OK(hps_remove(store, table, gone, 5, NULL, &error));
  uint64_t second = checkpoint(store, 20);
  uint64_t found = 9;
  OK(hps_cursor(store, "serving", &found, &error));
  CHECK(found == first);
  OK(hps_cursor(store, "nobody", &found, &error));
  CHECK(found == 0);

  hps_changes *changes;
  OK(hps_incremental(store, first, second, &changes, &error));
  uint32_t of;
  size_t count, more;
  uint64_t key;
  float row[ROW];
  FAILS(HPS_INVALID_ARGUMENT, "Length",
        hps_changes_next(changes, &key, 0, row, ROW, &key, 0, &of, &count, &more, &error));
  FAILS(HPS_NULL_POINTER, NULL,
        hps_changes_next(changes, &key, 1, row, ROW, &key, 1, &of, NULL, &more, &error));
  changes_are(changes, 20, 5);
  for (size_t part = 0; part < 2; part++) {
    OK(hps_incremental_of(store, first, second, table, part, 2, &changes, &error));
    hps_changes_free(changes);
  }
  FAILS(HPS_INVALID_ARGUMENT, "Option",
        hps_incremental_of(store, first, second, table, 2, 2, &changes, &error));
  FAILS(HPS_INVALID_ARGUMENT, "HistoryGone",
        hps_incremental(store, 99, second, &changes, &error));
  CHECK(changes == NULL);
  hps_changes_free(NULL);

  OK(hps_write_delta(store, second, below("delta-1"), below("delta-0"), 0, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Other",
        hps_write_delta(store, second, below("delta-2"), below("delta-0"), 1, NULL, &error));
  FAILS(HPS_INVALID_ARGUMENT, "NotAStore",
        hps_write_delta(store, second, below("delta-1"), NULL, 0, NULL, &error));
  OK(hps_remove_cursor(store, "serving", &error));

  OK(hps_create(below("copy"), options, &copy, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Delta", hps_apply_delta(copy, below("delta-1"), NULL, &error));
  OK(hps_apply_delta(copy, below("delta-0"), NULL, &error));
  OK(hps_apply_delta(copy, below("delta-1"), &info, &error));
  CHECK(info.sequence == 1 && info.rows == 20 && info.removed == 5 && info.is_new == 1);
  OK(hps_apply_delta(copy, below("delta-1"), &info, &error));
  CHECK(info.is_new == 0 && info.step == 20 && info.until == second);
  hps_bytes *meta;
  hps_checkpoint_info last;
  OK(hps_last_checkpoint(copy, &last, &error));
  CHECK(last.step == 20);
  OK(hps_checkpoint_meta(copy, last.id, &meta, &error));
  CHECK(hps_bytes_len(meta) == 4 && memcmp(hps_bytes_data(meta), "meta", 4) == 0);
  hps_bytes_free(meta);
  uint8_t there[2];
  const uint64_t asked[2] = {3, 39};
  OK(hps_contains(copy, table_of(copy), asked, 2, there, &error));
  CHECK(there[0] == 0 && there[1] == 1);

  hps_options_free(options);
  OK(hps_close(copy, 0, &error));
  OK(hps_close(store, 0, &error));
  hps_store_free(copy);
  hps_store_free(store);
  puts("all deltas taken");
  return 0;
}

/* Checkpoints, walks, holds, exports, rollbacks, counters: `history DIRECTORY`, which is empty. */
#include "check.h"

enum { DIM = 4 };

/* Rows as `hps_pull` gives them, without keeping the lease. */
static void weights_of(hps_store *store, uint32_t table, const uint64_t *keys, size_t n,
                       float *out) {
  hps_lease *lease;
  OK(hps_pull(store, table, keys, n, out, n * DIM, &lease, &error));
  hps_lease_free(lease);
}

static void checkpoints_are_kept_and_walked(hps_store *store, uint32_t table) {
  hps_checkpoint_info first, second, infos[4], last;
  hps_checkpoint_ticket *ticket;
  hps_bytes *meta;
  size_t count;
  OK(hps_last_checkpoint(store, &last, &error));
  CHECK(last.id == 0);
  OK(hps_checkpoint(store, 10, (const uint8_t *)"dense", 5, &first, &error));
  CHECK(first.id > 0 && first.step == 10 && first.meta_bytes == 5 && first.unix_seconds > 0);
  FAILS(HPS_INVALID_ARGUMENT, "StepNotRising", hps_checkpoint(store, 10, NULL, 0, NULL, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_checkpoint(store, 11, NULL, 1, NULL, &error));

  uint64_t key = 5000;
  float values[DIM] = {1, 2, 3, 4}, weights[DIM];
  OK(hps_put(store, table, &key, 1, HPS_WEIGHTS, values, DIM, 0, NULL, &error));
  OK(hps_checkpoint_begin(store, 20, NULL, 0, &ticket, &error));
  int32_t done = 9, code = HPS_DEADLINE;
  OK(hps_checkpoint_ticket_poll(ticket, &done, &error));
  CHECK(done == 0 || done == 1);
  while (code == HPS_DEADLINE) code = hps_checkpoint_ticket_wait(ticket, 1000, &second, NULL);
  CHECK(code == HPS_OK && second.step == 20 && second.id > first.id);
  OK(hps_checkpoint_ticket_poll(ticket, &done, &error));
  CHECK(done == 1);
  FAILS(HPS_INVALID_ARGUMENT, "Other",
        hps_checkpoint_ticket_wait(ticket, HPS_FOREVER, NULL, &error));
  hps_checkpoint_ticket_free(ticket);
  FAILS(HPS_NULL_POINTER, NULL, hps_checkpoint_ticket_poll(NULL, &done, &error));

  OK(hps_checkpoints(store, infos, 4, &count, &error));
  CHECK(count == 2 && infos[0].id == first.id && infos[1].id == second.id);
  OK(hps_last_checkpoint(store, &last, &error));
  CHECK(last.id == second.id);
  OK(hps_checkpoint_meta(store, first.id, &meta, &error));
  CHECK(hps_bytes_len(meta) == 5 && memcmp(hps_bytes_data(meta), "dense", 5) == 0);
  CHECK(hps_bytes_len(NULL) == 0 && hps_bytes_data(NULL) == NULL);
  hps_bytes_free(meta);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownCheckpoint", hps_checkpoint_meta(store, 99, &meta, &error));
  CHECK(meta == NULL);

  /* A walk gives all rows of the checkpoint, and each part of it a share of them. */
  hps_row_iter *rows;
  uint64_t keys[16];
  float out[16 * (2 * DIM + 1)];
  uint32_t intervals[16], of;
  size_t all = 0, parts = 0;
  OK(hps_rows(store, second.id, &rows, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Length",
        hps_row_iter_next(rows, keys, 1, out, 1, NULL, &of, &count, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Length",
        hps_row_iter_next(rows, keys, 0, out, 99, NULL, &of, &count, &error));
  for (count = 1; count > 0; all += of == table ? count : 0) {
    OK(hps_row_iter_next(rows, keys, 16, out, sizeof out / sizeof out[0], intervals, &of, &count,
                         &error));
    for (size_t i = 0; i < count; i++)
      if (keys[i] == key) CHECK(memcmp(out + i * (2 * DIM + 1), values, sizeof values) == 0);
  }
  hps_row_iter_free(rows);
  for (size_t part = 0; part < 3; part++) {
    OK(hps_rows_of(store, second.id, table, part, 3, &rows, &error));
    for (count = 1; count > 0; parts += count)
      OK(hps_row_iter_next(rows, keys, 1, out, 2 * DIM + 1, NULL, &of, &count, &error));
    hps_row_iter_free(rows);
  }
  CHECK(all == parts && all > 3);
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_rows_of(store, second.id, table, 3, 3, &rows, &error));
  FAILS(HPS_INVALID_ARGUMENT, "UnknownCheckpoint", hps_rows(store, 99, &rows, &error));
  FAILS(HPS_NULL_POINTER, NULL,
        hps_row_iter_next(NULL, keys, 1, out, 9, NULL, &of, &count, &error));

  /* A hold keeps it, an export holds it, a rollback goes back to it. */
  hps_hold *hold;
  hps_identity before, after;
  uint64_t dropped = 9;
  OK(hps_hold_checkpoint(store, first.id, &hold, &error));
  CHECK(counter(store, "holds") == 1);
  OK(hps_drop_checkpoints(store, &first.id, 1, &dropped, &error));
  CHECK(dropped == 0);
  hps_hold_free(hold);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownCheckpoint", hps_hold_checkpoint(store, 99, &hold, &error));
  OK(hps_export(store, first.id, below("export"), NULL, 0, &error));
  const char *part = below("export-part");
  OK(hps_export(store, first.id, below("export-2"), &part, 1, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_export(store, first.id, NULL, NULL, 0, &error));
  OK(hps_store_identity(store, &before, &error));
  CHECK(before.checkpoint == second.id);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownCheckpoint", hps_rollback(store, 99, &error));
  OK(hps_rollback(store, first.id, &error));
  OK(hps_store_identity(store, &after, &error));
  CHECK(memcmp(before.store, after.store, 16) == 0);
  CHECK(memcmp(before.timeline, after.timeline, 16) != 0);
  weights_of(store, table, &key, 1, weights);
  CHECK(memcmp(weights, values, sizeof values) != 0);
  OK(hps_checkpoint(store, 21, NULL, 0, &second, &error));
  OK(hps_drop_checkpoints(store, &first.id, 1, &dropped, &error));
  CHECK(dropped == 1);
  FAILS(HPS_INVALID_ARGUMENT, NULL, hps_drop_checkpoints(store, &second.id, 1, NULL, &error));

  hps_options *options = small_options();
  hps_store *reader;
  OK(hps_open_read_only(below("store"), second.id, options, &reader, &error));
  weights_of(reader, table, &key, 1, weights);
  FAILS(HPS_READ_ONLY, NULL, hps_checkpoint(reader, 30, NULL, 0, NULL, &error));
  FAILS(HPS_READ_ONLY, NULL, hps_rollback(reader, second.id, &error));
  OK(hps_close(reader, 0, &error));
  hps_store_free(reader);
  FAILS(HPS_INVALID_ARGUMENT, "UnknownCheckpoint",
        hps_open_read_only(below("store"), 99, options, &reader, &error));
  OK(hps_open_read_only(below("store"), 0, options, &reader, &error));
  hps_store_free(reader);
  hps_error *error;
  CHECK(hps_open(below("store"), options, &reader, &error) == HPS_LOCKED);
  CHECK(strcmp(hps_error_field_text(error, "holder"), "writer") == 0);
  hps_error_free(error);
  hps_options_free(options);
}

static void counters_have_names(hps_store *store, uint32_t table) {
  hps_stats *stats;
  uint64_t value, of_table;
  OK(hps_stats_read(store, &stats, &error));
  size_t names = 0, table_names = 0;
  for (; hps_stats_name(stats, names) != NULL; names++)
    OK(hps_stats_get(stats, hps_stats_name(stats, names), &value, &error));
  for (; hps_stats_table_name(stats, table_names) != NULL; table_names++)
    OK(hps_stats_get_table(stats, table, hps_stats_table_name(stats, table_names), &value, &error));
  CHECK(names > 50 && table_names > 20);
  OK(hps_stats_get(stats, "rows_read", &value, &error));
  OK(hps_stats_get_table(stats, table, "rows_read", &of_table, &error));
  CHECK(value >= of_table && of_table > 0);
  OK(hps_stats_get_table(stats, table, "wait_device_us", &value, &error));
  CHECK(strcmp(hps_stats_io_engine(stats), "pread") == 0 && hps_stats_io_engine(NULL) == NULL);
  FAILS(HPS_INVALID_ARGUMENT, "Option", hps_stats_get(stats, "nothing", &value, &error));
  FAILS(HPS_INVALID_ARGUMENT, "Option",
        hps_stats_get_table(stats, 99, "rows_read", &value, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_stats_get(NULL, "reads", &value, &error));
  FAILS(HPS_NULL_POINTER, NULL, hps_stats_read(store, NULL, &error));
  CHECK(hps_stats_name(NULL, 0) == NULL && hps_stats_table_name(NULL, 0) == NULL);
  hps_stats_free(stats);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  root = argv[1];
  hps_options *options = small_options();
  hps_descriptor *clicks = descriptor_of("clicks", DIM);
  hps_store *store;
  uint32_t table;
  uint64_t keys[5] = {1, 2, 3, 4, 5};
  float values[5 * DIM] = {0};
  OK(hps_descriptor_set_metadata(clicks, HPS_METADATA_SHOW, &error));
  OK(hps_create(below("store"), options, &store, &error));
  OK(hps_create_table(store, clicks, &table, &error));
  OK(hps_put(store, table, keys, 5, HPS_WEIGHTS, values, 5 * DIM, 0, NULL, &error));
  checkpoints_are_kept_and_walked(store, table);
  counters_have_names(store, table);
  OK(hps_close(store, 1, &error));
  hps_store_free(store);
  hps_descriptor_free(clicks);
  hps_options_free(options);
  puts("all history told");
  return 0;
}
